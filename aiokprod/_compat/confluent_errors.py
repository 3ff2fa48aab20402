"""Converts aiokprod's errors to confluent-kafka-python's `KafkaException`.

If confluent-kafka is installed, an error that `AIOProducer` raises is an instance of both
aiokprod's class and `confluent_kafka.KafkaException`, and ``error.args[0]`` is a
`confluent_kafka.KafkaError` with librdkafka's code. Otherwise errors are not converted.
"""

from __future__ import annotations

from typing import Any, Final

from aiokprod.errors import (
    AbortableTransactionError,
    AuthenticationError,
    BufferFull,
    BufferTimeout,
    DeliveryTimeout,
    FatalTransactionError,
    KafkaError,
    KafkaTimeout,
    MetadataTimeout,
    NetworkError,
    ProducerClosed,
    ProducerFailed,
    ProducerFenced,
    RecordTooLarge,
    SerializationError,
    TransactionError,
)

try:
    import confluent_kafka as theirs
except ImportError:  # pragma: no cover
    theirs = None

CODES: Final[dict[type[KafkaError], str]] = {
    RecordTooLarge: "MSG_SIZE_TOO_LARGE",
    MetadataTimeout: "_UNKNOWN_TOPIC",
    BufferFull: "_QUEUE_FULL",
    BufferTimeout: "_QUEUE_FULL",
    DeliveryTimeout: "_MSG_TIMED_OUT",
    KafkaTimeout: "_TIMED_OUT",
    AuthenticationError: "_AUTHENTICATION",
    NetworkError: "_TRANSPORT",
    SerializationError: "_INVALID_ARG",
    ProducerFenced: "_FENCED",
    ProducerFailed: "_FATAL",
    FatalTransactionError: "_FATAL",
    ProducerClosed: "_DESTROY",
    TransactionError: "_STATE",
}
"""librdkafka's code for errors without a broker's error code. The first matching row applies."""


def _number(error: KafkaError) -> int:
    if isinstance(error, ProducerFenced):
        return int(theirs.KafkaError._FENCED)
    if error.code is not None:
        return error.code.number
    for ours, name in CODES.items():
        if isinstance(error, ours):
            return int(getattr(theirs.KafkaError, name))
    return int(theirs.KafkaError._FAIL)


def their_error(error: KafkaError) -> Any:
    """Return the `confluent_kafka.KafkaError` for `error`, or `error` without confluent-kafka."""
    if theirs is None:
        return error
    return theirs.KafkaError(
        _number(error),
        error.message,
        fatal=isinstance(error, (FatalTransactionError, ProducerFailed)),
        retriable=error.retriable,
        txn_requires_abort=isinstance(error, AbortableTransactionError),
    )


_joined: Final[dict[type[KafkaError], type[KafkaError]]] = {}


def _class_of_both(ours: type[KafkaError]) -> type[KafkaError]:
    found = _joined.get(ours)
    if found is None:
        attributes = {"__module__": "aiokprod.compat.confluent", "__reduce__": _reduce}
        found = _joined[ours] = type(ours.__name__, (ours, theirs.KafkaException), attributes)
    return found


def _reduce(error: KafkaError) -> tuple[Any, ...]:
    """Pickle aiokprod's error, because `confluent_kafka.KafkaError` cannot be pickled reliably."""
    ours: type[KafkaError] = type(error).__bases__[0]
    plain = ours.__new__(ours)
    plain.args = (error.message,)
    plain.__dict__.update(error.__dict__)
    return as_theirs, (plain,)


def as_theirs(error: KafkaError) -> KafkaError:
    """Return an equal error that is also a `confluent_kafka.KafkaException`, with a `KafkaError` in
    `args`. Return `error` if it already is a KafkaException, or without confluent-kafka."""
    if theirs is None or isinstance(error, theirs.KafkaException):
        return error
    cls = _class_of_both(type(error))
    fresh = cls.__new__(cls)
    fresh.args = (their_error(error),)
    fresh.__dict__.update(error.__dict__)
    fresh.__cause__ = error.__cause__
    fresh.__suppress_context__ = True
    return fresh
