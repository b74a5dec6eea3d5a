/* Products y = x @ w.T with weights packed once, for any number of rows. */
#ifndef RINGPOST_GEMM_H
#define RINGPOST_GEMM_H

#include "vector.h"

/* A panel is LANES outputs over all inputs. Its numbers lie in the order in which they are read:
 * FORMAT_F32: for each input, LANES floats;
 * FORMAT_BF16: for each pair of inputs, LANES pairs. That is also the order of an AMX tile.
 * FORMAT_Q8, FORMAT_Q4: groups of GROUP inputs, of which there is a whole number. First LANES scales of each group, which are
 * halves, behind them LANES minima for FORMAT_Q4; the rest of the last 64 bytes is not used. Then the weights: for each four
 * inputs, LANES times four bytes; of FORMAT_Q4 two such in the halves of bytes. A weight is scale * q, or scale * q + minimum.
 * Outputs that fill up the last panel are zero, and so is the second half of the last pair of an odd number of inputs. */
enum { FORMAT_F32, FORMAT_BF16, FORMAT_Q8, FORMAT_Q4 };

#define GROUP 32

struct weight {
    int64_t format, outputs, inputs;
    const void *panels;
    const float *bias; /* [outputs], or null */
};

/* What becomes of the products, which are float32. */
enum {
    INTO_F32,  /* y[row][output] = */
    INTO_BF16, /* the same, rounded */
    ADD_F32,   /* y[row][output] += */
    SILU_F32,  /* of the first half of the outputs (gates) and the second: y[row][output] = silu(gate) * up */
    SILU_BF16,
};

struct rows {
    const void *x;  /* [count][stride] of bfloat16 if is_bf16, else of float */
    int64_t stride; /* numbers from row to row */
    int64_t count;
    int is_bf16;
};

/* y has `stride` numbers from row to row. x and y do not overlap. False if there is no memory for rows to be quantised. Not to
 * be called by two threads at once. */
int gemm(const struct weight *w, const struct rows *x, int into, void *y, int64_t stride);

/* Looks at VISITED products of a row, those of the outputs from `output` on; minus infinity where there is no output. */
#define VISITED (4 * LANES)
typedef void visit(void *context, int worker, int64_t row, int64_t output, const float *values);

/* Shows all products, which are kept nowhere. A row's may be shown in any order, and by several threads.
 * False if memory ran out. */
int gemm_visit(const struct weight *w, const struct rows *x, visit *look, void *context);

#endif
