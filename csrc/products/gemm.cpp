#include "products/gemm.h"

namespace swin::SWIN_ISA {
namespace {

// A step of a sum: a product of float32 numbers, of two pairs of bf16 numbers, or of 32 bits of whole numbers.
template <class T>
constexpr int64_t TERMS = 1;
Vec add_products(Vec sum, Vec a, Vec b) { return fmadd(a, b, sum); }
Vec broadcast_term(const float* a) { return Vec(*a); }
Vec load_terms(const float* b, int64_t lanes) { return load(b, lanes); }
template <>
constexpr int64_t TERMS<int8> = 4 / sizeof(int8);
IntVec add_products(IntVec sum, IntVec a, IntVec b) { return dot_bytes(sum, a, b); }
IntVec broadcast_term(const int8* a) { return broadcast_bits(a); }
IntVec load_terms(const int8* b, int64_t lanes) { return load_bits(b, lanes); }
#if SWIN_HAS_BF16
template <>
constexpr int64_t TERMS<bf16> = 2;
Vec add_products(Vec sum, PairVec a, PairVec b) { return dot_pairs(sum, a, b); }
PairVec broadcast_term(const bf16* a) { return broadcast_pair(a); }
PairVec load_terms(const bf16* b, int64_t lanes) { return load_pairs(b, lanes); }
#endif

// The result of a product: c = a b, or c += a b.
struct Sums {
  float* c;
  int64_t ldc;
  bool accumulate;

  Sums at(int64_t row, int64_t column) const { return {c + row * ldc + column, ldc, accumulate}; }
  void prefetch(int64_t row, int64_t column) const {
    if (accumulate) __builtin_prefetch(c + row * ldc + column, 1);
  }
  Vec start(int64_t, int64_t, int64_t) const { return Vec(0.f); }
  void put(int64_t row, int64_t column, Vec sum, int64_t lanes) const {
    float* to = c + row * ldc + column;
    store(to, accumulate ? sum + load(to, lanes) : sum, lanes);
  }
};

// The result of a product in eight bits.
struct ScaledSums {
  float* c;
  int64_t ldc;
  const float *row_scales, *column_scales;
  const int32_t *zero_points, *column_sums;

  ScaledSums at(int64_t row, int64_t column) const {
    return {c + row * ldc + column, ldc, row_scales + row, column_scales + column, zero_points + row,
            column_sums + column};
  }
  void prefetch(int64_t, int64_t) const {}
  // Takes the row's zero point off each of its numbers: off the sum, the zero point times the sum of the weight's whole
  // numbers.
  IntVec start(int64_t row, int64_t column, int64_t lanes) const {
    return -zero_points[row] * load_bits(column_sums + column, lanes);
  }
  void put(int64_t row, int64_t column, IntVec sum, int64_t lanes) const {
    const Vec scale = Vec(row_scales[row]) * load(column_scales + column, lanes);
    store(c + row * ldc + column, to_float(sum) * scale, lanes);
  }
};

// c (rows, columns) in registers; a copy, so that stores leave its pointers in registers. The last vector of columns
// has `last` numbers.
template <int rows, int vectors, bool whole, class T, class C>
void multiply_in_registers(int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, C c, int64_t last) {
  const auto lanes = [&](int v) { return whole || v + 1 < vectors ? LANES : last; };
  for (int r = 0; r < rows; r++)
    for (int v = 0; v < vectors; v++) c.prefetch(r, v * LANES);
  decltype(c.start(0, 0, 0)) sum[rows][vectors];
  SWIN_UNROLL
  for (int r = 0; r < rows; r++) {
    SWIN_UNROLL
    for (int v = 0; v < vectors; v++) sum[r][v] = c.start(r, v * LANES, lanes(v));
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
    for (int v = 0; v < vectors; v++) c.put(r, v * LANES, sum[r][v], lanes(v));
  }
}

// Rows of c in registers, besides one row of b and a number of a.
constexpr int rows_in_registers(int vectors) {
  const int fitting = static_cast<int>(REGISTERS - 1 - vectors) / vectors;
  return fitting < 12 ? fitting : 12;
}

// Multiply up to `max_rows` rows, in parts of about equal size.
template <int max_rows, int vectors, bool whole, class T, class C>
void multiply_rows(int64_t M, int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, const C& c, int64_t last) {
  if constexpr (max_rows > 0) {
    if (M < max_rows) return multiply_rows<max_rows - 1, vectors, whole>(M, K, a, lda, b, ldb, c, last);
    multiply_in_registers<max_rows, vectors, whole>(K, a, lda, b, ldb, c, last);
  }
}

template <int vectors, bool whole, class T, class C>
void multiply_strip(int64_t M, int64_t K, const T* a, int64_t lda, const T* b, int64_t ldb, const C& c, int64_t last) {
  constexpr int max_rows = rows_in_registers(vectors);
  int64_t m = 0;
  for (int64_t parts = ceil_div(M, max_rows); parts > 0; parts--) {
    const int64_t rows = ceil_div(M - m, parts);
    multiply_rows<max_rows, vectors, whole>(rows, K, a + m * lda, lda, b, ldb, c.at(m, 0), last);
    m += rows;
  }
}

template <class T, class C>
void multiply_by_vectors(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, const T* a, const T* b,
                         const C& c) {
  const auto strip = [&](auto vectors, int64_t n, int64_t last) {
    const T* from = b + TERMS<T> * n;
    if (last == LANES)
      multiply_strip<vectors.value, true>(M, K, a, lda, from, ldb, c.at(0, n), last);
    else
      multiply_strip<vectors.value, false>(M, K, a, lda, from, ldb, c.at(0, n), last);
  };
  for (int64_t n = 0; n < N;) {
    const int64_t columns = strip_width(N - n), vectors = ceil_div(columns, LANES);
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

// Multiply int8 by tiles: whole tiles of terms and of columns. Rows up to the next multiple of TILED_ROWS are written.
void multiply_bytes_by_tiles(int64_t M, int64_t N, int64_t K, const int8* a, const int8* b, const ScaledSums& c) {
  for (int64_t n = 0; n < N; n += TILED_ROWS)
    for (int64_t m = 0; m < M; m += TILED_ROWS) {
      const ScaledSums corner = c.at(m, n);
      const auto multiply = [&](const auto& load_a, const auto& load_b, const auto& dot) {
        for (int64_t k = 0; k < K; k += QUANTISED_STEP) {
          load_b(b + k * N + 4 * n, b + k * N + 4 * n + QUANTISED_STEP, 4 * N);
          load_a(a + m * K + k, a + (m + TILE_ROWS) * K + k, K);
          dot();
        }
      };
      const int64_t columns = std::min(TILED_ROWS, N - n);
      if (columns > TILE_ROWS)
        tiles_2x2<true, int8>(corner.c, c.ldc, false, multiply);
      else
        tiles_2x2<false, int8>(corner.c, c.ldc, false, multiply);
      for (int64_t r = 0; r < std::min(TILED_ROWS, M - m); r++)
        for (int64_t i = 0; i < columns; i += LANES) {
          const auto* sums = reinterpret_cast<const int32_t*>(corner.c + r * c.ldc + i);
          corner.put(r, i, load_bits(sums, LANES) + corner.start(r, i, LANES), LANES);
        }
    }
}
#endif

// Round an output of a weight, times `to_whole`, to the panel. Returns the sum of the whole numbers.
int32_t put_output(const float* weight, int64_t K, float to_whole, int8* to, int64_t stride) {
  int32_t sum = 0;
  for (int64_t k = 0; k < round_up(K, QUANTISED_STEP); k++) {
    const float scaled = k < K ? weight[k] * to_whole : 0.f;
    const int32_t whole = std::isfinite(scaled) ? static_cast<int32_t>(std::nearbyint(scaled)) : 0;
    to[k / TERMS<int8> * stride + k % TERMS<int8>] = {static_cast<decltype(int8::bits)>(whole)};
    sum += whole;
  }
  return sum;
}

}  // namespace

void pack_in_bytes(const float* weight, int64_t N, int64_t K, int64_t unit, int64_t threads, void* packed) {
  const int64_t width = panel_width(N, unit), padded_K = round_up(K, QUANTISED_STEP);
  const QuantisedWeight quantised(packed, N, K);
  each_part(ceil_div(N, width), threads, [&](int64_t begin, int64_t end) {
    const Timed timed(Work::WEIGHTS, N * K * (end - begin) * width / N);
    for (int64_t first = begin * width; first < std::min(N, end * width); first += width)
      over_strips(std::min(width, N - first), [&](int64_t s, int64_t strip) {
        for (int64_t n = first + s; n < first + s + strip; n++) {
          const Range range = range_of(weight + n * K, K);
          const float magnitude = std::max(range.high, -range.low) + 0.f * (range.high + range.low);  // keeps a NaN
          const float to_whole = magnitude < LEAST_RANGE ? 0.f : MAX_OF_WEIGHT / magnitude;
          int8* to = const_cast<int8*>(quantised.panels) + (first + s) * padded_K + (n - first - s) * TERMS<int8>;
          const_cast<float*>(quantised.scales)[n] = magnitude < LEAST_RANGE ? 0.f : magnitude / MAX_OF_WEIGHT;
          const_cast<int32_t*>(quantised.sums)[n] = put_output(weight + n * K, K, to_whole, to, TERMS<int8> * strip);
        }
      });
  });
}

void gemm_in_bytes(int64_t M, int64_t columns, int64_t K, int64_t ldc, const QuantisedRows& a, const QuantisedWeight& b,
                   float* c) {
  const Timed timed(Work::PRODUCTS, 2 * M * columns * K);
  const ScaledSums sums{c, ldc, a.scales, b.scales, a.zero_points, b.sums};
#if SWIN_HAS_TILES
  if (columns % TILE_ROWS == 0) return multiply_bytes_by_tiles(M, columns, K, a.numbers, b.panels, sums);
#endif
  multiply_by_vectors(M, columns, K, K, columns, a.numbers, b.panels, sums);
}

template <class T>
void gemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const T* a, const T* b, float* c,
          bool accumulate) {
  const Timed timed(Work::PRODUCTS, 2 * M * N * K);
#if SWIN_HAS_TILES
  if constexpr (std::is_same_v<T, bf16>) return multiply_by_tiles(M, N, K, lda, ldb, ldc, a, b, c, accumulate);
#endif
  if constexpr (IN_PAIRS<T>)
    multiply_by_vectors(M, N, K, lda, ldb, a, b, Sums{c, ldc, accumulate});
  else
    multiply_by_vectors(M, N, K, lda, ldb, as_floats(a), as_floats(b), Sums{c, ldc, accumulate});
}
#define INSTANTIATE(T) \
  template void gemm<T>(int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, const T*, const T*, float*, bool);
SWIN_FOR_EACH_DTYPE(INSTANTIATE)
#undef INSTANTIATE

}  // namespace swin::SWIN_ISA
