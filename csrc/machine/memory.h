// The processor's caches, and pages of memory.
//
// This part is compiled once, for every processor.
#pragma once

#include <cstdint>

namespace swin {

// Bytes of the L2 cache of a core; 1 MiB if the processor does not report the size.
int64_t l2_bytes();

// Ask the system for pages of 2 MiB inside a new array, if the array has room for some. Pages of 4 KiB cost a fault
// each at the first access: 5 % of a training step.
void request_large_pages(void* memory, int64_t bytes);

}  // namespace swin
