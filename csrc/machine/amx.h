// The tile instructions of AMX. With SWIN_EMULATE_AMX, loops replace the instructions, so tests run on any processor
// with AVX-512. Installed libraries use the instructions.
#pragma once

#include "machine/simd.h"

#ifdef __AMX_BF16__
#define SWIN_HAS_TILES 1
#else
#define SWIN_HAS_TILES 0
#endif

#if SWIN_HAS_TILES && defined(SWIN_EMULATE_AMX)
#include <cstdlib>

#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#undef _tile_loadconfig
#undef _tile_release
#define TILE_LOAD(tile, from, stride) ::swin::SWIN_ISA::emulated::tiles.load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::swin::SWIN_ISA::emulated::tiles.store(tile, to, stride)
#define _tile_zero(tile) ::swin::SWIN_ISA::emulated::tiles.zero(tile)
#define _tile_dpbf16ps(sum, a, b) ::swin::SWIN_ISA::emulated::tiles.multiply(sum, a, b)
#define _tile_dpbusd(sum, a, b) ::swin::SWIN_ISA::emulated::tiles.multiply_bytes(sum, a, b)
#define _tile_loadconfig(config) ::swin::SWIN_ISA::emulated::tiles.configure(config)
#define _tile_release() ::swin::SWIN_ISA::emulated::tiles.release()

namespace swin::SWIN_ISA::emulated {

class Tiles {
 public:
  void configure(const void* config) {
    std::memcpy(&palette, config, 1);
    std::memcpy(columns, static_cast<const char*>(config) + 16, sizeof columns);
    std::memcpy(rows, static_cast<const char*>(config) + 48, sizeof rows);
    std::memset(numbers, 0, sizeof numbers);
  }
  void release() { palette = 0; }
  void zero(int tile) { std::memset(at(tile), 0, sizeof numbers[0]); }
  void load(int tile, const void* from, int64_t stride) {
    zero(tile);
    for (int r = 0; r < rows[tile]; r++)
      std::memcpy(numbers[tile][r], static_cast<const char*>(from) + r * stride, columns[tile]);
  }
  void store(int tile, void* to, int64_t stride) {
    at(tile);
    for (int r = 0; r < rows[tile]; r++)
      std::memcpy(static_cast<char*>(to) + r * stride, numbers[tile][r], columns[tile]);
  }
  // The order of Intel's manual: even and odd terms of a row are summed from zero, then added to the sum. Denormal
  // numbers are zero.
  void multiply(int sum, int a, int b) {
    at(sum), at(a), at(b);
    for (int r = 0; r < rows[sum]; r++)
      for (int c = 0; c < columns[sum] / 4; c++) {
        float parts[2] = {0.f, 0.f}, total;
        for (int k = 0; k < columns[a] / 4; k++)
          for (int half = 0; half < 2; half++)
            parts[half] += part(numbers[a][r][k], half) * part(numbers[b][k][c], half);
        std::memcpy(&total, &numbers[sum][r][c], 4);
        total += parts[0] + parts[1];
        std::memcpy(&numbers[sum][r][c], &total, 4);
      }
  }
  // Products of unsigned bytes of a and signed bytes of b.
  void multiply_bytes(int sum, int a, int b) {
    at(sum), at(a), at(b);
    for (int r = 0; r < rows[sum]; r++)
      for (int c = 0; c < columns[sum] / 4; c++)
        for (int k = 0; k < columns[a] / 4; k++)
          for (int i = 0; i < 32; i += 8)
            numbers[sum][r][c] += (numbers[a][r][k] >> i & 255) * static_cast<int8_t>(numbers[b][k][c] >> i);
  }

 private:
  uint32_t (*at(int tile))[16] {
    if (!palette || tile < 0 || tile > 7 || !rows[tile]) std::abort();  // the processor would fault
    return numbers[tile];
  }
  static float part(uint32_t pair, int half) {
    const uint32_t bits = half ? pair & 0xffff0000u : pair << 16;
    float number;
    std::memcpy(&number, &bits, 4);
    return bits & 0x7f800000u ? number : 0.f;
  }
  uint8_t palette = 0, rows[16] = {};
  uint16_t columns[16] = {};
  uint32_t numbers[8][16][16] = {};
};
inline thread_local Tiles tiles;

}  // namespace swin::SWIN_ISA::emulated
#endif

#if SWIN_HAS_TILES && !defined(SWIN_EMULATE_AMX)
// GCC's intrinsic does not declare that it reads memory. The barrier completes earlier stores.
#define TILE_LOAD(tile, from, stride)  \
  do {                                 \
    __asm__ volatile("" ::: "memory"); \
    _tile_loadd(tile, from, stride);   \
  } while (0)
#endif
