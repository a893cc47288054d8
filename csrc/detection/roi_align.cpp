// RoIAlign with the mean of samples, over maps with contiguous rows or contiguous channels.
//
// Letters: I J bins down and across, X pixels across a region.

#include "detection/roi_align.h"

#include <algorithm>

#include "detection/roi_axes.h"
#include "machine/arena.h"
#include "machine/row_functions.h"
#include "machine/threads.h"

namespace swin::SWIN_ISA {
namespace {

inline bool all_finite(const float* x, int64_t count) {
  float sum = 0.f;
  for (int64_t i = 0; i < count; i++) sum += 0.f * x[i];  // NaN if a number is not finite
  return sum == 0.f;
}

// --- A product with a region's matrix --------------------------------------------------------------------------------

// to[m][output] = sum of from[m][input] * weights[input][output], for M rows. Weights of 0 are multiplied, too.
constexpr int64_t ROWS = 7;  // in registers: the bins of a box head, and half the bins of a mask head

template <int64_t M>
inline void multiply_rows(const RoiMatrix& matrix, const float* from, int64_t from_stride, float* to,
                          int64_t to_stride) {
  constexpr int64_t WIDTH = RoiMatrix::WIDTH;
  for (int64_t n = 0; n < matrix.outputs; n += LANES) {
    const int64_t tile = n / WIDTH, count = std::min(LANES, matrix.outputs - n);
    Vec sums[M];
    SWIN_UNROLL
    for (int64_t m = 0; m < M; m++) sums[m] = Vec(0.f);
    for (int32_t e = matrix.tiles[tile]; e < matrix.tiles[tile + 1]; e++) {
      const Vec weights = load(matrix.weights + e * WIDTH + n % WIDTH);
      const float* column = from + matrix.inputs[e];
      SWIN_UNROLL
      for (int64_t m = 0; m < M; m++) sums[m] = fmadd(Vec(column[m * from_stride]), weights, sums[m]);
    }
    SWIN_UNROLL
    for (int64_t m = 0; m < M; m++) store(to + m * to_stride + n, sums[m], count);
  }
}

inline void multiply(const RoiMatrix& matrix, const float* from, int64_t from_stride, int64_t rows, float* to,
                     int64_t to_stride) {
  int64_t m = 0;
  for (; m + ROWS <= rows; m += ROWS)
    multiply_rows<ROWS>(matrix, from + m * from_stride, from_stride, to + m * to_stride, to_stride);
  for (; m < rows; m++) multiply_rows<1>(matrix, from + m * from_stride, from_stride, to + m * to_stride, to_stride);
}

// --- Maps whose rows lie together ------------------------------------------------------------------------------------

constexpr int64_t PLANES = 4;  // of a task, which stay in cache for all regions

struct Bins {
  int64_t I, J, count;
  explicit Bins(const swin_roi_align& roi_align) : I(roi_align.bins_height), J(roi_align.bins_width), count(I * J) {}
};

// Call f(bin, y, x, weight) for each bin and each of its pixels. Slow, but a bin reads its own pixels alone.
template <class F>
inline void over_pixels(const Roi& roi, const Bins& bins, const F& f) {
  for (int64_t i = 0; i < bins.I; i++)
    for (int64_t j = 0; j < bins.J; j++)
      for (int32_t v = roi.y.starts[i]; v < roi.y.starts[i + 1]; v++)
        for (int32_t u = roi.x.starts[j]; u < roi.x.starts[j + 1]; u++)
          f(i * bins.J + j, roi.y.pixels[v], roi.x.pixels[u], roi.y.weights[v] * roi.x.weights[u]);
}

// Down first: rows (I, X) of means, then across.
template <class T>
void pool_plane(const T* plane, int64_t row_stride, const Roi& roi, const Bins& bins, float* rows_IX, float* means) {
  const int64_t X = roi.x.count;
  for (int64_t i = 0; i < bins.I; i++)
    over_columns(X, [&](int64_t x, int64_t count) {
      Vec sum(0.f);
      for (int32_t e = roi.y.starts[i]; e < roi.y.starts[i + 1]; e++)
        sum = fmadd(Vec(roi.y.weights[e]), load(plane + roi.y.pixels[e] * row_stride + roi.x.first + x, count), sum);
      store(rows_IX + i * X + x, sum, count);
    });
  multiply(roi.matrix, rows_IX, X, bins.I, means, bins.J);
  if (all_finite(means, bins.count)) return;
  // A number that is not finite reaches other bins through weights of 0. Such regions are computed again, bin by bin.
  std::fill_n(means, bins.count, 0.f);
  over_pixels(roi, bins, [&](int64_t bin, int64_t y, int64_t x, float weight) {
    means[bin] += weight * sum_of(load(plane + y * row_stride + x, 1));
  });
}

// Call task(rois, index of the first, begin, end, channel, last) for regions begin ... end - 1 of `rois`, in order,
// and channels channel ... last - 1.
template <class Task>
void over_regions(const swin_roi_align& roi_align, RoiMatrixOf matrix, int64_t block, int64_t rois_of_task,
                  const Task& task) {
  const int64_t blocks = ceil_div(roi_align.channels, block);
  for (int64_t first = 0; first < roi_align.regions;) {
    const Rois rois(roi_align, first, matrix);
    const int64_t runs = ceil_div(rois.count(), rois_of_task);
    each_task(blocks * runs, roi_align.threads, [&](int64_t t) {
      const int64_t channel = t / runs * block, begin = t % runs * rois_of_task;
      task(rois, first, begin, std::min(begin + rois_of_task, rois.count()), channel,
           std::min(channel + block, roi_align.channels));
    });
    first += rois.count();
  }
}

template <class T>
void forward_planes(const swin_roi_align& roi_align, const T* maps, T* pooled) {
  const Bins bins(roi_align);
  over_regions(roi_align, RoiMatrixOf::bins_by_pixels, PLANES, 256,
               [&](const Rois& rois, int64_t first, int64_t begin, int64_t end, int64_t channel, int64_t last) {
                 float *rows, *means;
                 Memory memory;
                 memory.allocate([&](Arena& arena) {
                   rows = arena.take<float>(bins.I * roi_align.width);
                   means = arena.take<float>(bins.count);
                 });
                 for (int64_t r = begin; r < end; r++)
                   for (int64_t c = channel; c < last; c++) {
                     const Roi& roi = rois[r];
                     pool_plane(maps + roi.image * roi_align.stride[0] + c * roi_align.stride[1], roi_align.stride[2],
                                roi, bins, rows, means);
                     convert_row(means, bins.count, pooled + ((first + r) * roi_align.channels + c) * bins.count);
                   }
               });
}

void spread_plane(const float* gradients, const Roi& roi, const Bins& bins, float* rows_IX, float* plane,
                  int64_t row_stride) {
  if (!all_finite(gradients, bins.count)) {
    over_pixels(roi, bins, [&](int64_t bin, int64_t y, int64_t x, float weight) {
      plane[y * row_stride + x] += weight * gradients[bin];
    });
    return;
  }
  const int64_t X = roi.x.count;
  multiply(roi.matrix, gradients, bins.J, bins.I, rows_IX, X);
  for (int64_t i = 0; i < bins.I; i++)
    for (int32_t e = roi.y.starts[i]; e < roi.y.starts[i + 1]; e++) {
      float* to = plane + roi.y.pixels[e] * row_stride + roi.x.first;
      const Vec weight(roi.y.weights[e]);
      over_columns(X, [&](int64_t x, int64_t count) {
        store(to + x, fmadd(weight, load(rows_IX + i * X + x, count), load(to + x, count)), count);
      });
    }
}

template <class T>
void backward_planes(const swin_roi_align& roi_align, const T* grad_pooled, float* grad_maps) {
  const Bins bins(roi_align);
  over_regions(
      roi_align, RoiMatrixOf::pixels_by_bins, PLANES, roi_align.regions,
      [&](const Rois& rois, int64_t first, int64_t begin, int64_t end, int64_t channel, int64_t last) {
        float *rows, *gradients;
        Memory memory;
        memory.allocate([&](Arena& arena) {
          rows = arena.take<float>(bins.I * roi_align.width);
          gradients = arena.take<float>(bins.count);
        });
        for (int64_t r = begin; r < end; r++)
          for (int64_t c = channel; c < last; c++) {
            const Roi& roi = rois[r];
            convert_row(grad_pooled + ((first + r) * roi_align.channels + c) * bins.count, bins.count, gradients);
            spread_plane(gradients, roi, bins, rows,
                         grad_maps + roi.image * roi_align.stride[0] + c * roi_align.stride[1], roi_align.stride[2]);
          }
      });
}

// --- Maps whose channels lie together --------------------------------------------------------------------------------

constexpr int64_t CHANNELS = 64;  // 4 vectors of AVX-512

// sums[c] over the pixels of bin (i, j), `lanes` of each of N vectors.
template <int64_t N, class T>
inline void pool_channels(const T* map, const int64_t* stride, const Roi& roi, int64_t i, int64_t j, int64_t lanes,
                          float* means) {
  Vec sums[N];
  SWIN_UNROLL
  for (int64_t n = 0; n < N; n++) sums[n] = Vec(0.f);
  for (int32_t v = roi.y.starts[i]; v < roi.y.starts[i + 1]; v++)
    for (int32_t u = roi.x.starts[j]; u < roi.x.starts[j + 1]; u++) {
      const T* pixel = map + roi.y.pixels[v] * stride[2] + roi.x.pixels[u] * stride[3];
      const Vec weight(roi.y.weights[v] * roi.x.weights[u]);
      SWIN_UNROLL
      for (int64_t n = 0; n < N; n++) sums[n] = fmadd(weight, load(pixel + n * LANES, lanes), sums[n]);
    }
  SWIN_UNROLL
  for (int64_t n = 0; n < N; n++) store(means + n * LANES, sums[n], lanes);
}

template <class T>
void forward_channels(const swin_roi_align& roi_align, const T* maps, T* pooled) {
  const Bins bins(roi_align);
  over_regions(roi_align, RoiMatrixOf::nothing, roi_align.channels, 1,
               [&](const Rois& rois, int64_t first, int64_t r, int64_t, int64_t, int64_t) {
                 float *means, *transposed;
                 Memory memory;
                 memory.allocate([&](Arena& arena) {
                   means = arena.take<float>(bins.count * CHANNELS);
                   transposed = arena.take<float>(bins.count * CHANNELS);
                 });
                 const Roi& roi = rois[r];
                 for (int64_t c = 0; c < roi_align.channels; c += CHANNELS) {
                   const int64_t count = std::min(CHANNELS, roi_align.channels - c);
                   const T* map = maps + roi.image * roi_align.stride[0] + c;
                   for (int64_t bin = 0; bin < bins.count; bin++) {
                     const int64_t i = bin / bins.J, j = bin % bins.J;
                     float* to = means + bin * CHANNELS;
                     if (count == CHANNELS)
                       pool_channels<CHANNELS / LANES>(map, roi_align.stride, roi, i, j, LANES, to);
                     else
                       over_columns(count, [&](int64_t k, int64_t lanes) {
                         pool_channels<1>(map + k, roi_align.stride, roi, i, j, lanes, to + k);
                       });
                   }
                   transpose(means, CHANNELS, bins.count, count, transposed, bins.count);
                   convert_row(transposed, count * bins.count,
                               pooled + ((first + r) * roi_align.channels + c) * bins.count);
                 }
               });
}

template <class T>
void backward_channels(const swin_roi_align& roi_align, const T* grad_pooled, float* grad_maps) {
  const Bins bins(roi_align);
  const int64_t block = std::max(LANES, std::min(CHANNELS, ceil_div(roi_align.channels, roi_align.threads)));
  over_regions(roi_align, RoiMatrixOf::nothing, block, roi_align.regions,
               [&](const Rois& rois, int64_t first, int64_t begin, int64_t end, int64_t channel, int64_t last) {
                 const int64_t channels = last - channel;
                 float *wide, *gradients;
                 Memory memory;
                 memory.allocate([&](Arena& arena) {
                   wide = arena.take<float>(channels * bins.count);
                   gradients = arena.take<float>(channels * bins.count);
                 });
                 for (int64_t r = begin; r < end; r++) {
                   const Roi& roi = rois[r];
                   convert_row(grad_pooled + ((first + r) * roi_align.channels + channel) * bins.count,
                               channels * bins.count, wide);
                   transpose(wide, bins.count, channels, bins.count, gradients, channels);
                   float* map = grad_maps + roi.image * roi_align.stride[0] + channel;
                   over_pixels(roi, bins, [&](int64_t bin, int64_t y, int64_t x, float weight) {
                     float* to = map + y * roi_align.stride[2] + x * roi_align.stride[3];
                     const float* from = gradients + bin * channels;
                     over_columns(channels, [&](int64_t c, int64_t count) {
                       store(to + c, fmadd(Vec(weight), load(from + c, count), load(to + c, count)), count);
                     });
                   });
                 }
               });
}

template <class T>
void forward(const swin_roi_align& roi_align, const T* maps, T* pooled) {
  roi_align.stride[3] == 1 ? forward_planes(roi_align, maps, pooled) : forward_channels(roi_align, maps, pooled);
}
template <class T>
void backward(const swin_roi_align& roi_align, const T* grad_pooled, float* grad_maps) {
  roi_align.stride[3] == 1 ? backward_planes(roi_align, grad_pooled, grad_maps)
                           : backward_channels(roi_align, grad_pooled, grad_maps);
}

}  // namespace

void roi_align_forward(const swin_roi_align& roi_align, const void* maps, void* pooled) {
  if (roi_align.dtype == SWIN_FLOAT32)
    forward(roi_align, static_cast<const float*>(maps), static_cast<float*>(pooled));
  else
    forward(roi_align, static_cast<const bf16*>(maps), static_cast<bf16*>(pooled));
}
void roi_align_backward(const swin_roi_align& roi_align, const void* grad_pooled, float* grad_maps) {
  if (roi_align.dtype == SWIN_FLOAT32)
    backward(roi_align, static_cast<const float*>(grad_pooled), grad_maps);
  else
    backward(roi_align, static_cast<const bf16*>(grad_pooled), grad_maps);
}

}  // namespace swin::SWIN_ISA
