/* The layers of a Llama-like decoder, from tokens to normed hidden states, in one call. */
#ifndef RINGPOST_DECODER_H
#define RINGPOST_DECODER_H

#include "attention.h"
#include "gemm.h"

struct layer {
    const float *input_norm, *mlp_norm; /* [hidden] */
    struct weight qkv, out, gate_up, down;
};

struct decoder {
    int64_t num_layers, hidden, vocab_size;
    const void *embedding; /* [vocab_size][hidden], bfloat16 if the heads are, else float */
    struct heads heads;
    float eps, scale;
    const float *norm, *cos_sin;
    const struct layer *layers;
};

struct step {
    int64_t count;            /* T tokens */
    const int64_t *tokens;    /* [T] */
    const int64_t *positions; /* [T] */
    const int64_t *slots;     /* [T] */
    struct batch batch;
    const int64_t *wanted; /* [num_wanted] rows whose hidden states are wanted, some perhaps twice; or null */
    int64_t num_wanted;    /* T if all are wanted, and `wanted` is null */
    void *const *key_caches, *const *value_caches; /* of each layer */
    void *hidden; /* [num_wanted][hidden], bfloat16 if the heads are, else float */
};

/* Keys and values of the tokens are in the caches afterwards. 0 if memory ran out, and -1, before anything is done, if there is
 * no such token. */
int ringpost_decode(const struct decoder *d, const struct step *s);

#endif
