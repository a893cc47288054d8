// 3x3 convolutions by Winograd's minimal filtering.
#pragma once

#include <cstdint>

#include "swin.h"

namespace swin::SWIN_ISA {

// What `convolve` takes for a weight (N, 3, 3, C).
void pack_convolution(const float* weight, int32_t tile, int64_t N, int64_t C, int64_t threads, float* packed);

// The arguments are those of swin.h, and have been checked.
template <class T>
void convolve(const swin_convolution& of, const T* x, T* y);

}  // namespace swin::SWIN_ISA
