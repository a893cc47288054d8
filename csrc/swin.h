/* libswin: layers of Swin Transformers, V1 and V2, for CPUs, with their gradients; and four operators of detectors.
 *
 * Plain C, independent of torch and Python. The library contains kernels for several instruction sets, and uses the
 * best one of the processor, or the one named to swin_use_isa.
 *
 * Numbers. Maps, gradients, biases and norms are float32, in C order without gaps. The images of an embedding have
 * strides. Linear layers multiply in `dtype`: float32, bfloat16 with sums in float32, or int8 with sums in int32.
 * Instruction sets without bfloat16 round the same numbers, and multiply in float32. Weights of linear layers are
 * packed first, by swin_pack.
 *
 * Eight bits. An output of a weight becomes whole numbers from -127 to 127 and a scale, its largest magnitude / 127.
 * Each row of the other operand becomes, in the call, whole numbers from 0 to 254, of which one means zero, and a
 * scale, its range / 254. The range includes zero. A row whose range is below 1e-36 becomes zeros.
 * Attention, norms and all numbers between two products are bfloat16 or float32. Functions with gradients have no int8.
 *
 * Ownership. The caller owns all arrays, and the library keeps no pointer after a call. A call allocates and frees
 * its own working memory. A written array overlaps with no other array, except that y may be x in swin_block_forward.
 * Addresses are multiples of the size of a number (4, or 2 for bfloat16), of 4 for packed weights, of 64 for `saved`.
 *
 * Errors. A function returns SWIN_OK or the kind of the error. swin_error then returns a sentence about the fault.
 * After SWIN_INVALID nothing has been written. No exception leaves a function. Null pointers, and negative, huge or
 * mismatched sizes are errors. Pointers to arrays that are too small are not detected.
 *
 * Threads. A call computes on at most `threads` threads (1 to 1024). With `threads` 1 a call uses the calling thread
 * alone, and is safe after a fork. On Linux the library uses the threads of the process's OpenMP, if loaded. Functions
 * may be called from several threads at once. For equal numbers of threads, results are reproducible.
 *
 * Letters: B maps, H W their sides, C channels, D hidden channels of the MLP, h heads, N places of a window.
 */
#ifndef SWIN_H
#define SWIN_H

#include <stdint.h>

#ifdef _WIN32
#define SWIN_API __declspec(dllexport)
#else
#define SWIN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with every change of a structure or a function. */
#define SWIN_VERSION 11
SWIN_API int32_t swin_version(void);

enum swin_status {
  SWIN_OK = 0,
  SWIN_INVALID = 1,     /* an argument is wrong */
  SWIN_UNSUPPORTED = 2, /* impossible on this processor */
  SWIN_NO_MEMORY = 3,
  SWIN_FAILED = 4 /* a fault of the library */
};
/* The text of the last error in this thread, valid until the next error. */
SWIN_API const char* swin_error(void);

enum swin_dtype { SWIN_FLOAT32 = 0, SWIN_BFLOAT16 = 1, SWIN_INT8 = 2 };

/* The instruction set in use: amx, avx512_bf16, avx512_vnni, avx512, avx2_vnni, avx2, neon_bf16 or neon; "" if the
 * processor has none. */
SWIN_API const char* swin_isa(void);
/* The instructions of products of int8 in this set; "" if the processor has none. */
SWIN_API const char* swin_int8_products(void);
/* The instruction sets with kernels in this library, the best first, separated by spaces. */
SWIN_API const char* swin_isas(void);
/* Use the named instruction set for all later calls; null: the best. Packed weights and saved activations of the
 * previous instruction set become invalid. */
SWIN_API int32_t swin_use_isa(const char* name);
/* A sentence: why the library does not run here, or not in this dtype. Null: it runs. */
SWIN_API const char* swin_why_not(int32_t dtype);

/* --- Weights ------------------------------------------------------------------------------------------------------ */

/* The size of a packed weight with N outputs and K inputs, in numbers of `dtype`, for the instruction set in use. It is
 * N K, with K made even for bfloat16, or 2 N K for bfloat16 without its instructions. For int8 it is N (K + 8) or
 * N (2 K + 8), with K rounded up to a multiple of 4 or 64. 0 if N, K or N K is outside 1 to 2^31 - 1, or K above 65536
 * for int8. */
SWIN_API int64_t swin_packed_size(int32_t dtype, int64_t N, int64_t K);

/* Pack a weight (rows, columns) = (N, K). If `transposed`, pack the transpose of a weight (rows, columns) = (K, N).
 * unit: 1 to 96 neighbouring outputs that stay in one panel: C / h for the qkv of a block and for the transposed proj,
 * 1 for all other layers. packed: swin_packed_size numbers. No transpose is packed for int8. */
SWIN_API int32_t swin_pack(int32_t dtype, const float* weight, int64_t rows, int64_t columns, int64_t unit,
                           int32_t transposed, int32_t threads, void* packed);

/* A hash of `count` pieces of memory, of bytes[i] bytes each. Any change of a single number changes the hash. Larger
 * changes are missed with a probability of 2^-64. The hash does not depend on the number of threads. */
SWIN_API int32_t swin_checksum(const void* const* pieces, const int64_t* bytes, int64_t count, int32_t threads,
                               uint64_t* sum);

/* --- A block ------------------------------------------------------------------------------------------------------ */

/* The linear layers of a block, in this order everywhere: qkv (3C, C), proj (C, C), fc1 (D, C), fc2 (C, D). */
enum swin_linear { SWIN_QKV, SWIN_PROJ, SWIN_FC1, SWIN_FC2, SWIN_LINEARS };

/* The normed map is padded with zeros, at right and bottom, to whole windows. Tokens attend to this padding, but not
 * under SWIN_PADDING_MASKED. A shift rolls the padded map; under SWIN_PADDING_AFTER_ROLL, the rolled map is padded. */
enum swin_padding { SWIN_PADDING_ATTENDED, SWIN_PADDING_MASKED, SWIN_PADDING_AFTER_ROLL, SWIN_PADDINGS };

typedef struct swin_block {
  int32_t dtype, threads;
  int64_t batch, height, width; /* B, H, W of the maps. B may be 0, H and W may not */
  int64_t channels, hidden;     /* C, a multiple of 8 h, at most 64 h; D, a multiple of 8 */
  int64_t heads;
  int64_t window_height, window_width; /* 1 to 16 */
  int64_t shift_height, shift_width;   /* 0 to the side of the window - 1 */
  int32_t padding;                     /* of enum swin_padding */
  int32_t has_norm3;                   /* V2 only: 1 for a norm after the MLP's residual */
  float scale;                         /* of q k^T */
  float eps1, eps2, eps3;              /* of the norms */
  const void* weight[SWIN_LINEARS];    /* packed */
  const float* bias[SWIN_LINEARS];     /* (outputs); null: zeros */
  /* (C). A null weight is ones, a null bias zeros. */
  const float *norm1_weight, *norm1_bias, *norm2_weight, *norm2_bias, *norm3_weight, *norm3_bias;
  const float* position_bias; /* (h, N, N) */
  const float* cosine_scale;  /* (h); makes the block one of V2. Null: V1 */
  const float* drop_path;     /* (2, B): factors of the two branches of each map; null: ones */
} swin_block;

/* The size of the activations that a forward pass saves for the backward pass: `groups` times `bytes`. groups: in, a
 * number of groups, or 0 for the best number for block.threads; out, the number of groups. */
SWIN_API int32_t swin_block_saved_size(const swin_block* block, int64_t* groups, int64_t* bytes);

/* x, y: (B, H, W, C). saved: memory of swin_block_saved_size; null: nothing is saved, as for int8. */
SWIN_API int32_t swin_block_forward(const swin_block* block, const float* x, float* y, void* saved, int64_t groups);

/* Arrays for the gradients. None may be null, also for parameters that the block lacks. */
typedef struct swin_block_gradients {
  float* x;                    /* (B, H, W, C) */
  float* weight[SWIN_LINEARS]; /* (outputs, inputs), not packed */
  float* bias[SWIN_LINEARS];
  float *norm1_weight, *norm1_bias, *norm2_weight, *norm2_bias, *norm3_weight, *norm3_bias;
  float* position_bias;
  float* cosine_scale;
} swin_block_gradients;

/* transposed_weights: packed, of the four weights. saved: from swin_block_forward; null: activations are
 * recomputed. */
SWIN_API int32_t swin_block_backward(const swin_block* block, const void* const transposed_weights[SWIN_LINEARS],
                                     const float* x, const float* grad_y, const void* saved, int64_t groups,
                                     const swin_block_gradients* gradients);

/* --- Patch embedding and patch merging ---------------------------------------------------------------------------- */

/* A linear layer from K numbers to a token of N numbers, with a norm after or before it. */
typedef struct swin_projection {
  int32_t dtype, threads;
  int64_t outputs;    /* N; even for gradients */
  const void* weight; /* packed (N, K) */
  const float* bias;  /* (N); null: zeros */
  int32_t has_norm;
  int32_t norm_after; /* 1: the norm is of the token; 0: of the K numbers, for maps alone */
  float eps;
  const float *norm_weight, *norm_bias; /* null weight: ones; null bias: zeros */
} swin_projection;

typedef struct swin_projection_gradients {
  float* x;                       /* as the input, without gaps; null: no gradient of x */
  float* weight;                  /* (N, K) */
  float* bias;                    /* (N) */
  float *norm_weight, *norm_bias; /* null if there is no norm */
} swin_projection_gradients;

/* Patches of images (B, C, H, W), zero-padded at the bottom and right: K = C patch_height patch_width. */
typedef struct swin_images {
  const float* pixels;
  int64_t batch, channels, height, width;
  int64_t stride[4]; /* in numbers, not negative: of image, channel, row, column */
  int64_t patch_height, patch_width;
} swin_images;

/* y: (B, ceil(H / patch_height), ceil(W / patch_width), N). */
SWIN_API int32_t swin_embed_forward(const swin_images* images, const swin_projection* projection, float* y);
/* transposed_weight: packed; null: no gradient of x. */
SWIN_API int32_t swin_embed_backward(const swin_images* images, const swin_projection* projection,
                                     const void* transposed_weight, const float* grad_y,
                                     const swin_projection_gradients* gradients);

/* 2 x 2 neighbours of maps (B, H, W, C), zero-padded: top left, top right, bottom left, bottom right. K = 4 C. */
typedef struct swin_maps {
  const float* x;
  int64_t batch, height, width, channels;
} swin_maps;

/* y: (B, ceil(H / 2), ceil(W / 2), N). */
SWIN_API int32_t swin_merge_forward(const swin_maps* maps, const swin_projection* projection, float* y);
SWIN_API int32_t swin_merge_backward(const swin_maps* maps, const swin_projection* projection,
                                     const void* transposed_weight, const float* grad_y,
                                     const swin_projection_gradients* gradients);

/* --- Output norm -------------------------------------------------------------------------------------------------- */

/* LayerNorm of the tokens of maps (B, area, C), transposed to y (B, C, area). weight, bias: (C). A null weight is ones,
 * a null bias zeros. */
SWIN_API int32_t swin_output_norm_forward(const float* x, int64_t batch, int64_t area, int64_t channels,
                                          const float* weight, const float* bias, float eps, int32_t threads, float* y);
/* grad_x: as x. grad_weight, grad_bias: (C). */
SWIN_API int32_t swin_output_norm_backward(const float* x, const float* grad_y, int64_t batch, int64_t area,
                                           int64_t channels, const float* weight, float eps, int32_t threads,
                                           float* grad_x, float* grad_weight, float* grad_bias);

/* --- Detectors: convolutions, RoIAlign, NMS and deformable attention ---------------------------------------------- */

/* A 3x3 convolution with stride 1 and padding 1, by Winograd's minimal filtering, in tiles of 4 x 4 or 6 x 6 outputs.
 * Rounding differs from direct convolutions: in float32 by 3e-6 of the largest output, with 6 x 6 by 3e-5. On large
 * maps 6 x 6 takes 0.79 times the products. A number that is not finite makes every tile that reads it NaN, at most
 * four. Numbers above 1e36 may overflow. */
typedef struct swin_convolution {
  int32_t dtype, threads;                          /* of the maps; products are float32, for bfloat16 too */
  int32_t tile;                                    /* outputs along each side of a tile: 4 or 6 */
  int64_t batch, height, width, channels, outputs; /* B, H, W, C, N */
  const float* weight;                             /* packed for this tile */
  const float* bias;                               /* (N); null: zeros */
} swin_convolution;

/* The numbers of the packed weight of a convolution: (tile + 2)^2 N C. 0 for sizes that swin_pack_convolution refuses.
 */
SWIN_API int64_t swin_packed_convolution_size(int32_t tile, int64_t outputs, int64_t channels);
/* Pack a weight (N, 3, 3, C). */
SWIN_API int32_t swin_pack_convolution(const float* weight, int32_t tile, int64_t outputs, int64_t channels,
                                       int32_t threads, float* packed);
/* x: (B, H, W, C), y: (B, H, W, N). */
SWIN_API int32_t swin_convolution_forward(const swin_convolution* convolution, const void* x, void* y);

/* mmcv's RoIAlign: bilinear samples of maps (B, C, H, W) in R regions of I x J bins. A bin gives a number per channel.
 * A sample more than a pixel outside the map is 0. */
typedef struct swin_roi_align {
  int32_t dtype, threads; /* of maps and pooled; all instruction sets support both */
  int64_t batch, channels, height, width;
  int64_t stride[4];  /* of the maps, in numbers, not negative: of image, channel, row, column. The stride of columns
                         or of channels is 1 */
  int64_t regions;    /* R */
  const float* boxes; /* (R, 5): index of a map, x1, y1, x2, y2. A box with a NaN has no samples */
  int64_t bins_height, bins_width; /* I, J: 1 to 4096 */
  int64_t samples; /* of a bin along each axis, at most 1024; 0: the length of the bin in pixels, rounded up */
  float scale;     /* of the boxes, to pixels of the maps */
  int32_t aligned; /* 1: pixel centres lie at +0.5, and regions may be smaller than a pixel */
} swin_roi_align;

/* pooled: (R, C, I, J), the mean of each bin's samples. */
SWIN_API int32_t swin_roi_align_forward(const swin_roi_align* roi_align, const void* maps, void* pooled);
/* Add the gradient of the maps to grad_maps (float32, the strides of the maps). grad_pooled: of the dtype. */
SWIN_API int32_t swin_roi_align_backward(const swin_roi_align* roi_align, const void* grad_pooled, float* grad_maps);

/* Greedy suppression of overlapping boxes (count, 4): x1, y1, x2, y2. `order` lists the boxes, the best first. A box is
 * kept unless its overlap (intersection over union) with an already kept box is above the threshold. offset: 1 if boxes
 * include the last pixel, otherwise 0. kept: memory for `count` indices. num_kept: the number of kept boxes. */
SWIN_API int32_t swin_nms(const float* boxes, const int64_t* order, int64_t count, float threshold, float offset,
                          int32_t threads, int64_t* kept, int64_t* num_kept);

/* Deformable attention over L maps (Zhu et al. 2021, arXiv 2010.04159, equation 2): for each query and head the sum of
 * P bilinear samples of each map, times weights. Neighbours outside a map are 0. */
typedef struct swin_deformable {
  int32_t threads;
  int64_t batch, queries, tokens; /* B, Q, S: the tokens of all maps of an image, map after map */
  int64_t heads, channels;        /* h, and d of a head: 1 to 4096 each */
  int64_t levels, points;         /* L, P: 1 to 4096 each */
  const int64_t* shapes;          /* (L, 2): height and width of each map */
} swin_deformable;

/* values: (B, S, h, d). sampling_locations: (B, Q, h, L, P, 2): x and y of samples, 0 to 1 across a map. weights: (B,
 * Q, h, L, P). y: (B, Q, h, d). */
SWIN_API int32_t swin_deformable_forward(const swin_deformable* deformable, const float* values,
                                         const float* sampling_locations, const float* weights, float* y);
/* Write the gradients of sampling_locations and weights, and add the gradient of values to grad_values. */
SWIN_API int32_t swin_deformable_backward(const swin_deformable* deformable, const float* values,
                                          const float* sampling_locations, const float* weights, const float* grad_y,
                                          float* grad_values, float* grad_sampling_locations, float* grad_weights);

#ifdef __cplusplus
}
#endif

#endif
