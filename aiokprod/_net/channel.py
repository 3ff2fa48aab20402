"""One connection as a state machine that uses neither a socket nor a clock.

The caller passes received bytes to `receive_data`, the end of the stream to `receive_eof`, and
requests to `send`. `data_to_send` returns the bytes to write, and `events` contains the events. A
channel serves one TCP connection; `NetworkClient` reconnects. Source: Java `KafkaChannel`,
`NetworkClient` (version discovery, completed receives), `InFlightRequests`; KIP-35, KIP-511.
"""

from __future__ import annotations

import math
from collections import deque
from types import MappingProxyType
from typing import Final

from aiokprod._metrics.counters import NodeCounters
from aiokprod._net.authentication import Authenticated, AuthenticationStep, Authenticator, AuthTask
from aiokprod._net.channel_states import (
    PREPARING,
    TRANSITIONS,
    AuthTaskRequested,
    ChannelEvent,
    Closed,
    CloseReason,
    Completed,
    Event,
    Ready,
    State,
)
from aiokprod._net.in_flight import InFlightRequest, InFlightRequests, OnDone
from aiokprod._net.node_api_versions import (
    NO_FEATURES,
    decode_versions,
    finalized_features,
    next_version,
    shared_ranges,
)
from aiokprod._net.throttle import client_waits, throttle_ms
from aiokprod._net.tls import tls_failure
from aiokprod._wire.frames import FrameReader
from aiokprod._wire.headers import API_VERSIONS, decode_response_header, encode_request
from aiokprod._wire.message import Message
from aiokprod._wire.messages import REQUESTS, RESPONSES
from aiokprod._wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from aiokprod._wire.primitives import BytesLike
from aiokprod._wire.versions import VersionRanges, broker_ranges, negotiate
from aiokprod.errors import (
    AuthenticationError,
    Code,
    CorrelationMismatch,
    DecodeError,
    Disconnected,
    FrameTooLarge,
    KafkaError,
    NotReady,
    Outcome,
    ProtocolError,
    UnsupportedVersion,
    error_code,
)

SOFTWARE_NAME: Final = "aiokprod"

HANDSHAKE_MAX_BYTES: Final = 1 << 20
"""Maximum size of a response before READY. Such responses are small, and the peer is not
authenticated yet (F62 in docs/faults.md)."""

_MAX_CORRELATION_ID: Final = 0x7FFF_FFFF
_NO_VERSIONS: Final[VersionRanges] = MappingProxyType({})


class KafkaChannel:
    """One connection without its transport.

    Args:
        peer: name of the broker in error texts.
        max_in_flight: maximum number of requests in flight.
        receive_max_bytes: maximum size of a response once READY; `HANDSHAKE_MAX_BYTES` applies
            earlier, if it is smaller.
        software_version: for ApiVersions; brokers accept only `[a-zA-Z0-9.-]` (KIP-511).
        authenticator: None for listeners without SASL.
        is_kafka: True if an earlier connection to this address was READY.
        counters: counts the requests and bytes of the connection.

    Attributes:
        is_kafka: True if the address is known to be a Kafka listener that fits this client's
            configuration. Error texts then do not suggest checking that.
        state: changed by `_advance` only.
        versions: versions of each API that both sides support; empty before ApiVersions.
        features: finalized levels of cluster features, from this broker (KIP-584).
        close_reason: set once CLOSED.
        events: pending events, oldest first. The owner of the channel removes them from the left.
        session_lifetime_s: lifetime of the authenticated session in seconds; 0 = no limit.
        held: True from `hold` until the session is renewed; no requests are accepted.
    """

    def __init__(
        self,
        *,
        peer: str,
        client_id: str,
        max_in_flight: int,
        receive_max_bytes: int,
        software_version: str,
        authenticator: Authenticator | None = None,
        is_kafka: bool = False,
        counters: NodeCounters | None = None,
    ) -> None:
        self.peer = peer
        self.is_kafka = is_kafka
        self.counters = counters or NodeCounters()
        self.state = State.CONNECTING
        self.versions: VersionRanges = _NO_VERSIONS
        self.features = NO_FEATURES
        self.in_flight = InFlightRequests(max_in_flight)
        self.close_reason: CloseReason | None = None
        self.events: deque[ChannelEvent] = deque()
        self.session_lifetime_s = 0.0
        self._broker_ranges: VersionRanges = _NO_VERSIONS
        self._client_id = client_id
        self._receive_max_bytes = receive_max_bytes
        self._software_version = software_version
        self._authenticator = authenticator
        self._reader = FrameReader(min(receive_max_bytes, HANDSHAKE_MAX_BYTES))
        self._correlation_id = 0
        self._handshake_deadline = 0.0
        self._authentication_timeout = math.inf
        self.held = False
        self._outgoing: list[BytesLike] = []
        self._unsent: list[InFlightRequest] = []

    def __repr__(self) -> str:
        reason = "" if self.close_reason is None else f", {self.close_reason.value}"
        return f"<KafkaChannel {self.peer} {self.state.value}{reason}, {len(self.in_flight)} open>"

    # -- predicates -----------------------------------------------------------------------------

    @property
    def can_send(self) -> bool:
        """True if the channel accepts a request now. The transport and throttling are ignored."""
        return self.state is State.READY and not self.held and not self.in_flight.full

    @property
    def reauthentication_due(self) -> bool:
        """True if `hold` was called and all requests have ended, so `reauthenticate` may be
        called."""
        return self.held and self.state is State.READY and not self.in_flight

    @property
    def handshake_deadline(self) -> float:
        """Loop time by which the ApiVersions exchange or the authentication must end."""
        return self._handshake_deadline

    @property
    def closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def preparing(self) -> bool:
        """True in the states before READY."""
        return self.state in PREPARING

    def negotiate(self, api_key: int, max_version: int | None = None) -> int:
        """Return the highest version of an API that both sides and `max_version` allow.

        Raises:
            UnsupportedVersion: no version fits; nothing was sent.
        """
        shared = self.versions.get(api_key)
        if shared is not None:
            oldest, newest = shared
            if max_version is None or max_version >= newest:
                return newest
            if max_version >= oldest:
                return max_version
        # No version fits. This call raises UnsupportedVersion with the ranges of both sides.
        return negotiate(api_key, self._broker_ranges, max_version=max_version)

    # -- actions of this side -------------------------------------------------------------------

    def transport_up(
        self, now: float, deadline: float, *, authentication_timeout: float = math.inf
    ) -> None:
        """Request the broker's API versions, once the transport is connected.

        Args:
            deadline: loop time by which the ApiVersions exchange must end.
            authentication_timeout: seconds for the authentication that follows.
        """
        self._advance(Event.TRANSPORT_UP)
        self._handshake_deadline = deadline
        self._authentication_timeout = authentication_timeout
        self._request_versions(ApiVersionsRequest.max_version, now)

    def send(
        self,
        message: Message,
        version: int,
        on_done: OnDone,
        *,
        now: float,
        deadline: float,
        expect_response: bool = True,
    ) -> InFlightRequest:
        """Encode a request and queue its bytes. If encoding fails, nothing changes.

        Raises:
            NotReady: `can_send` is false (a bug in the caller).
            KafkaError: the message cannot be encoded in this version.
        """
        if self.state is not State.READY or self.held or self.in_flight.full:
            raise NotReady(f"{self!r} cannot take {type(message).__name__}")
        return self._enqueue(message, version, on_done, now, deadline, expect_response)

    @property
    def has_output(self) -> bool:
        """True if `data_to_send` would return anything."""
        return bool(self._outgoing)

    def data_to_send(self) -> list[BytesLike]:
        """Take the chunks to write. The broker may receive their requests from now on."""
        chunks, self._outgoing = self._outgoing, []
        self.counters.network_bytes_out += sum(map(len, chunks))
        for request in self._unsent:
            request.maybe_written = True
        self._unsent.clear()
        return chunks

    def write_completed(self) -> None:
        """Complete the newest request if it expects no response, once all its bytes have been
        written.

        Older requests may still be waiting for their responses.
        """
        request = self.in_flight.complete_written()
        if request is not None:
            self.events.append(Completed(request, None, None))
            if self.state is State.CLOSING:
                self._close_if_drained()

    def close(self) -> None:
        """Accept no more requests, and close once the requests in flight have ended. Before READY,
        the channel closes at once. Idempotent."""
        if self.state is State.READY:
            self._advance(Event.CLOSE)
            self._close_if_drained()
        elif self.state is not State.CLOSING:
            self.fail(
                CloseReason.LOCAL, Disconnected(f"connection to {self.peer} closed by client")
            )

    def fail(self, reason: CloseReason, error: KafkaError) -> None:
        """Close at once. All requests in flight end with `error`, oldest first. Does nothing if the
        channel is CLOSED."""
        if self.closed:
            return
        self._advance(Event.LOST)
        self.close_reason = reason
        for request in self.in_flight.clear():
            if request.on_done is not None:
                self.events.append(Completed(request, None, _error_for(request, error)))
        self._outgoing.clear()
        self._unsent.clear()
        self.events.append(Closed(reason, error))

    @property
    def authenticates(self) -> bool:
        """True if the connection uses SASL."""
        return self._authenticator is not None

    @property
    def renewable(self) -> bool:
        """True if `reauthenticate` can succeed; otherwise a new connection is needed."""
        return self._authenticator is not None and self._authenticator.renewable()

    def hold(self) -> None:
        """Accept no more requests until re-authentication, which starts once the requests in flight
        have ended. Does nothing without SASL."""
        self.held = self._authenticator is not None

    def reauthenticate(self, now: float, deadline: float) -> None:
        """Authenticate again. No requests are accepted until the authentication ends (KIP-368).

        Raises:
            NotReady: requests are in flight; their frames must not mix with SASL frames.
        """
        if self.in_flight:
            raise NotReady(f"{self!r} cannot re-authenticate")
        self._advance(Event.REAUTHENTICATE)
        self._handshake_deadline = deadline
        try:
            self._start_authentication(now)
        except AuthenticationError as error:
            self.fail(CloseReason.AUTH_FAILED, error)

    def authentication_step(self, step: AuthenticationStep | None, now: float) -> None:
        """Execute a step of the authentication. None means that the step is not known yet."""
        if step is None or self.state is not State.AUTHENTICATING:
            return
        if isinstance(step, Authenticated):
            self._advance(Event.AUTHENTICATED)
            self.session_lifetime_s = step.session_lifetime_s
            self.held = False
            self._become_ready(0)
        elif isinstance(step, AuthTask):
            self.events.append(AuthTaskRequested(step.run))
        else:
            self._enqueue(step.message, step.version, None, now, self._handshake_deadline, True)

    # -- events of the peer ---------------------------------------------------------------------

    def receive_data(self, data: BytesLike, now: float) -> None:
        """Process all complete frames, and buffer an incomplete frame until more bytes arrive.

        Bytes that violate the protocol close the channel. A CLOSED channel ignores received bytes,
        because its requests have ended.
        """
        if self.state is State.CLOSED:
            return
        self.counters.network_bytes_in += len(data)
        try:
            for frame in self._reader.feed(data):
                self._receive_frame(frame, now)
        except AuthenticationError as error:
            # Drop the traceback: its frames hold `data`, which contains the secret if the broker
            # sends it back.
            self.fail(CloseReason.AUTH_FAILED, error.with_traceback(None))
        except KafkaError as error:
            if self.state is State.AUTHENTICATING:
                error.__traceback__ = error.__context__ = None  # they may hold the secret too
            self.fail(CloseReason.PROTOCOL, self._named(error))

    def receive_eof(self, cause: Exception | None = None) -> None:
        """Close the channel after the end of the stream, or after a connection error if `cause` is
        given. An incomplete frame is dropped."""
        if self.closed:
            return
        how = "closed the connection" if cause is None else f"connection broken: {cause}"
        reason = CloseReason.EOF if cause is None else CloseReason.RESET
        if self.state is State.CONNECTING:
            reason = CloseReason.NEVER_CONNECTED
        elif self.state is State.CHECKING_API_VERSIONS:
            how += " before responding to ApiVersions"
            if not self.is_kafka:
                how += (
                    "; is the port a TLS or SASL listener, does it require a client certificate, "
                    "or is it not a Kafka broker?"
                )
        elif self.state is State.AUTHENTICATING:
            reason = CloseReason.DURING_AUTH
            how += " during authentication"
            if not self.is_kafka:
                how += "; the credentials or the listener may be wrong"
        error: KafkaError = Disconnected(f"{self.peer}: {how}")
        # In TLS 1.3 the client completes the handshake before the broker has checked the client
        # certificate. A rejection therefore arrives after the connection seems to be established.
        # Report it as an authentication failure.
        refused = None if cause is None or not self.preparing else tls_failure(cause, self.peer)
        if refused is not None:
            reason, error = CloseReason.AUTH_FAILED, refused
        error.__cause__ = cause
        self.fail(reason, error)

    # -- internals ------------------------------------------------------------------------------

    def _named(self, error: KafkaError) -> KafkaError:
        """Return the error with the peer's name in its text, which the wire layer cannot add."""
        if self.peer in error.message:
            return error
        text = error.message
        if isinstance(error, FrameTooLarge):
            small = self._reader.max_bytes < self._receive_max_bytes
            text += " until the handshake is done" if small else " (receive_max_bytes)"
        named = type(error)(f"{self.peer}: {text}")
        named.__cause__ = error
        return named

    def _advance(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state, event]

    def _enqueue(
        self,
        message: Message,
        version: int,
        on_done: OnDone | None,
        now: float,
        deadline: float,
        expect_response: bool,
    ) -> InFlightRequest:
        correlation_id = self._correlation_id
        chunks = encode_request(message, version, correlation_id, self._client_id)
        self._correlation_id = 0 if correlation_id == _MAX_CORRELATION_ID else correlation_id + 1
        request = InFlightRequest(
            correlation_id, message.api_key, version, on_done, now, deadline, expect_response
        )
        self.in_flight.add(request)
        self.counters.requests_sent += 1
        self._unsent.append(request)
        # Leave out empty chunks: in CPython 3.12+, an empty chunk that remains after a partial
        # write causes a busy loop.
        self._outgoing.extend(filter(len, chunks))
        return request

    def _receive_frame(self, frame: BytesLike, now: float) -> None:
        request = self.in_flight.oldest
        if request is None:
            raise ProtocolError(f"{self.peer} sent {len(frame)} bytes without a request")
        correlation_id, body = decode_response_header(frame, request.api_key, request.version)
        if correlation_id != request.correlation_id or not request.expect_response:
            raise CorrelationMismatch(
                f"{self.peer} responded to request {correlation_id} where the response to "
                f"{_api_name(request.api_key)} request {request.correlation_id} was due"
            )
        self.counters.responses_received += 1
        if self.state is State.CHECKING_API_VERSIONS:
            answer = decode_versions(body, request.version)
            self.in_flight.complete_next()
            self._on_versions(answer, request.version, now)
            return
        message = RESPONSES[request.api_key].decode(body, request.version)
        self.in_flight.complete_next()
        if request.on_done is not None:
            self.events.append(Completed(request, message, None))
            if self.state is State.CLOSING:
                self._close_if_drained()
        else:
            assert self._authenticator is not None
            self.authentication_step(self._authenticator.receive(message), now)

    def _request_versions(self, version: int, now: float) -> None:
        message = ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version=self._software_version
        )
        self._enqueue(message, version, None, now, self._handshake_deadline, True)

    def _on_versions(self, answer: ApiVersionsResponse, asked: int, now: float) -> None:
        if answer.error_code == Code.UNSUPPORTED_VERSION:
            version = next_version(asked, answer)
            if version is None:
                raise UnsupportedVersion(
                    f"{self.peer} refuses every ApiVersions version this client knows "
                    f"(0 to {ApiVersionsRequest.max_version}); Kafka 0.10 or later is needed"
                )
            self._advance(Event.VERSION_REFUSED)
            self._request_versions(version, now)
        elif answer.error_code != Code.NONE:
            code = error_code(answer.error_code)
            raise ProtocolError(f"{self.peer} refused ApiVersions: {code.text}", code=code)
        elif not answer.api_keys:
            # A null list is decoded as an empty list. Do not report the broker as too old because
            # of it, which would end the producer.
            raise DecodeError(f"{self.peer} lists no API in its ApiVersions response")
        else:
            self._broker_ranges = broker_ranges(answer)
            self.versions = shared_ranges(self._broker_ranges)
            self.features = finalized_features(answer)
            if self._authenticator is None:
                self._advance(Event.VERSIONS_KNOWN)
                throttle = throttle_ms(answer) if client_waits(API_VERSIONS, asked) else 0
                self._become_ready(throttle)
            else:
                self._advance(Event.VERSIONS_KNOWN_AUTH)
                self._handshake_deadline = now + self._authentication_timeout
                self._start_authentication(now)

    def _start_authentication(self, now: float) -> None:
        assert self._authenticator is not None
        self.authentication_step(self._authenticator.start(self.versions), now)

    def _become_ready(self, throttle_ms: int) -> None:
        self._reader.max_bytes = self._receive_max_bytes
        self.events.append(Ready(throttle_ms))

    def _close_if_drained(self) -> None:
        """Change a CLOSING channel to CLOSED if no request is in flight."""
        if not self.in_flight:
            self._advance(Event.DRAINED)
            self.close_reason = CloseReason.LOCAL
            self.events.append(Closed(CloseReason.LOCAL, None))


def _api_name(api_key: int) -> str:
    message = REQUESTS.get(api_key)
    return f"API {api_key}" if message is None else message.__name__.removesuffix("Request")


def _error_for(request: InFlightRequest, error: KafkaError) -> KafkaError:
    """Return the error of a request that was in flight when the connection failed.

    A protocol error becomes retriable, because the request may succeed on another connection (F61
    and F63 in docs/faults.md).
    """
    return error.copy().with_(
        outcome=Outcome.UNKNOWN if request.maybe_written else Outcome.NOT_SENT,
        retriable=error.retriable or isinstance(error, ProtocolError),
    )
