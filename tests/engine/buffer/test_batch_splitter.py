"""The parts of a split batch: its plain records, and the sizes of the parts."""

from __future__ import annotations

import pytest

from aiokprod._engine.buffer.batch_splitter import part_limit, plain_records
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._wire.compression import codec_for
from aiokprod._wire.record_batch import HEADER_SIZE
from tests.engine.engine_harness import EngineHarness, virtual
from tests.reference.records import PlainRecord, encode_records


def encoded(harness: EngineHarness, values: list[bytes]) -> ProducerBatch:
    """Return an encoded batch of these values."""
    for value in values:
        harness.append(value)
    harness.step()
    (batch,) = harness.accumulator.incomplete
    return batch


@pytest.mark.parametrize("codec", [None, "gzip", "lz4", "zstd"])
@virtual
async def test_records_are_those_before_compression(codec: str | None) -> None:
    harness = EngineHarness(codec=None if codec is None else codec_for(codec))
    batch = encoded(harness, [b"x" * 100] * 3)
    base = batch.core.base_timestamp
    records = [PlainRecord(base, None, b"x" * 100)] * 3
    assert plain_records(batch) == encode_records(records, base)


@virtual
async def test_parts_are_at_most_half_of_the_batch_and_at_most_batch_size() -> None:
    small = encoded(EngineHarness(batch_size=10_000), [b"x" * 100] * 10)
    assert part_limit(small) == small.plain_size // 2 < 10_000 - HEADER_SIZE
    large = encoded(EngineHarness(batch_size=1_000), [b"x" * 5_000])
    assert part_limit(large) == 1_000 - HEADER_SIZE
    single = encoded(EngineHarness(batch_size=0), [b""])
    assert part_limit(single) == 1
