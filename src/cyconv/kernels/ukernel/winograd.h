/* Microkernels of Winograd's minimal filtering: the contract. One table per instruction set, reached
 * through that of ukernel.h.
 *
 * A tile of t outputs of a filter with three taps takes n = t + 2 inputs and n multiplications,
 *
 *     y = At [(G g) * (Bt d)],     Bt: n x n,   G: n x 3,   At: t x n,
 *
 * and in two dimensions n*n of them, Y = At [(G g Gt) * (Bt d B)] A. The matrices are those of the
 * points 0, 3/4, -3/4, 3/2, -3/2, infinity for t = 4, and 0, 1, -1, infinity for t = 2 (A. Lavin,
 * S. Gray, 2016, has the construction): all entries of At and Bt are exact, and the errors a fourth
 * of those of the usual 0, 1, -1, 2, -2, infinity.
 *
 * A `form` says which: 0: 4x4 outputs, 1: 2x2, 2: 4 along one axis, 3: 2 along one axis. Of n points
 * an axis, `points` are all, n or n*n; point number e of an array lies at e * point elements. Vectors
 * run over channels. Arrays that a function writes overlap nothing it reads.
 *
 *     input    v[e][c] = (Bt d B)[e],   d = pixel[i][c],  i < points, c < channels
 *     output   pixel[i][c] = (At m A)[i] + bias[c],  m = m[e][c],  c < vectors*vl
 *     weights  u[e][k][c] = (G g Gt)[e],  g = w[k*w_k + tap*(w_row, w_col) + c],  c < vectors*vl; u[e]
 *              has rows of vectors*vl
 *     spread   z[e][c] = (A d At)[e],  d = pixel[i][c]:  the transpose of `output`
 *     gradient  taps[r][c] = (Gt s G)[r],  s = s[e][c],  r < 3 or 9, c < vectors*vl; rows of taps are
 *              `taps_row` apart: the transpose of `weights`
 *
 * channels is a multiple of vl. Each but `gradient` adds to the vl numbers at `check` zero times such
 * numbers that check stays zero only if everything that was read is finite; `output` and `gradient` add
 * zero times each of their results.
 *
 * product: c[e][i][j] gets, or with `add` is added, the sum over k of A * b[e][k][j],
 * i < rows, j < vectors*vl; the sum is in the order of k, one accumulator per element.
 *
 *     along    A = a[e][i*a_row + k]     b packed in panels of two vectors: panel p begins at
 *              p*b_panel, its rows follow each other. The last panel may have one vector, and of three
 *              vectors there is one panel only
 *     across   A = a[e][k*a_row + i]     rows of b are b_row apart
 *
 * turn: dst[j*dst_row + i] = src[i*src_row + j]  for i < rows, j < cols; some may be written twice.
 */
#ifndef CYCONV_WINOGRAD_H
#define CYCONV_WINOGRAD_H
#include <stddef.h>

enum { CYCONV_MOST_POINTS = 36 };

#define CYCONV_WINOGRAD_OF(REAL, SUFFIX) \
    typedef struct { \
        void (*input)(int form, ptrdiff_t channels, const REAL *const *pixel, REAL *v, \
                      ptrdiff_t point, REAL *check); \
        void (*output)(int form, int vectors, const REAL *m, ptrdiff_t point, const REAL *bias, \
                       REAL *const *pixel, REAL *check); \
        void (*weights)(int form, int vectors, ptrdiff_t depth, const REAL *w, ptrdiff_t w_k, \
                        ptrdiff_t w_row, ptrdiff_t w_col, REAL *u, ptrdiff_t point, REAL *check); \
        void (*spread)(int form, ptrdiff_t channels, const REAL *const *pixel, REAL *z, \
                       ptrdiff_t point, REAL *check); \
        void (*gradient)(int form, int vectors, const REAL *s, ptrdiff_t point, REAL *taps, \
                        ptrdiff_t taps_row, REAL *check); \
        void (*along)(int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, const REAL *a, \
                      ptrdiff_t a_row, ptrdiff_t a_point, const REAL *b, ptrdiff_t b_panel, \
                      ptrdiff_t b_point, REAL *c, ptrdiff_t c_row, ptrdiff_t c_point, int add); \
        void (*across)(int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, const REAL *a, \
                       ptrdiff_t a_row, ptrdiff_t a_point, const REAL *b, ptrdiff_t b_row, \
                       ptrdiff_t b_point, REAL *c, ptrdiff_t c_row, ptrdiff_t c_point, int add); \
        void (*turn)(ptrdiff_t rows, ptrdiff_t cols, const REAL *src, ptrdiff_t src_row, REAL *dst, \
                     ptrdiff_t dst_row); \
    } cyconv_winograd_##SUFFIX;

CYCONV_WINOGRAD_OF(float, f32)
CYCONV_WINOGRAD_OF(double, f64)
#undef CYCONV_WINOGRAD_OF

typedef struct {
    cyconv_winograd_f32 f32;
    cyconv_winograd_f64 f64;
} cyconv_winograd;
#endif
