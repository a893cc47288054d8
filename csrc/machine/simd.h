// Rows of numbers, one vector at a time, with one interface for AVX2, AVX-512 and NEON.
//
// This file, and all files with an include of it, are compiled once for each instruction set, in the namespace
// SWIN_ISA. Without instructions for products of bf16 (SWIN_HAS_BF16), products of `rounded` numbers in float32 replace
// them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define SWIN_HAS_BF16 1
#define SWIN_FOR_EACH_DTYPE(instantiate) instantiate(float) instantiate(bf16)
#else
#define SWIN_HAS_BF16 0
#define SWIN_FOR_EACH_DTYPE(instantiate) instantiate(float) instantiate(rounded)
#endif

#ifdef __clang__
#define SWIN_UNROLL _Pragma("unroll")
#else
#define SWIN_UNROLL _Pragma("GCC unroll 32")
#endif

namespace swin::SWIN_ISA {

inline constexpr int64_t ceil_div(int64_t n, int64_t divisor) { return (n + divisor - 1) / divisor; }
inline constexpr int64_t round_up(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// The upper half of a float32 number.
struct bf16 {
  uint16_t bits;
};

// A float32 number with a lower half of zeros: a bf16 number, for products in float32.
struct rounded {
  float number;
};

#if SWIN_HAS_BF16
using BFloat = bf16;
#else
using BFloat = rounded;
#endif
// True if products of T take pairs of numbers.
template <class T>
constexpr bool IN_PAIRS = std::is_same_v<T, bf16>;

#if defined(__AVX512F__)
constexpr int64_t LANES = 16, REGISTERS = 32;
struct Vec {
  __m512 v;
  Vec() = default;
  Vec(__m512 v) : v(v) {}
  explicit Vec(float x) : v(_mm512_set1_ps(x)) {}
  operator __m512() const { return v; }
};
inline Vec operator+(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec operator-(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec operator*(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec operator/(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec fmadd(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
// The maximum in each lane, or NaN if b is NaN.
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline float sum_of(Vec v) { return _mm512_reduce_add_ps(v); }
inline float max_of(Vec v) { return _mm512_reduce_max_ps(v); }
// 2^n for integers n. The last bits of `n` hold the sum of the integer and the bias of the exponent.
inline Vec exponent_of(Vec n) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(n), 23)); }

inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1); }
// `count` is LANES except at the end of a row. For a constant count the compiler removes the mask.
inline Vec load(const float* from, int64_t count = LANES) {
  return count == LANES ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(first_lanes(count), from);
}
inline void store(float* to, Vec v, int64_t count = LANES) {
  if (count == LANES) return _mm512_storeu_ps(to, v);
  _mm512_mask_storeu_ps(to, first_lanes(count), v);
}
// The first `count` numbers, and zeros.
inline Vec first_of(Vec v, int64_t count) { return _mm512_maskz_mov_ps(first_lanes(count), v); }

inline void transpose_vectors(Vec (&rows)[LANES]) {
  __m512 a[16], b[16];
  SWIN_UNROLL
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
  }
  SWIN_UNROLL
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; j++) {
      const __m512d low = _mm512_castps_pd(a[i + j]), high = _mm512_castps_pd(a[i + j + 2]);
      b[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
      b[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
    }
  SWIN_UNROLL
  for (int i = 0; i < 4; i++)
    for (int j = 0; j < 2; j++) {  // rows i and i + 4 of each half
      a[8 * j + i] = _mm512_shuffle_f32x4(b[8 * j + i], b[8 * j + i + 4], 0x88);
      a[8 * j + i + 4] = _mm512_shuffle_f32x4(b[8 * j + i], b[8 * j + i + 4], 0xdd);
    }
  SWIN_UNROLL
  for (int i = 0; i < 8; i++) {
    rows[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
  }
}

#elif defined(__AVX2__)
constexpr int64_t LANES = 8, REGISTERS = 16;
struct Vec {
  __m256 v;
  Vec() = default;
  Vec(__m256 v) : v(v) {}
  explicit Vec(float x) : v(_mm256_set1_ps(x)) {}
  operator __m256() const { return v; }
};
inline Vec operator+(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec operator-(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec operator*(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec operator/(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec fmadd(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline float sum_of(Vec v) {
  const __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pair = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline float max_of(Vec v) {
  const __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  const __m128 pair = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}
inline Vec exponent_of(Vec n) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23)); }

inline __m256i first_lanes(int64_t count) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lane);
}
inline Vec load(const float* from, int64_t count = LANES) {
  return count == LANES ? _mm256_loadu_ps(from) : _mm256_maskload_ps(from, first_lanes(count));
}
inline void store(float* to, Vec v, int64_t count = LANES) {
  if (count == LANES) return _mm256_storeu_ps(to, v);
  _mm256_maskstore_ps(to, first_lanes(count), v);
}
inline Vec first_of(Vec v, int64_t count) { return _mm256_and_ps(v, _mm256_castsi256_ps(first_lanes(count))); }

inline void transpose_vectors(Vec (&rows)[LANES]) {
  __m256 a[8], b[8];
  SWIN_UNROLL
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
  }
  SWIN_UNROLL
  for (int i = 0; i < 8; i += 4)
    for (int j = 0; j < 2; j++) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xee);
    }
  SWIN_UNROLL
  for (int i = 0; i < 4; i++) {
    rows[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

#elif defined(__aarch64__)
constexpr int64_t LANES = 4, REGISTERS = 32;
struct Vec {
  float32x4_t v;
  Vec() = default;
  Vec(float32x4_t v) : v(v) {}
  explicit Vec(float x) : v(vdupq_n_f32(x)) {}
  operator float32x4_t() const { return v; }
};
inline Vec operator+(Vec a, Vec b) { return vaddq_f32(a, b); }
inline Vec operator-(Vec a, Vec b) { return vsubq_f32(a, b); }
inline Vec operator*(Vec a, Vec b) { return vmulq_f32(a, b); }
inline Vec operator/(Vec a, Vec b) { return vdivq_f32(a, b); }
inline Vec fmadd(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
inline Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
inline Vec min(Vec a, Vec b) { return vminq_f32(a, b); }
inline float sum_of(Vec v) { return vaddvq_f32(v); }
inline float max_of(Vec v) { return vmaxvq_f32(v); }
inline Vec exponent_of(Vec n) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(n), 23)); }

inline Vec load(const float* from, int64_t count = LANES) {
  if (count == LANES) return vld1q_f32(from);
  float some[LANES] = {};
  for (int64_t i = 0; i < count; i++) some[i] = from[i];
  return vld1q_f32(some);
}
inline void store(float* to, Vec v, int64_t count = LANES) {
  if (count == LANES) return vst1q_f32(to, v);
  float some[LANES];
  vst1q_f32(some, v);
  for (int64_t i = 0; i < count; i++) to[i] = some[i];
}
inline Vec first_of(Vec v, int64_t count) {
  float some[LANES];
  vst1q_f32(some, v);
  return load(some, count);
}

inline void transpose_vectors(Vec (&rows)[LANES]) {
  const float32x4x2_t a = vtrnq_f32(rows[0], rows[1]), b = vtrnq_f32(rows[2], rows[3]);
  rows[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
  rows[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
  rows[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
  rows[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}
#else
#error "csrc has kernels for AVX2, AVX-512 and NEON"
#endif

// Reinterpret bits as another type.
template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline Vec clamp(Vec v, Vec least, Vec most) { return min(most, max(least, v)); }

// f(column, count) over a row of n columns.
template <class F>
inline void over_columns(int64_t n, const F& f) {
  int64_t c = 0;
  for (; c + LANES <= n; c += LANES) f(c, LANES);
  if (c < n) f(c, n - c);
}

// Transpose (M, N) numbers of 32 bits: get(m, n, count) loads from row m, put(n, m, vector, count) stores to row n.
template <class Get, class Put>
inline void transpose_blocks(int64_t M, int64_t N, const Get& get, const Put& put) {
  for (int64_t m = 0; m < M; m += LANES)
    for (int64_t n = 0; n < N; n += LANES) {
      const int64_t rows = M - m < LANES ? M - m : LANES, columns = N - n < LANES ? N - n : LANES;
      Vec block[LANES];
      if (rows == LANES && columns == LANES) {
        SWIN_UNROLL
        for (int64_t i = 0; i < LANES; i++) block[i] = get(m + i, n, LANES);
        transpose_vectors(block);
        SWIN_UNROLL
        for (int64_t i = 0; i < LANES; i++) put(n + i, m, block[i], LANES);
      } else {
        SWIN_UNROLL
        for (int64_t i = 0; i < LANES; i++) block[i] = i < rows ? get(m + i, n, columns) : Vec(0.f);
        transpose_vectors(block);
        SWIN_UNROLL
        for (int64_t i = 0; i < LANES; i++)
          if (i < columns) put(n + i, m, block[i], rows);
      }
    }
}

// (M, N) to (N, M), rows from_stride and to_stride apart.
inline void transpose(const float* from, int64_t from_stride, int64_t M, int64_t N, float* to, int64_t to_stride) {
  transpose_blocks(
      M, N, [=](int64_t m, int64_t n, int64_t count) { return load(from + m * from_stride + n, count); },
      [=](int64_t n, int64_t m, Vec v, int64_t count) { store(to + n * to_stride + m, v, count); });
}

// --- bf16 in memory --------------------------------------------------------------------------------------------------

#if SWIN_HAS_BF16
#elif defined(__AVX512F__)
// Round to the nearest number with a lower half of zeros, ties to even. NaN stays NaN.
inline Vec round_to_bf16(Vec v) {
  const __m512i bits = _mm512_castps_si512(v),
                odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const Vec result = _mm512_castsi512_ps(_mm512_and_si512(sum, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  return _mm512_mask_mov_ps(result, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), Vec(std::nanf("")));
}
#elif defined(__AVX2__)
inline Vec round_to_bf16(Vec v) {
  const __m256i bits = _mm256_castps_si256(v),
                odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const Vec result = _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0xffff0000))));
  return _mm256_blendv_ps(result, Vec(std::nanf("")), _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}
#else
inline Vec round_to_bf16(Vec v) {
  const uint32x4_t bits = vreinterpretq_u32_f32(v), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t sum = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
  const float32x4_t result = vreinterpretq_f32_u32(vandq_u32(sum, vdupq_n_u32(0xffff0000)));
  return vbslq_f32(vceqq_f32(v, v), result, Vec(std::nanf("")));
}
#endif

#if defined(__AVX512F__)
inline Vec load(const bf16* from, int64_t count = LANES) {
  const __m256i bits = count == LANES ? _mm256_loadu_epi16(from) : _mm256_maskz_loadu_epi16(first_lanes(count), from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline void store(bf16* to, Vec v, int64_t count = LANES) {
#if SWIN_HAS_BF16
  const auto bits = bit_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  const __m256i bits = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(round_to_bf16(v)), 16));
#endif
  if (count == LANES) return _mm256_storeu_epi16(to, bits);
  _mm256_mask_storeu_epi16(to, first_lanes(count), bits);
}
#elif defined(__AVX2__)
// The end of a row: fewer than 8 numbers, in pieces of 4, 2 and 1. A memcpy of variable size would be a call.
inline __m128i load_some(const bf16* from, int64_t count) {
  const bf16* last = from + (count & 4);
  uint64_t first_four = 0, rest = count & 1 ? last[count & 2].bits : 0;
  if (count & 2) {
    uint32_t two = 0;
    std::memcpy(&two, last, sizeof two);
    rest = rest << 32 | two;
  }
  if (!(count & 4)) return _mm_cvtsi64_si128(static_cast<int64_t>(rest));
  std::memcpy(&first_four, from, sizeof first_four);
  return _mm_set_epi64x(static_cast<int64_t>(rest), static_cast<int64_t>(first_four));
}
inline void store_some(bf16* to, __m128i bits, int64_t count) {
  if (count & 4) {
    _mm_storeu_si64(to, bits);
    bits = _mm_unpackhi_epi64(bits, bits), to += 4;
  }
  if (count & 2) {
    _mm_storeu_si32(to, bits);
    bits = _mm_srli_epi64(bits, 32), to += 2;
  }
  if (count & 1) to->bits = static_cast<uint16_t>(_mm_cvtsi128_si32(bits));
}
inline Vec load(const bf16* from, int64_t count = LANES) {
  const __m128i bits =
      count == LANES ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)) : load_some(from, count);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline void store(bf16* to, Vec v, int64_t count = LANES) {
  const __m256i upper = _mm256_srli_epi32(_mm256_castps_si256(round_to_bf16(v)), 16);
  const __m128i bits = _mm_packus_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
  if (count == LANES) return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), bits);
  store_some(to, bits, count);
}
#else
inline Vec load(const bf16* from, int64_t count = LANES) {
  uint16_t some[LANES] = {};
  std::memcpy(some, from, count * sizeof(bf16));
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(some), 16));
}
inline void store(bf16* to, Vec v, int64_t count = LANES) {
#if SWIN_HAS_BF16
  const uint16x4_t bits = vreinterpret_u16_bf16(vcvt_bf16_f32(v));
#else
  const uint16x4_t bits = vshrn_n_u32(vreinterpretq_u32_f32(round_to_bf16(v)), 16);
#endif
  std::memcpy(to, &bits, count * sizeof(bf16));
}
#endif

// --- Rounded float32 numbers -----------------------------------------------------------------------------------------

inline const float* as_floats(const float* x) { return x; }
inline const float* as_floats(const rounded* x) { return &x->number; }
#if !SWIN_HAS_BF16
inline Vec load(const rounded* from, int64_t count = LANES) { return load(&from->number, count); }
inline void store(rounded* to, Vec v, int64_t count = LANES) { store(&to->number, round_to_bf16(v), count); }
inline void transpose(const rounded* from, int64_t from_stride, int64_t M, int64_t N, rounded* to, int64_t to_stride) {
  transpose(&from->number, from_stride, M, N, &to->number, to_stride);
}
#endif

// --- Products of bf16 numbers ----------------------------------------------------------------------------------------
// A PairVec has LANES pairs of adjacent terms.

#if SWIN_HAS_BF16
#if defined(__AVX512F__)
using PairVec = __m512i;

inline __mmask32 first_halves(int64_t count) { return static_cast<__mmask32>((uint64_t{1} << count) - 1); }

// The first `count` pairs, and zeros.
inline PairVec load_pairs(const bf16* from, int64_t count = LANES) {
  return count == LANES ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi32(first_lanes(count), from);
}
inline void store_pairs(bf16* to, PairVec pairs, int64_t count = LANES) {
  _mm512_mask_storeu_epi32(to, first_lanes(count), pairs);
}
// One pair in all lanes.
inline PairVec broadcast_pair(const bf16* a) {
  int32_t both;
  std::memcpy(&both, a, sizeof both);
  return _mm512_set1_epi32(both);
}
// Sums of pairs: each lane has two terms.
inline Vec dot_pairs(Vec sum, PairVec a, PairVec b) {
  return _mm512_dpbf16_ps(sum, bit_cast<__m512bh>(a), bit_cast<__m512bh>(b));
}
// Round two vectors, and concatenate them.
inline __m512i round_pair(Vec first, Vec second) { return bit_cast<__m512i>(_mm512_cvtne2ps_pbh(second, first)); }

// Two rows of 32 numbers as 32 pairs, in two vectors: the layout of the second operand of bf16 products (VNNI).
struct Pairs {
  __m512i first, second;
};
inline Pairs interleave(__m512i even, __m512i odd) {
  const __m512i a = _mm512_unpacklo_epi16(even, odd), b = _mm512_unpackhi_epi16(even, odd);  // of each four lanes
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  return {_mm512_permutex2var_epi64(a, first, b), _mm512_permutex2var_epi64(a, second, b)};
}
// Load `count` numbers and fill up with zeros to 32. A null `from` gives zeros only.
inline __m512i load_row(const bf16* from, int64_t count) {
  return from ? _mm512_maskz_loadu_epi16(first_halves(count), from) : _mm512_setzero_si512();
}
// Interleave two rows to pairs: 2 * columns numbers at `to`. `odd` may be null, for zeros.
inline void interleave_rows(const bf16* even, const bf16* odd, int64_t columns, bf16* to) {
  for (int64_t c = 0; c < columns; c += 32) {
    const int64_t count = columns - c < 32 ? columns - c : 32;
    const auto [first, second] = interleave(load_row(even + c, count), load_row(odd ? odd + c : nullptr, count));
    store_pairs(to + 2 * c, first, count < 16 ? count : 16);
    if (count > 16) store_pairs(to + 2 * c + 32, second, count - 16);
  }
}
// Interleave at most 32 columns, filled up with zeros: 16 pairs go to `left`, 16 to `right`. Null rows are zeros.
inline void interleave_32(const bf16* even, const bf16* odd, int64_t columns, bf16* left, bf16* right) {
  const auto [first, second] = interleave(load_row(even, columns), load_row(odd, columns));
  store_pairs(left, first);
  store_pairs(right, second);
}

// A block of at most 32 x 32 numbers, filled up with zeros. Pairs of rows move as numbers of 32 bits.
class TransposedBlock {
 public:
  TransposedBlock(const bf16* from, int64_t stride, int64_t rows, int64_t columns) {
    const __mmask32 some = first_halves(columns);
    for (int64_t m = 0; m < 32; m += 2) {
      const __m512i even = _mm512_maskz_loadu_epi16(m < rows ? some : 0, from + m * stride);
      const __m512i odd = _mm512_maskz_loadu_epi16(m + 1 < rows ? some : 0, from + (m + 1) * stride);
      pairs[0][m / 2] = _mm512_unpacklo_epi16(even, odd);
      pairs[1][m / 2] = _mm512_unpackhi_epi16(even, odd);
    }
  }
  // Adds the sums of the columns. Call it before `transpose`.
  void add_sums(int64_t columns, float* to) const {
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    Vec low(0.f), high(0.f);
    for (int64_t m = 0; m < 16; m++) {
      low = dot_pairs(low, pairs[0][m], ones);
      high = dot_pairs(high, pairs[1][m], ones);
    }
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const Vec sums[2] = {_mm512_permutex2var_ps(low, order, high),
                         _mm512_permutex2var_ps(low, _mm512_add_epi32(order, _mm512_set1_epi32(8)), high)};
    over_columns(columns,
                 [&](int64_t c, int64_t count) { store(to + c, load(to + c, count) + sums[c / LANES], count); });
  }
  void transpose() {
    for (auto& half : pairs) {
      Vec rows[16];
      SWIN_UNROLL
      for (int64_t i = 0; i < 16; i++) rows[i] = _mm512_castsi512_ps(half[i]);
      transpose_vectors(rows);
      SWIN_UNROLL
      for (int64_t i = 0; i < 16; i++) half[i] = _mm512_castps_si512(rows[i]);
    }
  }
  // Column n, after `transpose`.
  void store_column(int64_t n, bf16* to, int64_t count = 32) const {
    _mm512_mask_storeu_epi16(to, first_halves(count), pairs[n / 4 % 2][n / 8 * 4 + n % 4]);
  }

 private:
  __m512i pairs[2][16];  // [i] has every second four of columns
};

#else
using PairVec = uint16x8_t;

inline const uint16_t* bits_of(const bf16* from) { return &from->bits; }
inline uint16_t* bits_of(bf16* to) { return &to->bits; }

inline PairVec load_pairs(const bf16* from, int64_t count = LANES) {
  uint16_t some[2 * LANES] = {};
  if (count != LANES) std::memcpy(some, from, 2 * count * sizeof(bf16));
  return vld1q_u16(count == LANES ? bits_of(from) : some);
}
inline void store_pairs(bf16* to, PairVec pairs, int64_t count = LANES) {
  if (count == LANES) return vst1q_u16(bits_of(to), pairs);
  std::memcpy(to, &pairs, 2 * count * sizeof(bf16));
}
inline PairVec broadcast_pair(const bf16* a) {
  uint32_t both;
  std::memcpy(&both, a, sizeof both);
  return vreinterpretq_u16_u32(vdupq_n_u32(both));
}
inline Vec dot_pairs(Vec sum, PairVec a, PairVec b) {
  return vbfdotq_f32(sum, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u16(b));
}

inline void interleave_rows(const bf16* even, const bf16* odd, int64_t columns, bf16* to) {
  int64_t c = 0;
  for (; c + 8 <= columns; c += 8) {
    const uint16x8x2_t both = {{vld1q_u16(bits_of(even + c)), odd ? vld1q_u16(bits_of(odd + c)) : vdupq_n_u16(0)}};
    vst2q_u16(bits_of(to + 2 * c), both);
  }
  for (; c < columns; c++) to[2 * c] = even[c], to[2 * c + 1] = odd ? odd[c] : bf16{0};
}
inline void interleave_32(const bf16* even, const bf16* odd, int64_t columns, bf16* left, bf16* right) {
  bf16 rows[2][32] = {}, pairs[64];
  if (even) std::memcpy(rows[0], even, columns * sizeof(bf16));
  if (odd) std::memcpy(rows[1], odd, columns * sizeof(bf16));
  interleave_rows(rows[0], rows[1], 32, pairs);
  std::memcpy(left, pairs, 32 * sizeof(bf16));
  std::memcpy(right, pairs + 32, 32 * sizeof(bf16));
}

class TransposedBlock {
 public:
  TransposedBlock(const bf16* from, int64_t stride, int64_t rows, int64_t columns) {
    for (int64_t m = 0; m < rows; m++) std::memcpy(numbers[m], from + m * stride, columns * sizeof(bf16));
  }
  void add_sums(int64_t columns, float* to) const {
    over_columns(columns, [&](int64_t c, int64_t count) {
      Vec sum(0.f);
      for (const auto& row : numbers) sum = sum + load(row + c);
      store(to + c, load(to + c, count) + sum, count);
    });
  }
  void transpose() {
    for (int64_t m = 0; m < 32; m += 8)
      for (int64_t n = 0; n <= m; n += 8) {
        uint16x8_t block[8], mirrored[8];
        transpose_8(m, n, block), transpose_8(n, m, mirrored);
        for (int64_t i = 0; i < 8; i++) {
          vst1q_u16(bits_of(numbers[n + i] + m), block[i]);
          vst1q_u16(bits_of(numbers[m + i] + n), mirrored[i]);
        }
      }
  }
  void store_column(int64_t n, bf16* to, int64_t count = 32) const {
    std::memcpy(to, numbers[n], count * sizeof(bf16));
  }

 private:
  // The columns of the 8 x 8 numbers at row m, column n.
  void transpose_8(int64_t m, int64_t n, uint16x8_t (&columns)[8]) const {
    uint32x4_t a[8];
    uint64x2_t b[8];
    for (int64_t i = 0; i < 8; i += 2) {
      const uint16x8x2_t two =
          vtrnq_u16(vld1q_u16(bits_of(numbers[m + i] + n)), vld1q_u16(bits_of(numbers[m + i + 1] + n)));
      a[i] = vreinterpretq_u32_u16(two.val[0]), a[i + 1] = vreinterpretq_u32_u16(two.val[1]);
    }
    for (int64_t i = 0; i < 8; i += 4)
      for (int64_t j = 0; j < 2; j++) {  // columns j, j + 2, j + 4 and j + 6 of four rows
        const uint32x4x2_t two = vtrnq_u32(a[i + j], a[i + j + 2]);
        b[i + j] = vreinterpretq_u64_u32(two.val[0]), b[i + j + 2] = vreinterpretq_u64_u32(two.val[1]);
      }
    for (int64_t j = 0; j < 4; j++) {
      columns[j] = vreinterpretq_u16_u64(vtrn1q_u64(b[j], b[j + 4]));
      columns[j + 4] = vreinterpretq_u16_u64(vtrn2q_u64(b[j], b[j + 4]));
    }
  }

  bf16 numbers[32][32] = {};
};
#endif

// (M, N) to (N, M), rows from_stride and to_stride apart.
inline void transpose(const bf16* from, int64_t from_stride, int64_t M, int64_t N, bf16* to, int64_t to_stride) {
  for (int64_t m = 0; m < M; m += 32)
    for (int64_t n = 0; n < N; n += 32) {
      const int64_t rows = M - m < 32 ? M - m : 32, columns = N - n < 32 ? N - n : 32;
      TransposedBlock block(from + m * from_stride + n, from_stride, rows, columns);
      block.transpose();
      for (int64_t i = 0; i < columns; i++) block.store_column(i, to + (n + i) * to_stride + m, rows);
    }
}

// (M, N) pairs to (N, M) pairs, rows from_stride and to_stride numbers apart.
inline void transpose_pairs(const bf16* from, int64_t from_stride, int64_t M, int64_t N, bf16* to, int64_t to_stride) {
  transpose_blocks(
      M, N,
      [=](int64_t m, int64_t n, int64_t count) {
        return Vec(bit_cast<decltype(Vec::v)>(load_pairs(from + m * from_stride + 2 * n, count)));
      },
      [=](int64_t n, int64_t m, Vec v, int64_t count) {
        store_pairs(to + n * to_stride + 2 * m, bit_cast<PairVec>(v.v), count);
      });
}
#endif

}  // namespace swin::SWIN_ISA
