// Gradients of one Swin block, V1 or V2, over a batch of maps. Activations that the forward pass did not save
// are recomputed.
//
// Layout: as in block.h.
#pragma once

#include "block/block.h"
#include "block/head_tiles.h"

namespace swin::SWIN_ISA {

// Offsets in one array of sums: of all gradients but those of the weights of linear layers.
template <class T>
struct SumOffsets {
  int64_t norm_weight[3], norm_bias[3], bias[LINEARS], bias_hNS, transposed_bias, cosine_scale, size;
  int64_t transposed_bias_size;  // of the position bias with keys first, for AMX

  SumOffsets(const BlockWeights<T>& w, int64_t N, int64_t S) {
    size = 0;
    const auto take = [&](int64_t numbers) {  // whole cache lines
      const int64_t begin = size;
      size += round_up(numbers, 16);
      return begin;
    };
    for (int64_t i = 0; i < 3; i++) norm_weight[i] = take(w.C), norm_bias[i] = take(w.C);
    for (int64_t i = 0; i < LINEARS; i++) bias[i] = take(w.linear(i).N);
    bias_hNS = take(w.heads * N * S);
    transposed_bias_size = has_head_tiles<T>(w.C / w.heads) ? w.heads * N * S : 0;
    transposed_bias = take(transposed_bias_size);
    cosine_scale = take(w.heads);
  }
};

// The number of groups of windows in a backward pass.
template <class T>
int64_t groups_of_backward(const BlockSizes& sizes, const Windows& windows, int64_t threads);

// saved: activations of the forward pass, in groups of `groups_of_backward`. Without them, they are recomputed.
template <class T>
void run_block_backward(const BlockWeights<T>& w, const Linear<T> (&transposed)[LINEARS], const Windows& windows,
                        int64_t threads, const float* x, const float* grad_y, float* grad_x,
                        float* const (&weight_sums)[LINEARS], float* vector_sums, const SavedGroups& saved);

}  // namespace swin::SWIN_ISA
