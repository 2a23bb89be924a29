/* The microkernels' one body, in GNU vector extensions; a compiler without them gets vectors of one
 * lane. No include guard: ukernel_isa.h includes it once per type. Needs REAL, INTEGER (of the same
 * size), SUFFIX, VBYTES, MR.
 */
#define JOIN2(a, b) a##_##b
#define JOIN(a, b) JOIN2(a, b)
#define NAME(op) JOIN(op, SUFFIX)

#if defined(__GNUC__) && !defined(CYCONV_SCALAR)
#define VL ((int)(VBYTES / sizeof(REAL)))
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define HAS_SHUFFLE
#endif
typedef REAL NAME(vec) __attribute__((vector_size(VBYTES), aligned(sizeof(REAL)), may_alias));
typedef REAL NAME(reg) __attribute__((vector_size(VBYTES)));
#else
#define VL 1
#define ALWAYS_INLINE static inline
#define UNROLL
typedef REAL NAME(vec);
typedef REAL NAME(reg);
#endif

/* The three sums differ in which factors are vectors of lanes and which are one number for all lanes:
 *
 *            A        B
 *   outer    number   vector
 *   along    vector   vector
 *   spread   vector   number
 *
 * m, nv and the two flags are constants at every call below, so that the accumulators are registers:
 * indexed under a run-time bound they would live on the stack. */
ALWAYS_INLINE void NAME(tile)(
    const int a_vector, const int b_vector, const int m, const int nv, ptrdiff_t depth,
    const REAL *const *rows, const ptrdiff_t *offset, const REAL *b, const REAL *start, REAL *c,
    ptrdiff_t c_row)
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
        const REAL one = *b;
        NAME(reg) bv[2];
        if (b_vector)
            UNROLL for (int v = 0; v < nv; v++)
                bv[v] = *(const NAME(vec) *)(b + v * VL);
        b += b_vector ? nv * VL : 1;
        UNROLL for (int i = 0; i < m; i++)
            UNROLL for (int v = 0; v < nv; v++) {
                if (!a_vector)
                    acc[i][v] += row[i][at] * bv[v];
                else if (b_vector)
                    acc[i][v] += *(const NAME(vec) *)(row[i] + at + v * VL) * bv[v];
                else
                    acc[i][v] += *(const NAME(vec) *)(row[i] + at + v * VL) * one;
            }
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int v = 0; v < nv; v++)
            *(NAME(vec) *)(c + i * c_row + v * VL) = acc[i][v];
}

#define CASE(a_vector, b_vector, rows_) \
    case rows_: \
        if (nv == 2) \
            NAME(tile)(a_vector, b_vector, rows_, 2, depth, rows, offset, b, start, c, c_row); \
        else \
            NAME(tile)(a_vector, b_vector, rows_, 1, depth, rows, offset, b, start, c, c_row); \
        break;
#if MR == 6
#define CASES(a, b) CASE(a, b, 1) CASE(a, b, 2) CASE(a, b, 3) CASE(a, b, 4) CASE(a, b, 5) \
    CASE(a, b, 6)
#elif MR == 12
#define CASES(a, b) CASE(a, b, 1) CASE(a, b, 2) CASE(a, b, 3) CASE(a, b, 4) CASE(a, b, 5) \
    CASE(a, b, 6) CASE(a, b, 7) CASE(a, b, 8) CASE(a, b, 9) CASE(a, b, 10) CASE(a, b, 11) \
    CASE(a, b, 12)
#else
#error "MR must be 6 or 12: CASES lists them"
#endif
#define SUM(op, a_vector, b_vector) \
    static void NAME(op)(int m, int nv, ptrdiff_t depth, const REAL *const *rows, \
                         const ptrdiff_t *offset, const REAL *b, const REAL *start, REAL *c, \
                         ptrdiff_t c_row) \
    { \
        switch (m) { CASES(a_vector, b_vector) } \
    }

SUM(outer, 0, 1)
SUM(along, 1, 1)
SUM(spread, 1, 0)

#undef SUM
#undef CASES
#undef CASE

#ifdef HAS_SHUFFLE
typedef INTEGER NAME(mask) __attribute__((vector_size(VBYTES)));

/* One VL x VL block by repeated interleaving: after log2(VL) rounds of {first half, second half}
 * -> {pairwise interleaved}, rows have become columns. */
ALWAYS_INLINE void NAME(transpose_block)(const REAL *src, ptrdiff_t src_row, REAL *dst,
                                         ptrdiff_t dst_row)
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
#else
ALWAYS_INLINE void NAME(transpose_block)(const REAL *src, ptrdiff_t src_row, REAL *dst,
                                         ptrdiff_t dst_row)
{
    for (int i = 0; i < VL; i++)
        for (int j = 0; j < VL; j++)
            dst[j * dst_row + i] = src[i * src_row + j];
}
#endif

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

static void NAME(collect)(ptrdiff_t rows, int nv, const REAL *src, ptrdiff_t src_row, REAL *dst)
{
    if (nv == 2) {
        for (ptrdiff_t i = 0; i < rows; i++, src += src_row, dst += 2 * VL) {
            *(NAME(vec) *)dst = *(const NAME(vec) *)src;
            *(NAME(vec) *)(dst + VL) = *(const NAME(vec) *)(src + VL);
        }
    } else {
        for (ptrdiff_t i = 0; i < rows; i++, src += src_row, dst += VL)
            *(NAME(vec) *)dst = *(const NAME(vec) *)src;
    }
}

#undef JOIN2
#undef JOIN
#undef NAME
#undef VL
#undef UNROLL
#undef ALWAYS_INLINE
#undef HAS_SHUFFLE
