"""Outages of a whole cluster and of one broker: the log and the results of `health()`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.errors import Code, Disconnected, KafkaError, Outcome
from aiokprod.testing.fake_cluster import FakeCluster, delay, refuse
from tests.client.outages import LogTap, steady_traffic, tapped
from tests.security.sasl_broker import PlainServer
from tests.security.sasl_cluster import PASSWORD, USER, SaslCluster
from tests.virtual_time import in_virtual_time

PRODUCE, METADATA = 0, 3
LIMIT_S = 6.0
"""Seconds within which an outage must be reported."""

Outage = tuple[Callable[[FakeCluster], None], Callable[[FakeCluster], None], str]


def freeze_all(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        cluster.pause(broker, failover_s=3_600.0)


def thaw_all(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        cluster.resume(broker)


def kill_all(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        cluster.kill(broker)


def start_all(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        cluster.start(broker)


def freeze_one(cluster: FakeCluster) -> None:
    cluster.pause(cluster.leader_of("t", 0).broker_id, failover_s=3_600.0)


def kill_one_without_failover(cluster: FakeCluster) -> None:
    cluster.failover_s = 3_600.0
    cluster.kill(cluster.leader_of("t", 0).broker_id)


def start_what_is_down(cluster: FakeCluster) -> None:
    for broker in cluster.brokers.values():
        if not broker.is_up:
            cluster.start(broker.broker_id)


def refuse_all(cluster: FakeCluster) -> None:
    cluster.control(PRODUCE, refuse(Code.NOT_ENOUGH_REPLICAS))


def refuse_one(cluster: FakeCluster) -> None:
    cluster.fail_produce(("t", 0), Code.NOT_ENOUGH_REPLICAS, None)


def stop_refusing(cluster: FakeCluster) -> None:
    cluster.script.clear()
    cluster.produce_script.clear()


OUTAGES: dict[str, Outage] = {
    "all frozen": (freeze_all, thaw_all, "does not respond"),
    "all dead": (kill_all, start_all, "no broker can be reached"),
    "all refuse": (refuse_all, stop_refusing, "responds with NOT_ENOUGH_REPLICAS"),
    "one frozen": (freeze_one, thaw_all, "does not respond"),
    "one dead": (kill_one_without_failover, start_what_is_down, "cannot connect"),
    "one partition refused": (refuse_one, stop_refusing, "responds with NOT_ENOUGH_REPLICAS"),
}


@pytest.mark.parametrize("case", OUTAGES)
@in_virtual_time
async def test_outage_is_noticed_within_seconds_and_logged_once(case: str) -> None:
    begin, end, reason = OUTAGES[case]
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    loop = asyncio.get_running_loop()
    with tapped() as log:
        async with steady_traffic(cluster) as producer:
            await asyncio.sleep(6.0)
            assert producer.health().ok, producer.health()
            quiet_until = loop.time()
            assert not log.since(quiet_until - 5.0), "nothing to say while all is well"
            begin(cluster)
            await asyncio.sleep(LIMIT_S)
            check_noticed(producer, log, quiet_until, reason)
            await asyncio.sleep(34.0)
            assert not producer.health().ok
            check_rate(log, quiet_until, loop.time())
            end(cluster)
            ended_at = loop.time()
            await asyncio.sleep(15.0)
            assert producer.health().ok, producer.health()
            told = log.since(ended_at)
            assert len(told) == 1, told
            assert told[0][0] < 10.0
            assert told[0][1].startswith("acknowledged again after ")
            (resumed,) = log.events("delivery_resumed")
            assert resumed["levelno"] == logging.INFO
            assert resumed["kafka_acknowledged"]
            assert 35 < resumed["kafka_seconds"] < 50


def check_noticed(producer: Producer[Any, Any], log: LogTap, start: float, reason: str) -> None:
    """Check that the log, `health()` and `explain()` name the cause."""
    (told,) = log.since(start)
    assert told[0] <= LIMIT_S
    assert told[1].startswith("no acknowledgment for 5.")
    assert reason in told[1]
    (fields,) = log.events("delivery_stalled")
    assert fields["levelno"] == logging.WARNING
    assert fields["kafka_records"] > 0
    assert fields["kafka_client_id"].startswith("aiokprod-")
    health = producer.health()
    assert not health.ok
    assert health.cause is not None
    assert reason in health.cause
    assert health.partitions_stalled == fields["kafka_partitions"] >= 1
    text = producer.explain()
    assert f"cause: {health.cause}" in text
    assert "  t-0: " in text
    assert "stalled for 5." in text or "stalled for 6." in text


def check_rate(log: LogTap, start: float, end: float) -> None:
    """Check that the log has at most one line per 10 s, and at most two lines in total."""
    times = [at for at, _ in log.since(start)]
    assert all(later - earlier >= 10.0 for earlier, later in itertools.pairwise(times))
    assert len(times) <= 2, log.since(start)


@in_virtual_time
async def test_brokers_that_never_answered_are_named() -> None:
    cluster = FakeCluster(3)
    freeze_all(cluster)
    loop = asyncio.get_running_loop()
    start = loop.time()
    with tapped() as log:
        async with steady_traffic(cluster) as producer:
            await asyncio.sleep(LIMIT_S)
            ((_, text),) = log.since(start, logging.WARNING)
            assert "no usable response from broker1:9092, broker2:9092, broker3:9092" in text
            assert "calls for topic t" in text
            later = text.replace("5.0 s", "6.0 s").replace("30 calls", "36 calls")
            assert producer.health().cause == later
            assert "topic t: 36 calls have waited for metadata for 6.0 s; no metadata" in (
                producer.explain()
            )
            thaw_all(cluster)
            await asyncio.sleep(10.0)
            assert producer.health().ok
    assert [f["kafka_acknowledged"] for f in log.events("delivery_resumed")] == [True]


@in_virtual_time
async def test_wrong_port_is_told_at_once_and_not_again_for_ten_seconds() -> None:
    cluster = FakeCluster(1)
    cluster.network.set_name("elsewhere", ["elsewhere"])
    start = asyncio.get_running_loop().time()
    with tapped() as log:
        producer: Producer[Any, Any] = Producer(
            bootstrap_servers="elsewhere:1", environment=cluster.environment(), max_block_ms=60_000
        )
        with pytest.raises(Exception, match="elsewhere:1"):
            await producer.send("t", b"x")
        await producer.close()
    told = log.since(start)
    assert told[0][0] < 1.0
    assert "cannot connect" in told[0][1]
    assert told[1][0] == pytest.approx(10.0, abs=1.1)
    assert "no acknowledgment" in told[1][1]
    assert len(told) <= 4


@in_virtual_time
async def test_short_delivery_timeout_is_noticed_before_records_expire() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    async with steady_traffic(
        cluster, delivery_timeout_ms=3_000, request_timeout_ms=2_000
    ) as producer:
        await asyncio.sleep(5.0)
        freeze_all(cluster)
        await asyncio.sleep(1.4)
        assert producer.health().ok
        await asyncio.sleep(0.6)
        assert not producer.health().ok
        assert producer.metrics()["records_failed"] == 0


@in_virtual_time
async def test_records_that_expire_do_not_end_the_outage() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    with tapped() as log:
        async with steady_traffic(
            cluster, per_s=1, delivery_timeout_ms=3_000, request_timeout_ms=2_000
        ) as producer:
            await asyncio.sleep(5.0)
            freeze_all(cluster)
            await asyncio.sleep(60.0)
            assert producer.metrics()["records_failed"] > 10
            assert [f["kafka_node_ids"] for f in log.events("delivery_stalled")] == [[3], [1, 2, 3]]
            assert not log.events("delivery_resumed")


@pytest.mark.parametrize("delivery_timeout_ms", [3_000, 120_000])
@pytest.mark.parametrize("per_s", [0.5, 2, 20, pytest.param(200, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("case", ["all frozen", "all dead"])
@in_virtual_time
async def test_health_does_not_alternate_while_calls_time_out_in_an_outage(
    case: str, per_s: float, delivery_timeout_ms: int
) -> None:
    """Records that time out after two seconds never become old, and at times no record waits."""
    begin, end, _ = OUTAGES[case]
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    loop = asyncio.get_running_loop()
    async with Producer[bytes, bytes](
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
        max_block_ms=1_500, request_timeout_ms=2_000, delivery_timeout_ms=delivery_timeout_ms,
    ) as producer:  # fmt: skip
        await producer.warm(["t"])
        outcomes: list[KafkaError | None] = []

        async def call(number: int) -> None:
            try:
                await producer.send("t", b"x", key=b"%d" % number, timeout=2)
                outcomes.append(None)
            except KafkaError as error:
                outcomes.append(error)

        async def calls() -> None:
            for number in itertools.count():
                running.add(asyncio.ensure_future(call(number)))
                await asyncio.sleep(1 / per_s)

        running = {asyncio.ensure_future(calls())}
        await asyncio.sleep(5.0)
        assert producer.health().ok
        begin(cluster)
        started = loop.time()
        seen = []
        while loop.time() < started + 40:
            await asyncio.sleep(0.25)
            seen.append(producer.health().ok)
        first = seen.index(False)
        assert first * 0.25 <= 8.0
        assert not any(seen[first:])
        end(cluster)
        await asyncio.sleep(20.0)
        assert producer.health().ok
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        metrics = producer.metrics()
    failed = [error for error in outcomes if error is not None]
    assert failed
    refused = [error for error in failed if error.outcome is Outcome.NOT_SENT]
    counted = metrics["records_refused"] + metrics["records_failed"]
    assert len(refused) <= counted <= len(outcomes)
    assert all("timeout of 2 s: " in str(e) for e in failed if "the timeout of" in str(e))


@in_virtual_time
async def test_health_is_ok_after_a_record_was_cancelled_within_milliseconds() -> None:
    """No record waited during the following seconds, so they must not count as an outage."""
    cluster = FakeCluster(1)
    cluster.create_topic("t", 1)
    async with Producer[bytes, bytes](
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), linger_ms=0
    ) as producer:
        await producer.send("t", b"x")
        cluster.kill(1)
        await asyncio.sleep(0.01)
        cancelled = await producer.submit("t", b"y")
        await asyncio.sleep(0.01)
        assert cancelled.cancel()
        assert cancelled.withdrawn
        cluster.start(1)
        await asyncio.sleep(8.0)
        cluster.pause(1)
        waiting = await producer.submit("t", b"z")
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert producer.health().ok, producer.health()
        cluster.resume(1)


@in_virtual_time
async def test_health_is_ok_if_cancelled_records_are_followed_by_acknowledged_ones() -> None:
    cluster = FakeCluster(1)
    cluster.create_topic("t", 1)
    async with Producer[bytes, bytes](
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), linger_ms=0
    ) as producer:
        await producer.warm(["t"])
        cluster.pause(1)
        for _ in range(3):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(producer.send("t", b"x"), 1.0)
        cluster.resume(1)
        await producer.send("t", b"y")
        cluster.pause(1)
        await producer.submit("t", b"z")
        await asyncio.sleep(4.0)
        assert producer.health().ok
        cluster.resume(1)


@in_virtual_time
async def test_failures_that_no_task_awaits_are_summed_up() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    with tapped() as log:
        producer: Producer[Any, Any] = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
            delivery_timeout_ms=3_000, request_timeout_ms=2_000,
        )  # fmt: skip
        await producer.warm(["t"])
        freeze_all(cluster)
        for number in range(60):
            await producer.submit("t", b"x", partition=number % 3)
            await asyncio.sleep(0.5)
        await producer.close(0)
    failed = log.events("records_failed")
    assert sum(fields["kafka_records"] for fields in failed) == 60
    assert len(failed) == 4, "at 3, 13 and 23 s, and when it is closed"
    assert failed[0]["kafka_partitions"] == ["t-0"]
    assert failed[1]["kafka_partitions"] == ["t-1", "t-2", "t-0"]
    assert "records to t-1, t-2, t-0 failed and no task was waiting" in failed[1]["message"]
    assert failed[0]["levelno"] == logging.ERROR
    assert failed[0]["kafka_client_id"].startswith("aiokprod-")


@in_virtual_time
async def test_outage_of_a_partition_that_gets_no_more_records_is_forgotten() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    with tapped() as log:
        producer: Producer[Any, Any] = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
            delivery_timeout_ms=20_000, request_timeout_ms=10_000,
        )  # fmt: skip
        await producer.warm(["t"])
        refuse_one(cluster)
        with pytest.raises(Exception, match="NOT_ENOUGH_REPLICAS"):
            await producer.send("t", b"x", partition=0)
        health = producer.health()
        assert not health.ok
        assert health.partitions_stalled == 0
        assert "responds with NOT_ENOUGH_REPLICAS (1 records of t-0)" in (health.cause or "")
        await asyncio.sleep(10.5)
        assert producer.health().ok
        await producer.close()
    (resumed,) = log.events("delivery_resumed")
    assert not resumed["kafka_acknowledged"]
    assert resumed["message"].startswith("no record waits any more after ")


@in_virtual_time
async def test_retries_and_changed_leaders_are_summed_up_in_one_line() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    loop = asyncio.get_running_loop()
    with tapped() as log:
        async with steady_traffic(cluster) as producer:
            await asyncio.sleep(5.0)
            start = loop.time()
            for _ in range(3):
                cluster.move_leader("t", 0)
                await asyncio.sleep(0.3)
            await asyncio.sleep(20.0)
            told = log.since(start)
            assert producer.health().ok
    assert 1 <= len(told) <= 2, told
    retried = log.events("batches_retried")
    codes = [set(fields["kafka_retries"]) for fields in retried]
    assert set().union(*codes) == {"NOT_LEADER_OR_FOLLOWER"}
    assert sum(fields["kafka_leaders_changed"] for fields in retried) == 3
    assert "retries of batches (NOT_LEADER_OR_FOLLOWER " in told[0][1]
    assert "of topics t; " in told[0][1]


@in_virtual_time
async def test_retries_that_do_not_end_are_logged_every_ten_seconds() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    loop = asyncio.get_running_loop()
    with tapped() as log:
        async with steady_traffic(cluster):
            await asyncio.sleep(5.0)
            start = loop.time()
            for _ in range(30):
                cluster.fail_produce(("t", 0), Code.NOT_ENOUGH_REPLICAS)
                await asyncio.sleep(1.0)
            times = [at for at, _ in log.since(start)]
    assert 2 <= len(times) <= 4
    assert not log.events("delivery_stalled")


@in_virtual_time
async def test_first_send_to_a_topic_that_is_created_logs_nothing_above_info() -> None:
    cluster = FakeCluster(1, default_replication=1, create_s=2.0)
    with tapped() as log:
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        ) as producer:
            await producer.send("greetings", b"hello")
    events = {vars(line)["kafka_event"] for _, line in log.lines if line.levelno >= logging.INFO}
    assert events == {"connected", "closed"}


@in_virtual_time
async def test_idle_producer_has_no_timer() -> None:
    cluster = FakeCluster(1, default_replication=1)
    async with Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    ) as producer:
        assert producer.health().last_ack_age_s is None
        for _ in range(2):
            await producer.send("t", b"x")
            assert producer.health().last_ack_age_s == 0.0
            assert is_watching(producer)
            await asyncio.sleep(2.0)
            assert not is_watching(producer)
            cluster.control(PRODUCE, delay(3.0))


@in_virtual_time
async def test_errors_of_connections_are_kept_for_known_brokers_only() -> None:
    cluster = FakeCluster(3, default_replication=3)
    async with Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(),
        metadata_max_age_ms=1_000,
    ) as producer:  # fmt: skip
        await producer.send("t", b"x")
        watch = producer._lifecycle.started().watch
        for node_id in range(-3_000, -2_000):  # each coordinator address gets a new id
            watch.on_disconnect(node_id, Disconnected("gone"))
        watch.on_disconnect(2, Disconnected("gone"))
        assert list(watch.connection_errors) == [2]
        snapshot = producer._lifecycle.started().metadata.snapshot
        fewer = {key: node for key, node in snapshot.nodes.items() if key != 2}
        watch.on_snapshot(dataclasses.replace(snapshot, nodes=fewer))
        assert not watch.connection_errors


def is_watching(producer: Producer[Any, Any]) -> bool:
    return producer._lifecycle.started().watch._timer is not None


@in_virtual_time
async def test_brokers_that_refuse_the_credentials_are_named() -> None:
    cluster = SaslCluster(3, {"PLAIN": lambda: PlainServer({USER: PASSWORD})})
    cluster.create_topic("t", 3)
    loop = asyncio.get_running_loop()
    with tapped() as log:
        async with steady_traffic(
            cluster, security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN",
            sasl_allow_cleartext=True, sasl_username=USER, sasl_password=PASSWORD,
        ) as producer:  # fmt: skip
            await asyncio.sleep(5.0)
            assert producer.health().ok
            start = loop.time()
            cluster.servers = {"PLAIN": lambda: PlainServer({USER: "other"})}
            cluster.cut()
            await asyncio.sleep(LIMIT_S)
            ((at, text),) = log.since(start, logging.WARNING)
            assert at < 1.0
            assert "refused PLAIN" in text
            cause = producer.health().cause
            assert cause is not None
            assert "refused PLAIN" in cause
            assert PASSWORD not in producer.explain() + str(producer.health())


@in_virtual_time
async def test_partition_without_a_leader_is_named_as_such() -> None:
    cluster = FakeCluster(3)
    cluster.create_topic("t", 3)
    async with steady_traffic(cluster) as producer:
        await asyncio.sleep(5.0)
        cluster.topics["t"].partitions[0].elect(None)
        await asyncio.sleep(8.0)
        health = producer.health()
        assert health.cause is not None
        assert "no leader is known (" in health.cause
        assert "records of t-0)" in health.cause
        assert health.partitions_without_leader == health.partitions_stalled == 1
        assert "  t-0: no leader, " in producer.explain()


@in_virtual_time
async def test_topic_that_is_never_created_is_named() -> None:
    cluster = FakeCluster(1, default_replication=1, auto_create=False)
    async with steady_traffic(cluster, max_block_ms=60_000) as producer:
        await asyncio.sleep(6.5)
        cause = producer.health().cause
        assert cause is not None
        assert "UNKNOWN_TOPIC_OR_PARTITION: " in cause
        assert "calls for topic t)" in cause


@in_virtual_time
async def test_record_that_is_old_although_others_are_acknowledged_is_not_ok() -> None:
    cluster = FakeCluster(1, default_replication=1)
    cluster.create_topic("t", 3)
    cluster.control(PRODUCE, delay(4.0))
    async with steady_traffic(
        cluster, request_timeout_ms=5_000, max_in_flight_requests_per_connection=1
    ) as producer:
        await asyncio.sleep(30.0)
        runtime = producer._lifecycle.started()
        oldest = next(iter(runtime.accumulator.incomplete))
        oldest.created_at -= 10.0
        oldest.queue.acknowledged_at = asyncio.get_running_loop().time()
        cause = producer.health().cause
        assert cause is not None
        assert "a record has no outcome after 1" in cause


@in_virtual_time
async def test_throttled_broker_is_named_as_such() -> None:
    cluster = FakeCluster(1, default_replication=1)
    cluster.create_topic("t", 3)
    async with steady_traffic(cluster) as producer:
        await asyncio.sleep(2.0)
        cluster.throttle(30_000)
        await asyncio.sleep(8.0)
        cause = producer.health().cause
        assert cause is not None
        assert "broker1:9092 (id 1) throttles this client for another 2" in cause
