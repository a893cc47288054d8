// Errors of a call, and checks of its arguments.
//
// This part is compiled once, for every processor.
#pragma once

#include <cstdint>
#include <limits>

#include "library/isa_functions.h"

namespace swin {

// --- Errors ----------------------------------------------------------------------------------------------------------

// Throw an error with this text. `catch_errors` returns its status.
[[noreturn, gnu::format(printf, 2, 3)]] void fail(int32_t status, const char* format, ...);

// The status of the exception that a handler has caught.
int32_t status_of_exception();

// Run `f`, and return its status: no exception leaves a function of swin.h.
template <class F>
int32_t catch_errors(const F& f) {
  try {
    f();
    return SWIN_OK;
  } catch (...) {
    return status_of_exception();
  }
}

// --- Numbers ---------------------------------------------------------------------------------------------------------

constexpr int64_t MAX_SIZE = 1 << 20;                               // a side of a map; numbers of a token or a patch
constexpr int64_t MAX_COUNT = std::numeric_limits<int32_t>::max();  // tokens of all maps; numbers of a weight
constexpr int64_t MAX_THREADS = 1024;
constexpr int64_t MAX_BYTES = int64_t{1} << 46;  // of an array; no process has more

int64_t require_within(const char* name, int64_t value, int64_t least, int64_t most);
// Return a b c. Fail if a factor is negative or the product above `most`.
int64_t require_product_within(const char* name, int64_t a, int64_t b, int64_t c, int64_t most);
// The batch may be empty, a map may not.
void check_sizes(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t least_channels);
// The numbers of maps (B, H, W, C), whose sizes are checked.
int64_t numbers_of_maps(int64_t batch, int64_t height, int64_t width, int64_t channels);
// The numbers from the first to the last of an array with strides. Fail if they reach out of all memory.
int64_t span_of(const char* name, const int64_t (&sizes)[4], const int64_t (&strides)[4]);

bool is_dtype(int32_t dtype);  // of enum swin_dtype
// Check the dtype, and return the functions in use.
const IsaFunctions& isa_for(int32_t dtype);
// Fail for a dtype of forward passes alone.
void check_not_int8(const char* what, int32_t dtype);
int64_t size_of(int32_t dtype);  // in bytes

// --- Arrays ----------------------------------------------------------------------------------------------------------

void require_pointer(const char* name, const void* pointer);

// The arrays of a call. Written arrays overlap with no other array.
class Arrays {
 public:
  void read(const char* name, const void* first, int64_t count, int64_t size = sizeof(float));
  void read_if(const char* name, const void* first, int64_t count);  // null: nothing is read
  void write(const char* name, void* first, int64_t count, int64_t size = sizeof(float));
  void add_saved(const void* first, int64_t bytes, bool written);
  void check_overlaps() const;
  void write_zeros() const;

 private:
  struct Array {
    const char* name;
    uintptr_t first;
    uint64_t bytes;
    void* written;  // the array, or null for an array to read
  };

  void add(const char* name, const void* first, int64_t numbers, int64_t size, int64_t alignment, void* written);

  static constexpr int MAX = 64;
  Array arrays[MAX];
  int count = 0;
};

}  // namespace swin
