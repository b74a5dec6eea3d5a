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
}

void scores_amx(const struct heads *h, const struct segment *s, const float *queries, int rows, float *scores)
{
    bf16 q[MAX_ROWS * MAX_HEAD_DIM] __attribute__((aligned(64)));
    const int64_t dim = h->head_dim, key_stride = h->block_size * 4;
    const int second = rows > TILE_HEIGHT ? rows - TILE_HEIGHT : 0, first = rows - second;
    to_bf16(queries, dim, rows, dim, q, dim);
    /* 0, 1: scores of the first rows and of the second; 4: keys; 6, 7: queries. */
    configure_tiles((const int[8]){first, second, 0, 0, TILE_HEIGHT, 0, first, second}, (const int[8]){64, 64, 0, 0, 64, 0, 64, 64});
    for (int at = 0; at < s->num_positions; at += LANES) {
        const bf16 *keys = s->keys[at / LANES];
        _tile_zero(0);
        if (second)
            _tile_zero(1);
        for (int64_t d = 0; d < dim; d += 32) {
            _tile_loadd(4, keys + d * h->block_size, key_stride);
            _tile_loadd(6, q + d, dim * 2);
            _tile_dpbf16ps(0, 6, 4);
            if (second) {
                _tile_loadd(7, q + TILE_HEIGHT * dim + d, dim * 2);
                _tile_dpbf16ps(1, 7, 4);
            }
        }
        _tile_stored(0, scores + at, SEGMENT * 4);
        if (second)
            _tile_stored(1, scores + TILE_HEIGHT * SEGMENT + at, SEGMENT * 4);
    }
}

void weigh_amx(const struct heads *h, const struct segment *s, const float *weights, int rows, float *sums)
{
    bf16 w[MAX_ROWS * SEGMENT] __attribute__((aligned(64)));
    const int64_t dim = h->head_dim;
    const int rounded = (s->num_positions + LANES - 1) / LANES * LANES;
    to_bf16(weights, SEGMENT, rows, rounded, w, SEGMENT);
    for (int row = 0; row < rows; row += TILE_HEIGHT) {
        const int some = rows - row < TILE_HEIGHT ? rows - row : TILE_HEIGHT;
        /* 0, 1: sums of LANES dimensions each; 4, 5: values of LANES positions; 6: weights of these. */
        configure_tiles((const int[8]){some, some, 0, 0, LANES / 2, LANES / 2, some, 0}, (const int[8]){64, 64, 0, 0, 64, 64, 32, 0});
        for (int64_t d = 0; d < dim; d += 2 * LANES) {
            float *sum = sums + row * dim + d;
            _tile_loadd(0, sum, dim * 4);
            _tile_loadd(1, sum + LANES, dim * 4);
            for (int at = 0; at < s->num_positions; at += LANES) {
                const bf16 *values = (const bf16 *)s->values[at / LANES] + d * 2;
                _tile_loadd(6, w + row * SEGMENT + at, SEGMENT * 2);
                _tile_loadd(4, values, dim * 4);
                _tile_dpbf16ps(0, 6, 4);
                _tile_loadd(5, values + 2 * LANES, dim * 4);
                _tile_dpbf16ps(1, 6, 5);
            }
            _tile_stored(0, sum, dim * 4);
            _tile_stored(1, sum + LANES, dim * 4);
        }
    }
}
#endif
