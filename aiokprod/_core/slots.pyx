# cython: language_level=3, boundscheck=False, cdivision=True
"""The state of topics and partitions in the append path."""

from libc.stdint cimport int32_t, int64_t

from aiokprod._core.batch cimport BatchCore
from aiokprod._core.memory cimport ByteCount, MemoryBudget


cdef class PartitionSlot:
    """The open batch of one partition, if any; the base class of `PartitionQueue`.

    Each method is a single step: while a change is incomplete, no signal handler can raise and no
    finalizer can submit a record.

    Attributes:
        core: the open batch, or None if there is none.
        reserved_bytes: bytes of the partition's sealed batches, and of an open batch that has to
            wait behind another batch. They are also counted for the broker that leads the partition
            (`follow`).
        opened: number of batches opened so far.
    """

    def __init__(self, str topic not None, int32_t partition):
        self.topic = topic
        self.partition = partition

    def open(self, BatchCore core not None, int64_t opened, batch, batches,
             dict incomplete not None):
        """Make `core` the open batch and add its `batch` to `batches` and `incomplete`. Return
        False if another batch was opened since the caller read `opened`."""
        if self.core is not None or self.opened != opened:
            return False
        incomplete[batch] = None
        try:
            batches.append(batch)
        except BaseException:
            del incomplete[batch]
            raise
        self.opened += 1
        self.core = core
        return True

    def follow(self, ByteCount account not None):
        """Move the reserved bytes to the account of another broker."""
        if self.account is not None:
            self.account.bytes -= self.reserved_bytes
        account.bytes += self.reserved_bytes
        self.account = account

    def hold(self, BatchCore core not None):
        """Count the bytes of a batch for its broker, except those that are already counted."""
        cdef int64_t more = core.buffered_bytes - core.reserved_bytes
        if self.account is None:
            raise ValueError("the partition has no account yet")
        core.reserved_bytes += more
        self.reserved_bytes += more
        self.account.bytes += more

    def let_go(self, BatchCore core not None, MemoryBudget memory not None):
        """Release the bytes of a batch from its broker's share and the memory, and return their
        number."""
        cdef int64_t charged = core.buffered_bytes
        if (self.account is None or self.reserved_bytes < core.reserved_bytes
                or self.account.bytes < core.reserved_bytes or memory.used < charged):
            raise AssertionError(f"{core!r} releases more bytes than are reserved")
        self.reserved_bytes -= core.reserved_bytes
        self.account.bytes -= core.reserved_bytes
        memory.used -= charged
        core.reserved_bytes = core.buffered_bytes = 0
        return charged


cdef class TopicSlot:
    """The partitions of one topic and its sticky partition (-1: none chosen yet).

    Args:
        sticky_limit: bytes after which another sticky partition is chosen.
    """

    def __init__(self, str topic not None, int64_t sticky_limit):
        self.topic = topic
        self.slots = []
        self.sticky = -1
        self.sticky_limit = sticky_limit
