"""Values that the compiled field decoders and encoders reject. The other modules of tests/wire test
complete messages."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

WIDTHS = {"b": 1, "h": 2, "i": 4, "q": 8}


class BadBytesError(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Pair:
    first: int = 0
    second: Any = None


def read(decoder: Decoder, data: Any) -> Any:
    value, end = decoder.decode(data, 0, BadBytesError)
    assert end == len(data)
    return value


def write(encoder: Encoder, value: Any) -> bytes:
    return b"".join(encoder.encode(value))


@pytest.mark.parametrize("code", WIDTHS)
def test_integers_round_trip_at_their_bounds(code: str) -> None:
    width = WIDTHS[code]
    bound = 1 << (8 * width - 1)
    for value in (-bound, -1, 0, 1, bound - 1):
        data = write(IntEncoder(code), value)
        assert data == value.to_bytes(width, "big", signed=True)
        assert read(IntDecoder(code), data) == value
        with pytest.raises(
            BadBytesError, match=f"{width} bytes expected at byte 0, {width - 1} left"
        ):
            read(IntDecoder(code), data[:-1])
    for value in (-bound - 1, bound, 1 << 80, -(1 << 80)):
        with pytest.raises(ValueError, match=f"does not fit into {width} bytes"):
            write(IntEncoder(code), value)
    for wrong in (1.0, "1", None, b"1"):
        with pytest.raises(TypeError, match="expected an integer"):
            write(IntEncoder(code), wrong)


def test_booleans_and_uuids_have_one_form() -> None:
    assert [write(BoolEncoder(), value) for value in (False, True)] == [b"\0", b"\1"]
    assert [read(BoolDecoder(), data) for data in (b"\0", b"\1", b"\xff")] == [False, True, True]
    assert read(UuidDecoder(), bytes(range(16))) == bytes(range(16))
    assert write(UuidEncoder(), bytes(range(16))) == bytes(range(16))
    for size in (0, 15, 17):
        with pytest.raises(ValueError, match=f"UUID of {size} bytes"):
            write(UuidEncoder(), bytes(size))


@pytest.mark.parametrize("width", [0, 2])
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16382, 16383, 32767])
def test_text_round_trips_up_to_its_limit(width: int, size: int) -> None:
    data = write(TextEncoder(width, None), "x" * size)
    assert read(TextDecoder(width, True), data) == "x" * size
    with pytest.raises(ValueError, match="string of 32768 bytes, limit 32767"):
        write(TextEncoder(width, None), "x" * 32768)


def test_text_is_bounded_and_checked() -> None:
    assert read(TextDecoder(2, False), b"\0\4" + "äö".encode()) == "äö"
    with pytest.raises(BadBytesError, match="string of 32768 bytes at byte 3, limit 32767"):
        read(TextDecoder(0, False), b"\x81\x80\x02" + bytes(32768))
    with pytest.raises(BadBytesError, match="string at byte 2 is not UTF-8"):
        read(TextDecoder(2, False), b"\0\1\xff")
    with pytest.raises(BadBytesError, match="4 bytes expected at byte 1, 3 left"):
        read(TextDecoder(0, False), b"\5abc")
    with pytest.raises(ValueError, match="surrogates not allowed"):
        write(TextEncoder(0, None), "\ud800")
    with pytest.raises(TypeError, match="expected a string, got bytes"):
        write(TextEncoder(0, None), b"abc")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x80", "cut off"),
        (b"", "cut off"),
        (b"\x80\x80\x80\x80\x80\x01", "more than 5 bytes"),
        (b"\xff\xff\xff\xff\x1f", "exceeds 4294967295"),
        (b"\xff\xff\xff\xff\x0f", "bytes expected"),
        (b"\0", "null before byte 1"),
    ],
)
def test_compact_lengths_are_checked(data: bytes, reason: str) -> None:
    with pytest.raises(BadBytesError, match=reason):
        read(BytesDecoder(0, False), data)


@pytest.mark.parametrize(("width", "null"), [(0, b"\0"), (2, b"\xff\xff"), (4, b"\xff" * 4)])
def test_null_is_for_those_who_may(width: int, null: bytes) -> None:
    assert write(BytesEncoder(width, None), None) == null
    assert read(BytesDecoder(width, True), null) is None
    with pytest.raises(BadBytesError, match="null"):
        read(BytesDecoder(width, False), null)
    with pytest.raises(LookupError, match="not here"):
        write(BytesEncoder(width, lambda: LookupError("not here")), None)


def test_negative_lengths_are_refused() -> None:
    with pytest.raises(BadBytesError, match="invalid length -2 before byte 4"):
        read(BytesDecoder(4, True), b"\xff\xff\xff\xfe")


def test_views_keep_their_buffer_and_bytes_do_not() -> None:
    class Owner(bytearray):
        __slots__ = ("__weakref__",)

    owner = Owner(b"\4abc\4def")
    alive = weakref.ref(owner)
    blob, end = BytesDecoder(0, False).decode(owner, 0, BadBytesError)
    view, end = ViewDecoder(0, False).decode(owner, end, BadBytesError)
    assert (blob, view, end) == (b"abc", b"def", 8)
    del owner
    gc.collect()
    assert alive() is not None
    assert bytes(view) == b"def"
    view.release()
    gc.collect()
    assert alive() is None


def test_a_start_outside_of_the_buffer_is_refused() -> None:
    for start in (-1, 4):
        with pytest.raises(ValueError, match="outside 0 to 3"):
            IntDecoder("b").decode(b"abc", start, BadBytesError)


def test_chunks_are_not_copied() -> None:
    big = bytes(1000)
    pieces = ChunksEncoder(4, None).encode([big, memoryview(big)])
    assert pieces[0] == (2000).to_bytes(4, "big")
    assert pieces[1] is big
    assert ChunksEncoder(0, None).encode(big)[1] is big


def test_counts_are_bounded_before_anything_is_allocated() -> None:
    array = ArrayDecoder(4, False, IntDecoder("q"))
    with pytest.raises(
        BadBytesError, match="2147483647 elements announced at byte 4, 8 bytes left"
    ):
        read(array, b"\x7f\xff\xff\xff" + bytes(8))
    assert read(array, b"\0\0\0\1" + bytes(8)) == (0,)


def test_a_sequence_that_changes_its_length_is_refused() -> None:
    class Liar(list[int]):
        def __len__(self) -> int:
            return 2

    with pytest.raises(ValueError, match="the number of elements differs"):
        write(ArrayEncoder(4, None, IntEncoder("i")), Liar([1]))


def test_tagged_fields_ascend_and_fill_their_size() -> None:
    decoder = StructDecoder(Pair, [("first", IntDecoder("b"))], [("second", None)],
                            {1: ("second", IntDecoder("h"))})  # fmt: skip
    assert read(decoder, b"\7\0") == Pair(7, None)
    assert read(decoder, b"\7\1\1\2\0\5") == Pair(7, 5)
    assert read(decoder, b"\7\2\0\1x\1\2\0\5") == Pair(7, 5)
    assert read(decoder, b"\7\1\5\0") == Pair(7, None)
    for data, reason in {
        b"\7\2\1\2\0\5\1\2\0\5": "tagged field 1 after 1",
        b"\7\1\1\3\0\5\0": "1 bytes left over",
        b"\7\1\1\1\0": "2 bytes expected",
        b"\7\x09\1": "9 elements announced",
        b"\7": "cut off",
    }.items():
        with pytest.raises(BadBytesError, match=reason):
            read(decoder, data)


def test_only_dataclasses_with_slots_are_taken() -> None:
    class Loose:
        first = 1

    with pytest.raises(TypeError, match=r"Loose\.first is not a slot"):
        StructDecoder(Loose, [("first", IntDecoder("b"))], [], None)


def test_decoded_structs_are_ordinary_instances() -> None:
    decoder = StructDecoder(Pair, [("first", IntDecoder("i"))], [("second", "none")], None)
    made = read(decoder, b"\0\0\0\5")
    assert made == Pair(5, "none")
    assert hash(made) == hash(Pair(5, "none"))
    with pytest.raises(AttributeError):
        made.first = 1


def test_absent_fields_must_hold_their_default() -> None:
    encoder = StructEncoder(
        [("first", IntEncoder("b"))], None, [("second", ())],
        lambda value, name: LookupError(f"{type(value).__name__}.{name}"),
    )  # fmt: skip
    assert write(encoder, Pair(1, ())) == write(encoder, Pair(1, [])) == b"\1"
    with pytest.raises(LookupError, match=r"Pair\.second"):
        write(encoder, Pair(1, [1]))


def test_tagged_fields_are_left_out_when_default() -> None:
    tagged = [(0, "first", IntEncoder("b"), 0), (3, "second", IntEncoder("h"), None)]
    encoder = StructEncoder([], tagged, [], lambda value, name: LookupError(name))
    assert write(encoder, Pair()) == b"\0"
    assert write(encoder, Pair(0, 5)) == b"\1\3\2\0\5"
    assert write(encoder, Pair(1, 5)) == b"\2\0\1\1\3\2\0\5"


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_the_error(data: bytes) -> None:
    inner = StructDecoder(Pair, [("first", IntDecoder("h"))], [("second", None)],
                          {0: ("second", TextDecoder(0, True))})  # fmt: skip
    decoder = StructDecoder(Pair, [("first", ArrayDecoder(0, True, inner)),
                                   ("second", ViewDecoder(0, True))], [], {})  # fmt: skip
    try:
        value, end = decoder.decode(data, 0, BadBytesError)
    except BadBytesError:
        return
    assert isinstance(value, Pair)
    assert 0 < end <= len(data)
