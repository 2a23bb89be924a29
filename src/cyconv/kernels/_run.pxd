"""One run of a kernel: what it computes with, and how."""

cimport numpy as cnp

from ._geometry cimport Geometry


cdef struct run_t:
    # Addresses of the operands; bias is NULL if there is none.
    void *x
    void *w
    void *y
    void *bias
    char *scratch
    ptrdiff_t limit                     # of the scratch, in bytes
    int op                              # see OPERATORS
    int threads
    bint flush                          # subnormal numbers to zero, in every thread


cdef class Run:
    cdef readonly object problem
    cdef readonly Geometry geometry
    cdef readonly cnp.ndarray x, w, y, bias, scratch
    cdef run_t c

    cdef int needs(self, ptrdiff_t nbytes) except -1
