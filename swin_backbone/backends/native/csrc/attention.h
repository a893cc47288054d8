// Softmax(scale q k^T + bias + mask) v of one head of one window.
//
// Layout: N places of a window, S = N rounded up to whole vectors, d channels of a head.
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>

#include "gemm.h"

namespace swin {

inline int64_t bias_stride(int64_t N) { return round_up(N, 16); }  // S

constexpr float LOG2E = 1.4426950408889634f;  // softmax takes powers of 2

// The position bias (h, N, N) in rows of S, times log2 e. After column N it is -inf, since there is no key.
inline void pad_bias(const float* bias_hNN, int64_t rows, int64_t N, float* to) {
  const int64_t S = bias_stride(N);
  for (int64_t r = 0; r < rows; r++, to += S) {
    for (int64_t k = 0; k < N; k++) to[k] = bias_hNN[r * N + k] * LOG2E;
    std::fill(to + N, to + S, -std::numeric_limits<float>::infinity());
  }
}

// Buffers for the computation, used by one head after another.
template <class T>
struct AttentionRoom {
  float* logits;   // (N, S)
  T* weights;      // (N, S), not yet divided by their sum
  T* keys;         // (d, S), pairs of d side by side for bf16
  T* values;       // (S, d), pairs of places side by side; unused for float, which reads v directly
  float* out;      // (N, d)
  float* inverse;  // (N): 1 / the sum of a row of weights

  template <class Take>  // take(bytes) returns the next `bytes` bytes
  AttentionRoom(int64_t N, int64_t d, const Take& take) {
    const int64_t S = bias_stride(N);
    logits = (float*)take(N * S * sizeof(float));
    weights = std::is_same_v<T, float> ? (T*)logits : (T*)take(N * S * sizeof(T));
    keys = (T*)take(S * d * sizeof(T));
    values = (T*)take(S * d * sizeof(T));
    out = (float*)take(N * d * sizeof(float));
    inverse = (float*)take(N * sizeof(float));
  }
};

inline void pack_keys(const float* k, int64_t N, int64_t d, float* to) {
  const int64_t S = bias_stride(N);
  at::vec::transpose_mxn<float>(k, d, to, S, N, d);
  for (int64_t c = 0; c < d && N < S; c++) std::fill(to + c * S + N, to + (c + 1) * S, 0.f);
}
// A pair of channels is moved as one number of 32 bits.
inline void pack_keys(const bf16* k, int64_t N, int64_t d, bf16* to) {
  pack_keys((const float*)k, N, d / 2, (float*)to);
}

inline const float* pack_values(const float* v, int64_t, int64_t, float*) { return v; }
#ifdef __AVX512BF16__
inline const bf16* pack_values(const bf16* v, int64_t N, int64_t d, bf16* to) {
  const auto *even = (const uint16_t*)v, *odd = even + d;
  auto* pairs = (uint16_t*)to;
  for (int64_t n = 0; n < N; n += 2, even += 2 * d, odd += 2 * d, pairs += 2 * d) {
    const bool both = n + 1 < N;
    int64_t c = 0;
    for (; c + 32 <= d; c += 32) {
      const auto [first, second] =
          mixed(_mm512_loadu_si512(even + c), both ? _mm512_loadu_si512(odd + c) : _mm512_setzero_si512());
      _mm512_storeu_si512(pairs + 2 * c, first);
      _mm512_storeu_si512(pairs + 2 * c + 32, second);
    }
    for (; c < d; c++) pairs[2 * c] = even[c], pairs[2 * c + 1] = both ? odd[c] : 0;
  }
  std::memset(pairs, 0, (bias_stride(N) - round_up(N, 2)) * d * sizeof(uint16_t));
  return to;
}
#endif

// One row: 2^(scale logits + bias + mask, less their maximum), and 1 / their sum. `weights` may be `logits`.
template <bool masked, class T>
float softmax(float* logits, int64_t S, float scale, const float* bias, const float* mask, T* weights) {
  Vec top(-std::numeric_limits<float>::infinity()), sum(0.f);
  for (int64_t k = 0; k < S; k += LANES) {
    Vec t = at::vec::fmadd(load(logits + k), Vec(scale), load(bias + k));
    if (masked) t = t + load(mask + k);
    store(logits + k, t);
    top = at::vec::clamp_min(t, top);
  }
  const Vec highest(max_of(top));
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec e = exp2(load(logits + k) - highest, T());
    sum = sum + e;
    store(weights + k, e);
  }
  return 1.f / sum_of(sum);
}

// Computes room.weights, and room.inverse, by which their rows must be multiplied. q, k: (N, d) each.
// `bias` and `mask`: (N, S); a null mask means no mask.
template <class T>
void attention_weights(int64_t N, int64_t d, const T* q, const T* k, float scale, const float* bias, const float* mask,
                       const AttentionRoom<T>& room) {
  const int64_t S = bias_stride(N);
  scale *= LOG2E;
  pack_keys(k, N, d, room.keys);
  brgemm(N, S, d, d, S, S, q, room.keys, room.logits);
  for (int64_t n = 0; n < N; n++) {
    float* logits = room.logits + n * S;
    T* weights = room.weights + n * S;
    room.inverse[n] = mask ? softmax<true>(logits, S, scale, bias + n * S, mask + n * S, weights)
                           : softmax<false>(logits, S, scale, bias + n * S, mask, weights);
  }
}

// put(place, row of d numbers, what to multiply by).
template <class T, class Put>
void attend(int64_t N, int64_t d, const T* q, const T* k, const T* v, float scale, const float* bias,
            const float* mask, const AttentionRoom<T>& room, const Put& put) {
  const int64_t S = bias_stride(N);
  attention_weights(N, d, q, k, scale, bias, mask, room);
  const T* values = pack_values(v, N, d, room.values);
  brgemm(N, d, std::is_same_v<T, float> ? N : S, S, d, d, room.weights, values, room.out);
  for (int64_t n = 0; n < N; n++) put(n, room.out + n * d, room.inverse[n]);
}

}  // namespace swin
