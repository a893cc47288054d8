// The windows that a thread computes together. All activations stay in its cache. Queries, keys and values have a row
// for each place of the windows; all others have a row for each token, without padding.
#pragma once

#include <cstring>

#include "block/attention.h"
#include "block/block.h"
#include "block/head_tiles.h"

namespace swin::SWIN_ISA {

// The number of groups of about `bytes` bytes. A small group stays in cache. With large weights a large group reads the
// weights less often. All threads get equally many groups.
inline int64_t count_groups(const Windows& windows, int64_t threads, int64_t bytes, int64_t bytes_of_row) {
  const int64_t count = windows.count(), fitting = std::max<int64_t>(1, bytes / (bytes_of_row * windows.area()));
  const int64_t rounds = ceil_div(count, fitting * threads);
  return ceil_div(count, ceil_div(count, rounds * threads));
}

// The rows that the arrays of any group have memory for.
struct Capacity {
  int64_t places, tokens;

  Capacity(const Groups& groups, int64_t N)
      : places(round_up(groups.max_windows * N, TILE_TERMS)), tokens(round_up(groups.max_tokens, TILE_TERMS)) {}
};

// Activations of a group of windows, saved for the backward pass.
template <class T>
struct SavedActivations {
  T *qkv = nullptr, *attended = nullptr;  // (3 h, places, d) and (tokens, C)
  float* after_attention = nullptr;       // (tokens, C): tokens after attention
  T* before_gelu = nullptr;               // (tokens, D)
  float* branches[2] = {};                // V2: (tokens, C), outputs of the branches before their norms
  float* length_factors = nullptr;        // V2: (3 h, places), of each query and key

  SavedActivations() = default;
  SavedActivations(const BlockSizes& sizes, const Capacity& capacity, Arena& arena) {
    const auto& [C, D, heads, is_v2] = sizes;
    qkv = arena.take<T>(3 * capacity.places * C + ROW_STEP * C / heads);
    attended = arena.take<T>(capacity.tokens * C);
    after_attention = arena.take<float>(capacity.tokens * C);
    before_gelu = arena.take<T>(capacity.tokens * D);
    if (!is_v2) return;
    for (float*& branch : branches) branch = arena.take<float>(capacity.tokens * C);
    length_factors = arena.take<float>(3 * heads * capacity.places);
  }
};

template <class T>
class BlockGroup {
 public:
  // backward_linears: of a backward pass, which uses them beside the layers of `block`; null in a forward pass.
  BlockGroup(const Block<T>& block, const Windows& windows, const Groups& groups, const float* x, float* out,
             const Linear<T>* backward_linears = nullptr)
      : block(block),
        windows(windows),
        N(windows.area()),
        S(padded_keys(N)),
        d(block.C / block.heads),
        x(x),
        out(out),
        capacity(groups, N),
        max_rows(capacity.places) {
    memory.allocate([&](Arena& arena) { lay_out(backward_linears ? backward_linears : block.linears, arena); });
#if SWIN_HAS_TILES
    if (heads_in_tiles) tile_workspace.clear(N);
#endif
  }

  // saved: memory for activations of the backward pass; null: nothing is saved.
  void run(const Group& group, char* saved = nullptr) {
    if (saved) bind_saved(saved);
    run_attention(group);
    if (saved)
      for (int64_t m = 0; m < tokens; m++)
        std::copy_n(out + token_of[m] * block.C, block.C, saved_after_attention + m * block.C);
    run_mlp();
  }

 protected:
  // Let the group write its activations into `memory`, in place of its own arrays. Until now qkv shared its memory with
  // hidden, and both branches theirs.
  void bind_saved(char* memory) {
    Arena arena(memory);
    const SavedActivations<T> saved(block, capacity, arena);
    qkv = saved.qkv;
    attended = saved.attended;
    saved_after_attention = saved.after_attention;
    saved_before_gelu = saved.before_gelu;
    if (!block.is_v2) return;
    attention_branch = saved.branches[ATTENTION];
    mlp_branch = saved.branches[MLP];
    length_factors = saved.length_factors;
  }

  // The first half of the block: out = x + the branch of the attention.
  void run_attention(const Group& group) {
    gather_tokens(group);
    project_qkv();
    attend_in_windows(group);
    add_branch(ATTENTION, attended, block.C, block.linear(PROJ), x, block.norm1, attention_branch);
  }

  void lay_out(const Linear<T>* others, Arena& arena) {
    const auto& own = block.linears;
    qkv = hidden = arena.take<T>(max_rows * std::max(3 * block.C, block.D) + ROW_STEP * d);
    normed = arena.take<T>(max_rows * block.C);
    attended = arena.take<T>(max_rows * block.C);
    attention_branch = mlp_branch = arena.take<float>(block.is_v2 ? max_rows * block.C : 0);
    normed_row = arena.take<float>(block.is_v2 ? block.C : 0);
    // A forward pass has no other layers: its own, twice.
    product_workspace = {{own, own + 1, own + 2, own + 3, others, others + 1, others + 2, others + 3}, arena};
    mask = arena.take<float>(N * S);
    token_at = arena.take<int32_t>(max_rows);
    row_of = arena.take<int32_t>(max_rows);
    token_of = arena.take<int32_t>(max_rows);
    place_of = arena.take<int32_t>(max_rows);
    attention_workspace = {N, d, arena};
#if SWIN_HAS_TILES
    if (heads_in_tiles) tile_workspace = {N, arena};
#endif
  }

  // Gather the tokens, normalised for V1, in rows without padding.
  void gather_tokens(const Group& group) {
    tokens = 0;
    places = group.count * N;
    const Timed timed(Work::NORMS, places * block.C);
    for (int64_t p = 0; p < places; p += N) windows.tokens_of(group.windows[p / N], token_at + p);
    for (int64_t p = 0; p < places; p++) {
      if (p + AHEAD < places && token_at[p + AHEAD] >= 0) prefetch(x + token_at[p + AHEAD] * block.C);
      const int64_t token = token_at[p];
      row_of[p] = token < 0 ? -1 : static_cast<int32_t>(tokens);
      if (token < 0) continue;
      write_branch_input(x + token * block.C, block.norm1, normed + tokens * block.C);
      place_of[tokens] = static_cast<int32_t>(p);
      token_of[tokens++] = static_cast<int32_t>(token);
    }
  }

  static constexpr int64_t AHEAD = 8;  // tokens between a prefetch and the use
  void prefetch(const float* token) const {
    for (int64_t c = 0; c < block.C; c += 16) __builtin_prefetch(token + c);
  }

  // Write an input of a branch's first linear layer: V1 has the norm before the branch.
  void write_branch_input(const float* token, const Affine& norm, T* to) const {
    if (!block.is_v2) return layer_norm(token, block.C, norm, to);
    convert_row(token, block.C, to);
  }

  // q, k and v of each head in separate arrays: (3 h, max_rows, d). Padding is zero before the projection.
  void project_qkv() {
    product(normed, block.C, tokens, block.linear(QKV), product_workspace,
            [&](int64_t m, int64_t count, int64_t n, int64_t columns, float* c) {
              const Timed timed(Work::HEADS, count * columns);
              for (int64_t from = 0; from < columns; from += d)
                store_head_rows((n + from) / d, count, place_of + m, c + from, columns);
            });
    if (tokens == places) return;
    constexpr float zeros[64] = {};  // the most channels of a head
    for (int64_t p = 0; p < places; p++) {
      if (row_of[p] >= 0) continue;
      const auto place = static_cast<int32_t>(p);
      for (int64_t head = 0; head < 3 * block.heads; head++) store_head_rows(head, 1, &place, zeros, 0);
    }
  }

  // Store rows of products, with the bias, at their places in the array of a head. `head` counts the heads of q, then
  // of k, then of v.
  void store_head_rows(int64_t head, int64_t count, const int32_t* places, const float* row, int64_t stride) {
    const float* bias = block.linear(QKV).bias + head * d;
    const bool has_length = block.is_v2 && head < 2 * block.heads;
    T* first = qkv + head * max_rows * d;
    const auto put = [&, d = this->d](int64_t r, Vec factor) {
      T* to = first + places[r] * d;
      const float* from = row + r * stride;
      over_columns(d, [&](int64_t i, int64_t lanes) {
        store(to + i, (load(from + i, lanes) + load(bias + i, lanes)) * factor, lanes);
      });
    };
    for (int64_t r = 0; r < count; r++) {
      const float factor = has_length ? length_factor(row + r * stride, bias, head) : 1.f;
      if (length_factors) length_factors[head * max_rows + places[r]] = factor;
      put(r, Vec(factor));
    }
  }

  // The factor for a query of the length of the cosine scale, or for a key of length 1. The zero vector stays zero. A
  // length above the range of float32 gives NaN, since x / inf would be zero.
  float length_factor(const float* row, const float* bias, int64_t head) const {
    Vec squares(0.f);
    over_columns(d, [&](int64_t i, int64_t lanes) {
      const Vec v = load(row + i, lanes) + load(bias + i, lanes);
      squares = fmadd(v, v, squares);
    });
    const float length = std::sqrt(sum_of(squares));
    if (length <= 1e-12f) return 0.f;
    return (head < block.heads ? block.cosine_scale[head] : 1.f) / length + 0.f * length;
  }

  const float* mask_of(int64_t window) {
    const int64_t id = windows.mask_id(window);
    if (id && id != current_mask_id) {
      windows.mask(window, S, mask);
      current_mask_id = id;
    }
    return id ? mask : nullptr;
  }

  void attend_in_windows(const Group& group) {
    for (int64_t at = 0; at < places; at += N) {
      const float* mask = mask_of(group.windows[at / N]);
      for (int64_t head = 0; head < block.heads; head++) attend_in_window(head, at, mask);
    }
  }

  // Compute one head of the window at place `at`.
  void attend_in_window(int64_t head, int64_t at, const float* mask) {
    const T* q = qkv + (head * max_rows + at) * d;
    const int64_t qkv_stride = block.heads * max_rows * d;
    const float* bias = block.bias_hNS + head * N * S;
    const auto row_in_attended = [&](int64_t place) {
      const int64_t row = row_of[at + place];
      return row < 0 ? nullptr : attended + row * block.C + head * d;
    };
#if SWIN_HAS_TILES
    if constexpr (std::is_same_v<T, bf16>)
      if (heads_in_tiles && attend_in_tiles(N, q, q + qkv_stride, q + 2 * qkv_stride, block.scale, bias, mask,
                                            tile_workspace, [&](int64_t place, __m512i o) {
                                              if (T* to = row_in_attended(place)) _mm512_store_si512(to, o);
                                            }))
        return;
#endif
    attend(N, d, q, q + qkv_stride, q + 2 * qkv_stride, block.scale, bias, mask, attention_workspace,
           [&](int64_t place, const float* o, float inverse_sum) {
             T* to = row_in_attended(place);
             if (!to) return;
             const Vec factor(inverse_sum);
             over_columns(d, [&](int64_t i, int64_t lanes) { store(to + i, load(o + i, lanes) * factor, lanes); });
           });
  }

  void run_mlp() {
    {
      const Timed timed(Work::NORMS, tokens * block.C);
      for (int64_t m = 0; m < tokens; m++)
        write_branch_input(out + token_of[m] * block.C, block.norm2, normed + m * block.C);
    }
    linear(
        normed, block.C, tokens, block.linear(FC1), product_workspace,
        [&](int64_t m, int64_t n, int64_t columns, const auto& row) {
          T *to = hidden + m * block.D + n, *before = saved_before_gelu ? saved_before_gelu + m * block.D + n : nullptr;
          over_columns(columns, [=](int64_t i, int64_t lanes) {
            const Vec v = row(i, lanes);
            if (before) store(before + i, v, lanes);
            store(to + i, gelu<T>(v), lanes);
          });
        },
        Work::GELU);
    add_branch(MLP, hidden, block.D, block.linear(FC2), out, block.norm2, mlp_branch);
    if (block.has_norm3)
      for (int64_t m = 0; m < tokens; m++)
        layer_norm(out + token_of[m] * block.C, block.C, block.norm3, out + token_of[m] * block.C);
  }

  // 0 for a dropped branch, otherwise 1 / the rate of kept branches.
  float drop_path_factor(Branch branch, int64_t token) const {
    if (!block.drop_path_2B) return 1.f;
    return block.drop_path_2B[branch * windows.batch + token / (windows.rows.length * windows.columns.length)];
  }

  // out = shortcut + the output of the linear layer. V2 first writes the output, and normalises whole rows.
  void add_branch(Branch branch, const T* a, int64_t lda, const Linear<T>& layer, const float* shortcut,
                  const Affine& norm, float* output) {
    if (!block.is_v2) {
      return linear(a, lda, tokens, layer, product_workspace,
                    [&](int64_t m, int64_t n, int64_t columns, const auto& row) {
                      add_to_shortcut(branch, m, n, columns, shortcut, row);
                    });
    }
    linear_to(a, lda, tokens, layer, product_workspace, output, block.C);
    for (int64_t m = 0; m < tokens; m++) {
      layer_norm(output + m * block.C, block.C, norm, normed_row);
      add_to_shortcut(branch, m, 0, block.C, shortcut,
                      [&](int64_t i, int64_t lanes) { return load(normed_row + i, lanes); });
    }
  }

  // Add columns from n on of token m of a branch: out = shortcut + branch.
  template <class Row>
  void add_to_shortcut(Branch branch, int64_t m, int64_t n, int64_t columns, const float* shortcut, const Row& row) {
    const Vec factor(drop_path_factor(branch, token_of[m]));
    const float* from = shortcut + token_of[m] * block.C + n;
    float* to = out + token_of[m] * block.C + n;
    over_columns(columns, [&](int64_t i, int64_t lanes) {
      store(to + i, fmadd(row(i, lanes), factor, load(from + i, lanes)), lanes);
    });
  }

  const Block<T>& block;
  const Windows& windows;
  const int64_t N, S, d;
  const float* x;
  float* out;
  const Capacity capacity;
  const int64_t max_rows;  // of the group's own arrays; saved arrays of tokens have capacity.tokens rows
  AttentionWorkspace<T> attention_workspace;
#if SWIN_HAS_TILES
  const bool heads_in_tiles = has_head_tiles<T>(d);
  HeadTileWorkspace tile_workspace;
#endif
  T *hidden, *normed, *attended;
  T* qkv;
  T* saved_before_gelu = nullptr;  // null unless saved, like the next
  float* saved_after_attention = nullptr;
  float *attention_branch, *mlp_branch;
  float *normed_row, *mask;
  ProductWorkspace<T> product_workspace;
  float* length_factors = nullptr;  // V2: (3 h, max_rows), of each query and key, for the backward pass
  int32_t *token_at, *row_of;       // by place; -1 for padding
  int32_t *token_of, *place_of;     // by row
  int64_t places = 0, tokens = 0, current_mask_id = 0;

 private:
  Memory memory;
};

}  // namespace swin::SWIN_ISA
