/* Products of attention in the compiler's vectors: the lanes are positions for the scores, and dimensions for the sums. */
#include "attention_tiles.h"

#ifdef __AVX512F__
#define GROUPS 4 /* of LANES positions, so that no sum waits for itself */
#else
#define GROUPS 1
#endif
#define DIMS 4 /* vectors of a row's sums at a time */
#define SUB_ROWS 4

#ifdef __AVX512BF16__
#include <immintrin.h>

/* Both products of a pair at once. `pair` holds two bfloat16. */
INLINE vfloat add_pairs(vfloat sum, vuint pairs, uint32_t pair)
{
    return (vfloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)(__m512i)pairs);
}
#else
INLINE vfloat add_pairs(vfloat sum, vuint pairs, uint32_t pair)
{
    sum += bf16_to_float((bf16)pair) * even_bf16(pairs);
    return sum + bf16_to_float((bf16)(pair >> 16)) * odd_bf16(pairs);
}
#endif

/* Rounds `count` floats, in whole vectors, and returns them as pairs. */
INLINE void to_pairs(const float *from, int64_t count, uint32_t *pairs)
{
    for (int64_t i = 0; i < count; i += LANES)
        store_bf16((bf16 *)pairs + i, load_f32(from + i));
}

/* Brings the numbers of a block nearer that are needed soon: they lie all over the cache, so no hardware guesses them. */
INLINE void prefetch_block(const struct heads *h, const void *block)
{
    const int64_t bytes = h->head_dim * LANES * (h->is_bf16 ? 2 : 4);
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)block + i);
}

INLINE void scores_block(int is_bf16, int rows, int groups, const struct heads *h, const void *const keys[], const float *q,
                         const uint32_t *pairs, float *scores)
{
    const int64_t dim = h->head_dim, size = h->block_size;
    vfloat sum[SUB_ROWS][GROUPS] = {0};
    if (is_bf16)
        for (int64_t d = 0; d < dim / 2; d++)
            for (int g = 0; g < groups; g++) {
                vuint k = load_pairs((const bf16 *)keys[g] + d * size * 2);
                for (int r = 0; r < rows; r++)
                    sum[r][g] = add_pairs(sum[r][g], k, pairs[r * (dim / 2) + d]);
            }
    else
        for (int64_t d = 0; d < dim; d++)
            for (int g = 0; g < groups; g++) {
                vfloat k = load_f32((const float *)keys[g] + d * size);
                for (int r = 0; r < rows; r++)
                    sum[r][g] += q[r * dim + d] * k;
            }
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < groups; g++)
            store_f32(scores + r * SEGMENT + g * LANES, sum[r][g]);
}

INLINE void scores_rows(int is_bf16, int rows, const struct heads *h, const struct segment *s, const float *q, float *scores)
{
    uint32_t pairs[SUB_ROWS * MAX_HEAD_DIM / 2];
    const int blocks = (s->num_positions + LANES - 1) / LANES;
    int g = 0;
    if (is_bf16)
        to_pairs(q, rows * h->head_dim, pairs);
    for (; g + GROUPS <= blocks; g += GROUPS) {
        for (int i = g; i < g + GROUPS; i++) {
            if (i + GROUPS < blocks)
                prefetch_block(h, s->keys[i + GROUPS]);
            prefetch_block(h, s->values[i]);
        }
        scores_block(is_bf16, rows, GROUPS, h, s->keys + g, q, pairs, scores + g * LANES);
    }
    for (; g < blocks; g++) {
        prefetch_block(h, s->values[g]);
        scores_block(is_bf16, rows, 1, h, s->keys + g, q, pairs, scores + g * LANES);
    }
}

INLINE void weigh_rows(int is_bf16, int rows, int dims, const struct heads *h, const struct segment *s, const float *weights,
                       int64_t first_dim, float *sums)
{
    const int64_t dim = h->head_dim;
    vfloat sum[SUB_ROWS][DIMS];
    for (int r = 0; r < rows; r++)
        for (int d = 0; d < dims; d++)
            sum[r][d] = load_f32(sums + r * dim + first_dim + d * LANES);
    for (int at = 0; at < s->num_positions; at += LANES) {
        const int count = s->num_positions - at < LANES ? s->num_positions - at : LANES;
        if (at / LANES < s->num_next)
            prefetch_block(h, s->next_keys[at / LANES]);
        if (is_bf16) {
            const bf16 *values = (const bf16 *)s->values[at / LANES] + first_dim * 2;
            uint32_t pairs[SUB_ROWS][LANES / 2];
            for (int r = 0; r < rows; r++)
                to_pairs(weights + r * SEGMENT + at, LANES, pairs[r]);
            for (int i = 0; i < (count + 1) / 2; i++)
                for (int d = 0; d < dims; d++) {
                    vuint v = load_pairs(values + i * dim * 2 + d * LANES * 2);
                    for (int r = 0; r < rows; r++)
                        sum[r][d] = add_pairs(sum[r][d], v, pairs[r][i]);
                }
        } else {
            const float *values = (const float *)s->values[at / LANES] + first_dim;
            for (int i = 0; i < count; i++)
                for (int d = 0; d < dims; d++) {
                    vfloat v = load_f32(values + i * dim + d * LANES);
                    for (int r = 0; r < rows; r++)
                        sum[r][d] += weights[r * SEGMENT + at + i] * v;
                }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int d = 0; d < dims; d++)
            store_f32(sums + r * dim + first_dim + d * LANES, sum[r][d]);
}

/* A call for each number of rows, so that the compiler knows it. */
#define FOR_ROWS(CALL)                                                                                                         \
    for (int r = 0; r < rows; r += SUB_ROWS)                                                                                   \
        switch (rows - r) {                                                                                                    \
        case 1: CALL(1); break;                                                                                                \
        case 2: CALL(2); break;                                                                                                \
        case 3: CALL(3); break;                                                                                                \
        default: CALL(SUB_ROWS);                                                                                               \
        }

void scores_vector(const struct heads *h, const struct segment *s, const float *queries, int rows, float *scores)
{
#define SCORES_BF16(N) scores_rows(1, N, h, s, queries + r * h->head_dim, scores + r * SEGMENT)
#define SCORES_F32(N) scores_rows(0, N, h, s, queries + r * h->head_dim, scores + r * SEGMENT)
    if (h->is_bf16)
        FOR_ROWS(SCORES_BF16)
    else
        FOR_ROWS(SCORES_F32)
}

void weigh_vector(const struct heads *h, const struct segment *s, const float *weights, int rows, float *sums)
{
#define WEIGH_BF16(N) weigh_rows(1, N, DIMS, h, s, weights + r * SEGMENT, d, sums + r * h->head_dim)
#define WEIGH_F32(N) weigh_rows(0, N, DIMS, h, s, weights + r * SEGMENT, d, sums + r * h->head_dim)
    int64_t d = 0;
    for (; d + DIMS * LANES <= h->head_dim; d += DIMS * LANES)
        if (h->is_bf16)
            FOR_ROWS(WEIGH_BF16)
        else
            FOR_ROWS(WEIGH_F32)
    for (; d < h->head_dim; d += LANES)
        for (int r = 0; r < rows; r++)
            if (h->is_bf16)
                weigh_rows(1, 1, 1, h, s, weights + r * SEGMENT, d, sums + r * h->head_dim);
            else
                weigh_rows(0, 1, 1, h, s, weights + r * SEGMENT, d, sums + r * h->head_dim);
}
