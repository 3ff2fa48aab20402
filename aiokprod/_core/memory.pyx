# cython: language_level=3, boundscheck=False, cdivision=True
"""Counts the bytes that batches, and records not yet in a batch, take of the memory."""

from libc.stdint cimport int64_t


cdef class MemoryBudget:
    """Base of `BufferMemory`: bytes in use by batches and reservations, and the limit."""

    def __init__(self, int64_t limit):
        self.limit = limit
        self.used = 0
        self.has_waiters = False

    def on_dropped(self):
        """A reservation that still had bytes was deleted while calls wait for memory. Its finalizer
        calls this in any thread and within any other call."""


cdef class ByteCount:
    """A count of bytes that several objects share."""

    def __init__(self):
        self.bytes = 0


cdef class Reservation:
    """Bytes of a budget that are reserved for one record before it is in a batch.

    Granting, using and returning bytes are single steps, in which no signal handler can raise.
    Bytes of an interrupted caller are returned when the object is deleted.

    Attributes:
        delivery: the handle of the record, None until it is in a batch.
        on_delivery: set for the handle in one step with the append; None if there is none.
    """

    def __cinit__(self, MemoryBudget budget not None):
        self.budget = budget  # not in `__init__`, because `grant` does not check for None

    def grant(self, int64_t size):
        """Take `size` bytes of the budget."""
        self.budget.used += size
        self.size += size

    def give_back(self):
        """Return the unused bytes to the budget; their number."""
        cdef int64_t size = self.size
        self.size = 0
        self.budget.used -= size
        return size

    def __del__(self):
        if self.size:  # otherwise `__cinit__` may have failed, and there is no budget
            self.give_back()
            if self.budget.has_waiters:
                self.budget.on_dropped()
