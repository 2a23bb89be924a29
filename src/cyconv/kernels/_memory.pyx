"""Memory of large arrays, kept for the next ones of their size: an allocator for NumPy [1]_.

A network asks for the same sizes in every step. The C library returns memory of megabytes to the
system when it is free, and the system clears each page of it for the next step anew, which may take
as long as the arithmetic. Arrays made within a `Recycling` context have their memory from here, and
leave it here when they go.

What is kept and what is in use are together never more than what was in use at once before, so no
process becomes larger by it. `release` lets go of what is kept.

A block begins with a header that says its capacity; the array's memory follows. Blocks that are
kept are chained by their headers, in bins by capacity. NumPy calls the four functions of an
allocator with or without the GIL, hence the lock.

.. [1] NumPy Enhancement Proposal 49, "Data allocation strategies", 2021.
"""

cimport cython
cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_New
from libc.stdint cimport uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset, strcpy

cdef extern from "numpy/arrayobject.h":
    ctypedef struct PyDataMemAllocator:
        void *ctx
        void *(*malloc)(void *ctx, size_t size) noexcept nogil
        void *(*calloc)(void *ctx, size_t count, size_t size) noexcept nogil
        void *(*realloc)(void *ctx, void *memory, size_t size) noexcept nogil
        void (*free)(void *ctx, void *memory, size_t size) noexcept nogil

    ctypedef struct PyDataMem_Handler:
        char name[127]
        uint8_t version
        PyDataMemAllocator allocator

    object PyDataMem_SetHandler(object handler)

cnp.import_array()

cdef struct block_t:
    size_t capacity  # bytes behind the header
    block_t *next    # the next one kept in its bin

cdef enum:
    HEADER = 64     # keeps the alignment of malloc
    UNIT = 16384    # capacities are multiples of this; smaller memory is not kept
    BINS = 64

cdef block_t *_bins[BINS]
cdef size_t _kept = 0
cdef size_t _used = 0
cdef size_t _most = 0  # that was in use at once
cdef cython.pymutex _lock


cdef inline block_t **_bin(size_t capacity) noexcept nogil:
    return &_bins[capacity // UNIT % BINS]


cdef block_t *_reuse(size_t capacity) noexcept nogil:
    """Take a block of this capacity out of its bin, or return NULL."""
    cdef block_t **place = _bin(capacity)
    cdef block_t *block
    while place[0] != NULL:
        block = place[0]
        if block.capacity == capacity:
            place[0] = block.next
            return block
        place = &block.next
    return NULL


cdef void _shrink(size_t limit) noexcept nogil:
    """Let blocks go until no more than this is kept."""
    global _kept
    cdef block_t *block
    cdef int i = 0
    while _kept > limit:
        while _bins[i] == NULL:
            i += 1
        block = _bins[i]
        _bins[i] = block.next
        _kept -= block.capacity
        free(block)


cdef void *_take(size_t size, bint cleared) noexcept nogil:
    global _kept, _used, _most
    cdef size_t capacity = size
    cdef block_t *block = NULL
    if size > <size_t> -1 - UNIT - HEADER:
        return NULL
    if size >= UNIT:
        capacity = (size + UNIT - 1) // UNIT * UNIT
        with _lock:
            block = _reuse(capacity)
            _used += capacity
            if block != NULL:
                _kept -= capacity
            else:
                _most = max(_most, _used)
                _shrink(_most - _used)
    if block != NULL:
        if cleared:
            memset(<char *> block + HEADER, 0, size)
        return <char *> block + HEADER
    block = <block_t *> (calloc(1, HEADER + capacity) if cleared else malloc(HEADER + capacity))
    if block == NULL:
        if capacity >= UNIT:
            with _lock:
                _used -= capacity
        return NULL
    block.capacity = capacity
    return <char *> block + HEADER


cdef void *_malloc(void *ctx, size_t size) noexcept nogil:
    return _take(size, False)


cdef void *_calloc(void *ctx, size_t count, size_t size) noexcept nogil:
    if size != 0 and count > <size_t> -1 // size:
        return NULL
    return _take(count * size, True)


cdef void _free(void *ctx, void *memory, size_t size) noexcept nogil:
    global _kept, _used
    cdef block_t *block
    cdef block_t **place
    if memory == NULL:
        return
    block = <block_t *> (<char *> memory - HEADER)
    if block.capacity < UNIT:
        free(block)
        return
    with _lock:
        place = _bin(block.capacity)
        block.next = place[0]
        place[0] = block
        _used -= block.capacity
        _kept += block.capacity


cdef void *_realloc(void *ctx, void *memory, size_t size) noexcept nogil:
    cdef void *fresh = _take(size, False)
    if fresh != NULL and memory != NULL:
        memcpy(fresh, memory, min(size, (<block_t *> (<char *> memory - HEADER)).capacity))
        _free(ctx, memory, 0)
    return fresh


cdef PyDataMem_Handler _handler
strcpy(_handler.name, b"cyconv")
_handler.version = 1
_handler.allocator = PyDataMemAllocator(NULL, _malloc, _calloc, _realloc, _free)
_capsule = PyCapsule_New(&_handler, "mem_handler", NULL)


cdef class Recycling:
    """Context manager: arrays that this thread makes meanwhile have their memory from here."""

    cdef object _before

    def __enter__(self):
        self._before = PyDataMem_SetHandler(_capsule)

    def __exit__(self, *exception):
        PyDataMem_SetHandler(self._before)


def held_nbytes():
    """Bytes that are kept for arrays to come."""
    return _kept


def release():
    """Let go of what is kept."""
    global _most
    with _lock:
        _shrink(0)
        _most = _used
