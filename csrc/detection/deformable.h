// Deformable attention, by vectors.
#pragma once

#include "swin.h"

namespace swin::SWIN_ISA {

// As in swin.h, with checked arguments.
void deformable_forward(const swin_deformable& of, const float* values, const float* places, const float* weights,
                        float* y);
void deformable_backward(const swin_deformable& of, const float* values, const float* places, const float* weights,
                         const float* grad_y, float* grad_values, float* grad_places, float* grad_weights);

}  // namespace swin::SWIN_ISA
