# Reads a record's key, value and headers, which are Python objects, as C data.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.ref cimport PyObject

from aiokprod._core.varint cimport int64_t, write_varint


cdef int64_t checked_headers_size(object headers, int64_t* count) except -2
cdef char* write_header_pairs(char* p, object headers) except NULL


cdef inline Py_ssize_t size_of(PyObject* data) noexcept:
    """Return the length of bytes, -1 for None, or -2 for anything else."""
    if PyBytes_CheckExact(<object>data):
        return PyBytes_GET_SIZE(<object>data)
    return -1 if data is <PyObject*>None else -2


cdef inline const char* data_of(PyObject* data, Py_ssize_t size) noexcept:
    return PyBytes_AS_STRING(<object>data) if size >= 0 else NULL


cdef inline int64_t headers_encoded_size(object headers, int64_t* count) except -2:
    """Return the encoded size of all headers without their count, and store the count. Return -1 if
    they are not a list or tuple of (str, bytes | None)."""
    if headers is None:
        count[0] = 0
        return 0
    return checked_headers_size(headers, count)


cdef inline char* write_headers(char* p, object headers, int64_t count) except NULL:
    """Write the headers, which `headers_encoded_size` has checked, after their count."""
    p = write_varint(p, count)
    return write_header_pairs(p, headers) if count else p
