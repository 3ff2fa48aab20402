"""Connects one asyncio transport with one `KafkaChannel`, with flow control and one timer.

Received bytes are processed before timeouts are applied, and frames before the end of the stream.
State changes before callbacks run. Source: Java `Selector`, `NetworkClient.poll`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from aiokprod._log_fields import log_fields
from aiokprod._net.authentication import AuthenticationStep
from aiokprod._net.channel import KafkaChannel
from aiokprod._net.channel_states import (
    AuthTaskRequested,
    Closed,
    CloseReason,
    Completed,
    Ready,
    State,
)
from aiokprod._net.in_flight import OnDone, Response
from aiokprod._net.throttle import client_waits, throttle_ms
from aiokprod._wire.message import Message
from aiokprod.errors import (
    AuthenticationError,
    Disconnected,
    KafkaError,
    NotReady,
    Outcome,
    ProtocolError,
    RequestTimedOut,
)

log = logging.getLogger(__name__)

TIMER_SLACK: Final = 0.001
"""Tolerance in seconds: a deadline this close counts as reached, because uvloop rounds timers to a
millisecond."""

_QUIET_PASSES: Final = 2
"""Consecutive iterations of the event loop without a read before a timeout is applied. One is not
enough: in each iteration, asyncio runs callbacks that were queued earlier before it reads, and
uvloop runs timers before it polls."""

_STALL: Final = 0.1
"""Delay of a timer, in seconds, above which the event loop counts as blocked."""

_STALL_GRACE: Final = 1.0
"""Maximum extension, in seconds, of a deadline that passed while the loop was blocked. The request
may still have been in the write buffer. Each deadline is extended once, so every request ends."""

_MAX_PASSES: Final = 64
"""Maximum number of event-loop iterations before a timeout is applied. 64 reads of 256 KiB receive
the largest frame that the default configuration accepts."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Timing of re-authentication (KIP-368).

    Attributes:
        share: fraction of the session lifetime after which to re-authenticate, below 1.
        timeout: timeout of one re-authentication in seconds.
    """

    share: float = 0.9
    timeout: float = 10.0


_ENDLESS: Final = SessionLimits()
_LONGEST_SESSION: Final = 365 * 86_400.0


class ConnectionOwner(Protocol):
    """Receives the events of a connection. The connection's state is consistent in every call."""

    def connection_ready(self, connection: Connection) -> None:
        """Called when the channel becomes READY for the first time."""

    def connection_throttled(self, connection: Connection, seconds: float) -> None:
        """Called when the broker throttles this client: send no request for `seconds`."""

    def connection_progress(self, connection: Connection) -> None:
        """Called when a request may be accepted again: responses were processed, the write buffer
        drained, or the session was renewed."""

    def connection_closed(
        self, connection: Connection, reason: CloseReason, error: KafkaError | None
    ) -> None:
        """Called when the channel is CLOSED and its requests in flight have ended."""

    def transport_closed(self, connection: Connection) -> None:
        """Called when the transport is closed, or when the authentication task has ended after
        that."""

    def callback_failed(self, error: BaseException) -> None:
        """Called when an `on_done` callback raised, which is a bug outside the network layer."""


class Connection(asyncio.Protocol):
    """One connection to one node.

    Args:
        max_idle: seconds without traffic after which the connection closes; inf = never.
        request_timeout: minimum timeout of the ApiVersions request, in seconds.
        address: host and port of the node.

    Attributes:
        setup_deadline: loop time by which the transport must be connected, including TLS.
        throttled_until: loop time before which no request may be sent.
        was_up: True once the transport was established.
        was_ready: True once the channel was READY.
    """

    __slots__ = (
        "_dispatching",
        "_last_activity",
        "_loop",
        "_max_idle",
        "_owner",
        "_paused",
        "_reads",
        "_request_timeout",
        "_session",
        "_session_timer",
        "_setup_timeout",
        "_task",
        "_timer",
        "_timer_at",
        "_transport",
        "address",
        "channel",
        "node_id",
        "setup_deadline",
        "throttled_until",
        "was_ready",
        "was_up",
    )

    def __init__(
        self,
        node_id: int,
        channel: KafkaChannel,
        loop: asyncio.AbstractEventLoop,
        owner: ConnectionOwner,
        max_idle: float = math.inf,
        session: SessionLimits = _ENDLESS,
        request_timeout: float = 0.0,
        address: tuple[str, int] = ("", 0),
    ) -> None:
        self.node_id = node_id
        self.address = address
        self.channel = channel
        self.setup_deadline = math.inf
        self._setup_timeout = math.inf
        self._request_timeout = request_timeout
        self.throttled_until = -math.inf
        self.was_up = False
        self.was_ready = False
        self._loop = loop
        self._owner = owner
        self._max_idle = max_idle
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._dispatching = False
        self._reads = 0
        self._last_activity = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._session = session
        self._session_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[AuthenticationStep] | None = None

    def __repr__(self) -> str:
        paused = ", paused" if self._paused else ""
        return f"<Connection {self.channel!r}{paused}>"

    @property
    def gone(self) -> bool:
        """True if the channel is CLOSED and there is no transport and no task, so no more events
        follow."""
        return self.channel.closed and self._transport is None and self._task is None

    # -- called by the client -------------------------------------------------------------------

    def begin_setup(self, now: float, timeout: float) -> None:
        """Set the setup deadlines. Called before dialling.

        Args:
            timeout: seconds to connect the transport, and again the same time to authenticate.
        """
        self._setup_timeout = timeout
        self.setup_deadline = now + timeout

    def can_send(self, now: float) -> bool:
        """Return True if the channel accepts a request, the client is not throttled, and the
        previous request is completely written."""
        return not self._paused and self.channel.can_send and now >= self.throttled_until

    def send(
        self,
        request: Any,
        on_done: OnDone,
        now: float,
        *,
        timeout: float,
        max_version: int | None = None,
        expect_response: bool = True,
    ) -> None:
        """Encode and write a request. `can_send` must be true.

        Args:
            request: a wire message, or a callable `(version) -> message` with an attribute
                `api_key` if the body depends on the version.
            on_done: called exactly once with the `Response`, never inside this call. If encoding
                fails, the response has an error and `maybe_written` is false. If no version could
                be chosen, its `version` is -1.
            timeout: seconds after which the connection is closed if there is no response.
            max_version: upper limit for the negotiated version.
            expect_response: False for acks=0: the request completes when its bytes have been
                written.

        Raises:
            NotReady: `can_send` is false (a bug in the caller).
        """
        channel = self.channel
        # Read `api_key` outside the `try`, so that a request without it raises: this is a bug in
        # the caller.
        api_key = request.api_key
        version = -1
        deadline = now + timeout
        try:
            version = channel.negotiate(api_key, max_version)
            message = request if isinstance(request, Message) else request(version)
            # Set the timer before `channel.send`. If that fails (closed loop), no request is
            # registered yet.
            self._arm(deadline)
            channel.send(
                message,
                version,
                on_done,
                now=now,
                deadline=deadline,
                expect_response=expect_response,
            )
        except NotReady:
            raise
        except Exception as error:
            failure = _encoding_error(channel.peer, error)
            response = Response(self.node_id, version, None, failure, False, 0.0)
            self._loop.call_soon(self._report_unsent, on_done, response)
            return
        self._last_activity = now
        if self._flush():
            if expect_response:
                return
            channel.write_completed()
        if channel.events:
            self._loop.call_soon(self._pump)

    def close(self) -> None:
        """Close once the requests in flight have ended. Before READY, close at once."""
        self.channel.close()
        self._pump()

    def fail(self, reason: CloseReason, error: KafkaError) -> None:
        """Close at once. Requests in flight end with `error`."""
        self.channel.fail(reason, error)
        self._pump()

    def abort_transport(self) -> None:
        """Close the transport at once and discard its write buffer."""
        if self._transport is not None:
            self._transport.abort()

    def drop_transport(self) -> None:
        """Abort and drop the transport, if any, after a failed dial. The transport may not call
        `connection_lost`; uvloop's does not if the dial task was cancelled after
        `connection_made`."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def postpone(self, seconds: float) -> None:
        """Postpone the deadlines of all requests in flight."""
        self.channel.in_flight.postpone(seconds)

    # -- asyncio.Protocol -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Cast instead of checking the type: uvloop's transports do not derive from asyncio's.
        transport = self._transport = cast(asyncio.Transport, transport)
        self.was_up = True
        if self.channel.closed:
            transport.abort()
            return
        # With a limit of 0, writing is paused exactly while the last request is not completely
        # written.
        transport.set_write_buffer_limits(high=0)
        now = self._last_activity = self._loop.time()
        # As in Java, the request timeout applies to ApiVersions, and the setup timeout to SASL.
        deadline = max(self.setup_deadline, now + self._request_timeout)
        self.channel.transport_up(now, deadline, authentication_timeout=self._setup_timeout)
        self._arm(deadline)
        self._pump()

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        if self.channel.state is not State.AUTHENTICATING:
            # Re-authentication does not count as activity: it must not keep an unused connection
            # open.
            self._last_activity = now
        self._reads += 1
        try:
            self.channel.receive_data(data, now)
        except Exception as error:
            log.exception(
                "%s: cannot process received data", self.channel.peer,
                extra=log_fields("response_not_processed", error=error, node_id=self.node_id),
            )  # fmt: skip
            failure = ProtocolError(f"{self.channel.peer}: cannot process received data: {error!r}")
            failure.__cause__ = error
            self.channel.fail(CloseReason.PROTOCOL, failure)
        if self.channel.state is State.AUTHENTICATING:
            self._arm(self._next_deadline())  # the timer is still set for the ApiVersions exchange
        self._pump()

    def eof_received(self) -> bool:
        self.channel.receive_eof()
        self._pump()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.channel.receive_eof(exc)
        self._pump()
        self._owner.transport_closed(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.channel.write_completed()
        self._pump()
        self._owner.connection_progress(self)

    # -- internals ------------------------------------------------------------------------------

    def _flush(self) -> bool:
        """Write the output of the channel. Return True if the transport has written all of it."""
        transport = self._transport
        # Requests that are still queued in the channel end as not written in `connection_lost`.
        if transport is None or transport.is_closing():
            return False
        try:
            transport.writelines(self.channel.data_to_send())
        except Exception as error:
            failure = Disconnected(f"{self.channel.peer}: cannot write: {error}")
            # Drop the traceback: its frames hold the written bytes, which may contain credentials.
            error.__traceback__ = error.__context__ = None
            failure.__cause__ = error
            self.channel.fail(CloseReason.SEND_FAILED, failure)
            return False
        if transport.is_closing():
            return False  # the write failed and emptied the buffer; `connection_lost` follows
        if not self._paused and transport.get_write_buffer_size():
            # `writelines` of CPython 3.12.0-3.12.8 and 3.13.0-3.13.1 does not call `pause_writing`
            # (CVE-2024-12254). Setting the limits makes the transport check again.
            transport.set_write_buffer_limits(high=0)
        return not self._paused

    def _pump(self) -> None:
        """Dispatch the events of the channel and write its output. A nested call returns at once;
        the outer call continues."""
        if self._dispatching:
            return
        self._dispatching = True
        progress = False
        channel = self.channel
        try:
            while True:
                if channel.has_output:
                    self._flush()
                while channel.events:
                    event = channel.events.popleft()
                    if isinstance(event, Completed):
                        progress = True
                        self._complete(event)
                    elif isinstance(event, Ready):
                        self._become_ready(event)
                    elif isinstance(event, AuthTaskRequested):
                        self._work(event)
                    else:
                        self._close(event)
                # Check this last, because a response may just have started throttling. Testing
                # `held` first avoids a property call in most iterations.
                if not (channel.held and channel.reauthentication_due):
                    break
                if not self._reauthenticate():
                    break
        finally:
            self._dispatching = False
        if progress:
            self._owner.connection_progress(self)

    def _complete(self, event: Completed) -> None:
        request = event.request
        throttle = throttle_ms(event.body)
        if throttle and client_waits(request.api_key, request.version):
            self._owner.connection_throttled(self, throttle / 1000)
        response = Response(
            self.node_id,
            request.version,
            event.body,
            event.error,
            request.maybe_written,
            self._loop.time() - request.created,
            throttle,
        )
        assert request.on_done is not None
        self._deliver(request.on_done, response)

    def _report_unsent(self, on_done: OnDone, response: Response) -> None:
        self._deliver(on_done, response)
        self._owner.connection_progress(self)

    def _deliver(self, on_done: OnDone, response: Response) -> None:
        try:
            on_done(response)
        except BaseException as error:
            self._owner.callback_failed(error)
            if not isinstance(error, Exception):
                raise  # an exception raised by a signal handler, such as KeyboardInterrupt

    def _become_ready(self, event: Ready) -> None:
        lifetime = self.channel.session_lifetime_s
        if lifetime > 0:
            delay = min(lifetime, _LONGEST_SESSION) * self._session.share
            self._session_timer = self._loop.call_later(delay, self._session_ends)
        if self.was_ready:
            log.debug(
                "%s: authenticated again", self.channel.peer,
                extra=log_fields("authenticated_again", node_id=self.node_id),
            )  # fmt: skip
            self.channel.counters.reauthentications += 1
            self._owner.connection_progress(self)
            return
        self.was_ready = True
        if event.throttle_ms:
            self._owner.connection_throttled(self, event.throttle_ms / 1000)
        self._owner.connection_ready(self)

    def _close(self, event: Closed) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._session_timer is not None:
            self._session_timer.cancel()
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            if event.error is None:
                self._transport.close()
            else:
                self._transport.abort()
        self._owner.connection_closed(self, event.reason, event.error)

    # -- authentication -------------------------------------------------------------------------

    def _session_ends(self) -> None:
        self._session_timer = None
        self.channel.hold()
        self._pump()

    def _reauthenticate(self) -> bool:
        """Start a re-authentication, or close if the session cannot be renewed. Return False, and
        try again later, while the broker throttles this client and therefore reads nothing."""
        if not self.channel.renewable:
            self.channel.close()
            return True
        now = self._loop.time()
        if now < self.throttled_until:
            if self._session_timer is None:
                self._session_timer = self._loop.call_at(self.throttled_until, self._session_ends)
            return False
        deadline = now + self._session.timeout
        self.channel.reauthenticate(now, deadline)
        self._arm(deadline)
        return True

    def _work(self, event: AuthTaskRequested) -> None:
        self._task = self._loop.create_task(
            event.run(), name=f"aiokprod-authenticate-{self.node_id}"
        )
        self._task.add_done_callback(self._work_done)

    def _work_done(self, task: asyncio.Task[AuthenticationStep]) -> None:
        self._task = None
        failure = _refusal(task, self.channel.peer)
        if failure is None:
            self.channel.authentication_step(task.result(), self._loop.time())
        else:
            self.channel.fail(CloseReason.AUTH_FAILED, failure)
        self._pump()
        if self.gone:
            self._owner.transport_closed(self)

    # -- the timer ------------------------------------------------------------------------------
    # One timer handle is set for the earliest deadline. It is not moved when requests end, so that
    # responses need no timer call. On a quiet connection it fires too early at most once.

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
        self._timer_at = when
        self._timer = None if when == math.inf else self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        late = self._loop.time() - self._timer_at
        self._loop.call_soon(self._judge, late, _MAX_PASSES, 0, self._reads)

    def _next_deadline(self) -> float:
        """Return the time of the next timeout: of a request, otherwise of the authentication,
        otherwise of the idle connection."""
        deadline = self.channel.in_flight.earliest_deadline()
        if deadline is None and self.channel.state is State.AUTHENTICATING:
            return self.channel.handshake_deadline
        return self._last_activity + self._max_idle if deadline is None else deadline

    def _judge(self, late: float, passes: int, quiet: int, reads: int) -> None:
        """Close the connection if a deadline has passed, after reading the bytes that have arrived.

        If the loop was blocked, the response may be in the socket and take several reads.
        """
        if self.channel.closed:
            return
        now = self._loop.time()
        if self._next_deadline() > now + TIMER_SLACK:
            self._arm(self._next_deadline())
            return
        quiet = quiet + 1 if self._reads == reads else 0
        if quiet < _QUIET_PASSES and passes > 0:
            self._loop.call_soon(self._judge, late, passes - 1, quiet, self._reads)
        elif self.channel.in_flight:
            grace = now + min(late, _STALL_GRACE)
            if late > _STALL and self.channel.in_flight.excuse(now, grace):
                self._arm(self._next_deadline())
            else:
                self.fail(CloseReason.TIMEOUT, self._timed_out(now))
        elif self.channel.state is State.AUTHENTICATING:
            slow = "authentication is not done in time; does the token provider hang?"
            failure = AuthenticationError(f"{self.channel.peer}: {slow}")
            self.fail(CloseReason.AUTH_FAILED, failure)
        else:
            idle = Disconnected(f"{self.channel.peer}: closed after {self._max_idle:g} s idle")
            self.fail(CloseReason.IDLE, idle)

    def _timed_out(self, now: float) -> RequestTimedOut:
        oldest = self.channel.in_flight.oldest
        waited = 0.0 if oldest is None else now - oldest.created
        hint = ""
        checking = self.channel.state is State.CHECKING_API_VERSIONS
        if checking and not self.channel.is_kafka:
            hint = "; is the port a TLS listener, or not a Kafka broker?"
        return RequestTimedOut(
            f"{self.channel.peer} did not respond to the oldest of {len(self.channel.in_flight)} "
            f"requests within {waited:.3f} s{hint}"
        )


def _refusal(task: asyncio.Task[AuthenticationStep], peer: str) -> KafkaError | None:
    """Return the error of a task that returned no step, or None. Of a third-party error, only the
    class is included, because its text may contain a token."""
    if task.cancelled():
        return AuthenticationError(f"{peer}: the authentication was cancelled")
    error = task.exception()
    if error is None:
        return None
    if isinstance(error, AuthenticationError):
        return AuthenticationError(f"{peer}: {error.message}", code=error.code)
    return AuthenticationError(f"{peer}: authentication failed with {type(error).__name__}")


def _encoding_error(peer: str, error: Exception) -> KafkaError:
    """Return the error of a request that could not be encoded. The connection stays usable."""
    if isinstance(error, KafkaError):
        return error
    failure = ProtocolError(
        f"cannot encode a request for {peer}: {error!r}", outcome=Outcome.NOT_SENT
    )
    failure.__cause__ = error
    return failure
