// Memory of a thread.
#pragma once

#include <memory>

#include "simd.h"

namespace swin {

constexpr int64_t LINE = 64;  // bytes of a cache line

// carve(take) takes several arrays, each on its own cache lines. It is called with a take(bytes) that counts and
// returns null, or with one that returns that many bytes of the memory.
template <class Carve>
int64_t bytes_of(const Carve& carve) {
  int64_t bytes = 0;
  carve([&](int64_t n) -> char* { bytes += round_up(n, LINE); return nullptr; });
  return bytes;
}
template <class Carve>
auto carve_out(char* memory, const Carve& carve) {
  return carve([&](int64_t n) { char* taken = memory; memory += round_up(n, LINE); return taken; });
}

// Memory for several arrays.
class Buffers {
 public:
  template <class Carve>
  void allocate(const Carve& carve) {
    memory.reset(new char[bytes_of(carve) + LINE]);
    carve_out((char*)round_up((int64_t)memory.get(), LINE), carve);
  }

 private:
  std::unique_ptr<char[]> memory;
};

}  // namespace swin
