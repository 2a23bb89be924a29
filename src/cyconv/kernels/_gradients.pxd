"""Weight gradients of `_implicit_gemm`: sums over blocks of pixels.

The rows of the sums are (tap, channel), their lanes the channels of dy, packed block by block. A
unit is a chunk of rows of a panel of lanes. A task sums some units over a segment of the blocks:
units are shared out among threads, and where there are few of them the blocks are cut into segments
with sums of their own. Segments do not depend on the threads, and are added in order.

Sums are folded into float64 every `FOLD_PIXELS` pixels.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t
from libc.string cimport memset

from ._geometry cimport geometry_t
from ._passes cimport (
    LINE, aligned, ceil_div, cyconv_flush_begin, cyconv_flush_end, pass_t, run_length,
)
from ._slabs cimport (
    block_place, blocks_t, divide_blocks, fill_slab_line, list_depth, list_pixels, place_t,
    vectors_of,
)
from ._ukernels cimport (
    CYCONV_MOST_LANES, CYCONV_MOST_ROWS, collect, cyconv_ukernels, outer, transpose,
)


cdef enum:
    FOLD_PIXELS = 4096          # summed before they are added in float64
    ROW_CHUNK = 96              # rows of a unit
    FEWEST_UNITS = 16           # below that blocks are cut into segments


cdef struct sums_t:
    blocks_t blocks
    bint fold
    ptrdiff_t chunks                            # units of a panel
    ptrdiff_t segments, segment_blocks
    ptrdiff_t splits                            # tasks that share a segment's units
    int workers
    ptrdiff_t slab_at, panels_at                # in a thread's scratch, behind the positions
    ptrdiff_t total_at, total_nbytes, folded_at, folded_nbytes  # of each segment


cdef inline sums_t plan_sums(
    const pass_t *p, const cyconv_ukernels *uk, ptrdiff_t itemsize, ptrdiff_t limit, int threads
) noexcept nogil:
    """Choose segments, tasks and the layout of the scratch; nbytes exceeds the limit if none fits.

    Neither threads nor the room for packed panels change the order of a sum.
    """
    cdef sums_t s
    cdef blocks_t b = divide_blocks(p, 2, uk, itemsize, limit, threads)
    cdef ptrdiff_t pixels = b.images * b.rows * b.cols, units, room, panel
    cdef ptrdiff_t sum_nbytes = p.depth * b.nr * itemsize
    cdef ptrdiff_t double_nbytes = p.depth * b.nr * <ptrdiff_t> sizeof(double)
    cdef ptrdiff_t pack_nbytes = pixels * b.nr * itemsize
    s.chunks = ceil_div(p.depth, ROW_CHUNK)
    s.slab_at = aligned(pixels * <ptrdiff_t> sizeof(ptrdiff_t))
    s.panels_at = s.slab_at + aligned(b.slab_elements * itemsize)
    s.fold = itemsize == 4 and (
        p.batch * p.axis[0].outputs * p.axis[1].outputs * p.axis[2].outputs > FOLD_PIXELS)
    s.segments, s.segment_blocks = 1, b.count
    units = b.panels * s.chunks
    if 0 < units < FEWEST_UNITS and b.count > 1:
        s.segment_blocks = ceil_div(b.count, ceil_div(FEWEST_UNITS, units))
        s.segments = ceil_div(b.count, s.segment_blocks)
        if b.pack_at + s.panels_at + b.panels * (
            pack_nbytes + s.segments * (sum_nbytes + double_nbytes)
        ) > limit // 2:
            s.segments, s.segment_blocks = 1, b.count
    s.fold = s.fold or s.segments > 1
    panel = s.segments * (sum_nbytes + (double_nbytes if s.fold else 0))

    # A task packs the panels of its units: its share of all, and one more at either end.
    s.splits = 1
    if threads > 1:
        s.splits = max(min(units, ceil_div(2 * threads, s.segments)), <ptrdiff_t> 1)
    s.workers = <int> min(<ptrdiff_t> threads, s.segments * s.splits)
    while True:
        room = limit - b.pack_at - s.workers * (s.panels_at + 2 * pack_nbytes) - 4 * LINE
        room //= max(panel + ceil_div(s.workers, s.splits) * pack_nbytes, <ptrdiff_t> 1)
        if room >= 1 or s.workers == 1:
            break
        s.workers //= 2
    b.packed = max(min(b.panels, room), <ptrdiff_t> 1)
    s.total_at = b.pack_at
    s.total_nbytes = aligned(b.packed * sum_nbytes)
    s.folded_at = s.total_at + s.segments * s.total_nbytes
    s.folded_nbytes = aligned(b.packed * double_nbytes) if s.fold else 0
    b.private_at = s.folded_at + s.segments * s.folded_nbytes
    b.private_nbytes = s.panels_at + aligned(
        min(b.packed, b.packed // s.splits + 2) * pack_nbytes)
    b.nbytes = b.private_at + s.workers * b.private_nbytes
    s.blocks = b
    return s


cdef inline void _pack_gradient(
    const blocks_t *b, const geometry_t *g, const place_t *at, const cyconv_ukernels *uk,
    const floating *dy, ptrdiff_t lanes, floating *panel
) noexcept nogil:
    """A block of dy as a panel: pixels by lanes, zero beyond the last lane."""
    cdef int nv = vectors_of(b, lanes)
    cdef ptrdiff_t n, y, x, j, nr = nv * b.vl
    cdef const floating *row
    if lanes < nr:
        memset(panel, 0, at.images * at.rows * at.cols * nr * sizeof(floating))
    for n in range(at.images):
        for y in range(at.rows):
            row = (
                dy + (at.n + n) * g.y_n + at.z * g.y_s[0] + (at.y + y) * g.y_s[1]
                + at.x * g.y_s[2])
            if g.y_c == 1 and lanes == nr:
                collect(uk, at.cols, nv, row, g.y_s[2], panel)
            elif g.y_c == 1:
                for x in range(at.cols):
                    for j in range(lanes):
                        panel[x * nr + j] = row[x * g.y_s[2] + j]
            elif g.y_s[2] == 1:
                transpose(uk, lanes, at.cols, row, g.y_c, panel, nr)
            else:
                for x in range(at.cols):
                    for j in range(lanes):
                        panel[x * nr + j] = row[x * g.y_s[2] + j * g.y_c]
            panel += at.cols * nr


cdef inline void _gradient_rows(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *source,
    const ptrdiff_t *offset, const ptrdiff_t *position, ptrdiff_t pixels, const floating *panel,
    ptrdiff_t lanes, bint first_block, ptrdiff_t begin, ptrdiff_t end, floating *total
) noexcept nogil:
    """Add a block's pixels to rows begin .. end-1 of one panel's sum."""
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_LANES]
    cdef int nv = vectors_of(b, lanes)
    cdef ptrdiff_t nr = nv * b.vl, tiles = ceil_div(end - begin, b.mr)
    cdef ptrdiff_t tile, m, i, k = begin
    memset(start, 0, sizeof(start))
    for tile in range(tiles):
        m = (end - begin) // tiles + (1 if tile < (end - begin) % tiles else 0)
        for i in range(m):
            rows[i] = source + offset[k + i]
        outer(
            uk, m, nv, pixels, rows, position, panel, start if first_block else NULL,
            total + k * nr, nr)
        k += m


cdef inline void _store_gradient(
    const pass_t *p, const cyconv_ukernels *uk, const floating *total, const double *folded,
    ptrdiff_t nr, ptrdiff_t lanes, const ptrdiff_t *weight_offset, ptrdiff_t run, floating *dw
) noexcept nogil:
    """Write one panel's sums to dw, which points at the panel's first filter."""
    cdef ptrdiff_t k, j
    if folded != NULL:
        for k in range(p.depth):
            for j in range(lanes):
                dw[j * p.weight_lane + weight_offset[k]] = <floating> folded[k * nr + j]
    elif run == p.depth:
        transpose(uk, p.depth, lanes, total, nr, dw, p.weight_lane)
    else:
        for k in range(p.depth):
            for j in range(lanes):
                dw[j * p.weight_lane + weight_offset[k]] = total[k * nr + j]


cdef inline void _fold(
    const floating *total, double *folded, ptrdiff_t count, bint first
) noexcept nogil:
    cdef ptrdiff_t i
    if first:
        for i in range(count):
            folded[i] = total[i]
    else:
        for i in range(count):
            folded[i] += total[i]


cdef inline void _sum_units(
    const pass_t *p, const geometry_t *g, const sums_t *s, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, char *scratch, int thread, ptrdiff_t segment,
    ptrdiff_t chunk, ptrdiff_t begin, ptrdiff_t end
) noexcept nogil:
    """The sums of units begin .. end-1 over a segment, left in the scratch; the first panel of all
    units is `chunk`."""
    cdef const blocks_t *b = &s.blocks
    cdef char *private_ = scratch + b.private_at + thread * b.private_nbytes
    cdef ptrdiff_t *position = <ptrdiff_t *> private_
    cdef floating *slab = <floating *> (private_ + s.slab_at)
    cdef floating *packed = <floating *> (private_ + s.panels_at)
    cdef floating *total = <floating *> (scratch + s.total_at + segment * s.total_nbytes)
    cdef double *folded = <double *> (scratch + s.folded_at + segment * s.folded_nbytes)
    cdef const floating *source = x if b.in_place else slab
    cdef const ptrdiff_t *offset = <const ptrdiff_t *> (scratch + b.offsets_at)
    cdef ptrdiff_t most = b.images * b.rows * b.cols * b.nr
    cdef ptrdiff_t first_panel = begin // s.chunks, last = min(
        (segment + 1) * s.segment_blocks, b.count) - 1
    cdef ptrdiff_t index, pixels, line, panel, unit, pending = 0, lane, row, rows
    cdef bint first_fold = True
    cdef place_t at
    if begin == end:
        return
    for index in range(segment * s.segment_blocks, last + 1):
        at = block_place(p, b, index)
        pixels = at.images * at.rows * at.cols
        list_pixels(p, b, &at, position)
        if not b.in_place:
            for line in range(at.images * b.slab[0] * b.slab[1]):
                fill_slab_line(p, b, &at, uk, x, line, slab)
        for panel in range(first_panel, ceil_div(end, s.chunks)):
            lane = (chunk + panel) * b.nr
            _pack_gradient(
                b, g, &at, uk, dy + lane * g.y_c, min(b.nr, p.lanes - lane),
                packed + (panel - first_panel) * most)
        for unit in range(begin, end):
            panel = unit // s.chunks
            row = unit % s.chunks * ROW_CHUNK
            _gradient_rows(
                p, b, uk, source, offset, position, pixels, packed + (panel - first_panel) * most,
                p.lanes - (chunk + panel) * b.nr, pending == 0, row,
                min(row + ROW_CHUNK, p.depth), total + panel * p.depth * b.nr)
        pending += pixels
        if s.fold and (pending >= FOLD_PIXELS or index == last):
            for unit in range(begin, end):
                panel = unit // s.chunks
                row = unit % s.chunks * ROW_CHUNK
                rows = min(<ptrdiff_t> ROW_CHUNK, p.depth - row)
                lane = b.vl * vectors_of(b, p.lanes - (chunk + panel) * b.nr)
                row = panel * p.depth * b.nr + row * lane
                _fold(total + row, folded + row, rows * lane, first_fold)
            pending = 0
            first_fold = False


cdef inline void _finish_panel(
    const pass_t *p, const sums_t *s, const cyconv_ukernels *uk, char *scratch, ptrdiff_t panel,
    ptrdiff_t lane, ptrdiff_t run, floating *dw
) noexcept nogil:
    """Add the segments of a panel and write it to dw, which points at lane `lane`, its first."""
    cdef ptrdiff_t at = panel * p.depth * s.blocks.nr, segment, i
    cdef ptrdiff_t lanes = s.blocks.vl * vectors_of(&s.blocks, p.lanes - lane)
    cdef double *folded = <double *> (scratch + s.folded_at) + at
    cdef const double *more
    for segment in range(1, s.segments):
        more = <const double *> (scratch + s.folded_at + segment * s.folded_nbytes) + at
        for i in range(p.depth * lanes):
            folded[i] += more[i]
    _store_gradient(
        p, uk, <const floating *> (scratch + s.total_at) + at, folded if s.fold else NULL, lanes,
        min(s.blocks.nr, p.lanes - lane),
        <const ptrdiff_t *> (scratch + s.blocks.weight_offsets_at), run, dw)


cdef inline void run_gradient(
    const pass_t *p, const geometry_t *g, const sums_t *s, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, floating *dw, char *scratch, bint flush
) noexcept nogil:
    """The weight gradient of one group, as many panels at a time as the scratch holds."""
    cdef const blocks_t *b = &s.blocks
    cdef ptrdiff_t *weight_offset = <ptrdiff_t *> (scratch + b.weight_offsets_at)
    cdef ptrdiff_t chunk = 0, panels, panel, lane, run, task, split
    cdef uint64_t before
    list_depth(p, b, <ptrdiff_t *> (scratch + b.offsets_at), weight_offset)
    run = run_length(weight_offset, p.depth)
    while chunk < b.panels:
        panels = min(b.packed, b.panels - chunk)
        for task in prange(
            s.segments * s.splits, num_threads=s.workers, schedule='dynamic', chunksize=1
        ):
            split = task % s.splits
            before = cyconv_flush_begin() if flush else 0
            _sum_units(
                p, g, s, uk, x, dy, scratch, threadid(), task // s.splits, chunk,
                split * panels * s.chunks // s.splits, (split + 1) * panels * s.chunks // s.splits)
            if flush:
                cyconv_flush_end(before)
        for panel in prange(panels, num_threads=s.workers, schedule='static'):
            lane = (chunk + panel) * b.nr
            _finish_panel(p, s, uk, scratch, panel, lane, run, dw + lane * p.weight_lane)
        chunk = chunk + panels
