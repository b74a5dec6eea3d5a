/* Puts a matrix into the order in which products read it. */
#include "gemm.h"
#include "pool.h"
#include "quantised.h"

struct packing {
    const void *weight;
    int64_t format, outputs, inputs;
    void *panels;
};

static void pack_panels(void *context, int begin, int end, int worker)
{
    const struct packing *p = context;
    const int64_t inputs = p->inputs, even = (inputs + 1) / 2 * 2;
    (void)worker;
    for (int64_t panel = begin; panel < end; panel++)
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t output = panel * LANES + lane;
            const int there = output < p->outputs;
            if (p->format == FORMAT_F32) {
                const float *from = (const float *)p->weight + output * inputs;
                float *to = (float *)p->panels + panel * inputs * LANES + lane;
                for (int64_t k = 0; k < inputs; k++)
                    to[k * LANES] = there ? from[k] : 0;
            } else {
                const bf16 *from = (const bf16 *)p->weight + output * inputs;
                bf16 *to = (bf16 *)p->panels + panel * even * LANES + 2 * lane;
                for (int64_t k = 0; k < even; k++)
                    to[k / 2 * 2 * LANES + k % 2] = there && k < inputs ? from[k] : 0;
            }
        }
}

/* A matrix [outputs][inputs] of float or bfloat16, as the format says, to its panels. */
int ringpost_pack(const void *weight, int64_t format, int64_t outputs, int64_t inputs, void *panels)
{
    struct packing p = {weight, format, outputs, inputs, panels};
    pool_run(pack_panels, &p, (int)((outputs + LANES - 1) / LANES), 4);
    return 1;
}

struct quantised_packing {
    const uint8_t *values; /* [outputs][inputs], of which FORMAT_Q4 has only the low halves */
    const half *scales, *minima;
    int64_t format, outputs, inputs;
    uint8_t *panels;
};

/* Where value k of a lane goes, from the beginning of its group's weights. */
static void put_value(uint8_t *group, int64_t format, int64_t lane, int64_t k, uint8_t value)
{
    const int64_t quad = k / 4, at = 4 * lane + k % 4;
    if (format == FORMAT_Q8)
        group[quad * QUAD_BYTES + at] = value;
    else
        group[quad / 2 * QUAD_BYTES + at] |= (uint8_t)(value << (quad % 2 ? 4 : 0));
}

static void pack_quantised(void *context, int begin, int end, int worker)
{
    const struct quantised_packing *p = context;
    const int64_t bytes = quantised_panel_bytes(p->format, p->inputs), groups = p->inputs / GROUP;
    (void)worker;
    for (int64_t index = begin; index < end; index++) {
        uint8_t *panel = p->panels + index * bytes;
        memset(panel, 0, (size_t)bytes);
        for (int64_t lane = 0; lane < LANES && index * LANES + lane < p->outputs; lane++)
            for (int64_t g = 0; g < groups; g++) {
                const int64_t output = index * LANES + lane;
                half *scales = (half *)scales_of(panel, p->format, g);
                scales[lane] = p->scales[output * groups + g];
                if (p->minima)
                    scales[LANES + lane] = p->minima[output * groups + g];
                uint8_t *group = (uint8_t *)weights_of(panel, p->format, groups, g);
                for (int64_t k = 0; k < GROUP; k++)
                    put_value(group, p->format, lane, k, p->values[output * p->inputs + g * GROUP + k]);
            }
    }
}

int64_t quantised_panel_bytes(int64_t format, int64_t inputs)
{
    const int64_t groups = inputs / GROUP;
    return weights_of(0, format, groups, groups) - (const uint8_t *)0;
}

/* Values [outputs][inputs], one a byte, with scales and, for FORMAT_Q4, minima [outputs][groups], to panels. */
int ringpost_pack_quantised(const void *values, const void *scales, const void *minima, int64_t format, int64_t outputs,
                            int64_t inputs, void *panels)
{
    struct quantised_packing p = {values, scales, minima, format, outputs, inputs, panels};
    pool_run(pack_quantised, &p, (int)((outputs + LANES - 1) / LANES), 4);
    return 1;
}

/* How many bytes the panels of that take. */
int64_t ringpost_quantised_bytes(int64_t format, int64_t outputs, int64_t inputs)
{
    return (outputs + LANES - 1) / LANES * quantised_panel_bytes(format, inputs);
}
