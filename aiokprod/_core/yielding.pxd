from aiokprod._core.batch cimport MemoryBudget


cdef class YieldQueue:
    cdef object loop
    cdef object clock
    cdef MemoryBudget memory
    cdef object line
    cdef Py_ssize_t group
    cdef Py_ssize_t least
    cdef double began
    cdef bint scheduled

    cdef int schedule(self) except -1
    cdef int resize(self) except -1
    cdef int let_go(self) except -1
