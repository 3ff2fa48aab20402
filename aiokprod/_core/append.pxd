from libc.stdint cimport int32_t, int64_t

from aiokprod._core.bulk_tracker cimport BulkTracker
from aiokprod._core.batch cimport BatchCore, ByteCount, Delivery, MemoryBudget, Reservation
from aiokprod._core.yielding cimport YieldQueue


cdef class PartitionSlot:
    cdef public BatchCore core
    cdef readonly int64_t reserved_bytes
    cdef readonly int64_t opened
    cdef ByteCount account
    cdef readonly str topic
    cdef readonly int32_t partition


cdef class TopicSlot:
    cdef readonly str topic
    cdef readonly list slots
    cdef public int32_t sticky
    cdef public int64_t sticky_bytes


cdef class AppendResult:
    cdef readonly Delivery delivery
    cdef readonly PartitionSlot over_quota


cdef class Appender:
    cdef public bint enabled
    cdef readonly dict topics
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
    cdef object admit(self, object topic, object value, object key, object partition,
                      object timestamp_ms, object headers)
    cdef Delivery append_slot(self, TopicSlot slot, int32_t partition, bytes value, bytes key,
                              int64_t timestamp, object headers, int64_t reserved, object permit,
                              AppendResult result)
    # The partition of a record is the one it names (`partition` ≥ 0), or that of its key
    # (`key_hash`), or the sticky one.
    cdef inline bint is_sticky(self, int32_t partition, bint has_key) noexcept:
        return partition < 0 and (not has_key or self.ignore_keys)

    cdef inline int32_t sticky_partition(self, TopicSlot topic) noexcept:
        """-1 if `open_new_batch` has to choose another one: twice `sticky_limit`, because the
        partition is kept until its batch is full."""
        return topic.sticky if topic.sticky_bytes < 2 * self.sticky_limit else -1

    cdef PartitionSlot choose(self, TopicSlot topic, int32_t partition, bytes key)
    cdef BatchCore encode(self, TopicSlot topic, int32_t partition, bytes value, bytes key,
                          int64_t timestamp, object headers, int64_t reserved, int64_t charge,
                          BulkTracker tracker, object permit, AppendResult result)
    cdef Delivery fast(self, object topic, object value, object key, object partition,
                       object timestamp_ms, object headers)
    cdef Py_ssize_t append_plain(self, BulkTracker tracker, TopicSlot topic, list values,
                                 list keys, int32_t partition, Py_ssize_t i,
                                 Py_ssize_t end) except -1
