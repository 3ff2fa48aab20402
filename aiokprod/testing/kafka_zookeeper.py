"""Brokers of releases before 3.0, and the ZooKeeper server that they need.

Both are `JavaNode`s without formatted storage. `kafka_cluster` starts the ZooKeeper server first.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Final

from aiokprod.testing.kafka_node import JavaNode

HOST: Final = "127.0.0.1"
_TICK_MS: Final = 500
"""ZooKeeper's tick time in ms. A session timeout is between 2 and 20 ticks."""
# Prefixes of settings that exist only in KRaft mode, or that these releases reject.
_KRAFT_ONLY: Final = (
    "process.roles",
    "node.id",
    "controller.",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "share.coordinator.",
    "broker.session.timeout.ms",
    "broker.heartbeat.interval.ms",
)


class ZooKeeperBroker(JavaNode):
    """A broker that registers with ZooKeeper."""

    def format(self) -> None:
        """Does nothing, because the storage of these releases needs no formatting."""


class ZooKeeperServer(JavaNode):
    """A ZooKeeper server as a separate process, from the jars of the Kafka release."""

    main_class = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

    def _own(self) -> dict[str, str]:
        return {"dataDir": str(self._folder / "data")}

    def format(self) -> None:
        """Does nothing, because ZooKeeper creates its storage when it starts."""

    def wait_listening(self, port: int, timeout: float) -> None:
        """Waits until the server accepts connections. Raises RuntimeError, with the server's log,
        if it exits or does not listen within `timeout` seconds."""
        give_up = time.monotonic() + timeout
        while True:
            try:
                socket.create_connection((HOST, port), timeout=1.0).close()
                return
            except OSError:
                if not self.running or time.monotonic() > give_up:
                    raise RuntimeError(f"ZooKeeper did not start:\n{self.log_tail(30)}") from None
                time.sleep(0.1)


def server_properties(port: int) -> dict[str, str]:
    """Returns the settings of a ZooKeeper server on `port` of the loopback interface."""
    return {
        "clientPort": str(port),
        "clientPortAddress": HOST,
        "maxClientCnxns": "0",
        "tickTime": str(_TICK_MS),
        "admin.enableServer": "false",
    }


def broker_properties(properties: Mapping[str, str], zookeeper_port: int) -> dict[str, str]:
    """Translates the properties of a KRaft node into properties of a broker with ZooKeeper."""
    kept = {name: value for name, value in properties.items() if not name.startswith(_KRAFT_ONLY)}
    return {
        **kept,
        "broker.id": properties["node.id"],
        "listeners": properties["advertised.listeners"],
        "zookeeper.connect": f"{HOST}:{zookeeper_port}",
        "zookeeper.session.timeout.ms": "6000",
    }
