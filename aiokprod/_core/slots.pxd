from libc.stdint cimport int32_t, int64_t

from aiokprod._core.batch cimport BatchCore
from aiokprod._core.memory cimport ByteCount


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
    # Written by `RecordAccumulator.open_new_batch`. `TopicSlots` sets it to -1, so that another
    # partition is chosen.
    cdef public int32_t sticky
    # Counted by the append paths; `RecordAccumulator.open_new_batch` sets it to 0.
    cdef public int64_t sticky_bytes
    cdef readonly int64_t sticky_limit  # bytes after which another sticky partition is chosen


cdef inline bint has_partition(TopicSlot slot, object partition) except -1:
    """Return True if `partition` is a partition of the topic."""
    return type(partition) is int and 0 <= partition < len(slot.slots)
