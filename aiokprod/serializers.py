"""Serializers, which convert keys and values to bytes.

A serializer is an object with `serialize(topic, headers, data)`, or any callable `(data) -> bytes`.
It may be asynchronous (schema registries) and runs before memory is reserved. It is never called
with `None`: a null key or value is sent as null.

Source: Java `Serializer`, `KafkaProducer.doSend`.
"""

from __future__ import annotations

import inspect
import json
import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from aiokprod.errors import ConfigError, SerializationError
from aiokprod.records import Header

T_contra = TypeVar("T_contra", contravariant=True)

Serialized: TypeAlias = bytes | None
Field: TypeAlias = Literal["key", "value"]


@runtime_checkable
class Serializer(Protocol[T_contra]):
    """Converts keys or values of one type to bytes.

    May also have `configure(config)` and `close()`, each called once by the producer.
    """

    def serialize(
        self, topic: str, headers: Sequence[Header], data: T_contra
    ) -> Serialized | Awaitable[Serialized]:
        """Return the bytes, None for null, or an awaitable; any exception fails the record."""


AnySerializer: TypeAlias = Serializer[Any] | Callable[[Any], Any]
"""The types that the settings key_serializer and value_serializer accept."""


class WrongType(TypeError):
    """The cause of a `SerializationError` if data, or the result of a serializer, has a type that
    is not accepted. Its text names types, never values."""


class BytesSerializer:
    """Accepts bytes unchanged; copies bytearray and memoryview."""

    def serialize(
        self, topic: str, headers: Sequence[Header], data: bytes | bytearray | memoryview
    ) -> bytes:
        """Return the data as bytes."""
        if isinstance(data, bytes):
            return data
        if isinstance(data, (bytearray, memoryview)):
            return bytes(data)
        raise WrongType(
            f"expected bytes, bytearray or memoryview, not {type(data).__name__}; "
            "encode it or pass a serializer"
        )


bytes_serializer: Final = BytesSerializer()
"""The default serializer."""


class StringSerializer:
    """Encodes str, by default as UTF-8."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.encoding = encoding

    def serialize(self, topic: str, headers: Sequence[Header], data: str) -> bytes:
        """Return the encoded text; raises the exceptions of `str.encode`."""
        if not isinstance(data, str):
            raise WrongType(f"expected str, not {type(data).__name__}")
        return data.encode(self.encoding)


class IntSerializer:
    """Encodes int as big-endian two's complement of 4 or 8 bytes, as Java's `IntegerSerializer` and
    `LongSerializer` do.

    Raises:
        ConfigError: `size` is neither 4 nor 8.
    """

    def __init__(self, size: int = 8) -> None:
        if size not in (4, 8):
            raise ConfigError(f"IntSerializer(size={size!r}): use 4 (int32) or 8 (int64)")
        self.size = size
        self._format = struct.Struct(">i" if size == 4 else ">q")

    def serialize(self, topic: str, headers: Sequence[Header], data: int) -> bytes:
        """Return 4 or 8 bytes; a number out of range raises `struct.error`."""
        if isinstance(data, bool) or not isinstance(data, int):
            raise WrongType(f"expected int, not {type(data).__name__}")
        return self._format.pack(data)


class JsonSerializer:
    """Encodes anything that `json.dumps` accepts, as compact UTF-8.

    Args:
        options: keyword arguments for `json.dumps`, for instance `default` or `sort_keys`.
    """

    def __init__(self, **options: Any) -> None:
        self._options: dict[str, Any] = {
            "ensure_ascii": False,
            "separators": (",", ":"),
            **options,
        }

    def serialize(self, topic: str, headers: Sequence[Header], data: Any) -> bytes:
        """Return the document; raises the exceptions of `json.dumps`."""
        return json.dumps(data, **self._options).encode()


class BoundSerializer:
    """A user's serializer for key or value; checks results and names the field in errors.

    Attributes:
        passthrough: it returns bytes unchanged, so the call can be skipped for them.
    """

    __slots__ = ("_call", "field", "name", "passthrough", "serializer")

    def __init__(
        self, serializer: AnySerializer, field: Field, call: Callable[..., Any], name: str
    ) -> None:
        self.serializer = serializer
        self.field = field
        self.name = name
        self.passthrough = serializer is bytes_serializer
        self._call = call

    def __repr__(self) -> str:
        return f"<{self.field} serializer {self.name}>"

    def __call__(
        self, topic: str, headers: Sequence[Header], data: Any
    ) -> Serialized | Awaitable[Serialized]:
        """The bytes of `data`, None for None; an awaitable if the serializer is asynchronous.

        Raises:
            SerializationError: the serializer failed (chained) or returned something else.
        """
        if data is None:
            return None
        try:
            result = self._call(topic, headers, data)
        except Exception as error:
            raise self._failure(topic, data, error) from error
        if type(result) is bytes or result is None:
            return result
        if inspect.isawaitable(result):
            return self._finish(topic, data, result)
        return self._checked(topic, data, result)

    def now(self, topic: str, headers: Sequence[Header], data: Any) -> Serialized:
        """As `__call__`, for callers that cannot wait.

        Raises:
            ConfigError: the serializer is asynchronous.
        """
        if data is None:
            return None
        try:
            result = self._call(topic, headers, data)
        except Exception as error:
            raise self._failure(topic, data, error) from error
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ConfigError(
                f"{self.field}_serializer {self.name} is asynchronous, and try_submit cannot wait "
                "for it; use submit or send"
            )
        return self._checked(topic, data, result)

    async def _finish(self, topic: str, data: Any, awaitable: Awaitable[Any]) -> Serialized:
        try:
            result = await awaitable
        except Exception as error:
            raise self._failure(topic, data, error) from error
        return self._checked(topic, data, result)

    def _checked(self, topic: str, data: Any, result: Any) -> Serialized:
        if type(result) is bytes or result is None:
            return result
        if isinstance(result, (bytes, bytearray, memoryview)):
            return bytes(result)
        problem = WrongType(f"it returned {type(result).__name__} instead of bytes or None")
        raise self._failure(topic, data, problem) from problem

    def _failure(self, topic: str, data: Any, error: Exception) -> SerializationError:
        # The text of the error may quote the record, so the error is only chained. Texts of
        # `WrongType` name types only.
        own = isinstance(error, WrongType)
        detail = f": {error}" if own else f" ({type(error).__name__})"
        return SerializationError(
            f"topic {topic!r}: {self.field}_serializer {self.name} failed on a {self.field} of "
            f"type {type(data).__name__}{detail}"
        )


def adapt(serializer: AnySerializer | None, field: Field) -> BoundSerializer:
    """Convert a user's serializer to a `BoundSerializer`; None means bytes.

    Raises:
        ConfigError: it is neither a serializer object nor a callable.
    """
    if serializer is None:
        serializer = bytes_serializer
    if isinstance(serializer, type):
        raise ConfigError(
            f"{field}_serializer={serializer.__name__}: pass an instance, {serializer.__name__}()"
        )
    method = getattr(serializer, "serialize", None)
    if callable(method):
        return BoundSerializer(serializer, field, method, type(serializer).__name__)
    if not callable(serializer):
        raise ConfigError(
            f"{field}_serializer of type {type(serializer).__name__}: pass an object with "
            "serialize(topic, headers, data) or a callable (data) -> bytes"
        )
    plain = serializer
    name = getattr(plain, "__qualname__", type(plain).__name__)
    return BoundSerializer(plain, field, lambda _topic, _headers, data: plain(data), name)
