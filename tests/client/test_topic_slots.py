"""`TopicSlots`: the partitions of the append path follow the cluster metadata."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod import Producer
from aiokprod._client.topic_slots import TopicSlots
from aiokprod.testing import FakeCluster
from tests.scenarios.scenario_helpers import make_producer, play, runtime_of


def with_slots(test: Any, **settings: Any) -> None:
    """Run a test with the slots of a producer that has sent one record to topic t."""

    async def main() -> None:
        cluster = FakeCluster(auto_create=False)
        cluster.create_topic("t", 2)
        async with make_producer(cluster, **settings) as producer:
            await producer.send("t", b"first", partition=0)
            await test(cluster, producer, runtime_of(producer).topic_slots)

    play(main)


def test_slot_is_made_once_with_a_queue_for_each_partition() -> None:
    async def test(cluster: FakeCluster, producer: Producer[Any, Any], slots: TopicSlots) -> None:
        runtime = runtime_of(producer)
        snapshot = runtime.metadata.snapshot
        slot = slots.slot_of("t", snapshot)
        assert slots.slot_of("t", snapshot) is slot is runtime.appender.topics["t"]
        assert slot.slots == [runtime.accumulator.queue("t", number) for number in range(2)]
        assert slots.topic_ids == {"t": snapshot.topic_id("t")}

    with_slots(test)


def test_slot_gets_partitions_that_are_added() -> None:
    async def test(cluster: FakeCluster, producer: Producer[Any, Any], slots: TopicSlots) -> None:
        slot = slots.slot_of("t", runtime_of(producer).metadata.snapshot)
        cluster.expand_topic("t", 5)
        await producer.refresh_metadata()
        assert len(slot.slots) == 5
        assert (await producer.send("t", b"last", partition=4)).offset == 0

    with_slots(test)


def test_topic_that_vanished_is_forgotten_once_its_batches_have_ended() -> None:
    async def test(cluster: FakeCluster, producer: Producer[Any, Any], slots: TopicSlots) -> None:
        runtime = runtime_of(producer)
        cluster.delete_topic("t")
        for _ in range(6):  # one response without the topic is not enough
            if "t" not in runtime.appender.topics:
                break
            await producer.refresh_metadata()
        assert "t" not in runtime.appender.topics
        assert slots.topic_ids == {}
        assert slots.vanished == {}

    with_slots(test)


@pytest.mark.parametrize("size", [10, 5_000])
def test_sticky_partition_is_chosen_again_after_batch_size(size: int) -> None:
    async def test(cluster: FakeCluster, producer: Producer[Any, Any], slots: TopicSlots) -> None:
        await producer.send("t", bytes(size))
        slot = slots.slot_of("t", runtime_of(producer).metadata.snapshot)
        chosen = slot.sticky
        assert chosen in (0, 1)
        slots.choose_sticky_anew()
        assert slot.sticky == (-1 if size == 5_000 else chosen)

    with_slots(test, batch_size=5_000)
