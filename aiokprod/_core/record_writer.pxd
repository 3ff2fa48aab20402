# Inline C functions that write one record to an open batch, given a borrowed reference to the
# batch. The callers (`Appender.append_slot`, `append_rows`, `TableAppender.run`) fill in a `Record`
# and write the headers; the other steps are here and in `append.pxd`.
#
# Source: Kafka protocol guide, "Record"; Java `DefaultRecord.writeTo`.

from cpython.ref cimport PyObject
from libc.string cimport memmove

from aiokprod._core.batch cimport S_OPEN, BatchCore
from aiokprod._core.varint cimport (
    aiokprod_copy, int32_t, int64_t, murmur2_bytes, uint8_t, uint32_t, varint_size, write_varint,
)

cdef enum:
    MIN_BODY = 6           # bytes: attributes, two deltas, two lengths, header count
    # Most bytes of an encoded record besides its key, value and headers: Java DefaultRecord
    # MAX_RECORD_OVERHEAD (21: record length 5, attributes 1, timestamp delta 10, offset delta 5)
    # plus key length, value length and header count, 5 each.
    OVERHEAD = 36
    BATCH_HEADER = 61      # bytes of a record batch before its records
    CHARGE = 96            # bytes of memory of a `Delivery`, with the allocator's overhead
    CHECK_ROWS = 1024      # rows between two reads of the clock
    BLOCK = 256            # keys that are hashed ahead; a power of two, and a divisor of CHECK_ROWS

cdef struct Record:
    int64_t timestamp
    const char* key
    const char* value
    int64_t key_size       # -1: null
    int64_t value_size
    int64_t header_count
    int64_t headers_size   # encoded bytes, without the header count


cdef inline uint32_t key_hash(const char* key, Py_ssize_t size) noexcept nogil:
    """Return the hash of a key. The hash modulo the number of partitions is the partition (Java
    `BuiltInPartitioner`)."""
    return murmur2_bytes(<const uint8_t*>key, size) & 0x7FFFFFFF


cdef inline int64_t size_bound(const Record* record) noexcept:
    """Return an upper bound of the encoded size of a record in bytes."""
    return (OVERHEAD + record.headers_size + max(0, record.key_size)
            + max(0, record.value_size))


cdef inline int least_prefix(int64_t bound) noexcept:
    """Return the least size of the length prefix of a record with this `size_bound`. The prefix may
    need one byte more."""
    return varint_size(bound - OVERHEAD + MIN_BODY)


cdef inline int64_t field_size(int64_t size) noexcept:
    """Return the encoded size of a field of `size` bytes; -1 stands for null."""
    return varint_size(size) + max(0, size)


cdef inline int64_t fields_size(const Record* record) noexcept:
    """Return the encoded size of a record's key, value and headers, which follow its deltas."""
    return (field_size(record.key_size) + field_size(record.value_size)
            + varint_size(record.header_count) + record.headers_size)


cdef inline int64_t encoded_size(PyObject* held, int64_t timestamp, int64_t fields) noexcept:
    """Return the encoded size of a record if it is appended next; `fields` is its `fields_size`."""
    cdef int32_t count = (<BatchCore>held).count
    cdef int64_t delta = timestamp - (<BatchCore>held).base_timestamp if count else 0
    cdef int64_t body = 1 + varint_size(delta) + varint_size(count) + fields
    return varint_size(body) + body


cdef inline bint has_ample_room(PyObject* held, int64_t bound) noexcept:
    """Return True if a record of at most `bound` bytes certainly fits."""
    cdef Py_ssize_t length = (<BatchCore>held).length + bound
    return (length <= (<BatchCore>held).capacity and length <= (<BatchCore>held).limit
            and (<BatchCore>held).ratio <= 1.0 and (<BatchCore>held).state == S_OPEN)


cdef inline char* write_field(char* p, const char* data, int64_t size) noexcept:
    """Write length-prefixed bytes; null has length -1."""
    p = write_varint(p, size)
    if size > 0:
        aiokprod_copy(p, data, size)
        p += size
    return p


cdef inline char* write_deltas(PyObject* held, int64_t timestamp, int prefix) noexcept:
    """Write attributes and deltas after a length prefix of `prefix` bytes. Return the position of
    the key."""
    cdef char* p = (<BatchCore>held).data + (<BatchCore>held).length + prefix
    if (<BatchCore>held).count == 0:
        (<BatchCore>held).base_timestamp = (<BatchCore>held).max_timestamp = timestamp
    p[0] = 0
    p = write_varint(p + 1, timestamp - (<BatchCore>held).base_timestamp)
    return write_varint(p, (<BatchCore>held).count)


cdef inline char* begin_record(PyObject* held, const Record* record, int prefix) noexcept:
    """Write a record up to its value and return the position of the headers. The batch must have
    room for the record. Only `end_record` makes the record part of the batch."""
    cdef char* p = write_deltas(held, record.timestamp, prefix)
    p = write_field(p, record.key, record.key_size)
    return write_field(p, record.value, record.value_size)


cdef inline Py_ssize_t end_record(PyObject* held, char* p, int64_t timestamp, int prefix) noexcept:
    """Write the length of the record that ends at `p`, add it to the batch and return its size."""
    cdef char* start = (<BatchCore>held).data + (<BatchCore>held).length
    cdef Py_ssize_t body = p - start - prefix
    if body >> (7 * prefix - 1):  # the length takes one byte more than `prefix`
        memmove(start + prefix + 1, start + prefix, body)
    p = write_varint(start, body) + body
    if timestamp > (<BatchCore>held).max_timestamp:
        (<BatchCore>held).max_timestamp = timestamp
    (<BatchCore>held).length += p - start
    (<BatchCore>held).count += 1
    return p - start
