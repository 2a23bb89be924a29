/* The products of winograd.h, after winograd_body.h and with its macros: many small matrix products
 * of one shape, a point each. */

/* m rows by nv vectors of one point; m, nv and across are constants at every call, so that the
 * accumulators are registers. What c holds is added last: sums of blocks of depth then keep the bound
 * where one running sum over thousands of terms would not. */
ALWAYS_INLINE void NAME(product_tile)(
    const int across, const int m, const int nv, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row,
    const REAL *b, ptrdiff_t b_row, REAL *c, ptrdiff_t c_row, int add)
{
    NAME(reg) acc[MR][3];
    UNROLL for (int i = 0; i < m; i++)
        UNROLL for (int v = 0; v < nv; v++) {
            const NAME(reg) zero = {0};
            acc[i][v] = zero;
        }
    for (ptrdiff_t k = 0; k < depth; k++) {
        NAME(reg) bv[3];
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
        UNROLL for (int v = 0; v < nv; v++) {
            if (add)
                acc[i][v] += LOAD(c + i * c_row + v * VL);
            STORE(c + i * c_row + v * VL, acc[i][v]);
        }
}

#define CASE(across, nv, rows_) \
    case rows_: \
        NAME(product_tile)(across, rows_, nv, depth, a, a_row, b, b_row, c, c_row, add); \
        break;
#define CASES4(x, nv) CASE(x, nv, 1) CASE(x, nv, 2) CASE(x, nv, 3) CASE(x, nv, 4)
#if MR == 6
#define CASES3(x) CASES4(x, 3)
#define CASES(x, nv) CASES4(x, nv) CASE(x, nv, 5) CASE(x, nv, 6)
#elif MR == 12
#define CASES8(x, nv) CASES4(x, nv) CASE(x, nv, 5) CASE(x, nv, 6) CASE(x, nv, 7) CASE(x, nv, 8)
#define CASES3(x) CASES8(x, 3)
#define CASES(x, nv) CASES8(x, nv) CASE(x, nv, 9) CASE(x, nv, 10) CASE(x, nv, 11) CASE(x, nv, 12)
#else
#error "MR must be 6 or 12: CASES lists them"
#endif

/* A tile of three vectors has two thirds of the rows: as many accumulators. Rows are divided evenly, so
 * that no tile is much smaller than the others. All panels of a point come before the next point: its
 * rows of a stay in the first cache level. */
#define PRODUCT(form, flag, step, panel) \
    static void NAME(form##_tile)(int m, int nv, ptrdiff_t depth, const REAL *a, ptrdiff_t a_row, \
                                  const REAL *b, ptrdiff_t b_row, REAL *c, ptrdiff_t c_row, int add) \
    { \
        if (nv == 3) \
            switch (m) { CASES3(flag) } \
        else if (nv == 2) \
            switch (m) { CASES(flag, 2) } \
        else \
            switch (m) { CASES(flag, 1) } \
    } \
    static void NAME(form)(int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, \
                           const REAL *a, ptrdiff_t a_row, ptrdiff_t a_point, const REAL *b, \
                           ptrdiff_t b_other, ptrdiff_t b_point, REAL *c, ptrdiff_t c_row, \
                           ptrdiff_t c_point, int add) \
    { \
        const int wide = vectors == 3 ? 3 : 2, most = vectors == 3 ? MR / 3 * 2 : MR; \
        const ptrdiff_t tiles = (rows + most - 1) / most; \
        for (int e = 0; e < points; e++, a += a_point, b += b_point, c += c_point) \
            for (int v = 0; v < vectors; v += wide) \
                for (ptrdiff_t tile = 0, i = 0; tile < tiles; tile++) { \
                    const int m = (int)(rows / tiles + (tile < rows % tiles)); \
                    NAME(form##_tile)(m, vectors - v < wide ? vectors - v : wide, depth, \
                                      a + i * (step), a_row, b + v / wide * (panel), b_other, \
                                      c + i * c_row + v * VL, c_row, add); \
                    i += m; \
                } \
    }

PRODUCT(along, 0, a_row, b_other)
PRODUCT(across, 1, 1, 2 * VL)
#undef PRODUCT
#undef CASES
#undef CASES3
#undef CASES4
#undef CASES8
#undef CASE
