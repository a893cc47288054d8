// RoIAlign and suppression of overlapping boxes, by vectors.
#pragma once

#include <cstdint>

#include "swin.h"

namespace swin::SWIN_ISA {

// The mean of each bin's samples, as in swin.h, with checked arguments.
void roi_align_forward(const swin_roi_align& roi_align, const void* maps, void* pooled);
void roi_align_backward(const swin_roi_align& roi_align, const void* grad_pooled, float* grad_maps);

// Write the indices of kept boxes, and return their number.
int64_t suppress(const float* boxes, const int64_t* order, int64_t count, float threshold, float offset,
                 int64_t threads, int64_t* kept);

}  // namespace swin::SWIN_ISA
