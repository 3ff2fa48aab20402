from libc.stdint cimport int32_t

from aiokprod._core.append cimport Appender
from aiokprod._core.bulk_tracker cimport BulkTracker
from aiokprod._core.slots cimport TopicSlot

# These types only select one of two copies of `append_rows`: the copy without timestamps and
# headers takes 383 instructions per value, the other copy 474.
ctypedef char Plain
ctypedef int Complete
ctypedef fused Columns:
    Plain
    Complete


cdef class RecordSource:
    cdef readonly object iterator
    cdef readonly bint has_record
    cdef readonly bint ended
    cdef readonly object failure
    cdef object record
    cdef object kind
    cdef bint is_passive

    cdef bint read(self) except -1


cdef object append_row(Appender appender, BulkTracker tracker, object topic, object value,
                       object key, object partition, object timestamp_ms, object headers)
# Declared here so that compilers do not inline it into `append_column`, where it would take 4 more
# instructions per value.
cdef Py_ssize_t append_rows(Appender appender, BulkTracker tracker, TopicSlot topic, list values,
                            list keys, list timestamps, list headers, int32_t partition,
                            Py_ssize_t i, Columns columns) except -1
