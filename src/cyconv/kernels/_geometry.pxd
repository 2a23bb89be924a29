"""The geometry of a convolution as kernels see it: three spatial axes and element strides."""


cdef struct geometry_t:
    ptrdiff_t batch, groups
    ptrdiff_t ci, co                        # channels in a group
    ptrdiff_t size[3]                       # of x
    ptrdiff_t out[3]                        # of y
    ptrdiff_t kernel[3]
    ptrdiff_t stride[3]
    ptrdiff_t pad[3]                        # zeros before x; those behind follow from out
    ptrdiff_t dilation[3]
    # Strides in elements: batch (w: output channel), channel, spatial axes.
    ptrdiff_t x_n, x_c
    ptrdiff_t x_s[3]
    ptrdiff_t w_o, w_c
    ptrdiff_t w_s[3]
    ptrdiff_t y_n, y_c
    ptrdiff_t y_s[3]


cdef class Geometry:
    cdef geometry_t c
    cdef readonly bint double_precision
    cdef readonly bint by_image             # results must not depend on the batch
    cdef readonly bint prepared             # weights are packed ahead
