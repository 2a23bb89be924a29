"""Matrix product in row-major terms, over the BLAS that SciPy was built with."""

from cython cimport floating
from scipy.linalg.cython_blas cimport dgemm, sgemm


cdef inline void gemm(
    bint a_transposed, bint b_transposed, ptrdiff_t m, ptrdiff_t n, ptrdiff_t k,
    const floating *a, ptrdiff_t lda, const floating *b, ptrdiff_t ldb,
    floating beta, floating *c, ptrdiff_t ldc,
) noexcept nogil:
    """C[m, n] = op(A)[m, k] op(B)[k, n] + beta C; rows are ld elements apart.

    BLAS is column-major: a row-major matrix is its transpose there, so the product is computed as
    C^T = op(B)^T op(A)^T and no operand moves. All numbers fit an int: callers tile.
    """
    cdef char trans_a = b'T' if a_transposed else b'N'
    cdef char trans_b = b'T' if b_transposed else b'N'
    cdef int mi = <int> m, ni = <int> n, ki = <int> k
    # A matrix of one row may have any ld; BLAS insists on at least the row's length.
    cdef int la = <int> max(lda, m if a_transposed else k, 1)
    cdef int lb = <int> max(ldb, k if b_transposed else n, 1)
    cdef int lc = <int> max(ldc, n, 1)
    cdef floating alpha = 1
    if floating is float:
        sgemm(&trans_b, &trans_a, &ni, &mi, &ki, &alpha, <float *> b, &lb, <float *> a, &la,
              &beta, c, &lc)
    else:
        dgemm(&trans_b, &trans_a, &ni, &mi, &ki, &alpha, <double *> b, &lb, <double *> a, &la,
              &beta, c, &lc)
