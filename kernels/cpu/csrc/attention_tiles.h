/* The two products of attention for a few rows, where a row is a query head of a position, over some of the positions. */
#ifndef RINGPOST_ATTENTION_TILES_H
#define RINGPOST_ATTENTION_TILES_H

#include "attention.h"

#define MAX_ROWS 32 /* of an item */
#define SEGMENT 256 /* positions taken at a time, a multiple of LANES */
#define SEGMENT_BLOCKS (SEGMENT / LANES)
#define AHEAD 4 /* blocks between one that is read and the one that is asked for meanwhile */

/* The cached positions of a segment in blocks of LANES, in the order in which they are read: first where the keys of each
 * begin, then the values, then what is read after this segment, or what is there already.
 * Lines of 64 bytes are `line_bytes` from each other. */
struct segment {
    int num_blocks;
    const void *order[2 * SEGMENT_BLOCKS + AHEAD];
    int64_t line_bytes[2 * SEGMENT_BLOCKS + AHEAD];
};

/* scores[row][SEGMENT] = queries . keys, for all positions of the blocks.
 * The queries [row][head_dim] are of the cache's type. */
void scores_vector(const struct heads *h, const struct segment *s, const void *queries, int rows, float *scores);

/* sums[row][head_dim] += weights . values. The weights are of the cache's type, and lie where the scores did: [row][SEGMENT]
 * floats, or [row][WEIGHTS_BF16] bfloat16 of which the first half count. */
#define WEIGHTS_BF16 (2 * SEGMENT)
void weigh_vector(const struct heads *h, const struct segment *s, const void *weights, int rows, float *sums);

/* The same by AMX, for bfloat16, a head_dim that is a multiple of 32 and at most AMX_ROWS rows,
 * after `begin_amx` for as many. */
#define AMX_ROWS 16
void begin_amx(int rows);
void scores_amx(const struct heads *h, const struct segment *s, const void *queries, int rows, float *scores);
void weigh_amx(const struct heads *h, const struct segment *s, const void *weights, int rows, float *sums);

#endif
