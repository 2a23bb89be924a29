"""Max pooling: the largest value of each window and its place, and what is added back there.

    forward   y[a,p,b] = max_r x[a, p*stride + r*dilation - pad, b],  place[a,p,b] = where that was
    scatter   dx[a, i, b] = sum_p dy[a,p,b] where place[a,p,b] = i

An array is read as (a, depth, height, width, b): in a channels-first layout a counts images and
channels and b is 1; in a channels-last layout a counts images and b channels. A place is the index
of a cell in its volume, (d * height + h) * width + w, and -1 for a window over nothing but padding,
whose value is minus infinity.

The first of equal values wins, and NaN wins over everything. Up to sixteen neighbours (lanes) are
compared together: windows of a row or, in a channels-last layout, channels of a window. Which value
is larger is random, so values are selected without a branch.

Rows of results (forward) and volumes (scatter) are divided among threads, so results do not depend
on their number. Arrays are contiguous, and a volume has fewer than 2**31 cells. The GIL is
released.
"""

from cython cimport floating
from cython.parallel cimport prange
from libc.string cimport memset

cdef enum:
    LANES = 16

cdef struct window_t:
    ptrdiff_t kernel[3]
    ptrdiff_t stride[3]
    ptrdiff_t dilation[3]
    ptrdiff_t pad[3]
    ptrdiff_t last  # window of a row that does not reach over its end


cdef inline ptrdiff_t _first(ptrdiff_t start, ptrdiff_t dilation) noexcept nogil:
    """The first tap that does not lie before the array."""
    return 0 if start >= 0 else (-start + dilation - 1) // dilation


cdef inline ptrdiff_t _end(
    ptrdiff_t start, ptrdiff_t dilation, ptrdiff_t kernel, ptrdiff_t n
) noexcept nogil:
    """One after the last tap that does not lie behind the array."""
    if start + (kernel - 1) * dilation < n:
        return kernel
    return (n - start + dilation - 1) // dilation if start < n else 0


cdef struct taps_t:
    # The taps of a window that lie within the array, per axis; cells are those of the volume.
    ptrdiff_t count[3]
    ptrdiff_t step[3]


cdef inline void _lanes(
    const floating *x, const taps_t *taps, ptrdiff_t n_b, ptrdiff_t lane, ptrdiff_t lanes,
    floating *best, int *found
) noexcept nogil:
    """Largest value and its cell, counted from x, of each lane; x at the first tap of lane 0."""
    cdef ptrdiff_t d, h, w, j, cell
    cdef const floating *tap
    cdef floating value
    cdef int better
    for j in range(lanes):
        best[j], found[j] = x[j * lane], 0
    for d in range(taps.count[0]):
        for h in range(taps.count[1]):
            for w in range(taps.count[2]):
                cell = d * taps.step[0] + h * taps.step[1] + w * taps.step[2]
                tap = x + cell * n_b
                for j in range(lanes):
                    value = tap[j * lane]
                    better = (value > best[j]) | (value != value)
                    best[j] = value if better else best[j]
                    found[j] ^= (found[j] ^ <int> cell) & -better  # a second "if" would branch


cdef inline ptrdiff_t _rounded(ptrdiff_t lanes) noexcept nogil:
    """As many lanes as there is code for."""
    return 16 if lanes >= 16 else 8 if lanes >= 8 else 4 if lanes >= 4 else 1


cdef void _block(
    const floating *x, const taps_t *taps, ptrdiff_t n_b, ptrdiff_t lane, ptrdiff_t lane_cells,
    ptrdiff_t lanes, ptrdiff_t first, floating *y, int *place
) noexcept nogil:
    """1, 4, 8 or 16 results; `first` is the cell of the first tap of lane 0."""
    cdef floating best[LANES]
    cdef int found[LANES]
    cdef ptrdiff_t j
    # Constant bounds and strides let the compiler use vectors.
    if lanes == 1:
        _lanes(x, taps, n_b, 1, 1, best, found)
    elif lane == 1 and lanes == 16:
        _lanes(x, taps, n_b, 1, 16, best, found)
    elif lane == 1 and lanes == 8:
        _lanes(x, taps, n_b, 1, 8, best, found)
    elif lane == 1:
        _lanes(x, taps, n_b, 1, 4, best, found)
    elif lane == 2 and lanes == 16:
        _lanes(x, taps, n_b, 2, 16, best, found)
    elif lane == 2 and lanes == 8:
        _lanes(x, taps, n_b, 2, 8, best, found)
    elif lane == 2:
        _lanes(x, taps, n_b, 2, 4, best, found)
    else:
        _lanes(x, taps, n_b, lane, lanes, best, found)
    for j in range(lanes):
        y[j] = best[j]
        place[j] = <int> (first + found[j] + j * lane_cells)


cdef void _row(
    const floating *x, const ptrdiff_t *size, ptrdiff_t n_b, const window_t *win,
    ptrdiff_t od, ptrdiff_t oh, ptrdiff_t n_out, floating lowest, floating *y, int *place
) noexcept nogil:
    """One row of results: x at its volume, y and place at the row."""
    cdef taps_t taps
    cdef ptrdiff_t start[3]
    cdef ptrdiff_t first[3]
    cdef ptrdiff_t unit[3]
    cdef ptrdiff_t ow, b, i, cell, lanes
    unit[0], unit[1], unit[2] = size[1] * size[2], size[2], 1
    start[0] = od * win.stride[0] - win.pad[0]
    start[1] = oh * win.stride[1] - win.pad[1]
    for i in range(3):
        taps.step[i] = win.dilation[i] * unit[i]
    for i in range(2):
        first[i] = _first(start[i], win.dilation[i])
        taps.count[i] = _end(start[i], win.dilation[i], win.kernel[i], size[i]) - first[i]
    ow = 0
    while ow < n_out:
        start[2] = ow * win.stride[2] - win.pad[2]
        first[2] = _first(start[2], win.dilation[2])
        taps.count[2] = _end(start[2], win.dilation[2], win.kernel[2], size[2]) - first[2]
        if taps.count[0] <= 0 or taps.count[1] <= 0 or taps.count[2] <= 0:
            for b in range(n_b):
                y[ow * n_b + b], place[ow * n_b + b] = lowest, -1
            ow += 1
            continue
        cell = start[2] + first[2] * win.dilation[2]
        for i in range(2):
            cell += start[i] * unit[i] + first[i] * taps.step[i]
        if n_b > 1:
            b = 0
            while b < n_b:
                lanes = _rounded(n_b - b)
                _block(
                    x + cell * n_b + b, &taps, n_b, 1, 0, lanes, cell,
                    y + ow * n_b + b, place + ow * n_b + b,
                )
                b += lanes
            ow += 1
            continue
        # Windows that lie within the row entirely have the same taps.
        lanes = 1
        if start[2] >= 0 and ow <= win.last:
            lanes = _rounded(min(n_out - 1, win.last) - ow + 1)
        _block(
            x + cell, &taps, 1, win.stride[2], win.stride[2], lanes, cell, y + ow, place + ow
        )
        ow += lanes


def forward(
    const floating[:, :, :, :, ::1] x not None,
    tuple kernel, tuple stride, tuple dilation, tuple pad, double lowest,
    floating[:, :, :, :, ::1] y not None,
    int[:, :, :, :, ::1] place not None,
    int threads,
):
    """Fill `y` and `place` from `x`; parameters are triples."""
    cdef window_t win
    cdef ptrdiff_t size[3]
    cdef ptrdiff_t rows, row, a, n_b = x.shape[4], volume
    cdef ptrdiff_t n_d = y.shape[1], n_h = y.shape[2], n_w = y.shape[3]
    cdef int i
    for i in range(3):
        win.kernel[i], win.stride[i] = kernel[i], stride[i]
        win.dilation[i], win.pad[i] = dilation[i], pad[i]
        size[i] = x.shape[i + 1]
    win.last = size[2] - 1 - (win.kernel[2] - 1) * win.dilation[2] + win.pad[2]
    win.last = win.last // win.stride[2] if win.last >= 0 else -1
    volume = size[0] * size[1] * size[2] * n_b
    rows = y.shape[0] * n_d * n_h
    if rows == 0 or n_w == 0 or n_b == 0:
        return
    for row in prange(rows, nogil=True, num_threads=threads, schedule="static"):
        a = row // (n_d * n_h)
        _row(
            &x[0, 0, 0, 0, 0] + a * volume, size, n_b, &win,
            row // n_h % n_d, row % n_h, n_w, <floating> lowest,
            &y[0, 0, 0, 0, 0] + row * n_w * n_b, &place[0, 0, 0, 0, 0] + row * n_w * n_b,
        )


cdef void _scatter(
    const floating *dy, const int *place, ptrdiff_t cells, ptrdiff_t n_b,
    floating *dx, ptrdiff_t volume
) noexcept nogil:
    cdef ptrdiff_t p, b
    memset(dx, 0, volume * n_b * sizeof(floating))
    for p in range(cells):
        for b in range(n_b):
            if place[p * n_b + b] >= 0:
                dx[place[p * n_b + b] * n_b + b] += dy[p * n_b + b]


def scatter(
    const floating[:, :, ::1] dy not None,
    const int[:, :, ::1] place not None,
    floating[:, :, ::1] dx not None,
    int threads,
):
    """Fill `dx` with what `dy` adds at its places, and zeros; the axes are (a, cell, b)."""
    cdef ptrdiff_t a, cells = dy.shape[1], n_b = dy.shape[2], volume = dx.shape[1]
    if dx.shape[0] == 0 or volume == 0 or n_b == 0:
        return
    for a in prange(dx.shape[0], nogil=True, num_threads=threads, schedule="static"):
        _scatter(
            &dy[0, 0, 0] + a * cells * n_b, &place[0, 0, 0] + a * cells * n_b, cells, n_b,
            &dx[0, 0, 0] + a * volume * n_b, volume,
        )
