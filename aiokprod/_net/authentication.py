"""The interface between a connection and its authentication mechanism.

A mechanism does no I/O with the broker: the channel sends its requests and passes it the responses.
For a listener without SASL there is no authenticator (None). Source: Java `Authenticator`,
RFC 4422.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from aiokprod._wire.message import Message
from aiokprod._wire.versions import VersionRanges


@dataclass(frozen=True, slots=True)
class SendToBroker:
    """The exchange continues: send `message` in `version`, then pass the response to `receive`."""

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
    """The next step takes time, for example a call of a token provider, or key derivation in a
    thread.

    Attributes:
        run: returns a coroutine whose result is the step. It runs in a task of the connection,
            which is cancelled when the connection closes. AuthenticationError ends the exchange.
    """

    run: Callable[[], Coroutine[Any, Any, AuthenticationStep]] = field(repr=False)


AuthenticationStep: TypeAlias = SendToBroker | Authenticated | AuthTask


class Authenticator(Protocol):
    """One exchange on one connection. Every re-authentication calls `start` again.

    Both methods may return None; the code that obtains the next step later must then call
    `KafkaChannel.authentication_step`.
    """

    def start(self, versions: VersionRanges) -> AuthenticationStep | None:
        """The first step.

        Args:
            versions: versions of each API that both sides support.

        Raises:
            AuthenticationError: the broker offers no way to authenticate as configured.
        """

    def renewable(self) -> bool:
        """True if re-authentication may reuse the connection: brokers reject a change of user."""

    def receive(self, response: Message) -> AuthenticationStep | None:
        """The step after a decoded SaslHandshake or SaslAuthenticate response.

        Raises:
            AuthenticationError: the broker rejected the client, or failed to authenticate itself.
        """
