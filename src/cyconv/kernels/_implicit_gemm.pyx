"""Implicit GEMM: convolution as a matrix product whose patches are read from the image as they lie.

One sum serves all three operators. With rows i, lanes j and depth k,

    C[i, j] = sum_k  A[row(i) + offset(k)] * B[k, j]

    forward          rows = pixels of y,    lanes = channels of y,  depth = (tap, channel of x)
    data backward    rows = pixels of dx,   lanes = channels of dx, depth = (tap, channel of dy)
    weight backward  rows = (tap, channel), lanes = channels of dy, depth = pixels

A is a slab of a block of pixels (`_slabs`). B is packed: weights in panels of a few vectors of
lanes, or dy. Where pixels are few, and weights not packed already, the patches are packed instead,
and the weights read as they lie (`_few_pixels`).

Each element is summed over depth in one order, whatever the threads, tiles or batch are. Weight
gradients are summed block by block of pixels, and folded into float64 every few blocks. Data
backward multiplies the zeros of its slab with weights, which is wrong for weights that are not
finite: `run` then returns False and the result is to be had elsewhere.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t
from libc.string cimport memset

cimport numpy as cnp

from ._few_pixels cimport few_t, is_few, plan_few, run_few
from ._geometry cimport Geometry, geometry_t
from ._panels cimport pack_panels
from ._passes cimport (
    aligned, ceil_div, cyconv_flush_begin, cyconv_flush_end, data_pass, forward_pass, pass_t,
    run_length, weights_seen,
)
from ._run cimport Run, epilogue_t, finish, run_t
from ._slabs cimport (
    BLOCK_DEPTH, FOLD_PIXELS, block_place, blocks_t, divide_blocks, fill_slab_line, list_depth,
    list_pixels, place_t, result_offset, result_step, store_block, vectors_of,
)
from ._ukernels cimport (
    CYCONV_MOST_LANES, CYCONV_MOST_ROWS, active, collect, cyconv_ukernels, outer, transpose,
)

import numpy as np

from ._run import OPERATORS

cnp.import_array()

cdef enum:
    ROW_CHUNK = 96              # rows of a weight gradient that one task computes


cdef void _panel_product(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *source,
    const ptrdiff_t *position, ptrdiff_t pixels, const ptrdiff_t *offset, const floating *panel,
    ptrdiff_t lanes, const floating *bias, floating *c, ptrdiff_t c_row
) noexcept nogil:
    """C of all pixels of a block for one panel."""
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef floating start[CYCONV_MOST_LANES]
    cdef int nv = vectors_of(b, lanes)
    cdef ptrdiff_t nr = nv * b.vl, tiles = ceil_div(pixels, b.mr)
    cdef ptrdiff_t tile, k, depth, i, m, first
    for i in range(nr):
        start[i] = bias[i] if bias != NULL and i < lanes else 0
    k = 0
    while True:
        depth = min(<ptrdiff_t> BLOCK_DEPTH, p.depth - k)
        first = 0
        for tile in range(tiles):
            m = pixels // tiles + (1 if tile < pixels % tiles else 0)
            for i in range(m):
                rows[i] = source + position[first + i]
            outer(
                uk, m, nv, depth, rows, offset + k, panel + k * nr,
                start if k == 0 else NULL, c + first * c_row, c_row)
            first += m
        k += depth
        if k >= p.depth:
            return


cdef void _block_task(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *source,
    const floating *packed, const floating *bias, const epilogue_t *last, floating *result,
    char *scratch, int thread, ptrdiff_t index, ptrdiff_t chunk, ptrdiff_t begin, ptrdiff_t end
) noexcept nogil:
    """One block of pixels for the packed panels begin .. end-1; the first packed is `chunk`."""
    cdef char *private_ = scratch + b.private_at + thread * b.private_nbytes
    cdef floating *slab = <floating *> private_
    cdef floating *c = <floating *> (private_ + aligned(b.slab_elements * sizeof(floating)))
    cdef ptrdiff_t most = b.images * b.rows * b.cols
    cdef ptrdiff_t *position = <ptrdiff_t *> (
        <char *> c + aligned(most * b.nr * <ptrdiff_t> sizeof(floating)))
    cdef const ptrdiff_t *offset = <const ptrdiff_t *> (scratch + b.offsets_at)
    cdef place_t at = block_place(p, b, index)
    cdef ptrdiff_t pixels = at.images * at.rows * at.cols
    cdef ptrdiff_t line, panel, lane, lanes, step, c_row
    cdef floating *target
    list_pixels(p, b, &at, position)
    if not b.in_place and p.depth > 0:
        for line in range(at.images * b.slab[0] * b.slab[1]):
            fill_slab_line(p, b, &at, uk, source, line, slab)
        source = slab
    step = result_step(p, &at) if p.depth <= BLOCK_DEPTH else 0
    for panel in range(begin, end):
        lane = (chunk + panel) * b.nr
        lanes = min(b.nr, p.lanes - lane)
        target, c_row = c, vectors_of(b, lanes) * b.vl
        if step > 0 and lanes == c_row:
            target, c_row = result + lane + result_offset(p, &at, 0, 0), step
        _panel_product(
            p, b, uk, source, position, pixels, offset, packed + panel * b.nr * p.depth, lanes,
            bias + lane if bias != NULL else NULL, target, c_row)
        if target == c:
            store_block(p, &at, uk, c, c_row, 1, lanes, last, result + lane * p.result_c)
        else:
            finish(last, uk, pixels, lanes, target, step, 1)


cdef bint _run_pass(
    const pass_t *p, const blocks_t *b, const cyconv_ukernels *uk, const floating *source,
    const floating *w, const floating *given, const floating *bias, floating *result,
    bint only_finite, const run_t *run
) noexcept nogil:
    """One pass of one group, panels packed as many at a time as the scratch holds, or all given."""
    cdef char *scratch = run.scratch
    cdef int threads = run.threads
    cdef ptrdiff_t *offset = <ptrdiff_t *> (scratch + b.offsets_at)
    cdef ptrdiff_t *weight_offset = <ptrdiff_t *> (scratch + b.weight_offsets_at)
    cdef floating *own = <floating *> (scratch + b.pack_at)
    cdef const floating *packed = own
    cdef ptrdiff_t chunk = 0, panels, task
    cdef uint64_t before
    list_depth(p, b, offset, weight_offset)
    while chunk < b.panels:
        panels = min(b.packed, b.panels - chunk)
        if given != NULL:
            packed = given + chunk * b.nr * p.depth
        elif not pack_panels(
            p, b, uk, w, weight_offset, chunk, panels, only_finite, own, threads
        ):
            return False
        for task in prange(
            b.count * b.splits, num_threads=threads, schedule='dynamic', chunksize=1
        ):
            before = cyconv_flush_begin() if b.flush else 0
            _block_task(
                p, b, uk, source, packed, bias, &run.last, result, scratch, threadid(),
                task // b.splits, chunk, task % b.splits * panels // b.splits,
                (task % b.splits + 1) * panels // b.splits)
            if b.flush:
                cyconv_flush_end(before)
        chunk = chunk + panels
    return True


cdef void _pack_gradient(
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


cdef void _gradient_rows(
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


cdef void _store_gradient(
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


cdef void _fold(floating *total, double *folded, ptrdiff_t count, bint first) noexcept nogil:
    cdef ptrdiff_t i
    if first:
        for i in range(count):
            folded[i] = total[i]
    else:
        for i in range(count):
            folded[i] += total[i]


cdef void _gradient_blocks(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, char *scratch, ptrdiff_t chunk, ptrdiff_t panels,
    int threads
) noexcept nogil:
    """The sums of some panels over all blocks of pixels, left in the scratch."""
    cdef ptrdiff_t *position = <ptrdiff_t *> (scratch + b.positions_at)
    cdef floating *packed = <floating *> (scratch + b.pack_at)
    cdef floating *total = <floating *> (scratch + b.sum_at)
    cdef double *folded = <double *> (scratch + b.fold_at)
    cdef floating *slab = <floating *> (scratch + b.private_at)
    cdef const floating *source = x if b.in_place else slab
    cdef const ptrdiff_t *offset = <const ptrdiff_t *> (scratch + b.offsets_at)
    cdef ptrdiff_t most = b.images * b.rows * b.cols
    cdef ptrdiff_t chunks = ceil_div(p.depth, ROW_CHUNK)
    cdef ptrdiff_t index, pixels, line, panel, task, pending = 0, folds = 0, lane, begin
    cdef place_t at
    cdef uint64_t before
    for index in range(b.count):
        at = block_place(p, b, index)
        pixels = at.images * at.rows * at.cols
        list_pixels(p, b, &at, position)
        if not b.in_place:
            for line in prange(
                at.images * b.slab[0] * b.slab[1], num_threads=threads, schedule='static'
            ):
                fill_slab_line(p, b, &at, uk, x, line, slab)
        for panel in prange(panels, num_threads=threads, schedule='static'):
            lane = (chunk + panel) * b.nr
            _pack_gradient(
                b, g, &at, uk, dy + lane * g.y_c, min(b.nr, p.lanes - lane),
                packed + panel * most * b.nr)
        for task in prange(
            panels * chunks, num_threads=threads, schedule='dynamic', chunksize=1
        ):
            panel = task // chunks
            begin = task % chunks * ROW_CHUNK
            before = cyconv_flush_begin() if b.flush else 0
            _gradient_rows(
                p, b, uk, source, offset, position, pixels, packed + panel * most * b.nr,
                p.lanes - (chunk + panel) * b.nr, pending == 0, begin,
                min(begin + ROW_CHUNK, p.depth), total + panel * p.depth * b.nr)
            if b.flush:
                cyconv_flush_end(before)
        pending += pixels
        if b.fold and (pending >= FOLD_PIXELS or index == b.count - 1):
            for panel in prange(panels, num_threads=threads, schedule='static'):
                _fold(
                    total + panel * p.depth * b.nr, folded + panel * p.depth * b.nr,
                    p.depth * b.vl * vectors_of(b, p.lanes - (chunk + panel) * b.nr), folds == 0)
            pending = 0
            folds += 1


cdef void _run_gradient(
    const pass_t *p, const geometry_t *g, const blocks_t *b, const cyconv_ukernels *uk,
    const floating *x, const floating *dy, floating *dw, char *scratch, int threads
) noexcept nogil:
    """The weight gradient of one group, as many panels at a time as the scratch holds."""
    cdef ptrdiff_t chunk = 0, panels, panel, lane, run
    cdef floating *total = <floating *> (scratch + b.sum_at)
    cdef double *folded = <double *> (scratch + b.fold_at)
    cdef ptrdiff_t *weight_offset = <ptrdiff_t *> (scratch + b.weight_offsets_at)
    list_depth(p, b, <ptrdiff_t *> (scratch + b.offsets_at), weight_offset)
    run = run_length(weight_offset, p.depth)
    while chunk < b.panels:
        panels = min(b.packed, b.panels - chunk)
        _gradient_blocks(p, g, b, uk, x, dy, scratch, chunk, panels, threads)
        for panel in prange(panels, num_threads=threads, schedule='static'):
            lane = (chunk + panel) * b.nr
            _store_gradient(
                p, uk, total + panel * p.depth * b.nr,
                folded + panel * p.depth * b.nr if b.fold else NULL,
                vectors_of(b, p.lanes - lane) * b.vl, min(b.nr, p.lanes - lane), weight_offset,
                run, dw + lane * p.weight_lane)
        chunk = chunk + panels


cdef inline bint _pass(const geometry_t *g, int op, ptrdiff_t phase, pass_t *p) noexcept nogil:
    """The pass of this number; False if it has no position."""
    if op == 1:
        return data_pass(g, phase, p)
    p[0] = forward_pass(g)
    return True


cdef inline ptrdiff_t _count(const geometry_t *g, int op) noexcept nogil:
    return g.stride[0] * g.stride[1] * g.stride[2] if op == 1 else 1


cdef bint _run(
    const geometry_t *g, const run_t *c, const cyconv_ukernels *uk, bint prepared, floating *x
) noexcept nogil:
    cdef floating *w = <floating *> c.w
    cdef floating *y = <floating *> c.y
    cdef const floating *bias = <const floating *> c.bias
    cdef const floating *given = <const floating *> c.packed
    cdef pass_t p
    cdef blocks_t b
    cdef few_t few
    cdef ptrdiff_t group, phase
    cdef floating *filters
    cdef floating *inputs
    cdef floating *outputs
    cdef const floating *start = NULL
    for group in range(g.groups):
        inputs = x + group * g.ci * g.x_c
        outputs = y + group * g.co * g.y_c
        filters = w + group * g.co * g.w_o
        for phase in range(_count(g, c.op)):
            if not _pass(g, c.op, phase, &p):
                continue
            if bias != NULL:
                start = bias + group * p.lanes
            if c.op == 0 and not prepared and plan_few(
                &p, uk, sizeof(floating), c.limit, c.threads, &few
            ):
                run_few(&p, &few, uk, inputs, filters, start, outputs, c)
                continue
            b = divide_blocks(&p, c.op, uk, sizeof(floating), c.limit, c.threads)
            b.flush = c.flush
            if c.op == 2:
                _run_gradient(&p, g, &b, uk, inputs, outputs, filters, c.scratch, c.threads)
            elif not _run_pass(
                &p, &b, uk, outputs if c.op == 1 else inputs, filters, given, start,
                inputs if c.op == 1 else outputs, c.op == 1, c
            ):
                return False
            if given != NULL:
                given += b.panels * b.nr * p.depth
    return True


cdef bint _pack(
    const geometry_t *g, int op, const cyconv_ukernels *uk, const floating *w,
    ptrdiff_t *offset, floating *packed, int threads
) noexcept nogil:
    """All panels of all passes of all groups; `offset` has room for twice the depth."""
    cdef pass_t p
    cdef blocks_t b
    cdef ptrdiff_t group, phase
    for group in range(g.groups):
        for phase in range(_count(g, op)):
            if not _pass(g, op, phase, &p):
                continue
            b = divide_blocks(&p, op, uk, sizeof(floating), 0, threads)
            list_depth(&p, &b, offset, offset + p.depth)
            if not pack_panels(
                &p, &b, uk, w + group * g.co * g.w_o, offset + p.depth, 0, b.panels, True, packed,
                threads
            ):
                return False
            packed += b.panels * b.nr * p.depth
    return True


def workspace(Geometry geometry not None, str op, ptrdiff_t limit, int threads):
    """Return the scratch bytes that `run` needs; more than `limit` if it cannot keep to that."""
    cdef const geometry_t *g = &geometry.c
    cdef ptrdiff_t itemsize = 8 if geometry.double_precision else 4, most = 0, phase
    cdef int code = OPERATORS[op]
    cdef pass_t p
    cdef few_t few
    for phase in range(_count(g, code)):
        if not _pass(g, code, phase, &p):
            continue
        if (
            code == 0 and not geometry.prepared
            and plan_few(&p, active(), itemsize, limit, threads, &few)
        ):
            most = max(most, few.nbytes)
        else:
            most = max(most, divide_blocks(&p, code, active(), itemsize, limit, threads).nbytes)
    return most


def few_pixels(ptrdiff_t pixels, ptrdiff_t filters):
    """Return whether forward packs the patches of so many pixels rather than so many filters."""
    return is_few(pixels, filters)


def is_turned(Geometry geometry not None, ptrdiff_t limit, int threads):
    """Return whether forward packs the patches rather than the weights."""
    cdef pass_t p = forward_pass(&geometry.c)
    cdef few_t few
    return not geometry.prepared and plan_few(
        &p, active(), 8 if geometry.double_precision else 4, limit, threads, &few)


def packing(Geometry geometry not None, str op):
    """Return what packed weights depend on, besides the weights, and their bytes."""
    cdef const geometry_t *g = &geometry.c
    cdef ptrdiff_t itemsize = 8 if geometry.double_precision else 4, nbytes = 0, phase
    cdef int code = OPERATORS[op]
    cdef pass_t p
    cdef blocks_t b
    seen = [active().isa, g.groups, g.w_o]
    for phase in range(_count(g, code)):
        if _pass(g, code, phase, &p):
            b = divide_blocks(&p, code, active(), itemsize, 0, 1)
            nbytes += g.groups * b.panels * b.nr * p.depth * itemsize
            seen.append(weights_seen(&p))
    return tuple(seen), nbytes


def pack(
    Geometry geometry not None, str op, cnp.ndarray w not None, cnp.ndarray packed not None,
    int threads
):
    """Pack the weights for equal `packing`s; False if they are not all finite."""
    cdef int code = OPERATORS[op]
    cdef const cyconv_ukernels *uk = active()
    cdef ptrdiff_t[::1] offset = np.empty(2 * max(w.size, 1), np.intp)
    cdef void *source = cnp.PyArray_DATA(w)
    cdef void *target = cnp.PyArray_DATA(packed)
    cdef bint done
    with nogil:
        if geometry.double_precision:
            done = _pack[double](
                &geometry.c, code, uk, <double *> source, &offset[0], <double *> target, threads)
        else:
            done = _pack[float](
                &geometry.c, code, uk, <float *> source, &offset[0], <float *> target, threads)
    return done


def run(Run call not None):
    """Compute one operator; the result is whichever of x, w and y the operator gives.

    Returns False,
    with the result undefined, for a data gradient whose weights are not all finite.
    """
    cdef const cyconv_ukernels *uk = active()
    cdef bint done
    call.needs(workspace(call.geometry, call.problem.op, call.c.limit, call.c.threads))
    with nogil:
        if call.geometry.double_precision:
            done = _run[double](
                &call.geometry.c, &call.c, uk, call.geometry.prepared, <double *> call.c.x)
        else:
            done = _run[float](
                &call.geometry.c, &call.c, uk, call.geometry.prepared, <float *> call.c.x)
    return done
