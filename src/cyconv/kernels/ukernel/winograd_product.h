/* The products of winograd.h, after winograd_body.h and with its macros: many small matrix products
 * of one shape, a point each. */

/* m rows by nv vectors of one point; m, nv and across are constants at every call, so that the
 * accumulators are registers. */
ALWAYS_INLINE void NAME(product_tile)(
    const int across, const int m, const int nv, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
    const REAL *b, ptrdiff_t b_row, REAL *c, ptrdiff_t c_row, int add)
{
    NAME(reg) acc[MR][2];
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int v = 0; v < nv; v++) {
            const NAME(reg) zero = {0};
            acc[i][v] = zero;
            if (add)
                acc[i][v] = LOAD(c + i * c_row + v * VL);
        }
    for (ptrdiff_t k = 0; k < depth; k++) {
        NAME(reg) bv[2];
        UNROLL for (int v = 0; v < nv; v++)
            bv[v] = LOAD(b + v * VL);
        b += across ? b_row : nv * VL;
        UNROLL for (int i = 0; i < m; i++) {
            const REAL one = across ? a[i] : a[i * a_row + k];
            UNROLL for (int v = 0; v < nv; v++)
                acc[i][v] += one * bv[v];
        }
        if (across)
            a += a_row;
    }
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int v = 0; v < nv; v++)
            STORE(c + i * c_row + v * VL, acc[i][v]);
}

#define CASE(across, rows_) \
    case rows_: \
        if (nv == 2) \
            NAME(product_tile)(across, rows_, 2, depth, a, a_row, b, b_row, c, c_row, add); \
        else \
            NAME(product_tile)(across, rows_, 1, depth, a, a_row, b, b_row, c, c_row, add); \
        break;
#if MR == 6
#define CASES(x) CASE(x, 1) CASE(x, 2) CASE(x, 3) CASE(x, 4) CASE(x, 5) CASE(x, 6)
#elif MR == 12
#define CASES(x) CASE(x, 1) CASE(x, 2) CASE(x, 3) CASE(x, 4) CASE(x, 5) CASE(x, 6) CASE(x, 7) \
    CASE(x, 8) CASE(x, 9) CASE(x, 10) CASE(x, 11) CASE(x, 12)
#else
#error "MR must be 6 or 12: CASES lists them"
#endif

static void NAME(along_tile)(int m, int nv, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
                             const REAL *b, ptrdiff_t b_row, REAL *c, ptrdiff_t c_row, int add)
{
    switch (m) { CASES(0) }
}

static void NAME(across_tile)(int m, int nv, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
                              const REAL *b, ptrdiff_t b_row, REAL *c, ptrdiff_t c_row, int add)
{
    switch (m) { CASES(1) }
}
#undef CASES
#undef CASE

/* Rows are divided evenly, so that no tile is much smaller than the others. All panels of a point
 * come before the next point: its rows of a stay in the first cache level. */
#define PRODUCT(form, step, panel) \
    static void NAME(form)(int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, \
                           const REAL *a, ptrdiff_t a_row, ptrdiff_t a_point, const REAL *b, \
                           ptrdiff_t b_other, ptrdiff_t b_point, REAL *c, ptrdiff_t c_row, \
                           ptrdiff_t c_point, int add) \
    { \
        const ptrdiff_t tiles = (rows + MR - 1) / MR; \
        for (int e = 0; e < points; e++, a += a_point, b += b_point, c += c_point) \
            for (int v = 0; v < vectors; v += 2) \
                for (ptrdiff_t tile = 0, i = 0; tile < tiles; tile++) { \
                    const int m = (int)(rows / tiles + (tile < rows % tiles)); \
                    NAME(form##_tile)(m, vectors - v > 1 ? 2 : 1, depth, a + i * (step), a_row, \
                                      b + v / 2 * (panel), b_other, c + i * c_row + v * VL, \
                                      c_row, add); \
                    i += m; \
                } \
    }

PRODUCT(along, a_row, b_other)
PRODUCT(across, 1, 2 * VL)
#undef PRODUCT
