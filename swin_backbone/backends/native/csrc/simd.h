// Rows of numbers, one vector at a time: at::vec, and functions that it lacks.
//
// All files are compiled once for each instruction set, with CPU_CAPABILITY set as at::vec needs it, to separate
// libraries (../build.py). bf16 exists only where the processor can round to it: elsewhere brgemm has no kernel for it.
#pragma once

#include <ATen/cpu/vec/vec.h>
#include <c10/util/BFloat16.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace swin {

using Vec = at::vec::Vectorized<float>;
using bf16 = c10::BFloat16;
constexpr int64_t LANES = Vec::size();

#ifdef __AVX512BF16__
#define SWIN_FOR_EACH_DTYPE(instantiate) instantiate(float) instantiate(bf16)
#else
#define SWIN_FOR_EACH_DTYPE(instantiate) instantiate(float)
#endif

inline int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// `count` is LANES except at the end of a row. If it is a constant, the compiler removes the mask.
inline Vec load(const float* from, int64_t count = LANES) { return Vec::loadu(from, count); }
inline void store(float* to, Vec v, int64_t count = LANES) { v.store(to, count); }

#ifdef __AVX512BF16__
// 32 numbers of two rows: the first of each, the second of each, and so on, in two vectors.
struct Mixed {
  __m512i first, second;
};
inline Mixed mixed(__m512i a, __m512i b) {
  alignas(64) static constexpr auto order = [] {
    std::array<uint16_t, 64> order{};
    for (uint16_t i = 0; i < 32; i++) order[2 * i] = i, order[2 * i + 1] = 32 + i;
    return order;
  }();
  return {_mm512_permutex2var_epi16(a, _mm512_load_si512(order.data()), b),
          _mm512_permutex2var_epi16(a, _mm512_load_si512(order.data() + 32), b)};
}

inline Vec load(const bf16* from, int64_t count = LANES) {
  __m256i bits = _mm256_setzero_si256();
  std::memcpy((void*)&bits, from, count * sizeof(bf16));
  __m512 wide;
  at::vec::cvtbf16_fp32(bits, wide);
  return wide;
}
inline void store(bf16* to, Vec v, int64_t count = LANES) {
  const __m256bh rounded = _mm512_cvtneps_pbh(v);  // at::vec rounds in ten instructions
  std::memcpy((void*)to, &rounded, count * sizeof(bf16));
}
#endif

// f(column, count) over a row of n columns.
template <class F>
inline void over_columns(int64_t n, const F& f) {
  int64_t c = 0;
  for (; c + LANES <= n; c += LANES) f(c, LANES);
  if (c < n) f(c, n - c);
}

constexpr float EXP2_OF_0 = 1.00000007f;
// 2^y for y <= 0, less 2^-60: this is negligible next to 1, gives exactly 0 for y <= -60, and avoids denormal numbers,
// which are slow. The polynomial for the fraction has a relative error of 8e-8 from 2^r.
inline Vec exp2(Vec y, float) {
  y = at::vec::clamp_min(y, Vec(-60.f));
  // 1.5 * 2^23 and the exponent's bias: what is added to it is rounded, and stands in the last bits
  const Vec magic(12582912.f + 127.f);
  const Vec n = y + magic, r = y - (n - magic);
  Vec p(0.00132764718f);
  p = at::vec::fmadd(p, r, Vec(0.00967554133f));
  p = at::vec::fmadd(p, r, Vec(0.0555071327f));
  p = at::vec::fmadd(p, r, Vec(0.240221197f));
  p = at::vec::fmadd(p, r, Vec(0.693146967f));
  p = at::vec::fmadd(p, r, Vec(EXP2_OF_0));
  at::vec::Vectorized<int32_t> exponent;
  std::memcpy((void*)&exponent, &n, sizeof n);
  exponent = exponent << at::vec::Vectorized<int32_t>(23);
  Vec power;
  std::memcpy((void*)&power, &exponent, sizeof power);
  return at::vec::fmadd(p, power, Vec(-EXP2_OF_0 * 0x1p-60f));  // a product, unlike a sum of bits, keeps every NaN
}
#ifdef __AVX512BF16__
// 2^y for any y and a result in bf16: a relative error of 8e-5. The two intrinsics make 6 instructions of 12.
inline Vec exp2(Vec y, bf16) {
  const Vec r = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // y - floor(y)
  Vec p = at::vec::fmadd(r, Vec(0.0780245215f), Vec(0.226067156f));
  p = at::vec::fmadd(p, r, Vec(0.695833564f));
  p = at::vec::fmadd(p, r, Vec(0.999925196f));
  return _mm512_scalef_ps(p, y);
}
#endif

inline float sum_of(Vec v) { return v.reduce_add(); }
inline float max_of(Vec v) { return v.reduce_max(); }

// Of n numbers, a multiple of LANES.
inline float sum_of(const float* x, int64_t n) {
  Vec sum(0.f);
  for (int64_t i = 0; i < n; i += LANES) sum = sum + load(x + i);
  return sum_of(sum);
}
#ifdef __AVX512BF16__
// Of a multiple of 32, aligned to cache lines. The dot product with ones takes a sixth of the instructions of at::vec.
inline float sum_of(const bf16* x, int64_t n) {
  const auto ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 2 * LANES) sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_load_si512(x + i), ones);
  return sum_of(Vec(sum));
}
#endif

// Phi(x), the cumulative normal distribution. (Phi(x) - 1/2) / x is a function of x^2, here a quotient of polynomials
// as fitted on |x| <= 5.4, beyond which float32's Phi is 0 or 1: x Phi(x) is within 1e-6. Far below, Phi is exactly 0,
// or its product with a large number would be one.
inline Vec normal_cdf(Vec x, float) {
  const Vec c = at::vec::clamp(x, Vec(-5.5f), Vec(5.5f)), u = c * c;
  Vec p(2.27765523e-08f), q(1.20864537e-06f);
  p = at::vec::fmadd(p, u, Vec(6.49031328e-06f));
  q = at::vec::fmadd(q, u, Vec(7.65094578e-05f));
  p = at::vec::fmadd(p, u, Vec(0.000176264778f));
  q = at::vec::fmadd(q, u, Vec(0.00192548408f));
  p = at::vec::fmadd(p, u, Vec(0.00472239094f));
  q = at::vec::fmadd(q, u, Vec(0.029027849f));
  p = at::vec::fmadd(p, u, Vec(0.0344920106f));
  q = at::vec::fmadd(q, u, Vec(0.253122933f));
  p = at::vec::fmadd(p, u, Vec(0.398942055f));
  q = at::vec::fmadd(q, u, Vec(1.f));
  return at::vec::clamp_min(at::vec::fmadd(c, p / q, Vec(0.5f)), Vec(0.f));
}

// The same for a result in bf16, by one polynomial on |x| <= 4: x Phi(x) is within 2e-4.
inline Vec normal_cdf(Vec x, bf16) {
  const Vec c = at::vec::clamp(x, Vec(-4.f), Vec(4.f)), u = c * c;
  Vec p(2.2781240e-08f);
  p = at::vec::fmadd(p, u, Vec(-1.5985922e-06f));
  p = at::vec::fmadd(p, u, Vec(4.7955324e-05f));
  p = at::vec::fmadd(p, u, Vec(-0.00081401359f));
  p = at::vec::fmadd(p, u, Vec(0.0087723797f));
  p = at::vec::fmadd(p, u, Vec(-0.064573094f));
  p = at::vec::fmadd(p, u, Vec(0.39788333f));
  return at::vec::clamp_min(at::vec::fmadd(c, p, Vec(0.5f)), Vec(0.f));
}

// Exact GELU, in the precision that T asks for.
template <class T>
inline Vec gelu(Vec x) {
  return x * normal_cdf(x, T());
}

// 1 / sqrt(variance + eps). NaN where float32 does not hold the variance: 1 / sqrt(inf) is 0, which would turn a row
// that overflowed into the norm's bias.
inline float inverse_deviation(float variance, float eps) {
  return 1.f / std::sqrt(variance + eps) + (variance - variance);
}

// The mean of a row, and the inverse of its standard deviation.
struct Moments {
  float mean, rstd;
};
inline Moments moments(const float* x, int64_t n, float eps) {
  Vec sum(0.f), squares(0.f);
  over_columns(n, [&](int64_t c, int64_t count) { sum = sum + load(x + c, count); });
  const float mean = sum_of(sum) / n;
  const Vec minus(-mean);
  int64_t c = 0;
  for (; c + LANES <= n; c += LANES) {
    const Vec d = load(x + c) + minus;
    squares = at::vec::fmadd(d, d, squares);
  }
  float rest = 0.f;
  for (; c < n; c++) rest += (x[c] - mean) * (x[c] - mean);
  return {mean, inverse_deviation((sum_of(squares) + rest) / n, eps)};
}

// LayerNorm's weight and bias.
struct Affine {
  const float *weight, *bias;
  float eps;
};

// LayerNorm of a row of n numbers, which may be put in its own place.
template <class T>
inline void layer_norm(const float* x, int64_t n, Affine norm, T* y) {
  const Moments m = moments(x, n, norm.eps);
  const Vec scale(m.rstd), shift(-m.mean * m.rstd);
  over_columns(n, [&](int64_t c, int64_t count) {
    const Vec v = at::vec::fmadd(load(x + c, count), scale, shift);
    store(y + c, at::vec::fmadd(v, load(norm.weight + c, count), load(norm.bias + c, count)), count);
  });
}

}  // namespace swin
