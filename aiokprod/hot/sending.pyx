# cython: language_level=3
"""`await producer.send(...)` without a Python frame of its own: one waits per record."""

import cython

from cpython.exc cimport PyErr_WarnEx
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF

from aiokprod.hot.append cimport Appender
from aiokprod.hot.core cimport Delivery, delivery_send

ctypedef int (*sendfunc)(PyObject*, PyObject*, PyObject**) except -1

cdef extern from "Python.h":
    ctypedef struct PyAsyncMethods:
        sendfunc am_send
    ctypedef struct PyTypeObject:
        PyAsyncMethods* tp_as_async
    int PYGEN_RETURN
    int PYGEN_NEXT
    int PyIter_Send(object, PyObject*, PyObject**) except -1

cdef enum Stage:
    NEW      # not awaited yet: nothing has happened
    WAITING  # for the `Delivery`
    SLOW     # in the coroutine of the slow path
    OVER


cdef class Sends:
    """`send` of a started producer. `slow_send(topic, value, key, partition, timestamp_ms,
    headers, timeout)` is the coroutine function for records that `appender` does not take."""

    def __init__(self, Appender appender not None, slow_send not None):
        self.appender = appender
        self.slow_send = slow_send

    def send(self, topic, value=None, *, key=None, partition=None, timestamp_ms=None, headers=None,
             timeout=None):
        """A coroutine that hands one record over and returns its `RecordMetadata`."""
        cdef Sending call
        if timeout is not None:
            return self.slow_send(topic, value, key, partition, timestamp_ms, headers, timeout)
        call = Sending.__new__(Sending)
        call.sends = self
        call.topic = topic
        call.value = value
        call.key = key
        call.partition = partition
        call.timestamp_ms = timestamp_ms
        call.headers = headers
        return call


@cython.freelist(256)
cdef class Sending:
    """One call of `send`: what `async def` would make of it, with the same life.

    Nothing happens before it is awaited. Cancellation comes to the `Delivery` that the task waits
    for, which withdraws the record if it still can.
    """
    cdef Sends sends
    cdef object topic
    cdef object value
    cdef object key
    cdef object partition
    cdef object timestamp_ms
    cdef object headers
    cdef object awaited
    cdef Stage stage

    __name__ = "send"
    __qualname__ = "Producer.send"

    def __dealloc__(self):
        if self.stage == NEW and self.sends is not None:
            PyErr_WarnEx(RuntimeWarning, "coroutine 'Producer.send' was never awaited", 1)

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value):
        cdef PyObject* result = NULL
        cdef int status = self.step(<PyObject*>value, &result)
        given = <object>result
        Py_DECREF(given)
        if status == PYGEN_RETURN:
            raise StopIteration(given)
        return given

    def throw(self, error, value=None, traceback=None):
        if isinstance(error, type):
            error = error() if value is None else value
        if self.stage == SLOW:
            try:
                return self.awaited.throw(error)
            except BaseException:
                self.end()
                raise
        self.begin_no_more()
        raise error

    def close(self):
        if self.stage == SLOW:
            self.awaited.close()
        self.end()

    cdef int begin_no_more(self) except -1:
        if self.stage == OVER:
            raise RuntimeError("cannot reuse already awaited coroutine")
        self.end()
        return 0

    cdef int end(self) except -1:
        self.stage = OVER
        self.forget()
        self.awaited = None
        return 0

    cdef int forget(self) except -1:
        """The record is somebody else's now."""
        self.topic = self.value = self.key = None
        self.partition = self.timestamp_ms = self.headers = None
        return 0

    cdef int step(self, PyObject* value, PyObject** result) except -1:
        """As `PyIter_Send`."""
        cdef int status
        try:
            if self.stage == NEW:
                self.begin()
            if self.stage == WAITING:
                status = delivery_send(<PyObject*>self.awaited, value, result)
            elif self.stage == SLOW:
                status = PyIter_Send(self.awaited, value, result)
            else:
                raise RuntimeError("cannot reuse already awaited coroutine")
        except BaseException:
            self.end()
            raise
        if status == PYGEN_RETURN:
            self.end()
        return status

    cdef int begin(self) except -1:
        cdef Delivery delivery = self.sends.appender.fast(
            self.topic, self.value, self.key, self.partition, self.timestamp_ms, self.headers
        )
        if delivery is not None:
            self.awaited = delivery
            self.stage = WAITING
        else:
            self.awaited = self.sends.slow_send(
                self.topic, self.value, self.key, self.partition, self.timestamp_ms, self.headers,
                None,
            )
            self.stage = SLOW
        self.forget()
        return 0


cdef int sending_send(PyObject* self, PyObject* value, PyObject** result) except -1:
    """`send` for interpreters whose `await` needs no exception for a result (3.11)."""
    return (<Sending>self).step(value, result)


(<PyTypeObject*>Sending).tp_as_async.am_send = sending_send
