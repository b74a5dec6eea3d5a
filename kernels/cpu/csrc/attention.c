/* Divides attention among the threads: an item is some query rows of a KV head,
 * over all positions that they attend to or a part. */
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
    int num_items, at_once;
};

void write_kv(const struct heads *h, const float *keys, const float *values, int64_t stride, const int64_t *slots,
              int64_t count, void *key_cache, void *value_cache)
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

/* Puts the blocks of LANES positions from `first` on, as far as `end`, into the order: their keys at `keys`, their values at
 * `values` if that is not null. Returns how many they are. */
static int find_blocks(const struct work *w, const struct item *item, int64_t first, int64_t end, const void **keys,
                       const void **values)
{
    const struct heads *h = w->h;
    const int64_t number = h->is_bf16 ? sizeof(bf16) : sizeof(float), block_bytes = h->block_size * h->head_dim * number;
    const int32_t *table = w->batch->block_table + item->request * w->batch->table_width + first / h->block_size;
    int64_t inside = first % h->block_size;
    int n = 0;
    for (int64_t at = first; at < end; at += LANES, n++) {
        const int64_t start = (*table * h->num_kv_heads + item->kv_head) * block_bytes;
        keys[n] = w->key_cache + start + inside * (h->is_bf16 ? 2 : 1) * number;
        if (values)
            values[n] = w->value_cache + start + inside * h->head_dim * number;
        inside += LANES;
        if (inside == h->block_size) {
            inside = 0;
            table++;
        }
    }
    return n;
}

/* `then` is the item that this thread is likely to take after this one, or null. */
static void find_segment(const struct work *w, const struct item *item, const struct item *then, int64_t first, int64_t end,
                         struct segment *s)
{
    const int n = (int)((end - first + LANES - 1) / LANES);
    int next = 0;
    s->num_blocks = find_blocks(w, item, first, end, s->order, s->order + n);
    if (end < item->end_position) {
        const int64_t last = end + AHEAD * LANES;
        next = find_blocks(w, item, end, last < item->end_position ? last : item->end_position, s->order + 2 * n, 0);
    } else if (then) {
        const int64_t last = then->first_position + AHEAD * LANES;
        next = find_blocks(w, then, then->first_position, last < then->end_position ? last : then->end_position,
                           s->order + 2 * n, 0);
    }
    for (; next < AHEAD; next++)
        s->order[2 * n + next] = s->order[2 * n - 1];
    for (int i = 0; i < 2 * n + AHEAD; i++)
        s->line_bytes[i] = i >= n && i < 2 * n ? 64 : w->h->block_size * 4;
}

/* Scores of a row to weights, of the first `count`; those up to the next multiple of LANES become zero. They take the place of
 * the scores, and are bfloat16 if so wanted. A score is a power of two: `scale` is that of attention, over ln 2. */
INLINE void weigh_scores(int is_bf16, float *scores, int count, int rounded, float scale, float *largest, float *total,
                         float *shrunk)
{
    const vint lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const int whole = count / LANES * LANES;
    const vint there = lanes < count - whole;
    vfloat best = splat(LOWEST), other = best, sum = {0};
    int i = 0;
    for (; i + 2 * LANES <= whole; i += 2 * LANES) {
        best = max_f32(load_f32(scores + i), best);
        other = max_f32(load_f32(scores + i + LANES), other);
    }
    best = max_f32(best, other);
    if (i < whole) {
        best = max_f32(load_f32(scores + i), best);
        i += LANES;
    }
    if (whole < count)
        best = max_f32(select_f32(there, load_f32(scores + i), splat(LOWEST)), best);
    /* Without a finite score there is no weight: the result is to be no number either. */
    const float top = max_lanes(best), found = count && top == LOWEST ? NAN : top * scale;
    const float before = *largest, now = found > before || found != found ? found : before;
    for (i = 0; i < rounded; i += LANES) {
        const vfloat x = load_f32(scores + i) * scale - now;
        vfloat e = is_bf16 ? exp2_rough(x) : exp2_f32(x);
        if (i >= whole)
            e = i < count ? select_f32(there, e, splat(0.0f)) : splat(0.0f);
        if (is_bf16)
            store_bf16((bf16 *)scores + i, e); /* behind what is still to be read */
        else
            store_f32(scores + i, e);
        sum += e;
    }
    *shrunk = exp2_f32(splat(before - now))[0];
    *total = *total * *shrunk + sum_lanes(sum);
    *largest = now;
}

static void weigh_rows(const struct work *w, const struct item *item, int64_t first, int num_blocks, float *scores,
                       struct state *state)
{
    const int64_t start = w->batch->starts[item->request], dim = w->h->head_dim;
    for (int r = 0; r < item->end_row - item->first_row; r++) {
        const int64_t position = start + (item->first_row + r) / w->group, seen = position + 1 - first;
        const int rounded = num_blocks * LANES, count = seen < 0 ? 0 : seen < rounded ? (int)seen : rounded;
        float shrunk;
        if (w->h->is_bf16)
            weigh_scores(1, scores + r * SEGMENT, count, rounded, w->scale, state->largest + r, state->total + r, &shrunk);
        else
            weigh_scores(0, scores + r * SEGMENT, count, rounded, w->scale, state->largest + r, state->total + r, &shrunk);
        if (shrunk != 1.0f && first > item->first_position)
            for (int64_t d = 0; d < dim; d += LANES)
                store_f32(state->sums + r * dim + d, load_f32(state->sums + r * dim + d) * shrunk);
    }
}

#ifdef __AMX_BF16__
/* CALL(row, rows) for AMX_ROWS rows at a time. */
#define BY_TILES(CALL)                                                                                                         \
    for (int row = 0; row < rows; row += AMX_ROWS) {                                                                           \
        const int some = rows - row < AMX_ROWS ? rows - row : AMX_ROWS;                                                        \
        if (!row || some < AMX_ROWS)                                                                                           \
            begin_amx(some);                                                                                                   \
        CALL;                                                                                                                  \
    }
#endif

static void run_item(const struct work *w, const struct item *item, const struct item *then, const void *q, struct state *state)
{
    const struct heads *h = w->h;
    const int rows = (int)(item->end_row - item->first_row);
    float scores[MAX_ROWS * SEGMENT] __attribute__((aligned(64)));
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
        find_segment(w, item, then, first, end, &s);
#ifdef __AMX_BF16__
        if (by_tiles) {
            BY_TILES(scores_amx(h, &s, (const bf16 *)q + row * h->head_dim, some, scores + row * SEGMENT))
            weigh_rows(w, item, first, s.num_blocks, scores, state);
            BY_TILES(weigh_amx(h, &s, scores + row * SEGMENT, some, state->sums + row * h->head_dim))
            continue;
        }
#endif
        scores_vector(h, &s, q, rows, scores);
        weigh_rows(w, item, first, s.num_blocks, scores, state);
        weigh_vector(h, &s, scores, rows, state->sums);
    }
    (void)by_tiles;
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

/* The queries of an item's rows, in the cache's type, to q [row][head_dim]. */
static void take_queries(const struct work *w, const struct item *item, void *q)
{
    const int64_t dim = w->h->head_dim;
    for (int64_t row = item->first_row; row < item->end_row; row++) {
        const int64_t token = w->first_tokens[item->request] + row / w->group, at = (row - item->first_row) * dim;
        const float *from = w->queries + token * w->stride + (item->kv_head * w->group + row % w->group) * dim;
        for (int64_t d = 0; d < dim; d += LANES)
            if (w->h->is_bf16)
                store_bf16((bf16 *)q + at + d, load_f32(from + d));
            else
                store_f32((float *)q + at + d, load_f32(from + d));
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
        const int then = i + 1 < end ? i + 1 : i + 1 + w->at_once * (pool_size() - 1);
        take_queries(w, item, q);
        run_item(w, item, then < w->num_items ? w->items + then : 0, q, &state);
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

/* Writes the items and returns their number; with null only counts them, and the parts. A request is cut where its own length
 * says so, so that its result does not depend on the others. */
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
        w.num_items = (int)count;
        w.at_once = count >= 4 * h->num_kv_heads * pool_size() ? (int)h->num_kv_heads : 1;
        pool_run(run_items, &w, w.num_items, w.at_once);
        for (int64_t i = 0; i < count;)
            i += w.items[i].part ? merge(&w, w.items + i) : 1;
    }
    free(parts);
    free(w.items);
    free(first_tokens);
    return enough;
}
