"""Depthwise convolution in vectors over channels, through a slab.

A block of the image is copied into a slab of one or two vectors of channels a pixel, with its zeros
around it; neighbouring pixels are then neighbours in memory, however many channels the image has.
The taps of a pixel are summed by `along`. In channels-last order `_slide` is faster where it
serves: this is for the other kernels, large or dilated ones above all. A large kernel also pays for
the transposition of planes.

In weight gradients rows of the microkernel are taps, and its depth is pixels. They are summed in
the data's type over at most FOLD_PIXELS pixels, and those sums in float64; pixels are divided into
segments by the problem alone.

Each element is summed in one order, whatever the threads or the batch are. A data gradient
multiplies the zeros around the image, so its weights must be finite: `run` returns False otherwise.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t
from libc.string cimport memset

from ._geometry cimport Geometry, geometry_t
from ._passes cimport (
    aligned, all_finite, axis_t, ceil_div, cyconv_flush_begin, cyconv_flush_end, data_pass,
    forward_pass, pass_t, slab_span,
)
from ._patches cimport valid_range
from ._run cimport Run, epilogue_t, finish, run_t
from ._ukernels cimport (
    CYCONV_MOST_LANES, CYCONV_MOST_ROWS, active, along, collect, cyconv_ukernels, move, transpose,
)

from ._run import OPERATORS

cdef enum:
    SLAB_BYTES = 20480          # of a block: it should stay in the first cache level
    MOST_COLUMNS = 64           # of a block
    FOLD_PIXELS = 4096
    FEWEST_TASKS = 16           # of a weight gradient, if it has as many blocks
    LARGE_TAPS = 80             # of a kernel for whose sake planes are transposed


cdef struct blocks_t:
    bint flush                          # subnormal numbers to zero, in every thread
    int mr, vl, nv
    ptrdiff_t nr                        # lanes of a row of the microkernel
    ptrdiff_t units                     # chunks of nr channels
    ptrdiff_t rows, cols                # of a full block
    ptrdiff_t n_rows, n_cols, count     # how many blocks, over the batch too
    ptrdiff_t high[3]                   # extent of the slab
    ptrdiff_t slab_elements
    ptrdiff_t segments, segment_blocks
    # Scratch of each thread (in it: where dy or the weights are, and so on), and what all share.
    ptrdiff_t weights_at, positions_at, c_at, private_nbytes
    ptrdiff_t private_at, totals_at, task_totals, nbytes


cdef void _size_slab(const pass_t *p, blocks_t *b) noexcept nogil:
    b.high[0] = slab_span(&p.axis[0], 1)
    b.high[1] = slab_span(&p.axis[1], b.rows)
    b.high[2] = slab_span(&p.axis[2], b.cols)
    b.slab_elements = b.high[0] * b.high[1] * b.high[2] * b.nr


cdef blocks_t _divide(
    const pass_t *p, const geometry_t *g, int op, const cyconv_ukernels *uk, ptrdiff_t itemsize,
    int threads
) noexcept nogil:
    """Choose lanes, blocks and the layout of the scratch."""
    cdef blocks_t b
    cdef ptrdiff_t halo, pixels
    b.mr = uk.mr
    b.vl = uk.vl_f32 if itemsize == 4 else uk.vl_f64
    b.nv = 1 if g.groups <= b.vl else 2
    b.nr = b.nv * b.vl
    b.units = ceil_div(g.groups, b.nr)

    b.n_cols = ceil_div(p.axis[2].outputs, MOST_COLUMNS)
    b.cols = ceil_div(p.axis[2].outputs, b.n_cols)
    b.rows = p.axis[1].outputs
    halo = slab_span(&p.axis[1], 1)
    _size_slab(p, &b)
    while b.slab_elements * itemsize > SLAB_BYTES and b.rows > max(halo, <ptrdiff_t> 4):
        b.rows = ceil_div(b.rows, 2)
        _size_slab(p, &b)
    b.n_rows = ceil_div(p.axis[1].outputs, b.rows)
    b.rows = ceil_div(p.axis[1].outputs, b.n_rows)
    _size_slab(p, &b)
    b.count = p.batch * p.axis[0].outputs * b.n_rows * b.n_cols
    b.segments = 1
    if op == 2:
        b.segments = max(min(b.count, ceil_div(FEWEST_TASKS, b.units)), <ptrdiff_t> 1)
    b.segment_blocks = ceil_div(b.count, b.segments)

    # Shared: offsets of taps in slab and weights. Private: slab; weights, or dy and positions;
    # results, or sums folded and in the data's type.
    pixels = b.rows * b.cols
    b.private_at = aligned(2 * p.taps * <ptrdiff_t> sizeof(ptrdiff_t))
    b.task_totals = 0
    b.weights_at = aligned(b.slab_elements * itemsize)
    if op == 2:
        b.positions_at = b.weights_at + aligned(pixels * b.nr * itemsize)
        b.c_at = b.positions_at + aligned(pixels * <ptrdiff_t> sizeof(ptrdiff_t))
        b.private_nbytes = b.c_at + aligned(
            p.taps * b.nr * (itemsize + <ptrdiff_t> sizeof(double)))
        b.task_totals = p.taps * b.nr
    else:
        b.positions_at = b.c_at = (
            b.weights_at + aligned(p.taps * itemsize * b.nr))
        b.private_nbytes = b.c_at + aligned(pixels * b.nr * itemsize)
    b.totals_at = b.private_at + threads * b.private_nbytes
    b.nbytes = b.totals_at + aligned(
        b.units * b.segments * b.task_totals * <ptrdiff_t> sizeof(double))
    return b


cdef struct place_t:
    ptrdiff_t n, z, y, rows, x, cols


cdef place_t _place(const pass_t *p, const blocks_t *b, ptrdiff_t index) noexcept nogil:
    """The image, depth, rows and columns of outputs that a block covers."""
    cdef place_t at
    at.x = index % b.n_cols * b.cols
    index = index // b.n_cols
    at.y = index % b.n_rows * b.rows
    index = index // b.n_rows
    at.z = index % p.axis[0].outputs
    at.n = index // p.axis[0].outputs
    at.rows = min(b.rows, p.axis[1].outputs - at.y)
    at.cols = min(b.cols, p.axis[2].outputs - at.x)
    return at


cdef void _list_taps(const pass_t *p, const blocks_t *b, ptrdiff_t *offset) noexcept nogil:
    """Offsets of each tap in the slab, then in the weights."""
    cdef ptrdiff_t *weight_offset = offset + p.taps
    cdef const axis_t *a0 = &p.axis[0]
    cdef const axis_t *a1 = &p.axis[1]
    cdef const axis_t *a2 = &p.axis[2]
    cdef ptrdiff_t i0, i1, i2, k = 0
    for i0 in range(a0.taps):
        for i1 in range(a1.taps):
            for i2 in range(a2.taps):
                offset[k] = b.nr * (
                    ((a0.origin + i0 * a0.between - a0.least) * b.high[1]
                     + a1.origin + i1 * a1.between - a1.least) * b.high[2]
                    + a2.origin + i2 * a2.between - a2.least)
                weight_offset[k] = (
                    (a0.kernel_first + i0 * a0.kernel_every) * a0.weight_stride
                    + (a1.kernel_first + i1 * a1.kernel_every) * a1.weight_stride
                    + (a2.kernel_first + i2 * a2.kernel_every) * a2.weight_stride)
                k = k + 1


cdef void _copy_lanes(
    const blocks_t *b, const cyconv_ukernels *uk, const floating *source, ptrdiff_t pixel,
    ptrdiff_t channel, ptrdiff_t lanes, ptrdiff_t count, floating *target
) noexcept nogil:
    """Copy the lanes of `count` pixels and fill up with zeros."""
    cdef ptrdiff_t x, j
    if channel == 1 and lanes == b.nr:
        collect(uk, count, b.nv, source, pixel, target)
        return
    if pixel == 1:
        if lanes < b.nr:
            memset(target, 0, count * b.nr * sizeof(floating))
        transpose(uk, lanes, count, source, channel, target, b.nr)
        return
    for x in range(count):
        for j in range(lanes):
            target[x * b.nr + j] = source[x * pixel + j * channel]
        for j in range(lanes, b.nr):
            target[x * b.nr + j] = 0


cdef void _fill_slab(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const place_t *at,
    const floating *source, ptrdiff_t lanes, floating *slab
) noexcept nogil:
    """The part of an image that a block sees; source points at the first channel."""
    cdef const axis_t *axis = p.axis
    cdef ptrdiff_t z, y, lo, hi, source_z, source_y, stride = axis[2].source_stride
    cdef ptrdiff_t x0 = at.x * axis[2].step + axis[2].least
    cdef floating *target = slab
    valid_range(x0, 1, axis[2].size, b.high[2], &lo, &hi)
    for z in range(b.high[0]):
        source_z = at.z * axis[0].step + axis[0].least + z
        for y in range(b.high[1]):
            source_y = at.y * axis[1].step + axis[1].least + y
            if 0 <= source_z < axis[0].size and 0 <= source_y < axis[1].size:
                memset(target, 0, lo * b.nr * sizeof(floating))
                _copy_lanes(
                    b, uk,
                    source + at.n * p.source_n + source_z * axis[0].source_stride
                    + source_y * axis[1].source_stride + (x0 + lo) * stride,
                    stride, p.source_c, lanes, hi - lo, target + lo * b.nr)
                memset(target + hi * b.nr, 0, (b.high[2] - hi) * b.nr * sizeof(floating))
            else:
                memset(target, 0, b.high[2] * b.nr * sizeof(floating))
            target += b.high[2] * b.nr


cdef void _seen_taps(
    const axis_t *axis, ptrdiff_t output, ptrdiff_t *lo, ptrdiff_t *hi
) noexcept nogil:
    """Range of the taps through which an output sees the source."""
    cdef ptrdiff_t first = output * axis.step + axis.origin, begin
    if axis.between < 0:
        valid_range(
            first + (axis.taps - 1) * axis.between, -axis.between, axis.size, axis.taps, lo, hi)
        begin = axis.taps - hi[0]
        hi[0] = axis.taps - lo[0]
        lo[0] = begin
    else:
        valid_range(first, max(axis.between, <ptrdiff_t> 1), axis.size, axis.taps, lo, hi)


cdef bint _block_task(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *source,
    const floating *w, ptrdiff_t weight_lane, const floating *bias, const epilogue_t *last,
    floating *result, ptrdiff_t lanes, bint only_finite, const ptrdiff_t *offset, char *scratch,
    ptrdiff_t index
) noexcept nogil:
    """One block of a chunk of channels; operands point at the first of them."""
    cdef floating *slab = <floating *> scratch
    cdef const ptrdiff_t *weight_offset = offset + p.taps
    cdef floating *weights = <floating *> (scratch + b.weights_at)
    cdef floating *c = <floating *> (scratch + b.c_at)
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_LANES]
    cdef const axis_t *a1 = &p.axis[1]
    cdef const axis_t *a2 = &p.axis[2]
    cdef place_t at = _place(p, b, index)
    cdef ptrdiff_t k, y, x, i, j, m, tile, tiles = ceil_div(at.cols, b.mr)
    cdef ptrdiff_t pixel = a2.every * a2.result_stride
    cdef ptrdiff_t lo, hi, first = 0, taps = p.taps
    cdef bint all_taps = p.axis[0].taps != 1, whole = p.result_c == 1 and lanes == b.nr
    cdef ptrdiff_t row_of_c = pixel if whole else b.nr
    cdef floating *target
    cdef floating *row
    for j in range(b.nr):
        start[j] = bias[j] if bias != NULL and j < lanes else 0
        for k in range(p.taps):
            weights[k * b.nr + j] = w[j * weight_lane + weight_offset[k]] if j < lanes else 0
    if not all_finite(weights, p.taps * b.nr):
        if only_finite:
            return False
        all_taps = True
    if p.taps > 0:
        _fill_slab(p, b, uk, &at, source, lanes, slab)
    for y in range(at.rows):
        target = (
            result + at.n * p.result_n
            + (p.axis[0].first + at.z * p.axis[0].every) * p.axis[0].result_stride
            + (a1.first + (at.y + y) * a1.every) * a1.result_stride
            + (a2.first + at.x * a2.every) * a2.result_stride)
        row = slab + y * a1.step * b.high[2] * b.nr
        x = 0
        if not all_taps:    # what is finite times the zeros above and below the image is left out
            _seen_taps(a1, at.y + y, &lo, &hi)
            first, taps = lo * a2.taps, (hi - lo) * a2.taps
        for tile in range(tiles):
            m = at.cols // tiles + (1 if tile < at.cols % tiles else 0)
            for i in range(m):
                rows[i] = row + (x + i) * a2.step * b.nr
            along(
                uk, m, b.nv, taps, rows, offset + first, weights + first * b.nr, start,
                (target if whole else c) + x * row_of_c, row_of_c)
            x += m
        if not whole and pixel == 1:
            transpose(uk, at.cols, lanes, c, b.nr, target, p.result_c)
        elif not whole:
            move(uk, at.cols, lanes, c, b.nr, 1, target, pixel, p.result_c)
        if p.result_c == 1:
            finish(last, uk, at.cols, lanes, target, pixel, 1)
        else:
            finish(last, uk, lanes, at.cols, target, p.result_c, pixel)
    return True


cdef bint _run_pass(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *source, const floating *w, const floating *bias, floating *result,
    ptrdiff_t group_weights, bint only_finite, const run_t *run
) noexcept nogil:
    """One pass of all groups, whose weights are `group_weights` apart."""
    cdef ptrdiff_t task, unit, index, bad = 0
    cdef ptrdiff_t *offset = <ptrdiff_t *> run.scratch
    cdef uint64_t before
    _list_taps(p, b, offset)
    for task in prange(b.units * b.count, num_threads=run.threads, schedule='static'):
        unit = task % b.units
        index = task // b.units
        before = cyconv_flush_begin() if b.flush else 0
        if not _block_task(
            p, b, uk, source + unit * b.nr * p.source_c, w + unit * b.nr * group_weights,
            group_weights, bias + unit * b.nr if bias != NULL else NULL, &run.last,
            result + unit * b.nr * p.result_c, min(b.nr, g.groups - unit * b.nr),
            only_finite, offset, run.scratch + b.private_at + threadid() * b.private_nbytes, index
        ):
            bad += 1
        if b.flush:
            cyconv_flush_end(before)
    return bad == 0


cdef void _tap_sums(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *slab,
    const ptrdiff_t *offset, const ptrdiff_t *position, ptrdiff_t pixels, const floating *dy,
    bint first, floating *sums
) noexcept nogil:
    """Add a block to the lanes' sums of every tap."""
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_LANES]
    cdef ptrdiff_t tiles = ceil_div(p.taps, b.mr), tile, k = 0, i, m
    memset(start, 0, sizeof(start))
    for tile in range(tiles):
        m = p.taps // tiles + (1 if tile < p.taps % tiles else 0)
        for i in range(m):
            rows[i] = slab + offset[k + i]
        along(
            uk, m, b.nv, pixels, rows, position, dy, start if first else NULL, sums + k * b.nr,
            b.nr)
        k += m


cdef void _gradient_task(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, ptrdiff_t lanes, const ptrdiff_t *offset,
    char *scratch, ptrdiff_t segment, double *totals
) noexcept nogil:
    """One segment of blocks of a chunk: totals of every tap and lane."""
    cdef floating *slab = <floating *> scratch
    cdef floating *gradient = <floating *> (scratch + b.weights_at)
    cdef ptrdiff_t *position = <ptrdiff_t *> (scratch + b.positions_at)
    cdef ptrdiff_t count = p.taps * b.nr
    cdef double *folded = <double *> (scratch + b.c_at)
    cdef floating *sums = <floating *> (folded + count)
    cdef ptrdiff_t last = min((segment + 1) * b.segment_blocks, b.count)
    cdef ptrdiff_t index, i, y, pending = 0
    cdef place_t at
    for i in range(count):
        folded[i] = 0
    for index in range(segment * b.segment_blocks, last):
        at = _place(p, b, index)
        _fill_slab(p, b, uk, &at, x, lanes, slab)
        for y in range(at.rows):
            for i in range(at.cols):
                position[y * at.cols + i] = (
                    (y * p.axis[1].step * b.high[2] + i * p.axis[2].step) * b.nr)
            _copy_lanes(
                b, uk,
                dy + at.n * g.y_n + at.z * g.y_s[0] + (at.y + y) * g.y_s[1] + at.x * g.y_s[2],
                g.y_s[2], g.y_c, lanes, at.cols, gradient + y * at.cols * b.nr)
        _tap_sums(
            p, b, uk, slab, offset, position, at.rows * at.cols, gradient, pending == 0, sums)
        pending += at.rows * at.cols
        if pending >= FOLD_PIXELS or index == last - 1:
            for i in range(count):
                folded[i] += sums[i]
            pending = 0
    for i in range(count):
        totals[i] = folded[i]


cdef void _run_gradient(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, floating *dw, char *scratch, int threads
) noexcept nogil:
    cdef double *totals = <double *> (scratch + b.totals_at)
    cdef ptrdiff_t *offset = <ptrdiff_t *> scratch
    cdef ptrdiff_t *weight_offset = offset + p.taps
    cdef ptrdiff_t task, unit, segment, k, lane, s
    cdef double total
    cdef uint64_t before
    _list_taps(p, b, offset)
    for task in prange(
        b.units * b.segments, num_threads=threads, schedule='dynamic', chunksize=1
    ):
        unit = task // b.segments
        segment = task % b.segments
        before = cyconv_flush_begin() if b.flush else 0
        _gradient_task(
            p, g, b, uk, x + unit * b.nr * g.x_c, dy + unit * b.nr * g.y_c,
            min(b.nr, g.groups - unit * b.nr), offset,
            scratch + b.private_at + threadid() * b.private_nbytes, segment,
            totals + task * b.task_totals)
        if b.flush:
            cyconv_flush_end(before)
    for unit in range(b.units):
        for lane in range(min(b.nr, g.groups - unit * b.nr)):
            for k in range(p.taps):
                total = 0
                for s in range(b.segments):
                    total += totals[(unit * b.segments + s) * b.task_totals + k * b.nr + lane]
                dw[(unit * b.nr + lane) * g.w_o + weight_offset[k]] = <floating> total


cdef bint _run(
    const geometry_t *g, const run_t *c, const cyconv_ukernels *uk, floating *x
) noexcept nogil:
    cdef floating *w = <floating *> c.w
    cdef floating *y = <floating *> c.y
    cdef const floating *bias = <const floating *> c.bias
    cdef pass_t p
    cdef blocks_t b
    cdef ptrdiff_t phase
    if c.op != 1:
        p = forward_pass(g)
        b = _divide(&p, g, c.op, uk, sizeof(floating), c.threads)
        b.flush = c.flush
        if c.op == 2:
            _run_gradient(&p, g, &b, uk, x, y, w, c.scratch, c.threads)
            return True
        return _run_pass(&p, g, &b, uk, x, w, bias, y, g.co * g.w_o, False, c)
    for phase in range(g.stride[0] * g.stride[1] * g.stride[2]):
        if not data_pass(g, phase, &p):
            continue
        b = _divide(&p, g, c.op, uk, sizeof(floating), c.threads)
        b.flush = c.flush
        if not _run_pass(&p, g, &b, uk, y, w, bias, x, g.co * g.w_o, True, c):
            return False
    return True


def serves(Geometry geometry not None, str op):
    """Return whether there is one channel a group, and either the result's channels are contiguous
    or the kernel is large and the channels fill their vectors."""
    cdef const geometry_t *g = &geometry.c
    cdef const cyconv_ukernels *uk = active()
    cdef ptrdiff_t vl = uk.vl_f64 if geometry.double_precision else uk.vl_f32
    if g.ci != 1 or g.co != 1 or g.groups == 1:
        return False
    if (g.y_c if op == "fwd" else g.x_c) == 1:
        return True
    return (
        g.kernel[0] * g.kernel[1] * g.kernel[2] >= LARGE_TAPS
        and 4 * g.groups >= 3 * ceil_div(g.groups, vl) * vl)


def workspace(Geometry geometry not None, str op, int threads):
    """Return the scratch bytes that `run` needs."""
    cdef const geometry_t *g = &geometry.c
    cdef ptrdiff_t itemsize = 8 if geometry.double_precision else 4, most = 0, phase
    cdef int code = OPERATORS[op]
    cdef pass_t p
    if code != 1:
        p = forward_pass(g)
        return _divide(&p, g, code, active(), itemsize, threads).nbytes
    for phase in range(g.stride[0] * g.stride[1] * g.stride[2]):
        if data_pass(g, phase, &p):
            most = max(most, _divide(&p, g, code, active(), itemsize, threads).nbytes)
    return most


def run(Run call not None):
    """Compute one operator; the result is whichever of x, w and y the operator gives.

    Returns False,
    with the result undefined, for a data gradient whose weights are not all finite.
    """
    cdef const cyconv_ukernels *uk = active()
    cdef bint done
    call.needs(workspace(call.geometry, call.problem.op, call.c.threads))
    with nogil:
        if call.geometry.double_precision:
            done = _run[double](&call.geometry.c, &call.c, uk, <double *> call.c.x)
        else:
            done = _run[float](&call.geometry.c, &call.c, uk, <float *> call.c.x)
    return done
