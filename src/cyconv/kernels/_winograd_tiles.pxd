"""Tiles of an image: where they lie, how they are read and transformed, how results are written.

An axis is tiled if its kernel is 3, else untiled: its outputs are taken one by one and its taps are
`slices`, which only lengthen the sum over channels. Axis 0 is never tiled.

The pixels of a tile are as far apart as the taps, the dilation d. Tiles interleave: d of them, each
one pixel after the other, cover d times a tile's outputs, then the next d follow.
"""

from cython cimport floating
from libc.string cimport memcpy, memset

from ._passes cimport ceil_div, pass_t
from ._run cimport epilogue_t, finish
from ._ukernels cimport cyconv_ukernels
from ._winograd_ukernels cimport (
    CYCONV_MOST_POINTS, transform_input, transform_output, transform_spread, turn,
)


cdef struct form_t:
    int number                  # of the microkernels: see ukernel/winograd.h
    int points
    ptrdiff_t rows, cols        # points of each tiled axis, else 1
    ptrdiff_t height, width     # outputs of a tile
    ptrdiff_t between[3]        # taps
    ptrdiff_t apart[3]          # pixels of a tile: as taps are, where there are more than one
    ptrdiff_t taps              # of a slice: 3 or 9
    ptrdiff_t grid[3]           # tiles of an image
    ptrdiff_t slices, row_slices


cdef inline ptrdiff_t _tiles(ptrdiff_t size, ptrdiff_t outputs, ptrdiff_t apart) noexcept nogil:
    """Tiles that cover `size` outputs of an axis."""
    cdef ptrdiff_t rest = size % (outputs * apart)
    return size // (outputs * apart) * apart + min(rest, apart)


cdef inline ptrdiff_t tile_start(
    ptrdiff_t tile, ptrdiff_t outputs, ptrdiff_t apart
) noexcept nogil:
    """The first output of a tile along an axis."""
    return tile // apart * outputs * apart + tile % apart


cdef inline form_t make_form(const pass_t *p, ptrdiff_t outputs) noexcept nogil:
    """The tiles of `outputs` (4 or 2) along each tiled axis."""
    cdef form_t f
    cdef int a
    cdef bint flat = p.axis[1].taps != 3 or p.axis[2].taps != 3
    f.number = (2 if flat else 0) + (0 if outputs == 4 else 1)
    f.height, f.width = outputs, outputs
    if flat:
        f.height = outputs if p.axis[2].taps != 3 else 1
        f.width = outputs if p.axis[2].taps == 3 else 1
    f.rows = f.height + 2 if f.height > 1 else 1
    f.cols = f.width + 2 if f.width > 1 else 1
    f.points = <int> (f.rows * f.cols)
    f.taps = 3 if flat else 9
    for a in range(3):
        f.between[a] = p.axis[a].between if p.axis[a].between > 0 else -p.axis[a].between
        f.apart[a] = 1
    if f.height > 1:
        f.apart[1] = f.between[1]
    if f.width > 1:
        f.apart[2] = f.between[2]
    f.grid[0] = p.axis[0].outputs
    f.grid[1] = _tiles(p.axis[1].outputs, f.height, f.apart[1])
    f.grid[2] = _tiles(p.axis[2].outputs, f.width, f.apart[2])
    f.row_slices = p.axis[1].taps if f.height == 1 else 1
    f.slices = p.axis[0].taps * f.row_slices
    return f


cdef struct place_t:
    # A block of tiles: images n.., plane z, tile rows y.., tile columns x..
    ptrdiff_t n, images, z, y, rows, x, cols


cdef struct blocks_t:
    ptrdiff_t images, rows, cols                # tiles of a full block
    ptrdiff_t n_images, n_rows, n_cols, count   # how many blocks
    ptrdiff_t tiles


cdef inline ptrdiff_t _even(ptrdiff_t tiles, ptrdiff_t most, ptrdiff_t apart) noexcept nogil:
    """Tiles of a block, where `most` are meant to be in one, so that all blocks are about as large;
    interleaved tiles stay together."""
    return ceil_div(ceil_div(tiles, ceil_div(tiles, most)), apart) * apart


cdef inline blocks_t divide(const form_t *f, ptrdiff_t batch, ptrdiff_t most) noexcept nogil:
    """Blocks of about `most` tiles: whole images, else whole rows, else a piece of a row."""
    cdef blocks_t b
    cdef ptrdiff_t plane = f.grid[1] * f.grid[2]
    b.images = b.rows = 1
    b.cols = f.grid[2]
    if f.grid[0] == 1:
        b.images = max(min(batch, most // plane), <ptrdiff_t> 1)
    if plane <= most:
        b.rows = f.grid[1]
    else:
        b.rows = max(most // b.cols, <ptrdiff_t> 1)
    b.images = _even(batch, b.images, 1)
    b.rows = _even(f.grid[1], b.rows, f.apart[1])
    b.cols = _even(f.grid[2], min(b.cols, most), f.apart[2])
    b.n_images = ceil_div(batch, b.images)
    b.n_rows = ceil_div(f.grid[1], b.rows)
    b.n_cols = ceil_div(f.grid[2], b.cols)
    b.count = b.n_images * f.grid[0] * b.n_rows * b.n_cols
    b.tiles = b.images * b.rows * b.cols
    return b


cdef inline place_t place_of(
    const form_t *f, const blocks_t *b, ptrdiff_t batch, ptrdiff_t index
) noexcept nogil:
    cdef place_t at
    at.x = index % b.n_cols * b.cols
    index = index // b.n_cols
    at.y = index % b.n_rows * b.rows
    index = index // b.n_rows
    at.z = index % f.grid[0]
    at.n = index // f.grid[0] * b.images
    at.images = min(b.images, batch - at.n)
    at.rows = min(b.rows, f.grid[1] - at.y)
    at.cols = min(b.cols, f.grid[2] - at.x)
    return at


cdef struct window_t:
    # What tiles see of an array from `least` on: `rows` by `cols` pixels, `apart`, for a tile's
    # `outputs`.
    ptrdiff_t rows, cols
    ptrdiff_t outputs[3], apart[3]
    ptrdiff_t least[3]
    ptrdiff_t size[3]
    ptrdiff_t n, c
    ptrdiff_t stride[3]
    ptrdiff_t channels, pitch       # channels, and rounded up to whole vectors
    bint in_place                   # pixels can be read as vectors where they lie
    bint spread                     # by which transform


cdef inline ptrdiff_t window_span(const window_t *w, int axis, ptrdiff_t count) noexcept nogil:
    """Pixels that the first `count` tiles of a block see along axis 1 or 2."""
    cdef ptrdiff_t points = w.rows if axis == 1 else w.cols
    return (
        tile_start(count - 1, w.outputs[axis], w.apart[axis]) + (points - 1) * w.apart[axis] + 1)


cdef inline void cover(
    const window_t *w, const place_t *at, ptrdiff_t shift, int axis, ptrdiff_t *lo, ptrdiff_t *hi
) noexcept nogil:
    """The part lo .. hi-1 of axis 1 or 2 that a block's tiles see, cut to the array."""
    cdef ptrdiff_t first = at.y if axis == 1 else at.x, count = at.rows if axis == 1 else at.cols
    lo[0] = tile_start(first, w.outputs[axis], w.apart[axis]) + w.least[axis] + shift
    hi[0] = lo[0] + window_span(w, axis, count)
    lo[0] = min(max(lo[0], <ptrdiff_t> 0), w.size[axis])
    hi[0] = max(min(hi[0], w.size[axis]), lo[0])


cdef inline void copy_box(
    const window_t *w, const cyconv_ukernels *uk, const floating *plane, ptrdiff_t y_lo,
    ptrdiff_t y_hi, ptrdiff_t x_lo, ptrdiff_t x_hi, ptrdiff_t channel, ptrdiff_t channels,
    ptrdiff_t pitch, floating *slab
) noexcept nogil:
    """Some channels of a box of pixels, channels last, `pitch` apart; zeros beyond `channels`."""
    cdef ptrdiff_t y, x, c, cols = x_hi - x_lo, rows = y_hi - y_lo, row = w.stride[1]
    cdef const floating *source
    if channels < pitch:
        memset(slab, 0, rows * cols * pitch * sizeof(floating))
    if w.stride[2] == 1 and row == cols:    # rows follow each other: one long one
        cols, rows = rows * cols, 1
    for y in range(rows):
        source = plane + (y_lo + y) * row + x_lo * w.stride[2] + channel * w.c
        if w.c == 1:
            for x in range(cols):
                memcpy(slab + x * pitch, source + x * w.stride[2], channels * sizeof(floating))
        elif w.stride[2] == 1:
            turn(uk, channels, cols, source, w.c, slab, pitch)
        else:
            for x in range(cols):
                for c in range(channels):
                    slab[x * pitch + c] = source[x * w.stride[2] + c * w.c]
        slab += cols * pitch


cdef inline void read_tiles(
    const window_t *w, int form, const cyconv_ukernels *uk, const place_t *at, ptrdiff_t image,
    ptrdiff_t z, ptrdiff_t shift, ptrdiff_t channel, ptrdiff_t channels, const floating *source,
    const floating *zeros, floating *slab, floating *v, ptrdiff_t v_tile, ptrdiff_t v_point,
    int points, floating *check
) noexcept nogil:
    """Transform some channels (whole vectors of them) of a block's tiles in one image and plane;
    v is the image's first tile. Rows are those of the tiles plus `shift`."""
    cdef const floating *pixel[CYCONV_MOST_POINTS]
    cdef const floating *plane
    cdef const floating *row
    cdef ptrdiff_t y_lo, y_hi, x_lo, x_hi, y_stride, x_stride
    cdef ptrdiff_t ty, tx, top, left, i, j, y, x, e
    if not 0 <= z < w.size[0]:
        for ty in range(at.rows * at.cols):
            for e in range(points):
                memset(v + ty * v_tile + e * v_point, 0, channels * sizeof(floating))
        return
    plane = source + (at.n + image) * w.n + z * w.stride[0]
    cover(w, at, shift, 1, &y_lo, &y_hi)
    cover(w, at, 0, 2, &x_lo, &x_hi)
    if w.in_place:
        plane += channel
        y_stride, x_stride = w.stride[1], w.stride[2]
    else:
        copy_box(
            w, uk, plane, y_lo, y_hi, x_lo, x_hi, channel,
            min(channels, w.channels - channel), channels, slab)
        y_stride, x_stride = (x_hi - x_lo) * channels, channels
        plane = slab - y_lo * y_stride - x_lo * x_stride
    for ty in range(at.rows):
        top = tile_start(at.y + ty, w.outputs[1], w.apart[1]) + w.least[1] + shift
        for tx in range(at.cols):
            left = tile_start(at.x + tx, w.outputs[2], w.apart[2]) + w.least[2]
            for i in range(w.rows):
                y = top + i * w.apart[1]
                row = plane + y * y_stride
                for j in range(w.cols):
                    x = left + j * w.apart[2]
                    if y_lo <= y < y_hi and x_lo <= x < x_hi:
                        pixel[i * w.cols + j] = row + x * x_stride
                    else:
                        pixel[i * w.cols + j] = zeros
            if w.spread:
                transform_spread(uk, form, channels, pixel, v, v_point, check)
            else:
                transform_input(uk, form, channels, pixel, v, v_point, check)
            v += v_tile


cdef inline void write_tiles(
    const pass_t *p, const form_t *f, const cyconv_ukernels *uk, ptrdiff_t vl, const place_t *at,
    int vectors, ptrdiff_t lanes, const floating *m, ptrdiff_t m_tile, ptrdiff_t m_point,
    const floating *bias, const epilogue_t *last, floating *slab, floating *dump,
    floating *result, floating *check
) noexcept nogil:
    """Transform a block's products back, write `lanes` channels to the result, which points at
    the first of them, and finish them; straight into it where they are whole vectors and lie so."""
    cdef floating *pixel[CYCONV_MOST_POINTS]
    cdef floating *plane
    cdef floating *base
    cdef ptrdiff_t image, ty, tx, top, left, i, j, y, x, pitch = vectors * vl
    cdef ptrdiff_t y_lo = at.y * f.height, x_lo = at.x * f.width    # blocks begin where a tile does
    cdef ptrdiff_t y_hi = min(y_lo + at.rows * f.height, p.axis[1].outputs)
    cdef ptrdiff_t x_hi = min(x_lo + at.cols * f.width, p.axis[2].outputs)
    cdef ptrdiff_t y_stride = p.axis[1].result_stride, x_stride = p.axis[2].result_stride
    cdef ptrdiff_t rows = y_hi - y_lo, cols = x_hi - x_lo
    cdef bint straight = p.result_c == 1 and lanes == pitch
    for image in range(at.images):
        plane = result + (at.n + image) * p.result_n + at.z * p.axis[0].result_stride
        base = plane
        if not straight:
            y_stride, x_stride = cols * pitch, pitch
            base = slab - y_lo * y_stride - x_lo * x_stride
        for ty in range(at.rows):
            top = tile_start(at.y + ty, f.height, f.apart[1])
            for tx in range(at.cols):
                left = tile_start(at.x + tx, f.width, f.apart[2])
                for i in range(f.height):
                    y = top + i * f.apart[1]
                    for j in range(f.width):
                        x = left + j * f.apart[2]
                        pixel[i * f.width + j] = (
                            base + y * y_stride + x * x_stride if y < y_hi and x < x_hi else dump)
                transform_output(uk, f.number, vectors, m, m_point, bias, pixel, check)
                m += m_tile
        plane += y_lo * p.axis[1].result_stride + x_lo * p.axis[2].result_stride
        if p.axis[1].result_stride == cols * p.axis[2].result_stride:
            _write_row(p, uk, slab, rows * cols, pitch, lanes, straight, last, plane)
        else:
            for y in range(rows):
                _write_row(
                    p, uk, slab + y * cols * pitch, cols, pitch, lanes, straight, last,
                    plane + y * p.axis[1].result_stride)


cdef inline void _write_row(
    const pass_t *p, const cyconv_ukernels *uk, const floating *slab, ptrdiff_t pixels,
    ptrdiff_t pitch, ptrdiff_t lanes, bint straight, const epilogue_t *last, floating *target
) noexcept nogil:
    """Copy a row of the slab to the result, unless it is there already, and finish it."""
    cdef ptrdiff_t x, stride = p.axis[2].result_stride
    if p.result_c == 1:
        if not straight:
            for x in range(pixels):
                memcpy(target + x * stride, slab + x * pitch, lanes * sizeof(floating))
        finish(last, uk, pixels, lanes, target, stride, 1)
        return
    # The result is contiguous, so that its rows are: stride is 1.
    turn(uk, pixels, lanes, slab, pitch, target, p.result_c)
    finish(last, uk, lanes, pixels, target, p.result_c, 1)
