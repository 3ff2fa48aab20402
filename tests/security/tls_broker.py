"""A small broker behind real TLS on the loopback interface, and a client for it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import ssl
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from aiokprod import Producer
from aiokprod._net.dialer import TcpDialer
from aiokprod.environment import Environment
from aiokprod.testing.memory import MemoryNetwork
from tests.hang import HANG_S
from tests.net.scripted_broker import ScriptedBroker, Session
from tests.security.certs import Issued


class LocalDialer(TcpDialer):
    """A dialer that connects every host name to the loopback interface, so invented names need no
    resolver."""

    def __init__(self) -> None:
        super().__init__()
        self.dials: list[tuple[float, str | None]] = []

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        return [("127.0.0.1", port)]

    async def connect(
        self,
        protocol_factory: Any,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        self.dials.append((asyncio.get_running_loop().time(), server_hostname))
        return await super().connect(
            protocol_factory, host, port, tls=tls, server_hostname=server_hostname
        )


def server_context(
    folder: Path, issued: Issued, *, client_ca: str | None = None, old: bool = False
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.write(folder, f"server-{random.getrandbits(64)}"))
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca)
    if old:
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


class TlsBroker(ScriptedBroker):
    """A `ScriptedBroker` behind a real port."""

    def __init__(self, context: ssl.SSLContext | None) -> None:
        self.context = context
        self.accepted = 0
        self.names: list[str | None] = []
        super().__init__(MemoryNetwork(), "broker", 0)

    def start(self) -> None: ...

    async def listen(self) -> None:
        if self.context is not None:
            self.context.sni_callback = lambda tls, name, context: self.names.append(name)
        loop = asyncio.get_running_loop()
        self.server = await loop.create_server(
            self._session, "127.0.0.1", self.port, ssl=self.context
        )
        self.port = self.server.sockets[0].getsockname()[1]

    def _session(self) -> Session:
        self.accepted += 1
        return Session(self, None)  # type: ignore[arg-type]

    async def close(self) -> None:
        self.server.close()
        for session in self.sessions:
            if hasattr(session, "transport"):
                session.transport.abort()
        await self.server.wait_closed()


@contextlib.asynccontextmanager
async def tls_broker(context: ssl.SSLContext | None) -> AsyncIterator[TlsBroker]:
    broker = TlsBroker(context)
    await broker.listen()
    try:
        yield broker
    finally:
        await broker.close()


@contextlib.asynccontextmanager
async def producer(port: int, host: str = "broker.test", **settings: Any) -> AsyncIterator[Any]:
    """Start a producer, and yield it with its dialer."""
    dialer = LocalDialer()
    defaults: dict[str, Any] = {
        "bootstrap_servers": f"{host}:{port}",
        "security_protocol": "SSL",
        "enable_idempotence": False,
        "max_block_ms": int(HANG_S * 1000),
        "socket_connection_setup_timeout_ms": int(HANG_S * 1000) // 2,
        "reconnect_backoff_ms": 100,
        "reconnect_backoff_max_ms": 400,
    }
    made: Any = Producer(environment=Environment(dialer), **(defaults | settings))
    try:
        yield made, dialer
    finally:
        await made.close(0)


@contextlib.contextmanager
def alerting_server(context: ssl.SSLContext) -> Iterator[int]:
    """Serve TLS handshakes and yield the port. Unlike asyncio's servers, this one sends its TLS
    alerts."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                raw, _ = listener.accept()
                with contextlib.suppress(OSError):
                    answer(raw)

    def answer(raw: socket.socket) -> None:
        raw.settimeout(HANG_S)
        with context.wrap_socket(raw, server_side=True, do_handshake_on_connect=False) as tls:
            try:
                tls.do_handshake()
            finally:
                # Read everything before closing the socket. Otherwise the kernel resets the
                # connection, and the alert may be lost.
                tls.shutdown(socket.SHUT_WR)
                while tls.recv(1 << 16):
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
