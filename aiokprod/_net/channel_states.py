"""The states of a channel, their transitions, and the events that a channel reports.

`channel` looks up the next state in `TRANSITIONS`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from aiokprod._net.authentication import AuthenticationStep
from aiokprod._net.in_flight import InFlightRequest
from aiokprod.errors import KafkaError


class State(enum.Enum):
    """State of a connection."""

    CONNECTING = "connecting"
    CHECKING_API_VERSIONS = "checking_api_versions"
    AUTHENTICATING = "authenticating"
    READY = "ready"
    CLOSING = "closing"
    CLOSED = "closed"


class Event(enum.Enum):
    """Events that change the state of a connection."""

    TRANSPORT_UP = "transport_up"
    VERSION_REFUSED = "version_refused"
    VERSIONS_KNOWN = "versions_known"
    VERSIONS_KNOWN_AUTH = "versions_known_auth"
    AUTHENTICATED = "authenticated"
    REAUTHENTICATE = "reauthenticate"
    CLOSE = "close"
    DRAINED = "drained"
    LOST = "lost"


TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (State.CONNECTING, Event.TRANSPORT_UP): State.CHECKING_API_VERSIONS,
        (State.CONNECTING, Event.LOST): State.CLOSED,
        (State.CHECKING_API_VERSIONS, Event.VERSION_REFUSED): State.CHECKING_API_VERSIONS,
        (State.CHECKING_API_VERSIONS, Event.VERSIONS_KNOWN): State.READY,
        (State.CHECKING_API_VERSIONS, Event.VERSIONS_KNOWN_AUTH): State.AUTHENTICATING,
        (State.CHECKING_API_VERSIONS, Event.LOST): State.CLOSED,
        (State.AUTHENTICATING, Event.AUTHENTICATED): State.READY,
        (State.AUTHENTICATING, Event.LOST): State.CLOSED,
        (State.READY, Event.REAUTHENTICATE): State.AUTHENTICATING,
        (State.READY, Event.CLOSE): State.CLOSING,
        (State.READY, Event.LOST): State.CLOSED,
        (State.CLOSING, Event.DRAINED): State.CLOSED,
        (State.CLOSING, Event.LOST): State.CLOSED,
    }
)
"""All valid transitions. Any other transition is a bug in this package and raises `KeyError`."""


PREPARING: Final = frozenset({State.CONNECTING, State.CHECKING_API_VERSIONS, State.AUTHENTICATING})
"""States before READY."""


class CloseReason(enum.Enum):
    """The reason why a channel is CLOSED."""

    NEVER_CONNECTED = "never_connected"
    DURING_AUTH = "during_auth"
    AUTH_FAILED = "auth_failed"
    IDLE = "idle"
    SEND_FAILED = "send_failed"
    LOCAL = "local"
    EOF = "eof"
    RESET = "reset"
    TIMEOUT = "timeout"
    PROTOCOL = "protocol"


@dataclass(slots=True)
class Ready:
    """The connection accepts requests, after its setup or after a re-authentication."""

    throttle_ms: int = 0


@dataclass(slots=True)
class Completed:
    """A request ended with `body` or `error`. With acks=0, success sets neither."""

    request: InFlightRequest
    body: Any
    error: KafkaError | None


@dataclass(slots=True)
class Closed:
    """The last event of a channel. `error` is None if a READY channel was closed gracefully."""

    reason: CloseReason
    error: KafkaError | None


@dataclass(slots=True)
class AuthTaskRequested:
    """Request to run a task and pass its result to `authentication_step`."""

    run: Callable[[], Coroutine[Any, Any, AuthenticationStep]] = field(repr=False)


ChannelEvent: TypeAlias = Ready | Completed | Closed | AuthTaskRequested
