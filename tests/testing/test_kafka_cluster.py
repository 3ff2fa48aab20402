"""The conditions under which `KafkaCluster` considers a node to be serving, tested without a
broker."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from aiokprod.testing.kafka_cluster import ClusterError, KafkaCluster


class Living:
    """A stand-in for the process of a node."""

    running = True

    def log_tail(self, lines: int) -> str:
        return "its log"


class Listing:
    """An admin client of a cluster that lists node 1 as alive."""

    def broker_ids(self) -> set[int]:
        return {1}


def test_serving_listed_node_without_open_port_is_waited_for() -> None:
    """A killed node stays listed until its session expires."""
    cluster: Any = KafkaCluster(1)
    cluster._nodes = {1: Living()}
    cluster._admin = Listing()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        cluster._ports = {1: listener.getsockname()[1]}
        with pytest.raises(ClusterError, match="nodes \\[1\\] not serving after 0 s"):
            cluster._await_serving([1], 0.0)
        listener.listen()
        cluster._await_serving([1], 0.0)
