/* Tiles in vectors. */
#include "gemm_tiles.h"

/* Sums of a block of rows with AT_ONCE panels take half the registers. */
#ifdef __AVX512F__
#define AT_ONCE 2
#define BLOCK_ROWS 8
#else
#define AT_ONCE 1
#define BLOCK_ROWS 4
#endif

#if BLOCK_ROWS == 8
#define FEWER_ROWS(PANELS, KIND)                                                                                               \
    CASE(1, PANELS, KIND)                                                                                                      \
    CASE(2, PANELS, KIND)                                                                                                      \
    CASE(3, PANELS, KIND)                                                                                                      \
    CASE(4, PANELS, KIND)                                                                                                      \
    CASE(5, PANELS, KIND)                                                                                                      \
    CASE(6, PANELS, KIND)                                                                                                      \
    CASE(7, PANELS, KIND)
#else
#define FEWER_ROWS(PANELS, KIND)                                                                                               \
    CASE(1, PANELS, KIND)                                                                                                      \
    CASE(2, PANELS, KIND)                                                                                                      \
    CASE(3, PANELS, KIND)
#endif

/* A step of a sum takes LINE bytes of each panel and WORD bytes of each row: a float, or a pair of bfloat16. */
#define LINE 64
#define WORD 4

enum { F32, PAIRS };

struct block {
    const char *x;  /* the first row */
    int64_t stride; /* bytes from row to row */
    int64_t steps;
    int odd; /* half a pair is left after the steps */
    const char *pair[MAX_PANELS / 2], *next[MAX_PANELS / 2]; /* pairs of panels, and those to be brought nearer */
    int64_t apart; /* bytes from the first panel of a pair to its second */
    int64_t ahead; /* bytes of `next` that a step brings nearer */
};

/* Keeps the compiler from making a pointer for each row, for which there are not enough registers. */
#define HIDE(POINTER) __asm__("" : "+r"(POINTER))

/* Row `r` by two pointers: `x` is the first, `fourth` the fourth. */
INLINE const char *row_of(const char *x, const char *fourth, int64_t stride, int64_t three_strides, int r)
{
    return r < 3 ? x + r * stride : r == 6 ? fourth + three_strides : fourth + (r - 3) * stride;
}

INLINE part multiply(int kind, part sum, uint32_t word, part_bits w)
{
    return kind == F32 ? sum + splat_part(word) * (part)w : add_pairs(sum, word, w);
}

INLINE void put(const struct target *to, int panel, int row, const part *sum)
{
    float *at = to->panel[panel] + row * to->stride;
    for (int i = 0; i < PARTS; i++)
        store_part(at, i, to->add ? (part)load_part(at, i) + sum[i] : sum[i]);
}

/* Products of some rows with one, two or four panels. */
INLINE void multiply_block(int kind, int rows, int num_panels, int ahead, const struct block *b, const struct target *to,
                           int first_panel, int first_row)
{
    part sum[BLOCK_ROWS][MAX_PANELS * PARTS] = {0};
    const char *x = b->x, *fourth = x + 3 * b->stride, *w = b->pair[0], *other = b->pair[1], *end = w + b->steps * LINE;
    const char *next = b->next[0], *other_next = b->next[1];
    const int64_t stride = b->stride, three_strides = 3 * stride, apart = b->apart;
    for (; w < end; w += LINE, other += LINE, x += WORD, fourth += WORD, next += b->ahead, other_next += b->ahead) {
        HIDE(x);
        HIDE(fourth);
        HIDE(w);
        HIDE(next);
        part_bits line[MAX_PANELS * PARTS];
        for (int p = 0; p < num_panels; p++) {
            for (int i = 0; i < PARTS; i++)
                line[p * PARTS + i] = load_part((p < 2 ? w : other) + p % 2 * apart, i);
            if (ahead)
                __builtin_prefetch((p < 2 ? next : other_next) + p % 2 * apart, 0, 2);
        }
        for (int r = 0; r < rows; r++) {
            uint32_t word;
            memcpy(&word, row_of(x, fourth, stride, three_strides, r), sizeof word);
            for (int i = 0; i < num_panels * PARTS; i++)
                sum[r][i] = multiply(kind, sum[r][i], word, line[i]);
        }
    }
    if (kind != F32 && b->odd)
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < num_panels * PARTS; i++) {
                const int p = i / PARTS;
                bf16 half;
                memcpy(&half, row_of(x, fourth, stride, three_strides, r), sizeof half);
                const char *line = (p < 2 ? w : other) + p % 2 * apart;
                sum[r][i] = multiply(kind, sum[r][i], half, load_part(line, i % PARTS));
            }
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < rows; r++)
            put(to, first_panel + p, first_row + r, sum[r] + p * PARTS);
}

/* A call for each shape, so that the compiler knows it and keeps the sums in registers. */
#define CASE(ROWS, PANELS, KIND)                                                                                               \
    case ROWS:                                                                                                                 \
        if (b.next[0])                                                                                                         \
            multiply_block(KIND, ROWS, PANELS, 1, &b, to, p, r);                                                               \
        else                                                                                                                   \
            multiply_block(KIND, ROWS, PANELS, 0, &b, to, p, r);                                                               \
        break;

/* One row takes four panels, or it would wait for each sum. All blocks of rows together bring nearer the panels that come next,
 * each its part: memory takes only so many wishes at once. */
INLINE void multiply_tiles(int kind, const struct weight *w, const void *const panels[], const void *const next[],
                           int num_panels, const void *x, int64_t stride, int rows, const struct target *to)
{
    const int64_t size = kind == F32 ? sizeof(float) : sizeof(bf16), steps = w->inputs * size / WORD;
    const int64_t ahead = LINE / ((rows + BLOCK_ROWS - 1) / BLOCK_ROWS);
    struct block b = {.stride = stride * size, .steps = steps, .odd = w->inputs * size % WORD != 0, .ahead = ahead};
    b.apart = num_panels > 1 ? (const char *)panels[1] - (const char *)panels[0] : 0;
    if (rows == 1 && num_panels == MAX_PANELS && next) {
        b.x = x;
        for (int i = 0; i < MAX_PANELS / 2; i++) {
            b.pair[i] = panels[2 * i];
            b.next[i] = next[2 * i];
        }
        multiply_block(kind, 1, MAX_PANELS, 1, &b, to, 0, 0);
        return;
    }
    for (int p = 0; p < num_panels; p += AT_ONCE)
        for (int r = 0; r < rows; r += BLOCK_ROWS) {
            b.x = (const char *)x + r * b.stride;
            b.pair[0] = b.pair[1] = panels[p];
            b.next[0] = b.next[1] = next ? (const char *)next[p] + r / BLOCK_ROWS * steps * ahead : 0;
            if (num_panels - p < AT_ONCE)
                switch (rows - r) {
                    FEWER_ROWS(1, kind)
                default: CASE(BLOCK_ROWS, 1, kind)
                }
            else
                switch (rows - r) {
                    FEWER_ROWS(AT_ONCE, kind)
                default: CASE(BLOCK_ROWS, AT_ONCE, kind)
                }
        }
}

#define DEFINE_TILES(NAME, KIND)                                                                                               \
    void NAME(const struct weight *w, const void *const panels[], const void *const next[], int num_panels, const void *x,     \
              int64_t stride, int rows, const struct target *to)                                                               \
    {                                                                                                                          \
        multiply_tiles(KIND, w, panels, next, num_panels, x, stride, rows, to);                                                \
    }

DEFINE_TILES(tiles_f32, F32)
DEFINE_TILES(tiles_bf16, PAIRS)
