"""Hypothesis strategies for messages, derived from their declarations."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import FieldSpec, Struct, WireType, fields_of
from aiokprod._wire.messages import REQUESTS, RESPONSES

MESSAGES: list[type[Message]] = [*REQUESTS.values(), *RESPONSES.values()]

VERSIONED = [
    (message, version)
    for message in MESSAGES
    for version in range(message.min_version, message.max_version + 1)
]


def versioned_id(value: object) -> str | None:
    return value.__name__ if isinstance(value, type) else None


def _signed(bits: int) -> st.SearchStrategy[int]:
    bound = 1 << (bits - 1)
    return st.integers(-bound, bound - 1)


_SCALARS: dict[WireType, st.SearchStrategy[Any]] = {
    WireType.INT8: _signed(8),
    WireType.INT16: _signed(16),
    WireType.INT32: _signed(32),
    WireType.INT64: _signed(64),
    WireType.BOOL: st.booleans(),
    WireType.UUID: st.binary(min_size=16, max_size=16),
    WireType.STRING: st.text(max_size=6),
    WireType.BYTES: st.binary(max_size=6),
    WireType.RECORDS: st.binary(max_size=6),
}


def _field(spec: FieldSpec) -> st.SearchStrategy[Any]:
    value = structs(spec.element) if spec.element is not None else _SCALARS[spec.wire_type]
    if spec.array:
        value = st.lists(value, max_size=2).map(tuple)
    if spec.nullable.high >= 0:
        value = st.none() | value
    return value


_STRUCTS: dict[type[Struct], st.SearchStrategy[Any]] = {}


def structs(cls: type[Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for instances in which the fields of all versions are set."""
    if cls not in _STRUCTS:
        _STRUCTS[cls] = st.builds(cls, **{spec.name: _field(spec) for spec in fields_of(cls)})
    return _STRUCTS[cls]


def _projected(spec: FieldSpec, value: Any, version: int) -> Any:
    if not spec.versions.covers(version):
        return spec.default
    if value is None:
        if spec.nullable.covers(version):
            return None
        return () if spec.array else ""
    if spec.element is None:
        return value
    if spec.array:
        return tuple(project(item, version) for item in value)
    return project(value, version)


def project(struct: Any, version: int) -> Any:
    """Return the struct as it is after encoding and decoding in `version`."""
    return dataclasses.replace(
        struct,
        **{
            spec.name: _projected(spec, getattr(struct, spec.name), version)
            for spec in fields_of(type(struct))
        },
    )


def filled(cls: type[Struct], version: int, *, null: bool = False) -> Any:
    """Return an instance in which all fields of `version` differ from their defaults, with one
    element in each array. With `null`, nullable fields are null.
    """
    values = {}
    for number, spec in enumerate(fields_of(cls), start=1):
        if spec.versions.covers(version):
            values[spec.name] = _filled_value(spec, number, version, null)
    return cls(**values)


def _filled_value(spec: FieldSpec, number: int, version: int, null: bool) -> Any:
    value: Any
    if null and spec.nullable.covers(version):
        return None
    if spec.element is not None:
        value = filled(spec.element, version, null=null)
    elif spec.wire_type is WireType.BOOL:
        value = not spec.default
    elif spec.wire_type is WireType.UUID:
        value = bytes([number]) * 16
    elif spec.wire_type is WireType.STRING:
        value = f"{spec.name[:3]}{number}"
    elif spec.wire_type in (WireType.BYTES, WireType.RECORDS):
        value = bytes([number, 255 - number])
    else:
        value = 100 + number
    return (value,) if spec.array else value
