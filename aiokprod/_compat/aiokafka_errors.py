"""Converts aiokprod's errors to errors of aiokafka.

An error that a compatible producer raises is an instance of aiokprod's class. If aiokafka is
installed, it is also an instance of the class that aiokafka raises in this situation, so `except`
clauses for both packages match. Attributes (`outcome`, `code`, …) are those of the original error.
"""

from __future__ import annotations

from typing import Any, Final

from aiokprod.errors import (
    AbortableTransactionError,
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    BufferFull,
    BufferTimeout,
    Code,
    ConfigError,
    DecodeError,
    DeliveryTimeout,
    FatalTransactionError,
    InvalidTopic,
    KafkaError,
    KafkaTimeout,
    MetadataTimeout,
    NetworkError,
    ProducerClosed,
    ProducerFailed,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    SerializationError,
    TransactionError,
    UnknownTopic,
    UnsupportedVersion,
)

try:
    import aiokafka.errors as theirs
except ImportError:  # pragma: no cover
    theirs = None

CLASSES: Final[dict[type[KafkaError], str]] = {
    MetadataTimeout: "UnknownTopicOrPartitionError",
    BufferTimeout: "KafkaTimeoutError",
    BufferFull: "KafkaTimeoutError",
    DeliveryTimeout: "KafkaTimeoutError",
    KafkaTimeout: "KafkaTimeoutError",
    RequestTimedOut: "RequestTimedOutError",
    NetworkError: "KafkaConnectionError",
    RecordTooLarge: "MessageSizeTooLargeError",
    AuthenticationError: "AuthenticationFailedError",
    AuthorizationError: "TopicAuthorizationFailedError",
    UnknownTopic: "UnknownTopicOrPartitionError",
    InvalidTopic: "InvalidTopicError",
    UnsupportedVersion: "UnsupportedVersionError",
    DecodeError: "KafkaProtocolError",
    ProducerFenced: "ProducerFenced",
    ProducerClosed: "ProducerClosed",
    ProducerFailed: "KafkaError",
    BrokerError: "BrokerResponseError",
    AbortableTransactionError: "KafkaError",
    FatalTransactionError: "KafkaError",
    TransactionError: "IllegalOperation",
    KafkaError: "KafkaError",
}
"""aiokafka's class for errors without a broker's error code. The first matching row applies.

A `SerializationError` also becomes a `TypeError`, which aiokafka raises for a key or value that is
not bytes.
"""

_BY_CODE: Final = (BrokerError, TransactionError)
"""Classes whose errors are converted by error code: `aiokafka.errors.for_code` returns a class for
each code."""


def their_class(error: KafkaError) -> type[Exception] | None:
    """Return the class that aiokafka raises in the situation of `error`, or None if there is no
    such class or aiokafka is not installed."""
    if isinstance(error, SerializationError):
        return TypeError
    if theirs is None:
        return None
    code = error.code
    if code is not None and code.number == Code.INVALID_PRODUCER_EPOCH:
        fenced: type[Exception] = theirs.ProducerFenced  # aiokafka uses it for this code too
        return fenced
    if code is not None and isinstance(error, _BY_CODE) and not isinstance(error, ProducerFenced):
        coded: type[Exception] = theirs.for_code(code.number)
        if coded is not theirs.UnknownError or code.number == -1:
            return coded
    if isinstance(error, ConfigError):
        return None  # a ValueError, which aiokafka raises too
    for ours, name in CLASSES.items():
        if isinstance(error, ours):
            found: type[Exception] = getattr(theirs, name)
            return found
    return None


def _rebuild(ours: type[KafkaError], other: type[Exception], args: tuple[Any, ...]) -> KafkaError:
    cls = _class_of_both(ours, other)
    error = cls.__new__(cls)
    error.args = args
    return error


def _reduce(error: KafkaError) -> tuple[Any, ...]:
    """`__reduce__` of the joined classes, which pickle cannot import by name."""
    ours, other = type(error).__bases__
    _, (_, args), state = KafkaError.__reduce__(error)
    return _rebuild, (ours, other, args), state


_joined: Final[dict[tuple[type[KafkaError], type[Exception]], type[KafkaError]]] = {}


def _class_of_both(ours: type[KafkaError], other: type[Exception]) -> type[KafkaError]:
    found = _joined.get((ours, other))
    if found is None:
        attributes = {"__module__": "aiokprod.compat.aiokafka", "__reduce__": _reduce}
        found = _joined[ours, other] = type(other.__name__, (ours, other), attributes)
    return found


def as_theirs(error: KafkaError) -> KafkaError:
    """Return a copy of `error` that is also an instance of the corresponding aiokafka class, or
    `error` itself if it already is one or if aiokafka has no corresponding class."""
    other = their_class(error)
    if other is None or isinstance(error, other):
        return error
    cls = _class_of_both(type(error), other)
    fresh = cls.__new__(cls)
    fresh.args = error.args
    fresh.__dict__.update(error.__dict__)
    fresh.__cause__ = error.__cause__
    fresh.__suppress_context__ = True
    return fresh
