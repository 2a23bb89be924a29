# cython: boundscheck=True
"""What tells a call from every other: a key of its raw arguments.

It is made before anything else in each call, and for a small image that is a good part of the time.
"""

cimport numpy as cnp

cnp.import_array()


def signature(
    str kind, rank, a, b, bias, residual, tuple extra, tuple raw, settings
):
    """Return a key of the raw arguments, or None where they need a closer look.

    Calls of one key differ in the elements of their arrays and in nothing else. Parameters of
    unusual types have these in the key: True and 1.0 equal 1 and would share its key.

    Parameters
    ----------
    kind : str
        Of call.
    rank : int or None
        Spatial axes that the caller insists on.
    a, b : object
        The operands.
    bias, residual : object or None
    extra : tuple
        What some calls have beside operands and parameters, as the shape of the result.
    raw : tuple
        The eight parameters as the caller gave them; the last is the activation.
    settings : Config
        Of the context.
    """
    cdef bint nested = False, listed = False, odd = False
    if type(a) is not cnp.ndarray or type(b) is not cnp.ndarray:
        return None
    for value in raw:
        if value is None or type(value) is int or type(value) is str:
            continue
        if type(value) is tuple:
            nested = True
        elif type(value) is list:
            nested = listed = True
        else:
            odd = True
    if listed:
        raw = _hashable(raw)
    if nested and not (_exact(raw[:7]) and _exact_pair(raw[7])):
        return None
    if extra and not _exact(extra):
        extra = _hashable(extra)
        if not _exact(extra):
            return None
    if not (cnp.PyArray_ISALIGNED(a) and cnp.PyArray_ISALIGNED(b)):
        return None
    added = None
    if bias is not None or residual is not None:
        if not (_is_plain(bias) and _is_plain(residual)):
            return None
        added = _form(bias), _form(residual)
    return (
        kind, rank, a.shape, b.shape, _strides(a), _strides(b), a.dtype, b.dtype, added, extra, raw,
        tuple([type(value) for value in raw]) if odd else None, settings,
    )


cdef inline bytes _strides(cnp.ndarray array):
    return (<const char *> cnp.PyArray_STRIDES(array))[:array.ndim * sizeof(cnp.npy_intp)]


cdef bint _is_plain(array) except -1:
    """Whether shape and dtype tell all about an array, or there is none; it may be read-only."""
    if array is None:
        return True
    return type(array) is cnp.ndarray and cnp.PyArray_CHKFLAGS(
        array, cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_ALIGNED)


cdef tuple _form(array):
    return None if array is None else (array.shape, array.dtype)


cdef tuple _hashable(values):
    """Return tuples in place of lists, which mean the same as parameters."""
    return tuple([
        _hashable(value) if type(value) is list or type(value) is tuple else value
        for value in values
    ])


cdef bint _exact(tuple values) except -1:
    """Whether all values are exactly ints, strings or None, or tuples of such."""
    for value in values:
        if type(value) is tuple:
            if not _exact(value):
                return False
        elif not (value is None or type(value) is int or type(value) is str):
            return False
    return True


cdef bint _exact_pair(activation) except -1:
    """Whether an activation is a name, None, or exactly a name and a float."""
    if type(activation) is tuple:
        return (
            len(activation) == 2 and type(activation[0]) is str and type(activation[1]) is float)
    return activation is None or type(activation) is str
