/* Tiles in the compiler's vectors, for float32 and for bfloat16 that is widened. */
#include "gemm_tiles.h"

#ifdef __AVX512F__
#define BLOCK_ROWS 8 /* times two panels: sixteen of the thirty-two registers hold sums */
#else
#define BLOCK_ROWS 2
#endif

INLINE void block_f32(int rows, int num_panels, const float *const panels[], const float *x, int64_t stride, int64_t inputs,
                      float *out, int64_t out_panel)
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
            store_f32(out + p * out_panel + r * LANES, sum[r][p]);
}

INLINE void block_wide(int rows, int num_panels, const bf16 *const panels[], const bf16 *x, int64_t stride, int64_t inputs,
                       float *out, int64_t out_panel)
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
            store_f32(out + p * out_panel + r * LANES, sum[r][p]);
}

#ifdef __AVX512BF16__
#include <immintrin.h>

INLINE void block_bf16(int rows, int num_panels, const bf16 *const panels[], const bf16 *x, int64_t stride, int64_t inputs,
                       float *out, int64_t out_panel)
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
            _mm512_storeu_ps(out + p * out_panel + r * LANES, sum[r][p]);
}
#endif

/* A call of BLOCK for each shape, so that the compiler knows it and keeps the sums in registers. One row takes four panels at once,
 * or it would wait for each sum. */
#define DEFINE_TILES(NAME, BLOCK, NUMBER)                                                                                  \
    void NAME(const struct weight *w, const void *const panels[], int num_panels, const void *x, int64_t stride, int rows,     \
              float *out)                                                                                                      \
    {                                                                                                                          \
        const NUMBER *const *from = (const NUMBER *const *)panels;                                                             \
        const int64_t apart = TILE_ROWS * LANES;                                                                               \
        const int width = rows == 1 ? MAX_PANELS : 2;                                                                          \
        for (int p = 0; p < num_panels; p += width) {                                                                          \
            const int some = num_panels - p < width ? num_panels - p : width;                                                  \
            int r = 0;                                                                                                         \
            for (; some == 2 && r + BLOCK_ROWS <= rows; r += BLOCK_ROWS)                                                       \
                BLOCK(BLOCK_ROWS, 2, from + p, (const NUMBER *)x + r * stride, stride, w->inputs,                              \
                      out + p * apart + r * LANES, apart);                                                                     \
            for (; some == 2 && r + 2 <= rows; r += 2)                                                                         \
                BLOCK(2, 2, from + p, (const NUMBER *)x + r * stride, stride, w->inputs, out + p * apart + r * LANES, apart);  \
            for (; r < rows; r++)                                                                                              \
                if (some == 4)                                                                                                 \
                    BLOCK(1, 4, from + p, (const NUMBER *)x + r * stride, stride, w->inputs, out + p * apart + r * LANES,      \
                          apart);                                                                                              \
                else                                                                                                           \
                    for (int q = 0; q < some; q++)                                                                             \
                        BLOCK(1, 1, from + p + q, (const NUMBER *)x + r * stride, stride, w->inputs,                           \
                              out + (p + q) * apart + r * LANES, apart);                                                       \
        }                                                                                                                      \
    }

DEFINE_TILES(tiles_f32, block_f32, float)
DEFINE_TILES(tiles_wide, block_wide, bf16)
#ifdef __AVX512BF16__
DEFINE_TILES(tiles_bf16, block_bf16, bf16)
#endif
