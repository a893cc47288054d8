#include "patches/patches.h"

namespace swin::SWIN_ISA {

// Call f(index, image, channel, y, x, count) for each row of a patch inside the image: `count` pixels from (y, x) on
// are numbers `index` ... of the patch.
template <class F>
void Patches::over_rows(int64_t token, const F& f) const {
  const int64_t x = token % columns() * patch_width, y = token / columns() % rows() * patch_height;
  const int64_t tall = std::min(patch_height, height - y), wide = std::min(patch_width, width - x);
  for (int64_t c = 0; c < channels; c++)
    for (int64_t i = 0; i < tall; i++)
      f((c * patch_height + i) * patch_width, token / (rows() * columns()), c, y + i, x, wide);
}

void Patches::read(int64_t token, float* to) const {
  std::fill_n(to, channels * patch_height * patch_width, 0.f);
  over_rows(token, [&](int64_t index, int64_t image, int64_t c, int64_t y, int64_t x, int64_t count) {
    const float* from = pixels + image * stride[0] + c * stride[1] + y * stride[2] + x * stride[3];
    for (int64_t i = 0; i < count; i++) to[index + i] = from[i * stride[3]];
  });
}

void Patches::write(int64_t token, const float* from, float* images) const {
  over_rows(token, [&](int64_t index, int64_t image, int64_t c, int64_t y, int64_t x, int64_t count) {
    std::copy_n(from + index, count, images + ((image * channels + c) * height + y) * width + x);
  });
}

// Call f(index of a neighbour, offset in the map, or -1 for padding).
template <class F>
void Neighbours::over_neighbours(int64_t token, const F& f) const {
  const int64_t image = token / (rows() * columns()), x = token % columns() * 2, y = token / columns() % rows() * 2;
  for (int64_t i = 0; i < 4; i++) {
    const int64_t at_y = y + i / 2, at_x = x + i % 2;
    f(i, at_y < height && at_x < width ? ((image * height + at_y) * width + at_x) * channels : -1);
  }
}

void Neighbours::read(int64_t token, float* to) const {
  over_neighbours(token, [&](int64_t i, int64_t at) {
    if (at < 0)
      std::fill_n(to + i * channels, channels, 0.f);
    else
      std::copy_n(x + at, channels, to + i * channels);
  });
}

void Neighbours::write(int64_t token, const float* from, float* map) const {
  over_neighbours(token, [&](int64_t i, int64_t at) {
    if (at >= 0) std::copy_n(from + i * channels, channels, map + at);
  });
}

template <class T, class Source>
void project(const Source& source, const Projection<T>& p, int64_t threads, float* out) {
  const Linear<T>& w = p.linear;
  const int64_t tokens = source.tokens(), K = w.padded_K();
  each_part(ceil_div(tokens, GROUP_TOKENS), threads, [&](int64_t begin, int64_t end) {
    [[maybe_unused]] const TilesInUse tiles;
    float* raw;
    T* rows;
    ProductWorkspace<T> workspace;
    Memory memory;
    memory.allocate([&](Arena& arena) {
      raw = arena.take<float>(K);
      rows = arena.take<T>(GROUP_TOKENS * K);
      workspace = {{&w}, arena};
    });
    std::fill_n(raw, K, 0.f);
    for (int64_t first = begin * GROUP_TOKENS; first < std::min(tokens, end * GROUP_TOKENS); first += GROUP_TOKENS) {
      const int64_t count = std::min(GROUP_TOKENS, tokens - first);
      const Timed timed(Work::NORMS, count * K);
      for (int64_t m = 0; m < count; m++) read_row(source, p, first + m, raw, rows + m * K);
      linear_to(rows, K, count, w, workspace, out + first * w.N, w.N);
      if (p.norm_after)
        for (int64_t m = first; m < first + count; m++) layer_norm(out + m * w.N, w.N, *p.norm_after, out + m * w.N);
    }
  });
}

#define INSTANTIATE_FOR(T, Source) \
  template void project<T, Source>(const Source&, const Projection<T>&, int64_t, float*);
#define INSTANTIATE(T) SWIN_FOR_EACH_PROJECTION(INSTANTIATE_FOR, T)
SWIN_FOR_EACH_DTYPE(INSTANTIATE)
#undef INSTANTIATE_FOR
#undef INSTANTIATE

}  // namespace swin::SWIN_ISA
