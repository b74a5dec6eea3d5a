/* Causal attention over a paged cache. */
#ifndef RINGPOST_ATTENTION_H
#define RINGPOST_ATTENTION_H

#include "vector.h"

/* A block of a head is `block_size` positions of `head_dim` numbers each, in the order in which attention reads them:
 * float32: keys [head_dim][block_size], values [block_size][head_dim];
 * bfloat16: keys [head_dim / 2][block_size][2], values [block_size / 2][head_dim][2].
 * The block size is a multiple of LANES, and so is head_dim, which is at most MAX_HEAD_DIM. */
#define MAX_HEAD_DIM 256

struct heads {
    int64_t num_heads, num_kv_heads, head_dim, block_size;
    int64_t is_bf16; /* the cache, and what attention gives */
};

/* The requests of a step. Request r computes positions starts[r] .. starts[r] + counts[r] - 1. */
struct batch {
    int64_t num_requests;
    const int64_t *starts, *counts;
    const int32_t *block_table; /* [num_requests][table_width] */
    int64_t table_width;
};

/* Stores the keys and values float32 [count][num_kv_heads * head_dim], `stride` from row to row, at their slots. */
void write_kv(const struct heads *h, const float *keys, const float *values, int64_t stride, const int64_t *slots,
              int64_t count, void *key_cache, void *value_cache);

/* Queries float32, `stride` from row to row, to out [T][num_heads * head_dim]. False if memory for it ran out. */
int attend(const struct heads *h, const struct batch *batch, const float *queries, int64_t stride, const void *key_cache,
           const void *value_cache, float scale, void *out);

#endif
