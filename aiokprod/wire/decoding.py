"""Compiles declarations into plans that decode one version of a struct.

A plan is a list of steps, one per field, with runs of fixed-width fields fused into one
`struct.Struct`; which fields exist, which may be null and which lengths are compact is decided once
per (class, version) and cached. Nothing here knows a particular message.

Source: KIP-482 (flexible versions and tagged fields), Java `MessageDataGenerator`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from aiokprod.errors import DecodeError
from aiokprod.wire.primitives import Layout, Reader
from aiokprod.wire.schema import (
    FORMATS,
    NEVER,
    FieldSpec,
    Struct,
    WireType,
    fields_of,
    memoised,
    short_layouts,
)

Decode: TypeAlias = Callable[[Reader], Any]


class DecodePlan(NamedTuple):
    """How to decode one version of a struct.

    Attributes:
        decode: reads one value.
        min_size: fewest bytes a value can take, at least 1; bounds announced counts.
    """

    decode: Decode
    min_size: int


@memoised
def decode_plan(cls: type[Struct], version: int, flexible: bool) -> DecodePlan:
    """The plan to decode `cls` as it is in `version` of its message."""
    steps: list[tuple[int | slice, Decode]] = []
    tagged: dict[int, tuple[int, Decode]] = {}
    specs = fields_of(cls)
    run: list[int] = []
    min_size = 0

    def close_run() -> None:
        if run:
            layout = Layout(">" + "".join(FORMATS[specs[i].wire_type] for i in run))
            steps.append((slice(run[0], run[-1] + 1), _fixed_decoder(layout)))
            run.clear()

    for index, spec in enumerate(specs):
        if not spec.versions.covers(version):
            close_run()
        elif spec.tag is not None:
            tagged[spec.tag] = (index, _field_decoder(spec, version, flexible).decode)
        elif not spec.array and spec.wire_type in FORMATS:
            run.append(index)
            min_size += Layout(">" + FORMATS[spec.wire_type]).size
        else:
            close_run()
            plan = _field_decoder(spec, version, flexible)
            steps.append((index, plan.decode))
            min_size += plan.min_size
    close_run()
    return DecodePlan(
        _struct_decoder(cls, steps, tagged if flexible else None),
        max(min_size + flexible, 1),
    )


def _struct_decoder(
    cls: type[Struct],
    steps: list[tuple[int | slice, Decode]],
    tagged: dict[int, tuple[int, Decode]] | None,
) -> Decode:
    defaults = [spec.default for spec in fields_of(cls)]
    draft = _draft_of(cls)

    def decode(reader: Reader) -> Struct:
        values = defaults.copy()
        for slot, step in steps:
            values[slot] = step(reader)
        if tagged is not None:
            count = reader.uvarint()
            if count:
                _decode_tagged(reader, count, tagged, values)
        value: Struct = draft(*values)
        value.__class__ = cls
        return value

    return decode


@memoised
def _draft_of(cls: type[Struct]) -> type[Struct]:
    """A mutable twin of `cls` with the same slots.

    The initialiser of a frozen dataclass goes through `object.__setattr__` for every field, which
    is three times as slow; an instance of the twin becomes one of `cls` by changing its class.
    """
    draft: type[Struct] = dataclasses.make_dataclass(
        cls.__name__,
        [field.name for field in dataclasses.fields(cls)],
        bases=cls.__bases__,
        slots=True,
        eq=False,
        repr=False,
    )
    return draft


def _decode_tagged(
    reader: Reader, count: int, known: dict[int, tuple[int, Decode]], values: list[Any]
) -> None:
    """Tagged fields: tags ascend, so that none comes twice; unknown ones are skipped."""
    reader.check_count(count, 2)
    last = -1
    for _ in range(count):
        tag = reader.uvarint()
        if tag <= last:
            raise DecodeError(f"tagged field {tag} after {last} at byte {reader.pos}")
        last = tag
        size = reader.uvarint()
        start = reader.advance(size)
        if tag in known:
            index, decode = known[tag]
            outer_end, reader.end, reader.pos = reader.end, start + size, start
            values[index] = decode(reader)
            reader.expect_end()
            reader.end = outer_end


def _field_decoder(spec: FieldSpec, version: int, flexible: bool) -> DecodePlan:
    compact = flexible and spec.compact
    nullable = spec.nullable.covers(version)
    read_body: Callable[[Reader, int], Any]
    if spec.array:
        read_body = _array_decoder(spec, _element_decoder(spec, version, flexible))
    elif spec.wire_type is WireType.BYTES:
        read_body = Reader.blob
    elif spec.wire_type is WireType.RECORDS:
        read_body = Reader.view
    elif spec.wire_type is WireType.STRING:
        return _sized_decoder(Reader.int16, Reader.text, nullable, compact, 2)
    else:
        return _element_decoder(spec, version, flexible)
    return _sized_decoder(Reader.int32, read_body, nullable, compact, 4)


def _element_decoder(spec: FieldSpec, version: int, flexible: bool) -> DecodePlan:
    """Decoder of a non-null value, or of the elements of an array."""
    if spec.element is not None:
        return decode_plan(spec.element, version, flexible)
    if spec.wire_type is WireType.STRING:
        element = dataclasses.replace(spec, array=False, nullable=NEVER)
        return _field_decoder(element, version, flexible)
    layout = Layout(">" + FORMATS[spec.wire_type])

    def decode(reader: Reader) -> Any:
        return reader.fixed(layout)[0]

    return DecodePlan(decode, layout.size)


def _fixed_decoder(layout: Layout) -> Decode:
    def decode(reader: Reader) -> tuple[Any, ...]:
        return reader.fixed(layout)

    return decode


def _sized_decoder(
    read_size: Callable[[Reader], int],
    read_body: Callable[[Reader, int], Any],
    nullable: bool,
    compact: bool,
    min_size: int,
) -> DecodePlan:
    """A length, -1 = null, and what it counts; `read_size` and `min_size` if not compact."""
    if compact:
        read_size, min_size = Reader.compact_length, 1

    def decode(reader: Reader) -> Any:
        pos = reader.pos
        # Most lengths are one byte of a compact form: worth a short cut.
        if compact and pos < reader.end and 0 < (size := reader.data[pos]) < 0x80:
            reader.pos = pos + 1
            return read_body(reader, size - 1)
        size = read_size(reader)
        if size >= 0:
            return read_body(reader, size)
        if nullable and size == -1:
            return None
        raise DecodeError(
            f"length {size} before byte {reader.pos}"
            if size < -1
            else f"null before byte {reader.pos} where the protocol allows none"
        )

    return DecodePlan(decode, min_size)


def _array_decoder(spec: FieldSpec, element: DecodePlan) -> Callable[[Reader, int], Any]:
    decode, min_size = element

    if spec.wire_type in FORMATS:
        code = FORMATS[spec.wire_type]
        short = short_layouts(code)

        def read_fixed(reader: Reader, count: int) -> tuple[Any, ...]:
            if count < len(short):
                return reader.fixed(short[count])
            reader.check_count(count, min_size)
            return reader.fixed(Layout(f">{count}{code}"))

        return read_fixed

    def read(reader: Reader, count: int) -> tuple[Any, ...]:
        reader.check_count(count, min_size)
        return tuple([decode(reader) for _ in range(count)])

    return read
