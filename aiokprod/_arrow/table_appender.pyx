# cython: language_level=3, boundscheck=False, cdivision=True
"""Encodes rows of Arrow tables into open batches, without a Python object per row.

The row loop follows the steps of the append path (`_core/append.pxd`), but reads Arrow buffers
instead of Python objects. It stops at a row that needs the slow path, which the caller takes. It
holds the GIL, because releasing and acquiring the GIL for every batch would cost more than other
threads gain.

Source: Java `KafkaProducer.doSend`, `RecordAccumulator.append`; Arrow columnar format.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.string cimport memcmp, memset

from aiokprod._arrow.c_data cimport (
    ABSENT, NULL_CELL, BytesColumn, Chunk, ListColumn, bytes_cell, int_cell, is_utf8, is_valid,
    list_cell, time_cell,
)
from aiokprod._arrow.c_data import InvalidRow
from aiokprod._core.append cimport Appender, count_bytes, find_batch
from aiokprod._core.batch cimport BatchCore
from aiokprod._core.bulk_append cimport append_row
from aiokprod._core.bulk_tracker cimport BulkTracker
from aiokprod._core.memory cimport MemoryBudget
from aiokprod._core.record_writer cimport (
    BLOCK, CHECK_ROWS, Record, begin_record, end_record, field_size, key_hash, least_prefix,
    size_bound, write_field,
)
from aiokprod._core.slots cimport TopicSlot
from aiokprod._core.varint cimport int32_t, int64_t, uint32_t, write_varint

cdef enum:
    CHECK_BYTES = 1 << 18  # bytes between two reads of the clock
    RECENT = 64            # most topics that are found without a dict lookup

cdef struct Row:
    Record record
    int64_t first_header
    int64_t last_header


cdef class Route:
    """A topic of the table's topic column."""
    cdef bytes name
    cdef TopicSlot slot


cdef class TableAppender:
    """Appends the rows of one table to batches.

    `tracker` stores the batch and index of each row, in the order of the rows.
    """
    cdef Appender appender
    cdef BulkTracker tracker
    cdef dict routes
    cdef PyObject* recent[RECENT]

    def __init__(self, Appender appender not None, BulkTracker tracker not None):
        self.appender = appender
        self.tracker = tracker
        self.routes = {}

    def append(self, Chunk chunk not None, TopicSlot topic, Py_ssize_t start):
        """Append rows, beginning with row `start`, until all are appended, the memory is used up or
        the time slice has expired.

        If `topic` is None, each row goes to the topic in the topic column. Returns the position of
        the first row that was not appended. That row has to wait for memory or the next slice, or
        needs the slow path.
        """
        if chunk.layout is None:
            raise ValueError("the chunk is closed, or not bound to a layout")
        if start < 0:
            raise ValueError("start must not be negative")
        if topic is None and chunk.topic.kind == ABSENT:
            return start
        if topic is not None and not topic.slots:
            return start
        if not self.appender.yield_queue.pass_open:
            self.appender.open_pass()
        # Topics may have been added or removed since the last slice.
        self.routes.clear()
        memset(self.recent, 0, sizeof(self.recent))
        return self.run(chunk, topic, start)

    def append_objects(self, Chunk chunk not None, str topic, Py_ssize_t start):
        """Like `append`, but convert each row to Python objects and append it like a single record,
        whose key and value the serializers convert.

        Returns the result of `Appender.try_append` for the first row that was not appended. Returns
        None after the last row, at the end of the time slice, and at a row that cannot be a record.
        """
        cdef Py_ssize_t i = start
        cdef tuple row
        cdef object result
        if chunk.layout is None:
            raise ValueError("the chunk is closed, or not bound to a layout")
        if start < 0:
            raise ValueError("start must not be negative")
        if not self.appender.yield_queue.pass_open:
            self.appender.open_pass()
        while i < chunk.rows:
            try:
                row = chunk.row(i)
            except InvalidRow:
                return None
            result = append_row(
                self.appender, self.tracker, row[0] if topic is None else topic, row[1], row[2],
                row[3], row[4], row[5],
            )
            if result is not True:
                return result
            i += 1
            # Read the clock after each row, because serializers may take any time.
            if self.appender.yield_queue.slice_over():
                break
        return None

    cdef Py_ssize_t run(self, Chunk chunk, TopicSlot topic, Py_ssize_t i) except -1:
        cdef Appender appender = self.appender
        cdef BulkTracker tracker = self.tracker
        cdef MemoryBudget memory = appender.memory
        cdef PyObject* held  # a BatchCore; its slot keeps it alive
        cdef Row row
        cdef uint32_t hashes[BLOCK]
        cdef bint by_column = topic is None, sticky, entered
        cdef int64_t number, bound
        cdef int32_t partition
        cdef Py_ssize_t end = chunk.rows, hashed = i, size
        cdef Py_ssize_t rows_left = CHECK_ROWS, bytes_left = CHECK_BYTES
        tracker.prepare(min(end - i, CHECK_ROWS))
        while i < end:
            if by_column:
                topic = self.topic_of(chunk, i)
                if topic is None:
                    break
            if i == hashed:
                hashed = min(i + BLOCK, end)
                hash_keys(&chunk.key, i, hashed, hashes)
            row.record.timestamp = appender.pass_ms
            if not read_row(chunk, i, &row):
                break
            bound = size_bound(&row.record)
            if not appender.may_append(memory, bound, 0, 0):
                break
            partition = -1
            if int_cell(&chunk.partition, i, &number):
                if number < 0 or number >= PyList_GET_SIZE(topic.slots):
                    break
                partition = <int32_t>number
            sticky = appender.is_sticky(partition, row.record.key_size >= 0)
            partition = appender.partition_of(topic, partition, sticky,
                                              hashes[(i - hashed) & (BLOCK - 1)])
            held = find_batch(topic, partition, &row.record, bound)
            if held is NULL:
                held = appender.open_batch(topic, partition, sticky, &row.record, 0, 0, None, None)
                if held is NULL:
                    break
            entered = (<BatchCore>held).bulk_owner != tracker.identity
            if entered:
                tracker.enter(<BatchCore>held)
            size = write_row(held, chunk, &row, least_prefix(bound))
            if size < 0:
                if entered:
                    tracker.leave(<BatchCore>held)
                break
            count_bytes(memory, topic, held, sticky, size, 0, 0)
            tracker.note(<BatchCore>held)
            i += 1
            rows_left -= 1
            bytes_left -= size
            if rows_left <= 0 or bytes_left <= 0:
                if appender.yield_queue.slice_over():
                    break
                rows_left = CHECK_ROWS
                bytes_left = CHECK_BYTES
                tracker.prepare(min(end - i, CHECK_ROWS))
        return i

    cdef TopicSlot topic_of(self, Chunk chunk, Py_ssize_t row):
        """Return the topic of a row, or None if the row needs the slow path."""
        cdef const char* name
        cdef PyObject* found
        cdef Route route
        cdef uint32_t index
        cdef int64_t size = bytes_cell(&chunk.topic, row, &name)
        if size <= 0:
            return None
        index = key_hash(name, size) % RECENT
        if self.recent[index] is not NULL:
            route = <Route>self.recent[index]
            if PyBytes_GET_SIZE(route.name) == size and \
                    memcmp(PyBytes_AS_STRING(route.name), name, size) == 0:
                return route.slot
        key = PyBytes_FromStringAndSize(name, size)
        found = PyDict_GetItem(self.routes, key)
        if found is NULL:
            route = Route.__new__(Route)
            route.name = key
            route.slot = self.appender.topics.get(key.decode("utf-8", "replace"))
            if route.slot is None or not route.slot.slots:
                return None
            self.routes[key] = route
            found = <PyObject*>route
        self.recent[index] = found
        return (<Route>found).slot


cdef inline bint read_row(Chunk chunk, Py_ssize_t i, Row* row) noexcept:
    """Read a row of the table into `row`. Return False if it needs the slow path. A row without a
    timestamp leaves the timestamp in `row` unchanged."""
    cdef ListColumn* headers = &chunk.headers
    cdef Record* record = &row.record
    cdef const char* data
    cdef int64_t size, j
    if not is_valid(chunk.validity, chunk.offset + i):
        return False
    record.key = record.value = NULL
    record.key_size = bytes_cell(&chunk.key, i, &record.key)
    record.value_size = bytes_cell(&chunk.value, i, &record.value)
    if record.key_size < NULL_CELL or record.value_size < NULL_CELL:
        return False
    if time_cell(&chunk.timestamp, chunk.multiplier, chunk.divisor, i, &record.timestamp) and \
            record.timestamp < 0:
        return False
    record.header_count = record.headers_size = row.first_header = row.last_header = 0
    if headers.kind == ABSENT:
        return True
    if not list_cell(headers, i, &row.first_header, &row.last_header):
        return False
    record.header_count = row.last_header - row.first_header
    for j in range(row.first_header, row.last_header):
        if not is_valid(headers.entry_validity, headers.entry_offset + j):
            return False
        size = bytes_cell(&headers.key, j, &data)
        if size < 0 or not is_utf8(data, size):
            return False
        record.headers_size += field_size(size)
        size = bytes_cell(&headers.value, j, &data)
        if size < NULL_CELL:
            return False
        record.headers_size += field_size(size)
    return True


cdef inline void hash_keys(const BytesColumn* keys, Py_ssize_t row, Py_ssize_t end,
                           uint32_t* hashes) noexcept:
    """Hash the keys that are not null. The hash of row i is stored at index `i - end` modulo BLOCK.

    The loop is separate because each hash is a chain of dependent multiplications: the CPU can
    compute only independent hashes in parallel.
    """
    cdef Py_ssize_t i
    cdef int64_t size
    cdef const char* data
    if keys.kind == ABSENT:
        return
    for i in range(row, end):
        size = bytes_cell(keys, i, &data)
        if size >= 0:
            hashes[(i - end) & (BLOCK - 1)] = key_hash(data, size)


cdef inline Py_ssize_t write_row(PyObject* held, Chunk chunk, const Row* row,
                                 int prefix) noexcept:
    """Encode one record into a batch that has room for it, and return the size of the record.

    Return -1, and add no record, if the headers now need more room than when they were measured:
    the table's memory may belong to a library whose threads write to it.
    """
    cdef char* p = begin_record(held, &row.record, prefix)
    cdef const char* data
    cdef int64_t j, size, left = row.record.headers_size
    p = write_varint(p, row.record.header_count)
    for j in range(row.first_header, row.last_header):
        size = bytes_cell(&chunk.headers.key, j, &data)
        left -= field_size(size)
        if size < 0 or left < 0:
            return -1
        p = write_field(p, data, size)
        size = bytes_cell(&chunk.headers.value, j, &data)
        left -= field_size(size)
        if size < NULL_CELL or left < 0:
            return -1
        p = write_field(p, data, size)
    return end_record(held, p, row.record.timestamp, prefix)
