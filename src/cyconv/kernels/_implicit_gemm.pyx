"""Implicit GEMM: convolution as a matrix product whose patches are read from the image as they lie.

One sum serves all three operators. With rows i, lanes j and depth k,

    C[i, j] = sum_k  A[row(i) + offset(k)] * B[k, j]

    forward          rows = pixels of y,    lanes = channels of y,  depth = (tap, channel of x)
    data backward    rows = pixels of dx,   lanes = channels of dx, depth = (tap, channel of dy)
    weight backward  rows = (tap, channel), lanes = channels of dy, depth = pixels

A is a slab of a block of pixels (`_slabs`). B is packed: weights in panels of a few vectors of
lanes, or dy. Where pixels are few, and weights not packed already, the patches are packed instead,
and the weights read as they lie (`_few_pixels`).

Each element is summed over depth in one order, whatever the threads, tiles or batch are; how weight
gradients are shared among threads, `_gradients` tells. Data backward multiplies the zeros of its
slab with weights, which is wrong for weights that are not finite: `run` then returns False and the
result is to be had elsewhere.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t

cimport numpy as cnp

from ._few_pixels cimport few_t, is_few, plan_few, run_few
from ._geometry cimport Geometry, geometry_t
from ._gradients cimport plan_sums, run_gradient, sums_t
from ._panels cimport pack_panels
from ._passes cimport (
    aligned, ceil_div, cyconv_flush_begin, cyconv_flush_end, data_pass, forward_pass, pass_t,
    weights_seen,
)
from ._run cimport Run, epilogue_t, finish, run_t
from ._slabs cimport (
    BLOCK_DEPTH, block_place, blocks_of_panels, blocks_t, fill_slab_line, list_depth, list_pixels,
    place_t, result_offset, result_step, store_block, vectors_of,
)
from ._ukernels cimport (
    CYCONV_MOST_LANES, CYCONV_MOST_ROWS, active, cyconv_ukernels, outer,
)

import numpy as np

from ._run import OPERATORS

cnp.import_array()

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
    cdef sums_t sums
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
            if c.op == 2:
                sums = plan_sums(&p, uk, sizeof(floating), c.limit, c.threads)
                run_gradient(&p, g, &sums, uk, inputs, outputs, filters, c.scratch, c.flush)
                continue
            b = blocks_of_panels(&p, c.op, uk, sizeof(floating), c.limit, c.threads)
            b.flush = c.flush
            if not _run_pass(
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
            b = blocks_of_panels(&p, op, uk, sizeof(floating), 0, threads)
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
        elif code == 2:
            most = max(most, plan_sums(&p, active(), itemsize, limit, threads).blocks.nbytes)
        else:
            most = max(most, blocks_of_panels(&p, code, active(), itemsize, limit, threads).nbytes)
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


def gradient_tasks(Geometry geometry not None, ptrdiff_t limit, int threads):
    """Return segments, the tasks of each, and the threads of a weight gradient."""
    cdef pass_t p = forward_pass(&geometry.c)
    cdef sums_t sums = plan_sums(
        &p, active(), 8 if geometry.double_precision else 4, limit, threads)
    return sums.segments, sums.splits, sums.workers


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
            b = blocks_of_panels(&p, code, active(), itemsize, 0, 1)
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
