"""One suite for both `RecordingProducer` and `Producer` with a `FakeCluster`, and tests of
`RecordingProducer` alone."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    AuthorizationError,
    ConfigError,
    Delivery,
    Outcome,
    Producer,
    ProducerClosed,
    ProducerRecord,
    RecordTooLarge,
    SerializationError,
    StringSerializer,
    TransactionError,
    UnknownTopic,
)
from aiokprod.testing import Api, Code, FakeCluster, RecordingProducer, expecting, run

Body = Callable[[Producer[Any, Any], FakeCluster], Awaitable[None]]


def _recording(settings: dict[str, Any]) -> tuple[Producer[Any, Any], FakeCluster]:
    producer: RecordingProducer[Any, Any] = RecordingProducer(**settings)
    return producer, producer.cluster


def _real(settings: dict[str, Any]) -> tuple[Producer[Any, Any], FakeCluster]:
    cluster = FakeCluster(1, default_partitions=1, default_replication=1)
    producer: Producer[Any, Any] = Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), **settings
    )
    return producer, cluster


@pytest.fixture(params=[_recording, _real], ids=["recording", "real"])
def make(request: pytest.FixtureRequest) -> Callable[..., None]:
    def execute(body: Body, **settings: Any) -> None:
        async def main() -> None:
            producer, cluster = request.param(settings)
            async with producer:
                await body(producer, cluster)
            assert cluster.violations == []

        run(main, debug=False)

    return execute


def test_records_have_offsets_and_are_stored(make: Callable[..., None]) -> None:
    async def body(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        expected = expecting(cluster)
        first = await producer.send("t", b"a", key=b"k", headers=[("h", b"1")], timestamp_ms=5)
        delivery = await producer.submit("t", None)
        assert (first.topic, first.partition, first.offset, first.timestamp_ms) == ("t", 0, 0, 5)
        assert (await delivery).offset == 1
        result = await producer.send_many("t", [b"b", b"c"])
        assert result.ok
        expected.record("t", value=b"a", key=b"k", headers={"h": b"1"}, timestamp_ms=5, partition=0)
        expected.values("t", [b"a", None, b"b", b"c"], ordered=True)

    make(body)


@pytest.mark.parametrize(
    ("arguments", "keywords", "error"),
    [
        ((b"t", b"v"), {}, ConfigError),
        (("", b"v"), {}, ConfigError),
        (("t t", b"v"), {}, ConfigError),
        (("t", "v"), {}, SerializationError),
        (("t", {"a": 1}), {}, SerializationError),
        (("t", b"v"), {"key": 5}, SerializationError),
        (("t", b"v"), {"partition": -1}, ConfigError),
        (("t", b"v"), {"partition": 7}, UnknownTopic),
        (("t", b"v"), {"timestamp_ms": 1.5}, ConfigError),
        (("t", b"v"), {"headers": [("a", "b")]}, ConfigError),
        (("t", b"v"), {"timeout": 0}, ConfigError),
        (("t", b"v"), {"timeout": "5"}, ConfigError),
        (("t", bytes(2_000_000)), {}, RecordTooLarge),
        (("t", b"v", b"k"), {}, TypeError),
        (("t", b"v"), {"on_delivery": print}, TypeError),
    ],
)
def test_wrong_arguments_raise_the_same(
    make: Callable[..., None], arguments: Any, keywords: Any, error: type[Exception]
) -> None:
    async def body(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        with pytest.raises(error) as caught:
            await producer.send(*arguments, **keywords)
        assert getattr(caught.value, "outcome", Outcome.NOT_SENT) is Outcome.NOT_SENT
        assert cluster.all_values("t") == [] if "t" in cluster.topics else True

    make(body)


@pytest.mark.parametrize(
    "settings", [{"linger_ms": "5"}, {"acks": 2}, {"compresion_type": "lz4"}, {"loop": None}]
)
def test_wrong_settings_raise_the_same(settings: dict[str, Any]) -> None:
    texts: list[str] = []
    for build in (_recording, _real):
        with pytest.raises(ConfigError) as caught:
            build(dict(settings))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]


def test_serializers_are_called(make: Callable[..., None]) -> None:
    async def body(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.send("t", {"a": 1}, key="k")
        expecting(cluster)  # before the next record
        assert [(r.key, r.value) for r in cluster.log("t", 0)] == [(b"k", b'{"a": 1}')]

    make(
        body,
        key_serializer=StringSerializer(),
        value_serializer=lambda value: json.dumps(value).encode(),
    )


def test_a_code_of_a_broker_fails_the_record(make: Callable[..., None]) -> None:
    async def body(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.fail(Api.PRODUCE, Code.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(AuthorizationError) as caught:
            await producer.send("t", b"v")
        assert caught.value.outcome is Outcome.REJECTED
        assert (await producer.send("t", b"w")).offset == 0

    make(body)


def test_transactions_commit_and_abort(make: Callable[..., None]) -> None:
    async def body(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        committed = expecting(cluster, committed=True)
        with pytest.raises(TransactionError):
            await producer.send("t", b"outside")
        async with producer.transaction():
            await producer.send("t", b"kept")
        await producer.begin_transaction()
        await producer.send("t", b"dropped")
        await producer.abort_transaction()
        committed.values("t", [b"kept"])
        cluster.fail(Api.PRODUCE, Code.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises((AbortableTransactionError, AuthorizationError)):
            async with producer.transaction():
                await producer.send("t", b"refused")
        committed.values("t", [b"kept"])

    make(body, transactional_id="x")


def test_calls_after_close_raise_the_same(make: Callable[..., None]) -> None:
    async def body(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        report = await producer.close()
        assert report.undelivered == ()
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"v")

    make(body)


# -- RecordingProducer alone ---------------------------------------------------------------------


def test_history_has_the_objects_of_the_caller_and_clear_forgets_them() -> None:
    async def main() -> None:
        async with RecordingProducer[str, Any](
            key_serializer=StringSerializer(), value_serializer=lambda value: repr(value).encode()
        ) as producer:
            await producer.send("t", {"a": 1}, key="k")
            assert producer.history == [ProducerRecord("t", {"a": 1}, "k")]
            producer.clear()
            assert producer.history == []
            await producer.send("u", 2)
            assert [record.topic for record in producer.history] == ["u"]
            with pytest.raises(ConfigError, match="auto_complete=False"):
                producer.complete_next()

    run(main, debug=False)


def test_records_wait_for_the_test_and_are_completed_in_order() -> None:
    async def main() -> None:
        async with RecordingProducer[bytes, bytes](auto_complete=False) as producer:
            assert not producer.complete_next()
            topics = ["t", "u", "t", "v", "t", "t", "u", "t"]
            deliveries: list[Delivery] = [
                await producer.submit(topic, b"%d" % number) for number, topic in enumerate(topics)
            ]
            for number, delivery in enumerate(deliveries):
                assert producer.pending == len(topics) - number
                assert not any(later.done() for later in deliveries[number:])
                if number == 3:
                    assert producer.fail_next(Code.TOPIC_AUTHORIZATION_FAILED)
                    with pytest.raises(AuthorizationError):
                        await delivery
                else:
                    assert producer.complete_next()
                    assert (await delivery).topic == topics[number]
            assert not producer.complete_next()
            assert producer.cluster.all_values("t") == [b"0", b"2", b"4", b"5", b"7"]

    run(main, debug=False)


def test_a_retriable_code_makes_the_record_pending_again() -> None:
    async def main() -> None:
        async with RecordingProducer[bytes, bytes](auto_complete=False) as producer:
            delivery = await producer.submit("t", b"v")
            assert producer.fail_next(Code.NOT_LEADER_OR_FOLLOWER)
            assert producer.pending == 1
            assert producer.complete_next()
            assert (await delivery).offset == 0
            with pytest.raises(ConfigError, match="0 is not an error"):
                producer.fail_next(0)

    run(main, debug=False)


def test_refused_records_are_not_pending() -> None:
    async def main() -> None:
        async with RecordingProducer[bytes, Any](auto_complete=False) as producer:
            with pytest.raises(SerializationError):
                await producer.submit("t", "text")
            assert producer.pending == 0
            delivery = await producer.submit("t", b"v")
            assert producer.pending == 1
            assert producer.complete_next()
            assert producer.pending == 0
            await delivery
            assert producer.pending == 0

    run(main, debug=False)


def test_flush_completes_what_waits_and_the_end_of_the_block_does_not_wait() -> None:
    async def main() -> None:
        async with RecordingProducer[bytes, bytes](auto_complete=False) as producer:
            deliveries = [await producer.submit("t", b"v") for _ in range(7)]
            await producer.flush()
            assert [(await delivery).offset for delivery in deliveries] == list(range(7))
            last = await producer.submit("t", b"w")
        with pytest.raises(ProducerClosed):
            await last

    run(main, debug=False)


def test_positional_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="as keyword arguments"):
        RecordingProducer("localhost:9092")
