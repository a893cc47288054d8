#include "tiles.h"

#include <ATen/cpu/Utils.h>

#include <array>

#include "gemm.h"

namespace swin {

#ifndef SWIN_HAS_TILES
bool has_tiles() { return false; }
void split_rows(const float*, int64_t, int64_t, int64_t, bf16*) {}
void split_columns(const float*, int64_t, int64_t, int64_t, bf16*) {}
void split_turned(const float*, int64_t, int64_t, int64_t, bf16*) {}
TilesInUse::TilesInUse() {}
TilesInUse::~TilesInUse() {}
void multiply_tiles(int64_t, int64_t, int64_t, const bf16*, const bf16*, float*, int64_t, bool) {}
#else

bool has_tiles() {
  // init_amx asks the system for the right to use AMX.
  static const bool available = __builtin_cpu_supports("amx-bf16") && at::cpu::init_amx();
  return available;
}

namespace {

// The upper half of a float32 number is a bf16 number. The first piece is rounded, so that what is left has either sign
// and errors do not add up; the others are cut off.
struct Numbers {
  __m512i first, rest;  // the next piece, with its lower half 0 or not used; and what it leaves
};
template <bool rounded>
inline Numbers next_piece(__m512i numbers) {
  const __m512i upper = _mm512_set1_epi32(0xFFFF0000);
  const __m512i piece = rounded ? _mm512_add_epi32(numbers, _mm512_set1_epi32(0x8000)) : numbers;
  return {piece, (__m512i)_mm512_sub_ps((__m512)numbers, (__m512)_mm512_and_si512(piece, upper))};
}

// The pieces of two vectors, `combine`d from the upper halves of their numbers.
template <class Combine>
inline void split(__m512 a, __m512 b, bf16* to, const Combine& combine) {
  const Numbers a0 = next_piece<true>((__m512i)a), b0 = next_piece<true>((__m512i)b);
  const Numbers a1 = next_piece<false>(a0.rest), b1 = next_piece<false>(b0.rest);
  _mm512_storeu_si512(to, combine(a0.first, b0.first));
  _mm512_storeu_si512(to + TILE, combine(a1.first, b1.first));
  _mm512_storeu_si512(to + 2 * TILE, combine(a1.rest, b1.rest));
}

// One vector's numbers after the other's.
inline __m512i side_by_side(__m512i low, __m512i high) {
  alignas(64) static const auto UPPER = [] {
    std::array<int16_t, 32> at;
    for (int i = 0; i < 32; i++) at[i] = 2 * i + 1;
    return at;
  }();
  return _mm512_permutex2var_epi16(low, _mm512_load_si512(UPPER.data()), high);
}

// One number of each vector by turns.
inline __m512i in_pairs(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd);
}

int64_t clamp(int64_t count) { return std::clamp<int64_t>(count, 0, LANES); }

}  // namespace

void split_rows(const float* a, int64_t lda, int64_t rows, int64_t terms, bf16* tiles) {
  const int64_t depth = tiles_of(terms);
  for (int64_t m = 0; m < rows; m++, a += lda) {
    bf16* to = tiles + m / TILE_ROWS * depth * PIECES * TILE + m % TILE_ROWS * TILE_TERMS;
    const auto part = [&](int64_t k) { return load(a + k, clamp(terms - k)); };
    int64_t k = 0;
    for (; k + TILE_TERMS <= terms; k += TILE_TERMS, to += PIECES * TILE)
      split(load(a + k), load(a + k + LANES), to, side_by_side);
    if (k < terms) split(part(k), part(k + LANES), to, side_by_side);
  }
}

void split_columns(const float* b, int64_t ldb, int64_t terms, int64_t columns, bf16* tiles) {
  const Vec zero(0.f);
  for (int64_t n = 0; n < columns; n += TILE_ROWS)  // one column of tiles after another: written in order
    for (int64_t k = 0; k < terms; k += TILE_TERMS, tiles += PIECES * TILE) {
      const float* from = b + k * ldb + n;
      for (int64_t i = 0; i < TILE_TERMS; i += 2, from += 2 * ldb) {
        const Vec even = k + i < terms ? load(from) : zero, odd = k + i + 1 < terms ? load(from + ldb) : zero;
        split(even, odd, tiles + i * TILE_ROWS, in_pairs);
      }
    }
}

void split_turned(const float* a, int64_t lda, int64_t terms, int64_t columns, bf16* tiles) {
  alignas(64) float turned[2][TILE_ROWS][LANES];  // of 16 terms each
  for (int64_t n = 0; n < columns; n += TILE_ROWS)
    for (int64_t k = 0; k < terms; k += TILE_TERMS, tiles += PIECES * TILE) {
      for (int64_t i = 0; i < 2; i++) {
        const int64_t first = k + i * LANES, count = clamp(terms - first);
        if (count < LANES) std::memset(turned[i], 0, sizeof turned[i]);
        if (count == LANES)
          at::vec::transpose_mxn<float, TILE_ROWS, LANES>(a + first * lda + n, lda, turned[i][0], LANES);
        else if (count)
          at::vec::transpose_mxn<float>(a + first * lda + n, lda, turned[i][0], LANES, count, TILE_ROWS);
      }
      for (int64_t r = 0; r < TILE_ROWS; r++)
        split(load(turned[0][r]), load(turned[1][r]), tiles + r * TILE_TERMS, side_by_side);
    }
}

#define SWIN_TILES __attribute__((target("amx-tile,amx-bf16")))

namespace {

// All 8 tiles are full. This is not on the stack, because GCC 12 knows only that the first 8 bytes are read.
struct alignas(64) {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
} const SHAPES;

SWIN_TILES void configure() { _tile_loadconfig(&SHAPES); }
SWIN_TILES void release() { _tile_release(); }

// c (32, 32) or, for one column of tiles, (32, 16). Tiles 0 to 3 hold c, 4 and 5 rows of a, 6 and 7 columns of b.
template <bool two_columns>
SWIN_TILES void multiply_block(int64_t depth, const bf16* a, const bf16* b, float* c, int64_t ldc, bool add) {
  const bf16 *below = a + depth * PIECES * TILE, *beside = b + depth * PIECES * TILE;
  float* c_below = c + TILE_ROWS * ldc;
  if (add) {
    _tile_loadd(0, c, 4 * ldc);
    _tile_loadd(2, c_below, 4 * ldc);
    if (two_columns) {
      _tile_loadd(1, c + TILE_ROWS, 4 * ldc);
      _tile_loadd(3, c_below + TILE_ROWS, 4 * ldc);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const auto take_a = [&](int64_t at) SWIN_TILES {
    _tile_loadd(4, a + at, 64);
    _tile_loadd(5, below + at, 64);
  };
  const auto take_b = [&](int64_t at) SWIN_TILES {
    _tile_loadd(6, b + at, 64);
    if (two_columns) _tile_loadd(7, beside + at, 64);
  };
  const auto multiply = []() SWIN_TILES {
    _tile_dpbf16ps(0, 4, 6);
    if (two_columns) _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    if (two_columns) _tile_dpbf16ps(3, 5, 7);
  };
  for (int64_t at = 0; at < depth * PIECES * TILE; at += PIECES * TILE) {
    // Each product needs one new piece, except the first and the last.
    take_a(at + 2 * TILE), take_b(at), multiply();
    take_a(at + TILE), multiply();
    take_b(at + TILE), multiply();
    take_a(at), multiply();
    take_b(at + 2 * TILE), multiply();
    take_b(at), multiply();
  }
  _tile_stored(0, c, 4 * ldc);
  _tile_stored(2, c_below, 4 * ldc);
  if (two_columns) {
    _tile_stored(1, c + TILE_ROWS, 4 * ldc);
    _tile_stored(3, c_below + TILE_ROWS, 4 * ldc);
  }
}

}  // namespace

TilesInUse::TilesInUse() {
  release_brgemm<bf16>();
  configure();
}
TilesInUse::~TilesInUse() { release(); }

void multiply_tiles(int64_t rows, int64_t columns, int64_t depth, const bf16* a, const bf16* b, float* c, int64_t ldc,
                    bool add) {
  for (int64_t n = 0; n < columns; n += 2 * TILE_ROWS, b += 2 * depth * PIECES * TILE)
    for (int64_t m = 0; m < rows; m += TILED_ROWS) {
      const bf16* from = a + m / TILE_ROWS * depth * PIECES * TILE;
      if (n + TILE_ROWS < columns)
        multiply_block<true>(depth, from, b, c + m * ldc + n, ldc, add);
      else
        multiply_block<false>(depth, from, b, c + m * ldc + n, ldc, add);
    }
}
#endif

}  // namespace swin
