"""Our encoding of Protobuf fields compared with the encoders of Google's library."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from google.protobuf.internal import encoder

from aiokprod._wire import protobuf

Encode = Callable[[int, object], bytes]


def by_oracle(make: Callable[..., Callable[..., object]], field: int, value: object) -> bytes:
    parts: list[bytes] = []
    packed = isinstance(value, Sequence) and not isinstance(value, str)
    make(field, packed, packed)(parts.append, value, True)
    return b"".join(parts)


def integers(signed: bool) -> list[int]:
    rng = random.Random(1)
    least = -(2**63) if signed else 0
    most = 2**63 - 1 if signed else 2**64 - 1
    edges = [0, 1, 127, 128, 16_383, 16_384, 2**31, 2**32, most, least]
    return edges + [rng.randint(least, most) >> rng.randint(0, 60) for _ in range(200)]


@pytest.mark.parametrize("field", [1, 15, 16, 2047])
def test_numbers_are_encoded_as_by_google(field: int) -> None:
    for value in integers(signed=False):
        assert protobuf.integer(field, value) == by_oracle(encoder.UInt64Encoder, field, value)
        assert protobuf.fixed64(field, value) == by_oracle(encoder.Fixed64Encoder, field, value)
    for value in integers(signed=True):
        assert protobuf.integer(field, value) == by_oracle(encoder.Int64Encoder, field, value)
        assert protobuf.signed(field, value) == by_oracle(encoder.SInt64Encoder, field, value)
    for number in (0.0, -1.5, 1e300, float("inf")):
        assert protobuf.double(field, number) == by_oracle(encoder.DoubleEncoder, field, number)


def test_texts_and_lists_are_encoded_as_by_google() -> None:
    for value in ("", "kafka", "größe", "x" * 300):
        assert protobuf.text(3, value) == by_oracle(encoder.StringEncoder, 3, value)
    positive, both = integers(signed=False), integers(signed=True)
    assert protobuf.packed_unsigned(4, positive) == by_oracle(encoder.UInt64Encoder, 4, positive)
    assert protobuf.packed_signed(4, both) == by_oracle(encoder.SInt64Encoder, 4, both)


def test_messages_have_their_length_before_them() -> None:
    body = protobuf.integer(1, 5) + protobuf.text(2, "x" * 200)
    assert protobuf.message(7, protobuf.integer(1, 5), protobuf.text(2, "x" * 200)) == (
        b"\x3a" + protobuf.varint(len(body)) + body
    )
    assert protobuf.delimited(body) == protobuf.varint(len(body)) + body
