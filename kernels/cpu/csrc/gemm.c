/* Divides a product among the threads: each takes some panels, and all rows of a chunk that stays in its cache. */
#include "gemm.h"

#include <math.h>

#include "amx.h"
#include "gemm_tiles.h"
#include "pool.h"
#include "quantised.h"

#define CHUNK_BYTES (512 * 1024) /* of x, to be read again from the second-level cache */

struct product {
    const struct weight *w;
    const struct rows *x;
    void *y;
    int64_t stride, chunk;
    int into, group; /* panels of an item */
    int64_t num_panels, num_groups;
    tiles *compute;
    visit *look; /* instead of `into` */
    void *context;
    struct quantised quantised; /* the rows, for weights that are */
    quantised_tiles *compute_quantised;
};

#define NARROW_ROWS 64 /* up to so many, an item is two panels: a thread waits less for the last one of another */

#define FEW_ROWS 4 /* so many take longer on the matrix unit than in vectors; the results are the same */

static int is_quantised(const struct weight *w)
{
    return w->format == FORMAT_Q8 || w->format == FORMAT_Q4;
}

static tiles *choose_tiles(const struct weight *w)
{
    if (w->format == FORMAT_F32)
        return tiles_f32;
#ifdef __AMX_BF16__
    if (w->inputs % 32 == 0 && amx_available())
        return tiles_amx;
#endif
    return tiles_bf16;
}

static quantised_tiles *choose_quantised(int64_t count)
{
#if defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BW__)
    if (count > FEW_ROWS && amx_integers_available())
        return quantised_amx;
#endif
    (void)count;
    return quantised_vector;
}

static const void *panel(const struct weight *w, int64_t index)
{
    if (is_quantised(w))
        return (const char *)w->panels + index * quantised_panel_bytes(w->format, w->inputs);
    if (w->format == FORMAT_F32)
        return (const float *)w->panels + index * w->inputs * LANES;
    return (const bf16 *)w->panels + index * ((w->inputs + 1) / 2 * 2) * LANES;
}

INLINE vfloat silu(vfloat x)
{
    return x / (1.0f + exp_f32(-x));
}

/* `valid` outputs of one row of one panel. */
INLINE void put(int into, void *y, int64_t at, vfloat v, int valid)
{
    if (into == INTO_BF16 || into == SILU_BF16) {
        bf16 part[LANES];
        store_bf16(valid == LANES ? (bf16 *)y + at : part, v);
        if (valid < LANES)
            memcpy((bf16 *)y + at, part, sizeof(bf16) * (size_t)valid);
        return;
    }
    float part[LANES] = {0};
    if (valid == LANES) {
        store_f32((float *)y + at, into == ADD_F32 ? load_f32((float *)y + at) + v : v);
        return;
    }
    if (into == ADD_F32)
        memcpy(part, (float *)y + at, sizeof(float) * (size_t)valid);
    store_f32(part, load_f32(part) + v);
    memcpy((float *)y + at, part, sizeof(float) * (size_t)valid);
}

INLINE vfloat bias_of(const struct weight *w, int64_t output, int valid)
{
    float bias[LANES] = {0};
    if (w->bias)
        memcpy(bias, w->bias + output, sizeof(float) * (size_t)valid);
    return load_f32(bias);
}

/* Takes the products of a tile's rows to where they belong. A call for each kind, so that the compiler knows which it is. */
INLINE void finish_as(int into, const struct product *job, int64_t first_panel, int num_panels, int64_t first_row, int rows,
                      const float *out)
{
    const int gated = into == SILU_F32 || into == SILU_BF16;
    const int64_t outputs = job->w->outputs, half = outputs / 2;
    for (int p = 0; p < (gated ? num_panels / 2 : num_panels); p++) {
        const int64_t output = (first_panel + p) * LANES, there_are = (gated ? half : outputs) - output;
        const int valid = there_are < LANES ? (int)there_are : LANES;
        const vfloat bias = bias_of(job->w, output, valid), up_bias = gated ? bias_of(job->w, half + output, valid) : bias;
        const float *from = out + p * TILE_ROWS * LANES, *up = from + num_panels / 2 * TILE_ROWS * LANES;
        for (int r = 0; r < rows; r++) {
            vfloat v = load_f32(from + r * LANES) + bias;
            if (gated)
                v = silu(v) * (load_f32(up + r * LANES) + up_bias);
            put(into, job->y, (first_row + r) * job->stride + output, v, valid);
        }
    }
}

static void finish(const struct product *job, int64_t first_panel, int num_panels, int64_t first_row, int rows,
                   const float *out)
{
    switch (job->into) {
    case INTO_F32: finish_as(INTO_F32, job, first_panel, num_panels, first_row, rows, out); break;
    case INTO_BF16: finish_as(INTO_BF16, job, first_panel, num_panels, first_row, rows, out); break;
    case ADD_F32: finish_as(ADD_F32, job, first_panel, num_panels, first_row, rows, out); break;
    case SILU_F32: finish_as(SILU_F32, job, first_panel, num_panels, first_row, rows, out); break;
    default: finish_as(SILU_BF16, job, first_panel, num_panels, first_row, rows, out);
    }
}

static void show(const struct product *job, int worker, int64_t first_panel, int num_panels, int64_t first_row, int rows,
                 const float *out)
{
    const int64_t output = first_panel * LANES;
    vfloat bias[MAX_PANELS];
    float values[VISITED];
    for (int p = 0; p < num_panels; p++) {
        const int64_t there_are = job->w->outputs - output - p * LANES;
        bias[p] = bias_of(job->w, output + p * LANES, there_are < LANES ? (int)there_are : LANES);
    }
    for (int r = 0; r < rows; r++) {
        for (int i = 0; i < VISITED; i += LANES) {
            const int p = i / LANES;
            vfloat v = splat(-INFINITY);
            if (p < num_panels)
                v = load_f32(out + (p * TILE_ROWS + r) * LANES) + bias[p];
            store_f32(values + i, v);
        }
        for (int64_t i = job->w->outputs - output; i < VISITED; i++)
            values[i] = -INFINITY;
        job->look(job->context, worker, first_row + r, output, values);
    }
}

static void compute_items(void *context, int begin, int end, int worker)
{
    const struct product *job = context;
    const int gated = job->into == SILU_F32 || job->into == SILU_BF16;
    const int64_t size = job->x->is_bf16 ? sizeof(bf16) : sizeof(float);
    float out[MAX_PANELS * TILE_ROWS * LANES] __attribute__((aligned(64)));
    const int plain = !job->look && !job->compute_quantised && (job->into == INTO_F32 || job->into == ADD_F32) &&
                      !job->w->bias && job->w->outputs % LANES == 0;
    forget_tiles();
    for (int item = begin; item < end; item++) {
        const int64_t first = item % job->num_groups * job->group;
        int64_t row = item / job->num_groups * job->chunk;
        const int64_t last = row + job->chunk < job->x->count ? row + job->chunk : job->x->count;
        int some = job->num_panels - first < job->group ? (int)(job->num_panels - first) : job->group;
        const void *panels[MAX_PANELS], *next[MAX_PANELS];
        const int64_t after = (item + pool_size()) % job->num_groups * job->group;
        for (int p = 0; p < some; p++) {
            panels[p] = panel(job->w, first + p);
            next[p] = panel(job->w, after + p);
            if (gated) {
                panels[some + p] = panel(job->w, job->num_panels + first + p);
                next[some + p] = panel(job->w, job->num_panels + after + p);
            }
        }
        some *= gated ? 2 : 1;
        for (; row < last; row += TILE_ROWS) {
            const int rows = last - row < TILE_ROWS ? (int)(last - row) : TILE_ROWS;
            struct target to = {.stride = plain ? job->stride : LANES, .add = plain && job->into == ADD_F32};
            for (int p = 0; p < some; p++)
                to.panel[p] = plain ? (float *)job->y + row * job->stride + (first + p) * LANES : out + p * TILE_ROWS * LANES;
            if (job->compute_quantised)
                job->compute_quantised(job->w, panels, some, &job->quantised, row, rows, out);
            else
                job->compute(job->w, panels, row ? 0 : next, some, (const char *)job->x->x + row * job->x->stride * size,
                             job->x->stride, rows, &to);
            if (job->look)
                show(job, worker, first, some, row, rows, out);
            else if (!plain)
                finish(job, first, some, row, rows, out);
        }
    }
}

/* Fills in how the product is divided, and runs it. */
static int run(struct product *job, int gated)
{
    const struct rows *x = job->x;
    if (x->count == 0)
        return 1;
    const int64_t row_bytes = x->stride * (x->is_bf16 ? 2 : 4);
    const int width = x->count > 1 && x->count <= NARROW_ROWS && !is_quantised(job->w) ? 2 : MAX_PANELS;
    job->group = gated ? width / 2 : width;
    job->num_panels = ((gated ? job->w->outputs / 2 : job->w->outputs) + LANES - 1) / LANES;
    job->num_groups = (job->num_panels + job->group - 1) / job->group;
    const int64_t chunks = (x->count * row_bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    job->chunk = ((x->count + chunks - 1) / chunks + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
    int at_once = 1;
    if (is_quantised(job->w)) {
        job->compute_quantised = choose_quantised(x->count);
        if (!quantise_rows(x, job->w->inputs, &job->quantised))
            return 0;
        /* Memory is at its best when much is read in order, which quantised weights are small for. */
        at_once = (int)(job->num_groups / (12 * pool_size())) + 1;
    } else {
        job->compute = choose_tiles(job->w);
    }
    pool_run(compute_items, job, (int)((x->count + job->chunk - 1) / job->chunk * job->num_groups), at_once);
    return 1;
}

int gemm(const struct weight *w, const struct rows *x, int into, void *y, int64_t stride)
{
    struct product job = {.w = w, .x = x, .y = y, .stride = stride, .into = into};
    return run(&job, into == SILU_F32 || into == SILU_BF16);
}

int gemm_visit(const struct weight *w, const struct rows *x, visit *look, void *context)
{
    struct product job = {.w = w, .x = x, .into = INTO_F32, .look = look, .context = context};
    return run(&job, 0);
}
