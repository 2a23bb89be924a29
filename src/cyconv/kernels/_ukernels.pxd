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
        int mr, strip, vl_f32, vl_f64
        cyconv_sum_f32 *outer_f32
        cyconv_sum_f32 *along_f32
        cyconv_sum_f32 *spread_f32
        cyconv_sum_f32 *across_f32
        cyconv_sum_f64 *outer_f64
        cyconv_sum_f64 *along_f64
        cyconv_sum_f64 *spread_f64
        cyconv_sum_f64 *across_f64
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
        void (*dots_f32)(
            int m, int n, ptrdiff_t depth, const float *const *a, const float *const *b, float *c
        ) noexcept nogil
        void (*move_f32)(
            ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row,
            ptrdiff_t src_step, float *dst, ptrdiff_t dst_row, ptrdiff_t dst_step) noexcept nogil
        void (*zip_f32)(
            ptrdiff_t rows, ptrdiff_t cols, const float *even, const float *odd, ptrdiff_t src_row,
            float *dst, ptrdiff_t dst_row) noexcept nogil
        void (*unzip_f32)(
            ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row, float *even,
            float *odd, ptrdiff_t dst_row) noexcept nogil
        void (*slide_f32)(
            int taps, int step, int pixels, ptrdiff_t depth, const float *x, const ptrdiff_t *row,
            ptrdiff_t pixel, const float *filter, const ptrdiff_t *filter_row, ptrdiff_t lo,
            ptrdiff_t hi, const float *start, float *y, ptrdiff_t y_pixel) noexcept nogil
        void (*slide_gradient_f32)(
            int height, int taps, int step, ptrdiff_t pixels, const float *x, const ptrdiff_t *row,
            ptrdiff_t pixel, const float *dy, ptrdiff_t dy_pixel, ptrdiff_t lo, ptrdiff_t hi,
            float *dw, const ptrdiff_t *filter_row) noexcept nogil
        void (*dots_f64)(
            int m, int n, ptrdiff_t depth, const double *const *a, const double *const *b, double *c
        ) noexcept nogil
        void (*move_f64)(
            ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row,
            ptrdiff_t src_step, double *dst, ptrdiff_t dst_row, ptrdiff_t dst_step) noexcept nogil
        void (*zip_f64)(
            ptrdiff_t rows, ptrdiff_t cols, const double *even, const double *odd,
            ptrdiff_t src_row, double *dst, ptrdiff_t dst_row) noexcept nogil
        void (*unzip_f64)(
            ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row, double *even,
            double *odd, ptrdiff_t dst_row) noexcept nogil
        void (*slide_f64)(
            int taps, int step, int pixels, ptrdiff_t depth, const double *x, const ptrdiff_t *row,
            ptrdiff_t pixel, const double *filter, const ptrdiff_t *filter_row, ptrdiff_t lo,
            ptrdiff_t hi, const double *start, double *y, ptrdiff_t y_pixel) noexcept nogil
        void (*slide_gradient_f64)(
            int height, int taps, int step, ptrdiff_t pixels, const double *x, const ptrdiff_t *row,
            ptrdiff_t pixel, const double *dy, ptrdiff_t dy_pixel, ptrdiff_t lo, ptrdiff_t hi,
            double *dw, const ptrdiff_t *filter_row) noexcept nogil
        void (*finish_f32)(
            int activation, float alpha, ptrdiff_t rows, ptrdiff_t cols, float *y, ptrdiff_t row,
            ptrdiff_t step, const float *residual) noexcept nogil
        void (*finish_f64)(
            int activation, double alpha, ptrdiff_t rows, ptrdiff_t cols, double *y,
            ptrdiff_t row, ptrdiff_t step, const double *residual) noexcept nogil
        const cyconv_winograd *winograd

    int cyconv_slides(ptrdiff_t taps, ptrdiff_t step)
    int cyconv_slide_height(ptrdiff_t taps, ptrdiff_t step)

    enum:
        CYCONV_MOST_ROWS
        CYCONV_MOST_LANES
        CYCONV_DOTS

    enum:
        CYCONV_IDENTITY
        CYCONV_RELU
        CYCONV_RELU6
        CYCONV_LEAKY_RELU
        CYCONV_HARDSIGMOID
        CYCONV_HARDSWISH
        CYCONV_SIGMOID
        CYCONV_SILU
        CYCONV_TANH
        CYCONV_GELU


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


cdef inline void across(
    const cyconv_ukernels *uk, ptrdiff_t m, int nv, ptrdiff_t depth, const floating **rows,
    const ptrdiff_t *offset, const floating *b, const floating *start, floating *c, ptrdiff_t c_row
) noexcept nogil:
    if floating is float:
        uk.across_f32(<int> m, nv, depth, rows, offset, b, start, c, c_row)
    else:
        uk.across_f64(<int> m, nv, depth, rows, offset, b, start, c, c_row)


cdef inline void dots(
    const cyconv_ukernels *uk, ptrdiff_t m, ptrdiff_t n, ptrdiff_t depth, const floating **a,
    const floating **b, floating *c
) noexcept nogil:
    if floating is float:
        uk.dots_f32(<int> m, <int> n, depth, a, b, c)
    else:
        uk.dots_f64(<int> m, <int> n, depth, a, b, c)


cdef inline void move(
    const cyconv_ukernels *uk, ptrdiff_t rows, ptrdiff_t cols, const floating *src,
    ptrdiff_t src_row, ptrdiff_t src_step, floating *dst, ptrdiff_t dst_row, ptrdiff_t dst_step
) noexcept nogil:
    if floating is float:
        uk.move_f32(rows, cols, src, src_row, src_step, dst, dst_row, dst_step)
    else:
        uk.move_f64(rows, cols, src, src_row, src_step, dst, dst_row, dst_step)


cdef inline void zip_rows(
    const cyconv_ukernels *uk, ptrdiff_t rows, ptrdiff_t cols, const floating *even,
    const floating *odd, ptrdiff_t src_row, floating *dst, ptrdiff_t dst_row
) noexcept nogil:
    if floating is float:
        uk.zip_f32(rows, cols, even, odd, src_row, dst, dst_row)
    else:
        uk.zip_f64(rows, cols, even, odd, src_row, dst, dst_row)


cdef inline void unzip_rows(
    const cyconv_ukernels *uk, ptrdiff_t rows, ptrdiff_t cols, const floating *src,
    ptrdiff_t src_row, floating *even, floating *odd, ptrdiff_t dst_row
) noexcept nogil:
    if floating is float:
        uk.unzip_f32(rows, cols, src, src_row, even, odd, dst_row)
    else:
        uk.unzip_f64(rows, cols, src, src_row, even, odd, dst_row)


cdef inline void slide(
    const cyconv_ukernels *uk, ptrdiff_t taps, ptrdiff_t step, ptrdiff_t pixels, ptrdiff_t depth,
    const floating *x, const ptrdiff_t *row, ptrdiff_t pixel, const floating *filter,
    const ptrdiff_t *filter_row, ptrdiff_t lo, ptrdiff_t hi, const floating *start, floating *y,
    ptrdiff_t y_pixel
) noexcept nogil:
    if floating is float:
        uk.slide_f32(
            <int> taps, <int> step, <int> pixels, depth, x, row, pixel, filter, filter_row, lo, hi,
            start, y, y_pixel)
    else:
        uk.slide_f64(
            <int> taps, <int> step, <int> pixels, depth, x, row, pixel, filter, filter_row, lo, hi,
            start, y, y_pixel)


cdef inline void slide_gradient(
    const cyconv_ukernels *uk, ptrdiff_t height, ptrdiff_t taps, ptrdiff_t step, ptrdiff_t pixels,
    const floating *x, const ptrdiff_t *row, ptrdiff_t pixel, const floating *dy,
    ptrdiff_t dy_pixel, ptrdiff_t lo, ptrdiff_t hi, floating *dw, const ptrdiff_t *filter_row
) noexcept nogil:
    if floating is float:
        uk.slide_gradient_f32(
            <int> height, <int> taps, <int> step, pixels, x, row, pixel, dy, dy_pixel, lo, hi, dw,
            filter_row)
    else:
        uk.slide_gradient_f64(
            <int> height, <int> taps, <int> step, pixels, x, row, pixel, dy, dy_pixel, lo, hi, dw,
            filter_row)
