/* Products of attention on the matrix unit of AMX: keys and values lie in the cache as its tiles want them. */
#include "attention_tiles.h"

#ifdef __AMX_BF16__
#include <immintrin.h>

#include "amx.h"

static void to_bf16(const float *from, int64_t from_stride, int rows, int64_t count, bf16 *to, int64_t to_stride)
{
    for (int r = 0; r < rows; r++)
        for (int64_t i = 0; i < count; i += LANES)
            store_bf16(to + r * to_stride + i, load_f32(from + r * from_stride + i));
    __asm__ volatile("" : : "r"(to) : "memory"); /* loads of tiles do not tell the compiler what they read */
}

/* 0 and 1: scores or sums; 2: keys; 3 and 4: values; 5: queries; 6: weights. */
void begin_amx(int rows)
{
    const int some = rows < TILE_HEIGHT ? rows : TILE_HEIGHT;
    configure_tiles((const int[8]){some, some, TILE_HEIGHT, LANES / 2, LANES / 2, some, some, 0},
                    (const int[8]){64, 64, 64, 64, 64, 64, 32, 0});
}

void scores_amx(const struct heads *h, const struct segment *s, const float *queries, int rows, float *scores)
{
    bf16 q[TILE_HEIGHT * MAX_HEAD_DIM] __attribute__((aligned(64)));
    const int64_t dim = h->head_dim, key_stride = h->block_size * 4;
    to_bf16(queries, dim, rows, dim, q, dim);
    for (int at = 0; at < s->num_positions; at += LANES) {
        const bf16 *keys = s->keys[at / LANES];
        _tile_zero(0);
        for (int64_t d = 0; d < dim; d += 32) {
            _tile_loadd(5, q + d, dim * 2);
            _tile_loadd(2, keys + d * h->block_size, key_stride);
            _tile_dpbf16ps(0, 5, 2);
        }
        _tile_stored(0, scores + at, SEGMENT * 4);
    }
}

void weigh_amx(const struct heads *h, const struct segment *s, const float *weights, int rows, float *sums)
{
    bf16 w[TILE_HEIGHT * SEGMENT] __attribute__((aligned(64)));
    const int64_t dim = h->head_dim;
    const int rounded = (s->num_positions + LANES - 1) / LANES * LANES;
    to_bf16(weights, SEGMENT, rows, rounded, w, SEGMENT);
    for (int64_t d = 0; d < dim; d += 2 * LANES) {
        _tile_loadd(0, sums + d, dim * 4);
        _tile_loadd(1, sums + d + LANES, dim * 4);
        for (int at = 0; at < s->num_positions; at += LANES) {
            const bf16 *values = (const bf16 *)s->values[at / LANES] + d * 2;
            _tile_loadd(6, w + at, SEGMENT * 2);
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
