"""The microkernels for Cython: the table in use. `_ukernels` is the sole owner of the C."""

from cython cimport floating


cdef extern from "ukernel/ukernel.h" nogil:
    ctypedef struct cyconv_winograd:
        pass
    ctypedef void cyconv_sum_f32(
        int m, int nv, ptrdiff_t depth, const float *const *rows, const ptrdiff_t *offset,
        const float *b, const float *start, float *c, ptrdiff_t c_row) noexcept nogil
    ctypedef void cyconv_sum_f64(
        int m, int nv, ptrdiff_t depth, const double *const *rows, const ptrdiff_t *offset,
        const double *b, const double *start, double *c, ptrdiff_t c_row) noexcept nogil
    ctypedef struct cyconv_ukernels:
        const char *isa
        int mr, vl_f32, vl_f64
        cyconv_sum_f32 *outer_f32
        cyconv_sum_f32 *along_f32
        cyconv_sum_f32 *spread_f32
        cyconv_sum_f64 *outer_f64
        cyconv_sum_f64 *along_f64
        cyconv_sum_f64 *spread_f64
        void (*transpose_f32)(
            ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row, float *dst,
            ptrdiff_t dst_row) noexcept nogil
        void (*transpose_f64)(
            ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row, double *dst,
            ptrdiff_t dst_row) noexcept nogil
        void (*collect_f32)(
            ptrdiff_t rows, int nv, const float *src, ptrdiff_t src_row, float *dst) noexcept nogil
        void (*collect_f64)(
            ptrdiff_t rows, int nv, const double *src, ptrdiff_t src_row, double *dst
        ) noexcept nogil
        const cyconv_winograd *winograd

    enum:
        CYCONV_MOST_ROWS
        CYCONV_MOST_LANES


cdef const cyconv_ukernels *active() noexcept


cdef inline void outer(
    const cyconv_ukernels *uk, ptrdiff_t m, int nv, ptrdiff_t depth, const floating **rows,
    const ptrdiff_t *offset, const floating *b, const floating *start, floating *c, ptrdiff_t c_row
) noexcept nogil:
    if floating is float:
        uk.outer_f32(<int> m, nv, depth, rows, offset, b, start, c, c_row)
    else:
        uk.outer_f64(<int> m, nv, depth, rows, offset, b, start, c, c_row)


cdef inline void along(
    const cyconv_ukernels *uk, ptrdiff_t m, int nv, ptrdiff_t depth, const floating **rows,
    const ptrdiff_t *offset, const floating *b, const floating *start, floating *c, ptrdiff_t c_row
) noexcept nogil:
    if floating is float:
        uk.along_f32(<int> m, nv, depth, rows, offset, b, start, c, c_row)
    else:
        uk.along_f64(<int> m, nv, depth, rows, offset, b, start, c, c_row)


cdef inline void spread(
    const cyconv_ukernels *uk, ptrdiff_t m, int nv, ptrdiff_t depth, const floating **rows,
    const ptrdiff_t *offset, const floating *b, const floating *start, floating *c, ptrdiff_t c_row
) noexcept nogil:
    if floating is float:
        uk.spread_f32(<int> m, nv, depth, rows, offset, b, start, c, c_row)
    else:
        uk.spread_f64(<int> m, nv, depth, rows, offset, b, start, c, c_row)


cdef inline void transpose(
    const cyconv_ukernels *uk, ptrdiff_t rows, ptrdiff_t cols, const floating *src,
    ptrdiff_t src_row, floating *dst, ptrdiff_t dst_row
) noexcept nogil:
    if floating is float:
        uk.transpose_f32(rows, cols, src, src_row, dst, dst_row)
    else:
        uk.transpose_f64(rows, cols, src, src_row, dst, dst_row)


cdef inline void collect(
    const cyconv_ukernels *uk, ptrdiff_t rows, int nv, const floating *src, ptrdiff_t src_row,
    floating *dst
) noexcept nogil:
    if floating is float:
        uk.collect_f32(rows, nv, src, src_row, dst)
    else:
        uk.collect_f64(rows, nv, src, src_row, dst)
