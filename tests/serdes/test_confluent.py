from __future__ import annotations

import asyncio
import pickle
import threading
from typing import Any

import pytest
from confluent_kafka.schema_registry.error import SchemaRegistryError

from aiokprod import ConfigError, SerializationError
from aiokprod.serdes import ConfluentSerializer
from aiokprod.serdes._shared_calls import RepeatableProblem
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.hang import HANG_S
from tests.scenarios.scenario_helpers import make_producer


class Inner:
    """A stand-in for a serializer of confluent-kafka. It records its threads."""

    def __init__(self) -> None:
        self.threads: list[bool] = []
        self.failure: Exception | None = None

    def __call__(self, data: Any, context: Any) -> bytes:
        self.threads.append(threading.current_thread() is threading.main_thread())
        if self.failure is not None:
            raise self.failure
        context.headers.append(("seen", f"{context.topic} {context.field}".encode()))
        return repr(data).encode()


class AsyncInner(Inner):
    async def __call__(self, data: Any, context: Any) -> bytes:  # type: ignore[override]
        return super().__call__(data, context)


def send(serializer: ConfluentSerializer, *values: Any, runs: Any = run) -> list[Any]:
    async def main() -> list[Any]:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=serializer) as producer:
            for value in values:
                await producer.send("t", value)
        return [(one.value, list(one.headers)) for one in cluster.log("t", 0)]

    found: list[Any] = runs(main)
    return found


SEEN = [("seen", b"t value")]


def test_asynchronous_serializer_is_awaited() -> None:
    assert send(ConfluentSerializer(AsyncInner()), 1, 2) == [(b"1", SEEN), (b"2", SEEN)]


@pytest.mark.parametrize("always", [False, True])
def test_synchronous_serializer_starts_in_a_thread(always: bool) -> None:
    inner = Inner()
    serializer = ConfluentSerializer(inner, always_in_thread=always)

    async def main() -> None:
        for _ in range(3):
            headers: list[Any] = []
            result = serializer.serialize("t", headers, 1)
            assert (result if isinstance(result, bytes) else await result) == b"1"  # type: ignore[misc]
            assert headers == SEEN

    asyncio.run(main())
    assert inner.threads == ([False] * 3 if always else [False, True, True])


def test_synchronous_serializer_serves_the_loops_of_several_threads() -> None:
    """No event loop waits for a lock that another loop's thread releases."""
    began, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    class Slow(Inner):
        def __call__(self, data: Any, context: Any) -> bytes:
            if data == "slow":
                began.set()
                may_end.wait(HANG_S)
            return super().__call__(data, context)

    serializer = ConfluentSerializer(Slow())

    async def both(topic: str, data: str) -> None:
        calls: list[Any] = [serializer.serialize(topic, [], data) for _ in range(2)]
        assert await asyncio.gather(*calls) == [repr(data).encode()] * 2

    def other() -> None:
        asyncio.run(both("slow", "slow"))
        ended.set()

    threading.Thread(target=other, daemon=True).start()
    assert began.wait(HANG_S)
    asyncio.run(both("t", "fast"))
    may_end.set()
    assert ended.wait(HANG_S)


def test_serializer_that_was_used_can_be_pickled() -> None:
    serializer = ConfluentSerializer(repr_of)
    assert send(serializer, 1) == [(b"1", [])]
    assert send(pickle.loads(pickle.dumps(serializer)), 1) == [(b"1", [])]


def repr_of(data: Any, context: Any) -> bytes:
    return repr(data).encode()


def test_error_of_the_registry_has_its_status_and_code_only() -> None:
    inner = AsyncInner()
    inner.failure = SchemaRegistryError(404, 40403, "canary")
    with pytest.raises(SerializationError, match="status 404, code 40403") as caught:
        send(ConfluentSerializer(inner), 1)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(("status", "retriable"), [(404, False), (422, False), (503, True)])
def test_transient_error_of_the_registry_is_retriable(status: int, retriable: bool) -> None:
    inner = AsyncInner()
    inner.failure = SchemaRegistryError(status, status * 100, "canary")
    with pytest.raises(SerializationError) as caught:
        send(ConfluentSerializer(inner), 1)
    assert caught.value.retriable is retriable


class Mismatch(Exception):
    """An error of confluent-kafka's serializer, not of its client."""


def outcome_of(serializer: ConfluentSerializer) -> Exception | None:
    """Return the exception that `serialize` or its awaitable raises, or None."""

    async def main() -> Exception | None:
        try:
            result = serializer.serialize("t", [], 1)
            if not isinstance(result, bytes | None):
                await result
        except Exception as error:
            return error
        return None

    return asyncio.run(main())


@pytest.mark.parametrize("way", ["asynchronous", "in a thread", "on the loop"])
def test_errors_are_the_same_wherever_the_serializer_is_called(way: str) -> None:
    inner = AsyncInner() if way == "asynchronous" else Inner()
    serializer = ConfluentSerializer(inner)
    if way == "on the loop":
        assert outcome_of(serializer) is None
    inner.failure = refusal = SchemaRegistryError(404, 40403, "canary")
    error = outcome_of(serializer)
    assert isinstance(error, RepeatableProblem)
    assert str(error).endswith("reports an error of the registry (status 404, code 40403)")
    assert refusal not in (error.__cause__, error.__context__)
    inner.failure = mismatch = Mismatch()
    assert outcome_of(serializer) is mismatch
    assert inner.threads[-1] == (way != "in a thread")


def test_topic_whose_first_call_failed_starts_in_a_thread_again() -> None:
    inner = Inner()
    serializer = ConfluentSerializer(inner)
    inner.failure = Mismatch()
    assert outcome_of(serializer) is inner.failure
    inner.failure = None
    assert [outcome_of(serializer) for _ in range(2)] == [None, None]
    assert inner.threads == [False, False, True]


def test_arguments_are_checked() -> None:
    with pytest.raises(ConfigError, match="inner=<int>"):
        ConfluentSerializer(5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="field='both'"):
        ConfluentSerializer(Inner(), field="both")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="set field='key'"):
        ConfluentSerializer(Inner()).meant_for("key")
