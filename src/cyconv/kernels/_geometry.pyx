"""The only crossing from a problem to C: sizes and strides in one struct, reduced to what matters.

Axes are stored as three, with leading ones where there are fewer. Axes on which nothing happens are
then removed, so that a kernel's innermost loop is the longest that the arrays allow:

- an axis of size 1 under a kernel of size 1 goes to the front;
- neighbouring axes with kernel 1, stride 1 and no padding become one where the strides of x and y
  permit it. The batch takes part, so that a pointwise convolution of NHWC arrays has one axis.
"""


cdef class Geometry:
    """Sizes and element strides of the three operands.

    Parameters
    ----------
    problem : ConvProblem
    x_strides, w_strides, y_strides : tuple of int
        In elements, ordered (batch or output channel, channel, spatial axes), whatever the layout.
    merge_batch : bool
        Whether the batch may become part of a spatial axis. If not, `by_image` says that a result
        must not depend on it.
    prepared : bool
        Whether weights are packed ahead of the calls, so that packing them costs nothing.
    """

    def __init__(
        self, problem, x_strides, w_strides, y_strides, bint merge_batch=True,
        bint prepared=False
    ):
        cdef geometry_t *g = &self.c
        cdef int ndim = len(problem.in_size)
        cdef int lead = 3 - ndim
        cdef int i, a
        self.double_precision = problem.compute_dtype.itemsize == 8
        self.by_image = not merge_batch
        self.prepared = prepared
        g.batch = problem.batch
        g.groups = problem.groups
        g.ci = problem.c_in // problem.groups
        g.co = problem.c_out // problem.groups
        g.x_n, g.x_c = x_strides[0], x_strides[1]
        g.w_o, g.w_c = w_strides[0], w_strides[1]
        g.y_n, g.y_c = y_strides[0], y_strides[1]
        for i in range(lead):
            _clear_axis(g, i)
        for i in range(ndim):
            a = lead + i
            g.size[a] = problem.in_size[i]
            g.out[a] = problem.out_size[i]
            g.kernel[a] = problem.kernel[i]
            g.stride[a] = problem.stride[i]
            g.pad[a] = problem.padding[i][0]
            g.dilation[a] = problem.dilation[i]
            g.x_s[a] = x_strides[2 + i]
            g.w_s[a] = w_strides[2 + i]
            g.y_s[a] = y_strides[2 + i]
        _drop_trivial_axes(g)
        _merge_pointwise_axes(g)
        if merge_batch:
            _merge_batch(g)


cdef void _clear_axis(geometry_t *g, int a) noexcept:
    g.size[a] = g.out[a] = g.kernel[a] = g.stride[a] = g.dilation[a] = 1
    g.pad[a] = 0
    g.x_s[a] = g.w_s[a] = g.y_s[a] = 0


cdef void _copy_axis(geometry_t *g, int a, int b) noexcept:
    g.size[b] = g.size[a]
    g.out[b] = g.out[a]
    g.kernel[b] = g.kernel[a]
    g.stride[b] = g.stride[a]
    g.pad[b] = g.pad[a]
    g.dilation[b] = g.dilation[a]
    g.x_s[b] = g.x_s[a]
    g.w_s[b] = g.w_s[a]
    g.y_s[b] = g.y_s[a]


cdef bint _pointwise(const geometry_t *g, int a) noexcept:
    return g.kernel[a] == 1 and g.stride[a] == 1 and g.pad[a] == 0 and g.out[a] == g.size[a]


cdef void _drop_trivial_axes(geometry_t *g) noexcept:
    cdef int a, kept = 3
    for a in range(2, -1, -1):
        if not (g.size[a] == 1 and g.out[a] == 1 and g.kernel[a] == 1 and g.pad[a] == 0):
            kept -= 1
            if kept != a:
                _copy_axis(g, a, kept)
    for a in range(kept):
        _clear_axis(g, a)


cdef void _merge_pointwise_axes(geometry_t *g) noexcept:
    cdef int a
    for a in range(2):
        if (
            _pointwise(g, a) and _pointwise(g, a + 1)
            and g.x_s[a] == g.x_s[a + 1] * g.size[a + 1]
            and g.y_s[a] == g.y_s[a + 1] * g.out[a + 1]
        ):
            g.size[a + 1] *= g.size[a]
            g.out[a + 1] *= g.out[a]
            _clear_axis(g, a)
    _drop_trivial_axes(g)


cdef void _merge_batch(geometry_t *g) noexcept:
    if not (
        g.size[0] == 1 and g.size[1] == 1 and _pointwise(g, 0) and _pointwise(g, 1)
        and _pointwise(g, 2)
    ):
        return
    if g.size[2] == 1:      # images of one pixel: the batch is the axis
        g.x_s[2] = g.x_n
        g.y_s[2] = g.y_n
    elif not (g.x_n == g.x_s[2] * g.size[2] and g.y_n == g.y_s[2] * g.out[2]):
        return
    g.size[2] *= g.batch
    g.out[2] *= g.batch
    g.batch = 1
