cdef inline bint is_payload(object data) noexcept:
    """Return True for data that is appended unchanged: bytes or None."""
    return data is None or type(data) is bytes


cdef class FieldSerializer:
    cdef object call
    cdef object second
    cdef object third
    cdef bint takes_topic
    cdef readonly bint passthrough

    cdef object serialize(self, str topic, object headers, object data)
    cdef object recovered(self, str topic, object data)

    cdef inline object convert(self, str topic, object headers, object data):
        """Return bytes, None or an awaitable. None is returned unchanged."""
        if data is None or (self.passthrough and type(data) is bytes):
            return data
        return self.serialize(topic, headers, data)


cdef class SerializedRecord:
    cdef readonly object key
    cdef readonly object value
    cdef readonly object headers
    cdef readonly bint has_value
    cdef readonly bint is_started
    cdef public object hooked
    cdef object failure

    cdef bint is_complete(self) noexcept


cdef class SerializerPair:
    cdef readonly FieldSerializer key
    cdef readonly FieldSerializer value
    cdef readonly bint plain
    cdef bint takes_headers

    cpdef SerializedRecord serialize(self, str topic, object headers, object value, object key,
                                     SerializedRecord record=*)
