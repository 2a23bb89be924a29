"""Convolution as a matrix product over the columns of patches (im2col), for all three operators.

With W[o, k] the weights of a group, Col[k, p] the patches of a tile and Y[o, p] its outputs,

    forward          Y   = W Col
    data backward    Col = W^T Y, then added back to dx (col2im)
    weight backward  W  += Y Col^T

A pointwise convolution is the case in which Col is x itself: nothing is gathered or added back.
Each matrix may be stored with either index running fastest; BLAS takes both, so neither layout is
moved.

Tiles bound the scratch memory: columns of at most a few megabytes, and where weights or outputs
cannot be read in place, packed blocks of them. BLAS is called between parallel loops, never inside.
Weight gradients are summed in the data's type over at most FOLD_PIXELS
pixels; for float32 such sums are then added in float64, so that long sums do not drift.

Preconditions: results are C-contiguous in their layout and overlap no operand; forward and data
backward add to a result that holds the bias (`accumulate`), or overwrite it. The GIL is released.
"""

from cython cimport floating
from cython.parallel cimport prange
from libc.limits cimport INT_MAX

from ._blas cimport gemm
from ._geometry cimport Geometry, geometry_t
from ._patches cimport gather, scatter
from ._run cimport Run, epilogue_t, finish, is_last, run_t
from ._ukernels cimport active, cyconv_ukernels

from ._run import OPERATORS

cdef enum:
    FORWARD = 0
    DATA_BACKWARD = 1
    WEIGHT_BACKWARD = 2

cdef enum:
    COLUMN_BYTES = 2097152      # of a tile; larger ones leave the cache before BLAS reads them
    FEWEST_PIXELS = 96          # in a tile, where memory permits: fewer starve the matrix product
    FINISHED_BYTES = 262144     # of outputs that are finished while they are in the cache
    FOLD_PIXELS = 4096
    PARALLEL_ELEMENTS = 262144  # smaller copies are not worth waking threads
    LINE = 64                   # bytes; pieces of scratch begin at cache lines


cdef struct matrix_t:
    # How a tile of x or y lies in memory.
    bint readable               # by BLAS, without a copy
    bint joined                 # rows follow each other, so a tile may span several
    bint pixel_major
    ptrdiff_t ld


cdef struct tiling_t:
    ptrdiff_t depth             # channels times taps, the k of the matrix product
    ptrdiff_t rows, cols        # of a full tile
    ptrdiff_t block             # output channels at a time
    matrix_t x, y
    bint in_place               # x is read or written where it lies
    bint w_in_place
    bint pixel_major            # of the columns
    bint fold
    ptrdiff_t col_ld
    ptrdiff_t w_at, y_at, fold_at, nbytes       # places in scratch, in bytes


cdef matrix_t _describe(
    ptrdiff_t c_stride, const ptrdiff_t *spatial, const ptrdiff_t *step, const ptrdiff_t *out,
    ptrdiff_t channels
) noexcept nogil:
    """Look at an operand as a matrix of channels by pixels, pixels `step` apart."""
    cdef matrix_t m
    cdef ptrdiff_t pixels = out[0] * out[1] * out[2]
    cdef ptrdiff_t pixel = spatial[2] * step[2] if pixels > 1 else 1
    m.joined = (
        (out[1] == 1 or spatial[1] * step[1] == out[2] * pixel)
        and (out[0] == 1 or spatial[0] * step[0] == out[1] * out[2] * pixel))
    m.pixel_major = pixel != 1 and (c_stride == 1 or channels == 1)
    if m.pixel_major:
        m.ld = pixel
        m.readable = channels <= pixel <= INT_MAX
    else:
        m.ld = c_stride if channels > 1 else 0      # a single row has no distance to the next
        m.readable = pixel == 1 and (
            channels == 1 or (pixels if m.joined else out[2]) <= c_stride <= INT_MAX)
    return m


cdef bint _weights_match(const geometry_t *g, bint pixel_major) noexcept nogil:
    """Whether a filter lies in memory in the order of a column."""
    cdef ptrdiff_t expected = g.ci if pixel_major else 1
    cdef int a
    for a in range(2, -1, -1):
        if g.kernel[a] > 1 and g.w_s[a] != expected:
            return False
        expected *= g.kernel[a]
    if g.ci > 1 and g.w_c != (1 if pixel_major else expected):
        return False
    return g.co == 1 or expected * (1 if pixel_major else g.ci) <= g.w_o <= INT_MAX


cdef inline ptrdiff_t _aligned(ptrdiff_t nbytes) noexcept nogil:
    return (nbytes + LINE - 1) // LINE * LINE


cdef tiling_t _tile(
    const geometry_t *g, int op, bint pointwise, ptrdiff_t itemsize, ptrdiff_t limit
) noexcept nogil:
    """Choose tile and blocks for a scratch of at most `limit` bytes; nbytes exceeds it if none
    fits."""
    cdef tiling_t t
    cdef ptrdiff_t ones[3]
    cdef ptrdiff_t pixels = g.out[0] * g.out[1] * g.out[2]
    cdef ptrdiff_t column, column_budget, wanted, per_output, used
    ones[0] = ones[1] = ones[2] = 1
    t.depth = g.ci * g.kernel[0] * g.kernel[1] * g.kernel[2]
    t.x = _describe(g.x_c, g.x_s, g.stride, g.out, g.ci)
    t.y = _describe(g.y_c, g.y_s, ones, g.out, g.co)
    t.in_place = pointwise and t.x.readable
    t.pixel_major = t.x.pixel_major if t.in_place else g.x_c == 1 and g.ci > 1
    t.w_in_place = _weights_match(g, t.pixel_major)
    t.fold = op == WEIGHT_BACKWARD and itemsize == 4 and g.batch * pixels > FOLD_PIXELS

    # Pixels of a tile: what fits, at least one.
    column = (0 if t.in_place else t.depth * itemsize)
    if t.in_place:
        wanted = min(pixels, <ptrdiff_t> INT_MAX // 2)
    else:
        column_budget = min(
            max(<ptrdiff_t> COLUMN_BYTES, FEWEST_PIXELS * column), limit // 2)
        wanted = max(column_budget // max(column, 1), <ptrdiff_t> 1)
    if not t.y.readable:
        wanted = min(wanted, max(limit // 4 // itemsize, <ptrdiff_t> 1))
    if (t.in_place and not t.x.joined) or (t.y.readable and not t.y.joined) or wanted <= g.out[2]:
        t.rows = 1
        t.cols = (g.out[2] - 1) // ((g.out[2] + wanted - 1) // wanted) + 1
    else:
        t.cols = g.out[2]
        t.rows = min(wanted // g.out[2], g.out[0] * g.out[1])
    if t.in_place:
        t.col_ld = t.x.ld
        t.w_at = 0
    else:
        t.col_ld = t.depth if t.pixel_major else t.rows * t.cols
        t.w_at = _aligned(column * t.rows * t.cols)

    # Output channels of a block: all of them, unless copies of weights or outputs are too large.
    per_output = 0 if t.y.readable else t.rows * t.cols * itemsize
    if not t.w_in_place or (op == WEIGHT_BACKWARD and t.fold):
        per_output += t.depth * itemsize
    if t.fold:
        per_output += t.depth * <ptrdiff_t> sizeof(double)
    t.block = g.co
    if per_output > 0:
        used = max(limit - t.w_at - 3 * LINE, <ptrdiff_t> 0)
        t.block = max(min(g.co, used // per_output), <ptrdiff_t> 1)
    t.y_at = t.w_at
    if not t.w_in_place or (op == WEIGHT_BACKWARD and t.fold):
        t.y_at += _aligned(t.block * t.depth * itemsize)
    t.fold_at = t.y_at + (0 if t.y.readable else _aligned(t.block * t.rows * t.cols * itemsize))
    t.nbytes = t.fold_at
    if t.fold:
        t.nbytes += _aligned(t.block * t.depth * <ptrdiff_t> sizeof(double))
    return t


cdef void _limit_outputs(tiling_t *t, ptrdiff_t nbytes) noexcept nogil:
    """Shrink tiles, of which a pixel has this many bytes of outputs, to what stays in the cache."""
    cdef ptrdiff_t most = max(FINISHED_BYTES // max(nbytes, 1), <ptrdiff_t> FEWEST_PIXELS)
    t.rows = max(min(t.rows, most // t.cols), <ptrdiff_t> 1)
    if t.cols > most:
        t.cols = (t.cols - 1) // ((t.cols + most - 1) // most) + 1


cdef void _move_weights(
    const geometry_t *g, floating *w, ptrdiff_t outputs, bint pixel_major, floating *packed,
    const double *total, bint unpack
) noexcept nogil:
    """Copy filters into the order of a column, or back (from `total` if that is given)."""
    cdef ptrdiff_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2]
    cdef ptrdiff_t o, c, kd, kh, kw, at, tap
    cdef floating *filter_
    for o in range(outputs):
        tap = 0
        for kd in range(g.kernel[0]):
            for kh in range(g.kernel[1]):
                for kw in range(g.kernel[2]):
                    filter_ = w + o * g.w_o + kd * g.w_s[0] + kh * g.w_s[1] + kw * g.w_s[2]
                    for c in range(g.ci):
                        at = o * g.ci * taps + (tap * g.ci + c if pixel_major else c * taps + tap)
                        if not unpack:
                            packed[at] = filter_[c * g.w_c]
                        elif total != NULL:
                            filter_[c * g.w_c] = <floating> total[at]
                        else:
                            filter_[c * g.w_c] = packed[at]
                    tap = tap + 1


cdef void _pack_outputs(
    const geometry_t *g, const floating *y, ptrdiff_t outputs, ptrdiff_t r0, ptrdiff_t rows,
    ptrdiff_t c0, ptrdiff_t cols, floating *packed
) noexcept nogil:
    """Copy a tile of y, channel-major."""
    cdef ptrdiff_t o, r, j
    cdef const floating *row
    for o in range(outputs):
        for r in range(r0, r0 + rows):
            row = (
                y + o * g.y_c + r // g.out[1] * g.y_s[0] + r % g.out[1] * g.y_s[1]
                + c0 * g.y_s[2])
            for j in range(cols):
                packed[j] = row[j * g.y_s[2]]
            packed += cols


cdef void _fold(floating *partial, double *total, ptrdiff_t count, int threads) noexcept nogil:
    cdef ptrdiff_t i
    for i in prange(count, num_threads=threads, schedule='static'):
        total[i] += partial[i]


cdef void _tile_product(
    const geometry_t *g, const tiling_t *t, int op, floating *x, floating *w, ptrdiff_t w_ld,
    floating *y, ptrdiff_t outputs, ptrdiff_t r0, ptrdiff_t rows, ptrdiff_t c0, ptrdiff_t cols,
    floating beta, const epilogue_t *last, const cyconv_ukernels *uk, char *scratch, int threads
) noexcept nogil:
    """One tile of one group: x and y point at its image, w at the block's filters."""
    cdef ptrdiff_t p = rows * cols
    cdef int copiers = threads if p * t.depth >= PARALLEL_ELEMENTS else 1
    cdef bint col_pixels = t.pixel_major, y_pixels = t.y.pixel_major
    cdef ptrdiff_t col_ld = t.col_ld, y_ld = t.y.ld
    cdef floating *col = <floating *> scratch
    cdef floating *y_tile = y
    if t.in_place:
        col = (
            x + r0 // g.out[1] * g.stride[0] * g.x_s[0] + r0 % g.out[1] * g.stride[1] * g.x_s[1]
            + c0 * g.stride[2] * g.x_s[2])
    else:
        if not col_pixels:
            col_ld = p
        if op != DATA_BACKWARD:
            gather(g, x, col_pixels, t.depth, r0, rows, c0, cols, col, col_ld, copiers)
    if t.y.readable:
        y_tile = (
            y + r0 // g.out[1] * g.y_s[0] + r0 % g.out[1] * g.y_s[1] + c0 * g.y_s[2])
    else:
        y_tile = <floating *> (scratch + t.y_at)
        y_pixels = False
        y_ld = p
        _pack_outputs(g, y, outputs, r0, rows, c0, cols, y_tile)

    if op == FORWARD:
        if y_pixels:
            gemm(not col_pixels, True, p, outputs, t.depth, col, col_ld, w, w_ld, beta,
                 y_tile, y_ld)
            finish(last, uk, p, outputs, y_tile, y_ld, 1)
        else:
            gemm(False, col_pixels, outputs, p, t.depth, w, w_ld, col, col_ld, beta,
                 y_tile, y_ld)
            finish(last, uk, outputs, p, y_tile, y_ld, 1)
    elif op == WEIGHT_BACKWARD:
        gemm(y_pixels, not col_pixels, outputs, t.depth, p, y_tile, y_ld, col, col_ld, beta,
             w, w_ld)
    else:
        if not t.in_place:
            beta = 0
        if col_pixels:
            gemm(not y_pixels, False, p, t.depth, outputs, y_tile, y_ld, w, w_ld, beta,
                 col, col_ld)
        else:
            gemm(True, y_pixels, t.depth, p, outputs, w, w_ld, y_tile, y_ld, beta, col, col_ld)
        if not t.in_place:
            scatter(g, col, col_ld, col_pixels, r0, rows, c0, cols, x, copiers)


cdef void _finish_image(
    const geometry_t *g, const epilogue_t *last, const cyconv_ukernels *uk, floating *x
) noexcept nogil:
    """Finish a group's channels of an image of x."""
    cdef ptrdiff_t d, h
    if is_last(last):
        return
    for d in range(g.size[0]):
        for h in range(g.size[1]):
            if g.x_c == 1 and g.ci > 1:
                finish(
                    last, uk, g.size[2], g.ci, x + d * g.x_s[0] + h * g.x_s[1], g.x_s[2], 1)
            else:
                finish(
                    last, uk, g.ci, g.size[2], x + d * g.x_s[0] + h * g.x_s[1], g.x_c, g.x_s[2])


cdef void _block(
    const geometry_t *g, const tiling_t *t, int op, floating *x, floating *w, floating *y,
    ptrdiff_t outputs, bint accumulate, bint final, const epilogue_t *last,
    const cyconv_ukernels *uk, char *scratch, int threads
) noexcept nogil:
    """All images and tiles for a block of output channels of one group; `final` for the last."""
    cdef floating *matrix = w
    cdef double *total = <double *> (scratch + t.fold_at)
    cdef ptrdiff_t w_ld = g.w_o if g.co > 1 else t.depth
    cdef ptrdiff_t n, r0, c0, rows, cols, i, pending = 0
    cdef floating beta = 1 if accumulate else 0
    if not t.w_in_place or t.fold:
        matrix = <floating *> (scratch + t.w_at)
        w_ld = t.depth
        if op != WEIGHT_BACKWARD:
            _move_weights(g, w, outputs, t.pixel_major, matrix, NULL, False)
    if t.fold:
        for i in range(outputs * t.depth):
            total[i] = 0
    for n in range(g.batch):
        r0 = 0
        while r0 < g.out[0] * g.out[1]:
            rows = min(t.rows, g.out[0] * g.out[1] - r0)
            c0 = 0
            while c0 < g.out[2]:
                cols = min(t.cols, g.out[2] - c0)
                if op == WEIGHT_BACKWARD:
                    beta = 1 if pending > 0 else 0
                    pending += rows * cols
                _tile_product(
                    g, t, op, x + n * g.x_n, matrix, w_ld, y + n * g.y_n, outputs,
                    r0, rows, c0, cols, beta, last, uk, scratch, threads)
                if t.fold and pending >= FOLD_PIXELS:
                    _fold(matrix, total, outputs * t.depth,
                          threads if outputs * t.depth >= PARALLEL_ELEMENTS else 1)
                    pending = 0
                c0 += t.cols
            r0 += t.rows
        if op == DATA_BACKWARD and final:
            _finish_image(g, last, uk, x + n * g.x_n)
    if op == WEIGHT_BACKWARD:
        if t.fold:
            if pending > 0:
                _fold(matrix, total, outputs * t.depth, 1)
            _move_weights(g, w, outputs, t.pixel_major, matrix, total, True)
        elif not t.w_in_place:
            _move_weights(g, w, outputs, t.pixel_major, matrix, NULL, True)


cdef void _run(
    const geometry_t *g, const tiling_t *t, const run_t *c, const cyconv_ukernels *uk, floating *x,
    bint accumulate, int threads
) noexcept nogil:
    cdef floating *w = <floating *> c.w
    cdef floating *y = <floating *> c.y
    cdef ptrdiff_t group, o
    for group in range(g.groups):
        o = 0
        while o < g.co:
            # Data backward sums over output channels, so later blocks add to earlier ones.
            _block(
                g, t, c.op, x + group * g.ci * g.x_c, w + (group * g.co + o) * g.w_o,
                y + (group * g.co + o) * g.y_c, min(t.block, g.co - o),
                accumulate or (c.op == DATA_BACKWARD and o > 0), o + t.block >= g.co, &c.last, uk,
                c.scratch, threads)
            o += t.block


def workspace(Geometry geometry not None, str op, bint pointwise, ptrdiff_t limit):
    """Return the scratch bytes that `run` needs; more than `limit` if it cannot keep to that."""
    return _tile(
        &geometry.c, OPERATORS[op], pointwise, 8 if geometry.double_precision else 4, limit
    ).nbytes


def prospect(Geometry geometry not None, str op, bint pointwise, ptrdiff_t limit):
    """Return what `run` will do: the multiply-adds of one full tile's matrix product, and whether
    it writes every element of its result, so that this need not be filled before."""
    cdef tiling_t t = _tile(
        &geometry.c, OPERATORS[op], pointwise, 8 if geometry.double_precision else 4, limit)
    cdef geometry_t *g = &geometry.c
    cdef bint overwrites = op != "dx" or t.in_place
    cdef int a
    if op == "dx":
        for a in range(3):
            overwrites = overwrites and g.stride[a] == 1 and g.out[a] == g.size[a]
    return t.rows * t.cols * t.depth * t.block, overwrites


def run(Run call not None, bint pointwise, bint accumulate, int threads):
    """Compute one operator on this many threads of ours, which may be fewer than the call's; the
    result is whichever of x, w and y the operator gives.
    """
    cdef const geometry_t *g = &call.geometry.c
    cdef bint double_precision = call.geometry.double_precision
    cdef tiling_t t = _tile(g, call.c.op, pointwise, 8 if double_precision else 4, call.c.limit)
    cdef const cyconv_ukernels *uk = active()
    call.needs(t.nbytes)
    if call.c.op == FORWARD and not is_last(&call.c.last):
        _limit_outputs(&t, t.block * (8 if double_precision else 4))
    with nogil:
        if double_precision:
            _run[double](g, &t, &call.c, uk, <double *> call.c.x, accumulate, threads)
        else:
            _run[float](g, &t, &call.c, uk, <float *> call.c.x, accumulate, threads)
