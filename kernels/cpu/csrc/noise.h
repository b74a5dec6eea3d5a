/* Gumbel noise, a function of seed, position and token: see kernels/reference/noise.py, which defines it. */
#ifndef RINGPOST_NOISE_H
#define RINGPOST_NOISE_H

#include "vector.h"

#define LARGEST_NOISE 17.34f
#define SMALLEST_NOISE (-2.83f)

INLINE vuint high_product(vuint a, uint32_t b)
{
    typedef uint64_t vlong __attribute__((vector_size(8 * LANES)));
    return __builtin_convertvector(__builtin_convertvector(a, vlong) * (uint64_t)b >> 32, vuint);
}

/* Philox4x32-10 for sixteen counters (quads[i], position, 0, 0); `bits` are the four words of each. */
INLINE void philox(vuint quads, uint64_t seed, uint64_t position, vuint bits[4])
{
    vuint c0 = quads, c1 = (vuint){0} + (uint32_t)position, c2 = {0}, c3 = {0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const vuint high0 = high_product(c0, 0xD2511F53u), low0 = c0 * 0xD2511F53u;
        const vuint high1 = high_product(c2, 0xCD9E8D57u), low1 = c2 * 0xCD9E8D57u;
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    bits[0] = c0;
    bits[1] = c1;
    bits[2] = c2;
    bits[3] = c3;
}

/* What the bits stand for: uniform, inside (0, 1). */
INLINE vfloat uniform(vuint bits)
{
    vfloat w = (__builtin_convertvector((vint)(bits >> 8), vfloat) + 0.5f) * 0x1p-24f;
    return select_f32(w > splat(1.0f - 0x1p-24f), splat(1.0f - 0x1p-24f), w);
}

/* Natural logarithm of positive normal numbers, to 1e-6 of 1. */
INLINE vfloat rough_log(vfloat x)
{
    const vint bits = (vint)x, exponent = (bits - 0x3f3504f3) >> 23; /* so that the rest is in sqrt(1/2) .. sqrt(2) */
    const vfloat m = (vfloat)(bits - (exponent << 23)), s = (m - 1.0f) / (m + 1.0f), z = s * s;
    const vfloat p = 2.0f * s * (1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7))));
    return p + __builtin_convertvector(exponent, vfloat) * 0.69314718f;
}

/* The noise of uniform numbers, to 1e-4: enough to see which could win. */
INLINE vfloat rough_noise(vfloat w)
{
    const vfloat series = w * (1.0f + w * (0.5f + w * (1.0f / 3 + w * 0.25f)));
    return -rough_log(select_f32(w < splat(0.05f), series, -rough_log(1.0f - w)));
}

#endif
