// 3x3 convolutions by Winograd's minimal filtering.
#pragma once

#include <cstdint>

#include "swin.h"

namespace swin::SWIN_ISA {

// Pack a weight (N, 3, 3, C) for `convolve`.
void pack_convolution(const float* weight, int32_t tile, int64_t N, int64_t C, int64_t threads, float* packed);

// Compute swin_convolution_forward, with checked arguments.
template <class T>
void convolve(const swin_convolution& convolution, const T* x, T* y);

}  // namespace swin::SWIN_ISA
