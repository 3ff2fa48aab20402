# cython: boundscheck=False, wraparound=False
"""Structs of Kafka's messages between bytes and objects, one decoder and one encoder per field.

`wire.decoding` and `wire.encoding` compose them from the declarations, once per message and
version; what runs per message is here. Every length is checked against what is left before
anything is allocated. All integers are big-endian two's complement. Nothing here knows a
particular message.

Source: Kafka protocol guide, "Protocol Primitive Types"; KIP-482 (flexible versions).
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New, PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy

import types
from inspect import getattr_static

cdef extern from "Python.h":
    object PyType_GenericAlloc(type cls, Py_ssize_t items)
    PyTypeObject* type_of "Py_TYPE"(object value)
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef Py_ssize_t MAX_STRING = 0x7FFF  # in bytes, in the compact form too
cdef uint64_t MAX_UVARINT = 0xFFFFFFFF
cdef Py_ssize_t ZERO_UUID_SIZE = 16

_WIDTHS = {"b": 1, "h": 2, "i": 4, "q": 8}


# -- decoding ---------------------------------------------------------------------------------------


cdef class Cursor:
    """A position in one buffer; whoever opens it releases it."""

    cdef object fail(self, str text):
        raise self.error(text)

    cdef Py_ssize_t advance(self, Py_ssize_t size) except -1:
        """Move over `size` bytes; the index of the first of them."""
        cdef Py_ssize_t start = self.pos
        if size > self.end - start:
            self.fail(f"{size} bytes expected at byte {start}, {self.end - start} left")
        self.pos = start + size
        return start

    cdef Py_ssize_t uvarint(self) except -1:
        """0 to 2**32-1 in groups of seven bits, lowest first; at most 5 bytes."""
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
        """Refuse `count` elements of at least `min_size` bytes if they cannot all be there."""
        cdef Py_ssize_t left = self.end - self.pos
        if count > left // min_size:
            self.fail(f"{count} elements announced at byte {self.pos}, {left} bytes left")
        return 0


cdef class Decoder:
    """Reads one field.

    Attributes:
        min_size: fewest bytes a value can take, at least 1; bounds announced counts.
    """

    cdef object read(self, Cursor cursor):
        raise NotImplementedError

    def decode(self, data, Py_ssize_t start, error):
        """A value from the bytes from `start` on, and the index after its last byte.

        Args:
            data: any flat buffer; `View` fields keep it alive.
            error: class of what is raised, with a text, when bytes are missing or not allowed.
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
    """A signed integer; `code` is its `struct` code, one of b, h, i, q."""

    cdef int width

    def __init__(self, str code):
        self.min_size = self.width = _WIDTHS[code]

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t start = cursor.advance(self.width)
        return big_endian(cursor.data + start, self.width)


cdef class BoolDecoder(Decoder):
    """One byte; any other than 0 is True."""

    def __init__(self):
        self.min_size = 1

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t start = cursor.advance(1)
        return cursor.data[start] != 0


cdef class UuidDecoder(Decoder):
    """16 bytes, most significant first."""

    def __init__(self):
        self.min_size = ZERO_UUID_SIZE

    cdef object read(self, Cursor cursor):
        cdef Py_ssize_t start = cursor.advance(ZERO_UUID_SIZE)
        return PyBytes_FromStringAndSize(<const char*> cursor.data + start, ZERO_UUID_SIZE)


cdef class SizedDecoder(Decoder):
    """A length, -1 = null, and what it counts.

    Args:
        width: bytes of the length, 2 or 4; 0 = compact.
        nullable: null becomes None; otherwise it is refused.
    """

    cdef int width
    cdef bint nullable

    def __init__(self, int width, bint nullable):
        self.width = width
        self.nullable = nullable
        self.min_size = width or 1

    cdef object read(self, Cursor cursor):
        cdef int64_t size
        if self.width == 0:
            size = <int64_t> cursor.uvarint() - 1
        else:
            size = big_endian(cursor.data + cursor.advance(self.width), self.width)
        if size >= 0:
            return self.body(cursor, size)
        if size < -1:
            cursor.fail(f"length {size} before byte {cursor.pos}")
        if not self.nullable:
            cursor.fail(f"null before byte {cursor.pos} where the protocol allows none")
        return None

    cdef object body(self, Cursor cursor, Py_ssize_t size):
        raise NotImplementedError


cdef class TextDecoder(SizedDecoder):
    """UTF-8, up to 32767 bytes."""

    cdef object body(self, Cursor cursor, Py_ssize_t size):
        cdef Py_ssize_t start
        if size > MAX_STRING:
            cursor.fail(f"string of {size} bytes at byte {cursor.pos}, limit {MAX_STRING}")
        start = cursor.advance(size)
        try:
            return PyUnicode_DecodeUTF8(<const char*> cursor.data + start, size, NULL)
        except UnicodeDecodeError as failure:
            reason = failure.reason
        cursor.fail(f"string at byte {start} is not UTF-8: {reason}")


cdef class BytesDecoder(SizedDecoder):
    """A copy of the bytes."""

    cdef object body(self, Cursor cursor, Py_ssize_t size):
        cdef Py_ssize_t start = cursor.advance(size)
        return PyBytes_FromStringAndSize(<const char*> cursor.data + start, size)


cdef class ViewDecoder(SizedDecoder):
    """The bytes without copying them, as a memoryview that keeps the whole buffer alive."""

    cdef object body(self, Cursor cursor, Py_ssize_t size):
        cdef Py_ssize_t start = cursor.advance(size)
        return memoryview(cursor.owner)[start : start + size]


cdef class ArrayDecoder(SizedDecoder):
    """Elements of one kind, as a tuple."""

    cdef Decoder element

    def __init__(self, int width, bint nullable, Decoder element not None):
        super().__init__(width, nullable)
        self.element = element

    cdef object body(self, Cursor cursor, Py_ssize_t size):
        cdef Py_ssize_t index
        cdef object value
        cursor.check_count(size, self.element.min_size)
        cdef tuple values = PyTuple_New(size)
        for index in range(size):
            value = self.element.read(cursor)
            Py_INCREF(value)
            PyTuple_SET_ITEM(values, index, value)
        return values


cdef class StructDecoder(Decoder):
    """An instance of a dataclass with slots.

    Args:
        cls: the dataclass; frozen ones too, since the slots are filled directly.
        fields: name and decoder of what is always there, in wire order.
        defaults: name and value of every field that is not among them.
        tagged: tag to name and decoder; None in versions without tagged fields.
    """

    cdef type cls
    cdef list slots  # descriptors, one each for `decoders`
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
        """Tags ascend, so that none comes twice; unknown ones are skipped."""
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


# -- encoding ---------------------------------------------------------------------------------------


cdef class Sink:
    """Collects encoded bytes; large chunks stay pieces of their own."""

    def __cinit__(self):
        self.chunks = []

    def __dealloc__(self):
        PyMem_Free(self.data)

    cdef unsigned char* room(self, Py_ssize_t size) except NULL:
        """Where the next `size` bytes go."""
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
        """A length of `width` bytes, 0 = compact; -1 = null."""
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
        """Close the open chunk."""
        if self.used:
            self.chunks.append(PyBytes_FromStringAndSize(<const char*> self.data, self.used))
            self.used = 0
        return 0


cdef class Encoder:
    """Writes one field."""

    cdef int write(self, Sink sink, object value) except -1:
        raise NotImplementedError

    def encode(self, value):
        """The bytes of a value as a list of pieces.

        Raises:
            ValueError: a value does not fit its wire type; TypeError, AttributeError: it has
                another type than declared.
        """
        cdef Sink sink = Sink.__new__(Sink)
        self.write(sink, value)
        sink.cut()
        return sink.chunks


cdef int write_int(Sink sink, object value, int width) except -1:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} where an integer is expected")
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
    """A signed integer; `code` is its `struct` code, one of b, h, i, q."""

    cdef int width

    def __init__(self, str code):
        self.width = _WIDTHS[code]

    cdef int write(self, Sink sink, object value) except -1:
        return write_int(sink, value, self.width)


cdef class BoolEncoder(Encoder):
    """One byte, 0 or 1."""

    cdef int write(self, Sink sink, object value) except -1:
        sink.room(1)[0] = 1 if value else 0
        return 0


cdef class UuidEncoder(Encoder):
    """16 bytes."""

    cdef int write(self, Sink sink, object value) except -1:
        if len(value) != ZERO_UUID_SIZE:
            raise ValueError(f"UUID of {len(value)} bytes")
        return sink.copy(value)


cdef class SizedEncoder(Encoder):
    """A length, -1 = null, and what it counts.

    Args:
        width: bytes of the length, 2 or 4; 0 = compact.
        null_error: makes the exception for a null; None where null is allowed.
    """

    cdef int width
    cdef object null_error

    def __init__(self, int width, null_error):
        self.width = width
        self.null_error = null_error

    cdef int write(self, Sink sink, object value) except -1:
        if value is not None:
            return self.body(sink, value)
        if self.null_error is not None:
            raise self.null_error()
        return sink.length(-1, self.width)

    cdef int body(self, Sink sink, object value) except -1:
        raise NotImplementedError


cdef class TextEncoder(SizedEncoder):
    """UTF-8, up to 32767 bytes."""

    cdef int body(self, Sink sink, object value) except -1:
        cdef Py_ssize_t size
        if not isinstance(value, str):
            raise TypeError(f"{type(value).__name__} where a string is expected")
        cdef const char* data = PyUnicode_AsUTF8AndSize(value, &size)
        if size > MAX_STRING:
            raise ValueError(f"string of {size} bytes, limit {MAX_STRING}")
        sink.length(size, self.width)
        memcpy(sink.room(size), data, size)
        return 0


cdef class BytesEncoder(SizedEncoder):
    """Bytes, copied."""

    cdef int body(self, Sink sink, object value) except -1:
        sink.length(len(value), self.width)
        return sink.copy(value)


cdef class ChunksEncoder(SizedEncoder):
    """A buffer, or a sequence of buffers that count as one; none is copied."""

    cdef int body(self, Sink sink, object value) except -1:
        cdef Py_ssize_t size = 0
        if isinstance(value, (bytes, bytearray, memoryview)):
            value = (value,)
        for chunk in value:
            size += len(chunk)
        sink.length(size, self.width)
        sink.cut()
        sink.chunks.extend(value)
        return 0


cdef class ArrayEncoder(SizedEncoder):
    """Elements of one kind from any sequence."""

    cdef Encoder element

    def __init__(self, int width, null_error, Encoder element not None):
        super().__init__(width, null_error)
        self.element = element

    cdef int body(self, Sink sink, object value) except -1:
        cdef Py_ssize_t left = len(value)
        sink.length(left, self.width)
        for item in value:
            self.element.write(sink, item)
            left -= 1
        if left:
            raise ValueError("a sequence with another number of elements than its length")
        return 0


cdef class StructEncoder(Encoder):
    """The fields of an object.

    Args:
        fields: name and encoder of what is always written, in wire order.
        tagged: tag, name, encoder and default in ascending order of tags: left out if default;
            None in versions without tagged fields.
        absent: name and default of the fields that must not be dropped but do not exist in this
            version.
        absent_error: makes the exception for one of them that is set, out of object and name.
    """

    cdef list names
    cdef list encoders
    cdef list tagged
    cdef list absent
    cdef object absent_error

    def __init__(self, fields, tagged, absent, absent_error):
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
    # An empty list is as good as the default's empty tuple.
    return isinstance(default, tuple) and not default and value is not None and len(value) == 0
