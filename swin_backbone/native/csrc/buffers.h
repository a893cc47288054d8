// Memory of a thread.
#pragma once

#include <memory>

#include "simd.h"

namespace swin {

// Memory for several arrays, each on its own cache lines.
class Buffers {
 public:
  // carve(take) is called twice: first take(bytes) counts and returns null, then it returns that many bytes.
  template <class Carve>
  void allocate(const Carve& carve) {
    int64_t bytes = LINE;
    carve([&](int64_t n) -> char* { bytes += round_up(n, LINE); return nullptr; });
    memory.reset(new char[bytes]);
    char* at = (char*)round_up((int64_t)memory.get(), LINE);
    carve([&](int64_t n) { char* taken = at; at += round_up(n, LINE); return taken; });
  }

 private:
  static constexpr int64_t LINE = 64;
  std::unique_ptr<char[]> memory;
};

}  // namespace swin
