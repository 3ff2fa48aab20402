# cython: language_level=3, boundscheck=False, cdivision=True
"""Batch encoder and delivery handle: what exists per record, in compiled code.

`BatchCore` owns the growing bytes of one record batch (magic 2, records section only; the
61-byte header is made later by `_wire.record_batch`) and, once sent, the one final outcome of all
its records. `Delivery` is the awaitable handle of one record: a reference to its batch and an
index. Nothing else is kept per record.

Source: Kafka protocol guide "Record Batch"; Java `DefaultRecord.writeTo`, `ProducerBatch`,
`FutureRecordMetadata`.
"""

cimport cython
from bisect import bisect_left, bisect_right, insort
from asyncio import CancelledError, InvalidStateError
from contextvars import copy_context
from inspect import CO_COROUTINE
from types import FunctionType

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_Clear
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF, Py_XDECREF
from libc.string cimport memcpy

from aiokprod._core.callbacks cimport Callbacks
from aiokprod._core.place cimport encoded_size, end_record, write_deltas
from aiokprod._core.varint cimport (
    int32_t, int64_t, uint8_t, murmur2_bytes, read_varint, varint_size,
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

# Life of a batch. Records can be withdrawn before FINISHED; outcomes are DONE and FAILED.
OPEN = 0
SEALED = 1
FINISHED = 2
SPLIT = 3
DONE = 4
FAILED = 5

cdef enum:
    S_OPEN = 0
    S_SEALED = 1
    S_FINISHED = 2
    S_SPLIT = 3
    S_DONE = 4
    S_FAILED = 5


def murmur2(bytes data not None):
    """Java `Utils.murmur2` of the bytes as a signed 32-bit integer."""
    return <int32_t>murmur2_bytes(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


@cython.freelist(64)
cdef class RecordMetadata:
    """Where an acknowledged record is. `offset` is None if the broker did not return it."""

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


cdef class MemoryBudget:
    """Base of `BufferMemory`: bytes in use by batches and reservations, and the limit."""

    def __init__(self, int64_t limit):
        self.limit = limit
        self.used = 0
        self.has_waiters = False

    def on_dropped(self):
        """A reservation that still had bytes was dropped while calls wait for memory. Called by its
        finalizer: in any thread, within any other call."""


cdef class ByteCount:
    """A count of bytes that several objects share."""

    def __init__(self):
        self.bytes = 0


cdef class Reservation:
    """Bytes of a budget that are granted to one record before it is in a batch; `delivery` is its
    handle once it is.

    Granting, using and giving back are single steps: no signal handler can raise in between. What
    an interrupted caller still holds is given back when the object is dropped.
    """

    def __cinit__(self, MemoryBudget budget not None):
        self.budget = budget  # not in `__init__`: `grant` writes to it without a look

    def grant(self, int64_t size):
        """Take `size` bytes of the budget."""
        self.budget.used += size
        self.size += size

    def give_back(self):
        """Return what was not used; the number of bytes."""
        cdef int64_t size = self.size
        self.size = 0
        self.budget.used -= size
        return size

    def __del__(self):
        if self.size:  # else it may have been refused, and has no budget
            self.give_back()
            if self.budget.has_waiters:
                self.budget.on_dropped()


cdef class BatchCore:
    """The records of one batch: encoded bytes while open, one outcome afterwards.

    Invariant: the bytes that `finish` returned never change. `limit` is the target size of the
    records section in bytes, which may be raised; a first record of any size is taken. `ratio`
    estimates compressed size / plain size, so that batches fill to `limit` after compression.
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
        """A larger buffer; if there is no memory for it, everything stays as it was."""
        # A bytes object without other references may be written. It is not resized in place,
        # because a failure would lose its content.
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
        """The bytes written so far, as an object that nothing here refers to any more."""
        cdef PyObject* buffer = self.buffer
        cdef object payload
        if buffer is NULL:
            return b""
        self.buffer = NULL
        self.data = NULL
        self.capacity = 0
        _PyBytes_Resize(&buffer, self.length)  # frees it and raises if it fails
        payload = <object>buffer
        Py_DECREF(payload)
        return payload

    cdef bint has_room(self, Py_ssize_t size) noexcept:
        if self.state != S_OPEN:
            return False
        return self.count == 0 or <double>self.length * self.ratio + size <= self.limit

    def fits(self, Py_ssize_t size):
        """True if a record of `size` encoded bytes may be appended."""
        return self.has_room(size)

    cdef char* grow(self, Py_ssize_t size) except NULL:
        """Room for `size` more bytes; the position to write them at."""
        cdef Py_ssize_t wanted = self.length + size
        if wanted > self.capacity:
            self.resize(max(wanted, 2 * self.capacity, 512))
        return self.data + self.length

    cdef int append_raw(self, int64_t timestamp, const char* fields, Py_ssize_t size) except -1:
        """Append a record whose key, value and headers are already encoded."""
        cdef PyObject* held = <PyObject*>self
        cdef int prefix = varint_size(size)  # or one more
        cdef char* p
        self.grow(encoded_size(held, timestamp, size))
        p = write_deltas(held, timestamp, prefix)
        memcpy(p, fields, size)
        end_record(held, p + size, timestamp, prefix)
        return 0

    cdef int copy_range(self, const char* start, const char* end, int64_t base_timestamp,
                        int32_t first, int32_t stop, set skip) except -1:
        """Append records [first, stop) of an encoded section, leaving out indices in `skip`."""
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

    # -- life -----------------------------------------------------------------------------------

    @property
    def size(self):
        """Bytes of the records section so far."""
        return self.length

    @property
    def record_count(self):
        """Records that are sent: appended and not withdrawn."""
        return self.count - (len(self.withdrawn) if self.withdrawn is not None else 0)

    @property
    def settled(self):
        return self.state >= S_DONE

    @property
    def unwatched(self):
        """Number of records that no task awaits and that have no callback."""
        cdef Delivery delivery
        cdef Py_ssize_t watched = 0
        if self.waiters is not None:
            for delivery in self.waiters:
                watched += not delivery.is_withdrawn and not delivery.of_batch
        return max(0, self.record_count - watched - self.bulk_count)

    def seal(self):
        """Take no more records. They can still be withdrawn."""
        if self.state == S_OPEN:
            self.state = S_SEALED

    def finish(self):
        """The records section as immutable bytes; withdrawn records are left out for good.

        The same bytes again if it is called again before the outcome or `drop_payload`: a caller
        that a signal handler interrupted may not have kept them.
        """
        cdef BatchCore compact
        cdef bytes payload
        if self.state == S_FINISHED and self.payload is not None:
            return self.payload
        if self.state > S_SEALED:
            raise InvalidStateError("batch was finished before")
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
        self.owner = None  # it was for withdrawals; a cycle of both would outlive the batch
        self.state = S_FINISHED
        self.payload = payload
        return payload

    def drop_payload(self):
        """The caller of `finish` keeps the bytes, or what it made of them."""
        self.payload = None

    def settle(self, int64_t base_offset, int64_t log_append_time=-1):
        """Acknowledged: base offset (-1 unknown), log append time in ms (-1 = create time).

        False if the batch had its outcome already; the first one stands.
        """
        if self.state >= S_DONE:
            return False
        self.base_offset = base_offset
        self.log_append_time = log_append_time
        self.state = S_DONE
        self.owner = None
        self.release_buffer()
        self.wake()
        return True

    def fail(self, error, dict record_errors=None):
        """Failed: `error` for all records but those named by position in `record_errors`."""
        if self.state >= S_DONE:
            return False
        self.error = error
        self.record_errors = record_errors
        self.state = S_FAILED
        self.owner = None
        self.release_buffer()
        self.wake()
        return True

    def split(self, bytes payload not None, Py_ssize_t limit):
        """Divide into batches of at most `limit` bytes each (one record at least).

        `payload` is what `finish` returned. The records' handles follow their records into the
        returned batches, which are open for nothing and can be finished at once.
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
        """Parts of the records [bounds[i], bounds[i + 1]), which lie at offsets[i] in bytes."""
        cdef const char* start = PyBytes_AS_STRING(payload)
        cdef BatchCore part
        cdef Delivery delivery
        cdef list waiters = self.waiters
        cdef Py_ssize_t i
        self.parts = []
        for i in range(len(bounds) - 1):
            part = BatchCore(self.topic, self.partition, self.loop, self.limit)
            part.copy_range(start + <Py_ssize_t>offsets[i], start + <Py_ssize_t>offsets[i + 1],
                            self.base_timestamp, 0, bounds[i + 1] - bounds[i], None)
            part.state = S_SEALED
            part.is_part = True
            if self.bulk_count == self.count:
                part.bulk_count = part.count
            self.parts.append(part)
        self.part_starts = bounds[:-1]
        self.payload = None
        self.state = S_SPLIT
        self.waiters = None
        if waiters is not None:
            for delivery in waiters:
                if not delivery.is_withdrawn:
                    delivery.core = self.locate(&delivery.index)
                    delivery.core.watch(delivery)
        return list(self.parts)

    def withdraw(self, int32_t index):
        """Take one record out before the batch is finished. Tells the owner when none is left.

        False if it is too late, or if the batch is a part of another: brokers may know its records
        by their sequence numbers.
        """
        if not self.take_out(index):
            return False
        self.tell_if_emptied()
        return True

    cdef bint take_out(self, int32_t index) except -1:
        """The step of `withdraw` that nothing can interrupt."""
        if self.state > S_SEALED or self.is_part:
            return False
        if self.withdrawn is None:
            self.withdrawn = []
        insort(self.withdrawn, index)
        return True

    cdef int tell_if_emptied(self) except -1:
        if self.owner is not None and len(self.withdrawn) == self.count:
            self.owner.on_emptied()
        return 0

    cdef int release_buffer(self) except -1:
        Py_XDECREF(self.buffer)
        self.buffer = NULL
        self.data = NULL
        self.capacity = 0
        self.payload = None
        return 0

    cdef BatchCore locate(self, int32_t* index):
        """The batch that now holds record `index` of this one; `index` becomes its position."""
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
        """A fresh error of record `index` of this failed batch, which says where it was to go."""
        cdef object error = self.error
        if self.record_errors is not None:
            error = self.record_errors.get(index, error)
        return error.copy(topic=self.topic, partition=self.partition)

    cdef int watch(self, Delivery delivery) except -1:
        if self.waiters is None:
            self.waiters = [delivery]
        else:
            if (<Delivery>self.waiters[-1]).index > delivery.index:
                self.waiters_sorted = False
            self.waiters.append(delivery)
        return 0

    cdef int wake(self) except -1:
        """Run hooks and schedule callbacks of watched records, in the order they were appended."""
        cdef list waiters = self.waiters
        cdef Delivery delivery
        cdef Callbacks callbacks
        if waiters is None:
            return 0
        self.waiters = None
        self.watched = <int32_t>len(waiters)
        if not self.waiters_sorted:
            waiters.sort(key=_position)
        callbacks = Callbacks(self.loop)
        try:
            for delivery in waiters:
                try:
                    delivery.settle(callbacks)
                except BaseException as error:
                    # Whatever one hook does, the others learn their outcome.
                    self.loop.call_exception_handler({
                        "message": "aiokprod: a hook of a delivery failed", "exception": error,
                    })
        finally:
            callbacks.schedule()
        return 0

    def __repr__(self):
        return (f"<BatchCore {self.topic}-{self.partition} state={self.state} "
                f"records={self.record_count} bytes={self.length}>")


def _position(Delivery delivery):
    return delivery.index


@cython.freelist(1024)
@cython.no_gc
cdef class Delivery:
    """The handle of one record in a batch: await it for its `RecordMetadata`.

    Works with `await`, `asyncio.gather`, `wait`, `wait_for`, `shield` and `as_completed`.
    Cancelling (directly, or by cancelling a task that awaits it) withdraws the record if its
    batch has not been closed for sending; otherwise only the wait ends, and the record is still
    delivered or fails.
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
        """True if the record was taken out before it was sent: it is not in the log."""
        return self.is_withdrawn

    @property
    def has_hook(self):
        """True if a hook is set that will run, or has run."""
        return self.hooked

    def get_loop(self):
        return self.core.loop

    def done(self):
        cdef int32_t index = self.index
        if self.is_cancelled or self.core.state >= S_DONE:
            return True
        if self.core.parts is None:
            return False
        return self.core.locate(&index).state >= S_DONE

    def cancelled(self):
        return self.is_cancelled

    @property
    def _cancel_message(self):
        # `asyncio.gather(..., return_exceptions=True)` reads it of futures that were cancelled.
        if self.is_withdrawn:
            return "record withdrawn before it was sent: it is not in the log"
        return "stopped waiting for a record in flight: its outcome is unknown"

    def _make_cancelled_error(self):
        return CancelledError(self._cancel_message)

    def result(self):
        """Its RecordMetadata; raises the record's error, CancelledError or InvalidStateError."""
        cdef int32_t index = self.index
        cdef BatchCore core
        if self.is_cancelled:
            raise self._make_cancelled_error()
        core = self.core.locate(&index)
        if core.state == S_DONE:
            return self.metadata(core, index)
        if core.state == S_FAILED:
            raise self.failure(core, index)
        raise InvalidStateError("the record has no outcome yet")

    def exception(self):
        """Its error, None if acknowledged; raises CancelledError or InvalidStateError."""
        cdef int32_t index = self.index
        cdef BatchCore core
        if self.is_cancelled:
            raise self._make_cancelled_error()
        core = self.core.locate(&index)
        if core.state == S_DONE:
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
        """Schedule `fn(delivery)` by `loop.call_soon` once the outcome is known.

        It runs in `context`, by default in a copy of the present one. Raises TypeError if `fn` is
        not a plain callable.
        """
        if not callable(fn) or (type(fn) is FunctionType and fn.__code__.co_flags & CO_COROUTINE):
            raise TypeError(f"a callback must be a plain callable, not {fn!r}")
        if context is None:
            context = copy_context()
        if self.done():
            self.core.loop.call_soon(fn, self, context=context)
            return
        if self.callbacks is None:
            if self.hook is None:
                self.enlist()
            self.callbacks = []
        self.callbacks.append((fn, context))

    def remove_done_callback(self, fn):
        """Remove all registrations of `fn`; the number removed."""
        if self.callbacks is None:
            return 0
        kept = [entry for entry in self.callbacks if entry[0] != fn]
        removed = len(self.callbacks) - len(kept)
        self.callbacks[:] = kept
        return removed

    def set_hook(self, hook):
        """Run `hook(metadata | None, error | None)` at settlement, before any callback.

        For interceptors; one per record, set right after the append.
        """
        if self.callbacks is None and self.hook is None:
            self.enlist()
        self.hook = hook
        self.hooked = True

    cdef int enlist(self) except -1:
        cdef BatchCore core = self.core.locate(&self.index) if self.core.parts is not None \
            else self.core
        self.core = core
        core.watch(self)
        return 0

    def cancel(self, msg=None):
        """Withdraw the record or stop waiting for it. False if it has its outcome already."""
        cdef Callbacks callbacks
        if self.done():
            return False
        callbacks = Callbacks(self.core.loop)
        self.is_withdrawn = self.core.take_out(self.index)
        self.is_cancelled = True
        try:
            if self.is_withdrawn:
                self.core.tell_if_emptied()
        finally:  # also if a signal handler raised: waiting tasks must wake
            try:
                self.settle(callbacks)
            finally:
                callbacks.schedule()
        return True

    cdef int settle(self, Callbacks due) except -1:
        cdef list callbacks = self.callbacks
        cdef object hook = self.hook
        self.callbacks = None
        if callbacks:  # noted before the hook runs, which may raise
            for fn, context in callbacks:
                due.add(fn, context, self)
        if hook is not None and (self.is_withdrawn or self.core.state >= S_DONE):
            self.hook = None
            self.run_hook(hook)
        return 0

    cdef int run_hook(self, object hook) except -1:
        cdef int32_t index = self.index
        cdef BatchCore core = self.core.locate(&index)
        if self.is_withdrawn:
            hook(None, self._make_cancelled_error())
        elif core.state == S_DONE:
            hook(self.metadata(core, index), None)
        else:
            hook(None, self.failure(core, index))
        return 0

    # A stateless iterator of itself: awaiting costs no further object.
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if not self.done():
            self._asyncio_future_blocking = True
            return self
        raise StopIteration(self.result())

    def __repr__(self):
        state = ("cancelled" if self.is_cancelled else
                 "done" if self.done() else "pending")
        return f"<Delivery {self.core.topic}-{self.core.partition} {state}>"


cdef iternext delivery_next_slow = (<PyTypeObject*>Delivery).tp_iternext


cdef PyObject* delivery_next(PyObject* self) noexcept:
    """`__next__` for the two usual cases, without the traceback that Cython adds to a
    StopIteration (1 µs)."""
    cdef Delivery delivery = <Delivery>self
    cdef BatchCore core = delivery.core
    if core.parts is None and core.withdrawn is None and not delivery.is_cancelled:
        if core.state == S_DONE:
            PyErr_SetObject(StopIteration, delivery.metadata(core, delivery.index))
            return NULL
        if core.state < S_DONE:
            delivery._asyncio_future_blocking = True
            Py_INCREF(delivery)
            return self
    return delivery_next_slow(self)


cdef int delivery_send(PyObject* self, PyObject* value, PyObject** result) except -1:
    """The same for interpreters whose `await` needs no exception for a result (3.11)."""
    cdef Delivery delivery = <Delivery>self
    cdef BatchCore core = delivery.core
    cdef object given
    cdef bint done = True
    if core.parts is None and core.withdrawn is None and core.state == S_DONE and \
            not delivery.is_cancelled:
        given = delivery.metadata(core, delivery.index)
    elif delivery.done():
        given = delivery.result()
    else:
        done = False
        delivery._asyncio_future_blocking = True
        given = delivery
    Py_INCREF(given)
    result[0] = <PyObject*>given
    return PYGEN_RETURN if done else PYGEN_NEXT


cdef Delivery new_delivery(BatchCore core, int32_t index):
    """The only way to make one: a delivery without a batch would crash in any method."""
    cdef Delivery delivery = Delivery.__new__(Delivery)
    delivery.core = core
    delivery.index = index
    return delivery


cdef bint make_room(PyObject* held, int64_t timestamp, int64_t fields) except -1:
    """Room in a batch for a record of this `fields_size`; False if it belongs in another batch."""
    cdef BatchCore core = <BatchCore>held  # a reference: `grow` may call its owner
    cdef Py_ssize_t size = encoded_size(held, timestamp, fields)
    if not core.has_room(size):
        return False
    core.grow(size)
    return True


cdef PyObject* refuse_new(PyTypeObject* kind, PyObject* args, PyObject* kwargs) noexcept:
    """`tp_new` for everybody else, subclasses included; this module calls Cython's own."""
    PyErr_SetObject(TypeError, "deliveries are made by producer.submit and try_submit")
    return NULL


(<PyTypeObject*>Delivery).tp_new = refuse_new
(<PyTypeObject*>Delivery).tp_vectorcall = NULL  # Cython's, which knows its own `tp_new` only
(<PyTypeObject*>Delivery).tp_iternext = delivery_next
(<PyTypeObject*>Delivery).tp_as_async.am_send = delivery_send
