"""Winograd's minimal filtering: kernel 3, stride 1, by fewer multiplications than the definition.

An output tile of 4x4 takes 36 multiplications a channel instead of 144, one of 2x2 takes 16 instead
of 36. Tiles and filters are transformed, multiplied, and the products transformed back:

    forward          M[tile][e][o] = sum_k V[tile][e][k] U[e][k][o]       Y = At M A
    data backward    the same of dy, with filters turned and channels exchanged
    weight backward  S[e][o][k] = sum_tiles Z[e][tile][o] V[e][tile][k]   dw = Gt S G

V = Bt d B are transformed tiles of the input, Z = A dy At of the output's gradient, U = G w Gt the
filters; e counts the points of a tile; depth k counts channels, once for each tap along an axis
that is not tiled. So a product is as many small matrix products as a tile has points.

Filters are transformed in every call, unless they are given. Many tiles: all of them first. Few
tiles, or little memory: a block of filters, used at once and overwritten.

Each product is summed over depth in one order, whatever blocks and threads are; weight gradients
are summed over a chunk of tiles, and chunks are added in float64, in order. Transforms spread what
is not finite over a tile, so all that is read and written is watched: `run` returns False where
something is not finite, and the result is to be had elsewhere.
"""

from cython cimport floating
from cython.parallel cimport prange, threadid
from libc.stdint cimport uint64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

from ._geometry cimport Geometry, geometry_t
from ._passes cimport (
    ceil_div, cyconv_flush_begin, cyconv_flush_end, data_pass, forward_pass, pass_t,
    weights_seen,
)
from ._run cimport Run, epilogue_t, run_t
from ._ukernels cimport CYCONV_MOST_LANES, active, cyconv_ukernels
from ._winograd_plan cimport (
    BLOCK_DEPTH, FILTERS, GROUP_VECTORS, SLAB_VECTORS, plan_gradient, plan_pass, plan_t,
)
from ._winograd_tiles cimport place_of, place_t, read_tiles, window_t, write_tiles
from ._winograd_ukernels cimport products_across, products_along, transform_gradient
from ._winograd_weights cimport make_panel, scatter_filter

import numpy as np

from ._run import OPERATORS

cnp.import_array()


cdef void _make_group(
    const pass_t *p, const plan_t *b, const cyconv_ukernels *uk, const floating *w,
    ptrdiff_t group, ptrdiff_t block, char *private_, floating *u
) noexcept nogil:
    """Transform a block of filters: the lanes of a group, BLOCK_DEPTH of depth."""
    cdef ptrdiff_t begin = block * BLOCK_DEPTH, end = min(begin + BLOCK_DEPTH, b.depth)
    cdef ptrdiff_t lane = group * GROUP_VECTORS * b.vl
    cdef ptrdiff_t last = min(lane + GROUP_VECTORS * b.vl, p.lanes)
    # As the product wants them: panels of two vectors, or one of three.
    cdef ptrdiff_t panel = (3 if ceil_div(last - lane, b.vl) == 3 else 2) * b.vl
    while lane < last:
        make_panel(
            p, &b.form, uk, b.vl, w + lane * p.weight_lane, min(last - lane, panel), b.pitch,
            begin, end, <floating *> (private_ + b.packed_at), u, b.u_point, <floating *> private_)
        u += (end - begin) * panel
        lane += panel


cdef void _block_group(
    const pass_t *p, const plan_t *b, const cyconv_ukernels *uk, const place_t *at,
    const floating *v, const floating *w, const floating *filters, ptrdiff_t group,
    const epilogue_t *last, char *scratch, char *private_, floating *result
) noexcept nogil:
    """The results of a block of tiles for a group of lanes; `filters` are all that are transformed
    already, or NULL."""
    cdef floating *m = <floating *> (private_ + b.m_at)
    cdef floating *own = <floating *> (private_ + b.own_u_at)
    cdef const floating *u = own
    cdef floating *slab = <floating *> (private_ + b.slab_at)
    cdef const floating *bias = <const floating *> (scratch + b.bias_at)
    cdef ptrdiff_t lane = group * GROUP_VECTORS * b.vl, block, count
    cdef ptrdiff_t lanes = min(p.lanes - lane, <ptrdiff_t> GROUP_VECTORS * b.vl)
    cdef int vectors = <int> ceil_div(lanes, b.vl)
    for block in range(b.depth_blocks):
        if filters != NULL:
            u = filters + (group * b.depth_blocks + block) * b.form.points * b.u_point
        else:
            _make_group(p, b, uk, w, group, block, private_, own)
        count = min(<ptrdiff_t> BLOCK_DEPTH, b.depth - block * BLOCK_DEPTH)
        products_along(
            uk, b.form.points, at.images * at.rows * at.cols, vectors, count,
            v + block * BLOCK_DEPTH, b.v_tile, b.v_point, u, count * 2 * b.vl, b.u_point, m,
            b.m_tile, b.m_point, block > 0)
    write_tiles(
        p, &b.form, uk, b.vl, at, vectors, lanes, m, b.m_tile, b.m_point, bias + lane, last,
        slab + GROUP_VECTORS * b.vl, slab, result + lane * p.result_c, <floating *> private_)


cdef void _read(
    const plan_t *b, const window_t *w, const cyconv_ukernels *uk, const place_t *at,
    ptrdiff_t image, ptrdiff_t slice_, ptrdiff_t piece, const floating *source, char *scratch,
    char *private_, floating *v, ptrdiff_t v_tile, ptrdiff_t v_point
) noexcept nogil:
    """Transform one image of a block: a slice, and a piece of its channels (see `_pieces`)."""
    cdef ptrdiff_t channel = 0, channels = w.pitch
    cdef ptrdiff_t outer = slice_ // b.form.row_slices, inner = slice_ % b.form.row_slices
    if not w.in_place:
        channel = piece * SLAB_VECTORS * b.vl
        channels = min(<ptrdiff_t> SLAB_VECTORS * b.vl, w.pitch - channel)
    read_tiles(
        w, b.form.number, uk, at, image, at.z + w.least[0] + outer * b.form.between[0],
        inner * b.form.between[1], channel, channels,
        source, <const floating *> (scratch + b.zeros_at), <floating *> (private_ + b.slab_at),
        v + image * at.rows * at.cols * v_tile + slice_ * w.pitch + channel, v_tile, v_point,
        b.form.points, <floating *> private_)


cdef inline ptrdiff_t _pieces(const window_t *w, int vl) noexcept nogil:
    return 1 if w.in_place else ceil_div(w.pitch, SLAB_VECTORS * vl)


cdef void _kept_block(
    const pass_t *p, const plan_t *b, const cyconv_ukernels *uk, const floating *source,
    const floating *filters, ptrdiff_t index, const epilogue_t *last, char *scratch,
    char *private_, floating *result
) noexcept nogil:
    """A block of tiles from beginning to end, by filters that are transformed already."""
    cdef place_t at = place_of(&b.form, &b.blocks, p.batch, index)
    cdef floating *v = <floating *> (private_ + b.own_v_at)
    cdef ptrdiff_t image, slice_, piece, group
    for image in range(at.images):
        for slice_ in range(b.form.slices):
            for piece in range(_pieces(&b.input, b.vl)):
                _read(
                    b, &b.input, uk, &at, image, slice_, piece, source, scratch, private_, v,
                    b.v_tile, b.v_point)
    for group in range(b.groups):
        _block_group(
            p, b, uk, &at, v, <const floating *> NULL, filters, group, last, scratch, private_,
            result)


cdef void _make_all(
    const pass_t *p, const plan_t *b, const cyconv_ukernels *uk, const floating *w, char *private_,
    floating *u, int threads
) noexcept nogil:
    """Transform all filters of a group."""
    cdef ptrdiff_t task
    cdef uint64_t before
    for task in prange(b.groups * b.depth_blocks, num_threads=threads, schedule='static'):
        before = cyconv_flush_begin() if b.flush else 0
        _make_group(
            p, b, uk, w, task // b.depth_blocks, task % b.depth_blocks,
            private_ + threadid() * b.private_nbytes, u + task * b.form.points * b.u_point)
        if b.flush:
            cyconv_flush_end(before)


cdef void _run_pass(
    const pass_t *p, const plan_t *b, const cyconv_ukernels *uk, const floating *source,
    const floating *w, const floating *given, const floating *bias, floating *result,
    const run_t *run
) noexcept nogil:
    cdef char *scratch = run.scratch
    cdef int threads = run.threads
    cdef char *own = scratch + b.private_at
    cdef floating *u = <floating *> (scratch + b.u_at)
    cdef floating *v = <floating *> (scratch + b.v_at)
    cdef floating *start = <floating *> (scratch + b.bias_at)
    cdef ptrdiff_t pieces = _pieces(&b.input, b.vl), task, index, rest
    cdef place_t at
    cdef uint64_t before
    memset(start, 0, b.groups * GROUP_VECTORS * b.vl * sizeof(floating))
    if bias != NULL:
        memcpy(start, bias, p.lanes * sizeof(floating))
    if b.kept:
        if given == NULL:
            _make_all(p, b, uk, w, own, u, threads)
            given = u
        for task in prange(
            b.blocks.count, num_threads=threads, schedule='dynamic', chunksize=1
        ):
            before = cyconv_flush_begin() if b.flush else 0
            _kept_block(
                p, b, uk, source, given, task, &run.last, scratch,
                own + threadid() * b.private_nbytes, result)
            if b.flush:
                cyconv_flush_end(before)
        return
    for index in range(b.blocks.count):
        at = place_of(&b.form, &b.blocks, p.batch, index)
        for task in prange(
            at.images * b.form.slices * pieces, num_threads=threads, schedule='static'
        ):
            before = cyconv_flush_begin() if b.flush else 0
            rest = task // pieces
            _read(
                b, &b.input, uk, &at, rest // b.form.slices, rest % b.form.slices, task % pieces,
                source, scratch, own + threadid() * b.private_nbytes, v, b.v_tile, b.v_point)
            if b.flush:
                cyconv_flush_end(before)
        for task in prange(b.groups, num_threads=threads, schedule='dynamic', chunksize=1):
            before = cyconv_flush_begin() if b.flush else 0
            _block_group(
                p, b, uk, &at, <const floating *> v, w, given, task, &run.last, scratch,
                own + threadid() * b.private_nbytes, result)
            if b.flush:
                cyconv_flush_end(before)


cdef void _gradient_task(
    const pass_t *p, const plan_t *b, const cyconv_ukernels *uk, ptrdiff_t group,
    ptrdiff_t first, ptrdiff_t index, ptrdiff_t tiles, char *scratch, char *private_, floating *dw
) noexcept nogil:
    """The sums of some filters and a group of depth over one chunk, transformed back and added up;
    the last chunk writes dw."""
    cdef floating *s = <floating *> (private_ + b.m_at)
    cdef floating *taps = <floating *> (private_ + b.packed_at)
    cdef const floating *v = <const floating *> (scratch + b.v_at)
    cdef const floating *z = <const floating *> (scratch + b.z_at)
    cdef double *total = <double *> (scratch + b.total_at)
    cdef ptrdiff_t filters = min(p.lanes - first, <ptrdiff_t> FILTERS), k = group * b.m_point
    cdef ptrdiff_t count = min(b.m_point, b.depth - k), row = b.groups * b.m_point, o, tap, j
    cdef int vectors = <int> ceil_div(count, b.vl)
    products_across(
        uk, b.form.points, filters, vectors, tiles, z + first, b.z_tile, b.z_point, v + k,
        b.v_tile, b.v_point, s, b.m_point, b.s_point, False)
    total += first * b.form.taps * row + k
    for o in range(filters):
        transform_gradient(
            uk, b.form.number, vectors, s + o * b.m_point, b.s_point, taps, b.m_point,
            <floating *> private_)
        if b.blocks.count > 1:
            for tap in range(b.form.taps):
                for j in range(count):
                    if index == 0:
                        total[tap * row + j] = taps[tap * b.m_point + j]
                    else:
                        total[tap * row + j] += taps[tap * b.m_point + j]
                    taps[tap * b.m_point + j] = <floating> total[tap * row + j]
            total += b.form.taps * row
        if index == b.blocks.count - 1:
            scatter_filter(
                p, &b.form, uk, taps, b.m_point, k, count, b.pitch,
                dw + (first + o) * p.weight_lane)


cdef void _run_gradient(
    const pass_t *p, const plan_t *b, const cyconv_ukernels *uk, const floating *x,
    const floating *dy, floating *dw, char *scratch, int threads
) noexcept nogil:
    cdef char *own = scratch + b.private_at
    cdef floating *v = <floating *> (scratch + b.v_at)
    cdef floating *z = <floating *> (scratch + b.z_at)
    cdef ptrdiff_t v_pieces = _pieces(&b.input, b.vl), z_pieces = _pieces(&b.gradient, b.vl)
    cdef ptrdiff_t of_image = b.form.slices * v_pieces + z_pieces
    cdef ptrdiff_t cuts = ceil_div(p.lanes, FILTERS), index, task, piece
    cdef place_t at
    cdef uint64_t before
    for index in range(b.blocks.count):
        at = place_of(&b.form, &b.blocks, p.batch, index)
        for task in prange(at.images * of_image, num_threads=threads, schedule='static'):
            before = cyconv_flush_begin() if b.flush else 0
            piece = task % of_image
            if piece < z_pieces:
                _read(
                    b, &b.gradient, uk, &at, task // of_image, 0, piece, dy, scratch,
                    own + threadid() * b.private_nbytes, z, b.z_tile, b.z_point)
            else:
                piece = piece - z_pieces
                _read(
                    b, &b.input, uk, &at, task // of_image, piece // v_pieces, piece % v_pieces, x,
                    scratch, own + threadid() * b.private_nbytes, v, b.v_tile, b.v_point)
            if b.flush:
                cyconv_flush_end(before)
        for task in prange(
            b.groups * cuts, num_threads=threads, schedule='dynamic', chunksize=1
        ):
            before = cyconv_flush_begin() if b.flush else 0
            _gradient_task(
                p, b, uk, task // cuts, task % cuts * FILTERS, index,
                at.images * at.rows * at.cols, scratch, own + threadid() * b.private_nbytes, dw)
            if b.flush:
                cyconv_flush_end(before)


cdef plan_t _plan(
    Geometry geometry, int op, pass_t *p, ptrdiff_t limit, int threads
) noexcept:
    cdef const cyconv_ukernels *uk = active()
    cdef const geometry_t *g = &geometry.c
    cdef ptrdiff_t itemsize = 8 if geometry.double_precision else 4
    cdef int vl = uk.vl_f32 if itemsize == 4 else uk.vl_f64
    if op == 1:
        data_pass(g, 0, p)
    else:
        p[0] = forward_pass(g)
    if op == 2:
        return plan_gradient(p, g, vl, itemsize, limit, threads)
    return plan_pass(p, g, geometry.by_image, vl, itemsize, limit, threads)


cdef bint _all_zero(const plan_t *b, const floating *check) noexcept nogil:
    """Whether a thread has seen nothing that is not finite."""
    cdef ptrdiff_t lane
    for lane in range(b.vl):
        if not check[lane] == 0:
            return False
    return True


cdef bint _run(
    const geometry_t *g, const pass_t *p, const plan_t *b, const run_t *c,
    const cyconv_ukernels *uk, floating *x
) noexcept nogil:
    cdef floating *w = <floating *> c.w
    cdef floating *y = <floating *> c.y
    cdef const floating *bias = <const floating *> c.bias
    cdef char *scratch = c.scratch
    cdef const floating *given = <const floating *> c.packed
    cdef ptrdiff_t group, thread
    cdef floating *inputs
    cdef floating *outputs
    cdef floating *filters
    memset(scratch + b.zeros_at, 0, max(b.input.pitch, b.gradient.pitch) * sizeof(floating))
    for thread in range(c.threads):
        memset(
            scratch + b.private_at + thread * b.private_nbytes, 0,
            CYCONV_MOST_LANES * sizeof(floating))
    for group in range(g.groups):
        inputs = x + group * g.ci * g.x_c
        outputs = y + group * g.co * g.y_c
        filters = w + group * g.co * g.w_o
        if c.op == 2:
            _run_gradient(p, b, uk, inputs, outputs, filters, scratch, c.threads)
        elif c.op == 1:
            _run_pass(
                p, b, uk, outputs, filters, given,
                bias + group * g.ci if bias != NULL else NULL, inputs, c)
        else:
            _run_pass(
                p, b, uk, inputs, filters, given,
                bias + group * g.co if bias != NULL else NULL, outputs, c)
        if given != NULL:
            given += b.groups * b.depth_blocks * b.form.points * b.u_point
    for thread in range(c.threads):
        if not _all_zero(b, <floating *> (scratch + b.private_at + thread * b.private_nbytes)):
            return False
    return True


cdef bint _pack(
    const geometry_t *g, const pass_t *p, const plan_t *b, const cyconv_ukernels *uk,
    const floating *w, char *private_, floating *u, int threads
) noexcept nogil:
    """All filters of all groups; `private_` has zeros for each thread."""
    cdef ptrdiff_t group, thread
    for group in range(g.groups):
        _make_all(p, b, uk, w + group * g.co * g.w_o, private_, u, threads)
        u += b.groups * b.depth_blocks * b.form.points * b.u_point
    for thread in range(threads):
        if not _all_zero(b, <floating *> (private_ + thread * b.private_nbytes)):
            return False
    return True


def workspace(Geometry geometry not None, str op, ptrdiff_t limit, int threads):
    """Return the scratch bytes that `run` needs; more than `limit` if it cannot keep to that."""
    cdef pass_t p
    return _plan(geometry, OPERATORS[op], &p, limit, threads).nbytes


def outputs_of_a_tile(Geometry geometry not None, str op):
    """Return the outputs of a tile along a tiled axis, 4 or 2."""
    cdef pass_t p
    cdef plan_t plan = _plan(geometry, OPERATORS[op], &p, 0, 1)
    return max(plan.form.height, plan.form.width)


def packing(Geometry geometry not None, str op):
    """Return what packed weights depend on, besides the weights, and their bytes."""
    cdef pass_t p
    cdef plan_t b = _plan(geometry, OPERATORS[op], &p, 0, 1)
    cdef ptrdiff_t itemsize = 8 if geometry.double_precision else 4
    cdef const geometry_t *g = &geometry.c
    cdef ptrdiff_t elements = g.groups * b.groups * b.depth_blocks * b.form.points * b.u_point
    cdef list seen = [active().isa, g.groups, g.w_o, b.form.number, weights_seen(&p)]
    return tuple(seen), elements * itemsize


def pack(
    Geometry geometry not None, str op, cnp.ndarray w not None, cnp.ndarray packed not None,
    int threads
):
    """Transform the filters for equal `packing`s; False if they are not all finite."""
    cdef pass_t p
    cdef plan_t b = _plan(geometry, OPERATORS[op], &p, 0, threads)
    cdef const cyconv_ukernels *uk = active()
    cdef char[::1] own = np.zeros(threads * b.private_nbytes, np.int8)
    cdef void *source = cnp.PyArray_DATA(w)
    cdef void *target = cnp.PyArray_DATA(packed)
    cdef bint done
    b.flush = False
    with nogil:
        if geometry.double_precision:
            done = _pack[double](
                &geometry.c, &p, &b, uk, <double *> source, &own[0], <double *> target, threads)
        else:
            done = _pack[float](
                &geometry.c, &p, &b, uk, <float *> source, &own[0], <float *> target, threads)
    return done


def run(Run call not None):
    """Compute one operator; the result is whichever of x, w and y the operator gives.

    Returns False,
    with the result undefined, where an operand, a transform or a result is not finite.
    """
    cdef pass_t p
    cdef const cyconv_ukernels *uk = active()
    cdef bint done
    cdef plan_t plan = _plan(call.geometry, call.c.op, &p, call.c.limit, call.c.threads)
    call.needs(plan.nbytes)
    plan.flush = call.c.flush
    with nogil:
        if call.geometry.double_precision:
            done = _run[double](&call.geometry.c, &p, &plan, &call.c, uk, <double *> call.c.x)
        else:
            done = _run[float](&call.geometry.c, &p, &plan, &call.c, uk, <float *> call.c.x)
    return done
