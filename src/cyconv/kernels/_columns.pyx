"""Convolution with one output channel a group, in vectors over pixels that slide down columns.

A block of the image is copied into planes (`_planes`), strides along rows undone. A strip of
outputs below each other is summed in registers; each vector of the source that it sees is loaded
once for a column of the filter (`slide`, whose pixels are rows here and whose rows are the filter's
columns, over depth and channels).

Weight gradients are summed by `slide_gradient` in the data's type over at most FOLD_PIXELS pixels,
and those sums in float64; blocks are divided into segments by the problem alone.

Each element is summed in one order, whatever the threads or the batch are. Where zeros are
multiplied that the definition does not multiply (around the image in a data gradient, beyond the
last column in a weight gradient) the other factor must be finite: `run` returns False otherwise.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t
from libc.string cimport memset

from ._geometry cimport Geometry, geometry_t
from ._passes cimport (
    aligned, all_finite, axis_t, ceil_div, cyconv_flush_begin, cyconv_flush_end, list_passes,
    pass_t, passes_t,
)
from ._planes cimport (
    HELD, copy_planes, divide_planes, fill_slab, forget_slabs, place, place_t, planes_t,
    result_place, slab_place, store_rows,
)
from ._run cimport Run, epilogue_t, finish, run_t
from ._ukernels cimport (
    CYCONV_MOST_LANES, active, cyconv_slide_height, cyconv_slides, cyconv_ukernels, slide,
    slide_gradient,
)

from ._run import OPERATORS

cdef enum:
    FEWEST_ROWS = 4
    FOLD_PIXELS = 4096
    FEWEST_TASKS = 16           # of a weight gradient, if it has as many blocks


cdef struct blocks_t:
    planes_t planes
    ptrdiff_t taps, columns             # of a filter, over its channels; columns of it
    ptrdiff_t pitch                     # between rows of a block's results, whole vectors
    ptrdiff_t segments, segment_blocks
    # Shared: places of columns in the slab and in the packed filter, places of taps in the weights.
    # By thread: slab, packed filter or dy, results or sums. Then totals.
    ptrdiff_t filter_at, weight_at, private_at, factor_at, result_at, fold_at, private_nbytes
    ptrdiff_t totals_at, nbytes


cdef blocks_t _divide(
    const passes_t *all_, const geometry_t *g, int op, ptrdiff_t vl, ptrdiff_t itemsize,
    int threads
) noexcept nogil:
    """Choose blocks and the layout of the scratch."""
    cdef blocks_t b
    cdef ptrdiff_t plane
    b.planes = divide_planes(all_, g, 1, False, vl, itemsize)
    b.columns = b.planes.inputs * g.kernel[0] * g.kernel[2]
    b.taps = b.columns * g.kernel[1]
    b.pitch = ceil_div(b.planes.cols, vl) * vl
    b.segments = 1
    if op == 2:
        b.segments = max(
            min(b.planes.count, ceil_div(FEWEST_TASKS, b.planes.units)), <ptrdiff_t> 1)
    b.segment_blocks = ceil_div(b.planes.count, b.segments)

    # Data gradients list the columns of each row phase, at most stride[1] times as many.
    b.filter_at = aligned(
        b.columns * all_.phases[1] * <ptrdiff_t> sizeof(ptrdiff_t))
    b.weight_at = 2 * b.filter_at
    b.private_at = b.weight_at + aligned(b.taps * <ptrdiff_t> sizeof(ptrdiff_t))
    b.factor_at = HELD + aligned(b.planes.slab_elements * itemsize)
    plane = b.planes.rows * b.pitch
    if op == 2:
        b.result_at = b.factor_at + aligned(plane * itemsize)
        b.fold_at = b.result_at + aligned(b.taps * vl * itemsize)
        b.private_nbytes = b.fold_at + aligned(b.taps * vl * <ptrdiff_t> sizeof(double))
    else:
        b.result_at = b.factor_at + aligned(b.taps * vl * itemsize)
        b.fold_at = b.private_nbytes = (
            b.result_at + aligned(all_.phases[2] * plane * itemsize))
    b.totals_at = b.private_at + threads * b.private_nbytes
    b.nbytes = b.totals_at
    if op == 2:
        b.nbytes += b.planes.units * b.segments * b.taps * <ptrdiff_t> sizeof(double)
    return b


cdef void _list_columns(
    const passes_t *all_, const blocks_t *b, ptrdiff_t *column, ptrdiff_t *filter_column,
    ptrdiff_t *weight_offset
) noexcept nogil:
    """Where each column of the filter looks in the slab and where its packed weights are, pass by
    pass, and the offset of each of its weights, from the top of the source down."""
    cdef ptrdiff_t phase, c, i0, i1, i2, tap
    cdef const pass_t *p
    cdef const axis_t *a0
    cdef const axis_t *a1
    cdef const axis_t *a2
    for phase in range(all_.count):
        p = &all_.each[phase]
        a0, a1, a2 = &p.axis[0], &p.axis[1], &p.axis[2]
        if p.taps == 0:
            continue
        tap = 0
        for c in range(p.channels):
            for i0 in range(a0.taps):
                for i2 in range(a2.taps):
                    column[0] = c * b.planes.plane + slab_place(
                        &b.planes, a0.origin + i0 * a0.between, a1.least,
                        a2.origin + i2 * a2.between)
                    filter_column[0] = tap * b.planes.vl
                    column += 1
                    filter_column += 1
                    for i1 in range(a1.taps):
                        weight_offset[tap] = (
                            c * p.weight_c + _weight(a0, i0) + _weight(a2, i2)
                            + _weight(a1, i1 if a1.between >= 0 else a1.taps - 1 - i1))
                        tap += 1
        weight_offset += tap


cdef inline ptrdiff_t _weight(const axis_t *axis, ptrdiff_t tap) noexcept nogil:
    return (axis.kernel_first + tap * axis.kernel_every) * axis.weight_stride


cdef void _sum_columns(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *slab,
    const ptrdiff_t *column, const floating *filter, const ptrdiff_t *filter_column,
    floating bias, ptrdiff_t rows, ptrdiff_t cols, bint overlap, floating *c, ptrdiff_t pitch
) noexcept nogil:
    """One pass over a block: c[y*pitch + x], whose last vector of a row lies over its neighbour, or
    exceeds the row."""
    cdef floating start[CYCONV_MOST_LANES]
    cdef ptrdiff_t strip = min(rows, <ptrdiff_t> uk.strip), step = p.axis[1].step
    cdef ptrdiff_t taps = max(p.axis[1].taps, <ptrdiff_t> 1), vl = b.planes.vl
    cdef ptrdiff_t depth = p.depth // taps, tile, vector, y, x
    for x in range(vl):
        start[x] = bias
    for tile in range(ceil_div(rows, strip)):
        y = min(tile * strip, rows - strip)
        for vector in range(ceil_div(cols, vl)):
            x = min(vector * vl, cols - vl) if overlap else vector * vl
            slide(
                uk, taps, step, strip, depth, slab + y * step * b.planes.high[2] + x, column,
                b.planes.high[2], filter, filter_column, 0, (strip - 1) * step + taps, start,
                c + y * pitch + x, pitch)


cdef bint _block_task(
    const passes_t *all_, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *source, const floating *w, const floating *bias, const epilogue_t *last,
    floating *result, bint only_finite, char *shared, char *scratch, ptrdiff_t index
) noexcept nogil:
    """One block of one group; operands point at the group."""
    cdef const pass_t *p = &all_.each[0]
    cdef floating *slab = <floating *> (scratch + HELD)
    cdef floating *filter = <floating *> (scratch + b.factor_at)
    cdef floating *c = <floating *> (scratch + b.result_at)
    cdef const ptrdiff_t *column = <const ptrdiff_t *> shared
    cdef const ptrdiff_t *filter_column = <const ptrdiff_t *> (shared + b.filter_at)
    cdef const ptrdiff_t *weight_offset = <const ptrdiff_t *> (shared + b.weight_at)
    cdef ptrdiff_t vl = b.planes.vl, plane = b.planes.rows * b.pitch
    cdef ptrdiff_t phase, column_phase, k, lane, cols, row, columns, rows = 0
    cdef bint direct
    cdef place_t at = place(&b.planes, index)
    cdef floating value = bias[0] if bias != NULL else 0
    if b.taps > 0:
        fill_slab(p, &b.planes, uk, &at, source, b.planes.inputs, slab)
    for phase in range(all_.count):
        p = &all_.each[phase]
        for k in range(p.depth):
            for lane in range(vl):
                filter[k * vl + lane] = w[weight_offset[k]]
        if only_finite and not all_finite(filter, p.depth * vl):
            return False
        column_phase = phase % all_.phases[2]
        if column_phase == 0:
            rows = min(b.planes.rows, p.axis[1].outputs - at.y)
            if at.z >= p.axis[0].outputs:
                rows = 0
        cols = min(b.planes.cols, p.axis[2].outputs - at.x)
        row = p.axis[1].every * p.axis[1].result_stride
        direct = (
            all_.phases[2] == 1 and p.axis[2].every * p.axis[2].result_stride == 1 and cols >= vl)
        if rows > 0 and cols > 0:
            if direct:
                _sum_columns(
                    p, b, uk, slab, column, filter, filter_column, value, rows, cols, True,
                    result + result_place(p, &at), row)
                finish(last, uk, rows, cols, result + result_place(p, &at), row, 1)
            else:
                _sum_columns(
                    p, b, uk, slab, column, filter, filter_column, value, rows, cols, False,
                    c + column_phase * plane, b.pitch)
        if rows > 0 and not direct and column_phase == all_.phases[2] - 1:
            store_rows(
                all_, &b.planes, uk, &at, phase - column_phase, 1, c, b.pitch, plane, last,
                result)
        columns = p.depth // max(p.axis[1].taps, <ptrdiff_t> 1)
        column += columns
        filter_column += columns
        weight_offset += p.depth
    return True


cdef bint _run_passes(
    const passes_t *all_, const geometry_t *g, const cyconv_ukernels *uk,
    const floating *source, const floating *w, const floating *bias, floating *result,
    ptrdiff_t vl, const run_t *run
) noexcept nogil:
    cdef const pass_t *p = &all_.each[0]
    cdef blocks_t b = _divide(all_, g, run.op, vl, sizeof(floating), run.threads)
    cdef ptrdiff_t task, group, bad = 0
    cdef uint64_t before
    _list_columns(
        all_, &b, <ptrdiff_t *> run.scratch, <ptrdiff_t *> (run.scratch + b.filter_at),
        <ptrdiff_t *> (run.scratch + b.weight_at))
    forget_slabs(run.scratch + b.private_at, b.private_nbytes, run.threads)
    for task in prange(b.planes.units * b.planes.count, num_threads=run.threads, schedule='static'):
        group = task % b.planes.units
        before = cyconv_flush_begin() if run.flush else 0
        if not _block_task(
            all_, g, &b, uk, source + group * p.channels * p.source_c, w + group * g.co * g.w_o,
            bias + group if bias != NULL else NULL, &run.last, result + group * p.result_c,
            run.op == 1, run.scratch, run.scratch + b.private_at + threadid() * b.private_nbytes,
            task // b.planes.units
        ):
            bad += 1
        if run.flush:
            cyconv_flush_end(before)
    return bad == 0


cdef void _gradient_task(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, char *shared, char *scratch, ptrdiff_t segment,
    double *totals
) noexcept nogil:
    """The totals of a group's taps over a segment of blocks; operands point at the group."""
    cdef floating *slab = <floating *> (scratch + HELD)
    cdef floating *gradient = <floating *> (scratch + b.factor_at)
    cdef floating *sums = <floating *> (scratch + b.result_at)
    cdef double *folded = <double *> (scratch + b.fold_at)
    cdef const ptrdiff_t *column = <const ptrdiff_t *> shared
    cdef const ptrdiff_t *filter_column = <const ptrdiff_t *> (shared + b.filter_at)
    cdef ptrdiff_t vl = b.planes.vl, taps = p.axis[1].taps, step = p.axis[1].step
    cdef ptrdiff_t height = cyconv_slide_height(taps, step)
    cdef ptrdiff_t last = min((segment + 1) * b.segment_blocks, b.planes.count)
    cdef ptrdiff_t index, i, j, rows, cols, vector, r, pitch, pending = 0
    cdef const floating *given
    cdef place_t at
    memset(sums, 0, b.taps * vl * sizeof(floating))
    memset(folded, 0, b.taps * vl * sizeof(double))
    for index in range(segment * b.segment_blocks, last):
        at = place(&b.planes, index)
        rows = min(b.planes.rows, p.axis[1].outputs - at.y)
        cols = min(b.planes.cols, p.axis[2].outputs - at.x)
        fill_slab(p, &b.planes, uk, &at, x, b.planes.inputs, slab)
        given = dy + at.n * g.y_n + at.z * g.y_s[0] + at.y * g.y_s[1] + at.x * g.y_s[2]
        pitch = g.y_s[1]
        if g.y_s[2] != 1 or cols % vl != 0:
            memset(gradient, 0, rows * b.pitch * sizeof(floating))
            copy_planes(uk, 1, rows, cols, given, 0, pitch, g.y_s[2], gradient, 0, b.pitch)
            given, pitch = gradient, b.pitch
        for vector in range(ceil_div(cols, vl)):
            r = 0
            while r < b.columns:
                slide_gradient(
                    uk, min(height, b.columns - r), taps, step, rows, slab + vector * vl,
                    column + r, b.planes.high[2], given + vector * vl, pitch, 0,
                    (rows - 1) * step + taps, sums, filter_column + r)
                r += height
        pending += rows * cols
        if pending >= FOLD_PIXELS or index == last - 1:
            for i in range(b.taps * vl):
                folded[i] += sums[i]
            memset(sums, 0, b.taps * vl * sizeof(floating))
            pending = 0
    for i in range(b.taps):
        totals[i] = 0
        for j in range(vl):
            totals[i] += folded[i * vl + j]


cdef bint _run_gradient(
    const passes_t *all_, const geometry_t *g, const cyconv_ukernels *uk, const floating *x,
    const floating *dy, floating *dw, ptrdiff_t vl, char *scratch, int threads, bint flush
) noexcept nogil:
    cdef blocks_t b = _divide(all_, g, 2, vl, sizeof(floating), threads)
    cdef const pass_t *p = &all_.each[0]
    cdef double *totals = <double *> (scratch + b.totals_at)
    cdef ptrdiff_t *weight_offset = <ptrdiff_t *> (scratch + b.weight_at)
    cdef ptrdiff_t task, group, segment, k, count = b.planes.units * b.taps
    cdef uint64_t before
    _list_columns(
        all_, &b, <ptrdiff_t *> scratch, <ptrdiff_t *> (scratch + b.filter_at), weight_offset)
    forget_slabs(scratch + b.private_at, b.private_nbytes, threads)
    for task in prange(
        b.planes.units * b.segments, num_threads=threads, schedule='dynamic', chunksize=1
    ):
        group = task % b.planes.units
        before = cyconv_flush_begin() if flush else 0
        _gradient_task(
            p, g, &b, uk, x + group * g.ci * g.x_c, dy + group * g.y_c, scratch,
            scratch + b.private_at + threadid() * b.private_nbytes, task // b.planes.units,
            totals + task * b.taps)
        if flush:
            cyconv_flush_end(before)
    for segment in range(1, b.segments):
        for k in range(count):
            totals[k] += totals[segment * count + k]
    if not all_finite(totals, count):
        return False
    for group in range(b.planes.units):
        for k in range(b.taps):
            dw[group * g.w_o + weight_offset[k]] = <floating> totals[group * b.taps + k]
    return True


cdef bint _run(
    const geometry_t *g, const run_t *c, const cyconv_ukernels *uk, ptrdiff_t vl, floating *x
) noexcept nogil:
    cdef floating *w = <floating *> c.w
    cdef floating *y = <floating *> c.y
    cdef const floating *bias = <const floating *> c.bias
    cdef passes_t all_
    list_passes(g, c.op, &all_)
    if c.op == 2:
        return _run_gradient(&all_, g, uk, x, y, w, vl, c.scratch, c.threads, c.flush)
    if c.op == 1:
        return _run_passes(&all_, g, uk, y, w, bias, x, vl, c)
    return _run_passes(&all_, g, uk, x, w, bias, y, vl, c)


cdef bint _slides(const axis_t *axis, int op) noexcept nogil:
    """Whether the microkernels have the taps and the step of a pass down a column."""
    if axis.taps > 1 and axis.between not in (1, -1):
        return False
    if op == 2:
        return cyconv_slide_height(axis.taps, axis.step) > 0
    return axis.taps == 0 or cyconv_slides(axis.taps, axis.step) != 0


def serves(Geometry geometry not None, str op):
    """Return whether there is one output channel a group (forward and weight backward) or one input
    channel (data backward), enough rows, and microkernels for the height and the stride of the
    kernel."""
    cdef passes_t all_
    cdef const geometry_t *g = &geometry.c
    cdef int code = OPERATORS[op]
    cdef ptrdiff_t phase
    if (g.ci if code == 1 else g.co) != 1 or g.kernel[1] == 1:
        return False
    list_passes(g, code, &all_)
    if all_.each[0].axis[1].outputs < FEWEST_ROWS:
        return False
    for phase in range(all_.count):
        if not _slides(&all_.each[phase].axis[1], code):
            return False
    return True


cdef inline ptrdiff_t _lanes(Geometry geometry, const cyconv_ukernels *uk) noexcept:
    return uk.vl_f64 if geometry.double_precision else uk.vl_f32


def workspace(Geometry geometry not None, str op, int threads):
    """Return the scratch bytes that `run` needs."""
    cdef passes_t all_
    list_passes(&geometry.c, OPERATORS[op], &all_)
    return _divide(
        &all_, &geometry.c, OPERATORS[op], _lanes(geometry, active()),
        8 if geometry.double_precision else 4, threads
    ).nbytes


def run(Run call not None):
    """Compute one operator that `serves` names; the result is whichever of x, w and y the operator
    gives.

    Returns False,
    with the result undefined, for a data gradient whose weights are not all finite and for a weight
    gradient that is not.
    """
    cdef const cyconv_ukernels *uk = active()
    cdef ptrdiff_t vl = _lanes(call.geometry, uk)
    cdef bint done
    call.needs(workspace(call.geometry, call.problem.op, call.c.threads))
    with nogil:
        if call.geometry.double_precision:
            done = _run[double](&call.geometry.c, &call.c, uk, vl, <double *> call.c.x)
        else:
            done = _run[float](&call.geometry.c, &call.c, uk, vl, <float *> call.c.x)
    return done
