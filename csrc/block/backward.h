// Gradients of one Swin block, V1 or V2, over a batch of maps. Activations that the forward pass did not save
// are recomputed.
//
// Layout: as in block.h.
#pragma once

#include "block/block.h"
#include "swin.h"

namespace swin::SWIN_ISA {

// The number of groups of windows in a backward pass.
template <class T>
int64_t groups_of_backward(const BlockSizes& sizes, const Windows& windows, int64_t threads);

// transposes: of the linear layers of w. saved: activations of the forward pass, in groups of `groups_of_backward`.
// Without them, they are recomputed.
template <class T>
void run_block_backward(const BlockWeights<T>& weights, const Linear<T> (&transposes)[LINEARS], const Windows& windows,
                        int64_t threads, const float* x, const float* grad_y, const SavedGroups& saved,
                        const swin_block_gradients& gradients);

}  // namespace swin::SWIN_ISA
