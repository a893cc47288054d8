#include "products/gemm.h"

namespace swin::SWIN_ISA {
namespace {

// A step of a sum: a product of float32 numbers, or of two pairs of bf16 numbers.
template <class T>
constexpr int64_t TERMS = 1;
Vec add_products(Vec sum, Vec a, Vec b) { return fmadd(a, b, sum); }
Vec broadcast_term(const float* a) { return Vec(*a); }
Vec load_terms(const float* b, int64_t lanes) { return load(b, lanes); }
#if SWIN_HAS_BF16
template <>
constexpr int64_t TERMS<bf16> = 2;
Vec add_products(Vec sum, PairVec a, PairVec b) { return dot_pairs(sum, a, b); }
PairVec broadcast_term(const bf16* a) { return broadcast_pair(a); }
PairVec load_terms(const bf16* b, int64_t lanes) { return load_pairs(b, lanes); }
#endif

// c (rows, columns) = a b, or c += a b, with c in registers. The last vector of columns has `last` numbers.
template <int rows, int vectors, bool whole, class T>
void multiply_in_registers(int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc,
                           bool accumulate, int64_t last) {
  const auto lanes = [&](int v) { return whole || v + 1 < vectors ? LANES : last; };
  for (int r = 0; r < rows && accumulate; r++)
    for (int v = 0; v < vectors; v++) __builtin_prefetch(c + r * ldc + v * LANES, 1);
  Vec sum[rows][vectors];
  SWIN_UNROLL
  for (int r = 0; r < rows; r++) {
    SWIN_UNROLL
    for (int v = 0; v < vectors; v++) sum[r][v] = Vec(0.f);
  }
  for (int64_t k = 0; k < K; k += TERMS<T>, a += TERMS<T>, b += TERMS<T> * ldb) {
    decltype(load_terms(b, LANES)) columns[vectors];
    SWIN_UNROLL
    for (int v = 0; v < vectors; v++) columns[v] = load_terms(b + TERMS<T> * v * LANES, lanes(v));
    SWIN_UNROLL
    for (int r = 0; r < rows; r++) {
      const auto term = broadcast_term(a + r * lda);
      SWIN_UNROLL
      for (int v = 0; v < vectors; v++) sum[r][v] = add_products(sum[r][v], term, columns[v]);
    }
  }
  SWIN_UNROLL
  for (int r = 0; r < rows; r++) {
    SWIN_UNROLL
    for (int v = 0; v < vectors; v++) {
      float* to = c + r * ldc + v * LANES;
      store(to, accumulate ? sum[r][v] + load(to, lanes(v)) : sum[r][v], lanes(v));
    }
  }
}

// Rows of c in registers, besides one row of b and a number of a.
constexpr int MAX_VECTORS = STRIP / LANES;
constexpr int rows_in_registers(int vectors) {
  const int fitting = static_cast<int>(REGISTERS - 1 - vectors) / vectors;
  return fitting < 12 ? fitting : 12;
}

// Multiply up to `most` rows, in parts of about equal size.
template <int most, int vectors, bool whole, class T>
void multiply_rows(int64_t M, int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc,
                   bool accumulate, int64_t last) {
  if constexpr (most > 0) {
    if (M < most) return multiply_rows<most - 1, vectors, whole>(M, K, a, lda, b, ldb, c, ldc, accumulate, last);
    multiply_in_registers<most, vectors, whole>(K, a, lda, b, ldb, c, ldc, accumulate, last);
  }
}

template <int vectors, bool whole, class T>
void multiply_strip(int64_t M, int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, float* c, int64_t ldc,
                    bool accumulate, int64_t last) {
  constexpr int most = rows_in_registers(vectors);
  for (int64_t parts = (M + most - 1) / most; parts > 0; parts--) {
    const int64_t rows = (M + parts - 1) / parts;
    multiply_rows<most, vectors, whole>(rows, K, a, lda, b, ldb, c, ldc, accumulate, last);
    M -= rows, a += rows * lda, c += rows * ldc;
  }
}

template <class T>
void multiply_by_vectors(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const T* a, const T* b,
                         float* c, bool accumulate) {
  const auto strip = [&](auto vectors, int64_t n, int64_t last) {
    const T* from = b + TERMS<T> * n;
    if (last == LANES)
      multiply_strip<vectors.value, true>(M, K, a, lda, from, ldb, c + n, ldc, accumulate, last);
    else
      multiply_strip<vectors.value, false>(M, K, a, lda, from, ldb, c + n, ldc, accumulate, last);
  };
  for (int64_t n = 0; n < N;) {
    const int64_t columns = strip_width(N - n), vectors = (columns + LANES - 1) / LANES;
    const int64_t last = columns - (vectors - 1) * LANES;
    if (vectors == 3) strip(std::integral_constant<int, 3>(), n, last);
    if (vectors == 2) strip(std::integral_constant<int, 2>(), n, last);
    if (vectors == 1) strip(std::integral_constant<int, 1>(), n, last);
    n += columns;
  }
}

#if SWIN_HAS_TILES
// Copy at most 16 rows of at most 64 bytes to a tile, filled up with zeros.
const bf16* whole_tile(const bf16* from, int64_t stride, int64_t rows, int64_t numbers, bf16* tile) {
  for (int64_t r = 0; r < TILE_ROWS; r++)
    _mm512_store_si512(tile + r * TILE_TERMS, load_row(r < rows ? from + r * stride : nullptr, numbers));
  return tile;
}

// Multiply bf16 by tiles. Parts of tiles are copied to whole tiles, filled up with zeros.
void multiply_by_tiles(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const bf16* a,
                       const bf16* b, float* c, bool accumulate) {
  const TilesInUse tiles;
  alignas(64) bf16 copies[4][TILE];
  alignas(64) float corner[TILED_ROWS * TILED_ROWS];
  for (int64_t n = 0; n < N; n += TILED_ROWS)
    for (int64_t m = 0; m < M; m += TILED_ROWS) {
      const int64_t rows = std::min(TILED_ROWS, M - m), columns = std::min(TILED_ROWS, N - n);
      const bool inside = rows == TILED_ROWS && columns % TILE_ROWS == 0;
      const auto multiply = [&](const auto& load_a, const auto& load_b, const auto& dot) {
        int64_t k = 0;
        const bf16* from = a + m * lda;
        const bf16* panel = b + 2 * n;
        for (; inside && k + TILE_TERMS <= K; k += TILE_TERMS) {
          load_b(panel + k * ldb, panel + k * ldb + TILE_TERMS, 4 * ldb);
          load_a(from + k, from + k + TILE_ROWS * lda, 2 * lda);
          dot();
        }
        for (; k < K; k += TILE_TERMS) {
          const int64_t terms = std::min(TILE_TERMS, K - k);
          const auto of_a = [&](int64_t i) {
            const int64_t some = std::clamp<int64_t>(rows - i * TILE_ROWS, 0, TILE_ROWS);
            return whole_tile(from + i * TILE_ROWS * lda + k, lda, some, terms, copies[i]);
          };
          const auto of_b = [&](int64_t i) {
            const int64_t some = std::clamp<int64_t>(columns - i * TILE_ROWS, 0, TILE_ROWS);
            return whole_tile(panel + k * ldb + i * TILE_TERMS, 2 * ldb, terms / 2, 2 * some, copies[2 + i]);
          };
          if (columns == TILED_ROWS && terms == TILE_TERMS)
            load_b(panel + k * ldb, panel + k * ldb + TILE_TERMS, 4 * ldb);
          else
            load_b(of_b(0), of_b(1));
          load_a(of_a(0), of_a(1));
          dot();
        }
      };
      if (inside) {
        float* to = c + m * ldc + n;
        if (columns > TILE_ROWS)
          tiles_2x2<true>(to, ldc, accumulate, multiply);
        else
          tiles_2x2<false>(to, ldc, accumulate, multiply);
        continue;
      }
      tiles_2x2<true>(corner, TILED_ROWS, false, multiply);
      put_rows(corner, TILED_ROWS, rows, columns, c + m * ldc + n, ldc, accumulate);
    }
}
#endif

}  // namespace

template <class T>
void gemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const T* a, const T* b, float* c,
          bool accumulate) {
  const Timed timed(Work::PRODUCTS, 2 * M * N * K);
#if SWIN_HAS_TILES
  if constexpr (std::is_same_v<T, bf16>) return multiply_by_tiles(M, N, K, lda, ldb, ldc, a, b, c, accumulate);
#endif
  if constexpr (IN_PAIRS<T>)
    multiply_by_vectors(M, N, K, lda, ldb, ldc, a, b, c, accumulate);
  else
    multiply_by_vectors(M, N, K, lda, ldb, ldc, numbers_of(a), numbers_of(b), c, accumulate);
}
#define INSTANTIATE(T) \
  template void gemm<T>(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, const T*, const T*, float*, bool);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)
#undef INSTANTIATE

}  // namespace swin::SWIN_ISA
