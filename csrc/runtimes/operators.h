/* The layers of swin.h as nodes of a graph. An operator owns its weights, packed once; a run needs the map alone.
 *
 * A weight has the shape of swin.h, in float32, and is copied. A linear layer of BlockInt8, EmbedInt8 and MergeInt8 has
 * two weights: whole numbers from -127 to 127, int8, and the largest magnitude of each output, float32. A number of the
 * layer is largest * whole / 127. `version` is that of Swin: only blocks of V2 read cosine_scale. A norm with an eps
 * below 0 is absent. Maps are (B, H, W, C); the input of Embed and the output of OutputNorm are (B, C, H, W).
 *
 * SWIN_BACKBONE_ISA, an environment variable, names the instruction set of the operators that are created while it is
 * set. The set belongs to the operator, as its packed weights do: swin_use_isa has no effect on it, nor it on others.
 *
 * Functions return null, or an error in one sentence. The sentence is valid until the next error of the thread.
 * An operator may run in several threads at once.
 */
#ifndef SWIN_RUNTIMES_OPERATORS_H
#define SWIN_RUNTIMES_OPERATORS_H

#include "swin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct swin_operator swin_operator;

/* The names of all kinds, with a space between two. */
SWIN_API const char* swin_operator_kinds(void);
/* The names of a kind's attributes, in the order in which swin_operator_create reads them; null: an unknown kind. Names
 * with "eps" or "scale" are floats, all others whole numbers. */
SWIN_API const char* swin_operator_attributes(const char* kind);
/* The names of a kind's weights, in order; null: an unknown kind. Weights whose names end in "_int8" are int8, all
 * others float32. */
SWIN_API const char* swin_operator_weights(const char* kind);

/* attributes, weights: as many as there are names. counts: the numbers of each weight. */
SWIN_API const char* swin_operator_create(const char* kind, const double* attributes, const void* const* weights,
                                          const int64_t* counts, swin_operator** made);
SWIN_API void swin_operator_free(swin_operator* made);

/* The shape of the output for an input of this shape. */
SWIN_API const char* swin_operator_shape(const swin_operator* made, const int64_t shape[4], int64_t output_shape[4]);
SWIN_API const char* swin_operator_run(const swin_operator* made, const int64_t shape[4], const float* x,
                                       int32_t threads, float* y);

#ifdef __cplusplus
}
#endif

#endif
