#include "machine/memory.h"

#ifdef __x86_64__
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <unistd.h>
#endif
#ifdef __linux__
#include <sys/mman.h>
#endif

namespace swin {
namespace {

int64_t reported_l2_bytes() {
#ifdef __x86_64__
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000006, &a, &b, &c, &d) ? static_cast<int64_t>(c >> 16) << 10 : 0;
#elif defined(__APPLE__)
  int64_t bytes = 0;
  size_t size = sizeof bytes;
  return sysctlbyname("hw.l2cachesize", &bytes, &size, nullptr, 0) == 0 ? bytes : 0;
#elif defined(_SC_LEVEL2_CACHE_SIZE)
  return sysconf(_SC_LEVEL2_CACHE_SIZE);
#else
  return 0;
#endif
}

}  // namespace

int64_t l2_bytes() {
  static const int64_t bytes = reported_l2_bytes() > 0 ? reported_l2_bytes() : int64_t{1} << 20;
  return bytes;
}

void request_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  constexpr int64_t PAGE = 2 << 20;
  const int64_t before = -reinterpret_cast<intptr_t>(memory) & (PAGE - 1);  // the first whole page
  const int64_t whole = (bytes - before) / PAGE * PAGE;
  if (whole > 0) madvise(static_cast<char*>(memory) + before, whole, MADV_HUGEPAGE);  // a refusal changes nothing
#endif
}

}  // namespace swin
