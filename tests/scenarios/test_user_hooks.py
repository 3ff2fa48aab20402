"""Serializers, partitioners, interceptors and observers: configured and closed once each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.config import ProducerConfig
from aiokprod.errors import ConfigError, KafkaError, ProducerClosed
from aiokprod.observer import Observer
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import make_producer, play


class Everything(Observer):
    """Implements every role, and records its calls."""

    def __init__(self, name: str = "all", fails: str = "") -> None:
        self.name, self.fails = name, fails
        self.calls: list[str] = []

    def note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.fails:
            raise ZeroDivisionError(f"{self.name} {call}")

    def configure(self, config: ProducerConfig) -> None:
        assert isinstance(config, ProducerConfig)
        self.note("configure")

    def close(self) -> None:
        self.note("close")

    def serialize(self, topic: str, headers: Any, data: Any) -> bytes:
        return bytes(data)

    def partition(self, *arguments: Any) -> int:
        return 0

    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        if "close" in self.calls:
            self.calls.append("told after close")


ROLES = ("key_serializer", "value_serializer", "partitioner", "interceptors", "observer")


def in_roles(objects: dict[str, Any]) -> dict[str, Any]:
    return objects | {"interceptors": [objects["interceptors"]]}


def one_each(**fails: str) -> dict[str, Everything]:
    return {role: Everything(role, fails.get(role, "")) for role in ROLES}


def test_each_plugin_is_configured_by_the_constructor_and_closed_by_close() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        objects = one_each()
        producer = make_producer(cluster, **in_roles(objects))
        assert [one.calls for one in objects.values()] == [["configure"]] * len(ROLES)
        await producer.send("t", b"v", key=b"k")
        await producer.close()
        await producer.close()
        assert [one.calls for one in objects.values()] == [["configure", "close"]] * len(ROLES)

    play(main)


def test_object_in_all_roles_is_configured_and_closed_once() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        one = Everything()
        async with make_producer(cluster, **in_roles(dict.fromkeys(ROLES, one))) as producer:
            await producer.send("t", b"v", key=b"k")
        assert one.calls == ["configure", "close"]

    play(main)


def test_callable_object_in_the_role_of_a_partitioner_is_closed_too() -> None:
    """The producer wraps such an object."""

    class Callable(Everything):
        partition = None  # type: ignore[assignment]

        def __call__(self, *arguments: Any) -> int:
            return 0

    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        one = Callable()
        async with make_producer(cluster, partitioner=one) as producer:
            await producer.send("t", b"v")
        assert one.calls == ["configure", "close"]

    play(main)


@pytest.mark.parametrize("role", ROLES)
def test_constructor_that_fails_in_configure_closes_what_it_configured(role: str) -> None:
    objects = one_each(**{role: "configure"})
    with pytest.raises(ConfigError, match=rf"Everything.configure failed: {role} configure"):
        Producer(bootstrap_servers="b:1", **in_roles(objects))
    failed = ROLES.index(role)
    assert [objects[name].calls for name in ROLES] == [
        ["configure", "close"] if place <= failed else [] for place in range(len(ROLES))
    ]


def test_constructor_that_refuses_its_arguments_configures_nothing() -> None:
    one = Everything()
    with pytest.raises(ConfigError, match="observer"):
        Producer(bootstrap_servers="b:1", key_serializer=one, observer=object())  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="acks"):
        Producer(bootstrap_servers="b:1", key_serializer=one, acks=7)  # type: ignore[call-overload]
    assert one.calls == []


@pytest.mark.parametrize("role", ROLES)
def test_plugin_that_fails_to_close_does_not_keep_others_open(
    role: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        objects = one_each(**{role: "close"})
        producer = make_producer(cluster, **in_roles(objects))
        await producer.send("t", b"v", key=b"k")
        report = await producer.close()
        assert report.complete
        assert all(one.calls == ["configure", "close"] for one in objects.values())

    play(main)
    assert caplog.messages == ["Everything.close failed"]


def test_close_of_a_producer_that_never_started_closes_its_plugins_once() -> None:
    async def main() -> None:
        one = Everything()
        producer = make_producer(FakeCluster(1), observer=one)
        await asyncio.gather(producer.close(), producer.close())
        await producer.close()
        assert one.calls == ["configure", "close"]

    play(main)


def test_close_while_starting_closes_plugins_once_and_the_start_ends() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        one = Everything()
        producer = make_producer(cluster, observer=one, transactional_id="x")
        cluster.pause(1)  # freeze the coordinator, so that the start has to wait
        starting = asyncio.create_task(producer.start())
        await asyncio.sleep(0.5)
        assert not starting.done()
        await producer.close(1)
        with pytest.raises(ProducerClosed):
            await starting
        assert one.calls == ["configure", "close"]

    play(main)


def test_start_that_fails_in_async_with_closes_plugins_once() -> None:
    class Lost:
        async def resolve(self, host: str, port: int) -> Any:
            raise KafkaError("no such name")

    async def main() -> None:
        one = Everything()
        producer = make_producer(FakeCluster(1), observer=one, dialer=Lost())
        with pytest.raises(KafkaError):
            async with producer:
                pass
        assert one.calls == ["configure", "close"]

    play(main)


def test_cancelled_close_closes_plugins_once_after_the_last_outcome() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        one = Everything()
        producer = make_producer(cluster, observer=one, interceptors=[one])
        await producer.send("t", b"v")
        cluster.pause(1)
        delivery = await producer.submit("t", b"w")
        closing = asyncio.create_task(producer.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        report = await producer.close()
        assert not report.complete
        assert delivery.done()
        with pytest.raises(ProducerClosed):
            delivery.result()
        assert one.calls == ["configure", "close"]

    play(main)
