// Patch embedding, patch merging and the norm of an output.
//
// Layout: B batch, C channels, H W height and width of the input.
#pragma once

#include <optional>

#include "gemm.h"

namespace swin {

struct Image {
  const float* pixels;
  int64_t batch, channels, height, width;
  int64_t stride[4];  // of image, channel, row, column
};

// Each patch, zero-padded at the bottom and right edge, to a token: (B, ceil(H / patch), ceil(W / patch), w.N).
template <class T>
void embed_patches(const Image& image, int64_t patch_height, int64_t patch_width, const Linear<T>& w,
                   const std::optional<Affine>& norm, float* out);

// 2 x 2 neighbours of x (B, H, W, C), zero-padded and concatenated, to a token: (B, ceil(H/2), ceil(W/2), w.N).
// The norm is before or after the projection.
template <class T>
void merge_patches(const float* x, int64_t batch, int64_t height, int64_t width, int64_t channels, const Linear<T>& w,
                   const std::optional<Affine>& norm, bool post_norm, float* out);

// LayerNorm of tokens (B, H*W, C), transposed: (B, C, H*W).
void normalise_output(const float* x, int64_t batch, int64_t area, int64_t channels, const Affine& norm, float* out);

}  // namespace swin
