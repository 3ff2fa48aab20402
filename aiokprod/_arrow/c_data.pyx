# cython: language_level=3, boundscheck=False, cdivision=True
"""Imports tables through the Arrow C data interface, without importing the exporting library.

`open_table` takes the capsules of an object. `Stream.next` returns the record batches as `Chunk`s.
A `Layout` assigns their columns to the parts of a record. A chunk owns its memory and releases it
exactly once: when it is closed or deallocated.

Source: Arrow "C data interface", "C stream interface", "PyCapsule interface".
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.ref cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memset, strlen

cdef extern from "Python.h":
    ctypedef struct PyTypeObject
    ctypedef PyObject* (*newfunc)(PyTypeObject*, PyObject*, PyObject*) noexcept
    ctypedef struct PyTypeObject:
        newfunc tp_new
        void* tp_vectorcall
    void PyErr_SetObject(object, object) noexcept
    Py_ssize_t PY_SSIZE_T_MAX


cdef enum:
    MAX_DEPTH = 32
    MAX_CHILDREN = 1 << 16

cdef int64_t MAX_BYTES = 1 << 62  # limit for a buffer, so that positions fit into 64 bits

# Columns of bytes or text: format → (kind, number of buffers, or -1 if not fixed).
_BYTES_KINDS = {
    "z": (OFFSETS32, 3), "u": (OFFSETS32, 3), "Z": (OFFSETS64, 3), "U": (OFFSETS64, 3),
    "vz": (VIEW, -1), "vu": (VIEW, -1),
}
# Columns of integers: format → width in bytes, negative if signed.
_INT_KINDS = {"c": -1, "C": 1, "s": -2, "S": 2, "i": -4, "I": 4, "l": -8, "L": 8}
# Columns of timestamps: start of the format → (factor, divisor) to convert to milliseconds.
_UNITS = {"tss:": (1000, 1), "tsm:": (1, 1), "tsu:": (1, 1000), "tsn:": (1, 1000000)}
_TEXT = ("u", "U", "vu")


class ArrowImportError(ValueError):
    """The exported data does not conform to the Arrow C data interface."""


class InvalidRow(ValueError):
    """A row cannot be sent as a record. The message contains the reason, but not the content."""


class ArrowStreamError(Exception):
    """The library that exports a stream reported an error. The message is from that library."""


cdef class Field:
    """The type of a column: Arrow's format string, the children and the type of the dictionary."""

    def __init__(self, str name not None, str format not None, children=(), Field dictionary=None):
        self.name = name
        self.format = format
        self.children = tuple(children)
        self.dictionary = dictionary

    @property
    def is_struct(self):
        return self.format == "+s" and self.dictionary is None

    @property
    def is_bytes(self):
        """True for bytes or text in any layout, dictionary-encoded or not."""
        if self.dictionary is not None:
            return self.has_indices and self.dictionary.is_bytes
        return self.format in _BYTES_KINDS or self.fixed_width >= 0

    @property
    def is_text(self):
        if self.dictionary is not None:
            return self.has_indices and self.dictionary.is_text
        return self.format in _TEXT

    @property
    def has_indices(self):
        """True if the column is dictionary-encoded by integers and its dictionary is not encoded
        again. Other indices could not be checked against the bounds of the dictionary."""
        return self.format in _INT_KINDS and self.dictionary is not None and \
            self.dictionary.dictionary is None

    @property
    def is_null(self):
        """True for a column of type null, which contains only nulls."""
        return self.format == "n" and self.dictionary is None

    @property
    def is_int(self):
        return self.format in _INT_KINDS and self.dictionary is None

    @property
    def is_timestamp(self):
        return self.format[:4] in _UNITS and self.dictionary is None

    @property
    def is_headers(self):
        """True for a map, or a list of structs of `key` (text) and `value` (bytes) in any order."""
        return self.header_columns() is not None

    @property
    def fixed_width(self):
        """Size in bytes of the cells of a fixed-size binary column; -1 for other types."""
        if self.format[:2] == "w:" and self.format[2:].isdecimal():
            return int(self.format[2:])
        return -1

    def header_columns(self):
        """Return the positions of (key, value) in the entries, or None if the column does not
        contain headers."""
        if self.format not in ("+l", "+L", "+m") or self.dictionary is not None:
            return None
        if len(self.children) != 1:
            return None
        cdef Field entry = self.children[0]
        if not entry.is_struct or len(entry.children) != 2:
            return None
        names = [child.name for child in entry.children]
        if self.format == "+m":
            key, value = 0, 1
        elif sorted(names) == ["key", "value"]:
            key, value = names.index("key"), names.index("value")
        else:
            return None
        if not entry.children[key].is_text:
            return None
        if not entry.children[value].is_bytes and not entry.children[value].is_null:
            return None
        return key, value

    def __repr__(self):
        return f"Field({self.name!r}, {self.format!r})"


cdef Field field_of(ArrowSchema* schema, int depth):
    """Return a `Field` for a schema. It keeps no reference to the schema."""
    cdef int64_t i
    cdef list children = []
    if depth > MAX_DEPTH:
        raise ArrowImportError(f"the schema is nested deeper than {MAX_DEPTH}")
    if schema is NULL or schema.release is NULL or schema.format is NULL:
        raise ArrowImportError("the schema is missing or already released")
    if not 0 <= schema.n_children <= MAX_CHILDREN or \
            (schema.n_children and schema.children is NULL):
        raise ArrowImportError(f"the schema has {schema.n_children} children")
    for i in range(schema.n_children):
        children.append(field_of(schema.children[i], depth + 1))
    return Field(
        "" if schema.name is NULL else schema.name[:strlen(schema.name)].decode("utf-8", "replace"),
        schema.format[:strlen(schema.format)].decode("utf-8", "replace"),
        children,
        None if schema.dictionary is NULL else field_of(schema.dictionary, depth + 1),
    )


cdef Field take_schema(ArrowSchema* schema):
    """Return a `Field` for a schema, and release the schema."""
    try:
        return field_of(schema, 0)
    finally:
        if schema.release is not NULL:
            schema.release(schema)
            schema.release = NULL


cdef class Layout:
    """The position of the column for each part of a record, or -1 if there is no column.

    Raises ValueError if a column does not exist or its type does not fit.

    Args:
        decode_key, decode_value: whether `Chunk.row` returns str instead of bytes.
    """

    def __init__(self, Field schema not None, *, int key=-1, int value=-1, int headers=-1,
                 int timestamp=-1, int partition=-1, int topic=-1, bint decode_key=False,
                 bint decode_value=False):
        cdef Field column
        for position in (key, value, headers, timestamp, partition, topic):
            if not -1 <= position < len(schema.children):
                raise ValueError(f"there is no column {position}")
        self.schema = schema
        self.key = key
        self.value = value
        self.headers = headers
        self.timestamp = timestamp
        self.partition = partition
        self.topic = topic
        self.decode_key = decode_key
        self.decode_value = decode_value
        self.multiplier = self.divisor = 1
        for position in (key, value, topic):
            if position >= 0:
                column = schema.children[position]
                if not column.is_bytes and not column.is_null:
                    raise ValueError(f"{column!r} does not hold bytes")
        if headers >= 0:
            column = schema.children[headers]
            if not column.is_null:
                positions = column.header_columns()
                if positions is None:
                    raise ValueError(f"{column!r} does not hold headers")
                self.header_key, self.header_value = positions
        if partition >= 0:
            column = schema.children[partition]
            if not column.is_int and not column.is_null:
                raise ValueError(f"{column!r} does not hold integers")
        if timestamp >= 0:
            column = schema.children[timestamp]
            if column.is_timestamp:
                self.multiplier, self.divisor = _UNITS[column.format[:4]]
            elif not column.is_int and not column.is_null:
                raise ValueError(f"{column!r} does not hold timestamps")


cdef int expect(ArrowArray* array, Field field, int64_t buffers, int64_t length) except -1:
    """Raise if an array does not have the shape of its type or is shorter than `length`."""
    cdef int64_t children = len(field.children)
    if array is NULL or array.release is NULL:
        raise ArrowImportError(f"column {field.name!r} is missing or already released")
    if array.length < length or array.offset < 0:
        raise ArrowImportError(
            f"column {field.name!r} has {array.length} rows at offset {array.offset}, not {length}"
        )
    if array.n_children != children or (children and array.children is NULL):
        raise ArrowImportError(
            f"column {field.name!r} has {array.n_children} children, its type {children}"
        )
    if (array.n_buffers != buffers if buffers >= 0 else array.n_buffers < 3) or \
            (array.n_buffers and array.buffers is NULL):
        raise ArrowImportError(f"column {field.name!r} has {array.n_buffers} buffers")
    return 0


cdef int check_extent(ArrowArray* array, Field field, int64_t width) except -1:
    """Raise if the position of the last of the cells, of `width` bytes each, exceeds 64 bits."""
    if array.length > MAX_BYTES or array.offset > MAX_BYTES // max(1, width) - array.length:
        raise ArrowImportError(
            f"column {field.name!r} has {array.length} rows at offset {array.offset}: no memory "
            "can hold them"
        )
    return 0


cdef inline const uint8_t* validity_of(ArrowArray* array) noexcept:
    return NULL if array.null_count == 0 else <uint8_t*>array.buffers[0]


cdef int need(ArrowArray* array, Field field, int buffer) except -1:
    if array.length and array.buffers[buffer] is NULL:
        raise ArrowImportError(f"buffer {buffer} of column {field.name!r} is missing")
    return 0


cdef int bind_ints(IntColumn* column, ArrowArray* array, Field field, int64_t base,
                   int64_t length) except -1:
    if field.is_null:
        return 0
    expect(array, field, 2, length)
    check_extent(array, field, 8)
    need(array, field, 1)
    column.kind = -8 if field.is_timestamp else _INT_KINDS[field.format]
    column.validity = validity_of(array)
    column.offset = base + array.offset
    column.data = <const char*>array.buffers[1]
    return 0


cdef int bind_bytes(BytesColumn* column, ArrowArray* array, Field field, int64_t base,
                    int64_t length) except -1:
    cdef int kind, buffers
    if field.is_null:
        return 0
    if field.dictionary is not None:
        bind_ints(&column.indices, array, Field(field.name, field.format), base, length)
        array = array.dictionary
        if array is NULL:
            raise ArrowImportError(f"column {field.name!r} lacks its dictionary")
        column.length = array.length
        field = field.dictionary
        base = length = 0
    kind, buffers = _BYTES_KINDS[field.format] if field.fixed_width < 0 else (FIXED, 2)
    expect(array, field, buffers, length)
    check_extent(array, field, 16)
    column.validity = validity_of(array)
    column.offset = base + array.offset
    if kind == FIXED:
        column.width = field.fixed_width
        check_extent(array, field, column.width)
        column.data = <const char*>array.buffers[1]
    else:
        need(array, field, 1)
        column.offsets = <const char*>array.buffers[1]
        column.data = <const char*>array.buffers[2]
    if kind == VIEW:
        column.block_count = array.n_buffers - 3
        column.blocks = <const char**>&array.buffers[2]
        column.block_sizes = <const int64_t*>array.buffers[array.n_buffers - 1]
        if column.block_count and column.block_sizes is NULL:
            raise ArrowImportError(f"the last buffer of column {field.name!r} is missing")
    column.kind = kind
    if kind == OFFSETS32 and column.validity is NULL and column.data is not NULL and \
            not column.indices.kind:
        column.plain = column.offsets + 4 * column.offset
    return 0


cdef int bind_headers(ListColumn* column, ArrowArray* array, Layout layout, Field field,
                      int64_t base, int64_t length) except -1:
    cdef ArrowArray* entries
    cdef Field entry
    if field.is_null:
        return 0
    expect(array, field, 2, length)
    check_extent(array, field, 8)
    need(array, field, 1)
    entry = field.children[0]
    entries = array.children[0]
    expect(entries, entry, 1, 0)
    check_extent(entries, entry, 1)
    column.validity = validity_of(array)
    column.offset = base + array.offset
    column.offsets = <const char*>array.buffers[1]
    column.entry_validity = validity_of(entries)
    column.entry_offset = entries.offset
    column.entries = entries.length
    bind_bytes(&column.key, entries.children[layout.header_key],
               entry.children[layout.header_key], entries.offset, entries.offset + entries.length)
    bind_bytes(&column.value, entries.children[layout.header_value],
               entry.children[layout.header_value], entries.offset,
               entries.offset + entries.length)
    column.kind = OFFSETS64 if field.format == "+L" else OFFSETS32
    return 0


cdef class Chunk:
    """One record batch. Call `bind` before reading rows; `close` releases its memory."""

    def __len__(self):
        return self.rows

    def __dealloc__(self):
        self.release()

    cdef int release(self) noexcept:
        # The array is moved first, because the release callback may run Python code that closes
        # this chunk again, even in another thread.
        cdef ArrowArray array = self.array
        self.array.release = NULL
        self.layout = None
        self.rows = 0
        if array.release is not NULL:
            array.release(&array)
        return 0

    def close(self):
        """Release the memory. Idempotent."""
        self.release()

    def bind(self, Layout layout not None):
        """Bind the columns. Raises ArrowImportError if they do not match the schema."""
        cdef ArrowArray* array = &self.array
        cdef int64_t base = array.offset
        cdef int64_t length = array.offset + array.length
        cdef tuple fields = layout.schema.children
        expect(array, layout.schema, 1, 0)
        self.layout = None
        memset(&self.topic, 0, sizeof(self.topic))
        memset(&self.key, 0, sizeof(self.key))
        memset(&self.value, 0, sizeof(self.value))
        memset(&self.headers, 0, sizeof(self.headers))
        memset(&self.timestamp, 0, sizeof(self.timestamp))
        memset(&self.partition, 0, sizeof(self.partition))
        self.validity = validity_of(array)
        self.offset = base
        self.multiplier = layout.multiplier
        self.divisor = layout.divisor
        if layout.key >= 0:
            bind_bytes(&self.key, array.children[layout.key], fields[layout.key], base, length)
        if layout.value >= 0:
            bind_bytes(&self.value, array.children[layout.value], fields[layout.value], base,
                       length)
        if layout.topic >= 0:
            bind_bytes(&self.topic, array.children[layout.topic], fields[layout.topic], base,
                       length)
        if layout.headers >= 0:
            bind_headers(&self.headers, array.children[layout.headers], layout,
                         fields[layout.headers], base, length)
        if layout.timestamp >= 0:
            bind_ints(&self.timestamp, array.children[layout.timestamp],
                      fields[layout.timestamp], base, length)
        if layout.partition >= 0:
            bind_ints(&self.partition, array.children[layout.partition],
                      fields[layout.partition], base, length)
        self.layout = layout

    cpdef tuple row(self, Py_ssize_t i):
        """Return (topic, value, key, partition, timestamp_ms, headers) of one row as Python
        objects, with None for null cells and missing columns.

        Raises InvalidRow if the row cannot be a record.
        """
        cdef Layout layout = self.layout
        if layout is None:
            raise ValueError("the chunk is closed, or not bound to a layout")
        if not 0 <= i < self.rows:
            raise IndexError(i)
        if not is_valid(self.validity, self.offset + i):
            raise InvalidRow("the whole row is null: filter such rows out")
        topic = None
        if layout.topic >= 0:
            topic = text_of(&self.topic, i, "topic")
            if topic is None:
                raise InvalidRow("its topic is null: fill in a topic, or name one for all rows")
        partition = number_of(&self.partition, i)
        timestamp = number_of(&self.timestamp, i)
        if timestamp is not None:
            timestamp = timestamp * self.multiplier // self.divisor
        if layout.decode_value:
            value = text_of(&self.value, i, "value")
        else:
            value = bytes_of(&self.value, i, "value")
        if layout.decode_key:
            key = text_of(&self.key, i, "key")
        else:
            key = bytes_of(&self.key, i, "key")
        return topic, value, key, partition, timestamp, self.headers_of(i)

    cdef object headers_of(self, Py_ssize_t i):
        cdef int64_t start, stop, j
        cdef list found
        if not list_cell(&self.headers, i, &start, &stop):
            raise InvalidRow("the table is damaged: the offsets of its headers are out of order")
        if start == stop:
            return None
        found = []
        for j in range(start, stop):
            if not is_valid(self.headers.entry_validity, self.headers.entry_offset + j):
                raise InvalidRow(f"its headers[{j - start}] is null: filter such entries out")
            name = text_of(&self.headers.key, j, "headers")
            if name is None:
                raise InvalidRow(
                    f"its headers[{j - start}] has a null key: every header needs a name"
                )
            found.append((name, bytes_of(&self.headers.value, j, "headers")))
        return found


cdef object number_of(const IntColumn* column, int64_t row):
    cdef int64_t number
    if not int_cell(column, row, &number):
        return None
    if column.kind == 8:
        return <uint64_t>number
    return number


cdef object bytes_of(const BytesColumn* column, int64_t row, str what):
    cdef const char* data
    cdef int64_t size = bytes_cell(column, row, &data)
    if size == NULL_CELL:
        return None
    if size == BAD_CELL:
        raise InvalidRow(f"the table is damaged: the offsets of its {what} are out of order")
    return PyBytes_FromStringAndSize(data if size else NULL, size)


cdef object text_of(const BytesColumn* column, int64_t row, str what):
    cdef const char* data
    cdef int64_t size = bytes_cell(column, row, &data)
    if size == NULL_CELL:
        return None
    if size == BAD_CELL:
        raise InvalidRow(f"the table is damaged: the offsets of its {what} are out of order")
    if size == 0:
        return ""
    try:
        return PyUnicode_DecodeUTF8(data, size, NULL)
    except UnicodeDecodeError:
        raise InvalidRow(f"the text in its {what} is not UTF-8") from None


cdef class Stream:
    """The record batches of one table, one after another.

    `next` may run in another thread, one call at a time. If `close` is called while `next` runs, it
    takes effect when `next` returns.
    """
    cdef readonly Field schema
    cdef ArrowArrayStream stream
    cdef Chunk single
    cdef bint busy
    cdef bint closed
    cdef readonly bint is_single

    def __dealloc__(self):
        self.release()

    cdef int release(self) noexcept:
        # The stream is moved first, for the same reason as in `Chunk.release`.
        cdef ArrowArrayStream stream = self.stream
        self.stream.release = NULL
        if stream.release is not NULL:
            with nogil:
                stream.release(&stream)
        return 0

    def next(self):
        """Return the next chunk, or None at the end. Blocks while the exporting library computes
        the chunk.

        Raises ArrowStreamError with the message of that library.
        """
        cdef Chunk chunk = self.single
        cdef ArrowArrayStream* stream = &self.stream
        cdef int code
        if self.busy:
            raise RuntimeError("the stream is being read already")
        if self.is_single or self.closed:
            self.single = None
            return chunk
        chunk = Chunk.__new__(Chunk)
        self.busy = True
        with nogil:
            code = stream.get_next(stream, &chunk.array)
        self.busy = False
        if code == 0 and self.closed:
            chunk.release()
        elif code:
            error = self.error(code)
            chunk.array.release = NULL
        if self.closed:
            self.release()
            return None
        if code:
            raise error
        if chunk.array.release is NULL:
            return None
        return checked(chunk)

    cdef object error(self, int code):
        cdef const char* text = self.stream.get_last_error(&self.stream)
        if text is NULL:
            return ArrowStreamError(f"error {code}")
        return ArrowStreamError(text[:strlen(text)].decode("utf-8", "replace"))

    cdef int read_schema(self) except -1:
        cdef ArrowSchema schema
        cdef ArrowArrayStream* stream = &self.stream
        cdef int code
        memset(&schema, 0, sizeof(schema))
        with nogil:
            code = stream.get_schema(stream, &schema)
        if code:
            raise self.error(code)
        self.schema = take_schema(&schema)
        return 0

    def close(self):
        """Release the stream. Chunks that it has returned stay valid. Idempotent."""
        self.closed = True
        if self.single is not None:
            self.single.release()
            self.single = None
        if not self.busy:
            self.release()


cdef PyObject* refuse_new(PyTypeObject* kind, PyObject* args, PyObject* kwargs) noexcept:
    """Raise an error instead of creating an instance. Other modules and subclasses call this
    function as `tp_new`; this module calls Cython's function directly."""
    PyErr_SetObject(TypeError, "chunks and streams come from open_table")
    return NULL


(<PyTypeObject*>Chunk).tp_new = refuse_new
(<PyTypeObject*>Chunk).tp_vectorcall = NULL  # Cython's function would bypass `refuse_new`
(<PyTypeObject*>Stream).tp_new = refuse_new
(<PyTypeObject*>Stream).tp_vectorcall = NULL  # Cython's function would bypass `refuse_new`


cdef Chunk checked(Chunk chunk):
    """Check the number of rows of a chunk and return the chunk."""
    cdef int64_t length = chunk.array.length
    if length < 0 or chunk.array.offset < 0 or chunk.array.offset > PY_SSIZE_T_MAX - length:
        chunk.release()
        raise ArrowImportError(
            f"invalid record batch: {length} rows at offset {chunk.array.offset}"
        )
    chunk.rows = length
    return chunk


def open_table(table):
    """Return a `Stream` of the record batches of an object that exports them.

    May block, because some libraries compute the table at this point. Raises TypeError if the
    object has neither `__arrow_c_array__` nor `__arrow_c_stream__`, and ArrowImportError if the
    result does not conform to the interface.
    """
    export = getattr(type(table), "__arrow_c_array__", None)
    if export is not None:
        return single_of(table.__arrow_c_array__())
    export = getattr(type(table), "__arrow_c_stream__", None)
    if export is None:
        raise TypeError(f"{type(table).__name__} has neither __arrow_c_array__ nor "
                        "__arrow_c_stream__")
    return stream_of(table.__arrow_c_stream__())


def exports_array(table):
    """Return True if the object is one record batch, or False if it is a stream of record batches.

    Raises TypeError if it is neither.
    """
    if hasattr(type(table), "__arrow_c_array__"):
        return True
    if hasattr(type(table), "__arrow_c_stream__"):
        return False
    raise TypeError(type(table).__name__)


cdef void* content(object capsule, const char* name) except NULL:
    if not PyCapsule_IsValid(capsule, name):
        raise ArrowImportError(f"the table returned {capsule!r} instead of a capsule "
                           f"{name[:strlen(name)].decode()!r}")
    return PyCapsule_GetPointer(capsule, name)


cdef Stream single_of(object pair):
    cdef Stream found = Stream.__new__(Stream)
    cdef Chunk chunk = Chunk.__new__(Chunk)
    cdef ArrowArray* array
    if type(pair) is not tuple or len(<tuple>pair) != 2:
        raise ArrowImportError("__arrow_c_array__ must return a pair of capsules")
    array = <ArrowArray*>content(pair[1], "arrow_array")
    found.schema = take_schema(<ArrowSchema*>content(pair[0], "arrow_schema"))
    if array.release is NULL:
        raise ArrowImportError("the table has already been released or consumed")
    # The structure is moved and marked as released, so that the capsule no longer owns it.
    chunk.array = array[0]
    array.release = NULL
    found.single = checked(chunk)
    found.is_single = True
    return found


cdef Stream stream_of(object capsule):
    cdef Stream found = Stream.__new__(Stream)
    cdef ArrowArrayStream* stream = <ArrowArrayStream*>content(capsule, "arrow_array_stream")
    if stream.release is NULL or stream.get_next is NULL or stream.get_schema is NULL or \
            stream.get_last_error is NULL:
        raise ArrowImportError("the stream has already been released or consumed")
    found.stream = stream[0]
    stream.release = NULL
    found.read_schema()
    return found
