from aiokprod.hot.core cimport MemoryBudget


cdef class Turns:
    cdef object loop
    cdef object clock
    cdef MemoryBudget memory
    cdef object line
    cdef Py_ssize_t group
    cdef double began
    cdef readonly Py_ssize_t waiting
    cdef bint scheduled

    cdef int schedule(self) except -1
