// Winograd's F(4x4, 3x3) and F(6x6, 3x3) (Lavin and Gray 2016, arXiv 1509.09308): 36 products for 16 outputs of a
// channel, or 64 for 36 outputs, not 144 or 324.
//
// One row of outputs of a filter of 3 taps is the product of two polynomials, computed from their values in points: 0,
// infinity, and pairs +-p. A tile of inputs is transformed along both axes. Then each number of a tile needs a product
// over the channels, a matrix product for all tiles together. Points and products are float32 for maps of bf16, too:
// with 8 bits the points would lose the precision of bf16. Float32 with a quarter of the products is faster than bf16
// with all products.
//
// The squares of p minimise the rounding error: 1/2 and 2 have a quarter of the error of the usual 1 and 4. A tile of
// 6x6 outputs has eight times the error of 4x4, a 200th part of the rounding of bf16.
//
// Layout: C channels, N output channels, P points of a tile.
#include "detection/convolution.h"

#include <array>

#include "products/gemm.h"

namespace swin::SWIN_ISA {
namespace {

constexpr int64_t BLOCK_BYTES = int64_t{12} << 20;  // of the inputs and outputs of a block, in all points

// A pair's points +-p, and p^2.
struct Pair {
  float p, square;
};
template <int64_t OUT>
constexpr std::array<Pair, OUT / 2> pairs_of() {
  if constexpr (OUT == 4)
    return {{{.707106781f, .5f}, {1.41421356f, 2.f}}};
  else
    return {{{.5f, .25f}, {1.f, 1.f}, {2.f, 4.f}}};
}

// The coefficients of the product of (x - p^2) over the pairs, the highest first. Row i omits pair i, the last row has
// all pairs.
template <size_t PAIRS>
constexpr std::array<std::array<float, PAIRS + 1>, PAIRS + 1> products_of(const std::array<Pair, PAIRS>& pairs) {
  std::array<std::array<float, PAIRS + 1>, PAIRS + 1> coefficients{};
  for (size_t i = 0; i <= PAIRS; i++) {
    coefficients[i][0] = 1;
    for (size_t j = 0; j < PAIRS; j++)
      for (size_t k = PAIRS; k > 0 && i != j; k--) coefficients[i][k] -= pairs[j].square * coefficients[i][k - 1];
  }
  return coefficients;
}

// The transforms of tiles of OUT x OUT outputs.
template <int64_t OUT>
struct Winograd {
  static constexpr int64_t IN = OUT + 2, P = IN * IN, PAIRS = OUT / 2;
  static constexpr auto POINTS = pairs_of<OUT>();
  static constexpr auto PRODUCTS = products_of(POINTS);
  using Line = Vec[IN];

  // The sum of `terms` numbers, every second number down from the highest, times the coefficients of a product.
  static Vec sum(int64_t terms, const Vec* highest, int64_t product) {
    Vec sum = highest[0];
    SWIN_UNROLL
    for (int64_t k = 1; k < terms; k++) sum = fmadd(Vec(PRODUCTS[product][k]), highest[-2 * k], sum);
    return sum;
  }

  // The values of a polynomial in the points, times the divisors of `filter_points`.
  static void input_points(Line& d) {
    Line values;
    const Vec at_zero = sum(PAIRS + 1, d + OUT, PAIRS);
    values[0] = PAIRS % 2 ? Vec(0.f) - at_zero : at_zero;
    values[IN - 1] = sum(PAIRS + 1, d + OUT + 1, PAIRS);
    SWIN_UNROLL
    for (int64_t i = 0; i < PAIRS; i++) {
      const Vec even = sum(PAIRS, d + OUT, i), odd = Vec(POINTS[i].p) * sum(PAIRS, d + OUT - 1, i);
      values[2 * i + 1] = even + odd, values[2 * i + 2] = even - odd;
    }
    std::copy_n(values, IN, d);
  }

  // The points of the 3 taps of a filter.
  static void filter_points(Line& g) {
    Line values;
    values[0] = g[0], values[IN - 1] = g[2];
    for (int64_t i = 0; i < PAIRS; i++) {
      const auto [p, square] = POINTS[i];
      float divisor = 2 * square;
      for (int64_t j = 0; j < PAIRS; j++)
        if (j != i) divisor *= square - POINTS[j].square;
      const Vec even = Vec(1 / divisor) * fmadd(Vec(square), g[2], g[0]), odd = Vec(p / divisor) * g[1];
      values[2 * i + 1] = even + odd, values[2 * i + 2] = even - odd;
    }
    std::copy_n(values, IN, g);
  }

  // The outputs.
  static void outputs_of(Line& m) {
    Vec even[PAIRS], odd[PAIRS];
    SWIN_UNROLL
    for (int64_t i = 0; i < PAIRS; i++)
      even[i] = m[2 * i + 1] + m[2 * i + 2], odd[i] = Vec(POINTS[i].p) * (m[2 * i + 1] - m[2 * i + 2]);
    const Vec zero = m[0], infinity = m[IN - 1];
    SWIN_UNROLL
    for (int64_t j = 0; j < OUT; j += 2) {
      m[j] = even[0], m[j + 1] = odd[0];
      SWIN_UNROLL
      for (int64_t i = 1; i < PAIRS; i++) m[j] = m[j] + even[i], m[j + 1] = m[j + 1] + odd[i];
      SWIN_UNROLL
      for (int64_t i = 0; i < PAIRS; i++)
        even[i] = Vec(POINTS[i].square) * even[i], odd[i] = Vec(POINTS[i].square) * odd[i];
    }
    m[0] = m[0] + zero, m[OUT - 1] = m[OUT - 1] + infinity;
  }

  // `transform` of the first `count` columns of a tile.
  template <class F>
  static void each_column(Line (&tile)[IN], int64_t count, const F& transform) {
    SWIN_UNROLL
    for (int64_t j = 0; j < count; j++) {
      Line column;
      SWIN_UNROLL
      for (int64_t i = 0; i < IN; i++) column[i] = tile[i][j];
      transform(column);
      SWIN_UNROLL
      for (int64_t i = 0; i < IN; i++) tile[i][j] = column[i];
    }
  }
};

// The tiles of all maps, from left to right and top to bottom.
template <int64_t OUT>
struct Tiles {
  int64_t height, width;
  int64_t rows, columns;

  explicit Tiles(const swin_convolution& convolution)
      : height(convolution.height),
        width(convolution.width),
        rows(ceil_div(convolution.height, OUT)),
        columns(ceil_div(convolution.width, OUT)) {}
  // The first output of a tile.
  struct Origin {
    int64_t image, y, x;
  };
  Origin origin(int64_t tile) const {
    return {tile / (rows * columns), tile / columns % rows * OUT, tile % columns * OUT};
  }
};

// The points of a tile's inputs, `stride` apart.
template <int64_t OUT, class T>
void read_tile(const T* x, const Tiles<OUT>& tiles, int64_t index, int64_t C, float* to, int64_t stride) {
  using Tile = Winograd<OUT>;
  constexpr int64_t IN = Tile::IN;
  const auto at = tiles.origin(index);
  const auto offset = [&](int64_t i, int64_t j) {
    return ((at.image * tiles.height + at.y - 1 + i) * tiles.width + at.x - 1 + j) * C;
  };
  const int64_t top = at.y == 0, left = at.x == 0;
  const int64_t bottom = std::min(IN, tiles.height + 1 - at.y), right = std::min(IN, tiles.width + 1 - at.x);
  const bool inside = !top && !left && bottom == IN && right == IN;
  over_columns(C, [&](int64_t c, int64_t lanes) {
    typename Tile::Line tile[IN];
    SWIN_UNROLL
    for (int64_t i = 0; i < IN; i++) {
      SWIN_UNROLL
      for (int64_t j = 0; j < IN; j++)
        tile[i][j] =
            inside || (i >= top && i < bottom && j >= left && j < right) ? load(x + offset(i, j) + c, lanes) : Vec(0.f);
    }
    Tile::each_column(tile, IN, Tile::input_points);
    SWIN_UNROLL
    for (int64_t i = 0; i < IN; i++) {
      Tile::input_points(tile[i]);
      SWIN_UNROLL
      for (int64_t j = 0; j < IN; j++) store(to + (i * IN + j) * stride + c, tile[i][j], lanes);
    }
  });
}

// The outputs of a tile, from points `stride` apart.
template <int64_t OUT, class T>
void write_tile(const float* from, int64_t stride, const float* bias, const Tiles<OUT>& tiles, int64_t index, int64_t N,
                T* y) {
  using Tile = Winograd<OUT>;
  constexpr int64_t IN = Tile::IN;
  const auto at = tiles.origin(index);
  const int64_t tall = std::min(OUT, tiles.height - at.y), wide = std::min(OUT, tiles.width - at.x);
  T* to = y + ((at.image * tiles.height + at.y) * tiles.width + at.x) * N;
  over_columns(N, [&](int64_t n, int64_t lanes) {
    typename Tile::Line tile[IN];
    SWIN_UNROLL
    for (int64_t i = 0; i < IN; i++) {
      SWIN_UNROLL
      for (int64_t j = 0; j < IN; j++) tile[i][j] = load(from + (i * IN + j) * stride + n, lanes);
      Tile::outputs_of(tile[i]);
    }
    Tile::each_column(tile, OUT, Tile::outputs_of);
    const Vec shift = bias ? load(bias + n, lanes) : Vec(0.f);
    for (int64_t i = 0; i < tall; i++)
      for (int64_t j = 0; j < wide; j++) store(to + (i * tiles.width + j) * N + n, tile[i][j] + shift, lanes);
  });
}

// Tiles of a block: as many as stay in cache, with about equally many for each thread.
int64_t tiles_of_block(int64_t tiles, int64_t P, int64_t C, int64_t N, int64_t threads) {
  const int64_t fitting = BLOCK_BYTES / (P * (C + N) * static_cast<int64_t>(sizeof(float)));
  const int64_t max_tiles = std::clamp(fitting, ROW_STEP, MAX_ROWS);
  const int64_t blocks = round_up(ceil_div(tiles, max_tiles), threads);
  return ceil_div(tiles, blocks);
}

template <int64_t OUT>
void pack_tiles(const float* weight, int64_t N, int64_t C, int64_t threads, float* packed) {
  using Tile = Winograd<OUT>;
  constexpr int64_t IN = Tile::IN, P = Tile::P;
  each_part(ceil_div(N, STRIP), threads, [&](int64_t begin, int64_t end) {
    float* points = nullptr;  // (P, STRIP, C)
    Memory memory;
    memory.allocate([&](Arena& arena) { points = arena.take<float>(P * STRIP * C); });
    for (int64_t n = begin * STRIP; n < std::min(N, end * STRIP); n += STRIP) {
      const int64_t columns = std::min(STRIP, N - n);
      for (int64_t r = 0; r < columns; r++)
        over_columns(C, [&](int64_t c, int64_t lanes) {
          typename Tile::Line filter[IN] = {};
          for (int64_t i = 0; i < 3; i++)
            for (int64_t j = 0; j < 3; j++) filter[i][j] = load(weight + (((n + r) * 3 + i) * 3 + j) * C + c, lanes);
          Tile::each_column(filter, 3, Tile::filter_points);
          for (int64_t i = 0; i < IN; i++) {
            Tile::filter_points(filter[i]);
            for (int64_t j = 0; j < IN; j++) store(points + ((i * IN + j) * STRIP + r) * C + c, filter[i][j], lanes);
          }
        });
      for (int64_t p = 0; p < P; p++)
        pack<float>(points + p * STRIP * C, columns, C, 1, false, 1, packed + p * N * C + n * C);
    }
  });
}

template <int64_t OUT, class T>
void convolve_tiles(const swin_convolution& convolution, const T* x, T* y) {
  constexpr int64_t P = Winograd<OUT>::P;
  const int64_t C = convolution.channels, N = convolution.outputs;
  const Tiles<OUT> tiles(convolution);
  const int64_t count = convolution.batch * tiles.rows * tiles.columns;
  const int64_t step = tiles_of_block(count, P, C, N, convolution.threads);
  // Points are padded by a cache line: distances in multiples of 4 KiB would share one set of L1.
  const int64_t rows = round_up(step, ROW_STEP), in_stride = rows * C + LINE / 4, out_stride = rows * N + LINE / 4;
  each_part(ceil_div(count, step), convolution.threads, [&](int64_t begin, int64_t end) {
    float *in = nullptr, *out = nullptr;
    ProductWorkspace<float> workspace;
    Memory memory;
    memory.allocate([&](Arena& arena) {
      in = arena.take<float>(P * in_stride);
      out = arena.take<float>(P * out_stride);
      const Linear<float> any{nullptr, nullptr, N, C, STRIP};
      workspace = {{&any}, arena};
    });
    for (int64_t first = begin * step; first < std::min(count, end * step); first += step) {
      const int64_t some = std::min(step, count - first);
      for (int64_t t = 0; t < some; t++) read_tile(x, tiles, first + t, C, in + t * C, in_stride);
      for (int64_t p = 0; p < P; p++) {
        const Linear<float> filter{convolution.weight + p * N * C, nullptr, N, C, STRIP};
        linear_to(in + p * in_stride, C, some, filter, workspace, out + p * out_stride, N);
      }
      for (int64_t t = 0; t < some; t++) write_tile(out + t * N, out_stride, convolution.bias, tiles, first + t, N, y);
    }
  });
}

}  // namespace

void pack_convolution(const float* weight, int32_t tile, int64_t N, int64_t C, int64_t threads, float* packed) {
  const auto pack_all = tile == 4 ? pack_tiles<4> : pack_tiles<6>;
  pack_all(weight, N, C, threads, packed);
}

template <class T>
void convolve(const swin_convolution& convolution, const T* x, T* y) {
  const auto convolve_all = convolution.tile == 4 ? convolve_tiles<4, T> : convolve_tiles<6, T>;
  convolve_all(convolution, x, y);
}
template void convolve(const swin_convolution&, const float*, float*);
template void convolve(const swin_convolution&, const bf16*, bf16*);

}  // namespace swin::SWIN_ISA
