/* libswin: layers of Swin Transformers, V1 and V2, for CPUs, with their gradients; and three operators of detectors.
 *
 * Plain C. The library knows neither torch nor Python. It has its kernels for several instruction sets inside, and
 * takes the best that the processor has, or another that swin_use_isa names.
 *
 * Numbers. Maps, gradients, biases and norms are float32, in C order without gaps, except the images of an embedding,
 * which have strides. The products of linear layers are of `dtype`: float32, or bfloat16 with sums in float32. An
 * instruction set without products of bfloat16 rounds the same numbers, and multiplies them in float32. Weights of
 * linear layers are packed first, by swin_pack.
 *
 * Ownership. The caller owns all memory, and the library keeps no pointer after a call. What a call computes on the way
 * is in memory that it allocates and frees. Memory that is written may overlap with no other, but for
 * swin_block_forward, where y may be x. Addresses are multiples of the size of their numbers (4, or 2 for bfloat16), of
 * packed weights of 4, of `saved` multiples of 64.
 *
 * Errors. A function returns SWIN_OK, or the kind of the error, and then swin_error says in a sentence what was wrong.
 * It has written nothing if the kind is SWIN_INVALID. No exception leaves a function, and no argument whose pointers
 * have the memory said here makes it abort.
 *
 * Threads. A call computes on at most `threads` threads (1 to 1024), and with one it touches no other: so a process
 * may be forked before it. On Linux they are those of the process's OpenMP, if one is loaded. Functions may be called
 * from several threads at once. With the same number of threads, results are the same from call to call.
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

/* Changes with every change of this file. */
#define SWIN_VERSION 7
SWIN_API int32_t swin_version(void);

enum swin_status {
  SWIN_OK = 0,
  SWIN_INVALID = 1,     /* an argument is wrong */
  SWIN_UNSUPPORTED = 2, /* this processor does not compute it */
  SWIN_NO_MEMORY = 3,
  SWIN_FAILED = 4 /* anything else: a fault of the library */
};
/* About the last call of this thread that did not return SWIN_OK. It is valid until the next. */
SWIN_API const char* swin_error(void);

enum swin_dtype { SWIN_FLOAT32 = 0, SWIN_BFLOAT16 = 1 };

/* The instruction set in use: amx, avx512_bf16, avx512, avx2, neon_bf16 or neon; "" if the processor has none. */
SWIN_API const char* swin_isa(void);
/* All that the library has kernels for, the best first, with a space between two: what the compiler had flags for. */
SWIN_API const char* swin_isas(void);
/* Takes the instruction set of this name for all calls from now on; null: the best. Weights that were packed for
 * another are wrong then, and what another saved. */
SWIN_API int32_t swin_use_isa(const char* name);
/* Why products are not computed in this dtype here, in a sentence; null: they are. */
SWIN_API const char* swin_why_not(int32_t dtype);

/* --- Weights --------------------------------------------------------------------------------------------------------
 */

/* How many numbers of `dtype` a packed weight of N outputs and K inputs has by the instruction set in use: N K, with K
 * made even for bfloat16; 2 N K for bfloat16 without products of it. 0 if N or K is not from 1 to 2^31 - 1, or their
 * product is more. */
SWIN_API int64_t swin_packed_size(int32_t dtype, int64_t N, int64_t K);

/* Packs a weight (rows, columns) = (N, K), or, if `transposed`, the transpose of it: (rows, columns) = (K, N).
 * unit: 1 to 96; this many outputs stay together: for the qkv of a block, and the transposed proj, C / h; for all
 * others 1. packed: swin_packed_size numbers. */
SWIN_API int32_t swin_pack(int32_t dtype, const float* weight, int64_t rows, int64_t columns, int64_t unit,
                           int32_t transposed, int32_t threads, void* packed);

/* A hash of `count` pieces of memory, of bytes[i] bytes each. Every change of one number changes it, and others are
 * missed with a probability of 2^-64. It is the same for any number of threads. */
SWIN_API int32_t swin_checksum(const void* const* pieces, const int64_t* bytes, int64_t count, int32_t threads,
                               uint64_t* sum);

/* --- A block --------------------------------------------------------------------------------------------------------
 */

/* The linear layers of a block, in this order everywhere: qkv (3C, C), proj (C, C), fc1 (D, C), fc2 (C, D). */
enum swin_linear { SWIN_QKV, SWIN_PROJ, SWIN_FC1, SWIN_FC2, SWIN_LINEARS };

typedef struct swin_block {
  int32_t dtype, threads;
  int64_t batch, height, width; /* of the maps: B, H, W. No map is allowed, an empty one is not */
  int64_t channels, hidden;     /* C, a multiple of 8 h, at most 64 h; D, a multiple of 8 */
  int64_t heads;
  int64_t window_height, window_width; /* 1 to 16 */
  int64_t shift_height, shift_width;   /* 0 to that less 1 */
  int32_t mask_padding;                /* whether tokens do not attend to padding */
  int32_t has_norm3;                   /* V2 only: a norm after the MLP's residual */
  float scale;                         /* of q k^T */
  float eps1, eps2, eps3;              /* of the norms */
  const void* linear[SWIN_LINEARS];    /* packed */
  const float* bias[SWIN_LINEARS];     /* of as many numbers as a layer has outputs; null: zeros */
  const float *norm1_weight, *norm1_bias, *norm2_weight, *norm2_bias, *norm3_weight, *norm3_bias; /* (C); null: 1, 0 */
  const float* position_bias;                                                                     /* (h, N, N) */
  const float* cosine_scale; /* (h): this is a block of V2; null: of V1 */
  const float* drop_path;    /* (2, B): factors of the two branches of each map; null: 1 */
} swin_block;

/* How much a forward pass saves for the backward pass: `groups` times `bytes`. groups: in, how many, or 0 for as many
 * as serve block.threads threads best; out, how many. */
SWIN_API int32_t swin_block_saved_size(const swin_block* block, int64_t* groups, int64_t* bytes);

/* x, y: (B, H, W, C). saved: as swin_block_saved_size says; null: nothing is saved. */
SWIN_API int32_t swin_block_forward(const swin_block* block, const float* x, float* y, void* saved, int64_t groups);

/* Where gradients are written: all of them, whichever the block has. */
typedef struct swin_block_gradients {
  float* x;                    /* (B, H, W, C) */
  float* linear[SWIN_LINEARS]; /* (outputs, inputs), not packed */
  float* bias[SWIN_LINEARS];
  float *norm1_weight, *norm1_bias, *norm2_weight, *norm2_bias, *norm3_weight, *norm3_bias;
  float* position_bias;
  float* cosine_scale;
} swin_block_gradients;

/* transposed: the packed transposes of the four weights. saved: by swin_block_forward; null: it is computed again. */
SWIN_API int32_t swin_block_backward(const swin_block* block, const void* const transposed[SWIN_LINEARS],
                                     const float* x, const float* grad_y, const void* saved, int64_t groups,
                                     const swin_block_gradients* gradients);

/* --- Patch embedding and patch merging ------------------------------------------------------------------------------
 */

/* A linear layer from K numbers to a token of N, and a norm of the token, or of the K numbers. */
typedef struct swin_projection {
  int32_t dtype, threads;
  int64_t outputs;    /* N; even for gradients */
  const void* linear; /* packed (N, K) */
  const float* bias;  /* (N); null: zeros */
  int32_t has_norm;
  float eps;
  const float *norm_weight, *norm_bias; /* null: 1, 0 */
} swin_projection;

typedef struct swin_projection_gradients {
  float* x;                       /* as the input, without gaps; null: not wanted */
  float* linear;                  /* (N, K) */
  float* bias;                    /* (N) */
  float *norm_weight, *norm_bias; /* null if there is no norm */
} swin_projection_gradients;

/* Patches of images (B, C, H, W), zero-padded at the bottom and right: K = C patch_height patch_width. The norm is of
 * the token. */
typedef struct swin_images {
  const float* pixels;
  int64_t batch, channels, height, width;
  int64_t stride[4]; /* in numbers, not negative: of image, channel, row, column */
  int64_t patch_height, patch_width;
} swin_images;

/* y: (B, ceil(H / patch_height), ceil(W / patch_width), N). */
SWIN_API int32_t swin_embed_forward(const swin_images* images, const swin_projection* projection, float* y);
/* transposed: the packed transpose of the weight; null: the gradient of x is not wanted. */
SWIN_API int32_t swin_embed_backward(const swin_images* images, const swin_projection* projection,
                                     const void* transposed, const float* grad_y,
                                     const swin_projection_gradients* gradients);

/* 2 x 2 neighbours of maps (B, H, W, C), zero-padded, top left, top right, bottom left, bottom right: K = 4 C. The norm
 * is of these, or of the token if norm_after. */
typedef struct swin_maps {
  const float* x;
  int64_t batch, height, width, channels;
  int32_t norm_after;
} swin_maps;

/* y: (B, ceil(H / 2), ceil(W / 2), N). */
SWIN_API int32_t swin_merge_forward(const swin_maps* maps, const swin_projection* projection, float* y);
SWIN_API int32_t swin_merge_backward(const swin_maps* maps, const swin_projection* projection, const void* transposed,
                                     const float* grad_y, const swin_projection_gradients* gradients);

/* --- Output norm ----------------------------------------------------------------------------------------------------
 */

/* LayerNorm of the tokens of maps (B, area, C), transposed to y (B, C, area). weight, bias: (C); null: 1, 0. */
SWIN_API int32_t swin_output_norm_forward(const float* x, int64_t batch, int64_t area, int64_t channels,
                                          const float* weight, const float* bias, float eps, int32_t threads, float* y);
/* grad_x: as x. grad_weight, grad_bias: (C). */
SWIN_API int32_t swin_output_norm_backward(const float* x, const float* grad_y, int64_t batch, int64_t area,
                                           int64_t channels, const float* weight, float eps, int32_t threads,
                                           float* grad_x, float* grad_weight, float* grad_bias);

/* --- Detectors: convolutions, RoIAlign and NMS ---------------------------------------------------------------------
 */

/* A convolution of 3x3 taps with a stride of 1, of maps with a row and a column of zeros around them, by Winograd's
 * minimal filtering, in tiles of 4 x 4 or 6 x 6 outputs. It is rounded otherwise than by other implementations: in
 * float32 to 3e-6 of the largest output, with 6 x 6 to 3e-5. With 6 x 6 a large map takes 0.79 times the products. A
 * number that is not finite makes NaN of all tiles that read it, up to 2 x 2, and numbers above 1e36 may overflow. */
typedef struct swin_convolution {
  int32_t dtype, threads;                          /* of the maps; products are float32, for bfloat16 too */
  int32_t tile;                                    /* outputs along each side of a tile: 4 or 6 */
  int64_t batch, height, width, channels, outputs; /* B, H, W, C, N */
  const float* weight;                             /* packed for this tile */
  const float* bias;                               /* (N); null: zeros */
} swin_convolution;

/* How many numbers the packed weight of a convolution has: (tile + 2)^2 N C. 0 if they are none or more than 2^31 - 1.
 */
SWIN_API int64_t swin_packed_convolution_size(int32_t tile, int64_t outputs, int64_t channels);
/* Packs a weight (N, 3, 3, C). */
SWIN_API int32_t swin_pack_convolution(const float* weight, int32_t tile, int64_t outputs, int64_t channels,
                                       int32_t threads, float* packed);
/* x: (B, H, W, C), y: (B, H, W, N). */
SWIN_API int32_t swin_convolution_forward(const swin_convolution* convolution, const void* x, void* y);

/* RoIAlign, as mmcv computes it: bilinear samples of maps (B, C, H, W) in R regions, of each of which I x J bins become
 * one number each. A sample further than a pixel outside the map is 0. */
typedef struct swin_roi_align {
  int32_t dtype, threads; /* of the maps and of what is pooled; any instruction set takes both */
  int64_t batch, channels, height, width;
  int64_t stride[4];  /* of the maps, in numbers, not negative: of image, channel, row, column. Of the last, or of the
                         second, it is 1 */
  int64_t regions;    /* R */
  const float* boxes; /* (R, 5): index of a map, x1, y1, x2, y2. One with a NaN has no samples */
  int64_t bins_height, bins_width; /* I, J: 1 to 4096 */
  int64_t samples; /* of a bin along each axis, to 1024; 0: as many as the bin is long in pixels, rounded up */
  float scale;     /* of the boxes, to pixels of the maps */
  int32_t aligned; /* whether a pixel's centre lies at +0.5, and a region may be smaller than a pixel */
} swin_roi_align;

/* pooled: (R, C, I, J), the mean of each bin's samples. With argmax_y and argmax_x, as pooled, float32: their maximum,
 * and where its sample lies, -1 if there is none. */
SWIN_API int32_t swin_roi_align_forward(const swin_roi_align* roi_align, const void* maps, void* pooled,
                                        float* argmax_y, float* argmax_x);
/* Adds the gradient of the maps to grad_maps, float32, which has the strides. grad_pooled: of the dtype. */
SWIN_API int32_t swin_roi_align_backward(const swin_roi_align* roi_align, const void* grad_pooled,
                                         const float* argmax_y, const float* argmax_x, float* grad_maps);

/* Greedy suppression of overlapping boxes (count, 4): x1, y1, x2, y2. In this `order` of their indices, from the best,
 * each is kept unless one kept before overlaps it by more than the threshold (intersection over union). offset: 1 if a
 * box has its last pixel, else 0. kept: room for `count` indices; num_kept: how many there are. */
SWIN_API int32_t swin_nms(const float* boxes, const int64_t* order, int64_t count, float threshold, float offset,
                          int32_t threads, int64_t* kept, int64_t* num_kept);

#ifdef __cplusplus
}
#endif

#endif
