"""A convolution as passes that gather: every output sees the source at a step of its own.

Forward is one pass. Data backward of stride s is prod(s) passes of stride 1, the phases: positions
of dx that are s apart see the same taps of dy. Weight backward reads x as the forward pass does.
"""

from cython cimport floating
from libc.stdint cimport uint32_t, uint64_t

from ._geometry cimport geometry_t


cdef extern from "flush.h" nogil:
    uint64_t cyconv_flush_begin()
    void cyconv_flush_end(uint64_t before)


cdef enum:
    LINE = 64                   # bytes; pieces of scratch begin at cache lines


cdef inline ptrdiff_t aligned(ptrdiff_t nbytes) noexcept nogil:
    return (nbytes + LINE - 1) // LINE * LINE


cdef inline ptrdiff_t ceil_div(ptrdiff_t a, ptrdiff_t b) noexcept nogil:
    return (a + b - 1) // b


cdef struct axis_t:
    # Along one axis, output q sees the source at q*step + least + tap*between, tap < taps,
    # through the kernel's element kernel_first + tap*kernel_every.
    ptrdiff_t outputs, first, every     # the outputs' places in the result: first + q*every
    ptrdiff_t step, taps, origin, between, least
    ptrdiff_t kernel_first, kernel_every
    ptrdiff_t size                      # of the source
    ptrdiff_t source_stride, result_stride, weight_stride


cdef struct pass_t:
    axis_t axis[3]
    ptrdiff_t batch, channels, lanes            # channels of the source; lanes in all
    ptrdiff_t source_n, source_c, result_n, result_c
    ptrdiff_t weight_lane, weight_c
    ptrdiff_t taps, depth                       # depth = taps * channels
    bint channels_inner                         # order of depth: (tap, channel) or (channel, tap)


cdef enum:
    MOST_PHASES = 64            # what `algorithms.base.beyond_passes` lets through


cdef struct passes_t:
    ptrdiff_t count
    ptrdiff_t phases[3]                 # along each axis; passes are in the order of their numbers
    ptrdiff_t extent[3]                 # of the result
    pass_t each[MOST_PHASES]            # without outputs and taps where there is no such position
    ptrdiff_t taps_before[MOST_PHASES]  # taps of the passes before


cdef inline void finish_pass(pass_t *p) noexcept nogil:
    cdef int a
    cdef axis_t *axis
    p.taps = 1
    for a in range(3):
        axis = &p.axis[a]
        p.taps *= axis.taps
        axis.least = axis.origin
        if axis.taps > 0 and axis.between < 0:
            axis.least += (axis.taps - 1) * axis.between
    p.depth = p.taps * p.channels
    p.channels_inner = p.weight_c == 1


cdef inline pass_t forward_pass(const geometry_t *g) noexcept nogil:
    cdef pass_t p
    cdef axis_t *axis
    cdef int a
    for a in range(3):
        axis = &p.axis[a]
        axis.outputs = g.out[a]
        axis.first, axis.every = 0, 1
        axis.step = g.stride[a]
        axis.taps = g.kernel[a]
        axis.origin = -g.pad[a]
        axis.between = g.dilation[a]
        axis.kernel_first, axis.kernel_every = 0, 1
        axis.size = g.size[a]
        axis.source_stride = g.x_s[a]
        axis.result_stride = g.y_s[a]
        axis.weight_stride = g.w_s[a]
    p.batch = g.batch
    p.channels, p.lanes = g.ci, g.co
    p.source_n, p.source_c = g.x_n, g.x_c
    p.result_n, p.result_c = g.y_n, g.y_c
    p.weight_lane, p.weight_c = g.w_o, g.w_c
    finish_pass(&p)
    return p


cdef inline ptrdiff_t gcd(ptrdiff_t a, ptrdiff_t b) noexcept nogil:
    while b:
        a, b = b, a % b
    return a


cdef inline bint data_axis(
    const geometry_t *g, int a, ptrdiff_t phase, axis_t *axis
) noexcept nogil:
    """Describe one phase along one axis; False if the axis has no such position."""
    cdef ptrdiff_t s = g.stride[a], d = g.dilation[a], k = 0
    cdef ptrdiff_t every = s // gcd(s, d)
    if phase >= g.size[a]:
        return False
    # The first tap k with (phase + pad - k*dilation) divisible by the stride, among `every`.
    while k < every and (phase + g.pad[a] - k * d) % s != 0:
        k += 1
    axis.taps = 0 if k == every or k >= g.kernel[a] else (g.kernel[a] - 1 - k) // every + 1
    axis.kernel_first, axis.kernel_every = k, every
    axis.origin = (phase + g.pad[a] - k * d) // s if axis.taps > 0 else 0
    if axis.taps > 0 and phase + g.pad[a] - k * d < 0:
        axis.origin = -((k * d - phase - g.pad[a]) // s)
    axis.between = -(d * every // s)
    axis.outputs = (g.size[a] - 1 - phase) // s + 1
    axis.first, axis.every = phase, s
    axis.step = 1
    axis.size = g.out[a]
    axis.source_stride = g.y_s[a]
    axis.result_stride = g.x_s[a]
    axis.weight_stride = g.w_s[a]
    return True


cdef inline bint data_pass(const geometry_t *g, ptrdiff_t phase, pass_t *p) noexcept nogil:
    """Describe the phase of this number, out of prod(stride); False if it has no position."""
    cdef ptrdiff_t at[3]
    cdef int a
    at[2] = phase % g.stride[2]
    at[1] = phase // g.stride[2] % g.stride[1]
    at[0] = phase // (g.stride[2] * g.stride[1])
    for a in range(3):
        if not data_axis(g, a, at[a], &p.axis[a]):
            return False
    p.batch = g.batch
    p.channels, p.lanes = g.co, g.ci
    p.source_n, p.source_c = g.y_n, g.y_c
    p.result_n, p.result_c = g.x_n, g.x_c
    p.weight_lane, p.weight_c = g.w_c, g.w_o
    finish_pass(p)
    return True


cdef inline void list_passes(const geometry_t *g, int op, passes_t *all_) noexcept nogil:
    """The passes of an operator (1 is data backward)."""
    cdef ptrdiff_t phase, before = 0
    cdef pass_t *p
    cdef int a
    for a in range(3):
        all_.phases[a] = g.stride[a] if op == 1 else 1
        all_.extent[a] = g.size[a] if op == 1 else g.out[a]
    all_.count = all_.phases[0] * all_.phases[1] * all_.phases[2]
    for phase in range(all_.count):
        p = &all_.each[phase]
        if op != 1:
            p[0] = forward_pass(g)
        elif not data_pass(g, phase, p):
            p.taps = p.depth = 0
            for a in range(3):
                p.axis[a].taps = p.axis[a].outputs = 0
        all_.taps_before[phase] = before
        before += p.taps


cdef inline ptrdiff_t slab_span(const axis_t *axis, ptrdiff_t outputs) noexcept nogil:
    if axis.taps == 0:
        return 1
    return (
        (outputs - 1) * axis.step + 1
        + (axis.taps - 1) * (axis.between if axis.between > 0 else -axis.between))


cdef inline ptrdiff_t run_length(const ptrdiff_t *offset, ptrdiff_t depth) noexcept nogil:
    """Greatest length of runs of consecutive offsets, all alike, that make up the list."""
    cdef ptrdiff_t run = 1, k
    while run < depth and offset[run] == offset[run - 1] + 1:
        run += 1
    if depth % run:
        return 1
    for k in range(depth):
        if k % run and offset[k] != offset[k - 1] + 1:
            return 1
    return run


cdef inline tuple weights_seen(const pass_t *p):
    """What tells how the pass reads the weights, whatever the image is."""
    cdef int a
    seen = [p.channels, p.lanes, p.weight_lane, p.weight_c]
    for a in range(3):
        if p.axis[a].taps != 1 or p.axis[a].kernel_first != 0:
            seen += [
                p.axis[a].taps, p.axis[a].kernel_first, p.axis[a].kernel_every,
                p.axis[a].weight_stride, p.axis[a].between < 0]
    return tuple(seen)


cdef inline bint all_finite(const floating *values, ptrdiff_t count) noexcept nogil:
    """Whether no value is infinite or NaN: such have all exponent bits set."""
    cdef ptrdiff_t i
    cdef uint32_t found32 = 0
    cdef uint64_t found64 = 0
    cdef const uint32_t *bits32 = <const uint32_t *> values
    cdef const uint64_t *bits64 = <const uint64_t *> values
    if floating is float:
        for i in range(count):
            found32 |= (bits32[i] >> 23 & 0xff) == 0xff
        return found32 == 0
    else:
        for i in range(count):
            found64 |= (bits64[i] >> 52 & 0x7ff) == 0x7ff
        return found64 == 0
