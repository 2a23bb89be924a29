"""The OpenMP runtime: its version, and the pause that makes fork() safe."""


cdef extern from "openmp_compat.h" nogil:
    void cyconv_pause_threads()
    int cyconv_openmp_version()


def version():
    """Return the OpenMP version as a date number (201511 is 4.5), 0 without OpenMP."""
    return cyconv_openmp_version()


def pause_threads():
    """End the calling thread's pool of OpenMP threads until its next parallel loop."""
    with nogil:
        cyconv_pause_threads()
