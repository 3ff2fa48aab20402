from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._wire.batch_reader import RecordBatch, read_batches
from aiokprod._wire.compression import CODEC_NAMES, codec_for
from aiokprod._wire.record_batch import (
    HEADER_SIZE,
    batch_header,
    checksum,
    parse_header,
)
from aiokprod.errors import DecodeError
from tests.reference.records import PlainRecord, encode_records, with_offset, zigzag_varint
from tests.wire.batches import RECORDS, as_read, whole_batch


def only(data: bytes, **kwargs: bool) -> RecordBatch:
    (batch,) = read_batches(data, **kwargs)
    return batch


def resealed(batch: bytes) -> bytes:
    """Return the batch with a CRC that matches its content."""
    return batch[:17] + checksum(batch).to_bytes(4, "big") + batch[21:]


@pytest.mark.parametrize("codec", CODEC_NAMES)
@given(records=RECORDS)
@settings(max_examples=40, deadline=None)
def test_batch_round_trips(codec: str, records: list[PlainRecord]) -> None:
    batch = only(whole_batch(records, codec_for(codec)))
    assert batch.records() == as_read(records)
    assert batch.header.count == len(records)
    assert batch.header.max_timestamp == max(record.timestamp for record in records)


@given(groups=st.lists(RECORDS, max_size=4), base_offset=st.integers(0, 2**40))
@settings(max_examples=40, deadline=None)
def test_batches_follow_each_other(groups: list[list[PlainRecord]], base_offset: int) -> None:
    data = b""
    expected = []
    for records in groups:
        data += with_offset(whole_batch(records), base_offset, 5)
        expected += as_read(records, base_offset)
        base_offset += len(records)
    batches = list(read_batches(memoryview(data)))
    assert [record for batch in batches for record in batch.records()] == expected
    assert all(batch.header.leader_epoch == 5 for batch in batches)


def test_null_and_empty_key_value_and_headers_are_told_apart() -> None:
    records = [
        PlainRecord(5, None, None),
        PlainRecord(4, b"", b""),
        PlainRecord(3, b"k", b"v", (("", None), ("", b""), ("h", b"x"), ("h", b"x"))),
    ]
    assert only(whole_batch(records)).records() == as_read(records)


def test_large_record_is_read() -> None:
    records = [PlainRecord(0, b"k" * 100_000, b"v" * 3_000_000)]
    for codec in CODEC_NAMES:
        assert only(whole_batch(records, codec_for(codec))).records() == as_read(records)


def test_extreme_timestamps_are_read() -> None:
    records = [PlainRecord(2**63 - 1), PlainRecord(0), PlainRecord(2**62)]
    assert [record.timestamp for record in only(whole_batch(records)).records()] == [
        2**63 - 1,
        0,
        2**62,
    ]


def test_log_append_time_replaces_all_timestamps() -> None:
    data = bytearray(whole_batch([PlainRecord(5), PlainRecord(9)]))
    data[22] |= 0x08
    data[35:43] = (777).to_bytes(8, "big")
    batch = only(resealed(bytes(data)))
    assert batch.header.is_log_append_time
    assert [record.timestamp for record in batch.records()] == [777, 777]


def test_every_damaged_byte_is_detected() -> None:
    data = with_offset(whole_batch([PlainRecord(5, b"key", b"value", (("h", b"x"),))]), 0, 1)
    for index in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[index] ^= 1 << bit
            # The CRC does not cover the base offset and the leader epoch.
            if index < 8 or 12 <= index < 16:
                assert only(bytes(damaged)).records()
            else:
                with pytest.raises(DecodeError):
                    list(read_batches(damaged))


def test_crc_check_can_be_left_out() -> None:
    data = bytearray(whole_batch([PlainRecord(5)]))
    data[17] ^= 1
    assert only(bytes(data), verify_crc=False).records() == as_read([PlainRecord(5)])
    with pytest.raises(DecodeError, match="CRC"):
        only(bytes(data))


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_truncated_batch_is_refused_or_dropped_as_asked(codec: str) -> None:
    whole = whole_batch([PlainRecord(5, b"key", b"value" * 20)], codec_for(codec))
    for size in range(1, len(whole)):
        data = whole + whole[:size]
        with pytest.raises(DecodeError):
            list(read_batches(data))
        assert len(list(read_batches(data, partial_tail=True))) == 1


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_impossible_length_is_refused(length: int) -> None:
    data = bytearray(whole_batch([PlainRecord(5)]))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    for partial_tail in (False, True):
        with pytest.raises(DecodeError, match="are available"):
            list(read_batches(data, partial_tail=partial_tail))


@pytest.mark.parametrize("magic", [0, 1, 3, 127])
def test_other_message_formats_are_refused(magic: int) -> None:
    data = bytearray(whole_batch([PlainRecord(5)]))
    data[16] = magic
    with pytest.raises(DecodeError, match=f"message format {magic}"):
        list(read_batches(data))


@pytest.mark.parametrize(
    ("count", "reason"),
    [
        (-1, "record count of -1"),
        (0, "left over"),
        (1, "left over"),
        (3, "cut off"),
        (2**31 - 1, "elem"),
    ],
)
def test_wrong_count_is_refused(count: int, reason: str) -> None:
    data = bytearray(whole_batch([PlainRecord(5, b"k", b"v" * 20), PlainRecord(6)]))
    data[57:61] = count.to_bytes(4, "big", signed=True)
    with pytest.raises(DecodeError, match=reason):
        only(resealed(bytes(data))).records()


def test_batch_emptied_by_compaction_is_read() -> None:
    header = batch_header(b"", count=1, base_timestamp=0, max_timestamp=0)
    data = resealed(header[:57] + bytes(4))
    assert only(data).records() == []


def test_unknown_codec_is_refused() -> None:
    data = bytearray(whole_batch([PlainRecord(5)]))
    data[22] |= 5
    with pytest.raises(DecodeError, match="codec 5"):
        only(resealed(bytes(data))).records()


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_decompression_stops_at_the_limit(codec: str) -> None:
    records = [PlainRecord(5, None, bytes(10_000))]
    size = len(encode_records(records, 5))
    batch = only(whole_batch(records, codec_for(codec)))
    if codec != "none":
        assert batch.records(max_bytes=size) == as_read(records)
        with pytest.raises(DecodeError, match=f"limit of {size - 1} bytes"):
            batch.records(max_bytes=size - 1)


def _payload_batch(payload: bytes, count: int = 1) -> RecordBatch:
    header = batch_header(payload, count=count, base_timestamp=0, max_timestamp=0)
    return only(header + payload)


def _record(body: bytes) -> bytes:
    return zigzag_varint(len(body)) + body


NULL = zigzag_varint(-1)
START = b"\0" + zigzag_varint(0) + zigzag_varint(0)  # attributes and deltas


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(_record(START + zigzag_varint(-2) + NULL + b"\0"), id="key length -2"),
        pytest.param(_record(START + NULL + zigzag_varint(-5) + b"\0"), id="value length -5"),
        pytest.param(_record(START + NULL + zigzag_varint(100) + b"\0"), id="value too long"),
        pytest.param(_record(START + NULL + NULL + zigzag_varint(-1)), id="headers -1"),
        pytest.param(_record(START + NULL + NULL + zigzag_varint(2**30)), id="too many headers"),
        pytest.param(_record(START + NULL + NULL + b"\2" + NULL + NULL), id="null header key"),
        pytest.param(_record(START + NULL + NULL + b"\2\2\xff" + NULL), id="header key not UTF-8"),
        pytest.param(_record(START + NULL + NULL + b"\0" + b"\0"), id="byte after headers"),
        pytest.param(_record(START + NULL + NULL), id="no header count"),
        pytest.param(zigzag_varint(-1) + bytes(10), id="record length -1"),
        pytest.param(zigzag_varint(7) + START + NULL + NULL + b"\0", id="record length too long"),
        pytest.param(zigzag_varint(5) + START + NULL + NULL + b"\0", id="record length too short"),
        pytest.param(b"\xff" * 6 + bytes(10), id="record length of six bytes"),
        pytest.param(_record(b"\0" + b"\xff" * 10 + b"\1" + bytes(9)), id="long timestamp delta"),
    ],
)
def test_damaged_record_is_refused(payload: bytes) -> None:
    assert _payload_batch(_record(START + NULL + NULL + b"\0")).records()
    with pytest.raises(DecodeError):
        _payload_batch(payload).records()


@given(data=st.binary(max_size=200))
def test_random_bytes_raise_only_decode_error(data: bytes) -> None:
    for partial_tail in (False, True):
        try:
            for batch in read_batches(data, verify_crc=False, partial_tail=partial_tail):
                batch.records(1 << 20)
        except DecodeError:
            continue


@given(payload=st.binary(max_size=120), count=st.integers(0, 20), codec_id=st.integers(0, 7))
def test_random_records_raise_only_decode_error(payload: bytes, count: int, codec_id: int) -> None:
    header = batch_header(
        payload, count=count + 1, base_timestamp=0, max_timestamp=0, codec_id=codec_id
    )
    (batch,) = read_batches(header + payload)
    try:
        records = batch.records(1 << 20)
    except DecodeError:
        return
    assert len(records) == count + 1


def test_payload_is_a_view_of_the_data() -> None:
    data = whole_batch([PlainRecord(5)])
    batch = only(data)
    assert batch.payload.obj is data
    assert batch.payload == data[HEADER_SIZE:]
    assert batch.header == parse_header(data)
