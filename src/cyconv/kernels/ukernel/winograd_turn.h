/* The transposition of winograd.h, after winograd_body.h and with its macros. Needs INTEGER, of REAL's
 * size. */
#if defined(__GNUC__) && !defined(__clang__) && !defined(CYCONV_SCALAR)
typedef INTEGER NAME(index) __attribute__((vector_size(VBYTES)));
enum { NAME(PER_LANE) = 16 / sizeof(REAL), NAME(LANES) = VBYTES / 16 };

/* VL x VL elements: blocks inside of 128-bit lanes by interleaving, then the lanes themselves, so that
 * every step is one instruction. */
ALWAYS_INLINE void NAME(turn_block)(const REAL *src, ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    enum { L = NAME(PER_LANE), N = NAME(LANES) };
    NAME(reg) v[VL], u[VL];
    NAME(index) low, high;
    UNROLL for (int i = 0; i < VL; i++) {
        low[i] = i / L * L + i % L / 2 + i % 2 * VL;
        high[i] = low[i] + L / 2;
    }
    UNROLL for (int i = 0; i < VL; i++)
        v[i] = LOAD(src + i * src_row);
    UNROLL for (int width = 1; width < L; width *= 2) {
        UNROLL for (int i = 0; i < VL / 2; i++) {
            const int at = i / (L / 2) * L + i % (L / 2);
            u[i / (L / 2) * L + i % (L / 2) * 2] = __builtin_shuffle(v[at], v[at + L / 2], low);
            u[i / (L / 2) * L + i % (L / 2) * 2 + 1] = __builtin_shuffle(v[at], v[at + L / 2], high);
        }
        UNROLL for (int i = 0; i < VL; i++)
            v[i] = u[i];
    }
    UNROLL for (int width = 1; width < N; width *= 2) {
        UNROLL for (int i = 0; i < VL; i++) {
            const int lane = i / L & width;
            low[i] = lane ? VL + i - width * L : i;
            high[i] = lane ? VL + i : i + width * L;
        }
        UNROLL for (int i = 0; i < VL; i++)
            if (!(i / L & width)) {
                u[i] = __builtin_shuffle(v[i], v[i + width * L], low);
                u[i + width * L] = __builtin_shuffle(v[i], v[i + width * L], high);
            }
        UNROLL for (int i = 0; i < VL; i++)
            v[i] = u[i];
    }
    UNROLL for (int i = 0; i < VL; i++)
        STORE(dst + i * dst_row, v[i]);
}
#else
ALWAYS_INLINE void NAME(turn_block)(const REAL *src, ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    for (int i = 0; i < VL; i++)
        for (int j = 0; j < VL; j++)
            dst[j * dst_row + i] = src[i * src_row + j];
}
#endif

ALWAYS_INLINE void NAME(turn_one_by_one)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src,
                                         ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    for (ptrdiff_t i = 0; i < rows; i++)
        for (ptrdiff_t j = 0; j < cols; j++)
            dst[j * dst_row + i] = src[i * src_row + j];
}

/* What is left of a side beyond its whole blocks is moved one by one if it is little (the ninth tap),
 * else by a block that overlaps the one before. */
static void NAME(turn)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src, ptrdiff_t src_row, REAL *dst,
                       ptrdiff_t dst_row)
{
    const ptrdiff_t last_row = rows % VL <= VL / 4 ? rows - rows % VL : rows;
    const ptrdiff_t last_col = cols % VL <= VL / 4 ? cols - cols % VL : cols;
    if (rows < VL || cols < VL) {
        NAME(turn_one_by_one)(rows, cols, src, src_row, dst, dst_row);
        return;
    }
    for (ptrdiff_t i = 0; i < last_row; i += VL) {
        const ptrdiff_t row = i + VL <= rows ? i : rows - VL;
        for (ptrdiff_t j = 0; j < last_col; j += VL) {
            const ptrdiff_t col = j + VL <= cols ? j : cols - VL;
            NAME(turn_block)(src + row * src_row + col, src_row, dst + col * dst_row + row, dst_row);
        }
    }
    NAME(turn_one_by_one)(rows, cols - last_col, src + last_col, src_row, dst + last_col * dst_row,
                          dst_row);
    NAME(turn_one_by_one)(rows - last_row, last_col, src + last_row * src_row, src_row,
                          dst + last_row, dst_row);
}
