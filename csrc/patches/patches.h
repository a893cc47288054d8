// Patch embedding and patch merging, with gradients. The input alone is saved for gradients.
//
// Layout: B batch, C channels, H W height and width of the input, K inputs and N outputs of a token.
#pragma once

#include <optional>

#include "products/gemm.h"
#include "swin.h"

namespace swin::SWIN_ISA {

// The patches of images, zero-padded at the bottom and right edge: K = channels * patch_height * patch_width.
struct Patches {
  const float* pixels;
  int64_t batch, channels, height, width;
  int64_t stride[4];  // of image, channel, row, column
  int64_t patch_height, patch_width;

  int64_t rows() const { return ceil_div(height, patch_height); }
  int64_t columns() const { return ceil_div(width, patch_width); }
  int64_t tokens() const { return batch * rows() * columns(); }
  void read(int64_t token, float* to) const;
  void write(int64_t token, const float* from, float* images) const;  // to contiguous images, without padding

 private:
  template <class F>
  void over_rows(int64_t token, const F& f) const;
};

// 2 x 2 neighbours of x (B, H, W, C), zero-padded and concatenated: K = 4C.
struct Neighbours {
  const float* x;
  int64_t batch, height, width, channels;

  int64_t rows() const { return ceil_div(height, 2); }
  int64_t columns() const { return ceil_div(width, 2); }
  int64_t tokens() const { return batch * rows() * columns(); }
  void read(int64_t token, float* to) const;
  void write(int64_t token, const float* from, float* map) const;  // without padding

 private:
  template <class F>
  void over_neighbours(int64_t token, const F& f) const;
};

// Sums of gradients of vectors.
struct ProjectionSums {
  float *bias, *norm_weight, *norm_bias;
};

// A linear layer from K numbers to a token. A norm may be before or after it.
template <class T>
struct Projection {
  Linear<T> linear;
  std::optional<Affine> norm_before, norm_after;

  int64_t norm_size() const { return norm_before ? linear.K : norm_after ? linear.N : 0; }  // channels of the norm
  // In one array: gradients of the bias, and of the norm's weight and bias.
  int64_t vectors_size() const { return linear.N + 2 * norm_size(); }
  ProjectionSums sums(float* first) const { return {first, first + linear.N, first + linear.N + norm_size()}; }
};

constexpr int64_t GROUP_TOKENS = 2 * MAX_ROWS;  // tokens of a group

// Read an input row of the linear layer. raw: memory for padded_K numbers, zero from K on.
template <class T, class Source>
void read_row(const Source& source, const Projection<T>& p, int64_t token, float* raw, T* to) {
  source.read(token, raw);
  if (p.norm_before) return layer_norm(raw, p.linear.K, *p.norm_before, to);
  convert_row(raw, p.linear.padded_K(), to);
}

// Patches or Neighbours to tokens (B, rows, columns, N).
template <class T, class Source>
void project(const Source& source, const Projection<T>& p, int64_t threads, float* out);

// transposed_weight: packed; null: no gradient of images or the map. grad: of tokens; N is even.
template <class T, class Source>
void project_backward(const Source& source, const Projection<T>& p, const void* transposed_weight, int64_t threads,
                      const float* grad, const swin_projection_gradients& gradients);

#define SWIN_FOR_EACH_PROJECTION(instantiate, T) instantiate(T, Patches) instantiate(T, Neighbours)

}  // namespace swin::SWIN_ISA
