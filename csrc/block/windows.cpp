#include "block/windows.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "swin.h"

namespace swin {

Axis::Axis(int64_t length, int64_t window, int64_t shift, int32_t padding)
    : length(length), window(window), count((length + window - 1) / window) {
  const int64_t padded = count * window;
  const int64_t rolled = padding == SWIN_PADDING_AFTER_ROLL ? length : padded;
  for (int64_t i = 0; i < padded; i++) {
    const int64_t at = i < rolled ? (i + shift) % rolled : i;
    coordinate.push_back(static_cast<int32_t>(at));
    region.push_back(padding == SWIN_PADDING_MASKED && at >= length ? 2 : i >= padded - shift ? 1 : 0);
  }
  for (int64_t w = 0; w < count; w++) {
    const auto first = region.begin() + w * window, last = first + window;
    const bool whole = std::all_of(first, last, [&](int32_t other) { return other == *first; });
    mask_id.push_back(whole ? 0 : static_cast<int32_t>(w + 1));
    const auto at = coordinate.begin() + w * window;
    inside.push_back(static_cast<int32_t>(std::count_if(at, at + window, [&](int32_t i) { return i < length; })));
  }
}
Axis::Axis(Axis&&) noexcept = default;
Axis::~Axis() = default;

Groups::Groups(int64_t count, int64_t windows) : windows(windows), begin(count + 1) {}
Groups::~Groups() = default;

Group Groups::operator[](int64_t group) const {
  return {windows.data() + begin[group], begin[group + 1] - begin[group]};
}

char* SavedGroups::of(int64_t group) const { return memory ? memory + group * bytes : nullptr; }

Windows::Windows(int64_t batch, Axis rows, Axis columns)
    : batch(batch), rows(std::move(rows)), columns(std::move(columns)) {}
Windows::~Windows() = default;

int64_t Windows::count() const { return batch * rows.count * columns.count; }
int64_t Windows::tokens() const { return batch * rows.length * columns.length; }
int64_t Windows::area() const { return rows.window * columns.window; }
int64_t Windows::row_of(int64_t window) const { return window / columns.count % rows.count; }
int64_t Windows::column_of(int64_t window) const { return window % columns.count; }

Groups Windows::deal(int64_t num_groups) const {
  std::vector<int32_t> order(count());
  std::iota(order.begin(), order.end(), 0);
  std::vector<int64_t> tokens(count());
  for (const int32_t w : order) tokens[w] = static_cast<int64_t>(rows.inside[row_of(w)]) * columns.inside[column_of(w)];
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return tokens[a] > tokens[b]; });
  const auto group_of = [&](int64_t i) {
    const int64_t at = i % num_groups;
    return i / num_groups % 2 ? num_groups - 1 - at : at;
  };
  Groups groups(num_groups, count());
  for (int64_t i = 0; i < count(); i++) groups.begin[group_of(i) + 1]++;
  std::partial_sum(groups.begin.begin(), groups.begin.end(), groups.begin.begin());
  std::vector<int64_t> next(groups.begin.begin(), groups.begin.end() - 1);
  std::vector<int64_t> sums(num_groups);
  for (int64_t i = 0; i < count(); i++) {
    groups.windows[next[group_of(i)]++] = order[i];
    sums[group_of(i)] += tokens[order[i]];
  }
  groups.max_windows = (count() + num_groups - 1) / num_groups;
  groups.max_tokens = *std::max_element(sums.begin(), sums.end());
  return groups;
}

void Windows::tokens_of(int64_t window, int32_t* token_at) const {
  const int32_t* y = &rows.coordinate[row_of(window) * rows.window];
  const int32_t* x = &columns.coordinate[column_of(window) * columns.window];
  const int64_t image = window / (rows.count * columns.count) * rows.length;
  for (int64_t i = 0; i < rows.window; i++)
    for (int64_t j = 0; j < columns.window; j++) {
      const bool inside = y[i] < rows.length && x[j] < columns.length;
      *token_at++ = inside ? static_cast<int32_t>((image + y[i]) * columns.length + x[j]) : -1;
    }
}

int64_t Windows::mask_id(int64_t window) const {
  return rows.mask_id[row_of(window)] * (columns.count + 1) + columns.mask_id[column_of(window)];
}

void Windows::mask(int64_t window, int64_t stride, float* to) const {
  const int32_t* y = &rows.region[row_of(window) * rows.window];
  const int32_t* x = &columns.region[column_of(window) * columns.window];
  const int64_t width = columns.window;
  for (int64_t q = 0; q < area(); q++, to += stride) {
    float* at = to;
    for (int64_t i = 0; i < rows.window; i++)
      for (int64_t j = 0; j < width; j++)
        *at++ = y[i] == y[q / width] && x[j] == x[q % width] ? 0.f : -std::numeric_limits<float>::infinity();
    std::fill(at, to + stride, 0.f);
  }
}

}  // namespace swin
