// One Swin block, V1 or V2, over a batch of maps.
//
// Layout: B batch, H W height and width of a map, C channels, D hidden channels of the MLP, h heads, N places of a
// window, S = `padded_keys(N)`.
#pragma once

#include "block/windows.h"
#include "products/gemm.h"
#include "swin.h"

namespace swin::SWIN_ISA {

enum { QKV = SWIN_QKV, PROJ = SWIN_PROJ, FC1 = SWIN_FC1, FC2 = SWIN_FC2, LINEARS = SWIN_LINEARS };
enum Branch { ATTENTION, MLP };

struct BlockSizes {
  int64_t C, D, heads;
  bool is_v2;  // V2 has norms after the branches, and attention by the cosine of q and k

  int64_t num_weights() const { return 4 * C * C + 2 * C * D; }  // of the linear layers
};

// A block as a call computes it. The factors of the drop path are the call's.
template <class T>
struct Block : BlockSizes {
  Linear<T> linears[LINEARS];
  Affine norm1, norm2, norm3;
  const float* bias_hNS;      // the position bias, see `pad_bias`
  const float* cosine_scale;  // of each head; V2 alone
  const float* drop_path_2B;  // factors of the two branches of each image; null: 1
  bool has_norm3;
  float scale;

  int64_t bytes() const { return (linears[QKV].quantised.panels ? sizeof(int8) : sizeof(T)) * num_weights(); }
  // Return true if enough tokens use the weights to pack their pieces once, see `Bf16Pieces`.
  bool worth_packing_pieces(int64_t tokens) const { return tokens >= 2 * C; }
  const Linear<T>& linear(int64_t i) const { return linears[i]; }
};

// The bytes of the activations that a forward pass saves for each group of windows: whole cache lines.
template <class T>
int64_t saved_bytes(const BlockSizes& sizes, const Windows& windows, int64_t num_groups);

// block: for this call alone, which adds the pieces of its weights. `out` may be `x`: (B, H, W, C).
template <class T>
void run_block(Block<T>& block, const Windows& windows, int64_t threads, const float* x, float* out,
               const SavedGroups& saved);

}  // namespace swin::SWIN_ISA
