"""The interface between a connection and its authentication mechanism.

A mechanism does no I/O with the broker: the channel sends its requests and passes it the responses.
A listener without SASL has no authenticator (None). Source: Java `Authenticator`, RFC 4422.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from aiokprod._wire.message import Message
from aiokprod._wire.versions import VersionRanges


@dataclass(frozen=True, slots=True)
class SendToBroker:
    """Next step: send `message` with API version `version`, then pass the response to `receive`."""

    message: Message = field(repr=False)  # holds credentials
    version: int


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The exchange succeeded.

    Attributes:
        session_lifetime_s: seconds until the session expires (KIP-368), 0 = never.
    """

    session_lifetime_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AuthTask:
    """A task computes the next step, for example by calling a token provider or deriving keys.

    Attributes:
        run: returns a coroutine whose result is the next step. The connection runs it in a task
            and cancels the task when it closes. AuthenticationError ends the exchange.
    """

    run: Callable[[], Coroutine[Any, Any, AuthenticationStep]] = field(repr=False)


AuthenticationStep: TypeAlias = SendToBroker | Authenticated | AuthTask


class Authenticator(Protocol):
    """Authenticates one connection. Every re-authentication calls `start` again.

    `start` and `receive` may return None. The code that obtains the next step later must then pass
    it to `KafkaChannel.authentication_step`.
    """

    def start(self, versions: VersionRanges) -> AuthenticationStep | None:
        """Return the first step.

        Args:
            versions: versions of each API that both sides support.

        Raises:
            AuthenticationError: the broker offers no way to authenticate as configured.
        """

    def renewable(self) -> bool:
        """Return True if the connection can be re-authenticated. Brokers reject a change of
        user."""

    def receive(self, response: Message) -> AuthenticationStep | None:
        """Return the step that follows a decoded SaslHandshake or SaslAuthenticate response.

        Raises:
            AuthenticationError: the broker rejected the client or could not authenticate itself.
        """
