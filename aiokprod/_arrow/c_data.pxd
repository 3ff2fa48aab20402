# The structures of the Arrow C data interface, and inline C functions that read cells of columns.
#
# Source: Arrow "C data interface", "C stream interface" and "PyCapsule interface"; layouts from
# "Arrow columnar format". The interface does not transmit the sizes of buffers, so offsets are
# trusted unless they decrease or the buffer is missing.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy


cdef struct ArrowSchema:
    const char* format
    const char* name
    const char* metadata
    int64_t flags
    int64_t n_children
    ArrowSchema** children
    ArrowSchema* dictionary
    void (*release)(ArrowSchema*) noexcept
    void* private_data

cdef struct ArrowArray:
    int64_t length
    int64_t null_count
    int64_t offset
    int64_t n_buffers
    int64_t n_children
    const void** buffers
    ArrowArray** children
    ArrowArray* dictionary
    void (*release)(ArrowArray*) noexcept
    void* private_data

cdef struct ArrowArrayStream:
    int (*get_schema)(ArrowArrayStream*, ArrowSchema*) noexcept nogil
    int (*get_next)(ArrowArrayStream*, ArrowArray*) noexcept nogil
    const char* (*get_last_error)(ArrowArrayStream*) noexcept nogil
    void (*release)(ArrowArrayStream*) noexcept nogil
    void* private_data


cdef enum:
    # The storage types of a column.
    ABSENT = 0
    OFFSETS32 = 1
    OFFSETS64 = 2
    FIXED = 3
    VIEW = 4
    # Results of `bytes_cell` that are not the size of a cell.
    NULL_CELL = -1
    BAD_CELL = -2

cdef struct IntColumn:
    int kind                    # 0: absent, else the width in bytes, negative if signed
    const uint8_t* validity     # NULL: no nulls
    int64_t offset
    const char* data

cdef struct BytesColumn:
    int kind
    const char* plain           # offsets from row 0; NULL unless 32-bit, no nulls, no dictionary
    const uint8_t* validity
    int64_t offset              # position of row 0, in cells
    const char* offsets         # offsets or views
    const char* data
    int64_t width               # size of fixed-size cells
    const char** blocks         # data buffers of views
    const int64_t* block_sizes
    int64_t block_count
    IntColumn indices           # into the dictionary, if the column has one
    int64_t length              # length of the dictionary

cdef struct ListColumn:
    int kind
    const uint8_t* validity
    int64_t offset
    const char* offsets
    const uint8_t* entry_validity
    int64_t entry_offset
    int64_t entries
    BytesColumn key
    BytesColumn value


cdef class Field:
    cdef readonly str name
    cdef readonly str format
    cdef readonly tuple children
    cdef readonly Field dictionary


cdef class Layout:
    cdef readonly Field schema
    cdef readonly int key
    cdef readonly int value
    cdef readonly int headers
    cdef readonly int timestamp
    cdef readonly int partition
    cdef readonly int topic
    cdef readonly bint decode_key
    cdef readonly bint decode_value
    cdef int header_key
    cdef int header_value
    cdef int64_t multiplier
    cdef int64_t divisor


cdef class Chunk:
    cdef ArrowArray array
    cdef Py_ssize_t rows
    cdef Layout layout
    cdef const uint8_t* validity
    cdef int64_t offset
    cdef int64_t multiplier
    cdef int64_t divisor
    cdef BytesColumn topic
    cdef BytesColumn key
    cdef BytesColumn value
    cdef ListColumn headers
    cdef IntColumn timestamp
    cdef IntColumn partition

    cdef int release(self) noexcept
    cpdef tuple row(self, Py_ssize_t i)
    cdef object headers_of(self, Py_ssize_t i)


cdef inline bint is_valid(const uint8_t* validity, int64_t i) noexcept nogil:
    return validity is NULL or (validity[i >> 3] >> (i & 7)) & 1


cdef inline int32_t load32(const char* p) noexcept nogil:
    # memcpy, because Arrow recommends aligned buffers but does not require them.
    cdef int32_t x
    memcpy(&x, p, 4)
    return x


cdef inline int64_t load64(const char* p) noexcept nogil:
    cdef int64_t x
    memcpy(&x, p, 8)
    return x


cdef inline bint int_cell(const IntColumn* column, int64_t row, int64_t* out) noexcept nogil:
    """Read an integer. Return False if the cell is null. Unsigned 64-bit numbers above 2⁶³-1 become
    negative."""
    cdef const char* p = column.data
    cdef int16_t x
    cdef int kind = column.kind
    row += column.offset
    if kind == 0 or not is_valid(column.validity, row):
        return False
    if kind == -4:
        out[0] = load32(p + 4 * row)
    elif kind == -8 or kind == 8:
        out[0] = load64(p + 8 * row)
    elif kind == -1:
        out[0] = (<const int8_t*>p)[row]
    elif kind == 1:
        out[0] = (<const uint8_t*>p)[row]
    elif kind == 4:
        out[0] = <uint32_t>load32(p + 4 * row)
    else:
        memcpy(&x, p + 2 * row, 2)
        out[0] = x
        if kind == 2:
            out[0] = <uint16_t>x
    return True


cdef inline int64_t bytes_cell(const BytesColumn* column, int64_t row,
                               const char** data) noexcept nogil:
    """Return the size of a cell and store its address in `data`. Return NULL_CELL if the cell is
    null, or BAD_CELL if the table is damaged at the cell."""
    cdef int kind = column.kind
    cdef int64_t start, size, block
    if column.plain is not NULL:
        start = load32(column.plain + 4 * row)
        size = load32(column.plain + 4 * row + 4) - start
        data[0] = column.data + start
        return size if (start | size) >= 0 else BAD_CELL
    if kind == ABSENT:
        return NULL_CELL
    if column.indices.kind:
        if not int_cell(&column.indices, row, &row):
            return NULL_CELL
        if row < 0 or row >= column.length:
            return BAD_CELL
    row += column.offset
    if not is_valid(column.validity, row):
        return NULL_CELL
    if kind == OFFSETS32:
        start = load32(column.offsets + 4 * row)
        size = load32(column.offsets + 4 * row + 4) - start
    elif kind == OFFSETS64:
        start = load64(column.offsets + 8 * row)
        size = load64(column.offsets + 8 * row + 8)
        if start < 0 or size < start:  # checked before a subtraction that may overflow
            return BAD_CELL
        size -= start
    elif kind == FIXED:
        start = row * column.width
        size = column.width
    else:
        size = load32(column.offsets + 16 * row)
        if size < 0:
            return BAD_CELL
        if size <= 12:
            data[0] = column.offsets + 16 * row + 4
            return size
        block = load32(column.offsets + 16 * row + 8)
        start = load32(column.offsets + 16 * row + 12)
        if block < 0 or block >= column.block_count or start < 0 or \
                start + size > column.block_sizes[block]:
            return BAD_CELL
        data[0] = column.blocks[block] + start
        return size
    if start < 0 or size < 0 or (size > 0 and column.data is NULL):
        return BAD_CELL
    data[0] = column.data + start
    return size


cdef inline bint is_utf8(const char* text, int64_t size) noexcept nogil:
    """Return True if `bytes.decode` accepts the text. Source: Unicode Standard, table 3-7."""
    cdef const uint8_t* p = <const uint8_t*>text
    cdef const uint8_t* end = p + size
    cdef uint8_t lead, least, most
    cdef int more
    while p < end:
        lead = p[0]
        p += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if end - p < more:
            return False
        # Reject overlong forms, surrogates and code points above U+10FFFF.
        least = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        most = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if p[0] < least or p[0] > most:
            return False
        p += 1
        while more > 1:
            if p[0] & 0xC0 != 0x80:
                return False
            p += 1
            more -= 1
    return True


cdef inline bint list_cell(const ListColumn* column, int64_t row, int64_t* start,
                           int64_t* stop) noexcept nogil:
    """Store the range of a row's entries, which is empty if the row is null. Return False if the
    table is damaged at the row."""
    start[0] = stop[0] = 0
    row += column.offset
    if column.kind == ABSENT or not is_valid(column.validity, row):
        return True
    if column.kind == OFFSETS32:
        start[0] = load32(column.offsets + 4 * row)
        stop[0] = load32(column.offsets + 4 * row + 4)
    else:
        start[0] = load64(column.offsets + 8 * row)
        stop[0] = load64(column.offsets + 8 * row + 8)
    return 0 <= start[0] <= stop[0] <= column.entries


cdef inline bint time_cell(const IntColumn* column, int64_t multiplier, int64_t divisor,
                           int64_t row, int64_t* out) noexcept nogil:
    """Read a time in milliseconds, rounded down. Return False if the cell is null. A time out of
    range becomes negative."""
    cdef int64_t x
    if not int_cell(column, row, &x):
        return False
    if x < 0:
        out[0] = -1
    elif divisor > 1:
        out[0] = x // divisor
    elif x > <int64_t>0x7FFFFFFFFFFFFFFFLL // multiplier:
        out[0] = -1
    else:
        out[0] = x * multiplier
    return True
