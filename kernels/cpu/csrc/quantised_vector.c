/* Products with quantised weights in vectors: the integers' own instructions where there are some, else floats, which hold the
 * sums of a group exactly too. */
#include "quantised.h"

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#define BLOCK_ROWS 8 /* eight registers hold a group's weights, as many the sums */

/* Sums of a group for each row. The instruction takes weights without a sign: those of FORMAT_Q8 get 128 more, and sums begin
 * with as much less. */
INLINE void sum_group(int64_t format, int rows, const uint8_t *weights, const struct quantised *x, int64_t at,
                      vpart sums[][PARTS])
{
    __m512i quads[QUADS];
    const __m512i low = _mm512_set1_epi8(15);
    for (int j = 0; j < QUADS; j++)
        if (format == FORMAT_Q8) {
            quads[j] = _mm512_xor_si512(_mm512_loadu_si512(weights + j * QUAD_BYTES), _mm512_set1_epi8((char)0x80));
        } else if (j % 2 == 0) {
            const __m512i both = _mm512_loadu_si512(weights + j / 2 * QUAD_BYTES);
            quads[j] = _mm512_and_si512(both, low);
            quads[j + 1] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        }
    for (int r = 0; r < rows; r++) {
        const int8_t *values = x->values + (at + r) * GROUP;
        const int less = format == FORMAT_Q8 ? -128 * x->sums[at + r] : 0;
        __m512i sum = _mm512_set1_epi32(less);
        for (int j = 0; j < QUADS; j++) {
            int four;
            memcpy(&four, values + 4 * j, sizeof four);
            sum = _mm512_dpbusd_epi32(sum, quads[j], _mm512_set1_epi32(four));
        }
        sums[r][0] = (vpart)_mm512_cvtepi32_ps(sum);
    }
}
#else
#define BLOCK_ROWS 4

typedef int8_t vbyte __attribute__((vector_size(LANES)));

INLINE void sum_group(int64_t format, int rows, const uint8_t *weights, const struct quantised *x, int64_t at,
                      vpart sums[][PARTS])
{
    float values[BLOCK_ROWS][GROUP];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < GROUP; i += LANES) {
            vbyte narrow;
            memcpy(&narrow, x->values + (at + r) * GROUP + i, sizeof narrow);
            store_f32(values[r] + i, __builtin_convertvector(narrow, vfloat));
        }
    for (int p = 0; p < PARTS; p++) {
        vpart sum[BLOCK_ROWS] = {0};
        for (int j = 0; j < QUADS; j++) {
            vpart_int quad = (vpart_int)load_part(weights + (format == FORMAT_Q8 ? j : j / 2) * QUAD_BYTES, p);
            if (format == FORMAT_Q4)
                quad = (j % 2 ? quad >> 4 : quad) & 0x0f0f0f0f;
            for (int i = 0; i < 4; i++) {
                const vpart w = __builtin_convertvector((quad << (24 - 8 * i)) >> 24, vpart);
                for (int r = 0; r < rows; r++)
                    sum[r] += values[r][4 * j + i] * w;
            }
        }
        for (int r = 0; r < rows; r++)
            sums[r][p] = sum[r];
    }
}
#endif

INLINE void block(int64_t format, int rows, const void *panel, const struct quantised *x, int64_t first, float *out)
{
    vpart result[BLOCK_ROWS][PARTS] = {0}, sums[BLOCK_ROWS][PARTS];
    for (int64_t g = 0; g < x->groups; g++) {
        const half *scales = scales_of(panel, format, g);
        const vfloat scale = load_half(scales), minimum = format == FORMAT_Q4 ? load_half(scales + LANES) : splat(0);
        const uint8_t *weights = weights_of(panel, format, x->groups, g);
        const int64_t at = place(x, first, g);
        prefetch(weights, format == FORMAT_Q8 ? Q8_BYTES : Q4_BYTES);
        sum_group(format, rows, weights, x, at, sums);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < PARTS; i++) {
                result[r][i] += sums[r][i] * ((vpart)load_part(&scale, i) * x->scales[at + r]);
                if (format == FORMAT_Q4)
                    result[r][i] += (vpart)load_part(&minimum, i) * x->totals[at + r];
            }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < PARTS; i++)
            store_part(out + r * LANES, i, result[r][i]);
}

/* A call of `block` for each number of rows, so that the compiler keeps the sums in registers. */
INLINE void blocks(int64_t format, const void *panel, const struct quantised *x, int64_t first, int rows, float *out)
{
    int r = 0;
    for (; r + BLOCK_ROWS <= rows; r += BLOCK_ROWS)
        block(format, BLOCK_ROWS, panel, x, first + r, out + r * LANES);
    for (; r + 2 <= rows; r += 2)
        block(format, 2, panel, x, first + r, out + r * LANES);
    for (; r < rows; r++)
        block(format, 1, panel, x, first + r, out + r * LANES);
}

void quantised_vector(const struct weight *w, const void *const panels[], int num_panels, const struct quantised *x,
                      int64_t first, int rows, float *out)
{
    prefetch((const uint8_t *)panels[0] - AHEAD, AHEAD); /* the beginning, which nobody has foreseen */
    for (int p = 0; p < num_panels; p++)
        if (w->format == FORMAT_Q8)
            blocks(FORMAT_Q8, panels[p], x, first, rows, out + p * TILE_ROWS * LANES);
        else
            blocks(FORMAT_Q4, panels[p], x, first, rows, out + p * TILE_ROWS * LANES);
}
