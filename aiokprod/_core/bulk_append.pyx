# cython: language_level=3, boundscheck=False, cdivision=True
"""Appends the records of bulk calls: columns, rows that need user code, and iterables.

The records have no handles; a `BulkTracker` stores the batch and index of each record.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport PyObject

from aiokprod._core.append cimport Appender, count_bytes, find_batch
from aiokprod._core.batch cimport BatchCore, Delivery
from aiokprod._core.bulk_tracker cimport BulkTracker
from aiokprod._core.memory cimport MemoryBudget
from aiokprod._core.record_fields cimport data_of, headers_encoded_size, size_of, write_headers
from aiokprod._core.record_writer cimport (
    BLOCK, CHARGE, CHECK_ROWS, Record, begin_record, end_record, key_hash, least_prefix, size_bound,
)
from aiokprod._core.slots cimport TopicSlot
from aiokprod._core.varint cimport int32_t, int64_t, uint32_t, write_varint
from aiokprod._core.yielding cimport CHECK_EVERY

cdef extern from "Python.h":
    bytes PyBytes_FromObject(object)

cdef extern from *:
    """
    #if defined(__GNUC__) || defined(__clang__)
    #define aiokprod_prefetch(p) __builtin_prefetch(p)
    #else
    #define aiokprod_prefetch(p) ((void)(p))
    #endif
    """
    void prefetch "aiokprod_prefetch"(const void*) noexcept nogil

cdef enum:
    AHEAD = 8              # rows between the current value and the prefetched value


cdef object bytes_of(PyObject* data):
    """Return a bytearray, a memoryview or an instance of a bytes subclass, copied to bytes. Return
    None for any other type, and if the data cannot be read."""
    if type(<object>data) is bytearray:
        return PyBytes_FromStringAndSize(PyByteArray_AS_STRING(<object>data),
                                         PyByteArray_GET_SIZE(<object>data))
    if type(<object>data) is not memoryview and not isinstance(<object>data, bytes):
        return None
    try:
        if type(<object>data) is memoryview:
            return PyBytes_FromObject(<object>data)
        copied = bytes(<object>data)  # may call user code
    except Exception:
        return None
    return copied if type(copied) is bytes else None


cdef inline void hash_keys(list keys, Py_ssize_t start, Py_ssize_t end,
                           uint32_t* hashes) noexcept:
    """Hash the keys that are bytes. The hash of key i is stored at index `i - end` modulo BLOCK.

    The loop is separate because each hash is a chain of dependent multiplications: the CPU can
    compute only independent hashes in parallel.
    """
    cdef Py_ssize_t i
    cdef PyObject* key
    for i in range(start, end):
        key = PyList_GET_ITEM(keys, i)
        if PyBytes_CheckExact(<object>key):
            hashes[(i - end) & (BLOCK - 1)] = key_hash(
                PyBytes_AS_STRING(<object>key), PyBytes_GET_SIZE(<object>key)
            )


cdef Py_ssize_t append_rows(Appender appender, BulkTracker tracker, TopicSlot topic, list values,
                            list keys, list timestamps, list headers, int32_t partition,
                            Py_ssize_t i, Columns columns) except -1:
    """Implement `append_column`, beginning with record `i`."""
    cdef MemoryBudget memory = appender.memory
    cdef Py_ssize_t end = len(values), hashed = i, check = i + CHECK_ROWS
    cdef PyObject* held  # a BatchCore; its slot keeps it alive
    cdef PyObject* cell
    cdef object row_headers, own_value, own_key
    cdef Record record, passed
    cdef int32_t place
    cdef uint32_t hashes[BLOCK]
    cdef bint by_key = keys is not None and partition < 0 and not appender.ignore_keys
    cdef bint sticky = appender.is_sticky(partition, False)
    cdef int64_t bound, size
    cdef int prefix
    cdef char* p
    record.timestamp = appender.pass_ms
    record.key = NULL
    record.key_size = -1
    record.header_count = record.headers_size = 0
    while True:
        if i == hashed:
            if i >= end or (i == check and appender.yield_queue.slice_over()):
                break
            if i == check:
                check += CHECK_ROWS
            hashed = min(i + BLOCK, end)
            tracker.prepare(hashed - i)
            if by_key:
                hash_keys(keys, i, hashed, hashes)
        cell = PyList_GET_ITEM(values, i)
        if i + AHEAD < end:
            prefetch(PyList_GET_ITEM(values, i + AHEAD))
            prefetch(<char*>PyList_GET_ITEM(values, i + AHEAD) + 64)
        record.value_size = size_of(cell)
        if record.value_size < -1:
            own_value = None if appender.serializers is None else bytes_of(cell)
            if own_value is None:
                break
            cell = <PyObject*>own_value
            record.value_size = PyBytes_GET_SIZE(own_value)
        record.value = data_of(cell, record.value_size)
        if keys is not None:
            cell = PyList_GET_ITEM(keys, i)
            record.key_size = size_of(cell)
            if record.key_size < -1:
                own_key = None if appender.serializers is None else bytes_of(cell)
                if own_key is None:
                    break
                cell = <PyObject*>own_key
                record.key_size = PyBytes_GET_SIZE(own_key)
                hashes[(i - hashed) & (BLOCK - 1)] = key_hash(PyBytes_AS_STRING(own_key),
                                                              record.key_size)
            record.key = data_of(cell, record.key_size)
            sticky = appender.is_sticky(partition, record.key_size >= 0)
        if Columns is Complete:
            if timestamps is not None:
                record.timestamp = appender.timestamp_of(PyList_GET_ITEM(timestamps, i))
            row_headers = headers[i] if headers is not None else None
            record.headers_size = headers_encoded_size(row_headers, &record.header_count)
            if record.timestamp < 0 or record.headers_size < 0:
                break
        bound = size_bound(&record)
        if not appender.may_append(memory, bound, 0, 0):
            break
        place = appender.partition_of(topic, partition, sticky,
                                      hashes[(i - hashed) & (BLOCK - 1)])
        held = find_batch(topic, place, &record, bound)
        if held is NULL:
            if Columns is Complete and row_headers is not None:  # the caller's list may change
                row_headers = tuple(row_headers)
                if headers_encoded_size(row_headers, &record.header_count) != record.headers_size:
                    break
            passed = record  # a copy, because passing its address keeps a struct out of registers
            held = appender.open_batch(topic, place, sticky, &passed,
                                       0, 0, None, None)  # no charge, reservation, permit, result
            if held is NULL:
                break
        if (<BatchCore>held).bulk_owner != tracker.identity:
            tracker.enter(<BatchCore>held)
        prefix = least_prefix(bound)
        p = begin_record(held, &record, prefix)
        if Columns is Complete:
            p = write_headers(p, row_headers, record.header_count)
        else:
            p = write_varint(p, 0)
        size = end_record(held, p, record.timestamp, prefix)
        count_bytes(memory, topic, held, sticky, size, 0, 0)
        tracker.note(<BatchCore>held)
        i += 1
    return i


def append_column(Appender appender not None, BulkTracker tracker not None,
                  TopicSlot topic not None, list values, list keys, list timestamps, list headers,
                  int32_t partition, Py_ssize_t start):
    """Append records, beginning with record `start`, until all are appended, the memory is used up
    or the time slice has expired.

    Columns are None or lists of equal length, which must not change during the call. Partition -1
    selects the partition by the key or, without a key, the sticky partition. Returns the position
    of the first record that was not appended. That record has to wait for memory or the next slice,
    or needs the slow path.
    """
    if start < 0:
        raise ValueError("start must not be negative")
    for column in (keys, timestamps, headers):
        if column is not None and len(column) != len(values):
            raise ValueError("columns have different lengths")
    if not appender.yield_queue.pass_open:
        appender.open_pass()
    if timestamps is None and headers is None:
        return append_rows(appender, tracker, topic, values, keys, None, None, partition, start,
                           <Plain>0)
    return append_rows(appender, tracker, topic, values, keys, timestamps, headers, partition,
                       start, <Complete>0)


cdef class RecordSource:
    """The records of a `send_many` call, which `append_records` reads one by one.

    Args:
        iterator: iterator over the caller's records.
        kind: the class of the records.

    Attributes:
        has_record: True if a record was read that was neither appended nor taken.
        ended: True once the iterator has ended or has raised `failure`.
    """

    def __init__(self, iterator not None, kind not None):
        self.iterator = iterator
        self.kind = kind
        # The iterators of lists and tuples run no code of the caller.
        self.is_passive = type(iterator) is ListIterator or type(iterator) is TupleIterator

    def take(self):
        """Return the record that was read last. The caller appends or refuses it."""
        record, self.record = self.record, None
        self.has_record = False
        return record

    cdef bint read(self) except -1:
        """Read the next record. Return False at the end."""
        try:
            self.record = next(self.iterator)
        except StopIteration:
            self.ended = True
            return False
        except Exception as error:
            self.failure = error
            self.ended = True
            return False
        self.has_record = True
        return True


ListIterator = type(iter([]))
TupleIterator = type(iter(()))


def append_objects(Appender appender not None, BulkTracker tracker not None,
                   TopicSlot topic not None, list values not None, list keys, list timestamps,
                   list headers, partition, Py_ssize_t start):
    """Like `append_column`, but append each row like a single record, whose key and value the
    serializers convert.

    Returns the result of `append_row` for the first row that was not appended, which may be None.
    Also returns None after the last row and at the end of the time slice: the tracker has the
    number of appended rows.
    """
    cdef Py_ssize_t i = start
    cdef object result
    if start < 0:
        raise ValueError("start must not be negative")
    for column in (keys, timestamps, headers):
        if column is not None and len(column) != len(values):
            raise ValueError("columns have different lengths")
    if not appender.yield_queue.pass_open:
        appender.open_pass()
    while i < len(values):
        result = append_row(
            appender, tracker, topic.topic, values[i], None if keys is None else keys[i], partition,
            None if timestamps is None else timestamps[i],
            None if headers is None else headers[i],
        )
        if result is not True:
            return result
        i += 1
        if appender.yield_queue.overrun or (
                i % CHECK_EVERY == 0 and appender.yield_queue.slice_over()):
            break
    return None


def append_records(Appender appender not None, BulkTracker tracker not None,
                   RecordSource source not None):
    """Append records of any topics until the source has ended, the time slice has expired or a
    record was not appended. That record stays in `source`.

    Returns the result of `Appender.try_append` for that record, or None without such a record.
    """
    cdef bint is_timed = appender.calls_user or not source.is_passive
    cdef int unchecked = 0
    cdef object record, headers, result
    if not appender.yield_queue.pass_open:
        appender.open_pass()
    while source.read():
        record = source.record
        if not isinstance(record, source.kind):
            return None
        headers = record.headers
        result = append_row(
            appender, tracker, record.topic, record.value, record.key, record.partition,
            record.timestamp_ms, headers if headers else None,
        )
        if result is not True:
            return result
        source.record = None
        source.has_record = False
        unchecked += 1
        if is_timed or unchecked == CHECK_EVERY:
            unchecked = 0
            if appender.yield_queue.slice_over():
                break
    return None


cdef object append_row(Appender appender, BulkTracker tracker, object topic, object value,
                       object key, object partition, object timestamp_ms, object headers):
    """Append a record of a bulk call and add it to the tracker in one step. Return True if it was
    added, else the result of `Appender.try_append`. The result is a `Delivery` if user code was
    called and there was no memory to track the record: user code must not be called twice."""
    cdef Delivery delivery = None
    cdef object result
    tracker.prepare(1)  # before the append, because the allocation may fail
    if not appender.calls_user:
        delivery = appender.fast(topic, value, key, partition, timestamp_ms, headers)
    if delivery is None:
        if appender.serializers is None:
            return None
        result = appender.prepare(topic, value, key, partition, timestamp_ms, headers)
        if type(result) is not Delivery:
            return result
        delivery = <Delivery>result
    try:
        tracker.add(delivery.core, delivery.index)
    except MemoryError:
        if appender.calls_user:
            return delivery
        delivery.cancel()
        raise
    if not delivery.core.has_token(delivery.index):  # only the dropped handle used the charge
        delivery.core.buffered_bytes -= CHARGE
        appender.memory.used -= CHARGE
    return True
