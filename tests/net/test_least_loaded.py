"""The node that `least_loaded` chooses. tests/net/test_client.py tests it with real connections."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod._net.least_loaded import Candidate, least_loaded
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig

NOW = 100.0


class Requests(list[float]):
    """The requests in flight on a connection, as the times at which they were created."""

    @property
    def oldest(self) -> Any:
        return SimpleNamespace(created=min(self)) if self else None


def ready(node_id: int, *created: float) -> Candidate:
    """Return a connected node that accepts requests. The arguments are the creation times of its
    requests in flight."""
    return candidate(node_id, sendable=True, preparing=False, requests=Requests(created))


def preparing(node_id: int) -> Candidate:
    """Return a node whose connection is being established."""
    return candidate(node_id, sendable=False, preparing=True, requests=Requests())


def full(node_id: int) -> Candidate:
    """Return a connected node that accepts no request now."""
    return candidate(node_id, sendable=False, preparing=False, requests=Requests([NOW]))


def candidate(node_id: int, *, sendable: bool, preparing: bool, requests: Requests) -> Candidate:
    made = Candidate(Node(node_id, f"host-{node_id}", 9092))
    channel = SimpleNamespace(in_flight=requests, preparing=preparing)
    connection = SimpleNamespace(channel=channel, can_send=lambda now: sendable)
    made.connection = cast(Any, connection)
    return made


def unconnected(node_id: int) -> Candidate:
    return Candidate(Node(node_id, f"host-{node_id}", 9092))


@pytest.fixture
def states() -> ClusterConnectionStates:
    return ClusterConnectionStates.of(ProducerConfig(bootstrap_servers="b:1"), random.Random(1))


def chosen(states: ClusterConnectionStates, *nodes: Candidate) -> set[int | None]:
    """Return the choices of many searches, each of which starts at a random node."""
    rng = random.Random(2)
    return {least_loaded(nodes, states, rng, NOW) for _ in range(50)}


def test_no_node_at_all(states: ClusterConnectionStates) -> None:
    assert chosen(states) == {None}


def test_idle_node_comes_first_and_then_the_one_with_fewest_requests(
    states: ClusterConnectionStates,
) -> None:
    assert chosen(states, ready(1, NOW), ready(2), ready(3, NOW, NOW)) == {2}
    assert chosen(states, ready(1, NOW, NOW), ready(2, NOW), full(3), unconnected(4)) == {2}


def test_connecting_node_is_preferred_to_another_dial(states: ClusterConnectionStates) -> None:
    states.connecting(1, NOW, ("host-1", 9092))
    assert chosen(states, preparing(1), unconnected(2), full(3)) == {1}


def test_node_that_was_tried_longest_ago_is_dialled(states: ClusterConnectionStates) -> None:
    for node_id, at in ((1, NOW - 50), (2, NOW - 60)):
        states.connecting(node_id, at, (f"host-{node_id}", 9092))
    assert chosen(states, unconnected(1), unconnected(2), full(3)) == {2}
    assert chosen(states, unconnected(1), unconnected(2), unconnected(4)) == {4}


def test_slow_nodes_come_last(states: ClusterConnectionStates) -> None:
    states.connecting(1, NOW - 5, ("host-1", 9092))
    assert chosen(states, preparing(1), ready(2, NOW - 5), unconnected(3)) == {3}
    assert chosen(states, preparing(1), ready(2, NOW - 5), full(3)) == {2}
    assert chosen(states, preparing(1), full(3)) == {1}
    assert chosen(states, full(3)) == {None}
