"""Winograd's microkernels for Cython, by type. Their contract is in ukernel/winograd.h."""

from cython cimport floating

from ._ukernels cimport cyconv_ukernels


cdef extern from "ukernel/winograd.h" nogil:
    ctypedef struct cyconv_winograd_f32:
        void (*input)(
            int form, ptrdiff_t channels, const float *const *pixel, float *v, ptrdiff_t point,
            float *check) noexcept nogil
        void (*output)(
            int form, int vectors, const float *m, ptrdiff_t point, const float *bias,
            float *const *pixel, float *check) noexcept nogil
        void (*weights)(
            int form, int vectors, ptrdiff_t depth, const float *w, ptrdiff_t w_k, ptrdiff_t w_row,
            ptrdiff_t w_col, float *u, ptrdiff_t point, float *check) noexcept nogil
        void (*spread)(
            int form, ptrdiff_t channels, const float *const *pixel, float *z, ptrdiff_t point,
            float *check) noexcept nogil
        void (*gradient)(
            int form, int vectors, const float *s, ptrdiff_t point, float *taps,
            ptrdiff_t taps_row, float *check) noexcept nogil
        void (*along)(
            int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, const float *a,
            ptrdiff_t a_row, ptrdiff_t a_point, const float *b, ptrdiff_t b_panel,
            ptrdiff_t b_point, float *c, ptrdiff_t c_row, ptrdiff_t c_point, int add
        ) noexcept nogil
        void (*across)(
            int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, const float *a,
            ptrdiff_t a_row, ptrdiff_t a_point, const float *b, ptrdiff_t b_row,
            ptrdiff_t b_point, float *c, ptrdiff_t c_row, ptrdiff_t c_point, int add
        ) noexcept nogil
        void (*turn)(
            ptrdiff_t rows, ptrdiff_t cols, const float *src, ptrdiff_t src_row, float *dst,
            ptrdiff_t dst_row) noexcept nogil
    ctypedef struct cyconv_winograd_f64:
        void (*input)(
            int form, ptrdiff_t channels, const double *const *pixel, double *v, ptrdiff_t point,
            double *check) noexcept nogil
        void (*output)(
            int form, int vectors, const double *m, ptrdiff_t point, const double *bias,
            double *const *pixel, double *check) noexcept nogil
        void (*weights)(
            int form, int vectors, ptrdiff_t depth, const double *w, ptrdiff_t w_k,
            ptrdiff_t w_row, ptrdiff_t w_col, double *u, ptrdiff_t point, double *check
        ) noexcept nogil
        void (*spread)(
            int form, ptrdiff_t channels, const double *const *pixel, double *z, ptrdiff_t point,
            double *check) noexcept nogil
        void (*gradient)(
            int form, int vectors, const double *s, ptrdiff_t point, double *taps,
            ptrdiff_t taps_row, double *check) noexcept nogil
        void (*along)(
            int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, const double *a,
            ptrdiff_t a_row, ptrdiff_t a_point, const double *b, ptrdiff_t b_panel,
            ptrdiff_t b_point, double *c, ptrdiff_t c_row, ptrdiff_t c_point, int add
        ) noexcept nogil
        void (*across)(
            int points, ptrdiff_t rows, int vectors, ptrdiff_t depth, const double *a,
            ptrdiff_t a_row, ptrdiff_t a_point, const double *b, ptrdiff_t b_row,
            ptrdiff_t b_point, double *c, ptrdiff_t c_row, ptrdiff_t c_point, int add
        ) noexcept nogil
        void (*turn)(
            ptrdiff_t rows, ptrdiff_t cols, const double *src, ptrdiff_t src_row, double *dst,
            ptrdiff_t dst_row) noexcept nogil
    ctypedef struct cyconv_winograd:
        cyconv_winograd_f32 f32
        cyconv_winograd_f64 f64

    enum:
        CYCONV_MOST_POINTS


cdef inline const cyconv_winograd *_table(const cyconv_ukernels *uk) noexcept nogil:
    return <const cyconv_winograd *> uk.winograd


cdef inline void transform_input(
    const cyconv_ukernels *uk, int form, ptrdiff_t channels, const floating **pixel, floating *v,
    ptrdiff_t point, floating *check
) noexcept nogil:
    if floating is float:
        _table(uk).f32.input(form, channels, pixel, v, point, check)
    else:
        _table(uk).f64.input(form, channels, pixel, v, point, check)


cdef inline void transform_output(
    const cyconv_ukernels *uk, int form, int vectors, const floating *m, ptrdiff_t point,
    const floating *bias, floating **pixel, floating *check
) noexcept nogil:
    if floating is float:
        _table(uk).f32.output(form, vectors, m, point, bias, pixel, check)
    else:
        _table(uk).f64.output(form, vectors, m, point, bias, pixel, check)


cdef inline void transform_weights(
    const cyconv_ukernels *uk, int form, int vectors, ptrdiff_t depth, const floating *w,
    ptrdiff_t w_k, ptrdiff_t w_row, ptrdiff_t w_col, floating *u, ptrdiff_t point, floating *check
) noexcept nogil:
    if floating is float:
        _table(uk).f32.weights(form, vectors, depth, w, w_k, w_row, w_col, u, point, check)
    else:
        _table(uk).f64.weights(form, vectors, depth, w, w_k, w_row, w_col, u, point, check)


cdef inline void transform_spread(
    const cyconv_ukernels *uk, int form, ptrdiff_t channels, const floating **pixel, floating *z,
    ptrdiff_t point, floating *check
) noexcept nogil:
    if floating is float:
        _table(uk).f32.spread(form, channels, pixel, z, point, check)
    else:
        _table(uk).f64.spread(form, channels, pixel, z, point, check)


cdef inline void transform_gradient(
    const cyconv_ukernels *uk, int form, int vectors, const floating *s, ptrdiff_t point,
    floating *taps, ptrdiff_t taps_row, floating *check
) noexcept nogil:
    if floating is float:
        _table(uk).f32.gradient(form, vectors, s, point, taps, taps_row, check)
    else:
        _table(uk).f64.gradient(form, vectors, s, point, taps, taps_row, check)


cdef inline void products_along(
    const cyconv_ukernels *uk, int points, ptrdiff_t rows, int vectors, ptrdiff_t depth,
    const floating *a, ptrdiff_t a_row, ptrdiff_t a_point, const floating *b, ptrdiff_t b_panel,
    ptrdiff_t b_point, floating *c, ptrdiff_t c_row, ptrdiff_t c_point, bint add
) noexcept nogil:
    if floating is float:
        _table(uk).f32.along(
            points, rows, vectors, depth, a, a_row, a_point, b, b_panel, b_point, c, c_row,
            c_point, add)
    else:
        _table(uk).f64.along(
            points, rows, vectors, depth, a, a_row, a_point, b, b_panel, b_point, c, c_row,
            c_point, add)


cdef inline void products_across(
    const cyconv_ukernels *uk, int points, ptrdiff_t rows, int vectors, ptrdiff_t depth,
    const floating *a, ptrdiff_t a_row, ptrdiff_t a_point, const floating *b, ptrdiff_t b_row,
    ptrdiff_t b_point, floating *c, ptrdiff_t c_row, ptrdiff_t c_point, bint add
) noexcept nogil:
    if floating is float:
        _table(uk).f32.across(
            points, rows, vectors, depth, a, a_row, a_point, b, b_row, b_point, c, c_row, c_point,
            add)
    else:
        _table(uk).f64.across(
            points, rows, vectors, depth, a, a_row, a_point, b, b_row, b_point, c, c_row, c_point,
            add)


cdef inline void turn(
    const cyconv_ukernels *uk, ptrdiff_t rows, ptrdiff_t cols, const floating *src,
    ptrdiff_t src_row, floating *dst, ptrdiff_t dst_row
) noexcept nogil:
    if floating is float:
        _table(uk).f32.turn(rows, cols, src, src_row, dst, dst_row)
    else:
        _table(uk).f64.turn(rows, cols, src, src_row, dst, dst_row)
