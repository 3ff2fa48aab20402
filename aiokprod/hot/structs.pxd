from cpython.buffer cimport Py_buffer


cdef class Cursor:
    cdef Py_buffer view
    cdef const unsigned char* data
    cdef Py_ssize_t pos
    cdef Py_ssize_t end
    cdef object owner
    cdef object error

    cdef Py_ssize_t advance(self, Py_ssize_t size) except -1
    cdef Py_ssize_t uvarint(self) except -1
    cdef int check_count(self, Py_ssize_t count, Py_ssize_t min_size) except -1
    cdef object fail(self, str text)


cdef class Decoder:
    cdef readonly Py_ssize_t min_size

    cdef object read(self, Cursor cursor)


cdef class Sink:
    cdef list chunks
    cdef unsigned char* data
    cdef Py_ssize_t used
    cdef Py_ssize_t size

    cdef unsigned char* room(self, Py_ssize_t size) except NULL
    cdef int uvarint(self, Py_ssize_t value) except -1
    cdef int length(self, Py_ssize_t size, int width) except -1
    cdef int copy(self, object data) except -1
    cdef int cut(self) except -1


cdef class Encoder:
    cdef int write(self, Sink sink, object value) except -1
