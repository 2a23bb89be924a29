"""The product of few pixels and many filters, turned round: C[filter, pixel], lanes are pixels.

    C[i, j] = sum_k  w[filter(i) + offset(k)] * B[k, j]        B[k, j] = patch of pixel j

Filters are rows, read once and as they lie; the patches are packed instead, which are fewer. Sums
and their order are those of the product of pixels and packed filters, so the result is the same to
the bit, and which way is taken may depend on the batch. For data backward neighbouring lanes, not
depths, are neighbours in memory: there packing the weights is the quicker way.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t
from libc.string cimport memset

from ._passes cimport (
    aligned, ceil_div, cyconv_flush_begin, cyconv_flush_end, pass_t, run_length,
)
from ._run cimport epilogue_t, run_t
from ._slabs cimport (
    BLOCK_DEPTH, block_place, blocks_t, fill_slab_line, is_readable, list_depth, list_pixels,
    place_t, size_slab, slab_pitch, store_block, vectors_of,
)
from ._ukernels cimport CYCONV_MOST_ROWS, cyconv_ukernels, outer, transpose


cdef enum:
    FEW_PIXELS = 64             # at most, of all images
    FEW_SHARE = 4               # and so many filters for each of them, at least
    FILTERS = 60                # of a task


cdef struct few_t:
    blocks_t blocks             # one: all pixels
    ptrdiff_t pixels, pitch     # and whole vectors of them
    ptrdiff_t panels, tasks
    ptrdiff_t positions_at, slab_at, packed_at, private_at, private_nbytes, nbytes


cdef inline bint is_few(ptrdiff_t pixels, ptrdiff_t filters) noexcept nogil:
    return 0 < pixels <= FEW_PIXELS and pixels * FEW_SHARE <= filters


cdef inline bint plan_few(
    const pass_t *p, const cyconv_ukernels *uk, ptrdiff_t itemsize, ptrdiff_t limit, int threads,
    few_t *f
) noexcept nogil:
    """Whether a forward pass is to be done so, within the limit; and the layout of the scratch."""
    cdef blocks_t *b = &f.blocks
    f.pixels = p.batch * p.axis[1].outputs * p.axis[2].outputs
    if p.axis[0].outputs != 1 or p.depth == 0 or not is_few(f.pixels, p.lanes):
        return False
    b.mr = uk.mr
    b.vl = uk.vl_f32 if itemsize == 4 else uk.vl_f64
    b.nr = 2 * b.vl
    b.in_place = is_readable(p, 0)
    b.pitch = slab_pitch(p.channels, itemsize)
    b.images, b.rows, b.cols = p.batch, p.axis[1].outputs, p.axis[2].outputs
    b.n_images = b.n_rows = b.n_cols = b.count = 1
    size_slab(p, b)
    f.pitch = ceil_div(f.pixels, b.vl) * b.vl
    f.panels = ceil_div(f.pixels, b.nr)
    f.tasks = ceil_div(p.lanes, FILTERS)
    b.offsets_at = 0
    b.weight_offsets_at = aligned(p.depth * <ptrdiff_t> sizeof(ptrdiff_t))
    f.positions_at = 2 * b.weight_offsets_at
    f.slab_at = f.positions_at + aligned(f.pixels * <ptrdiff_t> sizeof(ptrdiff_t))
    f.packed_at = f.slab_at + aligned(b.slab_elements * itemsize)
    f.private_at = f.packed_at + aligned(p.depth * f.panels * b.nr * itemsize)
    f.private_nbytes = aligned(FILTERS * f.pitch * itemsize)
    f.nbytes = f.private_at + threads * f.private_nbytes
    return f.nbytes <= limit


cdef inline void _pack_patches(
    const pass_t *p, const few_t *f, const cyconv_ukernels *uk, const floating *source,
    const ptrdiff_t *position, const ptrdiff_t *offset, ptrdiff_t panel, floating *packed
) noexcept nogil:
    """One panel: pixels that are evenly spaced, as those of a row are, are transposed together."""
    cdef ptrdiff_t first = panel * f.blocks.nr, lanes = min(f.pixels - first, f.blocks.nr)
    cdef ptrdiff_t nr = vectors_of(&f.blocks, lanes) * f.blocks.vl
    cdef ptrdiff_t run = run_length(offset, p.depth), j = 0, k, count, step
    packed += panel * f.blocks.nr * p.depth
    if lanes < nr:
        memset(packed, 0, p.depth * nr * sizeof(floating))
    position += first
    while j < lanes:
        count = 1
        step = position[j + 1] - position[j] if j + 1 < lanes else 0
        while j + count < lanes and position[j + count] - position[j + count - 1] == step:
            count += 1
        k = 0
        while k < p.depth:
            transpose(
                uk, count, min(run, p.depth - k), source + position[j] + offset[k], step,
                packed + k * nr + j, nr)
            k += run
        j += count


cdef inline void _filters_task(
    const pass_t *p, const few_t *f, const cyconv_ukernels *uk, const floating *packed,
    const floating *w, const ptrdiff_t *weight_offset, const floating *bias,
    const epilogue_t *last, const place_t *at, ptrdiff_t begin, floating *c, floating *result
) noexcept nogil:
    """All pixels of FILTERS filters from `begin` on."""
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef ptrdiff_t lanes = min(<ptrdiff_t> FILTERS, p.lanes - begin), nr = f.blocks.nr
    cdef ptrdiff_t tiles = ceil_div(lanes, f.blocks.mr), tile, m, first, panel, depth, i, j, k = 0
    cdef int nv
    for i in range(lanes):
        for j in range(f.pitch):
            c[i * f.pitch + j] = bias[begin + i] if bias != NULL else 0
    while k < p.depth:
        depth = min(<ptrdiff_t> BLOCK_DEPTH, p.depth - k)
        first = 0
        for tile in range(tiles):
            m = lanes // tiles + (1 if tile < lanes % tiles else 0)
            for i in range(m):
                rows[i] = w + (begin + first + i) * p.weight_lane
            for panel in range(f.panels):
                nv = vectors_of(&f.blocks, f.pixels - panel * nr)
                outer(
                    uk, m, nv, depth, rows, weight_offset + k,
                    packed + panel * nr * p.depth + k * nv * f.blocks.vl, <floating *> NULL,
                    c + first * f.pitch + panel * nr, f.pitch)
            first += m
        k += depth
    store_block(p, at, uk, c, 1, f.pitch, lanes, last, result + begin * p.result_c)


cdef inline void run_few(
    const pass_t *p, const few_t *f, const cyconv_ukernels *uk, const floating *source,
    const floating *w, const floating *bias, floating *result, const run_t *run
) noexcept nogil:
    """One pass of one group that `plan_few` plans."""
    cdef char *scratch = run.scratch
    cdef int threads = run.threads
    cdef bint flush = run.flush
    cdef const blocks_t *b = &f.blocks
    cdef ptrdiff_t *offset = <ptrdiff_t *> (scratch + b.offsets_at)
    cdef ptrdiff_t *weight_offset = <ptrdiff_t *> (scratch + b.weight_offsets_at)
    cdef ptrdiff_t *position = <ptrdiff_t *> (scratch + f.positions_at)
    cdef floating *slab = <floating *> (scratch + f.slab_at)
    cdef floating *packed = <floating *> (scratch + f.packed_at)
    cdef place_t at = block_place(p, b, 0)
    cdef ptrdiff_t task
    cdef uint64_t before
    list_depth(p, b, offset, weight_offset)
    list_pixels(p, b, &at, position)
    if not b.in_place:
        for task in prange(
            at.images * b.slab[0] * b.slab[1], num_threads=threads, schedule='static'
        ):
            fill_slab_line(p, b, &at, uk, source, task, slab)
        source = slab
    for task in prange(f.panels, num_threads=threads, schedule='static'):
        _pack_patches(p, f, uk, source, position, offset, task, packed)
    for task in prange(f.tasks, num_threads=threads, schedule='dynamic', chunksize=1):
        before = cyconv_flush_begin() if flush else 0
        _filters_task(
            p, f, uk, <const floating *> packed, w, weight_offset, bias, &run.last, &at,
            task * FILTERS,
            <floating *> (scratch + f.private_at + threadid() * f.private_nbytes), result)
        if flush:
            cyconv_flush_end(before)
