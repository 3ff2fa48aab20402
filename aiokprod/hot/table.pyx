# cython: language_level=3, boundscheck=False, cdivision=True
"""Rows of Arrow tables to bytes in open batches, without a Python object per row.

The row loop below is the append path of `append`, fed from Arrow buffers instead of Python
objects: the same choice of partition, room in memory and batch, and `roll`. What it does not take
is left to the caller, row by row. It holds the GIL: to give it up and fight for it again after
every batch would cost more than other threads gain.

Source: Java `KafkaProducer.doSend`, `RecordAccumulator.append`; Arrow columnar format.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.string cimport memcmp, memcpy, memset

from aiokprod.hot.append cimport Appender, BulkTracker, PartitionSlot, TopicSlot
from aiokprod.hot.arrow cimport (
    ABSENT, NULL_CELL, BytesColumn, Chunk, ListColumn, bytes_cell, int_cell, is_valid, list_cell,
    time_cell,
)
from aiokprod.hot.core cimport BatchCore, MemoryBudget
from aiokprod.hot.encode cimport (
    int32_t, int64_t, uint8_t, uint32_t, murmur2_bytes, varint_size, write_varint,
)

cdef enum:
    OVERHEAD = 26          # as in `append`
    BATCH_HEADER = 61
    OPEN = 0
    CHECK_ROWS = 1024      # between two looks at the clock
    CHECK_BYTES = 1 << 18
    RECENT = 64            # topics found without a look into the dict

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
        cdef Py_ssize_t wanted
        if not self.appender.tick_open:
            self.appender.open_tick()
        wanted = self.tracker.count + max(0, chunk.rows - start)
        if wanted > self.tracker.capacity:
            # Half as much again: many small batches must not cost a copy each.
            self.tracker.reserve(max(wanted, self.tracker.capacity + self.tracker.capacity // 2))
        # Topics may have come and gone since the last slice.
        self.routes.clear()
        memset(self.recent, 0, sizeof(self.recent))
        return self.run(chunk, topic, start)

    cdef Py_ssize_t run(self, Chunk chunk, TopicSlot topic, Py_ssize_t row) except -1:
        cdef Appender appender = self.appender
        cdef BulkTracker tracker = self.tracker
        cdef BatchCore core
        cdef Cells cells
        cdef bint by_column = topic is None
        cdef bint sticky
        cdef int64_t timestamp, number
        cdef int32_t partition
        cdef Py_ssize_t end = chunk.rows, size, body
        cdef Py_ssize_t rows_left = CHECK_ROWS, bytes_left = CHECK_BYTES
        while row < end:
            if by_column:
                topic = self.topic_of(chunk, row, topic)
                if topic is None:
                    break
            if not read_cells(chunk, row, &cells):
                break
            timestamp = appender.tick_ms
            if time_cell(&chunk.timestamp, chunk.multiplier, chunk.divisor, row, &timestamp) and \
                    timestamp < 0:
                break
            partition = -1
            if int_cell(&chunk.partition, row, &number):
                if number < 0 or number >= PyList_GET_SIZE(topic.slots):
                    break
                partition = <int32_t>number
            sticky = partition < 0 and (cells.key_size < 0 or appender.ignore_keys)
            if partition < 0 and not sticky:
                partition = <int32_t>((murmur2_bytes(<const uint8_t*>cells.key, cells.key_size)
                                       & 0x7FFFFFFF) % <uint32_t>PyList_GET_SIZE(topic.slots))
            core = self.place(topic, partition, sticky, timestamp, &cells, &body)
            if core is None:
                break
            size = write_record(core, chunk, timestamp, &cells, body)
            core.charged += size
            appender.memory.used += size
            if sticky:
                topic.sticky_bytes += size
            if core.bulk_owner != tracker.identity:
                tracker.add(core, core.count - 1)
            else:
                core.bulk_count += 1
                tracker.numbers[tracker.count] = core.bulk_number
                tracker.indices[tracker.count] = core.count - 1
                tracker.count += 1
            row += 1
            rows_left -= 1
            bytes_left -= size
            if rows_left <= 0 or bytes_left <= 0:
                if appender.slice_over():
                    break
                rows_left = CHECK_ROWS
                bytes_left = CHECK_BYTES
        return row

    cdef inline BatchCore place(self, TopicSlot topic, int32_t partition, bint sticky,
                                int64_t timestamp, Cells* cells, Py_ssize_t* body):
        """The batch that takes the record, with room for it; None if memory is short, its
        broker's share used up, or the record too large."""
        cdef Appender appender = self.appender
        cdef MemoryBudget memory = appender.memory
        cdef PartitionSlot slot
        cdef BatchCore core = None
        cdef Py_ssize_t bound = OVERHEAD + cells.headers_size, size
        if cells.key_size > 0:
            bound += cells.key_size
        if cells.value_size > 0:
            bound += cells.value_size
        if bound + BATCH_HEADER > appender.max_request_size:
            return None
        if memory.has_waiters or memory.used + bound > memory.limit:
            return None
        if sticky and topic.sticky >= 0 and topic.sticky_bytes < 2 * appender.sticky_limit:
            partition = topic.sticky
        if partition >= 0:
            if partition >= PyList_GET_SIZE(topic.slots):
                raise IndexError(f"partition {partition} of {topic.topic}")
            core = (<PartitionSlot>PyList_GET_ITEM(topic.slots, partition)).core
        if core is not None:
            body[0] = body_size(core, timestamp, cells)
            size = varint_size(body[0]) + body[0]
        if core is None or not fits(core, size):
            slot = appender.roll(topic, -1 if sticky else partition, bound)
            if slot is None:
                return None
            core = slot.core
            body[0] = body_size(core, timestamp, cells)
            size = varint_size(body[0]) + body[0]
        if core.length + size > core.capacity:
            core.grow(size)
        return core

    cdef TopicSlot topic_of(self, Chunk chunk, Py_ssize_t row, TopicSlot last):
        """The topic of a row, None if it needs the slow path."""
        cdef const char* name
        cdef PyObject* found
        cdef Route route
        cdef uint32_t place
        cdef int64_t size = bytes_cell(&chunk.topic, row, &name)
        if size <= 0:
            return None
        place = murmur2_bytes(<const uint8_t*>name, size) % RECENT
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


cdef inline Py_ssize_t field_size(int64_t size) noexcept:
    return varint_size(size) + (size if size > 0 else 0)


cdef inline Py_ssize_t body_size(BatchCore core, int64_t timestamp, Cells* cells) noexcept:
    """Size of the record without its own length prefix, as the next record of `core`."""
    cdef int64_t delta = timestamp - core.base_timestamp if core.count else 0
    return (1 + varint_size(delta) + varint_size(core.count) + field_size(cells.key_size)
            + field_size(cells.value_size) + varint_size(cells.last_header - cells.first_header)
            + cells.headers_size)


cdef inline bint fits(BatchCore core, Py_ssize_t size) noexcept:
    """`BatchCore.has_room`, in line."""
    if core.state != OPEN:
        return False
    return core.count == 0 or <double>core.length * core.ratio + size <= core.limit


cdef inline char* write_field(char* p, const char* data, int64_t size) noexcept:
    """Length-prefixed bytes; null is length -1."""
    p = write_varint(p, size)
    if size > 0:
        memcpy(p, data, size)
        p += size
    return p


cdef inline Py_ssize_t write_record(BatchCore core, Chunk chunk, int64_t timestamp, Cells* cells,
                                    Py_ssize_t body) noexcept:
    """Encode one record into room that is there; its size, length prefix included."""
    cdef char* start = core.data + core.length
    cdef char* p = start
    cdef const char* data
    cdef int64_t j, size
    if core.count == 0:
        core.base_timestamp = core.max_timestamp = timestamp
    elif timestamp > core.max_timestamp:
        core.max_timestamp = timestamp
    p = write_varint(p, body)
    p[0] = 0
    p = write_varint(p + 1, timestamp - core.base_timestamp)
    p = write_varint(p, core.count)
    p = write_field(p, cells.key, cells.key_size)
    p = write_field(p, cells.value, cells.value_size)
    p = write_varint(p, cells.last_header - cells.first_header)
    for j in range(cells.first_header, cells.last_header):
        size = bytes_cell(&chunk.headers.key, j, &data)
        p = write_field(p, data, size)
        size = bytes_cell(&chunk.headers.value, j, &data)
        p = write_field(p, data, size)
    core.length += p - start
    core.count += 1
    return p - start
