/* Tiles in the compiler's vectors, for float32 and for bfloat16 that is widened. */
#include "gemm_tiles.h"

#ifdef __AVX512F__
#define BLOCK_ROWS 8 /* times two panels: sixteen of the thirty-two registers hold sums */
#define FEWER_ROWS(PANELS, BLOCK)                                                                                              \
    CASE(1, PANELS, BLOCK)                                                                                                     \
    CASE(2, PANELS, BLOCK)                                                                                                     \
    CASE(3, PANELS, BLOCK)                                                                                                     \
    CASE(4, PANELS, BLOCK)                                                                                                     \
    CASE(5, PANELS, BLOCK)                                                                                                     \
    CASE(6, PANELS, BLOCK)                                                                                                     \
    CASE(7, PANELS, BLOCK)
#else
#define BLOCK_ROWS 2
#define FEWER_ROWS(PANELS, BLOCK) CASE(1, PANELS, BLOCK)
#endif

INLINE void put(const struct target *to, int panel, int row, vfloat sum)
{
    float *at = to->panel[panel] + row * to->stride;
    store_f32(at, to->add ? load_f32(at) + sum : sum);
}

INLINE void block_f32(int rows, int num_panels, const float *const panels[], const float *const next[], const float *x,
                      int64_t stride, int64_t inputs, const struct target *to, int first_panel, int first_row)
{
    vfloat sum[BLOCK_ROWS][MAX_PANELS] = {0};
    for (int64_t k = 0; k < inputs; k++)
        for (int p = 0; p < num_panels; p++) {
            vfloat w = load_f32(panels[p] + k * LANES);
            if (next)
                __builtin_prefetch(next[p] + k * LANES, 0, 2);
            for (int r = 0; r < rows; r++)
                sum[r][p] += x[r * stride + k] * w;
        }
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < rows; r++)
            put(to, first_panel + p, first_row + r, sum[r][p]);
}

INLINE void block_wide(int rows, int num_panels, const bf16 *const panels[], const bf16 *const next[], const bf16 *x,
                       int64_t stride, int64_t inputs, const struct target *to, int first_panel, int first_row)
{
    vfloat sum[BLOCK_ROWS][MAX_PANELS] = {0};
    for (int64_t k = 0; k < inputs; k += 2)
        for (int p = 0; p < num_panels; p++) {
            vuint pairs = load_pairs(panels[p] + k * LANES);
            vfloat even = even_bf16(pairs), odd = odd_bf16(pairs);
            if (next)
                __builtin_prefetch(next[p] + k * LANES, 0, 2);
            for (int r = 0; r < rows; r++) {
                sum[r][p] += bf16_to_float(x[r * stride + k]) * even;
                if (k + 1 < inputs)
                    sum[r][p] += bf16_to_float(x[r * stride + k + 1]) * odd;
            }
        }
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < rows; r++)
            put(to, first_panel + p, first_row + r, sum[r][p]);
}

#ifdef __AVX512BF16__
#include <immintrin.h>

INLINE void block_bf16(int rows, int num_panels, const bf16 *const panels[], const bf16 *const next[], const bf16 *x,
                       int64_t stride, int64_t inputs, const struct target *to, int first_panel, int first_row)
{
    __m512 sum[BLOCK_ROWS][MAX_PANELS];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < num_panels; p++)
            sum[r][p] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += 2) {
        __m512bh w[MAX_PANELS];
        for (int p = 0; p < num_panels; p++) {
            w[p] = (__m512bh)_mm512_loadu_si512(panels[p] + k * LANES);
            if (next)
                __builtin_prefetch(next[p] + k * LANES, 0, 2);
        }
        for (int r = 0; r < rows; r++) {
            uint32_t pair = x[r * stride + k];
            if (k + 1 < inputs)
                memcpy(&pair, x + r * stride + k, sizeof pair);
            const __m512bh both = (__m512bh)_mm512_set1_epi32((int)pair);
            for (int p = 0; p < num_panels; p++)
                sum[r][p] = _mm512_dpbf16_ps(sum[r][p], both, w[p]);
        }
    }
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < rows; r++)
            put(to, first_panel + p, first_row + r, (vfloat)sum[r][p]);
}
#endif

/* A call of BLOCK for each shape, so that the compiler knows it and keeps the sums in registers. One row takes four panels at
 * once, or it would wait for each sum. The first rows bring the panels nearer that come next. */
#define CASE(ROWS, PANELS, BLOCK)                                                                                              \
    case ROWS:                                                                                                                 \
        if (r || !next)                                                                                                        \
            BLOCK(ROWS, PANELS, from + p, 0, row + r * stride, stride, w->inputs, to, p, r);                                   \
        else                                                                                                                   \
            BLOCK(ROWS, PANELS, from + p, after + p, row, stride, w->inputs, to, p, 0);                                        \
        break;

#define DEFINE_TILES(NAME, BLOCK, NUMBER)                                                                                      \
    void NAME(const struct weight *w, const void *const panels[], const void *const next[], int num_panels, const void *x,     \
              int64_t stride, int rows, const struct target *to)                                                               \
    {                                                                                                                          \
        const NUMBER *const *from = (const NUMBER *const *)panels, *const *after = (const NUMBER *const *)next, *row = x;      \
        if (rows == 1 && num_panels == MAX_PANELS && next) {                                                                   \
            BLOCK(1, MAX_PANELS, from, after, row, stride, w->inputs, to, 0, 0);                                               \
            return;                                                                                                            \
        }                                                                                                                      \
        for (int p = 0; p < num_panels; p += 2)                                                                                \
            for (int r = 0; r < rows; r += BLOCK_ROWS)                                                                         \
                if (num_panels - p == 1)                                                                                       \
                    switch (rows - r) {                                                                                        \
                        FEWER_ROWS(1, BLOCK)                                                                                   \
                    default: CASE(BLOCK_ROWS, 1, BLOCK)                                                                        \
                    }                                                                                                          \
                else                                                                                                           \
                    switch (rows - r) {                                                                                        \
                        FEWER_ROWS(2, BLOCK)                                                                                   \
                    default: CASE(BLOCK_ROWS, 2, BLOCK)                                                                        \
                    }                                                                                                          \
    }

DEFINE_TILES(tiles_f32, block_f32, float)
DEFINE_TILES(tiles_wide, block_wide, bf16)
#ifdef __AVX512BF16__
DEFINE_TILES(tiles_bf16, block_bf16, bf16)
#endif
