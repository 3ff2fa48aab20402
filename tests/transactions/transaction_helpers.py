"""Helpers for transaction tests: both transaction protocols, and the records that readers see."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import Link, MemoryNetwork
from aiokprod.testing.virtual import run
from tests.scenarios.scenario_helpers import make_producer

PRODUCE, FIND, INIT = 0, 10, 22
ADD_PARTITIONS, ADD_OFFSETS, END, COMMIT_OFFSETS = 24, 25, 26, 28
APIS = {
    "FindCoordinator": FIND, "InitProducerId": INIT, "AddPartitionsToTxn": ADD_PARTITIONS,
    "AddOffsetsToTxn": ADD_OFFSETS, "TxnOffsetCommit": COMMIT_OFFSETS, "EndTxn": END,
}  # fmt: skip
"""The API keys of coordinator requests, by name."""

ID = "transfers"
LIMIT_S = 3600.0


def under(*protocols: int) -> pytest.MarkDecorator:
    """Run a test once for each of these transaction versions."""
    return pytest.mark.parametrize("tv", protocols, ids=[f"TV{one}" for one in protocols])


BOTH = under(1, 2)


async def with_world(
    main: Callable[..., Coroutine[Any, Any, None]],
    tv: int,
    cluster: dict[str, Any],
    options: dict[str, Any],
    parameters: dict[str, Any],
) -> None:
    """Run `main` with a cluster of one transaction version and a transactional producer.

    The cluster has a topic "t". The producer is closed at the end.
    """
    made = FakeCluster(network=MemoryNetwork(), transaction_version=tv, **cluster)
    made.create_topic("t", 3)
    producer = make_producer(made, transactional_id=ID, **options)
    try:
        await main(made, producer, **parameters)
    finally:
        await producer.close(timeout=30.0)
    assert made.violations == []
    assert made.network.mutated == []


def transactional(
    *,
    cluster: dict[str, Any] | None = None,
    protocols: tuple[int, ...] = (1, 2),
    **options: Any,
) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run `async test(cluster, producer, **parameters)` in virtual time under each protocol."""

    def decorate(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        import inspect

        wants_tv = "tv" in inspect.signature(function).parameters

        @functools.wraps(function)
        def test(tv: int, **parameters: Any) -> None:
            given = {**parameters, "tv": tv} if wants_tv else parameters
            run(
                lambda: with_world(function, tv, cluster or {}, options, given),
                limit_s=LIMIT_S,
                debug=False,
                collect_garbage=False,
            )

        signature = inspect.signature(function)
        kept = [p for p in list(signature.parameters.values())[2:] if p.name != "tv"]
        kept.append(inspect.Parameter("tv", inspect.Parameter.KEYWORD_ONLY))
        test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        del test.__wrapped__
        typed: Callable[..., None] = under(*protocols)(test)
        return typed

    return decorate


def committed(cluster: FakeCluster, topic: str = "t") -> list[bytes]:
    """Return the values that read_committed readers receive, partition after partition, without
    nulls."""
    count = len(cluster.topics[topic].partitions)
    found: list[bytes] = []
    for partition in range(count):
        for value in cluster.committed_values(topic, partition):
            assert value is not None
            found.append(value)
    return found


def stable(cluster: FakeCluster, topic: str = "t") -> bool:
    """Return True if no open transaction blocks read_committed readers."""
    logs = [partition.log for partition in cluster.topics[topic].partitions]
    return all(log.last_stable_offset == log.end_offset for log in logs)


async def one(producer: Producer[Any, Any], value: bytes, **options: Any) -> None:
    """Commit a transaction of one record."""
    async with producer.transaction(**options):
        await producer.send("t", value, partition=0)


async def full(producer: Producer[Any, Any], value: bytes, *, send: Any = None) -> None:
    """Commit a transaction that sends every kind of request."""
    async with producer.transaction(timeout=100) as txn:
        await producer.submit("t", value, partition=0)
        await producer.submit("t", value, partition=1)
        await txn.send_offsets({("in", 0): int(value)}, send or "g")


async def failing(producer: Producer[Any, Any], error: Exception) -> None:
    """Run a transaction whose body sends a record and offsets and then raises."""
    async with producer.transaction() as txn:
        await producer.send("t", b"aborted", partition=0)
        await txn.send_offsets({("in", 0): 9}, "g")
        raise error


class Machine:
    """The host of one producer. It is a dialer that can lose power at any moment."""

    def __init__(self, network: MemoryNetwork) -> None:
        self._network = network
        self._links: list[Link] = []
        self._dead = False

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        return await self._network.resolve(host, port)

    async def connect(self, factory: Any, host: str, port: int, **options: Any) -> Any:
        transport, protocol = await self._network.connect(factory, host, port, **options)
        link = next(link for link in reversed(self._network.links) if link.client is transport)
        self._links.append(link)
        if self._dead:
            self._cut_off(link)
        return transport, protocol

    def die(self) -> None:
        """Lose power. Sent data still arrives, but nothing is sent or received afterwards."""
        self._dead = True
        for link in self._links:
            self._cut_off(link)

    @staticmethod
    def _cut_off(link: Link) -> None:
        link.up.cut_at, link.up.cut_with = link.up.taken, "eof"
        link.down.stall()
