# cython: language_level=3, boundscheck=False, cdivision=True
"""Tracks the records of a bulk call, which have no handles."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc

from aiokprod._core.batch cimport BatchCore, Delivery
from aiokprod._core.varint cimport int32_t, int64_t

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX

cdef int64_t _trackers = 0


cdef class BulkTracker:
    """The batch and index of each record of a bulk call, in eight bytes per record."""

    def __cinit__(self):
        global _trackers
        _trackers += 1
        self.identity = _trackers
        self.cores = []

    def __dealloc__(self):
        PyMem_Free(self.numbers)
        PyMem_Free(self.indices)

    cdef int reserve(self, Py_ssize_t capacity) except -1:
        cdef int32_t* grown
        if capacity <= self.capacity:
            return 0
        if capacity > PY_SSIZE_T_MAX // <Py_ssize_t>sizeof(int32_t):
            raise MemoryError
        grown = <int32_t*>PyMem_Realloc(self.numbers, capacity * sizeof(int32_t))
        if grown is NULL:
            raise MemoryError
        self.numbers = grown
        grown = <int32_t*>PyMem_Realloc(self.indices, capacity * sizeof(int32_t))
        if grown is NULL:
            raise MemoryError
        self.indices = grown
        self.capacity = capacity
        return 0

    cdef int enter(self, BatchCore core) except -1:
        """Add a batch. Called before a record is written to the batch, because it may raise
        MemoryError."""
        self.cores.append(core)
        core.bulk_owner = self.identity
        core.bulk_number = <int32_t>(len(self.cores) - 1)
        return 0

    cdef int leave(self, BatchCore core) except -1:
        """Remove the batch that was entered last, because none of its records was added. A batch
        without records may be dropped without an outcome, and the call would wait for it forever.
        """
        self.cores.pop()
        core.bulk_owner = 0
        return 0

    cdef int add(self, BatchCore core, int32_t index) except -1:
        self.prepare(1)
        if core.bulk_owner != self.identity:
            self.enter(core)
        self.note(core)
        self.indices[self.count - 1] = index
        return 0

    def add_delivery(self, Delivery delivery not None):
        """Add a record that took the slow path."""
        self.add(delivery.core, delivery.index)

    def abandon(self):
        """Count the records as not awaited, because the caller has stopped waiting. Their failures
        are then logged."""
        cdef Py_ssize_t i
        cdef int32_t index
        cdef BatchCore core
        for i in range(self.count):
            index = self.indices[i]
            core = (<BatchCore>self.cores[self.numbers[i]]).locate(&index)
            if core.bulk_count > 0:
                core.bulk_count -= 1

    def position(self, Py_ssize_t record):
        """Return (partition, offset | None, error | None) of one record, whose batch must have an
        outcome."""
        cdef int32_t index
        cdef BatchCore core
        if record < 0 or record >= self.count:
            raise IndexError(record)
        index = self.indices[record]
        core = (<BatchCore>self.cores[self.numbers[record]]).locate(&index)
        if core.error is not None:
            error = core.error
            if core.record_errors is not None:
                error = core.record_errors.get(index, error)
            return core.partition, None, error
        return core.partition, core.base_offset + index if core.base_offset >= 0 else None, None

    def error(self, Py_ssize_t record):
        """Return a new instance of the error of a record, whose batch must have failed."""
        if record < 0 or record >= self.count:
            raise IndexError(record)
        cdef int32_t index = self.indices[record]
        cdef BatchCore core = (<BatchCore>self.cores[self.numbers[record]]).locate(&index)
        return core.error_of(index)

    def ranges(self):
        """Return (topic, partition, records, first offset | None, last offset | None) for the
        acknowledged records of each batch, or for each acknowledged record if its batch was split,
        has failed or has withdrawn records. All batches must have an outcome."""
        cdef Py_ssize_t i, total = len(self.cores)
        cdef int32_t number
        cdef BatchCore core
        cdef list found = []
        cdef int32_t* seen = <int32_t*>PyMem_Calloc(max(1, 3 * total), sizeof(int32_t))
        if seen is NULL:
            raise MemoryError
        try:
            for i in range(total):
                core = <BatchCore>self.cores[i]
                if core.parts is not None or core.error is not None or core.withdrawn:
                    seen[3 * i] = -1  # its records have individual outcomes
            for i in range(self.count):
                number = 3 * self.numbers[i]
                if seen[number] < 0:
                    partition, offset, error = self.position(i)
                    if error is None:
                        core = <BatchCore>self.cores[self.numbers[i]]
                        found.append((core.topic, partition, 1, offset, offset))
                    continue
                if seen[number] == 0:
                    seen[number + 1] = self.indices[i]
                seen[number] += 1
                seen[number + 2] = self.indices[i]
            for i in range(total):
                core = <BatchCore>self.cores[i]
                if seen[3 * i] > 0:
                    known = core.base_offset >= 0
                    found.append((core.topic, core.partition, seen[3 * i],
                                  core.base_offset + seen[3 * i + 1] if known else None,
                                  core.base_offset + seen[3 * i + 2] if known else None))
        finally:
            PyMem_Free(seen)
        return found

    def failed(self):
        """Return the positions of the failed records in ascending order."""
        cdef Py_ssize_t i
        cdef int32_t index
        cdef BatchCore core
        cdef list found = []
        for core in self.cores:
            if core.parts is not None or core.error is not None:
                break
        else:
            return found
        for i in range(self.count):
            core = <BatchCore>self.cores[self.numbers[i]]
            if core.parts is not None or core.error is not None:
                index = self.indices[i]
                if core.locate(&index).error is not None:
                    found.append(i)
        return found
