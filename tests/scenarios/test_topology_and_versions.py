"""Faults F51 to F60: topology, metadata, versions."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod._wire.message import Message
from aiokprod.errors import Code, KafkaError, MetadataTimeout, Outcome, UnsupportedVersion
from aiokprod.producer import Producer
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.profiles import profile_named
from tests.scenarios.scenario_helpers import (
    RECOVERY,
    TICK,
    History,
    error_of,
    make_producer,
    now,
    scenario,
    until,
)

TP = ("t", 0)


def edit_topics(change: Callable[[Any], Any], *, only: str | None = None) -> faults.Reaction:
    """Return an edit of Metadata responses: `change` gets each topic (of that name) and returns
    it."""

    def edited(message: Any) -> Message:
        topics = [t if only not in (None, t.name) else change(t) for t in message.topics]
        changed: Message = dataclasses.replace(message, topics=topics)
        return changed

    return faults.edit(edited)


def edit_partitions(**changes: Any) -> faults.Reaction:
    return edit_topics(
        lambda topic: dataclasses.replace(
            topic, partitions=[dataclasses.replace(p, **changes) for p in topic.partitions]
        )
    )


@scenario(delivery_timeout_ms=20_000, request_timeout_ms=5_000, cluster={"auto_create": False})
async def test_f51_topic_deleted_while_producing_ends_in_time_without_a_storm(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(6, partitions=(0, 1, 2))
    await history.settle()
    stored = len(history.attempts)
    cluster.delete_topic("t")
    deleted = now()
    late = await history.submit_many(30, every=0.1, partitions=(0, 1, 2))
    await history.settle()
    for attempt in late:
        assert not attempt.acked
        assert attempt.settled_at - attempt.started_at <= 60 + TICK
    seconds = now() - deleted
    assert cluster.count(3, since=deleted) <= 20 * seconds
    assert cluster.count(0, since=deleted) <= 20 * seconds
    assert cluster.violations == []
    cluster.create_topic("other", 1)
    attempt = await history.send("other", 0)
    assert attempt.acked
    assert stored == 6


@scenario(partitions=2)
async def test_f52_topic_recreated_is_adopted_and_sequences_start_anew(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(10, partitions=(0, 1))
    await history.settle()
    first = len(history.attempts)
    cluster.recreate_topic("t")
    later = await history.submit_many(20, every=0.05, partitions=(0, 1))
    await history.settle()
    assert all(a.acked for a in later)
    assert cluster.violations == []
    for partition in (0, 1):
        stored = cluster.values("t", partition)
        wanted = [a.value for a in history.attempts[first:] if a.partition == partition]
        assert stored == wanted


@scenario(partitions=1)
async def test_f52_topic_recreated_under_load_no_record_is_doubled(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(history.submit_many(300, every=0.01))
    await asyncio.sleep(1)
    cluster.recreate_topic("t")
    recreated = now()
    await sending
    await history.settle()
    assert cluster.violations == []
    later = [a for a in history.attempts if a.started_at > recreated]
    assert all(a.acked for a in later)
    stored = cluster.values("t", 0)
    assert len(stored) == len(set(stored))
    for attempt in later:
        offset = attempt.metadata.offset
        assert offset is not None
        assert stored[offset] == attempt.value


@scenario(partitions=1, linger_ms=0, cluster={"version_profile": "3.9", "auto_create": False})
@pytest.mark.parametrize("created_at", [2, 3, 4, 5])
async def test_f52_topic_recreated_behind_a_retry_that_names_the_topic_keeps_the_order(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, created_at: int
) -> None:
    """The new topic accepts any first sequence, so no batch may be in flight after a retry: it
    would be stored before the retry."""
    await history.send()
    cluster.delete_topic("t")
    produced = 0

    def create_topic(request: Any) -> None:
        nonlocal produced
        produced += 1
        if produced == created_at:
            cluster.create_topic("t", 1)

    cluster.control(0, create_topic)
    later = await history.submit_many(8, every=0.03)
    await history.settle()
    assert [attempt.metadata.offset for attempt in later] == list(range(8))
    assert cluster.values("t", 0) == [attempt.value for attempt in later]


@scenario(partitions=2)
async def test_f52_late_leader_hint_of_the_deleted_topic_is_not_followed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The hint contains a leader epoch that the new topic, whose epochs restart, does not reach."""
    await history.submit_many(4, partitions=(0, 1))
    await history.settle()
    old_leader = cluster.topics["t"].partitions[0].leader
    cluster.control(0, faults.answer_late(1.0), broker_id=old_leader, times=1)
    cluster.move_leader("t", 0)
    waiting = asyncio.ensure_future(history.send(partition=0))
    await asyncio.sleep(0.1)
    cluster.recreate_topic("t")
    # Allow a first sequence other than 0, because the batch in flight keeps its sequence.
    cluster.forgotten.add(("t", 0))
    assert cluster.topics["t"].partitions[0].leader == old_leader
    await history.send(partition=1)
    await asyncio.sleep(0.5)
    assert not waiting.done()
    attempt = await waiting
    assert attempt.acked
    assert attempt.settled_at - attempt.started_at < 1.3
    assert cluster.violations == []


@scenario(partitions=2, metadata_max_age_ms=3_000)
async def test_f53_new_partitions_are_picked_up(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(4, partitions=(0, 1))
    await history.settle()
    cluster.expand_topic("t", 8)
    await asyncio.sleep(5)
    found = set()
    for number in range(200):
        metadata = await producer.send("t", b"", key=b"key-%d" % number)
        found.add(metadata.partition)
    assert found == set(range(8))
    assert len(await producer.partitions_for("t")) == 8


@scenario(partitions=2, metadata_max_age_ms=1_000)
async def test_f53_expansion_under_load_loses_nothing(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(history.submit_many(300, every=0.02, partitions=(0, 1)))
    await asyncio.sleep(2)
    cluster.expand_topic("t", 6)
    await sending
    await history.settle()
    history.all_acked()


def no_brokers(message: Any) -> Message:
    changed: Message = dataclasses.replace(message, brokers=[], topics=[])
    return changed


@scenario(partitions=1)
async def test_f54_metadata_without_brokers_is_ignored_at_start(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(3, faults.edit(no_brokers), times=3)
    attempt = await history.send()
    assert attempt.acked
    history.all_acked()


@scenario(partitions=1, metadata_max_age_ms=1_000)
async def test_f54_metadata_without_brokers_is_ignored_later(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    remove = cluster.control(3, faults.edit(no_brokers))
    await history.submit_many(50, every=0.1)
    await history.settle()
    remove()
    history.all_acked()
    assert cluster.count(3) < 20 * 6


@scenario(partitions=1, max_block_ms=5_000)
async def test_f55_topic_without_partitions_is_no_success(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(3, edit_topics(lambda topic: dataclasses.replace(topic, partitions=[])))
    attempt = await history.send()
    assert error_of(attempt, MetadataTimeout).outcome is Outcome.NOT_SENT
    assert abs(attempt.settled_at - attempt.started_at - 5) < TICK
    assert cluster.count(3) <= 20 * 5


@scenario(partitions=1, metadata_max_age_ms=1_000)
async def test_f55_topic_that_loses_its_partitions_for_a_moment_is_kept(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(
        3, edit_topics(lambda topic: dataclasses.replace(topic, partitions=[])), times=2
    )
    await history.submit_many(50, every=0.1)
    await history.settle()
    history.all_acked()


@scenario(partitions=1, metadata_max_age_ms=1_000)
async def test_f56_older_leader_epoch_does_not_win(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    for broker in (2, 3, 1, 2):
        cluster.move_leader("t", 0, broker)
    await history.send()
    assert cluster.topics["t"].partitions[0].leader_epoch == 4
    cluster.control(3, edit_partitions(leader_id=1, leader_epoch=0))
    sent = cluster.count(0, broker_id=1)
    await history.submit_many(30, every=0.1)
    await history.settle()
    history.all_acked(refusals=True)
    assert cluster.count(0, broker_id=1) == sent


@scenario(partitions=1, metadata_max_age_ms=1_000)
async def test_f56_old_leader_without_epoch_costs_one_attempt_at_a_time(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Epoch -1 means unknown, so every such response leads back to the old leader, whose hint names
    the new one."""
    for broker in (2, 3, 1, 2):
        cluster.move_leader("t", 0, broker)
    await history.send()
    cluster.control(3, edit_partitions(leader_id=1, leader_epoch=-1))
    await history.submit_many(30, every=0.1)
    await history.settle()
    history.all_acked(refusals=True)
    assert cluster.count(0, broker_id=1) <= 15
    assert cluster.count(3) <= 15


@scenario(partitions=1)
async def test_f57_leader_that_is_no_broker_means_no_leader(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(3, edit_partitions(leader_id=77), times=4)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < 4
    history.all_acked()


@scenario(partitions=1, metadata_max_age_ms=1_000)
async def test_f58_changed_cluster_id_is_logged_and_nothing_breaks(
    cluster: FakeCluster,
    producer: Producer[Any, Any],
    history: History,
    caplog: pytest.LogCaptureFixture,
) -> None:
    await history.send()
    cluster.cluster_id = "another-cluster-00000"
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(3)
    await history.send()
    history.all_acked()
    assert any("another-cluster-00000" in record.getMessage() for record in caplog.records)


def reinstall(cluster: FakeCluster, cluster_id: str) -> None:
    """Replace the cluster by a new one at the same addresses, as if all brokers had lost their
    disks. It allocates producer ids from the beginning again."""
    for broker_id in cluster.brokers:
        cluster.kill(broker_id)
    cluster.delete_topic("t")
    cluster.cluster_id = cluster_id
    cluster.next_producer_id = 0
    for broker_id in cluster.brokers:
        cluster.start(broker_id)
    cluster.create_topic("t", 1)


@scenario(partitions=1, metadata_max_age_ms=1_000)
@pytest.mark.parametrize("same_cluster_id", [False, True])
async def test_f58_producer_id_of_another_cluster_is_not_used_any_more(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, same_cluster_id: bool
) -> None:
    """The new cluster allocates the same id to another producer: the broker would treat a batch of
    one of them as a duplicate of the other's, and acknowledge it without storing it. Container
    images of Kafka often have a fixed cluster id."""
    await history.send()
    reinstall(cluster, cluster.cluster_id if same_cluster_id else "another-cluster-00000")
    async with make_producer(cluster, seed=2) as other:
        offsets = [(await other.send("t", b"other 0", partition=0)).offset]
        await asyncio.sleep(3)
        for number in range(1, 4):
            offsets.append((await producer.send("t", b"mine %d" % number, partition=0)).offset)
            offsets.append((await other.send("t", b"other %d" % number, partition=0)).offset)
    assert offsets == list(range(7))
    assert cluster.values("t", 0) == [
        b"other 0", b"mine 1", b"other 1", b"mine 2", b"other 2", b"mine 3", b"other 3"
    ]  # fmt: skip
    assert cluster.duplicates == 0
    assert len(cluster.refusals) == same_cluster_id


@scenario(partitions=1, metadata_max_age_ms=1_000, request_timeout_ms=2_000)
@pytest.mark.parametrize("in_flight", [False, True])
async def test_f58_record_in_doubt_is_given_up_and_the_next_one_gets_a_new_producer_id(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, in_flight: bool
) -> None:
    await history.send()
    cluster.fail_produce(TP, Code.NOT_LEADER_OR_FOLLOWER, append=True, leader_hint=False)
    cluster.fail_produce(TP, Code.NOT_ENOUGH_REPLICAS, times=1000)
    if in_flight:
        cluster.control(0, faults.answer_late(1.9), times=1)
    doubtful = history.send_later()
    await asyncio.sleep(0.2)
    before = history.send_later()
    await asyncio.sleep(0.2)
    cluster.cluster_id = "another-cluster-00000"
    attempt = await doubtful
    assert error_of(attempt, KafkaError).outcome is Outcome.UNKNOWN
    assert attempt.settled_at - attempt.started_at < 3
    if not in_flight:
        assert error_of(attempt, KafkaError).code is Code.INCONSISTENT_CLUSTER_ID.row
    assert not before.done()
    cluster.produce_script.clear()
    assert (await before).acked
    await history.send()
    history.check()
    assert [record.producer_id for record in cluster.log("t", 0)] == [0, 0, 1, 1]


@scenario(partitions=1)
@pytest.mark.parametrize("profile", ["1.0", "2.1", "2.8", "3.9", "4.0"])
async def test_f59_broker_comes_back_with_older_versions(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, profile: str
) -> None:
    await history.send()
    for broker in cluster.brokers.values():
        broker.profile = profile_named(profile)
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id, failover_s=10_000)
        cluster.start(broker_id)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    await history.submit_many(5)
    await history.settle()
    history.all_acked()


@scenario(partitions=3)
async def test_f59_brokers_of_mixed_versions_serve_together(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    for broker, profile in zip((1, 2, 3), ("1.0", "2.8", "4.3"), strict=True):
        cluster.brokers[broker].profile = profile_named(profile)
    await history.submit_many(30, partitions=(0, 1, 2))
    await history.settle()
    history.all_acked()


@scenario(partitions=1, max_block_ms=20_000)
async def test_f59_api_versions_that_always_refuses_terminates(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(18, faults.refuse(Code.UNSUPPORTED_VERSION))
    attempt = await history.send()
    error = error_of(attempt)
    assert error.outcome is Outcome.NOT_SENT
    assert attempt.settled_at - attempt.started_at <= 20 + TICK
    # Versions 4 to 0, strictly decreasing, on each connection.
    assert cluster.count(18) <= 5 * len(cluster.network.links)
    assert len(cluster.network.links) < 20 * 5


@scenario(partitions=1, max_block_ms=10_000)
async def test_f59_broker_too_old_for_us_says_so(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    def only_old(message: Any) -> Message:
        keys = [
            dataclasses.replace(key, min_version=0, max_version=2) if key.api_key == 0 else key
            for key in message.api_keys
        ]
        changed: Message = dataclasses.replace(message, api_keys=keys)
        return changed

    cluster.control(18, faults.edit(only_old))
    attempt = await history.send()
    error = error_of(attempt, UnsupportedVersion)
    assert error.outcome is Outcome.NOT_SENT
    assert "0 to 2" in str(error)
    assert attempt.settled_at - attempt.started_at <= 120 + TICK


@scenario(topic=None)
async def test_f59_one_broker_that_refuses_api_versions_does_not_stop_the_others(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 3)
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    cluster.control(18, faults.refuse(Code.UNSUPPORTED_VERSION), broker_id=1)
    for connection in list(cluster.brokers[1].connections):
        connection.reset()
    await history.submit_many(6, partitions=(1, 2))
    await history.settle()
    history.all_acked()


@scenario(topic=None)
async def test_f60_metadata_asks_only_for_topics_in_use(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    asked: list[Any] = []

    def watch(request: faults.Request) -> None:
        topics = request.body.topics
        asked.append(None if topics is None else sorted(t.name for t in topics))

    cluster.control(3, watch)
    for number in range(200):
        cluster.create_topic(f"topic-{number}", 1)
    await history.send("topic-5", 0)
    await history.send("topic-9", 0)
    assert None not in asked
    assert {name for names in asked for name in names} == {"topic-5", "topic-9"}
    for _ in range(30):
        await asyncio.sleep(60)
        await history.send("topic-9", 0)
    assert asked[-1] == ["topic-9"]


@scenario(topic=None)
async def test_f60_many_topics_at_once_need_few_metadata_requests(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    for number in range(500):
        cluster.create_topic(f"topic-{number}", 1)
    await asyncio.gather(*(history.send(f"topic-{number}", 0) for number in range(500)))
    history.all_acked()
    assert cluster.count(3) < 30


@scenario(partitions=1, max_block_ms=30_000)
async def test_rebootstrap_required_is_obeyed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(3, faults.refuse(Code.REBOOTSTRAP_REQUIRED), times=1)
    cluster.move_leader("t", 0, 2)
    await history.send()
    await history.send("fresh", 0)
    history.all_acked(refusals=True)


@scenario(partitions=1)
@pytest.mark.parametrize("code", [-1, 5, 38, 72, 3])
async def test_metadata_topic_error_for_a_moment_delays_only(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, code: int
) -> None:
    cluster.control(
        3,
        edit_topics(lambda t: dataclasses.replace(t, error_code=code, partitions=[])),
        times=2,
    )
    attempt = await history.send()
    assert attempt.acked
    assert attempt.settled_at - attempt.started_at < 3
    history.all_acked()


@scenario(partitions=1)
async def test_metadata_answers_lost_are_asked_elsewhere(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.control(3, faults.lose_answer(), times=1)
    start = now()
    await history.send()
    assert now() - start <= 30 + RECOVERY
    history.all_acked()


@scenario(partitions=1)
async def test_partition_without_leader_waits_for_one(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.topics["t"].partitions[0].elect(None)
    task = history.send_later()
    await asyncio.sleep(10)
    assert not task.done()
    asked = cluster.count(3)
    assert asked <= 20 * 10
    cluster.topics["t"].partitions[0].elect(3)
    took = await until(task.done, within=10)
    assert took < RECOVERY
    history.all_acked(refusals=True)
