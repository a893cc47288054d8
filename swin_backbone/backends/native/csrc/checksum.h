// A hash of bytes: 64 bits, at the speed of memory.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace swin {

class Checksum {
 public:
  void add(const char* bytes, int64_t count) {
    constexpr int64_t CHUNK = 1 << 18;  // bytes that a thread hashes at a time
    std::vector<uint64_t> parts((count + CHUNK - 1) / CHUNK);
    at::parallel_for(0, parts.size(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; i++) parts[i] = hash(bytes + i * CHUNK, std::min(CHUNK, count - i * CHUNK));
    });
    sum = mixed(sum, count);
    for (const uint64_t part : parts) sum = mixed(sum, part);
  }
  int64_t result() const { return sum; }

 private:
  // Of two states, or of two inputs, no two give the same: an odd factor and the shift lose nothing. The shift brings
  // the upper bits, which a product does not mix, down to the lower ones.
  static uint64_t mixed(uint64_t state, uint64_t input) {
    state = (state ^ input) * 0x9E3779B97F4A7C15u;
    return state ^ state >> 32;
  }

  static uint64_t hash(const char* bytes, int64_t count) {
    constexpr int64_t STATES = 32;  // that do not wait for each other
    uint64_t states[STATES], words[STATES], sum = 0;
    for (int64_t i = 0; i < STATES; i++) states[i] = i;
    const auto take = [&](const char* from) {
      std::memcpy(words, from, sizeof words);
      for (int64_t i = 0; i < STATES; i++) states[i] = mixed(states[i], words[i]);
    };
    int64_t at = 0;
    for (; at + (int64_t)sizeof words <= count; at += sizeof words) take(bytes + at);
    if (at < count) {
      char rest[sizeof words] = {};
      std::memcpy(rest, bytes + at, count - at);
      take(rest);
    }
    for (const uint64_t state : states) sum = mixed(sum, state);
    return sum;
  }

  uint64_t sum = 0;
};

}  // namespace swin
