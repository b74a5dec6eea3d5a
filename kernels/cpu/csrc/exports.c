/* The single kernels, for models that are put together from them. Arguments are as in the headers;
 * results are 0 when memory ran out. */
#include "attention.h"
#include "decoder.h"
#include "gemm.h"
#include "pool.h"

/* y float32 [count][outputs] for x [count][stride], padded by 32 rows that may be read. */
int ringpost_linear(const struct weight *w, const void *x, int64_t stride, int64_t count, int is_bf16, float *y)
{
    const struct rows rows = {x, stride, count, is_bf16};
    return gemm(w, &rows, INTO_F32, y, w->outputs);
}

int ringpost_write_kv(const struct heads *h, const float *keys, const float *values, const int64_t *slots, int64_t count,
                      void *key_cache, void *value_cache)
{
    write_kv(h, keys, values, h->num_kv_heads * h->head_dim, slots, count, key_cache, value_cache);
    return 1;
}

int ringpost_attend(const struct heads *h, const struct batch *batch, const float *queries, const void *key_cache,
                    const void *value_cache, float scale, void *out)
{
    return attend(h, batch, queries, h->num_heads * h->head_dim, key_cache, value_cache, scale, out);
}
