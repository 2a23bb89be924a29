/* Microkernels: the contract. One table per instruction set; dispatch.c picks one.
 *
 * Three sums of one form. With i < m (1 <= m <= mr), j < nv*vl (nv is 1 or 2) and k < depth,
 *
 *     c[i*c_row + j]  gets  start[j] + sum over k of  A * B
 *                     or    c[i*c_row + j] + the sum, where start is NULL
 *
 *     outer     A = rows[i][offset[k]]        B = b[k*nv*vl + j]
 *     along     A = rows[i][offset[k] + j]    B = b[k*nv*vl + j]
 *     spread    A = rows[i][offset[k] + j]    B = b[k]
 *
 * A is read through one pointer per row and one offset per k (in elements), which is how a patch of
 * an image is read without being copied. The sum runs over k in order, one accumulator per element,
 * whatever m is: a result does not depend on how rows were divided among calls. depth may be 0.
 * c overlaps nothing; no pointer need be aligned.
 *
 * transpose: dst[j*dst_row + i] = src[i*src_row + j]  for i < rows, j < cols. No overlap.
 * collect: dst[i*nv*vl + j] = src[i*src_row + j]  for i < rows, j < nv*vl. No overlap.
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
    int vl_f32, vl_f64;         /* lanes of a vector */
    cyconv_sum_f32 *outer_f32, *along_f32, *spread_f32;
    cyconv_sum_f64 *outer_f64, *along_f64, *spread_f64;
    void (*transpose_f32)(ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row,
                          float *dst, ptrdiff_t dst_row);
    void (*transpose_f64)(ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row,
                          double *dst, ptrdiff_t dst_row);
    void (*collect_f32)(ptrdiff_t rows, int nv, const float *src, ptrdiff_t src_row, float *dst);
    void (*collect_f64)(ptrdiff_t rows, int nv, const double *src, ptrdiff_t src_row, double *dst);
    const cyconv_winograd *winograd;
} cyconv_ukernels;

enum { CYCONV_MOST_ROWS = 16, CYCONV_MOST_LANES = 32 };    /* bounds on mr and 2*vl of any table */

/* The table of an instruction set by name, NULL if it is unknown here or the processor lacks it. */
const cyconv_ukernels *cyconv_ukernels_named(const char *name);
/* The i-th table that the processor can run, best first; NULL beyond the last. */
const cyconv_ukernels *cyconv_ukernels_at(int i);
#endif
