/* Microkernels: the contract. One table per instruction set; dispatch.c picks one.
 *
 * A "panel" is a matrix whose rows are nv vectors of `vl` lanes, rows following each other.
 *
 * outer: c = start + A B, or c += A B where start is NULL
 *
 *     c[i*c_row + j]  gets  sum over k < depth of  rows[i][offset[k]] * b[k*nv*vl + j]
 *
 *   for i < m and j < nv*vl, with 1 <= m <= mr and nv 1 or 2. `start` holds nv*vl values, one per
 *   lane, from which every row begins. A is read through one pointer per row and one offset per k
 *   (in elements), which is how a patch of an image is read without being copied. The sum runs
 *   over k in order, one accumulator per element, whatever m is: a result does not depend on how
 *   rows were divided among calls. depth may be 0. c overlaps nothing; no pointer need be aligned.
 *
 * transpose: dst[j*dst_row + i] = src[i*src_row + j]  for i < rows, j < cols. No overlap.
 */
#ifndef CYCONV_UKERNEL_H
#define CYCONV_UKERNEL_H
#include <stddef.h>

typedef struct {
    const char *isa;
    int mr;                     /* rows of a full tile */
    int vl_f32, vl_f64;         /* lanes of a vector */
    void (*outer_f32)(int m, int nv, ptrdiff_t depth, const float *const *rows,
                      const ptrdiff_t *offset, const float *b, const float *start, float *c,
                      ptrdiff_t c_row);
    void (*outer_f64)(int m, int nv, ptrdiff_t depth, const double *const *rows,
                      const ptrdiff_t *offset, const double *b, const double *start, double *c,
                      ptrdiff_t c_row);
    void (*transpose_f32)(ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row,
                          float *dst, ptrdiff_t dst_row);
    void (*transpose_f64)(ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row,
                          double *dst, ptrdiff_t dst_row);
} cyconv_ukernels;

enum { CYCONV_MOST_ROWS = 16, CYCONV_MOST_LANES = 32 };    /* bounds on mr and 2*vl of any table */

/* The table of an instruction set by name, NULL if it is unknown here or the processor lacks it. */
const cyconv_ukernels *cyconv_ukernels_named(const char *name);
/* The i-th table that the processor can run, best first; NULL beyond the last. */
const cyconv_ukernels *cyconv_ukernels_at(int i);
#endif
