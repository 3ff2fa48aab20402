"""Creates connections from the configuration."""

from __future__ import annotations

import asyncio
import math
import random
import re
from collections.abc import Callable
from typing import Final

from aiokprod._metrics.counters import NodeTable
from aiokprod._net.authentication import Authenticator
from aiokprod._net.channel import KafkaChannel
from aiokprod._net.connection import Connection, ConnectionOwner, SessionLimits
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig

_NOT_IN_SOFTWARE_VERSION: Final = re.compile(r"[^a-zA-Z0-9.-]+")


class ConnectionFactory:
    """A callable that creates the connection to a node, without dialling it.

    Args:
        owner: owner of all connections.
        client_id: None uses the configured client id.
        software_version: converted to the format that brokers accept (KIP-511).
        authenticator: creates the authenticator of a connection; None for listeners without SASL.
        rng: random source that spreads re-authentications.
        is_kafka: see `ConnectionLog.is_kafka`.
        nodes: counters of requests and bytes by broker.
    """

    def __init__(
        self,
        config: ProducerConfig,
        loop: asyncio.AbstractEventLoop,
        owner: ConnectionOwner,
        client_id: str | None,
        software_version: str,
        authenticator: Callable[[Node], Authenticator] | None,
        rng: random.Random,
        nodes: NodeTable,
        *,
        is_kafka: Callable[[tuple[str, int]], bool] = lambda address: False,
    ) -> None:
        self._nodes = nodes
        self._is_kafka = is_kafka
        self._rng = rng
        self._request_timeout = config.request_timeout_ms / 1000
        self._setup_timeout = config.socket_connection_setup_timeout_ms / 1000
        self._config = config
        self._loop = loop
        self._owner = owner
        self._client_id = client_id or config.client_id or "aiokprod"
        version = _NOT_IN_SOFTWARE_VERSION.sub("-", software_version).strip("-.")
        self._software_version = version or "unknown"
        self._authenticator = authenticator
        idle = config.connections_max_idle_ms
        self._max_idle = idle / 1000 if idle >= 0 else math.inf

    def __call__(self, node: Node) -> Connection:
        channel = KafkaChannel(
            peer=f"broker {node}",
            client_id=self._client_id,
            max_in_flight=self._config.max_in_flight_requests_per_connection,
            receive_max_bytes=self._config.receive_max_bytes,
            software_version=self._software_version,
            authenticator=None if self._authenticator is None else self._authenticator(node),
            is_kafka=self._is_kafka((node.host, node.port)),
            counters=self._nodes.of(node.id),
        )
        return Connection(
            node.id,
            channel,
            self._loop,
            self._owner,
            self._max_idle,
            self._session(),
            self._request_timeout,
            (node.host, node.port),
        )

    def _session(self) -> SessionLimits:
        if self._authenticator is None:
            return SessionLimits()
        # Spread the times, so that connections opened together do not re-authenticate together.
        # Source: Java `SaslClientAuthenticator.ReauthInfo`.
        return SessionLimits(self._rng.uniform(0.85, 0.95), self._setup_timeout)
