/* Divides attention among the threads: an item is some query rows of a KV head, over all positions that they attend to or a part. */
#include "attention.h"

#include <math.h>
#include <stdlib.h>

#include "amx.h"
#include "attention_tiles.h"
#include "pool.h"

#define PART 1024 /* positions, a multiple of SEGMENT: a request with one row a head and more of them is several items */
#define LOWEST (-3.0e38f)

/* Row i of a request and a KV head is query head i % group of position i / group. */
struct item {
    int32_t request, kv_head;
    int64_t first_row, end_row, first_position, end_position;
    float *part; /* where its rows' states go if it is a part: [row][2 + head_dim]; else null */
};

/* The state of a row: the largest score so far, and what was summed relative to it. */
struct state {
    float largest[MAX_ROWS], total[MAX_ROWS], sums[MAX_ROWS * MAX_HEAD_DIM];
};

struct work {
    const struct heads *h;
    const struct batch *batch;
    const int64_t *first_tokens;
    const float *queries;
    int64_t stride, group;
    const char *key_cache, *value_cache;
    float scale; /* over ln 2 */
    void *out;
    struct item *items;
};

void write_kv(const struct heads *h, const float *keys, const float *values, int64_t stride, const int64_t *slots, int64_t count,
              void *key_cache, void *value_cache)
{
    const int64_t dim = h->head_dim, size = h->block_size;
    for (int64_t t = 0; t < count; t++)
        for (int64_t g = 0; g < h->num_kv_heads; g++) {
            const float *k = keys + t * stride + g * dim, *v = values + t * stride + g * dim;
            const int64_t block = (slots[t] / size * h->num_kv_heads + g) * size * dim, at = slots[t] % size;
            if (h->is_bf16) {
                bf16 *kc = (bf16 *)key_cache + block, *vc = (bf16 *)value_cache + block, narrow[2][MAX_HEAD_DIM];
                for (int64_t d = 0; d < dim; d += LANES) {
                    store_bf16(narrow[0] + d, load_f32(k + d));
                    store_bf16(narrow[1] + d, load_f32(v + d));
                }
                for (int64_t d = 0; d < dim; d += 2)
                    memcpy(kc + (d / 2 * size + at) * 2, narrow[0] + d, 2 * sizeof(bf16));
                for (int64_t d = 0; d < dim; d++)
                    vc[(at / 2 * dim + d) * 2 + at % 2] = narrow[1][d];
            } else {
                float *kc = (float *)key_cache + block, *vc = (float *)value_cache + block + at * dim;
                for (int64_t d = 0; d < dim; d++)
                    kc[d * size + at] = k[d];
                memcpy(vc, v, sizeof(float) * (size_t)dim);
            }
        }
}

/* Where in the caches the LANES positions from `at` on are, in bytes: their keys, and their values. */
INLINE void find_positions(const struct work *w, const struct item *item, int64_t at, int64_t *keys, int64_t *values)
{
    const struct heads *h = w->h;
    const int64_t number = h->is_bf16 ? sizeof(bf16) : sizeof(float), inside = at % h->block_size;
    const int64_t block = w->batch->block_table[item->request * w->batch->table_width + at / h->block_size];
    const int64_t first = (block * h->num_kv_heads + item->kv_head) * h->block_size * h->head_dim;
    *keys = (first + inside * (h->is_bf16 ? 2 : 1)) * number;
    *values = (first + inside * h->head_dim) * number;
}

static void find_segment(const struct work *w, const struct item *item, int64_t first, int64_t end, struct segment *s)
{
    s->num_positions = (int)(end - first);
    for (int64_t at = first; at < end; at += LANES) {
        int64_t keys, values;
        find_positions(w, item, at, &keys, &values);
        s->keys[(at - first) / LANES] = w->key_cache + keys;
        s->values[(at - first) / LANES] = w->value_cache + values;
    }
    s->num_next = 0;
}

/* What comes after a segment: the beginning of an item's positions from `first` on. */
static void find_next(const struct work *w, const struct item *item, int64_t first, struct segment *s)
{
    for (int64_t at = first; at < item->end_position && s->num_next < NEXT_BLOCKS; at += LANES) {
        int64_t keys, values;
        find_positions(w, item, at, &keys, &values);
        s->next_keys[s->num_next++] = w->key_cache + keys;
    }
}

/* Scores of a row to weights, of the first `count`; those up to the next multiple of LANES become zero. A score is a power of two:
 * `scale` is that of attention, over ln 2. */
static void weigh_scores(float *scores, int count, int rounded, float scale, float *largest, float *total, float *shrunk)
{
    const vint lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int whole = count / LANES * LANES;
    const vint there = lanes < count - whole;
    vfloat best = splat(LOWEST), sum = {0};
    int i = 0;
    for (; i < whole; i += LANES)
        best = max_f32(load_f32(scores + i), best);
    if (whole < count)
        best = max_f32(select_f32(there, load_f32(scores + i), splat(LOWEST)), best);
    /* Without a finite score there is no weight: the result is to be no number either. */
    const float top = max_lanes(best), found = count && top == LOWEST ? NAN : top * scale;
    const float before = *largest, now = found > before || found != found ? found : before;
    for (i = 0; i < whole; i += LANES) {
        const vfloat e = exp2_f32(load_f32(scores + i) * scale - now);
        store_f32(scores + i, e);
        sum += e;
    }
    for (; i < rounded; i += LANES) {
        const vfloat e = i < count ? select_f32(there, exp2_f32(load_f32(scores + i) * scale - now), splat(0.0f)) : splat(0.0f);
        store_f32(scores + i, e);
        sum += e;
    }
    *shrunk = exp2_f32(splat(before - now))[0];
    *total = *total * *shrunk + sum_lanes(sum);
    *largest = now;
}

/* `next` is the item that this thread takes after this one, or null. */
static void run_item(const struct work *w, const struct item *item, const struct item *next, const float *q, struct state *state)
{
    const struct heads *h = w->h;
    const int rows = (int)(item->end_row - item->first_row);
    float scores[MAX_ROWS * SEGMENT] __attribute__((aligned(64)));
    const int64_t start = w->batch->starts[item->request];
    int by_tiles = 0;
#ifdef __AMX_BF16__
    by_tiles = h->is_bf16 && h->head_dim % 32 == 0 && rows > MAX_ROWS / 4 && amx_available();
#endif
    memset(state->sums, 0, sizeof(float) * (size_t)(rows * h->head_dim));
    for (int r = 0; r < rows; r++) {
        state->largest[r] = LOWEST;
        state->total[r] = 0;
    }
    for (int64_t first = item->first_position; first < item->end_position; first += SEGMENT) {
        const int64_t end = first + SEGMENT < item->end_position ? first + SEGMENT : item->end_position;
        struct segment s;
        find_segment(w, item, first, end, &s);
        if (end < item->end_position)
            find_next(w, item, end, &s);
        else if (next)
            find_next(w, next, next->first_position, &s);
#ifdef __AMX_BF16__
        if (by_tiles)
            for (int r = 0; r < rows; r += AMX_ROWS) {
                const int some = rows - r < AMX_ROWS ? rows - r : AMX_ROWS;
                if (!r || some < AMX_ROWS)
                    begin_amx(some);
                scores_amx(h, &s, q + r * h->head_dim, some, scores + r * SEGMENT);
            }
        else
#endif
            scores_vector(h, &s, q, rows, scores);
        for (int r = 0; r < rows; r++) {
            const int64_t position = start + (item->first_row + r) / w->group, seen = position + 1 - first;
            const int count = seen < 0 ? 0 : seen < s.num_positions ? (int)seen : s.num_positions;
            float shrunk;
            weigh_scores(scores + r * SEGMENT, count, (s.num_positions + LANES - 1) / LANES * LANES, w->scale,
                         state->largest + r, state->total + r, &shrunk);
            if (shrunk != 1.0f && first > item->first_position)
                for (int64_t d = 0; d < h->head_dim; d += LANES)
                    store_f32(state->sums + r * h->head_dim + d, load_f32(state->sums + r * h->head_dim + d) * shrunk);
        }
#ifdef __AMX_BF16__
        if (by_tiles)
            for (int r = 0; r < rows; r += AMX_ROWS) {
                const int some = rows - r < AMX_ROWS ? rows - r : AMX_ROWS;
                if (rows % AMX_ROWS)
                    begin_amx(some);
                weigh_amx(h, &s, scores + r * SEGMENT, some, state->sums + r * h->head_dim);
            }
        else
#endif
            weigh_vector(h, &s, scores, rows, state->sums);
    }
}

static void put_row(const struct work *w, const struct item *item, int64_t row, const float *sums, float total)
{
    const struct heads *h = w->h;
    const int64_t token = w->first_tokens[item->request] + row / w->group;
    const int64_t at = (token * h->num_heads + item->kv_head * w->group + row % w->group) * h->head_dim;
    for (int64_t d = 0; d < h->head_dim; d += LANES) {
        vfloat v = load_f32(sums + d) / total;
        if (h->is_bf16)
            store_bf16((bf16 *)w->out + at + d, v);
        else
            store_f32((float *)w->out + at + d, v);
    }
}

static void run_items(void *context, int begin, int end, int worker)
{
    const struct work *w = context;
    const int64_t dim = w->h->head_dim;
    float q[MAX_ROWS * MAX_HEAD_DIM] __attribute__((aligned(64)));
    struct state state;
    (void)worker;
    for (int i = begin; i < end; i++) {
        const struct item *item = w->items + i;
        const int rows = (int)(item->end_row - item->first_row);
        for (int r = 0; r < rows; r++) {
            const int64_t row = item->first_row + r, token = w->first_tokens[item->request] + row / w->group;
            memcpy(q + r * dim, w->queries + token * w->stride + (item->kv_head * w->group + row % w->group) * dim,
                   sizeof(float) * (size_t)dim);
        }
        run_item(w, item, i + 1 < end ? item + 1 : 0, q, &state);
        for (int r = 0; r < rows; r++)
            if (item->part) {
                float *part = item->part + r * (2 + dim);
                part[0] = state.largest[r];
                part[1] = state.total[r];
                memcpy(part + 2, state.sums + r * dim, sizeof(float) * (size_t)dim);
            } else {
                put_row(w, item, item->first_row + r, state.sums + r * dim, state.total[r]);
            }
    }
}

/* Puts together the parts of one request and KV head, which follow each other from `item` on; returns how many they are. */
static int64_t merge(const struct work *w, const struct item *item)
{
    const int64_t dim = w->h->head_dim;
    const int64_t parts = (w->batch->starts[item->request] + w->batch->counts[item->request] + PART - 1) / PART;
    for (int64_t row = item->first_row; row < item->end_row; row++) {
        float sums[MAX_HEAD_DIM] = {0}, largest = LOWEST, total = 0;
        for (int64_t p = 0; p < parts; p++) {
            const float best = item[p].part[(row - item->first_row) * (2 + dim)];
            largest = best > largest || best != best ? best : largest;
        }
        for (int64_t p = 0; p < parts; p++) {
            const float *part = item[p].part + (row - item->first_row) * (2 + dim);
            const float factor = exp2_f32(splat(part[0] - largest))[0];
            total += part[1] * factor;
            for (int64_t d = 0; d < dim; d += LANES)
                store_f32(sums + d, load_f32(sums + d) + load_f32(part + 2 + d) * factor);
        }
        put_row(w, item, row, sums, total);
    }
    return parts;
}

/* Writes the items and returns their number; with null only counts them, and the parts. A request is cut where its own length says so, so that its
 * result does not depend on the others. */
static int64_t make_items(const struct work *w, struct item *items, float *parts, int64_t *num_parts)
{
    const struct batch *b = w->batch;
    const int64_t state = MAX_ROWS * (2 + w->h->head_dim);
    int64_t n = 0;
    *num_parts = 0;
    for (int32_t r = 0; r < b->num_requests; r++)
        for (int32_t g = 0; g < w->h->num_kv_heads; g++) {
            const int64_t rows = b->counts[r] * w->group, end = b->starts[r] + b->counts[r];
            const int divided = rows <= MAX_ROWS && b->counts[r] == 1 && end > PART;
            for (int64_t row = 0; row < rows && !divided; row += MAX_ROWS, n++) {
                const int64_t last = row + MAX_ROWS < rows ? row + MAX_ROWS : rows;
                if (items)
                    items[n] = (struct item){r, g, row, last, 0, b->starts[r] + (last - 1) / w->group + 1, 0};
            }
            for (int64_t at = 0; at < end && divided; at += PART, n++, (*num_parts)++)
                if (items)
                    items[n] = (struct item){r, g, 0, rows, at, at + PART < end ? at + PART : end, parts + *num_parts * state};
        }
    return n;
}

int attend(const struct heads *h, const struct batch *batch, const float *queries, int64_t stride, const void *key_cache,
           const void *value_cache, float scale, void *out)
{
    struct work w = {.h = h, .batch = batch, .queries = queries, .stride = stride, .group = h->num_heads / h->num_kv_heads,
                     .key_cache = key_cache, .value_cache = value_cache, .scale = scale * 1.44269504f, .out = out};
    int64_t *first_tokens = malloc(sizeof(int64_t) * (size_t)batch->num_requests);
    w.first_tokens = first_tokens;
    int64_t num_parts;
    const int64_t count = make_items(&w, 0, 0, &num_parts);
    w.items = malloc(sizeof(struct item) * (size_t)count);
    float *parts = malloc(sizeof(float) * (size_t)(num_parts * MAX_ROWS * (2 + h->head_dim) + 1));
    const int enough = first_tokens && w.items && parts;
    if (enough) {
        for (int64_t r = 0, token = 0; r < batch->num_requests; token += batch->counts[r++])
            first_tokens[r] = token;
        make_items(&w, w.items, parts, &num_parts);
        /* All heads of a request at once where there are enough: their keys and values lie side by side. */
        pool_run(run_items, &w, (int)count, count >= 4 * h->num_kv_heads * pool_size() ? (int)h->num_kv_heads : 1);
        for (int64_t i = 0; i < count;)
            i += w.items[i].part ? merge(&w, w.items + i) : 1;
    }
    free(parts);
    free(w.items);
    free(first_tokens);
    return enough;
}
