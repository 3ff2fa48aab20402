# cython: language_level=3
"""Per-record functions of the compatible producers: results of futures, headers and UUIDs."""

from os import urandom

cimport cython
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_AsUTF8String, PyUnicode_DecodeASCII

from aiokprod._core.append cimport submit_to
from aiokprod._core.batch cimport RecordMetadata
from aiokprod._core.callbacks cimport OutcomeReceiver

cdef extern from *:
    """
    /* Return a new tuple of a subclass with empty items. Since Python 3.14 a tuple caches its hash,
       and the 0 that `tp_alloc` stores there would be used as the hash. */
    static PyObject *aiokprod_new_tuple(PyObject *cls, Py_ssize_t size)
    {
        PyObject *fields = ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, size);
    #if PY_VERSION_HEX >= 0x030E0000
        if (fields != NULL) {
            ((PyTupleObject *)fields)->ob_hash = -1;
        }
    #endif
        return fields;
    }
    """
    object new_tuple "aiokprod_new_tuple"(object cls, Py_ssize_t size)

cdef object CREATE_TIME = 0


cdef class FutureResults:
    """Creates the callbacks for the records of one producer. Holds no reference to the producer, so
    that a producer that is dropped without `stop` can be collected.

    Args:
        metadata_type: aiokafka's `RecordMetadata`, a named tuple of seven fields.
        partition_type: aiokafka's `TopicPartition`.
        convert: function that returns the exception of the future for a `KafkaError`.
        no_result: True if the result of every record is None (acks=0).
    """

    cdef object metadata_type
    cdef object partition_type
    cdef object convert
    cdef bint no_result
    cdef dict partitions
    # The next attributes are cached from the previous record, because consecutive records are
    # usually in the same batch.
    cdef object topic
    cdef int partition
    cdef object number
    cdef object place

    def __cinit__(
        self, object metadata_type, object partition_type, object convert, bint no_result
    ):
        self.metadata_type = metadata_type
        self.partition_type = partition_type
        self.convert = convert
        self.no_result = no_result
        self.partitions = {}

    def submit(self, object future not None, object producer not None, object topic, object value,
               object key, object partition, object timestamp_ms, object headers):
        """Call `producer.submit` with a callback that sets the outcome of `future`."""
        cdef FutureResult callback = FutureResult.__new__(FutureResult)
        callback.results = self
        callback.future = future
        return submit_to(producer, topic, value, key, partition, timestamp_ms, headers, callback)

    def settle(self, object future not None, RecordMetadata metadata, object error):
        """Set the outcome of `future`, unless the application has cancelled it."""
        self.give(future, metadata, error)

    cdef int give(self, object future, RecordMetadata metadata, object error) except -1:
        if future.done():
            return 0
        if error is not None:
            future.set_exception(self.convert(error))
        elif metadata is None or self.no_result:
            future.set_result(None)
        else:
            future.set_result(self.converted(metadata))
        return 0

    cdef object converted(self, RecordMetadata metadata):
        cdef object key
        if metadata.topic is not self.topic or metadata.partition != self.partition:
            key = (metadata.topic, metadata.partition)
            self.place = self.partitions.get(key)
            if self.place is None:
                self.place = self.partitions[key] = self.partition_type(*key)
            self.topic = metadata.topic
            self.partition = metadata.partition
            self.number = metadata.partition
        # Do not call the constructor of the named tuple: it is a Python function that copies a
        # tuple.
        cdef object converted = new_tuple(self.metadata_type, 7)
        set_field(converted, 0, metadata.topic)
        set_field(converted, 1, self.number)
        set_field(converted, 2, self.place)
        set_field(converted, 3, metadata.offset)
        set_field(converted, 4, metadata.timestamp_ms)
        set_field(converted, 5, CREATE_TIME)
        set_field(converted, 6, None)
        return converted


cdef inline void set_field(object fields, Py_ssize_t number, object value) noexcept:
    """Set an item of a tuple to which no other code has a reference yet."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(fields, number, value)


@cython.final
@cython.no_gc  # there is no cycle, because the future does not refer to its callback
cdef class FutureResult(OutcomeReceiver):
    """Sets the outcome of one record's future."""

    cdef FutureResults results
    cdef object future

    cdef int receive(self, object metadata, object error) except -1:
        self.results.give(self.future, metadata, error)
        return 0


def encoded_headers(content_type, headers not None):
    """Return the headers of a FastStream message as pairs of str and bytes.

    Args:
        content_type: value of the first header, "content-type", unless `headers` contains it. None
            is sent as an empty value.
        headers: mapping from names to str or None.
    """
    # `headers` is not always a dict: `a_dict | mapping` may return the type of `mapping`.
    cdef dict by_name = headers if type(headers) is dict else dict(headers)
    cdef list pairs = []
    cdef object name, value
    pairs.append(("content-type", _encoded(by_name.get("content-type", content_type))))
    for name, value in by_name.items():
        if name != "content-type":
            pairs.append((name, _encoded(value)))
    return pairs


cdef object _encoded(object value):
    if type(value) is str:
        return PyUnicode_AsUTF8String(value)
    return (value or "").encode()


def size_of_bytes(bodies not None):
    """Return the total length of the bodies in bytes, or -1 if a body is not exactly `bytes`."""
    cdef Py_ssize_t total = 0
    cdef object body
    for body in bodies:
        if type(body) is not bytes:
            return -1
        total += PyBytes_GET_SIZE(body)
    return total


cdef const char* DIGITS = "0123456789abcdef"


def random_uuid():
    """Return a random UUID (RFC 9562, version 4) as text, like FastStream's `gen_cor_id`."""
    cdef bytes octets = urandom(16)
    cdef const unsigned char* octet = octets
    cdef char[36] text
    cdef int i, value, end = 0
    for i in range(16):
        value = octet[i]
        if i == 6:
            value = value & 0x0F | 0x40  # version
        elif i == 8:
            value = value & 0x3F | 0x80  # variant
        if i in (4, 6, 8, 10):
            text[end] = b"-"
            end += 1
        text[end] = DIGITS[value >> 4]
        text[end + 1] = DIGITS[value & 15]
        end += 2
    return PyUnicode_DecodeASCII(text, 36, NULL)
