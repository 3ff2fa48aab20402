"""Serializers of typed models, without a registry: msgspec and pydantic.

`JsonSerializer` encodes objects of both libraries too. The serializers here check the type of each
record, convert dicts to the type, and use the library's encoder without calling a Python function
for each object.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, get_args

from aiokprod.errors import ConfigError
from aiokprod.records import Header
from aiokprod.serdes._extras import extra
from aiokprod.serializers import SchemaMismatch, WrongType

__all__ = ["MsgspecSerializer", "PydanticSerializer"]

_Format = Literal["json", "msgpack"]


class MsgspecSerializer:
    """Encodes objects of one type, such as a `msgspec.Struct`, as JSON or MessagePack.

    An object of the type is encoded without a check, because msgspec does not check the fields of a
    struct. A dict or list is converted to the type, which checks the fields.

    Args:
        kind: a class, or a union of classes such as `Created | Deleted`.
        format: "json" or "msgpack".

    Raises:
        ConfigError: `kind` is not a class or a union of classes, or msgspec is not installed.
    """

    def __init__(self, kind: Any, *, format: _Format = "json") -> None:
        if format not in get_args(_Format):
            raise ConfigError(f"MsgspecSerializer(format={format!r}): use 'json' or 'msgpack'")
        classes = _classes(kind)
        if not classes:
            raise ConfigError(
                f"MsgspecSerializer(kind={kind!r}): use a class or a union of classes"
            )
        msgspec = extra("msgspec", "msgspec", "json", "MsgspecSerializer")
        self.kind = kind
        self._classes = classes
        module = msgspec.json if format == "json" else msgspec.msgpack
        self._encode = module.Encoder().encode
        self._convert = msgspec.convert
        self._invalid: type[Exception] = msgspec.ValidationError

    def serialize(self, topic: str, headers: Sequence[Header], data: Any) -> bytes:
        """Return the document.

        Raises:
            WrongType: the data have another type.
            SchemaMismatch: a dict or list does not match the type.
        """
        if not isinstance(data, self._classes):
            if not isinstance(data, (dict, list)):
                names = " or ".join(one.__name__ for one in self._classes)
                raise WrongType(f"expected {names} or a dict, not {type(data).__name__}")
            data = self._converted(data)
        try:
            encoded: bytes = self._encode(data)
            return encoded
        except Exception as error:
            failure = type(error).__name__
        raise SchemaMismatch(f"msgspec cannot encode it ({failure})")

    def _converted(self, data: Any) -> Any:
        try:
            return self._convert(data, self.kind)
        except self._invalid as error:
            # Use only the path in the text. It names fields of the type, but the rest may quote
            # data.
            _, found, path = str(error).rpartition(" - at `")
            place = f" at {path.removesuffix('`')}" if found else ""
        raise SchemaMismatch(
            f"it does not match {' or '.join(c.__name__ for c in self._classes)}{place}"
        )


def _classes(kind: Any) -> tuple[type, ...]:
    """Return the class itself or the classes of a union; empty for anything else."""
    parts = get_args(kind) if _is_union(kind) else (kind,)
    return (
        parts
        if all(type(one) is not types.GenericAlias and isinstance(one, type) for one in parts)
        else ()
    )


def _is_union(kind: Any) -> bool:
    return typing.get_origin(kind) in (typing.Union, types.UnionType)


class PydanticSerializer:
    """Encodes objects of one pydantic model as JSON.

    An object of the model is encoded without a check. A dict is validated first, which creates an
    object of the model.

    Args:
        model: a subclass of `pydantic.BaseModel`.
        by_alias: write fields under their aliases.
        exclude_none, exclude_unset: omit fields that are None or were not set.

    Raises:
        ConfigError: `model` is not such a class, or pydantic 2 is not installed.
    """

    def __init__(
        self,
        model: type[Any],
        *,
        by_alias: bool = False,
        exclude_none: bool = False,
        exclude_unset: bool = False,
    ) -> None:
        pydantic = extra("pydantic", "pydantic", "", "PydanticSerializer")
        is_class = isinstance(model, type)
        if not is_class or not issubclass(model, pydantic.BaseModel):
            raise ConfigError(
                f"PydanticSerializer(model={model!r}): use a subclass of pydantic.BaseModel"
            )
        self.model = model
        self._encode = model.__pydantic_serializer__.to_json
        self._options = {
            "by_alias": by_alias,
            "exclude_none": exclude_none,
            "exclude_unset": exclude_unset,
        }
        self._invalid: type[Exception] = pydantic.ValidationError

    def serialize(self, topic: str, headers: Sequence[Header], data: Any) -> bytes:
        """Return the document.

        Raises:
            WrongType: the data are neither an object of the model nor a dict.
            SchemaMismatch: a dict is not valid, or a field cannot be encoded.
        """
        if not isinstance(data, self.model):
            if not isinstance(data, dict):
                name = self.model.__name__
                raise WrongType(f"expected {name} or a dict, not {type(data).__name__}")
            data = self._validated(data)
        try:
            # Use the serializer of the data's class, because a derived model has further fields.
            encode = self._encode if type(data) is self.model else _encode_of(data)
            encoded: bytes = encode(data, **self._options)
            return encoded
        except Exception as error:
            failure = type(error).__name__
        raise SchemaMismatch(f"pydantic cannot encode it ({failure})")

    def _validated(self, data: Any) -> Any:
        try:
            return self.model.model_validate(data)
        except self._invalid as error:
            text = self._mismatch(error)
        except Exception as error:  # raised by a validator
            text = type(error).__name__
        raise SchemaMismatch(f"it does not match {self.model.__name__}: {text}")

    def _mismatch(self, error: Any) -> str:
        """Return the names of the invalid fields and the kinds of errors. The rest of the error may
        contain data."""
        fields = self.model.model_fields
        known = {*fields, *(one.alias for one in fields.values())}
        found = []
        for one in error.errors(include_url=False, include_context=False, include_input=False):
            field = one["loc"][0] if one["loc"] and one["loc"][0] in known else "the document"
            found.append(f"{field} ({one['type']})")
        return ", ".join(found[:3])


def _encode_of(data: Any) -> Any:
    return type(data).__pydantic_serializer__.to_json
