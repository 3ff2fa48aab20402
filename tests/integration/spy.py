"""A dialer that records requests by the bytes that are written to the socket."""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any

from aiokprod._net.dialer import TcpDialer

METADATA, PRODUCE, INIT_PRODUCER_ID = 3, 0, 22


class SpyDialer:
    """Opens real connections and records (time, API key) of every written request.

    Times are values of `time.monotonic()`.
    """

    def __init__(self, inner: TcpDialer) -> None:
        self._inner = inner
        self.requests: list[tuple[float, int]] = []
        self.dials: list[float] = []

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        return await self._inner.resolve(host, port)

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        self.dials.append(time.monotonic())
        _, spy = await self._inner.connect(
            lambda: _SpyProtocol(protocol_factory(), self.requests),
            host,
            port,
            tls=tls,
            server_hostname=server_hostname,
        )
        assert isinstance(spy, _SpyProtocol)
        return spy.transport, spy.inner

    def most_in_a_second(self, api_key: int) -> int:
        """Return the largest number of requests with this API key within any one second."""
        return busiest_second([at for at, key in self.requests if key == api_key])


def busiest_second(instants: Iterable[float]) -> int:
    ordered = sorted(instants)
    most = first = 0
    for last, at in enumerate(ordered):
        while ordered[first] <= at - 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


class _SpyProtocol(asyncio.Protocol):
    """A protocol between the transport and the inner protocol. It gives the inner protocol a
    transport that records writes."""

    def __init__(self, inner: asyncio.Protocol, requests: list[tuple[float, int]]) -> None:
        self.inner = inner
        self._requests = requests
        # Bind the method once, so that received data goes to the protocol directly.
        self.data_received = inner.data_received  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]
        self.connection_lost = inner.connection_lost  # type: ignore[method-assign]
        self.pause_writing = inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = inner.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        spy: Any = _SpyTransport(transport, self._requests)
        self.transport = spy
        self.inner.connection_made(self.transport)


class _SpyTransport:
    def __init__(self, inner: Any, requests: list[tuple[float, int]]) -> None:
        self._inner = inner
        self._requests = requests
        self._head = bytearray()
        self._left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        self._read(data)
        self._inner.write(data)

    def writelines(self, chunks: Iterable[bytes]) -> None:
        kept = list(chunks)
        for chunk in kept:
            self._read(chunk)
        self._inner.writelines(kept)

    def _read(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self._left:
                skipped = min(self._left, len(view))
                self._left -= skipped
                view = view[skipped:]
                continue
            taken = min(6 - len(self._head), len(view))
            self._head += view[:taken]
            view = view[taken:]
            if len(self._head) == 6:
                length, api_key = struct.unpack(">ih", self._head)
                self._head.clear()
                self._left = length - 2
                self._requests.append((time.monotonic(), api_key))
