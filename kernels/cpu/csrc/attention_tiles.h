/* The two products of attention for a few rows, where a row is a query head of a position, over some of the positions. */
#ifndef RINGPOST_ATTENTION_TILES_H
#define RINGPOST_ATTENTION_TILES_H

#include "attention.h"

#define MAX_ROWS 32 /* of an item */
#define SEGMENT 256      /* positions taken at a time */
#define SEGMENT_BLOCKS (SEGMENT / LANES)
#define NEXT_BLOCKS 4

/* The cached positions of a segment, LANES at a time: where the keys of those begin, and the values. */
struct segment {
    int num_positions;
    const void *keys[SEGMENT_BLOCKS], *values[SEGMENT_BLOCKS];
    int num_next; /* keys that are needed after this segment */
    const void *next_keys[NEXT_BLOCKS];
};

/* scores[row][SEGMENT] = queries . keys, for all positions up to the next multiple of LANES. */
void scores_vector(const struct heads *h, const struct segment *s, const float *queries, int rows, float *scores);

/* sums[row][head_dim] += weights[row][SEGMENT] . values. Weights up to the next multiple of LANES are there. */
void weigh_vector(const struct heads *h, const struct segment *s, const float *weights, int rows, float *sums);

/* The same by AMX, for bfloat16, a head_dim that is a multiple of 32 and at most AMX_ROWS rows, after `begin_amx` for as many. */
#define AMX_ROWS 16
void begin_amx(int rows);
void scores_amx(const struct heads *h, const struct segment *s, const float *queries, int rows, float *scores);
void weigh_amx(const struct heads *h, const struct segment *s, const float *weights, int rows, float *sums);

#endif
