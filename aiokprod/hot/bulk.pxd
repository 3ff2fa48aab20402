from libc.stdint cimport int32_t, int64_t

from aiokprod.hot.core cimport BatchCore


cdef class BulkTracker:
    cdef readonly list cores
    cdef readonly Py_ssize_t count
    cdef int64_t identity
    cdef Py_ssize_t capacity
    cdef int32_t* numbers
    cdef int32_t* indices

    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef int add(self, BatchCore core, int32_t index) except -1
