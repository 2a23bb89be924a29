"""Patches of an image as the columns of a matrix, and back (im2col and its adjoint, col2im).

A tile is `rows` whole rows of the output, or a piece of one row: output rows r0 .. r0+rows-1 (depth
and height counted together) and columns c0 .. c0+cols-1. Its matrix is stored

    channel-major   col[k*ld + p],  k = (channel, tap)      rows of an image are copied
    pixel-major     col[p*ld + k],  k = (tap, channel)      channels of a pixel are copied

with p = (row, column) in the tile. Padding gives zeros. `scatter` adds: every thread owns some
channels of dx, so nothing is added twice at once and the order never depends on the threads.
"""

from cython cimport floating
from cython.parallel cimport prange

from ._geometry cimport geometry_t


cdef inline void valid_range(
    ptrdiff_t first, ptrdiff_t step, ptrdiff_t size, ptrdiff_t count, ptrdiff_t *lo, ptrdiff_t *hi
) noexcept nogil:
    """Range of j in [0, count) with 0 <= first + j*step < size; lo == hi where there is none."""
    lo[0] = 0 if first >= 0 else min(count, (-first + step - 1) // step)
    hi[0] = count
    if first + (count - 1) * step >= size:
        hi[0] = 0 if first >= size else (size - 1 - first) // step + 1
    if hi[0] < lo[0]:
        hi[0] = lo[0]


cdef inline void _copy(
    const floating *source, ptrdiff_t step, floating *target, ptrdiff_t count
) noexcept nogil:
    cdef ptrdiff_t j
    if step == 1:
        for j in range(count):
            target[j] = source[j]
    else:
        for j in range(count):
            target[j] = source[j * step]


cdef inline void _zero(floating *target, ptrdiff_t count) noexcept nogil:
    cdef ptrdiff_t j
    for j in range(count):
        target[j] = 0


cdef inline void _gather_tap(
    const geometry_t *g, const floating *x, ptrdiff_t k, ptrdiff_t r0, ptrdiff_t rows,
    ptrdiff_t c0, ptrdiff_t cols, floating *target
) noexcept nogil:
    """One row of the channel-major matrix: what tap k sees from every pixel of the tile."""
    cdef ptrdiff_t kw = k % g.kernel[2]
    cdef ptrdiff_t kh = k // g.kernel[2] % g.kernel[1]
    cdef ptrdiff_t kd = k // (g.kernel[2] * g.kernel[1]) % g.kernel[0]
    cdef ptrdiff_t c = k // (g.kernel[2] * g.kernel[1] * g.kernel[0])
    cdef ptrdiff_t iw = c0 * g.stride[2] + kw * g.dilation[2] - g.pad[2]
    cdef ptrdiff_t step = g.stride[2] * g.x_s[2]
    cdef ptrdiff_t od = r0 // g.out[1], oh = r0 % g.out[1]
    cdef ptrdiff_t _r, id_, ih, lo, hi
    valid_range(iw, g.stride[2], g.size[2], cols, &lo, &hi)
    for _r in range(rows):
        id_ = od * g.stride[0] + kd * g.dilation[0] - g.pad[0]
        ih = oh * g.stride[1] + kh * g.dilation[1] - g.pad[1]
        if 0 <= id_ < g.size[0] and 0 <= ih < g.size[1] and lo < hi:
            _zero(target, lo)
            _copy(
                x + c * g.x_c + id_ * g.x_s[0] + ih * g.x_s[1] + iw * g.x_s[2] + lo * step,
                step, target + lo, hi - lo)
            _zero(target + hi, cols - hi)
        else:
            _zero(target, cols)
        target += cols
        oh += 1
        if oh == g.out[1]:
            oh = 0
            od += 1


cdef inline void _gather_pixel(
    const geometry_t *g, const floating *x, ptrdiff_t od, ptrdiff_t oh, ptrdiff_t ow,
    floating *target
) noexcept nogil:
    """One row of the pixel-major matrix: the patch under one output pixel."""
    cdef ptrdiff_t width = g.kernel[2] * g.ci
    cdef ptrdiff_t iw = ow * g.stride[2] - g.pad[2]
    cdef ptrdiff_t step = g.dilation[2] * g.x_s[2]
    cdef ptrdiff_t kd, kh, kw, id_, ih, lo, hi
    cdef const floating *source
    valid_range(iw, g.dilation[2], g.size[2], g.kernel[2], &lo, &hi)
    for kd in range(g.kernel[0]):
        id_ = od * g.stride[0] + kd * g.dilation[0] - g.pad[0]
        for kh in range(g.kernel[1]):
            ih = oh * g.stride[1] + kh * g.dilation[1] - g.pad[1]
            if 0 <= id_ < g.size[0] and 0 <= ih < g.size[1] and lo < hi:
                source = x + id_ * g.x_s[0] + ih * g.x_s[1] + iw * g.x_s[2]
                _zero(target, lo * g.ci)
                if g.x_c == 1 and step == g.ci:
                    _copy(source + lo * step, 1, target + lo * g.ci, (hi - lo) * g.ci)
                else:
                    for kw in range(lo, hi):
                        _copy(source + kw * step, g.x_c, target + kw * g.ci, g.ci)
                _zero(target + hi * g.ci, (g.kernel[2] - hi) * g.ci)
            else:
                _zero(target, width)
            target += width


cdef inline void gather(
    const geometry_t *g, const floating *x, bint pixel_major, ptrdiff_t depth,
    ptrdiff_t r0, ptrdiff_t rows, ptrdiff_t c0, ptrdiff_t cols,
    floating *col, ptrdiff_t ld, int threads
) noexcept nogil:
    """Fill the matrix of a tile from x, which points at the image's and group's first channel."""
    cdef ptrdiff_t k, p
    if pixel_major:
        for p in prange(rows * cols, num_threads=threads, schedule='static'):
            _gather_pixel(
                g, x, (r0 + p // cols) // g.out[1], (r0 + p // cols) % g.out[1], c0 + p % cols,
                col + p * ld)
    else:
        for k in prange(depth, num_threads=threads, schedule='static'):
            _gather_tap(g, x, k, r0, rows, c0, cols, col + k * ld)


cdef inline void _scatter_channel(
    const geometry_t *g, const floating *col, ptrdiff_t ld, ptrdiff_t r0, ptrdiff_t rows,
    ptrdiff_t c0, ptrdiff_t cols, floating *dx
) noexcept nogil:
    """Add the matrix rows of one channel (channel-major) to that channel of dx."""
    cdef ptrdiff_t step = g.stride[2] * g.x_s[2]
    cdef ptrdiff_t kd, kh, kw, r, od, oh, id_, ih, iw, lo, hi, j
    cdef floating *target
    cdef const floating *source
    for kd in range(g.kernel[0]):
        for kh in range(g.kernel[1]):
            for kw in range(g.kernel[2]):
                iw = c0 * g.stride[2] + kw * g.dilation[2] - g.pad[2]
                valid_range(iw, g.stride[2], g.size[2], cols, &lo, &hi)
                od = r0 // g.out[1]
                oh = r0 % g.out[1]
                for r in range(rows):
                    id_ = od * g.stride[0] + kd * g.dilation[0] - g.pad[0]
                    ih = oh * g.stride[1] + kh * g.dilation[1] - g.pad[1]
                    if 0 <= id_ < g.size[0] and 0 <= ih < g.size[1]:
                        target = dx + id_ * g.x_s[0] + ih * g.x_s[1] + iw * g.x_s[2]
                        source = col + r * cols
                        if step == 1:
                            for j in range(lo, hi):
                                target[j] += source[j]
                        else:
                            for j in range(lo, hi):
                                target[j * step] += source[j]
                    oh += 1
                    if oh == g.out[1]:
                        oh = 0
                        od += 1
                col += ld


cdef inline void _scatter_pixels(
    const geometry_t *g, const floating *col, ptrdiff_t ld, ptrdiff_t r0, ptrdiff_t rows,
    ptrdiff_t c0, ptrdiff_t cols, ptrdiff_t channels, floating *dx
) noexcept nogil:
    """Add `channels` channels of a pixel-major matrix to dx; both point at the first of them."""
    cdef ptrdiff_t r, p, kd, kh, kw, od, oh, id_, ih, iw, lo, hi, c
    cdef floating *target
    cdef const floating *source
    for r in range(rows):
        od = (r0 + r) // g.out[1]
        oh = (r0 + r) % g.out[1]
        for p in range(cols):
            iw = (c0 + p) * g.stride[2] - g.pad[2]
            valid_range(iw, g.dilation[2], g.size[2], g.kernel[2], &lo, &hi)
            for kd in range(g.kernel[0]):
                id_ = od * g.stride[0] + kd * g.dilation[0] - g.pad[0]
                for kh in range(g.kernel[1]):
                    ih = oh * g.stride[1] + kh * g.dilation[1] - g.pad[1]
                    if not (0 <= id_ < g.size[0] and 0 <= ih < g.size[1]):
                        continue
                    for kw in range(lo, hi):
                        source = col + ((kd * g.kernel[1] + kh) * g.kernel[2] + kw) * g.ci
                        target = (
                            dx + id_ * g.x_s[0] + ih * g.x_s[1]
                            + (iw + kw * g.dilation[2]) * g.x_s[2])
                        if g.x_c == 1:
                            for c in range(channels):
                                target[c] += source[c]
                        else:
                            for c in range(channels):
                                target[c * g.x_c] += source[c]
            col += ld


cdef inline void scatter(
    const geometry_t *g, const floating *col, ptrdiff_t ld, bint pixel_major,
    ptrdiff_t r0, ptrdiff_t rows, ptrdiff_t c0, ptrdiff_t cols, floating *dx, int threads
) noexcept nogil:
    """Add the matrix of a tile to dx, which points at the image's and group's first channel."""
    cdef ptrdiff_t taps = g.kernel[0] * g.kernel[1] * g.kernel[2]
    # A thread's share of the channels, in whole cache lines of float32.
    cdef ptrdiff_t chunk = ((g.ci + threads - 1) // threads + 15) // 16 * 16
    cdef ptrdiff_t t
    if pixel_major:
        for t in prange((g.ci + chunk - 1) // chunk, num_threads=threads, schedule='static'):
            _scatter_pixels(
                g, col + t * chunk, ld, r0, rows, c0, cols, min(chunk, g.ci - t * chunk),
                dx + t * chunk * g.x_c)
    else:
        for t in prange(g.ci, num_threads=threads, schedule='static'):
            _scatter_channel(g, col + t * taps * ld, ld, r0, rows, c0, cols, dx + t * g.x_c)
