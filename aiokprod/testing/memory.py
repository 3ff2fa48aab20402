"""An in-memory network of host names, listeners and links. Pass it to a producer as
`Environment(dialer=network)`."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aiokprod.errors import DialError
from aiokprod.testing.pipes import MutatedBufferError, Pipe, world_at
from aiokprod.testing.transports import Link, MemoryTransport, memory_pair

__all__ = [
    "Dial",
    "Link",
    "MemoryNetwork",
    "MemoryTransport",
    "MutatedBufferError",
    "Pipe",
    "memory_pair",
]

Address = tuple[str, int]
ServerFactory = Callable[[Link], asyncio.BaseProtocol]


@dataclass(frozen=True, slots=True)
class Dial:
    """The loop time (s) and the address of a connection attempt."""

    time: float
    address: Address


class MemoryNetwork:
    """A network in memory that implements the producer's `Dialer`.

    Attributes:
        latency_s: one-way delay of new links, s. A connection attempt takes twice as long.
        dns_delay_s: duration of a name look-up, s.
        on_link: called with each new link before its ends are connected, e.g. to inject faults.
        links: all links ever created, oldest first.
        dials, lookups: the calls of `connect` and `resolve`.
        trace: checksum over all deliveries and their times. Equal runs have equal checksums.
    """

    def __init__(self, *, latency_s: float = 0.0005, dns_delay_s: float = 0.0) -> None:
        self.latency_s = latency_s
        self.dns_delay_s = dns_delay_s
        self.on_link: Callable[[Link], object] | None = None
        self.links: list[Link] = []
        self.dials: list[Dial] = []
        self.lookups: list[tuple[float, str]] = []
        self.trace = 0
        self._listeners: dict[Address, ServerFactory] = {}
        self._hosts: set[str] = set()
        self._names: dict[str, list[str] | None] = {}
        self._hanging: dict[Address, list[asyncio.Future[None]]] = {}
        self._hanging_names: set[str] = set()
        self._next_port = 40_000

    # -- set-up and faults ----------------------------------------------------------------------

    def listen(self, host: str, port: int, factory: ServerFactory) -> None:
        """Accept connections. `factory(link)` returns the server's protocol for each connection."""
        self._listeners[host, port] = factory
        self._hosts.add(host)

    def unlisten(self, host: str, port: int) -> None:
        """Refuse new connections. Open connections stay open."""
        self._listeners.pop((host, port), None)

    def set_name(self, host: str, addresses: Sequence[str] | None) -> None:
        """Set the addresses of a name, in order. With None, the name does not exist."""
        self._names[host] = None if addresses is None else list(addresses)

    def hang_name(self, host: str, hanging: bool = True) -> None:
        """Make look-ups of a name hang, or end that state with `hanging=False`."""
        (self._hanging_names.add if hanging else self._hanging_names.discard)(host)

    def hang(self, host: str, port: int, hanging: bool = True) -> None:
        """Make connection attempts to an address hang, as with a packet filter or a dead host.

        With `hanging=False`, pending attempts continue, because TCP retransmits the first packet.
        """
        if hanging:
            self._hanging.setdefault((host, port), [])
            return
        for waiting in self._hanging.pop((host, port), ()):
            _wake(waiting)

    def links_to(self, host: str, port: int) -> list[Link]:
        """Return the open links to an address, oldest first."""
        return [link for link in self.links if link.names[1] == (host, port) and link.is_open]

    def blackhole(self, host: str, port: int) -> None:
        """Drop all traffic of an address silently. Its links stall, connection attempts hang."""
        self.hang(host, port)
        for link in self.links_to(host, port):
            link.blackhole()

    def heal(self, host: str, port: int) -> None:
        """Undo `blackhole` and `hang`."""
        self.hang(host, port, False)
        for link in self.links_to(host, port):
            link.heal()

    @property
    def mutated(self) -> list[str]:
        """Descriptions of buffers that were changed after they were written. Must be empty."""
        return [text for link in self.links for text in link.mutated]

    # -- Dialer ---------------------------------------------------------------------------------

    async def resolve(self, host: str, port: int) -> list[Address]:
        """Return the addresses of a name. Raises DialError if the name does not exist."""
        loop = asyncio.get_running_loop()
        self.lookups.append((loop.time(), host))
        if host in self._hanging_names:
            await loop.create_future()
        if self.dns_delay_s:
            await _pause(loop, self.dns_delay_s)
        addresses = self._names.get(host, [host] if self._exists(host) else None)
        if not addresses:
            raise DialError(f"cannot resolve {host!r}: name or service not known")
        return [(address, port) for address in addresses]

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect to a listener. Raises DialError if there is none. Never returns if the address
        hangs."""
        if tls is not None:
            raise DialError("the in-memory network has no TLS: use real sockets")
        loop = asyncio.get_running_loop()
        self.dials.append(Dial(loop.time(), (host, port)))
        while (host, port) in self._hanging:
            answer: asyncio.Future[None] = loop.create_future()
            self._hanging[host, port].append(answer)
            await answer
        await _pause(loop, 2 * self.latency_s)
        factory = self._listeners.get((host, port))
        if factory is None:
            refused = ConnectionRefusedError(f"connect to {host}:{port} refused")
            raise DialError(f"cannot connect to {host}:{port}: refused") from refused
        link = self._link(loop, (host, port))
        if self.on_link is not None:
            self.on_link(link)
        link.server.attach(factory(link))
        protocol = protocol_factory()
        link.client.attach(protocol)
        return link.client, protocol

    def _link(self, loop: asyncio.AbstractEventLoop, address: Address) -> Link:
        self._next_port += 1
        names = (("client", self._next_port), address)
        port = self._next_port
        pack = struct.Struct(">di").pack

        def note(data: bytes) -> None:
            stamp = pack(loop.time(), port)
            self.trace = zlib.crc32(data, zlib.crc32(stamp, self.trace))

        link = Link(loop, latency_s=self.latency_s, names=names, on_delivery=note)
        self.links.append(link)
        return link

    def _exists(self, host: str) -> bool:
        if host in self._hosts:
            return True
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return True


async def _pause(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    future: asyncio.Future[None] = loop.create_future()
    event = world_at(loop, loop.time() + seconds, _wake, future)
    try:
        await future
    finally:
        event.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
