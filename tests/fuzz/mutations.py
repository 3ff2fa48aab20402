"""Parts shared by all fuzz targets: samples of every response, and ways to damage bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import FieldSpec, WireType, fields_of
from aiokprod._wire.messages import RESPONSES
from tests.wire.strategies import filled

INTERESTING = (
    b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xfe", b"\x00\x00", b"\xff\xff", b"\x7f\xff",
    b"\x80\x00", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x01", b"\xff" * 10,
    b"\xed\xa0\x80", b"\x15\x03\x03\x00\x02", b"HTTP", b"\xfe\xff\xff\xff",
)  # fmt: skip
"""Edge-case lengths and numbers of every wire type, overlong varints, a lone surrogate, TLS."""


@dataclass(frozen=True)
class Sample:
    """A response in one version with bytes that decode."""

    message: type[Message]
    version: int
    data: bytes


def responses() -> Iterator[tuple[type[Message], int]]:
    """Yield every response in every version."""
    for message in RESPONSES.values():
        for version in range(message.min_version, message.max_version + 1):
            yield message, version


def corpus(seed: int = 0, *, random_each: int = 4) -> list[Sample]:
    """Return samples for every response and version: all defaults, everything set, everything null,
    and a few random ones."""
    rng = random.Random(seed)
    samples = []
    for message, version in responses():
        values = [filled(message, version), filled(message, version, null=True)]
        values += [random_struct(message, version, rng) for _ in range(random_each)]
        samples += [Sample(message, version, value.encode(version)) for value in values]
    return samples


def random_struct(cls: Any, version: int, rng: random.Random) -> Any:
    """Return an instance with random fields of a version."""
    return cls(**{
        spec.name: _value(spec, version, rng)
        for spec in fields_of(cls)
        if spec.versions.covers(version)
    })  # fmt: skip


def _value(spec: FieldSpec, version: int, rng: random.Random) -> Any:
    if spec.nullable.covers(version) and rng.random() < 0.2:
        return None
    if spec.array:
        return tuple(_single(spec, version, rng) for _ in range(rng.choice((0, 1, 1, 2, 5))))
    return _single(spec, version, rng)


def _single(spec: FieldSpec, version: int, rng: random.Random) -> Any:
    if spec.element is not None:
        return random_struct(spec.element, version, rng)
    return _SCALARS[spec.wire_type](rng)


def _integer(bits: int) -> Callable[[random.Random], int]:
    edge = 1 << (bits - 1)
    return lambda rng: rng.choice((0, 1, -1, edge - 1, -edge, rng.randrange(-edge, edge)))


_SCALARS: dict[WireType, Callable[[random.Random], Any]] = {
    WireType.INT8: _integer(8),
    WireType.INT16: _integer(16),
    WireType.INT32: _integer(32),
    WireType.INT64: _integer(64),
    WireType.BOOL: lambda rng: rng.random() < 0.5,
    WireType.UUID: lambda rng: rng.randbytes(16),
    WireType.STRING: lambda rng: "".join(rng.choices("aé\u20ac\U0001f600", k=rng.randrange(20))),
    WireType.BYTES: lambda rng: rng.randbytes(rng.randrange(40)),
    WireType.RECORDS: lambda rng: rng.randbytes(rng.randrange(40)),
}


def mutate(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Damage bytes in one to four of the usual ways; `other` provides bytes to splice."""
    mutable = bytearray(data)
    draw = rng.random
    for _ in range(1 + int(draw() * 4)):
        size = len(mutable)
        way = int(draw() * 8)
        at = int(draw() * (size + 1))
        if way == 0 and at < size:
            mutable[at] ^= 1 << int(draw() * 8)
        elif way == 1 and at < size:
            mutable[at] = int(draw() * 256)
        elif way == 2:
            token = INTERESTING[int(draw() * len(INTERESTING))]
            mutable[at : at + len(token)] = token
        elif way == 3:
            token = INTERESTING[int(draw() * len(INTERESTING))]
            mutable[at:at] = token
        elif way == 4:
            del mutable[at:]
        elif way == 5:
            del mutable[at : at + 1 + int(draw() * 8)]
        elif way == 6:
            start = int(draw() * (size + 1))
            mutable[at:at] = mutable[start : start + 1 + int(draw() * 32)]
        else:
            start = int(draw() * (len(other) + 1))
            mutable[at:] = other[start:]
    return bytes(mutable)
