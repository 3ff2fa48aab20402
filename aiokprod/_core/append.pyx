# cython: language_level=3, boundscheck=False, cdivision=True
"""The append path: encodes records into open batches, without suspension and without Python code.

The fast path takes records that need no decision: the topic is known, key and value are bytes, and
the buffer and the open batch have room. For all others it returns None, and the caller takes the
slow path, which raises the errors. What is decided once per batch (a new batch, the next sticky
partition) is in Python: the `open_new_batch` callback.

Source: Java `KafkaProducer.doSend`, `RecordAccumulator.append`, `BuiltInPartitioner` (KIP-794).
"""

cimport cython

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport PyObject, Py_INCREF
from cpython.tuple cimport PyTuple_GET_ITEM

from aiokprod._core.bulk_tracker cimport BulkTracker
from aiokprod._core.batch cimport (
    BatchCore, ByteCount, Delivery, MemoryBudget, Reservation, make_room, new_delivery,
)
from aiokprod._core.place cimport (
    BLOCK, CHARGE, CHECK_ROWS, OVERHEAD, Record, begin_record, end_record, field_size, fields_size,
    key_hash, least_prefix, size_bound, write_field,
)
from aiokprod._core.varint cimport int32_t, int64_t, uint32_t, write_varint
from aiokprod._core.yielding cimport YieldQueue

ctypedef PyObject* (*iternext)(PyObject*) noexcept
ctypedef int (*sendfunc)(PyObject*, PyObject*, PyObject**) noexcept

cdef extern from "Python.h":
    ctypedef struct PyAsyncMethods:
        sendfunc am_send
    ctypedef struct PyTypeObject:
        iternext tp_iternext
        PyAsyncMethods* tp_as_async
    int PYGEN_ERROR
    int PYGEN_RETURN
    int PYGEN_NEXT
    void PyErr_SetObject(object, object) noexcept
    const char* PyUnicode_AsUTF8AndSize(object, Py_ssize_t*) except NULL

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define aiokprod_prefetch(p) __builtin_prefetch(p)
    #else
    #define aiokprod_prefetch(p) ((void)(p))
    #endif
    """
    void prefetch "aiokprod_prefetch"(const void*) noexcept nogil

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() nogil

DELIVERY_CHARGE = CHARGE
RECORD_OVERHEAD = OVERHEAD

cdef enum:
    AHEAD = 8              # rows by which values of a column are prefetched


cdef inline Py_ssize_t size_of(PyObject* data) noexcept:
    """Length of bytes, -1 for None, -2 for anything else."""
    if PyBytes_CheckExact(<object>data):
        return PyBytes_GET_SIZE(<object>data)
    return -1 if data is <PyObject*>None else -2


cdef inline const char* data_of(PyObject* data, Py_ssize_t size) noexcept:
    return PyBytes_AS_STRING(<object>data) if size >= 0 else NULL


cdef int64_t headers_encoded_size(object headers, int64_t* count) except -2:
    """Bytes of all headers, or -1 if they are not a list or tuple of (str, bytes | None)."""
    cdef int64_t total = 0
    cdef Py_ssize_t name_size, value_size
    cdef object pair, name
    if headers is None:
        count[0] = 0
        return 0
    if type(headers) is not list and type(headers) is not tuple:
        return -1
    for pair in headers:
        if type(pair) is not tuple or len(<tuple>pair) != 2:
            return -1
        name = (<tuple>pair)[0]
        value_size = size_of(PyTuple_GET_ITEM(pair, 1))
        if type(name) is not str or value_size < -1:
            return -1
        try:
            PyUnicode_AsUTF8AndSize(name, &name_size)
        except UnicodeEncodeError:
            return -1
        total += field_size(name_size) + field_size(value_size)
    count[0] = len(headers)
    return total


cdef char* write_headers(char* p, object headers, int64_t count) except NULL:
    """Write headers that `headers_encoded_size` has checked."""
    cdef Py_ssize_t size
    cdef const char* name
    cdef PyObject* value
    cdef object pair
    p = write_varint(p, count)
    if count == 0:
        return p
    for pair in headers:
        name = PyUnicode_AsUTF8AndSize((<tuple>pair)[0], &size)
        p = write_field(p, name, size)
        value = PyTuple_GET_ITEM(pair, 1)
        size = size_of(value)
        p = write_field(p, data_of(value, size), size)
    return p


cdef inline void hash_keys(list keys, Py_ssize_t start, Py_ssize_t end,
                           uint32_t* hashes) noexcept:
    """Hashes of the keys that are bytes. That of key i is at `i - end` modulo BLOCK.

    A separate loop because one hash is a chain of multiplications: only independent ones can run in
    parallel.
    """
    cdef Py_ssize_t i
    cdef PyObject* key
    for i in range(start, end):
        key = PyList_GET_ITEM(keys, i)
        if PyBytes_CheckExact(<object>key):
            hashes[(i - end) & (BLOCK - 1)] = key_hash(
                PyBytes_AS_STRING(<object>key), PyBytes_GET_SIZE(<object>key)
            )


def record_size_bound(key, value, headers):
    """Upper bound of a record's encoded bytes; key and value bytes or None.

    Raises ValueError if headers are not (str, bytes | None) pairs.
    """
    cdef int64_t count
    cdef Py_ssize_t size = headers_encoded_size(headers, &count)
    if size < 0:
        raise ValueError("headers must be a list or tuple of (str, bytes | None) tuples")
    return (RECORD_OVERHEAD + size + (len(key) if key is not None else 0)
            + (len(value) if value is not None else 0))


def key_partition(bytes key not None, int32_t partitions):
    """The partition of a key in a topic of so many partitions."""
    if partitions <= 0:
        raise ValueError("a topic has partitions")
    return <int32_t>(key_hash(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) % <uint32_t>partitions)


def handle_of(BatchCore core not None):
    """A `Delivery` of the newest record of a batch: it settles when the batch does, or when the
    last part of it does if it was split."""
    cdef Delivery delivery = new_delivery(core, core.count - 1)
    delivery.of_batch = True  # a task that awaits it waits for the batch, not for that record
    return delivery


cdef class PartitionSlot:
    """The open batch of one partition, if any. The engine's queue of batches derives from it.

    `reserved_bytes` counts the bytes of its closed batches, as does the account of its broker
    (`follow`); `opened` counts the batches it was given. The methods are single steps: an exception
    of a signal handler, or a finalizer that sends a record, finds all of a change or nothing of it.
    """

    def __init__(self, str topic not None, int32_t partition):
        self.topic = topic
        self.partition = partition

    def open(self, BatchCore core not None, int64_t opened, batch, batches,
             dict incomplete not None):
        """Make `core` the open batch and add its `batch` to `batches` and `incomplete`. False if
        another batch was opened since `opened` was read."""
        if self.core is not None or self.opened != opened:
            return False
        incomplete[batch] = None
        try:
            batches.append(batch)
        except BaseException:
            del incomplete[batch]
            raise
        self.opened += 1
        self.core = core
        return True

    def follow(self, ByteCount account not None):
        """Count the bytes held for another broker."""
        if self.account is not None:
            self.account.bytes -= self.reserved_bytes
        account.bytes += self.reserved_bytes
        self.account = account

    def hold(self, BatchCore core not None):
        """Count the bytes that a batch has so far for its broker, those counted before excepted."""
        cdef int64_t more = core.buffered_bytes - core.reserved_bytes
        if self.account is None:
            raise ValueError("the partition has no account yet")
        core.reserved_bytes += more
        self.reserved_bytes += more
        self.account.bytes += more

    def let_go(self, BatchCore core not None, MemoryBudget memory not None):
        """Give back what a batch holds of its broker's share and of the memory; the bytes."""
        cdef int64_t charged = core.buffered_bytes
        if (self.account is None or self.reserved_bytes < core.reserved_bytes
                or self.account.bytes < core.reserved_bytes or memory.used < charged):
            raise AssertionError(f"{core!r} gives back more than is held")
        self.reserved_bytes -= core.reserved_bytes
        self.account.bytes -= core.reserved_bytes
        memory.used -= charged
        core.reserved_bytes = core.buffered_bytes = 0
        return charged


cdef class TopicSlot:
    """The partitions of one topic and its sticky choice (-1: none yet)."""

    def __init__(self, str topic not None):
        self.topic = topic
        self.slots = []
        self.sticky = -1


@cython.freelist(256)
cdef class SubmitAwaitable:
    """What `submit` returns: await it for the `Delivery`. The record is already in a batch.

    Awaiting suspends if the caller has to wait in the `YieldQueue`.
    """
    cdef Delivery delivery
    cdef YieldQueue yield_queue  # if the caller may have to wait, until it has
    cdef bint waited

    cdef object next_wait(self):
        """A future to wait for, None if the caller may continue."""
        cdef YieldQueue queue = self.yield_queue
        if queue is None:
            return None
        if not self.waited and queue.must_wait():
            self.waited = True
            return queue.join()
        self.yield_queue = None
        if self.waited:
            queue.resumed()
        return None

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        place = self.next_wait()
        if place is not None:
            return place
        raise StopIteration(self.delivery)

    # `admission_next` below takes the place of `__next__` in awaits.

    # The rest of the coroutine interface, so that `asyncio.create_task` takes it too.
    def send(self, value):
        return self.__next__()

    def throw(self, error, value=None, traceback=None):
        raise error

    def close(self):
        pass


cdef PyObject* admission_next(PyObject* self) noexcept:
    """`__next__` without the traceback that Cython adds to a StopIteration (1 µs)."""
    cdef SubmitAwaitable awaitable = <SubmitAwaitable>self
    if awaitable.yield_queue is not None:
        try:
            place = awaitable.next_wait()
        except BaseException as error:
            PyErr_SetObject(type(error), error)
            return NULL
        if place is not None:
            Py_INCREF(place)
            return <PyObject*>place
    PyErr_SetObject(StopIteration, awaitable.delivery)
    return NULL


cdef int admission_send(PyObject* self, PyObject* value, PyObject** result) noexcept:
    """The same for interpreters whose `await` needs no exception for a result (3.11)."""
    cdef SubmitAwaitable awaitable = <SubmitAwaitable>self
    if awaitable.yield_queue is not None:
        try:
            place = awaitable.next_wait()
        except BaseException as error:
            PyErr_SetObject(type(error), error)
            result[0] = NULL
            return PYGEN_ERROR
        if place is not None:
            Py_INCREF(place)
            result[0] = <PyObject*>place
            return PYGEN_NEXT
    Py_INCREF(awaitable.delivery)
    result[0] = <PyObject*>awaitable.delivery
    return PYGEN_RETURN


(<PyTypeObject*>SubmitAwaitable).tp_iternext = admission_next
(<PyTypeObject*>SubmitAwaitable).tp_as_async.am_send = admission_send


@cython.freelist(8)
cdef class AppendResult:
    """What `Appender.append` did.

    Attributes:
        delivery: handle of the appended record, None if it was not appended.
        over_quota: if not appended because the broker's share of the buffer is used up, the
            partition slot; None if the memory as a whole is short.
    """


cdef class Appender:
    """The producer's append path. While `enabled` is false every call takes the slow path.

    `open_new_batch(topic_slot, partition, size, permit)` returns a `PartitionSlot` whose open batch
    has room for `size` more bytes, or a slot without an open batch if its broker's share of the
    buffer is used up. Partition -1 asks it to choose the sticky partition. `permit` is the one
    given to `append`, else None. `slow_submit(...)` is the coroutine function behind `submit`.
    `unix_ms` is read once per loop pass. `yield_queue` decides which tasks have to wait after their
    record.
    """

    def __cinit__(self, *, YieldQueue yield_queue not None, **options):
        # Not in `__init__`: its fields are read without a check for None.
        self.yield_queue = yield_queue

    def __init__(self, *, MemoryBudget memory not None, open_new_batch, slow_submit, unix_ms,
                 YieldQueue yield_queue not None, int64_t max_request_size, int64_t sticky_limit,
                 bint ignore_keys=False):
        self.enabled = False
        self.topics = {}
        self.thread = PyThread_get_thread_ident()
        self.memory = memory
        self.open_new_batch = open_new_batch
        self.slow_submit = slow_submit
        self.unix_ms = unix_ms
        self.max_request_size = max_request_size
        self.sticky_limit = sticky_limit
        self.ignore_keys = ignore_keys

    # -- one record -----------------------------------------------------------------------------

    def submit(self, topic, value=None, *, key=None, partition=None, timestamp_ms=None,
               headers=None):
        """An awaitable of the record's `Delivery`."""
        return self.admit(topic, value, key, partition, timestamp_ms, headers)

    cdef object admit(self, object topic, object value, object key, object partition,
                      object timestamp_ms, object headers):
        cdef Delivery delivery = self.fast(topic, value, key, partition, timestamp_ms, headers)
        cdef SubmitAwaitable awaitable
        if delivery is None:
            return self.slow_submit(topic, value, key, partition, timestamp_ms, headers)
        awaitable = SubmitAwaitable.__new__(SubmitAwaitable)
        awaitable.delivery = delivery
        if self.yield_queue.check_due():
            try:
                if self.yield_queue.must_yield():
                    awaitable.yield_queue = self.yield_queue
            except BaseException:
                delivery.cancel()  # the caller does not get the handle: withdraw the record
                raise
        return awaitable

    def try_append(self, topic, value=None, key=None, partition=None, timestamp_ms=None,
                   headers=None):
        """The record's `Delivery`, or None if it needs the slow path."""
        return self.fast(topic, value, key, partition, timestamp_ms, headers)

    def try_append_noted(self, BulkTracker tracker not None, topic, value, key, partition,
                         timestamp_ms, headers):
        """Append a record and note it in one step; False if it needs the slow path."""
        cdef Delivery delivery = self.fast(topic, value, key, partition, timestamp_ms, headers)
        if delivery is None:
            return False
        try:
            tracker.add(delivery.core, delivery.index)
        except MemoryError:
            delivery.cancel()
            raise
        return True

    cdef Delivery fast(self, object topic, object value, object key, object partition,
                       object timestamp_ms, object headers):
        cdef PyObject* found
        cdef TopicSlot slot
        cdef int64_t timestamp
        cdef int32_t number = -1
        # A loop that runs on this thread is this thread's running loop. Whether ours still runs is
        # checked once per loop pass and every 64 records: asyncio's check costs a system call.
        if not self.enabled or PyThread_get_thread_ident() != self.thread:
            return None
        if type(topic) is not str:
            return None
        found = PyDict_GetItem(self.topics, topic)
        if found is NULL:
            return None
        slot = <TopicSlot>found
        if not (value is None or type(value) is bytes) or not (key is None or type(key) is bytes):
            return None
        if partition is not None:
            if type(partition) is not int or not 0 <= partition < len(slot.slots):
                return None
            number = partition
        if not self.yield_queue.pass_open and not self.open_pass():
            return None
        timestamp = self.timestamp_of(<PyObject*>timestamp_ms)
        if timestamp < 0:
            return None
        return self.append_slot(slot, number, value, key, timestamp, headers, 0, None, None)

    def append(self, TopicSlot slot not None, partition, bytes value, bytes key, timestamp_ms,
               headers, Reservation reservation=None, permit=None):
        """Append a checked record, if there is memory for it; an `AppendResult`.

        `partition` None means by key or sticky. A reservation with bytes is used up, also if the
        record takes fewer, and gets the handle: both in one step with the append. `permit` (a
        `QuotaWaiter`) lets the record into a batch of a broker for which others wait.
        """
        cdef AppendResult result = AppendResult.__new__(AppendResult)
        if not slot.slots:
            return result
        if not self.yield_queue.pass_open:
            self.open_pass()
        result.delivery = self.append_slot(
            slot, -1 if partition is None else partition, value, key,
            self.pass_ms if timestamp_ms is None else timestamp_ms, headers,
            0 if reservation is None else reservation.size, permit, result,
        )
        if result.delivery is not None and reservation is not None:
            reservation.size = 0
            reservation.delivery = result.delivery
        return result

    cdef Delivery append_slot(self, TopicSlot topic, int32_t partition, bytes value, bytes key,
                              int64_t timestamp, object headers, int64_t reserved, object permit,
                              AppendResult result):
        """Append a record and count its bytes; None if memory is short or it needs the slow path.
        `result`, if given, gets the slot whose broker is over its quota."""
        cdef Delivery delivery = new_delivery(None, 0)  # first: there may be no memory for it
        cdef MemoryBudget memory = self.memory
        cdef PyObject* held  # a BatchCore; its slot keeps it alive
        cdef Record record
        cdef bint sticky
        cdef uint32_t hashed = 0
        cdef int64_t bound, size
        cdef int prefix
        cdef char* p
        record.timestamp = timestamp
        record.key_size = size_of(<PyObject*>key)
        record.key = data_of(<PyObject*>key, record.key_size)
        record.value_size = size_of(<PyObject*>value)
        record.value = data_of(<PyObject*>value, record.value_size)
        record.headers_size = headers_encoded_size(headers, &record.header_count)
        bound = size_bound(&record)
        if record.headers_size < 0 or not self.admits(memory, bound, CHARGE, reserved):
            return None
        sticky = self.is_sticky(partition, record.key_size >= 0)
        if partition < 0 and not sticky:
            hashed = key_hash(record.key, record.key_size)
        partition = self.partition_of(topic, partition, sticky, hashed)
        held = find_batch(topic, partition, &record, bound)
        if held is NULL:
            if headers is not None:  # `open_batch` may change the caller's list
                headers = tuple(headers)
                if headers_encoded_size(headers, &record.header_count) != record.headers_size:
                    return None
            held = self.open_batch(topic, partition, sticky, &record, CHARGE, reserved, permit,
                                   result)
            if held is NULL:
                return None
        prefix = least_prefix(bound)
        p = begin_record(held, &record, prefix)
        p = write_headers(p, headers, record.header_count)
        size = end_record(held, p, timestamp, prefix)
        count_bytes(memory, topic, held, sticky, size, CHARGE, reserved)
        delivery.core = <BatchCore>held
        delivery.index = (<BatchCore>held).count - 1
        delivery.timestamp = timestamp
        delivery.key_size = <int32_t>record.key_size
        delivery.value_size = <int32_t>record.value_size
        return delivery

    cdef PyObject* open_batch(self, TopicSlot topic, int32_t partition, bint sticky,
                              const Record* record, int64_t charge, int64_t reserved, object permit,
                              AppendResult result) except? NULL:
        """A new batch with room for a record, of another partition if it is the sticky one. NULL if
        none can be opened now, or the record must be evaluated again. The batch's slot keeps it
        alive."""
        cdef PartitionSlot slot
        cdef PyObject* held
        cdef int64_t bound = size_bound(record)
        if partition >= len(topic.slots):
            raise IndexError(
                f"partition {partition} of {topic.topic}: {len(topic.slots)} are known"
            )
        slot = self.open_new_batch(topic, -1 if sticky else partition, bound, permit)
        if slot is None:
            return NULL
        if slot.core is None:
            if result is not None:
                result.over_quota = slot
            return NULL
        # `open_new_batch` is Python: other threads, signal handlers and finalizers may have run and
        # sent records of their own.
        if reserved == 0 and self.memory.used + bound + charge > self.memory.limit:
            return NULL
        held = <PyObject*>slot.core
        return held if make_room(held, record.timestamp, fields_size(record)) else NULL

    # -- many records ---------------------------------------------------------------------------

    def append_column(self, BulkTracker tracker not None, TopicSlot topic not None, list values,
                      list keys, list timestamps, list headers, int32_t partition,
                      Py_ssize_t start):
        """Append records from `start` on until the end, the time slice or the memory is over.

        Columns are lists of equal length, which nothing else changes, or None; partition -1 means
        by key or sticky. Returns the position of the first record not appended: it waits for
        memory, for the next slice, or needs the slow path.
        """
        if start < 0:
            raise ValueError("start must not be negative")
        for column in (keys, timestamps, headers):
            if column is not None and len(column) != len(values):
                raise ValueError("columns have different lengths")
        if not self.yield_queue.pass_open:
            self.open_pass()
        if timestamps is None and headers is None:
            return append_rows(self, tracker, topic, values, keys, None, None, partition, start,
                               <Plain>0)
        return append_rows(self, tracker, topic, values, keys, timestamps, headers, partition,
                           start, <Complete>0)

    cdef int64_t timestamp_of(self, PyObject* stamp) except? -1:
        """Unix time of a record in ms; negative if it is not valid."""
        if <object>stamp is None:
            return self.pass_ms
        if type(<object>stamp) is not int or not 0 <= <object>stamp <= 0x7FFFFFFFFFFFFFFF:
            return -1
        return <object>stamp

    # -- time -----------------------------------------------------------------------------------

    cdef bint open_pass(self) except -1:
        """Before the first record of a loop pass; False if the loop does not run any more."""
        if not self.yield_queue.is_running():
            return False
        self.pass_ms = self.unix_ms()
        self.yield_queue.open_pass()
        return True


# Types that only choose one of two copies of `append_rows`: the one without timestamps and headers
# needs 383 instructions for a value, the other 474.
ctypedef char Plain
ctypedef int Complete
ctypedef fused Columns:
    Plain
    Complete


cdef Py_ssize_t append_rows(Appender appender, BulkTracker tracker, TopicSlot topic, list values,
                            list keys, list timestamps, list headers, int32_t partition,
                            Py_ssize_t i, Columns columns) except -1:
    """`append_column`, from record `i` on."""
    cdef MemoryBudget memory = appender.memory
    cdef Py_ssize_t end = len(values), hashed = i, check = i + CHECK_ROWS
    cdef PyObject* held  # a BatchCore; its slot keeps it alive
    cdef PyObject* cell
    cdef object row_headers
    cdef Record record
    cdef int32_t place
    cdef uint32_t hashes[BLOCK]
    cdef bint by_key = keys is not None and partition < 0 and not appender.ignore_keys
    cdef bint sticky = appender.is_sticky(partition, False)
    cdef int64_t bound, size
    cdef int prefix
    cdef char* p
    record.timestamp = appender.pass_ms
    record.key = NULL
    record.key_size = -1
    record.header_count = record.headers_size = 0
    while True:
        if i == hashed:
            if i >= end or (i == check and appender.yield_queue.slice_over()):
                break
            if i == check:
                check += CHECK_ROWS
            hashed = min(i + BLOCK, end)
            tracker.prepare(hashed - i)
            if by_key:
                hash_keys(keys, i, hashed, hashes)
        cell = PyList_GET_ITEM(values, i)
        if i + AHEAD < end:
            prefetch(PyList_GET_ITEM(values, i + AHEAD))
            prefetch(<char*>PyList_GET_ITEM(values, i + AHEAD) + 64)
        record.value_size = size_of(cell)
        record.value = data_of(cell, record.value_size)
        if record.value_size < -1:
            break
        if keys is not None:
            cell = PyList_GET_ITEM(keys, i)
            record.key_size = size_of(cell)
            record.key = data_of(cell, record.key_size)
            if record.key_size < -1:
                break
            sticky = appender.is_sticky(partition, record.key_size >= 0)
        if Columns is Complete:
            if timestamps is not None:
                record.timestamp = appender.timestamp_of(PyList_GET_ITEM(timestamps, i))
            row_headers = headers[i] if headers is not None else None
            record.headers_size = headers_encoded_size(row_headers, &record.header_count)
            if record.timestamp < 0 or record.headers_size < 0:
                break
        bound = size_bound(&record)
        if not appender.admits(memory, bound, 0, 0):
            break
        place = appender.partition_of(topic, partition, sticky,
                                      hashes[(i - hashed) & (BLOCK - 1)])
        held = find_batch(topic, place, &record, bound)
        if held is NULL:
            if Columns is Complete and row_headers is not None:  # the caller's list may change
                row_headers = tuple(row_headers)
                if headers_encoded_size(row_headers, &record.header_count) != record.headers_size:
                    break
            held = appender.open_batch(topic, place, sticky, &record, 0, 0, None, None)
            if held is NULL:
                break
        if (<BatchCore>held).bulk_owner != tracker.identity:
            tracker.enter(<BatchCore>held)
        prefix = least_prefix(bound)
        p = begin_record(held, &record, prefix)
        if Columns is Complete:
            p = write_headers(p, row_headers, record.header_count)
        else:
            p = write_varint(p, 0)
        size = end_record(held, p, record.timestamp, prefix)
        count_bytes(memory, topic, held, sticky, size, 0, 0)
        tracker.note(<BatchCore>held)
        i += 1
    return i


def submit(self, topic, value=None, *, key=None, partition=None, timestamp_ms=None, headers=None):
    """Put one record into a batch: `delivery = await producer.submit(...)`.

    Arguments as `send`. Awaiting returns once the record is in a batch. It suspends only while
    metadata are missing, while memory is short, or if this task keeps sending after the loop's
    time slice of 1 ms is over: then other tasks continue first. If that last wait is cancelled
    (`wait_for`), the record is in a batch already. The `Delivery` is an awaitable for the
    `RecordMetadata`; it works with gather, wait, wait_for, shield and `add_done_callback`. A
    failure that no task awaits is reported to the observer and logged, once per batch.

    Raises (at the call or on await): as `send`, except for the errors of the delivery itself.
    WrongLoop is raised at the call.

    Counts as a coroutine function for `inspect` (3.12 and newer) and `asyncio`, so that
    frameworks that run plain functions in threads await it on the loop. For the same reason the
    loop's debug mode refuses it as a callback (`call_soon`, `call_later`), where nothing would
    await it: use `try_submit` there.
    """
    # The method `submit` of `Producer`, which is `self`.
    cdef Appender appender = self._appender
    if appender is None:  # not started
        return self._submit_slowly(topic, value, key, partition, timestamp_ms, headers)
    return appender.admit(topic, value, key, partition, timestamp_ms, headers)
