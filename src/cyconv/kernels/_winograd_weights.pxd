"""Filters as the products want them: gathered a panel of lanes at a time and transformed, or, for
gradients, transformed back and scattered.

Depth k counts slice by slice over channels, each slice rounded up to whole vectors.
"""

from cython cimport floating
from libc.string cimport memcpy, memset

from ._passes cimport ceil_div, pass_t
from ._ukernels cimport cyconv_ukernels
from ._winograd_tiles cimport form_t
from ._winograd_ukernels cimport transform_weights, turn


cdef extern from *:
    """
    #if defined(__GNUC__)
    #define cyconv_prefetch(address) __builtin_prefetch(address, 0, 2)
    #else
    #define cyconv_prefetch(address) ((void)(address))
    #endif
    """
    void cyconv_prefetch(const void *address) noexcept nogil


cdef enum:
    PACKED_DEPTH = 64           # gathered at a time: long runs of memory


cdef struct taps_t:
    ptrdiff_t row, col          # strides of the taps of a slice
    bint flip                   # taps in falling order
    bint run                    # the taps of a slice follow each other in memory


cdef inline taps_t taps_of(const pass_t *p, const form_t *f) noexcept nogil:
    cdef taps_t t
    t.row = p.axis[1].weight_stride
    t.col = p.axis[2].weight_stride
    if f.height == 1:
        t.row = 0
    elif f.width == 1:
        t.row, t.col = 0, t.row
    t.flip = p.axis[2].between < 0
    t.run = t.col == 1 and (t.row == 3 or f.taps == 3)
    return t


cdef inline ptrdiff_t slice_offset(
    const pass_t *p, const form_t *f, ptrdiff_t slice_
) noexcept nogil:
    """Where the filter of a slice begins, against that of the kernel's first element."""
    cdef ptrdiff_t outer = slice_ // f.row_slices, inner = slice_ % f.row_slices
    if p.axis[2].between < 0:
        outer = p.axis[0].taps - 1 - outer
        inner = f.row_slices - 1 - inner
    return outer * p.axis[0].weight_stride + (
        inner * p.axis[1].weight_stride if f.height == 1 else 0)


cdef inline void gather_filters(
    const pass_t *p, const taps_t *t, ptrdiff_t taps, const cyconv_ukernels *uk,
    const floating *w, ptrdiff_t lanes, ptrdiff_t channels, ptrdiff_t nr, floating *packed
) noexcept nogil:
    """packed[(c*taps + tap)*nr + lane], taps in the order of memory, lanes beyond `lanes` left."""
    cdef ptrdiff_t c, tap, lane, at
    if p.weight_lane == 1:
        for c in range(channels):
            for tap in range(taps):
                memcpy(
                    packed + (c * taps + tap) * nr,
                    w + c * p.weight_c + tap // 3 * t.row + tap % 3 * t.col,
                    lanes * sizeof(floating))
    elif p.weight_c == 1:
        for tap in range(taps):
            turn(
                uk, lanes, channels, w + tap // 3 * t.row + tap % 3 * t.col, p.weight_lane,
                packed + tap * nr, taps * nr)
    elif t.run and p.weight_c == taps:
        turn(uk, lanes, channels * taps, w, p.weight_lane, packed, nr)
    elif t.run:
        for c in range(channels):
            turn(
                uk, lanes, taps, w + c * p.weight_c, p.weight_lane, packed + c * taps * nr, nr)
    else:
        for c in range(channels):
            for tap in range(taps):
                at = c * p.weight_c + tap // 3 * t.row + tap % 3 * t.col
                for lane in range(lanes):
                    packed[(c * taps + tap) * nr + lane] = w[at + lane * p.weight_lane]


cdef inline void prefetch_filters(
    const pass_t *p, const taps_t *t, ptrdiff_t taps, const floating *w, ptrdiff_t lanes,
    ptrdiff_t channels
) noexcept nogil:
    """Have the filters that are gathered next loaded, all at once: they lie in as many places as
    there are lanes and taps, or channels, which no processor foresees."""
    cdef bint by_lane = p.weight_lane > p.weight_c
    cdef ptrdiff_t outer = p.weight_lane if by_lane else p.weight_c
    cdef ptrdiff_t length = (channels if by_lane else lanes) * (taps if t.run else 1)
    cdef ptrdiff_t line = 64 // <ptrdiff_t> sizeof(floating), i, tap, at, j
    for i in range(lanes if by_lane else channels):
        for tap in range(1 if t.run else taps):
            at = i * outer + tap // 3 * t.row + tap % 3 * t.col
            j = 0
            while j < length:
                cyconv_prefetch(w + at + j)
                j += line
            cyconv_prefetch(w + at + length - 1)


cdef inline void make_panel(
    const pass_t *p, const form_t *f, const cyconv_ukernels *uk, ptrdiff_t vl, const floating *w,
    ptrdiff_t lanes, ptrdiff_t pitch, ptrdiff_t begin, ptrdiff_t end, floating *packed,
    floating *u, ptrdiff_t u_point, floating *check
) noexcept nogil:
    """Transformed filters of one panel, depth begin .. end-1; w points at the
    first lane's filter."""
    cdef taps_t t = taps_of(p, f)
    cdef int vectors = <int> ceil_div(lanes, vl)
    cdef ptrdiff_t nr = vectors * vl, k = begin, count, channel, channels, slice_
    cdef ptrdiff_t sign = -1 if t.flip else 1
    cdef const floating *filters
    while k < end:
        slice_, channel = k // pitch, k % pitch
        count = min(min(<ptrdiff_t> PACKED_DEPTH, end - k), pitch - channel)
        channels = max(min(count, p.channels - channel), <ptrdiff_t> 0)
        filters = w + slice_offset(p, f, slice_) + channel * p.weight_c
        if p.weight_lane == 1 and lanes == nr and channels == count:
            if t.flip:
                filters += 2 * t.row + 2 * t.col
            transform_weights(
                uk, f.number, vectors, count, filters, p.weight_c, sign * t.row, sign * t.col, u,
                u_point, check)
        else:
            if lanes < nr or channels < count:
                memset(packed, 0, count * f.taps * nr * sizeof(floating))
            if channels > 0:
                prefetch_filters(p, &t, f.taps, filters, lanes, channels)
                gather_filters(p, &t, f.taps, uk, filters, lanes, channels, nr, packed)
            transform_weights(
                uk, f.number, vectors, count, packed + (f.taps - 1) * nr if t.flip else packed,
                f.taps * nr, sign * 3 * nr, sign * nr, u, u_point, check)
        u += count * nr
        k += count


cdef inline void scatter_filter(
    const pass_t *p, const form_t *f, const cyconv_ukernels *uk, const floating *taps,
    ptrdiff_t taps_row, ptrdiff_t first, ptrdiff_t count, ptrdiff_t pitch, floating *dw
) noexcept nogil:
    """Write the taps of depth first .. first+count-1 of one filter, which dw points at."""
    cdef taps_t t = taps_of(p, f)
    cdef ptrdiff_t done = 0, channel, channels, slice_, tap, c
    cdef floating *filter_
    while done < count:
        slice_, channel = (first + done) // pitch, (first + done) % pitch
        channels = min(count - done, p.channels - channel)
        if channels > 0:
            filter_ = dw + slice_offset(p, f, slice_) + channel * p.weight_c
            if p.weight_c == 1:
                for tap in range(f.taps):
                    memcpy(
                        filter_ + tap // 3 * t.row + tap % 3 * t.col, taps + tap * taps_row + done,
                        channels * sizeof(floating))
            elif t.run:
                turn(uk, f.taps, channels, taps + done, taps_row, filter_, p.weight_c)
            else:
                for tap in range(f.taps):
                    for c in range(channels):
                        filter_[c * p.weight_c + tap // 3 * t.row + tap % 3 * t.col] = (
                            taps[tap * taps_row + done + c])
        done += min(count - done, pitch - channel)
