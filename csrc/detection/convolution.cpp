// Winograd's F(4x4, 3x3) (Lavin and Gray 2016, arXiv 1509.09308): 36 products for 16 outputs of a channel, not 144.
//
// One row of 4 outputs of a filter of 3 taps is the product of two polynomials, computed from their values in 6 points:
// 0, +-a, +-b and infinity. With a^2 = 1/2 and b^2 = 2 the error of rounding is a quarter of that with the usual 1 and
// 2. A tile of 6x6 inputs is transformed along both axes; then each of its 36 numbers needs a product over the
// channels, which all tiles together make a matrix product. Points and products are float32 for maps of bf16 too: 8
// bits would lose in the points what they save, and with a quarter of the products float32 takes less time than bf16
// alone.
//
// Layout: C channels, N output channels, P = 36 points.
#include "detection/convolution.h"

#include "products/gemm.h"

namespace swin::SWIN_ISA {
namespace {

constexpr int64_t OUT = 4, IN = 6, P = IN * IN;     // sides of a tile
constexpr int64_t BLOCK_BYTES = int64_t{8} << 20;   // of a block's inputs and outputs in all points
constexpr float A = 0.707106781f, B = 1.41421356f;  // a and b

using Line = Vec[IN];

// The values in the points of a polynomial with these 6 coefficients, times what `filter_points` divides by.
inline void input_points(Line& d) {
  const Vec even_a = fmadd(Vec(-2.f), d[2], d[4]), odd_a = Vec(A) * fmadd(Vec(-2.f), d[1], d[3]);
  const Vec even_b = fmadd(Vec(-.5f), d[2], d[4]), odd_b = Vec(B) * fmadd(Vec(-.5f), d[1], d[3]);
  d[0] = fmadd(Vec(-2.5f), d[2], d[0] + d[4]);
  d[5] = fmadd(Vec(-2.5f), d[3], d[1] + d[5]);
  d[1] = even_a + odd_a, d[2] = even_a - odd_a;
  d[3] = even_b + odd_b, d[4] = even_b - odd_b;
}

// Of a filter's 3 taps.
inline void filter_points(Line& g) {
  const Vec even_a = Vec(-2.f / 3) * fmadd(Vec(.5f), g[2], g[0]), odd_a = Vec(-2.f / 3 * A) * g[1];
  const Vec even_b = Vec(1.f / 6) * fmadd(Vec(2.f), g[2], g[0]), odd_b = Vec(B / 6) * g[1];
  g[5] = g[2];
  g[1] = even_a + odd_a, g[2] = even_a - odd_a;
  g[3] = even_b + odd_b, g[4] = even_b - odd_b;
}

// The 4 outputs.
inline void outputs_of(Line& m) {
  const Vec sum_a = m[1] + m[2], minus_a = m[1] - m[2], sum_b = m[3] + m[4], minus_b = m[3] - m[4];
  m[0] = m[0] + sum_a + sum_b;
  m[1] = fmadd(Vec(A), minus_a, Vec(B) * minus_b);
  m[2] = fmadd(Vec(.5f), sum_a, Vec(2.f) * sum_b);
  m[3] = fmadd(Vec(.5f * A), minus_a, fmadd(Vec(2.f * B), minus_b, m[5]));
}

// `transform` of the first `count` columns of a tile.
template <class F>
inline void each_column(Line (&tile)[IN], int64_t count, const F& transform) {
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

// The tiles of all maps, from left to right, from top to bottom.
struct Tiles {
  int64_t height, width;
  int64_t rows, columns;

  explicit Tiles(const swin_convolution& of)
      : height(of.height), width(of.width), rows((of.height + OUT - 1) / OUT), columns((of.width + OUT - 1) / OUT) {}
  // Where a tile's outputs begin.
  struct Place {
    int64_t image, y, x;
  };
  Place place(int64_t tile) const {
    return {tile / (rows * columns), tile / columns % rows * OUT, tile % columns * OUT};
  }
};

// The points of a tile's inputs, `stride` apart.
template <class T>
void read_tile(const T* x, const Tiles& tiles, const Tiles::Place& at, int64_t C, float* to, int64_t stride) {
  const auto offset = [&](int64_t i, int64_t j) {
    return ((at.image * tiles.height + at.y - 1 + i) * tiles.width + at.x - 1 + j) * C;
  };
  const int64_t top = at.y == 0, left = at.x == 0;
  const int64_t bottom = std::min(IN, tiles.height + 1 - at.y), right = std::min(IN, tiles.width + 1 - at.x);
  const bool inside = !top && !left && bottom == IN && right == IN;
  over_columns(C, [&](int64_t c, int64_t lanes) {
    Line tile[IN];
    SWIN_UNROLL
    for (int64_t i = 0; i < IN; i++) {
      SWIN_UNROLL
      for (int64_t j = 0; j < IN; j++)
        tile[i][j] =
            inside || (i >= top && i < bottom && j >= left && j < right) ? load(x + offset(i, j) + c, lanes) : Vec(0.f);
    }
    each_column(tile, IN, input_points);
    SWIN_UNROLL
    for (int64_t i = 0; i < IN; i++) {
      input_points(tile[i]);
      SWIN_UNROLL
      for (int64_t j = 0; j < IN; j++) store(to + (i * IN + j) * stride + c, tile[i][j], lanes);
    }
  });
}

// A tile's outputs from their points, which are `stride` apart.
template <class T>
void write_tile(const float* from, int64_t stride, const float* bias, const Tiles& tiles, const Tiles::Place& at,
                int64_t N, T* y) {
  const int64_t tall = std::min(OUT, tiles.height - at.y), wide = std::min(OUT, tiles.width - at.x);
  T* to = y + ((at.image * tiles.height + at.y) * tiles.width + at.x) * N;
  over_columns(N, [&](int64_t n, int64_t lanes) {
    Line tile[IN];
    SWIN_UNROLL
    for (int64_t i = 0; i < IN; i++) {
      SWIN_UNROLL
      for (int64_t j = 0; j < IN; j++) tile[i][j] = load(from + (i * IN + j) * stride + n, lanes);
      outputs_of(tile[i]);
    }
    each_column(tile, OUT, outputs_of);
    const Vec shift = bias ? load(bias + n, lanes) : Vec(0.f);
    for (int64_t i = 0; i < tall; i++)
      for (int64_t j = 0; j < wide; j++) store(to + (i * tiles.width + j) * N + n, tile[i][j] + shift, lanes);
  });
}

// Tiles of a block: as many as stay in cache, and each thread has about as many.
int64_t tiles_of_block(int64_t tiles, int64_t C, int64_t N, int64_t threads) {
  const int64_t fitting = BLOCK_BYTES / (P * (C + N) * static_cast<int64_t>(sizeof(float)));
  const int64_t most = std::clamp(fitting, ROW_STEP, MAX_ROWS);
  const int64_t blocks = round_up((tiles + most - 1) / most, threads);
  return (tiles + blocks - 1) / blocks;
}

}  // namespace

void pack_convolution(const float* weight, int64_t N, int64_t C, int64_t threads, float* packed) {
  each_part((N + STRIP - 1) / STRIP, threads, [&](int64_t begin, int64_t end) {
    float* points = nullptr;  // (P, STRIP, C)
    Memory memory;
    memory.allocate([&](Arena& arena) { points = arena.take<float>(P * STRIP * C); });
    for (int64_t n = begin * STRIP; n < std::min(N, end * STRIP); n += STRIP) {
      const int64_t columns = std::min(STRIP, N - n);
      for (int64_t r = 0; r < columns; r++)
        over_columns(C, [&](int64_t c, int64_t lanes) {
          Line filter[IN] = {};
          for (int64_t i = 0; i < 3; i++)
            for (int64_t j = 0; j < 3; j++) filter[i][j] = load(weight + (((n + r) * 3 + i) * 3 + j) * C + c, lanes);
          each_column(filter, 3, filter_points);
          for (int64_t i = 0; i < IN; i++) {
            filter_points(filter[i]);
            for (int64_t j = 0; j < IN; j++) store(points + ((i * IN + j) * STRIP + r) * C + c, filter[i][j], lanes);
          }
        });
      for (int64_t p = 0; p < P; p++)
        pack<float>(points + p * STRIP * C, columns, C, 1, false, 1, packed + p * N * C + n * C);
    }
  });
}

template <class T>
void convolve(const swin_convolution& of, const T* x, T* y) {
  const int64_t C = of.channels, N = of.outputs;
  const Tiles tiles(of);
  const int64_t count = of.batch * tiles.rows * tiles.columns, step = tiles_of_block(count, C, N, of.threads);
  // Points lie a cache line further apart than they need: at a multiple of 4 KiB they would have one place in L1.
  const int64_t rows = round_up(step, ROW_STEP), in_stride = rows * C + LINE / 4, out_stride = rows * N + LINE / 4;
  each_part((count + step - 1) / step, of.threads, [&](int64_t begin, int64_t end) {
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
      for (int64_t t = 0; t < some; t++) read_tile(x, tiles, tiles.place(first + t), C, in + t * C, in_stride);
      for (int64_t p = 0; p < P; p++) {
        const Linear<float> filter{of.weight + p * N * C, nullptr, N, C, STRIP};
        linear_to(in + p * in_stride, C, some, filter, workspace, out + p * out_stride, N);
      }
      for (int64_t t = 0; t < some; t++)
        write_tile(out + t * N, out_stride, of.bias, tiles, tiles.place(first + t), N, y);
    }
  });
}
template void convolve(const swin_convolution&, const float*, float*);
#if SWIN_HAS_BF16
template void convolve(const swin_convolution&, const bf16*, bf16*);
#endif

}  // namespace swin::SWIN_ISA
