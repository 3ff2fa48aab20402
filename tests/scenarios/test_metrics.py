"""`producer.metrics()` compared with what the brokers received and the results of the calls."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from aiokprod.errors import ConfigError, KafkaError, RecordTooLarge
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster, refuse
from tests.scenarios.scenario_helpers import History, make_producer, scenario

PRODUCE, METADATA, END_TXN = 0, 3, 26


@scenario(linger_ms=5, compression_type="gzip")
async def test_counts_by_topic_and_node_add_up(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("u", 2)
    cluster.fail_produce(("t", 0), 19, times=2)  # NOT_ENOUGH_REPLICAS: retried
    cluster.fail_produce(("u", 1), 87, times=1)  # INVALID_RECORD: fails
    for number in range(60):
        history.send_later("t" if number % 3 else "u", number % 2)
        await asyncio.sleep(0.001)
    with pytest.raises(RecordTooLarge):
        await producer.send("t", b"x" * (2 << 20))
    await producer.flush()
    await asyncio.sleep(0)
    attempts = history.attempts
    values = producer.metrics(by=["topic", "node"])
    for topic in ("t", "u"):
        told = [attempt for attempt in attempts if attempt.topic == topic]
        counts = values["topics"][topic]
        assert counts["records_acknowledged"] == sum(attempt.acked for attempt in told)
        assert counts["records_failed"] == sum(not attempt.acked for attempt in told)
    assert values["topics"]["u"]["records_failed"] > 0
    assert values["topics"]["t"]["records_retried"] > 0
    assert values["topics"]["t"]["records_refused"] == 1
    for name in values["topics"]["t"]:
        assert values[name] == sum(counts[name] for counts in values["topics"].values()), name
    for name in set(values["nodes"][1]) - {"request_latency_s", "throttle_time_s"}:
        assert values[name] == sum(counts[name] for counts in values["nodes"].values()), name
    latencies = [counts["request_latency_s"]["count"] for counts in values["nodes"].values()]
    assert sum(latencies) == values["request_latency_s"]["count"] == values["produce_requests"]
    assert values["refusals"] == {"RecordTooLarge": 1}
    assert values["errors"] == {"INVALID_RECORD": values["records_failed"]}
    assert values["compression_ratio"]["count"] == values["batch_size_bytes"]["count"] > 0
    assert values["plain_bytes_sent"] > 0
    assert values["flush_time_s"]["count"] == 1


@scenario()
async def test_requests_and_bytes_are_those_on_the_wire(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    for partition in range(3):
        await producer.send("t", b"value", partition=partition)
    values = producer.metrics()
    assert values["requests_sent"] == values["responses_received"] == len(cluster.requests)
    assert values["network_bytes_out"] == sum(note.size for note in cluster.requests)
    assert values["network_bytes_in"] > 0
    by_node = producer.metrics(by=["node"])["nodes"]
    for node_id in (0, 1, 2):
        if node_id in by_node:
            sent = [note for note in cluster.requests if note.broker_id == node_id]
            assert by_node[node_id]["produce_requests"] == sum(
                note.api_key == PRODUCE for note in sent
            )
    assert by_node[-1]["produce_requests"] == 0, "the connection to the bootstrap server"


@scenario(topic=None)
async def test_connections_are_counted_by_how_they_ended(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.create_topic("t", 1)
    leader = cluster.leader_of("t", 0).broker_id
    await producer.send("t", b"value")
    before = producer.metrics(by=["node"])
    assert before["connections"] == before["connections_opened"] - before["connections_closed"]
    assert before["nodes"][leader]["connections"] == 1
    assert before["connection_failures"] == 0
    cluster.kill(leader)
    await asyncio.sleep(20)
    after = producer.metrics(by=["node"])
    assert after["nodes"][leader]["connections"] == 0
    assert after["connections_closed"] > before["connections_closed"]
    cluster.start(leader)
    await producer.send("t", b"value")
    again = producer.metrics()
    ready = again["connections_opened"] + again["connection_failures"]
    assert again["connections"] == ready - again["connections_closed"]


@scenario(topic=None, max_block_ms=500, buffer_memory=65_536, delivery_timeout_ms=60_000)
async def test_waits_are_measured_and_refusals_counted(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    cluster.auto_create = False
    with pytest.raises(KafkaError):
        await producer.send("missing", b"value")
    values = producer.metrics(by=["topic"])
    assert values["metadata_wait_time_s"]["count"] == 1
    assert values["metadata_wait_time_s"]["max"] == pytest.approx(0.5, abs=0.3)
    assert values["records_refused"] == 1
    assert values["topics"]["missing"]["records_refused"] == 1
    cluster.create_topic("t", 1)
    await producer.send("t", b"value")
    cluster.pause(cluster.leader_of("t", 0).broker_id)
    sending = [asyncio.ensure_future(producer.send("t", b"x" * 20_000)) for _ in range(5)]
    await asyncio.sleep(2)
    values = producer.metrics()
    assert values["buffer_wait_time_s"]["max"] == pytest.approx(0.5, abs=0.05)
    assert values["buffer_wait_time_s"]["count"] == values["refusals"]["BufferTimeout"] > 0
    for broker in cluster.brokers:
        cluster.resume(broker)
    await asyncio.gather(*sending, return_exceptions=True)


@scenario(metadata_max_age_ms=60_000)
async def test_age_of_the_metadata(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.send("t", b"value")
    await asyncio.sleep(30)
    assert producer.metrics()["metadata_age_s"] == pytest.approx(30, abs=1)
    await asyncio.sleep(31)
    assert producer.metrics()["metadata_age_s"] < 2
    cluster.control(METADATA, refuse(-1))
    for broker in list(cluster.brokers):
        cluster.kill(broker)
    await asyncio.sleep(200)
    assert producer.metrics()["metadata_age_s"] > 190
    for broker in list(cluster.brokers):
        cluster.start(broker)


@scenario()
async def test_throttling_is_counted_by_broker(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.send("t", b"value", partition=0)
    leader = cluster.leader_of("t", 0).broker_id
    cluster.throttle(250, leader)
    await producer.send("t", b"value", partition=0)
    cluster.throttle(0)
    node = producer.metrics(by=["node"])["nodes"][leader]
    assert node["throttles"] >= 1
    assert node["throttle_time_s"]["max"] == 0.25


@scenario(transactional_id="tx", topic="t")
async def test_transactional_calls_are_measured(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.start()
    async with producer.transaction():
        await producer.send("t", b"value")
    await producer.begin_transaction()
    await producer.send("t", b"value")
    await producer.abort_transaction()
    cluster.control(END_TXN, refuse(47), times=1)  # INVALID_PRODUCER_EPOCH
    await producer.begin_transaction()
    await producer.send("t", b"value")
    with pytest.raises(KafkaError):
        await producer.commit_transaction()
    values = producer.metrics()
    assert values["txn_init_time_s"]["count"] == 1
    assert values["txn_begin_time_s"]["count"] == 3
    assert values["txn_commit_time_s"]["count"] == 2
    assert values["txn_abort_time_s"]["count"] == 1
    assert sum(values["transaction_errors"].values()) == 1


def test_loop_lag_shows_a_blocked_loop() -> None:
    """This uses a real loop, because nothing blocks a virtual one."""

    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(1)
        ) as producer:
            await producer.send("t", b"value")
            await producer.submit("t", b"value")  # wakes the sender
            time.sleep(0.15)  # noqa: ASYNC251
            await producer.flush()
            assert producer.metrics()["loop_lag_s"]["max"] > 0.14

    asyncio.run(main())


@scenario()
async def test_metrics_can_be_read_in_any_thread_and_after_close(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    found: list[Any] = []
    await producer.send("t", b"value")
    thread = threading.Thread(target=lambda: found.append(producer.metrics(by=["topic", "node"])))
    thread.start()
    thread.join()
    assert found[0]["topics"]["t"]["records_acknowledged"] == 1
    await producer.close()
    assert producer.metrics(by=["node"])["connections"] == 0


@pytest.mark.parametrize("by", ["topic", ["broker"], [1]])
def test_unknown_division_is_refused(by: Any) -> None:
    with pytest.raises(ConfigError, match="'topic' and 'node'"):
        make_producer(FakeCluster(1)).metrics(by=by)


class Broken:
    """A plug-in whose first method raises."""

    def on_append(self, *arguments: Any) -> Any:
        raise ZeroDivisionError

    def on_batch_settled(self, *arguments: Any) -> None: ...

    def on_record_unsent(self, *arguments: Any) -> None: ...


@scenario(plugins=[Broken()])
async def test_plugin_that_raises_is_counted(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.send("t", b"value")
    assert producer.metrics()["plugin_errors"] == {"Broken.on_append": 1}
