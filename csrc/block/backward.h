// Gradients of one Swin block, V1 or V2, over a batch of maps. Activations that the forward pass did not save
// are recomputed.
//
// Layout: as in block.h.
#pragma once

#include "block/block.h"

namespace swin::SWIN_ISA {

// The number of groups of windows in a backward pass.
template <class T>
int64_t groups_of_backward(const BlockSizes& sizes, const Windows& windows, int64_t threads);

// block, backward_linears: the weights and their transposes; for this call alone, which adds their pieces.
// saved: activations of the forward pass, in groups of `groups_of_backward`. Without them, they are recomputed.
template <class T>
void run_block_backward(Block<T>& block, Linear<T> (&backward_linears)[LINEARS], const Windows& windows,
                        int64_t threads, const float* x, const float* grad_y, const SavedGroups& saved,
                        const swin_block_gradients& gradients);

}  // namespace swin::SWIN_ISA
