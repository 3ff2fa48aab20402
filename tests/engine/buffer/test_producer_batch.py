"""One batch: its bytes, its outcome, its properties."""

from __future__ import annotations

import pytest

from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._wire.batch_reader import read_batches
from aiokprod._wire.record_batch import HEADER_SIZE
from aiokprod.errors import BrokerError, Code, Outcome
from aiokprod.records import TopicPartition
from tests.current import current
from tests.engine.engine_harness import PRODUCER_ID, EngineHarness, error_of, offset_of, virtual


def taken(harness: EngineHarness) -> ProducerBatch:
    (batch,) = harness.drain()
    return batch


@virtual
async def test_chunks_are_header_and_records_of_a_readable_batch() -> None:
    harness = EngineHarness()
    harness.append(b"v", key=b"k", timestamp_ms=5, headers=[("h", None)])
    harness.append(b"w", timestamp_ms=3)
    batch = taken(harness)
    header, payload = batch.chunks()
    assert len(header) == HEADER_SIZE
    assert payload is batch.payload, "the records are never copied"
    assert batch.size == len(header) + len(payload)
    (read,) = read_batches(header + payload)
    assert [(r.timestamp, r.key, r.value, r.headers) for r in read.records()] == [
        (5, b"k", b"v", (("h", None),)),
        (3, None, b"w", ()),
    ]
    assert (read.header.base_timestamp, read.header.max_timestamp) == (5, 5)
    assert (read.header.producer_id, read.header.base_sequence) == (-1, -1)
    assert not read.header.is_transactional


@virtual
async def test_chunks_carry_the_sequence_once_stamped() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    batch = taken(harness)
    assert not batch.has_sequence
    harness.state.sequences.assign_sequence(batch)
    assert current(batch.has_sequence)
    first = batch.chunks()
    (read,) = read_batches(b"".join(first))
    header = read.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER_ID, 0, 0)
    harness.state.sequences.assign_sequence(batch)
    assert batch.chunks() == first, "stamped once"


@virtual
async def test_open_batch_cannot_be_sent() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    with pytest.raises(AssertionError):
        harness.queued()[0].chunks()


@virtual
async def test_size_of_an_open_batch_is_what_it_holds() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    (batch,) = harness.queued()
    assert batch.size == HEADER_SIZE + batch.core.size


@virtual
async def test_first_outcome_stands() -> None:
    harness = EngineHarness()
    delivery = harness.append(b"v")
    batch = taken(harness)
    assert batch.core.acknowledge(7, -1)
    assert not batch.fail(BrokerError("late"))
    assert not batch.core.acknowledge(8, -1)
    assert offset_of(delivery) == 7

    delivery = harness.append(b"v")
    batch = taken(harness)
    assert batch.fail(BrokerError("first", outcome=Outcome.REJECTED))
    assert not batch.core.acknowledge(9, -1)
    assert not batch.fail(BrokerError("late"))
    assert "first" in str(error_of(delivery))


@virtual
async def test_unknown_fate_is_remembered() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    batch = taken(harness)
    assert not batch.possibly_appended
    batch.note_unknown()
    assert current(batch.possibly_appended)
    assert batch.in_doubt


@virtual
async def test_repr_says_where_and_how_far() -> None:
    harness = EngineHarness()
    harness.append(b"secret value")
    (batch,) = harness.queued()
    assert "t-0" in repr(batch)
    assert "secret" not in repr(batch)
    assert batch.topic_partition == TopicPartition("t", 0)
    assert "t-0" in repr(batch.queue)


@virtual
async def test_memory_of_a_batch_is_given_back_once() -> None:
    harness = EngineHarness()
    harness.append(b"v")
    harness.append(b"w", 0)
    harness.step()
    (batch,) = harness.accumulator.incomplete
    harness.brokers.last.refuse(Code.INVALID_RECORD)
    assert harness.memory.used == 0
    for _ in range(2):
        harness.accumulator.deallocate(batch)
    assert harness.memory.used == 0
    assert batch.payload is None, "the bytes are gone too"
