// Functions of rows of numbers: powers of 2, GELU, LayerNorm.
#pragma once

#include "machine/simd.h"

namespace swin::SWIN_ISA {

constexpr float LOG2E = 1.4426950408889634f;  // softmax takes powers of 2
constexpr float EXP2_OF_0 = 1.00000007f;
// 2^y - 2^-60 for y <= 0. The result is exactly 0 for y <= -60, and never a slow denormal number. The polynomial for
// the fraction has a relative error of 8e-8.
inline Vec exp2(Vec y, float) {
  y = max(Vec(-60.f), y);
  // 1.5 * 2^23 and the exponent's bias: a sum with the constant is rounded, and has the integer in its last bits
  const Vec magic(12582912.f + 127.f);
  const Vec n = y + magic, r = y - (n - magic);
  Vec p(0.00132764718f);
  p = fmadd(p, r, Vec(0.00967554133f));
  p = fmadd(p, r, Vec(0.0555071327f));
  p = fmadd(p, r, Vec(0.240221197f));
  p = fmadd(p, r, Vec(0.693146967f));
  p = fmadd(p, r, Vec(EXP2_OF_0));
  return fmadd(p, exponent_of(n), Vec(-EXP2_OF_0 * 0x1p-60f));  // a product keeps every NaN
}
inline Vec exp2(Vec y, rounded) { return exp2(y, float()); }
#if SWIN_HAS_BF16
// 2^y for any y and a result in bf16: a relative error of 8e-5.
inline Vec exp2(Vec y, bf16) {
#ifdef __AVX512F__  // two intrinsics in place of 8 instructions
  const auto scale = [y](Vec p) { return Vec(_mm512_scalef_ps(p, y)); };
  const Vec r = _mm512_reduce_ps(y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);  // y - floor(y)
#else
  y = clamp(y, Vec(-160.f), Vec(160.f));  // results beyond are 0 or infinity
  const Vec n = vrndmq_f32(y), r = y - n;
  const auto power = [](Vec n) {  // of whole numbers from -126 to 127
    return Vec(vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
  };
  const auto scale = [=](Vec p) {  // in two steps, since float32 may not hold the whole power
    const Vec half = vrndmq_f32(n * Vec(0.5f));
    return p * power(half) * power(n - half);
  };
#endif
  Vec p = fmadd(r, Vec(0.0780245215f), Vec(0.226067156f));
  p = fmadd(p, r, Vec(0.695833564f));
  p = fmadd(p, r, Vec(0.999925196f));
  return scale(p);
}
#endif

// Phi(x), the cumulative normal distribution. (Phi(x) - 1/2) / x is a function of x^2: a quotient of polynomials fitted
// on |x| <= 5.4. Beyond, Phi is 0 or 1 in float32. The error of x Phi(x) is below 1e-6. For very negative x, Phi is
// exactly 0, so that x Phi(x) stays small.
inline Vec normal_cdf(Vec x, float) {
  const Vec c = clamp(x, Vec(-5.5f), Vec(5.5f)), u = c * c;
  Vec p(2.27765523e-08f), q(1.20864537e-06f);
  p = fmadd(p, u, Vec(6.49031328e-06f));
  q = fmadd(q, u, Vec(7.65094578e-05f));
  p = fmadd(p, u, Vec(0.000176264778f));
  q = fmadd(q, u, Vec(0.00192548408f));
  p = fmadd(p, u, Vec(0.00472239094f));
  q = fmadd(q, u, Vec(0.029027849f));
  p = fmadd(p, u, Vec(0.0344920106f));
  q = fmadd(q, u, Vec(0.253122933f));
  p = fmadd(p, u, Vec(0.398942055f));
  q = fmadd(q, u, Vec(1.f));
  return max(Vec(0.f), fmadd(c, p / q, Vec(0.5f)));
}

// Phi(x) for a result in bf16: one polynomial on |x| <= 4. The error of x Phi(x) is below 2e-4.
inline Vec normal_cdf(Vec x, bf16) {
  const Vec c = clamp(x, Vec(-4.f), Vec(4.f)), u = c * c;
  Vec p(2.2781240e-08f);
  p = fmadd(p, u, Vec(-1.5985922e-06f));
  p = fmadd(p, u, Vec(4.7955324e-05f));
  p = fmadd(p, u, Vec(-0.00081401359f));
  p = fmadd(p, u, Vec(0.0087723797f));
  p = fmadd(p, u, Vec(-0.064573094f));
  p = fmadd(p, u, Vec(0.39788333f));
  return max(Vec(0.f), fmadd(c, p, Vec(0.5f)));
}

inline Vec normal_cdf(Vec x, rounded) { return normal_cdf(x, bf16()); }

// Exact GELU, with the precision of T.
template <class T>
inline Vec gelu(Vec x) {
  return x * normal_cdf(x, T());
}

// The slope of GELU: Phi(x) + x phi(x), given Phi(x).
template <class T>
inline Vec gelu_slope(Vec x, Vec cdf) {
  return fmadd(x * Vec(0.398942280f), exp2(x * x * Vec(-0.5f * LOG2E), T()), cdf);
}

// 1 / sqrt(variance + eps), or NaN if the variance is infinite. Otherwise 1 / sqrt(inf) = 0 would hide the overflow.
inline float inverse_deviation(float variance, float eps) { return 1.f / std::sqrt(variance + eps) + 0.f * variance; }

// The mean of a row, and the inverse of its standard deviation.
struct Moments {
  float mean, rstd;
};
inline Moments moments(const float* x, int64_t n, float eps) {
  Vec sum(0.f), squares(0.f);
  over_columns(n, [&](int64_t c, int64_t count) { sum = sum + load(x + c, count); });
  const float mean = sum_of(sum) / n;
  const Vec minus(-mean);
  over_columns(n, [&](int64_t c, int64_t count) {
    const Vec d = count == LANES ? load(x + c) + minus : first_of(load(x + c, count) + minus, count);
    squares = fmadd(d, d, squares);
  });
  return {mean, inverse_deviation(sum_of(squares) / n, eps)};
}

// LayerNorm's weight and bias.
struct Affine {
  const float *weight, *bias;
  float eps;
};

// LayerNorm of a row of n numbers. y may be x.
template <class T>
inline void layer_norm(const float* x, int64_t n, Affine norm, T* y) {
  const Moments m = moments(x, n, norm.eps);
  const Vec scale(m.rstd), minus(-m.mean);
  over_columns(n, [&](int64_t c, int64_t count) {
    // Subtract the mean first: exact even if the mean is many times the deviation, as in a picture of one colour.
    const Vec v = (load(x + c, count) + minus) * scale;
    store(y + c, fmadd(v, load(norm.weight + c, count), load(norm.bias + c, count)), count);
  });
}

// y = x.
template <class From, class To>
inline void convert_row(const From* x, int64_t n, To* y) {
  if constexpr (std::is_same_v<From, To>)
    std::memcpy(y, x, n * sizeof(To));
  else
    over_columns(n, [&](int64_t c, int64_t count) { store(y + c, load(x + c, count), count); });
}

// sum += x.
template <class T>
inline void add_row(const T* x, int64_t n, float* sum) {
  over_columns(n, [&](int64_t c, int64_t count) { store(sum + c, load(sum + c, count) + load(x + c, count), count); });
}

// c = x, or c += x, for rows with strides ldx and ldc.
inline void put_rows(const float* x, int64_t ldx, int64_t rows, int64_t columns, float* c, int64_t ldc,
                     bool accumulate) {
  for (int64_t r = 0; r < rows; r++, x += ldx, c += ldc)
    over_columns(columns, [&](int64_t i, int64_t lanes) {
      store(c + i, accumulate ? load(x + i, lanes) + load(c + i, lanes) : load(x + i, lanes), lanes);
    });
}

// Sums of the gradients of the weight and bias of a norm.
struct AffineSums {
  float *weight, *bias;
};

// Call put(column, gradient of x, count), for the gradient factor * dy of LayerNorm(x).
template <class Put>
inline void layer_norm_backward(const float* x, int64_t n, Affine norm, const float* dy, float factor, AffineSums sums,
                                const Put& put) {
  Vec total(0.f);
  over_columns(n, [&](int64_t c, int64_t count) { total = total + load(x + c, count); });
  const Vec times(factor), minus(-sum_of(total) / n);
  Vec squares(0.f), sum(0.f), dot(0.f);  // sums of (x - mean)^2, of the gradient, of their product
  over_columns(n, [&](int64_t c, int64_t count) {
    const Vec of_y = load(dy + c, count) * times * load(norm.weight + c, count);  // 0 after the end of the row
    const Vec d = count == LANES ? load(x + c) + minus : first_of(load(x + c, count) + minus, count);
    squares = fmadd(d, d, squares);
    sum = sum + of_y;
    dot = fmadd(of_y, d, dot);
  });
  const float rstd = inverse_deviation(sum_of(squares) / n, norm.eps);
  const Vec scale(rstd), mean(sum_of(sum) / n), along(sum_of(dot) * rstd / n);
  over_columns(n, [&](int64_t c, int64_t count) {
    const Vec y = (load(x + c, count) + minus) * scale, g = load(dy + c, count) * times;
    store(sums.weight + c, fmadd(g, y, load(sums.weight + c, count)), count);
    store(sums.bias + c, load(sums.bias + c, count) + g, count);
    put(c, (g * load(norm.weight + c, count) - mean - y * along) * scale, count);
  });
}

// `v` is a vector times `factor`, and has length `length`. Replace the gradient of v by the gradient of the vector, and
// return the gradient of `length`.
template <class T>
inline float length_backward(float* gradient, const T* v, int64_t d, float factor, float length) {
  Vec sum(0.f);
  over_columns(d, [&](int64_t i, int64_t lanes) { sum = fmadd(load(gradient + i, lanes), load(v + i, lanes), sum); });
  const float along = sum_of(sum) / length;
  const Vec times(factor), minus(-along / length);
  over_columns(d, [&](int64_t i, int64_t lanes) {
    const Vec across = fmadd(load(v + i, lanes), minus, load(gradient + i, lanes));
    store(gradient + i, across * times, lanes);
  });
  return along;
}

}  // namespace swin::SWIN_ISA
