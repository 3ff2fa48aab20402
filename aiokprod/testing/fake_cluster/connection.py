"""The broker's side of a connection: reads requests and sends responses, one request at a time.

Like a real broker, it mutes the connection while it processes a request, so that responses are in
the order of the requests. A throttled connection stays muted for the throttle time (KIP-219).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from aiokprod._wire.messages import RESPONSES
from aiokprod.testing.fake_cluster.apis import Answer, api
from aiokprod.testing.fake_cluster.control import Reaction
from aiokprod.testing.fake_cluster.framing import (
    API_VERSIONS,
    MalformedRequest,
    Request,
    UnsupportedRequestVersion,
    read_request,
    split_frames,
    write_answer,
)
from aiokprod.testing.fake_cluster.profiles import Ranges, decodable
from aiokprod.testing.pipes import world_at
from aiokprod.testing.transports import Link, MemoryTransport

if TYPE_CHECKING:
    from aiokprod.testing.fake_cluster.broker import FakeBroker

CLIENT_WAITS_SINCE = {0: 6, 3: 6, 10: 2, 18: 2, 22: 1, 24: 1, 25: 1, 26: 1, 28: 1, 32: 2}
"""First version of an API in which the client must wait for the throttle time (KIP-219). In other
APIs, the client must wait in every version. Source: Java `AbstractResponse.shouldClientThrottle` of
each response."""


class ServerConnection(asyncio.Protocol):
    """A connection to a broker.

    Attributes:
        link: the in-memory link, or None over real sockets.
        session_ends_at: loop time at which the SASL session expires, or None before the
            authentication.
    """

    def __init__(self, broker: FakeBroker, link: Link | None) -> None:
        self.broker = broker
        self.link = link
        self.is_lost = False
        self.session_ends_at: float | None = None
        self.frames: deque[bytes] = deque()
        self._buffer = bytearray()
        self._busy = False
        self._ended = False
        self._response_pending = False
        self._mute_until = 0.0
        self._quiet_from = 0
        self._quiet_until = 0.0
        self._unfinished = bytearray()  # sent bytes of an incomplete frame
        if link is not None:
            link.client.on_write = self._client_writes
        self._ranges: Ranges = {}
        self._decodable: Ranges = {}
        self._transport: asyncio.Transport

    def __repr__(self) -> str:
        return f"<ServerConnection broker {self.broker.broker_id} {self.link!r}>"

    # -- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, because uvloop's transports are not subclasses of asyncio's transports.
        self._transport = cast(asyncio.Transport, transport)
        self.broker.connections.append(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        try:
            self.frames.extend(split_frames(self._buffer))
        except MalformedRequest as error:
            self.broker.cluster.note_violation(f"{self!r}: {error}")
            self.close()
            return
        self.serve_next()

    def eof_received(self) -> bool:
        """Serve the requests received before EOF, like a real broker."""
        self._ended = True
        if self._response_pending:
            self._transport.close()
        elif not self._busy:
            self.serve_next()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self.frames.clear()
        if self in self.broker.connections:
            self.broker.connections.remove(self)

    def close(self) -> None:
        """Close the connection gracefully."""
        self.frames.clear()
        self._transport.close()

    def reset(self) -> None:
        """Reset the connection."""
        self.frames.clear()
        if self.link is not None:
            self.link.reset()
        else:
            self._transport.abort()

    # -- requests -------------------------------------------------------------------------------

    def serve_next(self) -> None:
        """Serve the next request, unless a request is being served or the broker is frozen."""
        while self.frames and not self._busy and not self.is_lost and not self.broker.is_paused:
            wait = self._mute_until - self._time()
            if wait > 0:
                self._busy = True
                self._later(wait, self._idle)
                return
            self._serve(self.frames.popleft())
        if self._ended and not self._busy and not self.broker.is_paused and not self.is_lost:
            self._transport.close()

    def _serve(self, frame: bytes) -> None:
        cluster = self.broker.cluster
        self._busy = True
        try:
            request = read_request(
                frame,
                self._versions(),
                time=self._time(),
                broker_id=self.broker.broker_id,
                connection=self,
            )
        except UnsupportedRequestVersion as refused:
            self._on_unsupported(refused)
            return
        except MalformedRequest as error:
            cluster.note_violation(f"{self!r}: {error}")
            self.close()
            return
        if cluster.sasl is not None and not cluster.sasl.admits(request):
            self.close()
            return
        cluster.note_request(request)
        reaction = cluster.script.reaction_to(request)
        if reaction.gate is not None:
            self.broker.held += 1
            reaction.gate.hold(lambda decided: self._process_held(request, decided))
        elif reaction.before_s > 0:
            self.broker.held += 1
            self._later(reaction.before_s, self._process_held, request, reaction)
        else:
            self._process(request, reaction)

    def _versions(self) -> Ranges:
        """Return the API versions that the broker offers and that this package can decode."""
        ranges = self.broker.profile.ranges
        if ranges is not self._ranges:
            self._ranges, self._decodable = ranges, decodable(ranges)
        return self._decodable

    def _on_unsupported(self, refused: UnsupportedRequestVersion) -> None:
        cluster = self.broker.cluster
        if refused.api_key != API_VERSIONS:
            cluster.note_violation(f"{self!r}: {refused} is not offered")
            self.close()
            return
        cluster.note_refused_api_versions(self.broker.broker_id, refused.version)
        message = api(API_VERSIONS).unsupported(self.broker)
        self._write(write_answer(message, API_VERSIONS, 0, refused.correlation_id))
        self._idle()

    def _process_held(self, request: Request, reaction: Reaction) -> None:
        self.broker.held -= 1
        self._process(request, reaction)

    def _process(self, request: Request, reaction: Reaction) -> None:
        given = Answer(None)
        if reaction.process:
            given = api(request.api_key).handle(self.broker, request)
        if reaction.error is not None:
            given = Answer(api(request.api_key).error(self.broker, request, reaction.error))
        elif reaction.answer is not None:
            given = Answer(reaction.answer)
        wait = given.delay_s + reaction.after_s
        if wait > 0:
            self._later(wait, self._answer, request, reaction, given)
        else:
            self._answer(request, reaction, given)

    def _answer(self, request: Request, reaction: Reaction, given: Answer) -> None:
        if given.close:
            self.close()
            return
        message = given.finish() if given.finish is not None else given.message
        if message is not None and reaction.edit is not None:
            message = reaction.edit(message)
        if message is not None:
            for change in self.broker.cluster.answer_filters:
                message = change(request, message)
        frame = b""
        throttle_s = 0.0
        if message is not None:
            assert isinstance(message, RESPONSES[request.api_key])
            if self.broker.cluster.sasl is None or self.session_ends_at is not None:
                # Quotas apply to a user, so a client is not throttled before its authentication.
                message = self.broker.throttled(message)
            frame = write_answer(message, request.api_key, request.version, request.correlation_id)
            # A response to ApiVersions v0 has no throttle_time_ms, so the client may send at once.
            tells = request.api_key != API_VERSIONS or request.version > 0
            if reaction.is_honest and tells:
                throttle_s = getattr(message, "throttle_time_ms", 0) / 1000
                self._mute_until = self._time() + throttle_s
        if reaction.edit_frame is not None:
            frame = reaction.edit_frame(frame)
        if reaction.raw is not None:
            frame = reaction.raw
        if reaction.silent:
            frame = b""
        if reaction.cut_at is not None:
            self._write_and_cut(frame, reaction.cut_at)
            return
        is_read = self._write(frame)
        if is_read and throttle_s and request.version >= CLIENT_WAITS_SINCE.get(request.api_key, 0):
            self._expect_quiet()
        if reaction.close:
            self.close()
            return
        if reaction.silent:
            # A broker serves no further request of a connection before it has sent the response.
            self._response_pending = True
            return
        self._idle()

    def _expect_quiet(self) -> None:
        """Store the position in the stream after which the client must wait, and until when."""
        self._quiet_from = self._bytes_sent()
        self._quiet_until = self._mute_until

    def _bytes_sent(self) -> int:
        """Return the number of sent bytes that reach the client unless the link fails."""
        if self.link is None:
            return 0
        return self.link.down.taken + self.link.server.get_write_buffer_size()

    def _client_writes(self) -> None:
        if self._time() < self._quiet_until:
            assert self.link is not None, "only called by a link"
            if self.link.down.delivered >= self._quiet_from:
                self.broker.cluster.sends_while_throttled += 1

    def _idle(self) -> None:
        self._busy = False
        self.serve_next()

    def _write(self, data: bytes) -> bool:
        """Write the data. Return True if the client reads them as the start of a frame. Return
        False if the link drops all bytes, or if earlier invalid bytes started a longer frame."""
        if not data or self.is_lost:
            return False
        before = self._bytes_sent()
        self._transport.write(data)
        if self._bytes_sent() == before:
            return False
        unfinished = self._unfinished
        is_beginning = not unfinished
        unfinished += data
        while len(unfinished) >= 4:
            end = 4 + int.from_bytes(unfinished[:4], "big", signed=True)
            if not 4 <= end <= len(unfinished):
                break
            del unfinished[:end]
        return is_beginning

    def _write_and_cut(self, frame: bytes, size: int) -> None:
        if self.is_lost:
            return
        if self.link is None or not isinstance(self._transport, MemoryTransport):
            self._transport.write(frame[:size])
            self._transport.abort()
        elif not frame[:size]:
            self.link.reset()  # even if there is no response to cut
        else:
            self.link.down.cut_at = self.link.down.taken + min(size, len(frame))
            self._transport.write(frame)

    def _later(self, seconds: float, function: Callable[..., object], *args: Any) -> None:
        loop = self.broker.cluster.loop
        when = loop.time() + seconds
        world_at(loop, when, self._unless_dead, self.broker.deaths, function, *args)

    def _unless_dead(self, deaths: int, function: Callable[..., object], *args: Any) -> None:
        """Call the function unless the broker has died. The end of the connection does not matter,
        because a broker serves a request that it has read even if the client is disconnected."""
        if self.broker.deaths != deaths:
            return
        if self.broker.is_paused:
            self.broker.on_resume.append(lambda: self._unless_dead(deaths, function, *args))
        else:
            function(*args)

    def _time(self) -> float:
        return self.broker.cluster.loop.time()
