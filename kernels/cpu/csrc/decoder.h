/* The layers of a Llama-like decoder, from embedded tokens to normed hidden states, in one call. */
#ifndef RINGPOST_DECODER_H
#define RINGPOST_DECODER_H

#include "attention.h"
#include "gemm.h"

struct layer {
    const float *input_norm, *mlp_norm; /* [hidden] */
    struct weight qkv, out, gate_up, down;
};

struct decoder {
    int64_t num_layers, hidden;
    struct heads heads;
    float eps, scale;
    const float *norm, *cos_sin;
    const struct layer *layers;
};

struct step {
    int64_t count;            /* T tokens */
    float *x;                 /* [T][hidden]: embedded tokens; scratch afterwards */
    const int64_t *positions; /* [T] */
    const int64_t *slots;     /* [T] */
    struct batch batch;
    const int64_t *wanted; /* [num_wanted] rows whose hidden states are wanted, or null for all */
    int64_t num_wanted;
    void *const *key_caches, *const *value_caches; /* of each layer */
    void *hidden; /* [num_wanted][hidden], bfloat16 if the heads are, else float */
};

/* Keys and values of the tokens are in the caches afterwards. False if memory ran out. */
int ringpost_decode(const struct decoder *d, const struct step *s);

#endif
