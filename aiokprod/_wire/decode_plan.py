"""Builds the compiled decoder of a struct version from the declaration of the struct.

This module decides once per (class, version) which fields exist, which may be null and which
lengths are compact. The compiled decoders (`aiokprod._wire.decoders`) then run for each message. No
message has special rules.

Source: KIP-482 (flexible versions and tagged fields), Java `MessageDataGenerator`.
"""

from __future__ import annotations

from typing import Final

from aiokprod._wire.decoders import (
    ArrayDecoder,
    BoolDecoder,
    BytesDecoder,
    Decoder,
    IntDecoder,
    StructDecoder,
    TextDecoder,
    UuidDecoder,
    ViewDecoder,
)
from aiokprod._wire.message_schema import INTEGERS, FieldSpec, Struct, WireType, fields_of, memoised

_SIZED: Final = {
    WireType.STRING: TextDecoder,
    WireType.BYTES: BytesDecoder,
    WireType.RECORDS: ViewDecoder,
}


@memoised
def decode_plan(cls: type[Struct], version: int, flexible: bool) -> Decoder:
    """Return the decoder of `cls` for `version` of its message."""
    fields: list[tuple[str, Decoder]] = []
    defaults: list[tuple[str, object]] = []
    tagged: dict[int, tuple[str, Decoder]] = {}
    for spec in fields_of(cls):
        if not spec.versions.covers(version):
            defaults.append((spec.name, spec.default))
        elif spec.tag is None:
            fields.append((spec.name, _field(spec, version, flexible)))
        else:
            defaults.append((spec.name, spec.default))
            tagged[spec.tag] = (spec.name, _field(spec, version, flexible))
    return StructDecoder(cls, fields, defaults, tagged if flexible else None)


def _field(spec: FieldSpec, version: int, flexible: bool) -> Decoder:
    nullable = spec.nullable.covers(version)
    width = spec.length_width(flexible)
    if spec.array:
        return ArrayDecoder(width, nullable, _element(spec, version, flexible))
    if spec.wire_type in _SIZED:
        return _SIZED[spec.wire_type](width, nullable)
    return _element(spec, version, flexible)


def _element(spec: FieldSpec, version: int, flexible: bool) -> Decoder:
    """Return the decoder of a value that is not null, or of the elements of an array."""
    if spec.element is not None:
        return decode_plan(spec.element, version, flexible)
    if spec.wire_type is WireType.BOOL:
        return BoolDecoder()
    if spec.wire_type is WireType.UUID:
        return UuidDecoder()
    if spec.wire_type is WireType.STRING:
        return TextDecoder(spec.element_width(flexible), False)
    return IntDecoder(INTEGERS[spec.wire_type])
