# cython: boundscheck=False, wraparound=False
"""Compiled encoders for the structs in Kafka's messages, one encoder per field.

The counterpart of `decoders`. `encode_plan` composes the encoders.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (flexible versions).
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

from struct import calcsize

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef Py_ssize_t MAX_STRING = 0x7FFF  # bytes; also the limit of compact strings
cdef uint64_t MAX_UVARINT = 0xFFFFFFFF
cdef Py_ssize_t UUID_SIZE = 16


cdef class Sink:
    """Collects encoded bytes. Record batches stay separate chunks."""

    cdef list chunks
    cdef unsigned char* data
    cdef Py_ssize_t used
    cdef Py_ssize_t size

    def __cinit__(self):
        self.chunks = []

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef unsigned char* room(self, Py_ssize_t size) except NULL:
        """Reserve `size` bytes and return a pointer to them."""
        cdef Py_ssize_t wanted = self.used + size
        cdef void* moved
        if wanted > self.size or self.data is NULL:
            wanted = max(wanted, 2 * self.size, 256)
            moved = PyMem_Realloc(self.data, wanted)
            if moved is NULL:
                raise MemoryError
            self.data = <unsigned char*> moved
            self.size = wanted
        self.used += size
        return self.data + self.used - size

    cdef int uvarint(self, Py_ssize_t value) except -1:
        if <uint64_t> value > MAX_UVARINT:
            raise ValueError(f"{value} does not fit into an unsigned varint")
        while value > 0x7F:
            self.room(1)[0] = value & 0x7F | 0x80
            value >>= 7
        self.room(1)[0] = value
        return 0

    cdef int length(self, Py_ssize_t size, int width) except -1:
        """Write a length prefix of `width` bytes, 0 = compact; size -1 = null."""
        if width == 0:
            return self.uvarint(size + 1)
        return write_int(self, size, width)

    cdef int copy(self, object data) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            memcpy(self.room(view.len), view.buf, view.len)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int cut(self) except -1:
        """Finish the current chunk."""
        if self.used:
            self.chunks.append(PyBytes_FromStringAndSize(<const char*> self.data, self.used))
            self.used = 0
        return 0


cdef class Encoder:
    """Writes one field."""

    cdef int write(self, Sink sink, object value) except -1:
        raise NotImplementedError  # abstract: every subclass implements it

    def encode(self, value):
        """Encode a value as a list of chunks.

        Raises:
            ValueError: a value does not fit its wire type.
            TypeError, AttributeError: a value has another type than declared.
        """
        cdef Sink sink = Sink.__new__(Sink)
        self.write(sink, value)
        sink.cut()
        return sink.chunks


cdef int write_int(Sink sink, object value, int width) except -1:
    if not isinstance(value, int):
        raise TypeError(f"expected an integer, got {type(value).__name__}")
    cdef int64_t number
    cdef int64_t limit = <int64_t> ((<uint64_t> 1 << (8 * width - 1)) - 1)
    cdef unsigned char* data
    try:
        number = value
    except OverflowError:
        raise ValueError(f"an integer does not fit into {width} bytes") from None
    if not -limit - 1 <= number <= limit:
        raise ValueError(f"{number} does not fit into {width} bytes")
    data = sink.room(width)
    while width:
        width -= 1
        data[width] = number & 0xFF
        number >>= 8
    return 0


cdef class IntEncoder(Encoder):
    """Encodes a signed integer. `code` is its `struct` format character: b, h, i or q."""

    cdef int width

    def __cinit__(self, str code not None):
        self.width = calcsize(">" + code)

    cdef int write(self, Sink sink, object value) except -1:
        return write_int(sink, value, self.width)


cdef class BoolEncoder(Encoder):
    """Encodes a boolean as one byte, 0 or 1."""

    cdef int write(self, Sink sink, object value) except -1:
        sink.room(1)[0] = 1 if value else 0
        return 0


cdef class UuidEncoder(Encoder):
    """Encodes a UUID given as 16 bytes."""

    cdef int write(self, Sink sink, object value) except -1:
        if len(value) != UUID_SIZE:
            raise ValueError(f"UUID of {len(value)} bytes instead of 16")
        return sink.copy(value)


cdef class SizedEncoder(Encoder):
    """Base class of encoders for length-prefixed values; length -1 = null.

    Args:
        width: bytes of the length prefix, 2 or 4; 0 = compact.
        null_error: function that returns the exception to raise for None, or None if the field is
            nullable.
    """

    cdef int width
    cdef object null_error

    def __cinit__(self, int width, null_error, *more):
        self.width = width
        self.null_error = null_error

    cdef bint wrote_null(self, Sink sink, object value) except -1:
        """Write a null and return True if the value is None. Raise if the field is not nullable."""
        if value is not None:
            return False
        if self.null_error is not None:
            raise self.null_error()
        sink.length(-1, self.width)
        return True


cdef class TextEncoder(SizedEncoder):
    """Encodes a string: UTF-8, up to 32767 bytes."""

    cdef int write(self, Sink sink, object value) except -1:
        cdef Py_ssize_t size
        if self.wrote_null(sink, value):
            return 0
        if not isinstance(value, str):
            raise TypeError(f"expected a string, got {type(value).__name__}")
        cdef const char* data = PyUnicode_AsUTF8AndSize(value, &size)
        if size > MAX_STRING:
            raise ValueError(f"string of {size} bytes, limit {MAX_STRING}")
        sink.length(size, self.width)
        memcpy(sink.room(size), data, size)
        return 0


cdef class BytesEncoder(SizedEncoder):
    """Encodes bytes by copying them."""

    cdef int write(self, Sink sink, object value) except -1:
        if self.wrote_null(sink, value):
            return 0
        sink.length(len(value), self.width)
        return sink.copy(value)


cdef class ChunksEncoder(SizedEncoder):
    """Encodes a buffer, or a sequence of buffers that form one value, without copying."""

    cdef int write(self, Sink sink, object value) except -1:
        cdef Py_ssize_t size = 0
        if self.wrote_null(sink, value):
            return 0
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = (value,)
        for chunk in value:
            size += len(chunk)
        sink.length(size, self.width)
        sink.cut()
        sink.chunks.extend(value)
        return 0


cdef class ArrayEncoder(SizedEncoder):
    """Encodes a sequence as an array."""

    cdef Encoder element

    def __cinit__(self, int width, null_error, Encoder element not None):
        self.element = element

    cdef int write(self, Sink sink, object value) except -1:
        cdef Py_ssize_t left
        if self.wrote_null(sink, value):
            return 0
        left = len(value)
        sink.length(left, self.width)
        for item in value:
            self.element.write(sink, item)
            left -= 1
        if left:
            raise ValueError("the number of elements differs from the sequence's length")
        return 0


cdef class StructEncoder(Encoder):
    """Encodes the fields of an object as a struct.

    Args:
        fields: (name, encoder) of each field without a tag, in wire order.
        tagged: (tag, name, encoder, default) of each tagged field, by ascending tag. Fields with
            their default value are not written. None in versions without tagged fields.
        absent: (name, default) of each field that does not exist in this version and is not
            ignorable.
        absent_error: called with (object, name) if an absent field has a value other than its
            default; returns the exception to raise.
    """

    cdef list names
    cdef list encoders
    cdef list tagged
    cdef list absent
    cdef object absent_error

    def __cinit__(self, fields, tagged, absent, absent_error):
        self.names = [name for name, _ in fields]
        self.encoders = [<Encoder?> encoder for _, encoder in fields]
        self.tagged = None if tagged is None else list(tagged)
        self.absent = list(absent)
        self.absent_error = absent_error

    cdef int write(self, Sink sink, object value) except -1:
        cdef Py_ssize_t index
        for name, default in self.absent:
            if not is_default(getattr(value, name), default):
                raise self.absent_error(value, name)
        for index in range(len(self.encoders)):
            (<Encoder> self.encoders[index]).write(sink, getattr(value, self.names[index]))
        if self.tagged is not None:
            if self.tagged:
                self.write_tagged(sink, value)
            else:
                sink.room(1)[0] = 0
        return 0

    cdef int write_tagged(self, Sink sink, object value) except -1:
        cdef list present = []
        cdef Sink body
        for tag, name, encoder, default in self.tagged:
            item = getattr(value, name)
            if not is_default(item, default):
                body = Sink.__new__(Sink)
                (<Encoder> encoder).write(body, item)
                body.cut()
                present.append((tag, b"".join(body.chunks)))
        sink.uvarint(len(present))
        for tag, data in present:
            sink.uvarint(tag)
            sink.uvarint(len(data))
            sink.copy(data)
        return 0


cdef bint is_default(object value, object default) except -1:
    if value == default:
        return True
    # An empty list counts as the default, which is an empty tuple.
    return isinstance(default, tuple) and not default and value is not None and len(value) == 0
