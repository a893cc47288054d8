#include "library/arguments.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <new>

namespace swin {
namespace {

thread_local char message[512] = "";

// The error of an argument, with its text in `message`.
struct Invalid {
  int32_t status;
};

}  // namespace

void fail(int32_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  throw Invalid{status};
}

int32_t status_of_exception() {
  try {
    throw;
  } catch (const Invalid& invalid) {
    return invalid.status;
  } catch (const std::bad_alloc&) {
    std::snprintf(message, sizeof message, "there is not enough memory");
    return SWIN_NO_MEMORY;
  } catch (...) {
    std::snprintf(message, sizeof message, "the library failed for an unknown reason");
    return SWIN_FAILED;
  }
}

int64_t require_within(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail(SWIN_INVALID, "%s must be from %lld to %lld, got %lld", name, static_cast<long long>(least),
         static_cast<long long>(most), static_cast<long long>(value));
  return value;
}

int64_t require_product_within(const char* name, int64_t a, int64_t b, int64_t c, int64_t most) {
  int64_t product = 1;
  for (const int64_t factor : {a, b, c}) {
    if (factor < 0 || (factor && product > most / factor))
      fail(SWIN_INVALID, "%s must be at most %lld, got %lld times %lld times %lld", name, static_cast<long long>(most),
           static_cast<long long>(a), static_cast<long long>(b), static_cast<long long>(c));
    product *= factor;
  }
  return product;
}

void check_sizes(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t least_channels) {
  require_within("batch", batch, 0, MAX_COUNT);
  require_within("height", height, 1, MAX_SIZE);
  require_within("width", width, 1, MAX_SIZE);
  require_within("channels", channels, least_channels, MAX_SIZE);
}

int64_t numbers_of_maps(int64_t batch, int64_t height, int64_t width, int64_t channels) {
  check_sizes(batch, height, width, channels, 1);
  return require_product_within("the number of tokens", batch, height, width, MAX_COUNT) * channels;
}

int64_t span_of(const char* name, const int64_t (&sizes)[4], const int64_t (&strides)[4]) {
  int64_t span = 1;
  for (int i = 0; i < 4; i++) {
    require_within("a stride", strides[i], 0, MAX_BYTES);
    const int64_t steps = std::max<int64_t>(sizes[i] - 1, 0);
    if (steps && strides[i] > (MAX_BYTES - span) / steps)
      fail(SWIN_INVALID, "the strides of %s reach out of all memory", name);
    span += strides[i] * steps;
  }
  return span;
}

bool is_dtype(int32_t dtype) { return dtype == SWIN_FLOAT32 || dtype == SWIN_BFLOAT16 || dtype == SWIN_INT8; }

const IsaFunctions& isa_for(int32_t dtype) {
  if (!is_dtype(dtype)) fail(SWIN_INVALID, "dtype must be SWIN_FLOAT32, SWIN_BFLOAT16 or SWIN_INT8, got %d", dtype);
  if (const char* reason = swin_why_not(dtype)) fail(SWIN_UNSUPPORTED, "%s", reason);
  return *isa_in_use();
}

void check_not_int8(const char* what, int32_t dtype) {
  if (dtype == SWIN_INT8) fail(SWIN_INVALID, "%s must be SWIN_FLOAT32 or SWIN_BFLOAT16, not SWIN_INT8", what);
}

int64_t size_of(int32_t dtype) { return dtype == SWIN_INT8 ? 1 : dtype == SWIN_BFLOAT16 ? 2 : 4; }

void require_pointer(const char* name, const void* pointer) {
  if (!pointer) fail(SWIN_INVALID, "%s must not be null", name);
}

void Arrays::read(const char* name, const void* first, int64_t count, int64_t size) {
  add(name, first, count, size, size, nullptr);
}

void Arrays::read_if(const char* name, const void* first, int64_t count) {
  if (first) read(name, first, count);
}

void Arrays::write(const char* name, void* first, int64_t count, int64_t size) {
  add(name, first, count, size, size, first);
}

void Arrays::add_saved(const void* first, int64_t bytes, bool written) {
  add("saved", first, bytes, 1, 64, written ? const_cast<void*>(first) : nullptr);
}

void Arrays::check_overlaps() const {
  for (int i = 0; i < count; i++) {
    if (!arrays[i].written) continue;
    for (int j = 0; j < count; j++) {
      const Array &a = arrays[i], &b = arrays[j];
      if (i != j && a.first < b.first + b.bytes && b.first < a.first + a.bytes)
        fail(SWIN_INVALID, "%s is written, and must not overlap with %s", a.name, b.name);
    }
  }
}

void Arrays::write_zeros() const {
  for (int i = 0; i < count; i++)
    if (arrays[i].written) std::memset(arrays[i].written, 0, arrays[i].bytes);
}

void Arrays::add(const char* name, const void* first, int64_t numbers, int64_t size, int64_t alignment, void* written) {
  if (!numbers) return;
  require_pointer(name, first);
  if (numbers < 0 || numbers > MAX_BYTES / size)
    fail(SWIN_INVALID, "%s would have %lld numbers, which no memory holds", name, static_cast<long long>(numbers));
  const auto address = reinterpret_cast<uintptr_t>(first);
  if (address % alignment)
    fail(SWIN_INVALID, "%s must begin at a multiple of %lld bytes in memory", name, static_cast<long long>(alignment));
  const auto bytes = static_cast<uint64_t>(numbers * size);
  if (address > UINTPTR_MAX - bytes) fail(SWIN_INVALID, "%s must lie in the memory of a process", name);
  if (count == MAX) fail(SWIN_FAILED, "a call has more arrays than the library checks");
  arrays[count++] = {name, address, bytes, written};
}

}  // namespace swin

int32_t swin_version(void) { return SWIN_VERSION; }

const char* swin_error(void) { return swin::message; }
