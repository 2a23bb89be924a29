"""Weights as panels: B[k, j] of a product, a few vectors of lanes wide, with zeros beyond the last.

A panel begins at panel*nr*depth and has rows of its own vectors, so that the last may be narrower.
"""

from cython cimport floating
from cython.parallel cimport prange
from libc.string cimport memset

from ._passes cimport all_finite, ceil_div, pass_t, run_length
from ._slabs cimport blocks_t, vectors_of
from ._ukernels cimport cyconv_ukernels, transpose


cdef enum:
    PACK_DEPTH = 128


cdef inline void _pack_lanes(
    const pass_t *p, const blocks_t *b, const floating *w, const ptrdiff_t *offset,
    ptrdiff_t begin, ptrdiff_t end, ptrdiff_t chunk, ptrdiff_t panels, floating *packed
) noexcept nogil:
    """Rows begin .. end-1 of all panels, from weights whose lanes are neighbours: row by row, so
    that they are read as they lie."""
    cdef ptrdiff_t k, panel, lanes, nr, j
    cdef const floating *source
    cdef floating *target
    for k in range(begin, end):
        for panel in range(panels):
            source = w + offset[k] + (chunk + panel) * b.nr
            lanes = min(b.nr, p.lanes - (chunk + panel) * b.nr)
            nr = vectors_of(b, lanes) * b.vl
            target = packed + panel * b.nr * p.depth + k * nr
            for j in range(lanes):
                target[j] = source[j]
            for j in range(lanes, nr):
                target[j] = 0


cdef inline void _pack_panel(
    const cyconv_ukernels *uk, const floating *w, ptrdiff_t lane_stride, ptrdiff_t lanes,
    const ptrdiff_t *offset, ptrdiff_t depth, ptrdiff_t run, ptrdiff_t nr, floating *panel
) noexcept nogil:
    """panel[k*nr + j] = w[j*lane_stride + offset[k]] for k < depth, zero for j >= lanes. Offsets
    follow each other by 1 in runs of `run`."""
    cdef ptrdiff_t k, j
    if lanes < nr:
        memset(panel, 0, depth * nr * sizeof(floating))
    if run > 1:
        k = 0
        while k < depth:
            transpose(
                uk, lanes, min(run, depth - k), w + offset[k], lane_stride, panel + k * nr, nr)
            k += run
    else:
        for k in range(depth):
            for j in range(lanes):
                panel[k * nr + j] = w[offset[k] + j * lane_stride]


cdef inline bint _pack_chunk(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *w,
    const ptrdiff_t *weight_offset, ptrdiff_t run, ptrdiff_t begin, ptrdiff_t end,
    ptrdiff_t chunk, ptrdiff_t panels, bint only_finite, floating *packed
) noexcept nogil:
    """Rows begin .. end-1 of all panels; False if only finite weights are wanted and some are
    not."""
    cdef ptrdiff_t panel, lane, nr
    if p.weight_lane == 1:
        _pack_lanes(p, b, w, weight_offset, begin, end, chunk, panels, packed)
    for panel in range(panels):
        lane = (chunk + panel) * b.nr
        nr = vectors_of(b, p.lanes - lane) * b.vl
        if p.weight_lane != 1:
            _pack_panel(
                uk, w + lane * p.weight_lane, p.weight_lane, min(b.nr, p.lanes - lane),
                weight_offset + begin, end - begin, run, nr,
                packed + panel * b.nr * p.depth + begin * nr)
        if only_finite and not all_finite(
            packed + panel * b.nr * p.depth + begin * nr, (end - begin) * nr
        ):
            return False
    return True


cdef inline bint pack_panels(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *w,
    const ptrdiff_t *weight_offset, ptrdiff_t chunk, ptrdiff_t panels, bint only_finite,
    floating *packed, int threads
) noexcept nogil:
    """Panels from `chunk` on. Pieces of depth rather than panels are packed at a time: weights are
    then read as they lie."""
    cdef ptrdiff_t run = run_length(weight_offset, p.depth), task, bad = 0
    cdef ptrdiff_t step = PACK_DEPTH if run == p.depth else ceil_div(PACK_DEPTH, run) * run
    for task in prange(ceil_div(p.depth, step), num_threads=threads, schedule='static'):
        if not _pack_chunk(
            p, b, uk, w, weight_offset, run, task * step, min((task + 1) * step, p.depth), chunk,
            panels, only_finite, packed
        ):
            bad += 1
    return bad == 0
