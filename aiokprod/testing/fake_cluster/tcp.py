"""Serves a fake cluster on TCP sockets of the loopback interface, for a real event loop."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.cluster import FakeCluster


class _Hangup(asyncio.Protocol):
    """Closes connections to the port of a dead broker."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


@asynccontextmanager
async def serve_tcp(
    cluster: FakeCluster,
    host: str = "127.0.0.1",
    *,
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[str]:
    """Make every broker listen on a port, and yield the bootstrap addresses.

    Args:
        port: the port of the first broker. The other brokers have the next ports. 0 means free
            ports.
        tls: SSL context of the server, for TLS listeners.

    Brokers can be killed, stopped and started as without TCP. One difference: the port of a dead
    broker accepts and closes connections instead of refusing them.
    """
    loop = asyncio.get_running_loop()
    servers: list[asyncio.Server] = []
    try:
        for index, broker in enumerate(cluster.brokers.values()):
            at = port + index if port else 0
            server = await loop.create_server(_acceptor(broker), host, at, ssl=tls)
            servers.append(server)
            broker.host, broker.port = server.sockets[0].getsockname()[:2]
        yield cluster.bootstrap_servers
    finally:
        for server in servers:
            server.close()
        for broker in cluster.brokers.values():
            for connection in list(broker.connections):
                connection.reset()
        await asyncio.sleep(0)


def _acceptor(broker: FakeBroker) -> Callable[[], asyncio.Protocol]:
    return lambda: broker.accept(None) if broker.is_up else _Hangup()
