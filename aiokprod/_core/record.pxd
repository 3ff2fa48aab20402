# One record into an open batch that has room for it, as inline C on borrowed batches; and the
# constants of the row loops that do so (`append_column`, `TableAppender`).
#
# Source: Kafka protocol guide, "Record"; Java `DefaultRecord.writeTo`.

from cpython.ref cimport PyObject
from libc.string cimport memmove

from aiokprod._core.batch cimport BatchCore
from aiokprod._core.varint cimport (
    aiokprod_copy, int64_t, murmur2_bytes, uint8_t, uint32_t, varint_size, write_varint,
)

cdef enum:
    MIN_BODY = 6           # attributes, two deltas, three lengths
    OPEN = 0
    # Largest encoding of a record apart from key, value and headers: Java DefaultRecord
    # MAX_RECORD_OVERHEAD (21: record length 5, attributes 1, timestamp delta 10, offset delta 5)
    # and the lengths of key and value and the header count, 5 each.
    OVERHEAD = 36
    BATCH_HEADER = 61      # bytes of a record batch before its records
    CHARGE = 96            # bytes of memory of a `Delivery`, with the allocator's overhead
    CHECK_ROWS = 1024      # rows between two reads of the clock
    BLOCK = 256            # keys hashed ahead; a power of two


cdef inline uint32_t key_hash(const char* key, Py_ssize_t size) noexcept nogil:
    """Modulo the number of partitions, the partition of a key (Java `BuiltInPartitioner`)."""
    return murmur2_bytes(<const uint8_t*>key, size) & 0x7FFFFFFF


cdef inline bint has_ample_room(PyObject* held, int64_t bound) noexcept:
    """True if a record of at most `bound` bytes fits without a closer look."""
    cdef Py_ssize_t length = (<BatchCore>held).length + bound
    return (length <= (<BatchCore>held).capacity and length <= (<BatchCore>held).limit
            and (<BatchCore>held).ratio <= 1.0 and (<BatchCore>held).state == OPEN)


cdef inline char* write_field(char* p, const char* data, int64_t size) noexcept:
    """Length-prefixed bytes; null is length -1."""
    p = write_varint(p, size)
    if size > 0:
        aiokprod_copy(p, data, size)
        p += size
    return p


cdef inline char* begin_record(PyObject* held, int64_t timestamp, int prefix) noexcept:
    """Attributes and deltas behind a length of `prefix` bytes; where key, value and headers go."""
    cdef char* p = (<BatchCore>held).data + (<BatchCore>held).length + prefix
    if (<BatchCore>held).count == 0:
        (<BatchCore>held).base_timestamp = (<BatchCore>held).max_timestamp = timestamp
    elif timestamp > (<BatchCore>held).max_timestamp:
        (<BatchCore>held).max_timestamp = timestamp
    p[0] = 0
    p = write_varint(p + 1, timestamp - (<BatchCore>held).base_timestamp)
    return write_varint(p, (<BatchCore>held).count)


cdef inline Py_ssize_t end_record(PyObject* held, char* p, int prefix) noexcept:
    """Put the length before the record that ends at `p`; its size with the length."""
    cdef char* start = (<BatchCore>held).data + (<BatchCore>held).length
    cdef Py_ssize_t body = p - start - prefix
    if varint_size(body) != prefix:  # `prefix` was a guess
        memmove(start + varint_size(body), start + prefix, body)
    p = write_varint(start, body) + body
    (<BatchCore>held).length += p - start
    (<BatchCore>held).count += 1
    return p - start
