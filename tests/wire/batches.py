"""Record batches for the tests: Hypothesis strategies, and complete batches of plain records."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from aiokprod._wire.batch_reader import Record
from aiokprod._wire.compression import Codec
from aiokprod._wire.record_batch import batch_header
from tests.reference.records import PlainRecord, encode_records

NULLABLE = st.none() | st.binary(max_size=12) | st.binary(min_size=100, max_size=300)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=6)), max_size=3)
TIMESTAMPS = st.integers(0, 2**42) | st.integers(1_700_000_000_000, 1_700_000_001_000)

RECORDS = st.lists(
    st.builds(PlainRecord, TIMESTAMPS, NULLABLE, NULLABLE, HEADERS.map(tuple)),
    min_size=1,
    max_size=12,
)
"""Timestamps that increase and decrease, so that deltas can be negative."""


def whole_batch(
    records: Sequence[PlainRecord],
    codec: Codec | None = None,
    *,
    producer_id: int = -1,
    epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
) -> bytes:
    """Return a batch as a producer sends it."""
    base_timestamp = records[0].timestamp
    payload = encode_records(records, base_timestamp)
    if codec is not None:
        payload = codec.compress(payload)
    header = batch_header(
        payload,
        count=len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        codec_id=0 if codec is None else codec.codec_id,
        producer_id=producer_id,
        epoch=epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )
    return header + payload


def as_read(records: Sequence[PlainRecord], base_offset: int = 0) -> list[Record]:
    """Return the records as `batch_reader` decodes them."""
    return [
        Record(
            base_offset + delta, record.timestamp, record.key, record.value, tuple(record.headers)
        )
        for delta, record in enumerate(records)
    ]
