"""How a run of Winograd's filtering is divided: tiles, blocks of them, places in the scratch."""

from ._geometry cimport geometry_t
from ._passes cimport LINE, aligned, ceil_div, pass_t
from ._ukernels cimport CYCONV_MOST_LANES
from ._winograd_tiles cimport blocks_t, divide, form_t, make_form, window_span, window_t
from ._winograd_weights cimport PACKED_DEPTH


cdef enum:
    BLOCK_TILES = 48            # of a block: about as much of V as the second cache level holds
    FEW_TILES = 64              # up to which filters are transformed in blocks
    BLOCK_DEPTH = 64            # of a block of filters, and GROUP_VECTORS of lanes
    GROUP_VECTORS = 4
    SLAB_VECTORS = 4            # channels that are copied at a time
    CHUNK_TILES = 256           # of a weight gradient, summed in its own type
    FILTERS = 64                # whose gradients one task computes
    WEIGHT_TILES = 8            # as many tiles' products take as long as making or reading filters


cdef struct plan_t:
    form_t form
    blocks_t blocks
    window_t input, gradient            # the second is dy, for weight gradients
    bint flush, kept                    # kept: all filters are transformed first
    int vl
    ptrdiff_t depth, pitch, groups, depth_blocks
    ptrdiff_t v_tile, v_point, z_tile, z_point, m_tile, m_point, u_point, s_point
    ptrdiff_t slab_rows, slab_cols
    ptrdiff_t zeros_at, bias_at, u_at, v_at, z_at, total_at, private_at, private_nbytes, nbytes
    # Within a thread's private part; check comes first.
    ptrdiff_t slab_at, own_v_at, m_at, packed_at, own_u_at


cdef inline ptrdiff_t _odd(ptrdiff_t elements, ptrdiff_t line) noexcept nogil:
    """Round up to an odd number of cache lines: neighbours then do not share sets of the cache."""
    return (ceil_div(elements, line) | 1) * line


cdef inline form_t _choose_form(const pass_t *p, bint by_image) noexcept nogil:
    """Tiles of 4 outputs an axis, or of 2 where the transformed filters would not pay: products and
    filters cost as many points, filters as if they were some more tiles."""
    cdef form_t four = make_form(p, 4), two = make_form(p, 2)
    cdef ptrdiff_t images = 1 if by_image else p.batch
    cdef ptrdiff_t fours = images * four.grid[0] * four.grid[1] * four.grid[2]
    cdef ptrdiff_t twos = images * two.grid[0] * two.grid[1] * two.grid[2]
    if four.points * (fours + WEIGHT_TILES) <= two.points * (twos + WEIGHT_TILES):
        return four
    return two


cdef inline void _see(
    const pass_t *p, const geometry_t *g, bint dy, plan_t *plan, window_t *w
) noexcept nogil:
    """What tiles see of the input, or of dy."""
    cdef int a
    w.spread = dy
    w.rows, w.cols = plan.form.rows, plan.form.cols
    if dy:
        w.rows, w.cols = plan.form.height, plan.form.width
    w.outputs[0], w.outputs[1], w.outputs[2] = 1, plan.form.height, plan.form.width
    for a in range(3):
        w.apart[a] = plan.form.apart[a]
        w.least[a] = 0 if dy else p.axis[a].least
        w.size[a] = g.out[a] if dy else p.axis[a].size
        w.stride[a] = g.y_s[a] if dy else p.axis[a].source_stride
    w.n = g.y_n if dy else p.source_n
    w.c = g.y_c if dy else p.source_c
    w.channels = g.co if dy else p.channels
    w.pitch = ceil_div(w.channels, plan.vl) * plan.vl
    w.in_place = w.c == 1 and w.pitch == w.channels


cdef inline ptrdiff_t _slab_elements(const plan_t *plan, const window_t *w) noexcept nogil:
    if w.in_place:
        return 0
    return (
        min(window_span(w, 1, plan.blocks.rows), w.size[1])
        * min(window_span(w, 2, plan.blocks.cols), w.size[2])
        * min(w.pitch, <ptrdiff_t> SLAB_VECTORS * plan.vl))


cdef inline plan_t plan_pass(
    const pass_t *p, const geometry_t *g, bint by_image, int vl, ptrdiff_t itemsize,
    ptrdiff_t limit, int threads
) noexcept nogil:
    """Blocks and scratch of forward or data backward; nbytes exceeds the limit if none fits."""
    cdef plan_t b
    cdef ptrdiff_t line = LINE // itemsize, tiles, group, most = BLOCK_TILES, kept_nbytes, slab
    b.vl = vl
    b.form = _choose_form(p, by_image)
    tiles = p.batch * b.form.grid[0] * b.form.grid[1] * b.form.grid[2]
    _see(p, g, False, &b, &b.input)
    b.gradient.pitch = 0
    b.pitch = b.input.pitch
    b.depth = (b.form.slices - 1) * b.pitch + p.channels
    b.depth_blocks = ceil_div(b.depth, BLOCK_DEPTH)
    b.groups = ceil_div(p.lanes, GROUP_VECTORS * vl)
    group = GROUP_VECTORS * vl
    b.v_point = b.form.slices * b.pitch
    b.v_tile = _odd(b.form.points * b.v_point, line)
    b.m_point = group
    b.m_tile = _odd(b.form.points * b.m_point, line)
    b.u_point = min(b.depth, <ptrdiff_t> BLOCK_DEPTH) * group + line
    kept_nbytes = aligned(b.groups * b.depth_blocks * b.form.points * b.u_point * itemsize)
    while True:
        b.blocks = divide(&b.form, p.batch, most)
        b.kept = tiles > FEW_TILES and b.blocks.count >= threads and kept_nbytes <= limit // 2
        slab = max(
            _slab_elements(&b, &b.input),
            (b.blocks.rows * b.form.height * b.blocks.cols * b.form.width + 1) * group)
        b.zeros_at = 0
        b.bias_at = aligned(b.pitch * itemsize)
        b.u_at = b.bias_at + aligned(b.groups * group * itemsize)
        b.v_at = b.u_at + (kept_nbytes if b.kept else 0)
        b.private_at = b.v_at + (
            0 if b.kept else aligned(b.blocks.tiles * b.v_tile * itemsize))
        b.slab_at = aligned(CYCONV_MOST_LANES * itemsize)
        b.own_v_at = b.slab_at + aligned(slab * itemsize)
        b.m_at = b.own_v_at + (aligned(b.blocks.tiles * b.v_tile * itemsize) if b.kept else 0)
        b.packed_at = b.m_at + aligned(b.blocks.tiles * b.m_tile * itemsize)
        b.own_u_at = b.packed_at + aligned(PACKED_DEPTH * 9 * 3 * vl * itemsize)
        b.private_nbytes = b.own_u_at + (
            0 if b.kept else aligned(b.form.points * b.u_point * itemsize))
        b.nbytes = b.private_at + threads * b.private_nbytes
        if b.nbytes <= limit or most == 1:
            return b
        most = most // 2


cdef inline plan_t plan_gradient(
    const pass_t *p, const geometry_t *g, int vl, ptrdiff_t itemsize, ptrdiff_t limit, int threads
) noexcept nogil:
    """Chunks and scratch of weight backward. Chunks do not depend on the threads: they decide the
    order of the sum."""
    cdef plan_t b
    cdef ptrdiff_t line = LINE // itemsize, most = CHUNK_TILES, group = GROUP_VECTORS * vl, slab
    b.vl = vl
    b.form = _choose_form(p, False)
    _see(p, g, False, &b, &b.input)
    _see(p, g, True, &b, &b.gradient)
    b.pitch = b.input.pitch
    b.depth = (b.form.slices - 1) * b.pitch + p.channels
    b.groups = ceil_div(b.depth, group)
    b.v_tile = _odd(b.form.slices * b.pitch, line)
    b.z_tile = _odd(b.gradient.pitch, line)
    b.m_point = group
    b.s_point = min(p.lanes, <ptrdiff_t> FILTERS) * group + line
    while True:
        b.blocks = divide(&b.form, p.batch, most)
        b.v_point = _odd(b.blocks.tiles * b.v_tile, line)
        b.z_point = _odd(b.blocks.tiles * b.z_tile, line)
        slab = max(_slab_elements(&b, &b.input), _slab_elements(&b, &b.gradient))
        b.zeros_at = 0
        b.v_at = aligned(max(b.pitch, b.gradient.pitch) * itemsize)
        # Reading a panel of two vectors may go one vector beyond the last.
        b.z_at = b.v_at + aligned((b.form.points * b.v_point + vl) * itemsize)
        b.total_at = b.z_at + aligned(b.form.points * b.z_point * itemsize)
        b.private_at = b.total_at
        if b.blocks.count > 1:
            b.private_at += aligned(
                p.lanes * b.form.taps * b.groups * group * <ptrdiff_t> sizeof(double))
        b.slab_at = aligned(CYCONV_MOST_LANES * itemsize)
        b.m_at = b.slab_at + aligned(slab * itemsize)
        b.packed_at = b.m_at + aligned(b.form.points * b.s_point * itemsize)
        b.private_nbytes = b.packed_at + aligned(9 * group * itemsize)
        b.nbytes = b.private_at + threads * b.private_nbytes
        if b.nbytes <= limit or most == 1:
            return b
        most = most // 2
