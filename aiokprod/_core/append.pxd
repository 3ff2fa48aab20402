cimport cython
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t

from aiokprod._core.batch cimport BatchCore, Delivery, make_room
from aiokprod._core.record_writer cimport BATCH_HEADER, Record, fields_size, has_ample_room
from aiokprod._core.hooks cimport HookedRecord, HookCalls
from aiokprod._core.memory cimport MemoryBudget
from aiokprod._core.serialization cimport SerializedRecord, SerializerPair
from aiokprod._core.slots cimport PartitionSlot, TopicSlot
from aiokprod._core.yielding cimport YieldQueue


cdef class SubmitAwaitable:
    cdef Delivery delivery
    cdef YieldQueue yield_queue  # None unless the caller may still have to wait
    cdef bint waited

    cdef object next_wait(self)


cdef class AppendResult:
    cdef readonly Delivery delivery
    cdef readonly PartitionSlot over_quota


@cython.final
cdef class Appender:
    cdef public bint enabled   # written by `FastPathSwitch` only
    cdef readonly dict topics  # `TopicSlots` adds and removes topics
    cdef readonly int64_t max_request_size
    cdef readonly bint ignore_keys
    cdef unsigned long thread
    cdef object open_new_batch
    cdef object slow_submit
    cdef object unix_ms
    cdef SerializerPair serializers
    cdef HookCalls hooks     # None if there is no interceptor and no plug-in
    # Reports failed records. Unlike `hooks`, it is also set if there are no interceptors or
    # plug-ins to call.
    cdef HookCalls reporter
    cdef object partitioner
    cdef object check_partition
    cdef public object snapshot  # written by `Runtime`
    cdef readonly bint calls_user
    cdef YieldQueue yield_queue
    cdef MemoryBudget memory
    cdef int64_t pass_ms       # Unix time in ms of the current event-loop iteration

    cdef bint open_pass(self) except -1
    cdef int64_t timestamp_of(self, PyObject* stamp) except? -1
    cdef object submit_record(self, object topic, object value, object key, object partition,
                      object timestamp_ms, object headers, object on_delivery)
    cdef int delay(self, SubmitAwaitable awaitable) except -1
    cdef Delivery fast(self, object topic, object value, object key, object partition,
                       object timestamp_ms, object headers)
    cdef PyObject* find_topic(self, object topic) except? NULL
    cdef object prepare(self, object topic, object value, object key, object partition,
                        object timestamp_ms, object headers)
    cdef bint accepts(self, object topic, object partition, object timestamp_ms,
                      object headers) except -1
    cdef object append_serialized(self, str topic, object value, object key, object partition,
                                  object timestamp_ms, object headers)
    cdef object append_hooked(self, object topic, object value, object key, object partition,
                              object timestamp_ms, object headers)
    cdef object append_prepared(self, SerializedRecord record, object topic, object value,
                                object key, object partition, object timestamp_ms, object headers)
    cdef object choose(self, SerializedRecord record, str topic, object value, object key,
                       object headers)
    cdef int hook(self, HookedRecord hooked, Delivery delivery, object headers) except -1
    cdef Delivery append_slot(self, TopicSlot topic, int32_t partition, bytes value, bytes key,
                              int64_t timestamp, object headers, int64_t reserved, object permit,
                              AppendResult result)
    cdef PyObject* open_batch(self, TopicSlot topic, int32_t partition, bint sticky,
                              const Record* record, int64_t charge, int64_t reserved, object permit,
                              AppendResult result) except? NULL

    # The steps of an append, except `open_batch` and the encoding (`record_writer.pxd`).

    cdef inline bint may_append(self, MemoryBudget memory, int64_t bound, int64_t charge,
                            int64_t reserved) noexcept:
        """Return True if a record of at most `bound` bytes may be appended now."""
        return bound + BATCH_HEADER <= self.max_request_size and (reserved != 0 or (
            not memory.has_waiters and memory.used + bound + charge <= memory.limit
        ))

    cdef inline bint is_sticky(self, int32_t partition, bint has_key) noexcept:
        """Return True if a record for `partition` (-1: none) goes to the sticky partition."""
        return partition < 0 and (not has_key or self.ignore_keys)

    cdef inline int32_t partition_of(self, TopicSlot topic, int32_t partition, bint sticky,
                                     uint32_t hashed) noexcept:
        """Return the given partition, the sticky partition or the partition for the key's hash.
        Return -1 if `open_new_batch` has to choose another sticky partition. This happens at twice
        `sticky_limit`, because the sticky partition is kept until its batch is full."""
        cdef uint32_t total
        if sticky:
            return topic.sticky if topic.sticky_bytes < 2 * topic.sticky_limit else -1
        if partition >= 0:
            return partition
        total = <uint32_t>PyList_GET_SIZE(topic.slots)
        return <int32_t>(hashed % total) if total else 0


cdef object submit_to(object producer, object topic, object value, object key, object partition,
                      object timestamp_ms, object headers, object on_delivery)


cdef inline PyObject* find_batch(TopicSlot topic, int32_t partition, const Record* record,
                                 int64_t bound) except? NULL:
    """Return the open batch of a partition if it has room for the record. Return NULL if there is
    no such batch or partition. The partition's slot keeps the batch alive."""
    cdef PyObject* held
    if <size_t>partition >= <size_t>PyList_GET_SIZE(topic.slots):
        return NULL
    held = <PyObject*>(<PartitionSlot>PyList_GET_ITEM(topic.slots, partition)).core
    if held is <PyObject*>None:
        return NULL
    if has_ample_room(held, bound) or make_room(held, record.timestamp, fields_size(record)):
        return held
    return NULL


cdef inline void count_bytes(MemoryBudget memory, TopicSlot topic, PyObject* held, bint sticky,
                             Py_ssize_t size, int64_t charge, int64_t reserved) noexcept:
    """Count the bytes of a record that has been written to its batch."""
    (<BatchCore>held).buffered_bytes += size + charge
    memory.used += size + charge - reserved
    if sticky:
        topic.sticky_bytes += size
