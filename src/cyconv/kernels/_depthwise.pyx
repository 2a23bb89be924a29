"""Convolution with few channels a group, depthwise above all, in vectors over pixels or channels.

    pixel lanes     any layout; a vector holds neighbouring pixels, which share each weight
                    (`spread`). A block of the image is copied plane by plane into a slab with its
                    zeros around it. A stride is undone there: columns and rows of each remainder
                    modulo the stride form planes of their own, so that neighbouring outputs always
                    see neighbouring elements. Rows of a plane follow each other, and the sum runs
                    over all of them in one go; what falls between two rows is thrown away.
    channel lanes   channels last, one channel a group; a vector holds neighbouring channels, each
                    with its own weights (`along`). The slab holds one vector of channels a pixel.

Weight gradients use the same slabs: rows of the microkernel are then taps, and its depth is pixels
(`along`, with dy as the other factor). They are summed in the data's type over at most FOLD_PIXELS
pixels, and those sums in float64; pixels are divided into segments by the problem alone.

Each element is summed in one order, whatever the threads or the batch are. Where zeros are
multiplied that the definition does not multiply (data gradients, and weight gradients between rows)
the other factor must be finite: `run` returns False otherwise.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

from ._geometry cimport Geometry, address, geometry_t
from ._passes cimport (
    aligned, all_finite, axis_t, ceil_div, cyconv_flush_begin, cyconv_flush_end, data_pass,
    forward_pass, pass_t, slab_span,
)
from ._patches cimport valid_range
from ._ukernels cimport (
    CYCONV_MOST_LANES, CYCONV_MOST_ROWS, active, along, collect, cyconv_ukernels, spread,
)

cnp.import_array()

cdef enum:
    SLAB_BYTES = 20480          # of a block: it should stay in the first cache level
    PIXEL_COLUMNS = 512         # most columns of a block, by kind of lanes
    CHANNEL_COLUMNS = 64
    FOLD_PIXELS = 4096
    FEWEST_TASKS = 16           # of a weight gradient, if it has as many blocks

OPERATORS = {"fwd": 0, "dx": 1, "dw": 2}


cdef struct blocks_t:
    bint flush                          # subnormal numbers to zero, in every thread
    bint channel_lanes
    int mr, vl, nv
    ptrdiff_t nr                        # lanes of a row of the microkernel
    ptrdiff_t units                     # groups, or chunks of nr channels
    ptrdiff_t rows, cols                # of a full block
    ptrdiff_t n_rows, n_cols, count     # how many blocks, over the batch too
    ptrdiff_t step[3]                   # between planes that a stride splits (pixel lanes)
    ptrdiff_t high[3]                   # extent of a plane of the slab
    ptrdiff_t plane, slab_elements
    ptrdiff_t entries                   # vectors of results of a block (pixel lanes), or pixels
    ptrdiff_t depth                     # taps, times channels of the source (pixel lanes)
    ptrdiff_t segments, segment_blocks
    # Scratch of each thread (in it: where dy or the weights are, and so on), and what all share.
    ptrdiff_t weights_at, positions_at, c_at, private_nbytes
    ptrdiff_t private_at, totals_at, task_totals, nbytes


cdef void _size_slab(const pass_t *p, blocks_t *b) noexcept nogil:
    cdef ptrdiff_t spans[3]
    cdef int a
    spans[0] = slab_span(&p.axis[0], 1)
    spans[1] = slab_span(&p.axis[1], b.rows)
    spans[2] = slab_span(&p.axis[2], b.cols)
    b.step[0] = 1
    for a in range(1, 3):
        b.step[a] = 1 if b.channel_lanes else p.axis[a].step
    for a in range(3):
        b.high[a] = ceil_div(spans[a], b.step[a])
    b.plane = b.high[0] * b.step[1] * b.step[2] * b.high[1] * b.high[2]
    if b.channel_lanes:
        b.slab_elements = b.plane * b.nr
        b.entries = b.rows * b.cols
    else:
        # The last vectors read beyond the last plane's end.
        b.entries = ceil_div((b.rows - 1) * b.high[2] + b.cols, b.nr)
        b.slab_elements = p.channels * b.plane + b.nr


cdef blocks_t _divide(
    const pass_t *p, const geometry_t *g, int op, const cyconv_ukernels *uk, ptrdiff_t itemsize,
    int threads
) noexcept nogil:
    """Choose lanes, blocks and the layout of the scratch."""
    cdef blocks_t b
    cdef ptrdiff_t most, halo
    b.mr = uk.mr
    b.vl = uk.vl_f32 if itemsize == 4 else uk.vl_f64
    b.nv = 2
    b.channel_lanes = (
        g.ci == 1 and g.co == 1 and g.groups > 1
        and (g.y_c == 1 if op == 0 else g.x_c == 1))
    if b.channel_lanes:
        if g.groups <= b.vl:
            b.nv = 1
    elif p.axis[2].outputs <= b.vl and p.axis[1].outputs == 1:
        b.nv = 1
    b.nr = b.nv * b.vl
    b.units = ceil_div(g.groups, b.nr) if b.channel_lanes else g.groups
    b.depth = p.taps * (1 if b.channel_lanes else p.channels)

    most = CHANNEL_COLUMNS if b.channel_lanes else PIXEL_COLUMNS
    b.n_cols = ceil_div(p.axis[2].outputs, most)
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
    # results, or sums of lanes folded and in the data's type.
    b.private_at = aligned(2 * b.depth * <ptrdiff_t> sizeof(ptrdiff_t))
    b.task_totals = 0
    b.weights_at = aligned(b.slab_elements * itemsize)
    if op == 2:
        b.positions_at = b.weights_at + aligned(b.entries * b.nr * itemsize)
        b.c_at = b.positions_at + aligned(b.entries * <ptrdiff_t> sizeof(ptrdiff_t))
        b.private_nbytes = b.c_at + aligned(
            b.depth * (1 if b.channel_lanes else g.co) * b.nr
            * (itemsize + <ptrdiff_t> sizeof(double)))
        b.task_totals = b.depth * (b.nr if b.channel_lanes else g.co)
    else:
        b.positions_at = b.c_at = (
            b.weights_at + aligned(b.depth * itemsize * (b.nr if b.channel_lanes else 1)))
        b.private_nbytes = b.c_at + aligned(b.entries * b.nr * itemsize)
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


cdef inline ptrdiff_t _slab_place(
    const blocks_t *b, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x
) noexcept nogil:
    """Where a position of the source, counted from the slab's corner, lies in the slab."""
    return (
        (((z * b.step[1] + y % b.step[1]) * b.step[2] + x % b.step[2]) * b.high[1]
         + y // b.step[1]) * b.high[2] + x // b.step[2])


cdef void _list_taps(const pass_t *p, const blocks_t *b, ptrdiff_t *offset) noexcept nogil:
    """Offsets of each (channel, tap) in the slab, then in the weights."""
    cdef ptrdiff_t *weight_offset = offset + b.depth
    cdef const axis_t *a0 = &p.axis[0]
    cdef const axis_t *a1 = &p.axis[1]
    cdef const axis_t *a2 = &p.axis[2]
    cdef ptrdiff_t c, i0, i1, i2, k = 0
    cdef ptrdiff_t channels = 1 if b.channel_lanes else p.channels
    for c in range(channels):
        for i0 in range(a0.taps):
            for i1 in range(a1.taps):
                for i2 in range(a2.taps):
                    offset[k] = c * b.plane + _slab_place(
                        b, a0.origin + i0 * a0.between - a0.least,
                        a1.origin + i1 * a1.between - a1.least,
                        a2.origin + i2 * a2.between - a2.least)
                    if b.channel_lanes:
                        offset[k] *= b.nr
                    weight_offset[k] = (
                        c * p.weight_c
                        + (a0.kernel_first + i0 * a0.kernel_every) * a0.weight_stride
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
    for x in range(count):
        for j in range(lanes):
            target[x * b.nr + j] = source[x * pixel + j * channel]
        for j in range(lanes, b.nr):
            target[x * b.nr + j] = 0


cdef void _fill_line(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *row,
    ptrdiff_t x0, ptrdiff_t lanes, ptrdiff_t high, floating *target
) noexcept nogil:
    """One row of a plane, from source column x0 on in steps; zeros outside the source."""
    cdef ptrdiff_t step = b.step[2], stride = p.axis[2].source_stride, lo, hi, x
    cdef const floating *source
    valid_range(x0, step, p.axis[2].size, high, &lo, &hi)
    source = row + x0 * stride
    stride *= step
    if b.channel_lanes:
        memset(target, 0, lo * b.nr * sizeof(floating))
        _copy_lanes(
            b, uk, source + lo * stride, stride, p.source_c, lanes, hi - lo, target + lo * b.nr)
        memset(target + hi * b.nr, 0, (high - hi) * b.nr * sizeof(floating))
        return
    for x in range(lo):
        target[x] = 0
    if stride == 1:
        memcpy(target + lo, source + lo, (hi - lo) * sizeof(floating))
    else:
        for x in range(lo, hi):
            target[x] = source[x * stride]
    for x in range(hi, high):
        target[x] = 0


cdef void _fill_slab(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const place_t *at,
    const floating *source, ptrdiff_t lanes, floating *slab
) noexcept nogil:
    """The part of an image that a block sees; source points at its group or first channel."""
    cdef ptrdiff_t c, z, ry, rx, y, source_z, source_y
    cdef ptrdiff_t channels = 1 if b.channel_lanes else p.channels
    cdef ptrdiff_t line = b.high[2] * (b.nr if b.channel_lanes else 1)
    cdef ptrdiff_t z0 = at.z * p.axis[0].step + p.axis[0].least
    cdef ptrdiff_t y0 = at.y * p.axis[1].step + p.axis[1].least
    cdef ptrdiff_t x0 = at.x * p.axis[2].step + p.axis[2].least
    cdef floating *target = slab
    for c in range(channels):
        for z in range(b.high[0]):
            source_z = z0 + z
            for ry in range(b.step[1]):
                for rx in range(b.step[2]):
                    for y in range(b.high[1]):
                        source_y = y0 + ry + y * b.step[1]
                        if 0 <= source_z < p.axis[0].size and 0 <= source_y < p.axis[1].size:
                            _fill_line(
                                p, b, uk,
                                source + at.n * p.source_n + c * p.source_c
                                + source_z * p.axis[0].source_stride
                                + source_y * p.axis[1].source_stride,
                                x0 + rx, lanes, b.high[2], target)
                        else:
                            memset(target, 0, line * sizeof(floating))
                        target += line
    memset(target, 0, (slab + b.slab_elements - target) * sizeof(floating))


cdef void _pixel_sums(
    const blocks_t *b, const cyconv_ukernels *uk, const floating *slab, const ptrdiff_t *offset,
    const floating *weights, floating bias, ptrdiff_t entries, floating *c
) noexcept nogil:
    """All vectors of a block for one output channel (pixel lanes)."""
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_LANES]
    cdef ptrdiff_t tiles = ceil_div(entries, b.mr), tile, first = 0, i, m
    for i in range(b.nr):
        start[i] = bias
    for tile in range(tiles):
        m = entries // tiles + (1 if tile < entries % tiles else 0)
        for i in range(m):
            rows[i] = slab + (first + i) * b.nr
        spread(uk, m, b.nv, b.depth, rows, offset, weights, start, c + first * b.nr, b.nr)
        first += m


cdef bint _pixel_task(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *source,
    const floating *w, const floating *bias, floating *result, bint only_finite,
    const ptrdiff_t *offset, char *scratch, ptrdiff_t index
) noexcept nogil:
    """One block of one group; operands point at the group."""
    cdef floating *slab = <floating *> scratch
    cdef const ptrdiff_t *weight_offset = offset + b.depth
    cdef floating *weights = <floating *> (scratch + b.weights_at)
    cdef floating *c = <floating *> (scratch + b.c_at)
    cdef const axis_t *a1 = &p.axis[1]
    cdef const axis_t *a2 = &p.axis[2]
    cdef place_t at = _place(p, b, index)
    cdef ptrdiff_t o, k, y, x, pixel = a2.every * a2.result_stride
    cdef ptrdiff_t entries = ceil_div((at.rows - 1) * b.high[2] + at.cols, b.nr)
    cdef floating *target
    if b.depth > 0:
        _fill_slab(p, b, uk, &at, source, 0, slab)
    for o in range(p.lanes):
        for k in range(b.depth):
            weights[k] = w[o * p.weight_lane + weight_offset[k]]
        if only_finite and not all_finite(weights, b.depth):
            return False
        _pixel_sums(b, uk, slab, offset, weights, bias[o] if bias != NULL else 0, entries, c)
        for y in range(at.rows):
            target = (
                result + at.n * p.result_n + o * p.result_c
                + (p.axis[0].first + at.z * p.axis[0].every) * p.axis[0].result_stride
                + (a1.first + (at.y + y) * a1.every) * a1.result_stride
                + (a2.first + at.x * a2.every) * a2.result_stride)
            if pixel == 1:
                memcpy(target, c + y * b.high[2], at.cols * sizeof(floating))
            else:
                for x in range(at.cols):
                    target[x * pixel] = c[y * b.high[2] + x]
    return True


cdef bint _channel_task(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *source,
    const floating *w, ptrdiff_t weight_lane, const floating *bias, floating *result,
    ptrdiff_t lanes, bint only_finite, const ptrdiff_t *offset, char *scratch, ptrdiff_t index
) noexcept nogil:
    """One block of a chunk of channels; operands point at the first of them."""
    cdef floating *slab = <floating *> scratch
    cdef const ptrdiff_t *weight_offset = offset + b.depth
    cdef floating *weights = <floating *> (scratch + b.weights_at)
    cdef floating *c = <floating *> (scratch + b.c_at)
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_LANES]
    cdef const axis_t *a1 = &p.axis[1]
    cdef const axis_t *a2 = &p.axis[2]
    cdef place_t at = _place(p, b, index)
    cdef ptrdiff_t k, y, x, i, j, m, tile, tiles = ceil_div(at.cols, b.mr)
    cdef ptrdiff_t pixel = a2.every * a2.result_stride
    cdef floating *target
    cdef floating *row
    for j in range(b.nr):
        start[j] = bias[j] if bias != NULL and j < lanes else 0
        for k in range(b.depth):
            weights[k * b.nr + j] = w[j * weight_lane + weight_offset[k]] if j < lanes else 0
    if only_finite and not all_finite(weights, b.depth * b.nr):
        return False
    if b.depth > 0:
        _fill_slab(p, b, uk, &at, source, lanes, slab)
    for y in range(at.rows):
        target = (
            result + at.n * p.result_n
            + (p.axis[0].first + at.z * p.axis[0].every) * p.axis[0].result_stride
            + (a1.first + (at.y + y) * a1.every) * a1.result_stride
            + (a2.first + at.x * a2.every) * a2.result_stride)
        row = slab + y * a1.step * b.high[2] * b.nr
        x = 0
        for tile in range(tiles):
            m = at.cols // tiles + (1 if tile < at.cols % tiles else 0)
            for i in range(m):
                rows[i] = row + (x + i) * a2.step * b.nr
            if lanes == b.nr:
                along(uk, m, b.nv, b.depth, rows, offset, weights, start, target + x * pixel, pixel)
            else:
                along(uk, m, b.nv, b.depth, rows, offset, weights, start, c, b.nr)
                for i in range(m):
                    for j in range(lanes):
                        target[(x + i) * pixel + j] = c[i * b.nr + j]
            x += m
    return True


cdef bint _run_pass(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *source, const floating *w, const floating *bias, floating *result,
    ptrdiff_t group_weights, bint only_finite, char *scratch, int threads
) noexcept nogil:
    """One pass of all groups, whose weights are `group_weights` apart."""
    cdef ptrdiff_t task, unit, index, bad = 0
    cdef ptrdiff_t *offset = <ptrdiff_t *> scratch
    cdef uint64_t before
    _list_taps(p, b, offset)
    for task in prange(b.units * b.count, num_threads=threads, schedule='static'):
        unit = task % b.units
        index = task // b.units
        before = cyconv_flush_begin() if b.flush else 0
        if b.channel_lanes:
            if not _channel_task(
                p, b, uk, source + unit * b.nr * p.source_c, w + unit * b.nr * group_weights,
                group_weights, bias + unit * b.nr if bias != NULL else NULL,
                result + unit * b.nr * p.result_c, min(b.nr, g.groups - unit * b.nr),
                only_finite, offset, scratch + b.private_at + threadid() * b.private_nbytes, index
            ):
                bad += 1
        elif not _pixel_task(
            p, b, uk, source + unit * p.channels * p.source_c, w + unit * group_weights,
            bias + unit * p.lanes if bias != NULL else NULL,
            result + unit * p.lanes * p.result_c, only_finite, offset,
            scratch + b.private_at + threadid() * b.private_nbytes, index
        ):
            bad += 1
        if b.flush:
            cyconv_flush_end(before)
    return bad == 0


cdef void _copy_gradient(
    const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk, const place_t *at,
    const floating *dy, ptrdiff_t lanes, floating *target
) noexcept nogil:
    """A block of dy as the microkernel's vectors: pixels by lanes, or rows as far apart as those
    of a plane with zeros between."""
    cdef ptrdiff_t y, x
    cdef const floating *row
    memset(target, 0, b.entries * b.nr * sizeof(floating))
    for y in range(at.rows):
        row = (
            dy + at.n * g.y_n + at.z * g.y_s[0] + (at.y + y) * g.y_s[1] + at.x * g.y_s[2])
        if b.channel_lanes:
            _copy_lanes(
                b, uk, row, g.y_s[2], g.y_c, lanes, at.cols, target + y * at.cols * b.nr)
        elif g.y_s[2] == 1:
            memcpy(target + y * b.high[2], row, at.cols * sizeof(floating))
        else:
            for x in range(at.cols):
                target[y * b.high[2] + x] = row[x * g.y_s[2]]


cdef void _tap_sums(
    const blocks_t *b, const cyconv_ukernels *uk, const floating *slab, const ptrdiff_t *offset,
    const ptrdiff_t *position, ptrdiff_t entries, const floating *dy, bint first, floating *sums
) noexcept nogil:
    """Add a block to the lanes' sums of every tap."""
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_LANES]
    cdef ptrdiff_t tiles = ceil_div(b.depth, b.mr), tile, k = 0, i, m
    memset(start, 0, sizeof(start))
    for tile in range(tiles):
        m = b.depth // tiles + (1 if tile < b.depth % tiles else 0)
        for i in range(m):
            rows[i] = slab + offset[k + i]
        along(
            uk, m, b.nv, entries, rows, position, dy, start if first else NULL, sums + k * b.nr,
            b.nr)
        k += m


cdef bint _gradient_task(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, ptrdiff_t lanes, const ptrdiff_t *offset,
    char *scratch, ptrdiff_t segment, double *totals
) noexcept nogil:
    """One segment of blocks of a group or chunk: totals of every tap (and lane)."""
    cdef floating *slab = <floating *> scratch
    cdef floating *gradient = <floating *> (scratch + b.weights_at)
    cdef ptrdiff_t *position = <ptrdiff_t *> (scratch + b.positions_at)
    cdef ptrdiff_t outputs = 1 if b.channel_lanes else g.co
    cdef ptrdiff_t count = outputs * b.depth * b.nr
    cdef double *folded = <double *> (scratch + b.c_at)
    cdef floating *sums = <floating *> (folded + count)
    cdef ptrdiff_t first = segment * b.segment_blocks
    cdef ptrdiff_t last = min(first + b.segment_blocks, b.count)
    cdef ptrdiff_t index, o, i, j, k, y, pending = 0, entries
    cdef place_t at
    for i in range(count):
        folded[i] = 0
    for index in range(first, last):
        at = _place(p, b, index)
        _fill_slab(p, b, uk, &at, x, lanes, slab)
        if not b.channel_lanes and not all_finite(slab, b.slab_elements):
            return False
        if b.channel_lanes:
            entries = at.rows * at.cols
            for y in range(at.rows):
                for i in range(at.cols):
                    position[y * at.cols + i] = (
                        (y * p.axis[1].step * b.high[2] + i * p.axis[2].step) * b.nr)
        else:
            entries = ceil_div((at.rows - 1) * b.high[2] + at.cols, b.nr)
            for i in range(entries):
                position[i] = i * b.nr
        for o in range(outputs):
            _copy_gradient(g, b, uk, &at, dy + o * g.y_c, lanes, gradient)
            _tap_sums(
                b, uk, slab, offset, position, entries, gradient, pending == 0,
                sums + o * b.depth * b.nr)
        pending += at.rows * at.cols
        if pending >= FOLD_PIXELS or index == last - 1:
            for i in range(count):
                folded[i] += sums[i]
            pending = 0
    if b.channel_lanes:
        for i in range(count):
            totals[i] = folded[i]
        return True
    for k in range(outputs * b.depth):
        totals[k] = 0
        for j in range(b.nr):
            totals[k] += folded[k * b.nr + j]
    return True


cdef bint _run_gradient(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, floating *dw, char *scratch, int threads
) noexcept nogil:
    cdef double *totals = <double *> (scratch + b.totals_at)
    cdef ptrdiff_t *offset = <ptrdiff_t *> scratch
    cdef ptrdiff_t *weight_offset = offset + b.depth
    cdef ptrdiff_t task, unit, segment, k, o, s, bad = 0, inputs, outputs, lanes
    cdef double total
    cdef uint64_t before
    inputs = b.nr if b.channel_lanes else g.ci
    outputs = b.nr if b.channel_lanes else g.co
    _list_taps(p, b, offset)
    for task in prange(
        b.units * b.segments, num_threads=threads, schedule='dynamic', chunksize=1
    ):
        unit = task // b.segments
        segment = task % b.segments
        before = cyconv_flush_begin() if b.flush else 0
        if not _gradient_task(
            p, g, b, uk, x + unit * inputs * g.x_c, dy + unit * outputs * g.y_c,
            min(b.nr, g.groups - unit * b.nr), offset,
            scratch + b.private_at + threadid() * b.private_nbytes, segment,
            totals + task * b.task_totals
        ):
            bad += 1
        if b.flush:
            cyconv_flush_end(before)
    if bad > 0:
        return False
    for unit in range(b.units):
        lanes = min(outputs, g.groups * g.co - unit * outputs)
        for o in range(lanes):
            for k in range(b.depth):
                total = 0
                for s in range(b.segments):
                    total += totals[
                        (unit * b.segments + s) * b.task_totals
                        + (k * b.nr + o if b.channel_lanes else o * b.depth + k)]
                dw[(unit * outputs + o) * g.w_o + weight_offset[k]] = <floating> total
    return True


cdef bint _run(
    const geometry_t *g, int op, const cyconv_ukernels *uk, floating *x, floating *w, floating *y,
    const floating *bias, char *scratch, int threads, bint flush
) noexcept nogil:
    cdef pass_t p
    cdef blocks_t b
    cdef ptrdiff_t phase
    if op != 1:
        p = forward_pass(g)
        b = _divide(&p, g, op, uk, sizeof(floating), threads)
        b.flush = flush
        if op == 2:
            return _run_gradient(&p, g, &b, uk, x, y, w, scratch, threads)
        return _run_pass(
            &p, g, &b, uk, x, w, bias, y, g.co * g.w_o, False, scratch, threads)
    for phase in range(g.stride[0] * g.stride[1] * g.stride[2]):
        if not data_pass(g, phase, &p):
            continue
        b = _divide(&p, g, op, uk, sizeof(floating), threads)
        b.flush = flush
        if not _run_pass(
            &p, g, &b, uk, y, w, bias, x, g.co * g.w_o, True, scratch, threads
        ):
            return False
    return True


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


def run(
    Geometry geometry not None, str op, cnp.ndarray x not None, cnp.ndarray w not None,
    cnp.ndarray y not None, cnp.ndarray bias, cnp.ndarray scratch not None, int threads,
    bint flush
):
    """Compute one operator; the result is whichever of x, w and y the operator gives.

    `scratch` holds at least the bytes that `workspace` names for the same arguments. Returns False,
    with the result undefined, for a gradient of values that are not all finite.
    """
    cdef int code = OPERATORS[op]
    cdef const cyconv_ukernels *uk = active()
    cdef void *px = address(x)
    cdef void *pw = address(w)
    cdef void *py = address(y)
    cdef void *pb = address(bias) if bias is not None else NULL
    cdef char *ps = <char *> address(scratch)
    cdef bint done
    cdef ptrdiff_t needed = workspace(geometry, op, threads)
    if scratch.nbytes < needed:
        raise ValueError(f"scratch has {scratch.nbytes} bytes, {needed} are needed")
    with nogil:
        if geometry.double_precision:
            done = _run[double](
                &geometry.c, code, uk, <double *> px, <double *> pw, <double *> py,
                <const double *> pb, ps, threads, flush)
        else:
            done = _run[float](
                &geometry.c, code, uk, <float *> px, <float *> pw, <float *> py,
                <const float *> pb, ps, threads, flush)
    return done
