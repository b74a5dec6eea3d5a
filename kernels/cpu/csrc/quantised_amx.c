/* Products with quantised weights on the matrix unit of AMX: sixteen rows by a group of inputs at a time. */
#include "amx.h"
#include "quantised.h"

#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BW__)
#define ROW_BYTES 64
#define EARLY 2    /* groups */
#define BEHIND 1   /* groups */
#define SLAB 32    /* groups whose weights are widened at a time */

/* The halves of a group's bytes, each in a byte of its own. */
INLINE void widen(const uint8_t *from, uint8_t *to)
{
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < QUADS / 2; i++) {
        const __m512i both = _mm512_loadu_si512(from + i * QUAD_BYTES);
        _mm512_store_si512(to + 2 * i * QUAD_BYTES, _mm512_and_si512(both, low));
        _mm512_store_si512(to + (2 * i + 1) * QUAD_BYTES, _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
    __asm__ volatile("" : : "r"(to) : "memory"); /* loads of tiles do not tell the compiler that they read it */
}

/* Sums of a group in tile SUMS, from the rows in tile ROWS, to `to`.
 * Macros, because a tile's number is part of the instruction. */
#define SUM_GROUP(SUMS, ROWS, WEIGHTS, values, weights, to)                                                                    \
    do {                                                                                                                       \
        _tile_loadd(ROWS, values, GROUP);                                                                                      \
        _tile_loadd(WEIGHTS, weights, ROW_BYTES);                                                                              \
        _tile_zero(SUMS);                                                                                                      \
        if (format == FORMAT_Q8)                                                                                               \
            _tile_dpbssd(SUMS, ROWS, WEIGHTS);                                                                                 \
        else                                                                                                                   \
            _tile_dpbsud(SUMS, ROWS, WEIGHTS);                                                                                 \
        _tile_stored(SUMS, to, ROW_BYTES);                                                                                     \
    } while (0)

INLINE void sum_group(int64_t format, int second, int turn, const int8_t *values, const uint8_t *weights, int32_t *to)
{
    if (second && turn)
        SUM_GROUP(3, 7, 5, values, weights, to);
    else if (second)
        SUM_GROUP(2, 7, 4, values, weights, to);
    else if (turn)
        SUM_GROUP(1, 6, 5, values, weights, to);
    else
        SUM_GROUP(0, 6, 4, values, weights, to);
}

/* Adds groups begin .. end - 1 to the results of at most `height` rows; the tiles of the second sixteen are others. The first
 * sixteen leave the weights of FORMAT_Q4 in `wide`, for the second, some groups before they are needed: tiles wait for what has
 * just been written. For the same reason the sums of a group are used when those of the next one are on their way. */
INLINE void add_groups(int64_t format, int height, int second, const void *panel, uint8_t *wide, const struct quantised *x,
                       int64_t first, int64_t begin, int64_t end, float *out)
{
    int32_t sums[2][HEIGHT * LANES] __attribute__((aligned(64)));
    vfloat result[HEIGHT];
    for (int r = 0; r < height; r++)
        result[r] = load_f32(out + r * LANES);
    for (int64_t g = begin; format == FORMAT_Q4 && !second && g < begin + EARLY && g < end; g++)
        widen(weights_of(panel, format, x->groups, g), wide + (g - begin) * Q8_BYTES);
    for (int64_t g = begin; g < end + BEHIND; g++) {
        if (g < end) {
            const uint8_t *weights = weights_of(panel, format, x->groups, g);
            const int8_t *values = x->values + place(x, first, g) * GROUP;
            if (!second)
                prefetch(weights, format == FORMAT_Q8 ? Q8_BYTES : Q4_BYTES);
            if (format == FORMAT_Q4) {
                uint8_t *to = wide + (g - begin) * Q8_BYTES;
                if (!second && g + EARLY < end)
                    widen(weights + EARLY * Q4_BYTES, to + EARLY * Q8_BYTES);
                weights = to;
            }
            if (g % 2)
                sum_group(format, second, 1, values, weights, sums[1]);
            else
                sum_group(format, second, 0, values, weights, sums[0]);
        }
        const int64_t ready = g - BEHIND, at = place(x, first, ready);
        if (ready < begin)
            continue;
        const half *scales = scales_of(panel, format, ready);
        const vfloat scale = load_half(scales);
        for (int r = 0; r < height; r++) {
            vint sum;
            memcpy(&sum, sums[ready % 2] + r * LANES, sizeof sum);
            result[r] += __builtin_convertvector(sum, vfloat) * (scale * x->scales[at + r]);
            if (format == FORMAT_Q4)
                result[r] += load_half(scales + LANES) * x->totals[at + r];
        }
    }
    for (int r = 0; r < height; r++)
        store_f32(out + r * LANES, result[r]);
}

INLINE void one_panel(int64_t format, const void *panel, const struct quantised *x, int64_t first, int rows, float *out)
{
    uint8_t wide[SLAB * Q8_BYTES] __attribute__((aligned(64)));
    memset(out, 0, sizeof(float) * TILE_ROWS * LANES);
    const int64_t slab = format == FORMAT_Q4 ? SLAB : x->groups;
    for (int64_t begin = 0; begin < x->groups; begin += slab) {
        const int64_t end = begin + slab < x->groups ? begin + slab : x->groups;
        if (rows <= HEIGHT / 2)
            add_groups(format, HEIGHT / 2, 0, panel, wide, x, first, begin, end, out);
        else
            add_groups(format, HEIGHT, 0, panel, wide, x, first, begin, end, out);
        if (rows > HEIGHT)
            add_groups(format, HEIGHT, 1, panel, wide, x, first + HEIGHT, begin, end, out + HEIGHT * LANES);
    }
}

void quantised_amx(const struct weight *w, const void *const panels[], int num_panels, const struct quantised *x, int64_t first,
                   int rows, float *out)
{
    const int one = rows < HEIGHT ? rows : HEIGHT, two = rows - one;
    configure_tiles((const int[8]){one, one, two, two, QUADS, QUADS, one, two},
                    (const int[8]){64, 64, 64, 64, 64, 64, GROUP, GROUP});
    for (int p = 0; p < num_panels; p++)
        if (w->format == FORMAT_Q8)
            one_panel(FORMAT_Q8, panels[p], x, first, rows, out + p * TILE_ROWS * LANES);
        else
            one_panel(FORMAT_Q4, panels[p], x, first, rows, out + p * TILE_ROWS * LANES);
}

int amx_integers_available(void)
{
    return amx_available();
}
#else
int amx_integers_available(void)
{
    return 0;
}
#endif
