# cython: language_level=3, boundscheck=False, cdivision=True
"""Measures, hashes and writes key, value and headers that are Python objects.

Source: Kafka protocol guide, "Record"; Java `Utils.murmur2`, `BuiltInPartitioner.partitionForKey`.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_GET_ITEM

from aiokprod._core.record_writer cimport CHARGE, OVERHEAD, field_size, key_hash, write_field
from aiokprod._core.varint cimport int32_t, int64_t, murmur2_bytes, uint8_t, uint32_t

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL

DELIVERY_CHARGE = CHARGE
RECORD_OVERHEAD = OVERHEAD


def record_size_bound(value, key, headers):
    """Return an upper bound of a record's encoded size in bytes; key and value are bytes or None.

    Raises ValueError if headers are not (str, bytes | None) pairs.
    """
    cdef int64_t count
    cdef Py_ssize_t size = headers_encoded_size(headers, &count)
    if size < 0:
        raise ValueError("headers must be a list or tuple of (str, bytes | None) tuples")
    return (RECORD_OVERHEAD + size + (len(key) if key is not None else 0)
            + (len(value) if value is not None else 0))


def murmur2(bytes data not None):
    """Return the hash of Java's `Utils.murmur2` as a signed 32-bit integer."""
    return <int32_t>murmur2_bytes(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def key_partition(bytes key not None, int32_t partitions):
    """Return the partition of a key in a topic with `partitions` partitions."""
    if partitions <= 0:
        raise ValueError("partitions must be positive")
    return <int32_t>(key_hash(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) % <uint32_t>partitions)


cdef int64_t checked_headers_size(object headers, int64_t* count) except -2:
    """Like `headers_encoded_size`, but `headers` must not be None."""
    cdef int64_t total = 0
    cdef Py_ssize_t name_size, value_size
    cdef object pair, name
    if type(headers) is not list and type(headers) is not tuple:
        return -1
    for pair in headers:
        if type(pair) is not tuple or len(<tuple>pair) != 2:
            return -1
        name = (<tuple>pair)[0]
        value_size = size_of(PyTuple_GET_ITEM(pair, 1))
        if type(name) is not str or value_size < -1:
            return -1
        try:
            PyUnicode_AsUTF8AndSize(name, &name_size)
        except UnicodeEncodeError:
            return -1
        total += field_size(name_size) + field_size(value_size)
    count[0] = len(headers)
    return total


cdef char* write_header_pairs(char* p, object headers) except NULL:
    """Write the headers without their count; see `write_headers`."""
    cdef Py_ssize_t size
    cdef const char* name
    cdef PyObject* value
    cdef object pair
    for pair in headers:
        name = PyUnicode_AsUTF8AndSize((<tuple>pair)[0], &size)
        p = write_field(p, name, size)
        value = PyTuple_GET_ITEM(pair, 1)
        size = size_of(value)
        p = write_field(p, data_of(value, size), size)
    return p
