"""Compiles declarations into plans that encode one version of a struct.

The mirror image of `decoding`. Source: KIP-482, Java `MessageDataGenerator`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

from aiokprod.errors import UnsupportedVersion
from aiokprod.wire.primitives import MAX_STRING, BytesLike, Layout, Writer, total_size
from aiokprod.wire.schema import (
    FORMATS,
    ZERO_UUID,
    FieldSpec,
    Struct,
    WireType,
    fields_of,
    memoised,
    short_layouts,
)

Encode: TypeAlias = Callable[[Writer, Any], None]


@memoised
def encode_plan(cls: type[Struct], version: int, flexible: bool) -> Encode:
    """The plan to encode `cls` as it is in `version` of its message."""
    steps: list[tuple[Callable[[Any], Any], Encode]] = []
    tagged: list[tuple[FieldSpec, Encode]] = []
    absent: list[FieldSpec] = []
    run: list[FieldSpec] = []

    def close_run() -> None:
        if run:
            steps.append((attrgetter(*[spec.name for spec in run]), _fixed_encoder(run)))
            run.clear()

    for spec in fields_of(cls):
        if not spec.versions.covers(version):
            if not spec.ignorable:
                absent.append(spec)
        elif spec.tag is not None:
            tagged.append((spec, _field_encoder(spec, version, flexible)))
        elif not spec.array and spec.wire_type in FORMATS and spec.wire_type is not WireType.UUID:
            run.append(spec)
        else:
            close_run()
            steps.append((attrgetter(spec.name), _field_encoder(spec, version, flexible)))
    close_run()
    tagged.sort(key=lambda item: item[0].tag or 0)
    return _struct_encoder(steps, tagged if flexible else None, absent, version)


def _struct_encoder(
    steps: list[tuple[Callable[[Any], Any], Encode]],
    tagged: list[tuple[FieldSpec, Encode]] | None,
    absent: list[FieldSpec],
    version: int,
) -> Encode:
    def encode(writer: Writer, value: Any) -> None:
        for spec in absent:
            if not _is_default(spec, value):
                raise UnsupportedVersion(
                    f"{type(value).__name__}.{spec.name} does not exist in version {version}"
                )
        for get, step in steps:
            step(writer, get(value))
        if tagged:
            _encode_tagged(writer, value, tagged)
        elif tagged is not None:
            writer.buffer.append(0)

    return encode


def _is_default(spec: FieldSpec, struct: Any) -> bool:
    value = getattr(struct, spec.name)
    if value == spec.default:
        return True
    return spec.array and value is not None and not spec.default and not value


def _encode_tagged(writer: Writer, value: Any, tagged: list[tuple[FieldSpec, Encode]]) -> None:
    present = [(spec, encode) for spec, encode in tagged if not _is_default(spec, value)]
    writer.uvarint(len(present))
    for spec, encode in present:
        body = Writer()
        encode(body, getattr(value, spec.name))
        data = b"".join(body.chunks())
        writer.uvarint(spec.tag or 0)
        writer.uvarint(len(data))
        writer.buffer += data


def _field_encoder(spec: FieldSpec, version: int, flexible: bool) -> Encode:
    compact = flexible and spec.compact
    if spec.array:
        encode = _array_encoder(spec, version, flexible)
    elif spec.wire_type is WireType.STRING:
        encode = _compact_string if compact else _string
    elif spec.wire_type is WireType.BYTES:
        encode = _compact_bytes if compact else _bytes
    elif spec.wire_type is WireType.RECORDS:
        encode = _compact_records if compact else _records
    elif spec.wire_type is WireType.UUID:
        return _uuid
    elif spec.element is not None:
        return encode_plan(spec.element, version, flexible)
    else:
        return _single_encoder(spec)
    return _null_guard(spec, version, compact, encode)


def _null_guard(spec: FieldSpec, version: int, compact: bool, encode: Encode) -> Encode:
    if compact:
        null = b"\0"
    elif spec.wire_type is WireType.STRING and not spec.array:
        null = b"\xff\xff"
    else:
        null = b"\xff\xff\xff\xff"
    nullable = spec.nullable.covers(version)

    def encode_nullable(writer: Writer, value: Any) -> None:
        if value is not None:
            encode(writer, value)
        elif nullable:
            writer.buffer += null
        else:
            raise UnsupportedVersion(f"{spec.name} must not be None in version {version}")

    return encode_nullable


def _single_encoder(spec: FieldSpec) -> Encode:
    layout = Layout(">" + FORMATS[spec.wire_type])

    def encode(writer: Writer, value: Any) -> None:
        writer.buffer += layout.pack(value)

    return encode


def _fixed_encoder(run: list[FieldSpec]) -> Encode:
    if len(run) == 1:
        return _single_encoder(run[0])
    layout = Layout(">" + "".join(FORMATS[spec.wire_type] for spec in run))

    def encode(writer: Writer, values: tuple[Any, ...]) -> None:
        writer.buffer += layout.pack(*values)

    return encode


def _array_encoder(spec: FieldSpec, version: int, flexible: bool) -> Encode:
    write_size = Writer.compact_length if flexible and spec.compact else Writer.int32
    if spec.wire_type in FORMATS:
        code = FORMATS[spec.wire_type]
        short = short_layouts(code)

        def encode_fixed(writer: Writer, values: Sequence[Any]) -> None:
            count = len(values)
            write_size(writer, count)
            layout = short[count] if count < len(short) else Layout(f">{count}{code}")
            writer.buffer += layout.pack(*values)

        return encode_fixed

    if spec.element is not None:
        encode_element = encode_plan(spec.element, version, flexible)
    else:
        encode_element = _compact_string if flexible else _string

    def encode(writer: Writer, values: Sequence[Any]) -> None:
        write_size(writer, len(values))
        for value in values:
            encode_element(writer, value)

    return encode


def _uuid(writer: Writer, value: bytes) -> None:
    # `struct` would pad or cut a value of another length without a word.
    if len(value) != len(ZERO_UUID):
        raise ValueError(f"UUID of {len(value)} bytes")
    writer.buffer += value


def _string(writer: Writer, value: str) -> None:
    data = value.encode()
    if len(data) > MAX_STRING:
        raise ValueError(f"string of {len(data)} bytes, limit {MAX_STRING}")
    writer.int16(len(data))
    writer.buffer += data


def _compact_string(writer: Writer, value: str) -> None:
    data = value.encode()
    if len(data) > MAX_STRING:
        raise ValueError(f"string of {len(data)} bytes, limit {MAX_STRING}")
    writer.compact_length(len(data))
    writer.buffer += data


def _bytes(writer: Writer, value: BytesLike) -> None:
    writer.int32(len(value))
    writer.buffer += value


def _compact_bytes(writer: Writer, value: BytesLike) -> None:
    writer.compact_length(len(value))
    writer.buffer += value


def _records(writer: Writer, value: BytesLike | Sequence[BytesLike]) -> None:
    chunks = (value,) if isinstance(value, bytes | bytearray | memoryview) else value
    writer.int32(total_size(chunks))
    for chunk in chunks:
        writer.append(chunk)


def _compact_records(writer: Writer, value: BytesLike | Sequence[BytesLike]) -> None:
    chunks = (value,) if isinstance(value, bytes | bytearray | memoryview) else value
    writer.compact_length(total_size(chunks))
    for chunk in chunks:
        writer.append(chunk)
