"""JSON with a JSON Schema in a registry. Needs the extra `registry` (jsonschema) to validate."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokprod.errors import ConfigError
from aiokprod.serdes._extras import extra
from aiokprod.serdes._schema_serializer import (
    Framing,
    SchemaSerializer,
    SubjectName,
    topic_name,
)
from aiokprod.serdes.registry import RegisteredSchema, Registry, SchemaReference
from aiokprod.serializers import Field, JsonSerializer, SchemaMismatch, SerializerProblem

__all__ = ["JsonSchemaSerializer"]


class JsonSchemaSerializer(SchemaSerializer):
    """Encodes objects as JSON and validates the encoded documents.

    For documents of JSON types, the bytes are the same as those of confluent-kafka's
    `JSONSerializer`, if both use the same library. By default, both use orjson if it is installed.

    Args:
        schema: the schema as JSON text or as the result of `json.loads`.
        validate: check every document. This takes most of the time of a record.
        encoder: encodes the documents and determines the other types that are accepted; default:
            `JsonSerializer(backend="auto")`.
        convert: called with each key or value before it is encoded.
        references: references for the names in `$ref`. All other names must be defined in the
            schema itself, because no other schema is fetched.
        field: "key" or "value".
        subject: function of topic, field and the schema's `title`, or a fixed name.
        register: register the schema if the registry does not have it. If False, a missing schema
            is an error.
        normalize: make the registry ignore order and layout when it compares schemas.
        framing: write the id before the data, or the GUID in a header.

    Raises:
        ConfigError: the schema or another argument is not valid, or jsonschema is not installed.
    """

    def __init__(
        self,
        registry: Registry,
        schema: str | Mapping[str, Any] | bool,
        *,
        validate: bool = True,
        encoder: JsonSerializer | None = None,
        convert: Callable[[Any], Any] | None = None,
        references: Sequence[SchemaReference] = (),
        field: Field = "value",
        subject: SubjectName | str = topic_name,
        register: bool = False,
        normalize: bool = False,
        framing: Framing = "prefix",
    ) -> None:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        try:
            self._document: Any = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"JsonSchemaSerializer(schema=...): is not JSON: {error}") from None
        if not isinstance(self._document, (dict, bool)):
            raise ConfigError("JsonSchemaSerializer(schema=...): use an object, true or false")
        if encoder is not None and not isinstance(encoder, JsonSerializer):
            raise ConfigError(
                f"JsonSchemaSerializer(encoder=<{type(encoder).__name__}>): use a JsonSerializer"
            )
        title = self._document.get("title") if isinstance(self._document, dict) else None
        super().__init__(
            registry,
            "JSON",
            text,
            name=title if isinstance(title, str) else None,
            references=references,
            field=field,
            subject=subject,
            register=register,
            normalize=normalize,
            framing=framing,
        )
        self._encoder = encoder or JsonSerializer(backend="auto")
        self._convert = convert
        self._validates = validate
        self._referred: dict[str, Any] | None = None if references else {}
        self._validator: Any = None
        if validate:
            extra("jsonschema", "jsonschema", "registry", "JsonSchemaSerializer(validate=True)")
            self._check_schema()
            self._make_validator()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_validator": None}  # a validator cannot be pickled

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_validator()

    def _check_schema(self) -> None:
        from jsonschema import SchemaError
        from jsonschema.validators import validator_for

        try:
            validator_for(self._document).check_schema(self._document)
        except SchemaError as error:
            raise ConfigError(
                f"JsonSchemaSerializer(schema=...): is not a valid JSON Schema at "
                f"{error.json_path}: {error.message[:200]}"
            ) from None

    def _make_validator(self) -> None:
        """Create the validator, unless validation is off or referenced schemas are missing."""
        if not self._validates or self._referred is None:
            return
        from jsonschema.validators import validator_for
        from referencing import Registry as Resources
        from referencing import Resource
        from referencing.jsonschema import DRAFT7

        # Pass no `retrieve` function, because a schema must not make the producer request URLs.
        resources: Any = Resources()
        for name, document in self._referred.items():
            resource = Resource.from_contents(document, default_specification=DRAFT7)
            resources = resources.with_resource(name, resource)
        self._validator = validator_for(self._document)(self._document, registry=resources)

    def _use_references(self, found: list[tuple[SchemaReference, RegisteredSchema]]) -> None:
        if self._validates:
            self._referred = {one.name: json.loads(got.schema or "true") for one, got in found}
            self._make_validator()

    def _encode(self, frame: bytes, data: Any) -> bytes:
        if self._convert is not None:
            data = self._convert(data)
        encoded = self._text(data)
        if self._validator is not None:
            self._validate(encoded)
        return frame + encoded

    def _text(self, data: Any) -> bytes:
        try:
            return self._encoder.serialize("", (), data)
        except SerializerProblem:
            raise
        except Exception as error:
            failure = type(error).__name__
        # Raise this outside the `except` block, so that the error, whose text may contain the data,
        # is not chained.
        raise SchemaMismatch(f"the data cannot be encoded as JSON ({failure})")

    def _validate(self, encoded: bytes) -> None:
        """Validate the encoded document, independently of the objects from which it was encoded.

        Raises:
            SchemaMismatch: the document does not match.
        """
        try:
            error = next(self._validator.iter_errors(json.loads(encoded)), None)
        except Exception as unexpected:
            text = f"the schema cannot be applied ({type(unexpected).__name__})"
        else:
            if error is None:
                return
            # Use the path in the schema, because the path in the document may contain its keys.
            place = "/".join(map(str, error.absolute_schema_path))
            text = (
                f"the document does not match the schema {self._name or 'without title'}: {place}"
            )
        del encoded
        raise SchemaMismatch(text)
