// Products by AMX's tiles, of bf16 numbers and of float32 numbers in pieces. AMX multiplies bf16 alone, so a float32
// number is split into a sum of three pieces: the leading 8 bits of 24, the next 8, and the rest. Six of the nine
// products of two sums are computed and summed in float32. The remaining three are below 2^-25 of the largest, beyond
// the precision of float32.
//
// A tile is 16 rows of 32 terms, or 16 pairs of terms for 16 columns: 1 KiB, contiguous. The three pieces of a number
// are in three consecutive tiles.
#pragma once

#include "machine/amx.h"
#include "machine/row_functions.h"

namespace swin::SWIN_ISA {

constexpr bool HAS_TILES = SWIN_HAS_TILES;
constexpr int64_t PIECES = 3;
constexpr int64_t TILE_ROWS = 16, TILE_TERMS = 32, TILE = TILE_ROWS * TILE_TERMS;
constexpr int64_t TILED_ROWS = 2 * TILE_ROWS;  // of a product; buffers have multiples

inline int64_t tiles_of(int64_t terms) { return ceil_div(terms, TILE_TERMS); }

#if !SWIN_HAS_TILES
inline void pack_row_pieces(const float*, int64_t, int64_t, int64_t, bf16*) {}
inline void pack_column_pieces(const float*, int64_t, int64_t, int64_t, bf16*) {}
inline void pack_transposed_pieces(const float*, int64_t, int64_t, int64_t, bf16*) {}
struct TilesInUse {
  TilesInUse() {}
};
inline void multiply_pieces(int64_t, int64_t, int64_t, const bf16*, const bf16*, float*, int64_t, bool) {}
#else

// All 8 tiles have 16 rows of 64 bytes. A global variable, because GCC 12 assumes a read of 8 bytes only.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline const TileConfig TILE_CONFIG;

// Configure AMX's tiles until the destructor. Objects may be nested.
class TilesInUse {
 public:
  TilesInUse() {
    if (users()++ == 0) _tile_loadconfig(&TILE_CONFIG);
  }
  ~TilesInUse() {
    if (--users() == 0) _tile_release();
  }
  TilesInUse(const TilesInUse&) = delete;
  TilesInUse& operator=(const TilesInUse&) = delete;

 private:
  static int& users() {
    static thread_local int count = 0;
    return count;
  }
};

// Add the products of two tiles to a tile: pairs of bf16 numbers to float32, or four bytes to int32.
#define TILE_DOT(c, a, b)                  \
  do {                                     \
    if constexpr (std::is_same_v<T, bf16>) \
      _tile_dpbf16ps(c, a, b);             \
    else                                   \
      _tile_dpbusd(c, a, b);               \
  } while (0)

// c (32, 32) = a b, or c += a b, or of one column of tiles (32, 16). Tiles 0 to 3 hold c, 4 and 5 rows of a, 6 and 7
// columns of b. `multiply(load_a, load_b, dot)` loads and multiplies: load_a(p, below) the tiles of 32 rows of a,
// load_b(p, beside) those of 32 columns of b, dot() adds their products. T: bf16, or int8 for int32 numbers in c.
template <bool two_columns, class T = bf16, class Multiply>
inline void tiles_2x2(float* c, int64_t ldc, bool accumulate, const Multiply& multiply) {
  float* c_below = c + TILE_ROWS * ldc;
  if (accumulate) {
    TILE_LOAD(0, c, 4 * ldc);
    TILE_LOAD(2, c_below, 4 * ldc);
    if (two_columns) {
      TILE_LOAD(1, c + TILE_ROWS, 4 * ldc);
      TILE_LOAD(3, c_below + TILE_ROWS, 4 * ldc);
    }
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  const auto load_a = [](const void* a, const void* below, int64_t stride = 64) {
    TILE_LOAD(4, a, stride);
    TILE_LOAD(5, below, stride);
  };
  const auto load_b = [](const void* b, const void* beside, int64_t stride = 64) {
    TILE_LOAD(6, b, stride);
    if (two_columns) TILE_LOAD(7, beside, stride);
  };
  const auto dot = [] {
    TILE_DOT(0, 4, 6);
    if (two_columns) TILE_DOT(1, 4, 7);
    TILE_DOT(2, 5, 6);
    if (two_columns) TILE_DOT(3, 5, 7);
  };
  multiply(load_a, load_b, dot);
  _tile_stored(0, c, 4 * ldc);
  _tile_stored(2, c_below, 4 * ldc);
  if (two_columns) {
    _tile_stored(1, c + TILE_ROWS, 4 * ldc);
    _tile_stored(3, c_below + TILE_ROWS, 4 * ldc);
  }
}

// The upper half of a float32 number is a bf16 number. The first piece is rounded, so the rest has either sign, and
// errors cancel. The second and third piece are truncated.
struct Piece {
  __m512i first, rest;  // the piece in the upper half, and the number less the piece
};
template <bool rounded>
inline Piece next_piece(__m512i numbers) {
  const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xFFFF0000));
  const __m512i piece = rounded ? _mm512_add_epi32(numbers, _mm512_set1_epi32(0x8000)) : numbers;
  const __m512 whole = _mm512_castsi512_ps(numbers), leading = _mm512_castsi512_ps(_mm512_and_si512(piece, upper));
  return {piece, _mm512_castps_si512(_mm512_sub_ps(whole, leading))};
}

// Write the pieces of two vectors, `combine`d from the upper halves of the numbers.
template <class Combine>
inline void write_pieces(Vec a, Vec b, bf16* to, const Combine& combine) {
  const Piece a0 = next_piece<true>(_mm512_castps_si512(a)), b0 = next_piece<true>(_mm512_castps_si512(b));
  const Piece a1 = next_piece<false>(a0.rest), b1 = next_piece<false>(b0.rest);
  _mm512_storeu_si512(to, combine(a0.first, b0.first));
  _mm512_storeu_si512(to + TILE, combine(a1.first, b1.first));
  _mm512_storeu_si512(to + 2 * TILE, combine(a1.rest, b1.rest));
}

// The upper halves of `low`, then of `high`.
inline __m512i side_by_side(__m512i low, __m512i high) {
  alignas(64) static constexpr int16_t UPPER[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                    33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  return _mm512_permutex2var_epi16(low, _mm512_load_si512(UPPER), high);
}

// The upper halves of `even` and `odd` in turn.
inline __m512i in_pairs(__m512i even, __m512i odd) {
  return _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(even, 16), odd);
}

inline int64_t lanes_left(int64_t count) { return count < 0 ? 0 : count < LANES ? count : LANES; }

// Split rows of `terms` numbers: (ceil(rows / 16), ceil(terms / 32), PIECES, TILE). Rows after the last are not
// written.
inline void pack_row_pieces(const float* a, int64_t lda, int64_t rows, int64_t terms, bf16* tiles) {
  const int64_t depth = tiles_of(terms);
  for (int64_t m = 0; m < rows; m++, a += lda) {
    bf16* to = tiles + m / TILE_ROWS * depth * PIECES * TILE + m % TILE_ROWS * TILE_TERMS;
    int64_t k = 0;
    for (; k + TILE_TERMS <= terms; k += TILE_TERMS, to += PIECES * TILE)
      write_pieces(load(a + k), load(a + k + LANES), to, side_by_side);
    if (k < terms)
      write_pieces(load(a + k, lanes_left(terms - k)), load(a + k + LANES, lanes_left(terms - k - LANES)), to,
                   side_by_side);
  }
}

// Split columns of `terms` numbers: (columns / 16, ceil(terms / 32), PIECES, TILE). `columns` is a multiple of 16.
inline void pack_column_pieces(const float* b, int64_t ldb, int64_t terms, int64_t columns, bf16* tiles) {
  const Vec zero(0.f);
  for (int64_t n = 0; n < columns; n += TILE_ROWS)  // in the order of the result
    for (int64_t k = 0; k < terms; k += TILE_TERMS, tiles += PIECES * TILE) {
      const float* from = b + k * ldb + n;
      for (int64_t i = 0; i < TILE_TERMS; i += 2, from += 2 * ldb) {
        const Vec even = k + i < terms ? load(from) : zero, odd = k + i + 1 < terms ? load(from + ldb) : zero;
        write_pieces(even, odd, tiles + i * TILE_ROWS, in_pairs);
      }
    }
}

// Split the transpose of `terms` rows: each of `columns` columns, a multiple of 16, becomes a row of pieces.
inline void pack_transposed_pieces(const float* a, int64_t lda, int64_t terms, int64_t columns, bf16* tiles) {
  alignas(64) float transposed[2][TILE_ROWS][LANES];  // of 16 terms each
  for (int64_t n = 0; n < columns; n += TILE_ROWS)
    for (int64_t k = 0; k < terms; k += TILE_TERMS, tiles += PIECES * TILE) {
      for (int64_t i = 0; i < 2; i++) {
        const int64_t first = k + i * LANES, count = lanes_left(terms - first);
        if (count < LANES) std::memset(transposed[i], 0, sizeof transposed[i]);
        if (count) transpose(a + first * lda + n, lda, count, TILE_ROWS, transposed[i][0], LANES);
      }
      for (int64_t r = 0; r < TILE_ROWS; r++)
        write_pieces(load(transposed[0][r]), load(transposed[1][r]), tiles + r * TILE_TERMS, side_by_side);
    }
}

// c = a b, or c += a b, of numbers in pieces, for rows in multiples of TILED_ROWS, columns of TILE_ROWS, and `depth`
// tiles of terms.
inline void multiply_pieces(int64_t rows, int64_t columns, int64_t depth, const bf16* a, const bf16* b, float* c,
                            int64_t ldc, bool accumulate) {
  const int64_t apart = depth * PIECES * TILE;  // one row of tiles from the next
  for (int64_t n = 0; n < columns; n += 2 * TILE_ROWS, b += 2 * apart)
    for (int64_t m = 0; m < rows; m += TILED_ROWS) {
      const bf16* from = a + m / TILE_ROWS * apart;
      const auto multiply = [&](const auto& load_a, const auto& load_b, const auto& dot) {
        for (int64_t at = 0; at < apart; at += PIECES * TILE) {
          const auto piece_of_a = [&](int64_t i) { load_a(from + at + i * TILE, from + at + i * TILE + apart); };
          const auto piece_of_b = [&](int64_t i) { load_b(b + at + i * TILE, b + at + i * TILE + apart); };
          // Each product loads one new piece, except the first and the last.
          piece_of_a(2), piece_of_b(0), dot();
          piece_of_a(1), dot();
          piece_of_b(1), dot();
          piece_of_a(0), dot();
          piece_of_b(2), dot();
          piece_of_b(0), dot();
        }
      };
      if (n + TILE_ROWS < columns)
        tiles_2x2<true>(c + m * ldc + n, ldc, accumulate, multiply);
      else
        tiles_2x2<false>(c + m * ldc + n, ldc, accumulate, multiply);
    }
}
#endif

}  // namespace swin::SWIN_ISA
