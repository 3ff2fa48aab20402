"""A FastStream broker that publishes through aiokprod, with a FakeCluster over TCP."""

from __future__ import annotations

import asyncio
import functools
import gc
import uuid
from collections import OrderedDict, UserDict
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

import pytest
from aiokafka.errors import IllegalOperation, ProducerClosed, UnknownTopicOrPartitionError
from aiokafka.structs import RecordMetadata
from faststream import BaseMiddleware
from faststream.exceptions import IncorrectState
from faststream.kafka import KafkaBroker, KafkaResponse, TestKafkaBroker
from faststream.kafka.exceptions import BatchBufferOverflowException

import aiokprod.compat.faststream as compat
from aiokprod.compat.aiokafka import AIOKafkaProducer
from aiokprod.compat.faststream import BatchMetadata, transaction, use_aiokprod
from aiokprod.errors import AbortableTransactionError, Code, ConfigError, KafkaError, KafkaTimeout
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Gate, Reaction
from aiokprod.testing.fake_cluster.tcp import serve_tcp
from tests.hang import until

Scenario = Callable[[KafkaBroker, FakeCluster], Coroutine[Any, Any, None]]


def connected(scenario: Scenario) -> Callable[[], None]:
    """Run a test with a connected broker whose topics have four partitions."""

    async def main() -> None:
        cluster = FakeCluster(default_partitions=4)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(KafkaBroker(servers.split(","), logger=None))
            await broker.connect()
            try:
                await scenario(broker, cluster)
            finally:
                await broker.stop()

    @functools.wraps(scenario)
    def test() -> None:
        asyncio.run(main())

    del test.__wrapped__
    return test


def stored(cluster: FakeCluster) -> list[bytes | None]:
    return [record.value for log in cluster.logs("t") for record in log]


@connected
async def test_publish_sends_through_aiokprod(broker: KafkaBroker, cluster: FakeCluster) -> None:
    metadata = await broker.publish({"a": 1}, "t", key=b"k", headers={"h": "x"})
    assert isinstance(metadata, RecordMetadata)
    assert metadata.offset == 0
    assert isinstance(broker.config.producer._producer.producer, AIOKafkaProducer)  # type: ignore[attr-defined]
    (record,) = cluster.log("t", metadata.partition)
    assert (record.key, record.value) == (b"k", b'{"a":1}')
    headers = dict(record.headers)
    assert (headers["content-type"], headers["h"]) == (b"application/json", b"x")


@connected
async def test_publish_sends_tombstones_raw_bytes_and_text(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    for body in (None, b"raw", "text"):
        await broker.publish(body, "t", key=b"k")
    values, types = zip(
        *((r.value, dict(r.headers)["content-type"]) for log in cluster.logs("t") for r in log),
        strict=True,
    )
    assert values == (None, b"raw", b"text")
    assert types == (b"", b"", b"text/plain")


@connected
async def test_messages_of_a_batch_have_the_keys_and_headers_of_faststream(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    batches: list[list[Any]] = [
        [KafkaResponse("a", key=b"1"), KafkaResponse({"b": 2}, key=b"2"), b"c"],
        [b"a", b"b"],
    ]
    for bodies in batches:
        await broker.publish_batch(*bodies, topic="t", headers={"h": "x"}, partition=0)
    found = [
        (r.key, r.value, dict(r.headers).get("content-type"), dict(r.headers)["h"])
        for r in cluster.log("t", 0)
    ]
    assert found == [
        (b"1", b"a", b"text/plain", b"x"),
        (b"2", b'{"b":2}', b"application/json", b"x"),
        (None, b"c", None, b"x"),
        (None, b"a", None, b"x"),
        (None, b"b", None, b"x"),
    ]


@connected
async def test_a_cancelled_publish_ends_only_the_wait(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    await broker.publish("first", "t", partition=0)
    gate = Gate()
    release = cluster.control(0, Reaction(gate=gate))
    task = asyncio.create_task(broker.publish("held", "t", partition=0))
    await until(lambda: cluster.count(0) == 2)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    release()
    gate.let_through(Reaction())
    await broker.publish("last", "t", partition=0)
    assert stored(cluster) == [b"first", b"held", b"last"]


@connected
async def test_correlation_ids_are_random_uuids(broker: KafkaBroker, cluster: FakeCluster) -> None:
    for _ in range(20):
        await broker.publish(b"x", "t", partition=0)
    ids = [dict(record.headers)["correlation_id"] or b"" for record in cluster.log("t", 0)]
    assert len(set(ids)) == 20
    assert all(str(uuid.UUID(one.decode())) == one.decode() for one in ids)
    assert {uuid.UUID(one.decode()).version for one in ids} == {4}
    assert {uuid.UUID(one.decode()).variant for one in ids} == {uuid.RFC_4122}


def test_an_id_generator_of_the_application_is_kept() -> None:
    broker = use_aiokprod(KafkaBroker("localhost:9092", id_generator=lambda: "own"))
    assert broker.config.id_generator() == "own"


class Reversed:
    """A codec of the application. It writes text backwards."""

    async def decode(self, msg: Any) -> Any:
        return msg.body

    async def encode(self, msg: Any, serializer: Any = None) -> tuple[bytes, str | None]:
        return str(msg)[::-1].encode(), "text/reversed"


class ReversedBatches(Reversed):
    """A codec that encodes a batch in one call."""

    async def encode_batch(
        self, msgs: Any, serializer: Any = None
    ) -> list[tuple[bytes, str | None]]:
        return [await self.encode(msg, serializer) for msg in msgs]

    async def decode_batch(self, msg: Any) -> list[Any]:
        return list(msg.body)


@pytest.mark.parametrize("codec", [Reversed(), ReversedBatches()], ids=lambda c: type(c).__name__)
def test_a_codec_of_the_application_encodes_messages_and_batches(codec: Any) -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(KafkaBroker(servers.split(","), logger=None, codec=codec))
            await broker.connect()
            await broker.publish("one", "t")
            await broker.publish_batch("two", "three", topic="t")
            await broker.stop()
        assert stored(cluster) == [b"eno", b"owt", b"eerht"]
        types = {dict(record.headers)["content-type"] for record in cluster.log("t", 0)}
        assert types == {b"text/reversed"}

    asyncio.run(main())


class Unchanged(BaseMiddleware):
    """A middleware without an effect. With a middleware, `publish` creates FastStream's command."""


MESSAGES: list[tuple[Any, dict[str, Any]]] = [
    (b"raw", {}),
    ("text", {"key": b"k", "headers": {"h": "x", "empty": ""}}),
    ({"a": [1]}, {"timestamp_ms": 1_700_000_000_123, "partition": 0}),
    (None, {}),
    (None, {"key": b"k"}),
    ("", {"reply_to": "answers"}),
    (b"", {"headers": {"content-type": "x/y", "correlation_id": "own", "reply_to": "r"}}),
    (b"x", {"reply_to": "answers", "headers": {"reply_to": "r"}, "correlation_id": "given"}),
    (KafkaResponse("body", key=b"inner"), {"key": b"outer"}),
    (b"x", {"headers": OrderedDict(h="x")}),
    (b"x", {"headers": UserDict(h="x")}),
]


Publish: TypeAlias = Callable[[KafkaBroker], Coroutine[Any, Any, Any]]


def stored_directly_and_by_command(publish: Publish, generated: str) -> tuple[list[Any], list[Any]]:
    """Return the records that `publish` stores without a middleware, and with one.

    With a middleware, FastStream creates its command.
    """

    async def stored_with(middlewares: list[Any]) -> list[Any]:
        cluster = FakeCluster(default_partitions=1)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(
                KafkaBroker(
                    servers.split(","),
                    logger=None,
                    middlewares=middlewares,
                    id_generator=lambda: generated,
                )
            )
            await broker.connect()
            await publish(broker)
            await broker.stop()
        return [(r.key, r.value, r.headers) for r in cluster.log("t", 0)]

    return asyncio.run(stored_with([])), asyncio.run(stored_with([Unchanged]))


@pytest.mark.parametrize("generated", ["generated", ""])
@pytest.mark.parametrize(("message", "arguments"), MESSAGES)
def test_publish_writes_the_record_that_faststream_would(
    message: Any, arguments: dict[str, Any], generated: str
) -> None:
    directly, by_command = stored_directly_and_by_command(
        lambda broker: broker.publish(message, "t", **arguments), generated
    )
    assert directly == by_command
    assert len(directly) == 1


@pytest.mark.parametrize(
    "messages", [(b"a", b"", b"c"), (b"a", "text"), (KafkaResponse("a", key=b"k"), b"b"), (b"a",)]
)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"headers": {"h": "x"}, "reply_to": "answers", "partition": 0},
        {"headers": {"reply_to": "r"}, "reply_to": "answers", "correlation_id": "given"},
    ],
)
def test_publish_batch_writes_the_records_that_faststream_would(
    messages: tuple[Any, ...], arguments: dict[str, Any]
) -> None:
    directly, by_command = stored_directly_and_by_command(
        lambda broker: broker.publish_batch(*messages, topic="t", **arguments), "generated"
    )
    assert directly == by_command
    assert len(directly) == len(messages)


@connected
async def test_a_direct_publish_has_the_given_time(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    await broker.publish(b"x", "t", timestamp_ms=1_700_000_000_123, partition=0)
    await broker.publish_batch(b"y", b"z", topic="t", timestamp_ms=1_700_000_000_124, partition=0)
    times = [record.timestamp_ms for record in cluster.log("t", 0)]
    assert times == [1_700_000_000_123, 1_700_000_000_124, 1_700_000_000_124]


@pytest.mark.parametrize("own", [False, True])
def test_middlewares_and_derived_brokers_see_each_message(own: bool) -> None:
    seen = []

    class Middleware(BaseMiddleware):
        async def publish_scope(self, call_next: Any, cmd: Any) -> Any:
            seen.append(cmd.body)
            return await call_next(cmd)

    class Derived(KafkaBroker):
        async def publish(self, message: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(message)
            return await super().publish(message, *args, **kwargs)

    async def main() -> None:
        async with serve_tcp(FakeCluster(default_partitions=1)) as servers:
            kind = Derived if own else KafkaBroker
            broker = use_aiokprod(kind(servers.split(","), logger=None))
            await broker.connect()
            if not own:
                broker.add_middleware(Middleware)  # after the broker has started
            await broker.publish(b"x", "t")
            await broker.stop()

    asyncio.run(main())
    assert seen == [b"x"]


@pytest.mark.parametrize("name", ["publish", "publish_batch"])
def test_a_method_of_faststreams_broker_that_was_replaced_is_called(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests mock methods of the class, and instrumentations wrap them."""
    called = []
    original = getattr(KafkaBroker, name)

    async def wrapper(self: KafkaBroker, message: Any, *others: Any, **arguments: Any) -> Any:
        called.append(message)
        return await original(self, message, *others, **arguments)

    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(KafkaBroker(servers.split(","), logger=None))
            await broker.connect()
            monkeypatch.setattr(KafkaBroker, name, wrapper)
            await getattr(broker, name)(b"x", topic="t")
            await broker.stop()
        assert stored(cluster) == [b"x"]

    asyncio.run(main())
    assert called == [b"x"]


def test_the_test_broker_of_faststream_receives_the_messages() -> None:
    async def main() -> None:
        broker = use_aiokprod(KafkaBroker("localhost:1"))
        seen = []

        @broker.subscriber("t")
        async def receive(body: str) -> None:
            seen.append(body)

        async with TestKafkaBroker(broker):
            await broker.publish("hello", "t")
        assert seen == ["hello"]

    asyncio.run(main())


def test_publish_before_connect_raises_like_faststream() -> None:
    plain = KafkaBroker("localhost:1", logger=None)
    for broker in (plain, use_aiokprod(KafkaBroker("localhost:1", logger=None))):
        with pytest.raises(IncorrectState, match="connect broker first"):
            asyncio.run(broker.publish(b"x", "t"))


@connected
async def test_publish_without_confirmation_returns_a_future(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    future: Any = await broker.publish("x", "t", no_confirm=True)
    assert isinstance(future, asyncio.Future)
    assert (await future).offset == 0
    pending: Any = await broker.publish_batch("y", "z", topic="t", no_confirm=True)
    assert len((await pending).results) == 2


@connected
async def test_a_batch_without_confirmation_is_in_batches_when_the_call_returns(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    """As with aiokafka: later messages follow the batch. `flush` and `stop` send it even though the
    application does not keep its future."""
    for number in range(3):
        await broker.publish_batch(f"{number}a", f"{number}b", topic="t", no_confirm=True)
        await broker.publish(f"{number}c", "t", partition=0, no_confirm=True)
        gc.collect()
    await broker.config.producer.flush()  # type: ignore[attr-defined]
    assert len(stored(cluster)) == 9
    await broker.publish_batch("a", "b", topic="t", partition=3, no_confirm=True)
    await broker.publish("c", "t", partition=3, no_confirm=True)
    await broker.publish_batch("x", "y", topic="u", partition=0, no_confirm=True)  # no metadata yet
    gc.collect()
    await broker.stop()
    assert [record.value for record in cluster.log("t", 3)][-3:] == [b"a", b"b", b"c"]
    assert cluster.values("u", 0) == [b"x", b"y"]


@connected
async def test_messages_without_confirmation_have_their_outcome_if_their_future_is_not_kept(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    await broker.publish("first", "t", partition=0)
    gate = Gate()
    release = cluster.control(0, Reaction(gate=gate))
    await broker.publish_batch("a", "b", topic="t", partition=0, no_confirm=True)
    await broker.publish("c", "t", partition=0, no_confirm=True)
    waiting = broker.config.producer._unconfirmed  # type: ignore[attr-defined]
    assert len(waiting) == 1
    gc.collect()
    release()
    gate.let_through(Reaction())
    await until(lambda: not waiting)
    await broker.config.producer.flush()  # type: ignore[attr-defined]
    assert stored(cluster) == [b"first", b"a", b"b", b"c"]


@connected
async def test_a_batch_without_confirmation_that_sends_nothing_raises_at_once(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    await broker.publish("first", "t")
    for bodies in (["a"], ["a", "b"]):
        with pytest.raises(UnknownTopicOrPartitionError):
            await broker.publish_batch(*bodies, topic="t", partition=9, no_confirm=True)
    await broker.config.producer._producer.producer.producer.close()  # type: ignore[attr-defined]
    with pytest.raises(ProducerClosed):
        await broker.publish_batch("a", "b", topic="t", no_confirm=True)


@connected
async def test_a_cancelled_batch_without_confirmation_sends_nothing_more(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    for node in (1, 2, 3):
        cluster.pause(node)
    task = asyncio.create_task(broker.publish_batch("a", "b", topic="t", no_confirm=True))
    unconfirmed = broker.config.producer._unconfirmed  # type: ignore[attr-defined]
    await until(lambda: unconfirmed)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    await until(lambda: not unconfirmed)
    for node in (1, 2, 3):
        cluster.resume(node)
    await broker.publish("after", "t")
    assert stored(cluster) == [b"after"]


@connected
async def test_a_batch_without_messages_has_no_result(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    """As with aiokafka: FastStream drops a body that is None."""
    assert await broker.publish_batch(None, topic="t") is None
    nothing: Any = await broker.publish_batch(None, topic="t", no_confirm=True)
    assert await nothing is None
    assert cluster.topics == {}


@connected
async def test_a_batch_may_have_any_size_and_every_message_its_partition(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    bodies = ["x" * 300] * 3_000  # exceeds aiokafka's max_batch_size of 16 KiB
    metadata: Any = await broker.publish_batch(*bodies, topic="t")
    assert isinstance(metadata, BatchMetadata)
    assert isinstance(metadata, RecordMetadata)
    results = metadata.results
    assert results.ok
    assert (metadata.partition, metadata.offset) == (results.partitions[0], results.offsets[0])
    assert len(stored(cluster)) == 3_000


def test_stop_waits_for_batches_without_confirmation() -> None:
    """When `stop` returns, the futures of the batches are done."""

    async def main() -> None:
        cluster = FakeCluster()
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(KafkaBroker(servers.split(","), logger=None))
            await broker.connect()
            await broker.publish("first", "t")
            tasks: list[Any] = [
                await broker.publish_batch(b"a", b"b", topic="t", no_confirm=True) for _ in range(3)
            ]
            await broker.stop()
            assert all(task.done() for task in tasks)
            assert len(stored(cluster)) == 7

    asyncio.run(main())


@connected
async def test_a_failed_message_does_not_hide_the_others(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    await broker.publish("first", "t", partition=0)
    cluster.fail_produce(("t", 0), Code.INVALID_RECORD)
    with pytest.raises(KafkaError) as caught:
        await broker.publish_batch("a", "b", topic="t", partition=0)
    results = caught.value.results  # type: ignore[attr-defined]
    assert sorted(results.errors) == [0, 1]


@connected
async def test_defaults_of_faststream_count_as_not_given(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    config = broker.config.producer._producer.producer.producer._config  # type: ignore[attr-defined]
    assert (config.acks, config.batch_size, config.enable_idempotence) == ("all", 131_072, None)


def test_settings_take_precedence() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(
                KafkaBroker(servers.split(","), logger=None, linger_ms=3, acks=1),
                acks="all",
                batch_size=999,
            )
            await broker.connect()
            config = broker.config.producer._producer.producer.producer._config  # type: ignore[attr-defined]
            await broker.stop()
        assert (config.acks, config.linger_ms, config.batch_size) == ("all", 3, 999)

    asyncio.run(main())


def test_an_explicit_max_batch_size_limits_a_batch_as_in_aiokafka() -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=4)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(
                KafkaBroker(servers.split(","), logger=None, max_batch_size=1_000)
            )
            await broker.connect()
            await broker.publish("first", "t")
            bodies: list[Any] = ["x" * 300, b"x" * 300, KafkaResponse("x" * 300, key=b"key")]
            for body in bodies:
                with pytest.raises(BatchBufferOverflowException) as caught:
                    await broker.publish_batch(*[body] * 5, topic="t")
                assert 1 <= caught.value.message_position <= 3
            assert len(stored(cluster)) == 1
            await broker.publish_batch("x" * 2_000, topic="t")  # a single message may be larger
            await broker.publish_batch("x", "y", topic="t")
            await broker.stop()
        assert len(stored(cluster)) == 4

    asyncio.run(main())


def test_a_transaction_commits_or_aborts_what_was_published() -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(
                KafkaBroker(servers.split(","), logger=None, transactional_id="x")
            )
            with pytest.raises(ConfigError, match=r"after broker\.start"):
                transaction(broker)
            await broker.connect()
            async with transaction(broker):
                await broker.publish("kept", "t")
                await broker.publish_batch("b", "c", topic="t")
            with pytest.raises(LookupError):  # noqa: PT012
                async with transaction(broker):
                    await broker.publish("dropped", "t")
                    raise LookupError
            await broker.stop()
        assert cluster.committed_values("t", 0) == [b"kept", b"b", b"c"]

    asyncio.run(main())


def test_a_transaction_has_the_messages_without_confirmation() -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(
                KafkaBroker(servers.split(","), logger=None, transactional_id="x"),
                max_request_size=1_000,
            )
            await broker.connect()
            async with transaction(broker):
                await broker.publish_batch("a", "b", topic="t", no_confirm=True)
                await broker.publish("c", "t", no_confirm=True)
            pending: Any = None
            with pytest.raises(KafkaError) as caught:
                async with transaction(broker):
                    pending = await broker.publish_batch(
                        "d", "x" * 2_000, topic="t", no_confirm=True
                    )
            assert isinstance(caught.value, AbortableTransactionError)
            with pytest.raises(KafkaError):
                await pending
            with pytest.raises(IllegalOperation):
                await broker.publish_batch("e", "f", topic="t", no_confirm=True)
            async with transaction(broker):  # the failed transaction was aborted
                await broker.publish("g", "t")
            await broker.stop()
        assert cluster.committed_values("t", 0) == [b"a", b"b", b"c", b"g"]

    asyncio.run(main())


def test_an_abort_that_fails_too_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(
                KafkaBroker(servers.split(","), logger=None, transactional_id="x")
            )
            await broker.connect()
            with pytest.raises(AbortableTransactionError):  # noqa: PT012
                async with transaction(broker):
                    await broker.publish("a", "t")
                    cluster.fail_produce(("t", 0), Code.INVALID_RECORD)
                    await broker.publish("b", "t", no_confirm=True)
                    producer = broker.config.producer._producer.producer.producer  # type: ignore[attr-defined]

                    async def fail(*_: Any) -> None:
                        raise KafkaTimeout("no response")

                    producer.abort_transaction = fail
            await broker.stop()

    asyncio.run(main())
    assert [r for r in caplog.records if "no response" in r.getMessage()]


@connected
async def test_a_transaction_needs_a_transactional_id(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    with pytest.raises(IllegalOperation, match="transactional_id"):
        async with transaction(broker):
            pass


@connected
async def test_a_batch_that_is_refused_as_a_whole_has_aiokafkas_error(
    broker: KafkaBroker, cluster: FakeCluster
) -> None:
    await broker.config.producer._producer.producer.producer.close()  # type: ignore[attr-defined]
    with pytest.raises(ProducerClosed) as caught:
        await broker.publish_batch("a", "b", topic="t")
    assert isinstance(caught.value, KafkaError)


@connected
async def test_a_connected_broker_is_refused(broker: KafkaBroker, cluster: FakeCluster) -> None:
    with pytest.raises(ConfigError, match=r"call it before broker\.start"):
        use_aiokprod(broker)


def test_other_brokers_are_refused() -> None:
    with pytest.raises(ConfigError, match="not str"):
        use_aiokprod("broker")  # type: ignore[type-var]


def test_a_consumer_only_broker_gets_no_producer() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(KafkaBroker(servers.split(","), logger=None, consumer_only=True))
            await broker.connect()
            assert not bool(broker.config.producer)
            assert broker.config.broker_config.consumer_only
            await broker.stop()

    asyncio.run(main())


def test_a_producer_is_stopped_if_the_admin_client_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise LookupError("admin")

    async def main() -> None:
        cluster = FakeCluster()
        async with serve_tcp(cluster) as servers:
            broker = use_aiokprod(KafkaBroker(servers.split(","), logger=None))
            monkeypatch.setattr(type(broker.config.broker_config.admin), "connect", fail)
            with pytest.raises(LookupError, match="admin"):
                await broker.connect()
            assert not bool(broker.config.producer)
            await asyncio.sleep(0.1)
            assert cluster.open_connections() == 0

    asyncio.run(main())


def test_exports() -> None:
    assert set(compat.__all__) <= set(vars(compat))
