// Greedy suppression of overlapping boxes.

#include <algorithm>

#include "detection/roi_align.h"
#include "machine/arena.h"
#include "machine/simd.h"
#include "machine/threads.h"

namespace swin::SWIN_ISA {
namespace {

constexpr int64_t HEAD = 256;   // boxes decided together, before comparison with later boxes
constexpr int64_t STRIP = 128;  // boxes of a comparison

// The boxes without a better overlapping box so far, the best first.
struct Boxes {
  float *x1, *y1, *x2, *y2, *area;
  int64_t* index;
  int32_t* gone;

  Boxes() = default;
  Boxes(Arena& arena, int64_t count)
      : x1(arena.take<float>(count)),
        y1(arena.take<float>(count)),
        x2(arena.take<float>(count)),
        y2(arena.take<float>(count)),
        area(arena.take<float>(count)),
        index(arena.take<int64_t>(count)),
        gone(arena.take<int32_t>(count)) {}

  void move(int64_t from, int64_t to) {
    x1[to] = x1[from], y1[to] = y1[from], x2[to] = x2[from], y2[to] = y2[from];
    area[to] = area[from], index[to] = index[from], gone[to] = gone[from];
  }
};

struct Rule {
  float threshold, offset;
};

// Mark the boxes of begin ... end - 1, at most STRIP, that box i suppresses. The compiler vectorises these plain loops.
// A box with a number that is not finite suppresses nothing.
void suppress_strip(const Boxes& b, int64_t i, int64_t begin, int64_t end, const Rule& rule) {
  const float x1 = b.x1[i], y1 = b.y1[i], x2 = b.x2[i], y2 = b.y2[i], area = b.area[i];
  const int64_t count = end - begin;
  float shared[STRIP];
  int32_t touches = 0;
  for (int64_t j = 0; j < count; j++) {
    const float left = std::max(x1, b.x1[begin + j]), right = std::min(x2, b.x2[begin + j]);
    const float top = std::max(y1, b.y1[begin + j]), bottom = std::min(y2, b.y2[begin + j]);
    shared[j] = std::max(0.f, right - left + rule.offset) * std::max(0.f, bottom - top + rule.offset);
    touches |= shared[j] > 0.f;
  }
  if (!touches && rule.threshold >= 0.f) return;  // most: no division
  for (int64_t j = 0; j < count; j++)
    b.gone[begin + j] |= shared[j] / (area + b.area[begin + j] - shared[j]) > rule.threshold;
}

}  // namespace

int64_t suppress(const float* boxes, const int64_t* order, int64_t count, float threshold, float offset,
                 int64_t threads, int64_t* kept) {
  Boxes b;
  Memory memory;
  memory.allocate([&](Arena& arena) { b = Boxes(arena, count); });
  const Rule rule{threshold, offset};
  for (int64_t i = 0; i < count; i++) {
    const float* box = boxes + 4 * order[i];
    b.x1[i] = box[0], b.y1[i] = box[1], b.x2[i] = box[2], b.y2[i] = box[3];
    b.area[i] = (box[2] - box[0] + offset) * (box[3] - box[1] + offset);
    b.index[i] = order[i];
    b.gone[i] = 0;
  }
  int64_t num_kept = 0;
  for (int64_t left = count; left > 0;) {
    const int64_t head = std::min(HEAD, left);
    int64_t settled = 0;  // kept boxes of the head, moved to the front
    for (int64_t i = 0; i < head; i++) {
      if (b.gone[i]) continue;
      for (int64_t begin = i + 1; begin < head; begin += STRIP)
        suppress_strip(b, i, begin, std::min(begin + STRIP, head), rule);
      kept[num_kept++] = b.index[i];
      b.move(i, settled++);
    }
    const int64_t strips = ceil_div(left - head, STRIP);
    each_part(strips, strips * settled < 256 ? 1 : threads, [&](int64_t first, int64_t last) {
      for (int64_t strip = first; strip < last; strip++) {
        const int64_t begin = head + strip * STRIP, end = std::min(begin + STRIP, left);
        for (int64_t i = 0; i < settled; i++) suppress_strip(b, i, begin, end, rule);
      }
    });
    int64_t next = 0;
    for (int64_t i = head; i < left; i++)
      if (!b.gone[i]) b.move(i, next++);
    left = next;
  }
  return num_kept;
}

}  // namespace swin::SWIN_ISA
