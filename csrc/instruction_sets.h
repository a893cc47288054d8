// Which instruction sets there are kernels for, and which of them the processor has.
//
// SWIN_WITH_...: the compiler had flags for this one. One that has none does not know its name either.
#pragma once

#include "kernels.h"

#if defined(SWIN_WITH_AMX) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace swin {

namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx512_bf16 {
extern const Kernels kernels;
}
namespace amx {
extern const Kernels kernels;
}
namespace neon {
extern const Kernels kernels;
}

struct InstructionSet {
  const Kernels* kernels;
  bool (*usable)();
};

#ifdef SWIN_WITH_AVX2
inline bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif
#ifdef SWIN_WITH_AVX512
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#endif
#ifdef SWIN_WITH_AVX512_BF16
inline bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif
#ifdef SWIN_WITH_AMX
inline bool has_amx() {
#if defined(SWIN_EMULATE_AMX)
  return has_avx512_bf16();
#elif defined(__linux__)
  // Not every compiler that has flags for AMX knows a name to ask for it. Linux gives the right to use it to a process
  // that asks.
  constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24;
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return has_avx512_bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & AMX_BF16) && (edx & AMX_TILE) &&
         syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return false;
#endif
}
#endif
#ifdef SWIN_WITH_NEON
inline bool has_neon() { return true; }  // every ARM64 processor has it
#endif

// The best first.
inline constexpr InstructionSet INSTRUCTION_SETS[] = {
#ifdef SWIN_WITH_AMX
    {&amx::kernels, has_amx},
#endif
#ifdef SWIN_WITH_AVX512_BF16
    {&avx512_bf16::kernels, has_avx512_bf16},
#endif
#ifdef SWIN_WITH_AVX512
    {&avx512::kernels, has_avx512},
#endif
#ifdef SWIN_WITH_AVX2
    {&avx2::kernels, has_avx2},
#endif
#ifdef SWIN_WITH_NEON
    {&neon::kernels, has_neon},
#endif
};

}  // namespace swin
