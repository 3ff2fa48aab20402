# cython: language_level=3
"""Calls a producer's serializers, for both the fast path and the slow path.

A serializer is called once for each key or value. If it returns an awaitable, or if the record
cannot be appended immediately, the slow path continues with the results in `SerializedRecord`.

Source: Java `KafkaProducer.doSend`: the key is serialized before the value.
"""

cimport cython

from cpython.ref cimport PyObject, Py_DECREF

cdef extern from "Python.h":
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    PyObject* PyObject_Vectorcall(PyObject*, PyObject**, size_t, PyObject*) noexcept
    PyObject* PyBytes_FromObject(PyObject*) noexcept


cdef int raise_present() except -1:
    """Raise the exception that a C API function has set."""
    return -1


cdef class FieldSerializer:
    """A user's serializer for keys or values.

    Derived classes define the methods that need no compiled code:

    - `recover(topic, data, error)` handles an exception raised by the serializer: it raises
      the error for the caller or returns another result;
    - `checked(topic, data, result)` handles a result that is neither bytes nor None: it converts
      the result to bytes, returns an awaitable unchanged, and raises for anything else.

    Args:
        call: the user's function.
        takes_topic: the function is called with (topic, headers, data), else with the data alone.
        second, third: more arguments of the call, unless `second` is None; a `functools.partial`
            would be slower.
        passthrough: the serializer returns bytes unchanged and copies bytearray and memoryview, so
            it is not called for these types.
    """

    def __init__(self, call, *, bint takes_topic, bint passthrough, second=None, third=None):
        self.call = call
        self.second = second
        self.third = third
        self.takes_topic = takes_topic
        self.passthrough = passthrough

    def __call__(self, str topic not None, headers, data):
        """Return bytes or None, or an awaitable if the serializer is asynchronous. None is returned
        unchanged.

        Raises:
            SerializationError: the serializer failed (chained) or returned another type.
        """
        return self.convert(topic, headers, data)

    cdef object serialize(self, str topic, object headers, object data):
        """Like `convert`, for data that is not returned unchanged."""
        # arguments[0] is unused: PY_VECTORCALL_ARGUMENTS_OFFSET permits the called function to
        # overwrite it.
        cdef PyObject* arguments[4]
        cdef size_t count = 3
        cdef PyObject* found
        cdef object result
        # Exceptions of these two calls are not caught with `try`, which would slow down calls
        # without an exception.
        if self.passthrough and (type(data) is bytearray or type(data) is memoryview):
            found = PyBytes_FromObject(<PyObject*>data)
        else:
            arguments[1] = <PyObject*>data
            if self.takes_topic:
                arguments[1] = <PyObject*>topic
                arguments[2] = <PyObject*>headers
                arguments[3] = <PyObject*>data
            elif self.second is not None:
                arguments[2] = <PyObject*>self.second
                arguments[3] = <PyObject*>self.third
            else:
                count = 1
            found = PyObject_Vectorcall(<PyObject*>self.call, &arguments[1],
                                        count | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
        if found is NULL:
            result = self.recovered(topic, data)
        else:
            result = <object>found
            Py_DECREF(result)
        return result if is_payload(result) else self.checked(topic, data, result)

    cdef object recovered(self, str topic, object data):
        """Return the result of `recover` for the exception that is currently set."""
        try:
            raise_present()
        except Exception as error:
            return self.recover(topic, data, error)


@cython.freelist(8)
cdef class SerializedRecord:
    """Key and value of one record, as far as they are serialized.

    Attributes:
        key: bytes or None, or the awaitable that an asynchronous serializer returned.
        value: like `key`, for the value; valid if `has_value`.
        headers: the list that was passed to the serializers, which may have appended to it; the
            argument of the call if no serializer takes headers.
        has_value: True if the value's serializer was called. It is not called while the key is an
            awaitable.
        is_started: True if the serializers were called. They are not called if an interceptor has
            changed the record so that it needs the slow path.
        hooked: the `HookedRecord` of a producer with interceptors or plug-ins, else None.
    """

    cdef bint is_complete(self) noexcept:
        """Return True if key and value are bytes or None."""
        return self.has_value and is_payload(self.key) and is_payload(self.value)

    def take_failure(self):
        """Return the error of a serializer or of the partitioner, or None. The error is removed, so
        that this object does not form a reference cycle with the error's traceback."""
        failure, self.failure = self.failure, None
        return failure


cdef class SerializerPair:
    """The two serializers of a producer.

    Attributes:
        plain: True if both serializers pass bytes through.
        takes_headers: True if a serializer is called with the headers; it may append to them.
    """

    def __init__(self, FieldSerializer key not None, FieldSerializer value not None):
        self.key = key
        self.value = value
        self.plain = key.passthrough and value.passthrough
        self.takes_headers = ((key.takes_topic and not key.passthrough)
                              or (value.takes_topic and not value.passthrough))

    @cython.nonecheck(True)  # the serializers are None if `__init__` was not called
    cpdef SerializedRecord serialize(self, str topic, object headers, object value, object key,
                                     SerializedRecord record=None):
        """Serialize the key and then the value, as far as possible without waiting.

        Args:
            headers: list or tuple of (str, bytes or None) pairs, or None; serializers get a copy as
                a list.
            record: receives the results; if None, a new record is created.

        Errors of serializers are not raised, but stored for `take_failure`.
        """
        if record is None:
            record = SerializedRecord.__new__(SerializedRecord)
        record.headers = headers
        if self.takes_headers:
            record.headers = [] if headers is None else list(headers)
        record.is_started = True  # set after the list is created, which may raise MemoryError
        try:
            record.key = self.key.convert(topic, record.headers, key)
            if is_payload(record.key):
                record.value = self.value.convert(topic, record.headers, value)
                record.has_value = True
        except Exception as error:
            record.failure = error
        return record
