// Matrix products x W^T + b by torch's brgemm. An epilogue uses each product while it is in cache.
//
// Layout: M rows, N columns, K terms of a sum.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "buffers.h"
#include "tiles.h"

namespace swin {

constexpr int64_t ROW_STEP = 16;   // rows are multiplied in multiples of these: buffers have room for them
constexpr int64_t MAX_ROWS = 96;   // of one product, so that it stays in L1 or L2
constexpr int64_t MAX_COLUMNS = 96;

// Columns of one product: as many as possible, preferably a divisor of N, and a multiple of `unit`, which is the number
// of columns that an epilogue needs together.
int64_t panel_width(int64_t N, int64_t unit);

// W (N, K) in panels of `panel_width` columns, each (K, width), bf16 with pairs of K side by side (VNNI), K made even.
template <class T>
struct Linear {
  const T* panels;
  const float* bias;
  int64_t N, K, width;
  const bf16* pieces = nullptr;  // the panels in pieces, see `Split`
  int64_t padded_K() const { return std::is_same_v<T, bf16> ? round_up(K, 2) : K; }
  bool in_tiles() const {
    return std::is_same_v<T, float> && has_tiles() && N % TILE_ROWS == 0 && width % TILE_ROWS == 0;
  }
};

// Packs W, or W^T if transposed: then the weight is (K, N).
template <class T>
void pack(const float* weight, int64_t N, int64_t K, int64_t unit, bool transposed, T* panels);
template <class T>
int64_t packed_size(int64_t N, int64_t K) {
  return N * Linear<T>{nullptr, nullptr, N, K, 0}.padded_K();
}

// c = a b, or c += a b. `a` row by row, `b` (K, N) with rows ldb apart, in pairs for bf16.
void brgemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const float* a, const float* b,
            float* c, bool add = false);
void brgemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const bf16* a, const bf16* b,
            float* c, bool add = false);
// A thread must call this after its last product: it releases AMX's tiles.
template <class T>
void release_brgemm();

// Of float32 numbers this many are added up in order, and then the sums: the error of rounding grows with the length of a
// sum, and torch's linear layers have short ones too.
constexpr int64_t MAX_SUM = 256;

// Of float32 numbers this many are split into pieces at a time, so that these stay in L2: of a sum, and of all rows.
constexpr int64_t MAX_TERMS = 768;
constexpr int64_t MAX_SPLIT = MAX_TERMS * 2 * MAX_ROWS;

// How many rows of `terms` numbers are split at a time. A panel of the weight is split once for all of them.
inline int64_t rows_at_a_time(int64_t terms) {
  return std::min(4 * MAX_ROWS, MAX_SPLIT / round_up(std::min(terms, MAX_TERMS), TILE_TERMS) / MAX_ROWS * MAX_ROWS);
}

// Splits weights once, as long as it lives, instead of for each few hundred tokens. This takes 1.5 times their memory.
class Split {
 public:
  Split(const std::vector<Linear<float>*>& linears);
  Split(const std::vector<Linear<bf16>*>&) {}  // bf16 is multiplied as it is

 private:
  Buffers memory;
};
// The pieces of a panel's terms k ... min(K, k + MAX_TERMS) - 1 begin here.
inline int64_t pieces_at(const Linear<float>& w, int64_t n, int64_t k) {
  return PIECES * (k * w.N + n * round_up(std::min(MAX_TERMS, w.K - k), TILE_TERMS));
}

// Buffers for the product with any of some linear layers.
template <class T>
struct ProductRoom {
  float* c = nullptr;
  bf16 *rows = nullptr, *columns = nullptr;  // pieces of tokens, and of a panel of the weight

  ProductRoom() = default;
  template <class Take>  // take(bytes) returns the next `bytes` bytes
  ProductRoom(const std::vector<const Linear<T>*>& linears, const Take& take) {
    int64_t numbers = 0;
    bool in_tiles = false;
    for (const Linear<T>* w : linears) {
      const bool parts = w->in_tiles() && w->K > MAX_TERMS;  // then all columns are summed up at the same time
      numbers = std::max(numbers, parts ? rows_at_a_time(w->K) * w->N : MAX_ROWS * std::max(w->width, MAX_COLUMNS));
      in_tiles |= w->in_tiles();
    }
    c = (float*)take(numbers * sizeof(float));
    rows = (bf16*)take(in_tiles * MAX_SPLIT * PIECES * sizeof(bf16));
    columns = (bf16*)take(in_tiles * MAX_COLUMNS * MAX_TERMS * PIECES * sizeof(bf16));
  }
};

// `product` of numbers in pieces.
template <class F>
void product_in_tiles(const float* a, int64_t lda, int64_t M, const Linear<float>& w, const ProductRoom<float>& room,
                      const F& epilogue) {
  const TilesInUse tiles;
  const int64_t step = rows_at_a_time(w.K);
  for (int64_t begin = 0; begin < M; begin += step) {
    const int64_t end = std::min(M, begin + step);
    for (int64_t k = 0; k < w.K; k += MAX_TERMS) {
      const int64_t terms = std::min(MAX_TERMS, w.K - k), depth = tiles_of(terms);
      split_rows(a + begin * lda + k, lda, end - begin, terms, room.rows);
      for (int64_t n = 0; n < w.N; n += w.width) {
        const int64_t columns = std::min(w.width, w.N - n);
        const bf16* panel = w.pieces ? w.pieces + pieces_at(w, n, k) : room.columns;
        if (!w.pieces) split_columns(w.panels + n * w.K + k * columns, columns, terms, columns, room.columns);
        for (int64_t m = begin; m < end; m += MAX_ROWS) {
          const int64_t rows = std::min(MAX_ROWS, end - m);
          float* c = room.c + (w.K > MAX_TERMS ? n * step + (m - begin) * columns : 0);
          const bf16* pieces = room.rows + (m - begin) * depth * PIECES * TILE_TERMS;
          multiply_tiles(round_up(rows, TILED_ROWS), columns, depth, pieces, panel, c, columns, k > 0);
          if (k + terms == w.K) epilogue(m, rows, n, columns, c);
        }
      }
    }
  }
}

// epilogue(m, rows, n, columns, c): c holds a W^T of those rows and columns, without the bias, `columns` apart.
// `a` must have room for round_up(M, ROW_STEP) rows.
template <class T, class F>
void product(const T* a, int64_t lda, int64_t M, const Linear<T>& w, const ProductRoom<T>& room, const F& epilogue) {
  if constexpr (std::is_same_v<T, float>)
    if (w.in_tiles()) return product_in_tiles(a, lda, M, w, room, epilogue);
  const int64_t chunks = (M + MAX_ROWS - 1) / MAX_ROWS;
  const int64_t step = round_up((M + chunks - 1) / std::max<int64_t>(chunks, 1), ROW_STEP);
  const int64_t K = w.padded_K(), terms = std::is_same_v<T, float> ? MAX_SUM : K;
  for (int64_t n = 0; n < w.N; n += w.width) {
    const int64_t columns = std::min(w.width, w.N - n);
    for (int64_t m = 0; m < M; m += step) {
      const int64_t rows = std::min(step, M - m);
      for (int64_t k = 0; k < K; k += terms)
        brgemm(round_up(rows, ROW_STEP), columns, std::min(terms, K - k), lda, columns, columns, a + m * lda + k,
               w.panels + n * K + k * columns, room.c, k > 0);
      epilogue(m, rows, n, columns, room.c);
    }
  }
}

}  // namespace swin
