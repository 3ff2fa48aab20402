"""In-memory transports: `asyncio.Transport` without sockets.

A `Link` connects two `MemoryTransport`s through two pipes and injects connection faults.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Literal

from aiokprod.testing.pipes import Buffer, MutatedBufferError, Pipe, WrittenBuffer
from aiokprod.testing.virtual import VirtualLoop


class Link:
    """A connection between a client and a server. Its methods inject faults.

    Attributes:
        up, down: the pipe from client to server, and the pipe from server to client.
        client, server: the transports.
        is_broken: True if the connection is broken for both ends.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        latency_s: float = 0.0,
        names: tuple[tuple[str, int], tuple[str, int]] = (("client", 0), ("server", 0)),
        on_delivery: Callable[[bytes], object] | None = None,
    ) -> None:
        self.loop = loop
        self.names = names
        self.is_broken = False
        self.mutated: list[str] = []
        self.up = Pipe(self, latency_s)
        self.down = Pipe(self, latency_s)
        self.client = MemoryTransport(loop, self.up, self.down, names[0], names[1], tracked=True)
        self.server = MemoryTransport(loop, self.down, self.up, names[1], names[0], tracked=False)
        self.up.sender = self.down.receiver = self.client
        self.up.receiver = self.down.sender = self.server
        self._on_delivery = on_delivery

    def __repr__(self) -> str:
        state = "broken" if self.is_broken else "up"
        return f"<Link {self.names[0]}-{self.names[1]} {state}>"

    @property
    def is_open(self) -> bool:
        """True if at least one end is open."""
        return not (self.client.is_lost and self.server.is_lost)

    def reset(self, side: Literal["both", "client", "server"] = "both") -> None:
        """Reset the connection (RST). Bytes in flight are lost. If only one side is reset, the
        other side detects this when it sends."""
        error = ConnectionResetError("Connection reset by peer")
        if side == "both":
            self.is_broken = True
        self.up.clear()
        self.down.clear()
        if side in ("both", "client"):
            self.client.on_reset(error)
        if side in ("both", "server"):
            self.server.on_reset(error)

    def blackhole(self) -> None:
        """Stall both directions silently until `heal`, as in a half-open connection."""
        self.up.stall()
        self.down.stall()

    def heal(self) -> None:
        """End a stall in both directions."""
        self.up.resume()
        self.down.resume()

    def bounce(self, pipe: Pipe) -> None:
        """Reset the sender, because its bytes arrived at a closed end."""
        pipe.clear()
        pipe.sender.on_reset(ConnectionResetError("Connection reset by peer"))

    def note_delivery(self, data: bytes) -> None:
        """Add delivered bytes to the network's trace."""
        if self._on_delivery is not None:
            self._on_delivery(data)

    def on_mutated(self, pipe: Pipe, view: memoryview) -> None:
        """Record and report a buffer that changed in flight."""
        way = "up" if pipe is self.up else "down"
        text = f"{self!r} {way}: {len(view)} bytes changed after they were written"
        self.mutated.append(text)
        self.loop.call_exception_handler({"message": text, "exception": MutatedBufferError(text)})


class Recording:
    """The data that the user of a transport wrote and received, with the loop's time in s.

    This includes writes to a transport that was already closed, because its user may not have
    noticed that.

    Attributes:
        ended_at: time of `connection_lost`, or inf if it was not called.
    """

    __slots__ = ("ended_at", "received", "sent")

    def __init__(self) -> None:
        self.ended_at = math.inf
        self.sent: list[tuple[float, Buffer]] = []
        self.received: list[tuple[float, bytes]] = []


class MemoryTransport(asyncio.Transport):
    """One end of a link. It behaves like asyncio's selector socket transport.

    Attributes:
        on_write: called on each `write`, before bytes are sent.
        recording: stores all reads and writes, or None if they are not recorded.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        outgoing: Pipe,
        incoming: Pipe,
        own_name: tuple[str, int],
        peer_name: tuple[str, int],
        *,
        tracked: bool,
    ) -> None:
        super().__init__({"sockname": own_name, "peername": peer_name})
        self.is_lost = False
        self.is_read_paused = False
        self.on_write: Callable[[], object] | None = None
        self.recording: Recording | None = None
        self._loop = loop
        self._outgoing = outgoing
        self._incoming = incoming
        self._protocol: asyncio.BaseProtocol | None = None
        self._backlog: deque[tuple[WrittenBuffer, memoryview]] = deque()
        self._backlog_bytes = 0
        self._high, self._low = 64 * 1024, 16 * 1024
        self._write_paused = False
        self._closing = False
        self._eof_asked = False
        self._tracked = tracked

    def __repr__(self) -> str:
        state = "lost" if self.is_lost else "closing" if self._closing else "open"
        names = self.get_extra_info("sockname"), self.get_extra_info("peername")
        return f"<MemoryTransport {names[0]}->{names[1]} {state}>"

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Start the transport and call `protocol.connection_made`."""
        self._protocol = protocol
        if self._tracked and isinstance(self._loop, VirtualLoop):
            self._loop.open_transports[id(self)] = self
        protocol.connection_made(self)

    # -- asyncio.Transport ----------------------------------------------------------------------

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return not self.is_read_paused and not self._closing

    def pause_reading(self) -> None:
        self.is_read_paused = True

    def resume_reading(self) -> None:
        self.is_read_paused = False
        if not self._incoming.stalled:
            self._incoming.resume()

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * 1024 if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high, self._low = high, low
        self._judge_backlog()

    def write(self, data: Buffer) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self._eof_asked:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self.recording is not None:
            list_of_data = list(list_of_data)
            now = self._loop.time()
            self.recording.sent += [(now, data) for data in list_of_data]
        if self._closing:
            return
        if self.on_write is not None:
            self.on_write()
        for data in list_of_data:
            handed = WrittenBuffer(data)
            if len(handed.view):
                self._backlog.append((handed, handed.view))
                self._backlog_bytes += len(handed.view)
        self._pump()
        self._judge_backlog()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof_asked = True
        if not self._backlog:
            self._outgoing.end()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._backlog:
            self._loop.call_soon(self._finish, None)

    def abort(self) -> None:
        if self.is_lost:
            return
        self._closing = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._loop.call_soon(self._finish, None)

    # -- called by pipe and link ----------------------------------------------------------------

    @property
    def accepts_bytes(self) -> bool:
        """False once the transport is closed. Bytes that arrive later cause a reset."""
        return not self._closing and not self.is_lost

    def on_bytes(self, data: bytes) -> None:
        """Pass arrived bytes to the protocol."""
        protocol = self._protocol
        if not data or protocol is None:
            return
        if self.recording is not None:
            self.recording.received.append((self._loop.time(), data))
        if isinstance(protocol, asyncio.BufferedProtocol):
            self._fill(protocol, memoryview(data))
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(data)

    def on_eof(self) -> None:
        """Handle the end of the peer's direction of the connection."""
        if not self.accepts_bytes:
            return
        protocol = self._protocol
        assert isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol)
        if not protocol.eof_received():
            self.close()

    def on_reset(self, error: Exception) -> None:
        """Handle a reset of the connection."""
        if self.is_lost:
            return
        self._closing = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._loop.call_soon(self._finish, error)

    def on_room(self) -> None:
        """Write more of the backlog, because the pipe has room."""
        if self._backlog:
            self._pump()
            if self._write_paused and self._backlog_bytes <= self._low:
                self._write_paused = False
                self.get_protocol().resume_writing()
            if not self._backlog and self._closing:
                self._loop.call_soon(self._finish, None)
            elif not self._backlog and self._eof_asked:
                self._outgoing.end()

    @staticmethod
    def _fill(protocol: asyncio.BufferedProtocol, data: memoryview) -> None:
        while len(data):
            buffer = memoryview(protocol.get_buffer(len(data))).cast("B")
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            protocol.buffer_updated(size)
            data = data[size:]

    def _pump(self) -> None:
        while self._backlog and (room := self._outgoing.room()):
            handed, view = self._backlog.popleft()
            if len(view) > room:
                self._backlog.appendleft((handed, view[room:]))
                view = view[:room]
            self._backlog_bytes -= len(view)
            self._outgoing.take(handed, view)

    def _judge_backlog(self) -> None:
        if self._backlog_bytes > self._high and not self._write_paused:
            self._write_paused = True
            self.get_protocol().pause_writing()

    def _finish(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        if self.recording is not None:
            self.recording.ended_at = self._loop.time()
        if error is None:
            self._outgoing.end()
        if isinstance(self._loop, VirtualLoop):
            self._loop.open_transports.pop(id(self), None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)


def memory_pair(
    client: asyncio.BaseProtocol, server: asyncio.BaseProtocol, *, latency_s: float = 0.0
) -> Link:
    """Connect two protocols on the running loop, and call `connection_made` of both."""
    link = Link(asyncio.get_running_loop(), latency_s=latency_s)
    link.server.attach(server)
    link.client.attach(client)
    return link
