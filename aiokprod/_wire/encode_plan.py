"""Builds the compiled encoder of a struct version from the declaration of the struct.

The counterpart of `decode_plan`. Source: KIP-482, Java `MessageDataGenerator`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiokprod._wire.encoders import (
    ArrayEncoder,
    BoolEncoder,
    BytesEncoder,
    ChunksEncoder,
    Encoder,
    IntEncoder,
    StructEncoder,
    TextEncoder,
    UuidEncoder,
)
from aiokprod._wire.message_schema import INTEGERS, FieldSpec, Struct, WireType, fields_of, memoised
from aiokprod.errors import UnsupportedVersion

_SIZED: Final = {
    WireType.STRING: TextEncoder,
    WireType.BYTES: BytesEncoder,
    WireType.RECORDS: ChunksEncoder,
}


@memoised
def encode_plan(cls: type[Struct], version: int, flexible: bool, any_null: bool = False) -> Encoder:
    """Return the encoder of `cls` for `version` of its message.

    Args:
        any_null: encode None as null in every string, bytes or array field, even if the field is
            not nullable. Some brokers of other vendors send such nulls, which tests imitate.
    """
    fields: list[tuple[str, Encoder]] = []
    tagged: list[tuple[int, str, Encoder, object]] = []
    absent: list[tuple[str, object]] = []
    for spec in fields_of(cls):
        if not spec.versions.covers(version):
            if not spec.ignorable:
                absent.append((spec.name, spec.default))
        elif spec.tag is None:
            fields.append((spec.name, _field(spec, version, flexible, any_null)))
        else:
            encoder = _field(spec, version, flexible, any_null)
            tagged.append((spec.tag, spec.name, encoder, spec.default))
    tagged.sort(key=lambda item: item[0])

    def absent_error(value: object, name: str) -> Exception:
        return UnsupportedVersion(
            f"{type(value).__name__}.{name} does not exist in version {version}"
        )

    return StructEncoder(fields, tagged if flexible else None, absent, absent_error)


def _field(spec: FieldSpec, version: int, flexible: bool, any_null: bool) -> Encoder:
    width = spec.length_width(flexible)
    null_error = None if any_null else _null_error(spec, version)
    if spec.array:
        return ArrayEncoder(width, null_error, _element(spec, version, flexible, any_null))
    if spec.wire_type in _SIZED:
        return _SIZED[spec.wire_type](width, null_error)
    return _element(spec, version, flexible, any_null)


def _element(spec: FieldSpec, version: int, flexible: bool, any_null: bool) -> Encoder:
    """Return the encoder of a value that is not null, or of the elements of an array."""
    if spec.element is not None:
        return encode_plan(spec.element, version, flexible, any_null)
    if spec.wire_type is WireType.BOOL:
        return BoolEncoder()
    if spec.wire_type is WireType.UUID:
        return UuidEncoder()
    if spec.wire_type is WireType.STRING:
        return TextEncoder(
            spec.element_width(flexible), lambda: TypeError(f"{spec.name} contains None")
        )
    return IntEncoder(INTEGERS[spec.wire_type])


def _null_error(spec: FieldSpec, version: int) -> Callable[[], Exception] | None:
    if spec.nullable.covers(version):
        return None
    return lambda: UnsupportedVersion(f"{spec.name} must not be None in version {version}")
