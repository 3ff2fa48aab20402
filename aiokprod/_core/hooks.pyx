# cython: language_level=3
"""Calls a producer's interceptors and plug-ins, for both the fast path and the slow path.

A `HookedRecord` represents a record until the record is in a batch. From then on the batch stores
tokens for the record (`BatchCore.add_token`) and passes them to the hooks with the outcome.

Source: Java `ProducerInterceptors`, `KafkaProducer.AppendCallbacks`.
"""

cimport cython

from aiokprod._core.batch cimport S_ACKNOWLEDGED, BatchCore, Delivery, RecordMetadata

cdef extern from "Python.h":
    int PyObject_GenericSetAttr(object, object, object) except -1

cdef enum:
    OF_INTERCEPTORS = 0    # index of the interceptors' token list
    FIRST_PLUGIN = 1       # index of the first plug-in's token list; each plug-in has one list

cdef object new_object = object.__new__


cdef class InterceptorCalls:
    """Calls interceptors in order.

    Derived classes define `check(record)`, which raises for a record that cannot be sent, and
    `failed(interceptor, method, error)`, which logs an exception.

    Args:
        interceptors: the interceptors, in the order of the calls.
        headers_wanted: for each interceptor, whether its `on_acknowledgement` has a parameter
            `headers`.
        record_type: the class of records, a dataclass with slots.
    """

    def __init__(self, tuple interceptors not None, tuple headers_wanted not None, record_type):
        if len(interceptors) != len(headers_wanted):
            raise ValueError("headers_wanted must have one entry per interceptor")
        self.interceptors = interceptors
        self.headers_wanted = headers_wanted
        self.record_type = record_type

    def __bool__(self):
        return bool(self.interceptors)

    def on_send(self, record):
        """Pass the record through all interceptors and return the result. An interceptor that
        raises or does not return a valid record is skipped: the next interceptor gets the previous
        record."""
        cdef HookedRecord hooked = HookedRecord.__new__(HookedRecord)
        self.pass_on(record, hooked)
        return hooked.record

    def on_acknowledgement(self, metadata, error, headers=()):
        """Call all interceptors, even if some of them fail."""
        self.acknowledge(metadata, error, headers, len(self.interceptors), None)

    @cython.nonecheck(True)
    cdef int pass_on(self, object record, HookedRecord hooked) except -1:
        """Pass the record through all interceptors. Store the result and the number of interceptors
        called in `hooked`."""
        hooked.record = record
        for interceptor in self.interceptors:
            hooked.interceptors_called += 1
            try:
                changed = interceptor.on_send(record)
                if changed is not record:
                    if not isinstance(changed, self.record_type):
                        raise TypeError(
                            f"on_send returned {type(changed).__name__} instead of a ProducerRecord"
                        )
                    self.check(changed)
            except Exception as error:
                self.failed(interceptor, "on_send", error)
            else:
                hooked.record = record = changed
        return 0

    @cython.nonecheck(True)
    cdef int acknowledge(self, object metadata, object error, object headers, Py_ssize_t count,
                         object loop) except -1:
        """Report an outcome to the first `count` interceptors, even if some of them raise; see
        `interrupted`."""
        cdef Py_ssize_t i
        for i in range(count):
            interceptor = self.interceptors[i]
            try:
                try:
                    if self.headers_wanted[i]:
                        interceptor.on_acknowledgement(metadata, error, headers=headers)
                    else:
                        interceptor.on_acknowledgement(metadata, error)
                except Exception as failure:
                    self.failed(interceptor, "on_acknowledgement", failure)
            except BaseException as interrupt:
                interrupted(loop, "an interceptor", interrupt)
        return 0


cdef int interrupted(object loop, str what, object error) except -1:
    """Pass an exception such as KeyboardInterrupt, raised while an outcome was reported, to the
    loop's exception handler, so that reporting continues. Without a loop, raise it."""
    if loop is None:
        raise error
    context = {"message": f"aiokprod: {what} was interrupted", "exception": error}
    try:
        # The handler is not called here, because a SystemExit raised by it would stop reporting.
        loop.call_soon(loop.call_exception_handler, context)
    except RuntimeError:  # the loop is closed
        loop.default_exception_handler(context)  # logs the error
    return 0


cdef class HookCalls:
    """Calls the interceptors and plug-ins of a producer.

    Derived classes define:

    - `refused(topic, partition, record, error)`: reports a `SerializedRecord` that failed before it
      was in a batch;
    - `given_up(hooked, error)`: reports a record whose interceptor raised an exception such as
      KeyboardInterrupt;
    - `dropped(hooked)`: reports a record whose call was deleted before it ended;
    - `withdrawn_error(topic, partition)`: returns the error of a withdrawn record;
    - `failed(plugin, method, error)`: logs an exception;
    - `check_headers(headers)`: raises if the headers are not valid.

    If `on_send` or `on_append` raises a BaseException such as KeyboardInterrupt, the exception is
    raised to the caller, and the record is refused. If a method that receives an outcome raises
    such an exception, it is passed to the loop's exception handler, and reporting continues.

    Attributes:
        loop: the producer's loop once the producer has started, else None.
        interceptors: the interceptors, or None.
        plugins: objects with the methods of `RecordPlugin`.
        called: True if there are interceptors or plug-ins.
    """

    def __init__(self, InterceptorCalls interceptors, tuple plugins not None):
        self.interceptors = interceptors
        self.plugins = plugins
        self.called = interceptors is not None or len(plugins) > 0

    def start(self, record not None):
        """Call `on_send` of the interceptors. Return None if there are neither interceptors nor
        plug-ins."""
        return self.started(record, record.topic, record.partition) if self.called else None

    cdef HookedRecord started(self, object record, object topic, object partition):
        cdef HookedRecord hooked = HookedRecord.__new__(HookedRecord)
        hooked.topic = topic
        hooked.partition = partition
        if record is not None:
            hooked.headers = record.headers
        hooked.hooks = self
        if self.interceptors is None:
            return hooked
        try:
            self.interceptors.pass_on(record, hooked)
        except BaseException as error:
            self.given_up(hooked, error)
            raise
        record = hooked.record
        hooked.topic = record.topic
        hooked.partition = record.partition
        hooked.headers = record.headers
        return hooked

    cdef HookedRecord begin(self, object topic, object value, object key, object partition,
                            object timestamp_ms, object headers):
        """Like `start`, but for the checked fields of a record."""
        cdef object record
        cdef HookedRecord hooked
        if self.interceptors is None:
            hooked = self.started(None, topic, partition)
            hooked.headers = headers
            return hooked
        record = new_object(self.interceptors.record_type)
        PyObject_GenericSetAttr(record, "topic", topic)
        PyObject_GenericSetAttr(record, "value", value)
        PyObject_GenericSetAttr(record, "key", key)
        PyObject_GenericSetAttr(record, "partition", partition)
        PyObject_GenericSetAttr(record, "timestamp_ms", timestamp_ms)
        PyObject_GenericSetAttr(record, "headers", () if headers is None else list(headers))
        return self.started(record, topic, partition)

    @cython.nonecheck(True)
    cdef object call_plugins(self, HookedRecord hooked, object value, object key, object headers):
        """Call `on_append` of all plug-ins and return the resulting headers."""
        cdef Py_ssize_t number
        cdef tuple given, result
        if not self.plugins:
            hooked.headers = headers
            return headers
        given = () if headers is None else tuple(headers)
        for number in range(len(self.plugins)):
            plugin = self.plugins[number]
            hooked.plugins_called = number + 1
            try:
                found = plugin.on_append(hooked.topic, key, value, given)
                if found is None:
                    continue
                if type(found) is not tuple or len(<tuple>found) != 2:
                    raise TypeError(f"on_append returned {type(found).__name__} instead of "
                                    "(headers, token)")
                result = <tuple>found
                if result[0] is not given:
                    changed = tuple(result[0])
                    self.check_headers(changed)
                    given = changed
                if result[1] is not None:
                    if hooked.tokens is None:
                        hooked.tokens = [None] * len(self.plugins)
                    hooked.tokens[number] = result[1]
            except Exception as error:
                self.failed(plugin, "on_append", error)
        hooked.headers = given
        return given

    cdef int attach(self, HookedRecord hooked, Delivery delivery, object headers) except -1:
        """Store the record's tokens in its batch, so that the batch reports the outcome."""
        cdef BatchCore core = delivery.core
        cdef SentRecord sent
        cdef Py_ssize_t number
        hooked.hooks = None
        try:
            if self.interceptors is not None:
                sent = SentRecord.__new__(SentRecord)
                sent.timestamp = delivery.timestamp
                sent.key_size = delivery.key_size
                sent.value_size = delivery.value_size
                sent.headers = () if headers is None else tuple(headers)
                core.add_token(self, OF_INTERCEPTORS, delivery.index, sent)
            if hooked.tokens is not None:
                for number in range(len(hooked.tokens)):
                    if hooked.tokens[number] is not None:
                        core.add_token(self, FIRST_PLUGIN + number, delivery.index,
                                       hooked.tokens[number])
        except BaseException:  # no memory: the caller withdraws and reports the record
            core.pull_tokens(delivery.index)
            hooked.hooks = self
            raise
        return 0

    @cython.nonecheck(True)
    def settled(self, BatchCore core not None, list tokens not None, view):
        """Report the outcome of a batch to the hooks of its records; see `BatchCore.add_token`.

        Args:
            view: passed to plug-ins as the batch; None if the batch failed while a record was
                appended.
        """
        cdef Py_ssize_t number
        if self.interceptors is not None:
            self.settle_intercepted(core, tokens[OF_INTERCEPTORS])
        for number in range(FIRST_PLUGIN, len(tokens)):
            if tokens[number]:
                self.settle_plugin(self.plugins[number - FIRST_PLUGIN], core, tokens[number], view)

    @cython.nonecheck(True)
    cdef int settle_intercepted(self, BatchCore core, list pairs) except -1:
        cdef SentRecord sent
        cdef RecordMetadata metadata
        cdef Py_ssize_t index
        for index, sent in pairs:
            try:
                if core.state == S_ACKNOWLEDGED:
                    metadata = RecordMetadata.__new__(RecordMetadata)
                    metadata.topic = core.topic
                    metadata.partition = core.partition
                    metadata.offset = core.base_offset + index if core.base_offset >= 0 else None
                    metadata.timestamp_ms = (core.log_append_time if core.log_append_time >= 0
                                             else sent.timestamp)
                    metadata.serialized_key_size = sent.key_size
                    metadata.serialized_value_size = sent.value_size
                    self.acknowledge(metadata, None, sent.headers, core.loop)
                else:
                    self.acknowledge(None, core.error_of(<int32_t>index), sent.headers, core.loop)
            except BaseException as error:  # for example a MemoryError
                interrupted(core.loop, "an interceptor", error)
        return 0

    cdef int settle_plugin(self, object plugin, BatchCore core, list pairs, object view) except -1:
        """Report the outcome of all records with a token of this plug-in."""
        cdef list common = pairs
        base_offset = core.base_offset if core.base_offset >= 0 else None
        own = core.record_errors
        if view is None:
            for index, token in pairs:
                self.unsent(plugin, core.topic, core.partition, token, core.error_of(index),
                            core.loop)
            return 0
        if own:
            common = [pair for pair in pairs if pair[0] not in own]
        if common:
            error = None if core.state == S_ACKNOWLEDGED else core.error_of(common[0][0])
            self.settle_batch(plugin, core, view, common, base_offset, error)
        if own:
            for pair in pairs:
                if pair[0] in own:
                    self.settle_batch(plugin, core, view, [pair], None, core.error_of(pair[0]))
        return 0

    cdef int settle_batch(self, object plugin, BatchCore core, object view, list pairs,
                          object base_offset, object error) except -1:
        try:
            try:
                plugin.on_batch_settled(view, pairs, base_offset, error)
            except Exception as failure:
                self.failed(plugin, "on_batch_settled", failure)
        except BaseException as interrupt:
            interrupted(core.loop, "a plug-in", interrupt)
        return 0

    cdef int unsent(self, object plugin, object topic, object partition, object token,
                    object error, object loop) except -1:
        try:
            try:
                plugin.on_record_unsent(topic, partition, token, error)
            except Exception as failure:
                self.failed(plugin, "on_record_unsent", failure)
        except BaseException as interrupt:
            interrupted(loop, "a plug-in", interrupt)
        return 0

    @cython.nonecheck(True)
    cdef int acknowledge(self, object metadata, object error, object headers,
                         object loop) except -1:
        """Report an outcome to all interceptors."""
        self.interceptors.acknowledge(metadata, error, headers,
                                      len(self.interceptors.interceptors), loop)
        return 0

    @cython.nonecheck(True)
    def withdrawn(self, BatchCore core not None, list tokens not None):
        """Report a record that was withdrawn from its batch. `tokens` has (number, token) pairs."""
        cdef SentRecord sent
        cdef Py_ssize_t number
        error = self.withdrawn_error(core.topic, core.partition)
        for number, token in tokens:
            if number == OF_INTERCEPTORS:
                sent = token
                self.acknowledge(None, error, sent.headers, core.loop)
            else:
                self.unsent(self.plugins[number - FIRST_PLUGIN], core.topic, core.partition, token,
                            error, core.loop)

    @cython.nonecheck(True)
    def end(self, HookedRecord hooked not None, topic, partition, error):
        """Report a record that failed before it was in a batch, unless it was already reported or
        its batch will report it."""
        cdef Py_ssize_t number
        if hooked.hooks is None:
            return
        hooked.hooks = None
        if self.interceptors is not None:
            self.interceptors.acknowledge(None, error, tuple(hooked.headers or ()),
                                          hooked.interceptors_called, self.loop)
        for number in range(len(self.plugins)):
            token = None if hooked.tokens is None else hooked.tokens[number]
            if token is not None or number >= hooked.plugins_called:
                self.unsent(self.plugins[number], topic, partition, token, error, self.loop)


cdef class HookedRecord:
    """A record that interceptors or plug-ins may have received and that is not in a batch yet.

    A record that has not been reported when this object is deleted is reported as failed, for
    example if its coroutine was cancelled before it ran.

    Attributes:
        record: the record as the interceptors returned it; None without interceptors.
        topic, partition: topic and partition of the record.
        headers: the headers of the record, and those that serializers and plug-ins have added so
            far.
        interceptors_called: number of interceptors whose `on_send` was called.
        plugins_called: number of plug-ins whose `on_append` was called.
    """

    def append_headers(self, value, key, headers):
        """Call `on_append` of the plug-ins unless it was already called, and return the headers to
        send."""
        if self.plugins_called or self.hooks is None:
            return self.headers
        return self.hooks.call_plugins(self, value, key, headers)

    def __del__(self):
        if self.hooks is not None:
            self.hooks.dropped(self)


@cython.freelist(256)
@cython.no_gc
cdef class SentRecord:
    """The interceptors' token of a record: the data for `on_acknowledgement` except topic,
    partition and offset."""
