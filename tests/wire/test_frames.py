from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aiokprod._wire.frames import FrameReader
from aiokprod.errors import DecodeError, FrameTooLarge


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


BODIES = st.lists(st.binary(min_size=4, max_size=40), max_size=8)


@given(bodies=BODIES, data=st.data())
def test_any_chunking_gives_the_same_frames(bodies: list[bytes], data: st.DataObject) -> None:
    stream = framed(*bodies)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=12).map(sorted))
    reader = FrameReader(100)
    frames: list[memoryview] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        frames += reader.feed(stream[start:end])
    assert frames == bodies
    assert reader.pending == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_byte_by_byte_gives_each_frame_with_its_last_byte(kind: type) -> None:
    reader = FrameReader(100)
    stream = framed(b"first", b"four", b"x" * 100)
    seen: list[tuple[int, bytes]] = []
    for position in range(len(stream)):
        frames = list(reader.feed(kind(stream[position : position + 1])))
        seen += [(position, bytes(frame)) for frame in frames]
    assert seen == [(8, b"first"), (16, b"four"), (120, b"x" * 100)]


def test_frames_stay_valid_when_more_arrives() -> None:
    reader = FrameReader(100)
    chunk = bytearray(framed(b"first", b"second")[:-2])
    (first,) = reader.feed(chunk)
    chunk[:] = bytes(len(chunk))
    (second,) = reader.feed(b"nd" + framed(b"third")[:3])
    list(reader.feed(b"\5third"))
    assert [first, second] == [b"first", b"second"]


def test_frame_in_one_piece_is_not_copied() -> None:
    data = framed(b"first", b"second")
    assert [frame.obj is data for frame in FrameReader(10).feed(data)] == [True, True]


def test_pending_counts_the_bytes_of_the_open_frame() -> None:
    reader = FrameReader(100)
    assert list(reader.feed(framed(b"first") + b"\0\0")) == [b"first"]
    assert reader.pending == 2
    list(reader.feed(b"\0\6abc"))
    assert reader.pending == 7
    assert list(reader.feed(b"def")) == [b"abcdef"]
    assert reader.pending == 0


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 1, 3])
@pytest.mark.parametrize("before", [b"", framed(b"fine")])
def test_length_below_a_correlation_id_is_refused(length: int, before: bytes) -> None:
    with pytest.raises(DecodeError, match=f"frame length {length}"):
        list(FrameReader(100).feed(before + length.to_bytes(4, "big", signed=True)))


@pytest.mark.parametrize("length", [-1, 3, 101, 2**31 - 1])
def test_frames_before_a_damaged_one_are_handed_out(length: int) -> None:
    frames: list[memoryview] = []
    with pytest.raises((DecodeError, FrameTooLarge)):
        frames.extend(
            FrameReader(100).feed(
                framed(b"first", b"second") + length.to_bytes(4, "big", signed=True)
            )
        )
    assert frames == [b"first", b"second"]


@pytest.mark.parametrize("before", [b"", framed(b"fine")])
def test_length_above_the_limit_is_refused_before_the_body_arrives(before: bytes) -> None:
    reader = FrameReader(100)
    list(reader.feed(before + (100).to_bytes(4, "big")))
    assert reader.pending == 4
    for length in (101, 2**31 - 1):
        reader = FrameReader(100)
        with pytest.raises(FrameTooLarge, match=f"frame of {length} bytes .* is 100"):
            list(reader.feed(before + length.to_bytes(4, "big")))


def test_limit_can_be_raised_after_the_handshake() -> None:
    reader = FrameReader(10)
    assert list(reader.feed(framed(b"x" * 10))) == [b"x" * 10]
    reader.max_bytes = 20
    assert list(reader.feed(framed(b"y" * 20))) == [b"y" * 20]


def test_memory_grows_with_what_is_received_not_with_what_is_announced() -> None:
    reader = FrameReader(1 << 30)
    tracemalloc.start()
    try:
        list(reader.feed((1 << 30).to_bytes(4, "big")))
        for _ in range(10):
            list(reader.feed(bytes(1000)))
        assert tracemalloc.get_traced_memory()[1] < 60_000
    finally:
        tracemalloc.stop()
    assert reader.pending == 10_004


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(bytes.fromhex("15 0301 0002 0246"), id="alert"),
        pytest.param(bytes.fromhex("15 0303 0002 0228"), id="alert 1.2"),
        pytest.param(bytes.fromhex("16 0301 0200 01"), id="client hello"),
        pytest.param(bytes.fromhex("17 0303 0100 00"), id="application data"),
    ],
)
@pytest.mark.parametrize("max_bytes", [100, 2**31 - 1])
def test_first_bytes_of_tls_are_recognised(record: bytes, max_bytes: int) -> None:
    with pytest.raises(DecodeError, match=r"TLS .*security_protocol"):
        list(FrameReader(max_bytes).feed(record))
    reader = FrameReader(max_bytes)
    assert list(reader.feed(record[:3])) == []
    with pytest.raises(DecodeError, match="TLS"):
        list(reader.feed(record[3:]))


@pytest.mark.parametrize("start", [b"HTTP/1.1 400 Bad Request\r\n", b"<html>", b"GET / HTTP/1.1"])
def test_first_bytes_of_http_are_recognised(start: bytes) -> None:
    with pytest.raises(DecodeError, match="HTTP"):
        list(FrameReader(2**31 - 1).feed(start))


def test_bytes_like_tls_or_http_inside_the_stream_are_only_lengths() -> None:
    reader = FrameReader(2**31 - 1)
    assert list(reader.feed(framed(b"fine"))) == [b"fine"]
    assert list(reader.feed(b"HTTP")) == []
    assert list(reader.feed(bytes.fromhex("15030100"))) == []


@given(data=st.binary(max_size=60))
def test_random_bytes_raise_only_protocol_errors(data: bytes) -> None:
    reader = FrameReader(50)
    try:
        frames = list(reader.feed(data))
    except (DecodeError, FrameTooLarge):
        return
    assert framed(*map(bytes, frames)) + bytes(reader._buffer) == data


class AnyChunking(RuleBasedStateMachine):
    """A peer that writes frames, and a network that delivers them in arbitrary chunks."""

    @initialize()
    def start(self) -> None:
        self.reader = FrameReader(64)
        self.wire = b""
        self.sent: list[bytes] = []
        self.received: list[bytes] = []

    @rule(body=st.binary(min_size=4, max_size=64))
    def send(self, body: bytes) -> None:
        self.sent.append(body)
        self.wire += framed(body)

    @rule(size=st.integers(0, 200))
    def deliver(self, size: int) -> None:
        chunk, self.wire = self.wire[:size], self.wire[size:]
        self.received += map(bytes, self.reader.feed(chunk))

    @invariant()
    def received_is_a_prefix_of_sent(self) -> None:
        assert self.received == self.sent[: len(self.received)]
        undelivered = framed(*self.sent[len(self.received) :])
        assert len(undelivered) == self.reader.pending + len(self.wire)


TestAnyChunking = AnyChunking.TestCase
