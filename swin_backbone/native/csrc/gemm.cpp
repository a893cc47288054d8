#include "gemm.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>

namespace swin {

// brgemm is internal to torch, so it may change; these functions alone name it.
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
  return std::max(unit, MAX_COLUMNS / unit * unit);  // and a narrower one at the end
}

// from(n, k): the weight there.
template <class T, class From>
void pack_from(const From& from, int64_t N, int64_t K, int64_t unit, T* panels) {
  constexpr int64_t PAIR = std::is_same_v<T, bf16> ? 2 : 1;
  const int64_t width = panel_width(N, unit), padded_K = round_up(K, PAIR);
  at::parallel_for(0, (N + width - 1) / width, 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * width; n < std::min(N, end * width); n += width) {
      const int64_t columns = std::min(width, N - n);
      T* to = panels + n * padded_K;
      for (int64_t k = 0; k < padded_K; k += PAIR, to += PAIR * columns)
        for (int64_t i = 0; i < PAIR; i++)
          for (int64_t c = 0; c < columns; c++) to[PAIR * c + i] = k + i < K ? T(from(n + c, k + i)) : T(0.f);
    }
  });
}

template <class T>
void pack(const float* weight, int64_t N, int64_t K, int64_t unit, T* panels) {
  pack_from([&](int64_t n, int64_t k) { return weight[n * K + k]; }, N, K, unit, panels);
}

template <class T>
void pack_transposed(const float* weight, int64_t N, int64_t K, int64_t unit, T* panels) {
  pack_from([&](int64_t n, int64_t k) { return weight[k * N + n]; }, N, K, unit, panels);
}
#define INSTANTIATE(T)                                                          \
  template void pack<T>(const float*, int64_t, int64_t, int64_t, T*);           \
  template void pack_transposed<T>(const float*, int64_t, int64_t, int64_t, T*);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)

}  // namespace swin
