// A group of windows whose gradients a thread computes together; see block_group.h. If the forward pass saved nothing,
// the group recomputes the block.
#pragma once

#include "block/backward.h"
#include "block/block_group.h"
#include "products/weight_gradients.h"

namespace swin::SWIN_ISA {

template <class T>
class BackwardGroup : public BlockGroup<T> {
 public:
  // sums: the sums of this group's thread, in the layout of `VectorSums`.
  // weight_sums: the thread's own gradients of the four weights; null: the caller computes the gradients from `kept`.
  BackwardGroup(const BlockWeights<T>& w, const Linear<T>* transposed, const Windows& windows, const Groups& dealt,
                const float* x, const float* grad_y, float* grad_x, float* sums, float* const* weight_sums,
                const float* transposed_bias)
      : BlockGroup<T>(w, windows, dealt, x, grad_x, transposed),
        transposed(transposed),
        grad_y(grad_y),
        sums(sums),
        weight_sums(weight_sums),
        of(w, this->N, this->S),
        transposed_bias(transposed_bias) {
    memory.allocate([&](Arena& arena) { lay_out_gradients(arena); });
#if SWIN_HAS_TILES
    if (this->heads_in_tiles) tile_backward_workspace.clear(N);
#endif
  }

  static int64_t bytes_of_row(const BlockWeights<T>& w) {
    return sizeof(T) * (7 * w.C + w.D + 2 * std::max(3 * w.C, w.D)) + sizeof(float) * 2 * w.C;
  }

  // grad_x first holds the tokens after attention, for the tokens of this group, and at the end their gradient.
  void run(const Group& group, char* saved) {
    if (saved) {
      this->use(saved);
      this->gather(group);
      for (int64_t m = 0; m < tokens; m++) std::copy_n(this->middle + m * w.C, w.C, this->out + token_of[m] * w.C);
    } else {
      this->attention(group);
    }
    mlp_backward();
    attention_backward(group);
    first_run = false;
  }

  Kept<T> kept[LINEARS];  // written by `run`, unless the thread has its own sums

 private:
  using Base = BlockGroup<T>;
  using Base::w, Base::rows, Base::N, Base::S, Base::d, Base::tokens, Base::places, Base::row_of, Base::token_of,
      Base::product_workspace;

  void lay_out_gradients(Arena& arena) {
    const int64_t C = w.C, D = w.D, v2 = w.cosine_scale ? 1 : 0;
    mlp_hidden = arena.take<T>(rows * D);
    mlp_in = arena.take<T>(rows * C);
    grad_wide = arena.take<T>(rows * std::max(3 * C, D));
    grad_branch = arena.take<T>(rows * C);
    grad_attended = arena.take<T>((rows + ROW_STEP) * C);
    grad = arena.take<float>(rows * C);
    product_row = arena.take<float>(rows * C);
    mlp_out = arena.take<float>(v2 * rows * C);
    row = arena.take<float>(C);
    if (v2) this->factors = arena.take<float>(3 * w.heads * rows);
    for (int64_t i = 0; i < LINEARS && !weight_sums; i++) kept[i] = {w.linear(i).K, w.linear(i).N, rows, arena};
    if (weight_sums) kept[0] = {std::max(C, D), std::max(3 * C, D), rows, arena};
    attention_backward_workspace = {N, arena};
#if SWIN_HAS_TILES
    if (this->heads_in_tiles) tile_backward_workspace = {N, arena};
#endif
  }

  AffineSums norm_sums(int64_t i) const { return {sums + of.norm_weight[i], sums + of.norm_bias[i]}; }
  const float* token(const float* map, int64_t m) const { return map + token_of[m] * w.C; }
  void fetch_ahead(const float* map, int64_t m) const {
    if (m + this->AHEAD < tokens) this->fetch(token(map, m + this->AHEAD));
  }

  // Keep the operands of a weight gradient. With sums of its own, the thread adds the gradient now, from its cache.
  void keep(int64_t i, T* input, const T* of_output) {
    Kept<T>& k = kept[weight_sums ? 0 : i];
    const Timed timed(Work::PACKING, tokens * (w.linear(i).K + w.linear(i).N));
    k.keep(w.linear(i).K, w.linear(i).N, input, of_output, tokens, sums + of.bias[i]);
    const Kept<T>* const one = &k;
    if (weight_sums) weight_gradient(&one, 1, 0, k.out, weight_sums[i], !first_run);
  }

  // product_row = a W of linear layer i.
  void times_weight(int64_t i, const T* a) {
    linear_to(a, w.linear(i).N, tokens, transposed[i], product_workspace, product_row, w.C);
  }

  // Write columns n ... n + columns - 1 of row m of the hidden tokens, and of the slopes of GELU. before(i, lanes)
  // loads inputs of GELU.
  template <class Before>
  void through_gelu(int64_t m, int64_t n, int64_t columns, const Before& before) {
    T *value = mlp_hidden + m * w.D + n, *slope = grad_wide + m * w.D + n;
    over_columns(columns, [=](int64_t i, int64_t lanes) {
      const Vec x = before(i, lanes), cdf = normal_cdf(x, T());
      store(value + i, x * cdf, lanes);
      store(slope + i, gelu_slope<T>(x, cdf), lanes);
    });
  }

  // Recompute the values of the MLP that the gradients use.
  void mlp_again() {
    const int64_t C = w.C, D = w.D;
    {
      const Timed timed(Work::NORMS, tokens * C);
      for (int64_t m = 0; m < tokens; m++) {
        fetch_ahead(this->out, m);
        this->enter(token(this->out, m), w.norm2, mlp_in + m * C);
      }
    }
    if (const T* saved = this->before_gelu) {
      const Timed timed(Work::GELU, tokens * D);
      for (int64_t m = 0; m < tokens; m++, saved += D)
        through_gelu(m, 0, D, [=](int64_t i, int64_t lanes) { return load(saved + i, lanes); });
      mlp_out = this->mlp_branch;
      return;
    }
    linear(
        mlp_in, C, tokens, w.linear(FC1), product_workspace,
        [&](int64_t m, int64_t n, int64_t columns, const auto& row) { through_gelu(m, n, columns, row); }, Work::GELU);
    if (!w.cosine_scale) return;  // V1 has no norm after the layer
    linear_to(mlp_hidden, D, tokens, w.linear(FC2), product_workspace, mlp_out, C);
  }

  // grad_branch = the gradient of the output of the branch's last linear layer. V2 has a norm after the layer.
  void enter_branch(int64_t index, int64_t m, const float* value, const Affine& norm) {
    T* to = grad_branch + m * w.C;
    const float* from = grad + m * w.C;
    const float factor = this->keep_rate(index, token_of[m]);
    if (w.cosine_scale)
      return layer_norm_backward(value + m * w.C, w.C, norm, from, factor, norm_sums(index),
                                 [&](int64_t c, Vec g, int64_t lanes) { store(to + c, g, lanes); });
    over_columns(w.C, [&](int64_t c, int64_t lanes) { store(to + c, load(from + c, lanes) * Vec(factor), lanes); });
  }

  // The gradient of the shortcut. V2 may have a norm here, with a recomputed input.
  void shortcut_backward(int64_t m) {
    const float *from = token(grad_y, m), *before = token(this->out, m), *value = mlp_out + m * w.C;
    float* to = grad + m * w.C;
    if (!w.has_norm3) return (void)std::copy_n(from, w.C, to);
    layer_norm(value, w.C, w.norm2, row);
    const Vec factor(this->keep_rate(1, token_of[m]));
    over_columns(w.C, [&](int64_t c, int64_t lanes) {
      store(row + c, fmadd(load(row + c, lanes), factor, load(before + c, lanes)), lanes);
    });
    layer_norm_backward(row, w.C, w.norm3, from, 1.f, norm_sums(2),
                        [&](int64_t c, Vec g, int64_t lanes) { store(to + c, g, lanes); });
  }

  // to = grad + the gradient of the branch's input. In V1 the input passes a norm.
  void leave_branch(int64_t m, const float* value, const Affine& norm, int64_t index, float* to) {
    const float *through = product_row + m * w.C, *past = grad + m * w.C;
    if (!w.cosine_scale)
      return layer_norm_backward(
          value, w.C, norm, through, 1.f, norm_sums(index),
          [&](int64_t c, Vec g, int64_t lanes) { store(to + c, load(past + c, lanes) + g, lanes); });
    over_columns(
        w.C, [&](int64_t c, int64_t lanes) { store(to + c, load(past + c, lanes) + load(through + c, lanes), lanes); });
  }

  void mlp_backward() {
    const int64_t C = w.C, D = w.D;
    mlp_again();
    {
      const Timed timed(Work::NORMS, tokens * C);
      for (int64_t m = 0; m < tokens; m++) {
        fetch_ahead(grad_y, m);
        shortcut_backward(m);
        enter_branch(1, m, mlp_out, w.norm2);
      }
    }
    keep(FC2, mlp_hidden, grad_branch);
    linear(grad_branch, C, tokens, transposed[FC2], product_workspace,
           [&](int64_t m, int64_t n, int64_t columns, const auto& row) {
             T* to = grad_wide + m * D + n;
             over_columns(columns,
                          [=](int64_t i, int64_t lanes) { store(to + i, load(to + i, lanes) * row(i, lanes), lanes); });
           });
    keep(FC1, mlp_in, grad_wide);
    times_weight(FC1, grad_wide);
    const Timed timed(Work::NORMS, tokens * C);
    for (int64_t m = 0; m < tokens; m++) {
      fetch_ahead(this->out, m);
      leave_branch(m, token(this->out, m), w.norm2, 1, grad + m * C);
    }
  }

  void attention_backward(const Group& group) {
    const int64_t C = w.C, per_head = rows * d;
    for (int64_t m = 0; m < tokens; m++) enter_branch(0, m, this->attention_branch, w.norm1);
    keep(PROJ, this->attended, grad_branch);
    if (tokens < places) std::memset(static_cast<void*>(grad_attended), 0, rows * C * sizeof(T));
    linear(grad_branch, C, tokens, transposed[PROJ], product_workspace,
           [&](int64_t m, int64_t n, int64_t columns, const auto& row) {
             for (int64_t from = 0; from < columns; from += d) {
               T* to = grad_attended + (n + from) / d * per_head + this->place_of[m] * d;
               over_columns(d, [=](int64_t i, int64_t lanes) { store(to + i, row(from + i, lanes), lanes); });
             }
           });
    for (int64_t at = 0; at < places; at += N) {
      const float* mask = this->mask_of(group.windows[at / N]);
      for (int64_t head = 0; head < w.heads; head++) head_backward(head, at, mask);
    }
    keep(QKV, this->normed, grad_wide);
    times_weight(QKV, grad_wide);
    const Timed timed(Work::NORMS, tokens * C);
    for (int64_t m = 0; m < tokens; m++) {
      fetch_ahead(this->x, m);
      fetch_ahead(this->out, m);
      leave_branch(m, token(this->x, m), w.norm1, 0, this->out + token_of[m] * C);
    }
  }

  // grad_wide = the gradients of q, k and v for one head of the window at place `at`: (tokens, 3C). The q, k and v of
  // padding equal the bias, so their gradients are added to the bias's gradient.
  void head_backward(int64_t head, int64_t at, const float* mask) {
    const auto of_head = [&](int64_t which) { return which * w.heads + head; };
    const auto values = [&](int64_t which) { return this->qkv + (of_head(which) * rows + at) * d; };
    const auto put = [&](int64_t which, int64_t place, float* g) {
      if (w.cosine_scale && which < 2) {
        const float length = which ? 1.f : w.cosine_scale[head];
        const float factor = this->factors[of_head(which) * rows + at + place];
        const float of_length = length_backward(g, values(which) + place * d, d, factor, length);
        if (!which) sums[of.cosine_scale + head] += of_length;
      }
      const int64_t row = row_of[at + place], column = of_head(which) * d;
      float* sum = sums + of.bias[QKV] + column;
      if (row < 0) return add_row(g, d, sum);
      convert_row(g, d, grad_wide + row * 3 * w.C + column);
    };
    const T* out = grad_attended + (head * rows + at) * d;
    const int64_t square = head * N * S;
#if SWIN_HAS_TILES
    if constexpr (std::is_same_v<T, bf16>)
      if (this->heads_in_tiles &&
          attend_backward_in_tiles(N, values(0), values(1), values(2), out, w.scale, transposed_bias + square, mask,
                                   sums + of.transposed_bias + square, tile_backward_workspace, put))
        return;
#endif
    attend_backward(N, d, values(0), values(1), values(2), out, w.scale, w.bias_hNS + square, mask,
                    sums + of.bias_hNS + square, this->attention_workspace, attention_backward_workspace, put);
  }

  const Linear<T>* transposed;
  const float* grad_y;
  float *sums, *const *weight_sums;
  bool first_run = true;
  const VectorSums<T> of;
  const float* transposed_bias;  // (h, N, S): w.bias_hNS with keys first, for heads in tiles
  AttentionBackwardWorkspace<T> attention_backward_workspace;
#if SWIN_HAS_TILES
  HeadTileBackwardWorkspace tile_backward_workspace;
#endif
  T *mlp_hidden, *mlp_in;          // the MLP's hidden tokens, and its input
  T* grad_wide;                    // GELU's slope, gradients of hidden tokens, then of q, k and v
  T *grad_branch, *grad_attended;  // gradients of a branch's last linear layer, and of attended tokens by head
  float *grad, *product_row;       // gradients of the shortcut, and of the input of a branch's first linear layer
  float *mlp_out, *row;
  Memory memory;
};

}  // namespace swin::SWIN_ISA
