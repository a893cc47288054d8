// The functions of swin.h: check arguments, then call the kernels of the instruction set.

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <new>
#include <string>

#include "detection/roi_axes.h"
#include "library/instruction_sets.h"
#include "library/kernels.h"

namespace swin {

namespace {

// --- Errors ----------------------------------------------------------------------------------------------------------

thread_local char message[512] = "";

// The error of an argument, with its text in `message`.
struct Invalid {
  int32_t status;
};

[[noreturn, gnu::format(printf, 2, 3)]] void fail(int32_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  throw Invalid{status};
}

// Run `f`, and return its status: no exception leaves a function of swin.h.
template <class F>
int32_t catch_errors(const F& f) {
  try {
    f();
    return SWIN_OK;
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

// --- The instruction set ---------------------------------------------------------------------------------------------

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

bool is_dtype(int32_t dtype) { return dtype == SWIN_FLOAT32 || dtype == SWIN_BFLOAT16 || dtype == SWIN_INT8; }

const char* why_not(int32_t dtype) {
  if (!kernels_in_use()) return "this processor has none of the instruction sets that the library has kernels for";
  if (!is_dtype(dtype)) return "dtype must be SWIN_FLOAT32, SWIN_BFLOAT16 or SWIN_INT8";
  return nullptr;
}

const Kernels& kernels_for(int32_t dtype) {
  if (!is_dtype(dtype)) fail(SWIN_INVALID, "dtype must be SWIN_FLOAT32, SWIN_BFLOAT16 or SWIN_INT8, got %d", dtype);
  if (const char* reason = why_not(dtype)) fail(SWIN_UNSUPPORTED, "%s", reason);
  return *kernels_in_use();
}

// Fail for a dtype of forward passes alone.
void check_not_int8(const char* what, int32_t dtype) {
  if (dtype == SWIN_INT8) fail(SWIN_INVALID, "%s must be SWIN_FLOAT32 or SWIN_BFLOAT16, not SWIN_INT8", what);
}

// --- Arguments -------------------------------------------------------------------------------------------------------

constexpr int64_t MAX_SIZE = 1 << 20;                               // a side of a map; numbers of a token or a patch
constexpr int64_t MAX_COUNT = std::numeric_limits<int32_t>::max();  // tokens of all maps; numbers of a weight
constexpr int64_t MAX_BINS = 4096, MAX_SAMPLES = 1024;
constexpr int64_t MAX_WINDOW = 16, MAX_UNIT = 96, MAX_THREADS = 1024;
constexpr int64_t MAX_TERMS = 1 << 16;           // of a sum in eight bits, which fits in 32 bits
constexpr int64_t MAX_BYTES = int64_t{1} << 46;  // of an array; no process has more

int64_t require_within(const char* name, int64_t value, int64_t least, int64_t most) {
  if (value < least || value > most)
    fail(SWIN_INVALID, "%s must be from %lld to %lld, got %lld", name, static_cast<long long>(least),
         static_cast<long long>(most), static_cast<long long>(value));
  return value;
}

// Return a b c. Fail if a factor is negative or the product above `most`.
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

void require_pointer(const char* name, const void* pointer) {
  if (!pointer) fail(SWIN_INVALID, "%s must not be null", name);
}

// The arrays of a call. Written arrays overlap with no other array.
class Arrays {
 public:
  void read(const char* name, const void* first, int64_t count, int64_t size = sizeof(float)) {
    add(name, first, count, size, size, nullptr);
  }
  void read_if(const char* name, const void* first, int64_t count) {
    if (first) read(name, first, count);
  }
  void write(const char* name, void* first, int64_t count, int64_t size = sizeof(float)) {
    add(name, first, count, size, size, first);
  }
  void add_saved(const void* first, int64_t bytes, bool written) {
    add("saved", first, bytes, 1, 64, written ? const_cast<void*>(first) : nullptr);
  }
  void check_overlaps() const {
    for (int i = 0; i < count; i++)
      for (int j = 0; j < count && arrays[i].written; j++) {
        const Array &a = arrays[i], &b = arrays[j];
        if (i != j && a.first < b.first + b.bytes && b.first < a.first + a.bytes)
          fail(SWIN_INVALID, "%s is written, and must not overlap with %s", a.name, b.name);
      }
  }
  void write_zeros() const {
    for (int i = 0; i < count; i++)
      if (arrays[i].written) std::memset(arrays[i].written, 0, arrays[i].bytes);
  }

 private:
  struct Array {
    const char* name;
    uintptr_t first;
    uint64_t bytes;
    void* written;  // the array, or null for an array to read
  };

  void add(const char* name, const void* first, int64_t numbers, int64_t size, int64_t alignment, void* written) {
    if (!numbers) return;
    require_pointer(name, first);
    if (numbers < 0 || numbers > MAX_BYTES / size)
      fail(SWIN_INVALID, "%s would have %lld numbers, which no memory holds", name, static_cast<long long>(numbers));
    const auto address = reinterpret_cast<uintptr_t>(first);
    if (address % alignment)
      fail(SWIN_INVALID, "%s must begin at a multiple of %lld bytes in memory", name,
           static_cast<long long>(alignment));
    const auto bytes = static_cast<uint64_t>(numbers * size);
    if (address > UINTPTR_MAX - bytes) fail(SWIN_INVALID, "%s must lie in the memory of a process", name);
    if (count == MAX) fail(SWIN_FAILED, "a call has more arrays than the library checks");
    arrays[count++] = {name, address, bytes, written};
  }

  static constexpr int MAX = 64;
  Array arrays[MAX];
  int count = 0;
};

int64_t size_of(int32_t dtype) { return dtype == SWIN_INT8 ? 1 : dtype == SWIN_BFLOAT16 ? 2 : 4; }

// The size of a packed weight in numbers of 4 bytes.
int64_t packed_numbers(const Kernels& kernels, int32_t dtype, int64_t N, int64_t K) {
  require_within("a weight's outputs", N, 1, MAX_COUNT);
  require_within("a weight's inputs", K, 1, dtype == SWIN_INT8 ? MAX_TERMS : MAX_COUNT);
  require_product_within("the numbers of a weight", N, K, 1, MAX_COUNT);
  return kernels.packed_bytes(dtype, N, K) / 4;
}

// The batch may be empty, a map may not.
void check_sizes(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t least_channels) {
  require_within("batch", batch, 0, MAX_COUNT);
  require_within("height", height, 1, MAX_SIZE);
  require_within("width", width, 1, MAX_SIZE);
  require_within("channels", channels, least_channels, MAX_SIZE);
}

// Return the numbers from the first to the last of an array with strides.
int64_t check_strides(const char* name, const int64_t (&sizes)[4], const int64_t (&strides)[4]) {
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

// Return the numbers of maps (B, H, W, C).
int64_t check_maps(int64_t batch, int64_t height, int64_t width, int64_t channels) {
  check_sizes(batch, height, width, channels, 1);
  return require_product_within("the number of tokens", batch, height, width, MAX_COUNT) * channels;
}

const char* const LINEAR_NAMES[] = {"qkv's weight", "proj's weight", "fc1's weight", "fc2's weight"};
const char* const BIAS_NAMES[] = {"qkv's bias", "proj's bias", "fc1's bias", "fc2's bias"};
const char* const TRANSPOSED_NAMES[] = {"qkv's transposed weight", "proj's transposed weight",
                                        "fc1's transposed weight", "fc2's transposed weight"};

int64_t outputs_of(const swin_block& b, int i) {
  return i == SWIN_QKV ? 3 * b.channels : i == SWIN_FC1 ? b.hidden : b.channels;
}
int64_t numbers_of(const swin_block& b) { return b.batch * b.height * b.width * b.channels; }
int64_t inputs_of(const swin_block& b, int i) { return i == SWIN_FC2 ? b.hidden : b.channels; }

// Check all fields but the memory of the maps, and return the kernels. `arrays` gets the arrays to read.
const Kernels& check_block(const swin_block* block, Arrays& arrays) {
  require_pointer("block", block);
  const swin_block& b = *block;
  const Kernels& kernels = kernels_for(b.dtype);
  require_within("threads", b.threads, 1, MAX_THREADS);
  check_maps(b.batch, b.height, b.width, b.channels);
  const int64_t C = b.channels, h = b.heads;
  if (h <= 0 || C % h || C / h % 8 || C / h > 64)
    fail(SWIN_INVALID, "heads must have 8, 16, ... 64 channels, got %lld of %lld in all", static_cast<long long>(h),
         static_cast<long long>(C));
  require_within("the MLP's hidden channels", b.hidden, 8, MAX_SIZE);
  if (b.hidden % 8)
    fail(SWIN_INVALID, "the MLP's hidden channels must be a multiple of 8, got %lld", static_cast<long long>(b.hidden));
  require_within("a side of the window", b.window_height, 1, MAX_WINDOW);
  require_within("a side of the window", b.window_width, 1, MAX_WINDOW);
  require_within("a shift", b.shift_height, 0, b.window_height - 1);
  require_within("a shift", b.shift_width, 0, b.window_width - 1);
  require_within("padding", b.padding, 0, SWIN_PADDINGS - 1);
  for (int i = 0; i < SWIN_LINEARS; i++) {
    const int64_t N = outputs_of(b, i), K = inputs_of(b, i);
    arrays.read(LINEAR_NAMES[i], b.linear[i], packed_numbers(kernels, b.dtype, N, K));
    arrays.read_if(BIAS_NAMES[i], b.bias[i], N);
  }
  const int64_t N = b.window_height * b.window_width;
  arrays.read_if("norm1's weight", b.norm1_weight, C);
  arrays.read_if("norm1's bias", b.norm1_bias, C);
  arrays.read_if("norm2's weight", b.norm2_weight, C);
  arrays.read_if("norm2's bias", b.norm2_bias, C);
  arrays.read_if("norm3's weight", b.norm3_weight, C);
  arrays.read_if("norm3's bias", b.norm3_bias, C);
  arrays.read("position_bias", b.position_bias, h * N * N);
  arrays.read_if("cosine_scale", b.cosine_scale, h);
  arrays.read_if("drop_path", b.drop_path, 2 * b.batch);
  return kernels;
}

Windows windows_of(const swin_block& b) {
  return {b.batch, Axis(b.height, b.window_height, b.shift_height, b.padding),
          Axis(b.width, b.window_width, b.shift_width, b.padding)};
}

// Check the saved activations of a forward pass.
void check_saved(const Kernels& kernels, const swin_block& b, const Windows& windows, const void* saved, int64_t groups,
                 bool written, Arrays& arrays) {
  if (!saved) return;
  check_not_int8("the dtype of saved activations", b.dtype);
  require_within("saved's groups", groups, 1, windows.count());
  arrays.check_overlaps();  // the size reads the position bias
  int64_t bytes = 0;
  kernels.block_saved_size(b, windows, groups, bytes);
  arrays.add_saved(saved, groups * bytes, written);
}

int64_t tokens_of_patches(const swin_images& images) {
  const int64_t rows = (images.height + images.patch_height - 1) / images.patch_height;
  const int64_t columns = (images.width + images.patch_width - 1) / images.patch_width;
  return require_product_within("the number of patches", images.batch, rows, columns, MAX_COUNT);
}

// Returns K.
int64_t check_images(const swin_images* images, Arrays& arrays) {
  require_pointer("images", images);
  const swin_images& given = *images;
  check_sizes(given.batch, given.height, given.width, given.channels, 1);
  require_within("a side of the patch", given.patch_height, 1, MAX_SIZE);
  require_within("a side of the patch", given.patch_width, 1, MAX_SIZE);
  const int64_t K =
      require_product_within("the numbers of a patch", given.channels, given.patch_height, given.patch_width, MAX_SIZE);
  tokens_of_patches(given);
  const int64_t span = check_strides("images", {given.batch, given.channels, given.height, given.width}, given.stride);
  arrays.read("pixels", given.pixels, given.batch ? span : 0);
  return K;
}

int64_t check_merged(const swin_maps* maps, Arrays& arrays) {
  require_pointer("maps", maps);
  arrays.read("x", maps->x, check_maps(maps->batch, maps->height, maps->width, maps->channels));
  return 4 * maps->channels;
}

const Kernels& check_projection(const swin_projection* projection, int64_t K, bool norm_after, Arrays& arrays) {
  require_pointer("projection", projection);
  const swin_projection& p = *projection;
  const Kernels& kernels = kernels_for(p.dtype);
  require_within("threads", p.threads, 1, MAX_THREADS);
  require_within("outputs", p.outputs, 1, MAX_SIZE);
  arrays.read("the weight", p.linear, packed_numbers(kernels, p.dtype, p.outputs, K));
  arrays.read_if("bias", p.bias, p.outputs);
  if (p.has_norm) {
    arrays.read_if("the norm's weight", p.norm_weight, norm_after ? p.outputs : K);
    arrays.read_if("the norm's bias", p.norm_bias, norm_after ? p.outputs : K);
  }
  return kernels;
}

void check_projection_gradients(const Kernels& kernels, const swin_projection& p, int64_t K, bool norm_after,
                                const void* transposed, const float* grad_y, int64_t tokens, int64_t inputs,
                                const swin_projection_gradients* gradients, Arrays& arrays) {
  require_pointer("gradients", gradients);
  check_not_int8("the dtype of gradients", p.dtype);
  if (p.outputs % 2)
    fail(SWIN_INVALID, "a token must have an even number of channels, got %lld", static_cast<long long>(p.outputs));
  if (transposed) {
    arrays.read("the transposed weight", transposed, packed_numbers(kernels, p.dtype, K, p.outputs));
    arrays.write("x's gradient", gradients->x, inputs);
  }
  arrays.read("grad_y", grad_y, tokens * p.outputs);
  arrays.write("the weight's gradient", gradients->linear, p.outputs * K);
  arrays.write("the bias's gradient", gradients->bias, p.outputs);
  if (p.has_norm) {
    arrays.write("the gradient of the norm's weight", gradients->norm_weight, norm_after ? p.outputs : K);
    arrays.write("the gradient of the norm's bias", gradients->norm_bias, norm_after ? p.outputs : K);
  }
  arrays.check_overlaps();
}

int64_t convolution_numbers(int32_t tile, int64_t outputs, int64_t channels) {
  if (tile != 4 && tile != 6) fail(SWIN_INVALID, "tile must be 4 or 6, got %d", tile);
  require_within("outputs", outputs, 1, MAX_SIZE);
  require_within("channels", channels, 1, MAX_SIZE);
  return require_product_within("the numbers of a packed weight", outputs, channels, (tile + 2) * (tile + 2),
                                MAX_COUNT);
}

int64_t tokens_of_merged(const swin_maps& maps) {
  return maps.batch * ((maps.height + 1) / 2) * ((maps.width + 1) / 2);
}

const Kernels& check_output_norm(const float* x, int64_t batch, int64_t area, int64_t channels, const float* weight,
                                 const float* bias, int32_t threads, Arrays& arrays) {
  const Kernels& kernels = kernels_for(SWIN_FLOAT32);
  require_within("threads", threads, 1, MAX_THREADS);
  require_within("batch", batch, 0, MAX_COUNT);
  require_within("area", area, 1, MAX_COUNT);
  require_within("channels", channels, 1, MAX_SIZE);
  require_product_within("the number of tokens", batch, area, 1, MAX_COUNT);
  arrays.read("x", x, batch * area * channels);
  arrays.read_if("weight", weight, channels);
  arrays.read_if("bias", bias, channels);
  return kernels;
}

// Check all fields but the memory of the maps, and return the numbers that the maps span. Sides of 1 get a stride of 1.
int64_t check_roi_align(swin_roi_align& roi_align, Arrays& arrays) {
  if (roi_align.dtype != SWIN_FLOAT32 && roi_align.dtype != SWIN_BFLOAT16)
    fail(SWIN_INVALID, "dtype must be SWIN_FLOAT32 or SWIN_BFLOAT16, got %d", roi_align.dtype);
  require_within("threads", roi_align.threads, 1, MAX_THREADS);
  check_sizes(roi_align.batch, roi_align.height, roi_align.width, roi_align.channels, 0);
  require_within("bins down", roi_align.bins_height, 1, MAX_BINS);
  require_within("bins across", roi_align.bins_width, 1, MAX_BINS);
  require_within("samples", roi_align.samples, 0, MAX_SAMPLES);
  require_within("regions", roi_align.regions, 0, MAX_COUNT);
  arrays.read("boxes", roi_align.boxes, 5 * roi_align.regions);
  const int64_t sizes[] = {roi_align.batch, roi_align.channels, roi_align.height, roi_align.width};
  for (int i = 0; i < 4; i++)
    if (sizes[i] <= 1) roi_align.stride[i] = 1;
  const int64_t extent = check_strides("maps", sizes, roi_align.stride);
  if (roi_align.stride[3] != 1 && roi_align.stride[1] != 1)
    fail(SWIN_INVALID, "the stride of columns or that of channels must be 1, got %lld and %lld",
         static_cast<long long>(roi_align.stride[3]), static_cast<long long>(roi_align.stride[1]));
  RoiFault fault;
  const int64_t wrong = find_wrong_roi(roi_align, fault);
  if (wrong >= 0 && fault == RoiFault::IMAGE)
    fail(SWIN_INVALID, "a region's image must be from 0 to %lld, got %g of region %lld",
         static_cast<long long>(roi_align.batch - 1), static_cast<double>(roi_align.boxes[5 * wrong]),
         static_cast<long long>(wrong));
  if (wrong >= 0)
    fail(SWIN_INVALID, "a region ends before it begins, which RoIAlign with aligned=True does not take: region %lld",
         static_cast<long long>(wrong));
  return roi_align.batch && roi_align.channels ? extent : 0;
}

// Fail unless all numbers have different addresses: threads write channels of their own.
void check_apart(const swin_roi_align& roi_align) {
  const int64_t sizes[] = {roi_align.batch, roi_align.channels, roi_align.height, roi_align.width};
  const auto apart = [&](std::initializer_list<int> order) {  // from the innermost dimension on
    int64_t extent = 1;
    for (const int i : order) {
      if (sizes[i] > 1 && roi_align.stride[i] < extent) return false;
      extent += roi_align.stride[i] * std::max<int64_t>(sizes[i] - 1, 0);
    }
    return true;
  };
  if (!apart({3, 2, 1, 0}) && !apart({1, 3, 2, 0}))
    fail(SWIN_INVALID, "grad_maps must have numbers of its own, and its strides let some share memory");
}

// The numbers of each array.
struct DeformableSizes {
  int64_t values, samples, outputs;
};

DeformableSizes check_deformable(const swin_deformable& deformable, const float* values,
                                 const float* sampling_locations, const float* weights, Arrays& arrays) {
  require_within("threads", deformable.threads, 1, MAX_THREADS);
  require_within("heads", deformable.heads, 1, MAX_BINS);
  require_within("channels", deformable.channels, 1, MAX_BINS);
  require_within("levels", deformable.levels, 1, MAX_BINS);
  require_within("points", deformable.points, 1, MAX_BINS);
  const int64_t queries = require_product_within("queries", deformable.batch, deformable.queries, 1, MAX_COUNT);
  const int64_t tokens = require_product_within("tokens", deformable.batch, deformable.tokens, 1, MAX_COUNT);
  const DeformableSizes sizes{
      require_product_within("values", tokens, deformable.heads, deformable.channels, MAX_BYTES / 4),
      require_product_within("weights", queries * deformable.heads, deformable.levels, deformable.points,
                             MAX_BYTES / 8),
      require_product_within("outputs", queries, deformable.heads, deformable.channels, MAX_BYTES / 4)};
  arrays.read("shapes", deformable.shapes, 2 * deformable.levels, sizeof(int64_t));
  int64_t sum = 0;
  for (int64_t l = 0; l < deformable.levels; l++)
    sum += require_product_within("a shape", deformable.shapes[2 * l], deformable.shapes[2 * l + 1], 1, MAX_COUNT);
  require_within("tokens", deformable.tokens, sum, sum);
  arrays.read("values", values, sizes.values);
  arrays.read("sampling_locations", sampling_locations, 2 * sizes.samples);
  arrays.read("weights", weights, sizes.samples);
  return sizes;
}

int64_t pooled_numbers(const swin_roi_align& roi_align) {
  const int64_t bins = roi_align.bins_height * roi_align.bins_width;
  return require_product_within("the numbers of what is pooled", roi_align.regions, roi_align.channels, bins,
                                MAX_BYTES);
}

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

extern "C" {

int32_t swin_version(void) { return SWIN_VERSION; }

const char* swin_error(void) { return message; }

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
    if (!kernels && !name) fail(SWIN_UNSUPPORTED, "%s", why_not(SWIN_FLOAT32));
    if (!kernels)
      fail(SWIN_UNSUPPORTED, "this processor, or this library, has no instruction set named \"%.64s\"", name);
    chosen_kernels() = kernels;
  });
}

const char* swin_why_not(int32_t dtype) { return why_not(dtype); }

int64_t swin_packed_size(int32_t dtype, int64_t N, int64_t K) {
  int64_t size = 0;
  catch_errors([&] {
    const Kernels& kernels = kernels_for(dtype);
    size = packed_numbers(kernels, dtype, N, K) * 4 / size_of(dtype);
  });
  return size;
}

int32_t swin_pack(int32_t dtype, const float* weight, int64_t rows, int64_t columns, int64_t unit, int32_t transposed,
                  int32_t threads, void* packed) {
  return catch_errors([&] {
    const Kernels& kernels = kernels_for(dtype);
    require_within("threads", threads, 1, MAX_THREADS);
    require_within("unit", unit, 1, MAX_UNIT);
    const int64_t N = transposed ? columns : rows, K = transposed ? rows : columns;
    Arrays arrays;
    if (transposed) check_not_int8("the dtype of a transpose", dtype);
    arrays.write("packed", packed, packed_numbers(kernels, dtype, N, K));
    arrays.read("weight", weight, rows * columns);
    arrays.check_overlaps();
    kernels.pack(dtype, weight, N, K, unit, transposed != 0, threads, packed);
  });
}

int32_t swin_checksum(const void* const* pieces, const int64_t* bytes, int64_t count, int32_t threads, uint64_t* sum) {
  return catch_errors([&] {
    const Kernels& kernels = kernels_for(SWIN_FLOAT32);
    require_within("threads", threads, 1, MAX_THREADS);
    require_within("count", count, 0, MAX_COUNT);
    if (count) require_pointer("pieces", pieces), require_pointer("bytes", bytes);
    require_pointer("sum", sum);
    for (int64_t i = 0; i < count; i++) {
      require_within("bytes", bytes[i], 0, MAX_BYTES);
      if (bytes[i]) require_pointer("a piece", pieces[i]);
    }
    *sum = kernels.checksum(pieces, bytes, count, threads);
  });
}

int32_t swin_block_saved_size(const swin_block* block, int64_t* groups, int64_t* bytes) {
  return catch_errors([&] {
    Arrays arrays;
    const Kernels& kernels = check_block(block, arrays);
    require_pointer("groups", groups), require_pointer("bytes", bytes);
    check_not_int8("the dtype of saved activations", block->dtype);
    if (!block->batch) {
      *groups = *bytes = 0;
      return;
    }
    const Windows windows = windows_of(*block);
    require_within("groups", *groups, 0, windows.count());
    kernels.block_saved_size(*block, windows, *groups, *bytes);
  });
}

int32_t swin_block_forward(const swin_block* block, const float* x, float* y, void* saved, int64_t groups) {
  return catch_errors([&] {
    Arrays arrays;
    const Kernels& kernels = check_block(block, arrays);
    const int64_t numbers = numbers_of(*block);
    if (x != y) arrays.read("x", x, numbers);
    arrays.write("y", y, numbers);
    if (!numbers) return;
    const Windows windows = windows_of(*block);
    check_saved(kernels, *block, windows, saved, groups, true, arrays);
    arrays.check_overlaps();
    kernels.block_forward(*block, windows, x, y, static_cast<char*>(saved), groups);
  });
}

int32_t swin_block_backward(const swin_block* block, const void* const transposed[SWIN_LINEARS], const float* x,
                            const float* grad_y, const void* saved, int64_t groups,
                            const swin_block_gradients* gradients) {
  return catch_errors([&] {
    Arrays arrays;
    const Kernels& kernels = check_block(block, arrays);
    check_not_int8("the dtype of gradients", block->dtype);
    require_pointer("transposed", transposed), require_pointer("gradients", gradients);
    const swin_block& b = *block;
    const swin_block_gradients& to = *gradients;
    const int64_t numbers = numbers_of(b), N = b.window_height * b.window_width;
    arrays.read("x", x, numbers);
    arrays.read("grad_y", grad_y, numbers);
    arrays.write("x's gradient", to.x, numbers);
    for (int i = 0; i < SWIN_LINEARS; i++) {
      const int64_t size = outputs_of(b, i) * inputs_of(b, i);
      arrays.read(TRANSPOSED_NAMES[i], transposed[i],
                  packed_numbers(kernels, b.dtype, inputs_of(b, i), outputs_of(b, i)));
      arrays.write("a weight's gradient", to.linear[i], size);
      arrays.write("a bias's gradient", to.bias[i], outputs_of(b, i));
    }
    for (float* norm : {to.norm1_weight, to.norm1_bias, to.norm2_weight, to.norm2_bias, to.norm3_weight, to.norm3_bias})
      arrays.write("a norm's gradient", norm, b.channels);
    arrays.write("position_bias's gradient", to.position_bias, b.heads * N * N);
    arrays.write("cosine_scale's gradient", to.cosine_scale, b.heads);
    const Windows windows = windows_of(b);
    if (numbers) check_saved(kernels, b, windows, saved, groups, false, arrays);
    arrays.check_overlaps();
    if (!numbers) return arrays.write_zeros();
    kernels.block_backward(b, windows, transposed, x, grad_y, static_cast<char*>(const_cast<void*>(saved)), groups, to);
  });
}

int32_t swin_embed_forward(const swin_images* images, const swin_projection* projection, float* y) {
  return catch_errors([&] {
    Arrays arrays;
    const Kernels& kernels = check_projection(projection, check_images(images, arrays), true, arrays);
    const int64_t tokens = tokens_of_patches(*images);
    arrays.write("y", y, tokens * projection->outputs);
    arrays.check_overlaps();
    if (tokens) kernels.embed_forward(*images, *projection, y);
  });
}

int32_t swin_embed_backward(const swin_images* images, const swin_projection* projection, const void* transposed,
                            const float* grad_y, const swin_projection_gradients* gradients) {
  return catch_errors([&] {
    Arrays arrays;
    const int64_t K = check_images(images, arrays);
    const Kernels& kernels = check_projection(projection, K, true, arrays);
    const int64_t tokens = tokens_of_patches(*images), area = images->height * images->width;
    const int64_t numbers =
        require_product_within("the numbers of images", images->batch, images->channels, area, MAX_BYTES);
    check_projection_gradients(kernels, *projection, K, true, transposed, grad_y, tokens, numbers, gradients, arrays);
    if (!tokens) return arrays.write_zeros();
    kernels.embed_backward(*images, *projection, transposed, grad_y, *gradients);
  });
}

int32_t swin_merge_forward(const swin_maps* maps, const swin_projection* projection, float* y) {
  return catch_errors([&] {
    Arrays arrays;
    const int64_t K = check_merged(maps, arrays);
    const Kernels& kernels = check_projection(projection, K, maps->norm_after, arrays);
    const int64_t tokens = tokens_of_merged(*maps);
    arrays.write("y", y, tokens * projection->outputs);
    arrays.check_overlaps();
    if (tokens) kernels.merge_forward(*maps, *projection, y);
  });
}

int32_t swin_merge_backward(const swin_maps* maps, const swin_projection* projection, const void* transposed,
                            const float* grad_y, const swin_projection_gradients* gradients) {
  return catch_errors([&] {
    Arrays arrays;
    const int64_t K = check_merged(maps, arrays);
    const Kernels& kernels = check_projection(projection, K, maps->norm_after, arrays);
    const int64_t tokens = tokens_of_merged(*maps);
    const int64_t numbers = maps->batch * maps->height * maps->width * maps->channels;
    check_projection_gradients(kernels, *projection, K, maps->norm_after, transposed, grad_y, tokens, numbers,
                               gradients, arrays);
    if (!tokens) return arrays.write_zeros();
    kernels.merge_backward(*maps, *projection, transposed, grad_y, *gradients);
  });
}

int32_t swin_output_norm_forward(const float* x, int64_t batch, int64_t area, int64_t channels, const float* weight,
                                 const float* bias, float eps, int32_t threads, float* y) {
  return catch_errors([&] {
    Arrays arrays;
    const Kernels& kernels = check_output_norm(x, batch, area, channels, weight, bias, threads, arrays);
    arrays.write("y", y, batch * area * channels);
    arrays.check_overlaps();
    if (batch) kernels.output_norm_forward(x, batch, area, channels, weight, bias, eps, threads, y);
  });
}

int32_t swin_output_norm_backward(const float* x, const float* grad_y, int64_t batch, int64_t area, int64_t channels,
                                  const float* weight, float eps, int32_t threads, float* grad_x, float* grad_weight,
                                  float* grad_bias) {
  return catch_errors([&] {
    Arrays arrays;
    const Kernels& kernels = check_output_norm(x, batch, area, channels, weight, nullptr, threads, arrays);
    arrays.read("grad_y", grad_y, batch * area * channels);
    arrays.write("grad_x", grad_x, batch * area * channels);
    arrays.write("grad_weight", grad_weight, channels);
    arrays.write("grad_bias", grad_bias, channels);
    arrays.check_overlaps();
    if (!batch) return arrays.write_zeros();
    kernels.output_norm_backward(x, grad_y, batch, area, channels, weight, eps, threads, grad_x, grad_weight,
                                 grad_bias);
  });
}

int64_t swin_packed_convolution_size(int32_t tile, int64_t outputs, int64_t channels) {
  int64_t size = 0;
  catch_errors([&] { size = convolution_numbers(tile, outputs, channels); });
  return size;
}

int32_t swin_pack_convolution(const float* weight, int32_t tile, int64_t outputs, int64_t channels, int32_t threads,
                              float* packed) {
  return catch_errors([&] {
    const Kernels& kernels = kernels_for(SWIN_FLOAT32);
    require_within("threads", threads, 1, MAX_THREADS);
    const int64_t numbers = convolution_numbers(tile, outputs, channels);
    Arrays arrays;
    arrays.read("weight", weight, 9 * outputs * channels);
    arrays.write("packed", packed, numbers);
    arrays.check_overlaps();
    kernels.pack_convolution(weight, tile, outputs, channels, threads, packed);
  });
}

int32_t swin_convolution_forward(const swin_convolution* convolution, const void* x, void* y) {
  return catch_errors([&] {
    require_pointer("convolution", convolution);
    const swin_convolution& given = *convolution;
    const Kernels& kernels = kernels_for(given.dtype);
    check_not_int8("the dtype of a convolution", given.dtype);
    const int64_t size = size_of(given.dtype);
    require_within("threads", given.threads, 1, MAX_THREADS);
    Arrays arrays;
    arrays.read("x", x, check_maps(given.batch, given.height, given.width, given.channels), size);
    arrays.read("the weight", given.weight, convolution_numbers(given.tile, given.outputs, given.channels));
    arrays.read_if("bias", given.bias, given.outputs);
    arrays.write("y", y, check_maps(given.batch, given.height, given.width, given.outputs), size);
    arrays.check_overlaps();
    if (given.batch) kernels.convolve(given, x, y);
  });
}

int32_t swin_roi_align_forward(const swin_roi_align* roi_align, const void* maps, void* pooled) {
  return catch_errors([&] {
    require_pointer("roi_align", roi_align);
    const Kernels& kernels = kernels_for(SWIN_FLOAT32);
    swin_roi_align checked = *roi_align;
    Arrays arrays;
    const int64_t extent = check_roi_align(checked, arrays), numbers = pooled_numbers(checked);
    const int64_t size = size_of(checked.dtype);
    arrays.read("maps", maps, extent, size);
    arrays.write("pooled", pooled, numbers, size);
    arrays.check_overlaps();
    if (numbers) kernels.roi_align_forward(checked, maps, pooled);
  });
}

int32_t swin_roi_align_backward(const swin_roi_align* roi_align, const void* grad_pooled, float* grad_maps) {
  return catch_errors([&] {
    require_pointer("roi_align", roi_align);
    const Kernels& kernels = kernels_for(SWIN_FLOAT32);
    swin_roi_align checked = *roi_align;
    Arrays arrays;
    const int64_t extent = check_roi_align(checked, arrays), numbers = pooled_numbers(checked);
    arrays.read("grad_pooled", grad_pooled, numbers, size_of(checked.dtype));
    arrays.write("grad_maps", grad_maps, extent);
    arrays.check_overlaps();
    if (!numbers) return;
    check_apart(checked);
    kernels.roi_align_backward(checked, grad_pooled, grad_maps);
  });
}

int32_t swin_nms(const float* boxes, const int64_t* order, int64_t count, float threshold, float offset,
                 int32_t threads, int64_t* kept, int64_t* num_kept) {
  return catch_errors([&] {
    const Kernels& kernels = kernels_for(SWIN_FLOAT32);
    require_within("threads", threads, 1, MAX_THREADS);
    require_within("count", count, 0, MAX_COUNT);
    Arrays arrays;
    arrays.read("boxes", boxes, 4 * count);
    arrays.read("order", order, count, sizeof(int64_t));
    arrays.write("kept", kept, count, sizeof(int64_t));
    arrays.write("num_kept", num_kept, 1, sizeof(int64_t));
    arrays.check_overlaps();
    for (int64_t i = 0; i < count; i++) require_within("an index in order", order[i], 0, count - 1);
    *num_kept = kernels.suppress(boxes, order, count, threshold, offset, threads, kept);
  });
}

int32_t swin_deformable_forward(const swin_deformable* deformable, const float* values, const float* sampling_locations,
                                const float* weights, float* y) {
  return catch_errors([&] {
    require_pointer("deformable", deformable);
    const Kernels& kernels = kernels_for(SWIN_FLOAT32);
    Arrays arrays;
    const int64_t outputs = check_deformable(*deformable, values, sampling_locations, weights, arrays).outputs;
    arrays.write("y", y, outputs);
    arrays.check_overlaps();
    kernels.deformable_forward(*deformable, values, sampling_locations, weights, y);
  });
}

int32_t swin_deformable_backward(const swin_deformable* deformable, const float* values,
                                 const float* sampling_locations, const float* weights, const float* grad_y,
                                 float* grad_values, float* grad_sampling_locations, float* grad_weights) {
  return catch_errors([&] {
    require_pointer("deformable", deformable);
    const Kernels& kernels = kernels_for(SWIN_FLOAT32);
    Arrays arrays;
    const DeformableSizes sizes = check_deformable(*deformable, values, sampling_locations, weights, arrays);
    arrays.read("grad_y", grad_y, sizes.outputs);
    arrays.write("grad_values", grad_values, sizes.values);
    arrays.write("grad_sampling_locations", grad_sampling_locations, 2 * sizes.samples);
    arrays.write("grad_weights", grad_weights, sizes.samples);
    arrays.check_overlaps();
    kernels.deformable_backward(*deformable, values, sampling_locations, weights, grad_y, grad_values,
                                grad_sampling_locations, grad_weights);
  });
}

}  // extern "C"
