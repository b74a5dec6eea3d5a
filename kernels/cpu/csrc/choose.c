/* The choice of a token for each row: the largest logit, or the largest with noise. Either of logits that are there, or of a
 * product whose logits are forgotten as soon as they are made. */
#include <math.h>
#include <stdlib.h>

#include "gemm.h"
#include "noise.h"
#include "pool.h"

#define BLOCK (4 * LANES) /* tokens looked at at a time: those of LANES counters */
#define CHUNK (128 * BLOCK)
#define ROUGH 1e-2f

struct best {
    float value, logit;
    int64_t token;
};

/* What the rows want. Where the temperature is 0 there is no noise. */
struct wishes {
    const float *temperature;
    const int64_t *seeds, *positions;
};

static const struct best NONE = {-INFINITY, -INFINITY, 0};

/* A NaN is better than any number, and of equals the first. */
INLINE int is_better(float value, int64_t token, const struct best *best)
{
    if (value != value)
        return best->value == best->value || token < best->token;
    return value > best->value || (value == best->value && token < best->token);
}

INLINE void offer(struct best *best, float value, float logit, int64_t token)
{
    if (is_better(value, token, best))
        *best = (struct best){value, logit, token};
}

static float noise_at(vuint bits, int lane)
{
    return -logf(-log1pf(-uniform(bits)[lane]));
}

/* Looks at BLOCK logits, of the tokens from `first` on. Behind the last token they are minus infinity. */
static void look(const float *logits, int64_t first, struct best *best)
{
    vint any = {0};
    for (int i = 0; i < BLOCK; i += LANES) {
        const vfloat v = load_f32(logits + i);
        any |= ~(v <= best->value);
    }
    int some = 0;
    for (int i = 0; i < LANES; i++)
        some |= any[i];
    for (int i = 0; some && i < BLOCK; i++)
        if (!(logits[i] <= best->value))
            offer(best, logits[i], logits[i], first + i);
}

/* The same with noise. Only tokens that could win get any, and exact noise only those that win by rough noise or nearly do. */
static void look_with_noise(const float *logits, int64_t first, float temperature, int64_t seed, int64_t position,
                            struct best *best)
{
    const float floor = best->value - LARGEST_NOISE;
    vint any = {0};
    for (int i = 0; i < BLOCK; i += LANES) {
        const vfloat v = load_f32(logits + i);
        any |= ~(v / temperature < floor) & (v != splat(-INFINITY));
    }
    int some = 0;
    for (int i = 0; i < LANES; i++)
        some |= any[i];
    if (!some)
        return;
    vuint quads, bits[4];
    for (int i = 0; i < LANES; i++)
        quads[i] = (uint32_t)(first / 4 + i);
    philox(quads, (uint64_t)seed, (uint64_t)position, bits);
    for (int q = 0; q < 4; q++) {
        vfloat mine;
        for (int i = 0; i < LANES; i++)
            mine[i] = logits[4 * i + q];
        const vint close = ~(mine / temperature + rough_noise(uniform(bits[q])) <= best->value - ROUGH);
        for (int i = 0; i < LANES; i++)
            if (close[i] && mine[i] != -INFINITY)
                offer(best, mine[i] / temperature + noise_at(bits[q], i), mine[i], first + 4 * i + q);
    }
}

static void look_as(const struct wishes *w, int64_t row, const float *logits, int64_t first, struct best *best)
{
    if (w->temperature[row] > 0)
        look_with_noise(logits, first, w->temperature[row], w->seeds[row], w->positions[row], best);
    else
        look(logits, first, best);
}

/* Of what threads found for each row, [parts][rows]. */
static void conclude(const struct best *found, int64_t parts, int64_t rows, int64_t *tokens, float *logits)
{
    for (int64_t r = 0; r < rows; r++) {
        struct best best = found[r];
        for (int64_t p = 1; p < parts; p++)
            offer(&best, found[p * rows + r].value, found[p * rows + r].logit, found[p * rows + r].token);
        tokens[r] = best.token;
        logits[r] = best.logit;
    }
}

struct choice {
    struct wishes wishes;
    const float *logits;
    int64_t rows, vocab_size;
    struct best *found; /* [chunks][rows] */
};

static void choose_items(void *context, int begin, int end, int worker)
{
    const struct choice *c = context;
    (void)worker;
    for (int item = begin; item < end; item++) {
        const int64_t row = item % c->rows, first = item / c->rows * CHUNK;
        const int64_t last = first + CHUNK < c->vocab_size ? first + CHUNK : c->vocab_size;
        const float *logits = c->logits + row * c->vocab_size;
        int64_t at = first;
        c->found[item] = NONE;
        for (; at + BLOCK <= last; at += BLOCK)
            look_as(&c->wishes, row, logits + at, at, c->found + item);
        if (at < last) {
            float rest[BLOCK];
            for (int i = 0; i < BLOCK; i++)
                rest[i] = at + i < last ? logits[at + i] : -INFINITY;
            look_as(&c->wishes, row, rest, at, c->found + item);
        }
    }
}

/* For each row of logits [rows][vocab_size], the token with the largest logit / temperature + noise, or logit where the
 * temperature is 0, and its logit. A NaN wins. False if memory ran out. */
int ringpost_choose(const float *logits, int64_t rows, int64_t vocab_size, const float *temperature, const int64_t *seeds,
                    const int64_t *positions, int64_t *tokens, float *chosen)
{
    const int64_t chunks = (vocab_size + CHUNK - 1) / CHUNK;
    struct choice c = {{temperature, seeds, positions}, logits, rows, vocab_size, 0};
    c.found = malloc(sizeof(struct best) * (size_t)(rows * chunks + 1));
    if (!c.found)
        return 0;
    pool_run(choose_items, &c, (int)(rows * chunks), 1);
    conclude(c.found, chunks, rows, tokens, chosen);
    free(c.found);
    return 1;
}

struct product_choice {
    struct wishes wishes;
    int64_t rows;
    struct best *found; /* [threads][rows] */
};

static void look_at_product(void *context, int worker, int64_t row, int64_t output, const float *values)
{
    const struct product_choice *c = context;
    look_as(&c->wishes, row, values, output, c->found + worker * c->rows + row);
}

/* The same for the logits x @ w.T of `rows` rows of x, which are kept nowhere. */
int ringpost_choose_product(const struct weight *w, const void *x, int64_t stride, int64_t rows, int is_bf16,
                            const float *temperature, const int64_t *seeds, const int64_t *positions, int64_t *tokens,
                            float *chosen)
{
    const struct rows from = {x, stride, rows, is_bf16};
    struct product_choice c = {{temperature, seeds, positions}, rows, 0};
    const int64_t count = rows * pool_size();
    c.found = malloc(sizeof(struct best) * (size_t)(count + 1));
    if (!c.found)
        return 0;
    for (int64_t i = 0; i < count; i++)
        c.found[i] = NONE;
    const int done = gemm_visit(w, &from, look_at_product, &c);
    if (done)
        conclude(c.found, pool_size(), rows, tokens, chosen);
    free(c.found);
    return done;
}
