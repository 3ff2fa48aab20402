"""Conversion of objects to JSON, the same for each backend of `JsonSerializer`.

A backend (json, orjson, msgspec) encodes the types that it supports and calls `convert` for other
objects. If it cannot encode a document, for instance because of an integer of more than 64 bits,
`plain` converts the document and the standard library encodes it. All backends therefore accept the
same documents.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias
from uuid import UUID

from aiokprod.errors import ConfigError

Default: TypeAlias = Callable[[Any], Any] | None
"""The user's function that converts objects of other types."""

_NONE: Final = object()
_ZERO: Final = timedelta(0)


BACKENDS: Final = ("json", "orjson", "msgspec")


def fastest_backend() -> str:
    """Return the first of orjson, msgspec and json that is installed."""
    for name in ("orjson", "msgspec"):
        if importlib.util.find_spec(name) is not None:
            return name
    return "json"


def encoder(
    backend: str, convert: Callable[[Any], Any], *, sort_keys: bool
) -> tuple[Callable[..., bytes], tuple[Any, ...]]:
    """Return the function of orjson or msgspec that encodes a document.

    The function runs no Python code, except `convert` for objects of other types.

    Returns:
        The function, and the positional arguments (two or none) that follow the document.

    Raises:
        ConfigError: the backend is not installed.
    """
    try:
        if backend == "msgspec":
            from msgspec.json import Encoder

            return Encoder(enc_hook=convert, order="sorted" if sort_keys else None).encode, ()
        import orjson
    except ModuleNotFoundError:
        raise ConfigError(
            f"JsonSerializer(backend={backend!r}) needs the package {backend}: "
            "pip install 'aiokprod[json]'"
        ) from None
    # `convert` encodes these types, because orjson omits dataclass fields that begin with an
    # underscore, and zeros in the microseconds of `time` (3.13 writes 10 ms as .10000).
    option = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
    if sort_keys:
        option |= orjson.OPT_SORT_KEYS
    return orjson.dumps, (convert, option)


def converter(default: Default) -> Callable[[Any], Any]:
    """Return `convert` with the user's `default` bound to it."""
    return convert if default is None else partial(convert, default=default)


class Unsupported(TypeError):
    """An object has no JSON form. Names types and fields, never values."""

    def __init__(self, kind: str, where: str = "") -> None:
        super().__init__(
            f"{where}{': ' if where else ''}cannot encode {kind}; convert it first, or pass "
            "JsonSerializer(default=...)"
        )
        self.kind = kind
        self.where = where

    def within(self, field: str) -> Unsupported:
        """Return the same error with the name of the field that contains the object."""
        return Unsupported(self.kind, f"{field} > {self.where}" if self.where else field)


def convert(data: Any, default: Default = None) -> Any:
    """Convert one object, but not its content, to a type that every backend supports.

    None and bool are converted too, because msgspec calls this function for keys of these types.

    Raises:
        Unsupported: the type has no JSON form, and there is no `default`.
    """
    form = _EXACT.get(type(data))
    if form is not None:
        return form(data)
    if data is None:
        return "null"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, Enum):
        return data.value
    structure = _structure(data, default)
    if structure is not _NONE:
        return structure
    for kinds, form in _FORMS:
        if isinstance(data, kinds):
            return form(data)
    kind = type(data)
    if kind.__module__ == "numpy" and hasattr(kind, "tolist"):
        converted = data.tolist()
        if isinstance(converted, (bool, int, float, str, list)):
            return converted
    if default is not None:
        return default(data)
    raise Unsupported(kind.__name__)


def plain(data: Any, default: Default = None, *, keep_nan: bool = False) -> Any:
    """Convert a document to dict with str keys, list, str, int, float, bool and None.

    Args:
        keep_nan: leave NaN and infinite numbers as they are; otherwise they become None.

    Raises:
        Unsupported: the document contains an object that has no JSON form.
        RecursionError: the document is nested too deeply, or contains itself.
    """
    kind = type(data)
    if data is None or kind is str or kind is int or kind is bool:
        return data
    if kind is float:
        return data if keep_nan or math.isfinite(data) else None
    if kind is dict:
        return {
            _key(key, default): plain(value, default, keep_nan=keep_nan)
            for key, value in data.items()
        }
    if kind is list or kind is tuple:
        return [plain(item, default, keep_nan=keep_nan) for item in data]
    structure = _NONE if isinstance(data, Enum) else _structure(data, default)
    if not isinstance(structure, dict):
        converted = convert(data, default) if structure is _NONE else structure
        return plain(converted, default, keep_nan=keep_nan)
    made = {}
    for name, value in structure.items():
        try:
            made[_key(name, default)] = plain(value, default, keep_nan=keep_nan)
        except Unsupported as error:
            raise error.within(f"{kind.__name__}.{name}") from error
    return made


def _key(key: Any, default: Default) -> str:
    """Return the text of a key of a JSON object."""
    kind = type(key)
    if kind is str:
        return key  # type: ignore[no-any-return]  # mypy does not narrow by the exact type
    if kind is int:
        return int.__repr__(key)
    if kind is float and math.isfinite(key):
        return float.__repr__(key)
    if kind in (float, list, tuple, dict):
        raise Unsupported(f"a key of type {kind.__name__}")
    try:
        return _key(convert(key, default), default)
    except Unsupported:
        raise Unsupported(f"a key of type {kind.__name__}") from None


def _structure(data: Any, default: Default) -> Any:
    """Return the content of a dataclass, an attrs class, a msgspec Struct or a pydantic model,
    usually as a dict of its fields. Return `_NONE` for any other object."""
    kind = type(data)
    if hasattr(kind, "__dataclass_fields__"):
        return {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    if (serializer := getattr(kind, "__pydantic_serializer__", None)) is not None:
        # Turn warnings off, because they would quote values.
        return serializer.to_python(
            data, mode="json", warnings=False, fallback=partial(convert, default=default)
        )
    if (attributes := getattr(kind, "__attrs_attrs__", None)) is not None:
        return {attribute.name: getattr(data, attribute.name) for attribute in attributes}
    if hasattr(kind, "__struct_config__"):
        from msgspec import to_builtins

        return to_builtins(data, enc_hook=partial(convert, default=default))
    return _NONE


def _datetime(data: datetime | time) -> str:
    text = data.isoformat()
    return text.removesuffix("+00:00") + "Z" if data.utcoffset() == _ZERO else text


def _timedelta(data: timedelta) -> str:
    """Return an ISO 8601 duration of days and seconds, with up to six decimal places."""
    rest = abs(data)
    sign = "-" if data < _ZERO else ""
    seconds = f"{rest.seconds}"
    if rest.microseconds:
        seconds += f".{rest.microseconds:06}".rstrip("0")
    days = f"{rest.days}D" if rest.days or seconds == "0" else ""
    return f"{sign}P{days}" + ("" if seconds == "0" else f"T{seconds}S")


_FORMS: Final[tuple[tuple[Any, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__index__),
    (float, float.__float__),
    (Mapping, dict),
    ((list, tuple, set, frozenset), list),
    ((bytes, bytearray, memoryview), lambda data: b64encode(data).decode("ascii")),
    ((datetime, time), _datetime),
    (date, date.isoformat),
    (timedelta, _timedelta),
    ((UUID, Decimal), str),
)

_EXACT: Final[Mapping[type, Callable[[Any], Any]]] = {
    datetime: _datetime,
    date: date.isoformat,
    Decimal: str,
}
"""Conversions of the most frequent types, found without searching `_FORMS`."""
