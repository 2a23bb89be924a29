/* The microkernels' one body, in GNU vector extensions. No include guard: ukernel_isa.h includes it
 * once per type. Needs REAL, INTEGER (of the same size), SUFFIX, VBYTES, MR.
 */
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(op) JOIN(op, SUFFIX)
#define VL ((int)(VBYTES / sizeof(REAL)))
#define UNROLL _Pragma("GCC unroll 32")

typedef REAL NAME(vec) __attribute__((vector_size(VBYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL NAME(reg) __attribute__((vector_size(VBYTES)));
typedef INTEGER NAME(mask) __attribute__((vector_size(VBYTES)));

/* m and nv are constants at every call below, so that the accumulators are registers: indexed under
 * a run-time bound they would live on the stack. */
static inline __attribute__((always_inline)) void NAME(outer_tile)(
    const int m, const int nv, ptrdiff_t depth, const REAL *const *rows, const ptrdiff_t *offset,
    const REAL *b, const REAL *start, REAL *c, ptrdiff_t c_row)
{
    NAME(reg) acc[MR][2];
    const REAL *row[MR];
    UNROLL for (int i = 0; i < m; i++) {
        row[i] = rows[i];
        UNROLL for (int v = 0; v < nv; v++)
            acc[i][v] = *(const NAME(vec) *)((start ? start : c + i * c_row) + v * VL);
    }
    for (ptrdiff_t k = 0; k < depth; k++) {
        const ptrdiff_t at = offset[k];
        NAME(reg) bv[2];
        UNROLL for (int v = 0; v < nv; v++)
            bv[v] = *(const NAME(vec) *)(b + v * VL);
        b += nv * VL;
        UNROLL for (int i = 0; i < m; i++) {
            const REAL a = row[i][at];
            UNROLL for (int v = 0; v < nv; v++)
                acc[i][v] += a * bv[v];
        }
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int v = 0; v < nv; v++)
            *(NAME(vec) *)(c + i * c_row + v * VL) = acc[i][v];
}

#define CASE(rows_) \
    case rows_: \
        if (MR >= rows_) { \
            if (nv == 2) \
                NAME(outer_tile)(rows_, 2, depth, rows, offset, b, start, c, c_row); \
            else \
                NAME(outer_tile)(rows_, 1, depth, rows, offset, b, start, c, c_row); \
        } \
        break;

static void NAME(outer)(int m, int nv, ptrdiff_t depth, const REAL *const *rows,
                        const ptrdiff_t *offset, const REAL *b, const REAL *start, REAL *c,
                        ptrdiff_t c_row)
{
    switch (m) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if MR > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif
    }
}
#undef CASE

/* One VL x VL block by repeated interleaving: after log2(VL) rounds of {first half, second half}
 * -> {pairwise interleaved}, rows have become columns. */
static inline __attribute__((always_inline)) void NAME(transpose_block)(
    const REAL *src, ptrdiff_t src_row, REAL *dst, ptrdiff_t dst_row)
{
    NAME(reg) v[VL], u[VL];
    NAME(mask) low, high;
    UNROLL for (int i = 0; i < VL / 2; i++) {
        low[2 * i] = i;
        low[2 * i + 1] = VL + i;
        high[2 * i] = VL / 2 + i;
        high[2 * i + 1] = VL + VL / 2 + i;
    }
    UNROLL for (int i = 0; i < VL; i++)
        v[i] = *(const NAME(vec) *)(src + i * src_row);
    UNROLL for (int width = 1; width < VL; width *= 2) {
        UNROLL for (int i = 0; i < VL / 2; i++) {
            u[2 * i] = __builtin_shuffle(v[i], v[i + VL / 2], low);
            u[2 * i + 1] = __builtin_shuffle(v[i], v[i + VL / 2], high);
        }
        UNROLL for (int i = 0; i < VL; i++)
            v[i] = u[i];
    }
    UNROLL for (int i = 0; i < VL; i++)
        *(NAME(vec) *)(dst + i * dst_row) = v[i];
}

static void NAME(transpose)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src, ptrdiff_t src_row,
                            REAL *dst, ptrdiff_t dst_row)
{
    const ptrdiff_t full_rows = rows - rows % VL, full_cols = cols - cols % VL;
    for (ptrdiff_t i = 0; i < full_rows; i += VL) {
        for (ptrdiff_t j = 0; j < full_cols; j += VL)
            NAME(transpose_block)(src + i * src_row + j, src_row, dst + j * dst_row + i, dst_row);
        for (ptrdiff_t j = full_cols; j < cols; j++)
            for (int r = 0; r < VL; r++)
                dst[j * dst_row + i + r] = src[(i + r) * src_row + j];
    }
    for (ptrdiff_t i = full_rows; i < rows; i++)
        for (ptrdiff_t j = 0; j < cols; j++)
            dst[j * dst_row + i] = src[i * src_row + j];
}

#undef JOIN2
#undef JOIN
#undef NAME
#undef VL
#undef UNROLL
