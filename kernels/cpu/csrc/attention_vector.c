/* Products of attention in the compiler's vectors: the lanes are positions for the scores, and dimensions for the sums. */
#include "attention_tiles.h"

#ifdef __AVX512F__
#define SUB_ROWS 8
#define WIDTH(ROWS) ((ROWS) > 4 ? 2 : 4) /* vectors of a row at a time: sixteen sums, so that none waits for itself */
#else
#define SUB_ROWS 4
#define WIDTH(ROWS) 1
#endif
#define MAX_WIDTH 4

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

INLINE uint32_t load_pair(const bf16 *p)
{
    uint32_t pair;
    memcpy(&pair, p, sizeof pair);
    return pair;
}

/* Line `line` of the block that is read AHEAD blocks after the one at `at`: they lie all over the cache, so no hardware guesses
 * them. Line by line, since memory takes only so many wishes at once. */
INLINE void prefetch_ahead(const struct segment *s, int at, int64_t line)
{
    __builtin_prefetch((const char *)s->order[at + AHEAD] + line * s->line_bytes[at + AHEAD], 0, 2);
}

/* Scores of the positions of `width` blocks from `block` on. */
INLINE void scores_of(int is_bf16, int ahead, int rows, int width, const struct heads *h, const struct segment *s, int block,
                      const void *queries, float *scores)
{
    const int64_t dim = h->head_dim, size = h->block_size;
    vfloat sum[SUB_ROWS][MAX_WIDTH] = {0};
    if (is_bf16)
        for (int64_t d = 0; d < dim / 2; d++)
            for (int g = 0; g < width; g++) {
                const vuint k = load_pairs((const bf16 *)s->order[block + g] + d * size * 2);
                if (ahead)
                    prefetch_ahead(s, block + g, d);
                for (int r = 0; r < rows; r++)
                    sum[r][g] = add_pairs(sum[r][g], k, load_pair((const bf16 *)queries + r * dim + d * 2));
            }
    else
        for (int64_t d = 0; d < dim; d++)
            for (int g = 0; g < width; g++) {
                const vfloat k = load_f32((const float *)s->order[block + g] + d * size);
                if (ahead)
                    prefetch_ahead(s, block + g, d);
                for (int r = 0; r < rows; r++)
                    sum[r][g] += ((const float *)queries)[r * dim + d] * k;
            }
    for (int r = 0; r < rows; r++)
        for (int g = 0; g < width; g++)
            store_f32(scores + r * SEGMENT + (block + g) * LANES, sum[r][g]);
}

INLINE void scores_rows(int is_bf16, int ahead, int rows, const struct heads *h, const struct segment *s, const void *queries,
                        float *scores)
{
    const int width = WIDTH(rows);
    int block = 0;
    for (; block + width <= s->num_blocks; block += width)
        scores_of(is_bf16, ahead, rows, width, h, s, block, queries, scores);
    for (; block < s->num_blocks; block++)
        scores_of(is_bf16, ahead, rows, 1, h, s, block, queries, scores);
}

/* Adds to `width` vectors of the sums, from dimension `first` on. */
INLINE void weigh_rows(int is_bf16, int ahead, int rows, int width, const struct heads *h, const struct segment *s,
                       const void *weights, int64_t first, float *sums)
{
    const int64_t dim = h->head_dim, lines = dim / LANES; /* of a pair or a position */
    vfloat sum[SUB_ROWS][MAX_WIDTH];
    for (int r = 0; r < rows; r++)
        for (int d = 0; d < width; d++)
            sum[r][d] = load_f32(sums + r * dim + first + d * LANES);
    for (int block = 0; block < s->num_blocks; block++) {
        const int at = s->num_blocks + block;
        if (is_bf16)
            for (int i = 0; i < LANES / 2; i++)
                for (int d = 0; d < width; d++) {
                    const vuint v = load_pairs((const bf16 *)s->order[at] + (i * dim + first + d * LANES) * 2);
                    if (ahead)
                        prefetch_ahead(s, at, i * lines + first / LANES + d);
                    for (int r = 0; r < rows; r++)
                        sum[r][d] = add_pairs(
                            sum[r][d], v, load_pair((const bf16 *)weights + r * WEIGHTS_BF16 + block * LANES + i * 2));
                }
        else
            for (int i = 0; i < LANES; i++)
                for (int d = 0; d < width; d++) {
                    const vfloat v = load_f32((const float *)s->order[at] + i * dim + first + d * LANES);
                    if (ahead)
                        prefetch_ahead(s, at, i * lines + first / LANES + d);
                    for (int r = 0; r < rows; r++)
                        sum[r][d] += ((const float *)weights)[r * SEGMENT + block * LANES + i] * v;
                }
    }
    for (int r = 0; r < rows; r++)
        for (int d = 0; d < width; d++)
            store_f32(sums + r * dim + first + d * LANES, sum[r][d]);
}

INLINE void weigh_all_rows(int is_bf16, int ahead, int rows, const struct heads *h, const struct segment *s,
                           const void *weights, float *sums)
{
    const int width = WIDTH(rows);
    int64_t first = 0;
    for (; first + width * LANES <= h->head_dim; first += width * LANES)
        weigh_rows(is_bf16, ahead, rows, width, h, s, weights, first, sums);
    for (; first < h->head_dim; first += LANES)
        weigh_rows(is_bf16, ahead, rows, 1, h, s, weights, first, sums);
}

/* CALL(is_bf16, ahead, rows) for SUB_ROWS rows at a time, or fewer at the end, with constants, so that the compiler knows the
 * shape. The first rows bring nearer what comes next. */
#define ROWS_OF(CALL, IS_BF16, ROWS)                                                                                           \
    if (r)                                                                                                                     \
        CALL(IS_BF16, 0, ROWS);                                                                                                \
    else                                                                                                                       \
        CALL(IS_BF16, 1, ROWS);                                                                                                \
    break
#if SUB_ROWS == 8
#define MORE_ROWS(CALL, IS_BF16)                                                                                               \
    case 4: ROWS_OF(CALL, IS_BF16, 4);                                                                                         \
    case 5: ROWS_OF(CALL, IS_BF16, 5);                                                                                         \
    case 6: ROWS_OF(CALL, IS_BF16, 6);                                                                                         \
    case 7: ROWS_OF(CALL, IS_BF16, 7);
#else
#define MORE_ROWS(CALL, IS_BF16)
#endif
#define FOR_ROWS(CALL, IS_BF16)                                                                                                \
    for (int r = 0; r < rows; r += SUB_ROWS)                                                                                   \
        switch (rows - r) {                                                                                                    \
        case 1: ROWS_OF(CALL, IS_BF16, 1);                                                                                     \
        case 2: ROWS_OF(CALL, IS_BF16, 2);                                                                                     \
        case 3: ROWS_OF(CALL, IS_BF16, 3);                                                                                     \
            MORE_ROWS(CALL, IS_BF16)                                                                                           \
        default: ROWS_OF(CALL, IS_BF16, SUB_ROWS);                                                                             \
        }

void scores_vector(const struct heads *h, const struct segment *s, const void *queries, int rows, float *scores)
{
#define SCORES(IS_BF16, AHEAD, ROWS)                                                                                           \
    scores_rows(IS_BF16, AHEAD, ROWS, h, s, (const char *)queries + r * h->head_dim * (IS_BF16 ? 2 : 4), scores + r * SEGMENT)
    if (h->is_bf16)
        FOR_ROWS(SCORES, 1)
    else
        FOR_ROWS(SCORES, 0)
}

void weigh_vector(const struct heads *h, const struct segment *s, const void *weights, int rows, float *sums)
{
#define WEIGH(IS_BF16, AHEAD, ROWS)                                                                                            \
    weigh_all_rows(IS_BF16, AHEAD, ROWS, h, s, (const float *)weights + r * SEGMENT, sums + r * h->head_dim)
    if (h->is_bf16)
        FOR_ROWS(WEIGH, 1)
    else
        FOR_ROWS(WEIGH, 0)
}
