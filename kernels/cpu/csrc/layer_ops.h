/* What a layer computes besides products and attention.
 * Activations are float32 here, and rounded where they go into a product. */
#ifndef RINGPOST_LAYER_OPS_H
#define RINGPOST_LAYER_OPS_H

#include "vector.h"

/* out[r] = x[r] / rms * weight; out is bfloat16 if is_bf16, else float, with `size` numbers a row. */
void rms_norm(const float *x, int64_t count, int64_t size, const float *weight, float eps, int is_bf16, void *out);

/* Rotates heads [count][num_heads * head_dim] in place, `stride` from row to row: pairs are (i, i + head_dim / 2).
 * cos_sin is [position][head_dim]: the cosines, then the sines. */
void rotate(float *heads, int64_t stride, int64_t count, int64_t num_heads, int64_t head_dim, const int64_t *positions,
            const float *cos_sin);

#endif
