"""One batch: its bytes, its one outcome, what it tells about itself."""

from __future__ import annotations

import pytest

from aiokprod.engine.batch import ProducerBatch
from aiokprod.errors import BrokerError, Code, Outcome
from aiokprod.records import TopicPartition
from aiokprod.wire.batch_reader import read_batches
from aiokprod.wire.record_batch import HEADER_SIZE
from tests.engine.world import PRODUCER_ID, World, error_of, offset_of, virtual


def taken(world: World) -> ProducerBatch:
    (batch,) = world.accumulator.drain(1, 1 << 20, lambda queue, batch: True)
    return batch


@virtual
async def test_chunks_are_header_and_records_of_a_readable_batch() -> None:
    world = World()
    world.append(b"v", key=b"k", timestamp_ms=5, headers=[("h", None)])
    world.append(b"w", timestamp_ms=3)
    batch = taken(world)
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
    world = World()
    world.append(b"v")
    batch = taken(world)
    assert not batch.stamped
    world.state.stamp(batch)
    assert batch.stamped
    first = batch.chunks()
    (read,) = read_batches(b"".join(first))
    header = read.header
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (PRODUCER_ID, 0, 0)
    world.state.stamp(batch)
    assert batch.chunks() == first, "stamped once"


@virtual
async def test_open_batch_cannot_be_sent() -> None:
    world = World()
    world.append(b"v")
    with pytest.raises(AssertionError):
        world.queued()[0].chunks()


@virtual
async def test_size_of_an_open_batch_is_what_it_holds() -> None:
    world = World()
    world.append(b"v")
    (batch,) = world.queued()
    assert batch.size == HEADER_SIZE + batch.core.size


@virtual
async def test_first_outcome_stands() -> None:
    world = World()
    delivery = world.append(b"v")
    batch = taken(world)
    assert batch.acknowledge(7, -1)
    assert not batch.fail(BrokerError("late"))
    assert not batch.acknowledge(8, -1)
    assert offset_of(delivery) == 7

    delivery = world.append(b"v")
    batch = taken(world)
    assert batch.fail(BrokerError("first", outcome=Outcome.REJECTED))
    assert not batch.acknowledge(9, -1)
    assert not batch.fail(BrokerError("late"))
    assert "first" in str(error_of(delivery))


@virtual
async def test_unknown_fate_is_remembered() -> None:
    world = World()
    world.append(b"v")
    batch = taken(world)
    assert not batch.maybe_written
    batch.note_unknown()
    assert batch.maybe_written
    assert batch.fate_open


@virtual
async def test_repr_says_where_and_how_far() -> None:
    world = World()
    world.append(b"secret value")
    (batch,) = world.queued()
    assert "t-0" in repr(batch)
    assert "secret" not in repr(batch)
    assert batch.topic_partition == TopicPartition("t", 0)
    assert "t-0" in repr(batch.queue)


@virtual
async def test_memory_of_a_batch_is_given_back_once() -> None:
    world = World()
    world.append(b"v")
    world.append(b"w", 0)
    world.step()
    (batch,) = world.accumulator.incomplete
    world.brokers.last.refuse(Code.INVALID_RECORD)
    assert world.memory.used == 0
    world.accumulator.release(batch)
    world.accumulator.settle(batch)
    assert world.memory.used == 0
    assert batch.payload is None, "the bytes are gone too"
