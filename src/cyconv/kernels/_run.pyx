"""The only crossing from a call's arrays to C: addresses, in one struct.

Kernels take a `Run` and see its struct. The `run` of a module makes sure of the scratch and picks
the type once; all behind it is C.
"""

cimport numpy as cnp

from ._geometry cimport Geometry

cnp.import_array()

OPERATORS = {"fwd": 0, "dx": 1, "dw": 2}


cdef inline void *_address(cnp.ndarray array) noexcept:
    return NULL if array is None else cnp.PyArray_DATA(array)


cdef class Run:
    """All that a run of an algorithm needs.

    Operands have the problem's compute dtype in native byte order, aligned, with any strides, batch
    axis included. The result, one of x, w and y, is C-contiguous, holds anything and overlaps no
    operand.

    Parameters
    ----------
    problem : ConvProblem
        Kernels in C do not look at it.
    geometry : Geometry
    x, w, y : numpy.ndarray
    bias : numpy.ndarray or None
    scratch : numpy.ndarray
        At least what `Algorithm.workspace` named for the same limit and threads; nothing where
        the algorithm does not use it.
    limit, threads : int
    flush : bool
        Permits to treat subnormal numbers as zero.
    """

    def __init__(
        self, problem not None, Geometry geometry not None, cnp.ndarray x not None,
        cnp.ndarray w not None, cnp.ndarray y not None, cnp.ndarray bias,
        cnp.ndarray scratch not None, ptrdiff_t limit, int threads, bint flush
    ):
        self.problem, self.geometry = problem, geometry
        self.x, self.w, self.y, self.bias, self.scratch = x, w, y, bias, scratch
        self.c.x, self.c.w, self.c.y = _address(x), _address(w), _address(y)
        self.c.bias = _address(bias)
        self.c.scratch = <char *> _address(scratch)
        self.c.op = OPERATORS[problem.op]
        self.c.limit, self.c.threads, self.c.flush = limit, threads, flush

    cdef int needs(self, ptrdiff_t nbytes) except -1:
        """Raise ValueError unless the scratch holds this many bytes."""
        if self.scratch.nbytes < nbytes:
            raise ValueError(f"scratch has {self.scratch.nbytes} bytes, {nbytes} are needed")
        return 0

    @property
    def limit(self):
        """Most bytes of scratch."""
        return self.c.limit

    @property
    def threads(self):
        """Most threads."""
        return self.c.threads

    @property
    def flush(self):
        """Whether subnormal numbers may be treated as zero."""
        return self.c.flush
