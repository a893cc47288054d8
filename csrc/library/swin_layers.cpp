// The functions of swin.h for weights and for layers of Swins: check arguments, then call the functions of the
// instruction set.

#include "library/arguments.h"

using namespace swin;

// --- Weights ---------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t MAX_UNIT = 96;
constexpr int64_t MAX_TERMS = 1 << 16;  // of a sum in eight bits, which fits in 32 bits

// The size of a packed weight in numbers of 4 bytes.
int64_t packed_numbers(const IsaFunctions& isa, int32_t dtype, int64_t N, int64_t K) {
  require_within("a weight's outputs", N, 1, MAX_COUNT);
  require_within("a weight's inputs", K, 1, dtype == SWIN_INT8 ? MAX_TERMS : MAX_COUNT);
  require_product_within("the numbers of a weight", N, K, 1, MAX_COUNT);
  return isa.packed_bytes(dtype, N, K) / 4;
}

}  // namespace

int64_t swin_packed_size(int32_t dtype, int64_t N, int64_t K) {
  int64_t size = 0;
  catch_errors([&] {
    const IsaFunctions& isa = isa_for(dtype);
    size = packed_numbers(isa, dtype, N, K) * 4 / size_of(dtype);
  });
  return size;
}

int32_t swin_pack(int32_t dtype, const float* weight, int64_t rows, int64_t columns, int64_t unit, int32_t transposed,
                  int32_t threads, void* packed) {
  return catch_errors([&] {
    const IsaFunctions& isa = isa_for(dtype);
    require_within("threads", threads, 1, MAX_THREADS);
    require_within("unit", unit, 1, MAX_UNIT);
    const int64_t N = transposed ? columns : rows, K = transposed ? rows : columns;
    Arrays arrays;
    if (transposed) check_not_int8("the dtype of a transpose", dtype);
    arrays.write("packed", packed, packed_numbers(isa, dtype, N, K));
    arrays.read("weight", weight, rows * columns);
    arrays.check_overlaps();
    isa.pack(dtype, weight, N, K, unit, transposed != 0, threads, packed);
  });
}

int32_t swin_checksum(const void* const* pieces, const int64_t* bytes, int64_t count, int32_t threads, uint64_t* sum) {
  return catch_errors([&] {
    const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
    require_within("threads", threads, 1, MAX_THREADS);
    require_within("count", count, 0, MAX_COUNT);
    if (count) require_pointer("pieces", pieces), require_pointer("bytes", bytes);
    require_pointer("sum", sum);
    for (int64_t i = 0; i < count; i++) {
      require_within("bytes", bytes[i], 0, MAX_BYTES);
      if (bytes[i]) require_pointer("a piece", pieces[i]);
    }
    *sum = isa.checksum(pieces, bytes, count, threads);
  });
}

// --- A block ---------------------------------------------------------------------------------------------------------

namespace {

constexpr int64_t MAX_WINDOW = 16;

const char* const LINEAR_NAMES[] = {"qkv's weight", "proj's weight", "fc1's weight", "fc2's weight"};
const char* const BIAS_NAMES[] = {"qkv's bias", "proj's bias", "fc1's bias", "fc2's bias"};
const char* const TRANSPOSED_NAMES[] = {"qkv's transposed weight", "proj's transposed weight",
                                        "fc1's transposed weight", "fc2's transposed weight"};

int64_t outputs_of(const swin_block& b, int i) {
  return i == SWIN_QKV ? 3 * b.channels : i == SWIN_FC1 ? b.hidden : b.channels;
}
int64_t inputs_of(const swin_block& b, int i) { return i == SWIN_FC2 ? b.hidden : b.channels; }
int64_t numbers_of(const swin_block& b) { return b.batch * b.height * b.width * b.channels; }

// Check all fields but the memory of the maps, and return the functions to call. `arrays` gets the arrays to read.
const IsaFunctions& check_block(const swin_block* block, Arrays& arrays) {
  require_pointer("block", block);
  const swin_block& b = *block;
  const IsaFunctions& isa = isa_for(b.dtype);
  require_within("threads", b.threads, 1, MAX_THREADS);
  numbers_of_maps(b.batch, b.height, b.width, b.channels);  // checks the sizes
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
  if (b.has_norm3 && !b.cosine_scale) fail(SWIN_INVALID, "has_norm3 must be 0 without a cosine_scale, as of V1");
  for (int i = 0; i < SWIN_LINEARS; i++) {
    const int64_t N = outputs_of(b, i), K = inputs_of(b, i);
    arrays.read(LINEAR_NAMES[i], b.weight[i], packed_numbers(isa, b.dtype, N, K));
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
  return isa;
}

Windows windows_of(const swin_block& b) {
  return {b.batch, Axis(b.height, b.window_height, b.shift_height, b.padding),
          Axis(b.width, b.window_width, b.shift_width, b.padding)};
}

// Check the memory of saved activations, and return it with the bytes of a group.
SavedGroups check_saved(const IsaFunctions& isa, const swin_block& b, const Windows& windows, const void* saved,
                        int64_t groups, bool written, Arrays& arrays) {
  if (!saved) return {};
  check_not_int8("the dtype of saved activations", b.dtype);
  require_within("saved's groups", groups, 1, windows.count());
  int64_t bytes = 0;
  isa.block_saved_size(b, windows, groups, bytes);
  arrays.add_saved(saved, groups * bytes, written);
  return {static_cast<char*>(const_cast<void*>(saved)), groups, bytes};
}

}  // namespace

int32_t swin_block_saved_size(const swin_block* block, int64_t* groups, int64_t* bytes) {
  return catch_errors([&] {
    Arrays arrays;
    const IsaFunctions& isa = check_block(block, arrays);
    require_pointer("groups", groups), require_pointer("bytes", bytes);
    check_not_int8("the dtype of saved activations", block->dtype);
    if (!block->batch) {
      *groups = *bytes = 0;
      return;
    }
    const Windows windows = windows_of(*block);
    require_within("groups", *groups, 0, windows.count());
    isa.block_saved_size(*block, windows, *groups, *bytes);
  });
}

int32_t swin_block_forward(const swin_block* block, const float* x, float* y, void* saved, int64_t groups) {
  return catch_errors([&] {
    Arrays arrays;
    const IsaFunctions& isa = check_block(block, arrays);
    const int64_t numbers = numbers_of(*block);
    if (x != y) arrays.read("x", x, numbers);
    arrays.write("y", y, numbers);
    if (!numbers) return;
    const Windows windows = windows_of(*block);
    const SavedGroups saved_groups = check_saved(isa, *block, windows, saved, groups, true, arrays);
    arrays.check_overlaps();
    isa.block_forward(*block, windows, x, y, saved_groups);
  });
}

int32_t swin_block_backward(const swin_block* block, const void* const transposed_weights[SWIN_LINEARS], const float* x,
                            const float* grad_y, const void* saved, int64_t groups,
                            const swin_block_gradients* gradients) {
  return catch_errors([&] {
    Arrays arrays;
    const IsaFunctions& isa = check_block(block, arrays);
    check_not_int8("the dtype of gradients", block->dtype);
    require_pointer("transposed_weights", transposed_weights), require_pointer("gradients", gradients);
    const swin_block& b = *block;
    const swin_block_gradients& to = *gradients;
    const int64_t numbers = numbers_of(b), N = b.window_height * b.window_width;
    arrays.read("x", x, numbers);
    arrays.read("grad_y", grad_y, numbers);
    arrays.write("x's gradient", to.x, numbers);
    for (int i = 0; i < SWIN_LINEARS; i++) {
      const int64_t size = outputs_of(b, i) * inputs_of(b, i);
      arrays.read(TRANSPOSED_NAMES[i], transposed_weights[i],
                  packed_numbers(isa, b.dtype, inputs_of(b, i), outputs_of(b, i)));
      arrays.write("a weight's gradient", to.weight[i], size);
      arrays.write("a bias's gradient", to.bias[i], outputs_of(b, i));
    }
    for (float* norm : {to.norm1_weight, to.norm1_bias, to.norm2_weight, to.norm2_bias, to.norm3_weight, to.norm3_bias})
      arrays.write("a norm's gradient", norm, b.channels);
    arrays.write("position_bias's gradient", to.position_bias, b.heads * N * N);
    arrays.write("cosine_scale's gradient", to.cosine_scale, b.heads);
    const Windows windows = windows_of(b);
    const SavedGroups saved_groups = check_saved(isa, b, windows, numbers ? saved : nullptr, groups, false, arrays);
    arrays.check_overlaps();
    if (!numbers) return arrays.write_zeros();
    isa.block_backward(b, windows, transposed_weights, x, grad_y, saved_groups, to);
  });
}

// --- Patch embedding and patch merging -------------------------------------------------------------------------------

namespace {

const IsaFunctions& check_projection(const swin_projection* projection, int64_t K, Arrays& arrays) {
  require_pointer("projection", projection);
  const swin_projection& p = *projection;
  const IsaFunctions& isa = isa_for(p.dtype);
  require_within("threads", p.threads, 1, MAX_THREADS);
  require_within("outputs", p.outputs, 1, MAX_SIZE);
  arrays.read("the weight", p.weight, packed_numbers(isa, p.dtype, p.outputs, K));
  arrays.read_if("bias", p.bias, p.outputs);
  if (p.has_norm) {
    arrays.read_if("the norm's weight", p.norm_weight, p.norm_after ? p.outputs : K);
    arrays.read_if("the norm's bias", p.norm_bias, p.norm_after ? p.outputs : K);
  }
  return isa;
}

void check_projection_gradients(const IsaFunctions& isa, const swin_projection& p, int64_t K,
                                const void* transposed_weight, const float* grad_y, int64_t tokens, int64_t inputs,
                                const swin_projection_gradients* gradients, Arrays& arrays) {
  require_pointer("gradients", gradients);
  check_not_int8("the dtype of gradients", p.dtype);
  if (p.outputs % 2)
    fail(SWIN_INVALID, "a token must have an even number of channels, got %lld", static_cast<long long>(p.outputs));
  if (transposed_weight) {
    arrays.read("the transposed weight", transposed_weight, packed_numbers(isa, p.dtype, K, p.outputs));
    arrays.write("x's gradient", gradients->x, inputs);
  }
  arrays.read("grad_y", grad_y, tokens * p.outputs);
  arrays.write("the weight's gradient", gradients->weight, p.outputs * K);
  arrays.write("the bias's gradient", gradients->bias, p.outputs);
  if (p.has_norm) {
    arrays.write("the gradient of the norm's weight", gradients->norm_weight, p.norm_after ? p.outputs : K);
    arrays.write("the gradient of the norm's bias", gradients->norm_bias, p.norm_after ? p.outputs : K);
  }
  arrays.check_overlaps();
}

int64_t tokens_of_patches(const swin_images& images) {
  const int64_t rows = (images.height + images.patch_height - 1) / images.patch_height;
  const int64_t columns = (images.width + images.patch_width - 1) / images.patch_width;
  return require_product_within("the number of patches", images.batch, rows, columns, MAX_COUNT);
}

int64_t checked_K(const swin_images* images, Arrays& arrays) {
  require_pointer("images", images);
  const swin_images& given = *images;
  check_sizes(given.batch, given.height, given.width, given.channels, 1);
  require_within("a side of the patch", given.patch_height, 1, MAX_SIZE);
  require_within("a side of the patch", given.patch_width, 1, MAX_SIZE);
  const int64_t K =
      require_product_within("the numbers of a patch", given.channels, given.patch_height, given.patch_width, MAX_SIZE);
  tokens_of_patches(given);
  const int64_t span = span_of("images", {given.batch, given.channels, given.height, given.width}, given.stride);
  arrays.read("pixels", given.pixels, given.batch ? span : 0);
  return K;
}

const IsaFunctions& check_projection_of_patches(const swin_projection* projection, int64_t K, Arrays& arrays) {
  const IsaFunctions& isa = check_projection(projection, K, arrays);
  if (projection->has_norm && !projection->norm_after) fail(SWIN_INVALID, "norm_after must be 1 for images");
  return isa;
}

}  // namespace

int32_t swin_embed_forward(const swin_images* images, const swin_projection* projection, float* y) {
  return catch_errors([&] {
    Arrays arrays;
    const int64_t K = checked_K(images, arrays);
    const IsaFunctions& isa = check_projection_of_patches(projection, K, arrays);
    const int64_t tokens = tokens_of_patches(*images);
    arrays.write("y", y, tokens * projection->outputs);
    arrays.check_overlaps();
    if (tokens) isa.embed_forward(*images, *projection, y);
  });
}

int32_t swin_embed_backward(const swin_images* images, const swin_projection* projection, const void* transposed_weight,
                            const float* grad_y, const swin_projection_gradients* gradients) {
  return catch_errors([&] {
    Arrays arrays;
    const int64_t K = checked_K(images, arrays);
    const IsaFunctions& isa = check_projection_of_patches(projection, K, arrays);
    const int64_t tokens = tokens_of_patches(*images), area = images->height * images->width;
    const int64_t numbers =
        require_product_within("the numbers of images", images->batch, images->channels, area, MAX_BYTES);
    check_projection_gradients(isa, *projection, K, transposed_weight, grad_y, tokens, numbers, gradients, arrays);
    if (!tokens) return arrays.write_zeros();
    isa.embed_backward(*images, *projection, transposed_weight, grad_y, *gradients);
  });
}

namespace {

int64_t checked_K(const swin_maps* maps, Arrays& arrays) {
  require_pointer("maps", maps);
  arrays.read("x", maps->x, numbers_of_maps(maps->batch, maps->height, maps->width, maps->channels));
  return 4 * maps->channels;
}

int64_t tokens_of_merged(const swin_maps& maps) {
  return maps.batch * ((maps.height + 1) / 2) * ((maps.width + 1) / 2);
}

}  // namespace

int32_t swin_merge_forward(const swin_maps* maps, const swin_projection* projection, float* y) {
  return catch_errors([&] {
    Arrays arrays;
    const int64_t K = checked_K(maps, arrays);
    const IsaFunctions& isa = check_projection(projection, K, arrays);
    const int64_t tokens = tokens_of_merged(*maps);
    arrays.write("y", y, tokens * projection->outputs);
    arrays.check_overlaps();
    if (tokens) isa.merge_forward(*maps, *projection, y);
  });
}

int32_t swin_merge_backward(const swin_maps* maps, const swin_projection* projection, const void* transposed_weight,
                            const float* grad_y, const swin_projection_gradients* gradients) {
  return catch_errors([&] {
    Arrays arrays;
    const int64_t K = checked_K(maps, arrays);
    const IsaFunctions& isa = check_projection(projection, K, arrays);
    const int64_t tokens = tokens_of_merged(*maps);
    const int64_t numbers = maps->batch * maps->height * maps->width * maps->channels;
    check_projection_gradients(isa, *projection, K, transposed_weight, grad_y, tokens, numbers, gradients, arrays);
    if (!tokens) return arrays.write_zeros();
    isa.merge_backward(*maps, *projection, transposed_weight, grad_y, *gradients);
  });
}

// --- Output norm -----------------------------------------------------------------------------------------------------

namespace {

const IsaFunctions& check_output_norm(const float* x, int64_t batch, int64_t area, int64_t channels,
                                      const float* weight, const float* bias, int32_t threads, Arrays& arrays) {
  const IsaFunctions& isa = isa_for(SWIN_FLOAT32);
  require_within("threads", threads, 1, MAX_THREADS);
  require_within("batch", batch, 0, MAX_COUNT);
  require_within("area", area, 1, MAX_COUNT);
  require_within("channels", channels, 1, MAX_SIZE);
  require_product_within("the number of tokens", batch, area, 1, MAX_COUNT);
  arrays.read("x", x, batch * area * channels);
  arrays.read_if("weight", weight, channels);
  arrays.read_if("bias", bias, channels);
  return isa;
}

}  // namespace

int32_t swin_output_norm_forward(const float* x, int64_t batch, int64_t area, int64_t channels, const float* weight,
                                 const float* bias, float eps, int32_t threads, float* y) {
  return catch_errors([&] {
    Arrays arrays;
    const IsaFunctions& isa = check_output_norm(x, batch, area, channels, weight, bias, threads, arrays);
    arrays.write("y", y, batch * area * channels);
    arrays.check_overlaps();
    if (batch) isa.output_norm_forward(x, batch, area, channels, weight, bias, eps, threads, y);
  });
}

int32_t swin_output_norm_backward(const float* x, const float* grad_y, int64_t batch, int64_t area, int64_t channels,
                                  const float* weight, float eps, int32_t threads, float* grad_x, float* grad_weight,
                                  float* grad_bias) {
  return catch_errors([&] {
    Arrays arrays;
    const IsaFunctions& isa = check_output_norm(x, batch, area, channels, weight, nullptr, threads, arrays);
    arrays.read("grad_y", grad_y, batch * area * channels);
    arrays.write("grad_x", grad_x, batch * area * channels);
    arrays.write("grad_weight", grad_weight, channels);
    arrays.write("grad_bias", grad_bias, channels);
    arrays.check_overlaps();
    if (!batch) return arrays.write_zeros();
    isa.output_norm_backward(x, grad_y, batch, area, channels, weight, eps, threads, grad_x, grad_weight, grad_bias);
  });
}
