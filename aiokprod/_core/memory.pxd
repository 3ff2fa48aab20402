from libc.stdint cimport int64_t

from aiokprod._core.batch cimport Delivery


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
    cdef public object on_delivery   # None if there is none
