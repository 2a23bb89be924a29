"""Convolution with few channels a group, any layout, in vectors over neighbouring pixels.

A block of the image is copied into planes (`_planes`), strides undone. Rows of a plane follow each
other, and a sum runs over all of them in one go (`spread` for one output channel, `across` for
several); what falls between two rows is thrown away.

Weight gradients use the same slabs, and dy in planes of the same pitch with zeros between rows:
`dots` multiplies the streams of taps and outputs each with each. They are summed in the data's type
over at most FOLD_PIXELS pixels, and those sums in float64; blocks are divided into segments by the
problem alone.

Each element is summed in one order, whatever the threads or the batch are. Where zeros are
multiplied that the definition does not multiply (around the image in a data gradient, between rows
in a weight gradient) the other factor must be finite: `run` returns False otherwise.
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
    slab_place, store_rows,
)
from ._run cimport Run, epilogue_t, run_t
from ._ukernels cimport (
    CYCONV_DOTS, CYCONV_MOST_ROWS, across, active, cyconv_ukernels, dots, spread,
)

from ._run import OPERATORS

cdef enum:
    FOLD_PIXELS = 4096
    FEWEST_TASKS = 16           # of a weight gradient, if it has as many blocks


cdef struct blocks_t:
    planes_t planes
    ptrdiff_t mr, nr                    # rows and lanes of the microkernels
    ptrdiff_t entries                   # vectors of nr pixels that cover a block
    ptrdiff_t taps
    ptrdiff_t segments, segment_blocks
    # Shared: offsets. By thread: slab, weights or dy, results or sums. Then totals.
    ptrdiff_t private_at, factor_at, result_at, fold_at, private_nbytes, totals_at, nbytes


cdef ptrdiff_t _gang(const pass_t *p, const geometry_t *g, ptrdiff_t vl) noexcept nogil:
    """Groups that are transposed together: their channels fill a vector."""
    cdef ptrdiff_t fewest = min(g.ci, g.co)
    if p.source_c != 1 or p.result_c != 1 or fewest == 0 or fewest >= vl:
        return 1
    return min(g.groups, ceil_div(vl, fewest))


cdef blocks_t _divide(
    const passes_t *all_, const geometry_t *g, int op, const cyconv_ukernels *uk,
    ptrdiff_t itemsize, int threads
) noexcept nogil:
    """Choose blocks and the layout of the scratch."""
    cdef blocks_t b
    cdef const pass_t *p = &all_.each[0]
    cdef ptrdiff_t vl = uk.vl_f32 if itemsize == 4 else uk.vl_f64
    cdef ptrdiff_t lanes, count
    b.planes = divide_planes(all_, g, _gang(p, g, vl), True, vl, itemsize)
    b.mr, b.nr = uk.mr, 2 * vl
    b.entries = ceil_div((b.planes.rows - 1) * b.planes.high[2] + b.planes.cols, b.nr)
    b.taps = g.kernel[0] * g.kernel[1] * g.kernel[2]
    b.segments = 1
    if op == 2:
        b.segments = max(min(b.planes.count, ceil_div(FEWEST_TASKS, b.planes.units)), <ptrdiff_t> 1)
    b.segment_blocks = ceil_div(b.planes.count, b.segments)

    lanes = b.planes.gang * b.planes.outputs
    b.private_at = aligned(2 * b.taps * b.planes.inputs * <ptrdiff_t> sizeof(ptrdiff_t))
    b.factor_at = HELD + aligned(b.planes.slab_elements * itemsize)
    count = lanes * b.planes.inputs * b.taps
    if op == 2:
        b.result_at = b.factor_at + aligned(lanes * b.entries * b.nr * itemsize)
        b.fold_at = b.result_at + aligned(count * b.planes.vl * itemsize)
        b.private_nbytes = b.fold_at + aligned(count * b.planes.vl * <ptrdiff_t> sizeof(double))
    else:
        b.result_at = b.factor_at + aligned(b.planes.outputs * b.planes.inputs * b.taps * itemsize)
        b.fold_at = b.private_nbytes = b.result_at + aligned(
            all_.phases[2] * lanes * b.entries * b.nr * itemsize)
    b.totals_at = b.private_at + threads * b.private_nbytes
    b.nbytes = b.totals_at
    if op == 2:
        b.nbytes += b.planes.units * b.segments * count * <ptrdiff_t> sizeof(double)
    return b


cdef void _list_taps(
    const passes_t *all_, const blocks_t *b, ptrdiff_t *offset, ptrdiff_t *weight_offset
) noexcept nogil:
    """Offsets of each (channel, tap) in the slab and in the weights, pass by pass."""
    cdef ptrdiff_t phase, c, i0, i1, i2, k = 0
    cdef const pass_t *p
    cdef const axis_t *a0
    cdef const axis_t *a1
    cdef const axis_t *a2
    for phase in range(all_.count):
        p = &all_.each[phase]
        a0, a1, a2 = &p.axis[0], &p.axis[1], &p.axis[2]
        if p.taps == 0:
            continue
        for c in range(b.planes.inputs):
            for i0 in range(a0.taps):
                for i1 in range(a1.taps):
                    for i2 in range(a2.taps):
                        offset[k] = c * b.planes.plane + slab_place(
                            &b.planes, a0.origin + i0 * a0.between, a1.origin + i1 * a1.between,
                            a2.origin + i2 * a2.between)
                        weight_offset[k] = (
                            c * p.weight_c
                            + (a0.kernel_first + i0 * a0.kernel_every) * a0.weight_stride
                            + (a1.kernel_first + i1 * a1.kernel_every) * a1.weight_stride
                            + (a2.kernel_first + i2 * a2.kernel_every) * a2.weight_stride)
                        k = k + 1


cdef void _sum_pixels(
    const blocks_t *b, const cyconv_ukernels *uk, const floating *slab, ptrdiff_t depth,
    const ptrdiff_t *offset, const floating *weights, const floating *bias, ptrdiff_t entries,
    floating *c, ptrdiff_t c_row
) noexcept nogil:
    """All vectors of a block for every output channel of one group: c[channel*c_row + pixel]."""
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_ROWS * 2]
    cdef ptrdiff_t tiles, tile, first = 0, entry, m, i, count
    count = entries if b.planes.outputs == 1 else b.planes.outputs
    tiles = ceil_div(count, b.mr)
    for tile in range(tiles):
        m = count // tiles + (1 if tile < count % tiles else 0)
        if b.planes.outputs == 1:
            for i in range(b.nr):
                start[i] = bias[0] if bias != NULL else 0
            for i in range(m):
                rows[i] = slab + (first + i) * b.nr
            spread(uk, m, 2, depth, rows, offset, weights, start, c + first * b.nr, b.nr)
        else:
            for i in range(m):
                start[i] = bias[first + i] if bias != NULL else 0
                rows[i] = weights + (first + i) * depth
            for entry in range(entries):
                across(
                    uk, m, 2, depth, rows, offset, slab + entry * b.nr, start,
                    c + first * c_row + entry * b.nr, c_row)
        first += m


cdef bint _block_task(
    const passes_t *all_, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *source, const floating *w, const floating *bias, const epilogue_t *last,
    floating *result, bint only_finite, const ptrdiff_t *offset, char *scratch,
    ptrdiff_t first_group, ptrdiff_t index
) noexcept nogil:
    """One block of the groups of a task."""
    cdef const pass_t *p = &all_.each[0]
    cdef floating *slab = <floating *> (scratch + HELD)
    cdef floating *weights = <floating *> (scratch + b.factor_at)
    cdef floating *c = <floating *> (scratch + b.result_at)
    cdef const ptrdiff_t *weight_offset = offset + b.taps * b.planes.inputs
    cdef ptrdiff_t groups = min(b.planes.gang, g.groups - first_group), c_row = b.entries * b.nr
    cdef ptrdiff_t group, first, phase, depth, o, k, at_k
    cdef place_t at = place(&b.planes, index)
    if b.taps * b.planes.inputs > 0:
        fill_slab(
            p, &b.planes, uk, &at, source + first_group * b.planes.inputs * p.source_c,
            groups * b.planes.inputs, slab)
    w += first_group * g.co * g.w_o
    first = 0
    while first < all_.count:
        if all_.each[first].axis[1].outputs <= at.y or all_.each[first].axis[0].outputs <= at.z:
            first += all_.phases[2]
            continue
        for group in range(groups):
            for phase in range(first, first + all_.phases[2]):
                depth = all_.each[phase].depth
                at_k = all_.taps_before[phase] * b.planes.inputs
                for o in range(b.planes.outputs):
                    for k in range(depth):
                        weights[o * depth + k] = w[
                            group * g.co * g.w_o + o * p.weight_lane + weight_offset[at_k + k]]
                if only_finite and not all_finite(weights, b.planes.outputs * depth):
                    return False
                _sum_pixels(
                    b, uk, slab + group * b.planes.inputs * b.planes.plane, depth, offset + at_k,
                    weights,
                    bias + (first_group + group) * b.planes.outputs if bias != NULL else NULL,
                    b.entries,
                    c + ((phase - first) * b.planes.gang + group) * b.planes.outputs * c_row,
                    c_row)
        store_rows(
            all_, &b.planes, uk, &at, first, groups * b.planes.outputs, c, b.planes.high[2], c_row,
            last, result + first_group * b.planes.outputs * p.result_c)
        first += all_.phases[2]
    return True


cdef bint _run_passes(
    const passes_t *all_, const geometry_t *g, const cyconv_ukernels *uk,
    const floating *source, const floating *w, const floating *bias, floating *result,
    const run_t *run
) noexcept nogil:
    cdef blocks_t b = _divide(all_, g, run.op, uk, sizeof(floating), run.threads)
    cdef ptrdiff_t *offset = <ptrdiff_t *> run.scratch
    cdef ptrdiff_t task, bad = 0
    cdef uint64_t before
    _list_taps(all_, &b, offset, offset + b.taps * b.planes.inputs)
    forget_slabs(run.scratch + b.private_at, b.private_nbytes, run.threads)
    for task in prange(b.planes.units * b.planes.count, num_threads=run.threads, schedule='static'):
        before = cyconv_flush_begin() if run.flush else 0
        if not _block_task(
            all_, g, &b, uk, source, w, bias, &run.last, result, run.op == 1, offset,
            run.scratch + b.private_at + threadid() * b.private_nbytes,
            task % b.planes.units * b.planes.gang, task // b.planes.units
        ):
            bad += 1
        if run.flush:
            cyconv_flush_end(before)
    return bad == 0


cdef void _sum_taps(
    const blocks_t *b, const cyconv_ukernels *uk, const floating *slab, const ptrdiff_t *offset,
    const floating *dy, ptrdiff_t groups, floating *sums
) noexcept nogil:
    """Add a block to the lanes' sums of every tap and output: tiles of taps by outputs."""
    cdef const floating *seen[CYCONV_DOTS]
    cdef const floating *given[CYCONV_DOTS]
    cdef ptrdiff_t group, o, k, m, n, i, depth = b.taps * b.planes.inputs
    for group in range(groups):
        o = 0
        while o < b.planes.outputs:
            n = min(<ptrdiff_t> CYCONV_DOTS, b.planes.outputs - o)
            for i in range(n):
                given[i] = dy + (group * b.planes.outputs + o + i) * b.entries * b.nr
            k = 0
            while k < depth:
                m = min(<ptrdiff_t> CYCONV_DOTS, depth - k)
                for i in range(m):
                    seen[i] = slab + group * b.planes.inputs * b.planes.plane + offset[k + i]
                dots(uk, m, n, 2 * b.entries, seen, given, sums)
                sums += m * n * b.planes.vl
                k += m
            o += n


cdef void _gradient_task(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, const ptrdiff_t *offset, char *scratch,
    ptrdiff_t first_group, ptrdiff_t segment, double *totals
) noexcept nogil:
    """The totals of a task's groups over a segment of blocks, in the order of `_sum_taps`."""
    cdef floating *slab = <floating *> (scratch + HELD)
    cdef floating *gradient = <floating *> (scratch + b.factor_at)
    cdef floating *sums = <floating *> (scratch + b.result_at)
    cdef double *folded = <double *> (scratch + b.fold_at)
    cdef ptrdiff_t groups = min(b.planes.gang, g.groups - first_group)
    cdef ptrdiff_t count = groups * b.planes.outputs * b.planes.inputs * b.taps
    cdef ptrdiff_t last = min((segment + 1) * b.segment_blocks, b.planes.count)
    cdef ptrdiff_t index, i, j, rows, cols, pending = 0
    cdef place_t at
    memset(sums, 0, count * b.planes.vl * sizeof(floating))
    memset(folded, 0, count * b.planes.vl * sizeof(double))
    for index in range(segment * b.segment_blocks, last):
        at = place(&b.planes, index)
        rows = min(b.planes.rows, p.axis[1].outputs - at.y)
        cols = min(b.planes.cols, p.axis[2].outputs - at.x)
        fill_slab(p, &b.planes, uk, &at, x + first_group * g.ci * g.x_c, groups * g.ci, slab)
        memset(gradient, 0, groups * g.co * b.entries * b.nr * sizeof(floating))
        copy_planes(
            uk, groups * g.co, rows, cols,
            dy + first_group * g.co * g.y_c + at.n * g.y_n + at.z * g.y_s[0] + at.y * g.y_s[1]
            + at.x * g.y_s[2],
            g.y_c, g.y_s[1], g.y_s[2], gradient, b.entries * b.nr, b.planes.high[2])
        _sum_taps(b, uk, slab, offset, gradient, groups, sums)
        pending += rows * cols
        if pending >= FOLD_PIXELS or index == last - 1:
            for i in range(count * b.planes.vl):
                folded[i] += sums[i]
            memset(sums, 0, count * b.planes.vl * sizeof(floating))
            pending = 0
    for i in range(count):
        totals[i] = 0
        for j in range(b.planes.vl):
            totals[i] += folded[i * b.planes.vl + j]


cdef void _store_gradient(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const ptrdiff_t *weight_offset,
    ptrdiff_t first_group, const double *totals, floating *dw
) noexcept nogil:
    """Write a task's totals, which are in the order of `_sum_taps`."""
    cdef ptrdiff_t group, o, k, m, n, i, j, depth = b.taps * b.planes.inputs
    for group in range(first_group, min(first_group + b.planes.gang, g.groups)):
        o = 0
        while o < b.planes.outputs:
            n = min(<ptrdiff_t> CYCONV_DOTS, b.planes.outputs - o)
            k = 0
            while k < depth:
                m = min(<ptrdiff_t> CYCONV_DOTS, depth - k)
                for i in range(m):
                    for j in range(n):
                        dw[(group * g.co + o + j) * g.w_o + weight_offset[k + i]] = (
                            <floating> totals[i * n + j])
                totals += m * n
                k += m
            o += n


cdef bint _run_gradient(
    const passes_t *all_, const geometry_t *g, const cyconv_ukernels *uk, const floating *x,
    const floating *dy, floating *dw, char *scratch, int threads, bint flush
) noexcept nogil:
    cdef blocks_t b = _divide(all_, g, 2, uk, sizeof(floating), threads)
    cdef const pass_t *p = &all_.each[0]
    cdef double *totals = <double *> (scratch + b.totals_at)
    cdef ptrdiff_t *offset = <ptrdiff_t *> scratch
    cdef ptrdiff_t count = b.planes.gang * b.planes.outputs * b.planes.inputs * b.taps
    cdef ptrdiff_t task, segment, k
    cdef uint64_t before
    _list_taps(all_, &b, offset, offset + b.taps * b.planes.inputs)
    forget_slabs(scratch + b.private_at, b.private_nbytes, threads)
    memset(totals, 0, b.planes.units * b.segments * count * sizeof(double))
    for task in prange(
        b.planes.units * b.segments, num_threads=threads, schedule='dynamic', chunksize=1
    ):
        before = cyconv_flush_begin() if flush else 0
        _gradient_task(
            p, g, &b, uk, x, dy, offset, scratch + b.private_at + threadid() * b.private_nbytes,
            task % b.planes.units * b.planes.gang, task // b.planes.units, totals + task * count)
        if flush:
            cyconv_flush_end(before)
    for segment in range(1, b.segments):
        for k in range(b.planes.units * count):
            totals[k] += totals[segment * b.planes.units * count + k]
    if not all_finite(totals, b.planes.units * count):
        return False
    for task in range(b.planes.units):
        _store_gradient(
            p, g, &b, offset + b.taps * b.planes.inputs, task * b.planes.gang,
            totals + task * count, dw)
    return True


cdef bint _run(
    const geometry_t *g, const run_t *c, const cyconv_ukernels *uk, floating *x
) noexcept nogil:
    cdef floating *w = <floating *> c.w
    cdef floating *y = <floating *> c.y
    cdef const floating *bias = <const floating *> c.bias
    cdef passes_t all_
    list_passes(g, c.op, &all_)
    if c.op == 2:
        return _run_gradient(&all_, g, uk, x, y, w, c.scratch, c.threads, c.flush)
    if c.op == 1:
        return _run_passes(&all_, g, uk, y, w, bias, x, c)
    return _run_passes(&all_, g, uk, x, w, bias, y, c)


def workspace(Geometry geometry not None, str op, int threads):
    """Return the scratch bytes that `run` needs."""
    cdef passes_t all_
    list_passes(&geometry.c, OPERATORS[op], &all_)
    return _divide(
        &all_, &geometry.c, OPERATORS[op], active(), 8 if geometry.double_precision else 4, threads
    ).nbytes


def run(Run call not None):
    """Compute one operator; the result is whichever of x, w and y the operator gives.

    Returns False,
    with the result undefined, for a data gradient whose weights are not all finite and for a weight
    gradient that is not.
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
