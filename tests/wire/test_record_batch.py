from __future__ import annotations

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from aiokprod._wire.record_batch import (
    HEADER_SIZE,
    MAX_SEQUENCE,
    BatchHeader,
    batch_header,
    checksum,
    increment_sequence,
    parse_header,
)
from aiokprod.errors import DecodeError
from tests.reference.records import with_offset


def test_header_of_a_known_batch_is_byte_exact() -> None:
    payload = bytes.fromhex("10 00 00 00 02 6b 02 76 00")  # one record: key k, value v
    header = batch_header(
        payload,
        count=1,
        base_timestamp=1_700_000_000_123,
        max_timestamp=1_700_000_000_123,
        producer_id=4000,
        epoch=3,
        base_sequence=17,
        transactional=True,
    )
    expected = bytes.fromhex(
        "0000000000000000 0000003a ffffffff 02"
        "00000000"  # the CRC, compared below
        "0010 00000000 0000018bcfe5687b 0000018bcfe5687b"
        "0000000000000fa0 0003 00000011 00000001"
    )
    assert header[:17] + bytes(4) + header[21:] == expected
    assert int.from_bytes(header[17:21], "big") == crc32c(header[21:] + payload)


@given(
    payload=st.binary(max_size=200),
    count=st.integers(1, 2**31 - 1),
    timestamps=st.tuples(st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1)),
    codec_id=st.integers(0, 4),
    producer_id=st.integers(-1, 2**63 - 1),
    epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 2**31 - 1),
    flags=st.tuples(st.booleans(), st.booleans()),
    leader_epoch=st.integers(-1, 2**31 - 1),
)
def test_header_round_trips(
    payload: bytes,
    count: int,
    timestamps: tuple[int, int],
    codec_id: int,
    producer_id: int,
    epoch: int,
    base_sequence: int,
    flags: tuple[bool, bool],
    leader_epoch: int,
) -> None:
    data = batch_header(
        payload,
        count=count,
        base_timestamp=timestamps[0],
        max_timestamp=timestamps[1],
        codec_id=codec_id,
        producer_id=producer_id,
        epoch=epoch,
        base_sequence=base_sequence,
        transactional=flags[0],
        control=flags[1],
        leader_epoch=leader_epoch,
    )
    assert len(data) == HEADER_SIZE
    header = parse_header(data + payload)
    assert header == BatchHeader(
        base_offset=0,
        length=49 + len(payload),
        leader_epoch=leader_epoch,
        magic=2,
        crc=checksum(data + payload),
        attributes=codec_id | flags[0] << 4 | flags[1] << 5,
        last_offset_delta=count - 1,
        base_timestamp=timestamps[0],
        max_timestamp=timestamps[1],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=base_sequence,
        count=count,
    )
    assert header.codec_id == codec_id
    assert (header.is_transactional, header.is_control) == flags
    assert not header.is_log_append_time
    assert header.size == HEADER_SIZE + len(payload)


def test_header_without_idempotence_has_minus_one_everywhere() -> None:
    header = parse_header(batch_header(b"", count=1, base_timestamp=0, max_timestamp=0))
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert header.leader_epoch == -1
    assert header.last_sequence == -1


@pytest.mark.parametrize("payload", [bytearray(b"abc"), memoryview(b"abc")])
def test_payload_may_be_any_buffer(payload: bytes) -> None:
    plain = batch_header(b"abc", count=1, base_timestamp=0, max_timestamp=0)
    assert batch_header(payload, count=1, base_timestamp=0, max_timestamp=0) == plain


def test_crc_covers_neither_base_offset_nor_leader_epoch() -> None:
    batch = batch_header(b"abc", count=3, base_timestamp=0, max_timestamp=0) + b"abc"
    stored = with_offset(batch, 1000, 7)
    header = parse_header(stored)
    assert (header.base_offset, header.last_offset, header.leader_epoch) == (1000, 1002, 7)
    assert checksum(stored) == header.crc == parse_header(batch).crc


@pytest.mark.parametrize("size", [0, 1, 60])
def test_parse_of_too_few_bytes_is_refused(size: int) -> None:
    with pytest.raises(DecodeError, match="its header alone has 61"):
        parse_header(bytes(size))


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (MAX_SEQUENCE, 0, MAX_SEQUENCE),
        (MAX_SEQUENCE, 1, 0),
        (MAX_SEQUENCE - 1, 5, 3),
        (MAX_SEQUENCE, MAX_SEQUENCE, MAX_SEQUENCE - 1),
    ],
)
def test_sequence_wraps_to_zero(sequence: int, increment: int, expected: int) -> None:
    assert increment_sequence(sequence, increment) == expected


def test_last_sequence_wraps_to_zero() -> None:
    data = batch_header(
        b"", count=3, base_timestamp=0, max_timestamp=0, base_sequence=MAX_SEQUENCE - 1
    )
    assert parse_header(data).last_sequence == 0


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc_is_castagnoli(data: bytes, crc: int) -> None:
    """Test vectors of RFC 3720, B.4."""
    assert checksum(bytes(21) + data) == crc
