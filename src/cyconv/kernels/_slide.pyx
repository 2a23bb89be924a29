"""Depthwise convolution of channels-last images in place: a vector holds neighbouring channels.

A strip of neighbouring outputs is summed in registers; each pixel that it sees is loaded once for a
row of the filter. Nothing is copied but the weights (or, for their gradient, sums), and taps
outside the image are left out rather than multiplied by zeros. The last vector of channels and the
last strip of a row overlap their neighbours where they would not be full: what is computed twice is
the same twice.

Weight gradients are summed in the data's type over at most FOLD_PIXELS pixels, and those sums in
float64; rows are divided into segments by the problem alone. A window of dy that slides along
multiplies zeros at its ends, so sums that are not finite are handed over: `run` returns False.
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
from ._run cimport Run, epilogue_t, finish, run_t
from ._ukernels cimport (
    CYCONV_MOST_LANES, active, cyconv_slide_height, cyconv_slides, cyconv_ukernels, slide,
    slide_gradient,
)

from ._run import OPERATORS

cdef enum:
    FOLD_PIXELS = 4096
    FEWEST_TASKS = 16           # of a weight gradient, if it has as many rows
    UNIT_VECTORS = 8            # of channels that a task of a weight gradient treats
    PIECE_PIXELS = 32           # of a row, whose source stays in the first cache level


cdef struct scratch_t:
    ptrdiff_t vl, vectors               # lanes of a vector; vectors that cover all channels
    ptrdiff_t filter_rows               # rows of a filter, over depth and height
    ptrdiff_t rows                      # of outputs, over the batch, depth and height
    ptrdiff_t units, segments, segment_rows
    # By thread: rows seen and rows of the filter, sums; then packed weights, or totals.
    ptrdiff_t private_nbytes, sums_at, fold_at, shared_at, nbytes


cdef bint _slides(const axis_t *last, int op) noexcept nogil:
    """Whether the microkernels have the taps and the step of a pass along the last axis."""
    if last.taps > 1 and last.between not in (1, -1):
        return False
    if op == 2:
        return cyconv_slide_height(last.taps, last.step) > 0
    return last.taps == 0 or cyconv_slides(last.taps, last.step) != 0


cdef scratch_t _divide(
    const passes_t *all_, const geometry_t *g, int op, ptrdiff_t vl, ptrdiff_t itemsize, int threads
) noexcept nogil:
    """Lay out the scratch, and divide a weight gradient into tasks."""
    cdef scratch_t s
    cdef ptrdiff_t elements = g.kernel[0] * g.kernel[1] * g.kernel[2] * vl
    s.vl = vl
    s.vectors = ceil_div(g.groups, vl)
    s.filter_rows = g.kernel[0] * g.kernel[1]
    s.rows = g.batch * all_.extent[0] * all_.extent[1]
    s.units = s.segments = s.segment_rows = 1
    s.sums_at = aligned(2 * s.filter_rows * <ptrdiff_t> sizeof(ptrdiff_t))
    if op == 2:
        s.units = ceil_div(s.vectors, UNIT_VECTORS)
        s.segments = max(min(s.rows, ceil_div(FEWEST_TASKS, s.units)), <ptrdiff_t> 1)
        s.segment_rows = ceil_div(s.rows, s.segments)
        s.fold_at = s.sums_at + aligned(UNIT_VECTORS * elements * itemsize)
        s.private_nbytes = (
            s.fold_at + aligned(UNIT_VECTORS * elements * <ptrdiff_t> sizeof(double)))
        itemsize = s.segments * <ptrdiff_t> sizeof(double)
    else:
        s.fold_at = s.private_nbytes = s.sums_at
    s.shared_at = threads * s.private_nbytes
    s.nbytes = s.shared_at + s.vectors * elements * itemsize
    return s


cdef inline ptrdiff_t _first_channel(
    const scratch_t *s, ptrdiff_t channels, ptrdiff_t vector
) noexcept nogil:
    return min(vector * s.vl, channels - s.vl)


cdef inline ptrdiff_t _ascending(const axis_t *axis, ptrdiff_t tap) noexcept nogil:
    """The place of a tap counted along the source."""
    return tap if axis.between >= 0 else axis.taps - 1 - tap


cdef inline ptrdiff_t _tap_weight(const axis_t *axis, ptrdiff_t tap) noexcept nogil:
    return (axis.kernel_first + tap * axis.kernel_every) * axis.weight_stride


cdef void _pack(
    const pass_t *p, const geometry_t *g, const scratch_t *s, const floating *w, floating *packed
) noexcept nogil:
    """packed[vector][row of the filter][tap][lane], taps in the order of the source's columns."""
    cdef const axis_t *a0 = &p.axis[0]
    cdef const axis_t *a1 = &p.axis[1]
    cdef const axis_t *a2 = &p.axis[2]
    cdef ptrdiff_t vector, i0, i1, i2, j
    cdef const floating *source
    cdef floating *target
    if p.taps == 0:
        return
    for vector in range(s.vectors):
        for i0 in range(a0.taps):
            for i1 in range(a1.taps):
                for i2 in range(a2.taps):
                    source = (
                        w + _first_channel(s, g.groups, vector) * g.w_o + _tap_weight(a0, i0)
                        + _tap_weight(a1, i1) + _tap_weight(a2, i2))
                    target = packed + s.vl * (
                        ((vector * a0.taps + i0) * a1.taps + i1) * a2.taps
                        + _ascending(a2, i2))
                    for j in range(s.vl):
                        target[j] = source[j * g.w_o]


cdef ptrdiff_t _list_rows(
    const pass_t *p, const scratch_t *s, ptrdiff_t z, ptrdiff_t y, ptrdiff_t *row,
    ptrdiff_t *filter_row
) noexcept nogil:
    """The rows of the source that output row (z, y) sees, and those of the filter that see them."""
    cdef const axis_t *a0 = &p.axis[0]
    cdef const axis_t *a1 = &p.axis[1]
    cdef ptrdiff_t i0, i1, source_z, source_y, count = 0
    for i0 in range(a0.taps):
        source_z = z * a0.step + a0.origin + i0 * a0.between
        if not 0 <= source_z < a0.size:
            continue
        for i1 in range(a1.taps):
            source_y = y * a1.step + a1.origin + i1 * a1.between
            if 0 <= source_y < a1.size:
                row[count] = source_z * a0.source_stride + source_y * a1.source_stride
                filter_row[count] = (i0 * a1.taps + i1) * p.axis[2].taps * s.vl
                count += 1
    return count


cdef void _strips(
    const pass_t *p, const geometry_t *g, const scratch_t *s, const cyconv_ukernels *uk,
    const floating *source, const floating *packed, const floating *bias, const epilogue_t *last,
    floating *result, char *scratch, ptrdiff_t z, ptrdiff_t y
) noexcept nogil:
    """Row (z, y) of a pass's outputs; source and result point at the image."""
    cdef const axis_t *a2 = &p.axis[2]
    cdef ptrdiff_t *row = <ptrdiff_t *> scratch
    cdef ptrdiff_t *filter_row = row + s.filter_rows
    cdef floating none[CYCONV_MOST_LANES]
    cdef ptrdiff_t depth = _list_rows(p, s, z, y, row, filter_row) if p.taps > 0 else 0
    cdef ptrdiff_t pixels = min(<ptrdiff_t> uk.strip, a2.outputs)
    cdef ptrdiff_t tile, first, channel, vector, column
    cdef ptrdiff_t pixel = a2.every * a2.result_stride
    memset(none, 0, sizeof(none))
    result += (
        (p.axis[0].first + z * p.axis[0].every) * p.axis[0].result_stride
        + (p.axis[1].first + y * p.axis[1].every) * p.axis[1].result_stride
        + a2.first * a2.result_stride)
    for tile in range(ceil_div(a2.outputs, pixels)):
        first = min(tile * pixels, a2.outputs - pixels)
        column = first * a2.step + a2.least
        for vector in range(s.vectors):
            channel = _first_channel(s, g.groups, vector)
            slide(
                uk, max(a2.taps, <ptrdiff_t> 1), a2.step, pixels, depth,
                source + column * a2.source_stride + channel, row, a2.source_stride,
                packed + vector * p.taps * s.vl, filter_row, max(-column, <ptrdiff_t> 0),
                min(a2.size - column, (pixels - 1) * a2.step + a2.taps),
                bias + channel if bias != NULL else none,
                result + first * pixel + channel, pixel)
    finish(last, uk, a2.outputs, g.groups, result, pixel, 1)


cdef void _row_task(
    const passes_t *all_, const geometry_t *g, const scratch_t *s, const cyconv_ukernels *uk,
    const floating *source, const floating *packed, const floating *bias, const epilogue_t *last,
    floating *result, char *scratch, ptrdiff_t index
) noexcept nogil:
    """One row of the result: all its phases, while it is in the cache."""
    cdef ptrdiff_t y = index % all_.extent[1], z = index // all_.extent[1] % all_.extent[0]
    cdef ptrdiff_t n = index // (all_.extent[1] * all_.extent[0])
    cdef ptrdiff_t first = (
        (z % all_.phases[0] * all_.phases[1] + y % all_.phases[1]) * all_.phases[2])
    cdef ptrdiff_t phase
    cdef const pass_t *p
    for phase in range(first, first + all_.phases[2]):
        p = &all_.each[phase]
        if p.axis[2].outputs > 0:
            _strips(
                p, g, s, uk, source + n * p.source_n,
                packed + all_.taps_before[phase] * s.vectors * s.vl, bias, last,
                result + n * p.result_n, scratch, z // all_.phases[0], y // all_.phases[1])


cdef void _run_passes(
    const passes_t *all_, const geometry_t *g, const cyconv_ukernels *uk,
    const floating *source, const floating *w, const floating *bias, floating *result,
    ptrdiff_t vl, const run_t *run
) noexcept nogil:
    cdef scratch_t s = _divide(all_, g, run.op, vl, sizeof(floating), run.threads)
    cdef floating *packed = <floating *> (run.scratch + s.shared_at)
    cdef ptrdiff_t index, phase
    cdef uint64_t before
    for phase in range(all_.count):
        _pack(&all_.each[phase], g, &s, w, packed + all_.taps_before[phase] * s.vectors * vl)
    for index in prange(s.rows, num_threads=run.threads, schedule='static'):
        before = cyconv_flush_begin() if run.flush else 0
        _row_task(
            all_, g, &s, uk, source, packed, bias, &run.last, result,
            run.scratch + threadid() * s.private_nbytes, index)
        if run.flush:
            cyconv_flush_end(before)


cdef void _gradient_row(
    const pass_t *p, const geometry_t *g, const scratch_t *s, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, ptrdiff_t depth, const ptrdiff_t *row,
    const ptrdiff_t *filter_row, ptrdiff_t begin, ptrdiff_t end, floating *sums
) noexcept nogil:
    """Add one row of outputs to the sums of vectors begin .. end-1."""
    cdef const axis_t *a2 = &p.axis[2]
    cdef ptrdiff_t height = cyconv_slide_height(a2.taps, a2.step)
    cdef ptrdiff_t piece, first, pixels, column, vector, channel, r, lo, hi
    for piece in range(ceil_div(a2.outputs, PIECE_PIXELS)):
        first = piece * PIECE_PIXELS
        pixels = min(<ptrdiff_t> PIECE_PIXELS, a2.outputs - first)
        column = first * a2.step + a2.least
        lo = max(-column, <ptrdiff_t> 0)
        hi = min(a2.size - column, (pixels - 1) * a2.step + a2.taps)
        for vector in range(begin, end):
            channel = _first_channel(s, g.groups, vector)
            r = 0
            while r < depth:
                slide_gradient(
                    uk, min(height, depth - r), a2.taps, a2.step, pixels,
                    x + column * a2.source_stride + channel, row + r, a2.source_stride,
                    dy + first * g.y_s[2] + channel, g.y_s[2], lo, hi,
                    sums + (vector - begin) * p.taps * s.vl, filter_row + r)
                r += height


cdef void _gradient_task(
    const pass_t *p, const geometry_t *g, const scratch_t *s, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, char *scratch, ptrdiff_t unit, ptrdiff_t segment,
    double *totals
) noexcept nogil:
    """The totals of a unit's vectors over a segment of rows."""
    cdef ptrdiff_t *row = <ptrdiff_t *> scratch
    cdef ptrdiff_t *filter_row = row + s.filter_rows
    cdef floating *sums = <floating *> (scratch + s.sums_at)
    cdef double *folded = <double *> (scratch + s.fold_at)
    cdef ptrdiff_t begin = unit * UNIT_VECTORS, end = min(begin + UNIT_VECTORS, s.vectors)
    cdef ptrdiff_t count = (end - begin) * p.taps * s.vl
    cdef ptrdiff_t last = min((segment + 1) * s.segment_rows, s.rows)
    cdef ptrdiff_t index, i, n, z, y, depth, pending = 0
    memset(sums, 0, count * sizeof(floating))
    memset(folded, 0, count * sizeof(double))
    for index in range(segment * s.segment_rows, last):
        y = index % p.axis[1].outputs
        z = index // p.axis[1].outputs % p.axis[0].outputs
        n = index // (p.axis[1].outputs * p.axis[0].outputs)
        depth = _list_rows(p, s, z, y, row, filter_row)
        _gradient_row(
            p, g, s, uk, x + n * g.x_n, dy + n * g.y_n + z * g.y_s[0] + y * g.y_s[1], depth, row,
            filter_row, begin, end, sums)
        pending += p.axis[2].outputs
        if pending >= FOLD_PIXELS or index == last - 1:
            for i in range(count):
                folded[i] += sums[i]
            memset(sums, 0, count * sizeof(floating))
            pending = 0
    totals += begin * p.taps * s.vl
    for i in range(count):
        totals[i] = folded[i]


cdef bint _run_gradient(
    const passes_t *all_, const geometry_t *g, const cyconv_ukernels *uk, const floating *x,
    const floating *dy, floating *dw, ptrdiff_t vl, char *scratch, int threads, bint flush
) noexcept nogil:
    cdef const pass_t *p = &all_.each[0]
    cdef scratch_t s = _divide(all_, g, 2, vl, sizeof(floating), threads)
    cdef double *totals = <double *> (scratch + s.shared_at)
    cdef ptrdiff_t all_totals = s.vectors * p.taps * vl
    cdef ptrdiff_t task, segment, vector, i0, i1, i2, j, k
    cdef const axis_t *axis = &p.axis[0]
    cdef floating *target
    cdef uint64_t before
    for task in prange(
        s.units * s.segments, num_threads=threads, schedule='dynamic', chunksize=1
    ):
        before = cyconv_flush_begin() if flush else 0
        _gradient_task(
            p, g, &s, uk, x, dy, scratch + threadid() * s.private_nbytes, task % s.units,
            task // s.units, totals + task // s.units * all_totals)
        if flush:
            cyconv_flush_end(before)
    for segment in range(1, s.segments):
        for k in range(all_totals):
            totals[k] += totals[segment * all_totals + k]
    if not all_finite(totals, all_totals):
        return False
    for vector in range(s.vectors):
        for i0 in range(axis[0].taps):
            for i1 in range(axis[1].taps):
                for i2 in range(axis[2].taps):
                    target = (
                        dw + _first_channel(&s, g.groups, vector) * g.w_o
                        + _tap_weight(axis, i0) + _tap_weight(axis + 1, i1)
                        + _tap_weight(axis + 2, i2))
                    for j in range(vl):
                        target[j * g.w_o] = <floating> totals[j]
                    totals += vl
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
        _run_passes(&all_, g, uk, y, w, bias, x, vl, c)
    else:
        _run_passes(&all_, g, uk, x, w, bias, y, vl, c)
    return True


cdef inline ptrdiff_t _lanes(Geometry geometry, const cyconv_ukernels *uk) noexcept:
    return uk.vl_f64 if geometry.double_precision else uk.vl_f32


def serves(Geometry geometry not None, str op):
    """Return whether the operator can be done in place: as many channels as a vector has, all
    contiguous, one a group; 1 to 5 or 7 taps along the last axis, without dilation there; there a
    stride of 1 or 2."""
    cdef passes_t all_
    cdef const geometry_t *g = &geometry.c
    cdef ptrdiff_t vl = _lanes(geometry, active()), phase
    if g.ci != 1 or g.co != 1 or g.groups < vl or g.x_c != 1 or g.y_c != 1:
        return False
    list_passes(g, OPERATORS[op], &all_)
    for phase in range(all_.count):
        if not _slides(&all_.each[phase].axis[2], OPERATORS[op]):
            return False
    return True


def workspace(Geometry geometry not None, str op, int threads):
    """Return the scratch bytes that `run` needs."""
    cdef passes_t all_
    cdef ptrdiff_t vl = _lanes(geometry, active())
    list_passes(&geometry.c, OPERATORS[op], &all_)
    return _divide(
        &all_, &geometry.c, OPERATORS[op], vl, 8 if geometry.double_precision else 4, threads
    ).nbytes


def run(Run call not None):
    """Compute one operator that `serves` names; the result is whichever of x, w and y the operator
    gives.

    Returns False,
    with the result undefined, for a weight gradient that is not finite.
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
