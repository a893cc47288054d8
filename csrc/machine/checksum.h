// A hash of bytes: 64 bits, at the speed of memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "machine/arena.h"
#include "machine/profile.h"
#include "machine/simd.h"
#include "machine/threads.h"

namespace swin::SWIN_ISA {

class Checksum {
 public:
  explicit Checksum(int64_t threads) : threads(threads) {}

  void add(const void* memory, int64_t count) {
    const Timed timed(Work::WEIGHTS, count / 4);
    constexpr int64_t CHUNK = 1 << 18;  // bytes of a task
    const auto* bytes = static_cast<const char*>(memory);
    const int64_t chunks = ceil_div(count, CHUNK);
    sum = mix<uint64_t>(sum, count);
    const auto part = [&](int64_t i) {
      return hash(bytes + i * CHUNK, count - i * CHUNK < CHUNK ? count - i * CHUNK : CHUNK);
    };
    if (threads == 1 || chunks == 1) {
      for (int64_t i = 0; i < chunks; i++) sum = mix(sum, part(i));
      return;
    }
    uint64_t* parts = nullptr;
    Memory kept;
    kept.allocate([&](Arena& arena) { parts = arena.take<uint64_t>(chunks); });
    each_part(chunks, threads, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) parts[i] = part(i);
    });
    for (int64_t i = 0; i < chunks; i++) sum = mix(sum, parts[i]);
  }
  uint64_t result() const { return sum; }

 private:
  using Words = uint64_t __attribute__((vector_size(4 * LANES)));

  // The product of the lower half of each word.
  static uint64_t multiply_halves(uint64_t a, uint32_t b) { return static_cast<uint32_t>(a) * uint64_t{b}; }
  static Words multiply_halves(Words a, uint32_t b) {
#if defined(__AVX512F__)
    return Words(_mm512_mul_epu32(__m512i(a), _mm512_set1_epi32(b)));
#elif defined(__AVX2__)
    return Words(_mm256_mul_epu32(__m256i(a), _mm256_set1_epi32(b)));
#else
    return Words(vmull_n_u32(vmovn_u64(uint64x2_t(a)), b));
#endif
  }

  // Different states or inputs give different results: the lower half of the sum is the lower half of `word` times an
  // odd number, which has an inverse. Each half is multiplied in turn, because AVX2 has no products of whole words.
  template <class Word>
  static Word mix(Word state, Word input) {
    Word word = state ^ input;
    word += multiply_halves(word, 0x9E3779B8u);
    word = word << 32 | word >> 32;
    return word + multiply_halves(word, 0x85EBCA6Au);
  }

  // One stream without prefetching takes half the bandwidth of memory.
  static uint64_t hash(const char* bytes, int64_t count) {
    constexpr int64_t STREAMS = 4, WORDS = STREAMS * LINE / 8, AHEAD = 1024;
    uint64_t numbers[WORDS], sum = 0;
    for (int64_t i = 0; i < WORDS; i++) numbers[i] = i;
    Words states[STREAMS][LINE / sizeof(Words)];  // independent chains
    std::memcpy(states, numbers, sizeof states);
    const auto take = [&](const char* from, int64_t apart) {
      SWIN_UNROLL
      for (auto& stream : states) {
        SWIN_UNROLL
        for (size_t i = 0; i < LINE / sizeof(Words); i++) {
          Words words;
          std::memcpy(&words, from + i * sizeof words, sizeof words);
          stream[i] = mix(stream[i], words);
        }
        from += apart;
      }
    };
    const int64_t apart = count / (STREAMS * LINE) * LINE;
    for (int64_t at = 0; at < apart; at += LINE) {
      for (int64_t i = 0; i < STREAMS; i++) __builtin_prefetch(bytes + i * apart + at + AHEAD);
      take(bytes + at, apart);
    }
    char rest[STREAMS * LINE] = {};
    std::memcpy(rest, bytes + STREAMS * apart, count - STREAMS * apart);
    take(rest, LINE);
    std::memcpy(numbers, states, sizeof states);
    for (const uint64_t state : numbers) sum = mix(sum, state);
    return sum;
  }

  const int64_t threads;
  uint64_t sum = 0;
};

}  // namespace swin::SWIN_ISA
