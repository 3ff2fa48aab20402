from libc.stdint cimport int32_t, int64_t

from aiokprod._core.batch cimport BatchCore, Delivery


cdef class HookedRecord


cdef class InterceptorCalls:
    cdef readonly tuple interceptors
    cdef tuple headers_wanted
    cdef object record_type

    cdef int pass_on(self, object record, HookedRecord hooked) except -1
    cdef int acknowledge(self, object metadata, object error, object headers, Py_ssize_t count,
                         object loop) except -1


cdef class HookCalls:
    cdef readonly InterceptorCalls interceptors
    cdef readonly tuple plugins
    cdef readonly bint called
    cdef public object loop

    cdef HookedRecord started(self, object record, object topic, object partition)
    cdef HookedRecord begin(self, object topic, object value, object key, object partition,
                            object timestamp_ms, object headers)
    cdef object call_plugins(self, HookedRecord hooked, object value, object key, object headers)
    cdef int attach(self, HookedRecord hooked, Delivery delivery, object headers) except -1
    cdef int settle_intercepted(self, BatchCore core, list pairs) except -1
    cdef int settle_plugin(self, object plugin, BatchCore core, list pairs, object view) except -1
    cdef int settle_batch(self, object plugin, BatchCore core, object view, list pairs,
                          object base_offset, object error) except -1
    cdef int unsent(self, object plugin, object topic, object partition, object token,
                    object error, object loop) except -1
    cdef int acknowledge(self, object metadata, object error, object headers,
                         object loop) except -1


cdef class HookedRecord:
    cdef HookCalls hooks    # None if the outcome was reported or a batch will report it
    cdef readonly object record
    cdef readonly object topic
    cdef readonly object partition
    cdef public object headers
    cdef readonly Py_ssize_t interceptors_called
    cdef readonly Py_ssize_t plugins_called
    cdef list tokens          # a token or None for each plug-in; None without tokens


cdef class SentRecord:
    cdef int64_t timestamp
    cdef int32_t key_size
    cdef int32_t value_size
    cdef tuple headers
