# cython: boundscheck=False, wraparound=False
"""Compiled decoders for the structs in Kafka's messages, one decoder per field.

`decode_plan` composes the decoders from the declarations once per message type and version; this
code runs for each message. Every length is checked against the remaining bytes before memory is
allocated. All integers are big-endian two's complement. No message has special rules.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (flexible versions).
"""

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t

import types
from inspect import getattr_static
from struct import calcsize

cdef extern from "Python.h":
    object PyType_GenericAlloc(type cls, Py_ssize_t items)
    PyTypeObject* type_of "Py_TYPE"(object value)

cdef Py_ssize_t MAX_STRING = 0x7FFF  # bytes; also the limit of compact strings
cdef uint64_t MAX_UVARINT = 0xFFFFFFFF
cdef Py_ssize_t UUID_SIZE = 16


cdef class Cursor:
    """A read position in one buffer, which `Decoder.decode` acquires and releases."""

    cdef Py_buffer view
    cdef const unsigned char* data
    cdef Py_ssize_t pos
    cdef Py_ssize_t end
    cdef object owner
    cdef object error

    cdef object fail(self, str text):
        raise self.error(text)

    cdef Py_ssize_t advance(self, Py_ssize_t size) except -1:
        """Skip `size` bytes and return the index of the first skipped byte."""
        cdef Py_ssize_t start = self.pos
        if size > self.end - start:
            self.fail(f"{size} bytes expected at byte {start}, {self.end - start} left")
        self.pos = start + size
        return start

    cdef Py_ssize_t uvarint(self) except -1:
        """Read an unsigned varint, 0 to 2**32-1; at most 5 bytes, lowest seven bits first."""
        cdef Py_ssize_t start = self.pos
        cdef Py_ssize_t index = start
        cdef uint64_t value = 0
        cdef int shift = 0
        cdef unsigned char byte
        while index < self.end and shift < 35:
            byte = self.data[index]
            index += 1
            value |= (<uint64_t> (byte & 0x7F)) << shift
            if byte < 0x80:
                if value > MAX_UVARINT:
                    self.fail(f"varint at byte {start} exceeds {MAX_UVARINT}")
                self.pos = index
                return <Py_ssize_t> value
            shift += 7
        if shift == 35:
            self.fail(f"varint at byte {start} has more than 5 bytes")
        self.fail(f"varint at byte {start} is cut off")

    cdef int check_count(self, Py_ssize_t count, Py_ssize_t min_size) except -1:
        """Raise if the remaining bytes are too few for `count` elements of at least `min_size`."""
        cdef Py_ssize_t left = self.end - self.pos
        if count > left // min_size:
            self.fail(f"{count} elements announced at byte {self.pos}, {left} bytes left")
        return 0


cdef class Decoder:
    """Reads one field.

    Attributes:
        min_size: size of the smallest value in bytes, at least 1; used to limit array lengths.
    """

    cdef readonly Py_ssize_t min_size

    cdef object read(self, Cursor cursor):
        raise NotImplementedError  # abstract: every subclass implements it

    def decode(self, data, Py_ssize_t start, error):
        """Decode the value at index `start`. Return it and the index after its last byte.

        Args:
            data: any contiguous buffer of bytes; the views of `ViewDecoder` keep it alive.
            error: called with a message if the bytes do not match the schema; returns the exception
                to raise.
        """
        cdef Cursor cursor = Cursor.__new__(Cursor)
        PyObject_GetBuffer(data, &cursor.view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= cursor.view.len:
                raise ValueError(f"start {start} is outside 0 to {cursor.view.len}")
            cursor.data = <const unsigned char*> cursor.view.buf
            cursor.pos = start
            cursor.end = cursor.view.len
            cursor.owner = data
            cursor.error = error
            value = self.read(cursor)
            return value, cursor.pos
        finally:
            PyBuffer_Release(&cursor.view)


cdef inline int64_t big_endian(const unsigned char* data, int width) noexcept:
    cdef uint64_t value = 0
    cdef int index
    for index in range(width):
        value = value << 8 | data[index]
    if width < 8:
        value = (value ^ (<uint64_t> 1 << (8 * width - 1))) - (<uint64_t> 1 << (8 * width - 1))
    return <int64_t> value


cdef class IntDecoder(Decoder):
    """Decodes a signed integer. `code` is its `struct` format character: b, h, i or q."""

    cdef int width

    def __cinit__(self, str code not None):
        self.min_size = self.width = calcsize(">" + code)

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t start = cursor.advance(self.width)
        return big_endian(cursor.data + start, self.width)


cdef class BoolDecoder(Decoder):
    """Decodes one byte; 0 = False, any other value = True."""

    def __init__(self):
        self.min_size = 1

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t start = cursor.advance(1)
        return cursor.data[start] != 0


cdef class UuidDecoder(Decoder):
    """Decodes a UUID as 16 bytes, most significant first."""

    def __init__(self):
        self.min_size = UUID_SIZE

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t start = cursor.advance(UUID_SIZE)
        return PyBytes_FromStringAndSize(<const char*> cursor.data + start, UUID_SIZE)


cdef class SizedDecoder(Decoder):
    """Base class of decoders for length-prefixed values; length -1 = null.

    Args:
        width: bytes of the length prefix, 2 or 4; 0 = compact.
        nullable: whether null is decoded as None; otherwise null is an error.
    """

    cdef int width
    cdef bint nullable

    def __init__(self, int width, bint nullable):
        self.width = width
        self.nullable = nullable
        self.min_size = width or 1

    cdef Py_ssize_t length(self, Cursor cursor) except -2:
        """Read the length prefix and return the length, or -1 for null in a nullable field."""
        cdef int64_t size
        if self.width == 0:
            size = <int64_t> cursor.uvarint() - 1
        else:
            size = big_endian(cursor.data + cursor.advance(self.width), self.width)
        if size < -1:
            cursor.fail(f"invalid length {size} before byte {cursor.pos}")
        if size == -1 and not self.nullable:
            cursor.fail(f"null before byte {cursor.pos} in a field that is not nullable")
        return size


cdef class TextDecoder(SizedDecoder):
    """Decodes a string: UTF-8, up to 32767 bytes."""

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t size = self.length(cursor)
        cdef Py_ssize_t start
        if size < 0:
            return None
        if size > MAX_STRING:
            cursor.fail(f"string of {size} bytes at byte {cursor.pos}, limit {MAX_STRING}")
        start = cursor.advance(size)
        try:
            return PyUnicode_DecodeUTF8(<const char*> cursor.data + start, size, NULL)
        except UnicodeDecodeError as failure:
            reason = failure.reason
        cursor.fail(f"string at byte {start} is not UTF-8: {reason}")


cdef class BytesDecoder(SizedDecoder):
    """Decodes bytes as a copy."""

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t size = self.length(cursor)
        cdef Py_ssize_t start
        if size < 0:
            return None
        start = cursor.advance(size)
        return PyBytes_FromStringAndSize(<const char*> cursor.data + start, size)


cdef class ViewDecoder(SizedDecoder):
    """Decodes bytes as a memoryview, which keeps the whole buffer alive."""

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t size = self.length(cursor)
        cdef Py_ssize_t start
        if size < 0:
            return None
        start = cursor.advance(size)
        return memoryview(cursor.owner)[start : start + size]


cdef class ArrayDecoder(SizedDecoder):
    """Decodes an array as a tuple.

    Args:
        width: see `SizedDecoder`.
        nullable: whether null is decoded as None; otherwise it is decoded as an empty tuple.
        element: decoder of the elements.
    """

    cdef Decoder element
    cdef object null

    def __init__(self, int width, bint nullable, Decoder element not None):
        # Accept null for every array: in responses with an error code, some brokers send null for
        # arrays that are not nullable. Rejecting it would hide the error code.
        super().__init__(width, True)
        self.element = element
        self.null = None if nullable else ()

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t size = self.length(cursor)
        cdef Py_ssize_t index
        cdef object value
        if size < 0:
            return self.null
        cursor.check_count(size, self.element.min_size)
        cdef tuple values = PyTuple_New(size)
        for index in range(size):
            value = self.element.read(cursor)
            Py_INCREF(value)
            PyTuple_SET_ITEM(values, index, value)
        return values


cdef class StructDecoder(Decoder):
    """Decodes a struct as an instance of a dataclass with slots.

    Args:
        cls: the dataclass; it may be frozen, because the slots are set directly.
        fields: (name, decoder) of each field without a tag, in wire order.
        defaults: (name, value) of all other fields.
        tagged: mapping of tag to (name, decoder); None in versions without tagged fields.
    """

    cdef type cls
    cdef list slots  # slot descriptors, in the order of `decoders`
    cdef list decoders
    cdef list default_slots
    cdef list default_values
    cdef dict tagged

    def __init__(self, type cls, fields, defaults, tagged):
        self.cls = cls
        self.slots = [_slot(cls, name) for name, _ in fields]
        self.decoders = [decoder for _, decoder in fields]
        self.default_slots = [_slot(cls, name) for name, _ in defaults]
        self.default_values = [value for _, value in defaults]
        self.tagged = None
        if tagged is not None:
            self.tagged = {tag: (_slot(cls, name), decoder)
                           for tag, (name, decoder) in tagged.items()}
        size = sum((<Decoder?> decoder).min_size for decoder in self.decoders)
        self.min_size = max(size + (tagged is not None), 1)

    cdef object read(self, Cursor cursor):
        cdef object made = PyType_GenericAlloc(self.cls, 0)
        cdef object slot
        cdef Py_ssize_t index
        for index in range(len(self.default_slots)):
            slot = self.default_slots[index]
            type_of(slot).tp_descr_set(slot, made, self.default_values[index])
        for index in range(len(self.decoders)):
            slot = self.slots[index]
            value = (<Decoder> self.decoders[index]).read(cursor)
            type_of(slot).tp_descr_set(slot, made, value)
        if self.tagged is not None:
            if cursor.pos < cursor.end and cursor.data[cursor.pos] == 0:
                cursor.pos += 1
            else:
                self.read_tagged(cursor, made)
        return made

    cdef int read_tagged(self, Cursor cursor, object made) except -1:
        """Read the tagged fields and skip unknown tags. Tags must ascend, so they are unique."""
        cdef Py_ssize_t count = cursor.uvarint()
        cdef Py_ssize_t last = -1
        cdef Py_ssize_t tag, size, start, outer_end
        cursor.check_count(count, 2)
        for _ in range(count):
            tag = cursor.uvarint()
            if tag <= last:
                cursor.fail(f"tagged field {tag} after {last} at byte {cursor.pos}")
            last = tag
            size = cursor.uvarint()
            start = cursor.advance(size)
            known = self.tagged.get(tag)
            if known is None:
                continue
            outer_end = cursor.end
            cursor.end = start + size
            cursor.pos = start
            slot, decoder = known
            value = (<Decoder> decoder).read(cursor)
            type_of(slot).tp_descr_set(slot, made, value)
            if cursor.pos != cursor.end:
                cursor.fail(f"{cursor.end - cursor.pos} bytes left over at byte {cursor.pos}")
            cursor.end = outer_end
        return 0


cdef object _slot(type cls, str name):
    slot = getattr_static(cls, name)
    if not isinstance(slot, types.MemberDescriptorType):
        raise TypeError(f"{cls.__name__}.{name} is not a slot")
    return slot
