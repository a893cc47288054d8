// Gradients of the functions between matrix products, row by row, and the transposes that products over tokens need.
//
// Layout: N places of a window, S = N rounded up to whole vectors, d channels of a head.
#pragma once

#include "attention.h"

namespace swin {

// The slope of GELU: Phi(x) + x phi(x), given Phi(x).
template <class T>
inline Vec gelu_slope(Vec x, Vec cdf) {
  return at::vec::fmadd(x * Vec(0.398942280f), exp2(x * x * Vec(-0.5f * LOG2E), T()), cdf);
}

// Where the gradients of a norm's weight and bias are summed.
struct AffineSums {
  float *weight, *bias;
};

// Calls put(column, gradient of x, count), given the gradient of LayerNorm(x), which is factor * dy.
template <class Put>
inline void layer_norm_backward(const float* x, int64_t n, Affine norm, const float* dy, float factor,
                                AffineSums sums, const Put& put) {
  Vec total(0.f);
  over_columns(n, [&](int64_t c, int64_t count) { total = total + load(x + c, count); });
  const Vec times(factor), minus(-sum_of(total) / n);
  Vec squares(0.f), sum(0.f), dot(0.f);  // of x - its mean, of the gradient of y, of both
  over_columns(n, [&](int64_t c, int64_t count) {
    const Vec of_y = load(dy + c, count) * times * load(norm.weight + c, count);  // 0 after the end of the row
    const Vec d = count == LANES ? load(x + c) + minus : Vec::set(Vec(0.f), load(x + c, count) + minus, count);
    squares = at::vec::fmadd(d, d, squares);
    sum = sum + of_y;
    dot = at::vec::fmadd(of_y, d, dot);
  });
  const float rstd = inverse_deviation(sum_of(squares) / n, norm.eps);
  const Vec scale(rstd), mean(sum_of(sum) / n), along(sum_of(dot) * rstd / n);
  over_columns(n, [&](int64_t c, int64_t count) {
    const Vec y = (load(x + c, count) + minus) * scale, g = load(dy + c, count) * times;
    store(sums.weight + c, at::vec::fmadd(g, y, load(sums.weight + c, count)), count);
    store(sums.bias + c, load(sums.bias + c, count) + g, count);
    put(c, (g * load(norm.weight + c, count) - mean - y * along) * scale, count);
  });
}

// A vector was normalised and given length `length`, by multiplying it by `factor`, and became `v`. This replaces the
// gradient of v by that of the vector, and returns the gradient of `length`.
template <class T>
inline float length_backward(float* gradient, const T* v, int64_t d, float factor, float length) {
  Vec sum(0.f);
  over_columns(d, [&](int64_t i, int64_t lanes) {
    sum = at::vec::fmadd(load(gradient + i, lanes), load(v + i, lanes), sum);
  });
  const float along = sum_of(sum) / length;
  const Vec times(factor), minus(-along / length);
  over_columns(d, [&](int64_t i, int64_t lanes) {
    const Vec across = at::vec::fmadd(load(v + i, lanes), minus, load(gradient + i, lanes));
    store(gradient + i, across * times, lanes);
  });
  return along;
}

// (M, N) to (N, M), rows from_stride and to_stride apart.
inline void transpose(const float* from, int64_t from_stride, int64_t M, int64_t N, float* to, int64_t to_stride) {
  at::vec::transpose_mxn<float>(from, from_stride, to, to_stride, M, N);
}
#ifdef __AVX512BF16__
// Of at most 32 x 32. Rows are paired, then pairs are moved as numbers of 32 bits. at::vec's kernel for bf16 takes more
// than twice the time, because it does not keep its 64 vectors in registers.
inline void transpose_tile(const bf16* from, int64_t from_stride, int64_t M, int64_t N, bf16* to, int64_t to_stride) {
  const __mmask32 columns = ((uint64_t)1 << N) - 1, rows = ((uint64_t)1 << M) - 1;
  alignas(64) float pairs[2][16][16] = {}, turned[2][16][16];  // [i] has every second four of columns
  for (int64_t m = 0; m < M; m += 2) {
    const __m512i even = _mm512_maskz_loadu_epi16(columns, from + m * from_stride);
    const __m512i odd = _mm512_maskz_loadu_epi16(m + 1 < M ? columns : 0, from + (m + 1) * from_stride);
    _mm512_store_si512(pairs[0][m / 2], _mm512_unpacklo_epi16(even, odd));
    _mm512_store_si512(pairs[1][m / 2], _mm512_unpackhi_epi16(even, odd));
  }
  for (int64_t i = 0; i < 2; i++) at::vec::transpose_mxn<float, 16, 16>(pairs[i][0], 16, turned[i][0], 16);
  for (int64_t n = 0; n < N; n++)
    _mm512_mask_storeu_epi16(to + n * to_stride, rows, _mm512_load_si512(turned[n / 4 % 2][n / 8 * 4 + n % 4]));
}
inline void transpose(const bf16* from, int64_t from_stride, int64_t M, int64_t N, bf16* to, int64_t to_stride) {
  constexpr int64_t TILE = 32;
  for (int64_t m = 0; m < M; m += TILE)
    for (int64_t n = 0; n < N; n += TILE)
      transpose_tile(from + m * from_stride + n, from_stride, std::min(TILE, M - m), std::min(TILE, N - n),
                     to + n * to_stride + m, to_stride);
}
#endif

template <class T>
struct AttentionBackwardRoom {
  float* grads;  // (N, S), of weights
  T* logits;     // (N, S), gradients of logits, times the scale
  T* turned;     // (N, S), the transpose of either, keys first

  template <class Take>
  AttentionBackwardRoom(int64_t N, const Take& take) {
    const int64_t S = bias_stride(N);
    grads = (float*)take(N * S * sizeof(float));
    logits = std::is_same_v<T, float> ? (T*)grads : (T*)take(N * S * sizeof(T));
    turned = (T*)take(N * S * sizeof(T));
  }
};

// One row of softmax's backward: divides the weights by their sum, and turns their gradients into those of logits and,
// times `scale`, into `to`. `to` may be `grads`.
template <class T>
void softmax_backward(T* weights, float inverse, const float* grads, int64_t S, float scale, float* bias_sum, T* to) {
  Vec sum(0.f);
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec p = load(weights + k) * Vec(inverse);
    store(weights + k, p);
    sum = at::vec::fmadd(p, load(grads + k), sum);
  }
  const Vec mean(sum_of(sum));
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec g = load(weights + k) * (load(grads + k) - mean);
    store(bias_sum + k, load(bias_sum + k) + g);
    store(to + k, g * Vec(scale));
  }
}

// Gradients of `attend`, from the gradient of its output, `out` (N, d). Calls put(which, place, row of d numbers),
// where `which` is 0 for query, 1 for key, 2 for value.
// bias_sum: (N, S), to which the gradient of the bias is added.
template <class T, class Put>
void attend_backward(int64_t N, int64_t d, const T* q, const T* k, const T* v, const T* out, float scale,
                     const float* bias, const float* mask, float* bias_sum, const AttentionRoom<T>& room,
                     const AttentionBackwardRoom<T>& more, const Put& put) {
  constexpr bool pairs = std::is_same_v<T, bf16>;
  const int64_t S = bias_stride(N), K = pairs ? S : N;
  attention_weights(N, d, q, k, scale, bias, mask, room);
  pack_keys(v, N, d, room.keys);
  brgemm(N, S, d, d, S, S, out, room.keys, more.grads);
  for (int64_t n = 0; n < N; n++)
    softmax_backward(room.weights + n * S, room.inverse[n], more.grads + n * S, S, scale, bias_sum + n * S,
                     more.logits + n * S);
  const auto times = [&](const T* a, const T* b, int64_t which) {
    brgemm(N, d, K, S, d, d, a, pack_values(b, N, d, room.values), room.out);
    for (int64_t n = 0; n < N; n++) put(which, n, room.out + n * d);
  };
  const auto turn = [&](const T* a) {
    transpose(a, S, N, N, more.turned, S);
    for (int64_t n = 0; n < N && pairs; n++) std::fill(more.turned + n * S + N, more.turned + (n + 1) * S, T(0.f));
    return more.turned;
  };
  times(more.logits, k, 0);
  times(turn(more.logits), q, 1);
  times(turn(room.weights), out, 2);
}

}  // namespace swin
