"""The microkernels for Cython: the table in use. `_ukernels` is the sole owner of the C."""


cdef extern from "ukernel/ukernel.h" nogil:
    ctypedef struct cyconv_ukernels:
        const char *isa
        int mr, vl_f32, vl_f64
        void (*outer_f32)(
            int m, int nv, ptrdiff_t depth, const float *const *rows, const ptrdiff_t *offset,
            const float *b, const float *start, float *c, ptrdiff_t c_row) noexcept nogil
        void (*outer_f64)(
            int m, int nv, ptrdiff_t depth, const double *const *rows, const ptrdiff_t *offset,
            const double *b, const double *start, double *c, ptrdiff_t c_row) noexcept nogil
        void (*transpose_f32)(
            ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row, float *dst,
            ptrdiff_t dst_row) noexcept nogil
        void (*transpose_f64)(
            ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row, double *dst,
            ptrdiff_t dst_row) noexcept nogil

    enum:
        CYCONV_MOST_ROWS
        CYCONV_MOST_LANES


cdef const cyconv_ukernels *active() noexcept
