"""Elastic batches: when a full batch grows, and when it no longer does."""

from __future__ import annotations

import pytest

from aiokprod._wire.record_batch import HEADER_SIZE
from aiokprod.errors import Code
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import EngineHarness, virtual

T0 = TopicPartition("t", 0)


def append_many(harness: EngineHarness, count: int) -> None:
    for _ in range(count):
        harness.append(b"x" * 100)


@virtual
async def test_batch_that_waits_behind_another_one_grows() -> None:
    harness = EngineHarness(batch_size=1000, elastic_batch_size=3000)
    harness.brokers.busy.add(1)
    append_many(harness, 80)
    sizes = [batch.core.size for batch in harness.queued(0)]
    assert [800 < size <= 1000 for size in sizes] == [True, False, False, False]
    assert [2800 < size <= 3000 for size in sizes] == [False, True, True, False]
    harness.brokers.busy.clear()
    for _ in sizes:
        harness.step()
        for sent in list(harness.brokers.waiting):
            sent.ack()
    assert len(harness.brokers.log(T0).records()) == 80


@virtual
@pytest.mark.parametrize(("age", "grows"), [(1.9, True), (2.1, False)])
async def test_batch_grows_until_a_sixteenth_of_its_time_is_over(age: float, grows: bool) -> None:
    """A batch that has already waited for this long must not grow, because that would delay it
    further."""
    harness = EngineHarness(batch_size=1000, elastic_batch_size=3000, delivery_timeout_ms=32_000)
    harness.brokers.busy.add(1)
    append_many(harness, 10)
    assert len(harness.queued(0)) == 2
    harness.pass_time(age)
    append_many(harness, 12)
    assert (harness.queued(0)[1].core.size > 1000) is grows


@virtual
async def test_parts_of_a_batch_that_grew_are_no_larger_than_batch_size() -> None:
    harness = EngineHarness(batch_size=1000, elastic_batch_size=6000)
    harness.brokers.busy.add(1)
    append_many(harness, 60)
    harness.brokers.busy.clear()
    harness.step()
    harness.brokers.last.ack()
    harness.step()
    grown = len(harness.brokers.last.values)
    assert grown > 30
    others = len(harness.queued(0))
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    parts = harness.queued(0)[: len(harness.queued(0)) - others]
    assert sum(part.core.record_count for part in parts) == grown
    assert max(part.core.size for part in parts) <= 1000 - HEADER_SIZE


@virtual
async def test_batches_of_a_topic_with_a_small_limit_no_longer_grow() -> None:
    harness = EngineHarness(batch_size=1000, elastic_batch_size=3000)
    append_many(harness, 8)
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    harness.brokers.busy.add(1)
    append_many(harness, 40)
    assert max(batch.core.size for batch in harness.queued(0)) <= 1000
    assert len(harness.queued(0)) >= 6


@virtual
async def test_batch_that_grew_counts_once_for_its_broker() -> None:
    harness = EngineHarness(batch_size=1000, elastic_batch_size=3000)
    harness.brokers.busy.add(1)
    append_many(harness, 40)
    harness.close_open()
    batches = harness.queued()
    assert any(batch.size > 1000 for batch in batches), "none has grown"
    assert harness.quota.reserved_bytes(1) == sum(batch.core.buffered_bytes for batch in batches)
    harness.brokers.busy.clear()
    while harness.accumulator.incomplete:
        harness.step()
        for sent in harness.brokers.waiting:
            sent.ack()
    assert harness.quota.reserved_bytes(1) == 0
    harness.check_idle()


@pytest.mark.parametrize("elastic", [0, 1000])
@virtual
async def test_batches_keep_their_size_without_elastic_batch_size(elastic: int) -> None:
    harness = EngineHarness(batch_size=1000, elastic_batch_size=elastic)
    harness.brokers.busy.add(1)
    append_many(harness, 40)
    assert max(batch.core.size for batch in harness.queued(0)) <= 1000
