// Gradients of the weights of linear layers. Each is a sum over tokens of products of the layer's input and the
// gradient of its output, in float32.
//
// Layout: a weight is (out, in).
#pragma once

#include <optional>
#include <vector>

#include "gradients.h"

#ifdef SWIN_HAS_TILES
#include <immintrin.h>
#endif

namespace swin {

// What a group of windows keeps of a linear layer (in, out), or of one after another, for the products over its tokens.
template <class T>
class Kept {
 public:
  int64_t in, out, rows, tokens;
  const float* input;           // (tokens, in)
  float* turned;                // (out, rows): the transposed gradient of the output
  bf16 *paired, *turned_tiles;  // with AMX, both in pieces, see tiles.h
  bool in_tiles;

  Kept() = default;
  template <class Take>  // take(bytes) returns the next `bytes` bytes
  Kept(int64_t most_in, int64_t most_out, int64_t rows, const Take& take) : rows(rows) {
    const int64_t bytes_in_pieces = has_tiles() ? PIECES * sizeof(bf16) : 0;
    paired = (bf16*)take(most_in * rows * bytes_in_pieces);
    turned_tiles = (bf16*)take(most_out * rows * std::max<int64_t>(bytes_in_pieces, sizeof(float)));
    turned = (float*)turned_tiles;
  }

  // `a`: the input (tokens, K) of the layer, which stays in use, with room for `rows` tokens. of_output: (tokens, N).
  // Adds the gradient of the bias to `bias_sum`.
  void keep(int64_t K, int64_t N, T* a, const T* of_output, int64_t count, float* bias_sum) {
    in = K, out = N;
    for (int64_t m = 0; m < count; m++)
      over_columns(out, [&](int64_t n, int64_t lanes) {
        store(bias_sum + n, load(bias_sum + n, lanes) + load(of_output + m * out + n, lanes), lanes);
      });
    in_tiles = has_tiles() && in % TILE_ROWS == 0 && out % TILED_ROWS == 0;
    if (in_tiles) {
      tokens = count;
      split_columns(a, in, count, in, paired);
      split_turned(of_output, out, count, out, turned_tiles);
      return;
    }
    tokens = round_up(count, TILE_TERMS);  // few different sums, for each of which brgemm makes a kernel
    std::memset(a + count * in, 0, (tokens - count) * in * sizeof(T));
    input = a;
    transpose(of_output, out, count, out, turned, rows);
    for (int64_t n = 0; n < out; n++) std::fill(turned + n * rows + count, turned + n * rows + tokens, 0.f);
  }
};

// Writes or adds to `to`, which is the whole gradient, rows n ... n + count - 1, where n is a multiple of MAX_COLUMNS.
// It sums over the tokens of all `groups`.
inline void weight_gradient(const std::vector<const Kept<float>*>& groups, int64_t n, int64_t count, float* to,
                            bool add) {
  for (const Kept<float>* g : groups) {
    if (g->in_tiles) {
      const TilesInUse tiles;
      const int64_t depth = tiles_of(g->tokens), tile_row = depth * PIECES * TILE;
      multiply_tiles(count, g->in, depth, g->turned_tiles + n / TILE_ROWS * tile_row, g->paired, to + n * g->in,
                     g->in, add);
    } else {
      for (int64_t m = n; m < n + count; m += MAX_COLUMNS)
        for (int64_t c = 0; c < g->in; c += MAX_COLUMNS)
          brgemm(std::min(MAX_COLUMNS, n + count - m), std::min(MAX_COLUMNS, g->in - c), g->tokens, g->rows, g->in,
                 g->in, g->turned + m * g->rows, g->input + c, to + m * g->in + c, add);
    }
    add = true;
  }
}

#ifdef __AVX512BF16__
// In the order of tiles, so that neither operand is packed a second time.
template <>
class Kept<bf16> {
 public:
  bf16* paired;   // (in / 16, depth, TILE): the input in pairs of tokens
  bf16* turned;   // (out / 16, depth, TILE): the transposed gradient of the output
  int64_t in, out, depth;

  Kept() = default;
  template <class Take>
  Kept(int64_t most_in, int64_t most_out, int64_t rows, const Take& take) {
    paired = (bf16*)take(round_up(most_in, BLOCK) * rows * sizeof(bf16));
    turned = (bf16*)take(round_up(most_out, BLOCK) * rows * sizeof(bf16));
  }

  void keep(int64_t K, int64_t N, const bf16* a, const bf16* of_output, int64_t count, float* bias_sum) {
    in = K, out = N;
    depth = tiles_of(count);
    for (int64_t m = 0; m < count; m += BLOCK) {
      const int64_t tokens = std::min(BLOCK, count - m);
      for (int64_t c = 0; c < in; c += BLOCK)
        pair_block(a + m * in + c, tokens, std::min(BLOCK, in - c), paired + block(m, c));
      for (int64_t c = 0; c < out; c += BLOCK)
        turn_block(of_output + m * out + c, tokens, std::min(BLOCK, out - c), turned + block(m, c), bias_sum + c);
    }
  }

  // Where the tiles of a block's first 16 channels are; those of the others are `depth` tiles later.
  int64_t block(int64_t token, int64_t channel) const {
    return (channel / TILE_ROWS * depth + token / TILE_TERMS) * TILE;
  }

  static constexpr int64_t BLOCK = 32;  // channels, and tokens

 private:
  static __mmask32 first(int64_t count) { return ((uint64_t)1 << count) - 1; }

  // Two rows of a block, filled up with zeros.
  struct Pair {
    __m512i even, odd;
  };
  static Pair pair_of(const bf16* from, int64_t stride, int64_t m, int64_t tokens, __mmask32 channels) {
    return {_mm512_maskz_loadu_epi16(m < tokens ? channels : 0, from + m * stride),
            _mm512_maskz_loadu_epi16(m + 1 < tokens ? channels : 0, from + (m + 1) * stride)};
  }

  void pair_block(const bf16* from, int64_t tokens, int64_t channels, bf16* to) const {
    for (int64_t m = 0; m < BLOCK; m += 2, to += TILE_TERMS) {
      const Pair rows = pair_of(from, in, m, tokens, first(channels));
      const auto [left, right] = mixed(rows.even, rows.odd);
      _mm512_store_si512(to, left);
      _mm512_store_si512(to + depth * TILE, right);
    }
  }

  // Rows are paired, then pairs are moved as numbers of 32 bits. Sums of pairs are those of a channel.
  void turn_block(const bf16* from, int64_t tokens, int64_t channels, bf16* to, float* sums) const {
    alignas(64) float pairs[2][16][16], turned[2][16][16];  // [i] has every second four of channels
    const auto ones = (__m512bh)_mm512_set1_epi16(0x3f80);
    __m512 low = _mm512_setzero_ps(), high = _mm512_setzero_ps();
    for (int64_t m = 0; m < BLOCK; m += 2) {
      const Pair rows = pair_of(from, out, m, tokens, first(channels));
      const __m512i a = _mm512_unpacklo_epi16(rows.even, rows.odd), b = _mm512_unpackhi_epi16(rows.even, rows.odd);
      _mm512_store_si512(pairs[0][m / 2], a);
      _mm512_store_si512(pairs[1][m / 2], b);
      low = _mm512_dpbf16_ps(low, (__m512bh)a, ones);
      high = _mm512_dpbf16_ps(high, (__m512bh)b, ones);
    }
    for (int64_t i = 0; i < 2; i++) at::vec::transpose_mxn<float, 16, 16>(pairs[i][0], 16, turned[i][0], 16);
#pragma GCC unroll 32
    for (int64_t n = 0; n < BLOCK; n++)
      _mm512_store_si512(to + n / TILE_ROWS * depth * TILE + n % TILE_ROWS * TILE_TERMS,
                         _mm512_load_si512(turned[n / 4 % 2][n / 8 * 4 + n % 4]));
    const __m512i order = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i after = _mm512_add_epi32(order, _mm512_set1_epi32(8));
    const auto add = [&](int64_t n, __m512 v) {
      const int64_t count = std::clamp<int64_t>(channels - n, 0, LANES);
      store(sums + n, load(sums + n, count) + Vec(v), count);
    };
    add(0, _mm512_permutex2var_ps(low, order, high));
    add(LANES, _mm512_permutex2var_ps(low, after, high));
  }
};

// c (32, 32) += a b of some groups: rows n ... n + 31 of their gradients, and columns k ... k + 31 of their inputs.
using Groups = std::vector<const Kept<bf16>*>;
#ifdef SWIN_HAS_TILES
inline void add_block_in_tiles(const Groups& groups, int64_t n, int64_t k, float* c, int64_t ldc, bool add) {
  float* below = c + TILE_ROWS * ldc;
  for (int64_t r = 0; r < 2 * TILE_ROWS; r++) {  // so that stores need not wait
    __builtin_prefetch(c + r * ldc, 1);
    __builtin_prefetch(c + r * ldc + TILE_ROWS, 1);
  }
  if (add) {
    _tile_loadd(0, c, 4 * ldc);
    _tile_loadd(1, c + TILE_ROWS, 4 * ldc);
    _tile_loadd(2, below, 4 * ldc);
    _tile_loadd(3, below + TILE_ROWS, 4 * ldc);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (const Kept<bf16>* g : groups) {
    const bf16 *a = g->turned + g->block(0, n), *b = g->paired + g->block(0, k);
    for (int64_t at = 0, next = g->depth * TILE; at < g->depth * TILE; at += TILE) {
      _tile_loadd(4, a + at, 64);
      _tile_loadd(6, b + at, 64);
      _tile_loadd(7, b + next + at, 64);
      _tile_loadd(5, a + next + at, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, 4 * ldc);
  _tile_stored(1, c + TILE_ROWS, 4 * ldc);
  _tile_stored(2, below, 4 * ldc);
  _tile_stored(3, below + TILE_ROWS, 4 * ldc);
}
#endif
// The same without AMX.
inline void add_block(const Groups& groups, int64_t n, int64_t k, float* c, int64_t ldc, bool add) {
  constexpr int64_t AT_ONCE = 4;  // rows
  for (int64_t r = 0; r < Kept<bf16>::BLOCK; r += AT_ONCE) {
    __m512 sums[AT_ONCE][2];
    for (int64_t i = 0; i < 2 * AT_ONCE; i++)
      sums[i / 2][i % 2] = add ? (__m512)load(c + (r + i / 2) * ldc + i % 2 * LANES) : _mm512_setzero_ps();
    for (const Kept<bf16>* g : groups) {
      const bf16 *a = g->turned + g->block(0, n + r) + r % TILE_ROWS * TILE_TERMS, *b = g->paired + g->block(0, k);
      for (int64_t tile = 0; tile < g->depth; tile++, a += TILE, b += TILE)
        for (int64_t p = 0; p < TILE_TERMS; p += 2)
          for (int64_t i = 0; i < 2 * AT_ONCE; i++) {
            int32_t pair;
            std::memcpy(&pair, a + i / 2 * TILE_TERMS + p, sizeof pair);
            const auto columns = (__m512bh)_mm512_load_si512(b + i % 2 * g->depth * TILE + p * TILE_ROWS);
            sums[i / 2][i % 2] = _mm512_dpbf16_ps(sums[i / 2][i % 2], (__m512bh)_mm512_set1_epi32(pair), columns);
          }
    }
    for (int64_t i = 0; i < 2 * AT_ONCE; i++) store(c + (r + i / 2) * ldc + i % 2 * LANES, sums[i / 2][i % 2]);
  }
}

inline void weight_gradient(const Groups& groups, int64_t n, int64_t count, float* to, bool add) {
  constexpr int64_t BLOCK = Kept<bf16>::BLOCK;
#ifdef SWIN_HAS_TILES
  std::optional<TilesInUse> tiles;
  if (has_tiles()) tiles.emplace();
  const auto multiply = tiles ? add_block_in_tiles : add_block;
#else
  const auto multiply = add_block;
#endif
  const int64_t in = groups.front()->in;
  for (int64_t k = 0; k < in; k += BLOCK)
    for (int64_t m = n; m < n + count; m += BLOCK) {
      float* c = to + m * in + k;
      const int64_t rows = std::min(BLOCK, n + count - m), columns = std::min(BLOCK, in - k);
      if (rows == BLOCK && columns == BLOCK) {
        multiply(groups, m, k, c, in, add);
        continue;
      }
      alignas(64) float whole[BLOCK * BLOCK];
      multiply(groups, m, k, whole, BLOCK, false);
      for (int64_t r = 0; r < rows; r++)
        over_columns(columns, [&](int64_t i, int64_t lanes) {
          const Vec v = load(whole + r * BLOCK + i, lanes);
          store(c + r * in + i, add ? v + load(c + r * in + i, lanes) : v, lanes);
        });
    }
}
#endif

}  // namespace swin
