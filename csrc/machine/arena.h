// Memory for several arrays. Each array begins at a cache line.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "machine/memory.h"

namespace swin::SWIN_ISA {

constexpr int64_t LINE = 64;  // bytes of a cache line

// Allots arrays from one piece of memory. Without memory, counts bytes only.
class Arena {
 public:
  explicit Arena(char* memory = nullptr) : memory(memory) {}
  template <class T>
  T* take(int64_t count) {
    char* taken = memory ? memory + used : nullptr;
    used += (count * static_cast<int64_t>(sizeof(T)) + LINE - 1) / LINE * LINE;
    return reinterpret_cast<T*>(taken);
  }
  int64_t bytes() const { return used; }

 private:
  char* memory;
  int64_t used = 0;
};

// The bytes of a layout. A layout is called twice: here to count, in `Memory::allocate` to get the arrays.
template <class Layout>
int64_t bytes_of(const Layout& lay_out) {
  Arena arena;
  lay_out(arena);
  return arena.bytes();
}

// The memory of a layout, uninitialised.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { std::free(memory); }
  template <class Layout>
  void allocate(const Layout& lay_out) {
    std::free(memory);
    const int64_t bytes = bytes_of(lay_out) + LINE;
    memory = static_cast<char*>(std::malloc(bytes));
    if (!memory) throw std::bad_alloc();
    request_large_pages(memory, bytes);
    Arena arena(memory + (LINE - reinterpret_cast<uintptr_t>(memory) % LINE));
    lay_out(arena);
  }

 private:
  char* memory = nullptr;
};

}  // namespace swin::SWIN_ISA
