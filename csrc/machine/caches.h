// Sizes of the processor's caches.
//
// This part is compiled once, for every processor.
#pragma once

#include <cstdint>

namespace swin {

// Bytes of the L2 cache of a core; 1 MiB if the processor does not report the size.
int64_t l2_bytes();

}  // namespace swin
