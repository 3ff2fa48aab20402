# cython: language_level=3, boundscheck=False, cdivision=True
"""The compiled parts of a batch: its encoded records (`BatchCore`) and their handles (`Delivery`).

A `BatchCore` contains the encoded records of one record batch (magic 2) and later their outcome. It
does not contain the 61-byte batch header, which `_wire.record_batch` creates for each attempt. A
`Delivery` is the awaitable handle of one record. It refers to the batch and stores the record's
index. A record without interceptors, plug-ins and callbacks needs no other object.

Source: Kafka protocol guide "Record Batch"; Java `DefaultRecord.writeTo`, `ProducerBatch`,
`FutureRecordMetadata`.
"""

cimport cython
from bisect import bisect_left, bisect_right, insort
from asyncio import CancelledError, InvalidStateError

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF, Py_XDECREF
from libc.string cimport memcpy

from aiokprod._core.callbacks cimport (
    Callbacks, OutcomeReceiver, is_plain_callable, present_context
)
from aiokprod._core.record_writer cimport encoded_size, end_record, write_deltas
from aiokprod._core.varint cimport (
    int32_t, int64_t, read_varint, varint_size,
)

ctypedef PyObject* (*iternext)(PyObject*) noexcept
ctypedef int (*sendfunc)(PyObject*, PyObject*, PyObject**) except -1
cdef extern from "Python.h":
    ctypedef struct PyAsyncMethods:
        sendfunc am_send
    ctypedef struct PyTypeObject
    ctypedef PyObject* (*newfunc)(PyTypeObject*, PyObject*, PyObject*) noexcept
    ctypedef struct PyTypeObject:
        newfunc tp_new
        void* tp_vectorcall
        iternext tp_iternext
        PyAsyncMethods* tp_as_async
    int PYGEN_RETURN
    int PYGEN_NEXT
    int _PyBytes_Resize(PyObject** string, Py_ssize_t newsize) except -1
    PyObject* PyBytes_FromStringAndSize(const char*, Py_ssize_t)
    void PyErr_SetObject(object, object) noexcept
    void PyObject_GC_UnTrack(PyObject*) noexcept

# These constants are for Python code; batch.pxd describes the states.
OPEN = S_OPEN
SEALED = S_SEALED
FINISHED = S_FINISHED
SPLIT = S_SPLIT
ACKNOWLEDGED = S_ACKNOWLEDGED
FAILED = S_FAILED

cdef enum:  # kinds of callbacks
    SHARED_CONTEXT = 0     # runs in a copy of the context
    GIVEN_CONTEXT = 1      # runs in the context itself
    ON_DELIVERY = 2        # like SHARED_CONTEXT; receives the outcome even after a cancelled wait


@cython.freelist(64)
cdef class RecordMetadata:
    """The position of an acknowledged record. Immutable, comparable, hashable and picklable.

    Attributes:
        topic (str): the topic.
        partition (int): the partition.
        offset (int | None): the offset; None with acks=0, or if the broker detected a duplicate
            batch without returning the offset of the original.
        timestamp_ms (int): Unix time in ms: the record's timestamp, or the broker's append time if
            the topic has message.timestamp.type=LogAppendTime.
        serialized_key_size (int): size of the key in bytes, or -1 without a key.
        serialized_value_size (int): size of the value in bytes, or -1 for a tombstone.
    """

    __match_args__ = ("topic", "partition", "offset", "timestamp_ms",
                      "serialized_key_size", "serialized_value_size")

    def __init__(self, str topic not None, int32_t partition, offset, int64_t timestamp_ms,
                 int32_t serialized_key_size=-1, int32_t serialized_value_size=-1):
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.serialized_key_size = serialized_key_size
        self.serialized_value_size = serialized_value_size

    cdef tuple fields(self):
        return (self.topic, self.partition, self.offset, self.timestamp_ms,
                self.serialized_key_size, self.serialized_value_size)

    def __eq__(self, other):
        if not isinstance(other, RecordMetadata):
            return NotImplemented
        return self.fields() == (<RecordMetadata>other).fields()

    def __hash__(self):
        return hash(self.fields())

    def __reduce__(self):
        return RecordMetadata, self.fields()

    def __repr__(self):
        return (f"RecordMetadata(topic={self.topic!r}, partition={self.partition}, "
                f"offset={self.offset}, timestamp_ms={self.timestamp_ms}, "
                f"serialized_key_size={self.serialized_key_size}, "
                f"serialized_value_size={self.serialized_value_size})")


cdef class BatchCore:
    """The encoded records of one batch, and later their outcome.

    Invariant: the bytes that `finish` returned never change.

    Args:
        limit: target size of the records section in bytes; it may be raised later. The first record
            is accepted whatever its size.
        ratio: estimate of compressed size / plain size, so that the batch has about `limit` bytes
            after compression.
        capacity: initial size of the buffer in bytes.
    """

    def __cinit__(self, str topic not None, int32_t partition, object loop, Py_ssize_t limit,
                  double ratio=1.0, Py_ssize_t capacity=0):
        self.topic = topic
        self.partition = partition
        self.loop = loop
        self.limit = limit
        self.ratio = ratio
        self.base_timestamp = -1
        self.max_timestamp = -1
        self.base_offset = -1
        self.log_append_time = -1
        self.waiters_sorted = True
        if capacity > 0:
            self.resize(capacity)

    def __dealloc__(self):
        Py_XDECREF(self.buffer)

    cdef int resize(self, Py_ssize_t capacity) except -1:
        """Allocate a larger buffer. If the allocation fails, the batch is unchanged."""
        # A bytes object may be modified while nothing else refers to it. The buffer is not resized
        # in place, because a failed resize would lose its content.
        cdef PyObject* grown = PyBytes_FromStringAndSize(NULL, capacity)
        if grown is NULL:
            PyErr_Clear()
            if self.count == 0 and self.owner is not None:
                self.owner.on_emptied()  # a batch without records must never be sent
            raise MemoryError
        if self.length:
            memcpy(PyBytes_AS_STRING(<object>grown), self.data, self.length)
        Py_XDECREF(self.buffer)
        self.buffer = grown
        self.data = PyBytes_AS_STRING(<object>grown)
        self.capacity = capacity
        return 0

    cdef object take_buffer(self):
        """Return the bytes written so far and drop the batch's reference to them."""
        cdef PyObject* buffer = self.buffer
        cdef object payload
        if buffer is NULL:
            return b""
        self.buffer = NULL
        self.data = NULL
        self.capacity = 0
        _PyBytes_Resize(&buffer, self.length)  # on failure, frees the buffer and raises
        payload = <object>buffer
        Py_DECREF(payload)
        return payload

    cdef bint has_room(self, Py_ssize_t size) noexcept:
        if self.state != S_OPEN:
            return False
        return self.count == 0 or <double>self.length * self.ratio + size <= self.limit

    def fits(self, Py_ssize_t size):
        """Return True if a record of `size` encoded bytes may be appended."""
        return self.has_room(size)

    cdef char* grow(self, Py_ssize_t size) except NULL:
        """Reserve room for `size` more bytes and return the position at which to write them."""
        cdef Py_ssize_t wanted = self.length + size
        if wanted > self.capacity:
            self.resize(max(wanted, 2 * self.capacity, 512))
        return self.data + self.length

    cdef int append_raw(self, int64_t timestamp, const char* fields, Py_ssize_t size) except -1:
        """Append a record whose key, value and headers are already encoded."""
        cdef PyObject* held = <PyObject*>self
        cdef int prefix = varint_size(size)  # the length may take one byte more
        cdef char* p
        self.grow(encoded_size(held, timestamp, size))
        p = write_deltas(held, timestamp, prefix)
        memcpy(p, fields, size)
        end_record(held, p + size, timestamp, prefix)
        return 0

    cdef int copy_range(self, const char* start, const char* end, int64_t base_timestamp,
                        int32_t first, int32_t stop, set skip) except -1:
        """Append the records [first, stop) of an encoded section, except the indices in `skip`."""
        cdef const char* p = start
        cdef const char* record_end
        cdef int64_t size, delta, offset
        cdef int32_t index = 0
        while p < end and index < stop:
            p = read_varint(p, end, &size)
            if p is NULL or size < 1 or size > end - p:
                raise ValueError("damaged record section")
            record_end = p + size
            if index >= first and (skip is None or index not in skip):
                p = read_varint(p + 1, record_end, &delta)
                if p is not NULL:
                    p = read_varint(p, record_end, &offset)
                if p is NULL:
                    raise ValueError("damaged record section")
                self.append_raw(base_timestamp + delta, p, record_end - p)
            p = record_end
            index += 1
        return 0

    # -- life cycle -----------------------------------------------------------------------------

    @property
    def size(self):
        """Current size of the records section in bytes."""
        return self.length

    @property
    def record_count(self):
        """Number of records that were appended and not withdrawn."""
        return self.count - (len(self.withdrawn) if self.withdrawn is not None else 0)

    @property
    def settled(self):
        return self.state >= S_ACKNOWLEDGED

    @property
    def unwatched(self):
        """Number of records that no task awaits and that have no callback."""
        cdef Delivery delivery
        cdef Py_ssize_t watched = 0
        if self.waiters is not None:
            for delivery in self.waiters:
                watched += delivery.is_watched()
        return max(0, self.record_count - watched - self.bulk_count)

    def seal(self):
        """Accept no more records. Records can still be withdrawn."""
        if self.state == S_OPEN:
            self.state = S_SEALED

    def finish(self):
        """Return the records section as immutable bytes, without the withdrawn records.

        Until the batch has an outcome or `drop_payload` is called, further calls return the same
        bytes, because a signal handler may have interrupted a caller before it stored them.
        """
        cdef BatchCore compact
        cdef bytes payload
        if self.state == S_FINISHED and self.payload is not None:
            return self.payload
        if self.state > S_SEALED:
            raise InvalidStateError("the batch is already finished")
        if self.withdrawn:
            compact = BatchCore(self.topic, self.partition, self.loop, self.limit)
            compact.copy_range(self.data, self.data + self.length, self.base_timestamp,
                               0, self.count, set(self.withdrawn))
            payload = compact.finish()
            self.base_timestamp = compact.base_timestamp
            self.max_timestamp = compact.max_timestamp
            self.release_buffer()
        else:
            payload = self.take_buffer()
        self.owner = None  # needed for withdrawals only; breaks a reference cycle
        self.state = S_FINISHED
        self.payload = payload
        return payload

    def drop_payload(self):
        """Release the bytes, which the caller of `finish` has stored or compressed."""
        self.payload = None

    def acknowledge(self, int64_t base_offset, int64_t log_append_time=-1, view=None):
        """Set the outcome: all records are in the log.

        Return False if the batch already had an outcome, which is kept.

        Args:
            base_offset: offset of the first record, or -1 if unknown.
            log_append_time: the broker's append time in ms, or -1 if the records keep their own
                timestamps.
            view: passed to plug-ins as the batch.
        """
        if self.state >= S_ACKNOWLEDGED:
            return False
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.state = S_ACKNOWLEDGED
        self.owner = None
        self.release_buffer()
        self.wake()
        self.settle_tokens(view)
        return True

    def fail(self, error, dict record_errors=None, view=None):
        """Set the outcome: all records have failed.

        Return False if the batch already had an outcome, which is kept.

        Args:
            error: the error of all records that are not in `record_errors`.
            record_errors: errors of single records by their position.
            view: passed to plug-ins as the batch.
        """
        if self.state >= S_ACKNOWLEDGED:
            return False
        self.error = error
        self.record_errors = record_errors
        self.state = S_FAILED
        self.owner = None
        self.release_buffer()
        self.wake()
        self.settle_tokens(view)
        return True

    def split(self, bytes payload not None, Py_ssize_t limit):
        """Split the batch into parts of at most `limit` bytes, with at least one record each.

        `payload` is the result of `finish`. The handles move with their records to the returned
        batches. These accept no more records and can be finished immediately.
        """
        cdef const char* start = PyBytes_AS_STRING(payload)
        cdef const char* end = start + PyBytes_GET_SIZE(payload)
        cdef const char* p = start
        cdef const char* part_start = start
        cdef int64_t size
        cdef int32_t index = 0, first = 0
        cdef list bounds = [0]
        cdef list offsets = [0]
        if self.state != S_FINISHED:
            raise InvalidStateError("only a finished batch can be split")
        while p < end:
            record = p
            p = read_varint(p, end, &size)
            if p is NULL or size < 1 or size > end - p:
                raise ValueError("damaged record section")
            p += size
            if index > first and p - part_start > limit:
                bounds.append(index)
                offsets.append(record - start)
                first = index
                part_start = record
            index += 1
        bounds.append(index)
        offsets.append(end - start)
        return self.divide(payload, bounds, offsets)

    cdef list divide(self, bytes payload, list bounds, list offsets):
        """Create the parts. Part i contains the records [bounds[i], bounds[i + 1]), which begin at
        byte offsets[i] of the payload."""
        cdef const char* start = PyBytes_AS_STRING(payload)
        cdef BatchCore part
        cdef Delivery delivery
        cdef list waiters
        cdef list parts = []
        cdef Py_ssize_t i
        for i in range(len(bounds) - 1):
            part = BatchCore(self.topic, self.partition, self.loop, self.limit)
            part.copy_range(start + <Py_ssize_t>offsets[i], start + <Py_ssize_t>offsets[i + 1],
                            self.base_timestamp, 0, bounds[i + 1] - bounds[i], None)
            part.state = S_SEALED
            part.is_part = True
            if self.bulk_count == self.count:
                part.bulk_count = part.count
            parts.append(part)
        if self.tokens is not None:
            self.divide_tokens(parts, bounds)
        self.part_starts = bounds[:-1]
        self.parts = parts  # set last, so that a MemoryError leaves no incomplete list
        self.tokens = self.hooks = None
        self.payload = None
        self.state = S_SPLIT
        waiters, self.waiters = self.waiters, None
        if waiters is not None:
            for delivery in waiters:
                if not delivery.is_withdrawn:
                    delivery.core = self.locate(&delivery.index)
                    delivery.core.watch(delivery)
        return list(parts)

    def withdraw(self, int32_t index):
        """Remove one record before the batch is finished. Call `owner.on_emptied` if no record
        remains.

        Return False if the batch is finished or is a part of a split batch, because a broker may
        have received the record with its sequence number.
        """
        if not self.take_out(index):
            return False
        self.on_withdrawn(index)
        return True

    cdef bint take_out(self, int32_t index) except -1:
        """Do the part of `withdraw` that a signal handler cannot interrupt."""
        if self.state > S_SEALED or self.is_part:
            return False
        if self.withdrawn is None:
            self.withdrawn = []
        insort(self.withdrawn, index)
        return True

    cdef int on_withdrawn(self, int32_t index) except -1:
        """Report a withdrawn record to its hooks and, if no record remains, call the owner."""
        hooks = self.hooks
        tokens = self.pull_tokens(index)
        try:
            if self.owner is not None and len(self.withdrawn) == self.count:
                self.owner.on_emptied()
        finally:
            if tokens:
                hooks.withdrawn(self, tokens)
        return 0

    cdef int release_buffer(self) except -1:
        Py_XDECREF(self.buffer)
        self.buffer = NULL
        self.data = NULL
        self.capacity = 0
        self.payload = None
        return 0

    # -- tokens ---------------------------------------------------------------------------------

    cdef int add_token(self, object hooks, Py_ssize_t number, int32_t index,
                       object token) except -1:
        """Store a token for record `index`. It is passed on once: to
        `hooks.settled(core, tokens, view)` with the outcome, or to `hooks.withdrawn(core, tokens)`
        if the record is withdrawn.

        Args:
            number: index in `tokens` of the list of (index, token) pairs that receives the token.
        """
        cdef list pairs
        if self.tokens is None:
            self.tokens = []
            self.tokens_sorted = True
            self.hooks = hooks
        while len(self.tokens) <= number:
            self.tokens.append([])
        pairs = <list>self.tokens[number]
        # A finalizer may have submitted a record after this record was appended.
        if pairs and (<tuple>pairs[len(pairs) - 1])[0] > index:
            self.tokens_sorted = False
        pairs.append((index, token))
        if self.state >= S_ACKNOWLEDGED:  # a finalizer may have closed the producer
            self.settle_tokens(None)
        return 0

    cdef bint has_token(self, int32_t index) except -1:
        """Return True if `index` is the newest record that has a token."""
        cdef list pairs
        if self.tokens is not None:
            for pairs in self.tokens:
                if pairs and (<tuple>pairs[len(pairs) - 1])[0] == index:
                    return True
        return False

    cdef list placed_tokens(self):
        """Return the tokens in record order, with positions that do not count withdrawn records."""
        cdef list pairs
        cdef list placed = []
        for pairs in self.tokens:
            if self.withdrawn:
                pairs = [(index - bisect_left(self.withdrawn, index), token)
                         for index, token in pairs]
            if not self.tokens_sorted:
                pairs.sort(key=_index)
            placed.append(pairs)
        return placed

    cdef int divide_tokens(self, list parts, list bounds) except -1:
        """Move the tokens to the parts that contain their records."""
        cdef Py_ssize_t number, part
        cdef list pairs
        for number, pairs in enumerate(self.placed_tokens()):
            for index, token in pairs:
                part = bisect_right(bounds, index) - 1
                (<BatchCore>parts[part]).add_token(
                    self.hooks, number, <int32_t>(index - bounds[part]), token
                )
        return 0

    cdef list pull_tokens(self, int32_t index):
        """Remove the tokens of one record and return them as (number, token) pairs."""
        cdef Py_ssize_t number, place
        cdef list pairs
        cdef list pulled = []
        if self.tokens is None:
            return pulled
        for number, pairs in enumerate(self.tokens):
            if not self.tokens_sorted:
                pairs.sort(key=_index)
            place = bisect_left(pairs, index, key=_index)
            if place < len(pairs) and pairs[place][0] == index:
                pulled.append((number, pairs.pop(place)[1]))
        self.tokens_sorted = True
        return pulled

    cdef int settle_tokens(self, object view) except -1:
        """Report the outcome to the hooks and drop the tokens."""
        if self.tokens is None:
            return 0
        tokens, hooks = self.placed_tokens(), self.hooks
        self.tokens = self.hooks = None
        try:
            hooks.settled(self, tokens, view)
        except BaseException as error:
            self.loop.call_exception_handler({
                "message": "aiokprod: hooks of a batch failed", "exception": error,
            })
        return 0

    cdef BatchCore locate(self, int32_t* index):
        """Return the batch that now contains record `index`; set `index` to its position there."""
        cdef BatchCore core = self
        cdef Py_ssize_t part
        while True:
            if core.withdrawn is not None:
                index[0] -= <int32_t>bisect_left(core.withdrawn, index[0])
            if core.parts is None:
                return core
            part = bisect_right(core.part_starts, index[0]) - 1
            index[0] -= <int32_t>core.part_starts[part]
            core = core.parts[part]

    cdef object error_of(self, int32_t index):
        """Return a new instance of the error of record `index`, with topic and partition."""
        cdef object error = self.error
        if self.record_errors is not None:
            error = self.record_errors.get(index, error)
        return error.copy(topic=self.topic, partition=self.partition)

    cdef int watch(self, Delivery delivery) except -1:
        if self.waiters is None:
            self.waiters = [delivery]
            # The garbage collector does not track the elements of `waiters`, so it does not have to
            # track the list either.
            PyObject_GC_UnTrack(<PyObject*>self.waiters)
        else:
            if (<Delivery>self.waiters[-1]).index > delivery.index:
                self.waiters_sorted = False
            self.waiters.append(delivery)
        return 0

    cdef int wake(self) except -1:
        """Schedule the callbacks of watched records, in the order in which the records were
        appended."""
        cdef list waiters = self.waiters
        if waiters is None:
            return 0
        self.waiters = None
        self.context = None
        self.watched = <int32_t>len(waiters)
        if not self.waiters_sorted:
            waiters.sort(key=_position)
        DeliveryCallbacks(self.loop, waiters).schedule()
        return 0

    def __repr__(self):
        return (f"<BatchCore {self.topic}-{self.partition} state={self.state} "
                f"records={self.record_count} bytes={self.length}>")


def report_withdrawals_with(make):
    """Set the function that creates the error of a withdrawn record for `on_delivery`.

    It is called with (message, topic, partition). The core cannot create the error itself, because
    it does not import the package's errors.
    """
    global _withdrawn_error
    _withdrawn_error = make


class WaitExpired(Exception):
    """The timeout of `send` expired before its record had an outcome.

    This class does not derive from CancelledError. If the task is cancelled before it wakes,
    asyncio raises a CancelledError instead, so a cancellation can be distinguished from a timeout.
    """


cdef object _withdrawn_error = lambda message, topic, partition: CancelledError(message)


def _position(Delivery delivery):
    return delivery.index


def _index(tuple pair not None):
    return pair[0]


@cython.freelist(8)
@cython.no_gc
cdef class Extras:
    """The callbacks of a handle after the first one, each as function, context and kind. Few
    handles have more than one callback."""


@cython.freelist(1024)
@cython.no_gc
cdef class Delivery:
    """The handle of one record in a batch: await it for its `RecordMetadata`.

    Works with `await`, `asyncio.gather`, `wait`, `wait_for`, `shield` and `as_completed`.
    Cancelling the handle, or a task that awaits it, withdraws the record if its batch has not been
    encoded for sending. Otherwise it only ends the wait: the record is still delivered or fails.
    Complexity: O(1) per operation. Not thread-safe: use it on the producer's loop.
    """

    @property
    def topic(self):
        return self.core.topic

    @property
    def partition(self):
        return self.core.partition

    @property
    def timestamp_ms(self):
        return self.timestamp

    @property
    def withdrawn(self):
        """True if the record was withdrawn before it was sent, so that it is not in the log."""
        return bool(self.is_withdrawn)

    def get_loop(self):
        return self.core.loop

    def done(self):
        return self.is_done()

    cdef bint is_done(self) except -1:
        cdef int32_t index = self.index
        if self.is_cancelled or self.core.state >= S_ACKNOWLEDGED:
            return True
        if self.core.parts is None:
            return False
        return self.core.locate(&index).state >= S_ACKNOWLEDGED

    def cancelled(self):
        return bool(self.is_cancelled)

    @property
    def _cancel_message(self):
        # `asyncio.gather(..., return_exceptions=True)` reads this for cancelled futures.
        if self.is_withdrawn:
            return "record withdrawn before it was sent: it is not in the log"
        return "stopped waiting for a record in flight: its outcome is unknown"

    def _make_cancelled_error(self):
        return (WaitExpired if self.is_expired else CancelledError)(self._cancel_message)

    def result(self):
        """Return the RecordMetadata of the record.

        Raises the record's error, CancelledError, or InvalidStateError if there is no outcome yet.
        """
        cdef int32_t index = self.index
        cdef BatchCore core
        if self.is_cancelled:
            raise self._make_cancelled_error()
        core = self.core.locate(&index)
        if core.state == S_ACKNOWLEDGED:
            return self.metadata(core, index)
        if core.state == S_FAILED:
            raise self.failure(core, index)
        raise InvalidStateError("the record has no outcome yet")

    def exception(self):
        """Return the error of the record, or None if it was acknowledged.

        Raises CancelledError, or InvalidStateError if there is no outcome yet.
        """
        cdef int32_t index = self.index
        cdef BatchCore core
        if self.is_cancelled:
            raise self._make_cancelled_error()
        core = self.core.locate(&index)
        if core.state == S_ACKNOWLEDGED:
            return None
        if core.state == S_FAILED:
            return self.failure(core, index)
        raise InvalidStateError("the record has no outcome yet")

    cdef RecordMetadata metadata(self, BatchCore core, int32_t index):
        cdef RecordMetadata md = RecordMetadata.__new__(RecordMetadata)
        md.topic = core.topic
        md.partition = core.partition
        md.offset = core.base_offset + index if core.base_offset >= 0 else None
        md.timestamp_ms = core.log_append_time if core.log_append_time >= 0 else self.timestamp
        md.serialized_key_size = self.key_size
        md.serialized_value_size = self.value_size
        return md

    cdef object failure(self, BatchCore core, int32_t index):
        return core.error_of(index)

    def add_done_callback(self, fn, *, context=None):
        """Schedule `fn(delivery)` with `loop.call_soon` once the handle is done.

        The callback runs in `context`, by default in a copy of the current context. Raises
        TypeError if `fn` is not a plain callable.
        """
        if not is_plain_callable(fn):
            raise TypeError(f"a callback must be a plain callable, not {fn!r}")
        if self.is_done():
            self.core.loop.call_soon(fn, self, context=context)
        elif context is not None:
            self.add_callback(fn, context, GIVEN_CONTEXT)
        else:
            self.core.context = context = present_context(self.core.context)
            self.add_callback(fn, context, SHARED_CONTEXT)

    cdef int add_callback(self, object fn, object context, int kind) except -1:
        if not self.enlisted:
            self.enlist()
        if self.callback is None:
            self.kind = kind
            self.context = context
            self.callback = fn
        else:
            if self.extras is None:
                self.extras = Extras()
            if self.extras.callbacks is None:
                self.extras.callbacks = []
            self.extras.callbacks += (fn, context, kind)
        return 0

    def remove_done_callback(self, fn):
        """Remove all registrations of `fn` and return their number."""
        cdef list entries
        cdef list kept = []
        cdef Py_ssize_t i
        if self.callback is None or self.is_done():
            return 0
        entries = [self.callback, self.context, self.kind]
        if self.extras is not None and self.extras.callbacks is not None:
            entries += self.extras.callbacks
        for i in range(0, len(entries), 3):
            if entries[i + 2] == ON_DELIVERY or entries[i] != fn:
                kept += entries[i:i + 3]
        if self.is_done():  # `!=` ran code that completed the delivery
            return 0
        self.drop_callbacks()
        for i in range(0, len(kept), 3):
            self.add_callback(kept[i], kept[i + 1], kept[i + 2])
        return (len(entries) - len(kept)) // 3

    cdef bint is_watched(self) noexcept:
        """Return True if a task awaits the record or the record has a callback."""
        if self.callback is None or self.of_batch:
            return False
        return not self.is_cancelled or (self.kind == ON_DELIVERY and not self.is_withdrawn)

    cdef int attach(self, object fn) except -1:
        """Register `fn(metadata | None, error | None)`, which the loop calls with the outcome.
        A record has at most one such callback, registered directly after the append."""
        cdef object context = None
        try:
            if not isinstance(fn, OutcomeReceiver):
                self.core.context = context = present_context(self.core.context)
            self.add_callback(fn, context, ON_DELIVERY)
            if self.is_done():
                DeliveryCallbacks(self.core.loop, [self]).schedule()
        except BaseException:
            self.cancel()  # the caller does not get the handle: withdraw the record
            raise
        return 0

    cdef bint has_outcome(self) except -1:
        """Return True if the record's outcome is known, not if only the wait was cancelled."""
        cdef int32_t index = self.index
        return self.is_withdrawn or self.core.locate(&index).state >= S_ACKNOWLEDGED

    cdef bint has_due(self) except -1:
        """Return True if this handle, which is done, has a callback that can run now."""
        return self.callback is not None and (
            self.kind != ON_DELIVERY or self.has_more() or self.has_outcome()
        )

    cdef bint take_callback(self, Callbacks call) except -1:
        """Move the next callback to `call`. Return False if there is none."""
        cdef int kind = self.kind
        if self.callback is None:
            return False
        if self.has_more() and not self.extras.draining:
            self.extras.callbacks.reverse()
            self.extras.draining = True
        if kind == ON_DELIVERY and not self.has_outcome():  # not yet due: take a later one
            if not self.has_more():
                return False
            call.fn = self.extras.callbacks.pop()
            call.context = self.extras.callbacks.pop()
            kind = self.extras.callbacks.pop()
        else:
            call.fn = self.callback
            call.context = self.context
            self.callback = None
            self.context = None
            if self.has_more():
                self.callback = self.extras.callbacks.pop()
                self.context = self.extras.callbacks.pop()
                self.kind = self.extras.callbacks.pop()
        call.context_is_shared = kind != GIVEN_CONTEXT
        call.has_second = kind == ON_DELIVERY
        if kind == ON_DELIVERY:
            self.set_outcome(call)
        else:
            call.first = self
        return True

    cdef int set_outcome(self, Callbacks call) except -1:
        """Set the arguments of an ON_DELIVERY callback."""
        cdef int32_t index = self.index
        cdef BatchCore core
        call.first = call.second = None
        if self.is_withdrawn:
            call.second = _withdrawn_error(self._cancel_message, self.topic, self.partition)
            return 0
        core = self.core.locate(&index)
        if core.state == S_ACKNOWLEDGED:
            call.first = self.metadata(core, index)
        else:
            call.second = self.failure(core, index)
        return 0

    cdef bint has_more(self) except -1:
        """Return True if there are callbacks after the first one."""
        return self.extras is not None and bool(self.extras.callbacks)

    cdef int drop_callbacks(self) except -1:
        self.callback = None
        self.context = None
        if self.extras is not None:
            self.extras.callbacks = None
        return 0

    cdef int enlist(self) except -1:
        cdef BatchCore core = self.core.locate(&self.index) if self.core.parts is not None \
            else self.core
        self.core = core
        core.watch(self)
        self.enlisted = True
        return 0

    def cancel(self, msg=None):
        """Withdraw the record or stop waiting for it. Return False if the handle is done."""
        cdef DeliveryCallbacks callbacks
        if self.is_done():
            return False
        callbacks = DeliveryCallbacks(self.core.loop, [self])
        self.is_withdrawn = self.core.take_out(self.index)
        self.is_cancelled = True
        try:
            if self.is_withdrawn:
                self.core.on_withdrawn(self.index)
        finally:  # wake waiting tasks even if a signal handler raised
            callbacks.schedule()
        return True

    cdef int expire(self) except -1:
        """Like `cancel`, for a deadline that has passed: `result` then raises WaitExpired."""
        if not self.is_done():
            self.is_expired = True
            self.cancel()
        return 0

    # The handle is its own iterator, so that awaiting it creates no other object.
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if not self.is_done():
            self._asyncio_future_blocking = True
            return self
        raise StopIteration(self.result())

    def __repr__(self):
        state = ("cancelled" if self.is_cancelled else
                 "done" if self.is_done() else "pending")
        return f"<Delivery {self.core.topic}-{self.core.partition} {state}>"


cdef iternext delivery_next_slow = (<PyTypeObject*>Delivery).tp_iternext


cdef PyObject* delivery_next(PyObject* self) noexcept:
    """Implement `__next__` for the two usual cases, without the traceback that Cython adds to a
    StopIteration, which would cost 1 µs."""
    cdef Delivery delivery = <Delivery>self
    cdef BatchCore core = delivery.core
    if core.parts is None and core.withdrawn is None and not delivery.is_cancelled:
        if core.state == S_ACKNOWLEDGED:
            PyErr_SetObject(StopIteration, delivery.metadata(core, delivery.index))
            return NULL
        if core.state < S_ACKNOWLEDGED:
            delivery._asyncio_future_blocking = True
            Py_INCREF(delivery)
            return self
    return delivery_next_slow(self)


cdef int delivery_send(PyObject* self, PyObject* value, PyObject** result) except -1:
    """Like `delivery_next`, for interpreters whose `await` calls `am_send`, which returns the
    result without an exception (3.11)."""
    cdef Delivery delivery = <Delivery>self
    cdef BatchCore core = delivery.core
    cdef object given
    cdef bint done = True
    if core.parts is None and core.withdrawn is None and core.state == S_ACKNOWLEDGED and \
            not delivery.is_cancelled:
        given = delivery.metadata(core, delivery.index)
    elif delivery.is_done():
        given = delivery.result()
    else:
        done = False
        delivery._asyncio_future_blocking = True
        given = delivery
    Py_INCREF(given)
    result[0] = <PyObject*>given
    return PYGEN_RETURN if done else PYGEN_NEXT


cdef class DeliveryCallbacks(Callbacks):
    """Runs the callbacks of deliveries that are done. Each callback stays in its `Delivery` until
    it runs.

    Args:
        deliveries: the deliveries, in the order in which their callbacks run.
    """

    def __cinit__(self, loop not None, list deliveries not None):
        self.deliveries = deliveries

    def __init__(self, loop not None, list deliveries not None):
        self.loop = loop

    def __del__(self):
        """Drop callbacks that can never run, because the loop was closed or did not accept them."""
        cdef Delivery delivery
        if self.deliveries is not None:
            for delivery in self.deliveries[self.next:]:
                if delivery.has_due():
                    delivery.drop_callbacks()

    cdef bint pending(self) except -1:
        cdef Py_ssize_t i
        for i in range(self.next, PyList_GET_SIZE(self.deliveries)):
            if (<Delivery>PyList_GET_ITEM(self.deliveries, i)).has_due():
                return True
        return False

    cdef bint several(self) except -1:
        cdef Py_ssize_t left = PyList_GET_SIZE(self.deliveries) - self.next
        return left > 1 or (
            left == 1 and (<Delivery>PyList_GET_ITEM(self.deliveries, self.next)).has_more()
        )

    cdef bint take(self) except -1:
        cdef Delivery delivery
        while self.next < PyList_GET_SIZE(self.deliveries):
            delivery = <Delivery>PyList_GET_ITEM(self.deliveries, self.next)
            if not delivery.has_due():
                self.next += 1
            elif delivery.take_callback(self):
                return True
        return False


cdef Delivery new_delivery(BatchCore core, int32_t index):
    """Create a `Delivery`. Only this function creates deliveries, because a `Delivery` without a
    batch would crash."""
    cdef Delivery delivery = Delivery.__new__(Delivery)
    delivery.core = core
    delivery.index = index
    return delivery


def handle_of(BatchCore core not None):
    """Return a `Delivery` of the newest record of a batch. It is done when the batch is done or, if
    the batch was split, when the last part is done."""
    cdef Delivery delivery = new_delivery(core, core.count - 1)
    delivery.of_batch = True  # tasks await the batch, not this record
    return delivery


cdef bint make_room(PyObject* held, int64_t timestamp, int64_t fields) except -1:
    """Reserve room in a batch for a record whose `fields_size` is `fields`. Return False if the
    batch is full."""
    cdef BatchCore core = <BatchCore>held  # keep it alive: `grow` may call its owner
    cdef Py_ssize_t size = encoded_size(held, timestamp, fields)
    if not core.has_room(size):
        return False
    core.grow(size)
    return True


cdef PyObject* refuse_new(PyTypeObject* kind, PyObject* args, PyObject* kwargs) noexcept:
    """Raise an error instead of creating an instance. Other modules and subclasses call this
    function as `tp_new`; this module calls Cython's function directly."""
    PyErr_SetObject(TypeError, "deliveries are made by producer.submit and try_submit")
    return NULL


(<PyTypeObject*>Delivery).tp_new = refuse_new
(<PyTypeObject*>Delivery).tp_vectorcall = NULL  # Cython's function would bypass `refuse_new`
(<PyTypeObject*>Delivery).tp_iternext = delivery_next
(<PyTypeObject*>Delivery).tp_as_async.am_send = delivery_send
