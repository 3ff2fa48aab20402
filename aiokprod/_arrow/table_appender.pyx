# cython: language_level=3, boundscheck=False, cdivision=True
"""Encodes rows of Arrow tables into open batches, without a Python object per row.

The row loop is that of the append path, but reads Arrow buffers instead of Python objects. It
chooses partitions, checks memory and batch, and calls `open_new_batch` in the same way. It stops at
a row that needs a decision, which is left to the caller. It holds the GIL: to release and acquire
it for every batch would cost more than other threads gain.

Source: Java `KafkaProducer.doSend`, `RecordAccumulator.append`; Arrow columnar format.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.string cimport memcmp, memset

from aiokprod._core.append cimport Appender, PartitionSlot, TopicSlot
from aiokprod._arrow.c_data cimport (
    ABSENT, NULL_CELL, BytesColumn, Chunk, ListColumn, bytes_cell, int_cell, is_valid, list_cell,
    time_cell,
)
from aiokprod._core.bulk_tracker cimport BulkTracker
from aiokprod._core.batch cimport BatchCore, MemoryBudget
from aiokprod._core.varint cimport (
    int32_t, int64_t, uint32_t, varint_size, write_varint,
)
from aiokprod._core.record cimport (
    BATCH_HEADER, BLOCK, CHECK_ROWS, MIN_BODY, OVERHEAD, begin_record, end_record, has_ample_room,
    key_hash, write_field,
)

cdef enum:
    CHECK_BYTES = 1 << 18  # bytes between two reads of the clock
    RECENT = 64            # topics found without a dict lookup

cdef struct Cells:
    const char* key
    const char* value
    int64_t key_size       # -1: null
    int64_t value_size
    int64_t first_header
    int64_t last_header
    int64_t headers_size


cdef class Route:
    """A topic of the table's topic column."""
    cdef bytes name
    cdef TopicSlot slot


cdef class TableAppender:
    """The way of one table's rows into batches.

    `tracker` notes where each row went, in the order of the rows.
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
        """Append rows from `start` on until the end, the time slice or the memory is over.

        `topic` None means by the topic column. Returns the first row not appended: it waits for
        memory, for the next slice, or needs the slow path.
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
        # Topics may have come and gone since the last slice.
        self.routes.clear()
        memset(self.recent, 0, sizeof(self.recent))
        return self.run(chunk, topic, start)

    cdef Py_ssize_t run(self, Chunk chunk, TopicSlot topic, Py_ssize_t row) except -1:
        cdef Appender appender = self.appender
        cdef BulkTracker tracker = self.tracker
        cdef MemoryBudget memory = appender.memory
        cdef PyObject* held  # a BatchCore; its slot keeps it alive
        cdef Cells cells
        cdef uint32_t hashes[BLOCK]
        cdef bint by_column = topic is None
        # Of one topic; those of several differ, so that their hashes are divided one by one.
        cdef uint32_t total = 0 if by_column else <uint32_t>PyList_GET_SIZE(topic.slots)
        cdef bint sticky, entered
        cdef int64_t timestamp, number, bound
        cdef int32_t partition
        cdef Py_ssize_t end = chunk.rows, hashed = row, size, body
        cdef Py_ssize_t rows_left = CHECK_ROWS, bytes_left = CHECK_BYTES
        tracker.prepare(min(end - row, CHECK_ROWS))
        while row < end:
            if by_column:
                topic = self.topic_of(chunk, row)
                if topic is None:
                    break
            if row == hashed:
                hashed = min(row + BLOCK, end)
                hash_keys(&chunk.key, row, hashed, total, hashes)
            if not read_cells(chunk, row, &cells):
                break
            timestamp = appender.pass_ms
            if time_cell(&chunk.timestamp, chunk.multiplier, chunk.divisor, row, &timestamp) and \
                    timestamp < 0:
                break
            bound = OVERHEAD + cells.headers_size + max(0, cells.key_size) + \
                max(0, cells.value_size)
            if bound + BATCH_HEADER > appender.max_request_size:
                break
            if memory.has_waiters or memory.used + bound > memory.limit:
                break
            partition = -1
            if int_cell(&chunk.partition, row, &number):
                if number < 0 or number >= PyList_GET_SIZE(topic.slots):
                    break
                partition = <int32_t>number
            sticky = appender.is_sticky(partition, cells.key_size >= 0)
            if partition < 0 and not sticky:
                partition = <int32_t>hashes[(row - hashed) & (BLOCK - 1)]
                if by_column:
                    partition = partition % <int32_t>PyList_GET_SIZE(topic.slots)
                elif partition >= PyList_GET_SIZE(topic.slots):
                    break  # there are fewer than a moment ago
            elif sticky:
                partition = appender.sticky_partition(topic)
            held = NULL
            if partition >= 0:
                held = <PyObject*>(<PartitionSlot>PyList_GET_ITEM(topic.slots, partition)).core
            body = 0
            if held is NULL or held is <PyObject*>None or not has_ample_room(held, bound):
                held = self.place(held, topic, -1 if sticky else partition, bound, timestamp,
                                  &cells, &body)
                if held is NULL:
                    break
            entered = (<BatchCore>held).bulk_owner != tracker.identity
            if entered:
                tracker.enter(<BatchCore>held)
            size = write_record(held, chunk, timestamp, &cells, body)
            if size < 0:
                if entered:
                    tracker.leave(<BatchCore>held)
                break
            (<BatchCore>held).buffered_bytes += size
            memory.used += size
            if sticky:
                topic.sticky_bytes += size
            tracker.note(<BatchCore>held)
            row += 1
            rows_left -= 1
            bytes_left -= size
            if rows_left <= 0 or bytes_left <= 0:
                if appender.yield_queue.slice_over():
                    break
                rows_left = CHECK_ROWS
                bytes_left = CHECK_BYTES
                tracker.prepare(min(end - row, CHECK_ROWS))
        return row

    cdef PyObject* place(self, PyObject* held, TopicSlot topic, int32_t partition, int64_t bound,
                         int64_t timestamp, Cells* cells, Py_ssize_t* body) except? NULL:
        """A batch with room for the record: `held`, if any, or another one. NULL if none can be
        opened now, or the row must be evaluated again. The batch's slot keeps it alive."""
        cdef PartitionSlot slot
        cdef BatchCore core
        cdef Py_ssize_t size = 0
        if held is not NULL and held is not <PyObject*>None:
            body[0] = body_size(held, timestamp, cells)
            size = varint_size(body[0]) + body[0]
        if size == 0 or not (<BatchCore>held).has_room(size):
            slot = self.appender.open_new_batch(topic, partition, bound, None)
            core = slot.core if slot is not None else None
            if core is None:
                return NULL
            held = <PyObject*>core
            body[0] = body_size(held, timestamp, cells)
            size = varint_size(body[0]) + body[0]
            # `open_new_batch` is Python: a signal handler or a finalizer may have sent records
            # meanwhile.
            if not core.has_room(size) or \
                    self.appender.memory.used + bound > self.appender.memory.limit:
                return NULL
        if (<BatchCore>held).length + size > (<BatchCore>held).capacity:
            core = <BatchCore>held
            core.grow(size)
        return held

    cdef TopicSlot topic_of(self, Chunk chunk, Py_ssize_t row):
        """The topic of a row, None if it needs the slow path."""
        cdef const char* name
        cdef PyObject* found
        cdef Route route
        cdef uint32_t place
        cdef int64_t size = bytes_cell(&chunk.topic, row, &name)
        if size <= 0:
            return None
        place = key_hash(name, size) % RECENT
        if self.recent[place] is not NULL:
            route = <Route>self.recent[place]
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
        self.recent[place] = found
        return (<Route>found).slot


cdef inline bint read_cells(Chunk chunk, Py_ssize_t row, Cells* cells) noexcept:
    """False if the row needs a closer look."""
    cdef ListColumn* headers = &chunk.headers
    cdef const char* data
    cdef int64_t size, j
    if not is_valid(chunk.validity, chunk.offset + row):
        return False
    cells.key = cells.value = NULL
    cells.key_size = bytes_cell(&chunk.key, row, &cells.key)
    cells.value_size = bytes_cell(&chunk.value, row, &cells.value)
    if cells.key_size < NULL_CELL or cells.value_size < NULL_CELL:
        return False
    cells.headers_size = cells.first_header = cells.last_header = 0
    if headers.kind == ABSENT:
        return True
    if not list_cell(headers, row, &cells.first_header, &cells.last_header):
        return False
    for j in range(cells.first_header, cells.last_header):
        if not is_valid(headers.entry_validity, headers.entry_offset + j):
            return False
        size = bytes_cell(&headers.key, j, &data)
        if size < 0:
            return False
        cells.headers_size += varint_size(size) + size
        size = bytes_cell(&headers.value, j, &data)
        if size < NULL_CELL:
            return False
        cells.headers_size += varint_size(size) + (size if size > 0 else 0)
    return True


cdef inline void hash_keys(const BytesColumn* keys, Py_ssize_t row, Py_ssize_t end,
                           uint32_t total, uint32_t* hashes) noexcept:
    """Hashes of the keys, modulo `total` unless that is 0. Those of null and damaged keys are not
    used. That of row i is at `i - end` modulo BLOCK.

    A separate loop because one hash is a chain of multiplications: only independent ones can run in
    parallel.
    """
    cdef Py_ssize_t i
    cdef int64_t size
    cdef const char* data
    cdef uint32_t found
    if keys.kind == ABSENT:
        return
    for i in range(row, end):
        size = bytes_cell(keys, i, &data)
        if size < 0:
            size = 0
        found = key_hash(data, size)
        hashes[(i - end) & (BLOCK - 1)] = found % total if total else found


cdef inline Py_ssize_t field_size(int64_t size) noexcept:
    return varint_size(size) + max(0, size)


cdef inline Py_ssize_t body_size(PyObject* held, int64_t timestamp, Cells* cells) noexcept:
    """Size of the record without its own length prefix, as the next record of the batch."""
    cdef int32_t count = (<BatchCore>held).count
    cdef int64_t delta = timestamp - (<BatchCore>held).base_timestamp if count else 0
    return (1 + varint_size(delta) + varint_size(count) + field_size(cells.key_size)
            + field_size(cells.value_size) + varint_size(cells.last_header - cells.first_header)
            + cells.headers_size)


cdef inline Py_ssize_t write_record(PyObject* held, Chunk chunk, int64_t timestamp, Cells* cells,
                                    Py_ssize_t body) noexcept:
    """Encode one record into a batch with room for it; its size. `body` is its size without the
    length prefix, or 0 if there is ample room.

    -1, and no record, if the headers take more room than when they were measured: the table's
    memory may belong to a library whose threads write to it.
    """
    cdef int prefix = varint_size(body or (MIN_BODY + cells.headers_size + max(0, cells.key_size)
                                           + max(0, cells.value_size)))
    cdef char* p = begin_record(held, timestamp, prefix)
    cdef const char* data
    cdef int64_t j, size, left = cells.headers_size
    cdef int64_t max_timestamp = (<BatchCore>held).max_timestamp if (<BatchCore>held).count else 0
    p = write_field(p, cells.key, cells.key_size)
    p = write_field(p, cells.value, cells.value_size)
    p = write_varint(p, cells.last_header - cells.first_header)
    for j in range(cells.first_header, cells.last_header):
        size = bytes_cell(&chunk.headers.key, j, &data)
        left -= field_size(size)
        if size < 0 or left < 0:
            (<BatchCore>held).max_timestamp = max_timestamp
            return -1
        p = write_field(p, data, size)
        size = bytes_cell(&chunk.headers.value, j, &data)
        left -= field_size(size)
        if size < NULL_CELL or left < 0:
            (<BatchCore>held).max_timestamp = max_timestamp
            return -1
        p = write_field(p, data, size)
    return end_record(held, p, prefix)
