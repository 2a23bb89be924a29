"""Max pooling: the largest value of each window and its place, and what is added back there.

    forward   y[a,p,b] = max_r x[a, p*stride + r*dilation - pad, b],  place[a,p,b] = where that was
    scatter   dx[a, place[a,p,b], b] += dy[a,p,b]

An array is read as (a, depth, height, width, b): in a channels-first layout a counts images and
channels and b is 1; in a channels-last layout a counts images and b channels. A place is the index
of a cell in its volume, (d * height + h) * width + w, and -1 for a window over nothing but padding,
whose value is minus infinity.

The first of equal values wins, and NaN wins over everything. Rows of results (forward) and volumes
(scatter) are divided among threads, so results do not depend on their number. Arrays are
contiguous; the result of scatter holds zeros. The GIL is released.
"""

from cython cimport floating
from cython.parallel cimport prange

cdef struct window_t:
    ptrdiff_t kernel[3]
    ptrdiff_t stride[3]
    ptrdiff_t dilation[3]
    ptrdiff_t pad[3]


cdef inline ptrdiff_t _first(ptrdiff_t start, ptrdiff_t dilation) noexcept nogil:
    """The first tap that does not lie before the array."""
    return 0 if start >= 0 else (-start + dilation - 1) // dilation


cdef inline ptrdiff_t _end(
    ptrdiff_t start, ptrdiff_t dilation, ptrdiff_t kernel, ptrdiff_t n
) noexcept nogil:
    """One after the last tap that does not lie behind the array."""
    return min(kernel, max(0, (n - start + dilation - 1) // dilation)) if start < n else 0


cdef void _row(
    const floating *x, const ptrdiff_t *size, ptrdiff_t n_b, const window_t *win,
    ptrdiff_t od, ptrdiff_t oh, ptrdiff_t n_out, floating lowest,
    floating *y, ptrdiff_t *place
) noexcept nogil:
    """One row of results: x at its volume, y and place at the row."""
    cdef ptrdiff_t d0, h0, w0, kd, kh, kw, kd_end, kh_first, kh_end, kw_first, kw_end
    cdef ptrdiff_t ow, b, cell
    cdef const floating *tap
    cdef floating best
    cdef ptrdiff_t found
    d0 = od * win.stride[0] - win.pad[0]
    h0 = oh * win.stride[1] - win.pad[1]
    kd_end = _end(d0, win.dilation[0], win.kernel[0], size[0])
    kh_first = _first(h0, win.dilation[1])
    kh_end = _end(h0, win.dilation[1], win.kernel[1], size[1])
    for ow in range(n_out):
        w0 = ow * win.stride[2] - win.pad[2]
        kw_first = _first(w0, win.dilation[2])
        kw_end = _end(w0, win.dilation[2], win.kernel[2], size[2])
        if n_b == 1:
            best, found = lowest, -1
            for kd in range(_first(d0, win.dilation[0]), kd_end):
                for kh in range(kh_first, kh_end):
                    cell = (
                        (d0 + kd * win.dilation[0]) * size[1] + h0 + kh * win.dilation[1]
                    ) * size[2] + w0
                    for kw in range(kw_first, kw_end):
                        if (
                            found < 0
                            or x[cell + kw * win.dilation[2]] > best
                            or x[cell + kw * win.dilation[2]] != x[cell + kw * win.dilation[2]]
                        ):
                            found = cell + kw * win.dilation[2]
                            best = x[found]
            y[ow], place[ow] = best, found
            continue
        for b in range(n_b):
            y[ow * n_b + b], place[ow * n_b + b] = lowest, -1
        for kd in range(_first(d0, win.dilation[0]), kd_end):
            for kh in range(kh_first, kh_end):
                for kw in range(kw_first, kw_end):
                    cell = (
                        (d0 + kd * win.dilation[0]) * size[1] + h0 + kh * win.dilation[1]
                    ) * size[2] + w0 + kw * win.dilation[2]
                    tap = x + cell * n_b
                    for b in range(n_b):
                        best = y[ow * n_b + b]
                        if place[ow * n_b + b] < 0 or tap[b] > best or tap[b] != tap[b]:
                            y[ow * n_b + b] = tap[b]
                            place[ow * n_b + b] = cell


def forward(
    const floating[:, :, :, :, ::1] x not None,
    tuple kernel, tuple stride, tuple dilation, tuple pad, double lowest,
    floating[:, :, :, :, ::1] y not None,
    ptrdiff_t[:, :, :, :, ::1] place not None,
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
    const floating *dy, const ptrdiff_t *place, ptrdiff_t cells, ptrdiff_t n_b, floating *dx
) noexcept nogil:
    cdef ptrdiff_t p, b
    for p in range(cells):
        for b in range(n_b):
            if place[p * n_b + b] >= 0:
                dx[place[p * n_b + b] * n_b + b] += dy[p * n_b + b]


def scatter(
    const floating[:, :, ::1] dy not None,
    const ptrdiff_t[:, :, ::1] place not None,
    floating[:, :, ::1] dx not None,
    int threads,
):
    """Add `dy` to the zeros of `dx` at its places; the axes are (a, cell, b)."""
    cdef ptrdiff_t a, cells = dy.shape[1], n_b = dy.shape[2], volume = dx.shape[1]
    if dy.shape[0] == 0 or cells == 0 or n_b == 0:
        return
    for a in prange(dy.shape[0], nogil=True, num_threads=threads, schedule="static"):
        _scatter(
            &dy[0, 0, 0] + a * cells * n_b, &place[0, 0, 0] + a * cells * n_b, cells, n_b,
            &dx[0, 0, 0] + a * volume * n_b,
        )
