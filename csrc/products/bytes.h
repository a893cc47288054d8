// Products in eight bits. Each row of the first operand becomes whole numbers from 0 to 254, of which the zero point
// means zero, and a scale in float32. Each output of a weight becomes whole numbers from -127 to 127 and a scale. Sums
// of products are exact in 32 bits, so all instruction sets compute equal numbers.
#pragma once

#include <algorithm>

#include "machine/row_functions.h"
#include "products/tiles.h"

namespace swin::SWIN_ISA {

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define SWIN_HAS_VNNI 1
#else
#define SWIN_HAS_VNNI 0
#endif
#if defined(__ARM_FEATURE_DOTPROD)
#define SWIN_HAS_DOT_PRODUCT 1
#else
#define SWIN_HAS_DOT_PRODUCT 0
#endif

// A whole number of either operand.
#if SWIN_HAS_VNNI || defined(__aarch64__)
struct int8 {
  int8_t bits;
};
#else
struct int8 {  // only products of 16 bits have exact sums in AVX2 and AVX-512: vpmaddubsw saturates
  int16_t bits;
};
#endif
constexpr const char* INT8_PRODUCTS = HAS_TILES              ? "AMX"
                                      : SWIN_HAS_VNNI        ? "VNNI"
                                      : sizeof(int8) == 2    ? "products of 16 bits"
                                      : SWIN_HAS_DOT_PRODUCT ? "NEON dot products"
                                                             : "NEON products of 8 bits";
constexpr float LEVELS = 254, MAX_OF_WEIGHT = 127;
constexpr float LEAST_RANGE = 1e-36f;                   // rows within a smaller range become zeros: no scale overflows
constexpr int64_t QUANTISED_STEP = HAS_TILES ? 64 : 4;  // terms of a row, filled up with zeros in the weight
#ifdef __aarch64__
constexpr int32_t OFFSET = -128;  // of the stored first operand: NEON multiplies signed numbers
#else
constexpr int32_t OFFSET = 0;
#endif

// Whole numbers of 32 bits. `max` compares with signs, `max_unsigned` and `max_of` without. `store_last_bits` stores
// the last bits of each lane.
#if defined(__AVX512F__)
struct IntVec {
  __m512i v;
};
inline IntVec dot_bytes(IntVec sum, IntVec a, IntVec b) {
#if SWIN_HAS_VNNI  // the intrinsic makes GCC 12 copy the sums to memory
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum.v) : "v"(a.v), "v"(b.v));
  return sum;
#else
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(a.v, b.v))};
#endif
}
inline IntVec operator+(IntVec a, IntVec b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline IntVec operator*(int32_t a, IntVec b) { return {_mm512_mullo_epi32(_mm512_set1_epi32(a), b.v)}; }
inline IntVec max(IntVec a, IntVec b) { return {_mm512_max_epi32(a.v, b.v)}; }
inline IntVec max_unsigned(IntVec a, IntVec b) { return {_mm512_max_epu32(a.v, b.v)}; }
inline uint32_t max_of(IntVec v) { return _mm512_reduce_max_epu32(v.v); }
inline IntVec bits_of(Vec v) { return {_mm512_castps_si512(v)}; }
inline Vec to_float(IntVec v) { return _mm512_cvtepi32_ps(v.v); }
inline void store_last_bits(int8* to, Vec v) {
  const __m512i bits = _mm512_castps_si512(v);
#if SWIN_HAS_VNNI
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(bits));
#else
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(bits));
#endif
}
#elif defined(__AVX2__)
struct IntVec {
  __m256i v;
};
inline IntVec dot_bytes(IntVec sum, IntVec a, IntVec b) {
#if SWIN_HAS_VNNI
#ifdef SWIN_EMULATE_AVX_VNNI  // AVX-512 VNNI has the instruction, too, so tests run on more processors
  __asm__("%{evex%} vpdpbusd %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
#else
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.v) : "x"(a.v), "x"(b.v));
#endif
  return sum;
#else
  return {_mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, b.v))};
#endif
}
inline IntVec operator+(IntVec a, IntVec b) { return {_mm256_add_epi32(a.v, b.v)}; }
inline IntVec operator*(int32_t a, IntVec b) { return {_mm256_mullo_epi32(_mm256_set1_epi32(a), b.v)}; }
inline IntVec max(IntVec a, IntVec b) { return {_mm256_max_epi32(a.v, b.v)}; }
inline IntVec max_unsigned(IntVec a, IntVec b) { return {_mm256_max_epu32(a.v, b.v)}; }
inline uint32_t max_of(IntVec v) {
  const __m128i half = _mm_max_epu32(_mm256_castsi256_si128(v.v), _mm256_extracti128_si256(v.v, 1));
  const __m128i pair = _mm_max_epu32(half, _mm_unpackhi_epi64(half, half));
  return _mm_cvtsi128_si32(_mm_max_epu32(pair, _mm_srli_epi64(pair, 32)));
}
inline IntVec bits_of(Vec v) { return {_mm256_castps_si256(v)}; }
inline Vec to_float(IntVec v) { return _mm256_cvtepi32_ps(v.v); }
inline void store_last_bits(int8* to, Vec v) {
  const __m256i bits = _mm256_castps_si256(v);
#if SWIN_HAS_VNNI
  const __m256i bytes = _mm256_shuffle_epi8(bits, _mm256_set1_epi32(0x0c080400));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
#else
  const __m256i halves = _mm256_shuffle_epi8(bits, _mm256_set1_epi64x(0x0d0c090805040100));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
#endif
}
#else
struct IntVec {
  int32x4_t v;
};
inline IntVec dot_bytes(IntVec sum, IntVec a, IntVec b) {
  const int8x16_t x = vreinterpretq_s8_s32(a.v), y = vreinterpretq_s8_s32(b.v);
#if SWIN_HAS_DOT_PRODUCT
  return {vdotq_s32(sum.v, x, y)};
#else  // two products of such numbers fit in 16 bits
  const int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(y)), high = vmull_high_s8(x, y);
  return {vpadalq_s16(sum.v, vpaddq_s16(low, high))};
#endif
}
inline IntVec operator+(IntVec a, IntVec b) { return {vaddq_s32(a.v, b.v)}; }
inline IntVec operator*(int32_t a, IntVec b) { return {vmulq_n_s32(b.v, a)}; }
inline IntVec max(IntVec a, IntVec b) { return {vmaxq_s32(a.v, b.v)}; }
inline IntVec max_unsigned(IntVec a, IntVec b) {
  return {vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(a.v), vreinterpretq_u32_s32(b.v)))};
}
inline uint32_t max_of(IntVec v) { return vmaxvq_u32(vreinterpretq_u32_s32(v.v)); }
inline IntVec bits_of(Vec v) { return {vreinterpretq_s32_f32(v)}; }
inline Vec to_float(IntVec v) { return vcvtq_f32_s32(v.v); }
inline void store_last_bits(int8* to, Vec v) {
  const uint16x4_t halves = vmovn_u32(vreinterpretq_u32_f32(v));
  const uint8x8_t bytes = vmovn_u16(vcombine_u16(halves, halves));
  std::memcpy(to, &bytes, LANES);
}
#endif

// Load 32 bits for each lane: whole numbers, or the terms of a sum.
inline IntVec load_bits(const void* from, int64_t lanes) {
  return {bit_cast<decltype(IntVec::v)>(load(static_cast<const float*>(from), lanes).v)};
}
inline IntVec broadcast_bits(const void* from) {
  float bits;
  std::memcpy(&bits, from, sizeof bits);
  return {bit_cast<decltype(IntVec::v)>(Vec(bits).v)};
}

// The least number of a row, at most 0, and the largest, at least 0. Either is NaN if a number is NaN. As whole
// numbers, bits of positive numbers have the order of the numbers. Bits of negative numbers are less, and without signs
// more.
struct Range {
  float low = 0.f, high = 0.f;

  Range(uint32_t most, uint32_t most_unsigned) : high(bit_cast<float>(most)) {
    if (most_unsigned >> 31) low = bit_cast<float>(most_unsigned);
  }
};
template <class T>
Range range_of(const T* x, int64_t n) {
  IntVec most = bits_of(Vec(0.f)), most_unsigned = most;
  over_columns(n, [&](int64_t i, int64_t lanes) {
    const IntVec bits = bits_of(load(x + i, lanes));
    most = max(most, bits), most_unsigned = max_unsigned(most_unsigned, bits);
  });
  return {max_of(most), max_of(most_unsigned)};
}

// Round n numbers times `to_whole`, plus a zero point that `last_bits` reads, in whole vectors.
template <class T>
void round_row(const T* x, int64_t n, Vec to_whole, Vec zero_point, int8* to) {
  for (int64_t i = 0; i < n; i += LANES)
    store_last_bits(to + i, fmadd(load(x + i, std::min(LANES, n - i)), to_whole, zero_point));
}

#if SWIN_HAS_BF16 && defined(__AVX512F__)
// 32 and 64 numbers at a time.
inline __m512i load_32(const bf16* from, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(from) : load_row(count > 0 ? from : nullptr, count);
}
inline Range range_of(const bf16* x, int64_t n) {
  __m512i most = _mm512_setzero_si512(), most_unsigned = most;
  for (int64_t i = 0; i < n; i += 32) {
    const __m512i bits = load_32(x + i, n - i);
    most = _mm512_max_epi16(most, bits), most_unsigned = _mm512_max_epu16(most_unsigned, bits);
  }
  const auto max_of_words = [](__m512i v) {
    const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
    const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    const __m128i least = _mm_minpos_epu16(_mm_xor_si128(quarter, _mm_set1_epi32(-1)));
    return static_cast<uint32_t>(~_mm_cvtsi128_si32(least)) << 16;
  };
  return {max_of_words(most), max_of_words(most_unsigned)};
}

inline void round_row(const bf16* x, int64_t n, Vec to_whole, Vec zero_point, int8* to) {
  alignas(64) static constexpr int16_t LOWER[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                    32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000)), lower = _mm512_load_si512(LOWER);
  const auto rounded = [&](__m512i bits) {
    return _mm512_castps_si512(fmadd(Vec(_mm512_castsi512_ps(bits)), to_whole, zero_point));
  };
  const auto pairs = [&](int64_t i) {  // of bytes, in the lower half of each lane
    const __m512i bits = load_32(x + i, n - i);
    const __m512i even = rounded(_mm512_slli_epi32(bits, 16)), odd = rounded(_mm512_and_si512(bits, upper));
    return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaa, even, _mm512_slli_epi32(odd, 8));
  };
  for (int64_t i = 0; i < n; i += 64) {
    const __m512i bytes = _mm512_permutex2var_epi16(pairs(i), lower, pairs(i + 32));
    if (n - i > 32)
      _mm512_storeu_si512(to + i, bytes);
    else
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_castsi512_si256(bytes));
  }
}
#endif

constexpr float MAGIC = 12582912.f;  // 1.5 * 2^23: a sum with it is rounded, and has the whole number in its last bits
inline int32_t last_bits(float sum) {
  return static_cast<int32_t>(bit_cast<uint32_t>(sum) - bit_cast<uint32_t>(MAGIC));
}

// A number of a row is scale * (stored - zero_point).
struct QuantisedRows {
  int8* numbers;
  float* scales;
  int32_t* zero_points;
};

// Round n numbers to row r. Rows have `stride` numbers; up to 63 more are written.
template <class T>
void quantise_row(const T* x, int64_t n, const QuantisedRows& rows, int64_t r, int64_t stride) {
  const Range range = range_of(x, n);
  const float width = range.high - range.low;
  const bool is_zero = width < LEAST_RANGE;
  const float to_whole = is_zero ? 0.f : LEVELS / width, zero_point = std::fma(-range.low, to_whole, MAGIC + OFFSET);
  rows.scales[r] = is_zero ? 0.f : width / LEVELS;
  rows.zero_points[r] = last_bits(zero_point);
  round_row(x, n, Vec(to_whole), Vec(zero_point), rows.numbers + r * stride);
}

// A weight in eight bits.
struct QuantisedWeight {
  const int8* panels = nullptr;   // as in `Linear`, with K in groups of 32 bits
  const float* scales = nullptr;  // of each output
  const int32_t* sums = nullptr;  // of the whole numbers of each output

  QuantisedWeight() = default;
  QuantisedWeight(const void* packed, int64_t N, int64_t K)
      : panels(static_cast<const int8*>(packed)),
        scales(reinterpret_cast<const float*>(panels + N * round_up(K, QUANTISED_STEP))),
        sums(reinterpret_cast<const int32_t*>(scales + N)) {}
  // The outputs from `column` on.
  QuantisedWeight from(int64_t column, int64_t padded_K) const {
    QuantisedWeight columns;
    columns.panels = panels + column * padded_K, columns.scales = scales + column, columns.sums = sums + column;
    return columns;
  }
  static int64_t bytes(int64_t N, int64_t K) {
    return N * (round_up(K, QUANTISED_STEP) * static_cast<int64_t>(sizeof(int8)) + 8);
  }
};

}  // namespace swin::SWIN_ISA
