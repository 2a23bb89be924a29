"""Blocks of pixels as slabs: the part of an image that a block sees, channels last, with its zeros.

A slab is copied once a block (a layout or an odd stride of the array ends there) unless the array
itself will do: then positions and offsets point into it.
"""

from cython cimport floating
from libc.string cimport memcpy, memset

from ._passes cimport LINE, aligned, axis_t, ceil_div, pass_t, slab_span
from ._patches cimport valid_range
from ._run cimport epilogue_t, finish
from ._ukernels cimport cyconv_ukernels, move, transpose


cdef enum:
    BLOCK_PIXELS = 448          # rows of C (forward), or depth (weight backward), of a block
    FEW_CHANNELS = 4            # of a source, of which a block of C sees four times as many pixels
    SLAB_BYTES = 524288         # preferred most, so that a slab stays in the second cache level
    BLOCK_DEPTH = 448           # of B at a time: 448 rows of two AVX2 vectors fill most of L1


cdef struct blocks_t:
    bint flush                          # subnormal numbers to zero, in every thread
    int mr, vl
    ptrdiff_t nr                                # lanes of a full panel
    ptrdiff_t images, rows, cols                # of a full block
    ptrdiff_t n_images, n_rows, n_cols, count   # how many blocks
    bint in_place                               # no slab: the source will do
    ptrdiff_t slab[3]
    ptrdiff_t pitch                             # between pixels of the slab
    ptrdiff_t slab_image, slab_elements
    ptrdiff_t panels, packed                    # panels in all; packed at a time
    ptrdiff_t splits                            # tasks that share a block's panels
    # Scratch: offsets, packed panels or sums, then what each thread has for itself.
    ptrdiff_t offsets_at, weight_offsets_at, pack_at, private_at, private_nbytes, nbytes


cdef inline bint is_readable(const pass_t *p, int op) noexcept nogil:
    """Whether the source will do as it lies: every tap of every output is inside, and what the
    product runs along is contiguous, channels or (weight backward) the pixels of a row."""
    cdef int a
    cdef const axis_t *axis
    if p.source_c != 1 and p.channels > 1 and (op != 2 or p.axis[2].source_stride != 1):
        return False
    for a in range(3):
        axis = &p.axis[a]
        if axis.taps == 0 or axis.least < 0:
            return False
        if (
            (axis.outputs - 1) * axis.step + axis.least
            + (axis.taps - 1) * (axis.between if axis.between > 0 else -axis.between) >= axis.size
        ):
            return False
    return True


cdef inline void size_slab(const pass_t *p, blocks_t *b) noexcept nogil:
    b.slab[0] = slab_span(&p.axis[0], 1)
    b.slab[1] = slab_span(&p.axis[1], b.rows)
    b.slab[2] = slab_span(&p.axis[2], b.cols)
    b.slab_image = b.slab[0] * b.slab[1] * b.slab[2] * b.pitch
    b.slab_elements = 0 if b.in_place else b.images * b.slab_image


cdef inline ptrdiff_t slab_pitch(ptrdiff_t channels, ptrdiff_t itemsize) noexcept nogil:
    """Elements from pixel to pixel of a slab: an odd number of cache lines if it is several, so
    that neighbouring pixels do not compete for a few sets of the cache."""
    cdef ptrdiff_t line = LINE // itemsize
    if channels < 2 * line:
        return channels
    return (ceil_div(channels, line) | 1) * line


cdef inline blocks_t divide_blocks(
    const pass_t *p, int op, const cyconv_ukernels *uk, ptrdiff_t itemsize, ptrdiff_t limit,
    int threads
) noexcept nogil:
    """Choose blocks of pixels. Those of a weight gradient do not depend on the threads: they decide
    the sum's order."""
    cdef blocks_t b
    cdef ptrdiff_t plane = p.axis[1].outputs * p.axis[2].outputs
    cdef ptrdiff_t slab_most = min(<ptrdiff_t> SLAB_BYTES, limit // (4 if op == 2 else 2 * threads))
    cdef ptrdiff_t most = BLOCK_PIXELS * (4 if op != 2 and p.channels <= FEW_CHANNELS else 1)
    b.mr = uk.mr
    b.vl = uk.vl_f32 if itemsize == 4 else uk.vl_f64
    b.nr = 2 * b.vl
    b.panels = ceil_div(p.lanes, b.nr)
    b.in_place = is_readable(p, op)
    b.pitch = slab_pitch(p.channels, itemsize)

    # Whole images if several fit a block, else whole rows, else a piece of a row.
    b.images = 1
    b.cols = p.axis[2].outputs
    b.rows = p.axis[1].outputs
    if p.axis[0].outputs == 1 and plane > 0:
        b.images = max(min(p.batch, most // plane), <ptrdiff_t> 1)
    if plane > most:
        b.rows = max(most // b.cols, <ptrdiff_t> 1)
    if b.cols > most:
        b.cols = ceil_div(b.cols, ceil_div(b.cols, most))
    size_slab(p, &b)
    while b.images * b.rows * b.cols > b.mr and (
        b.slab_elements * itemsize > slab_most
        or op != 2 and b.images * b.rows * b.cols * b.nr * itemsize > slab_most
    ):
        if b.images > 1:
            b.images = ceil_div(b.images, 2)
        elif b.rows > 1:
            b.rows = ceil_div(b.rows, 2)
        else:
            b.cols = ceil_div(b.cols, 2)
        size_slab(p, &b)
    b.n_images = ceil_div(p.batch, b.images)
    b.n_rows = ceil_div(p.axis[1].outputs, b.rows)
    b.n_cols = ceil_div(p.axis[2].outputs, b.cols)
    b.rows = ceil_div(p.axis[1].outputs, b.n_rows)
    b.cols = ceil_div(p.axis[2].outputs, b.n_cols)
    size_slab(p, &b)
    b.count = b.n_images * p.axis[0].outputs * b.n_rows * b.n_cols
    b.offsets_at = 0
    b.weight_offsets_at = aligned(p.depth * <ptrdiff_t> sizeof(ptrdiff_t))
    b.pack_at = 2 * b.weight_offsets_at
    return b


cdef inline blocks_t blocks_of_panels(
    const pass_t *p, int op, const cyconv_ukernels *uk, ptrdiff_t itemsize, ptrdiff_t limit,
    int threads
) noexcept nogil:
    """Blocks of forward and data backward, and the scratch that they need beside packed weights;
    nbytes exceeds the limit if none fits."""
    cdef blocks_t b = divide_blocks(p, op, uk, itemsize, limit, threads)
    cdef ptrdiff_t pixels = b.images * b.rows * b.cols, panel = p.depth * b.nr * itemsize, room
    b.private_nbytes = (
        aligned(b.slab_elements * itemsize) + aligned(pixels * b.nr * itemsize)
        + aligned(pixels * <ptrdiff_t> sizeof(ptrdiff_t)))
    room = limit - b.pack_at - threads * b.private_nbytes - 4 * LINE
    b.packed = max(min(b.panels, room // max(panel, 1)), <ptrdiff_t> 1)
    b.private_at = b.pack_at + aligned(b.packed * panel)
    b.nbytes = b.private_at + threads * b.private_nbytes
    b.splits = 1
    if threads > 1 and b.count < 4 * threads:
        b.splits = min(b.packed, ceil_div(4 * threads, max(b.count, 1)))
    return b


cdef inline void list_depth(
    const pass_t *p, const blocks_t *b, ptrdiff_t *offset, ptrdiff_t *weight_offset
) noexcept nogil:
    """Offsets of each k in the slab (or the source) and in the weights."""
    cdef ptrdiff_t strides[3]
    cdef ptrdiff_t i0, i1, i2, c, tap, k, at, weight_at, channel
    cdef ptrdiff_t place[3]
    cdef const axis_t *a0 = &p.axis[0]
    cdef const axis_t *a1 = &p.axis[1]
    cdef const axis_t *a2 = &p.axis[2]
    if b.in_place:
        strides[0], strides[1] = a0.source_stride, a1.source_stride
        strides[2] = a2.source_stride
        channel = p.source_c
    else:
        channel = 1
        strides[2] = b.pitch
        strides[1] = b.slab[2] * strides[2]
        strides[0] = b.slab[1] * strides[1]
    tap = 0
    for i0 in range(a0.taps):
        for i1 in range(a1.taps):
            for i2 in range(a2.taps):
                place[0] = a0.origin + i0 * a0.between - (0 if b.in_place else a0.least)
                place[1] = a1.origin + i1 * a1.between - (0 if b.in_place else a1.least)
                place[2] = a2.origin + i2 * a2.between - (0 if b.in_place else a2.least)
                at = place[0] * strides[0] + place[1] * strides[1] + place[2] * strides[2]
                weight_at = (
                    (a0.kernel_first + i0 * a0.kernel_every) * a0.weight_stride
                    + (a1.kernel_first + i1 * a1.kernel_every) * a1.weight_stride
                    + (a2.kernel_first + i2 * a2.kernel_every) * a2.weight_stride)
                for c in range(p.channels):
                    k = tap * p.channels + c if p.channels_inner else c * p.taps + tap
                    offset[k] = at + c * channel
                    weight_offset[k] = weight_at + c * p.weight_c
                tap = tap + 1


cdef inline int vectors_of(const blocks_t *b, ptrdiff_t lanes) noexcept nogil:
    return 2 if lanes > b.vl else 1


cdef inline void fill_slab_row(
    const pass_t *p, const cyconv_ukernels *uk, const floating *row, ptrdiff_t first,
    ptrdiff_t cols, ptrdiff_t pitch, floating *target
) noexcept nogil:
    """One row of a slab: `cols` pixels, channels last, from column `first` of a source row."""
    cdef ptrdiff_t lo, hi, x, c, stride = p.axis[2].source_stride
    cdef const floating *source
    valid_range(first, 1, p.axis[2].size, cols, &lo, &hi)
    memset(target, 0, lo * pitch * sizeof(floating))
    memset(target + hi * pitch, 0, (cols - hi) * pitch * sizeof(floating))
    source = row + (first + lo) * stride
    target += lo * pitch
    cols = hi - lo
    if p.source_c == 1 and stride == pitch == p.channels:
        memcpy(target, source, cols * pitch * sizeof(floating))
    elif p.source_c == 1:
        for x in range(cols):
            memcpy(target + x * pitch, source + x * stride, p.channels * sizeof(floating))
    elif stride == 1:
        transpose(uk, p.channels, cols, source, p.source_c, target, pitch)
    else:
        for x in range(cols):
            for c in range(p.channels):
                target[x * pitch + c] = source[x * stride + c * p.source_c]


cdef struct place_t:
    ptrdiff_t n, images, z, y, rows, x, cols


cdef inline place_t block_place(
    const pass_t *p, const blocks_t *b, ptrdiff_t index
) noexcept nogil:
    """The images, depth, rows and columns of outputs that a block covers."""
    cdef place_t at
    at.x = index % b.n_cols * b.cols
    index = index // b.n_cols
    at.y = index % b.n_rows * b.rows
    index = index // b.n_rows
    at.z = index % p.axis[0].outputs
    at.n = index // p.axis[0].outputs * b.images
    at.images = min(b.images, p.batch - at.n)
    at.rows = min(b.rows, p.axis[1].outputs - at.y)
    at.cols = min(b.cols, p.axis[2].outputs - at.x)
    return at


cdef inline void fill_slab_line(
    const pass_t *p, const blocks_t *b, const place_t *at, const cyconv_ukernels *uk,
    const floating *source, ptrdiff_t line, floating *slab
) noexcept nogil:
    """Line `line` of a block's slab, counted over images, depth and rows."""
    cdef ptrdiff_t y = line % b.slab[1]
    cdef ptrdiff_t z = line // b.slab[1] % b.slab[0]
    cdef ptrdiff_t n = line // (b.slab[1] * b.slab[0])
    cdef ptrdiff_t source_z = at.z * p.axis[0].step + p.axis[0].least + z
    cdef ptrdiff_t source_y = at.y * p.axis[1].step + p.axis[1].least + y
    cdef floating *target = slab + line * b.slab[2] * b.pitch
    if 0 <= source_z < p.axis[0].size and 0 <= source_y < p.axis[1].size:
        fill_slab_row(
            p, uk,
            source + (at.n + n) * p.source_n + source_z * p.axis[0].source_stride
            + source_y * p.axis[1].source_stride,
            at.x * p.axis[2].step + p.axis[2].least, b.slab[2], b.pitch, target)
    else:
        memset(target, 0, b.slab[2] * b.pitch * sizeof(floating))


cdef inline void list_pixels(
    const pass_t *p, const blocks_t *b, const place_t *at, ptrdiff_t *position
) noexcept nogil:
    """Offset of each output pixel of a block in its slab, or in the source."""
    cdef ptrdiff_t n, y, x, i = 0
    cdef ptrdiff_t image = b.slab_image, row = b.slab[2] * b.pitch, pixel = b.pitch, base = 0
    if b.in_place:
        image = p.source_n
        row, pixel = p.axis[1].source_stride, p.axis[2].source_stride
        base = (
            at.n * image + at.z * p.axis[0].step * p.axis[0].source_stride
            + at.y * p.axis[1].step * row + at.x * p.axis[2].step * pixel)
    for n in range(at.images):
        for y in range(at.rows):
            for x in range(at.cols):
                position[i] = (
                    base + n * image + y * p.axis[1].step * row + x * p.axis[2].step * pixel)
                i = i + 1


cdef inline ptrdiff_t result_offset(
    const pass_t *p, const place_t *at, ptrdiff_t n, ptrdiff_t y
) noexcept nogil:
    """Offset in the result of the first pixel of row `y` of image `n` of a block."""
    return (
        (at.n + n) * p.result_n
        + (p.axis[0].first + at.z * p.axis[0].every) * p.axis[0].result_stride
        + (p.axis[1].first + (at.y + y) * p.axis[1].every) * p.axis[1].result_stride
        + (p.axis[2].first + at.x * p.axis[2].every) * p.axis[2].result_stride)


cdef inline ptrdiff_t result_step(const pass_t *p, const place_t *at) noexcept nogil:
    """From pixel to pixel of a block in a channels-last result, 0 if they are not evenly spaced."""
    cdef ptrdiff_t pixel = p.axis[2].every * p.axis[2].result_stride
    cdef ptrdiff_t row = p.axis[1].every * p.axis[1].result_stride
    if p.result_c != 1 or (at.rows > 1 and row != at.cols * pixel):
        return 0
    if at.images > 1 and p.result_n != at.rows * at.cols * pixel:
        return 0
    return pixel


cdef inline void store_block(
    const pass_t *p, const place_t *at, const cyconv_ukernels *uk, const floating *c,
    ptrdiff_t c_pixel, ptrdiff_t c_lane, ptrdiff_t lanes, const epilogue_t *last, floating *result
) noexcept nogil:
    """Write some lanes of a block's pixels to the result, which points at the first of them, and
    finish them; in c either lanes are neighbours or pixels are."""
    cdef ptrdiff_t pixel = p.axis[2].every * p.axis[2].result_stride
    cdef ptrdiff_t n, y, x, j, rows = at.rows, cols = at.cols
    cdef floating *target
    if p.axis[1].every * p.axis[1].result_stride == cols * pixel:   # rows follow each other
        cols *= rows
        rows = 1
    for n in range(at.images):
        for y in range(rows):
            target = result + result_offset(p, at, n, y)
            if p.result_c == 1:
                if c_lane == 1:
                    move(uk, cols, lanes, c, c_pixel, 1, target, pixel, 1)
                else:
                    transpose(uk, lanes, cols, c, c_lane, target, pixel)
                finish(last, uk, cols, lanes, target, pixel, 1)
            else:
                if pixel != 1:
                    for j in range(lanes):
                        for x in range(cols):
                            target[j * p.result_c + x * pixel] = c[x * c_pixel + j * c_lane]
                elif c_lane == 1:
                    transpose(uk, cols, lanes, c, c_pixel, target, p.result_c)
                else:
                    move(uk, lanes, cols, c, c_lane, 1, target, p.result_c, 1)
                finish(last, uk, lanes, cols, target, p.result_c, pixel)
            c += cols * c_pixel
