/* Products of attention on the matrix unit of AMX: keys and values lie in the cache as its tiles want them. */
#include "attention_tiles.h"

#ifdef __AMX_BF16__
#include <immintrin.h>

#include "amx.h"

/* 0 and 1: scores or sums; 2: keys; 3 and 4: values; 5: queries; 6: weights. */
void begin_amx(int rows)
{
    const int some = rows < TILE_HEIGHT ? rows : TILE_HEIGHT;
    configure_tiles((const int[8]){some, some, TILE_HEIGHT, LANES / 2, LANES / 2, some, some, 0},
                    (const int[8]){64, 64, 64, 64, 64, 64, 32, 0});
}

/* Loads of tiles do not tell the compiler what they read. */
INLINE void publish(const void *p)
{
    __asm__ volatile("" : : "r"(p) : "memory");
}

void scores_amx(const struct heads *h, const struct segment *s, const void *queries, int rows, float *scores)
{
    const bf16 *q = queries;
    const int64_t dim = h->head_dim, key_stride = h->block_size * 4;
    (void)rows;
    publish(q);
    for (int block = 0; block < s->num_blocks; block++) {
        const bf16 *keys = s->order[block];
        _tile_zero(0);
        for (int64_t d = 0; d < dim; d += 32) {
            _tile_loadd(5, q + d, dim * 2);
            _tile_loadd(2, keys + d * h->block_size, key_stride);
            _tile_dpbf16ps(0, 5, 2);
        }
        _tile_stored(0, scores + block * LANES, SEGMENT * 4);
    }
}

void weigh_amx(const struct heads *h, const struct segment *s, const void *weights, int rows, float *sums)
{
    const bf16 *w = weights;
    const int64_t dim = h->head_dim;
    (void)rows;
    publish(w);
    publish(sums);
    for (int64_t d = 0; d < dim; d += 2 * LANES) {
        _tile_loadd(0, sums + d, dim * 4);
        _tile_loadd(1, sums + d + LANES, dim * 4);
        for (int block = 0; block < s->num_blocks; block++) {
            const bf16 *values = (const bf16 *)s->order[s->num_blocks + block] + d * 2;
            _tile_loadd(6, w + block * LANES, WEIGHTS_BF16 * 2);
            _tile_loadd(3, values, dim * 4);
            _tile_dpbf16ps(0, 6, 3);
            _tile_loadd(4, values + 2 * LANES, dim * 4);
            _tile_dpbf16ps(1, 6, 4);
        }
        _tile_stored(0, sums + d, dim * 4);
        _tile_stored(1, sums + d + LANES, dim * 4);
    }
}
#endif
