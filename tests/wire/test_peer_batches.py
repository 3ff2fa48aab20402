"""aiokafka and kafka-python read our record batches, and we read theirs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod._wire.batch_reader import Record, read_batches
from aiokprod._wire.compression import CODEC_NAMES, codec_for
from aiokprod._wire.record_batch import BatchHeader, parse_header
from tests.reference.records import PlainRecord
from tests.wire.batches import RECORDS, as_read, whole_batch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kafka.codec import has_snappy as kafka_python_has_snappy
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords


PRODUCERS = st.just((-1, -1, -1, False)) | st.tuples(
    st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.booleans()
)
"""Producer id, epoch, base sequence, and whether the batch is transactional."""

PEERS = ["aiokafka", "kafka-python"]
READERS: dict[str, Callable[[bytes], Any]] = {
    "aiokafka": AiokafkaRecords,
    "kafka-python": KafkaPythonRecords,
}

WITH_CODECS = pytest.mark.parametrize(
    ("peer", "codec"),
    [
        (peer, codec)
        for peer in PEERS
        for codec in CODEC_NAMES
        # kafka-python requires another snappy package.
        if (peer, codec) != ("kafka-python", "snappy") or kafka_python_has_snappy()
    ],
)


def read_by_peer(peer: str, data: bytes) -> tuple[list[Record], Any]:
    """Return the records and the peer's batch object. Assert that the peer's CRC check passes."""
    batches = READERS[peer](data)
    batch = batches.next_batch()
    assert batch.validate_crc()
    records = [
        Record(record.offset, record.timestamp, record.key, record.value, tuple(record.headers))
        for record in batch
    ]
    assert not batches.has_next()
    return records, batch


def built_by_peer(peer: str, records: Sequence[PlainRecord], codec_id: int, *state: Any) -> bytes:
    """Build a batch with the peer. `state` is producer id, epoch, base sequence, transactional."""
    producer_id, epoch, sequence, transactional = state
    builder: Any
    if peer == "aiokafka":
        builder = AiokafkaBuilder(
            2, codec_id, transactional, producer_id, epoch, sequence, 1_000_000
        )
    else:
        builder = KafkaPythonBuilder(
            2, codec_id, transactional, producer_id, epoch, sequence, 1_000_000
        )
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(builder.build())


@WITH_CODECS
@given(records=RECORDS, producer=PRODUCERS)
@settings(max_examples=15, deadline=None)
def test_peer_reads_our_batches(
    peer: str, codec: str, records: list[PlainRecord], producer: tuple[int, int, int, bool]
) -> None:
    producer_id, epoch, sequence, transactional = producer
    data = whole_batch(
        records,
        codec_for(codec),
        producer_id=producer_id,
        epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    seen, batch = read_by_peer(peer, data)
    assert seen == as_read(records)
    assert batch.is_transactional == transactional
    assert batch.producer_id == producer_id
    assert batch.first_timestamp == records[0].timestamp
    assert batch.max_timestamp == max(record.timestamp for record in records)


@WITH_CODECS
@given(records=RECORDS, producer=PRODUCERS)
@settings(max_examples=15, deadline=None)
def test_batches_of_a_peer_are_read(
    peer: str, codec: str, records: list[PlainRecord], producer: tuple[int, int, int, bool]
) -> None:
    data = built_by_peer(peer, records, codec_for(codec).codec_id, *producer)
    (batch,) = read_batches(data)
    assert batch.records() == as_read(records)
    header = batch.header
    assert (
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.is_transactional,
    ) == producer
    assert header.count == len(records)


def without_crc_and_leader(header: BatchHeader) -> tuple[object, ...]:
    return (
        header.base_offset,
        header.length,
        header.magic,
        header.attributes,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.count,
    )


@pytest.mark.parametrize("peer", PEERS)
@given(records=RECORDS, producer=PRODUCERS)
@settings(max_examples=60, deadline=None)
def test_uncompressed_batch_equals_that_of_a_peer_byte_by_byte(
    peer: str, records: list[PlainRecord], producer: tuple[int, int, int, bool]
) -> None:
    producer_id, epoch, sequence, transactional = producer
    ours = whole_batch(
        records,
        producer_id=producer_id,
        epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    theirs = built_by_peer(peer, records, 0, *producer)
    assert without_crc_and_leader(parse_header(ours)) == without_crc_and_leader(
        parse_header(theirs)
    )
    assert ours[:12] == theirs[:12]
    # The broker sets the leader epoch (bytes 12 to 15). Like Java, the peers write -1 there.
    assert ours[16:] == theirs[16:]


@WITH_CODECS
def test_peer_reads_a_thousand_records(peer: str, codec: str) -> None:
    records = [
        PlainRecord(1_700_000_000_000 + (number * 37) % 100, b"k%d" % number, b"v" * (number % 500))
        for number in range(1000)
    ]
    data = whole_batch(records, codec_for(codec))
    assert read_by_peer(peer, data)[0] == as_read(records)


@pytest.mark.parametrize("peer", PEERS)
def test_peer_detects_damage_that_we_detect(peer: str) -> None:
    data = bytearray(whole_batch([PlainRecord(5, b"key", b"value")]))
    data[-3] ^= 1
    batch = READERS[peer](bytes(data)).next_batch()
    assert not batch.validate_crc()
