// Softmax(scale q k^T + bias + mask) v for a head of a window, and its gradients.
//
// Layout: N places of a window, S = N rounded up to whole vectors and at least to 8, d channels of a head.
#pragma once

#include <limits>

#include "products/gemm.h"

namespace swin::SWIN_ISA {

enum Role { QUERY, KEY, VALUE };  // of a row of a head

inline int64_t padded_keys(int64_t N) { return round_up(N, std::max<int64_t>(LANES, 8)); }  // S

// Copy the position bias (h, N, N) to rows of S numbers, times log2 e. Columns from N on have no key, and are -inf.
inline void pad_bias(const float* bias_hNN, int64_t rows, int64_t N, float* to) {
  const int64_t S = padded_keys(N);
  for (int64_t r = 0; r < rows; r++, to += S) {
    for (int64_t k = 0; k < N; k++) to[k] = bias_hNN[r * N + k] * LOG2E;
    std::fill(to + N, to + S, -std::numeric_limits<float>::infinity());
  }
}

// Memory for a head, reused by the next head.
template <class T>
struct AttentionWorkspace {
  float* logits;       // (N, S)
  T* probs;            // (N, S), not yet divided by their sum
  T* rhs_dS;           // right operand of a sum over d: k or v, pairs of d side by side for bf16
  T* rhs_Sd;           // right operand of a sum over places, pairs of places side by side; unused without pairs
  float* out;          // (N, d)
  float* inverse_sum;  // (N): 1 / the sum of a row of probs

  AttentionWorkspace() = default;
  AttentionWorkspace(int64_t N, int64_t d, Arena& arena) {
    const int64_t S = padded_keys(N);
    logits = arena.take<float>(N * S);
    probs = IN_PAIRS<T> ? arena.take<T>(N * S) : reinterpret_cast<T*>(logits);
    rhs_dS = arena.take<T>(S * d);
    rhs_Sd = arena.take<T>(S * d);
    out = arena.take<float>(N * d);
    inverse_sum = arena.take<float>(N);
  }
};

// Pack rows (N, d) as the right operand of a sum over d.
inline void pack_rhs_dS(const float* rows, int64_t N, int64_t d, float* to) {
  const int64_t S = padded_keys(N);
  transpose(rows, d, N, d, to, S);
  if (N == S) return;
  for (int64_t c = 0; c < d; c++) std::fill(to + c * S + N, to + (c + 1) * S, 0.f);
}
inline void pack_rhs_dS(const rounded* rows, int64_t N, int64_t d, rounded* to) {
  pack_rhs_dS(&rows->number, N, d, &to->number);
}
// Pack rows (N, d) as the right operand of a sum over places. Without pairs the rows are the operand.
template <class T>
const T* pack_rhs_Sd(const T* rows, int64_t, int64_t, T*) {
  return rows;
}
#if SWIN_HAS_BF16
inline void pack_rhs_dS(const bf16* rows, int64_t N, int64_t d, bf16* to) {
  const int64_t S = padded_keys(N);
  transpose_pairs(rows, d, N, d / 2, to, 2 * S);
  if (N == S) return;
  for (int64_t c = 0; c < d / 2; c++) std::memset(to + 2 * (c * S + N), 0, 2 * (S - N) * sizeof(bf16));
}
inline const bf16* pack_rhs_Sd(const bf16* rows, int64_t N, int64_t d, bf16* to) {
  for (int64_t n = 0; n < N; n += 2)
    interleave_rows(rows + n * d, n + 1 < N ? rows + (n + 1) * d : nullptr, d, to + n * d);
  std::memset(to + round_up(N, 2) * d, 0, (padded_keys(N) - round_up(N, 2)) * d * sizeof(bf16));
  return to;
}
#endif

// Compute a row of probs, 2^(scale logits + bias + mask - maximum), and return 1 / the sum of the row. `probs` may
// be `logits`.
template <bool masked, class T>
float softmax(float* logits, int64_t S, float scale, const float* bias, const float* mask, T* probs) {
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
    store(probs + k, e);
  }
  return 1.f / sum_of(sum);
}

// Compute workspace.probs, and workspace.inverse_sum, the factor of each row of probs. q, k: (N, d). `bias` and `mask`:
// (N, S). A null mask means no mask.
template <class T>
void compute_probs(int64_t N, int64_t d, const T* q, const T* k, float scale, const float* bias, const float* mask,
                   const AttentionWorkspace<T>& workspace) {
  const int64_t S = padded_keys(N);
  scale *= LOG2E;
  {
    const Timed timed(Work::PACKING, N * d);
    pack_rhs_dS(k, N, d, workspace.rhs_dS);
  }
  gemm(N, S, d, d, S, S, q, workspace.rhs_dS, workspace.logits);
  const Timed timed(Work::SOFTMAX, N * S);
  for (int64_t n = 0; n < N; n++) {
    float* logits = workspace.logits + n * S;
    T* probs = workspace.probs + n * S;
    workspace.inverse_sum[n] = mask ? softmax<true>(logits, S, scale, bias + n * S, mask + n * S, probs)
                                    : softmax<false>(logits, S, scale, bias + n * S, mask, probs);
  }
}

// Call put(place, row of d numbers, factor of the row) for each place.
template <class T, class Put>
void attend(int64_t N, int64_t d, const T* q, const T* k, const T* v, float scale, const float* bias, const float* mask,
            const AttentionWorkspace<T>& workspace, const Put& put) {
  const int64_t S = padded_keys(N);
  compute_probs(N, d, q, k, scale, bias, mask, workspace);
  const T* rhs = pack_rhs_Sd(v, N, d, workspace.rhs_Sd);
  gemm(N, d, IN_PAIRS<T> ? S : N, S, d, d, workspace.probs, rhs, workspace.out);
  const Timed timed(Work::HEADS, N * d);
  for (int64_t n = 0; n < N; n++) put(n, workspace.out + n * d, workspace.inverse_sum[n]);
}

template <class T>
struct AttentionBackwardWorkspace {
  float* grad_probs;  // (N, S)
  T* grad_logits;     // (N, S), times the scale
  T* keys_first;      // (N, S), the transpose of grad_logits, then of probs

  AttentionBackwardWorkspace() = default;
  AttentionBackwardWorkspace(int64_t N, Arena& arena) {
    const int64_t S = padded_keys(N);
    grad_probs = arena.take<float>(N * S);
    grad_logits = IN_PAIRS<T> ? arena.take<T>(N * S) : reinterpret_cast<T*>(grad_probs);
    keys_first = arena.take<T>(N * S);
  }
};

// A row of softmax's backward. Divide the probs by their sum, and write the gradients of the logits, times `scale`,
// to `grad_logits`, which may be `grad_probs`.
template <class T>
void softmax_backward(T* probs, float inverse_sum, const float* grad_probs, int64_t S, float scale, float* bias_sum,
                      T* grad_logits) {
  Vec sum(0.f);
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec p = load(probs + k) * Vec(inverse_sum);
    store(probs + k, p);
    sum = fmadd(p, load(grad_probs + k), sum);
  }
  const Vec delta(sum_of(sum));  // the dot product of the probs and their gradients
  for (int64_t k = 0; k < S; k += LANES) {
    const Vec g = load(probs + k) * (load(grad_probs + k) - delta);
    store(bias_sum + k, load(bias_sum + k) + g);
    store(grad_logits + k, g * Vec(scale));
  }
}

// Gradients of `attend`, from grad_out (N, d). Calls put(role, place, row of d numbers). bias_sum: (N, S), the sum of
// gradients of the bias. scratch: the workspace of `attend`; its probs are divided by their sums.
template <class T, class Put>
void attend_backward(int64_t N, int64_t d, const T* q, const T* k, const T* v, const T* grad_out, float scale,
                     const float* bias, const float* mask, float* bias_sum, const AttentionWorkspace<T>& scratch,
                     const AttentionBackwardWorkspace<T>& workspace, const Put& put) {
  const int64_t S = padded_keys(N), terms = IN_PAIRS<T> ? S : N;
  compute_probs(N, d, q, k, scale, bias, mask, scratch);
  pack_rhs_dS(v, N, d, scratch.rhs_dS);
  gemm(N, S, d, d, S, S, grad_out, scratch.rhs_dS, workspace.grad_probs);
  {
    const Timed timed(Work::SOFTMAX, N * S);
    for (int64_t n = 0; n < N; n++)
      softmax_backward(scratch.probs + n * S, scratch.inverse_sum[n], workspace.grad_probs + n * S, S, scale,
                       bias_sum + n * S, workspace.grad_logits + n * S);
  }
  const auto multiply = [&](const T* a, const T* b, Role role) {
    gemm(N, d, terms, S, d, d, a, pack_rhs_Sd(b, N, d, scratch.rhs_Sd), scratch.out);
    const Timed timed(Work::HEADS, N * d);
    for (int64_t n = 0; n < N; n++) put(role, n, scratch.out + n * d);
  };
  const auto transposed = [&](const T* a) {
    const Timed timed(Work::PACKING, N * N);
    transpose(a, S, N, N, workspace.keys_first, S);
    if (IN_PAIRS<T>)
      for (int64_t n = 0; n < N; n++)
        std::memset(static_cast<void*>(workspace.keys_first + n * S + N), 0, (S - N) * sizeof(T));
    return workspace.keys_first;
  };
  multiply(workspace.grad_logits, k, QUERY);
  multiply(transposed(workspace.grad_logits), q, KEY);
  multiply(transposed(scratch.probs), grad_out, VALUE);
}

}  // namespace swin::SWIN_ISA
