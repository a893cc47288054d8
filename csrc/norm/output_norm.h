// The norm of an output, with gradients.
//
// Layout: B batch, H W height and width of a map, C channels.
#pragma once

#include "machine/row_functions.h"

namespace swin::SWIN_ISA {

// LayerNorm of tokens (B, H*W, C), transposed: (B, C, H*W).
void normalise_output(const float* x, int64_t batch, int64_t area, int64_t channels, const Affine& norm,
                      int64_t threads, float* out);

// grad: (B, C, H*W); grad_x: (B, H*W, C); grad_weight and grad_bias: of the norm.
void normalise_output_backward(const float* x, const float* grad, int64_t batch, int64_t area, int64_t channels,
                               const Affine& norm, int64_t threads, float* grad_x, float* grad_weight,
                               float* grad_bias);

}  // namespace swin::SWIN_ISA
