"""The exception tree: one class for each way a caller may want to react.

    KafkaError
    ├── ConfigError (ValueError)        fix the configuration
    ├── SerializationError (ValueError) fix the record
    ├── RecordTooLarge (ValueError)     fix the record
    ├── WouldBlock                      wait or shed load
    │   ├── BufferFull
    │   ├── MetadataMissing
    │   └── SchemaMissing
    ├── KafkaTimeout (TimeoutError)     check `.outcome`, then send again
    │   ├── MetadataTimeout
    │   ├── BufferTimeout
    │   └── DeliveryTimeout
    ├── NetworkError (OSError)          usually retried by the producer
    │   ├── DialError
    │   ├── Disconnected
    │   └── RequestTimedOut
    ├── ProtocolError                   report a bug or an old broker
    │   ├── DecodeError
    │   ├── FrameTooLarge
    │   ├── CorrelationMismatch
    │   └── UnsupportedVersion
    ├── AuthenticationError             fix the credentials
    ├── BrokerError                     read `.code`
    │   ├── AuthorizationError
    │   ├── UnknownTopic
    │   ├── InvalidTopic
    │   └── RecordRejected
    ├── TransactionError
    │   ├── AbortableTransactionError   abort, then continue
    │   └── FatalTransactionError       close
    │       └── ProducerFenced
    ├── ProducerClosed, WrongLoop, ForkedProcess   fix the program
    └── ProducerFailed, NotReady        a bug in aiokprod; the cause is chained

Every instance has `.outcome` (whether the record can be in the log), `.retriable` and `.code` (None
unless a broker or the client assigned an error code).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Self

from aiokprod._errors import Code, ErrorCode, Outcome, error_code

__all__ = [
    "AbortableTransactionError",
    "AuthenticationError",
    "AuthorizationError",
    "BrokerError",
    "BufferFull",
    "BufferTimeout",
    "Code",
    "ConfigError",
    "CorrelationMismatch",
    "DecodeError",
    "DeliveryTimeout",
    "DialError",
    "Disconnected",
    "ErrorCode",
    "FatalTransactionError",
    "ForkedProcess",
    "FrameTooLarge",
    "InvalidTopic",
    "KafkaError",
    "KafkaTimeout",
    "MetadataMissing",
    "MetadataTimeout",
    "NetworkError",
    "NotReady",
    "Outcome",
    "ProducerClosed",
    "ProducerFailed",
    "ProducerFenced",
    "ProtocolError",
    "RecordRejected",
    "RecordTooLarge",
    "RequestTimedOut",
    "SchemaMissing",
    "SerializationError",
    "TransactionError",
    "UnknownTopic",
    "UnsupportedVersion",
    "WouldBlock",
    "WrongLoop",
    "broker_error",
    "error_code",
]

REJECTED_WITH_BATCH: Final = "rejected because other records of its batch are invalid"
"""The error text of a valid record whose batch contained an invalid record (KIP-467)."""


class KafkaError(Exception):
    """Base class of all errors that this package raises deliberately.

    Args:
        message: the text, without the code.
        code: row of the error table; None for the default of the class.
        outcome, retriable: None for the value of the code, or of the class if no code is given.

    The properties are read-only, because several tasks may hold the same error. `with_` returns a
    changed copy, and `copy` returns a copy for another task. Both copy the attributes of the
    instance without calling `__init__`, so that subclasses may define `__init__` with other
    arguments.

    Errors are pickled with their attributes, and with their cause if it is a `KafkaError`. Other
    causes are dropped, because not every exception can be pickled. Tracebacks are not pickled.
    """

    default_outcome: ClassVar[Outcome] = Outcome.UNKNOWN
    default_retriable: ClassVar[bool] = False
    default_code: ClassVar[Code | None] = None

    # Two underscores cause name mangling, which avoids collisions with attributes of subclasses.
    __topic: str | None = None
    __partition: int | None = None

    def __init__(
        self,
        message: str,
        *,
        code: ErrorCode | None = None,
        outcome: Outcome | None = None,
        retriable: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.__message = message
        given_code = code is not None
        if code is None and self.default_code is not None:
            code = error_code(self.default_code)
        self.__code = code
        if outcome is None:
            outcome = code.outcome if code is not None and given_code else self.default_outcome
        if retriable is None:
            retriable = (
                code.retriable if code is not None and given_code else self.default_retriable
            )
        self.__outcome = outcome
        self.__retriable = retriable

    @property
    def message(self) -> str:
        """The text, without the code."""
        return self.__message

    @property
    def code(self) -> ErrorCode | None:
        """Row of the error table, or None if the failure has no error code."""
        return self.__code

    @property
    def outcome(self) -> Outcome:
        """The outcome: whether the record can be in the log. NOT_SENT and REJECTED are safe to
        resend."""
        return self.__outcome

    @property
    def retriable(self) -> bool:
        """True if the same call may succeed later. Check `outcome` first: if it is UNKNOWN, a
        repeated call may store the record twice."""
        return self.__retriable

    @property
    def topic(self) -> str | None:
        """Topic of the record that failed; None if the error does not concern a single record."""
        return self.__topic

    @property
    def partition(self) -> int | None:
        """Partition of the record that failed; None if the error does not concern a single record,
        or if no partition was chosen yet."""
        return self.__partition

    def __str__(self) -> str:
        code = self.__code
        return self.__message if code is None else f"{self.__message} [{code.name}]"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__message!r}, outcome={self.__outcome.value})"

    def with_(
        self,
        *,
        message: str | None = None,
        outcome: Outcome | None = None,
        retriable: bool | None = None,
        topic: str | None = None,
        partition: int | None = None,
    ) -> Self:
        """Return a copy of this error with other values, to be raised instead of this error.

        Class, code, other attributes, notes, cause, context and traceback stay the same.

        Args:
            message, outcome, retriable: None keeps the value.
            topic, partition: topic and partition of the record that failed. A new topic also
                replaces the partition.
        """
        fresh = self.__clone(topic, partition)
        if message is not None:
            fresh.args = (message,)
            fresh.__message = message
        if outcome is not None:
            fresh.__outcome = outcome
        if retriable is not None:
            fresh.__retriable = retriable
        fresh.__cause__ = self.__cause__
        fresh.__context__ = self.__context__
        fresh.__suppress_context__ = self.__suppress_context__
        fresh.__traceback__ = self.__traceback__
        return fresh

    def copy(self, *, topic: str | None = None, partition: int | None = None) -> Self:
        """Return an equal error without traceback, whose `__cause__` is this error.

        Each task that waits for the same batch, connection or producer gets its own copy. Raising
        one instance in several tasks would mix their tracebacks and contexts, and keep all their
        frames alive.

        Args:
            topic, partition: topic and partition of the task's record; see `with_`.
        """
        fresh = self.__clone(topic, partition)
        fresh.__cause__ = self
        return fresh

    def __clone(self, topic: str | None, partition: int | None) -> Self:
        cls = type(self)
        fresh = cls.__new__(cls)
        fresh.args = self.args
        state = fresh.__dict__
        state.update(self.__dict__)
        if "__notes__" in state:
            fresh.__notes__ = list(self.__notes__)
        if topic is not None:
            fresh.__topic = topic
            fresh.__partition = partition
        elif partition is not None:
            fresh.__partition = partition
        return fresh

    def __copy__(self) -> Self:
        return self.with_()

    def __reduce__(self) -> tuple[Any, ...]:
        cause = self.__cause__ if isinstance(self.__cause__, KafkaError) else None
        return _blank, (type(self), self.args), (self.__dict__, cause, self.__suppress_context__)

    def __setstate__(self, state: Any) -> None:
        attributes, cause, suppress = state
        self.__dict__.update(attributes)
        self.__cause__ = cause
        self.__suppress_context__ = suppress


def _blank(cls: type[KafkaError], args: tuple[Any, ...]) -> KafkaError:
    """Return an instance without attributes. `__init__` is not called, because that of a subclass
    may take other arguments."""
    error = cls.__new__(cls)
    error.args = args
    return error


class ConfigError(KafkaError, ValueError):
    """A setting or an argument is invalid; the message names it, its value and how to fix it."""

    default_outcome = Outcome.NOT_SENT


class SerializationError(KafkaError, ValueError):
    """A serializer failed on a key or value; the record was not appended."""

    default_outcome = Outcome.NOT_SENT


class RecordTooLarge(KafkaError, ValueError):
    """The record exceeds a limit of the client (NOT_SENT) or of the topic (REJECTED)."""

    default_outcome = Outcome.NOT_SENT


class WouldBlock(KafkaError):
    """`try_submit` cannot append the record without waiting."""

    default_outcome = Outcome.NOT_SENT
    default_retriable = True


class BufferFull(WouldBlock):
    """`buffer_memory` is exhausted at the moment."""


class MetadataMissing(WouldBlock):
    """The topic's metadata is not known yet; a fetch has been requested."""


class SchemaMissing(WouldBlock):
    """The schema id of a serializer is not known yet; a request has been sent to the Schema
    Registry."""


class KafkaTimeout(KafkaError, TimeoutError):
    """A deadline of the caller or of the configuration passed."""

    default_retriable = True


class MetadataTimeout(KafkaTimeout):
    """Topic or partition did not appear in the metadata in time; the record was not appended."""

    default_outcome = Outcome.NOT_SENT


class BufferTimeout(KafkaTimeout):
    """No buffer memory became free in time; the record was not appended."""

    default_outcome = Outcome.NOT_SENT


class DeliveryTimeout(KafkaTimeout):
    """`delivery_timeout_ms` passed; `.outcome` is NOT_SENT only if no byte was written."""


class NetworkError(KafkaError, OSError):
    """A connection failed. The producer retries it, so callers rarely see this error."""

    default_retriable = True


class DialError(NetworkError):
    """Name resolution or connecting failed."""

    default_outcome = Outcome.NOT_SENT


class Disconnected(NetworkError):
    """The connection ended before the response arrived."""

    default_code = Code.NETWORK_EXCEPTION


class RequestTimedOut(NetworkError):
    """No response arrived within `request_timeout_ms`; the connection was closed."""

    default_code = Code.REQUEST_TIMED_OUT


class ProtocolError(KafkaError):
    """The broker violated the protocol, or client and broker share no version of a request."""


class DecodeError(ProtocolError):
    """Received bytes do not match the schema of the message."""


class FrameTooLarge(ProtocolError):
    """The length prefix of a frame exceeds `receive_max_bytes`."""


class CorrelationMismatch(ProtocolError):
    """The correlation id of a response is not that of the connection's oldest request."""


class UnsupportedVersion(ProtocolError):
    """Broker and client share no version of a request, or a field needs a newer version."""

    default_outcome = Outcome.NOT_SENT
    default_code = Code.UNSUPPORTED_VERSION


class AuthenticationError(KafkaError):
    """The TLS handshake or the SASL authentication failed."""

    default_outcome = Outcome.NOT_SENT


class BrokerError(KafkaError):
    """A broker responded with an error code; see `.code`."""


class AuthorizationError(BrokerError):
    """The principal lacks a permission; calls succeed again once the ACL is granted."""

    default_outcome = Outcome.REJECTED


class UnknownTopic(BrokerError):
    """The topic, partition or topic id does not exist on the broker that the metadata names."""

    default_retriable = True


class InvalidTopic(BrokerError):
    """The topic's name is not allowed."""

    default_outcome = Outcome.REJECTED


class RecordRejected(BrokerError):
    """The broker rejected the content of records: timestamp, format, policy or validation."""

    default_outcome = Outcome.REJECTED


class TransactionError(KafkaError):
    """A transactional call failed."""


class AbortableTransactionError(TransactionError):
    """The transaction must be aborted; the producer stays usable."""


class FatalTransactionError(TransactionError):
    """The producer can no longer be used; close it."""


class ProducerFenced(FatalTransactionError):
    """Another producer with the same transactional id took over."""

    default_outcome = Outcome.REJECTED
    default_code = Code.PRODUCER_FENCED


class ProducerClosed(KafkaError):
    """The producer was closed before or during the call."""

    default_outcome = Outcome.NOT_SENT


class WrongLoop(KafkaError):
    """The producer belongs to another event loop."""

    default_outcome = Outcome.NOT_SENT


class ForkedProcess(KafkaError):
    """The producer was created in the parent process; its sockets must not be shared."""

    default_outcome = Outcome.NOT_SENT


class ProducerFailed(KafkaError):
    """A background task of the producer failed with the chained cause; create a new producer.

    `.outcome` is NOT_SENT for records that no request contained; otherwise it is the outcome of the
    record's last request.
    """

    default_outcome = Outcome.NOT_SENT


class NotReady(KafkaError):
    """A request was passed to a connection that cannot accept it: a bug in this package."""

    default_outcome = Outcome.NOT_SENT


_CLASS_OF: Final[dict[str, type[KafkaError]]] = {
    code.row.exception: globals()[code.row.exception] for code in Code
}


def broker_error(number: int, message: str, *, outcome: Outcome | None = None) -> KafkaError:
    """Return the exception for an error code in a broker's response.

    The message should name the topic-partition, broker, attempts and elapsed time; the meaning of
    the code is appended. Codes without a special class become a `BrokerError`.
    """
    code = error_code(number)
    cls = _CLASS_OF[code.exception]
    return cls(f"{message}: {code.text}", code=code, outcome=outcome)
