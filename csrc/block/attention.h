// Softmax(scale q k^T + bias + mask) v for a head of a window, and its gradients.
//
// Layout: N places of a window, S = N rounded up to whole vectors, d channels of a head.
#pragma once

#include <limits>

#include "products/gemm.h"

namespace swin::SWIN_ISA {

inline int64_t bias_stride(int64_t N) { return round_up(N, std::max<int64_t>(LANES, 8)); }  // S

// Copy the position bias (h, N, N) to rows of S numbers, times log2 e. Columns from N on have no key, and are -inf.
inline void pad_bias(const float* bias_hNN, int64_t rows, int64_t N, float* to) {
  const int64_t S = bias_stride(N);
  for (int64_t r = 0; r < rows; r++, to += S) {
    for (int64_t k = 0; k < N; k++) to[k] = bias_hNN[r * N + k] * LOG2E;
    std::fill(to + N, to + S, -std::numeric_limits<float>::infinity());
  }
}

// Memory for a head, reused by the next head.
template <class T>
struct AttentionWorkspace {
  float* logits;   // (N, S)
  T* weights;      // (N, S), not yet divided by their sum
  T* keys;         // (d, S), pairs of d side by side for bf16
  T* values;       // (S, d), pairs of places side by side; unused without pairs: v is read directly
  float* out;      // (N, d)
  float* inverse;  // (N): 1 / the sum of a row of weights

  AttentionWorkspace() = default;
  AttentionWorkspace(int64_t N, int64_t d, Arena& arena) {
    const int64_t S = bias_stride(N);
    logits = arena.take<float>(N * S);
    weights = IN_PAIRS<T> ? arena.take<T>(N * S) : reinterpret_cast<T*>(logits);
    keys = arena.take<T>(S * d);
    values = arena.take<T>(S * d);
    out = arena.take<float>(N * d);
    inverse = arena.take<float>(N);
  }
};

inline void pack_keys(const float* k, int64_t N, int64_t d, float* to) {
  const int64_t S = bias_stride(N);
  transpose(k, d, N, d, to, S);
  for (int64_t c = 0; c < d && N < S; c++) std::fill(to + c * S + N, to + (c + 1) * S, 0.f);
}
inline void pack_keys(const rounded* k, int64_t N, int64_t d, rounded* to) { pack_keys(&k->number, N, d, &to->number); }
template <class T>
const T* pack_values(const T* v, int64_t, int64_t, T*) {
  return v;
}
#if SWIN_HAS_BF16
inline void pack_keys(const bf16* k, int64_t N, int64_t d, bf16* to) {
  const int64_t S = bias_stride(N);
  transpose_pairs(k, d, N, d / 2, to, 2 * S);
  for (int64_t c = 0; c < d / 2 && N < S; c++) std::memset(to + 2 * (c * S + N), 0, 2 * (S - N) * sizeof(bf16));
}
inline const bf16* pack_values(const bf16* v, int64_t N, int64_t d, bf16* to) {
  for (int64_t n = 0; n < N; n += 2) interleave_rows(v + n * d, n + 1 < N ? v + (n + 1) * d : nullptr, d, to + n * d);
  std::memset(to + round_up(N, 2) * d, 0, (bias_stride(N) - round_up(N, 2)) * d * sizeof(bf16));
  return to;
}
#endif

// Compute a row of weights, 2^(scale logits + bias + mask - maximum), and return 1 / the sum of the row. `weights` may
// be `logits`.
template <bool masked, class T>
float softmax(float* logits, int64_t S, float scale, const float* bias, const float* mask, T* weights) {
  Vec top(-std::numeric_limits<float>::infinity()), sum(0.f);
  for (int64_t k = 0; k < S; k += LANES) {
    Vec t = fmadd(load(logits + k), Vec(scale), load(bias + k));
    if (masked) t = t + load(mask + k);
    store(logits + k, t);
    top = max(top, t);
  }
  const Vec highest(max_of(top));
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec e = exp2(load(logits + k) - highest, T());
    sum = sum + e;
    store(weights + k, e);
  }
  return 1.f / sum_of(sum);
}

// Compute workspace.weights, and workspace.inverse, the factor of each row of weights. q, k: (N, d). `bias` and `mask`:
// (N, S). A null mask means no mask.
template <class T>
void attention_weights(int64_t N, int64_t d, const T* q, const T* k, float scale, const float* bias, const float* mask,
                       const AttentionWorkspace<T>& workspace) {
  const int64_t S = bias_stride(N);
  scale *= LOG2E;
  {
    const Timed timed(Work::PACKING, N * d);
    pack_keys(k, N, d, workspace.keys);
  }
  gemm(N, S, d, d, S, S, q, workspace.keys, workspace.logits);
  const Timed timed(Work::SOFTMAX, N * S);
  for (int64_t n = 0; n < N; n++) {
    float* logits = workspace.logits + n * S;
    T* weights = workspace.weights + n * S;
    workspace.inverse[n] = mask ? softmax<true>(logits, S, scale, bias + n * S, mask + n * S, weights)
                                : softmax<false>(logits, S, scale, bias + n * S, mask, weights);
  }
}

// Call put(place, row of d numbers, factor of the row) for each place.
template <class T, class Put>
void attend(int64_t N, int64_t d, const T* q, const T* k, const T* v, float scale, const float* bias, const float* mask,
            const AttentionWorkspace<T>& workspace, const Put& put) {
  const int64_t S = bias_stride(N);
  attention_weights(N, d, q, k, scale, bias, mask, workspace);
  const T* values = pack_values(v, N, d, workspace.values);
  gemm(N, d, IN_PAIRS<T> ? S : N, S, d, d, workspace.weights, values, workspace.out);
  const Timed timed(Work::HEADS, N * d);
  for (int64_t n = 0; n < N; n++) put(n, workspace.out + n * d, workspace.inverse[n]);
}

template <class T>
struct AttentionBackwardWorkspace {
  float* grads;   // (N, S), of weights
  T* logits;      // (N, S), gradients of logits, times the scale
  T* transposed;  // (N, S), the transpose of either, keys first

  AttentionBackwardWorkspace() = default;
  AttentionBackwardWorkspace(int64_t N, Arena& arena) {
    const int64_t S = bias_stride(N);
    grads = arena.take<float>(N * S);
    logits = IN_PAIRS<T> ? arena.take<T>(N * S) : reinterpret_cast<T*>(grads);
    transposed = arena.take<T>(N * S);
  }
};

// A row of softmax's backward. Divide the weights by their sum, and write the gradients of the logits, times `scale`,
// to `to`. `to` may be `grads`.
template <class T>
void softmax_backward(T* weights, float inverse, const float* grads, int64_t S, float scale, float* bias_sum, T* to) {
  Vec sum(0.f);
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec p = load(weights + k) * Vec(inverse);
    store(weights + k, p);
    sum = fmadd(p, load(grads + k), sum);
  }
  const Vec mean(sum_of(sum));
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec g = load(weights + k) * (load(grads + k) - mean);
    store(bias_sum + k, load(bias_sum + k) + g);
    store(to + k, g * Vec(scale));
  }
}

// Gradients of `attend`, from the gradient of its output, `out` (N, d). Calls put(which, place, row of d numbers), with
// `which` 0 for the query, 1 for the key, 2 for the value.
// bias_sum: (N, S), the sum of gradients of the bias.
template <class T, class Put>
void attend_backward(int64_t N, int64_t d, const T* q, const T* k, const T* v, const T* out, float scale,
                     const float* bias, const float* mask, float* bias_sum, const AttentionWorkspace<T>& forward,
                     const AttentionBackwardWorkspace<T>& workspace, const Put& put) {
  const int64_t S = bias_stride(N), K = IN_PAIRS<T> ? S : N;
  attention_weights(N, d, q, k, scale, bias, mask, forward);
  pack_keys(v, N, d, forward.keys);
  gemm(N, S, d, d, S, S, out, forward.keys, workspace.grads);
  {
    const Timed timed(Work::SOFTMAX, N * S);
    for (int64_t n = 0; n < N; n++)
      softmax_backward(forward.weights + n * S, forward.inverse[n], workspace.grads + n * S, S, scale, bias_sum + n * S,
                       workspace.logits + n * S);
  }
  const auto times = [&](const T* a, const T* b, int64_t which) {
    gemm(N, d, K, S, d, d, a, pack_values(b, N, d, forward.values), forward.out);
    const Timed timed(Work::HEADS, N * d);
    for (int64_t n = 0; n < N; n++) put(which, n, forward.out + n * d);
  };
  const auto with_keys_first = [&](const T* a) {
    const Timed timed(Work::PACKING, N * N);
    transpose(a, S, N, N, workspace.transposed, S);
    for (int64_t n = 0; n < N && IN_PAIRS<T>; n++)
      std::memset(static_cast<void*>(workspace.transposed + n * S + N), 0, (S - N) * sizeof(T));
    return workspace.transposed;
  };
  times(workspace.logits, k, 0);
  times(with_keys_first(workspace.logits), q, 1);
  times(with_keys_first(forward.weights), out, 2);
}

}  // namespace swin::SWIN_ISA
