// A hash of bytes: 64 bits, at the speed of memory.
#pragma once

#include <cstdint>
#include <cstring>

#include "machine/arena.h"
#include "machine/profile.h"
#include "machine/threads.h"

namespace swin::SWIN_ISA {

class Checksum {
 public:
  explicit Checksum(int64_t threads) : threads(threads) {}

  void add(const void* memory, int64_t count) {
    const Timed timed(Work::WEIGHTS, count / 4);
    constexpr int64_t CHUNK = 1 << 18;  // bytes of a task
    const auto* bytes = static_cast<const char*>(memory);
    const int64_t chunks = (count + CHUNK - 1) / CHUNK;
    sum = mix(sum, count);
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
  // Different states or inputs give different results: an odd factor and the shift lose nothing. A product does not
  // mix the upper bits down, so the shift does.
  static uint64_t mix(uint64_t state, uint64_t input) {
    state = (state ^ input) * 0x9E3779B97F4A7C15u;
    return state ^ state >> 32;
  }

  static uint64_t hash(const char* bytes, int64_t count) {
    constexpr int64_t STATES = 32;  // independent chains
    uint64_t states[STATES], words[STATES], sum = 0;
    for (int64_t i = 0; i < STATES; i++) states[i] = i;
    const auto take = [&](const char* from) {
      std::memcpy(words, from, sizeof words);
      for (int64_t i = 0; i < STATES; i++) states[i] = mix(states[i], words[i]);
    };
    int64_t at = 0;
    for (; at + static_cast<int64_t>(sizeof words) <= count; at += sizeof words) take(bytes + at);
    if (at < count) {
      char rest[sizeof words] = {};
      std::memcpy(rest, bytes + at, count - at);
      take(rest);
    }
    for (const uint64_t state : states) sum = mix(sum, state);
    return sum;
  }

  const int64_t threads;
  uint64_t sum = 0;
};

}  // namespace swin::SWIN_ISA
