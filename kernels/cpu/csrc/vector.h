/* Sixteen floats at a time, in the compiler's own vector types: one register with AVX-512, two with AVX2, four with NEON. */
#ifndef RINGPOST_VECTOR_H
#define RINGPOST_VECTOR_H

#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef int32_t vint __attribute__((vector_size(4 * LANES)));
typedef uint32_t vuint __attribute__((vector_size(4 * LANES)));
typedef uint16_t vhalf __attribute__((vector_size(2 * LANES)));
typedef uint16_t bf16;

INLINE vfloat splat(float x)
{
    return x - (vfloat){0};
}

INLINE vfloat load_f32(const float *p)
{
    vfloat v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store_f32(float *p, vfloat v)
{
    memcpy(p, &v, sizeof v);
}

INLINE vfloat load_bf16(const bf16 *p)
{
    vhalf v;
    memcpy(&v, p, sizeof v);
    return (vfloat)(__builtin_convertvector(v, vuint) << 16);
}

/* Rounds to nearest even; a NaN stays one. */
INLINE void store_bf16(bf16 *p, vfloat v)
{
#ifdef __AVX512BF16__
    __m256bh half = _mm512_cvtneps_pbh((__m512)v);
    memcpy(p, &half, sizeof half);
#else
    vuint bits = (vuint)v;
    vuint rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vuint nan = (vuint)(v != v);
    vhalf half = __builtin_convertvector((rounded & ~nan) | (nan & 0x7fc0), vhalf);
    memcpy(p, &half, sizeof half);
#endif
}

/* A line of LANES numbers of four bytes in the widest vectors that registers hold: what a loop goes on with is to be of these,
 * since the compiler keeps wider ones in memory. */
#if defined(__AVX512F__)
#define PARTS 1
#elif defined(__AVX__)
#define PARTS 2
#else
#define PARTS 4
#endif
#define PART_BYTES (4 * LANES / PARTS)

typedef float vpart __attribute__((vector_size(PART_BYTES)));
typedef int32_t vpart_int __attribute__((vector_size(PART_BYTES)));
typedef uint32_t vpart_bits __attribute__((vector_size(PART_BYTES)));

/* Part `i` of the line at p. */
INLINE vpart_bits load_part(const void *p, int i)
{
    vpart_bits v;
    memcpy(&v, (const char *)p + i * PART_BYTES, sizeof v);
    return v;
}

INLINE void store_part(void *p, int i, vpart v)
{
    memcpy((char *)p + i * PART_BYTES, &v, sizeof v);
}

/* The same 32 bits in all lanes. */
INLINE vpart splat_bits(uint32_t bits)
{
    return (vpart)(bits - (vpart_bits){0});
}

/* What products read of a row at once: a float, or a pair of bfloat16. */
#define WORD 4

INLINE uint32_t load_word(const void *p)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* sum + x[0] * w[even places] + x[1] * w[odd places], where x is a pair of bfloat16, and w are pairs. */
INLINE vpart add_pairs(vpart sum, uint32_t x, vpart_bits w)
{
    const vpart_bits both = (vpart_bits)splat_bits(x);
#ifdef __AVX512BF16__
    return (vpart)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(__m512i)both, (__m512bh)(__m512i)w);
#else
    sum += (vpart)(both << 16) * (vpart)(w << 16);
    return sum + (vpart)(both & 0xffff0000u) * (vpart)(w & 0xffff0000u);
#endif
}

/* sum + x * w for a word of either kind. */
INLINE vpart add_products(int is_bf16, vpart sum, uint32_t word, vpart_bits w)
{
    return is_bf16 ? add_pairs(sum, word, w) : sum + splat_bits(word) * (vpart)w;
}

INLINE bf16 float_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x)
        return 0x7fc0;
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

INLINE vfloat select_f32(vint mask, vfloat yes, vfloat no)
{
    return (vfloat)((mask & (vint)yes) | (~mask & (vint)no));
}

/* The larger of each pair; where x is a NaN, x or y. */
INLINE vfloat max_f32(vfloat x, vfloat y)
{
#ifdef __AVX512F__
    return (vfloat)_mm512_max_ps((__m512)x, (__m512)y);
#else
    return select_f32(x > y, x, y);
#endif
}

/* In a fixed order, whatever the registers: the same sum on every CPU. */
INLINE float sum_lanes(vfloat v)
{
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)v); /* adds halves too */
#else
    float s[LANES];
    memcpy(s, &v, sizeof s);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            s[i] += s[i + width];
    return s[0];
#endif
}

/* Of numbers; what it is if there is a NaN is not said. */
INLINE float max_lanes(vfloat v)
{
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)v);
#else
    float s[LANES];
    memcpy(s, &v, sizeof s);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++)
            s[i] = s[i] > s[i + width] ? s[i] : s[i + width];
    return s[0];
#endif
}

/* 2**x for x <= 0, to 2 units in the last place; 2**-126 below -126; NaN of NaN. x = n + r, with a polynomial for 2**r. */
INLINE vfloat exp2_f32(vfloat x)
{
    const vfloat clamped = select_f32(x < splat(-126.0f), splat(-126.0f), x);
    /* 1.5 * 2**23: rounds to the nearest integer, which the lowest bits then are. */
    const vfloat shifted = clamped + 12582912.0f;
    const vfloat r = clamped - (shifted - 12582912.0f);
    vfloat p = splat(1.54035304e-4f);
    p = p * r + 1.33335581e-3f;
    p = p * r + 9.61812911e-3f;
    p = p * r + 5.55041087e-2f;
    p = p * r + 2.40226507e-1f;
    p = p * r + 6.93147181e-1f;
    p = p * r + 1.0f;
    return (vfloat)((vint)p + ((vint)shifted << 23));
}

/* The same to four digits, for what becomes bfloat16; what is too small may become zero. */
INLINE vfloat exp2_rough(vfloat x)
{
#ifdef __AVX512F__
    const vfloat n = (vfloat)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), r = x - n;
    vfloat p = splat(5.517167e-2f);
    p = p * r + 2.4261114e-1f;
    p = p * r + 6.9326099e-1f;
    p = p * r + 9.9992807e-1f;
    return (vfloat)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    return exp2_f32(x);
#endif
}

/* e**x to 2 units in the last place for x <= 88; 0 below -87; NaN of NaN. x = n ln 2 + r, with a polynomial for e**r. */
INLINE vfloat exp_f32(vfloat x)
{
    const float ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f;
    vint tiny = x < splat(-87.0f);
    vfloat clamped = select_f32(tiny, splat(-87.0f), x);
    clamped = select_f32(clamped > splat(88.0f), splat(88.0f), clamped);
    vfloat shifted = clamped * 1.44269504f + 12582912.0f; /* 1.5 * 2**23: rounds to the nearest integer */
    vfloat n = shifted - 12582912.0f;
    vfloat r = clamped - n * ln2_high - n * ln2_low;
    vfloat p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vint exponent = ((vint)shifted - 0x4b400000 + 127) << 23;
    vfloat result = p * (vfloat)exponent;
    return select_f32(tiny, splat(0.0f), result);
}

#endif
