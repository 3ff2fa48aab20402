from cpython.ref cimport PyObject


cdef class OutcomeReceiver:
    cdef int receive(self, object metadata, object error) except -1


cdef class Callbacks:
    cdef object loop
    cdef object handle
    # The next call, which `take` has stored.
    cdef object fn
    cdef object context
    cdef bint context_is_shared
    cdef object first
    cdef object second
    cdef bint has_second
    cdef object failed         # the callable that raised

    cdef bint several(self) except -1
    cdef bint pending(self) except -1
    cdef bint take(self) except -1
    cdef int run(self) except -1
    cdef int schedule(self) except -1


cdef object present_context(object known)
cpdef bint is_plain_callable(object fn) except -1
