"""Blocks of an image as planes: a slab with a plane for each channel and its zeros around it.

A stride can be undone in it: columns (and rows, if `split_rows`) of each remainder modulo the
stride then form planes of their own, so that neighbouring outputs always see neighbouring elements.
All phases of a strided data gradient see the same slab. A task takes one group, or a gang of them
that fills a vector with channels where these lie next to each other in memory: they are transposed
into planes and back.
"""

from cython cimport floating
from libc.string cimport memset

from ._geometry cimport geometry_t
from ._passes cimport LINE, axis_t, ceil_div, pass_t, passes_t
from ._patches cimport valid_range
from ._run cimport epilogue_t, finish
from ._ukernels cimport cyconv_ukernels, move, transpose, unzip_rows, zip_rows


cdef enum:
    HELD = LINE                 # bytes before a slab: which block it holds
    SLAB_BYTES = 20480          # of a block: it should stay in the first cache level
    MOST_COLUMNS = 512          # of a block


cdef struct planes_t:
    bint split_rows
    ptrdiff_t vl                        # lanes of a vector
    ptrdiff_t inputs, outputs           # channels of a group's source and result
    ptrdiff_t gang, units               # groups of a full task; tasks that cover all groups
    # The source as all passes together see it, counted in steps of a pass.
    ptrdiff_t least[3]
    ptrdiff_t reach[3]
    ptrdiff_t rows, cols                # of a full block, of each phase
    ptrdiff_t n_z, n_rows, n_cols, count
    ptrdiff_t step[3]                   # between planes that a stride splits
    ptrdiff_t high[3]                   # extent of such a plane
    ptrdiff_t plane                     # elements of the slab for a channel
    ptrdiff_t slab_elements             # two vectors more than the planes: sums may read on


cdef inline void size_slab(planes_t *b, const pass_t *p) noexcept nogil:
    cdef ptrdiff_t extent[3]
    cdef int a
    extent[0], extent[1], extent[2] = 1, b.rows, b.cols
    for a in range(3):
        b.step[a] = p.axis[a].step if a == 2 or (a == 1 and b.split_rows) else 1
        b.high[a] = ceil_div((extent[a] - 1) * p.axis[a].step + 1 + b.reach[a], b.step[a])
    b.plane = b.high[0] * b.step[1] * b.step[2] * b.high[1] * b.high[2]
    b.slab_elements = b.gang * b.inputs * b.plane + 2 * b.vl


cdef inline void list_reach(const passes_t *all_, planes_t *b) noexcept nogil:
    """What all passes together see of the source."""
    cdef ptrdiff_t phase, most
    cdef const axis_t *axis
    cdef int a
    for a in range(3):
        b.least[a] = b.reach[a] = most = 0
        for phase in range(all_.count):
            axis = &all_.each[phase].axis[a]
            if axis.taps > 0:
                b.least[a] = min(b.least[a], axis.least)
                most = max(most, axis.least + (axis.taps - 1) * max(axis.between, -axis.between))
        b.reach[a] = most - b.least[a]


cdef inline planes_t divide_planes(
    const passes_t *all_, const geometry_t *g, ptrdiff_t gang, bint split_rows, ptrdiff_t vl,
    ptrdiff_t itemsize
) noexcept nogil:
    """Choose blocks: whole rows if they are not too long, as many as fit the cache."""
    cdef planes_t b
    cdef const pass_t *p = &all_.each[0]
    b.vl, b.split_rows = vl, split_rows
    b.inputs, b.outputs = p.channels, p.lanes
    b.gang, b.units = gang, ceil_div(g.groups, gang)
    list_reach(all_, &b)
    b.n_cols = ceil_div(p.axis[2].outputs, MOST_COLUMNS)
    b.cols = ceil_div(p.axis[2].outputs, b.n_cols)
    b.rows = p.axis[1].outputs
    size_slab(&b, p)
    while b.slab_elements * itemsize > SLAB_BYTES and b.rows > max(b.reach[1] + 1, <ptrdiff_t> 4):
        b.rows = ceil_div(b.rows, 2)
        size_slab(&b, p)
    b.n_rows = ceil_div(p.axis[1].outputs, b.rows)
    b.rows = ceil_div(p.axis[1].outputs, b.n_rows)
    size_slab(&b, p)
    b.n_z = p.axis[0].outputs
    b.count = p.batch * b.n_z * b.n_rows * b.n_cols
    return b


cdef struct place_t:
    ptrdiff_t n, z, y, x                # image; depth, row and column of a pass's first output


cdef inline place_t place(const planes_t *b, ptrdiff_t index) noexcept nogil:
    cdef place_t at
    at.x = index % b.n_cols * b.cols
    index = index // b.n_cols
    at.y = index % b.n_rows * b.rows
    index = index // b.n_rows
    at.z = index % b.n_z
    at.n = index // b.n_z
    return at


cdef inline ptrdiff_t slab_place(
    const planes_t *b, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x
) noexcept nogil:
    """Where a position of the source, as a pass counts it, lies in a channel's planes."""
    z, y, x = z - b.least[0], y - b.least[1], x - b.least[2]
    return (
        (((z * b.step[1] + y % b.step[1]) * b.step[2] + x % b.step[2]) * b.high[1]
         + y // b.step[1]) * b.high[2] + x // b.step[2])


cdef inline void copy_planes(
    const cyconv_ukernels *uk, ptrdiff_t channels, ptrdiff_t rows, ptrdiff_t cols,
    const floating *source, ptrdiff_t channel, ptrdiff_t row, ptrdiff_t pixel, floating *target,
    ptrdiff_t plane, ptrdiff_t pitch
) noexcept nogil:
    """target[c*plane + y*pitch + x] = source[c*channel + y*row + x*pixel]."""
    cdef ptrdiff_t c, y
    if channel == 1 and pixel != 1 and channels > 1:
        for y in range(rows):
            transpose(uk, cols, channels, source + y * row, pixel, target + y * pitch, plane)
    else:
        for c in range(channels):
            move(
                uk, rows, cols, source + c * channel, row, pixel, target + c * plane, pitch, 1)


cdef struct held_t:
    ptrdiff_t z, y, x, channels


cdef inline void forget_slabs(char *slabs, ptrdiff_t nbytes, int threads) noexcept nogil:
    """Nothing is known of what the slabs hold, one each `nbytes`; HELD bytes are before each."""
    cdef int thread
    for thread in range(threads):
        (<held_t *> (slabs + thread * nbytes)).channels = -1


cdef inline void _clear(
    const planes_t *b, const place_t *at, ptrdiff_t channels, floating *slab
) noexcept nogil:
    """Zeros where the next block has no source: they are there if the last one lay alike."""
    cdef held_t *held = <held_t *> (<char *> slab - HELD)
    if held.z != at.z or held.y != at.y or held.x != at.x or held.channels != channels:
        memset(slab, 0, b.slab_elements * sizeof(floating))
        held.z, held.y, held.x, held.channels = at.z, at.y, at.x, channels


cdef inline void split_planes(
    const cyconv_ukernels *uk, ptrdiff_t channels, ptrdiff_t rows, ptrdiff_t lo, ptrdiff_t hi,
    const floating *source, ptrdiff_t channel, ptrdiff_t row, floating *target, ptrdiff_t plane,
    ptrdiff_t pitch, ptrdiff_t half
) noexcept nogil:
    """Columns lo .. hi-1 by turns to two planes, `half` from each other."""
    cdef floating *first = target + lo // 2
    cdef floating *second = first + half
    cdef ptrdiff_t c
    if lo % 2:
        first, second = second, first + 1
    for c in range(channels):
        unzip_rows(
            uk, rows, hi - lo, source + c * channel + lo, row, first + c * plane,
            second + c * plane, pitch)


cdef inline void fill_slab(
    const pass_t *p, const planes_t *b, const cyconv_ukernels *uk, const place_t *at,
    const floating *source, ptrdiff_t channels, floating *slab
) noexcept nogil:
    """The part of an image that a block sees; source points at the first of its channels. There are
    HELD bytes before the slab, see `forget_slabs`."""
    cdef const axis_t *axis = p.axis
    cdef ptrdiff_t z0 = at.z * axis[0].step + b.least[0], z, ry, rx, y_lo, y_hi, x_lo, x_hi
    cdef ptrdiff_t y0 = at.y * axis[1].step + b.least[1], x0 = at.x * axis[2].step + b.least[2]
    source += at.n * p.source_n
    _clear(b, at, channels, slab)
    for z in range(b.high[0]):
        if not 0 <= z0 + z < axis[0].size:
            continue
        for ry in range(b.step[1]):
            valid_range(y0 + ry, b.step[1], axis[1].size, b.high[1], &y_lo, &y_hi)
            if b.step[2] == 2 and axis[2].source_stride == 1:
                valid_range(x0, 1, axis[2].size, 2 * b.high[2], &x_lo, &x_hi)
                split_planes(
                    uk, channels, y_hi - y_lo, x_lo, x_hi,
                    source + (z0 + z) * axis[0].source_stride
                    + (y0 + ry + y_lo * b.step[1]) * axis[1].source_stride + x0,
                    p.source_c, b.step[1] * axis[1].source_stride,
                    slab + ((z * b.step[1] + ry) * 2 * b.high[1] + y_lo) * b.high[2],
                    b.plane, b.high[2], b.high[1] * b.high[2])
                continue
            for rx in range(b.step[2]):
                valid_range(x0 + rx, b.step[2], axis[2].size, b.high[2], &x_lo, &x_hi)
                copy_planes(
                    uk, channels, y_hi - y_lo, x_hi - x_lo,
                    source + (z0 + z) * axis[0].source_stride
                    + (y0 + ry + y_lo * b.step[1]) * axis[1].source_stride
                    + (x0 + rx + x_lo * b.step[2]) * axis[2].source_stride,
                    p.source_c, b.step[1] * axis[1].source_stride,
                    b.step[2] * axis[2].source_stride,
                    slab + (((z * b.step[1] + ry) * b.step[2] + rx) * b.high[1] + y_lo)
                    * b.high[2] + x_lo,
                    b.plane, b.high[2])


cdef inline ptrdiff_t result_place(
    const pass_t *p, const place_t *at
) noexcept nogil:
    """Offset in the result of a block's first output, but for the phase of its column."""
    return (
        at.n * p.result_n + (p.axis[0].first + at.z * p.axis[0].every) * p.axis[0].result_stride
        + (p.axis[1].first + at.y * p.axis[1].every) * p.axis[1].result_stride
        + at.x * p.axis[2].every * p.axis[2].result_stride)


cdef inline void store_rows(
    const passes_t *all_, const planes_t *b, const cyconv_ukernels *uk, const place_t *at,
    ptrdiff_t phase, ptrdiff_t channels, const floating *c, ptrdiff_t pitch, ptrdiff_t c_row,
    const epilogue_t *last, floating *result
) noexcept nogil:
    """Write the sums of all column phases from `phase` on, c[channel*c_row + y*pitch + x] of a full
    gang after that of the phase before, and finish them; result points at the first channel."""
    cdef const pass_t *p = &all_.each[phase]
    cdef const axis_t *a2 = &p.axis[2]
    cdef ptrdiff_t rows = min(b.rows, p.axis[1].outputs - at.y)
    cdef ptrdiff_t row = p.axis[1].every * p.axis[1].result_stride
    cdef ptrdiff_t pixel = a2.every * a2.result_stride
    cdef ptrdiff_t c_phase = b.gang * b.outputs * c_row
    cdef ptrdiff_t channel, y, cols, other
    result += result_place(p, at)
    if pixel == 2 and all_.phases[2] == 2:
        cols = 0
        for other in range(2):
            cols += max(
                min(b.cols, all_.each[phase + other].axis[2].outputs - at.x), <ptrdiff_t> 0)
        for channel in range(channels):
            zip_rows(
                uk, rows, cols, c + channel * c_row, c + channel * c_row + c_phase, pitch,
                result + channel * p.result_c, row)
            finish(last, uk, rows, cols, result + channel * p.result_c, row, 1)
        return
    for other in range(all_.phases[2]):
        cols = min(b.cols, all_.each[phase + other].axis[2].outputs - at.x)
        if cols > 0 and p.result_c == 1 and pixel != 1 and channels > 1:
            for y in range(rows):
                transpose(uk, channels, cols, c + y * pitch, c_row, result + y * row, pixel)
                finish(last, uk, cols, channels, result + y * row, pixel, 1)
        elif cols > 0:
            for channel in range(channels):
                move(
                    uk, rows, cols, c + channel * c_row, pitch, 1,
                    result + channel * p.result_c, row, pixel)
                finish(last, uk, rows, cols, result + channel * p.result_c, row, pixel)
        c += c_phase
        result += a2.result_stride
