# cython: language_level=3, boundscheck=False, cdivision=True
"""The append path: encodes records into open batches without suspending.

The fast path appends a record if its topic is known, its key and value are bytes or are serialized
to bytes, and there is memory for it. It calls interceptors, serializers and a custom partitioner
itself. All other records take the slow path, which raises the errors. The Python callback
`open_new_batch` makes the decisions that are needed once per batch: it opens a batch and chooses
the next sticky partition.

Source: Java `KafkaProducer.doSend`, `RecordAccumulator.append`, `BuiltInPartitioner` (KIP-794).
"""

cimport cython

from cpython.dict cimport PyDict_GetItem, PyDict_GetItemWithError
from cpython.ref cimport PyObject, Py_INCREF

from aiokprod._core.batch cimport BatchCore, Delivery, make_room, new_delivery
from aiokprod._core.callbacks cimport is_plain_callable
from aiokprod._core.hooks cimport HookedRecord, HookCalls
from aiokprod._core.memory cimport MemoryBudget, Reservation
from aiokprod._core.record_fields cimport data_of, headers_encoded_size, size_of, write_headers
from aiokprod._core.record_writer cimport (
    CHARGE, OVERHEAD, Record, begin_record, end_record, fields_size, key_hash, least_prefix,
    size_bound,
)
from aiokprod._core.serialization cimport SerializedRecord, SerializerPair, is_payload
from aiokprod._core.slots cimport PartitionSlot, TopicSlot, has_partition
from aiokprod._core.varint cimport int32_t, int64_t, uint32_t
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

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident() nogil


@cython.freelist(256)
cdef class SubmitAwaitable:
    """The result of `submit`; awaiting it returns the `Delivery`. The record is already in a batch.

    Awaiting suspends if the caller has to wait in the `YieldQueue`.
    """
    cdef object next_wait(self):
        """Return a future to wait for, or None if the caller may continue."""
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

    # `await` calls `submit_next` below instead of `__next__`.

    # The other methods of a coroutine, so that `asyncio.create_task` accepts the object.
    def send(self, value):
        return self.__next__()

    def throw(self, error, value=None, traceback=None):
        raise error

    def close(self):
        pass


cdef PyObject* submit_next(PyObject* self) noexcept:
    """Implement `__next__` without the traceback that Cython adds to a StopIteration, which would
    cost 1 µs."""
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


cdef int submit_send(PyObject* self, PyObject* value, PyObject** result) noexcept:
    """Like `submit_next`, for interpreters whose `await` calls `am_send`, which returns the result
    without an exception (3.11)."""
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


(<PyTypeObject*>SubmitAwaitable).tp_iternext = submit_next
(<PyTypeObject*>SubmitAwaitable).tp_as_async.am_send = submit_send


@cython.freelist(8)
cdef class AppendResult:
    """The result of `Appender.append`.

    Attributes:
        delivery: handle of the appended record, or None if it was not appended.
        over_quota: the partition's slot, if the record was not appended because the partition's
            broker has used up its share of the buffer; None if the memory as a whole is short.
    """


@cython.final
cdef class Appender:
    """The append path of a producer.

    Args:
        open_new_batch: called with (topic slot, partition, size, permit) if a partition has no open
            batch with room for the record. Returns a `PartitionSlot` whose open batch has room for
            `size` more bytes, or a slot without an open batch if the broker's share of the buffer
            is used up. For partition -1, the callback chooses the sticky partition. `permit` is the
            argument of `append`, or None in other calls.
        slow_submit: called for records that need the slow path of `submit`; returns an awaitable of
            the `Delivery`. May raise WrongLoop.
        unix_ms: the wall clock, read once per iteration of the event loop.
        serializers: the serializers; None if keys and values must be bytes.
        hooks: None if there are neither interceptors nor plug-ins.
        partitioner: the function that chooses a partition, with the arguments of
            `Partitioner.partition`; None for the built-in partitioner.
        check_partition: called with (result, topic, snapshot) if the result of the partitioner is
            not a partition of the topic; returns a partition or raises the error.
        yield_queue: decides which tasks have to wait after submitting a record.
        ignore_keys: records with a key also go to the sticky partition.

    Attributes:
        enabled: True while the fast path accepts records. Only `FastPathSwitch` writes it.
        calls_user: True if user code is called for each record: serializers, interceptors, plug-ins
            or a partitioner.
        topics: slots of the topics that the fast path can append to; `TopicSlots` adds and removes
            them.
        snapshot: the metadata snapshot that is passed to partitioners; it contains all `topics`.
            Only `Runtime` writes it.
    """

    def __cinit__(self, *, YieldQueue yield_queue not None, **options):
        # Set here, not in `__init__`, because methods access its fields without a check for None.
        self.yield_queue = yield_queue

    def __init__(self, *, MemoryBudget memory not None, open_new_batch, slow_submit, unix_ms,
                 YieldQueue yield_queue not None, int64_t max_request_size,
                 bint ignore_keys=False, SerializerPair serializers=None, HookCalls hooks=None,
                 partitioner=None, check_partition=None):
        self.enabled = False
        self.topics = {}
        self.thread = PyThread_get_thread_ident()
        self.memory = memory
        self.open_new_batch = open_new_batch
        self.slow_submit = slow_submit
        self.unix_ms = unix_ms
        # The limit leaves room for a `Delivery`. It also applies to bulk calls, which create one
        # only on the slow path: whether they accept a record must not depend on the memory in use.
        self.max_request_size = min(max_request_size, memory.limit - CHARGE + BATCH_HEADER)
        self.ignore_keys = ignore_keys
        self.serializers = serializers
        self.partitioner = partitioner
        self.check_partition = check_partition
        self.reporter = hooks
        if hooks is not None and hooks.called:
            self.hooks = hooks
        self.calls_user = ((serializers is not None and not serializers.plain)
                           or self.hooks is not None or partitioner is not None)

    # -- single records -------------------------------------------------------------------------

    def submit(self, topic, value=None, *, key=None, partition=None, timestamp_ms=None,
               headers=None, on_delivery=None):
        """Return an awaitable of the record's `Delivery`."""
        return self.submit_record(topic, value, key, partition, timestamp_ms, headers, on_delivery)

    cdef object submit_record(self, object topic, object value, object key, object partition,
                      object timestamp_ms, object headers, object on_delivery):
        cdef SubmitAwaitable awaitable
        cdef object result = None
        if on_delivery is not None and not is_plain_callable(on_delivery):
            return self.slow_submit(topic, value, key, partition, timestamp_ms, headers, None,
                                    on_delivery)
        # Created before the append, because the allocation may fail.
        awaitable = SubmitAwaitable.__new__(SubmitAwaitable)
        if not self.calls_user:
            awaitable.delivery = self.fast(topic, value, key, partition, timestamp_ms, headers)
        if awaitable.delivery is None:
            if self.serializers is not None:
                result = self.prepare(topic, value, key, partition, timestamp_ms, headers)
            if type(result) is not Delivery:
                return self.slow_submit(topic, value, key, partition, timestamp_ms, headers, result,
                                        on_delivery)
            awaitable.delivery = <Delivery>result
        if on_delivery is not None:
            awaitable.delivery.attach(on_delivery)
        if self.yield_queue.check_due():
            self.delay(awaitable)
        return awaitable

    cdef int delay(self, SubmitAwaitable awaitable) except -1:
        """Make the awaitable wait in the `YieldQueue` if the calling task has to yield."""
        try:
            if self.yield_queue.must_yield():
                awaitable.yield_queue = self.yield_queue
        except BaseException:
            awaitable.delivery.cancel()  # the caller does not get the handle: withdraw the record
            raise
        return 0

    def try_append(self, topic, value=None, key=None, partition=None, timestamp_ms=None,
                   headers=None, on_delivery=None):
        """Append a record and return its `Delivery`. If the record needs the slow path, return the
        `SerializedRecord` with which the slow path continues, or None if no user code was called.
        """
        cdef Delivery delivery = None
        cdef object result
        if not self.calls_user:
            delivery = self.fast(topic, value, key, partition, timestamp_ms, headers)
        if delivery is None:
            if self.serializers is None:
                return None
            result = self.prepare(topic, value, key, partition, timestamp_ms, headers)
            if type(result) is not Delivery:
                return result
            delivery = <Delivery>result
        if on_delivery is not None:
            delivery.attach(on_delivery)
        return delivery

    cdef Delivery fast(self, object topic, object value, object key, object partition,
                       object timestamp_ms, object headers):
        """Append a record whose key and value are bytes. Return None if it needs `prepare` or the
        slow path."""
        cdef PyObject* found = self.find_topic(topic)
        cdef TopicSlot slot
        cdef int64_t timestamp
        cdef int32_t number = -1
        if found is NULL:
            return None
        slot = <TopicSlot>found
        if not is_payload(value) or not is_payload(key):
            return None
        if partition is not None:
            if not has_partition(slot, partition):
                return None
            number = partition
        timestamp = self.timestamp_of(<PyObject*>timestamp_ms)
        if timestamp < 0:
            return None
        return self.append_slot(slot, number, value, key, timestamp, headers,
                                0, None, None)  # no reservation, no permit, no result

    cdef PyObject* find_topic(self, object topic) except? NULL:
        """Return the topic's `TopicSlot`, or NULL if the fast path must not append to it now."""
        # Comparing threads is sufficient, because the producer's loop runs in `self.thread`.
        # Whether the loop is still running is checked only once per iteration of the event loop and
        # every 64 records, because asyncio's check makes a system call.
        if not self.enabled or PyThread_get_thread_ident() != self.thread:
            return NULL
        if type(topic) is not str or (not self.yield_queue.pass_open and not self.open_pass()):
            return NULL
        return PyDict_GetItemWithError(self.topics, topic)

    cdef object prepare(self, object topic, object value, object key, object partition,
                        object timestamp_ms, object headers):
        """Call the producer's user code and append a record that `fast` did not append. Return the
        same values as `try_append`."""
        # Before calling user code, check for arguments that the slow path would refuse.
        if not self.accepts(topic, partition, timestamp_ms, headers):
            return None
        if not self.calls_user and is_payload(value) and is_payload(key):
            return None  # the slow path has to wait or to raise an error
        if self.hooks is None and self.partitioner is None:
            return self.append_serialized(topic, value, key, partition, timestamp_ms, headers)
        return self.append_hooked(topic, value, key, partition, timestamp_ms, headers)

    cdef bint accepts(self, object topic, object partition, object timestamp_ms,
                      object headers) except -1:
        """Return True if the slow path would neither refuse these arguments nor wait for
        metadata."""
        cdef PyObject* found = self.find_topic(topic)
        cdef int64_t count
        return (found is not NULL
                and (partition is None or has_partition(<TopicSlot>found, partition))
                and headers_encoded_size(headers, &count) >= 0
                and self.timestamp_of(<PyObject*>timestamp_ms) >= 0)

    cdef object append_serialized(self, str topic, object value, object key, object partition,
                                  object timestamp_ms, object headers):
        """Serialize and append a record of a producer without hooks and partitioner. Return its
        `Delivery`, or a `SerializedRecord` if it needs the slow path. Only then is the
        `SerializedRecord` created, because creating it takes longer than the rest of this method.
        """
        cdef SerializedRecord record
        cdef Delivery delivery
        cdef object sent_key = None, sent_value = None, failure = None
        cdef bint is_started = False, has_value = False, is_serialized = False
        try:
            if self.serializers.takes_headers:
                headers = [] if headers is None else list(headers)
            is_started = True
            sent_key = self.serializers.key.convert(topic, headers, key)
            if is_payload(sent_key):
                sent_value = self.serializers.value.convert(topic, headers, value)
                has_value = True
                if is_payload(sent_value):
                    is_serialized = True
                    # Check all conditions again: the serializers may have changed them.
                    self.yield_queue.check_slice()
                    delivery = self.fast(topic, sent_value, sent_key, partition, timestamp_ms,
                                         headers)
                    if delivery is not None:
                        return delivery
        except BaseException as error:
            if is_started and not is_serialized and isinstance(error, Exception):
                failure = error  # the slow path raises it
            elif not isinstance(error, MemoryError):  # the slow path handles it
                if self.reporter is not None:
                    self.reporter.refused(topic, partition, None, error)
                raise
        record = SerializedRecord.__new__(SerializedRecord)
        record.key = sent_key
        record.value = sent_value
        record.headers = headers
        record.has_value = has_value
        record.is_started = is_started
        record.failure = failure
        return record

    cdef object append_hooked(self, object topic, object value, object key, object partition,
                              object timestamp_ms, object headers):
        """Like `append_serialized`, for a producer with hooks or a partitioner."""
        cdef SerializedRecord record = SerializedRecord.__new__(SerializedRecord)
        cdef HookedRecord hooked
        if self.hooks is None:
            try:
                return self.append_prepared(record, topic, value, key, partition, timestamp_ms,
                                            headers)
            except MemoryError:
                return record  # the slow path tries again
            except BaseException as error:
                if self.reporter is not None:
                    self.reporter.refused(topic, partition, record, error)
                raise
        hooked = self.hooks.begin(topic, value, key, partition, timestamp_ms, headers)
        record.hooked = hooked
        given = hooked.record
        try:
            if given is None:
                return self.append_prepared(record, topic, value, key, partition, timestamp_ms,
                                            headers)
            return self.append_prepared(record, given.topic, given.value, given.key,
                                        given.partition, given.timestamp_ms, given.headers or None)
        except MemoryError:
            return record  # the slow path tries again
        except BaseException as error:
            self.hooks.refused(hooked.topic, hooked.partition, record, error)
            raise

    cdef object append_prepared(self, SerializedRecord record, object topic, object value,
                                object key, object partition, object timestamp_ms, object headers):
        """Serialize and append a record. Return its `Delivery`, or `record` if it needs the slow
        path."""
        cdef Delivery delivery
        cdef HookedRecord hooked = record.hooked
        cdef object final_headers
        if hooked is not None and hooked.record is not None:
            if not self.accepts(topic, partition, timestamp_ms, headers):
                return record  # an interceptor has changed the fields
        self.serializers.serialize(topic, headers, value, key, record)
        final_headers = record.headers
        if not record.is_complete():
            if hooked is not None:
                hooked.headers = final_headers
            return record
        if hooked is not None:
            final_headers = self.hooks.call_plugins(hooked, record.value, record.key, final_headers)
        if partition is None and self.partitioner is not None:
            partition = self.choose(record, topic, value, key, final_headers)
            if partition is None:
                return record
        # Check all conditions again: serializers, plug-ins and the partitioner may have changed
        # them.
        self.yield_queue.check_slice()
        try:
            delivery = self.fast(topic, record.value, record.key, partition, timestamp_ms,
                                 final_headers)
        except MemoryError:
            return record  # the slow path retries without calling the serializers again
        if delivery is None:
            return record
        if hooked is not None:
            self.hook(hooked, delivery, final_headers)
        return delivery

    cdef object choose(self, SerializedRecord record, str topic, object value, object key,
                       object headers):
        """Call the partitioner and return the partition. Return None if the record needs the slow
        path, which raises the errors. The partitioner is not called for a record that is too large
        or has to wait for memory."""
        cdef PyObject* found = PyDict_GetItem(self.topics, topic)
        cdef TopicSlot slot
        cdef int64_t count, size
        size = headers_encoded_size(headers, &count)
        if not self.enabled or found is NULL or size < 0:
            return None
        slot = <TopicSlot>found
        size += (OVERHEAD + max(0, size_of(<PyObject*>record.key))
                 + max(0, size_of(<PyObject*>record.value)))
        if not self.may_append(self.memory, size, CHARGE, 0):
            return None
        snapshot = self.snapshot
        try:
            partition = self.partitioner(topic, key, record.key, value, record.value, snapshot)
            if type(partition) is not int or not has_partition(slot, partition):
                partition = int(self.check_partition(partition, topic, snapshot))
        except Exception as error:
            record.failure = error
            return None
        return partition if has_partition(slot, partition) else None

    cdef int hook(self, HookedRecord hooked, Delivery delivery, object headers) except -1:
        """Attach the hooks to the batch of an appended record, which reports its outcome."""
        try:
            self.hooks.attach(hooked, delivery, headers)
        except BaseException:
            delivery.cancel()
            raise
        return 0

    def append(self, TopicSlot slot not None, partition, bytes value, bytes key, timestamp_ms,
               headers, Reservation reservation=None, permit=None, HookedRecord hooked=None):
        """Append a checked record if there is memory for it, and return an `AppendResult`.

        Args:
            partition: None selects the partition by the key or, without a key, the sticky
                partition.
            reservation: a reservation of memory for the record. The append consumes all its bytes,
                even if the record takes fewer. In the same step it stores the handle in the
                reservation and registers the reservation's `on_delivery` with the handle.
            permit: a granted `QuotaWaiter`. It is needed to open a batch for a broker while other
                callers wait for that broker's quota.
            hooked: the record for the hooks; the batch reports the outcome to them.
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
        if result.delivery is not None and hooked is not None:
            self.hook(hooked, result.delivery, headers)
        if (result.delivery is not None and reservation is not None
                and reservation.on_delivery is not None):
            result.delivery.attach(reservation.on_delivery)
        return result

    cdef Delivery append_slot(self, TopicSlot topic, int32_t partition, bytes value, bytes key,
                              int64_t timestamp, object headers, int64_t reserved, object permit,
                              AppendResult result):
        """Append a record and count its bytes. Return None if memory is short or the record needs
        the slow path.

        Args:
            reserved: bytes of memory that are reserved for the record, or 0.
            permit: a granted `QuotaWaiter`, or None.
            result: receives the slot whose broker is over its quota; may be None.
        """
        # Created before the append, because the allocation may fail.
        cdef Delivery delivery = new_delivery(None, 0)
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
        if record.headers_size < 0 or not self.may_append(memory, bound, CHARGE, reserved):
            return None
        sticky = self.is_sticky(partition, record.key_size >= 0)
        if partition < 0 and not sticky:
            hashed = key_hash(record.key, record.key_size)
        partition = self.partition_of(topic, partition, sticky, hashed)
        held = find_batch(topic, partition, &record, bound)
        if held is NULL:
            if headers is not None:  # the caller's list may change in `open_batch`
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
        """Return a new batch with room for a record; its slot keeps the batch alive. If the
        partition is sticky, another partition may be chosen. Return NULL if no batch can be opened
        now, or if the caller has to start the append again.

        Args:
            charge: bytes to count for the record's handle, or 0 without a handle.
            reserved, permit, result: as in `append_slot`.
        """
        cdef PartitionSlot slot
        cdef PyObject* held
        cdef int64_t bound = size_bound(record)
        if partition >= len(topic.slots):
            raise IndexError(
                f"partition {partition} of {topic.topic} does not exist: the topic has "
                f"{len(topic.slots)} partitions"
            )
        slot = self.open_new_batch(topic, -1 if sticky else partition, bound, permit)
        if slot is None:
            return NULL
        if slot.core is None:
            if result is not None:
                result.over_quota = slot
            return NULL
        # `open_new_batch` is Python code: other threads, signal handlers and finalizers may have
        # run in the meantime and submitted records.
        if reserved == 0 and self.memory.used + bound + charge > self.memory.limit:
            return NULL
        held = <PyObject*>slot.core
        return held if make_room(held, record.timestamp, fields_size(record)) else NULL

    cdef int64_t timestamp_of(self, PyObject* stamp) except? -1:
        """Return the Unix time of a record in ms, or a negative number if `stamp` is invalid."""
        if <object>stamp is None:
            return self.pass_ms
        if type(<object>stamp) is not int or not 0 <= <object>stamp <= 0x7FFFFFFFFFFFFFFF:
            return -1
        return <object>stamp

    # -- time -----------------------------------------------------------------------------------

    cdef bint open_pass(self) except -1:
        """Prepare for the first record of an iteration of the event loop. Return False if the loop
        is no longer running."""
        if not self.yield_queue.is_running():
            return False
        self.pass_ms = self.unix_ms()
        self.yield_queue.open_pass()
        return True


@cython.binding(True)  # becomes a method of Producer
def submit(self, topic, value=None, *, key=None, partition=None, timestamp_ms=None, headers=None,
           on_delivery=None):
    """Put one record into a batch: `delivery = await producer.submit(...)`.

    For the arguments, see `send`. Awaiting the call returns once the record is in a batch. It
    suspends only while metadata is missing, while memory is short, or if this task keeps submitting
    after the loop's time slice of 1 ms has expired, so that other tasks continue first. If that
    last wait is cancelled (`wait_for`), the record is already in a batch. Awaiting the `Delivery`
    returns the `RecordMetadata`; it works with gather, wait, wait_for, shield and
    `add_done_callback`. A failure that no task awaits is reported to the observer and logged, once
    per batch.

    If the record was put into a batch, the loop calls `on_delivery(metadata, error)` once with its
    outcome, in a copy of the current context. The arguments are the same as in Java's `Callback`:
    a `RecordMetadata` and None, or None and a `KafkaError`, whose outcome is NOT_SENT if the record
    was withdrawn. Unlike a done callback, `on_delivery` receives the outcome even if the handle is
    cancelled after the record was sent.

    Raises (at the call or on await): the errors of `send`, except those of the delivery itself.
    WrongLoop is raised at the call.

    `inspect` and `asyncio` treat this method as a coroutine function, so frameworks that run plain
    functions in threads await it on the loop. For the same reason, the loop's debug mode refuses it
    as a callback (`call_soon`, `call_later`), where the result would not be awaited: use
    `try_submit` there.
    """
    # The method `submit` of `Producer`, which is `self`.
    return submit_to(self, topic, value, key, partition, timestamp_ms, headers, on_delivery)


cdef object submit_to(object producer, object topic, object value, object key, object partition,
                      object timestamp_ms, object headers, object on_delivery):
    """Implement `Producer.submit`."""
    cdef Appender appender = producer._appender
    if appender is None:  # not started
        return producer._submit_slowly(topic, value, key, partition, timestamp_ms, headers, None,
                                       on_delivery)
    return appender.submit_record(topic, value, key, partition, timestamp_ms, headers, on_delivery)
