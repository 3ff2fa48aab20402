from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aiokprod.errors import DecodeError
from aiokprod.wire.primitives import MAX_STRING, Layout, Reader, Writer, layout_error, total_size

INT32S = st.integers(-(2**31), 2**31 - 1)
INT64S = st.integers(-(2**63), 2**63 - 1)


def written(write: Callable[[Writer], None]) -> bytes:
    writer = Writer()
    write(writer)
    return b"".join(writer.chunks())


@pytest.mark.parametrize(
    ("name", "bits"), [("int8", 8), ("int16", 16), ("int32", 32), ("int64", 64)]
)
def test_integers_round_trip_at_their_bounds(name: str, bits: int) -> None:
    bound = 1 << (bits - 1)
    for value in (-bound, -1, 0, 1, bound - 1):
        data = written(methodcaller(name, value))
        assert len(data) * 8 == bits
        assert getattr(Reader(data), name)() == value
        with pytest.raises(DecodeError):
            getattr(Reader(data[:-1]), name)()
    for value in (-bound - 1, bound):
        with pytest.raises(layout_error, match=r"requires|too large"):
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


@pytest.mark.parametrize("size", [-1, 0, 1, 125, 126, 127, 128, 16382, 16383, 2**31 - 1])
def test_compact_length_round_trips(size: int) -> None:
    data = written(lambda writer: writer.compact_length(size))
    assert Reader(data).compact_length() == size


def test_text_is_bounded_and_checked() -> None:
    assert Reader("äö".encode()).text(4) == "äö"
    assert Reader(bytearray(b"abc")).text(2) == "ab"
    with pytest.raises(DecodeError, match="limit"):
        Reader(bytes(MAX_STRING + 1)).text(MAX_STRING + 1)
    with pytest.raises(DecodeError, match="4 bytes expected at byte 0, 3 left"):
        Reader(b"abc").text(4)
    with pytest.raises(DecodeError, match="not UTF-8"):
        Reader(b"\xff").text(1)


def test_blob_copies_and_view_does_not() -> None:
    data = bytearray(b"abcdef")
    reader = Reader(data)
    blob, view = reader.blob(3), reader.view(3)
    data[:] = b"ABCDEF"
    assert blob == b"abc"
    assert view == b"DEF"
    with pytest.raises(DecodeError):
        reader.blob(1)
    with pytest.raises(DecodeError):
        reader.view(-1)


def test_advance_refuses_to_go_back_or_beyond() -> None:
    reader = Reader(b"abc")
    assert reader.advance(2) == 0
    assert reader.remaining == 1
    for size in (2, -1):
        with pytest.raises(DecodeError, match="1 left"):
            reader.advance(size)


def test_fixed_reads_several_values() -> None:
    reader = Reader(b"\0\1\0\0\0\2\3")
    assert reader.fixed(Layout(">hi")) == (1, 2)
    with pytest.raises(DecodeError, match="2 bytes expected at byte 6, 1 left"):
        reader.fixed(Layout(">h"))


def test_expect_end_reports_what_is_left() -> None:
    reader = Reader(b"ab")
    reader.int8()
    with pytest.raises(DecodeError, match="1 bytes left over at byte 1"):
        reader.expect_end()


def test_check_count_compares_with_the_bytes_left() -> None:
    reader = Reader(bytes(10))
    reader.check_count(5, 2)
    with pytest.raises(DecodeError, match="6 elements announced"):
        reader.check_count(6, 2)


def test_writer_keeps_appended_chunks_apart() -> None:
    writer = Writer()
    chunk = b"x" * 100
    writer.append(chunk)
    writer.int8(1)
    writer.int8(2)
    writer.append(memoryview(chunk))
    chunks = writer.chunks()
    assert chunks == [chunk, b"\1\2", chunk]
    assert chunks[0] is chunk
    assert total_size(chunks) == 202
