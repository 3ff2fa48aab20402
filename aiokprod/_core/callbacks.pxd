cdef class Callbacks:
    cdef object loop
    cdef list calls
    cdef Py_ssize_t next
    cdef object handle

    cdef int add(self, object fn, object context, object argument) except -1
    cdef int schedule(self) except -1
