from libc.stdint cimport int32_t, int64_t

from aiokprod._core.batch cimport BatchCore


cdef class BulkTracker:
    cdef readonly list cores
    cdef readonly Py_ssize_t count
    cdef int64_t identity
    cdef Py_ssize_t capacity
    cdef int32_t* numbers
    cdef int32_t* indices

    cdef int reserve(self, Py_ssize_t capacity) except -1
    cdef int enter(self, BatchCore core) except -1
    cdef int leave(self, BatchCore core) except -1
    cdef int add(self, BatchCore core, int32_t index) except -1

    cdef inline int prepare(self, Py_ssize_t records) except -1:
        """Reserve room for `records` more records."""
        if self.capacity - self.count < records:
            # Grow by half, so that most calls do not copy.
            self.reserve(max(self.count + records, self.capacity + self.capacity // 2))
        return 0

    cdef inline void note(self, BatchCore core) noexcept:
        """Add the newest record of a batch. Requires previous calls of `enter` and `prepare`."""
        core.bulk_count += 1  # the bulk call awaits the record
        self.numbers[self.count] = core.bulk_number
        self.indices[self.count] = core.count - 1
        self.count += 1
