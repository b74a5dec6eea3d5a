/* One layer after the other; within one, each thread goes on as soon as all have done their share. */
#include "decoder.h"

#include <stdlib.h>

#include "layer_ops.h"
#include "pool.h"

#define ROWS_AT_ONCE 8 /* of the cheap parts, for one thread */

struct scratch {
    float *x;              /* [T][hidden], the residual stream */
    void *normed;          /* [T or num_wanted][hidden], into a product */
    float *qkv;            /* [T][(num_heads + 2 num_kv_heads) * head_dim] */
    void *attended;        /* [T][num_heads * head_dim] */
    void *gated;           /* [T or num_wanted][intermediate] */
    float *wanted_x;       /* [num_wanted][hidden] */
    void *wanted_attended; /* [num_wanted][num_heads * head_dim] */
};

struct part {
    const struct decoder *d;
    const struct step *s;
    const struct scratch *scratch;
    const float *weight; /* of a norm */
    void *normed;        /* what it gives */
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
    rms_norm(p->scratch->x + begin * size, end - begin, size, p->weight, p->d->eps, (int)p->d->heads.is_bf16,
             (char *)p->normed + begin * size * (p->d->heads.is_bf16 ? 2 : 4));
}

/* Behind the attention of the last layer, the other rows are of no use to anybody. */
static void keep_wanted(const struct decoder *d, const struct step *s, struct scratch *scratch)
{
    const int64_t query_bytes = d->heads.num_heads * d->heads.head_dim * (d->heads.is_bf16 ? 2 : 4);
    for (int64_t i = 0; i < s->num_wanted; i++) {
        memcpy(scratch->wanted_x + i * d->hidden, scratch->x + s->wanted[i] * d->hidden, (size_t)d->hidden * sizeof(float));
        memcpy((char *)scratch->wanted_attended + i * query_bytes,
               (const char *)scratch->attended + s->wanted[i] * query_bytes, (size_t)query_bytes);
    }
    scratch->x = scratch->wanted_x;
    scratch->attended = scratch->wanted_attended;
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

static int run_layers(const struct decoder *d, const struct step *s, struct scratch *scratch)
{
    const struct heads *h = &d->heads;
    const int is_bf16 = (int)h->is_bf16;
    const int64_t query_size = h->num_heads * h->head_dim, stride = query_size + 2 * h->num_kv_heads * h->head_dim;
    int count = (int)s->count;
    struct part part = {d, s, scratch, 0, scratch->normed, 0};
    pool_run(embed_rows, &part, count, ROWS_AT_ONCE);
    for (; part.layer < d->num_layers; part.layer++) {
        const struct layer *layer = d->layers + part.layer;
        const struct rows all = {scratch->normed, d->hidden, count, is_bf16};
        part.weight = layer->input_norm;
        pool_run(norm_rows, &part, count, ROWS_AT_ONCE);
        if (!gemm(&layer->qkv, &all, INTO_F32, scratch->qkv, stride))
            return 0;
        pool_run(rotate_and_write, &part, count, ROWS_AT_ONCE);
        if (!attend(h, &s->batch, scratch->qkv, stride, s->key_caches[part.layer], s->value_caches[part.layer], d->scale,
                    scratch->attended))
            return 0;
        if (part.layer == d->num_layers - 1 && s->wanted) {
            keep_wanted(d, s, scratch);
            count = (int)s->num_wanted;
        }
        const struct rows attended = {scratch->attended, query_size, count, is_bf16};
        const struct rows normed = {scratch->normed, d->hidden, count, is_bf16};
        const struct rows gated = {scratch->gated, layer->down.inputs, count, is_bf16};
        if (!gemm(&layer->out, &attended, ADD_F32, scratch->x, d->hidden))
            return 0;
        part.weight = layer->mlp_norm;
        pool_run(norm_rows, &part, count, ROWS_AT_ONCE);
        if (!gemm(&layer->gate_up, &normed, is_bf16 ? SILU_BF16 : SILU_F32, scratch->gated, layer->down.inputs))
            return 0;
        if (!gemm(&layer->down, &gated, ADD_F32, scratch->x, d->hidden))
            return 0;
    }
    part.weight = d->norm;
    part.normed = s->hidden;
    pool_run(norm_rows, &part, (int)s->num_wanted, ROWS_AT_ONCE);
    return 1;
}

static void *allocate(int64_t rows, int64_t size, int64_t number)
{
    return aligned_alloc(64, (size_t)(rows * size * number / 64 + 1) * 64);
}

int ringpost_decode(const struct decoder *d, const struct step *s)
{
    const struct heads *h = &d->heads;
    const int64_t number = h->is_bf16 ? 2 : 4, query_size = h->num_heads * h->head_dim;
    for (int64_t t = 0; t < s->count; t++)
        if (s->tokens[t] < 0 || s->tokens[t] >= d->vocab_size)
            return -1;
    const int64_t num_wanted = s->wanted ? s->num_wanted : 0, most = num_wanted > s->count ? num_wanted : s->count;
    struct scratch scratch = {
        .x = allocate(s->count, d->hidden, sizeof(float)),
        .normed = allocate(most, d->hidden, number),
        .qkv = allocate(s->count, query_size + 2 * h->num_kv_heads * h->head_dim, sizeof(float)),
        .attended = allocate(s->count, query_size, number),
        .gated = allocate(most, d->layers[0].down.inputs, number),
        .wanted_x = allocate(num_wanted, d->hidden, sizeof(float)),
        .wanted_attended = allocate(num_wanted, query_size, number),
    };
    const struct scratch taken = scratch; /* the layers go over to what is wanted */
    int done = taken.x && taken.normed && taken.qkv && taken.attended && taken.gated && taken.wanted_x && taken.wanted_attended;
    if (done)
        done = run_layers(d, s, &scratch);
    free(taken.x);
    free(taken.normed);
    free(taken.qkv);
    free(taken.attended);
    free(taken.gated);
    free(taken.wanted_x);
    free(taken.wanted_attended);
    return done;
}
