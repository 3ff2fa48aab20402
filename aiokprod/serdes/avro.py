"""Avro with a Schema Registry. Needs the extra `registry` (fastavro)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any, Final

from aiokprod.errors import ConfigError
from aiokprod.serdes._extras import extra
from aiokprod.serdes._schema_serializer import (
    Framing,
    SchemaSerializer,
    SubjectName,
    topic_name,
)
from aiokprod.serdes.registry import RegisteredSchema, Registry, SchemaReference
from aiokprod.serializers import Field, SchemaMismatch

__all__ = ["AvroSerializer"]

_NAMED: Final = ("record", "error", "enum", "fixed")


class AvroSerializer(SchemaSerializer):
    """Encodes dicts, and other data that fastavro accepts for a schema, as Avro.

    The encoding is the same as that of confluent-kafka's `AvroSerializer` and Java's
    `KafkaAvroSerializer`, which write data of the primitive schema "bytes" without a length.

    Args:
        schema: the schema as JSON text or as the result of `json.loads`.
        convert: called with each key or value before it is encoded, for instance
            `dataclasses.asdict`.
        references: references to named types that the schema uses but does not define.
        field: "key" or "value".
        subject: function of topic, field and the full name of the schema, or a fixed name.
        register: register the schema if the registry does not have it. If False, a missing schema
            is an error.
        normalize: make the registry ignore order and layout when it compares schemas.
        framing: write the id before the data, or the GUID in a header.
        strict: reject data with fields that the schema does not have, or without a field that has a
            default.

    Raises:
        ConfigError: the schema or another argument is not valid, or fastavro is not installed.
    """

    def __init__(
        self,
        registry: Registry,
        schema: str | Mapping[str, Any] | Sequence[Any],
        *,
        convert: Callable[[Any], Any] | None = None,
        references: Sequence[SchemaReference] = (),
        field: Field = "value",
        subject: SubjectName | str = topic_name,
        register: bool = False,
        normalize: bool = False,
        framing: Framing = "prefix",
        strict: bool = False,
    ) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        text = text.strip()
        if text[:1] not in ("{", "["):
            # The text is the name of a primitive type, with or without quotes.
            text = f'{{"type":{text if text[:1] == chr(34) else json.dumps(text)}}}'
        try:
            self._document = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"AvroSerializer(schema=...): is not JSON: {error}") from None
        super().__init__(
            registry,
            "AVRO",
            text,
            name=_full_name(self._document),
            references=references,
            field=field,
            subject=subject,
            register=register,
            normalize=normalize,
            framing=framing,
        )
        fastavro = extra("fastavro", "fastavro", "registry", "AvroSerializer")
        # Java and confluent-kafka write a value of this schema without a length.
        self._only_bytes = (
            isinstance(self._document, dict) and self._document.get("type") == "bytes"
        )
        self._parsed: Any = None if references else self._parse({})
        self._write = fastavro.schemaless_writer
        self._convert = convert
        self._strict = strict

    def _parse(self, named: dict[str, Any]) -> Any:
        from fastavro.schema import parse_schema

        try:
            return parse_schema(self._document, named)
        except Exception as error:
            # The text contains the schema, which is not secret but may be long. It is cut below.
            text = f"{type(error).__name__}: {error}"
        raise ConfigError(f"AvroSerializer(schema=...): is not a valid Avro schema: {text[:200]}")

    def _use_references(self, found: list[tuple[SchemaReference, RegisteredSchema]]) -> None:
        from fastavro.schema import parse_schema

        named: dict[str, Any] = {}
        for _, registered in found:
            parse_schema(json.loads(registered.schema or "null"), named)
        self._parsed = self._parse(named)

    def _encode(self, frame: bytes, data: Any) -> bytes:
        if self._convert is not None:
            data = self._convert(data)
        try:
            if self._only_bytes:
                return frame + (data.encode() if isinstance(data, str) else bytes(memoryview(data)))
            out = BytesIO()
            out.write(frame)
            if self._strict:
                self._write(out, self._parsed, data, strict=True)
            else:
                self._write(out, self._parsed, data)
            return out.getvalue()
        except Exception as error:
            failure = type(error).__name__
        # Raise this outside the `except` block, so that fastavro's error, whose text contains the
        # data, is not chained.
        raise SchemaMismatch(self._mismatch(data, failure))

    def _mismatch(self, data: Any, failure: str) -> str:
        """Describe where the data do not match, without showing the data."""
        from fastavro.validation import ValidationError, validate

        where = ""
        try:
            validate(data, self._parsed, strict=self._strict)
        except ValidationError as error:
            fields = {one.field for one in error.errors if isinstance(one.field, str)}
            known = sorted(field for field in fields if field)
            where = f" at {', '.join(known[:3])}" if known else ""
        except Exception:
            where = ""
        return f"the data do not match the schema {self._name or 'without name'}{where} ({failure})"


def _full_name(document: Any) -> str | None:
    """Return the full name of a named type, or None for any other schema."""
    if not isinstance(document, dict) or document.get("type") not in _NAMED:
        return None
    name, namespace = document.get("name"), document.get("namespace")
    if not isinstance(name, str):
        return None
    return f"{namespace}.{name}" if namespace and "." not in name else name
