/* Microkernels: the contract. One table per instruction set; dispatch.c picks one.
 *
 * Four sums of one form. With i < m (1 <= m <= mr), j < nv*vl (nv is 1 or 2) and k < depth,
 *
 *     c[i*c_row + j]  gets  start[j] + sum over k of  A * B
 *                     or    c[i*c_row + j] + the sum, where start is NULL
 *
 *     outer     A = rows[i][offset[k]]        B = b[k*nv*vl + j]
 *     along     A = rows[i][offset[k] + j]    B = b[k*nv*vl + j]
 *     spread    A = rows[i][offset[k] + j]    B = b[k]
 *     across    A = rows[i][k]                B = b[offset[k] + j]    start[i] in place of start[j]
 *
 * One factor is read through one offset per k (in elements), which is how a patch of an image is read
 * without being copied. The sum runs over k in order, one accumulator per element,
 * whatever m is: a result does not depend on how rows were divided among calls. depth may be 0.
 * c overlaps nothing; no pointer need be aligned.
 *
 * dots: c[(i*n + j)*vl + lane] gets itself + sum over k < depth of a[i][k*vl + lane] * b[j][k*vl + lane]
 * for i < m, j < n, both at most CYCONV_DOTS.
 *
 * transpose: dst[j*dst_row + i] = src[i*src_row + j]  for i < rows, j < cols. No overlap.
 * collect: dst[i*nv*vl + j] = src[i*src_row + j]  for i < rows, j < nv*vl. No overlap.
 * move: dst[y*dst_row + x*dst_step] = src[y*src_row + x*src_step]  for y < rows, x < cols. No overlap.
 * zip: dst[y*dst_row + 2x] = even[y*src_row + x], dst[.. + 2x + 1] = odd[..], cols elements a row.
 * unzip: even[y*dst_row + x] = src[y*src_row + 2x], odd[..] = src[.. + 2x + 1], cols elements a row.
 *
 * slide: a strip of `pixels` <= strip outputs of one vector of channels. With j < pixels, r < depth
 * rows of the filter, k < taps and lo <= j*step + k < hi (columns outside are left out, not read),
 *
 *     y[j*y_pixel ..]  gets  start + sum over r, then k, of
 *                            x[row[r] + (j*step + k)*pixel ..] * filter[filter_row[r] + k*vl ..]
 *
 * slide_gradient: its adjoint, for `height` rows of the filter and any number of pixels,
 *
 *     dw[filter_row[r] + k*vl ..]  gets itself + sum over j of
 *                                  x[row[r] + (j*step + k)*pixel ..] * dy[j*dy_pixel ..]
 *
 * where columns from lo to hi that no output sees may be multiplied by zeros. hi does not exceed
 * (pixels - 1)*step + taps. cyconv_slides and cyconv_slide_height say which taps and steps exist.
 *
 * finish: y[i*row + j*step] gets the activation of itself + residual[i*row + j*step] (unless that is
 * NULL), for i < rows, j < cols. Each element is computed alike wherever it stands. With x that sum,
 *
 *     RELU         max(x, 0)                 RELU6        min(max(x, 0), 6)
 *     LEAKY_RELU   x < 0 ? alpha*x : x       HARDSIGMOID  min(max(alpha*x + 1/2, 0), 1)
 *     HARDSWISH    x * HARDSIGMOID(x) with alpha = 1/6
 *     SIGMOID      1 / (1 + exp(-x))         SILU         x * SIGMOID(x)
 *     TANH                                   GELU         x * (1 + erf(x / sqrt(2))) / 2
 *
 * NaN stays NaN. Factors below the smallest normal number may be 0.
 */
#ifndef CYCONV_UKERNEL_H
#define CYCONV_UKERNEL_H
#include <stddef.h>

#include "winograd.h"

typedef void cyconv_sum_f32(int m, int nv, ptrdiff_t depth, const float *const *rows,
                            const ptrdiff_t *offset, const float *b, const float *start, float *c,
                            ptrdiff_t c_row);
typedef void cyconv_sum_f64(int m, int nv, ptrdiff_t depth, const double *const *rows,
                            const ptrdiff_t *offset, const double *b, const double *start,
                            double *c, ptrdiff_t c_row);

typedef struct {
    const char *isa;
    int mr;                     /* rows of a full tile */
    int strip;                  /* pixels of a full strip */
    int vl_f32, vl_f64;         /* lanes of a vector */
    cyconv_sum_f32 *outer_f32, *along_f32, *spread_f32, *across_f32;
    cyconv_sum_f64 *outer_f64, *along_f64, *spread_f64, *across_f64;
    void (*transpose_f32)(ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row,
                          float *dst, ptrdiff_t dst_row);
    void (*transpose_f64)(ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row,
                          double *dst, ptrdiff_t dst_row);
    void (*collect_f32)(ptrdiff_t rows, int nv, const float *src, ptrdiff_t src_row, float *dst);
    void (*collect_f64)(ptrdiff_t rows, int nv, const double *src, ptrdiff_t src_row, double *dst);
    void (*dots_f32)(int m, int n, ptrdiff_t depth, const float *const *a, const float *const *b,
                     float *c);
    void (*move_f32)(ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row,
                     ptrdiff_t src_step, float *dst, ptrdiff_t dst_row, ptrdiff_t dst_step);
    void (*zip_f32)(ptrdiff_t rows, ptrdiff_t cols, const float *even, const float *odd,
                    ptrdiff_t src_row, float *dst, ptrdiff_t dst_row);
    void (*unzip_f32)(ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row, float *even,
                      float *odd, ptrdiff_t dst_row);
    void (*slide_f32)(int taps, int step, int pixels, ptrdiff_t depth, const float *x,
                      const ptrdiff_t *row, ptrdiff_t pixel, const float *filter,
                      const ptrdiff_t *filter_row, ptrdiff_t lo, ptrdiff_t hi,
                      const float *start, float *y, ptrdiff_t y_pixel);
    void (*slide_gradient_f32)(int height, int taps, int step, ptrdiff_t pixels, const float *x,
                               const ptrdiff_t *row, ptrdiff_t pixel, const float *dy,
                               ptrdiff_t dy_pixel, ptrdiff_t lo, ptrdiff_t hi, float *dw,
                               const ptrdiff_t *filter_row);
    void (*dots_f64)(int m, int n, ptrdiff_t depth, const double *const *a, const double *const *b,
                     double *c);
    void (*move_f64)(ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row,
                     ptrdiff_t src_step, double *dst, ptrdiff_t dst_row, ptrdiff_t dst_step);
    void (*zip_f64)(ptrdiff_t rows, ptrdiff_t cols, const double *even, const double *odd,
                    ptrdiff_t src_row, double *dst, ptrdiff_t dst_row);
    void (*unzip_f64)(ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row, double *even,
                      double *odd, ptrdiff_t dst_row);
    void (*slide_f64)(int taps, int step, int pixels, ptrdiff_t depth, const double *x,
                      const ptrdiff_t *row, ptrdiff_t pixel, const double *filter,
                      const ptrdiff_t *filter_row, ptrdiff_t lo, ptrdiff_t hi,
                      const double *start, double *y, ptrdiff_t y_pixel);
    void (*slide_gradient_f64)(int height, int taps, int step, ptrdiff_t pixels, const double *x,
                               const ptrdiff_t *row, ptrdiff_t pixel, const double *dy,
                               ptrdiff_t dy_pixel, ptrdiff_t lo, ptrdiff_t hi, double *dw,
                               const ptrdiff_t *filter_row);
    void (*finish_f32)(int activation, float alpha, ptrdiff_t rows, ptrdiff_t cols, float *y,
                       ptrdiff_t row, ptrdiff_t step, const float *residual);
    void (*finish_f64)(int activation, double alpha, ptrdiff_t rows, ptrdiff_t cols, double *y,
                       ptrdiff_t row, ptrdiff_t step, const double *residual);
    const cyconv_winograd *winograd;
} cyconv_ukernels;

/* Of `finish`. */
enum {
    CYCONV_IDENTITY, CYCONV_RELU, CYCONV_RELU6, CYCONV_LEAKY_RELU, CYCONV_HARDSIGMOID,
    CYCONV_HARDSWISH, CYCONV_SIGMOID, CYCONV_SILU, CYCONV_TANH, CYCONV_GELU
};

/* Bounds on mr and 2*vl of any table; streams of `dots` on either side. */
enum { CYCONV_MOST_ROWS = 16, CYCONV_MOST_LANES = 32, CYCONV_DOTS = 3 };

/* Whether `slide` has this many taps and this step; rows of the filter at a time of `slide_gradient`,
 * 0 if it lacks them. */
static inline int cyconv_slides(ptrdiff_t taps, ptrdiff_t step)
{
    return step == 1 ? (taps >= 1 && taps <= 5) || taps == 7
                     : step == 2 && (taps == 3 || taps == 5 || taps == 7);
}
static inline int cyconv_slide_height(ptrdiff_t taps, ptrdiff_t step)
{
    return step != 1 && step != 2 ? 0 : taps == 3 ? 3 : taps == 5 ? 2 : taps == 7 ? 1 : 0;
}

/* The table of an instruction set by name, NULL if it is unknown here or the processor lacks it. */
const cyconv_ukernels *cyconv_ukernels_named(const char *name);
/* The i-th table that the processor can run, best first; NULL beyond the last. */
const cyconv_ukernels *cyconv_ukernels_at(int i);
#endif
