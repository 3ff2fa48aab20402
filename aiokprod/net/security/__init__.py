"""The seam between a connection and its authentication mechanism.

A mechanism is sans-I/O: the channel carries its requests and hands it the answers. None (no
authenticator) stands for a listener without SASL. Source: Java `Authenticator`, RFC 4422.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from aiokprod.wire.message import Message
from aiokprod.wire.versions import VersionRanges


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


AuthenticationStep: TypeAlias = SendToBroker | Authenticated


class Authenticator(Protocol):
    """One exchange on one connection. Every re-authentication calls `start` again.

    Both methods return None if the next step needs work elsewhere (a token provider, key
    derivation in a thread); whoever does it then calls `KafkaChannel.authentication_step`.
    """

    def start(self, versions: VersionRanges) -> AuthenticationStep | None:
        """The first step.

        Args:
            versions: per API what both sides speak.

        Raises:
            AuthenticationError: the broker offers no way to authenticate as configured.
        """

    def receive(self, response: Message) -> AuthenticationStep | None:
        """The step after an answer (a decoded SaslHandshake or SaslAuthenticate response).

        Raises:
            AuthenticationError: the broker refused, or did not prove itself.
        """
