// Gradients of the weights of linear layers: sums over tokens of products of the input and the gradient of the output,
// in float32.
//
// Layout: a weight is (out, in).
#pragma once

#include "products/gemm.h"

namespace swin::SWIN_ISA {

// The input and the gradient of the output of a linear layer (in, out) for a group of windows, packed for products over
// the tokens. Layers may reuse the memory in turn.
template <class T>
class WeightGradOperands {
  // A strip of long rows uses few sets of L1, and its lines evict each other. So strips are made contiguous, unless
  // rows are whole cache lines.
  static constexpr bool PACKS_STRIPS = STRIP * sizeof(float) % LINE != 0;
  static constexpr int64_t MIN_IN_STRIPS = 256;

 public:
  int64_t in, out, rows, tokens;
  float* grad_output_T;               // (out, rows): the gradient of the output, transposed
  bf16 *vnni, *grad_output_T_pieces;  // with AMX, both in pieces, see tiles.h
  const float* input;                 // (tokens, in)
  float* strips;  // (in / STRIP, tokens, STRIP): the input, if it is in strips; the last is narrower
  bool in_tiles, in_strips;

  WeightGradOperands() = default;
  WeightGradOperands(int64_t max_in, int64_t max_out, int64_t rows, Arena& arena) : rows(rows) {
    vnni = arena.take<bf16>(HAS_TILES ? PIECES * max_in * rows : 0);
    grad_output_T_pieces = arena.take<bf16>(HAS_TILES ? PIECES * max_out * rows : 0);
    strips = arena.take<float>(PACKS_STRIPS ? max_in * rows : 0);
    grad_output_T = arena.take<float>(max_out * rows);
  }

  // a: the input (tokens, K) of the layer, used until `compute_weight_gradient`, with memory for `rows` tokens.
  // grad_output: (tokens, N). Adds the gradient of the bias to `bias_sum`.
  void pack(int64_t K, int64_t N, const T* rounded_a, const T* rounded_grad_output, int64_t count, float* bias_sum) {
    const float *a = as_floats(rounded_a), *grad_output = as_floats(rounded_grad_output);
    in = K, out = N, tokens = count;
    for (int64_t m = 0; m < count; m++) add_row(grad_output + m * out, out, bias_sum);
    in_tiles = HAS_TILES && in % TILE_ROWS == 0 && out % TILED_ROWS == 0;
    if (in_tiles) {
      pack_column_pieces(a, in, count, in, vnni);
      pack_transposed_pieces(grad_output, out, count, out, grad_output_T_pieces);
      return;
    }
    input = a;
    in_strips = PACKS_STRIPS && in >= MIN_IN_STRIPS;
    if (in_strips)
      for (int64_t c = 0; c < in; c += STRIP)
        pack_rows(a + c, in, tokens, std::min(STRIP, in - c), strips + c * tokens);
    transpose(grad_output, out, count, out, grad_output_T, rows);
  }
};

// Write, or add, rows n ... n + count - 1 of the gradient `to`, summed over the tokens of all `groups`. n is a multiple
// of MAX_COLUMNS.
template <class T>
void compute_weight_gradient(const WeightGradOperands<T>* const* groups, int64_t num_groups, int64_t n, int64_t count,
                             float* to, bool accumulate) {
  for (int64_t i = 0; i < num_groups; i++, accumulate = true) {
    const WeightGradOperands<T>& g = *groups[i];
    if (g.in_tiles) {
      [[maybe_unused]] const TilesInUse tiles;
      const int64_t depth = tiles_of(g.tokens), tile_row = depth * PIECES * TILE;
      multiply_pieces(count, g.in, depth, g.grad_output_T_pieces + n / TILE_ROWS * tile_row, g.vnni, to + n * g.in,
                      g.in, accumulate);
      continue;
    }
    if (g.in_strips) {
      for (int64_t c = 0; c < g.in; c += STRIP) {
        const int64_t columns = std::min(STRIP, g.in - c);
        for (int64_t k = 0; k < g.tokens; k += MAX_SUM)
          gemm(count, columns, std::min(MAX_SUM, g.tokens - k), g.rows, columns, g.in, g.grad_output_T + n * g.rows + k,
               g.strips + c * g.tokens + k * columns, to + n * g.in + c, accumulate || k > 0);
      }
      continue;
    }
    for (int64_t m = n; m < n + count; m += MAX_COLUMNS)
      for (int64_t c = 0; c < g.in; c += MAX_COLUMNS)
        gemm(std::min(MAX_COLUMNS, n + count - m), std::min(MAX_COLUMNS, g.in - c), g.tokens, g.rows, g.in, g.in,
             g.grad_output_T + m * g.rows, g.input + c, to + m * g.in + c, accumulate);
  }
}

#if SWIN_HAS_BF16
// Both operands in the order of tiles: neither is packed a second time.
template <>
class WeightGradOperands<bf16> {
 public:
  bf16* vnni;           // (in / 16, depth, TILE): the input in pairs of tokens
  bf16* grad_output_T;  // (out / 16, depth, TILE): the gradient of the output, transposed
  int64_t in, out, depth;

  WeightGradOperands() = default;
  WeightGradOperands(int64_t max_in, int64_t max_out, int64_t rows, Arena& arena) {
    vnni = arena.take<bf16>(round_up(max_in, BLOCK) * rows);
    grad_output_T = arena.take<bf16>(round_up(max_out, BLOCK) * rows);
  }

  void pack(int64_t K, int64_t N, const bf16* a, const bf16* grad_output, int64_t count, float* bias_sum) {
    in = K, out = N;
    depth = tiles_of(count);
    for (int64_t m = 0; m < count; m += BLOCK) {
      const int64_t tokens = std::min(BLOCK, count - m);
      for (int64_t c = 0; c < in; c += BLOCK)
        interleave_block(a + m * in + c, tokens, std::min(BLOCK, in - c), vnni + block(m, c));
      for (int64_t c = 0; c < out; c += BLOCK)
        transpose_block(grad_output + m * out + c, tokens, std::min(BLOCK, out - c), grad_output_T + block(m, c),
                        bias_sum + c);
    }
  }

  // The offset of the tiles of the first 16 channels of a block. The other 16 channels are `depth` tiles later.
  int64_t block(int64_t token, int64_t channel) const {
    return (channel / TILE_ROWS * depth + token / TILE_TERMS) * TILE;
  }

  static constexpr int64_t BLOCK = 32;  // channels, and tokens

 private:
  void interleave_block(const bf16* from, int64_t tokens, int64_t channels, bf16* to) const {
    const auto row = [=](int64_t m) { return m < tokens ? from + m * in : nullptr; };
    for (int64_t m = 0; m < BLOCK; m += 2, to += TILE_TERMS)
      interleave_32(row(m), row(m + 1), channels, to, to + depth * TILE);
  }

  void transpose_block(const bf16* from, int64_t tokens, int64_t channels, bf16* to, float* bias_sum) const {
    TransposedBlock rows(from, out, tokens, channels);
    rows.add_sums(channels, bias_sum);
    rows.transpose();
    SWIN_UNROLL
    for (int64_t n = 0; n < BLOCK; n++)
      rows.store_column(n, to + n / TILE_ROWS * depth * TILE + n % TILE_ROWS * TILE_TERMS);
  }
};

// Some groups of tokens.
struct OperandGroups {
  const WeightGradOperands<bf16>* const* first;
  int64_t count;
};
// c (32, 32) = a b, or c += a b, summed over groups: rows n ... n + 31 of the gradients, columns k ... k + 31 of the
// inputs.
#if SWIN_HAS_TILES
inline void multiply_block(const OperandGroups& groups, int64_t n, int64_t k, float* c, int64_t ldc, bool accumulate) {
  for (int64_t r = 0; r < 2 * TILE_ROWS; r++) {  // for the stores
    __builtin_prefetch(c + r * ldc, 1);
    __builtin_prefetch(c + r * ldc + TILE_ROWS, 1);
  }
  tiles_2x2<true>(c, ldc, accumulate, [&](const auto& load_a, const auto& load_b, const auto& dot) {
    for (int64_t i = 0; i < groups.count; i++) {
      const WeightGradOperands<bf16>& g = *groups.first[i];
      const bf16 *a = g.grad_output_T + g.block(0, n), *b = g.vnni + g.block(0, k);
      const int64_t next = g.depth * TILE;
      for (int64_t at = 0; at < next; at += TILE) {
        load_a(a + at, a + next + at);
        load_b(b + at, b + next + at);
        dot();
      }
    }
  });
}
#else
inline void multiply_block(const OperandGroups& groups, int64_t n, int64_t k, float* c, int64_t ldc, bool accumulate) {
  constexpr int64_t VECTORS = WeightGradOperands<bf16>::BLOCK / LANES, ROWS = 16 / VECTORS;  // in registers
  for (int64_t r = 0; r < WeightGradOperands<bf16>::BLOCK; r += ROWS) {
    Vec sums[ROWS][VECTORS];
    SWIN_UNROLL
    for (int64_t i = 0; i < ROWS * VECTORS; i++)
      sums[i / VECTORS][i % VECTORS] = accumulate ? load(c + (r + i / VECTORS) * ldc + i % VECTORS * LANES) : Vec(0.f);
    for (int64_t i = 0; i < groups.count; i++) {
      const WeightGradOperands<bf16>& g = *groups.first[i];
      const bf16 *a = g.grad_output_T + g.block(0, n + r) + r % TILE_ROWS * TILE_TERMS, *b = g.vnni + g.block(0, k);
      for (int64_t tile = 0; tile < g.depth; tile++, a += TILE, b += TILE)
        for (int64_t p = 0; p < TILE_TERMS; p += 2) {
          PairVec columns[VECTORS];
          SWIN_UNROLL
          for (int64_t v = 0; v < VECTORS; v++) {
            const int64_t column = v * LANES;
            columns[v] = load_pairs(b + column / TILE_ROWS * g.depth * TILE + p * TILE_ROWS + column % TILE_ROWS * 2);
          }
          SWIN_UNROLL
          for (int64_t i = 0; i < ROWS * VECTORS; i++)
            sums[i / VECTORS][i % VECTORS] = dot_pairs(
                sums[i / VECTORS][i % VECTORS], broadcast_pair(a + i / VECTORS * TILE_TERMS + p), columns[i % VECTORS]);
        }
    }
    SWIN_UNROLL
    for (int64_t i = 0; i < ROWS * VECTORS; i++)
      store(c + (r + i / VECTORS) * ldc + i % VECTORS * LANES, sums[i / VECTORS][i % VECTORS]);
  }
}
#endif

inline void compute_weight_gradient(const WeightGradOperands<bf16>* const* groups, int64_t num_groups, int64_t n,
                                    int64_t count, float* to, bool accumulate) {
  constexpr int64_t BLOCK = WeightGradOperands<bf16>::BLOCK;
  [[maybe_unused]] const TilesInUse tiles;
  const OperandGroups all{groups, num_groups};
  const int64_t in = groups[0]->in;
  for (int64_t k = 0; k < in; k += BLOCK)
    for (int64_t m = n; m < n + count; m += BLOCK) {
      float* c = to + m * in + k;
      const int64_t rows = std::min(BLOCK, n + count - m), columns = std::min(BLOCK, in - k);
      if (rows == BLOCK && columns == BLOCK) {
        multiply_block(all, m, k, c, in, accumulate);
        continue;
      }
      alignas(64) float whole[BLOCK * BLOCK];
      multiply_block(all, m, k, whole, BLOCK, false);
      put_rows(whole, BLOCK, rows, columns, c, in, accumulate);
    }
}
#endif

}  // namespace swin::SWIN_ISA
