/* The matrix unit of AMX: eight tiles, each of at most sixteen rows of 64 bytes. */
#ifndef RINGPOST_AMX_H
#define RINGPOST_AMX_H

#define TILE_HEIGHT 16

/* Whether the CPU has AMX with bfloat16, and this process may use it. */
int amx_available(void);

#ifdef __AMX_BF16__
#include <immintrin.h>
#include <stdint.h>

/* Gives each tile its rows and the bytes of a row. One without rows is not to be used. */
static inline void configure_tiles(const int rows[8], const int row_bytes[8])
{
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)rows[i];
        c.row_bytes[i] = rows[i] ? (uint16_t)row_bytes[i] : 0;
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); /* the intrinsic does not tell the compiler that it reads all of it */
    _tile_loadconfig(&c);
}
#endif

#endif
