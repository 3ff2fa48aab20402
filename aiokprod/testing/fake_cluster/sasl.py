"""SASL/PLAIN listeners of a fake cluster, with sessions that expire (KIP-368)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from aiokprod.testing.fake_cluster.profiles import PRODUCE

if TYPE_CHECKING:
    from aiokprod.testing.fake_cluster.broker import FakeBroker
    from aiokprod.testing.fake_cluster.framing import Request

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
_WITHOUT_SESSION: Final = (SASL_HANDSHAKE, SASL_AUTHENTICATE, 18)


@dataclass
class SaslListener:
    """The authentication that all brokers of a cluster require.

    Attributes:
        users: password by user name.
        lifetime_s: seconds until a session expires (connections.max.reauth.ms). 0 means never.
        sessions: number of successful authentications.
        expired: loop times of requests after the end of their session. The broker then closes the
            connection.
    """

    users: dict[str, str] = field(repr=False)
    lifetime_s: float = 0.0
    sessions: int = 0
    expired: list[float] = field(default_factory=list)

    def offer(self, broker: FakeBroker) -> None:
        """Make a broker offer the SASL APIs in the versions of its release."""
        produce = broker.profile.ranges[PRODUCE][1]
        highest = 2 if produce >= 9 else 1 if produce >= 8 else 0  # Kafka 2.8, 2.4
        ranges = broker.profile.ranges | {SASL_HANDSHAKE: (0, 1), SASL_AUTHENTICATE: (0, highest)}
        broker.profile = replace(broker.profile, ranges=ranges)

    def authenticate(self, request: Request) -> bool:
        """Check a PLAIN message (RFC 4616). Begin a session if the password is right."""
        _, user, password = bytes(request.body.auth_bytes).decode().split("\0")
        if self.users.get(user) != password:
            return False
        self.sessions += 1
        ends = request.version > 0 and self.lifetime_s > 0
        request.connection.session_ends_at = request.time + self.lifetime_s if ends else math.inf
        return True

    def admits(self, request: Request) -> bool:
        """Return True if the broker serves a request. After the end of a session, it serves only
        requests that begin a new SASL exchange.

        Source: Java `SocketServer.processCompletedReceives`.
        """
        if request.api_key in _WITHOUT_SESSION:
            return True
        ends_at = request.connection.session_ends_at
        if ends_at is not None and request.time > ends_at:
            self.expired.append(request.time)
        return ends_at is not None and request.time <= ends_at
