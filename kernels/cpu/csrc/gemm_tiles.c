/* Tiles in the compiler's vectors, for float32 and for bfloat16 that is widened. */
#include "gemm_tiles.h"

#ifdef __AVX512F__
#define BLOCK_ROWS 8 /* times two panels: sixteen of the thirty-two registers hold sums */
#else
#define BLOCK_ROWS 2
#endif

INLINE void put(const struct target *to, int panel, int row, vfloat sum)
{
    float *at = to->panel[panel] + row * to->stride;
    store_f32(at, to->add ? load_f32(at) + sum : sum);
}

INLINE void block_f32(int rows, int num_panels, const float *const panels[], const float *x, int64_t stride, int64_t inputs,
                      const struct target *to, int first_panel, int first_row)
{
    vfloat sum[BLOCK_ROWS][MAX_PANELS] = {0};
    for (int64_t k = 0; k < inputs; k++)
        for (int p = 0; p < num_panels; p++) {
            vfloat w = load_f32(panels[p] + k * LANES);
            for (int r = 0; r < rows; r++)
                sum[r][p] += x[r * stride + k] * w;
        }
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < rows; r++)
            put(to, first_panel + p, first_row + r, sum[r][p]);
}

INLINE void block_wide(int rows, int num_panels, const bf16 *const panels[], const bf16 *x, int64_t stride, int64_t inputs,
                       const struct target *to, int first_panel, int first_row)
{
    vfloat sum[BLOCK_ROWS][MAX_PANELS] = {0};
    for (int64_t k = 0; k < inputs; k += 2)
        for (int p = 0; p < num_panels; p++) {
            vuint pairs = load_pairs(panels[p] + k * LANES);
            vfloat even = even_bf16(pairs), odd = odd_bf16(pairs);
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

INLINE void block_bf16(int rows, int num_panels, const bf16 *const panels[], const bf16 *x, int64_t stride, int64_t inputs,
                       const struct target *to, int first_panel, int first_row)
{
    __m512 sum[BLOCK_ROWS][MAX_PANELS];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < num_panels; p++)
            sum[r][p] = _mm512_setzero_ps();
    for (int64_t k = 0; k < inputs; k += 2)
        for (int p = 0; p < num_panels; p++) {
            __m512bh w = (__m512bh)_mm512_loadu_si512(panels[p] + k * LANES);
            for (int r = 0; r < rows; r++) {
                uint32_t pair = x[r * stride + k];
                if (k + 1 < inputs)
                    memcpy(&pair, x + r * stride + k, sizeof pair);
                sum[r][p] = _mm512_dpbf16_ps(sum[r][p], (__m512bh)_mm512_set1_epi32((int)pair), w);
            }
        }
    for (int p = 0; p < num_panels; p++)
        for (int r = 0; r < rows; r++)
            put(to, first_panel + p, first_row + r, (vfloat)sum[r][p]);
}
#endif

/* A call of BLOCK for each shape, so that the compiler knows it and keeps the sums in registers. One row takes four panels at once,
 * or it would wait for each sum. */
#define DEFINE_TILES(NAME, BLOCK, NUMBER)                                                                                      \
    void NAME(const struct weight *w, const void *const panels[], int num_panels, const void *x, int64_t stride, int rows,     \
              const struct target *to)                                                                                         \
    {                                                                                                                          \
        const NUMBER *const *from = (const NUMBER *const *)panels, *row = x;                                                   \
        const int width = rows == 1 ? MAX_PANELS : 2;                                                                          \
        for (int p = 0; p < num_panels; p += width) {                                                                          \
            const int some = num_panels - p < width ? num_panels - p : width;                                                  \
            int r = 0;                                                                                                         \
            for (; some == 2 && r + BLOCK_ROWS <= rows; r += BLOCK_ROWS)                                                       \
                BLOCK(BLOCK_ROWS, 2, from + p, row + r * stride, stride, w->inputs, to, p, r);                                 \
            for (; some == 2 && r + 2 <= rows; r += 2)                                                                         \
                BLOCK(2, 2, from + p, row + r * stride, stride, w->inputs, to, p, r);                                          \
            for (; r < rows; r++)                                                                                              \
                if (some == MAX_PANELS)                                                                                        \
                    BLOCK(1, MAX_PANELS, from + p, row + r * stride, stride, w->inputs, to, p, r);                             \
                else                                                                                                           \
                    for (int q = p; q < p + some; q++)                                                                         \
                        BLOCK(1, 1, from + q, row + r * stride, stride, w->inputs, to, q, r);                                  \
        }                                                                                                                      \
    }

DEFINE_TILES(tiles_f32, block_f32, float)
DEFINE_TILES(tiles_wide, block_wide, bf16)
#ifdef __AVX512BF16__
DEFINE_TILES(tiles_bf16, block_bf16, bf16)
#endif
