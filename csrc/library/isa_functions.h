// The functions of an instruction set. Arguments are as in swin.h, and checked.
#pragma once

#include "block/windows.h"
#include "swin.h"

namespace swin {

struct IsaFunctions {
  const char* name;
  const char* int8_products;  // their instructions

  int64_t (*packed_bytes)(int32_t dtype, int64_t N, int64_t K);
  void (*pack)(int32_t dtype, const float* weight, int64_t N, int64_t K, int64_t unit, bool transposed, int64_t threads,
               void* packed);
  uint64_t (*checksum)(const void* const* pieces, const int64_t* bytes, int64_t count, int64_t threads);

  // groups: in and out, 0 asks for the number of groups of a backward pass; bytes: out, of a group
  void (*block_saved_size)(const swin_block& block, const Windows& windows, int64_t& groups, int64_t& bytes);
  void (*block_forward)(const swin_block& block, const Windows& windows, const float* x, float* y,
                        const SavedGroups& saved);
  void (*block_backward)(const swin_block& block, const Windows& windows, const void* const* transposed_weights,
                         const float* x, const float* grad_y, const SavedGroups& saved,
                         const swin_block_gradients& gradients);

  void (*embed_forward)(const swin_images& images, const swin_projection& projection, float* y);
  void (*embed_backward)(const swin_images& images, const swin_projection& projection, const void* transposed_weight,
                         const float* grad_y, const swin_projection_gradients& gradients);
  void (*merge_forward)(const swin_maps& maps, const swin_projection& projection, float* y);
  void (*merge_backward)(const swin_maps& maps, const swin_projection& projection, const void* transposed_weight,
                         const float* grad_y, const swin_projection_gradients& gradients);

  void (*output_norm_forward)(const float* x, int64_t batch, int64_t area, int64_t channels, const float* weight,
                              const float* bias, float eps, int64_t threads, float* y);
  void (*output_norm_backward)(const float* x, const float* grad_y, int64_t batch, int64_t area, int64_t channels,
                               const float* weight, float eps, int64_t threads, float* grad_x, float* grad_weight,
                               float* grad_bias);

  void (*pack_convolution)(const float* weight, int32_t tile, int64_t outputs, int64_t channels, int64_t threads,
                           float* packed);
  void (*convolution_forward)(const swin_convolution& convolution, const void* x, void* y);
  void (*roi_align_forward)(const swin_roi_align& roi_align, const void* maps, void* pooled);
  void (*roi_align_backward)(const swin_roi_align& roi_align, const void* grad_pooled, float* grad_maps);
  int64_t (*nms)(const float* boxes, const int64_t* order, int64_t count, float threshold, float offset,
                 int64_t threads, int64_t* kept);
  void (*deformable_forward)(const swin_deformable& deformable, const float* values, const float* sampling_locations,
                             const float* weights, float* y);
  void (*deformable_backward)(const swin_deformable& deformable, const float* values, const float* sampling_locations,
                              const float* weights, const float* grad_y, float* grad_values,
                              float* grad_sampling_locations, float* grad_weights);
};

// The functions of a named instruction set. Null: this processor, or this library, has none of the name.
const IsaFunctions* find_isa(const char* name);

// The functions that this thread's calls use. Null: this processor has none.
const IsaFunctions* isa_in_use();

// Calls of swin.h in this thread use these functions in place of the process's, until the object ends.
class IsaOfThread {
 public:
  explicit IsaOfThread(const IsaFunctions* isa);
  ~IsaOfThread();
  IsaOfThread(const IsaOfThread&) = delete;
  IsaOfThread& operator=(const IsaOfThread&) = delete;

 private:
  const IsaFunctions* before;
};

}  // namespace swin
