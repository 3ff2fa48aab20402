"""`AIOProducer` of `aiokprod.compat.confluent` with a FakeCluster, in virtual time.

The module has tests for the issues #2154, #2276 and #2320 of confluent-kafka-python.
"""

from __future__ import annotations

import asyncio
import pickle
import zlib
from typing import Any

import confluent_kafka
import pytest

from aiokprod import errors
from aiokprod._compat import confluent_errors
from aiokprod._compat.confluent_errors import as_theirs, their_error
from aiokprod._consumer_groups import GroupMetadata
from aiokprod.compat.confluent import AIOProducer, ProducedMessage
from aiokprod.errors import Code, ConfigError, Outcome
from aiokprod.testing.fake_cluster import FakeCluster
from tests.virtual_time import in_virtual_time


def make(cluster: FakeCluster, conf: dict[str, Any] | None = None, **arguments: Any) -> AIOProducer:
    return AIOProducer(
        {"bootstrap.servers": cluster.bootstrap_servers, **(conf or {})},
        environment=cluster.environment(),
        **arguments,
    )


@pytest.mark.parametrize(
    "arguments", [{}, {"batch_size": 1, "buffer_timeout": 0.0}], ids=["default", "no timer"]
)
@in_virtual_time
async def test_report_2154_a_future_needs_no_flush(arguments: dict[str, Any]) -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, **arguments) as producer:
        started = asyncio.get_running_loop().time()
        message = await (await producer.produce("t", value=b"message"))
        # The buffer timeout of confluent-kafka is 1 s. Without that timeout, its future was never
        # done.
        assert asyncio.get_running_loop().time() - started < 0.5
        assert (message.topic(), message.partition(), message.offset()) == ("t", 0, 0)
        assert (message.key(), message.value(), len(message)) == (None, b"message", 7)
        assert 0 < message.latency() < 0.5
    assert [record.value for record in cluster.log("t", 0)] == [b"message"]


@in_virtual_time
async def test_report_2276_1800_records_in_the_order_of_the_calls_without_flush() -> None:
    cluster = FakeCluster(default_partitions=1)
    asyncio.get_running_loop().set_debug(False)  # debug mode takes most of the time of 1800 tasks
    async with make(cluster, {"linger.ms": 30, "batch.num.messages": 2000}) as producer:
        started = asyncio.get_running_loop().time()
        futures = [await producer.produce("t", f"v{n}", key=f"k{n}") for n in range(1800)]
        messages = await asyncio.gather(*futures)
        assert asyncio.get_running_loop().time() - started < 1
        assert [message.offset() for message in messages] == list(range(1800))
        tasks = [asyncio.create_task(producer.produce("u", f"v{n}")) for n in range(1800)]
        await asyncio.gather(*[await task for task in tasks])
    for topic in ("t", "u"):
        values = [record.value for record in cluster.log(topic, 0)]
        assert values == [f"v{n}".encode() for n in range(1800)]


@pytest.mark.parametrize(
    "headers", [{"id": b"1", "type": "json", "none": None},
                [("id", b"1"), ("type", "json"), ("none", None)]]
)  # fmt: skip
@in_virtual_time
async def test_report_2320_headers_and_timestamps_reach_the_log(headers: Any) -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        future = await producer.produce("t", b"v", headers=headers, timestamp=1_700_000_000_000)
        message = await future
    (record,) = cluster.log("t", 0)
    expected = [("id", b"1"), ("type", b"json"), ("none", None)]
    assert list(record.headers) == expected
    assert message.headers() == expected
    assert message.timestamp() == (confluent_kafka.TIMESTAMP_CREATE_TIME, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"headers": [("a", 1)]}, "value of a header must be bytes, str or None, not int"),
        ({"headers": ["a"]}, "headers must be a dict"),
        ({"value": 7}, "value must be bytes"),
        ({"key": []}, "key must be bytes"),
        ({"on_delivery": 7}, "on_delivery must be a plain callable"),
        ({"on_delivery": asyncio.sleep}, "on_delivery must be a plain callable"),
    ],
)
@in_virtual_time
async def test_wrong_types_raise_and_send_nothing(arguments: Any, text: str) -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        with pytest.raises(TypeError, match=text):
            await producer.produce("t", **arguments)
        assert len(producer) == 0
        await (await producer.produce("t", b"after"))
    assert [record.value for record in cluster.log("t", 0)] == [b"after"]


@in_virtual_time
async def test_a_failed_record_is_a_kafka_exception_with_an_outcome() -> None:
    cluster = FakeCluster(default_partitions=1)
    seen: list[tuple[Any, ProducedMessage]] = []
    async with make(cluster) as producer:
        await (await producer.produce("t", b"first"))
        cluster.fail_produce(("t", 0), Code.TOPIC_AUTHORIZATION_FAILED)
        future = await producer.produce(
            "t", b"secret", on_delivery=lambda error, message: seen.append((error, message))
        )
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            await future
    error: Any = raised.value
    assert isinstance(error, errors.AuthorizationError)
    assert error.outcome is Outcome.REJECTED
    assert error.args[0].code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert "secret" not in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, confluent_kafka.KafkaException)
    assert (str(again), again.outcome) == (str(error), Outcome.REJECTED)
    ((reason, message),) = seen
    assert reason.code() == confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert message.error() is reason
    assert (message.partition(), message.offset(), message.timestamp()) == (None, None, (0, 0))


@in_virtual_time
async def test_flush_counts_what_is_left_and_len_what_is_pending() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        await (await producer.produce("t", b"0"))
        for broker in (1, 2, 3):
            cluster.pause(broker)
        futures = [await producer.produce("t", b"v") for _ in range(3)]
        assert len(producer) == 3
        assert await producer.flush(0.1) == 3
        for broker in (1, 2, 3):
            cluster.resume(broker)
        assert await producer.flush() == 0
        assert len(producer) == 0
        assert all(future.done() for future in futures)
        assert await producer.poll(0) == 0


@in_virtual_time
async def test_poll_waits_for_an_outcome() -> None:
    """Programs for confluent-kafka poll in a loop. Such a task must not keep the event loop
    busy."""
    cluster = FakeCluster(default_partitions=1)
    loop = asyncio.get_running_loop()
    async with make(cluster) as producer:
        await (await producer.produce("t", b"0"))
        assert await producer.poll(5) == 1  # the outcome of the first record
        began = loop.time()
        assert await producer.poll(2) == 0
        assert loop.time() - began == pytest.approx(2)
        assert await producer.poll(-1) == 0  # no record is pending
        assert loop.time() - began == pytest.approx(2)
        for broker in (1, 2, 3):
            cluster.pause(broker)
        polling = asyncio.create_task(producer.poll(-1))
        futures = [await producer.produce("t", b"v") for _ in range(3)]
        waiting = asyncio.create_task(producer.poll(-1))
        await asyncio.sleep(1)
        assert not waiting.done()
        for broker in (1, 2, 3):
            cluster.resume(broker)
        await asyncio.gather(*futures)
        assert await polling + await waiting + await producer.poll() == 3
        assert await producer.poll() == 0


@in_virtual_time
async def test_an_idle_producer_is_true_although_its_length_is_0() -> None:
    async with make(FakeCluster()) as producer:
        assert len(producer) == 0
        assert producer


@in_virtual_time
async def test_calls_of_a_closed_producer_fail_and_leave_nothing_pending() -> None:
    producer = make(FakeCluster())
    await producer.close()
    for call in (producer.produce("t", b"v"), producer.flush(), producer.list_topics("t")):
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            await call
        assert raised.value.args[0].code() == confluent_kafka.KafkaError._DESTROY
    assert len(producer) == 0


@in_virtual_time
async def test_a_cancelled_produce_leaves_nothing_pending() -> None:
    cluster = FakeCluster(default_partitions=1)
    for broker in (1, 2, 3):
        cluster.pause(broker)
    producer = make(cluster)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await producer.produce("t", b"v")  # waits for metadata
    assert len(producer) == 0
    await producer.producer.close(0)
    assert cluster.topics == {}


@in_virtual_time
async def test_a_cancelled_future_does_not_stop_its_record() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster) as producer:
        (await producer.produce("t", b"v")).cancel()
        await producer.flush()
    assert len(cluster.log("t", 0)) == 1


@in_virtual_time
async def test_keys_have_librdkafkas_partitions_by_default() -> None:
    cluster = FakeCluster(default_partitions=7)
    async with make(cluster) as producer:
        for n in range(20):
            key = f"key-{n}"
            message = await (await producer.produce("t", b"v", key=key))
            assert message.partition() == zlib.crc32(key.encode()) % 7
            assert (await (await producer.produce("t", b"v", key, 3))).partition() == 3


@in_virtual_time
async def test_transactions() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, {"transactional.id": "tx"}) as producer:
        await producer.init_transactions(10)
        await producer.begin_transaction()
        kept = await producer.produce("t", b"kept")
        await producer.commit_transaction()
        assert (await kept).offset() == 0
        await producer.begin_transaction()
        await producer.produce("t", b"dropped")
        await producer.flush()
        await producer.abort_transaction()
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            await producer.commit_transaction()
        assert raised.value.args[0].code() == confluent_kafka.KafkaError._STATE


@in_virtual_time
async def test_a_timeout_of_a_commit_keeps_its_outcome() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, {"transactional.id": "tx"}) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await (await producer.produce("t", b"v"))
        for broker in (1, 2, 3):
            cluster.pause(broker)
        with pytest.raises(confluent_kafka.KafkaException, match="commit_transaction") as raised:
            await producer.commit_transaction(0.5)
        error: Any = raised.value
        assert error.outcome is Outcome.UNKNOWN
        assert error.args[0].code() == confluent_kafka.KafkaError._TIMED_OUT
        for broker in (1, 2, 3):
            cluster.resume(broker)
        await producer.commit_transaction()
    assert cluster.committed_values("t", 0) == [b"v"]


@in_virtual_time
async def test_list_topics_says_that_a_topic_does_not_exist() -> None:
    async with make(FakeCluster(auto_create=False), {"max.block.ms": 500}) as producer:
        with pytest.raises(confluent_kafka.KafkaException, match="topic 'absent'") as raised:
            await producer.list_topics("absent")
    assert raised.value.args[0].code() == confluent_kafka.KafkaError._UNKNOWN_TOPIC


@in_virtual_time
async def test_offsets_are_committed_with_the_transaction() -> None:
    cluster = FakeCluster(default_partitions=1)
    async with make(cluster, {"transactional.id": "tx"}) as producer:
        await producer.init_transactions()
        await producer.begin_transaction()
        await producer.produce("t", b"v")
        await producer.send_offsets_to_transaction(
            [confluent_kafka.TopicPartition("in", 0, 5)], GroupMetadata("group"), 10
        )
        await producer.commit_transaction()
    assert cluster.transactions.committed_offsets["group"] == {("in", 0): 5}


@in_virtual_time
async def test_cluster_id_waits_for_metadata() -> None:
    cluster = FakeCluster()
    async with make(cluster) as producer:
        assert await producer.cluster_id(10) == cluster.cluster_id
    for broker in (1, 2, 3):
        cluster.pause(broker)
    producer = make(cluster)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        await producer.cluster_id(0.5)
    assert raised.value.args[0].code() == confluent_kafka.KafkaError._TIMED_OUT
    await producer.producer.close(0)


@in_virtual_time
async def test_list_topics_and_cluster_id() -> None:
    cluster = FakeCluster(default_partitions=2)
    async with make(cluster) as producer:
        found = await producer.list_topics("t", timeout=5)
        assert sorted(found.topics["t"].partitions) == [0, 1]
        assert found.topics["t"].partitions[0].leader in found.brokers
        assert sorted(found.brokers) == [1, 2, 3]
        assert await producer.cluster_id() == found.cluster_id
        with pytest.raises(ConfigError, match="without a topic"):
            await producer.list_topics()
        with pytest.raises(ConfigError, match="purge"):
            await producer.purge()


@in_virtual_time
async def test_a_timeout_of_list_topics_is_a_kafka_exception() -> None:
    cluster = FakeCluster(default_partitions=1)
    for broker in (1, 2, 3):
        cluster.pause(broker)
    producer = make(cluster)
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        await producer.list_topics("t", timeout=0.5)
    assert raised.value.args[0].code() == confluent_kafka.KafkaError._TIMED_OUT
    await producer.producer.close(0)


@in_virtual_time
async def test_credentials_can_be_replaced_only_where_there_are_some() -> None:
    cluster = FakeCluster()
    async with make(cluster) as producer:
        with pytest.raises(ConfigError, match=r"sasl\.username"):
            await producer.set_sasl_credentials("u", "hunter2")
    async with AIOProducer(
        {"bootstrap.servers": "b:1", "security.protocol": "sasl_plaintext",
         "sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": "old"}
    ) as producer:  # fmt: skip
        await producer.set_sasl_credentials("new", "hunter2")
        assert producer._credentials is not None
        assert producer._credentials.pair[0] == "new"
        assert "hunter2" not in repr(producer)


@in_virtual_time
async def test_init_transactions_needs_a_transactional_id() -> None:
    async with make(FakeCluster()) as producer:
        with pytest.raises(ConfigError, match=r"transactional\.id") as raised:
            await producer.init_transactions()
        assert isinstance(raised.value, confluent_kafka.KafkaException)


@in_virtual_time
async def test_settings_without_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with make(FakeCluster(), {"batch.num.messages": 10, "debug": "all"}):
        pass
    (record,) = [r for r in caplog.records if r.name == "aiokprod.compat"]
    assert "batch.num.messages: batches are limited by bytes" in record.getMessage()
    assert "debug: " in record.getMessage()


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (errors.RecordTooLarge("x"), "MSG_SIZE_TOO_LARGE"),
        (errors.MetadataTimeout("x"), "_UNKNOWN_TOPIC"),
        (errors.BufferFull("x"), "_QUEUE_FULL"),
        (errors.DeliveryTimeout("x"), "_MSG_TIMED_OUT"),
        (errors.KafkaTimeout("x"), "_TIMED_OUT"),
        (errors.AuthenticationError("x"), "_AUTHENTICATION"),
        (errors.DialError("x"), "_TRANSPORT"),
        (errors.ProducerFenced("x"), "_FENCED"),
        (errors.ProducerFailed("x"), "_FATAL"),
        (errors.TransactionError("x"), "_STATE"),
        (errors.ConfigError("x"), "_FAIL"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_of_the_client_have_librdkafkas_codes(error: errors.KafkaError, name: str) -> None:
    made = their_error(error)
    assert made.code() == getattr(confluent_kafka.KafkaError, name)
    assert made.str() == "x"
    assert made.fatal() is isinstance(error, errors.FatalTransactionError | errors.ProducerFailed)


def test_an_error_is_converted_once() -> None:
    error = as_theirs(errors.KafkaTimeout("x"))
    assert isinstance(error, confluent_kafka.KafkaException)
    assert as_theirs(error) is error


def test_without_confluent_kafka_errors_are_aiokprods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_errors, "theirs", None)
    error = errors.KafkaTimeout("x")
    assert as_theirs(error) is error
    assert their_error(error) is error
