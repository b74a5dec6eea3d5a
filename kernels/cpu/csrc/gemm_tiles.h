/* Products of a few rows with a few panels. Each set of instructions has one such function. */
#ifndef RINGPOST_GEMM_TILES_H
#define RINGPOST_GEMM_TILES_H

#include "gemm.h"

#define MAX_PANELS 4

/* Where products go: those of a panel at panel[p] + row * stride, LANES numbers each.
 * They replace what is there, or are added to it. */
struct target {
    float *panel[MAX_PANELS];
    int64_t stride;
    int add;
};

/* Products of `rows` rows, at most TILE_ROWS, with these panels; of four, the last two are as far apart as the first two.
 * `next` are the panels that probably come next, at the same distances, or null: they may be asked for meanwhile.
 * The order of the sum is the same whatever the number of rows and panels, so that a row's result does not depend on what it is
 * computed with. */
typedef void tiles(const struct weight *w, const void *const panels[], const void *const next[], int num_panels, const void *x,
                   int64_t stride, int rows, const struct target *to);

#define TILE_ROWS 32

/* A thread calls it before the first of several calls of a `tiles` function:
 * what it did in between may have changed its tiles. */
void forget_tiles(void);

tiles tiles_f32, tiles_bf16, tiles_amx;

#endif
