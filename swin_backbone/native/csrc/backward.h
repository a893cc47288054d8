// Gradients of one Swin block, V1 or V2, over a batch of maps, from its input alone: what lies between is made again.
//
// Layout: as in block.h.
#pragma once

#include "block.h"

namespace swin {

enum { QKV, PROJ, FC1, FC2, LINEARS };

// Sums of gradients, but for those of the weights of linear layers: where each is, in one array.
template <class T>
struct VectorSums {
  int64_t norm_weight[3], norm_bias[3], bias[LINEARS], bias_hNS, cosine_scale, size;

  VectorSums(const BlockWeights<T>& w, int64_t N, int64_t S) {
    size = 0;
    const auto take = [&](int64_t numbers) { size += numbers; return size - numbers; };
    for (int64_t i = 0; i < 3; i++) norm_weight[i] = take(w.C), norm_bias[i] = take(w.C);
    for (int64_t i = 0; i < LINEARS; i++) bias[i] = take(w.linear(i).N);
    bias_hNS = take(w.heads * N * S);
    cosine_scale = take(w.heads);
  }
};

// Args:
//   transposed: W^T of each linear layer, packed.
//   grad_y, grad_x: (B, H, W, C).
//   weight_sums: gradients of the weights of linear layers, each (out, in).
//   vector_sums: zeros, to which those of all else are added, as VectorSums has them.
template <class T>
void run_block_backward(const BlockWeights<T>& w, const Linear<T> (&transposed)[LINEARS], const Windows& windows,
                        const float* x, const float* grad_y, float* grad_x, float* const (&weight_sums)[LINEARS],
                        float* vector_sums);

}  // namespace swin
