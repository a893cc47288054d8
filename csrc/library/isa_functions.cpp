#include "library/isa_functions.h"

#include "block/attention.h"
#include "block/backward.h"
#include "block/block.h"
#include "detection/convolution.h"
#include "detection/deformable.h"
#include "detection/roi_align.h"
#include "machine/checksum.h"
#include "machine/memory.h"
#include "norm/output_norm.h"
#include "patches/patches.h"

namespace swin::SWIN_ISA {
namespace {

// The type of queries, keys, values and hidden tokens of a layer whose linear layers multiply in eight bits.
using BesideInt8 = std::conditional_t<SWIN_HAS_BF16, BFloat, float>;

// Call f with a zero of the type T of a layer's templates.
template <class F>
void dispatch(int32_t dtype, const F& f) {
  if (dtype == SWIN_INT8) return f(BesideInt8());
  if (dtype == SWIN_BFLOAT16) return f(BFloat());
  f(float());
}

template <class T>
Linear<T> linear_layer(int32_t dtype, const void* packed, const float* bias, int64_t N, int64_t K, int64_t unit) {
  Linear<T> linear{static_cast<const T*>(packed), bias, N, K, panel_width(N, unit)};
  if (dtype == SWIN_INT8) {
    linear.panels = nullptr;
    linear.quantised = {packed, N, K};
  }
  return linear;
}

// Ones and zeros, for null weights and biases.
class Defaults {
 public:
  explicit Defaults(int64_t size) {
    memory.allocate([&](Arena& arena) {
      all_ones = arena.take<float>(size);
      all_zeros = arena.take<float>(size);
    });
    std::fill_n(all_ones, size, 1.f);
    std::fill_n(all_zeros, size, 0.f);
  }
  Affine affine(const float* weight, const float* bias, float eps) const {
    return {weight ? weight : all_ones, zeros(bias), eps};
  }
  const float* zeros(const float* given) const { return given ? given : all_zeros; }

 private:
  float *all_ones, *all_zeros;
  Memory memory;
};

void pack_weight(int32_t dtype, const float* weight, int64_t N, int64_t K, int64_t unit, bool transposed,
                 int64_t threads, void* packed) {
  if (dtype == SWIN_INT8) return pack_in_bytes(weight, N, K, unit, threads, packed);
  dispatch(dtype, [&](auto type) {
    using T = decltype(type);
    pack<T>(weight, N, K, unit, transposed, threads, static_cast<T*>(packed));
  });
}

int64_t packed_bytes(int32_t dtype, int64_t N, int64_t K) {
  if (dtype == SWIN_INT8) return QuantisedWeight::bytes(N, K);
  int64_t bytes = 0;
  dispatch(dtype, [&](auto type) { bytes = N * padded_terms<decltype(type)>(K) * static_cast<int64_t>(sizeof type); });
  return bytes;
}

uint64_t checksum_of(const void* const* pieces, const int64_t* bytes, int64_t count, int64_t threads) {
  Checksum sum(threads);
  for (int64_t i = 0; i < count; i++) sum.add(pieces[i], bytes[i]);
  return sum.result();
}

// --- A block ---------------------------------------------------------------------------------------------------------

BlockSizes sizes_of(const swin_block& b) { return {b.channels, b.hidden, b.heads, b.cosine_scale != nullptr}; }

// A block of a swin_block: defaults in place of null pointers, and the padded position bias, with their memory.
template <class T>
struct BlockWithDefaults {
  const Defaults defaults;
  Memory memory;
  Block<T> block;

  BlockWithDefaults(const swin_block& b, const Windows& windows)
      : defaults(std::max(3 * b.channels, b.hidden)),
        block{sizes_of(b),
              {layer(b, QKV), layer(b, PROJ), layer(b, FC1), layer(b, FC2)},
              defaults.affine(b.norm1_weight, b.norm1_bias, b.eps1),
              defaults.affine(b.norm2_weight, b.norm2_bias, b.eps2),
              defaults.affine(b.norm3_weight, b.norm3_bias, b.eps3),
              nullptr,
              b.cosine_scale,
              b.drop_path,
              b.has_norm3 != 0,
              b.scale} {
    const int64_t N = windows.area();
    float* padded = nullptr;
    memory.allocate([&](Arena& arena) { padded = arena.take<float>(b.heads * N * padded_keys(N)); });
    pad_bias(b.position_bias, b.heads * N, N, padded);
    block.bias_hNS = padded;
  }

 private:
  Linear<T> layer(const swin_block& b, int64_t i) const {
    const int64_t C = b.channels, D = b.hidden;
    const int64_t N = i == QKV ? 3 * C : i == FC1 ? D : C, K = i == FC2 ? D : C;
    return linear_layer<T>(b.dtype, b.weight[i], defaults.zeros(b.bias[i]), N, K, i == QKV ? C / b.heads : 1);
  }
};

void block_saved_size(const swin_block& block, const Windows& windows, int64_t& groups, int64_t& bytes) {
  dispatch(block.dtype, [&](auto type) {
    using T = decltype(type);
    if (!groups) groups = groups_of_backward<T>(sizes_of(block), windows, block.threads);
    bytes = saved_bytes<T>(sizes_of(block), windows, groups);
  });
}

void block_forward(const swin_block& block, const Windows& windows, const float* x, float* y,
                   const SavedGroups& saved) {
  dispatch(block.dtype, [&](auto type) {
    BlockWithDefaults<decltype(type)> complete(block, windows);
    if (saved.memory) request_large_pages(saved.memory, saved.num_groups * saved.bytes);
    run_block(complete.block, windows, block.threads, x, y, saved);
  });
}

void block_backward(const swin_block& block, const Windows& windows, const void* const* transposed_weights,
                    const float* x, const float* grad_y, const SavedGroups& saved,
                    const swin_block_gradients& gradients) {
  dispatch(block.dtype, [&](auto type) {
    using T = decltype(type);
    BlockWithDefaults<T> complete(block, windows);
    const auto backward_linear = [&](int64_t i) {
      const Linear<T>& layer = complete.block.linear(i);
      return linear_layer<T>(block.dtype, transposed_weights[i], nullptr, layer.K, layer.N,
                             i == PROJ ? complete.block.C / complete.block.heads : 1);
    };
    Linear<T> backward_linears[] = {backward_linear(QKV), backward_linear(PROJ), backward_linear(FC1),
                                    backward_linear(FC2)};
    run_block_backward(complete.block, backward_linears, windows, block.threads, x, grad_y, saved, gradients);
  });
}

// --- Patches ---------------------------------------------------------------------------------------------------------

// Call f(projection), for rows of K numbers.
template <class F>
void with_projection(const swin_projection& projection, int64_t K, const F& f) {
  dispatch(projection.dtype, [&](auto type) {
    using T = decltype(type);
    const int64_t N = projection.outputs;
    const Defaults defaults(std::max(N, K));
    Projection<T> p{
        linear_layer<T>(projection.dtype, projection.weight, defaults.zeros(projection.bias), N, K, 1), {}, {}};
    if (projection.has_norm)
      (projection.norm_after ? p.norm_after : p.norm_before) =
          defaults.affine(projection.norm_weight, projection.norm_bias, projection.eps);
    f(p);
  });
}

Patches patches_of(const swin_images& images) {
  return {images.pixels,       images.batch,
          images.channels,     images.height,
          images.width,        {images.stride[0], images.stride[1], images.stride[2], images.stride[3]},
          images.patch_height, images.patch_width};
}
Neighbours neighbours_of(const swin_maps& maps) { return {maps.x, maps.batch, maps.height, maps.width, maps.channels}; }
int64_t inputs_of(const swin_images& images) { return images.channels * images.patch_height * images.patch_width; }
int64_t inputs_of(const swin_maps& maps) { return 4 * maps.channels; }

void embed_forward(const swin_images& images, const swin_projection& projection, float* y) {
  with_projection(projection, inputs_of(images),
                  [&](const auto& p) { project(patches_of(images), p, projection.threads, y); });
}
void embed_backward(const swin_images& images, const swin_projection& projection, const void* transposed_weight,
                    const float* grad_y, const swin_projection_gradients& gradients) {
  with_projection(projection, inputs_of(images), [&](const auto& p) {
    project_backward(patches_of(images), p, transposed_weight, projection.threads, grad_y, gradients);
  });
}
void merge_forward(const swin_maps& maps, const swin_projection& projection, float* y) {
  with_projection(projection, inputs_of(maps),
                  [&](const auto& p) { project(neighbours_of(maps), p, projection.threads, y); });
}
void merge_backward(const swin_maps& maps, const swin_projection& projection, const void* transposed_weight,
                    const float* grad_y, const swin_projection_gradients& gradients) {
  with_projection(projection, inputs_of(maps), [&](const auto& p) {
    project_backward(neighbours_of(maps), p, transposed_weight, projection.threads, grad_y, gradients);
  });
}

void output_norm_forward(const float* x, int64_t batch, int64_t area, int64_t channels, const float* weight,
                         const float* bias, float eps, int64_t threads, float* y) {
  const Defaults defaults(channels);
  normalise_output(x, batch, area, channels, defaults.affine(weight, bias, eps), threads, y);
}
void output_norm_backward(const float* x, const float* grad_y, int64_t batch, int64_t area, int64_t channels,
                          const float* weight, float eps, int64_t threads, float* grad_x, float* grad_weight,
                          float* grad_bias) {
  const Defaults defaults(channels);
  normalise_output_backward(x, grad_y, batch, area, channels, defaults.affine(weight, nullptr, eps), threads, grad_x,
                            grad_weight, grad_bias);
}

void convolution_forward(const swin_convolution& convolution, const void* x, void* y) {
  if (convolution.dtype == SWIN_BFLOAT16)
    return convolve(convolution, static_cast<const bf16*>(x), static_cast<bf16*>(y));
  convolve(convolution, static_cast<const float*>(x), static_cast<float*>(y));
}

#define SWIN_STRING(x) #x
#define SWIN_NAME(x) SWIN_STRING(x)

}  // namespace

extern const IsaFunctions functions;
const IsaFunctions functions{
    SWIN_NAME(SWIN_ISA), INT8_PRODUCTS,        packed_bytes,     pack_weight,
    checksum_of,         block_saved_size,     block_forward,    block_backward,
    embed_forward,       embed_backward,       merge_forward,    merge_backward,
    output_norm_forward, output_norm_backward, pack_convolution, convolution_forward,
    roi_align_forward,   roi_align_backward,   suppress,         deformable_forward,
    deformable_backward,
};

}  // namespace swin::SWIN_ISA
