// A group of windows whose gradients a thread computes together; see block_group.h. If the forward pass saved nothing,
// the group recomputes the block.
#pragma once

#include "block/backward.h"
#include "block/block_group.h"
#include "products/weight_gradients.h"

namespace swin::SWIN_ISA {

// The third norm behind those of the branches.
constexpr int64_t NORM3 = MLP + 1;

// Offsets in one array of sums: of all gradients but those of the weights of linear layers.
template <class T>
struct SumOffsets {
  int64_t norm_weight[3], norm_bias[3], bias[LINEARS], bias_hNS, keys_first_bias, cosine_scale, size;
  int64_t keys_first_size;  // 0 without AMX

  SumOffsets(const Block<T>& block, int64_t N, int64_t S) {
    size = 0;
    const auto take = [&](int64_t numbers) {  // whole cache lines
      const int64_t begin = size;
      size += round_up(numbers, 16);
      return begin;
    };
    for (int64_t i = 0; i < 3; i++) norm_weight[i] = take(block.C), norm_bias[i] = take(block.C);
    for (int64_t i = 0; i < LINEARS; i++) bias[i] = take(block.linear(i).N);
    bias_hNS = take(block.heads * N * S);
    keys_first_size = has_head_tiles<T>(block.C / block.heads) ? block.heads * N * S : 0;
    keys_first_bias = take(keys_first_size);
    cosine_scale = take(block.heads);
  }
};

template <class T>
class BackwardGroup : public BlockGroup<T> {
 public:
  // grad_x: the `out` of the base. Until the last loop it holds the tokens after attention.
  // sums: the sums of this group's thread, in the layout of `SumOffsets`.
  // weight_sums: the thread's own gradients of the four weights; null: the caller computes the gradients from
  // `operands`.
  BackwardGroup(const Block<T>& block, const Linear<T>* backward_linears, const Windows& windows, const Groups& groups,
                const float* x, const float* grad_y, float* grad_x, float* sums, float* const* weight_sums,
                const float* keys_first_bias)
      : BlockGroup<T>(block, windows, groups, x, grad_x, backward_linears),
        backward_linears(backward_linears),
        grad_y(grad_y),
        sums(sums),
        weight_sums(weight_sums),
        offsets(block, this->N, this->S),
        keys_first_bias(keys_first_bias) {
    memory.allocate([&](Arena& arena) { lay_out_gradients(arena); });
#if SWIN_HAS_TILES
    if (this->heads_in_tiles) tile_backward_workspace.clear(N);
#endif
  }

  static int64_t bytes_of_row(const BlockSizes& sizes) {
    const int64_t C = sizes.C, D = sizes.D;
    return sizeof(T) * (7 * C + D + 2 * std::max(3 * C, D)) + sizeof(float) * 2 * C;
  }

  void run(const Group& group, char* saved) {
    if (saved) {
      this->bind_saved(saved);
      this->gather_tokens(group);
      for (int64_t m = 0; m < tokens; m++)
        std::copy_n(this->saved_after_attention + m * block.C, block.C, after_attention + token_of[m] * block.C);
    } else {
      this->run_attention(group);
    }
    mlp_backward();
    attention_backward(group);
    first_run = false;
  }

  WeightGradOperands<T>
      operands[LINEARS];  // one for each layer; with sums of its own the thread uses the first for all

 private:
  using Base = BlockGroup<T>;
  using Base::block, Base::max_rows, Base::N, Base::S, Base::d, Base::tokens, Base::places, Base::row_of,
      Base::token_of, Base::product_workspace;

  void lay_out_gradients(Arena& arena) {
    const int64_t C = block.C, D = block.D;
    mlp_hidden = arena.take<T>(max_rows * D);
    mlp_in = arena.take<T>(max_rows * C);
    grad_wide = arena.take<T>(max_rows * std::max(3 * C, D));
    grad_branch_output = arena.take<T>(max_rows * C);
    grad_attended = arena.take<T>((max_rows + ROW_STEP) * C);
    grad_shortcut = arena.take<float>(max_rows * C);
    grad_branch_input = arena.take<float>(max_rows * C);
    norm3_input = arena.take<float>(C);
    if (block.is_v2) {
      this->mlp_branch = arena.take<float>(max_rows * C);  // beside the branch of the attention
      this->length_factors = arena.take<float>(3 * block.heads * max_rows);
    }
    if (weight_sums)
      operands[0] = {std::max(C, D), std::max(3 * C, D), max_rows, arena};
    else
      for (int64_t i = 0; i < LINEARS; i++) operands[i] = {block.linear(i).K, block.linear(i).N, max_rows, arena};
    attention_backward_workspace = {N, arena};
#if SWIN_HAS_TILES
    if (this->heads_in_tiles) tile_backward_workspace = {N, arena};
#endif
  }

  // i: the branch of norm1 or norm2, or NORM3.
  AffineSums norm_sums(int64_t i) const { return {sums + offsets.norm_weight[i], sums + offsets.norm_bias[i]}; }
  const float* token(const float* map, int64_t m) const { return map + token_of[m] * block.C; }
  void prefetch_ahead(const float* map, int64_t m) const {
    if (m + this->AHEAD < tokens) this->prefetch(token(map, m + this->AHEAD));
  }

  // Pack the operands of a weight gradient. With sums of its own, the thread adds the gradient now, from its cache.
  void pack_weight_grad_operands(int64_t i, T* input, const T* grad_output) {
    WeightGradOperands<T>& packed = operands[weight_sums ? 0 : i];
    const Timed timed(Work::PACKING, tokens * (block.linear(i).K + block.linear(i).N));
    packed.pack(block.linear(i).K, block.linear(i).N, input, grad_output, tokens, sums + offsets.bias[i]);
    const WeightGradOperands<T>* const one = &packed;
    if (weight_sums) compute_weight_gradient(&one, 1, 0, packed.out, weight_sums[i], !first_run);
  }

  // grad_branch_input = a W of linear layer i.
  void multiply_backward(int64_t i, const T* a) {
    linear_to(a, block.linear(i).N, tokens, backward_linears[i], product_workspace, grad_branch_input, block.C);
  }

  // Write columns n ... n + columns - 1 of row m of the hidden tokens, and of the slopes of GELU. before(i, lanes)
  // loads inputs of GELU.
  template <class Before>
  void write_gelu_and_slope(int64_t m, int64_t n, int64_t columns, const Before& before) {
    T *hidden = mlp_hidden + m * block.D + n, *slope = grad_wide + m * block.D + n;
    over_columns(columns, [=](int64_t i, int64_t lanes) {
      const Vec x = before(i, lanes), cdf = normal_cdf(x, T());
      store(hidden + i, x * cdf, lanes);
      store(slope + i, gelu_slope<T>(x, cdf), lanes);
    });
  }

  // Recompute the activations of the MLP that the gradients use.
  void recompute_mlp() {
    const int64_t C = block.C, D = block.D;
    {
      const Timed timed(Work::NORMS, tokens * C);
      for (int64_t m = 0; m < tokens; m++) {
        prefetch_ahead(after_attention, m);
        this->write_branch_input(token(after_attention, m), block.norm2, mlp_in + m * C);
      }
    }
    if (const T* saved = this->saved_before_gelu) {
      const Timed timed(Work::GELU, tokens * D);
      for (int64_t m = 0; m < tokens; m++, saved += D)
        write_gelu_and_slope(m, 0, D, [=](int64_t i, int64_t lanes) { return load(saved + i, lanes); });
      return;
    }
    linear(
        mlp_in, C, tokens, block.linear(FC1), product_workspace,
        [&](int64_t m, int64_t n, int64_t columns, const auto& row) { write_gelu_and_slope(m, n, columns, row); },
        Work::GELU);
    if (!block.is_v2) return;  // V1 has no norm after the layer
    linear_to(mlp_hidden, D, tokens, block.linear(FC2), product_workspace, this->mlp_branch, C);
  }

  // grad_branch_output = the gradient of the output of the branch's last linear layer: back through the drop path, and
  // in V2 through the norm after the layer.
  void write_branch_output_grad(Branch branch, int64_t m, const float* norm_input, const Affine& norm) {
    T* to = grad_branch_output + m * block.C;
    const float* from = grad_shortcut + m * block.C;
    const float factor = this->drop_path_factor(branch, token_of[m]);
    if (block.is_v2)
      return layer_norm_backward(norm_input + m * block.C, block.C, norm, from, factor, norm_sums(branch),
                                 [&](int64_t c, Vec g, int64_t lanes) { store(to + c, g, lanes); });
    over_columns(block.C, [&](int64_t c, int64_t lanes) { store(to + c, load(from + c, lanes) * Vec(factor), lanes); });
  }

  // The gradient of the shortcut. V2 may have a norm here, with a recomputed input.
  void shortcut_backward(int64_t m) {
    const float *from = token(grad_y, m), *before = token(after_attention, m),
                *norm2_input = this->mlp_branch + m * block.C;
    float* to = grad_shortcut + m * block.C;
    if (!block.has_norm3) return (void)std::copy_n(from, block.C, to);
    layer_norm(norm2_input, block.C, block.norm2, norm3_input);
    const Vec factor(this->drop_path_factor(MLP, token_of[m]));
    over_columns(block.C, [&](int64_t c, int64_t lanes) {
      store(norm3_input + c, fmadd(load(norm3_input + c, lanes), factor, load(before + c, lanes)), lanes);
    });
    layer_norm_backward(norm3_input, block.C, block.norm3, from, 1.f, norm_sums(NORM3),
                        [&](int64_t c, Vec g, int64_t lanes) { store(to + c, g, lanes); });
  }

  // to = grad_shortcut + the gradient of the branch's input. In V1 the input passes a norm.
  void add_branch_input_grad(Branch branch, int64_t m, const float* norm_input, const Affine& norm, float* to) {
    const float *through = grad_branch_input + m * block.C, *past = grad_shortcut + m * block.C;
    if (!block.is_v2)
      return layer_norm_backward(
          norm_input, block.C, norm, through, 1.f, norm_sums(branch),
          [&](int64_t c, Vec g, int64_t lanes) { store(to + c, load(past + c, lanes) + g, lanes); });
    over_columns(block.C, [&](int64_t c, int64_t lanes) {
      store(to + c, load(past + c, lanes) + load(through + c, lanes), lanes);
    });
  }

  void mlp_backward() {
    const int64_t C = block.C, D = block.D;
    recompute_mlp();
    {
      const Timed timed(Work::NORMS, tokens * C);
      for (int64_t m = 0; m < tokens; m++) {
        prefetch_ahead(grad_y, m);
        shortcut_backward(m);
        write_branch_output_grad(MLP, m, this->mlp_branch, block.norm2);
      }
    }
    pack_weight_grad_operands(FC2, mlp_hidden, grad_branch_output);
    linear(grad_branch_output, C, tokens, backward_linears[FC2], product_workspace,
           [&](int64_t m, int64_t n, int64_t columns, const auto& row) {
             T* to = grad_wide + m * D + n;
             over_columns(columns,
                          [=](int64_t i, int64_t lanes) { store(to + i, load(to + i, lanes) * row(i, lanes), lanes); });
           });
    pack_weight_grad_operands(FC1, mlp_in, grad_wide);
    multiply_backward(FC1, grad_wide);
    const Timed timed(Work::NORMS, tokens * C);
    for (int64_t m = 0; m < tokens; m++) {
      prefetch_ahead(after_attention, m);
      add_branch_input_grad(MLP, m, token(after_attention, m), block.norm2, grad_shortcut + m * C);
    }
  }

  void attention_backward(const Group& group) {
    const int64_t C = block.C, per_head = max_rows * d;
    for (int64_t m = 0; m < tokens; m++) write_branch_output_grad(ATTENTION, m, this->attention_branch, block.norm1);
    pack_weight_grad_operands(PROJ, this->attended, grad_branch_output);
    if (tokens < places) std::memset(static_cast<void*>(grad_attended), 0, max_rows * C * sizeof(T));
    linear(grad_branch_output, C, tokens, backward_linears[PROJ], product_workspace,
           [&](int64_t m, int64_t n, int64_t columns, const auto& row) {
             for (int64_t from = 0; from < columns; from += d) {
               T* to = grad_attended + (n + from) / d * per_head + this->place_of[m] * d;
               over_columns(d, [=](int64_t i, int64_t lanes) { store(to + i, row(from + i, lanes), lanes); });
             }
           });
    for (int64_t at = 0; at < places; at += N) {
      const float* mask = this->mask_of(group.windows[at / N]);
      for (int64_t head = 0; head < block.heads; head++) head_backward(head, at, mask);
    }
    pack_weight_grad_operands(QKV, this->normed, grad_wide);
    multiply_backward(QKV, grad_wide);
    const Timed timed(Work::NORMS, tokens * C);
    for (int64_t m = 0; m < tokens; m++) {
      prefetch_ahead(this->x, m);
      prefetch_ahead(grad_x, m);
      add_branch_input_grad(ATTENTION, m, token(this->x, m), block.norm1, grad_x + token_of[m] * C);
    }
  }

  // grad_wide = the gradients of q, k and v for one head of the window at place `at`: (tokens, 3C). The q, k and v of
  // padding equal the bias, so their gradients are added to the bias's gradient.
  void head_backward(int64_t head, int64_t at, const float* mask) {
    const auto of_head = [&](Role role) { return role * block.heads + head; };
    const auto rows = [&](Role role) { return this->qkv + (of_head(role) * max_rows + at) * d; };
    const auto put = [&](Role role, int64_t place, float* g) {
      if (block.is_v2 && role != VALUE) {
        const float length = role == QUERY ? block.cosine_scale[head] : 1.f;
        const float factor = this->length_factors[of_head(role) * max_rows + at + place];
        const float grad_length = length_backward(g, rows(role) + place * d, d, factor, length);
        if (role == QUERY) sums[offsets.cosine_scale + head] += grad_length;
      }
      const int64_t row = row_of[at + place], column = of_head(role) * d;
      float* sum = sums + offsets.bias[QKV] + column;
      if (row < 0) return add_row(g, d, sum);
      convert_row(g, d, grad_wide + row * 3 * block.C + column);
    };
    const T* grad_out = grad_attended + (head * max_rows + at) * d;
    const int64_t square = head * N * S;
#if SWIN_HAS_TILES
    if constexpr (std::is_same_v<T, bf16>)
      if (this->heads_in_tiles &&
          attend_backward_in_tiles(N, rows(QUERY), rows(KEY), rows(VALUE), grad_out, block.scale,
                                   keys_first_bias + square, mask, sums + offsets.keys_first_bias + square,
                                   tile_backward_workspace, put))
        return;
#endif
    attend_backward(N, d, rows(QUERY), rows(KEY), rows(VALUE), grad_out, block.scale, block.bias_hNS + square, mask,
                    sums + offsets.bias_hNS + square, this->attention_workspace, attention_backward_workspace, put);
  }

  const Linear<T>* backward_linears;
  const float* grad_y;
  // One memory, see the constructor.
  float *const after_attention = this->out, *const grad_x = this->out;
  float *sums, *const *weight_sums;
  bool first_run = true;
  const SumOffsets<T> offsets;
  const float* keys_first_bias;  // (h, N, S): block.bias_hNS with keys first, for heads in tiles
  AttentionBackwardWorkspace<T> attention_backward_workspace;
#if SWIN_HAS_TILES
  HeadTileBackwardWorkspace tile_backward_workspace;
#endif
  T *mlp_hidden, *mlp_in;                 // the MLP's hidden tokens, and its input
  T* grad_wide;                           // GELU's slope, gradients of hidden tokens, then of q, k and v
  T *grad_branch_output, *grad_attended;  // gradients of a branch's last linear layer, and of attended tokens by head
  float* grad_shortcut;
  float* grad_branch_input;  // gradients of the input of a branch's first linear layer
  float* norm3_input;        // a row
  Memory memory;
};

}  // namespace swin::SWIN_ISA
