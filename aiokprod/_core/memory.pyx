# cython: language_level=3, boundscheck=False, cdivision=True
"""Counts the bytes of memory used by batches and by records that are not yet in a batch."""

from libc.stdint cimport int64_t


cdef class MemoryBudget:
    """Base class of `BufferMemory`: the bytes used by batches and reservations, and the limit."""

    def __init__(self, int64_t limit):
        self.limit = limit
        self.used = 0
        self.has_waiters = False

    def on_dropped(self):
        """Called when a reservation with unused bytes is deleted while calls wait for memory. The
        finalizer may run in any thread and during any other call."""


cdef class ByteCount:
    """A byte count that several objects share."""

    def __init__(self):
        self.bytes = 0


cdef class Reservation:
    """Bytes of a budget that are reserved for one record before it is in a batch.

    Granting, using and returning bytes are single steps, in which no signal handler can raise. If
    the caller is interrupted, its bytes are returned when the object is deleted.

    Attributes:
        delivery: the handle of the record, None until the record is in a batch.
        on_delivery: the callback that the append registers with the handle, or None.
    """

    def __cinit__(self, MemoryBudget budget not None):
        self.budget = budget  # set here, not in `__init__`: `grant` does not check for None

    def grant(self, int64_t size):
        """Reserve `size` more bytes of the budget."""
        self.budget.used += size
        self.size += size

    def give_back(self):
        """Release the unused bytes and return their number."""
        cdef int64_t size = self.size
        self.size = 0
        self.budget.used -= size
        return size

    def __del__(self):
        if self.size:  # if 0, `__cinit__` may have failed before it set the budget
            self.give_back()
            if self.budget.has_waiters:
                self.budget.on_dropped()
