"""`AIOKafkaProducer` of `aiokprod.compat.aiokafka` with a FakeCluster, in virtual time.

`tests/integration/test_foreign_suites.py` runs aiokafka's own tests with a real broker. Where those
tests assert private attributes, this module tests the behaviour instead.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import sys
import types
import warnings
import weakref
from typing import Any

import aiokafka
import aiokafka.errors as theirs
import aiokafka.producer
import pytest
from aiokafka.structs import OffsetAndMetadata, RecordMetadata, TopicPartition

import aiokprod.compat.aiokafka as compat
from aiokprod import Producer, errors
from aiokprod._compat.aiokafka_errors import as_theirs
from aiokprod._compat.per_record import FutureResults
from aiokprod.compat.aiokafka import AIOKafkaProducer
from aiokprod.errors import Code, ConfigError, Outcome
from aiokprod.testing.api import Api
from aiokprod.testing.fake_cluster import FakeCluster
from tests.virtual_time import in_virtual_time


def make(cluster: FakeCluster, **arguments: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers,
        environment=cluster.environment(),
        **arguments,
    )


@in_virtual_time
async def test_send_returns_a_future_of_aiokafkas_metadata() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        future = await producer.send("t", b"v", b"k", 0, 1_700_000_000_000, [("h", b"1")])
        assert isinstance(future, asyncio.Future)
        assert not future.done()
        metadata = await future
        assert metadata == RecordMetadata(
            "t", 0, TopicPartition("t", 0), 0, 1_700_000_000_000, 0, None
        )
        assert isinstance(metadata, RecordMetadata)
        assert (await producer.send_and_wait("t", b"w", headers=[("h", b"2")])).offset == 1
    first, second = cluster.log("t", 0)
    assert (first.key, first.value, list(first.headers)) == (b"k", b"v", [("h", b"1")])
    assert list(second.headers) == [("h", b"2")]


@in_virtual_time
async def test_start_fetches_metadata() -> None:
    cluster = FakeCluster(default_partitions=2)
    producer = make(cluster)
    assert producer._closed is False
    await producer.start()
    assert {broker.nodeId for broker in producer.client.cluster.brokers()} == {1, 2, 3}
    assert await producer.partitions_for("t") == {0, 1}
    cluster_view = producer.client.cluster
    assert cluster_view.topics() == {"t"}
    assert cluster_view.partitions_for_topic("t") == {0, 1}
    assert cluster_view.available_partitions_for_topic("t") == {0, 1}
    assert cluster_view.leader_for_partition(TopicPartition("t", 1)) in (1, 2, 3)
    assert cluster_view.leader_for_partition(TopicPartition("t", 9)) is None
    assert cluster_view.partitions_for_topic("u") is None
    assert cluster_view.available_partitions_for_topic("u") is None
    broker = cluster_view.broker_metadata(1)
    assert broker is not None
    assert (broker.host, broker.port) == ("broker1", 9092)
    assert cluster_view.broker_metadata(99) is None
    assert producer.client._client_id == producer.producer.client_id
    assert producer.client._bootstrap_servers == cluster.bootstrap_servers
    producer.client.add_topic("t2")
    assert await producer.client.force_metadata_update()
    assert cluster_view.partitions_for_topic("t2") == {0, 1}
    await producer.stop()
    await producer.stop()
    assert producer._closed is True


@in_virtual_time
async def test_start_fails_once_no_bootstrap_server_can_be_reached() -> None:
    cluster = FakeCluster()
    for broker in (1, 2, 3):
        cluster.kill(broker, failover_s=100)
    loop = asyncio.get_running_loop()
    producer = make(cluster)
    began = loop.time()
    with pytest.raises(theirs.KafkaConnectionError, match="Unable to bootstrap from") as caught:
        await producer.start()
    assert isinstance(caught.value, errors.DialError)
    assert loop.time() - began < 2
    with pytest.raises(theirs.ProducerClosed):
        await producer.send("t", b"v")


@in_virtual_time
async def test_start_fails_at_once_although_a_bootstrap_server_is_given_twice() -> None:
    cluster = FakeCluster()
    for broker in (1, 2, 3):
        cluster.kill(broker, failover_s=100)
    servers = cluster.bootstrap_servers.split(",")
    producer = AIOKafkaProducer(
        bootstrap_servers=[*servers, *servers], environment=cluster.environment()
    )
    began = asyncio.get_running_loop().time()
    with pytest.raises(theirs.KafkaConnectionError, match="Unable to bootstrap from"):
        await producer.start()
    assert asyncio.get_running_loop().time() - began < 2


@in_virtual_time
async def test_names_that_cannot_be_resolved_are_a_connection_error() -> None:
    """As in aiokafka. Services catch this error while they wait for Kafka."""
    cluster = FakeCluster(default_partitions=1)
    producer = AIOKafkaProducer(
        bootstrap_servers="no-such-host:9092", environment=cluster.environment()
    )
    with pytest.raises(theirs.KafkaConnectionError, match="no-such-host") as caught:
        await producer.start()
    assert isinstance(caught.value, errors.DialError)
    cluster.network.set_name("no-such-host", ["10.9.9.9"])
    with pytest.raises(theirs.KafkaConnectionError):
        await producer.start()


@in_virtual_time
async def test_a_start_that_failed_can_be_repeated() -> None:
    """As in aiokafka. Services wait for Kafka by calling `start` in a loop."""
    cluster = FakeCluster(default_partitions=1)
    for broker in (1, 2, 3):
        cluster.kill(broker, failover_s=100)
    producer = make(cluster)
    client_id = producer.client._client_id
    for _ in range(2):
        with pytest.raises(theirs.KafkaConnectionError):
            await producer.start()
    assert producer.client.cluster.brokers() == set()
    for broker in (1, 2, 3):
        cluster.start(broker)
    await producer.start()
    assert (await producer.send_and_wait("t", b"v")).offset == 0
    await producer.client._wait_on_metadata("t")
    assert producer.producer.client_id == client_id
    assert len(producer.client.cluster.brokers()) == 3
    await producer.stop()
    with pytest.raises(theirs.ProducerClosed):
        await producer.start()


@in_virtual_time
async def test_a_producer_whose_start_failed_needs_no_stop() -> None:
    cluster = FakeCluster()
    for broker in (1, 2, 3):
        cluster.kill(broker, failover_s=100)
    producer = make(cluster)
    with pytest.raises(theirs.KafkaConnectionError):
        await producer.start()
    dropped = weakref.ref(producer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del producer
        gc.collect()
    assert dropped() is None


@in_virtual_time
async def test_start_ends_after_the_request_timeout_if_brokers_do_not_answer() -> None:
    cluster = FakeCluster()
    for broker in (1, 2, 3):
        cluster.pause(broker)
    producer = make(cluster, request_timeout_ms=3_000)
    began = asyncio.get_running_loop().time()
    with pytest.raises(theirs.KafkaConnectionError, match="no metadata after 3"):
        await producer.start()
    assert asyncio.get_running_loop().time() - began == pytest.approx(3, abs=0.2)


@in_virtual_time
async def test_a_cancelled_start_closes_its_connections_and_can_be_repeated() -> None:
    cluster = FakeCluster(default_partitions=1)
    for broker in (1, 2, 3):
        cluster.pause(broker)
    producer = make(cluster)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await producer.start()
    for broker in (1, 2, 3):
        cluster.resume(broker)
    await asyncio.sleep(1)
    assert cluster.open_connections() == 0
    await producer.start()
    assert (await producer.send_and_wait("t", b"v")).offset == 0
    await producer.stop()


@in_virtual_time
async def test_concurrent_starts_are_one_start() -> None:
    cluster = FakeCluster(default_partitions=1)
    producer = make(cluster)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(producer.start() for _ in range(3)))
    await producer.start()
    assert asyncio.get_running_loop().time() - began < 2
    assert (await producer.send_and_wait("t", b"v")).offset == 0
    await producer.stop()


@in_virtual_time
async def test_a_start_after_a_concurrent_one_that_failed_repeats_it() -> None:
    cluster = FakeCluster(default_partitions=1)
    for broker in (1, 2, 3):
        cluster.pause(broker)
    producer = make(cluster)
    first, second = (asyncio.create_task(producer.start()) for _ in range(2))
    await asyncio.sleep(1)
    first.cancel()
    for broker in (1, 2, 3):
        cluster.resume(broker)
    await second
    assert first.cancelled()
    assert (await producer.send_and_wait("t", b"v")).offset == 0
    await producer.stop()


@in_virtual_time
async def test_a_second_start_that_is_cancelled_leaves_the_producer_running() -> None:
    cluster = FakeCluster(default_partitions=1)
    producer = make(cluster)
    await producer.start()
    future = await producer.send("t", b"v")
    again = asyncio.create_task(producer.start())
    await asyncio.sleep(0)
    again.cancel()
    await asyncio.wait({again})
    assert (await future).offset == 0
    assert (await producer.send_and_wait("t", b"w")).offset == 1
    await producer.stop()


@in_virtual_time
async def test_stop_ends_a_start_in_progress() -> None:
    cluster = FakeCluster()
    for broker in (1, 2, 3):
        cluster.pause(broker)
    producer = make(cluster)
    starting = asyncio.create_task(producer.start())
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await producer.stop()
    with pytest.raises(theirs.ProducerClosed):
        await starting
    assert asyncio.get_running_loop().time() - began < 2
    for broker in (1, 2, 3):
        cluster.resume(broker)


@in_virtual_time
async def test_send_starts_a_producer_that_is_not_started() -> None:
    cluster = FakeCluster(default_partitions=1)
    producer = make(cluster)
    assert (await producer.send_and_wait("t", b"v")).offset == 0
    await producer.stop()


@in_virtual_time
async def test_serializers_are_called_once_and_raise_their_own_errors() -> None:
    calls: list[Any] = []

    def serializer(value: Any) -> bytes:
        calls.append(value)
        if value == "bad":
            raise LookupError("mine")
        return str(value).encode()

    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, value_serializer=serializer, key_serializer=str.encode) as producer:
        await producer.send_and_wait("t", 1, key="k")
        with pytest.raises(LookupError, match="mine"):
            await producer.send("t", "bad", key="k")
        batch = producer.create_batch()
        batch.append(key="k", value=2, timestamp=None)
        await (await producer.send_batch(batch, "t", partition=0))
    assert calls == [1, "bad", 2]
    assert cluster.values("t", 0) == [b"1", b"2"]


@in_virtual_time
async def test_wrong_types_and_sizes_are_rejected_by_send() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, max_request_size=1_000) as producer:
        with pytest.raises(TypeError) as text:
            await producer.send("t", "text")
        assert isinstance(text.value, errors.SerializationError)
        with pytest.raises(theirs.MessageSizeTooLargeError) as large:
            await producer.send("t", b"x" * 2_000)
        assert isinstance(large.value, errors.RecordTooLarge)
        with pytest.raises(ValueError, match="Need at least one: key or value"):
            await producer.send("t")
        with pytest.raises(ValueError, match=r"topic '\$'.* is not legal"):
            await producer.send("$", b"x")
        await producer.flush()
    assert cluster.count(0) == 0


@in_virtual_time
async def test_a_topic_that_does_not_exist_is_unknown() -> None:
    cluster = FakeCluster(auto_create=False)
    async with make(cluster, request_timeout_ms=200) as producer:
        with pytest.raises(theirs.UnknownTopicOrPartitionError):
            await producer.send_and_wait("absent", b"v")
        with pytest.raises(theirs.UnknownTopicOrPartitionError):
            await producer.partitions_for("absent")


@in_virtual_time
async def test_errors_of_brokers_have_both_classes_and_say_the_outcome() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        cluster.fail_produce(("t", 0), Code.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(theirs.TopicAuthorizationFailedError) as caught:
            await producer.send_and_wait("t", b"v")
    error = caught.value
    assert isinstance(error, errors.AuthorizationError)
    assert error.outcome is Outcome.REJECTED


@in_virtual_time
async def test_records_expire_with_kafka_timeout_error() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, request_timeout_ms=500) as producer:
        await producer.send_and_wait("t", b"v")
        for broker in (1, 2, 3):
            cluster.pause(broker)
        future = await producer.send("t", b"w")
        with pytest.raises(theirs.KafkaTimeoutError) as caught:
            await future
        assert isinstance(caught.value, errors.DeliveryTimeout)
        for broker in (1, 2, 3):
            cluster.resume(broker)


@in_virtual_time
async def test_cancelling_the_future_does_not_stop_the_record() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        future = await producer.send("t", b"v")
        future.cancel()
    assert cluster.values("t", 0) == [b"v"]


@in_virtual_time
async def test_an_exception_in_one_result_does_not_affect_the_others() -> None:
    """A signal handler may raise an exception in the callback of one result. The loop's exception
    handler must receive it, and the other results must arrive."""

    def partition_of(topic: str, partition: int) -> TopicPartition:
        if partition == 1:
            raise ArithmeticError("interrupted")
        return TopicPartition(topic, partition)

    reported: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context))
    cluster = FakeCluster(default_partitions=2)
    results = FutureResults(RecordMetadata, partition_of, as_theirs, False)  # type: ignore[arg-type]
    producer = Producer[bytes, bytes](
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    )
    async with producer:
        futures = [loop.create_future() for _ in range(6)]
        for number, future in enumerate(futures):
            await results.submit(
                future, producer, "t", b"%d" % number, None, number % 2, None, None
            )
        await producer.flush()
        await asyncio.sleep(0)
    assert [future.done() for future in futures] == [True, False] * 3
    assert [future.result().offset for future in futures[::2]] == [0, 1, 2]
    assert [str(context["exception"]) for context in reported] == ["interrupted"] * 3
    assert reported[0]["message"] == "Exception in callback FutureResult"


@in_virtual_time
async def test_a_result_has_the_hash_of_an_equal_tuple() -> None:
    """In Python 3.14 a tuple stores its hash. A new tuple must therefore be marked as not yet
    hashed."""
    cluster = FakeCluster(default_partitions=1)
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    ) as producer:
        result = await producer.send_and_wait("t", b"v")
    assert hash(result) == hash(tuple(result)) == hash(RecordMetadata(*result))
    assert result in {RecordMetadata(*result)}


@in_virtual_time
async def test_a_result_comes_with_other_callbacks_of_the_record_and_in_their_order() -> None:
    cluster = FakeCluster(default_partitions=1)
    results = FutureResults(RecordMetadata, TopicPartition, as_theirs, False)
    producer = Producer[bytes, bytes](
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    )
    called: list[str] = []
    async with producer:
        future = asyncio.get_running_loop().create_future()
        delivery = await results.submit(future, producer, "t", b"v", None, None, None, None)
        delivery.add_done_callback(lambda _: called.append(f"done: {future.done()}"))
        withdrawn = asyncio.get_running_loop().create_future()
        other = await results.submit(withdrawn, producer, "t", b"w", None, None, None, None)
        other.add_done_callback(lambda _: called.append("cancelled"))
        assert other.cancel()
        await asyncio.sleep(0)
        assert called == ["cancelled"]
        assert withdrawn.exception().outcome is Outcome.NOT_SENT  # type: ignore[union-attr]
        await delivery
        await asyncio.sleep(0)
    assert called == ["cancelled", "done: True"]
    assert cluster.values("t", 0) == [b"v"]


@in_virtual_time
async def test_acks_0_has_no_result() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, acks=0, enable_idempotence=False) as producer:
        metadata: Any = await producer.send_and_wait("t", b"v")
        assert metadata is None


@in_virtual_time
async def test_sends_after_stop_are_refused() -> None:
    producer = make(FakeCluster())
    await producer.start()
    batch = producer.create_batch()
    batch.append(key=None, value=b"v", timestamp=None)
    await producer.stop()
    with pytest.raises(theirs.ProducerClosed):
        await producer.send("t", b"v")
    with pytest.raises(theirs.ProducerClosed):
        await producer.send_batch(batch, "t", partition=0)
    with pytest.raises(theirs.ProducerClosed):
        await producer.flush()


@in_virtual_time
async def test_a_partitioner_of_aiokafka_chooses() -> None:
    seen: list[tuple[bytes | None, list[int], list[int]]] = []

    def partitioner(key: bytes | None, partitions: list[int], available: list[int]) -> int:
        seen.append((key, partitions, available))
        return partitions[-1]

    cluster = FakeCluster(default_partitions=3)
    async with make(cluster, partitioner=partitioner, key_serializer=str.encode) as producer:
        assert (await producer.send_and_wait("t", b"v", key="k")).partition == 2
        assert producer._partition("t", None, "k", b"v", b"k", b"v") == 2
    assert seen == [(b"k", [0, 1, 2], [0, 1, 2])] * 2


@in_virtual_time
async def test_partition_gives_the_partition_that_send_uses() -> None:
    cluster = FakeCluster(default_partitions=5)
    default = aiokafka.producer.producer._DEFAULT_PARTITIONER
    async with make(cluster) as producer:
        with pytest.raises(ConfigError, match="no metadata of topic 't'"):
            producer._partition("t", None, None, None, b"k", None)
        await producer.client._wait_on_metadata("t")
        for number in range(50):
            key = b"key %d" % number
            expected = default(key, list(range(5)), list(range(5)))
            assert producer._partition("t", None, key, None, key, None) == expected
            assert (await producer.send_and_wait("t", b"v", key=key)).partition == expected
        assert producer._partition("t", 3, None, None, None, None) == 3
        assert producer._partition("t", None, None, None, None, None) in range(5)
        with pytest.raises(ConfigError, match="Unrecognized partition 5"):
            producer._partition("t", 5, None, None, None, None)


# -- batches -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_batch_is_sent_in_order_and_reports_its_first_record() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, max_batch_size=10_000) as producer:
        await producer.send_and_wait("t", b"before")
        batch = producer.create_batch()
        appended = 0
        while batch.append(
            key=b"k", value=b"%d" % appended, timestamp=7_000, headers=[("h", b"x")]
        ):
            appended += 1
        assert batch.record_count() == appended > 100
        assert batch.closed()
        assert batch.size() <= 10_000
        metadata = await (await producer.send_batch(batch, "t", partition=0))
        assert (metadata.offset, metadata.timestamp) == (1, 7_000)
        stored = cluster.log("t", 0)[1:]
        assert [record.value for record in stored] == [b"%d" % n for n in range(appended)]
        assert {record.key for record in stored} == {b"k"}
        empty = await producer.send_batch(producer.create_batch(), "t", partition=0)
        nothing: Any = await empty
        assert nothing is None


@in_virtual_time
async def test_fractions_of_a_timestamp_are_dropped_as_in_aiokafka() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        metadata = await producer.send_and_wait("t", b"v", timestamp_ms=1_700_000_000_000.9)
        assert metadata.timestamp == 1_700_000_000_000
        batch = producer.create_batch()
        appended = batch.append(key=None, value=b"w", timestamp=1_700_000_000_001.9)
        assert appended is not None
        assert appended.timestamp == 1_700_000_000_001
        metadata = await (await producer.send_batch(batch, "t", partition=0))
        assert metadata.timestamp == 1_700_000_000_001


@in_virtual_time
async def test_a_batch_without_a_partition_goes_to_one_partition() -> None:
    """With `install`, FastStream passes no partition."""
    cluster = FakeCluster(default_partitions=4)
    async with make(cluster) as producer:
        for topic in ("t", "u", "v"):
            batch = producer.create_batch()
            for number in range(20):
                batch.append(key=b"%d" % number, value=b"%d" % number, timestamp=None)
            metadata = await (await producer.send_batch(batch, topic, partition=None))
            assert (metadata.offset, len(cluster.log(topic, metadata.partition))) == (0, 20)
    async with make(FakeCluster(auto_create=False), request_timeout_ms=200) as producer:
        batch = producer.create_batch()
        batch.append(key=None, value=b"v", timestamp=None)
        with pytest.raises(theirs.UnknownTopicOrPartitionError):
            await producer.send_batch(batch, "absent", partition=None)


@pytest.mark.parametrize(
    "arguments",
    [{"headers": [("h", "text")]}, {"headers": [(b"h", b"1")]}, {"headers": [("h",)]},
     {"headers": 3}, {"timestamp": -1}, {"timestamp": "now"}],
    ids=str,
)  # fmt: skip
@in_virtual_time
async def test_a_batch_takes_no_invalid_record(arguments: dict[str, Any]) -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        batch = producer.create_batch()
        batch.append(key=None, value=b"a", timestamp=None, headers={"h": b"1"})  # type: ignore[arg-type]
        size = batch.size()
        with pytest.raises(ConfigError, match=r"headers|timestamp_ms"):
            batch.append(**{"key": None, "value": b"b", "timestamp": None, **arguments})
        assert (batch.record_count(), batch.size(), batch.closed()) == (1, size, False)
        batch.append(key=None, value=b"c", timestamp=None)
        await (await producer.send_batch(batch, "t", partition=0))
    assert cluster.values("t", 0) == [b"a", b"c"]
    assert list(cluster.log("t", 0)[0].headers) == [("h", b"1")]


@in_virtual_time
async def test_the_first_record_of_a_batch_may_exceed_its_limit() -> None:
    async with make(FakeCluster(), max_batch_size=1_000) as producer:
        batch = producer.create_batch()
        metadata = batch.append(key=None, value=b"x" * 2_000, timestamp=3)
        assert metadata is not None
        assert (metadata.offset, metadata.timestamp, metadata.crc) == (0, 3, None)
        assert metadata.size >= 2_000
        assert batch.append(key=None, value=b"", timestamp=None) is None
        other = producer.create_batch()
        other.append(key=None, value=b"short", timestamp=None)
        assert other.append(key=None, value=b"x" * 2_000, timestamp=None) is None
        with pytest.raises(TypeError, match="value is str"):
            producer.create_batch().append(key=None, value="x", timestamp=None)


@in_virtual_time
async def test_a_batch_that_fails_has_the_error_of_its_record() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        batch = producer.create_batch()
        for number in range(3):
            batch.append(key=None, value=b"%d" % number, timestamp=None)
        cluster.fail_produce(("t", 0), Code.INVALID_RECORD)
        future = await producer.send_batch(batch, "t", partition=0)
        with pytest.raises(errors.KafkaError) as caught:
            await future
    assert caught.value.code is not None
    assert caught.value.code.number == Code.INVALID_RECORD


@in_virtual_time
async def test_a_batch_whose_later_record_is_refused_reports_it() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, max_request_size=1_000, max_batch_size=5_000) as producer:
        batch = producer.create_batch()
        batch.append(key=None, value=b"small", timestamp=None)
        batch.append(key=None, value=b"x" * 2_000, timestamp=None)
        future = await producer.send_batch(batch, "t", partition=0)
        with pytest.raises(theirs.MessageSizeTooLargeError):
            await future
        first = producer.create_batch()
        first.append(key=None, value=b"x" * 2_000, timestamp=None)
        with pytest.raises(theirs.MessageSizeTooLargeError):
            await producer.send_batch(first, "t", partition=0)
    assert cluster.values("t", 0) == [b"small"]


# -- transactions ------------------------------------------------------------------------------


@in_virtual_time
async def test_transactions_commit_and_abort() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, transactional_id="x") as producer:
        async with producer.transaction():
            await producer.send_and_wait("t", b"committed")
        with pytest.raises(LookupError, match="mine"):  # noqa: PT012
            async with producer.transaction():
                await producer.send_and_wait("t", b"aborted")
                raise LookupError("mine")
        await producer.begin_transaction()
        await producer.send("t", b"again")
        await producer.commit_transaction()
        await producer.begin_transaction()
        await producer.abort_transaction()
    assert cluster.committed_values("t", 0) == [b"committed", b"again"]


@in_virtual_time
async def test_calls_outside_a_transaction_are_illegal() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, transactional_id="x") as producer:
        with pytest.raises(theirs.IllegalOperation):
            await producer.send("t", b"v")
        with pytest.raises(theirs.IllegalOperation, match="Not in the middle of a transaction"):
            await producer.send_offsets_to_transaction({}, "group")
        async with producer.transaction():
            with pytest.raises(theirs.IllegalOperation):
                await producer.begin_transaction()
            for group in (None, "", 3):
                with pytest.raises(ValueError, match="group_id must be the name"):
                    await producer.send_offsets_to_transaction({}, group)  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="offsets must be a dict by TopicPartition"):
                await producer.send_offsets_to_transaction(None, "group")  # type: ignore[arg-type]
    async with make(cluster) as plain:
        for call in (plain.begin_transaction, plain.commit_transaction, plain.abort_transaction):
            with pytest.raises(theirs.IllegalOperation, match="transactional_id"):
                await call()


@in_virtual_time
async def test_offsets_are_committed_with_the_transaction() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, transactional_id="x") as producer, producer.transaction():
        await producer.send_and_wait("t", b"v")
        await producer.send_offsets_to_transaction(
            {
                TopicPartition("in", 0): 5,
                TopicPartition("in", 1): OffsetAndMetadata(6, "m"),
                TopicPartition("in", 2): (7, "n"),
            },
            "group",
        )
    offsets = cluster.transactions.committed_offsets["group"]
    assert offsets == {("in", 0): 5, ("in", 1): 6, ("in", 2): 7}


@in_virtual_time
async def test_errors_of_transactions_have_both_classes() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, transactional_id="x") as producer:
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(theirs.IllegalOperation) as caught:
                await call()
            assert isinstance(caught.value, errors.TransactionError)
        cluster.fail(Api.TXN_OFFSET_COMMIT, Code.GROUP_AUTHORIZATION_FAILED)
        await producer.begin_transaction()
        with pytest.raises(theirs.GroupAuthorizationFailedError) as refused:
            await producer.send_offsets_to_transaction({TopicPartition("in", 0): 5}, "group")
        assert isinstance(refused.value, errors.AbortableTransactionError)
        await producer.abort_transaction()


@in_virtual_time
async def test_a_newer_producer_fences_the_older() -> None:
    cluster = FakeCluster(default_partitions=1)
    old = make(cluster, transactional_id="x")
    await old.start()
    async with make(cluster, transactional_id="x") as new:
        async with new.transaction():
            await new.send_and_wait("t", b"new")
        with pytest.raises(theirs.ProducerFenced):
            async with old.transaction():
                await old.send_and_wait("t", b"old")
    await old.stop()
    assert cluster.committed_values("t", 0) == [b"new"]


@in_virtual_time
async def test_a_cancelled_commit_continues() -> None:
    cluster = FakeCluster(default_partitions=1, marker_s=0.5)
    async with make(cluster, transactional_id="x") as producer:
        await producer.begin_transaction()
        await producer.send("t", b"v")
        task = asyncio.ensure_future(producer.commit_transaction())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await producer.commit_transaction()
        await asyncio.sleep(1)
    assert cluster.committed_values("t", 0) == [b"v"]


# -- arguments and installation ------------------------------------------------------------------


def test_differences_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    compat._reported.clear()
    with caplog.at_level(logging.WARNING, "aiokprod.compat"):
        AIOKafkaProducer()._closed = True
        AIOKafkaProducer()._closed = True
        AIOKafkaProducer(defaults="aiokafka")._closed = True
    (record,) = caplog.records
    text = record.getMessage()
    assert 'acks="all" (aiokafka: 1)' in text
    assert "max_batch_size=16384" in text
    assert 'defaults="aiokafka"' in text


@pytest.mark.parametrize("name", ["key_serializer", "value_serializer", "partitioner"])
def test_hooks_must_be_callable(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be a callable, not int"):
        AIOKafkaProducer(**{name: 3})  # type: ignore[arg-type]


def test_unknown_arguments_are_rejected() -> None:
    with pytest.raises(ConfigError, match="max_batch_sise"):
        AIOKafkaProducer(max_batch_sise=3)


@pytest.mark.parametrize("argument", ["loop", "api_version"])
def test_deprecated_arguments_warn(argument: str) -> None:
    loop = asyncio.new_event_loop()
    given: Any = {"loop": loop, "api_version": "auto"}[argument]
    with pytest.warns(DeprecationWarning, match=argument):
        producer = AIOKafkaProducer(**{argument: given})
    producer._closed = True
    loop.close()


def test_dropping_an_open_producer_warns_and_tells_the_loop() -> None:
    told: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: told.append(context["message"])
        )
        cluster = FakeCluster()
        producer = make(cluster)
        await producer.start()
        inner = producer.producer
        dropped = weakref.ref(producer)
        with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaProducer"):  # noqa: PT031
            del producer
            gc.collect()
        assert dropped() is None
        await inner.close(0)

    asyncio.run(main())
    assert told == ["Unclosed AIOKafkaProducer"]


def test_install_replaces_the_class_and_uninstall_restores_it() -> None:
    original = aiokafka.AIOKafkaProducer
    early = types.ModuleType("early_importer")
    early.AIOKafkaProducer = original  # type: ignore[attr-defined]
    sys.modules["early_importer"] = early
    sys.modules["not_to_import"] = None  # type: ignore[assignment]
    try:
        with pytest.warns(RuntimeWarning, match="early_importer"):
            compat.install()
        with pytest.warns(RuntimeWarning, match="early_importer"):
            compat.install()  # a second time
        assert aiokafka.AIOKafkaProducer is AIOKafkaProducer
        assert aiokafka.producer.AIOKafkaProducer is AIOKafkaProducer
    finally:
        compat.uninstall()
        del sys.modules["early_importer"], sys.modules["not_to_import"]
    assert aiokafka.AIOKafkaProducer is original
    assert aiokafka.producer.AIOKafkaProducer is original


def test_install_without_aiokafka_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka.producer.producer", None)
    with pytest.raises(ConfigError, match="aiokafka, which is not installed"):
        compat.install()


def test_dropping_an_open_producer_of_a_closed_loop_only_warns() -> None:
    async def main() -> AIOKafkaProducer:
        producer = make(FakeCluster())
        producer._loop = asyncio.get_running_loop()
        return producer

    producer = asyncio.run(main())
    with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaProducer"):  # noqa: PT031
        del producer
        gc.collect()


def test_the_classes_without_aiokafka_are_those_of_aiokafka(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka.structs", None)
    spec = importlib.util.find_spec("aiokprod.compat.aiokafka")
    assert spec is not None
    assert spec.loader is not None
    alone: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    for ours, original in (
        (alone.TopicPartition, TopicPartition),
        (alone.RecordMetadata, RecordMetadata),
        (alone.OffsetAndMetadata, OffsetAndMetadata),
    ):
        assert ours is not original
        values = range(len(original._fields))
        assert ours(*values)._asdict() == original(*values)._asdict()
    assert alone.OffsetAndMetadata(3) == (3, "")


def test_repr_names_the_client_and_no_secret() -> None:
    producer = AIOKafkaProducer(
        client_id="mine",
        security_protocol="SASL_PLAINTEXT",
        sasl_plain_username="u",
        sasl_plain_password="hunter2",
    )
    assert repr(producer) == "<AIOKafkaProducer of aiokprod mine open>"
    producer._closed = True
    assert "closed" in repr(producer)
