"""Sums over all axes but the channels', in float64: the gradient of a bias, and moments.

    s[c] = sum_{n,p} x[n,c,p]    or    s[c] = sum_{n,p} x[n,p,c]

Each image has sums of its own, which are added up at last, so results do not depend on the number
of threads. The GIL is released. Arrays that are not contiguous or of other types than float32 and
float64 are left to NumPy.
"""

import numpy as np

from cython cimport floating
from cython.parallel cimport prange

cdef enum:
    LANES = 8
    PARALLEL = 32768  # elements below which a second thread costs more than it saves


cdef double _row(const floating *x, ptrdiff_t n) noexcept nogil:
    """Sum of neighbours."""
    cdef double sums[LANES]
    cdef double total = 0
    cdef ptrdiff_t i = 0, j
    for j in range(LANES):
        sums[j] = 0
    while i + LANES <= n:
        for j in range(LANES):
            sums[j] += x[i + j]
        i += LANES
    while i < n:
        total += x[i]
        i += 1
    for j in range(LANES):
        total += sums[j]
    return total


cdef void _rows(
    const floating *x, ptrdiff_t n_rows, ptrdiff_t n, double *sums
) noexcept nogil:
    """Sum of rows, element by element; four at a time, as `sums` is read and written each time."""
    cdef ptrdiff_t i = 0, j
    cdef const floating *row = x
    for j in range(n):
        sums[j] = 0
    while i + 4 <= n_rows:
        for j in range(n):
            sums[j] += (
                (<double> row[j] + <double> row[n + j])
                + (<double> row[2 * n + j] + <double> row[3 * n + j])
            )
        row += 4 * n
        i += 4
    while i < n_rows:
        for j in range(n):
            sums[j] += row[j]
        row += n
        i += 1


def _sum(
    const floating[:, :, ::1] x not None, bint last, double[:, ::1] sums not None, int threads
):
    """Fill `sums` (images, channels) from x, (n, channels, pixels) or (n, pixels, channels)."""
    cdef ptrdiff_t n_images = sums.shape[0], n_channels = sums.shape[1], i
    cdef ptrdiff_t n_pixels = x.shape[1 if last else 2]
    if last:
        for i in prange(n_images, nogil=True, num_threads=threads, schedule="static"):
            _rows(&x[i, 0, 0], n_pixels, n_channels, &sums[i, 0])
    else:
        for i in prange(n_images * n_channels, nogil=True, num_threads=threads, schedule="static"):
            (&sums[0, 0])[i] = _row(&x[0, 0, 0] + i * n_pixels, n_pixels)


def channel_sums(x, int channel, int threads):
    """Sum an array (n, channels, ...) or (n, ..., channels) over all but its channels.

    `channel` is the axis: 1, or the last one. Returns float64, of shape (channels,).
    """
    cdef bint last = channel == x.ndim - 1
    n_images, n_channels = x.shape[0], x.shape[channel]
    native = x.dtype.isnative and x.dtype.char in "fd"
    if x.size == 0 or not (native and x.flags.c_contiguous and x.flags.aligned):
        return x.sum(axis=tuple([i for i in range(x.ndim) if i != channel]), dtype=np.float64)
    sums = np.empty((n_images, n_channels))
    shape = (n_images, -1, n_channels) if last else (n_images, n_channels, -1)
    _sum(x.reshape(shape), last, sums, threads if x.size >= PARALLEL else 1)
    return sums.sum(axis=0)
