"""One run of a kernel: what it computes with, and what it does to a result last."""

from cython cimport floating

cimport numpy as cnp

from ._geometry cimport Geometry
from ._ukernels cimport CYCONV_IDENTITY, cyconv_ukernels


cdef struct epilogue_t:
    # result gets activation(result + residual); residual is NULL if there is none.
    int activation
    double alpha
    const void *result
    const void *residual


cdef struct run_t:
    # Addresses of the operands; bias and packed weights are NULL if there are none.
    void *x
    void *w
    void *y
    void *bias
    void *packed
    char *scratch
    ptrdiff_t limit                     # of the scratch, in bytes
    int op                              # see OPERATORS
    int threads
    bint flush                          # subnormal numbers to zero, in every thread
    epilogue_t last


cdef class Run:
    cdef readonly object problem
    cdef readonly Geometry geometry
    cdef readonly cnp.ndarray x, w, y, bias, residual, packed, scratch
    cdef readonly object activation
    cdef run_t c

    cdef int needs(self, ptrdiff_t nbytes) except -1


cdef inline bint is_last(const epilogue_t *e) noexcept nogil:
    """Whether results are as they should be without `finish`."""
    return e.activation == CYCONV_IDENTITY and e.residual == NULL


cdef inline void finish(
    const epilogue_t *e, const cyconv_ukernels *uk, ptrdiff_t rows, ptrdiff_t cols, floating *y,
    ptrdiff_t row, ptrdiff_t step
) noexcept nogil:
    """Add the residual to y[i*row + j*step], i < rows, j < cols, and activate. y points into the
    result, all of whose sums there are final; each is to be finished once."""
    cdef const floating *residual = NULL
    if is_last(e):
        return
    if e.residual != NULL:
        residual = <const floating *> e.residual + (y - <const floating *> e.result)
    if floating is float:
        uk.finish_f32(e.activation, <float> e.alpha, rows, cols, y, row, step, residual)
    else:
        uk.finish_f64(e.activation, e.alpha, rows, cols, y, row, step, residual)
