// The choice of an instruction set.

#include "library/instruction_sets.h"

#include <atomic>
#include <cstring>
#include <string>

#include "library/arguments.h"

namespace swin {
namespace {

const Kernels* best_kernels() {
  for (const auto& [kernels, usable, slow] : INSTRUCTION_SETS)
    if (usable() && !slow()) return kernels;
  return nullptr;
}

std::atomic<const Kernels*>& chosen_kernels() {
  static std::atomic<const Kernels*> kernels{best_kernels()};
  return kernels;
}

thread_local const Kernels* thread_kernels = nullptr;  // in place of the chosen kernels

constexpr char NO_KERNELS[] = "this processor has none of the instruction sets that the library has kernels for";

}  // namespace

const Kernels* find_kernels(const char* name) {
  for (const auto& [kernels, usable, slow] : INSTRUCTION_SETS)
    if (!std::strcmp(kernels->isa, name) && usable()) return kernels;
  return nullptr;
}

const Kernels* kernels_in_use() { return thread_kernels ? thread_kernels : chosen_kernels().load(); }

KernelsOfThread::KernelsOfThread(const Kernels* kernels) : before(thread_kernels) { thread_kernels = kernels; }
KernelsOfThread::~KernelsOfThread() { thread_kernels = before; }

}  // namespace swin

using namespace swin;

const char* swin_isa(void) {
  const Kernels* kernels = kernels_in_use();
  return kernels ? kernels->isa : "";
}

const char* swin_int8_products(void) {
  const Kernels* kernels = kernels_in_use();
  return kernels ? kernels->int8_products : "";
}

const char* swin_isas(void) {
  static const std::string names = [] {
    std::string all;
    for (const auto& [kernels, usable, slow] : INSTRUCTION_SETS) (all += all.empty() ? "" : " ") += kernels->isa;
    return all;
  }();
  return names.c_str();
}

int32_t swin_use_isa(const char* name) {
  return catch_errors([&] {
    const Kernels* kernels = name ? find_kernels(name) : best_kernels();
    if (!kernels && !name) fail(SWIN_UNSUPPORTED, "%s", NO_KERNELS);
    if (!kernels)
      fail(SWIN_UNSUPPORTED, "this processor, or this library, has no instruction set named \"%.64s\"", name);
    chosen_kernels() = kernels;
  });
}

const char* swin_why_not(int32_t dtype) {
  if (!kernels_in_use()) return NO_KERNELS;
  return is_dtype(dtype) ? nullptr : "dtype must be SWIN_FLOAT32, SWIN_BFLOAT16 or SWIN_INT8";
}
