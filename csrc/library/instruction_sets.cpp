// The choice of an instruction set.

#include "library/instruction_sets.h"

#include <atomic>
#include <cstring>
#include <string>

#include "library/arguments.h"

namespace swin {
namespace {

const IsaFunctions* best_isa() {
  for (const auto& [isa, usable, slow] : INSTRUCTION_SETS)
    if (usable() && !slow()) return isa;
  return nullptr;
}

std::atomic<const IsaFunctions*>& chosen_isa() {
  static std::atomic<const IsaFunctions*> isa{best_isa()};
  return isa;
}

thread_local const IsaFunctions* thread_isa = nullptr;  // in place of the chosen set

constexpr char NO_ISA[] = "this processor has none of the instruction sets that the library has kernels for";

}  // namespace

const IsaFunctions* find_isa(const char* name) {
  for (const auto& [isa, usable, slow] : INSTRUCTION_SETS)
    if (!std::strcmp(isa->name, name) && usable()) return isa;
  return nullptr;
}

const IsaFunctions* isa_in_use() { return thread_isa ? thread_isa : chosen_isa().load(); }

IsaOfThread::IsaOfThread(const IsaFunctions* isa) : before(thread_isa) { thread_isa = isa; }
IsaOfThread::~IsaOfThread() { thread_isa = before; }

}  // namespace swin

using namespace swin;

const char* swin_isa(void) {
  const IsaFunctions* isa = isa_in_use();
  return isa ? isa->name : "";
}

const char* swin_int8_products(void) {
  const IsaFunctions* isa = isa_in_use();
  return isa ? isa->int8_products : "";
}

const char* swin_isas(void) {
  static const std::string names = [] {
    std::string all;
    for (const auto& [isa, usable, slow] : INSTRUCTION_SETS) (all += all.empty() ? "" : " ") += isa->name;
    return all;
  }();
  return names.c_str();
}

int32_t swin_use_isa(const char* name) {
  return catch_errors([&] {
    const IsaFunctions* isa = name ? find_isa(name) : best_isa();
    if (!isa && !name) fail(SWIN_UNSUPPORTED, "%s", NO_ISA);
    if (!isa) fail(SWIN_UNSUPPORTED, "this processor, or this library, has no instruction set named \"%.64s\"", name);
    chosen_isa() = isa;
  });
}

const char* swin_why_not(int32_t dtype) {
  if (!isa_in_use()) return NO_ISA;
  return is_dtype(dtype) ? nullptr : "dtype must be SWIN_FLOAT32, SWIN_BFLOAT16 or SWIN_INT8";
}
