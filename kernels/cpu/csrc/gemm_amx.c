/* Tiles on the matrix unit of AMX: sixteen rows by thirty-two inputs at a time. */
#define _GNU_SOURCE
#include "amx.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "gemm_tiles.h"

#ifdef __AMX_BF16__
#define TILE_INPUTS 32
#define ROW_BYTES 64
#define AHEAD 2048 /* bytes */

static __thread int configured; /* rows that this thread's tiles are set up for; 0: none, or by others */

void forget_tiles(void)
{
    configured = 0;
}

/* Brings a tile's worth of weights nearer that are needed soon: loads of tiles alone do not keep the memory busy. */
INLINE void prefetch(const bf16 *p)
{
    for (int i = 0; i < TILE_HEIGHT; i++)
        _mm_prefetch((const char *)p + AHEAD + i * ROW_BYTES, _MM_HINT_T0);
}

/* Tiles 0 to 3: sums; 4 and 5: weights; 6: rows. */
static void up_to_sixteen(const struct weight *w, const bf16 *const panels[], int num_panels, const bf16 *x, int64_t stride,
                          const struct target *to)
{
    const bf16 *p0 = panels[0], *p1 = panels[num_panels > 1 ? 1 : 0], *p2 = panels[num_panels > 2 ? 2 : 0],
               *p3 = panels[num_panels > 3 ? 3 : 0];
    const int64_t to_stride = to->stride * 4;
#define BEGIN(TILE)                                                                                                            \
    if (to->add && TILE < num_panels)                                                                                          \
        _tile_loadd(TILE, to->panel[TILE], to_stride);                                                                         \
    else                                                                                                                       \
        _tile_zero(TILE)
#define ADD(TILE, WEIGHTS)                                                                                                     \
    if (TILE < num_panels) {                                                                                                   \
        _tile_loadd(WEIGHTS, p##TILE + k * LANES, ROW_BYTES);                                                                  \
        prefetch(p##TILE + k * LANES);                                                                                         \
        _tile_dpbf16ps(TILE, 6, WEIGHTS);                                                                                      \
    }
#define END(TILE)                                                                                                              \
    if (TILE < num_panels)                                                                                                     \
        _tile_stored(TILE, to->panel[TILE], to_stride)
    BEGIN(0);
    BEGIN(1);
    BEGIN(2);
    BEGIN(3);
    for (int64_t k = 0; k < w->inputs; k += TILE_INPUTS) {
        _tile_loadd(6, x + k, stride * 2);
        ADD(0, 4)
        ADD(1, 5)
        ADD(2, 4)
        ADD(3, 5)
    }
    END(0);
    END(1);
    END(2);
    END(3);
#undef BEGIN
#undef ADD
#undef END
}

/* Tiles 0 and 1: sums of the first sixteen rows; 2 and 3: of the others; 4 and 5: weights; 6 and 7: rows. */
static void up_to_thirty_two(const struct weight *w, const bf16 *p0, const bf16 *p1, const bf16 *x, int64_t stride, float *to0,
                             float *to1, int64_t to_stride, int add)
{
    const int64_t lower = TILE_HEIGHT * to_stride;
    if (add) {
        _tile_loadd(0, to0, to_stride * 4);
        _tile_loadd(1, to1, to_stride * 4);
        _tile_loadd(2, to0 + lower, to_stride * 4);
        _tile_loadd(3, to1 + lower, to_stride * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < w->inputs; k += TILE_INPUTS) {
        _tile_loadd(6, x + k, stride * 2);
        _tile_loadd(4, p0 + k * LANES, ROW_BYTES);
        prefetch(p0 + k * LANES);
        _tile_dpbf16ps(0, 6, 4);
        _tile_loadd(7, x + TILE_HEIGHT * stride + k, stride * 2);
        _tile_dpbf16ps(2, 7, 4);
        _tile_loadd(5, p1 + k * LANES, ROW_BYTES);
        prefetch(p1 + k * LANES);
        _tile_dpbf16ps(1, 6, 5);
        _tile_dpbf16ps(3, 7, 5);
    }
    _tile_stored(0, to0, to_stride * 4);
    _tile_stored(2, to0 + lower, to_stride * 4);
    _tile_stored(1, to1, to_stride * 4);
    _tile_stored(3, to1 + lower, to_stride * 4);
}

void tiles_amx(const struct weight *w, const void *const panels[], const void *const next[], int num_panels, const void *x,
               int64_t stride, int rows, const struct target *to)
{
    (void)next;
    const bf16 *const *from = (const bf16 *const *)panels;
    const int first = rows < TILE_HEIGHT ? rows : TILE_HEIGHT, second = rows - first;
    if (configured != rows) {
        const int other = second ? second : first;
        configure_tiles((const int[8]){first, first, other, other, TILE_HEIGHT, TILE_HEIGHT, first, second},
                        (const int[8]){64, 64, 64, 64, 64, 64, 64, 64});
        configured = rows;
    }
    if (!second) {
        up_to_sixteen(w, from, num_panels, x, stride, to);
        return;
    }
    for (int p = 0; p < num_panels; p += 2) {
        const int other = p + 1 < num_panels ? p + 1 : p; /* an odd one is computed twice: both begin with what was there */
        up_to_thirty_two(w, from[p], from[other], x, stride, to->panel[p], to->panel[other], to->stride, to->add);
    }
}

int amx_available(void)
{
    const int tile_data = 18, request = 0x1023; /* XFEATURE_XTILEDATA, ARCH_REQ_XCOMP_PERM */
    static int available = -1;
    if (available < 0)
        available = syscall(SYS_arch_prctl, request, tile_data) == 0;
    return available;
}
#else
void forget_tiles(void)
{
}

int amx_available(void)
{
    return 0;
}
#endif
