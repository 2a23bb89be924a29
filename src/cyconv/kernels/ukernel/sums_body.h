/* Sums of products over a list of offsets: see ukernel.h. Included by ukernel_body.h. */
/* The sums differ in which factors are vectors of lanes, which are one number for all lanes, and
 * which are found through the list of offsets:
 *
 *            A                  B
 *   outer    number, offset     vector
 *   along    vector, offset     vector
 *   spread   vector, offset     number
 *   across   number             vector, offset
 *
 * m, nv and the three flags are constants at every call below, so that the accumulators are
 * registers: indexed under a run-time bound they would live on the stack. */
ALWAYS_INLINE void NAME(tile)(
    const int a_vector, const int b_vector, const int b_offset, const int m, const int nv, ptrdiff_t depth,
    const REAL *const *rows, const ptrdiff_t *offset, const REAL *b, const REAL *start, REAL *c,
    ptrdiff_t c_row)
{
    NAME(reg) acc[MR][2];
    const REAL *row[MR];
    UNROLL for (int i = 0; i < m; i++) {
        row[i] = rows[i];
        UNROLL for (int v = 0; v < nv; v++)
            if (b_offset && start)
                acc[i][v] = start[i] - (NAME(reg)){0};
            else
                acc[i][v] = *(const NAME(vec) *)((start ? start : c + i * c_row) + v * VL);
    }
    for (ptrdiff_t k = 0; k < depth; k++) {
        const ptrdiff_t at = b_offset ? k : offset[k];
        const REAL *const bk = b_offset ? b + offset[k] : b + k * (b_vector ? nv * VL : 1);
        const REAL one = *bk;
        NAME(reg) bv[2];
        if (b_vector)
            UNROLL for (int v = 0; v < nv; v++)
                bv[v] = *(const NAME(vec) *)(bk + v * VL);
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

#define CASE(av, bv, bo, rows_) \
    case rows_: \
        if (nv == 2) \
            NAME(tile)(av, bv, bo, rows_, 2, depth, rows, offset, b, start, c, c_row); \
        else \
            NAME(tile)(av, bv, bo, rows_, 1, depth, rows, offset, b, start, c, c_row); \
        break;
#if MR == 6
#define CASES(av, bv, bo) CASE(av, bv, bo, 1) CASE(av, bv, bo, 2) CASE(av, bv, bo, 3) CASE(av, bv, bo, 4) \
    CASE(av, bv, bo, 5) CASE(av, bv, bo, 6)
#elif MR == 12
#define CASES(av, bv, bo) CASE(av, bv, bo, 1) CASE(av, bv, bo, 2) CASE(av, bv, bo, 3) CASE(av, bv, bo, 4) \
    CASE(av, bv, bo, 5) CASE(av, bv, bo, 6) CASE(av, bv, bo, 7) CASE(av, bv, bo, 8) CASE(av, bv, bo, 9) \
    CASE(av, bv, bo, 10) CASE(av, bv, bo, 11) CASE(av, bv, bo, 12)
#else
#error "MR must be 6 or 12: CASES lists them"
#endif
#define SUM(op, a_vector, b_vector, b_offset) \
    static void NAME(op)(int m, int nv, ptrdiff_t depth, const REAL *const *rows, \
                         const ptrdiff_t *offset, const REAL *b, const REAL *start, REAL *c, \
                         ptrdiff_t c_row) \
    { \
        switch (m) { CASES(a_vector, b_vector, b_offset) } \
    }

SUM(outer, 0, 1, 0)
SUM(along, 1, 1, 0)
SUM(spread, 1, 0, 0)
SUM(across, 0, 1, 1)

#undef SUM
#undef CASES
#undef CASE

/* Products of whole streams, each with each: the lanes' sums are left as they are. */
ALWAYS_INLINE void NAME(dots_tile)(const int m, const int n, ptrdiff_t depth, const REAL *const *a,
                                   const REAL *const *b, REAL *c)
{
    NAME(reg) acc[3][3];
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int j = 0; j < n; j++)
            acc[i][j] = *(const NAME(vec) *)(c + (i * n + j) * VL);
    for (ptrdiff_t k = 0; k < depth * VL; k += VL) {
        NAME(reg) bv[3];
        UNROLL for (int j = 0; j < n; j++)
            bv[j] = *(const NAME(vec) *)(b[j] + k);
        UNROLL for (int i = 0; i < m; i++) {
            const NAME(reg) av = *(const NAME(vec) *)(a[i] + k);
            UNROLL for (int j = 0; j < n; j++)
                acc[i][j] += av * bv[j];
        }
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int j = 0; j < n; j++)
            *(NAME(vec) *)(c + (i * n + j) * VL) = acc[i][j];
}

#define DOTS_CASE(m, n) \
    case m * 4 + n: \
        NAME(dots_tile)(m, n, depth, a, b, c); \
        break;

static void NAME(dots)(int m, int n, ptrdiff_t depth, const REAL *const *a, const REAL *const *b,
                       REAL *c)
{
    switch (m * 4 + n) {
        DOTS_CASE(1, 1) DOTS_CASE(1, 2) DOTS_CASE(1, 3) DOTS_CASE(2, 1) DOTS_CASE(2, 2)
        DOTS_CASE(2, 3) DOTS_CASE(3, 1) DOTS_CASE(3, 2) DOTS_CASE(3, 3)
    }
}
#undef DOTS_CASE
