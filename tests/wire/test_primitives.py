from __future__ import annotations

import struct
from collections.abc import Callable
from operator import methodcaller

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiokprod._wire.primitives import Reader
from aiokprod.errors import DecodeError
from tests.wire.writer import Writer

INT32S = st.integers(-(2**31), 2**31 - 1)
INT64S = st.integers(-(2**63), 2**63 - 1)


def written(write: Callable[[Writer], None]) -> bytes:
    writer = Writer()
    write(writer)
    return bytes(writer.buffer)


@pytest.mark.parametrize(("name", "bits"), [("int16", 16), ("int32", 32)])
def test_integers_round_trip_at_their_bounds(name: str, bits: int) -> None:
    bound = 1 << (bits - 1)
    for value in (-bound, -1, 0, 1, bound - 1):
        data = written(methodcaller(name, value))
        assert len(data) * 8 == bits
        assert getattr(Reader(data), name)() == value
        with pytest.raises(DecodeError):
            getattr(Reader(data[:-1]), name)()
    for value in (-bound - 1, bound):
        with pytest.raises(struct.error, match=r"requires|too large"):
            written(methodcaller(name, value))


@given(INT32S)
@example(0)
@example(-1)
@example(2**31 - 1)
@example(-(2**31))
def test_varint_round_trips(value: int) -> None:
    data = written(lambda writer: writer.varint(value))
    assert 1 <= len(data) <= 5
    reader = Reader(data)
    assert reader.varint() == value
    reader.expect_end()


@given(INT64S)
@example(2**63 - 1)
@example(-(2**63))
def test_varlong_round_trips(value: int) -> None:
    data = written(lambda writer: writer.varlong(value))
    assert 1 <= len(data) <= 10
    reader = Reader(data)
    assert reader.varlong() == value
    reader.expect_end()


@given(st.integers(0, 2**32 - 1))
def test_uvarint_round_trips(value: int) -> None:
    data = written(lambda writer: writer.uvarint(value))
    assert Reader(data).uvarint() == value
    for size in range(len(data)):
        with pytest.raises(DecodeError, match="cut off"):
            Reader(data[:size]).uvarint()


@pytest.mark.parametrize(
    ("value", "data"),
    [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (8191, "fe7f")],
)
def test_varint_bytes_are_those_of_the_specification(value: int, data: str) -> None:
    assert written(lambda writer: writer.varint(value)) == bytes.fromhex(data)
    assert written(lambda writer: writer.varlong(value)) == bytes.fromhex(data)


@pytest.mark.parametrize("name", ["varint", "uvarint"])
def test_varint_of_more_than_five_bytes_is_refused(name: str) -> None:
    with pytest.raises(DecodeError, match="more than 5 bytes"):
        getattr(Reader(b"\x80" * 5 + b"\0"), name)()
    with pytest.raises(DecodeError, match="exceeds"):
        getattr(Reader(b"\xff" * 4 + b"\x10"), name)()


def test_varlong_of_more_than_ten_bytes_is_refused() -> None:
    with pytest.raises(DecodeError, match="more than 10 bytes"):
        Reader(b"\x80" * 10 + b"\0").varlong()
    with pytest.raises(DecodeError, match="exceeds"):
        Reader(b"\xff" * 9 + b"\x02").varlong()
    assert Reader(b"\xff" * 9 + b"\x01").varlong() == -(2**63)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("uvarint", -1),
        ("uvarint", 2**32),
        ("varint", 2**31),
        ("varint", -(2**31) - 1),
        ("varlong", 2**63),
        ("varlong", -(2**63) - 1),
    ],
)
def test_writer_refuses_varints_out_of_range(name: str, value: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        getattr(Writer(), name)(value)


def test_blob_is_a_copy() -> None:
    data = bytearray(b"abc")
    reader = Reader(data)
    blob = reader.blob(3)
    data[:] = b"ABC"
    assert blob == b"abc"
    with pytest.raises(DecodeError):
        reader.blob(1)


def test_advance_refuses_to_go_back_or_beyond() -> None:
    reader = Reader(b"abc")
    assert reader.advance(2) == 0
    assert reader.remaining == 1
    for size in (2, -1):
        with pytest.raises(DecodeError, match="1 left"):
            reader.advance(size)


def test_expect_end_reports_what_is_left() -> None:
    reader = Reader(b"ab")
    reader.advance(1)
    with pytest.raises(DecodeError, match="1 bytes left over at byte 1"):
        reader.expect_end()


def test_check_count_compares_with_the_bytes_left() -> None:
    reader = Reader(bytes(10))
    reader.check_count(5, 2)
    with pytest.raises(DecodeError, match="6 elements announced"):
        reader.check_count(6, 2)
