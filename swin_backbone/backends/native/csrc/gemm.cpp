#include "gemm.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

namespace swin {

// brgemm is internal to torch, so it may change; only these functions use it.
#if !defined(CPUBLAS_BRGEMM_F32F32F32) || !defined(CPUBLAS_BRGEMM_BF16BF16F32)
#error "swin_backbone's compiled operators need a torch whose ATen/native/CPUBlas.h has brgemm (2.7 and later)"
#endif

void brgemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const float* a, const float* b,
            float* c, bool add) {
  at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, a, b, c, false);
}

void brgemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const bf16* a, const bf16* b,
            float* c, bool add) {
  at::native::cpublas::brgemm(M, N, K, lda, ldb, ldc, add, a, b, c, true);
}

template <>
void release_brgemm<float>() {
  at::native::cpublas::brgemm_release(false);
}
template <>
void release_brgemm<bf16>() {
  at::native::cpublas::brgemm_release(true);
}

int64_t panel_width(int64_t N, int64_t unit) {
  for (int64_t width = MAX_COLUMNS / unit * unit; width >= MAX_COLUMNS / 2; width -= unit)
    if (N % width == 0 && width % ROW_STEP == 0) return width;
  return std::max(unit, MAX_COLUMNS / unit * unit);  // the last panel is narrower
}

Split::Split(const std::vector<Linear<float>*>& linears) {
  std::vector<bf16*> pieces(linears.size());
  memory.allocate([&](const auto& take) {
    for (size_t i = 0; i < linears.size(); i++) {
      const Linear<float>& w = *linears[i];
      pieces[i] = (bf16*)take(w.in_tiles() ? w.N * round_up(w.K, TILE_TERMS) * PIECES * sizeof(bf16) : 0);
    }
  });
  for (size_t i = 0; i < linears.size(); i++) {
    Linear<float>& w = *linears[i];
    if (!w.in_tiles()) continue;
    at::parallel_for(0, (w.N + w.width - 1) / w.width, 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin * w.width; n < std::min(w.N, end * w.width); n += w.width) {
        const int64_t columns = std::min(w.width, w.N - n);
        for (int64_t k = 0; k < w.K; k += MAX_TERMS)
          split_columns(w.panels + n * w.K + k * columns, columns, std::min(MAX_TERMS, w.K - k), columns,
                        pieces[i] + pieces_at(w, n, k));
      }
    });
    w.pieces = pieces[i];
  }
}

namespace {

// Rows of `columns` numbers to rows of a panel.
void put_rows(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  for (int64_t k = 0; k < rows; k++) std::copy_n(from + k * stride, columns, to + k * columns);
}
#ifdef __AVX512BF16__
void put_rows(const float* from, int64_t stride, int64_t rows, int64_t columns, bf16* to) {
  uint16_t pair[2][MAX_COLUMNS];
  for (int64_t k = 0; k < rows; k += 2, to += 2 * columns) {
    std::memset(pair[1], 0, sizeof pair[1]);  // filler after an odd number of terms
    for (int64_t i = 0; i < std::min<int64_t>(2, rows - k); i++)
      over_columns(columns, [&](int64_t c, int64_t lanes) {
        store((bf16*)pair[i] + c, load(from + (k + i) * stride + c, lanes), lanes);
      });
    auto* mixed = (uint16_t*)to;
    for (int64_t c = 0; c < columns; c++) mixed[2 * c] = pair[0][c], mixed[2 * c + 1] = pair[1][c];
  }
}
#endif

}  // namespace

// The weight is (N, K), or (K, N) if transposed.
template <class T>
void pack(const float* weight, int64_t N, int64_t K, int64_t unit, bool transposed, T* panels) {
  constexpr int64_t STEP = 32;  // rows at a time
  const int64_t width = panel_width(N, unit), padded_K = round_up(K, std::is_same_v<T, bf16> ? 2 : 1);
  at::parallel_for(0, (N + width - 1) / width, 1, [&](int64_t begin, int64_t end) {
    float turned[STEP * MAX_COLUMNS];
    for (int64_t n = begin * width; n < std::min(N, end * width); n += width) {
      const int64_t columns = std::min(width, N - n);
      for (int64_t k = 0; k < K; k += STEP) {
        const int64_t rows = std::min(STEP, K - k);
        T* to = panels + n * padded_K + k * columns;
        if (transposed) {
          put_rows(weight + k * N + n, N, rows, columns, to);
        } else {
          at::vec::transpose_mxn<float>(weight + n * K + k, K, turned, columns, columns, rows);
          put_rows(turned, columns, rows, columns, to);
        }
      }
    }
  });
}
#define INSTANTIATE(T) template void pack<T>(const float*, int64_t, int64_t, int64_t, bool, T*);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
