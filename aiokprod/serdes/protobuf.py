"""Protobuf with a Schema Registry. Needs the package protobuf, as generated classes do."""

from __future__ import annotations

import base64
from typing import Any, Final

from aiokprod.errors import ConfigError
from aiokprod.serdes._schema_serializer import (
    Framing,
    SchemaSerializer,
    SubjectName,
    topic_name,
)
from aiokprod.serdes.registry import (
    RegisteredSchema,
    Registry,
    RegistryError,
    SchemaQuestion,
    SchemaReference,
)
from aiokprod.serializers import Field, SchemaMismatch, WrongType

__all__ = ["ProtobufSerializer"]

_BUILT_IN: Final = ("google/protobuf/", "google/type/", "confluent/")
"""Folders of files that every registry and every reader has."""


class ProtobufSerializer(SchemaSerializer):
    """Encodes messages of one generated class.

    The encoding is the same as that of confluent-kafka's `ProtobufSerializer`. The schema is the
    base64-encoded descriptor of the file that defines the message, which Confluent's registry also
    accepts. Each file that it imports is a separate schema, with the path of the file as subject.

    Args:
        message_type: a class that `protoc` has generated.
        schema: the text of the .proto file, for registries that do not accept descriptors. Imported
            files must then be given as `references`.
        references: imported files; None to look them up, and with `register` to register them.
        deterministic: write the entries of maps in a fixed order. Set this for keys with maps,
            because equal keys could otherwise have different bytes and so different partitions.
        field: "key" or "value".
        subject: function of topic, field and the full name of the message, or a fixed name.
        register: register the schema if the registry does not have it. If False, a missing schema
            is an error.
        normalize: make the registry ignore order and layout when it compares schemas.
        framing: write the id before the data, or the GUID in a header.

    Raises:
        ConfigError: `message_type` is not a class of messages, or another argument is not valid.
    """

    def __init__(
        self,
        registry: Registry,
        message_type: type[Any],
        *,
        schema: str | None = None,
        references: tuple[SchemaReference, ...] | None = None,
        deterministic: bool = False,
        field: Field = "value",
        subject: SubjectName | str = topic_name,
        register: bool = False,
        normalize: bool = False,
        framing: Framing = "prefix",
    ) -> None:
        descriptor: Any = getattr(message_type, "DESCRIPTOR", None)
        is_class = isinstance(message_type, type)
        if not is_class or not hasattr(descriptor, "containing_type"):
            raise ConfigError(
                f"ProtobufSerializer(message_type={message_type!r}): use a class that protoc has "
                "generated"
            )
        self._descriptor = descriptor
        if schema is not None and references is None and _imported(self._descriptor.file):
            raise ConfigError(
                "ProtobufSerializer(schema=...): the file imports others; name them in references"
            )
        super().__init__(
            registry,
            "PROTOBUF",
            _encoded(self._descriptor.file) if schema is None else schema,
            name=self._descriptor.full_name,
            references=references or (),
            field=field,
            subject=subject,
            register=register,
            normalize=normalize,
            framing=framing,
        )
        self._finds_references = references is None
        self._message_type = message_type
        self._deterministic = deterministic
        self._indexes = message_indexes(self._descriptor)

    def __getstate__(self) -> dict[str, Any]:
        # Leave out the descriptor, which cannot be pickled.
        return {
            name: value for name, value in super().__getstate__().items() if name != "_descriptor"
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._descriptor = self._message_type.DESCRIPTOR

    def _suffix(self) -> bytes:
        return self._indexes

    def _use_references(self, found: list[tuple[SchemaReference, RegisteredSchema]]) -> None:
        """Do nothing, because the generated class contains all imported types."""

    async def _resolved(
        self, references: tuple[SchemaReference, ...]
    ) -> list[tuple[SchemaReference, RegisteredSchema]]:
        return []

    async def _own_references(self, topic: str) -> tuple[SchemaReference, ...]:
        if not self._finds_references:
            return self._references
        return await self._imports(self._descriptor.file)

    async def _imports(self, file: Any) -> tuple[SchemaReference, ...]:
        """Return the references of a file. Each imported file is looked up under its path, after
        the files that it imports."""
        found = []
        for one in _imported(file):
            own = await self._imports(one)
            question = SchemaQuestion(
                one.name, self._kind, _encoded(one), own, self._register, self._normalize,
                with_version=True,
            )  # fmt: skip
            answer = await self.registry.registered(question)
            if answer.version is None:
                raise RegistryError("the response has no valid version", subject=one.name)
            found.append(SchemaReference(one.name, one.name, answer.version))
        return tuple(found)

    def _encode(self, frame: bytes, data: Any) -> bytes:
        if not isinstance(data, self._message_type):
            raise WrongType(f"expected {self._name}, not {type(data).__name__}")
        try:
            if self._deterministic:
                encoded: bytes = data.SerializeToString(deterministic=True)
            else:
                encoded = data.SerializeToString()
            return frame + encoded
        except Exception as error:
            failure = type(error).__name__
        missing = ", ".join(data.FindInitializationErrors()[:3])
        raise SchemaMismatch(
            f"{self._name} cannot be encoded ({failure})"
            + (f"; fields that are required and not set: {missing}" if missing else "")
        )


def _imported(file: Any) -> list[Any]:
    return [one for one in file.dependencies if not one.name.startswith(_BUILT_IN)]


def _encoded(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()


def message_indexes(descriptor: Any) -> bytes:
    """Return the position of the message in its file, as zigzag varints: the number of indexes and
    each index, or a single 0 for the first message of the file."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        if parent is None:
            siblings = descriptor.file.message_types_by_name.values()
        else:
            siblings = parent.nested_types
        path.insert(0, [one.full_name for one in siblings].index(descriptor.full_name))
        descriptor = parent
    if path == [0]:
        return b"\x00"
    return b"".join(_zigzag(number) for number in [len(path), *path])


def _zigzag(number: int) -> bytes:
    """Return a number that is not negative as a zigzag varint."""
    number <<= 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
