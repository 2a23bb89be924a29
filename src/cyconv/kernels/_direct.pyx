"""Direct convolution: the definition as loops, summed in float64, for any strides.

    forward          y[n,o,p]  = sum_{c,r} x[n,c, p*stride + r*dilation - pad] w[o,c,r]
    data backward    dx[n,c,i] = sum_{o,r : i = p*stride + r*dilation - pad} dy[n,o,p] w[o,c,r]
    weight backward  dw[o,c,r] = sum_{n,p} dy[n,o,p] x[n,c, p*stride + r*dilation - pad]

Every result element belongs to one thread and is summed in a fixed order, so results are bitwise
equal for any number of threads. Eight neighbours along the last axis (lanes) are summed together:
they share the weight, and eight independent sums keep the adders busy. Taps are the outer loop and
channels the inner one, so that bounds are checked once a tap.

Edges: a forward or weight-backward tap in the padding multiplies a zero, and that product is added
(it is NaN for a non-finite factor). Data backward adds only the pairs (output, tap) that exist.

No scratch memory; the GIL is released; results must not overlap operands.
"""

from cython cimport floating
from cython.parallel cimport prange

from ._geometry cimport geometry_t
from ._patches cimport valid_range
from ._run cimport Run, run_t

cdef enum:
    LANES = 8


cdef inline void _add_products(
    double *acc, const floating *a, ptrdiff_t a_c, ptrdiff_t a_lane,
    const floating *w, ptrdiff_t w_c, ptrdiff_t channels, ptrdiff_t lo, ptrdiff_t hi
) noexcept nogil:
    """acc[j] += sum_c a[c*a_c + j*a_lane] w[c*w_c] for lo <= j < hi."""
    cdef double s[LANES]
    cdef double wc
    cdef ptrdiff_t c, j
    if hi - lo < LANES:
        for c in range(channels):
            wc = w[c * w_c]
            for j in range(lo, hi):
                acc[j] += a[c * a_c + j * a_lane] * wc
        return
    # Constant bounds keep the eight sums in registers.
    for j in range(LANES):
        s[j] = acc[j]
    if a_lane == 1:
        for c in range(channels):
            wc = w[c * w_c]
            for j in range(LANES):
                s[j] += a[c * a_c + j] * wc
    else:
        for c in range(channels):
            wc = w[c * w_c]
            for j in range(LANES):
                s[j] += a[c * a_c + j * a_lane] * wc
    for j in range(LANES):
        acc[j] = s[j]


cdef void _forward_row(
    const geometry_t *g, const floating *x, const floating *w, double bias, floating *y,
    ptrdiff_t od, ptrdiff_t oh
) noexcept nogil:
    """One row of y: x at its image and group, w at its filter, y at its row."""
    cdef double acc[LANES]
    cdef double zero
    cdef ptrdiff_t ow, lanes, j, c, kd, kh, kw, id_, ih, iw, lo, hi
    cdef const floating *tap
    cdef bint inside
    ow = 0
    while ow < g.out[2]:
        lanes = min(<ptrdiff_t> LANES, g.out[2] - ow)
        for j in range(LANES):
            acc[j] = 0
        for kd in range(g.kernel[0]):
            id_ = od * g.stride[0] + kd * g.dilation[0] - g.pad[0]
            for kh in range(g.kernel[1]):
                ih = oh * g.stride[1] + kh * g.dilation[1] - g.pad[1]
                inside = 0 <= id_ < g.size[0] and 0 <= ih < g.size[1]
                for kw in range(g.kernel[2]):
                    iw = ow * g.stride[2] + kw * g.dilation[2] - g.pad[2]
                    tap = w + kd * g.w_s[0] + kh * g.w_s[1] + kw * g.w_s[2]
                    lo = hi = 0
                    if inside:
                        valid_range(iw, g.stride[2], g.size[2], lanes, &lo, &hi)
                        if lo < hi:
                            _add_products(
                                acc, x + id_ * g.x_s[0] + ih * g.x_s[1] + iw * g.x_s[2],
                                g.x_c, g.stride[2] * g.x_s[2], tap, g.w_c, g.ci, lo, hi)
                    if hi - lo < lanes:
                        zero = 0
                        for c in range(g.ci):
                            zero += <double> tap[c * g.w_c] * 0.0
                        for j in range(lo):
                            acc[j] += zero
                        for j in range(hi, lanes):
                            acc[j] += zero
        for j in range(lanes):
            y[(ow + j) * g.y_s[2]] = <floating> (acc[j] + bias)
        ow = ow + LANES


cdef void _forward(
    const geometry_t *g, const floating *x, const floating *w, const floating *bias, floating *y,
    int threads
) noexcept nogil:
    cdef ptrdiff_t rows = g.out[0] * g.out[1], channels = g.groups * g.co
    cdef ptrdiff_t t, n, o, od, oh
    for t in prange(g.batch * channels * rows, num_threads=threads, schedule='static'):
        n = t // (channels * rows)
        o = t // rows % channels
        od = t % rows // g.out[1]
        oh = t % g.out[1]
        _forward_row(
            g, x + n * g.x_n + o // g.co * g.ci * g.x_c, w + o * g.w_o,
            <double> bias[o] if bias != NULL else 0.0,
            y + n * g.y_n + o * g.y_c + od * g.y_s[0] + oh * g.y_s[1], od, oh)


cdef inline bint _tap_source(
    ptrdiff_t i, ptrdiff_t tap, ptrdiff_t stride, ptrdiff_t *out_index
) noexcept nogil:
    """Whether a tap at distance `tap` reaches position i (padding included), and from where."""
    cdef ptrdiff_t distance = i - tap
    out_index[0] = distance // stride if distance >= 0 else -((-distance) // stride)
    return out_index[0] * stride == distance


cdef void _data_row(
    const geometry_t *g, const floating *dy, const floating *w, double bias, floating *dx,
    ptrdiff_t id_, ptrdiff_t ih
) noexcept nogil:
    """One row of dx. Lanes are `stride` apart: such positions are reached by the same taps, from
    neighbouring outputs."""
    cdef double acc[LANES]
    cdef ptrdiff_t phase, block, iw, lanes, j, kd, kh, kw, od, oh, ow, lo, hi
    cdef ptrdiff_t step = g.stride[2]
    for phase in range(min(step, g.size[2])):
        block = phase
        while block < g.size[2]:
            lanes = min(<ptrdiff_t> LANES, (g.size[2] - 1 - block) // step + 1)
            for j in range(LANES):
                acc[j] = 0
            for kd in range(g.kernel[0]):
                if not _tap_source(id_ + g.pad[0], kd * g.dilation[0], g.stride[0], &od):
                    continue
                if not 0 <= od < g.out[0]:
                    continue
                for kh in range(g.kernel[1]):
                    if not _tap_source(ih + g.pad[1], kh * g.dilation[1], g.stride[1], &oh):
                        continue
                    if not 0 <= oh < g.out[1]:
                        continue
                    for kw in range(g.kernel[2]):
                        if not _tap_source(block + g.pad[2], kw * g.dilation[2], step, &ow):
                            continue
                        valid_range(ow, 1, g.out[2], lanes, &lo, &hi)
                        if lo < hi:
                            _add_products(
                                acc, dy + od * g.y_s[0] + oh * g.y_s[1] + ow * g.y_s[2],
                                g.y_c, g.y_s[2],
                                w + kd * g.w_s[0] + kh * g.w_s[1] + kw * g.w_s[2],
                                g.w_o, g.co, lo, hi)
            for j in range(lanes):
                iw = block + j * step
                dx[iw * g.x_s[2]] = <floating> (acc[j] + bias)
            block = block + LANES * step


cdef void _data_backward(
    const geometry_t *g, const floating *dy, const floating *w, const floating *bias, floating *dx,
    int threads
) noexcept nogil:
    cdef ptrdiff_t rows = g.size[0] * g.size[1], channels = g.groups * g.ci
    cdef ptrdiff_t t, n, c, group, id_, ih
    for t in prange(g.batch * channels * rows, num_threads=threads, schedule='static'):
        n = t // (channels * rows)
        c = t // rows % channels
        id_ = t % rows // g.size[1]
        ih = t % g.size[1]
        group = c // g.ci
        _data_row(
            g, dy + n * g.y_n + group * g.co * g.y_c,
            w + group * g.co * g.w_o + c % g.ci * g.w_c,
            <double> bias[c] if bias != NULL else 0.0,
            dx + n * g.x_n + c * g.x_c + id_ * g.x_s[0] + ih * g.x_s[1], id_, ih)


cdef void _add_row_products(
    double *acc, const geometry_t *g, const floating *x, const floating *dy, ptrdiff_t iw
) noexcept nogil:
    """acc[j] += sum over a row of dy of dy times the x under one tap, which starts at column iw."""
    cdef ptrdiff_t x_step = g.stride[2] * g.x_s[2], y_step = g.y_s[2]
    cdef ptrdiff_t ow, j, lo, hi
    valid_range(iw, g.stride[2], g.size[2], g.out[2], &lo, &hi)
    for ow in range(lo):
        acc[0] += dy[ow * y_step] * <double> 0.0
    ow = lo
    if x_step == 1 and y_step == 1:
        while ow + LANES <= hi:
            for j in range(LANES):
                acc[j] += <double> dy[ow + j] * x[iw * g.x_s[2] + ow + j]
            ow = ow + LANES
    else:
        while ow + LANES <= hi:
            for j in range(LANES):
                acc[j] += <double> dy[(ow + j) * y_step] * x[iw * g.x_s[2] + (ow + j) * x_step]
            ow = ow + LANES
    while ow < hi:
        acc[ow % LANES] += <double> dy[ow * y_step] * x[iw * g.x_s[2] + ow * x_step]
        ow = ow + 1
    for ow in range(hi, g.out[2]):
        acc[0] += dy[ow * y_step] * <double> 0.0


cdef double _weight_element(
    const geometry_t *g, const floating *x, const floating *dy,
    ptrdiff_t kd, ptrdiff_t kh, ptrdiff_t kw
) noexcept nogil:
    """One element of dw: x at its channel, dy at its channel, of the first image."""
    cdef double acc[LANES]
    cdef ptrdiff_t n, od, oh, ow, id_, ih, j
    cdef const floating *row
    for j in range(LANES):
        acc[j] = 0
    for n in range(g.batch):
        for od in range(g.out[0]):
            id_ = od * g.stride[0] + kd * g.dilation[0] - g.pad[0]
            for oh in range(g.out[1]):
                ih = oh * g.stride[1] + kh * g.dilation[1] - g.pad[1]
                row = dy + n * g.y_n + od * g.y_s[0] + oh * g.y_s[1]
                if 0 <= id_ < g.size[0] and 0 <= ih < g.size[1]:
                    _add_row_products(
                        acc, g, x + n * g.x_n + id_ * g.x_s[0] + ih * g.x_s[1], row,
                        kw * g.dilation[2] - g.pad[2])
                else:
                    for ow in range(g.out[2]):
                        acc[0] += row[ow * g.y_s[2]] * <double> 0.0
    return ((acc[0] + acc[4]) + (acc[1] + acc[5])) + ((acc[2] + acc[6]) + (acc[3] + acc[7]))


cdef void _weight_backward(
    const geometry_t *g, const floating *x, const floating *dy, floating *dw, int threads
) noexcept nogil:
    cdef ptrdiff_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2]
    cdef ptrdiff_t t, o, c, kd, kh, kw
    for t in prange(g.groups * g.co * g.ci * taps, num_threads=threads, schedule='static'):
        o = t // (g.ci * taps)
        c = t // taps % g.ci
        kd = t % taps // (g.kernel[1] * g.kernel[2])
        kh = t % taps // g.kernel[2] % g.kernel[1]
        kw = t % g.kernel[2]
        dw[o * g.w_o + c * g.w_c + kd * g.w_s[0] + kh * g.w_s[1] + kw * g.w_s[2]] = (
            <floating> _weight_element(
                g, x + (o // g.co * g.ci + c) * g.x_c, dy + o * g.y_c, kd, kh, kw))


cdef void _run(const geometry_t *g, const run_t *c, floating *x) noexcept nogil:
    cdef floating *w = <floating *> c.w
    cdef floating *y = <floating *> c.y
    cdef const floating *bias = <const floating *> c.bias
    if c.op == 0:
        _forward(g, x, w, bias, y, c.threads)
    elif c.op == 1:
        _data_backward(g, y, w, bias, x, c.threads)
    else:
        _weight_backward(g, x, y, w, c.threads)


def run(Run call not None):
    """Compute one operator; the result is whichever of x, w and y the operator gives."""
    with nogil:
        if call.geometry.double_precision:
            _run[double](&call.geometry.c, &call.c, <double *> call.c.x)
        else:
            _run[float](&call.geometry.c, &call.c, <float *> call.c.x)
