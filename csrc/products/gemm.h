// Matrix products x W^T + b. An epilogue processes each product while the product is in cache.
//
// Layout: M rows, N columns, K terms of a sum.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "machine/arena.h"
#include "machine/profile.h"
#include "machine/threads.h"
#include "products/bytes.h"

namespace swin::SWIN_ISA {

constexpr int64_t ROW_STEP = 16;  // buffers have rows in multiples of this
constexpr int64_t MAX_ROWS = 96;  // of a product in L1 or L2
constexpr int64_t MAX_COLUMNS = 96;
constexpr int64_t STRIP = 3 * LANES;  // columns of a pass of `gemm`

// Columns of a product: as many as possible, preferably a divisor of N. `unit`: the columns that an epilogue processes
// together.
inline int64_t panel_width(int64_t N, int64_t unit) {
  for (int64_t width = MAX_COLUMNS / unit * unit; width >= MAX_COLUMNS / 2; width -= unit)
    if (N % width == 0 && width % ROW_STEP == 0) return width;
  return std::max(unit, MAX_COLUMNS / unit * unit);  // the last panel is narrower
}

// Columns of the next pass of `gemm`. Four vectors are split into two and two, for more products per load than three
// and one.
inline int64_t strip_width(int64_t columns) {
  return std::min(columns, ceil_div(columns, LANES) == 4 ? 2 * LANES : STRIP);
}

// Rows of a packed weight with K inputs: pairs of bf16 make K even.
template <class T>
int64_t padded_terms(int64_t K) {
  return IN_PAIRS<T> ? round_up(K, 2) : K;
}

// W (N, K) in panels of `panel_width` columns. In bf16, pairs of K lie side by side (VNNI), and K is made even. With
// AMX a panel is (K, width). Otherwise a panel consists of strips of `strip_width` columns, (K, strip) each, sized for
// L1.
template <class T>
struct Linear {
  const T* panels;
  const float* bias;
  int64_t N, K, width;
  const bf16* pieces = nullptr;    // the panels in pieces, see `Bf16Pieces`
  QuantisedWeight quantised = {};  // in the place of the panels
  int64_t padded_K() const { return padded_terms<T>(K); }
  bool in_tiles() const {
    return HAS_TILES && std::is_same_v<T, float> && N % TILE_ROWS == 0 && width % TILE_ROWS == 0;
  }
};

// f(column, columns) for each strip of a panel.
template <class F>
void over_strips(int64_t columns, const F& f) {
  if (HAS_TILES) return f(0, columns);
  for (int64_t s = 0, strip; s < columns; s += strip) f(s, strip = strip_width(columns - s));
}

// c = a b, or c += a b, for any M, N and K. `a` has rows lda apart, `b` (K, N) rows ldb apart. In bf16, `b` has pairs
// of K, and K is even.
template <class T>
void gemm(int64_t M, int64_t N, int64_t K, int64_t lda, int64_t ldb, int64_t ldc, const T* a, const T* b, float* c,
          bool accumulate = false);

// c = a b in eight bits, for rows of K numbers in a, a multiple of QUANTISED_STEP, and of `columns` in b. `b` has the
// panels, scales and sums from the first column on.
void gemm_in_bytes(int64_t M, int64_t columns, int64_t K, int64_t ldc, const QuantisedRows& a, const QuantisedWeight& b,
                   float* c);

// Terms of a partial sum in float32. Partial sums are added up, since the rounding error grows with the length of a
// sum.
constexpr int64_t MAX_SUM = 256;

// --- Packing ---------------------------------------------------------------------------------------------------------

// Rows of `columns` numbers to rows of a panel.
template <class T>
void pack_rows(const float* from, int64_t stride, int64_t rows, int64_t columns, T* to) {
  for (int64_t k = 0; k < rows; k++, from += stride, to += columns)
    over_columns(columns, [=](int64_t i, int64_t lanes) { store(to + i, load(from + i, lanes), lanes); });
}
#if SWIN_HAS_BF16
inline void pack_rows(const float* from, int64_t stride, int64_t rows, int64_t columns, bf16* to) {
  bf16 pair[2][MAX_COLUMNS];
  for (int64_t k = 0; k < rows; k += 2, to += 2 * columns) {
    for (int64_t i = 0; i < 2 && k + i < rows; i++) convert_row(from + (k + i) * stride, columns, pair[i]);
    interleave_rows(pair[0], k + 1 < rows ? pair[1] : nullptr, columns, to);
  }
}
#endif

// Packs a weight (N, K), or (K, N) if transposed.
template <class T>
void pack(const float* weight, int64_t N, int64_t K, int64_t unit, bool transposed, int64_t threads, T* panels) {
  constexpr int64_t STEP = 32;  // rows at a time
  const int64_t width = panel_width(N, unit), padded_K = padded_terms<T>(K);
  each_part(ceil_div(N, width), threads, [&](int64_t begin, int64_t end) {
    const Timed timed(Work::WEIGHTS, N * K * (end - begin) * width / N);
    float block[STEP * MAX_COLUMNS];
    for (int64_t n = begin * width; n < std::min(N, end * width); n += width) {
      const int64_t columns = std::min(width, N - n);
      for (int64_t k = 0; k < K; k += STEP) {
        const int64_t rows = std::min(STEP, K - k);
        if (!transposed) transpose(weight + n * K + k, K, columns, rows, block, columns);
        const float* from = transposed ? weight + k * N + n : block;
        over_strips(columns, [&](int64_t s, int64_t strip) {
          pack_rows(from + s, transposed ? N : columns, rows, strip, panels + (n + s) * padded_K + k * strip);
        });
      }
    }
  });
}

// Packs a weight (N, K) in eight bits, see `QuantisedWeight`.
void pack_in_bytes(const float* weight, int64_t N, int64_t K, int64_t unit, int64_t threads, void* packed);

// --- Linear layers ---------------------------------------------------------------------------------------------------

// Terms of a sum, and numbers of all rows, that are split into pieces at a time: the pieces stay in L2.
constexpr int64_t MAX_TERMS = 768;
constexpr int64_t MAX_IN_PIECES = MAX_TERMS * 2 * MAX_ROWS;

// Rows of `terms` numbers that are split at a time. Each panel of the weight is split once for these rows.
inline int64_t rows_at_a_time(int64_t terms) {
  return std::min(4 * MAX_ROWS, MAX_IN_PIECES / round_up(std::min(terms, MAX_TERMS), TILE_TERMS) / MAX_ROWS * MAX_ROWS);
}

// The offset of the pieces of terms k ... min(K, k + MAX_TERMS) - 1 of a panel.
inline int64_t pieces_at(const Linear<float>& w, int64_t n, int64_t k) {
  return PIECES * (k * w.N + n * round_up(std::min(MAX_TERMS, w.K - k), TILE_TERMS));
}

// The weights as pieces of bf16, packed once for all tokens: products of float32 by AMX. The pieces have 1.5 times the
// memory of the weights.
class Bf16Pieces {
 public:
  template <class T>
  void pack([[maybe_unused]] Linear<T> (&linears)[4], [[maybe_unused]] int64_t threads) {
    if constexpr (HAS_TILES && std::is_same_v<T, float>) {
      bf16* pieces[4] = {};
      memory.allocate([&](Arena& arena) {
        for (int i = 0; i < 4; i++) {
          const Linear<float>& w = linears[i];
          pieces[i] = arena.take<bf16>(w.in_tiles() ? w.N * round_up(w.K, TILE_TERMS) * PIECES : 0);
        }
      });
      for (int i = 0; i < 4; i++) {
        Linear<float>& w = linears[i];
        if (!w.in_tiles()) continue;
        each_part(ceil_div(w.N, w.width), threads, [&](int64_t begin, int64_t end) {
          for (int64_t n = begin * w.width; n < std::min(w.N, end * w.width); n += w.width) {
            const int64_t columns = std::min(w.width, w.N - n);
            for (int64_t k = 0; k < w.K; k += MAX_TERMS)
              pack_column_pieces(w.panels + n * w.K + k * columns, columns, std::min(MAX_TERMS, w.K - k), columns,
                                 pieces[i] + pieces_at(w, n, k));
          }
        });
        w.pieces = pieces[i];
      }
    }
  }

 private:
  Memory memory;
};

// Buffers for products with the given linear layers.
template <class T>
struct ProductWorkspace {
  float* c = nullptr;
  bf16 *rows = nullptr, *columns = nullptr;  // pieces of tokens, and of a panel of the weight
  QuantisedRows quantised = {};              // MAX_ROWS of them

  ProductWorkspace() = default;
  ProductWorkspace(std::initializer_list<const Linear<T>*> linears, Arena& arena) {
    int64_t size = 0, max_terms = 0;
    bool in_tiles = false, in_bytes = false;
    for (const Linear<T>* w : linears) {
      const bool has_partial_sums = w->in_tiles() && w->K > MAX_TERMS;  // of all columns
      size =
          std::max(size, has_partial_sums ? rows_at_a_time(w->K) * w->N : MAX_ROWS * std::max(w->width, MAX_COLUMNS));
      in_tiles |= w->in_tiles();
      in_bytes |= w->quantised.panels != nullptr;
      max_terms = std::max(max_terms, round_up(w->K, QUANTISED_STEP));
    }
    c = arena.take<float>(size);
    rows = arena.take<bf16>(in_tiles * MAX_IN_PIECES * PIECES);
    columns = arena.take<bf16>(in_tiles * MAX_COLUMNS * MAX_TERMS * PIECES);
    quantised = {arena.take<int8>(in_bytes * (MAX_ROWS * max_terms + 64)), arena.take<float>(in_bytes * MAX_ROWS),
                 arena.take<int32_t>(in_bytes * MAX_ROWS)};
  }
};

// `product` for float32 numbers in pieces.
template <class F>
void product_of_pieces(const float* a, int64_t lda, int64_t M, const Linear<float>& w,
                       const ProductWorkspace<float>& workspace, const F& epilogue) {
  [[maybe_unused]] const TilesInUse tiles;
  const int64_t step = rows_at_a_time(w.K);
  for (int64_t begin = 0; begin < M; begin += step) {
    const int64_t end = std::min(M, begin + step);
    for (int64_t k = 0; k < w.K; k += MAX_TERMS) {
      const int64_t terms = std::min(MAX_TERMS, w.K - k), depth = tiles_of(terms);
      pack_row_pieces(a + begin * lda + k, lda, end - begin, terms, workspace.rows);
      for (int64_t n = 0; n < w.N; n += w.width) {
        const int64_t columns = std::min(w.width, w.N - n);
        const bf16* panel = w.pieces ? w.pieces + pieces_at(w, n, k) : workspace.columns;
        if (!w.pieces) pack_column_pieces(w.panels + n * w.K + k * columns, columns, terms, columns, workspace.columns);
        for (int64_t m = begin; m < end; m += MAX_ROWS) {
          const int64_t rows = std::min(MAX_ROWS, end - m);
          float* c = workspace.c + (w.K > MAX_TERMS ? n * step + (m - begin) * columns : 0);
          const bf16* pieces = workspace.rows + (m - begin) * depth * PIECES * TILE_TERMS;
          {
            const Timed timed(Work::PRODUCTS, 2 * rows * columns * terms);
            multiply_pieces(round_up(rows, TILED_ROWS), columns, depth, pieces, panel, c, columns, k > 0);
          }
          if (k + terms == w.K) epilogue(m, rows, n, columns, c);
        }
      }
    }
  }
}

// `product` in eight bits.
template <class T, class F>
void product_in_bytes(const T* a, int64_t lda, int64_t M, const Linear<T>& w, const ProductWorkspace<T>& workspace,
                      const F& epilogue) {
  [[maybe_unused]] const TilesInUse tiles;
  const int64_t K = round_up(w.K, QUANTISED_STEP), chunks = ceil_div(M, MAX_ROWS);
  const int64_t step = round_up(ceil_div(M, std::max<int64_t>(chunks, 1)), ROW_STEP);
  for (int64_t m = 0; m < M; m += step) {
    const int64_t rows = std::min(step, M - m);
    {
      const Timed timed(Work::QUANTISING, rows * w.K);
      for (int64_t r = 0; r < rows; r++) quantise_row(a + (m + r) * lda, w.K, workspace.quantised, r, K);
    }
    for (int64_t n = 0; n < w.N; n += w.width) {
      const int64_t columns = std::min(w.width, w.N - n);
      over_strips(columns, [&](int64_t s, int64_t strip) {
        gemm_in_bytes(rows, strip, K, columns, workspace.quantised, w.quantised.from(n + s, K), workspace.c + s);
      });
      epilogue(m, rows, n, columns, workspace.c);
    }
  }
}

// epilogue(m, rows, n, columns, c): c holds a W^T of those rows and columns, without the bias, `columns` apart.
// `a` must have memory for round_up(M, ROW_STEP) rows.
template <class T, class F>
void product(const T* a, int64_t lda, int64_t M, const Linear<T>& w, const ProductWorkspace<T>& workspace,
             const F& epilogue) {
  if (w.quantised.panels) return product_in_bytes(a, lda, M, w, workspace, epilogue);
  if constexpr (HAS_TILES && std::is_same_v<T, float>)
    if (w.in_tiles()) return product_of_pieces(a, lda, M, w, workspace, epilogue);
  const int64_t chunks = ceil_div(M, MAX_ROWS);
  const int64_t step = round_up(ceil_div(M, std::max<int64_t>(chunks, 1)), ROW_STEP);
  const int64_t K = w.padded_K(), terms = IN_PAIRS<T> ? K : MAX_SUM;
  for (int64_t n = 0; n < w.N; n += w.width) {
    const int64_t columns = std::min(w.width, w.N - n);
    for (int64_t m = 0; m < M; m += step) {
      const int64_t rows = std::min(step, M - m);
      for (int64_t k = 0; k < K; k += terms)
        over_strips(columns, [&](int64_t s, int64_t strip) {
          gemm(rows, strip, std::min(terms, K - k), lda, strip, columns, a + m * lda + k,
               w.panels + (n + s) * K + k * strip, workspace.c + s, k > 0);
        });
      epilogue(m, rows, n, columns, workspace.c);
    }
  }
}

// `product` row by row: epilogue(m, n, columns, row), with row(i, lanes) = a W^T + the bias, if any.
template <class T, class F>
void linear(const T* a, int64_t lda, int64_t M, const Linear<T>& w, const ProductWorkspace<T>& workspace,
            const F& epilogue, Work work = Work::RESIDUALS) {
  product(a, lda, M, w, workspace, [&](int64_t m, int64_t count, int64_t n, int64_t columns, const float* c) {
    const Timed timed(work, count * columns);
    for (int64_t r = 0; r < count; r++) {
      const float *from = c + r * columns, *bias = w.bias ? w.bias + n : nullptr;
      epilogue(m + r, n, columns, [from, bias](int64_t i, int64_t lanes) {
        const Vec v = load(from + i, lanes);
        return bias ? v + load(bias + i, lanes) : v;
      });
    }
  });
}

// `linear` to rows of `to`, ldto apart.
template <class T, class To>
void linear_to(const T* a, int64_t lda, int64_t M, const Linear<T>& w, const ProductWorkspace<T>& workspace, To* to,
               int64_t ldto) {
  linear(a, lda, M, w, workspace, [=](int64_t m, int64_t n, int64_t columns, const auto& row) {
    To* at = to + m * ldto + n;
    over_columns(columns, [=](int64_t i, int64_t lanes) { store(at + i, row(i, lanes), lanes); });
  });
}

}  // namespace swin::SWIN_ISA
