"""Which microkernels run: one table per instruction set, the best that the processor has unless
another is selected. The contract is in ukernel/ukernel.h.
"""

from cython cimport floating

import numpy as np


cdef extern from "ukernel/ukernel.h" nogil:
    const cyconv_ukernels *cyconv_ukernels_named(const char *name)
    const cyconv_ukernels *cyconv_ukernels_at(int i)


cdef const cyconv_ukernels *_active = cyconv_ukernels_at(0)


cdef const cyconv_ukernels *active() noexcept:
    return _active


def names():
    """Return the instruction sets that this processor can run, best first."""
    cdef int i = 0
    found = []
    while cyconv_ukernels_at(i) != NULL:
        found.append(cyconv_ukernels_at(i).isa.decode())
        i += 1
    return tuple(found)


def active_name():
    """Return the instruction set in use."""
    return _active.isa.decode()


def select(str name not None):
    """Use the microkernels of an instruction set from `names` from now on."""
    global _active
    cdef bytes encoded = name.encode()
    cdef const cyconv_ukernels *table = cyconv_ukernels_named(encoded)
    if table == NULL:
        raise ValueError(f"instruction set {name!r} is not one of {', '.join(names())}")
    _active = table


def tile(str dtype not None):
    """Return (rows, lanes of a vector) of the microkernels in use, for "f32" or "f64"."""
    return _active.mr, _active.vl_f32 if dtype == "f32" else _active.vl_f64


def strip():
    """Return the pixels of a full strip of `slide`."""
    return _active.strip


def sum_of_products(
    str form not None, const floating[:, ::1] a not None, const ptrdiff_t[::1] offset not None,
    const floating[:, ::1] b not None, const floating[::1] start, floating[:, ::1] c not None,
    int vectors,
):
    """Run one microkernel, "outer", "along", "spread" or "across", on a tile as high as a and c.

    c gets start plus the sum, or adds it to itself where start is None. b has `vectors` vectors of
    columns, or one column for "spread"; for "across" it is one row, into which the offsets point.
    """
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef ptrdiff_t i, m = a.shape[0], depth = offset.shape[0]
    cdef int lanes = _active.vl_f32 if floating is float else _active.vl_f64
    cdef ptrdiff_t width = vectors * lanes
    if not 1 <= m <= _active.mr or vectors not in (1, 2):
        raise ValueError(f"a tile has 1 to {_active.mr} rows and 1 or 2 vectors")
    if form == "across":
        shape, length, reach, starts = (1, b.shape[1]), b.shape[1], width, m
    else:
        shape = (depth, 1 if form == "spread" else width)
        length, reach, starts = a.shape[1], 1 if form == "outer" else width, width
    if (b.shape[0], b.shape[1]) != shape or (form == "across" and a.shape[1] < depth):
        raise ValueError("the shapes of a and b do not fit")
    if c.shape[0] != m or c.shape[1] < width or (start is not None and start.shape[0] < starts):
        raise ValueError("the shapes of c and start do not fit")
    if depth and not (0 <= np.min(offset) and np.max(offset) + reach <= length):
        raise ValueError("an offset lies outside")
    for i in range(m):
        rows[i] = &a[i, 0]
    cdef const floating *first = NULL if start is None else &start[0]
    if form == "outer":
        outer(_active, m, vectors, depth, rows, &offset[0], &b[0, 0], first, &c[0, 0], c.shape[1])
    elif form == "along":
        along(_active, m, vectors, depth, rows, &offset[0], &b[0, 0], first, &c[0, 0], c.shape[1])
    elif form == "spread":
        spread(_active, m, vectors, depth, rows, &offset[0], &b[0, 0], first, &c[0, 0], c.shape[1])
    elif form == "across":
        across(_active, m, vectors, depth, rows, &offset[0], &b[0, 0], first, &c[0, 0], c.shape[1])
    else:
        raise ValueError(f"there is no form {form!r}")


def products(
    const floating[:, ::1] a not None, const floating[:, ::1] b not None,
    floating[:, :, ::1] c not None,
):
    """Run one `dots`: c[i, j, lane] gets itself plus the sum over vectors of a[i] * b[j]."""
    cdef const floating *left[CYCONV_DOTS]
    cdef const floating *right[CYCONV_DOTS]
    cdef ptrdiff_t lanes = _active.vl_f32 if floating is float else _active.vl_f64
    cdef ptrdiff_t i
    if not (1 <= a.shape[0] <= CYCONV_DOTS and 1 <= b.shape[0] <= CYCONV_DOTS):
        raise ValueError(f"a and b have 1 to {CYCONV_DOTS} rows")
    if a.shape[1] != b.shape[1] or a.shape[1] % lanes:
        raise ValueError("a and b must have as many columns, whole vectors")
    if (c.shape[0], c.shape[1], c.shape[2]) != (a.shape[0], b.shape[0], lanes):
        raise ValueError("the shape of c does not fit")
    for i in range(a.shape[0]):
        left[i] = &a[i, 0]
    for i in range(b.shape[0]):
        right[i] = &b[i, 0]
    dots(_active, a.shape[0], b.shape[0], a.shape[1] // lanes, left, right, &c[0, 0, 0])


def slid(
    const floating[:, :, ::1] x not None, const ptrdiff_t[::1] row not None,
    const floating[:, :, ::1] filter not None, ptrdiff_t step, ptrdiff_t first, ptrdiff_t lo,
    ptrdiff_t hi, const floating[::1] start not None, floating[:, ::1] y not None,
):
    """Run one `slide`: y[j] = start + the sum over r and k of x[row[r], first + j*step + k] *
    filter[r, k], where lo <= j*step + k < hi. Lanes are the last axis."""
    cdef ptrdiff_t vector = _active.vl_f32 if floating is float else _active.vl_f64
    cdef ptrdiff_t taps = filter.shape[1], lanes = filter.shape[2], r
    cdef ptrdiff_t[::1] rows = np.multiply(row, x.shape[1] * lanes)
    cdef ptrdiff_t[::1] filter_rows = np.arange(filter.shape[0], dtype=np.intp) * (taps * lanes)
    if lanes != vector:
        raise ValueError("the last axis must be one vector")
    if not x.shape[2] == y.shape[1] == start.shape[0] == lanes or row.shape[0] != filter.shape[0]:
        raise ValueError("the shapes do not fit")
    if not cyconv_slides(taps, step) or not 1 <= y.shape[0] <= _active.strip:
        raise ValueError("there is no such strip")
    if lo < 0 or first + lo < 0 or first + hi > x.shape[1]:
        raise ValueError("the columns lie outside x")
    for r in row:
        if not 0 <= r < x.shape[0]:
            raise ValueError("a row lies outside x")
    slide(
        _active, taps, step, y.shape[0], row.shape[0], &x[0, 0, 0] + first * lanes, &rows[0],
        lanes, &filter[0, 0, 0], &filter_rows[0], lo, hi, &start[0], &y[0, 0], lanes)


def slid_gradient(
    const floating[:, :, ::1] x not None, const floating[:, ::1] dy not None, ptrdiff_t step,
    ptrdiff_t first, ptrdiff_t lo, ptrdiff_t hi, floating[:, :, ::1] dw not None,
):
    """Run one `slide_gradient`: dw[r, k] gets itself plus the sum over j of
    x[r, first + j*step + k] * dy[j], where lo <= j*step + k < hi. Lanes are the last axis."""
    cdef ptrdiff_t vector = _active.vl_f32 if floating is float else _active.vl_f64
    cdef ptrdiff_t taps = dw.shape[1], lanes = dw.shape[2]
    cdef ptrdiff_t[::1] rows = np.arange(dw.shape[0], dtype=np.intp) * (x.shape[1] * lanes)
    cdef ptrdiff_t[::1] filter_rows = np.arange(dw.shape[0], dtype=np.intp) * (taps * lanes)
    if lanes != vector:
        raise ValueError("the last axis must be one vector")
    if not (x.shape[2] == dy.shape[1] == lanes and x.shape[0] == dw.shape[0]):
        raise ValueError("the shapes do not fit")
    if not 1 <= dw.shape[0] <= cyconv_slide_height(taps, step):
        raise ValueError("there are no such rows")
    if lo < 0 or first + lo < 0 or first + hi > x.shape[1] or hi > (dy.shape[0] - 1) * step + taps:
        raise ValueError("the columns lie outside x or see nothing of dy")
    slide_gradient(
        _active, dw.shape[0], taps, step, dy.shape[0], &x[0, 0, 0] + first * lanes, &rows[0], lanes,
        &dy[0, 0], lanes, lo, hi, &dw[0, 0, 0], &filter_rows[0])


def moved(const floating[:, :] source not None, floating[:, :] target not None):
    """Run one `move`: target = source, for any steps that are not negative."""
    cdef ptrdiff_t size = source.itemsize
    if (source.shape[0], source.shape[1]) != (target.shape[0], target.shape[1]):
        raise ValueError("target must have the shape of source")
    move(
        _active, source.shape[0], source.shape[1], &source[0, 0], source.strides[0] // size,
        source.strides[1] // size, &target[0, 0], target.strides[0] // size,
        target.strides[1] // size)


def zipped(
    const floating[:, ::1] even not None, const floating[:, ::1] odd not None,
    floating[:, ::1] target not None,
):
    """Run one `zip`: columns of target are by turns those of even and odd."""
    if (even.shape[0], even.shape[1]) != (odd.shape[0], odd.shape[1]):
        raise ValueError("even and odd must have one shape")
    if target.shape[0] != even.shape[0] or (target.shape[1] + 1) // 2 > even.shape[1]:
        raise ValueError("the shape of target does not fit")
    zip_rows(
        _active, target.shape[0], target.shape[1], &even[0, 0], &odd[0, 0], even.shape[1],
        &target[0, 0], target.shape[1])


def unzipped(
    const floating[:, ::1] source not None, floating[:, ::1] even not None,
    floating[:, ::1] odd not None,
):
    """Run one `unzip`: even and odd get the columns of source by turns."""
    if (even.shape[0], even.shape[1]) != (odd.shape[0], odd.shape[1]):
        raise ValueError("even and odd must have one shape")
    if source.shape[0] != even.shape[0] or (source.shape[1] + 1) // 2 > even.shape[1]:
        raise ValueError("the shape of source does not fit")
    unzip_rows(
        _active, source.shape[0], source.shape[1], &source[0, 0], source.shape[1], &even[0, 0],
        &odd[0, 0], even.shape[1])


def transposed(const floating[:, :] source not None, floating[:, :] target not None):
    """Run one `transpose`: target[j, i] = source[i, j], both with contiguous rows."""
    cdef ptrdiff_t size = source.itemsize
    if target.shape[0] != source.shape[1] or target.shape[1] != source.shape[0]:
        raise ValueError("target must have the transposed shape of source")
    if source.strides[1] != size or target.strides[1] != size:
        raise ValueError("rows must be contiguous")
    transpose(
        _active, source.shape[0], source.shape[1], &source[0, 0], source.strides[0] // size,
        &target[0, 0], target.strides[0] // size)


def collected(const floating[:, ::1] source not None, floating[:, ::1] target not None):
    """Run one `collect`: target = the first columns of source, one or two vectors of them."""
    cdef int lanes = _active.vl_f32 if floating is float else _active.vl_f64
    if target.shape[0] != source.shape[0] or source.shape[1] < target.shape[1]:
        raise ValueError("the shapes of source and target do not fit")
    if target.shape[1] not in (lanes, 2 * lanes):
        raise ValueError(f"target must have {lanes} or {2 * lanes} columns")
    collect(
        _active, source.shape[0], <int> (target.shape[1] // lanes), &source[0, 0],
        source.shape[1], &target[0, 0])
