"""Shared parts of the fake clients of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from aiokprod.cluster import Node


class Client(Protocol):
    """The side of a fake client that its connections use."""

    def can_send(self, node_id: int, now: float) -> bool: ...

    def send(
        self,
        node_id: int,
        request: Any,
        on_done: Callable[[Any], None],
        now: float,
        *,
        timeout: float,
    ) -> None: ...


class FakeReadyConnection:
    """A connection of a fake client that accepts a request."""

    def __init__(self, client: Client, node_id: int) -> None:
        self.node_id = node_id
        self._client = client

    def can_send(self, now: float) -> bool:
        return self._client.can_send(self.node_id, now)

    def send(
        self, request: Any, on_done: Callable[[Any], None], now: float, **options: Any
    ) -> None:
        self._client.send(self.node_id, request, on_done, now, **options)


class NoCoordinators:
    """The part of `BrokerClient` that metadata and sender do not use."""

    def set_coordinators(self, nodes: Iterable[Node]) -> None:
        raise NotImplementedError

    def coordinator_id(self, node: Node) -> int:
        raise NotImplementedError

    def finalized_feature(self, name: str) -> int:
        raise NotImplementedError
