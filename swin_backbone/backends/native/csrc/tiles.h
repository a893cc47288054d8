// AMX's tiles, and float32 products by them. AMX multiplies only bf16, so each number is split into the sum of three:
// the first has the leading 8 bits of 24, the second the next 8, the third the rest. Of the nine products of two such
// sums, six are computed and summed in float32. The other three are below 2^-25 of the largest, so float32 could not
// hold them.
//
// A tile is 16 rows of 32 terms, or 16 pairs of terms for 16 columns: 1 KiB, contiguous. Pieces of a number are in one
// tile each, one after another.
#pragma once

#include "simd.h"

// Clang wants AMX to be on for a whole file, and has not been tried.
#if defined(__AVX512BF16__) && __has_include(<amxbf16intrin.h>) && !defined(__clang__)
#define SWIN_HAS_TILES
#endif

namespace swin {

constexpr int64_t PIECES = 3;
constexpr int64_t TILE_ROWS = 16, TILE_TERMS = 32, TILE = TILE_ROWS * TILE_TERMS;
constexpr int64_t TILED_ROWS = 2 * TILE_ROWS;  // are multiplied at a time: buffers have room for them

inline int64_t tiles_of(int64_t terms) { return (terms + TILE_TERMS - 1) / TILE_TERMS; }

// Whether the processor has AMX and this process may use it.
bool has_tiles();

// Rows of `terms` numbers in pieces: (ceil(rows / 16), ceil(terms / 32), PIECES, TILE). Rows after the last are not
// written.
void split_rows(const float* a, int64_t lda, int64_t rows, int64_t terms, bf16* tiles);
// Columns of `terms` numbers, a multiple of 16, in pieces: (columns / 16, ceil(terms / 32), PIECES, TILE).
void split_columns(const float* b, int64_t ldb, int64_t terms, int64_t columns, bf16* tiles);

// The same for the transpose of `terms` rows: of each of `columns` numbers, a multiple of 16, the terms are a row.
void split_turned(const float* a, int64_t lda, int64_t terms, int64_t columns, bf16* tiles);

// AMX's tiles are usable as long as this lives, and brgemm is not.
class TilesInUse {
 public:
  TilesInUse();
  ~TilesInUse();
};

// c = a b, or c += a b, for rows in multiples of TILED_ROWS, columns of TILE_ROWS, and `depth` tiles of terms.
void multiply_tiles(int64_t rows, int64_t columns, int64_t depth, const bf16* a, const bf16* b, float* c, int64_t ldc,
                    bool add);

}  // namespace swin
