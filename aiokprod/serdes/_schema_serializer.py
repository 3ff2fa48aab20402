"""The common part of the serializers for Avro, JSON Schema and Protobuf: subjects, schema ids,
framing.

The frame of a topic identifies the schema for consumers: `0x00` and the id (int32) before the data,
or `0x01` and the GUID (16 bytes) in a header. For Protobuf, the indexes of the message follow. The
frame is known after the first record of a topic. From then on a serializer only encodes the data
and adds the frame.

Source: Confluent's "Formats, Serializers, and Deserializers" (wire format).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias, get_args

from aiokprod.errors import ConfigError, SchemaMissing
from aiokprod.records import Header
from aiokprod.serdes._shared_calls import RepeatableProblem, SharedCalls
from aiokprod.serdes.registry import (
    RegisteredSchema,
    Registry,
    RegistryError,
    SchemaQuestion,
    SchemaReference,
)
from aiokprod.serializers import Field, PendingSchema, Serialized, SerializerProblem

Framing: TypeAlias = Literal["prefix", "header"]

SubjectName: TypeAlias = Callable[[str, Field, str | None], str]
"""A function of topic, field ("key" or "value") and full name of the schema (None without name)."""

HEADER_NAMES: Final = {"key": "__key_schema_id", "value": "__value_schema_id"}
_DEEPEST: Final = 32
"""Maximum number of levels of references, which also ends cycles."""


def topic_name(topic: str, field: Field, record: str | None) -> str:
    """Return the subject `<topic>-key` or `<topic>-value`: one type in each topic. The default."""
    return f"{topic}-{field}"


def record_name(topic: str, field: Field, record: str | None) -> str:
    """Return the subject `<full name of the schema>`, the same in all topics."""
    return _named(record)


def topic_record_name(topic: str, field: Field, record: str | None) -> str:
    """Return the subject `<topic>-<full name of the schema>`: several types in a topic."""
    return f"{topic}-{_named(record)}"


def _named(record: str | None) -> str:
    if record is None:
        raise ConfigError("subject: the schema has no name, which this subject needs")
    return record


class SchemaSerializer(ABC):
    """A serializer whose schema is in a registry.

    Args:
        kind: the type of the schema: "AVRO", "JSON" or "PROTOBUF".
        schema: the schema text that is looked up or registered.
        name: full name of the schema; None if it has no name.
    """

    def __init__(
        self,
        registry: Registry,
        kind: str,
        schema: str,
        *,
        name: str | None,
        references: Sequence[SchemaReference],
        field: Field,
        subject: SubjectName | str,
        register: bool,
        normalize: bool,
        framing: Framing,
    ) -> None:
        me = type(self).__name__
        if not isinstance(registry, Registry):
            raise ConfigError(f"{me}(registry=<{type(registry).__name__}>): use a Registry")
        if field not in get_args(Field):
            raise ConfigError(f"{me}(field={field!r}): use 'key' or 'value'")
        if framing not in get_args(Framing):
            raise ConfigError(f"{me}(framing={framing!r}): use 'prefix' or 'header'")
        if not callable(subject) and (not subject or type(subject) is not str):
            raise ConfigError(f"{me}(subject={subject!r}): use a function or a str")
        for reference in references:
            if not isinstance(reference, SchemaReference):
                raise ConfigError(f"{me}(references=...): use SchemaReference objects")
        self.registry = registry
        self.field: Field = field
        self._kind = kind
        self._schema = schema
        self._name = name
        self._references = tuple(references)
        self._subject = subject
        self._register = register
        self._normalize = normalize
        self._in_header = framing == "header"
        self._header_name = HEADER_NAMES[field]
        self._frames: dict[str, bytes] = {}
        self._preparing: SharedCalls[str, bytes] = SharedCalls(registry.cache, True, _described)
        self._users = 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name or 'without name'}, {self.registry!r}>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_users": 0}

    def configure(self, config: object) -> None:
        """Count a producer that uses the serializer."""
        self._users += 1

    def close(self) -> None:
        """Called when a producer is closed. The last call cancels the requests in progress."""
        self._users -= 1
        if self._users <= 0:
            self._preparing.abandon()

    def meant_for(self, field: Field) -> None:
        """Check the setting to which the serializer is passed.

        Raises:
            ConfigError: the serializer was created for the other field.
        """
        if field != self.field:
            raise ConfigError(
                f"{field}_serializer={type(self).__name__}(..., field={self.field!r}): "
                f"set field={field!r}"
            )

    def serialize(
        self, topic: str, headers: Sequence[Header], data: Any
    ) -> Serialized | PendingSchema:
        """Return the framed bytes, or an awaitable of them while the schema's id is not known.

        With framing "header", the GUID replaces headers of its name in `headers`, which must be a
        list.

        Raises:
            SerializerProblem: data do not match the schema, or the registry rejects the schema.
        """
        frame = self._frames.get(topic)
        if frame is None:
            failure = self._preparing.failure(topic)
            if failure is not None:
                raise failure
            return _PendingRecord(self, topic, headers, data)
        if self._in_header:
            encoded = self._encode(b"", data)
            self._add_header(headers, frame)
            return encoded
        return self._encode(frame, data)

    async def warm(self, topic: str) -> None:
        """Fetch the schema's id for a topic.

        Raises:
            RegistryError: the registry rejects the request, or cannot be reached.
        """
        if topic not in self._frames:
            await self._preparing.result(topic, partial(self._prepared, topic))

    def _begin(self, topic: str) -> None:
        """Send a request to the registry, unless a request is in progress."""
        self._preparing.start(topic, partial(self._prepared, topic))

    @abstractmethod
    def _encode(self, frame: bytes, data: Any) -> bytes:
        """Return `frame` followed by the encoded data.

        Raises:
            SerializerProblem: data do not match the schema.
        """

    @abstractmethod
    def _use_references(self, found: list[tuple[SchemaReference, RegisteredSchema]]) -> None:
        """Store the schemas to which this schema refers, directly or indirectly. Each follows the
        schemas to which it refers. Called before the first record, if there are references."""

    async def _own_references(self, topic: str) -> tuple[SchemaReference, ...]:
        return self._references

    def _suffix(self) -> bytes:
        """Return the bytes that follow the id or the GUID."""
        return b""

    def _lookup(
        self, subject: str, schema: str, references: tuple[SchemaReference, ...]
    ) -> SchemaQuestion:
        return SchemaQuestion(
            subject,
            self._kind,
            schema,
            references,
            self._register,
            self._normalize,
            with_guid=self._in_header,
        )

    def _subject_of(self, topic: str) -> str:
        if isinstance(self._subject, str):
            return self._subject
        subject: Any = self._subject(topic, self.field, self._name)
        if not isinstance(subject, str) or not subject:
            raise SerializerProblem(
                f"the function of the subject returned {type(subject).__name__} instead of a text"
            )
        name: str = subject
        return name

    async def _prepared(self, topic: str) -> bytes:
        """Return the frame of a topic after looking up or registering the schema."""
        subject = self._subject_of(topic)
        references = await self._own_references(topic)
        found = await self.registry.registered(self._lookup(subject, self._schema, references))
        if references and not self._frames:
            self._use_references(await self._resolved(references))
        start = b"\x00" + found.id.to_bytes(4, "big")
        if self._in_header:
            assert found.guid is not None
            start = b"\x01" + found.guid
        frame = start + self._suffix()
        while len(self._frames) >= self.registry.cache:
            del self._frames[next(iter(self._frames))]
        self._frames[topic] = frame
        return frame

    async def _resolved(
        self, references: tuple[SchemaReference, ...]
    ) -> list[tuple[SchemaReference, RegisteredSchema]]:
        """Return the direct and indirect references with their schemas, each after the schemas to
        which it refers."""
        found: dict[tuple[str, str, int], tuple[SchemaReference, RegisteredSchema]] = {}

        async def add(one: SchemaReference, depth: int) -> None:
            key = (one.name, one.subject, one.version)
            if key in found:
                return
            if depth > _DEEPEST:
                raise RegistryError(
                    f"references are nested more than {_DEEPEST} levels deep", subject=one.subject
                )
            question = SchemaQuestion(
                one.subject, self._kind, "", (), False, False, version=one.version
            )
            answer = await self.registry.registered(question)
            for further in answer.references:
                await add(further, depth + 1)
            found[key] = (one, answer)

        for reference in references:
            await add(reference, 0)
        return [*found.values()]

    def _add_header(self, headers: Sequence[Header], frame: bytes) -> None:
        """Append the frame as a header and remove other headers of this name. Consumers read the
        first one, which may come from another record whose headers were forwarded."""
        assert isinstance(headers, list)
        name = self._header_name
        if headers:
            headers[:] = [header for header in headers if header[0] != name]
        headers.append((name, frame))


class _PendingRecord(PendingSchema):
    """A record that waits for the id of its schema."""

    def __init__(
        self, serializer: SchemaSerializer, topic: str, headers: Sequence[Header], data: Any
    ) -> None:
        self._serializer = serializer
        self._topic = topic
        self._headers = headers
        self._data = data

    def __await__(self) -> Generator[Any, None, Serialized]:
        return self._finished().__await__()

    async def _finished(self) -> Serialized:
        serializer = self._serializer
        await serializer.warm(self._topic)
        result = serializer.serialize(self._topic, self._headers, self._data)
        # The frame may have been dropped if more than `Registry.cache` topics are used at the same
        # time.
        return await result if isinstance(result, PendingSchema) else result

    def missing(self) -> SchemaMissing:
        """Send a request to the registry, unless a request is in progress."""
        serializer = self._serializer
        serializer._begin(self._topic)
        return SchemaMissing(
            f"topic {self._topic}: {type(serializer).__name__} does not know the id of its "
            f"{serializer.field} schema yet; a request was sent to the registry: try again "
            "later, or `await producer.warm([topic])` first"
        )


def _described(error: Exception) -> RepeatableProblem:
    """Return the error for an exception that was raised while preparing the schema."""
    if isinstance(error, (ConfigError, SerializerProblem)):
        return RepeatableProblem(str(error))
    return RepeatableProblem(f"the schema cannot be used ({type(error).__name__})")
