"""The seam between a connection and its authentication mechanism.

A mechanism does no I/O with the broker: the channel carries its requests and hands it the answers.
None (no authenticator) stands for a listener without SASL. Source: Java `Authenticator`, RFC 4422.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from aiokprod._wire.message import Message
from aiokprod._wire.versions import VersionRanges


@dataclass(frozen=True, slots=True)
class SendToBroker:
    """The exchange goes on: send `message` in `version`, then feed the answer to `receive`."""

    message: Message = field(repr=False)  # holds credentials
    version: int


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The exchange succeeded.

    Attributes:
        session_lifetime_s: seconds until the broker wants a re-authentication (KIP-368), 0 = never.
    """

    session_lifetime_s: float = 0.0


@dataclass(frozen=True, slots=True)
class AuthTask:
    """The next step needs time: a token provider, key derivation in a thread.

    Attributes:
        run: gives the coroutine that ends with the step; run in a task of the connection, which is
            cancelled with it. AuthenticationError means: refused.
    """

    run: Callable[[], Coroutine[Any, Any, AuthenticationStep]] = field(repr=False)


AuthenticationStep: TypeAlias = SendToBroker | Authenticated | AuthTask


class Authenticator(Protocol):
    """One exchange on one connection. Every re-authentication calls `start` again.

    Both methods may return None; whoever finds the next step then calls
    `KafkaChannel.authentication_step`.
    """

    def start(self, versions: VersionRanges) -> AuthenticationStep | None:
        """The first step.

        Args:
            versions: per API what both sides speak.

        Raises:
            AuthenticationError: the broker offers no way to authenticate as configured.
        """

    def renewable(self) -> bool:
        """Whether a re-authentication may keep the connection: brokers refuse another user."""

    def receive(self, response: Message) -> AuthenticationStep | None:
        """The step after an answer (a decoded SaslHandshake or SaslAuthenticate response).

        Raises:
            AuthenticationError: the broker refused, or did not prove itself.
        """
