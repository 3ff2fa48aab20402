"""The argument `on_delivery` of `submit` and `try_submit`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from aiokprod.errors import ConfigError, DeliveryTimeout, KafkaError, Outcome, RecordTooLarge
from aiokprod.producer import Producer
from aiokprod.records import RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.core.core_harness import CoreHarness
from tests.virtual_time import in_virtual_time

Seen = list[tuple[RecordMetadata | None, KafkaError | None]]
VARIABLE: ContextVar[str] = ContextVar("variable")


def _producer(cluster: FakeCluster, **options: Any) -> Producer[Any, Any]:
    return Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), **options
    )


def _noting(seen: Seen) -> Callable[[RecordMetadata | None, KafkaError | None], None]:
    return lambda metadata, error: seen.append((metadata, error))


@pytest.mark.parametrize("serializer", [None, str.encode])
@pytest.mark.parametrize("call", ["submit", "try_submit"])
def test_called_once_with_the_metadata_in_order(call: str, serializer: Any) -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        seen: Seen = []
        values = [b"%d" % number for number in range(20)]
        async with _producer(cluster, value_serializer=serializer) as producer:
            if call == "try_submit":
                await producer.warm(["t"])
            for value in values:  # the first `submit` takes the slow path
                given = value if serializer is None else value.decode()
                if call == "submit":
                    await producer.submit("t", given, on_delivery=_noting(seen))
                else:
                    producer.try_submit("t", given, on_delivery=_noting(seen))
            await producer.flush()
            await asyncio.sleep(0)
        assert [metadata and metadata.offset for metadata, _ in seen] == list(range(20))
        assert not any(error for _, error in seen)

    run(main)


@in_virtual_time
async def test_failure_and_withdrawal_are_kafka_errors_with_an_outcome() -> None:
    harness = CoreHarness()
    seen: Seen = []
    _, withdrawn, in_flight = harness.deliveries(3, _noting(seen))
    assert harness.core.unwatched == 0
    assert withdrawn.cancel()
    await asyncio.sleep(0)
    ((metadata, error),) = seen
    assert metadata is None
    assert isinstance(error, KafkaError)
    assert (error.outcome, error.topic, error.partition) == (Outcome.NOT_SENT, "t", 0)
    harness.core.finish()
    assert in_flight.cancel()
    await asyncio.sleep(0)
    assert len(seen) == 1, "its outcome is not known yet"
    assert harness.core.unwatched == 0
    harness.core.fail(DeliveryTimeout("too late", outcome=Outcome.REJECTED))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [type(error) for _, error in seen[1:]] == [DeliveryTimeout] * 2
    assert seen[1][1] is not seen[2][1]


@in_virtual_time
async def test_done_callbacks_of_a_cancelled_handle_do_not_wait_for_the_outcome() -> None:
    harness = CoreHarness()
    seen: list[object] = []
    delivery = harness.append(
        on_delivery=lambda metadata, error: seen.append(metadata and metadata.offset)
    )
    for name in ("first", "second"):
        delivery.add_done_callback(lambda _, name=name: seen.append(name))  # type: ignore[misc]
    assert delivery.remove_done_callback(print) == 0
    harness.core.finish()
    delivery.cancel()
    await asyncio.sleep(0)
    assert seen == ["first", "second"]
    harness.core.acknowledge(7)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == ["first", "second", 7]


@in_virtual_time
async def test_follows_its_record_through_a_split_and_withdrawals() -> None:
    harness = CoreHarness()
    seen: list[object] = []
    deliveries = [
        harness.append(
            on_delivery=lambda metadata, error, number=number: seen.append(  # type: ignore[misc]
                (number, metadata and metadata.offset)
            )
        )
        for number in range(4)
    ]
    deliveries[0].cancel()
    parts = harness.core.split(harness.core.finish(), 1)
    deliveries[2].cancel()
    for offset, part in enumerate(parts):
        part.acknowledge(offset)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert seen == [(0, None), (1, 0), (2, 1), (3, 2)]


@in_virtual_time
async def test_runs_in_the_context_of_the_call_and_may_submit_and_raise() -> None:
    cluster = FakeCluster(default_partitions=1)
    seen: list[str] = []
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, c: told.append(c["exception"]))
    async with _producer(cluster) as producer:
        await producer.warm(["t"])

        def resend(metadata: object, error: object) -> None:
            seen.append(VARIABLE.get())
            VARIABLE.set("of the callback")
            if len(seen) < 4:
                producer.try_submit("t", b"again", on_delivery=resend)
            raise RuntimeError("a bug of the user")

        for name in ("a", "b"):
            VARIABLE.set(name)
            await producer.submit("t", b"v", on_delivery=resend)
        await producer.flush()
        await asyncio.sleep(1)
        await producer.flush()
        await asyncio.sleep(1)
    assert seen[:4] == ["a", "b", "of the callback", "of the callback"]
    assert len(told) == len(seen)
    asyncio.get_running_loop().set_exception_handler(None)


async def _coroutine_function(metadata: object, error: object) -> None: ...


class Asynchronous:
    """Callables that return coroutines."""

    async def method(self, metadata: object, error: object) -> None: ...

    async def __call__(self, metadata: object, error: object) -> None: ...


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        5,
        "text",
        _coroutine_function,
        Asynchronous().method,
        Asynchronous(),
        functools.partial(_coroutine_function),
        functools.partial(functools.partial(Asynchronous().method), error=None),
        AsyncMock(),
    ],
    ids=["int", "str", "function", "method", "object", "partial", "partial of a method", "mock"],
)
def test_what_cannot_be_called_by_the_loop_is_refused_and_nothing_is_sent(
    given: Any, started: bool
) -> None:
    async def main() -> None:
        cluster = FakeCluster(default_partitions=1)
        async with _producer(cluster) as producer:
            if started:
                await producer.send("t", b"the first one")  # loads the metadata for the fast path
            with pytest.raises(ConfigError, match="on_delivery must be"):
                await producer.submit("t", b"v", on_delivery=given)
            with pytest.raises(ConfigError, match="on_delivery must be"):
                producer.try_submit("t", b"v", on_delivery=given)
            await producer.send("t", b"the last one")
        assert cluster.values("t", 0) == [b"the first one"] * started + [b"the last one"]

    run(main)


class Plain:
    """Callables that the event loop can call directly."""

    def __init__(self, seen: list[object]) -> None:
        self.seen = seen

    def method(self, metadata: object, error: object) -> None:
        self.seen.append(error)

    def __call__(self, metadata: object, error: object) -> None:
        self.seen.append(error)


@in_virtual_time
async def test_any_plain_callable_is_called() -> None:
    cluster = FakeCluster(default_partitions=1)
    seen: list[object] = []
    plain = Plain(seen)
    given: list[Any] = [
        plain, plain.method, functools.partial(plain.method), functools.partial(plain),
        lambda metadata, error: seen.append(error), MagicMock(side_effect=plain.method),
    ]  # fmt: skip
    async with _producer(cluster) as producer:
        await producer.send("t", b"the first one")
        for each in given:
            await producer.submit("t", b"v", on_delivery=each)
            producer.try_submit("t", b"v", on_delivery=each)
        await producer.flush()
        await asyncio.sleep(0)
    assert seen == [None] * 2 * len(given)


@in_virtual_time
async def test_not_called_for_a_record_that_the_call_itself_refuses() -> None:
    cluster = FakeCluster(default_partitions=1)
    seen: Seen = []
    async with _producer(cluster, max_request_size=1_000) as producer:
        await producer.warm(["t"])
        with pytest.raises(RecordTooLarge):
            await producer.submit("t", b"v" * 2_000, on_delivery=_noting(seen))
        with pytest.raises(RecordTooLarge):
            producer.try_submit("t", b"v" * 2_000, on_delivery=_noting(seen))
    assert seen == []
