// Attention of heads of 32 channels by AMX, for bf16. A tile is 16 rows of 64 bytes: 16 places of a head, or 16 pairs
// of channels or places. Operands are packed as whole tiles here, unlike those of gemm.cpp.
//
// Layout: as in attention.h; P = N rounded up to 32.
#pragma once

#include "block/attention.h"

namespace swin::SWIN_ISA {

template <class T>
bool has_head_tiles(int64_t d) {
  return HAS_TILES && std::is_same_v<T, bf16> && d == TILE_TERMS;
}

#if SWIN_HAS_TILES
// Gradients are computed from all logits of a window, a forward pass from 16 queries at a time.
inline int64_t padded_places(int64_t N) { return round_up(N, 32); }  // P

// Pack rows (N, 32) as the B operand of a sum over channels: (16 pairs of channels, P). Places from N on are not
// written.
inline void transpose_head(const bf16* rows, int64_t N, bf16* to) {
  transpose_pairs(rows, TILE_TERMS, N, TILE_TERMS / 2, to, 2 * padded_places(N));
}

// Pack rows (N, 32) as the B operand of a sum over places: (P / 32, 2, 16 pairs of places, 16 channels).
inline void interleave_head(const bf16* rows, int64_t N, bf16* to) {
  for (int64_t n = 0; n < N; n += 2) {
    const __m512i even = _mm512_load_si512(rows + n * TILE_TERMS);
    const __m512i odd = n + 1 < N ? _mm512_load_si512(rows + (n + 1) * TILE_TERMS) : _mm512_setzero_si512();
    bf16* pair = to + n / 32 * 2 * TILE + n % 32 * TILE_ROWS;
    const auto [first, second] = interleave(even, odd);
    _mm512_store_si512(pair, first);
    _mm512_store_si512(pair + TILE, second);
  }
}

// c (16, P) = a b, for 16 rows of a head and b by `transpose_head`.
inline void multiply_channels(const bf16* a, const bf16* b, int64_t P, float* c) {
  TILE_LOAD(4, a, 64);
  for (int64_t k = 0; k < P; k += 32) {
    _tile_zero(0);
    _tile_zero(1);
    TILE_LOAD(5, b + 2 * k, 4 * P);
    TILE_LOAD(6, b + 2 * k + 32, 4 * P);
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 6);
    _tile_stored(0, c + k, 4 * P);
    _tile_stored(1, c + k + 16, 4 * P);
  }
}

constexpr int64_t OUT_STRIDE = 48;
// out (16, 48) = a (16, P) b, with b packed by `interleave_head`. With `ones`, the last 16 columns are the sums of the
// rows of a.
inline void multiply_places(const bf16* a, int64_t P, const bf16* b, const bf16* ones, float* out) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  if (ones) TILE_LOAD(7, ones, 64);
  for (int64_t k = 0; k < P; k += 32, b += 2 * TILE) {
    TILE_LOAD(4, a + k, 2 * P);
    TILE_LOAD(5, b, 64);
    TILE_LOAD(6, b + TILE, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 6);
    if (ones) _tile_dpbf16ps(2, 4, 7);
  }
  _tile_stored(0, out, 4 * OUT_STRIDE);
  _tile_stored(1, out + 16, 4 * OUT_STRIDE);
  if (ones) _tile_stored(2, out + 32, 4 * OUT_STRIDE);
}

// Softmax is computed without the maximum here. The result is accurate if the sum of probs is within these limits.
inline __mmask16 in_range(Vec sum) {
  return _mm512_cmp_ps_mask(sum, Vec(1e-30f), _CMP_GT_OQ) & _mm512_cmp_ps_mask(sum, Vec(1e30f), _CMP_LT_OQ);
}

struct HeadTileWorkspace {
  bf16 *keys, *values, *ones;  // `ones`: a tile
  float* logits;               // (16, P)
  bf16* probs;                 // (16, P), not yet divided by their sum
  float* out;                  // (16, OUT_STRIDE)

  HeadTileWorkspace() = default;
  HeadTileWorkspace(int64_t N, Arena& arena) {
    const int64_t P = padded_places(N);
    keys = arena.take<bf16>(P * TILE_TERMS);
    values = arena.take<bf16>(P * TILE_TERMS);
    ones = arena.take<bf16>(TILE);
    logits = arena.take<float>(TILE_ROWS * P);
    probs = arena.take<bf16>(TILE_ROWS * P);
    out = arena.take<float>(TILE_ROWS * OUT_STRIDE);
  }
  // Call before the first use. Places from N on are never written afterwards, and stay zero.
  void clear(int64_t N) const {
    const int64_t P = padded_places(N);
    std::memset(keys, 0, P * TILE_TERMS * sizeof(bf16));
    std::memset(values, 0, P * TILE_TERMS * sizeof(bf16));
    std::memset(probs, 0, TILE_ROWS * P * sizeof(bf16));
    std::fill_n(ones, TILE, bf16{0x3f80});
  }
};

// The function `attend` with tiles. put(place, row of 32 bf16 numbers). Each head needs memory for 16 rows after the
// last query. Returns false if the softmax is inaccurate, see `in_range`.
template <class Put>
bool attend_in_tiles(int64_t N, const bf16* q, const bf16* k, const bf16* v, float scale, const float* bias,
                     const float* mask, const HeadTileWorkspace& workspace, const Put& put) {
  const TilesInUse tiles;
  const int64_t S = padded_keys(N), P = padded_places(N);
  scale *= LOG2E;
  transpose_head(k, N, workspace.keys);
  interleave_head(v, N, workspace.values);
  __mmask16 accurate = 0xffff;
  for (int64_t n = 0; n < N; n += TILE_ROWS) {
    const int64_t rows = std::min(TILE_ROWS, N - n);
    multiply_channels(q + n * TILE_TERMS, workspace.keys, P, workspace.logits);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t at = (n + r) * S;
      const auto prob = [&](int64_t i) {
        Vec t = fmadd(load(workspace.logits + r * P + i), Vec(scale), load(bias + at + i));
        if (mask) t = t + load(mask + at + i);
        return exp2(t, bf16());
      };
      bf16* to = workspace.probs + r * P;
      int64_t i = 0;
      for (; i + 32 <= S; i += 32) _mm512_store_si512(to + i, round_pair(prob(i), prob(i + 16)));
      if (i < S) store(to + i, prob(i));
    }
    multiply_places(workspace.probs, P, workspace.values, workspace.ones, workspace.out);
    for (int64_t r = 0; r < rows; r++) {
      const float* out = workspace.out + OUT_STRIDE * r;
      const Vec sum = load(out + 32), inverse_sum = _mm512_rcp14_ps(sum);  // bf16 has 8 bits
      accurate &= in_range(sum);
      put(n + r, round_pair(load(out) * inverse_sum, load(out + 16) * inverse_sum));
    }
  }
  return accurate == 0xffff;
}

struct HeadTileBackwardWorkspace {
  bf16 *queries, *grad_out;                        // by `transpose_head`
  bf16 *vnni_queries, *vnni_keys, *vnni_grad_out;  // by `interleave_head`
  float *probs, *grad_probs;                       // (P keys, P queries)
  float *sums, *deltas;  // (P queries): of probs, later 1 / the sum; of probs times their gradients
  // (P, P): probs, and the gradients of logits, straight, in pairs of keys and transposed
  bf16 *probs_bf16, *grad_logits, *vnni_grad_logits, *transposed_grad_logits;
  float* out;

  HeadTileBackwardWorkspace() = default;
  HeadTileBackwardWorkspace(int64_t N, Arena& arena) {
    const int64_t P = padded_places(N);
    for (bf16** rows : heads().arrays) *rows = arena.take<bf16>(P * TILE_TERMS);
    for (bf16** square : squares().arrays) *square = arena.take<bf16>(P * P);
    probs = arena.take<float>(P * P);
    grad_probs = arena.take<float>(P * P);
    sums = arena.take<float>(P);
    deltas = arena.take<float>(P);
    out = arena.take<float>(TILE_ROWS * OUT_STRIDE);
  }
  // Call before the first use.
  void clear(int64_t N) {
    const int64_t P = padded_places(N);
    for (bf16** rows : heads().arrays) std::memset(*rows, 0, P * TILE_TERMS * sizeof(bf16));
    for (bf16** square : squares().arrays) std::memset(*square, 0, P * P * sizeof(bf16));
  }

 private:
  struct Heads {
    bf16** arrays[5];
  };
  struct Squares {
    bf16** arrays[4];
  };
  Heads heads() { return {{&queries, &grad_out, &vnni_queries, &vnni_keys, &vnni_grad_out}}; }
  Squares squares() { return {{&probs_bf16, &grad_logits, &vnni_grad_logits, &transposed_grad_logits}}; }
};

// Probs and their gradients, not yet divided by the sum of probs. Matrices are (keys, queries): sums over keys add
// whole vectors, and two of three products need no transpose. `bias` (N, S) has keys first, too.
inline void compute_probs_in_tiles(int64_t N, const bf16* k, const bf16* v, float scale, const float* bias,
                                   const float* mask, HeadTileBackwardWorkspace workspace) {
  const int64_t S = padded_keys(N), P = padded_places(N);
  std::fill_n(workspace.sums, P, 0.f);
  std::fill_n(workspace.deltas, P, 0.f);
  for (int64_t n = 0; n < N; n += TILE_ROWS) {
    multiply_channels(k + n * TILE_TERMS, workspace.queries, P, workspace.probs + n * P);
    multiply_channels(v + n * TILE_TERMS, workspace.grad_out, P, workspace.grad_probs + n * P);
    for (int64_t i = 0; i < S; i += LANES) {
      Vec sum = load(workspace.sums + i), delta = load(workspace.deltas + i);
      for (int64_t r = n; r < std::min(N, n + TILE_ROWS); r++) {
        Vec t = fmadd(load(workspace.probs + r * P + i), Vec(scale), load(bias + r * S + i));
        if (mask) t = t + load(mask + r * S + i);  // a symmetric matrix
        const Vec e = exp2(t, bf16());
        store(workspace.probs + r * P + i, e);
        sum = sum + e;
        delta = fmadd(e, load(workspace.grad_probs + r * P + i), delta);
      }
      store(workspace.sums + i, sum);
      store(workspace.deltas + i, delta);
    }
  }
}

// The function `attend_backward` with tiles. `bias` and `bias_sum` have keys first. Each head needs memory for 16 rows
// after the last place. `workspace` is a copy: the compiler then keeps its pointers in registers. Returns false, with
// nothing computed, if the softmax is inaccurate.
template <class Put>
bool attend_backward_in_tiles(int64_t N, const bf16* q, const bf16* k, const bf16* v, const bf16* grad_out, float scale,
                              const float* bias, const float* mask, float* bias_sum,
                              HeadTileBackwardWorkspace workspace, const Put& put) {
  const TilesInUse tiles;
  const int64_t S = padded_keys(N), P = padded_places(N);
  transpose_head(q, N, workspace.queries);
  transpose_head(grad_out, N, workspace.grad_out);
  compute_probs_in_tiles(N, k, v, scale * LOG2E, bias, mask, workspace);
  for (int64_t i = 0; i < N; i += LANES) {
    const __mmask16 lanes = i + LANES <= N ? 0xffff : first_lanes(N - i);
    const Vec sum = load(workspace.sums + i), inverse_sum = _mm512_maskz_div_ps(lanes, Vec(1.f), sum);
    if ((in_range(sum) & lanes) != lanes) return false;
    store(workspace.sums + i, inverse_sum);
    store(workspace.deltas + i, load(workspace.deltas + i) * inverse_sum);
  }
  interleave_head(q, N, workspace.vnni_queries);
  interleave_head(k, N, workspace.vnni_keys);
  interleave_head(grad_out, N, workspace.vnni_grad_out);
  for (int64_t n = 0; n < N; n += 2)
    for (int64_t i = 0; i < S; i += LANES) {
      const Vec inverse_sum = load(workspace.sums + i), delta = load(workspace.deltas + i);
      const auto grad_logits = [&](int64_t r) {
        const Vec p = load(workspace.probs + r * P + i) * inverse_sum;
        const Vec g = p * (load(workspace.grad_probs + r * P + i) - delta);
        store(workspace.probs_bf16 + r * P + i, p);
        store(workspace.grad_logits + r * P + i, g);
        store(bias_sum + r * S + i, load(bias_sum + r * S + i) + g);
        return g;
      };
      const Vec even = grad_logits(n), odd = n + 1 < N ? grad_logits(n + 1) : Vec(0.f);
      const __m512i rounded = round_pair(even, odd);
      const __m512i upper = _mm512_shuffle_i64x2(rounded, rounded, 0xee);
      _mm512_store_si512(workspace.vnni_grad_logits + n * P + 2 * i, interleave(rounded, upper).first);
    }
  transpose_pairs(workspace.vnni_grad_logits, 2 * P, (N + 1) / 2, N, workspace.transposed_grad_logits, P);
  const auto multiply = [&](const bf16* a, const bf16* b, Role role, float factor) {
    for (int64_t n = 0; n < N; n += TILE_ROWS) {
      multiply_places(a + n * P, P, b, nullptr, workspace.out);
      for (int64_t r = 0; r < std::min(TILE_ROWS, N - n); r++) {
        float* row = workspace.out + OUT_STRIDE * r;
        for (int64_t i = 0; i < TILE_TERMS; i += LANES) store(row + i, load(row + i) * Vec(factor));
        put(role, n + r, row);
      }
    }
  };
  multiply(workspace.transposed_grad_logits, workspace.vnni_keys, QUERY, scale);
  multiply(workspace.grad_logits, workspace.vnni_queries, KEY, scale);
  multiply(workspace.probs_bf16, workspace.vnni_grad_out, VALUE, 1.f);
  return true;
}

#endif

}  // namespace swin::SWIN_ISA
