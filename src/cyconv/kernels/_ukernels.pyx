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


def sum_of_products(
    str form not None, const floating[:, ::1] a not None, const ptrdiff_t[::1] offset not None,
    const floating[:, ::1] b not None, const floating[::1] start, floating[:, ::1] c not None,
    int vectors,
):
    """Run one microkernel, "outer", "along" or "spread", on a tile as high as a and c.

    c gets start plus the sum, or adds it to itself where start is None. b has `vectors` vectors of
    columns, or one column for "spread".
    """
    cdef const floating *rows[CYCONV_MOST_ROWS]
    cdef ptrdiff_t i, m = a.shape[0]
    cdef int lanes = _active.vl_f32 if floating is float else _active.vl_f64
    cdef ptrdiff_t width = vectors * lanes
    if not 1 <= m <= _active.mr or vectors not in (1, 2):
        raise ValueError(f"a tile has 1 to {_active.mr} rows and 1 or 2 vectors")
    if b.shape[0] != offset.shape[0] or b.shape[1] != (1 if form == "spread" else width):
        raise ValueError("the shape of b does not fit")
    if c.shape[0] != m or c.shape[1] < width or (start is not None and start.shape[0] < width):
        raise ValueError("the shapes of c and start do not fit")
    if offset.shape[0] and not (
        0 <= np.min(offset) and np.max(offset) + (1 if form == "outer" else width) <= a.shape[1]
    ):
        raise ValueError("an offset lies outside a")
    for i in range(m):
        rows[i] = &a[i, 0]
    cdef const floating *first = NULL if start is None else &start[0]
    if form == "outer":
        outer(_active, m, vectors, offset.shape[0], rows, &offset[0], &b[0, 0], first, &c[0, 0],
              c.shape[1])
    elif form == "along":
        along(_active, m, vectors, offset.shape[0], rows, &offset[0], &b[0, 0], first, &c[0, 0],
              c.shape[1])
    elif form == "spread":
        spread(_active, m, vectors, offset.shape[0], rows, &offset[0], &b[0, 0], first, &c[0, 0],
               c.shape[1])
    else:
        raise ValueError(f"there is no form {form!r}")


def transposed(const floating[:, ::1] source not None, floating[:, ::1] target not None):
    """Run one `transpose`: target[j, i] = source[i, j]."""
    if target.shape[0] != source.shape[1] or target.shape[1] != source.shape[0]:
        raise ValueError("target must have the transposed shape of source")
    transpose(
        _active, source.shape[0], source.shape[1], &source[0, 0], source.shape[1], &target[0, 0],
        target.shape[1])


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
