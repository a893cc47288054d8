// Attention of heads of 32 channels by AMX, for bf16. A tile is 16 rows of 64 bytes: 16 places of a head, or 16 pairs
// of channels or places. brgemm takes 0.8 us for each product of this size, these loops 0.15 us, because nothing is
// looked up or configured between products.
//
// Layout: N places of a window, S = N rounded up to whole vectors, K = N rounded up to 32.
#pragma once

#include <array>

#include "attention.h"

#ifdef SWIN_HAS_TILES
#include <immintrin.h>
#endif

namespace swin {

template <class T>
bool has_head_tiles(int64_t d) {
  return std::is_same_v<T, bf16> && d == TILE_TERMS && has_tiles();
}

#ifdef SWIN_HAS_TILES
// The gradients need all logits of a window at once, a forward those of 16 queries.
inline int64_t padded_places(int64_t N) { return round_up(N, 32); }  // K

// Rows (N, 32) as the B operand of a sum over channels: (16 pairs of channels, K). Places after the last are not
// written.
inline void turn_head(const bf16* rows, int64_t N, bf16* to) {
  at::vec::transpose_mxn<float>((const float*)rows, TILE_TERMS / 2, (float*)to, padded_places(N), N, TILE_TERMS / 2);
}

// Rows (N, 32) as the B operand of a sum over places: (K / 32, 2, 16 pairs of places, 16 channels).
inline void pair_head(const bf16* rows, int64_t N, bf16* to) {
  for (int64_t n = 0; n < N; n += 2) {
    const __m512i even = _mm512_load_si512(rows + n * TILE_TERMS);
    const __m512i odd = n + 1 < N ? _mm512_load_si512(rows + (n + 1) * TILE_TERMS) : _mm512_setzero_si512();
    bf16* pair = to + n / 32 * 2 * TILE + n % 32 * TILE_ROWS;
    const auto [first, second] = mixed(even, odd);
    _mm512_store_si512(pair, first);
    _mm512_store_si512(pair + TILE, second);
  }
}

// c (16, K) = a b, for 16 rows of a head and b by `turn_head`.
inline void multiply_channels(const bf16* a, const bf16* b, int64_t K, float* c) {
  _tile_loadd(4, a, 64);
  for (int64_t k = 0; k < K; k += 32) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(5, b + 2 * k, 4 * K);
    _tile_loadd(6, b + 2 * k + 32, 4 * K);
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 6);
    _tile_stored(0, c + k, 4 * K);
    _tile_stored(1, c + k + 16, 4 * K);
  }
}

constexpr int64_t OUT = 48;
// out (16, 48) = a (16, K) b, for b by `pair_head`. Its last 16 columns are the sums of the rows of a, if `ones` is
// given.
inline void multiply_places(const bf16* a, int64_t K, const bf16* b, const bf16* ones, float* out) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  if (ones) _tile_loadd(7, ones, 64);
  for (int64_t k = 0; k < K; k += 32, b += 2 * TILE) {
    _tile_loadd(4, a + k, 2 * K);
    _tile_loadd(5, b, 64);
    _tile_loadd(6, b + TILE, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 6);
    if (ones) _tile_dpbf16ps(2, 4, 7);
  }
  _tile_stored(0, out, 4 * OUT);
  _tile_stored(1, out + 16, 4 * OUT);
  if (ones) _tile_stored(2, out + 32, 4 * OUT);
}

// Softmax here does not subtract the maximum. This is right as long as the sums of weights are in this range.
inline bool all_in_range(Vec low, Vec high, __mmask16 lanes = 0xffff) {
  const __mmask16 above = _mm512_cmp_ps_mask(low, Vec(1e-30f), _CMP_GT_OQ);
  return (above & _mm512_cmp_ps_mask(high, Vec(1e30f), _CMP_LT_OQ) & lanes) == lanes;
}

inline void store_pair(bf16* to, Vec first, Vec second) {
  _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(second, first));
}

struct HeadTileRoom {
  bf16 *keys, *values, *ones;  // `ones`: a tile
  float* logits;               // (16, K)
  bf16* weights;               // (16, K), not yet divided by their sum
  float* out;                  // (16, OUT)

  HeadTileRoom() = default;
  template <class Take>  // take(bytes) returns the next `bytes` bytes
  HeadTileRoom(int64_t N, const Take& take) {
    const int64_t K = padded_places(N);
    keys = (bf16*)take(K * TILE_TERMS * sizeof(bf16));
    values = (bf16*)take(K * TILE_TERMS * sizeof(bf16));
    ones = (bf16*)take(TILE * sizeof(bf16));
    logits = (float*)take(TILE_ROWS * K * sizeof(float));
    weights = (bf16*)take(TILE_ROWS * K * sizeof(bf16));
    out = (float*)take(TILE_ROWS * OUT * sizeof(float));
  }
  // Before the first use. What is never written afterwards stays zero: places after the last.
  void clear(int64_t N) const {
    const int64_t K = padded_places(N);
    std::memset((void*)keys, 0, K * TILE_TERMS * sizeof(bf16));
    std::memset((void*)values, 0, K * TILE_TERMS * sizeof(bf16));
    std::memset((void*)weights, 0, TILE_ROWS * K * sizeof(bf16));
    std::fill_n(ones, TILE, bf16(1.f));
  }
};

// As `attend`, but put(place, row of 32 bf16 numbers), and there must be memory for 16 rows after the last query.
// Returns whether the result is right.
template <class Put>
bool attend_in_tiles(int64_t N, const bf16* q, const bf16* k, const bf16* v, float scale, const float* bias,
                     const float* mask, const HeadTileRoom& room, const Put& put) {
  const TilesInUse tiles;
  const int64_t S = bias_stride(N), K = padded_places(N);
  scale *= LOG2E;
  turn_head(k, N, room.keys);
  pair_head(v, N, room.values);
  Vec low(1.f), high(1.f);
  for (int64_t n = 0; n < N; n += TILE_ROWS) {
    const int64_t rows = std::min(TILE_ROWS, N - n);
    multiply_channels(q + n * TILE_TERMS, room.keys, K, room.logits);
    for (int64_t r = 0; r < rows; r++) {
      const int64_t at = (n + r) * S;
      const auto weight = [&](int64_t i) {
        Vec t = at::vec::fmadd(load(room.logits + r * K + i), Vec(scale), load(bias + at + i));
        if (mask) t = t + load(mask + at + i);
        return exp2(t, bf16());
      };
      bf16* to = room.weights + r * K;
      int64_t i = 0;
      for (; i + 32 <= S; i += 32) store_pair(to + i, weight(i), weight(i + 16));
      if (i < S) store(to + i, weight(i));
    }
    multiply_places(room.weights, K, room.values, room.ones, room.out);
    for (int64_t r = 0; r < rows; r++) {
      const float* out = room.out + OUT * r;
      const Vec sum = load(out + 32), inverse = _mm512_rcp14_ps(sum);  // bf16 has 8 bits
      low = at::vec::minimum(low, sum);
      high = at::vec::maximum(high, sum);
      put(n + r, (__m512i)_mm512_cvtne2ps_pbh(load(out + 16) * inverse, load(out) * inverse));
    }
  }
  return all_in_range(low, high);
}

struct HeadTileBackwardRoom {
  bf16 *queries, *grads_out;                          // by `turn_head`
  bf16 *paired_queries, *paired_keys, *paired_grads;  // by `pair_head`
  float *weights, *grads;                             // (K keys, K queries); grads: of weights
  float *sums, *dots;                                 // (K queries)
  bf16 *weights_bf16, *logits, *paired, *turned;      // (K, K); logits: their gradients, paired and turned: the same
  float* out;

  HeadTileBackwardRoom() = default;
  template <class Take>
  HeadTileBackwardRoom(int64_t N, const Take& take) {
    const int64_t K = padded_places(N);
    for (bf16** rows : heads()) *rows = (bf16*)take(K * TILE_TERMS * sizeof(bf16));
    for (bf16** square : squares()) *square = (bf16*)take(K * K * sizeof(bf16));
    weights = (float*)take(K * K * sizeof(float));
    grads = (float*)take(K * K * sizeof(float));
    sums = (float*)take(K * sizeof(float));
    dots = (float*)take(K * sizeof(float));
    out = (float*)take(TILE_ROWS * OUT * sizeof(float));
  }
  // As in `HeadTileRoom`.
  void clear(int64_t N) {
    const int64_t K = padded_places(N);
    for (bf16** rows : heads()) std::memset((void*)*rows, 0, K * TILE_TERMS * sizeof(bf16));
    for (bf16** square : squares()) std::memset((void*)*square, 0, K * K * sizeof(bf16));
  }

 private:
  std::array<bf16**, 5> heads() { return {&queries, &grads_out, &paired_queries, &paired_keys, &paired_grads}; }
  std::array<bf16**, 4> squares() { return {&weights_bf16, &logits, &paired, &turned}; }
};

// Weights and their gradients, not yet divided by their sum. Matrices are (keys, queries) here: so sums over keys need
// no reduction of vectors, and two of three products take them as they are. `bias` (N, S) is transposed, too.
inline void weights_in_tiles(int64_t N, const bf16* k, const bf16* v, float scale, const float* bias, const float* mask,
                             HeadTileBackwardRoom room) {
  const int64_t S = bias_stride(N), K = padded_places(N);
  std::fill_n(room.sums, K, 0.f);
  std::fill_n(room.dots, K, 0.f);
  for (int64_t n = 0; n < N; n += TILE_ROWS) {
    multiply_channels(k + n * TILE_TERMS, room.queries, K, room.weights + n * K);
    multiply_channels(v + n * TILE_TERMS, room.grads_out, K, room.grads + n * K);
    for (int64_t i = 0; i < S; i += LANES) {
      Vec sum = load(room.sums + i), dot = load(room.dots + i);
      for (int64_t r = n; r < std::min(N, n + TILE_ROWS); r++) {
        Vec t = at::vec::fmadd(load(room.weights + r * K + i), Vec(scale), load(bias + r * S + i));
        if (mask) t = t + load(mask + r * S + i);  // it is symmetric
        const Vec e = exp2(t, bf16());
        store(room.weights + r * K + i, e);
        sum = sum + e;
        dot = at::vec::fmadd(e, load(room.grads + r * K + i), dot);
      }
      store(room.sums + i, sum);
      store(room.dots + i, dot);
    }
  }
}

// As `attend_backward`, but `bias` and `bias_sum` are transposed, and there must be memory for 16 rows after the last
// of each head. `room` is a copy, so that its pointers are not read again after each store. Returns whether it has done
// it.
template <class Put>
bool attend_backward_in_tiles(int64_t N, const bf16* q, const bf16* k, const bf16* v, const bf16* out, float scale,
                              const float* bias, const float* mask, float* bias_sum, HeadTileBackwardRoom room,
                              const Put& put) {
  const TilesInUse tiles;
  const int64_t S = bias_stride(N), K = padded_places(N);
  turn_head(q, N, room.queries);
  turn_head(out, N, room.grads_out);
  weights_in_tiles(N, k, v, scale * LOG2E, bias, mask, room);
  for (int64_t i = 0; i < N; i += LANES) {
    const __mmask16 lanes = i + LANES <= N ? 0xffff : (1 << (N - i)) - 1;
    const Vec sum = load(room.sums + i), inverse = _mm512_maskz_div_ps(lanes, Vec(1.f), sum);
    if (!all_in_range(sum, sum, lanes)) return false;
    store(room.sums + i, inverse);
    store(room.dots + i, load(room.dots + i) * inverse);
  }
  pair_head(q, N, room.paired_queries);
  pair_head(k, N, room.paired_keys);
  pair_head(out, N, room.paired_grads);
  for (int64_t n = 0; n < N; n += 2)
    for (int64_t i = 0; i < S; i += LANES) {
      const Vec inverse = load(room.sums + i), mean = load(room.dots + i);
      const auto of_logits = [&](int64_t r) {
        const Vec p = load(room.weights + r * K + i) * inverse, g = p * (load(room.grads + r * K + i) - mean);
        store(room.weights_bf16 + r * K + i, p);
        store(room.logits + r * K + i, g);
        store(bias_sum + r * S + i, load(bias_sum + r * S + i) + g);
        return g;
      };
      const Vec even = of_logits(n), odd = n + 1 < N ? of_logits(n + 1) : Vec(0.f);
      const auto rounded = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
      const __m512i upper = _mm512_shuffle_i64x2(rounded, rounded, 0xee);
      _mm512_store_si512(room.paired + n * K + 2 * i, mixed(rounded, upper).first);
    }
  at::vec::transpose_mxn<float>((const float*)room.paired, K, (float*)room.turned, K / 2, (N + 1) / 2, N);
  const auto times = [&](const bf16* a, const bf16* b, int64_t which, float factor) {
    for (int64_t n = 0; n < N; n += TILE_ROWS) {
      multiply_places(a + n * K, K, b, nullptr, room.out);
      for (int64_t r = 0; r < std::min(TILE_ROWS, N - n); r++) {
        float* row = room.out + OUT * r;
        for (int64_t i = 0; i < TILE_TERMS; i += LANES) store(row + i, load(row + i) * Vec(factor));
        put(which, n + r, row);
      }
    }
  };
  times(room.turned, room.paired_keys, 0, scale);
  times(room.logits, room.paired_queries, 1, scale);
  times(room.weights_bf16, room.paired_grads, 2, 1.f);
  return true;
}

#endif

}  // namespace swin
