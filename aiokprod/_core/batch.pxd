from libc.stdint cimport int32_t, int64_t
from cpython.ref cimport PyObject

from aiokprod._core.callbacks cimport Callbacks


cdef class RecordMetadata:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly object offset
    cdef readonly int64_t timestamp_ms
    cdef readonly int32_t serialized_key_size
    cdef readonly int32_t serialized_value_size

    cdef tuple fields(self)


cdef class MemoryBudget:
    # Written by the append paths, `Reservation`, `PartitionSlot.let_go` and `BufferMemory`.
    cdef public int64_t used
    cdef public int64_t limit        # constant
    cdef public bint has_waiters     # written by `BufferMemory`


cdef class ByteCount:
    cdef public int64_t bytes        # written by `PartitionSlot`


cdef class Reservation:
    cdef MemoryBudget budget
    cdef readonly int64_t size
    cdef readonly Delivery delivery


cdef class BatchCore:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly object loop
    cdef public object owner         # written by `ProducerBatch`; None once it is finished
    cdef readonly int state
    cdef readonly int32_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t base_offset
    cdef readonly int64_t log_append_time
    cdef readonly object error
    cdef readonly dict record_errors
    cdef readonly list parts
    cdef readonly list withdrawn
    cdef readonly int32_t watched
    # Bytes of the budget for it, and those of them that its partition's slot has reserved. Written
    # by the append paths, `PartitionSlot` and, for the parts of a split batch, `RecordAccumulator`.
    cdef public Py_ssize_t buffered_bytes
    cdef public Py_ssize_t reserved_bytes
    cdef list part_starts
    cdef list waiters
    cdef bint waiters_sorted
    cdef bint is_part
    cdef public Py_ssize_t limit     # written by `RecordAccumulator`: elastic batches grow
    cdef double ratio
    cdef PyObject* buffer
    cdef char* data
    cdef bytes payload
    cdef Py_ssize_t length
    cdef Py_ssize_t capacity
    cdef int64_t bulk_owner
    cdef int32_t bulk_number
    cdef int32_t bulk_count

    cdef int resize(self, Py_ssize_t capacity) except -1
    cdef object take_buffer(self)
    cdef bint has_room(self, Py_ssize_t size) noexcept
    cdef char* grow(self, Py_ssize_t size) except NULL
    cdef int append_raw(self, int64_t timestamp, const char* fields, Py_ssize_t size) except -1
    cdef int copy_range(self, const char* start, const char* end, int64_t base_timestamp,
                        int32_t first, int32_t stop, set skip) except -1
    cdef int release_buffer(self) except -1
    cdef list divide(self, bytes payload, list bounds, list offsets)
    cdef bint take_out(self, int32_t index) except -1
    cdef int tell_if_emptied(self) except -1
    cdef int watch(self, Delivery delivery) except -1
    cdef int wake(self) except -1
    cdef BatchCore locate(self, int32_t* index)
    cdef object error_of(self, int32_t index)


cdef class Delivery:
    cdef readonly BatchCore core
    cdef int32_t index
    cdef int32_t key_size
    cdef int32_t value_size
    cdef int64_t timestamp
    cdef public bint _asyncio_future_blocking
    cdef bint is_cancelled
    cdef bint is_withdrawn
    cdef bint hooked
    cdef bint of_batch
    cdef list callbacks
    cdef object hook

    cdef int enlist(self) except -1
    cdef int settle(self, Callbacks due) except -1
    cdef int run_hook(self, object hook) except -1
    cdef RecordMetadata metadata(self, BatchCore core, int32_t index)
    cdef object failure(self, BatchCore core, int32_t index)


cdef Delivery new_delivery(BatchCore core, int32_t index)
cdef bint make_room(PyObject* held, int64_t timestamp, int64_t fields) except -1
