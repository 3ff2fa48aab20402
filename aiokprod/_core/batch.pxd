from libc.stdint cimport int32_t, int64_t
from cpython.ref cimport PyObject

from aiokprod._core.callbacks cimport Callbacks

cdef enum:
    # States of a `BatchCore`. Records can be withdrawn before S_FINISHED. The last two states are
    # outcomes. `_engine/buffer/batch_states.py` defines the states of the whole batch, with its
    # attempts.
    S_OPEN = 0
    S_SEALED = 1
    S_FINISHED = 2
    S_SPLIT = 3
    S_ACKNOWLEDGED = 4
    S_FAILED = 5


cdef class RecordMetadata:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly object offset
    cdef readonly int64_t timestamp_ms
    cdef readonly int32_t serialized_key_size
    cdef readonly int32_t serialized_value_size

    cdef tuple fields(self)


cdef class BatchCore:
    cdef readonly str topic
    cdef readonly int32_t partition
    cdef readonly object loop
    cdef public object owner         # written by `ProducerBatch`; None after `finish`
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
    # Bytes of the memory budget that the batch uses, and the part of them that the partition's slot
    # has reserved. Written by the append paths, `PartitionSlot` and, for the parts of a split
    # batch, `RecordAccumulator`.
    cdef public Py_ssize_t buffered_bytes
    cdef public Py_ssize_t reserved_bytes
    cdef list part_starts
    cdef list waiters
    cdef bint waiters_sorted
    cdef object context              # context of the newest callback, shared if equal
    cdef bint tokens_sorted
    cdef list tokens                 # lists of (index, token) pairs, None without tokens
    cdef object hooks                # receives the tokens with the outcome; None without tokens
    cdef bint is_part
    cdef public Py_ssize_t limit     # raised by `RecordAccumulator` for elastic batches
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
    cdef int on_withdrawn(self, int32_t index) except -1
    cdef int watch(self, Delivery delivery) except -1
    cdef int wake(self) except -1
    cdef int add_token(self, object hooks, Py_ssize_t number, int32_t index, object token) except -1
    cdef list placed_tokens(self)
    cdef int divide_tokens(self, list parts, list bounds) except -1
    cdef list pull_tokens(self, int32_t index)
    cdef bint has_token(self, int32_t index) except -1
    cdef int settle_tokens(self, object view) except -1
    cdef BatchCore locate(self, int32_t* index)
    cdef object error_of(self, int32_t index)


cdef class Extras:
    cdef list callbacks
    cdef bint draining               # `callbacks` is in reverse order


cdef class Delivery:
    # An instance has 88 bytes, for which the allocator uses 96 (`CHARGE` in record_writer.pxd).
    cdef readonly BatchCore core
    cdef int32_t index
    cdef int32_t key_size
    cdef int32_t value_size
    cdef public bint _asyncio_future_blocking
    cdef int64_t timestamp
    cdef unsigned char is_cancelled
    cdef unsigned char is_withdrawn
    cdef unsigned char is_expired
    cdef unsigned char of_batch
    cdef unsigned char enlisted      # true if it is in the batch's `waiters`
    cdef unsigned char kind          # kind of `callback`
    cdef object callback             # the first callback
    cdef object context
    cdef Extras extras

    cdef bint is_done(self) except -1
    cdef int expire(self) except -1
    cdef int enlist(self) except -1
    cdef int add_callback(self, object fn, object context, int kind) except -1
    cdef int attach(self, object fn) except -1
    cdef bint has_outcome(self) except -1
    cdef bint is_watched(self) noexcept
    cdef bint has_more(self) except -1
    cdef bint has_due(self) except -1
    cdef bint take_callback(self, Callbacks call) except -1
    cdef int set_outcome(self, Callbacks call) except -1
    cdef int drop_callbacks(self) except -1
    cdef RecordMetadata metadata(self, BatchCore core, int32_t index)
    cdef object failure(self, BatchCore core, int32_t index)


cdef class DeliveryCallbacks(Callbacks):
    cdef list deliveries
    cdef Py_ssize_t next


cdef Delivery new_delivery(BatchCore core, int32_t index)
cdef bint make_room(PyObject* held, int64_t timestamp, int64_t fields) except -1
