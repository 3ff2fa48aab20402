"""Serializers, which convert keys and values to bytes.

A serializer is an object with `serialize(topic, headers, data)`, or any callable `(data) -> bytes`.
It may be asynchronous (schema registries) and runs before memory is reserved. It is never called
with `None`: a null key or value is sent as null.

Source: Java `Serializer`, `KafkaProducer.doSend`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from aiokprod._core.serialization import FieldSerializer
from aiokprod._json import BACKENDS, Unsupported, converter, encoder, fastest_backend, plain
from aiokprod.errors import ConfigError, SchemaMissing, SerializationError, WouldBlock
from aiokprod.records import Header

T_contra = TypeVar("T_contra", contravariant=True)

Serialized: TypeAlias = bytes | None
Field: TypeAlias = Literal["key", "value"]


@runtime_checkable
class Serializer(Protocol[T_contra]):
    """Converts keys or values of one type to bytes.

    May also have `configure(config)` and `close()`, each called once by the producer, and
    `warm(topic)`, which `Producer.warm` calls: it returns an awaitable that prepares the serializer
    for a topic.
    """

    def serialize(
        self, topic: str, headers: Sequence[Header], data: T_contra
    ) -> Serialized | Awaitable[Serialized]:
        """Return the bytes, or None for null, or an awaitable of either. Any exception fails the
        record."""


Returned: TypeAlias = bytes | bytearray | memoryview | None
"""The types that a callable may return; `json.dumps` returns a str and needs `.encode()`."""

SerializerOf: TypeAlias = (
    Serializer[T_contra]
    | Callable[[T_contra], Returned]
    | Callable[[T_contra], Awaitable[Returned]]
)
"""The types that the arguments key_serializer and value_serializer accept, for type checkers."""

AnySerializer: TypeAlias = Serializer[Any] | Callable[[Any], Any]
"""Like `SerializerOf`, but for serializers whose results are checked at run time."""


class SerializerProblem(Exception):
    """A cause of `SerializationError` whose text is included in the text of that error. It
    therefore never contains data of the record.

    Attributes:
        retriable: True if serializing the same record may succeed later.
    """

    retriable: bool = False


class WrongType(SerializerProblem, TypeError):
    """Data, or the result of a serializer, has a type that is not accepted. The text names types,
    never values."""


class SchemaMismatch(SerializerProblem, ValueError):
    """Data do not match the schema. The text names types and parts of the schema, never values."""


class TookTooLong(SerializerProblem, TimeoutError):
    """An asynchronous serializer was cancelled."""


class PendingSchema(ABC):
    """The awaitable result of a serializer whose schema id is not known yet."""

    @abstractmethod
    def __await__(self) -> Generator[Any, None, Serialized]: ...

    @abstractmethod
    def missing(self) -> SchemaMissing:
        """Return the error for a call that cannot wait for the schema id."""


_TOO_LONG: Final = "it had not finished when max_block_ms, or the timeout of send, had passed"


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
        return self._encode(data)

    def _bind(self, field: Field) -> BoundSerializer:
        """Return a serializer that the core calls without creating a list of headers."""
        return BoundSerializer(self, field, self._encode, "StringSerializer", takes_topic=False)

    def _encode(self, data: str) -> bytes:
        if not isinstance(data, str):
            raise WrongType(
                f"expected str, not {type(data).__name__}; convert it to str, or use another "
                "serializer"
            )
        return data.encode(self.encoding)


class IntSerializer:
    """Encodes int as big-endian two's complement of 4 or 8 bytes, like Java's `IntegerSerializer`
    and `LongSerializer`.

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
            raise WrongType(
                f"expected int, not {type(data).__name__}; convert it to int, or use another "
                "serializer"
            )
        return self._format.pack(data)


class JsonSerializer:
    """Encodes objects as JSON text in UTF-8.

    Accepts the types that `json.dumps` accepts, and also dataclasses, pydantic models, attrs
    classes, msgspec structs, enums, `datetime`, `date`, `time`, `timedelta`, `UUID`, `Decimal`,
    sets, bytes (encoded as base64), and numpy scalars and arrays. docs/configuration.md describes
    the encoding of each type. NaN and infinite numbers are encoded as null. All backends encode an
    object to the same JSON value or raise an error; only the text of floats (`1e+16`, `1e16`) and
    the order of sorted keys that are not `str` depend on the backend.

    Args:
        backend: "json" (the standard library), "orjson", "msgspec" (both in the extra
            `aiokprod[json]`), or "auto", the first of orjson, msgspec and json that is installed
            and supports the options.
        default: called with an object of any other type; returns an object that can be encoded. May
            be called twice for the same object.
        sort_keys: sort the keys of objects.
        ensure_ascii: escape characters that are not ASCII. This argument and the following ones
            require the backend "json".
        indent: see `json.dumps`.
        separators: see `json.dumps`; by default without spaces.
        allow_nan: if True, write NaN and infinite numbers as `json.dumps` does, which is not valid
            JSON; if False, raise an error; if None, write null.

    Raises:
        ConfigError: the backend is unknown, not installed, or lacks an option.
    """

    def __init__(
        self,
        *,
        backend: Literal["json", "orjson", "msgspec", "auto"] = "json",
        default: Callable[[Any], Any] | None = None,
        sort_keys: bool = False,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] = (",", ":"),
        allow_nan: bool | None = None,
        **unknown: Any,
    ) -> None:
        for name, value in unknown.items():
            raise ConfigError(
                f"JsonSerializer({name}={value!r}): no such option; use a callable, for instance "
                f"lambda data: json.dumps(data, {name}=...).encode()"
            )
        formats = {
            "ensure_ascii": (ensure_ascii, False),
            "indent": (indent, None),
            "separators": (tuple(separators), (",", ":")),
            "allow_nan": (allow_nan, None),
        }
        other = [f"{name}={value!r}" for name, (value, usual) in formats.items() if value != usual]
        if backend not in (*BACKENDS, "auto"):
            known = ", ".join(map(repr, (*BACKENDS, "auto")))
            raise ConfigError(f"JsonSerializer(backend={backend!r}): use one of {known}")
        self.backend: str = backend
        if backend == "auto":
            self.backend = "json" if other else fastest_backend()
        if self.backend != "json" and other:
            raise ConfigError(
                f"JsonSerializer({', '.join(other)}): {backend} cannot do that; use backend='json'"
            )
        self._default = default
        self._keep_nan = allow_nan is not None
        convert = converter(default)
        self._text = json.JSONEncoder(
            ensure_ascii=ensure_ascii,
            allow_nan=bool(allow_nan),
            sort_keys=sort_keys,
            indent=indent,
            separators=separators,
            default=convert,
        ).encode
        self._encode: tuple[Callable[..., bytes], tuple[Any, ...]] = (self._encode_text, ())
        if self.backend != "json":
            self._encode = encoder(self.backend, convert, sort_keys=sort_keys)

    def serialize(self, topic: str, headers: Sequence[Header], data: Any) -> bytes:
        """Return the document.

        Raises:
            TypeError: an object has no JSON form.
            Others: exceptions of `default`, or for instance UnicodeEncodeError.
        """
        encode, arguments = self._encode
        try:
            return encode(data, *arguments)
        except Exception:
            return self._encode_plain(data)

    def _bind(self, field: Field) -> BoundSerializer:
        """Return a serializer for the core. It calls the backend directly, and this object only for
        documents that the backend cannot encode."""
        encode, arguments = self._encode
        return BoundSerializer(
            self,
            field,
            encode,
            "JsonSerializer",
            takes_topic=False,
            arguments=arguments,
            again=self._encode_plain,
        )

    def _encode_text(self, data: Any) -> bytes:
        return self._text(data).encode()

    def _encode_plain(self, data: Any) -> bytes:
        """Encode a document that the backend cannot encode. This is slower, but independent of the
        backend."""
        try:
            return self._encode_text(plain(data, self._default, keep_nan=self._keep_nan))
        except Unsupported as error:
            raise WrongType(str(error)) from None
        except RecursionError:
            raise WrongType("nested too deeply, or contains itself") from None


class BoundSerializer(FieldSerializer):
    """A user's serializer for keys or values. Checks the results and names the field in errors."""

    def __init__(
        self,
        serializer: AnySerializer,
        field: Field,
        call: Callable[..., Any],
        name: str,
        *,
        takes_topic: bool,
        arguments: tuple[Any, ...] = (),
        again: Callable[[Any], bytes] | None = None,
    ) -> None:
        passthrough = serializer is bytes_serializer
        second, third = arguments or (None, None)
        super().__init__(
            call, takes_topic=takes_topic, passthrough=passthrough, second=second, third=third
        )
        self.serializer = serializer
        self.field = field
        self.name = name
        self._again = again

    def __repr__(self) -> str:
        return f"<{self.field} serializer {self.name}>"

    async def finish(
        self, topic: str, data: Any, awaitable: Awaitable[Any], deadline: float
    ) -> Serialized:
        """Return the bytes of `data`, for which the serializer returned an awaitable. The awaitable
        is cancelled at `deadline` (loop time).

        Raises:
            SerializationError: the awaitable failed, took too long or returned another type.
        """
        # Not inside the `try`: a signal handler may raise during this call, and the `except` clause
        # uses `limit`.
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                result = await awaitable
        except Exception as error:
            cause = TookTooLong(_TOO_LONG) if limit.expired() else error
            raise self.failure(topic, data, cause) from error
        if type(result) is bytes or result is None:
            return result
        checked = self._as_bytes(result)
        if checked is None:
            raise self._wrong_result(topic, data, result)
        return checked

    async def warm(self, topic: str, deadline: float) -> None:
        """Await `warm(topic)` of the serializer, if it has this method, until `deadline` (loop
        time).

        Raises:
            SerializationError: the method failed or took too long.
        """
        warm = getattr(self.serializer, "warm", None)
        if not callable(warm):
            return
        limit = asyncio.timeout_at(deadline)  # not within `try`, see `finish`
        try:
            async with limit:
                await warm(topic)
        except Exception as error:
            cause = TookTooLong(_TOO_LONG) if limit.expired() else error
            raise self._error(topic, "cannot be prepared", cause) from error

    def asynchronous_error(self, result: Awaitable[Any]) -> ConfigError | WouldBlock:
        """Return the error for a call that cannot wait for the awaitable `result`, and close it if
        it is a coroutine."""
        if isinstance(result, PendingSchema):
            return result.missing()
        if inspect.iscoroutine(result):
            result.close()
        return ConfigError(
            f"{self.field}_serializer {self.name} is asynchronous, and try_submit cannot wait "
            "for it; use submit or send"
        )

    def checked(self, topic: str, data: Any, result: Any) -> bytes | Awaitable[Any]:
        """Check a result that is neither plain bytes nor None. Return its bytes, or the awaitable;
        raise `SerializationError` for any other type. See `FieldSerializer`."""
        as_bytes = self._as_bytes(result)
        if as_bytes is not None:
            return as_bytes
        if inspect.isawaitable(result):
            return result
        raise self._wrong_result(topic, data, result)

    @staticmethod
    def _as_bytes(result: Any) -> bytes | None:
        return bytes(result) if isinstance(result, (bytes, bytearray, memoryview)) else None

    def _wrong_result(self, topic: str, data: Any, result: Any) -> SerializationError:
        problem = WrongType(f"it returned {type(result).__name__} instead of bytes or None")
        wrong = self.failure(topic, data, problem)
        wrong.__cause__ = problem
        return wrong

    def recover(self, topic: str, data: Any, error: Exception) -> Any:
        """Return the fallback's result for data on which the serializer raised `error`. Without a
        result, raise `SerializationError`; see `FieldSerializer`."""
        if self._again is not None:
            try:
                return self._again(data)
            except Exception as final:
                error = final
        raise self.failure(topic, data, error) from error

    def failure(self, topic: str, data: Any, error: Exception) -> SerializationError:
        """Return the error for an exception raised by the serializer.

        The text of the exception may quote the record, so it is not included, unless the exception
        is a `SerializerProblem`.
        """
        return self._error(topic, f"failed on a {self.field} of type {type(data).__name__}", error)

    def _error(self, topic: str, what: str, error: Exception) -> SerializationError:
        detail, retriable = f" ({type(error).__name__})", False
        if isinstance(error, SerializerProblem):
            detail, retriable = f": {error}", error.retriable
        return SerializationError(
            f"topic {topic!r}: {self.field}_serializer {self.name} {what}{detail}",
            retriable=retriable,
        )


def adapt(serializer: AnySerializer | None, field: Field) -> BoundSerializer:
    """Convert a user's serializer to a `BoundSerializer`; None means bytes.

    Raises:
        ConfigError: `serializer` is neither a serializer object nor a callable.
    """
    if serializer is None:
        serializer = bytes_serializer
    if isinstance(serializer, type):
        raise ConfigError(
            f"{field}_serializer={serializer.__name__}: pass an instance, {serializer.__name__}()"
        )
    if type(serializer) is JsonSerializer or type(serializer) is StringSerializer:
        # The comparison excludes derived classes, which may define another `serialize`.
        return serializer._bind(field)
    method = getattr(serializer, "serialize", None)
    if callable(method):
        meant_for = getattr(serializer, "meant_for", None)
        if callable(meant_for):
            meant_for(field)
        name = type(serializer).__name__
        return BoundSerializer(serializer, field, method, name, takes_topic=True)
    if not callable(serializer):
        raise ConfigError(
            f"{field}_serializer of type {type(serializer).__name__}: pass an object with "
            "serialize(topic, headers, data) or a callable (data) -> bytes"
        )
    name = getattr(serializer, "__qualname__", type(serializer).__name__)
    return BoundSerializer(serializer, field, serializer, name, takes_topic=False)
