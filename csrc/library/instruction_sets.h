// The instruction sets with kernels, and tests for them on this processor.
//
// SWIN_WITH_...: the compiler supports this instruction set. The code below compiles on other compilers, too.
#pragma once

#include "library/isa_functions.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif
#if defined(SWIN_WITH_NEON_BF16) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(SWIN_WITH_NEON_BF16) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(SWIN_WITH_AMX) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace swin {

namespace avx2 {
extern const IsaFunctions functions;
}
namespace avx2_vnni {
extern const IsaFunctions functions;
}
namespace avx512 {
extern const IsaFunctions functions;
}
namespace avx512_vnni {
extern const IsaFunctions functions;
}
namespace avx512_bf16 {
extern const IsaFunctions functions;
}
namespace amx {
extern const IsaFunctions functions;
}
namespace neon_bf16 {
extern const IsaFunctions functions;
}
namespace neon {
extern const IsaFunctions functions;
}

struct InstructionSet {
  const IsaFunctions* functions;
  bool (*usable)();
  bool (*slow)() = [] { return false; };  // slower than the next set
};

#ifdef __x86_64__
// Ask the processor by cpuid. `__builtin_cpu_supports` needs a library of the compiler, and zig's always answers no.
struct Cpuid {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // 0 for unknown leaves
};

inline Cpuid cpuid(unsigned leaf, unsigned subleaf) {
  Cpuid found;
  __get_cpuid_count(leaf, subleaf, &found.eax, &found.ebx, &found.ecx, &found.edx);
  return found;
}

inline bool all_of(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

// Return true if the system saves these registers (bits of XCR0) of a thread. Without this, the instructions are
// unusable.
inline bool system_keeps(unsigned registers) {
  constexpr unsigned OSXSAVE = 1u << 27;
  if (!all_of(cpuid(1, 0).ecx, OSXSAVE)) return false;
  unsigned low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return all_of(low, registers);
}

inline bool has_avx2() {
  constexpr unsigned FMA = 1u << 12, AVX = 1u << 28, AVX2 = 1u << 5, XMM_YMM = 0x6;
  return all_of(cpuid(1, 0).ecx, FMA | AVX) && all_of(cpuid(7, 0).ebx, AVX2) && system_keeps(XMM_YMM);
}

inline bool has_avx512() {
  constexpr unsigned F = 1u << 16, DQ = 1u << 17, BW = 1u << 30, VL = 1u << 31, MASKS_ZMM = 0xe0;
  return has_avx2() && all_of(cpuid(7, 0).ebx, F | DQ | BW | VL) && system_keeps(MASKS_ZMM);
}

inline bool has_avx512_vnni() {
  constexpr unsigned VNNI = 1u << 11;
  return has_avx512() && all_of(cpuid(7, 0).ecx, VNNI);
}

inline bool has_avx2_vnni() {
#if defined(SWIN_EMULATE_AVX_VNNI)
  return has_avx512_vnni();
#else
  constexpr unsigned AVX_VNNI = 1u << 4;
  return has_avx2() && cpuid(7, 0).eax >= 1 && all_of(cpuid(7, 1).eax, AVX_VNNI);
#endif
}

inline bool has_avx512_bf16() {
  constexpr unsigned BF16 = 1u << 5;
  return has_avx512_vnni() && cpuid(7, 0).eax >= 1 && all_of(cpuid(7, 1).eax, BF16);
}

// Intel's processors sum products of bf16 slower than products of float32.
inline bool sums_bf16_slowly() {
  constexpr unsigned GENU = 0x756e6547;  // of "GenuineIntel"
  return cpuid(0, 0).ebx == GENU;
}
#endif
#ifdef SWIN_WITH_AMX
inline bool has_amx() {
#if defined(SWIN_EMULATE_AMX)
  return has_avx512_bf16();
#elif defined(__linux__)
  // Linux permits AMX to a process on request.
  constexpr unsigned AMX_BF16 = 1u << 22, AMX_TILE = 1u << 24, AMX_INT8 = 1u << 25;
  constexpr long REQUEST = 0x1023, TILE_DATA = 18;
  return has_avx512_bf16() && all_of(cpuid(7, 0).edx, AMX_BF16 | AMX_TILE | AMX_INT8) &&
         syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
  return false;
#endif
}
#endif
#ifdef SWIN_WITH_NEON_BF16
inline bool has_neon_bf16() {
#if defined(__linux__)
  constexpr unsigned long BF16 = 1ul << 14, DOT_PRODUCT = 1ul << 20;
  return getauxval(AT_HWCAP2) & BF16 && getauxval(AT_HWCAP) & DOT_PRODUCT;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_BF16", &has, &size, nullptr, 0) == 0 && has;
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
    {&amx::functions, has_amx},
#endif
#ifdef SWIN_WITH_AVX512_BF16
    {&avx512_bf16::functions, has_avx512_bf16, sums_bf16_slowly},
#endif
#ifdef SWIN_WITH_AVX512_VNNI
    {&avx512_vnni::functions, has_avx512_vnni},
#endif
#ifdef SWIN_WITH_AVX512
    {&avx512::functions, has_avx512},
#endif
#ifdef SWIN_WITH_AVX2_VNNI
    {&avx2_vnni::functions, has_avx2_vnni},
#endif
#ifdef SWIN_WITH_AVX2
    {&avx2::functions, has_avx2},
#endif
#ifdef SWIN_WITH_NEON_BF16
    {&neon_bf16::functions, has_neon_bf16},
#endif
#ifdef SWIN_WITH_NEON
    {&neon::functions, has_neon},
#endif
};

}  // namespace swin
