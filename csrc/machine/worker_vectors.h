// Sums of vectors, of several threads.
#pragma once

#include <algorithm>

#include "machine/arena.h"
#include "machine/row_functions.h"

namespace swin::SWIN_ISA {

// The vector sums of each worker, at first zeros. `add` adds those of all workers in a fixed order.
class WorkerVectors {
 public:
  WorkerVectors(int64_t workers, int64_t size) : workers(workers), size(size) {
    memory.allocate([&](Arena& arena) { sums = arena.take<float>(workers * size); });
    std::fill_n(sums, workers * size, 0.f);
  }
  float* operator[](int64_t worker) const { return sums + worker * size; }
  float* add() const {
    for (int64_t worker = 1; worker < workers; worker++) add_row((*this)[worker], size, sums);
    return sums;
  }

 private:
  const int64_t workers, size;
  float* sums;
  Memory memory;
};

}  // namespace swin::SWIN_ISA
