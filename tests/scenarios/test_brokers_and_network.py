"""Faults F1 to F15: brokers and network."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from aiokprod._wire.messages.metadata import MetadataRequest
from aiokprod.errors import Code, ConfigError, DeliveryTimeout, Outcome
from aiokprod.producer import Producer
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster, TopicConfig
from tests.scenarios.scenario_helpers import (
    RECOVERY,
    TICK,
    Attempt,
    History,
    clock,
    error_of,
    now,
    scenario,
    until,
)


async def keep_sending(
    history: History, seconds: float, *, every: float = 0.02, partitions: Sequence[int] = (0, 1, 2)
) -> list[Attempt]:
    return await history.submit_many(int(seconds / every), every=every, partitions=partitions)


def longest_gap(attempts: Sequence[Attempt], start: float, end: float) -> float:
    """Return the longest time without an acknowledgment between two instants, in seconds."""
    times = sorted(a.settled_at for a in attempts if a.acked and start <= a.settled_at <= end)
    marks = [start, *times]
    return max(after - before for before, after in itertools.pairwise(marks))


def metadata_requests(cluster: FakeCluster) -> int:
    return sum(note.api_key == MetadataRequest.api_key for note in cluster.requests)


@scenario()
async def test_f01_leader_killed_all_acked_in_order(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(keep_sending(history, 6))
    await asyncio.sleep(1)
    killed = now()
    cluster.kill(1)
    await asyncio.sleep(3)
    cluster.start(1)
    await sending
    await history.settle()
    attempts = history.all_acked()
    mine = [a for a in attempts if a.partition == 0]
    assert longest_gap(mine, killed, killed + 4) < cluster.failover_s + RECOVERY


@scenario(cluster={"replication_s": 0.05})
async def test_f01_leader_killed_with_unreplicated_tail_loses_nothing_acked(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(keep_sending(history, 9))
    for broker in (1, 2, 3):
        await asyncio.sleep(1.013)
        cluster.kill(broker)
        await asyncio.sleep(1.5)
        cluster.start(broker)
    await sending
    await history.settle()
    history.all_acked()


@scenario()
async def test_f02_rolling_restart_all_acked(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(keep_sending(history, 8))
    for broker in (1, 2, 3):
        await asyncio.sleep(1)
        cluster.stop(broker)
        await asyncio.sleep(1)
        cluster.start(broker)
    await sending
    await history.settle()
    attempts = history.all_acked(refusals=True)
    assert {refusal.code for refusal in cluster.refusals} <= {Code.NOT_LEADER_OR_FOLLOWER}
    assert max(a.settled_at - a.started_at for a in attempts) < RECOVERY


@scenario(partitions=1)
async def test_f02_leader_hint_is_followed_without_backoff(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    await history.send()
    cluster.move_leader("t", 0, 2)
    asked = cluster.count(3)
    attempt = await history.send()
    history.all_acked(refusals=True)
    assert attempt.settled_at - attempt.started_at < 0.05
    assert cluster.count(3) <= asked + 1


@scenario(partitions=1, cluster={"version_profile": "2.8"})
async def test_f02_leader_move_without_hint_is_found_by_metadata(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.move_leader("t", 0, 2)
    attempt = await history.send()
    history.all_acked(refusals=True)
    assert attempt.settled_at - attempt.started_at < RECOVERY


@scenario(partitions=1, batch_size=200, linger_ms=0)
async def test_f03_leader_moves_with_requests_in_flight_order_kept(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    old = cluster.control(0, faults.delay(0.2), broker_id=1)
    await history.submit_many(20, every=0.02)
    cluster.move_leader("t", 0, 2)
    await history.submit_many(20, every=0.02)
    old()
    await history.settle()
    history.all_acked(refusals=True)


@scenario(
    partitions=1,
    batch_size=200,
    linger_ms=0,
    enable_idempotence=False,
    max_in_flight_requests_per_connection=1,
)
async def test_f03_leader_moves_with_one_in_flight_and_no_idempotence_order_kept(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.control(0, faults.delay(0.2), broker_id=1, times=3)
    await history.submit_many(10, every=0.02)
    cluster.move_leader("t", 0, 2)
    await history.submit_many(10, every=0.02)
    await history.settle()
    history.all_acked(refusals=True)


@scenario(partitions=1, linger_ms=0, max_request_size=1_000_000)
@pytest.mark.parametrize("size", [1, 5_000, 65_536, 99_990])
async def test_f04_request_cut_part_way_is_sent_again_whole(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, size: int
) -> None:
    history.size = 100_000
    await history.send()
    (link,) = cluster.network.links_to("broker1", 9092)
    link.up.cut_at = link.up.taken + size
    await history.send()
    await history.send()
    history.all_acked()


@scenario(partitions=1)
@pytest.mark.parametrize("size", [0, 1, 4, 10, 40])
async def test_f04_answer_cut_part_way_is_no_answer(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, size: int
) -> None:
    await history.send()
    cluster.control(0, faults.cut(size), times=1)
    await history.send()
    await history.send()
    history.all_acked()
    assert cluster.duplicates == 1


@scenario(partitions=1)
async def test_f04_peer_ends_the_stream_mid_answer_retries(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    (link,) = cluster.network.links_to("broker1", 9092)
    link.down.cut_at, link.down.cut_with = link.down.taken + 7, "eof"
    await history.send()
    history.all_acked()


@scenario(request_timeout_ms=5_000)
async def test_f05_blackhole_found_by_request_timeout(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    closed = producer.metrics()["connections_closed"]
    cluster.kill(1, silent=True, failover_s=1000)
    task = history.send_later(partition=0)
    await asyncio.sleep(5.0 - TICK)
    assert producer.metrics()["connections_closed"] == closed
    await asyncio.sleep(2 * TICK)
    assert producer.metrics()["connections_closed"] == closed + 1
    assert not task.done()
    cluster.start(1)
    await task
    history.all_acked()


@scenario(request_timeout_ms=5_000)
async def test_f05_blackholed_leader_that_was_replaced_is_not_waited_for(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    cluster.kill(1, silent=True)
    start = now()
    await history.send(partition=0)
    assert now() - start < RECOVERY
    history.all_acked()


@scenario(request_timeout_ms=5_000)
async def test_f05_blackhole_does_not_stop_other_brokers(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    cluster.kill(1, silent=True, failover_s=1000)
    stuck = history.send_later(partition=0)
    for _ in range(50):
        attempt = await history.send(partition=1)
        assert attempt.settled_at - attempt.started_at < 0.1
        await asyncio.sleep(0.5)
    assert not stuck.done()
    cluster.start(1)
    await stuck
    history.all_acked()


@scenario(partitions=1, request_timeout_ms=2_000)
async def test_f06_paused_leader_wakes_and_late_appends_are_not_doubled(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.pause(1)
    task = history.send_later()
    await asyncio.sleep(7)
    assert not task.done()
    cluster.resume(1)
    woke = now()
    await task
    assert now() - woke < RECOVERY
    await history.submit_many(5)
    await history.settle()
    history.all_acked()
    assert cluster.duplicates >= 1


@scenario(request_timeout_ms=2_000)
async def test_f06_paused_leader_replaced_then_wakes(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(keep_sending(history, 20, every=0.1))
    await asyncio.sleep(2)
    cluster.pause(1, failover_s=6)
    await asyncio.sleep(10)
    cluster.resume(1)
    await sending
    await history.settle()
    history.all_acked(refusals=True)


@scenario()
async def test_f06_frozen_leader_costs_no_more_than_its_failover(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Nothing is reset and the request timeout is 30 s, so the client has to request metadata by
    itself."""
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    cluster.pause(1, failover_s=6)
    frozen, asked = now(), metadata_requests(cluster)
    await history.send(partition=0)
    assert now() - frozen < 6 + RECOVERY
    assert metadata_requests(cluster) - asked <= 8, "about one a second"
    history.all_acked()


@scenario(partitions=1)
async def test_f06_frozen_leader_is_not_asked_who_leads_by_now(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The leader is the only connected broker."""
    await history.send()
    cluster.pause(1, failover_s=6)
    frozen = now()
    await history.send()
    assert now() - frozen < 6 + RECOVERY
    history.all_acked()


@scenario()
async def test_f06_frozen_idle_broker_holds_up_no_metadata(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """If the client requests the metadata of a new topic from the frozen broker, it must soon ask
    another broker."""
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    cluster.pause(1, failover_s=1)
    frozen = now()
    for number in range(6):
        cluster.create_topic(f"new-{number}", 1)
        await history.send(f"new-{number}", partition=0)
    assert now() - frozen < 1 + RECOVERY
    history.all_acked()


@scenario()
async def test_f06_frozen_leader_that_accepts_connections_costs_no_more(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """There is no connection to the leader yet."""
    await producer.partitions_for("t")
    cluster.pause(1, failover_s=6)
    frozen = now()
    await asyncio.gather(*(history.send_later(partition=partition) for partition in (0, 1, 2)))
    assert now() - frozen < 6 + RECOVERY
    history.all_acked()


@scenario()
async def test_f06_frozen_bootstrap_broker_is_not_waited_for(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.pause(1, failover_s=0.1)
    start = now()
    await asyncio.gather(*(history.send_later(partition=partition) for partition in (0, 1, 2)))
    assert now() - start < RECOVERY
    history.all_acked()


@scenario(request_timeout_ms=3_000, max_in_flight_requests_per_connection=1)
async def test_f06_frozen_follower_that_holds_up_all_leaders(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """No broker has responded, so all connections end at once, and the next metadata request may be
    sent to the frozen broker, which accepts a connection."""
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    cluster.pause(1, failover_s=8)
    for broker in (2, 3):
        cluster.pause(broker)
    frozen = now()
    tasks = [history.send_later(partition=partition) for partition in (0, 1, 2)]
    await asyncio.sleep(3.1)
    cluster.resume(2)
    cluster.resume(3)
    await asyncio.gather(*tasks)
    assert now() - frozen < 8 + RECOVERY
    history.all_acked(refusals=True)


@scenario()
async def test_f06_frozen_leader_without_successor_keeps_what_it_was_given(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send(partition=0)
    cluster.pause(1)
    task = history.send_later(partition=0)
    await asyncio.sleep(20)
    asked = metadata_requests(cluster)
    assert asked <= 24, "about one a second"
    cluster.resume(1)
    await task
    assert cluster.duplicates == 0
    history.all_acked()
    await asyncio.sleep(30)
    assert metadata_requests(cluster) <= asked + 2, "quiet again"


@scenario(request_timeout_ms=3_000)
async def test_f06_frozen_leader_is_left_once_there_is_another(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The leader accepts connections and does not respond, so no error shows that it was
    replaced."""
    sending = asyncio.ensure_future(keep_sending(history, 20, every=0.05))
    await asyncio.sleep(2)
    frozen_at = now()
    cluster.pause(1, failover_s=9)
    await sending
    await history.settle()
    acks = [a.settled_at for a in history.attempts if a.partition == 0 and a.settled_at > frozen_at]
    assert 9 < min(acks) - frozen_at < 9 + RECOVERY
    cluster.resume(1)
    history.all_acked(refusals=True)


@scenario(request_timeout_ms=1_000)
async def test_f05_blackhole_is_left_once_there_is_another_leader(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """The connection attempt may take ten seconds, and no earlier error causes a metadata request.
    The client must learn of the new leader sooner."""
    await history.send()
    cluster.network.blackhole("broker1", 9092)
    stuck = history.send_later()
    await asyncio.sleep(3)
    cluster.move_leader("t", 0)
    moved_at = now()
    await stuck
    assert now() - moved_at < RECOVERY
    cluster.network.heal("broker1", 9092)
    history.all_acked()


@scenario(partitions=1, bootstrap_servers="kafka:9092")
async def test_f07_next_address_of_the_name_is_tried(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.network.set_name("kafka", ["10.0.0.1", "10.0.0.2", "broker1"])
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()


@scenario(partitions=1, bootstrap_servers="kafka:9092", socket_connection_setup_timeout_ms=3_000)
async def test_f07_hanging_connect_is_given_up_after_setup_timeout(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.network.set_name("kafka", ["10.0.0.1", "broker1"])
    cluster.network.hang("10.0.0.1", 9092)
    attempt = await history.send()
    # The setup timeout is jittered by a fifth.
    assert 2.3 < attempt.settled_at - attempt.started_at < 3.7 + RECOVERY
    history.all_acked()


@scenario(partitions=1, max_block_ms=30_000)
async def test_f07_refused_connects_back_off(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    for broker in (1, 2, 3):
        cluster.kill(broker)
    await asyncio.sleep(1)
    attempt = await history.send()
    assert error_of(attempt).outcome is Outcome.NOT_SENT
    assert abs(attempt.settled_at - attempt.started_at - 30) < TICK
    # Three brokers, backoff 50 ms to 1 s: about one dial per broker and second.
    assert len(cluster.network.dials) < 3 * 45


@scenario(partitions=3)
async def test_f08_slow_broker_leaves_the_others_alone(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    (link,) = cluster.network.links_to("broker1", 9092)
    link.up.latency_s = link.down.latency_s = 0.1
    link.up.bytes_per_s = link.down.bytes_per_s = 375_000
    history.size = 5_000
    slow = [await history.submit("t", 0) for _ in range(200)]
    for _ in range(20):
        attempt = await history.send(partition=1)
        assert attempt.settled_at - attempt.started_at < 0.05
    await history.settle()
    history.all_acked()
    assert slow[-1].settled_at - slow[0].started_at > 2.0


@scenario(partitions=3, batch_size=4_000)
async def test_f08_keyless_records_avoid_the_slow_broker(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.control(0, faults.answer_late(0.5), broker_id=1)
    deliveries = [await producer.submit("t", b"x" * 2000) for _ in range(300)]
    for _ in range(3000):
        deliveries.append(await producer.submit("t", b"x" * 2000))
        await asyncio.sleep(0.001)
    found = await asyncio.gather(*deliveries)
    counts = [sum(m.partition == p for m in found) for p in range(3)]
    assert counts[0] < min(counts[1], counts[2]) * 0.7, counts


@scenario(partitions=3, request_timeout_ms=1_500)
async def test_f09_throttled_connection_is_left_quiet(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    cluster.throttle(4_000, 1)
    await history.send(partition=0)
    cluster.throttle(0)
    task = history.send_later(partition=0)
    for _ in range(10):
        attempt = await history.send(partition=1)
        assert attempt.settled_at - attempt.started_at < 0.05
    await asyncio.sleep(2)
    assert not task.done()
    await task
    assert cluster.sends_while_throttled == 0
    history.all_acked()
    assert len(cluster.network.links) <= 4


@scenario(partitions=1, topic=None)
async def test_f10_shrunk_isr_delays_but_loses_nothing(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1, config=TopicConfig(min_insync_replicas=2))
    await history.send()
    cluster.kill(2)
    cluster.kill(3)
    await asyncio.sleep(1)
    task = history.send_later()
    await asyncio.sleep(10)
    assert not task.done()
    cluster.start(2)
    start = now()
    await task
    assert now() - start < RECOVERY
    history.all_acked(refusals=True)
    assert {refusal.code for refusal in cluster.refusals} == {Code.NOT_ENOUGH_REPLICAS}


@scenario(partitions=1, connections_max_idle_ms=60_000, metadata_max_age_ms=3_600_000)
async def test_f11_idle_connections_are_closed_by_the_client(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    assert cluster.open_connections() >= 1
    await asyncio.sleep(62)
    assert cluster.open_connections() == 0
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < 0.5
    history.all_acked()


@scenario(partitions=1)
@pytest.mark.parametrize("lead_s", [0.0, 0.0001, 0.0004, 0.0005, 0.0006, 0.001])
async def test_f11_send_racing_an_idle_close_is_retried(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, lead_s: float
) -> None:
    await history.send()
    (connection,) = cluster.brokers[1].connections
    connection.close()
    await asyncio.sleep(lead_s)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()


@scenario()
async def test_f12_all_brokers_down_for_20_s_nothing_lost(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    sending = asyncio.ensure_future(keep_sending(history, 25, every=0.05))
    await asyncio.sleep(2)
    for broker in (1, 2, 3):
        cluster.kill(broker)
    down = now()
    await asyncio.sleep(20)
    assert cluster.count(3, since=down) == 0
    assert len([d for d in cluster.network.dials if d.time > down]) < 20 * 20
    for broker in (1, 2, 3):
        cluster.start(broker)
    up = now()
    await until(lambda: any(a.settled_at > up for a in history.attempts))
    assert now() - up < RECOVERY
    await sending
    await history.settle()
    history.all_acked()


@scenario(delivery_timeout_ms=10_000, request_timeout_ms=3_000)
async def test_f12_records_never_sent_expire_definite(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(3, partitions=(0, 1, 2))
    await history.settle()
    for broker in (1, 2, 3):
        cluster.kill(broker)
    await asyncio.sleep(1)
    attempts = await history.submit_many(30, partitions=(0, 1, 2))
    await history.settle()
    for attempt in attempts:
        assert error_of(attempt, DeliveryTimeout).outcome is Outcome.NOT_SENT
        assert abs(attempt.settled_at - attempt.started_at - 10) <= TICK
    for broker in (1, 2, 3):
        cluster.start(broker)
    await asyncio.sleep(2)
    await history.submit_many(30, partitions=(0, 1, 2))
    await history.settle()
    assert all(a.acked for a in history.attempts[-30:])
    history.check()


@scenario(partitions=1, bootstrap_servers="kafka:9092")
async def test_f12_cluster_back_at_new_addresses_is_found_by_rebootstrap(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.network.set_name("kafka", ["broker1", "broker2"])
    await history.send()
    for broker in (1, 2, 3):
        cluster.kill(broker)
    await asyncio.sleep(5)
    for broker in (1, 2, 3):
        cluster.start(broker, host=f"moved{broker}", port=9999)
    cluster.network.listen("10.9.9.9", 9092, cluster.brokers[2].accept)
    cluster.network.set_name("kafka", ["10.9.9.9"])
    start = now()
    attempt = await history.send()
    assert attempt.acked
    assert now() - start < 10
    history.all_acked()


@scenario(topic=None, bootstrap_servers="no-such-host:9092,neither:9092")
async def test_f13_unresolvable_bootstrap_at_start_names_the_hosts(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    start = now()
    with pytest.raises(ConfigError, match=r"no-such-host[\s\S]*neither"):
        await producer.start()
    assert now() - start <= 10 + TICK


@scenario(topic=None, bootstrap_servers="no-such-host:9092", max_block_ms=5_000)
async def test_f13_unresolvable_bootstrap_at_first_send_ends_in_bounded_time(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    start = now()
    attempt = await history.send()
    assert error_of(attempt).outcome is Outcome.NOT_SENT
    assert "no-such-host" in str(attempt.result)
    assert now() - start <= 10 + TICK


@scenario(topic=None, bootstrap_servers="slow-name:9092", max_block_ms=5_000)
async def test_f13_hanging_resolver_ends_in_bounded_time(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.network.hang_name("slow-name")
    start = now()
    attempt = await history.send()
    assert error_of(attempt).outcome is Outcome.NOT_SENT
    assert now() - start <= 10 + TICK


@scenario(partitions=1)
async def test_f13_broker_name_is_resolved_again_at_each_attempt(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.network.set_name("broker1", None)
    cluster.kill(1, failover_s=10_000)
    task = history.send_later()
    await asyncio.sleep(5)
    cluster.start(1)
    cluster.network.listen("10.1.1.1", 9092, cluster.brokers[1].accept)
    cluster.network.unlisten("broker1", 9092)
    cluster.network.set_name("broker1", ["10.1.1.1"])
    start = now()
    await task
    assert now() - start < RECOVERY
    history.all_acked()


@scenario(partitions=1)
async def test_f14_broker_moved_to_another_address_is_followed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.kill(1, failover_s=10_000)
    cluster.start(1, host="elsewhere", port=7777)
    attempt = await history.send()
    assert attempt.settled_at - attempt.started_at < RECOVERY
    history.all_acked()
    assert cluster.network.links_to("elsewhere", 7777)


@scenario(partitions=2, brokers=2, metadata_max_age_ms=1_000)
async def test_f14_two_brokers_swap_addresses(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.submit_many(4, partitions=(0, 1))
    await history.settle()
    for broker in (1, 2):
        cluster.kill(broker, failover_s=10_000)
    cluster.start(1, host="broker2")
    cluster.start(2, host="broker1")
    await asyncio.sleep(3)
    await history.submit_many(4, partitions=(0, 1))
    await history.settle()
    history.all_acked(refusals=True)


@scenario(partitions=1)
async def test_f15_storage_error_is_retried_with_new_metadata(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    asked = cluster.count(3)
    cluster.fail_produce(("t", 0), Code.KAFKA_STORAGE_ERROR, 2)
    await history.send()
    history.all_acked()
    assert cluster.count(3) > asked


@scenario()
async def test_idle_producer_does_nothing(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Promise P12: no wake-ups beyond metadata age and idle timers."""
    await history.submit_many(6, partitions=(0, 1, 2))
    await history.settle()
    await asyncio.sleep(1)
    loop = clock()
    jumps = loop.jumps
    await asyncio.sleep(240)
    assert loop.jumps - jumps <= 10
