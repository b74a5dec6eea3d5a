/* Norm and rotation. */
#include "layer_ops.h"

#include <math.h>

static void norm_row(const float *x, int64_t size, const float *weight, float eps, int is_bf16, void *out)
{
    vfloat squares = {0};
    float rest = 0;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        vfloat v = load_f32(x + i);
        squares += v * v;
    }
    for (int64_t j = i; j < size; j++)
        rest += x[j] * x[j];
    const float scale = 1.0f / sqrtf((sum_lanes(squares) + rest) / (float)size + eps);
    for (i = 0; i + LANES <= size; i += LANES) {
        vfloat v = load_f32(x + i) * scale * load_f32(weight + i);
        if (is_bf16)
            store_bf16((bf16 *)out + i, v);
        else
            store_f32((float *)out + i, v);
    }
    for (; i < size; i++) {
        float v = x[i] * scale * weight[i];
        if (is_bf16)
            ((bf16 *)out)[i] = float_to_bf16(v);
        else
            ((float *)out)[i] = v;
    }
}

void rms_norm(const float *x, int64_t count, int64_t size, const float *weight, float eps, int is_bf16, void *out)
{
    for (int64_t r = 0; r < count; r++)
        norm_row(x + r * size, size, weight, eps, is_bf16, (char *)out + r * size * (is_bf16 ? 2 : 4));
}

void rotate(float *heads, int64_t stride, int64_t count, int64_t num_heads, int64_t head_dim, const int64_t *positions,
            const float *cos_sin)
{
    const int64_t half = head_dim / 2;
    for (int64_t t = 0; t < count; t++) {
        const float *cos = cos_sin + positions[t] * head_dim, *sin = cos + half;
        for (int64_t n = 0; n < num_heads; n++) {
            float *first = heads + t * stride + n * head_dim, *second = first + half;
            for (int64_t i = 0; i < half; i++) {
                const float a = first[i], b = second[i];
                first[i] = a * cos[i] - b * sin[i];
                second[i] = b * cos[i] + a * sin[i];
            }
        }
    }
}
