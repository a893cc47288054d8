// Matrix products x W^T + b by torch's brgemm. An epilogue uses each product while it is in cache.
//
// Layout: M rows, N columns, K terms of a sum.
#pragma once

#include <algorithm>
#include <cstdint>

#include "simd.h"

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
  int64_t padded_K() const { return std::is_same_v<T, bf16> ? round_up(K, 2) : K; }
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

// epilogue(m, rows, n, columns, c): c holds a W^T of those rows and columns, without the bias, `columns` apart.
// `a` must have room for round_up(M, ROW_STEP) rows, and `c` for MAX_ROWS * MAX_COLUMNS numbers.
template <class T, class F>
void product(const T* a, int64_t lda, int64_t M, const Linear<T>& w, float* c, const F& epilogue) {
  const int64_t K = w.padded_K();
  const int64_t chunks = (M + MAX_ROWS - 1) / MAX_ROWS;
  const int64_t step = round_up((M + chunks - 1) / std::max<int64_t>(chunks, 1), ROW_STEP);
  for (int64_t n = 0; n < w.N; n += w.width) {
    const int64_t columns = std::min(w.width, w.N - n);
    for (int64_t m = 0; m < M; m += step) {
      const int64_t rows = std::min(step, M - m);
      brgemm(round_up(rows, ROW_STEP), columns, K, lda, columns, columns, a + m * lda, w.panels + n * K, c);
      epilogue(m, rows, n, columns, c);
    }
  }
}

}  // namespace swin
