/* Products with quantised weights, FORMAT_Q8 and FORMAT_Q4.
 *
 * The rows are rounded too, to eight bits with a scale for each group of inputs: then a group is a dot product of small
 * integers, which is exact. So every set of instructions with fused multiply-add gives the same result, for any number of rows
 * at once, and the one for few rows reads the weights as they are, about as fast as memory brings them. Weights widened to
 * floats would need several times the instructions, and give another sum on the matrix unit than in vectors. */
#ifndef RINGPOST_QUANTISED_H
#define RINGPOST_QUANTISED_H

#include "gemm.h"
#include "gemm_tiles.h"
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define QUADS (GROUP / 4)            /* a quad is the next four inputs of LANES outputs: 64 bytes */
#define QUAD_BYTES (4 * LANES)
#define Q8_BYTES (GROUP * LANES)     /* a group of a panel */
#define Q4_BYTES (GROUP * LANES / 2) /* quads by twos: the first in the low halves of the bytes, the second in the high ones */

typedef uint16_t half; /* IEEE's, of which only the bits are known here */

#define HEIGHT 16 /* rows that lie together */

/* Rows as they are multiplied, HEIGHT at a time, group by group. What would fill up the last TILE_ROWS may be read. */
struct quantised {
    int64_t groups;
    int8_t *values; /* [row / HEIGHT][group][HEIGHT][GROUP] */
    float *scales;  /* [row / HEIGHT][group][HEIGHT] */
    float *totals;  /* the same: of the values, times the scale */
    int32_t *sums;  /* the same: of the values */
};

/* Where a row's part of a group is: its scale, total and sum, and GROUP times that its values. */
INLINE int64_t place(const struct quantised *x, int64_t row, int64_t group)
{
    return (row / HEIGHT * x->groups + group) * HEIGHT + row % HEIGHT;
}

/* Fills `to`, whose memory stays and is used again by the next call. False if there is none. */
int quantise_rows(const struct rows *x, int64_t inputs, struct quantised *to);

/* Bytes of a panel: scales (for FORMAT_Q4 also minima) [group][LANES], then the weights. */
int64_t quantised_panel_bytes(int64_t format, int64_t inputs);

/* As `tiles` of gemm_tiles.h, for `rows` rows from `first` on. */
typedef void quantised_tiles(const struct weight *w, const void *const panels[], int num_panels, const struct quantised *x,
                             int64_t first, int rows, float *out);

quantised_tiles quantised_vector, quantised_amx;

/* Whether the CPU has AMX with integers, and this process may use it. */
int amx_integers_available(void);

/* Scales or minima of a group. Halves that are no numbers do not occur. */
INLINE vfloat load_half(const half *p)
{
#ifdef __AVX512F__
    return (vfloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#endif
    vhalf bits;
    memcpy(&bits, p, sizeof bits);
    const vuint wide = __builtin_convertvector(bits, vuint);
    /* The exponents differ by 112, also of subnormal ones. */
    const vfloat magnitude = (vfloat)((wide & 0x7fff) << 13) * 0x1p112f;
    return (vfloat)((vuint)magnitude | (wide & 0x8000) << 16);
}

#define AHEAD 5120 /* bytes */

/* Brings weights nearer that are needed soon: what the CPU itself foresees ends at each page. */
INLINE void prefetch(const uint8_t *p, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + AHEAD + i, 0, 2);
}

/* Where a group's scales begin, and its weights. */
INLINE const half *scales_of(const void *panel, int64_t format, int64_t group)
{
    return (const half *)panel + group * LANES * (format == FORMAT_Q4 ? 2 : 1);
}

INLINE const uint8_t *weights_of(const void *panel, int64_t format, int64_t groups, int64_t group)
{
    const int64_t head = format == FORMAT_Q4 ? groups * 64 : (groups * 32 + 63) / 64 * 64;
    return (const uint8_t *)panel + head + group * (format == FORMAT_Q4 ? Q4_BYTES : Q8_BYTES);
}

#endif
