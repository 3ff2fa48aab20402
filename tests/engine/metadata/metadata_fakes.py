"""A `BrokerClient` without a network. The test sets which nodes are up; requests and responses are
real messages that are encoded and decoded."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiokprod._engine.metadata.cache import Metadata
from aiokprod._wire.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig
from aiokprod.errors import KafkaError
from tests.engine.fake_connection import FakeReadyConnection, NoCoordinators

TOPIC_ID = bytes(range(16))
OTHER_ID = bytes(range(16, 32))


def config(**settings: Any) -> ProducerConfig:
    return ProducerConfig(**{"bootstrap_servers": "boot-a:9092,boot-b:9093", **settings})


def metadata(*, seed: int = 1, **settings: Any) -> Metadata:
    return Metadata(config(**settings), random.Random(seed))


def partition(
    index: int,
    leader: int = 1,
    epoch: int = 5,
    *,
    error: int = 0,
    replicas: Sequence[int] = (1, 2),
    isr: Sequence[int] = (1, 2),
    offline: Sequence[int] = (),
) -> MetadataResponsePartition:
    return MetadataResponsePartition(error, index, leader, epoch, replicas, isr, offline)


def topic(
    name: str | None = "t",
    partitions: Sequence[MetadataResponsePartition] | int = 2,
    *,
    error: int = 0,
    topic_id: bytes = TOPIC_ID,
    internal: bool = False,
) -> MetadataResponseTopic:
    if isinstance(partitions, int):
        partitions = [partition(index) for index in range(partitions)]
    return MetadataResponseTopic(error, name, topic_id, internal, partitions)


def answer(
    *topics: MetadataResponseTopic,
    brokers: Sequence[int] = (1, 2),
    cluster_id: str | None = "cluster",
    controller: int = 1,
    error: int = 0,
    version: int = 13,
) -> MetadataResponse:
    response = MetadataResponse(
        brokers=[MetadataResponseBroker(b, f"host-{b}", 9092, None) for b in brokers],
        cluster_id=cluster_id,
        controller_id=controller,
        topics=list(topics),
        error_code=error,
    )
    return MetadataResponse.decode(response.encode(version), version)


@dataclass
class FakeResponse:
    node_id: int
    version: int
    body: Any = None
    error: KafkaError | None = None
    maybe_written: bool = True
    latency: float = 0.001
    throttle_ms: int = 0


@dataclass
class Sent:
    """A request in flight."""

    node_id: int
    request: MetadataRequest
    on_done: Callable[[Any], None]
    at: float
    timeout: float
    version: int
    done: bool = False

    @property
    def topics(self) -> list[str | None]:
        return [t.name for t in self.request.topics or ()]

    def succeed(self, response: MetadataResponse) -> None:
        self.done = True
        body = MetadataResponse.decode(response.encode(self.version), self.version)
        self.on_done(FakeResponse(self.node_id, self.version, body))

    def fail(self, error: KafkaError) -> None:
        self.done = True
        self.on_done(FakeResponse(self.node_id, self.version, error=error))


@dataclass
class FakeClient(NoCoordinators):
    """A client whose known nodes are all connected, except nodes in `down` (not connectable before
    the given instant), `dialling` or `busy` (connected, but cannot accept a request). A node that
    is `slow` has not responded for long: the client returns nodes that may be connected instead."""

    version: int = 13
    nodes: dict[int, Node] = field(default_factory=dict)
    down: dict[int, float] = field(default_factory=dict)
    dialling: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)
    slow: set[int] = field(default_factory=set)
    sent: list[Sent] = field(default_factory=list)
    dialled: list[int] = field(default_factory=list)
    node_sets: list[list[int]] = field(default_factory=list)
    resets: int = 0

    @property
    def open(self) -> int:
        return sum(not sent.done for sent in self.sent)

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.id: node for node in nodes}
        self.node_sets.append(sorted(self.nodes))

    def can_send(self, node_id: int, now: float) -> bool:
        return node_id in self.nodes and not (
            node_id in self.down or node_id in self.dialling or node_id in self.busy
        )

    def ready(self, node_id: int, now: float) -> FakeReadyConnection | None:
        if node_id in self.down and self.down[node_id] <= now:
            self.dialled.append(node_id)
            self.dialling.add(node_id)
            del self.down[node_id]
        return FakeReadyConnection(self, node_id) if self.can_send(node_id, now) else None

    def retry_at(self, node_id: int, now: float) -> float:
        return self.down.get(node_id, math.inf)

    def in_flight_count(self, node_id: int) -> int:
        return int(node_id in self.busy)

    def total_in_flight(self) -> int:
        return 0

    def least_loaded(self, now: float) -> int | None:
        owing = {sent.node_id for sent in self.sent if not sent.done}
        sendable = [n for n in self.nodes if self.can_send(n, now) and n not in self.slow]
        sendable.sort(key=owing.__contains__)
        dialling = [n for n in self.nodes if n in self.dialling]
        dialable = [n for n in self.nodes if self.down.get(n, math.inf) <= now]
        slow = [n for n in self.nodes if self.can_send(n, now) and n in self.slow]
        return next(iter(sendable + dialling + dialable + slow), None)

    def version_range(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        connected = node_id in self.nodes and node_id not in self.down
        return (0, self.version) if connected and node_id not in self.dialling else None

    def send(
        self,
        node_id: int,
        request: Any,
        on_done: Callable[[Any], None],
        now: float,
        *,
        timeout: float,
        max_version: int | None = None,
        expect_response: bool = True,
    ) -> None:
        assert self.can_send(node_id, now)
        assert expect_response
        decoded = MetadataRequest.decode(request.encode(self.version), self.version)
        self.sent.append(Sent(node_id, decoded, on_done, now, timeout, self.version))

    def give_up(self, node_id: int, error: KafkaError) -> None:
        raise AssertionError("metadata never give a broker up")

    def reset_backoff(self) -> None:
        self.resets += 1
        self.down = dict.fromkeys(self.down, 0.0)
