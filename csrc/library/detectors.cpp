// The functions of swin.h for detectors: check arguments, then call the functions of the instruction set.

#include <algorithm>
#include <initializer_list>

#include "detection/roi_axes.h"
#include "library/arguments.h"

using namespace swin;

// --- Convolutions ----------------------------------------------------------------------------------------------------

namespace {

int64_t convolution_numbers(int32_t tile, int64_t outputs, int64_t channels) {
  if (tile != 4 && tile != 6) fail(SWIN_INVALID, "tile must be 4 or 6, got %d", tile);
  require_within("outputs", outputs, 1, MAX_SIZE);
  require_within("channels", channels, 1, MAX_SIZE);
  return require_product_within("the numbers of a packed weight", outputs, channels, (tile + 2) * (tile + 2),
                                MAX_COUNT);
}

}  // namespace

int64_t swin_packed_convolution_size(int32_t tile, int64_t outputs, int64_t channels) {
  int64_t size = 0;
  catch_errors([&] { size = convolution_numbers(tile, outputs, channels); });
  return size;
}

int32_t swin_pack_convolution(const float* weight, int32_t tile, int64_t outputs, int64_t channels, int32_t threads,
                              float* packed) {
  return catch_errors([&] {
    const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
    require_within("threads", threads, 1, MAX_THREADS);
    const int64_t numbers = convolution_numbers(tile, outputs, channels);
    Arrays arrays;
    arrays.read("weight", weight, 9 * outputs * channels);
    arrays.write("packed", packed, numbers);
    arrays.check_overlaps();
    isa.pack_convolution(weight, tile, outputs, channels, threads, packed);
  });
}

int32_t swin_convolution_forward(const swin_convolution* convolution, const void* x, void* y) {
  return catch_errors([&] {
    require_pointer("convolution", convolution);
    const swin_convolution& given = *convolution;
    const IsaFunctions& isa = isa_for(given.dtype);
    check_not_int8("the dtype of a convolution", given.dtype);
    const int64_t size = size_of(given.dtype);
    require_within("threads", given.threads, 1, MAX_THREADS);
    Arrays arrays;
    arrays.read("x", x, numbers_of_maps(given.batch, given.height, given.width, given.channels), size);
    arrays.read("the weight", given.weight, convolution_numbers(given.tile, given.outputs, given.channels));
    arrays.read_if("bias", given.bias, given.outputs);
    arrays.write("y", y, numbers_of_maps(given.batch, given.height, given.width, given.outputs), size);
    arrays.check_overlaps();
    if (given.batch) isa.convolution_forward(given, x, y);
  });
}

// --- RoIAlign --------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t MAX_BINS = 4096, MAX_SAMPLES = 1024;

// A copy in which sides of 1 have a stride of 1.
swin_roi_align with_strides(const swin_roi_align* given) {
  require_pointer("roi_align", given);
  swin_roi_align roi_align = *given;
  const int64_t sizes[] = {roi_align.batch, roi_align.channels, roi_align.height, roi_align.width};
  for (int i = 0; i < 4; i++)
    if (sizes[i] <= 1) roi_align.stride[i] = 1;
  return roi_align;
}

// Check all fields but the memory of the maps, and return the numbers that the maps span.
int64_t checked_span(const swin_roi_align& roi_align, Arrays& arrays) {
  if (roi_align.dtype != SWIN_FLOAT32 && roi_align.dtype != SWIN_BFLOAT16)
    fail(SWIN_INVALID, "dtype must be SWIN_FLOAT32 or SWIN_BFLOAT16, got %d", roi_align.dtype);
  require_within("threads", roi_align.threads, 1, MAX_THREADS);
  check_sizes(roi_align.batch, roi_align.height, roi_align.width, roi_align.channels, 0);
  require_within("bins down", roi_align.bins_height, 1, MAX_BINS);
  require_within("bins across", roi_align.bins_width, 1, MAX_BINS);
  require_within("samples", roi_align.samples, 0, MAX_SAMPLES);
  require_within("regions", roi_align.regions, 0, MAX_COUNT);
  arrays.read("boxes", roi_align.boxes, 5 * roi_align.regions);
  const int64_t span =
      span_of("maps", {roi_align.batch, roi_align.channels, roi_align.height, roi_align.width}, roi_align.stride);
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
  return roi_align.batch && roi_align.channels ? span : 0;
}

int64_t pooled_numbers(const swin_roi_align& roi_align) {
  const int64_t bins = roi_align.bins_height * roi_align.bins_width;
  return require_product_within("the numbers of what is pooled", roi_align.regions, roi_align.channels, bins,
                                MAX_BYTES);
}

}  // namespace

int32_t swin_roi_align_forward(const swin_roi_align* roi_align, const void* maps, void* pooled) {
  return catch_errors([&] {
    const swin_roi_align given = with_strides(roi_align);
    const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
    Arrays arrays;
    const int64_t span = checked_span(given, arrays), numbers = pooled_numbers(given);
    const int64_t size = size_of(given.dtype);
    arrays.read("maps", maps, span, size);
    arrays.write("pooled", pooled, numbers, size);
    arrays.check_overlaps();
    if (numbers) isa.roi_align_forward(given, maps, pooled);
  });
}

namespace {

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

}  // namespace

int32_t swin_roi_align_backward(const swin_roi_align* roi_align, const void* grad_pooled, float* grad_maps) {
  return catch_errors([&] {
    const swin_roi_align given = with_strides(roi_align);
    const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
    Arrays arrays;
    const int64_t span = checked_span(given, arrays), numbers = pooled_numbers(given);
    arrays.read("grad_pooled", grad_pooled, numbers, size_of(given.dtype));
    arrays.write("grad_maps", grad_maps, span);
    arrays.check_overlaps();
    if (!numbers) return;
    check_apart(given);
    isa.roi_align_backward(given, grad_pooled, grad_maps);
  });
}

// --- NMS -------------------------------------------------------------------------------------------------------------

int32_t swin_nms(const float* boxes, const int64_t* order, int64_t count, float threshold, float offset,
                 int32_t threads, int64_t* kept, int64_t* num_kept) {
  return catch_errors([&] {
    const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
    require_within("threads", threads, 1, MAX_THREADS);
    require_within("count", count, 0, MAX_COUNT);
    Arrays arrays;
    arrays.read("boxes", boxes, 4 * count);
    arrays.read("order", order, count, sizeof(int64_t));
    arrays.write("kept", kept, count, sizeof(int64_t));
    arrays.write("num_kept", num_kept, 1, sizeof(int64_t));
    arrays.check_overlaps();
    for (int64_t i = 0; i < count; i++) require_within("an index in order", order[i], 0, count - 1);
    *num_kept = isa.nms(boxes, order, count, threshold, offset, threads, kept);
  });
}

// --- Deformable attention --------------------------------------------------------------------------------------------

namespace {

constexpr int64_t MAX_EACH = 4096;  // heads, channels of a head, levels, points

// The numbers of each array.
struct DeformableSizes {
  int64_t values, samples, outputs;
};

DeformableSizes checked_sizes(const swin_deformable& deformable, const float* values, const float* sampling_locations,
                              const float* weights, Arrays& arrays) {
  require_within("threads", deformable.threads, 1, MAX_THREADS);
  require_within("heads", deformable.heads, 1, MAX_EACH);
  require_within("channels", deformable.channels, 1, MAX_EACH);
  require_within("levels", deformable.levels, 1, MAX_EACH);
  require_within("points", deformable.points, 1, MAX_EACH);
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

}  // namespace

int32_t swin_deformable_forward(const swin_deformable* deformable, const float* values, const float* sampling_locations,
                                const float* weights, float* y) {
  return catch_errors([&] {
    require_pointer("deformable", deformable);
    const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
    Arrays arrays;
    const int64_t outputs = checked_sizes(*deformable, values, sampling_locations, weights, arrays).outputs;
    arrays.write("y", y, outputs);
    arrays.check_overlaps();
    isa.deformable_forward(*deformable, values, sampling_locations, weights, y);
  });
}

int32_t swin_deformable_backward(const swin_deformable* deformable, const float* values,
                                 const float* sampling_locations, const float* weights, const float* grad_y,
                                 float* grad_values, float* grad_sampling_locations, float* grad_weights) {
  return catch_errors([&] {
    require_pointer("deformable", deformable);
    const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
    Arrays arrays;
    const DeformableSizes sizes = checked_sizes(*deformable, values, sampling_locations, weights, arrays);
    arrays.read("grad_y", grad_y, sizes.outputs);
    arrays.write("grad_values", grad_values, sizes.values);
    arrays.write("grad_sampling_locations", grad_sampling_locations, 2 * sizes.samples);
    arrays.write("grad_weights", grad_weights, sizes.samples);
    arrays.check_overlaps();
    isa.deformable_backward(*deformable, values, sampling_locations, weights, grad_y, grad_values,
                            grad_sampling_locations, grad_weights);
  });
}
