/* Rounds rows to eight bits, group by group. */
#include "quantised.h"

#include <stdlib.h>

#include "pool.h"

#define GROUPS_AT_ONCE 4
#define ALONE 4     /* rows that are rounded before another thread would have begun */
#define LEAST 1e-30f /* what is smaller counts as zero: its inverse could be infinite */

struct rounding {
    const struct rows *x;
    const struct quantised *to;
};

typedef int32_t vint8 __attribute__((vector_size(2 * LANES)));
typedef int32_t vint4 __attribute__((vector_size(LANES)));
typedef int8_t vbyte __attribute__((vector_size(LANES)));

/* The largest of all lanes, of numbers that are not negative. */
INLINE int32_t largest(vint v)
{
#ifdef __AVX512F__
    return _mm512_reduce_max_epi32((__m512i)v);
#else
    vint8 eight[2];
    vint4 four[2];
    int32_t best = 0;
    memcpy(eight, &v, sizeof eight);
    eight[0] = (eight[0] & (eight[0] > eight[1])) | (eight[1] & ~(eight[0] > eight[1]));
    memcpy(four, eight, sizeof four);
    four[0] = (four[0] & (four[0] > four[1])) | (four[1] & ~(four[0] > four[1]));
    for (int i = 0; i < 4; i++)
        best = four[0][i] > best ? four[0][i] : best;
    return best;
#endif
}

INLINE int32_t sum_ints(vint v)
{
    vint8 eight[2];
    vint4 four[2];
    memcpy(eight, &v, sizeof eight);
    eight[0] += eight[1];
    memcpy(four, eight, sizeof four);
    four[0] += four[1];
    return four[0][0] + four[0][1] + four[0][2] + four[0][3];
}

/* To the nearest integer, ties to even. */
INLINE vint rounded(vfloat v)
{
    return __builtin_convertvector(v + 12582912.0f - 12582912.0f, vint); /* 1.5 * 2**23 */
}

INLINE void load_group(const struct rows *x, int64_t at, vfloat v[2])
{
    for (int i = 0; i < 2; i++)
        v[i] = x->is_bf16 ? load_bf16((const bf16 *)x->x + at + i * LANES) : load_f32((const float *)x->x + at + i * LANES);
}

INLINE void round_group(const struct rows *x, const struct quantised *to, int64_t row, int64_t group)
{
    const int64_t at = place(to, row, group);
    vfloat v[2];
    load_group(x, row * x->stride + group * GROUP, v);
    const vint a = (vint)v[0] & 0x7fffffff, b = (vint)v[1] & 0x7fffffff, above = a > b;
    /* The bits of a number that is not finite are larger than any other's. */
    const int32_t bits = largest((a & above) | (b & ~above));
    float most, inverse = 0;
    memcpy(&most, &bits, sizeof most);
    if (bits >= 0x7f800000) {
        v[0] = v[1] = splat(0);
        most -= most; /* a NaN, which makes all products of the row NaN */
    } else if (most > LEAST) {
        inverse = 127.0f / most;
    } else {
        most = 0;
    }
    const vint low = rounded(v[0] * inverse), high = rounded(v[1] * inverse);
    const vbyte narrow[2] = {__builtin_convertvector(low, vbyte), __builtin_convertvector(high, vbyte)};
    memcpy(to->values + at * GROUP, narrow, sizeof narrow);
    to->scales[at] = most * (1 / 127.0f);
    to->sums[at] = sum_ints(low + high);
    to->totals[at] = to->scales[at] * (float)to->sums[at];
}

/* An item is some groups of HEIGHT rows: no two write into one line of a cache. */
static void round_rows(void *context, int begin, int end, int worker)
{
    const struct rounding *job = context;
    const int64_t items = (job->to->groups + GROUPS_AT_ONCE - 1) / GROUPS_AT_ONCE;
    (void)worker;
    for (int64_t item = begin; item < end; item++) {
        const int64_t first = item / items * HEIGHT, group = item % items * GROUPS_AT_ONCE;
        for (int64_t g = group; g < group + GROUPS_AT_ONCE && g < job->to->groups; g++)
            for (int64_t row = first; row < first + HEIGHT && row < job->x->count; row++)
                round_group(job->x, job->to, row, g);
    }
}

int quantise_rows(const struct rows *x, int64_t inputs, struct quantised *to)
{
    static char *memory;
    static int64_t size;
    const int64_t groups = inputs / GROUP, count = (x->count + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    const int64_t needed = count * (inputs + 3 * groups * 4);
    if (needed > size) {
        free(memory);
        size = (needed + 63) / 64 * 64;
        memory = aligned_alloc(64, (size_t)size);
        if (!memory) {
            size = 0;
            return 0;
        }
    }
    float *numbers = (float *)(memory + count * inputs);
    *to = (struct quantised){groups, (int8_t *)memory, numbers, numbers + count * groups,
                             (int32_t *)(numbers + 2 * count * groups)};
    struct rounding job = {x, to};
    const int64_t items = (x->count + HEIGHT - 1) / HEIGHT * ((groups + GROUPS_AT_ONCE - 1) / GROUPS_AT_ONCE);
    pool_run(round_rows, &job, (int)items, x->count > ALONE ? 1 : (int)items);
    return 1;
}
