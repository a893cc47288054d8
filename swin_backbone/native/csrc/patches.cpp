#include "patches.h"

#include <ATen/Parallel.h>

#include <memory>
#include <vector>

#include "buffers.h"

namespace swin {
namespace {

constexpr int64_t TOKENS = 2 * MAX_ROWS;  // that a thread computes at a time

// fill(token, row) writes w.padded_K() numbers for a token; they are projected and, if there is a norm, normalised.
template <class T, class Fill>
void project(int64_t tokens, const Linear<T>& w, const std::optional<Affine>& norm, float* out, const Fill& fill) {
  const int64_t K = w.padded_K();
  at::parallel_for(0, (tokens + TOKENS - 1) / TOKENS, 1, [&](int64_t begin, int64_t end) {
    T* rows;
    ProductRoom<T> room;
    Buffers memory;
    memory.allocate([&](const auto& take) {
      rows = (T*)take(TOKENS * K * sizeof(T));
      room = ProductRoom<T>({&w}, take);
    });
    for (int64_t first = begin * TOKENS; first < std::min(tokens, end * TOKENS); first += TOKENS) {
      const int64_t count = std::min(TOKENS, tokens - first);
      for (int64_t m = 0; m < count; m++) fill(first + m, rows + m * K);
      product(rows, K, count, w, room,
              [&](int64_t m, int64_t count, int64_t n, int64_t columns, const float* c) {
                for (int64_t r = 0; r < count; r++) {
                  float* to = out + (first + m + r) * w.N + n;
                  const float *row = c + r * columns, *bias = w.bias + n;
                  over_columns(columns, [&](int64_t i, int64_t lanes) {
                    store(to + i, load(row + i, lanes) + load(bias + i, lanes), lanes);
                  });
                }
              });
      for (int64_t m = first; m < first + count && norm; m++) layer_norm(out + m * w.N, w.N, *norm, out + m * w.N);
    }
    release_brgemm<T>();
  });
}

}  // namespace

template <class T>
void embed_patches(const Image& image, int64_t patch_height, int64_t patch_width, const Linear<T>& w,
                   const std::optional<Affine>& norm, float* out) {
  const int64_t rows = (image.height + patch_height - 1) / patch_height;
  const int64_t columns = (image.width + patch_width - 1) / patch_width;
  project(image.batch * rows * columns, w, norm, out, [&](int64_t token, T* to) {
    const int64_t x = token % columns * patch_width, y = token / columns % rows * patch_height;
    const float* from = image.pixels + token / (rows * columns) * image.stride[0] + x * image.stride[3];
    const int64_t inside = std::min(patch_width, image.width - x);
    thread_local std::vector<float> patch;  // is rounded as a whole: a single number takes as long as a vector
    patch.assign(w.padded_K(), 0.f);
    float* at = patch.data();
    for (int64_t c = 0; c < image.channels; c++)
      for (int64_t i = 0; i < patch_height; i++, at += patch_width) {
        const float* pixels = from + c * image.stride[1] + (y + i) * image.stride[2];
        for (int64_t j = 0; j < inside && y + i < image.height; j++) at[j] = pixels[j * image.stride[3]];
      }
    over_columns(w.padded_K(), [&](int64_t c, int64_t lanes) { store(to + c, load(&patch[c], lanes), lanes); });
  });
}

template <class T>
void merge_patches(const float* x, int64_t batch, int64_t height, int64_t width, int64_t channels, const Linear<T>& w,
                   const std::optional<Affine>& norm, bool post_norm, float* out) {
  const int64_t rows = (height + 1) / 2, columns = (width + 1) / 2;
  const std::optional<Affine> before = post_norm ? std::nullopt : norm, behind = post_norm ? norm : std::nullopt;
  project(batch * rows * columns, w, behind, out, [&](int64_t token, T* to) {
    thread_local std::vector<float> neighbours;
    neighbours.resize(4 * channels);
    const int64_t y = token / columns % rows * 2, x0 = token % columns * 2, image = token / (rows * columns);
    for (int64_t i = 0; i < 4; i++) {
      const int64_t at_y = y + i / 2, at_x = x0 + i % 2;
      float* part = neighbours.data() + i * channels;
      if (at_y < height && at_x < width)
        std::copy_n(x + ((image * height + at_y) * width + at_x) * channels, channels, part);
      else
        std::fill_n(part, channels, 0.f);
    }
    if (before) return layer_norm(neighbours.data(), 4 * channels, *before, to);
    over_columns(4 * channels, [&](int64_t c, int64_t lanes) { store(to + c, load(&neighbours[c], lanes), lanes); });
  });
}

void normalise_output(const float* x, int64_t batch, int64_t area, int64_t channels, const Affine& norm, float* out) {
  constexpr int64_t STRIP = 64;  // tokens: whole cache lines of the transpose
  const int64_t strips = (area + STRIP - 1) / STRIP;
  at::parallel_for(0, batch * strips, 1, [&](int64_t begin, int64_t end) {
    const std::unique_ptr<float[]> normed(new float[STRIP * channels]);
    for (int64_t strip = begin; strip < end; strip++) {
      const int64_t image = strip / strips, first = strip % strips * STRIP, count = std::min(STRIP, area - first);
      for (int64_t m = 0; m < count; m++)
        layer_norm(x + (image * area + first + m) * channels, channels, norm, normed.get() + m * channels);
      at::vec::transpose_mxn<float>(normed.get(), channels, out + image * channels * area + first, area, count,
                                    channels);
    }
  });
}

#define INSTANTIATE(T)                                                                                          \
  template void embed_patches<T>(const Image&, int64_t, int64_t, const Linear<T>&, const std::optional<Affine>&, \
                                 float*);                                                                       \
  template void merge_patches<T>(const float*, int64_t, int64_t, int64_t, int64_t, const Linear<T>&,            \
                                 const std::optional<Affine>&, bool, float*);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
