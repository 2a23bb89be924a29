"""The only crossing from a call's arrays to C: addresses, in one struct.

Kernels take a `Run` and see its struct. The `run` of a module makes sure of the scratch and picks
the type once; all behind it is C.
"""

from cython cimport floating
from cython.parallel cimport prange

cimport numpy as cnp

from ._geometry cimport Geometry
from ._ukernels cimport (
    CYCONV_GELU, CYCONV_HARDSIGMOID, CYCONV_HARDSWISH, CYCONV_IDENTITY, CYCONV_LEAKY_RELU,
    CYCONV_RELU, CYCONV_RELU6, CYCONV_SIGMOID, CYCONV_SILU, CYCONV_TANH, active,
    cyconv_ukernels,
)

cnp.import_array()

cdef enum:
    PIECE = 8192                # elements that one task finishes

OPERATORS = {"fwd": 0, "dx": 1, "dw": 2}
ACTIVATIONS = {
    "relu": CYCONV_RELU,
    "relu6": CYCONV_RELU6,
    "leaky_relu": CYCONV_LEAKY_RELU,
    "hardsigmoid": CYCONV_HARDSIGMOID,
    "hardswish": CYCONV_HARDSWISH,
    "sigmoid": CYCONV_SIGMOID,
    "silu": CYCONV_SILU,
    "tanh": CYCONV_TANH,
    "gelu": CYCONV_GELU,
}


cdef inline void *_address(cnp.ndarray array) noexcept:
    return NULL if array is None else cnp.PyArray_DATA(array)


cdef void _finish_all(
    const epilogue_t *e, const cyconv_ukernels *uk, floating *y, ptrdiff_t count, int threads
) noexcept nogil:
    """Finish `count` neighbours of a result from y on."""
    cdef ptrdiff_t task
    if is_last(e):
        return
    if count <= PIECE:
        threads = 1
    for task in prange((count + PIECE - 1) // PIECE, num_threads=threads, schedule='static'):
        finish(
            e, uk, 1, min(<ptrdiff_t> PIECE, count - task * PIECE), y + task * PIECE, 0, 1)


cdef void _finish_array(
    const epilogue_t *e, cnp.ndarray array, ptrdiff_t first, ptrdiff_t count, int threads
) noexcept:
    cdef void *start = _address(array)
    cdef bint double_precision = array.itemsize == 8
    cdef const cyconv_ukernels *uk = active()
    with nogil:
        if double_precision:
            _finish_all(e, uk, <double *> start + first, count, threads)
        else:
            _finish_all(e, uk, <float *> start + first, count, threads)


cdef epilogue_t _epilogue(activation, cnp.ndarray residual, cnp.ndarray result) except *:
    cdef epilogue_t e
    e.activation, e.alpha = CYCONV_IDENTITY, 0
    if activation is not None:
        e.activation, e.alpha = ACTIVATIONS[activation.name], activation.alpha
    e.result, e.residual = _address(result), _address(residual)
    return e


def finish_array(cnp.ndarray y not None, activation, cnp.ndarray residual, int threads):
    """Add the residual to a C-contiguous array and activate it, in place."""
    cdef epilogue_t e = _epilogue(activation, residual, y)
    _finish_array(&e, y, 0, y.size, threads)


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
    bias, residual : numpy.ndarray or None
        The residual is C-contiguous as the result is.
    activation : Activation or None
    packed : numpy.ndarray or None
        The weights as the algorithm's `pack` has packed them for an equal `packing`.
    scratch : numpy.ndarray
        At least what `Algorithm.workspace` named for the same limit and threads; nothing where
        the algorithm does not use it.
    limit, threads : int
    flush : bool
        Permits to treat subnormal numbers as zero.
    """

    def __init__(
        self, problem not None, Geometry geometry not None, cnp.ndarray x not None,
        cnp.ndarray w not None, cnp.ndarray y not None, cnp.ndarray bias, cnp.ndarray residual,
        activation, cnp.ndarray packed, cnp.ndarray scratch not None, ptrdiff_t limit,
        int threads, bint flush
    ):
        self.problem, self.geometry, self.activation = problem, geometry, activation
        self.x, self.w, self.y, self.bias, self.residual = x, w, y, bias, residual
        self.packed, self.scratch = packed, scratch
        self.c.x, self.c.w, self.c.y = _address(x), _address(w), _address(y)
        self.c.bias, self.c.packed = _address(bias), _address(packed)
        self.c.scratch = <char *> _address(scratch)
        self.c.op = OPERATORS[problem.op]
        self.c.limit, self.c.threads, self.c.flush = limit, threads, flush
        self.c.last = _epilogue(activation, residual, x if self.c.op == 1 else y)

    cdef int needs(self, ptrdiff_t nbytes) except -1:
        """Raise ValueError unless the scratch holds this many bytes."""
        if self.scratch.nbytes < nbytes:
            raise ValueError(f"scratch has {self.scratch.nbytes} bytes, {nbytes} are needed")
        return 0

    def finish(self, ptrdiff_t first=0, ptrdiff_t count=-1):
        """Add the residual and activate, in place, `count` elements of the result from `first` on,
        in the order of memory; by default all. What is not called for costs nothing."""
        cdef cnp.ndarray result = self.x if self.c.op == 1 else self.y
        cdef ptrdiff_t size = cnp.PyArray_SIZE(result)
        if count < 0:
            count = size - first
        if not 0 <= first <= first + count <= size:
            raise ValueError(f"elements {first} to {first + count} are not in the result")
        if not is_last(&self.c.last):
            _finish_array(&self.c.last, result, first, count, self.c.threads)

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
