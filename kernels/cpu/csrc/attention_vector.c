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
    const int64_t steps = is_bf16 ? h->head_dim / 2 : h->head_dim, size = h->block_size;
    vpart sum[SUB_ROWS][MAX_WIDTH * PARTS] = {0};
    for (int64_t d = 0; d < steps; d++)
        for (int g = 0; g < width; g++) {
            const char *line = (const char *)s->order[block + g] + d * size * WORD;
            if (ahead)
                prefetch_ahead(s, block + g, d);
            for (int i = 0; i < PARTS; i++) {
                const vpart_bits k = load_part(line, i);
                for (int r = 0; r < rows; r++) {
                    vpart *to = &sum[r][g * PARTS + i];
                    *to = add_products(is_bf16, *to, load_word((const char *)queries + (r * steps + d) * WORD), k);
                }
            }
        }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width * PARTS; i++)
            store_part(scores + r * SEGMENT + block * LANES, i, sum[r][i]);
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
    const int64_t steps = is_bf16 ? LANES / 2 : LANES, row_words = is_bf16 ? WEIGHTS_BF16 / 2 : SEGMENT;
    vpart sum[SUB_ROWS][MAX_WIDTH * PARTS];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width * PARTS; i++)
            sum[r][i] = (vpart)load_part(sums + r * dim + first, i);
    for (int block = 0; block < s->num_blocks; block++) {
        const int at = s->num_blocks + block;
        for (int64_t step = 0; step < steps; step++)
            for (int d = 0; d < width; d++) {
                const char *line = (const char *)s->order[at] + (step * dim + first + d * LANES) * WORD;
                if (ahead)
                    prefetch_ahead(s, at, step * lines + first / LANES + d);
                for (int i = 0; i < PARTS; i++) {
                    const vpart_bits v = load_part(line, i);
                    for (int r = 0; r < rows; r++) {
                        const char *weight = (const char *)weights + (r * row_words + block * steps + step) * WORD;
                        vpart *to = &sum[r][d * PARTS + i];
                        *to = add_products(is_bf16, *to, load_word(weight), v);
                    }
                }
            }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < width * PARTS; i++)
            store_part(sums + r * dim + first, i, sum[r][i]);
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
