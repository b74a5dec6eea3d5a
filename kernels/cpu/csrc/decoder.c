/* One layer after the other; within one, each thread goes on as soon as all have done their share. */
#include "decoder.h"

#include <stdlib.h>

#include "layer_ops.h"
#include "pool.h"

#define ROWS_AT_ONCE 8 /* of the cheap parts, for one thread */

struct scratch {
    float *x;       /* [T][hidden], the residual stream */
    void *normed;   /* [T][hidden], into a product */
    float *qkv;     /* [T][(num_heads + 2 num_kv_heads) * head_dim] */
    void *attended; /* [T][num_heads * head_dim] */
    void *gated;    /* [T][intermediate] */
};

struct part {
    const struct decoder *d;
    const struct step *s;
    const struct scratch *scratch;
    const float *weight; /* of a norm */
    int64_t layer;
};

static void embed_rows(void *context, int begin, int end, int worker)
{
    const struct part *p = context;
    const int64_t size = p->d->hidden;
    (void)worker;
    for (int t = begin; t < end; t++) {
        const int64_t from = p->s->tokens[t] * size;
        for (int64_t i = 0; i < size; i += LANES)
            store_f32(p->scratch->x + t * size + i, p->d->heads.is_bf16 ? load_bf16((const bf16 *)p->d->embedding + from + i)
                                                                        : load_f32((const float *)p->d->embedding + from + i));
    }
}

static void norm_rows(void *context, int begin, int end, int worker)
{
    const struct part *p = context;
    const int64_t size = p->d->hidden;
    (void)worker;
    rms_norm(p->scratch->x + begin * size, 0, end - begin, size, p->weight, p->d->eps, (int)p->d->heads.is_bf16,
             (char *)p->scratch->normed + begin * size * (p->d->heads.is_bf16 ? 2 : 4));
}

static void norm_wanted(void *context, int begin, int end, int worker)
{
    const struct part *p = context;
    const int64_t size = p->d->hidden;
    const int64_t *rows = p->s->wanted;
    (void)worker;
    rms_norm(rows ? p->scratch->x : p->scratch->x + begin * size, rows ? rows + begin : 0, end - begin, size, p->weight,
             p->d->eps, (int)p->d->heads.is_bf16, (char *)p->s->hidden + begin * size * (p->d->heads.is_bf16 ? 2 : 4));
}

static void rotate_and_write(void *context, int begin, int end, int worker)
{
    const struct part *p = context;
    const struct heads *h = &p->d->heads;
    const int64_t stride = (h->num_heads + 2 * h->num_kv_heads) * h->head_dim;
    float *rows = p->scratch->qkv + begin * stride, *keys = rows + h->num_heads * h->head_dim;
    (void)worker;
    rotate(rows, stride, end - begin, h->num_heads + h->num_kv_heads, h->head_dim, p->s->positions + begin, p->d->cos_sin);
    write_kv(h, keys, keys + h->num_kv_heads * h->head_dim, stride, p->s->slots + begin, end - begin,
             p->s->key_caches[p->layer], p->s->value_caches[p->layer]);
}

static int run_layers(const struct decoder *d, const struct step *s, const struct scratch *scratch)
{
    const struct heads *h = &d->heads;
    const int is_bf16 = (int)h->is_bf16, count = (int)s->count;
    const int64_t query_size = h->num_heads * h->head_dim, stride = query_size + 2 * h->num_kv_heads * h->head_dim;
    struct part first = {d, s, scratch, 0, 0};
    pool_run(embed_rows, &first, count, ROWS_AT_ONCE);
    for (int64_t i = 0; i < d->num_layers; i++) {
        const struct layer *layer = d->layers + i;
        const int64_t inner = layer->down.inputs;
        const struct rows normed = {scratch->normed, d->hidden, count, is_bf16};
        const struct rows attended = {scratch->attended, query_size, count, is_bf16};
        const struct rows gated = {scratch->gated, inner, count, is_bf16};
        struct part part = {d, s, scratch, layer->input_norm, i};
        pool_run(norm_rows, &part, count, ROWS_AT_ONCE);
        if (!gemm(&layer->qkv, &normed, INTO_F32, scratch->qkv, stride))
            return 0;
        pool_run(rotate_and_write, &part, count, ROWS_AT_ONCE);
        if (!attend(h, &s->batch, scratch->qkv, stride, s->key_caches[i], s->value_caches[i], d->scale, scratch->attended))
            return 0;
        if (!gemm(&layer->out, &attended, ADD_F32, scratch->x, d->hidden))
            return 0;
        part.weight = layer->mlp_norm;
        pool_run(norm_rows, &part, count, ROWS_AT_ONCE);
        if (!gemm(&layer->gate_up, &normed, is_bf16 ? SILU_BF16 : SILU_F32, scratch->gated, inner))
            return 0;
        if (!gemm(&layer->down, &gated, ADD_F32, scratch->x, d->hidden))
            return 0;
    }
    struct part last = {d, s, scratch, d->norm, 0};
    pool_run(norm_wanted, &last, (int)s->num_wanted, ROWS_AT_ONCE);
    return 1;
}

static void *allocate(int64_t rows, int64_t size, int64_t number)
{
    return aligned_alloc(64, (size_t)((rows * size * number + 63) / 64 * 64));
}

int ringpost_decode(const struct decoder *d, const struct step *s)
{
    const struct heads *h = &d->heads;
    const int64_t number = h->is_bf16 ? 2 : 4, query_size = h->num_heads * h->head_dim;
    for (int64_t t = 0; t < s->count; t++)
        if (s->tokens[t] < 0 || s->tokens[t] >= d->vocab_size)
            return -1;
    struct scratch scratch = {
        .x = allocate(s->count, d->hidden, sizeof(float)),
        .normed = allocate(s->count, d->hidden, number),
        .qkv = allocate(s->count, query_size + 2 * h->num_kv_heads * h->head_dim, sizeof(float)),
        .attended = allocate(s->count, query_size, number),
        .gated = allocate(s->count, d->layers[0].down.inputs, number),
    };
    int done = scratch.x && scratch.normed && scratch.qkv && scratch.attended && scratch.gated;
    if (done)
        done = run_layers(d, s, &scratch);
    free(scratch.x);
    free(scratch.normed);
    free(scratch.qkv);
    free(scratch.attended);
    free(scratch.gated);
    return done;
}
