from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint32_t

from aiokprod._core.batch cimport BatchCore, ByteCount, Delivery, MemoryBudget, make_room
from aiokprod._core.place cimport BATCH_HEADER, Record, fields_size, has_ample_room
from aiokprod._core.yielding cimport YieldQueue


cdef class PartitionSlot:
    cdef public BatchCore core          # written by `open`; cleared by `RecordAccumulator`
    cdef readonly int64_t reserved_bytes
    cdef readonly int64_t opened
    cdef ByteCount account
    cdef readonly str topic
    cdef readonly int32_t partition


cdef class TopicSlot:
    cdef readonly str topic
    cdef readonly list slots
    # Written by `RecordAccumulator.open_new_batch`; -1 by `TopicSlots`: choose another one.
    cdef public int32_t sticky
    # Counted by the append paths; set to 0 by `RecordAccumulator.open_new_batch`.
    cdef public int64_t sticky_bytes


cdef class AppendResult:
    cdef readonly Delivery delivery
    cdef readonly PartitionSlot over_quota


cdef class Appender:
    cdef public bint enabled   # written by `FastPathSwitch` only
    cdef readonly dict topics  # `TopicSlots` adds and removes topics
    cdef readonly int64_t max_request_size
    cdef readonly int64_t sticky_limit
    cdef readonly bint ignore_keys
    cdef unsigned long thread
    cdef object open_new_batch
    cdef object slow_submit
    cdef object unix_ms
    cdef YieldQueue yield_queue
    cdef MemoryBudget memory
    cdef int64_t pass_ms       # Unix time of the current loop pass

    cdef bint open_pass(self) except -1
    cdef int64_t timestamp_of(self, PyObject* stamp) except? -1
    cdef object admit(self, object topic, object value, object key, object partition,
                      object timestamp_ms, object headers)
    cdef Delivery fast(self, object topic, object value, object key, object partition,
                       object timestamp_ms, object headers)
    cdef Delivery append_slot(self, TopicSlot topic, int32_t partition, bytes value, bytes key,
                              int64_t timestamp, object headers, int64_t reserved, object permit,
                              AppendResult result)
    cdef PyObject* open_batch(self, TopicSlot topic, int32_t partition, bint sticky,
                              const Record* record, int64_t charge, int64_t reserved, object permit,
                              AppendResult result) except? NULL

    # The steps of an append apart from `open_batch` and the encoding (`place.pxd`).

    cdef inline bint admits(self, MemoryBudget memory, int64_t bound, int64_t charge,
                            int64_t reserved) noexcept:
        """True if a record of at most `bound` bytes may be appended now."""
        return bound + BATCH_HEADER <= self.max_request_size and (reserved != 0 or (
            not memory.has_waiters and memory.used + bound + charge <= memory.limit
        ))

    cdef inline bint is_sticky(self, int32_t partition, bint has_key) noexcept:
        """True if a record for `partition` (-1: none) goes to the sticky partition."""
        return partition < 0 and (not has_key or self.ignore_keys)

    cdef inline int32_t partition_of(self, TopicSlot topic, int32_t partition, bint sticky,
                                     uint32_t hashed) noexcept:
        """The partition that a record names, the sticky one, or that of its key's hash. -1 if
        `open_new_batch` has to choose another sticky one: at twice `sticky_limit`, because the
        partition is kept until its batch is full."""
        cdef uint32_t total
        if sticky:
            return topic.sticky if topic.sticky_bytes < 2 * self.sticky_limit else -1
        if partition >= 0:
            return partition
        total = <uint32_t>PyList_GET_SIZE(topic.slots)
        return <int32_t>(hashed % total) if total else 0


cdef inline PyObject* find_batch(TopicSlot topic, int32_t partition, const Record* record,
                                 int64_t bound) except? NULL:
    """The open batch of a partition, with room for a record, which its slot keeps alive. NULL if
    there is none, or `partition` is not one of the topic."""
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
    """Count the bytes of a record that was written to its batch."""
    (<BatchCore>held).buffered_bytes += size + charge
    memory.used += size + charge - reserved
    if sticky:
        topic.sticky_bytes += size
