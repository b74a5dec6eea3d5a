/* Tiles in vectors. */
#include "gemm_tiles.h"

/* Sums of a block of rows with AT_ONCE panels take half the registers of AVX-512, AVX2 and NEON. */
#ifdef __AVX512F__
#define AT_ONCE 2
#define BLOCK_ROWS 8
#else
#define AT_ONCE 1
#define BLOCK_ROWS 4
#endif

#if BLOCK_ROWS == 8
#define FEWER_ROWS(PANELS, IS_BF16)                                                                                            \
    CASE(1, PANELS, IS_BF16)                                                                                                   \
    CASE(2, PANELS, IS_BF16)                                                                                                   \
    CASE(3, PANELS, IS_BF16)                                                                                                   \
    CASE(4, PANELS, IS_BF16)                                                                                                   \
    CASE(5, PANELS, IS_BF16)                                                                                                   \
    CASE(6, PANELS, IS_BF16)                                                                                                   \
    CASE(7, PANELS, IS_BF16)
#else
#define FEWER_ROWS(PANELS, IS_BF16)                                                                                            \
    CASE(1, PANELS, IS_BF16)                                                                                                   \
    CASE(2, PANELS, IS_BF16)                                                                                                   \
    CASE(3, PANELS, IS_BF16)
#endif

#define LINE 64 /* bytes of each panel that a step of a sum takes, with a word of each row */

struct block {
    const char *x;  /* the first row */
    int64_t stride; /* bytes from row to row */
    int64_t steps;
    int odd; /* half a pair is left after the steps */
    const char *pair[MAX_PANELS / 2], *next[MAX_PANELS / 2]; /* pairs of panels, and those to be brought nearer */
    int64_t apart; /* bytes from the first panel of a pair to its second */
    int64_t ahead; /* bytes of `next` that a step brings nearer */
};

/* Keeps the compiler from making a pointer for each row and panel, for which there are not enough registers. */
#define HIDE(POINTER) __asm__("" : "+r"(POINTER))

/* Row `r` by two pointers: `x` is the first, `fourth` the fourth. */
INLINE const char *row_of(const char *x, const char *fourth, int64_t stride, int64_t three_strides, int r)
{
    return r < 3 ? x + r * stride : r == 6 ? fourth + three_strides : fourth + (r - 3) * stride;
}

INLINE void put(const struct target *to, int panel, int row, const vpart *sum)
{
    float *at = to->panel[panel] + row * to->stride;
    for (int i = 0; i < PARTS; i++)
        store_part(at, i, to->add ? (vpart)load_part(at, i) + sum[i] : sum[i]);
}

/* Products of some rows with one, two or four panels. */
INLINE void multiply_block(int is_bf16, int rows, int num_panels, int ahead, const struct block *b, const struct target *to,
                           int first_panel, int first_row)
{
    vpart sum[BLOCK_ROWS][MAX_PANELS * PARTS] = {0};
    const char *x = b->x, *fourth = rows > 3 ? x + 3 * b->stride : x, *w = b->pair[0], *other = b->pair[1];
    const char *next = ahead ? b->next[0] : w, *other_next = ahead ? b->next[1] : w, *end = w + b->steps * LINE;
    const int64_t stride = b->stride, three_strides = 3 * stride, apart = b->apart;
    for (; w < end; w += LINE, other += LINE, x += WORD, fourth += WORD) {
        HIDE(x);
        HIDE(fourth);
        HIDE(w);
        vpart_bits line[MAX_PANELS * PARTS];
        for (int p = 0; p < num_panels; p++) {
            for (int i = 0; i < PARTS; i++)
                line[p * PARTS + i] = load_part((p < 2 ? w : other) + p % 2 * apart, i);
            if (ahead)
                __builtin_prefetch((p < 2 ? next : other_next) + p % 2 * apart, 0, 2);
        }
        if (ahead) {
            next += b->ahead;
            other_next += b->ahead;
            HIDE(next);
        }
        for (int r = 0; r < rows; r++) {
            const uint32_t word = load_word(row_of(x, fourth, stride, three_strides, r));
            for (int i = 0; i < num_panels * PARTS; i++)
                sum[r][i] = add_products(is_bf16, sum[r][i], word, line[i]);
        }
    }
    if (is_bf16 && b->odd)
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < num_panels * PARTS; i++) {
                const int p = i / PARTS;
                bf16 half;
                memcpy(&half, row_of(x, fourth, stride, three_strides, r), sizeof half);
                const char *line = (p < 2 ? w : other) + p % 2 * apart;
                sum[r][i] = add_products(is_bf16, sum[r][i], half, load_part(line, i % PARTS));
            }
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < rows; r++)
            put(to, first_panel + p, first_row + r, sum[r] + p * PARTS);
}

/* A call for each shape, so that the compiler knows it and keeps the sums in registers. */
#define CASE(ROWS, PANELS, IS_BF16)                                                                                            \
    case ROWS:                                                                                                                 \
        if (b.next[0])                                                                                                         \
            multiply_block(IS_BF16, ROWS, PANELS, 1, &b, to, p, r);                                                            \
        else                                                                                                                   \
            multiply_block(IS_BF16, ROWS, PANELS, 0, &b, to, p, r);                                                            \
        break;

/* One row takes four panels, or it would wait for each sum. All blocks of rows together bring nearer the panels that come next,
 * each its part: memory takes only so many wishes at once. */
INLINE void multiply_tiles(int is_bf16, const struct weight *w, const void *const panels[], const void *const next[],
                           int num_panels, const void *x, int64_t stride, int rows, const struct target *to)
{
    const int64_t size = is_bf16 ? sizeof(bf16) : sizeof(float), steps = w->inputs * size / WORD;
    const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, ahead = (LINE + blocks - 1) / blocks;
    struct block b = {.stride = stride * size, .steps = steps, .odd = w->inputs * size % WORD != 0, .ahead = ahead};
    b.apart = num_panels > 1 ? (const char *)panels[1] - (const char *)panels[0] : 0;
    if (rows == 1 && num_panels == MAX_PANELS && next) {
        b.x = x;
        for (int i = 0; i < MAX_PANELS / 2; i++) {
            b.pair[i] = panels[2 * i];
            b.next[i] = next[2 * i];
        }
        multiply_block(is_bf16, 1, MAX_PANELS, 1, &b, to, 0, 0);
        return;
    }
    for (int p = 0; p < num_panels; p += AT_ONCE)
        for (int r = 0; r < rows; r += BLOCK_ROWS) {
            b.x = (const char *)x + r * b.stride;
            b.pair[0] = b.pair[1] = panels[p];
            b.next[0] = b.next[1] = next ? (const char *)next[p] + r / BLOCK_ROWS * steps * ahead : 0;
            if (num_panels - p < AT_ONCE)
                switch (rows - r) {
                    FEWER_ROWS(1, is_bf16)
                default: CASE(BLOCK_ROWS, 1, is_bf16)
                }
            else
                switch (rows - r) {
                    FEWER_ROWS(AT_ONCE, is_bf16)
                default: CASE(BLOCK_ROWS, AT_ONCE, is_bf16)
                }
        }
}

#define DEFINE_TILES(NAME, IS_BF16)                                                                                            \
    void NAME(const struct weight *w, const void *const panels[], const void *const next[], int num_panels, const void *x,     \
              int64_t stride, int rows, const struct target *to)                                                               \
    {                                                                                                                          \
        multiply_tiles(IS_BF16, w, panels, next, num_panels, x, stride, rows, to);                                             \
    }

DEFINE_TILES(tiles_f32, 0)
DEFINE_TILES(tiles_bf16, 1)
