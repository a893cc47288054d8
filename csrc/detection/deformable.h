// Deformable attention, by vectors.
#pragma once

#include "swin.h"

namespace swin::SWIN_ISA {

// As in swin.h, with checked arguments.
void deformable_forward(const swin_deformable& deformable, const float* values, const float* sampling_locations,
                        const float* weights, float* y);
void deformable_backward(const swin_deformable& deformable, const float* values, const float* sampling_locations,
                         const float* weights, const float* grad_y, float* grad_values, float* grad_sampling_locations,
                         float* grad_weights);

}  // namespace swin::SWIN_ISA
