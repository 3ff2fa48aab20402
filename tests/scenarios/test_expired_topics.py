"""Topics that are no longer used or vanish: their state is dropped, and they can return."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from aiokprod._client.runtime import Runtime
from aiokprod._engine.identity import transaction_manager
from aiokprod.errors import Code, ProducerClosed
from aiokprod.producer import Producer
from aiokprod.records import TopicPartition
from aiokprod.testing import fake_cluster as faults
from tests.scenarios.scenario_helpers import RECOVERY, TICK, harness, now, play, runtime_of, until

INIT_PRODUCER_ID = 22
IDLE: dict[str, Any] = {"metadata_max_idle_ms": 5_000, "metadata_max_age_ms": 2_000}


def sequences_of(runtime: Runtime) -> dict[Any, Any]:
    """Return the sequences by partition; empty without idempotence."""
    tracker = getattr(runtime.state.sequences, "tracker", None)
    return {} if tracker is None else tracker.partitions


def tables(producer: Producer[Any, Any]) -> dict[str, int]:
    """Return the sizes of the tables that a producer keeps for topics."""
    runtime = runtime_of(producer)
    return {
        "slots": len(runtime.appender.topics),
        "ids": len(runtime.topic_slots.topic_ids),
        "vanished": len(runtime.topic_slots.vanished),
        "queues": len(runtime.accumulator._queues),
        "ratios": len(runtime.accumulator._compressor._ratios),
        "sequences": len(sequences_of(runtime)),
    }


NOTHING = {"slots": 0, "ids": 0, "vanished": 0, "queues": 0, "ratios": 0, "sequences": 0}


def test_tables_shrink_when_thousands_of_partitions_are_used_no_more() -> None:
    """The scenario is a service with one topic per job."""

    async def main() -> None:
        count = 1_000
        async with harness(compression_type="gzip", **IDLE) as (cluster, producer, history):
            names = [f"job-{number}" for number in range(count)]
            for name in names:
                cluster.create_topic(name, 2)
            await producer.warm(names)
            for name in names:
                await history.submit(name, 0)
                await history.submit(name, 1)
            await history.settle()
            full = tables(producer)
            assert full["sequences"] == full["queues"] == 2 * count
            assert full["ratios"] == full["ids"] == count
            await asyncio.sleep(10)
            assert tables(producer) == NOTHING
            used = cluster.count(22)
            for name in names[:50]:
                await history.submit(name, 0)
            await history.settle()
            history.all_acked()
            assert cluster.count(22) == used, "the bump is local"

    play(main)


def test_topic_with_records_queued_is_kept_although_nothing_of_it_is_sent() -> None:
    """Its leader cannot be reached for longer than metadata_max_idle_ms."""

    async def main() -> None:
        async with harness(partitions=1, request_timeout_ms=2_000, **IDLE) as (
            cluster, producer, history,
        ):  # fmt: skip
            await history.send()
            leader = cluster.leader_of("t", 0)
            cluster.pause(leader.broker_id)
            cluster.network.hang(leader.host, leader.port)
            waiting = history.send_later()
            kept = []
            runtime_of(producer).metadata.on_change(lambda new: kept.append("t" in new.topics))
            await asyncio.sleep(30)
            cluster.network.hang(leader.host, leader.port, False)
            cluster.resume(leader.broker_id)
            assert (await waiting).acked
            assert all(kept)
            await asyncio.sleep(10)
            assert not kept[-1]

    play(main)


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize("idempotent", [True, False])
def test_topic_that_vanished_with_records_queued_is_forgotten_once_they_ended(
    idempotent: bool, returns: bool
) -> None:
    """`returns`: the metadata request creates the topic again, with fewer partitions than the
    queued records need."""

    async def main() -> None:
        options: dict[str, Any] = {
            "delivery_timeout_ms": 6_000,
            "request_timeout_ms": 2_000,
            **IDLE,
        }
        options |= {"enable_idempotence": idempotent, "cluster": {"auto_create": returns}}
        async with harness(**options) as (cluster, producer, history):
            cluster.create_topic("u", 4)
            for partition in range(4):
                await history.send("u", partition)
            await history.send("t")
            cluster.delete_topic("u")
            for partition in range(4):
                await history.submit("u", partition)
            await history.settle()
            await asyncio.sleep(10)
            assert tables(producer) == NOTHING
            assert ("u" in cluster.topics) is returns
            if not returns:
                cluster.create_topic("u", 1)
            cluster.expand_topic("u", 4)
            attempts = [await history.send("u", partition) for partition in range(4)]
            assert all(attempt.acked for attempt in attempts)
            for attempt in attempts:
                assert cluster.values("u", attempt.partition)[-1] == attempt.value

    play(main)


def test_batch_keeps_its_queue_when_its_answer_names_the_leader_of_a_topic_that_returned() -> None:
    """The metadata lacks the topic for a while, and then contains it again with an old leader. The
    response with the hint to the new leader arrives when no record of the topic is queued or in
    flight."""

    async def main() -> None:
        options: dict[str, Any] = {
            "cluster": {"brokers": 2},
            "retry_backoff_ms": 500,
            "retry_backoff_max_ms": 500,
        }
        async with harness(**options) as (cluster, producer, history):
            await history.send()
            for broker_id in cluster.brokers:
                cluster.freeze_view(broker_id)
            lacks = cluster.control(3, faults.edit(lambda answer: replace(answer, topics=[])))
            cluster.fail_produce(("t", 0), Code.LEADER_NOT_AVAILABLE, None)
            await history.submit()
            await until(lambda: "t" in runtime_of(producer).topic_slots.vanished)
            lacks()
            cluster.produce_script.clear()
            leader = cluster.move_leader("t", 0)
            metadata = runtime_of(producer).metadata
            await until(lambda: metadata.snapshot.leader_of(TopicPartition("t", 0)) == leader)
            started = now()
            await history.submit()
            await history.settle()
            assert now() - started < RECOVERY
            history.all_acked(refusals=True)

    play(main)


def test_records_of_a_topic_forgotten_and_used_again_are_stored_once_and_in_order() -> None:
    """This holds for every outcome of earlier records: the sequences restart under a higher
    epoch."""

    async def main() -> None:
        async with harness(partitions=2, **IDLE) as (cluster, producer, history):
            for code in (0, Code.KAFKA_STORAGE_ERROR, Code.INVALID_RECORD, Code.REQUEST_TIMED_OUT):
                if code:
                    cluster.fail_produce(("t", 0), code, append=code is not Code.INVALID_RECORD)
                await history.submit_many(6, partitions=(0, 1))
                await history.settle()
                await until(lambda: tables(producer) == NOTHING, within=20)
            await history.submit_many(6, partitions=(0, 1))
            await history.settle()
            history.check(refusals=True)
            failed = [attempt for attempt in history.attempts if not attempt.acked]
            assert {attempt.partition for attempt in failed} <= {0}

    play(main)


def test_send_that_waits_for_a_topic_hears_of_a_close_at_once() -> None:
    """The close waits for submitted records that still need metadata."""

    async def main() -> None:
        async with harness(cluster={"auto_create": False}) as (cluster, producer, history):
            await history.send()
            cluster.fail_produce(("t", 0), Code.NOT_ENOUGH_REPLICAS, None)
            await history.submit()
            waiting = asyncio.ensure_future(producer.send("absent", b"v"))
            await asyncio.sleep(0.5)
            started = now()
            closing = asyncio.ensure_future(producer.close(30))
            with pytest.raises(ProducerClosed, match="while the send was in progress"):
                await waiting
            assert now() - started < TICK
            cluster.move_leader("t", 0)
            await asyncio.sleep(5)
            assert not closing.done()
            cluster.produce_script.clear()
            report = await closing
            assert report.complete
            await history.settle()
            history.all_acked()

    play(main)


@pytest.mark.parametrize("profile", ["0.11", "2.4", "2.8", "3.9", "4.3"])
def test_transactional_producer_keeps_few_sequences_of_topics_it_used_once(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under the first protocol commits do not change the epoch, and the sequences of the current
    epoch must be kept: the end of a transaction occasionally requests a new epoch. Brokers before
    2.5 cannot provide one, and would treat a second batch 0 as a duplicate of the first."""
    monkeypatch.setattr(transaction_manager, "FORGOTTEN_PARTITIONS", 20)

    async def main() -> None:
        made = {"version_profile": profile}
        async with harness(cluster=made, transactional_id="x", **IDLE) as (cluster, producer, _):
            await producer.start()
            sequences = sequences_of(runtime_of(producer))
            began = cluster.count(INIT_PRODUCER_ID)
            most = 0
            for number in range(30):
                names = [f"job-{number}-{place}" for place in range(4)]
                async with producer.transaction():
                    for name in names:
                        cluster.create_topic(name, 1)
                        await producer.send(name, b"v")
                most = max(most, len(sequences))
                await asyncio.sleep(10)
            inits = cluster.count(INIT_PRODUCER_ID) - began
            if profile in ("0.11", "2.4"):
                assert (most, inits) == (30 * 4, 0)
            else:
                assert most <= 20 + 2 * 4
                assert (inits == 0) if profile == "4.3" else (1 <= inits <= 6)
            for number in range(30):
                for place in range(4):
                    assert cluster.committed_values(f"job-{number}-{place}", 0) == [b"v"]
            async with producer.transaction():  # topics that return
                await producer.send("job-0-0", b"w")
                await producer.send("job-29-0", b"w")
            assert cluster.committed_values("job-0-0", 0) == [b"v", b"w"]
            assert cluster.committed_values("job-29-0", 0) == [b"v", b"w"]
            assert cluster.violations == []

    play(main)


@pytest.mark.parametrize("profile", ["3.9", "4.3"])
def test_topic_forgotten_in_an_open_transaction_and_used_again_goes_on(profile: str) -> None:
    async def main() -> None:
        made = {"version_profile": profile}
        async with harness(cluster=made, transactional_id="x", **IDLE) as (cluster, producer, _):
            await producer.begin_transaction()
            await producer.send("t", b"0")
            await asyncio.sleep(20)
            assert "t" not in runtime_of(producer).appender.topics
            await producer.send("t", b"1")
            await producer.commit_transaction()
            assert cluster.committed_values("t", 0) == [b"0", b"1"]
            await asyncio.sleep(20)
            cluster.create_topic("other", 1)
            for _ in range(2):
                async with producer.transaction():
                    await producer.send("other", b"v")
            known = [key.topic for key in sequences_of(runtime_of(producer))]
            assert known == (["t", "other"] if profile == "3.9" else ["other"])
            assert cluster.violations == []

    play(main)
