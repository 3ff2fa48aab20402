"""One direction of an in-memory connection, with the behaviour and the faults of TCP.

A pipe models the path from a `send()` to a `recv()` system call. It has latency, bandwidth and a
window, and can stall, split, corrupt or cut the stream. As in TCP, bytes stay in order, bytes
accepted from the sender may arrive after the sender has closed its end, and bytes sent to a closed
end cause a reset.

Written bytes are not copied. Their checksum is computed at the write and verified at delivery. This
detects a buffer that changes while its request is in flight (CVE-2026-35554).
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from aiokprod.testing.virtual import VirtualLoop, WorldHandle

if TYPE_CHECKING:
    from aiokprod.testing.transports import Link, MemoryTransport

Buffer = bytes | bytearray | memoryview

RECV_MAX: Final = 256 * 1024
"""Maximum number of bytes in a `data_received` call, as in asyncio's selector transport."""


class MutatedBufferError(Exception):
    """Bytes changed between `transport.write` and their delivery."""


def world_at(
    loop: asyncio.AbstractEventLoop, when: float, callback: Callable[..., object], *args: Any
) -> WorldHandle | asyncio.TimerHandle:
    """Schedule an external event on a virtual loop, or a plain timer on any other loop."""
    if isinstance(loop, VirtualLoop):
        return loop.world_at(when, callback, *args)
    return loop.call_at(when, callback, *args)


class WrittenBuffer:
    """A buffer passed to `write`, and its checksum at the time of the call."""

    __slots__ = ("checksum", "view")

    def __init__(self, data: Buffer) -> None:
        self.view = memoryview(data).cast("B")
        self.checksum = zlib.crc32(self.view)

    def is_unchanged(self) -> bool:
        return zlib.crc32(self.view) == self.checksum


class _Piece:
    """A part of a written buffer that is in flight."""

    __slots__ = ("arrival", "handed", "view")

    def __init__(self, handed: WrittenBuffer, view: memoryview, arrival: float) -> None:
        self.handed = handed
        self.view = view
        self.arrival = arrival


class Pipe:
    """One direction of a link. Attributes may be changed at any time. All sizes are in bytes.

    Attributes:
        latency_s: delay in seconds, or a function that returns the delay. Bytes stay in order.
        bytes_per_s: bandwidth, or None if unlimited.
        window: maximum number of bytes in flight or unread. Further bytes stay in the sender's
            write buffer.
        chunk: maximum number of bytes per delivery, or None to deliver all bytes that have arrived.
        stalled: True if no bytes are delivered until `resume()`.
        cut_at: position in the stream after which the link breaks.
        cut_with: "reset" resets both ends. "eof" ends the stream for the receiver and drops later
            bytes.
        spoil: bytes that replace the sender's bytes, by position in the stream.
        taken, delivered: number of bytes accepted from the sender and delivered to the receiver.
    """

    def __init__(self, link: Link, latency_s: float) -> None:
        self.latency_s: float | Callable[[], float] = latency_s
        self.bytes_per_s: float | None = None
        self.window = 256 * 1024
        self.chunk: int | None = None
        self.stalled = False
        self.cut_at: int | None = None
        self.cut_with: Literal["reset", "eof"] = "reset"
        self.spoil: dict[int, bytes] = {}
        self.taken = 0
        self.delivered = 0
        self.sender: MemoryTransport
        self.receiver: MemoryTransport
        self._link = link
        self._loop = link.loop
        self._pieces: deque[_Piece] = deque()
        self._under_way = 0
        self._sent_until = 0.0
        self._arrives_until = 0.0
        self._fin_sent = False
        self._event: WorldHandle | asyncio.TimerHandle | None = None
        self._is_cut = False

    # -- called by the sender -------------------------------------------------------------------

    def room(self) -> int:
        """Return the number of bytes that `take` accepts now."""
        return max(0, self.window - self._under_way)

    def take(self, handed: WrittenBuffer, view: memoryview) -> None:
        """Accept bytes for delivery. They are delivered even if the sender is closed later."""
        self.taken += len(view)
        if self._is_cut:
            return
        size = self.chunk or len(view)
        if size >= len(view):
            self._pieces.append(_Piece(handed, view, self._arrival(len(view))))
        else:
            for start in range(0, len(view), size):
                part = view[start : start + size]
                self._pieces.append(_Piece(handed, part, self._arrival(len(part))))
        self._under_way += len(view)
        self._plan()

    def inject(self, data: bytes) -> None:
        """Insert bytes into the stream that the sender did not write."""
        handed = WrittenBuffer(data)
        self._under_way += len(data)
        self._pieces.append(_Piece(handed, handed.view, self._arrival(len(data))))
        self._plan()

    def end(self) -> None:
        """End the stream. The receiver gets EOF after the last byte."""
        if not self._fin_sent:
            self._fin_sent = True
            self._arrives_until = self._arrival(0)
            self._plan()

    def _arrival(self, size: int) -> float:
        now = self._loop.time()
        self._sent_until = max(self._sent_until, now)
        if self.bytes_per_s is not None:
            self._sent_until += size / self.bytes_per_s
        latency = self.latency_s() if callable(self.latency_s) else self.latency_s
        self._arrives_until = max(self._arrives_until, self._sent_until + latency)
        return self._arrives_until

    # -- called by the receiver -----------------------------------------------------------------

    def resume(self) -> None:
        """End a stall."""
        self.stalled = False
        self._plan()

    def stall(self) -> None:
        """Stop the delivery. Bytes in flight are kept."""
        self.stalled = True

    def clear(self) -> None:
        """Drop all bytes in flight."""
        self._pieces.clear()
        self._under_way = 0
        self._fin_sent = False
        if self._event is not None:
            self._event.cancel()
            self._event = None

    def _plan(self) -> None:
        if self._event is not None or self.stalled or self._link.is_broken:
            return
        if self._pieces:
            when = self._pieces[0].arrival
        elif self._fin_sent:
            when = self._arrives_until
        else:
            return
        when = max(when, self._loop.time())
        self._event = world_at(self._loop, when, self._deliver)

    def _deliver(self) -> None:
        self._event = None
        if self.stalled or self._link.is_broken or self.receiver.is_read_paused:
            return
        if not self._pieces:
            if self._fin_sent and not self._under_way:
                self._fin_sent = False
                self.receiver.on_eof()
            return
        if self.cut_at is not None and self.delivered >= self.cut_at:
            self._cut()
            return
        data = self._due_bytes()
        if not self.receiver.accepts_bytes:
            self._link.bounce(self)
            return
        self._link.note_delivery(data)
        self.receiver.on_bytes(data)
        if self.cut_at is not None and self.delivered >= self.cut_at and not self._link.is_broken:
            self._cut()
        self.sender.on_room()
        self._plan()

    def _due_bytes(self) -> bytes:
        now = self._loop.time()
        parts: list[memoryview] = []
        size = 0
        while self._pieces and self._pieces[0].arrival <= now:
            piece = self._pieces[0]
            if size and (self.chunk or size + len(piece.view) > RECV_MAX):
                break
            self._pieces.popleft()
            if not piece.handed.is_unchanged():
                self._link.on_mutated(self, piece.handed.view)
            parts.append(piece.view)
            size += len(piece.view)
        data = b"".join(parts)
        if self.cut_at is not None:
            data = data[: max(0, self.cut_at - self.delivered)]
        if self.spoil:
            data = self._spoiled(data)
        self._under_way -= size
        self.delivered += len(data)
        return data

    def _spoiled(self, data: bytes) -> bytes:
        mutable = bytearray(data)
        for position, replacement in self.spoil.items():
            for index, byte in enumerate(replacement, position - self.delivered):
                if 0 <= index < len(mutable):
                    mutable[index] = byte
        return bytes(mutable)

    def _cut(self) -> None:
        if self.cut_with == "reset":
            self._link.reset()
        else:
            self._is_cut = True
            self.clear()
            self.receiver.on_eof()
