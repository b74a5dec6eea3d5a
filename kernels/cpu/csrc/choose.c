/* The choice of a token for each row of logits: the largest, or the largest with noise. */
#include <math.h>
#include <stdlib.h>

#include "noise.h"
#include "pool.h"

#define CHUNK 8192 /* tokens of an item */
#define QUAD 4     /* tokens of a counter */
#define ROUGH 1e-2f

struct best {
    float value;
    int64_t token;
};

struct choice {
    const float *logits, *temperature;
    const int64_t *seeds, *positions;
    int64_t vocab_size, chunks;
    struct best *found; /* of each row and chunk */
};

/* A NaN is better than any number, and of equals the first. Tokens are offered in rising order. */
INLINE int is_better(float value, float best)
{
    return value > best || (value != value && best == best);
}

static struct best largest(const float *row, int64_t first, int64_t end)
{
    const vint lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    struct best best = {row[first], first};
    vfloat top = splat(row[first]);
    vint where = {0};
    int64_t at = first;
    for (; at + LANES <= end; at += LANES) {
        const vfloat v = load_f32(row + at);
        const vint better = (v > top) | ((v != v) & (top == top));
        top = select_f32(better, v, top);
        where = (better & (lanes + (int32_t)(at - first))) | (~better & where);
    }
    for (int i = 0; i < LANES && at > first; i++) {
        const int64_t token = first + where[i];
        if (is_better(top[i], best.value) || (top[i] == best.value && token < best.token))
            best = (struct best){top[i], token};
    }
    for (; at < end; at++)
        if (is_better(row[at], best.value))
            best = (struct best){row[at], at};
    return best;
}

static float noise_at(vuint bits, int lane)
{
    return -logf(-log1pf(-uniform(bits)[lane]));
}

/* With noise. Only tokens that could win get any, and exact noise only those that win by rough noise or nearly do. */
static struct best largest_with_noise(const struct choice *c, int64_t r, int64_t first, int64_t end)
{
    const float *row = c->logits + r * c->vocab_size;
    const float temperature = c->temperature[r];
    const struct best top = largest(row, first, end);
    struct best best = {-INFINITY, first};
    if (!isfinite(top.value))
        return top;
    float floor = top.value / temperature + SMALLEST_NOISE - LARGEST_NOISE;
    for (int64_t at = first; at < end; at += LANES * QUAD) {
        float scaled[LANES * QUAD];
        vint possible = {0};
        for (int64_t i = 0; i < LANES * QUAD; i += LANES) {
            vfloat v = splat(-INFINITY);
            if (at + i + LANES <= end)
                v = load_f32(row + at + i) / temperature;
            else
                for (int64_t j = at + i; j < end; j++)
                    v[j - at - i] = row[j] / temperature;
            possible |= v >= floor;
            store_f32(scaled + i, v);
        }
        int any = 0;
        for (int i = 0; i < LANES; i++)
            any |= possible[i];
        if (!any)
            continue;
        vuint quads, bits[QUAD];
        for (int i = 0; i < LANES; i++)
            quads[i] = (uint32_t)(at / QUAD + i);
        philox(quads, (uint64_t)c->seeds[r], (uint64_t)c->positions[r], bits);
        for (int q = 0; q < QUAD; q++) {
            vfloat mine;
            for (int i = 0; i < LANES; i++)
                mine[i] = scaled[i * QUAD + q];
            const vfloat rough = mine + rough_noise(uniform(bits[q]));
            const vint close = rough > best.value - ROUGH;
            for (int i = 0; i < LANES; i++) {
                if (!close[i])
                    continue;
                const float value = mine[i] + noise_at(bits[q], i);
                const int64_t token = at + i * QUAD + q;
                if (value > best.value || (value == best.value && token < best.token))
                    best = (struct best){value, token};
            }
        }
        floor = best.value - LARGEST_NOISE > floor ? best.value - LARGEST_NOISE : floor;
    }
    return best;
}

static void choose_items(void *context, int begin, int end, int worker)
{
    const struct choice *c = context;
    (void)worker;
    for (int item = begin; item < end; item++) {
        const int64_t row = item / c->chunks, first = item % c->chunks * CHUNK;
        const int64_t last = first + CHUNK < c->vocab_size ? first + CHUNK : c->vocab_size;
        c->found[item] = c->temperature[row] > 0 ? largest_with_noise(c, row, first, last)
                                                 : largest(c->logits + row * c->vocab_size, first, last);
    }
}

/* The token of each row of logits [count][vocab_size] with the largest logit / temperature + noise, or logit where the temperature is
 * 0. A NaN wins. False if memory ran out. */
int ringpost_choose(const float *logits, int64_t count, int64_t vocab_size, const float *temperature, const int64_t *seeds,
                    const int64_t *positions, int64_t *tokens)
{
    struct choice c = {logits, temperature, seeds, positions, vocab_size, (vocab_size + CHUNK - 1) / CHUNK, 0};
    c.found = malloc(sizeof(struct best) * (size_t)(count * c.chunks + 1));
    if (!c.found)
        return 0;
    pool_run(choose_items, &c, (int)(count * c.chunks), 1);
    for (int64_t r = 0; r < count; r++) {
        struct best best = c.found[r * c.chunks];
        for (int64_t i = 1; i < c.chunks; i++)
            if (is_better(c.found[r * c.chunks + i].value, best.value))
                best = c.found[r * c.chunks + i];
        tokens[r] = best.token;
    }
    free(c.found);
    return 1;
}
