/* Puts a matrix into the order in which products read it. */
#include "gemm.h"
#include "pool.h"

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
