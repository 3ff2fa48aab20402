"""Expiring SASL sessions of a throttled client (KIP-368, KIP-219)."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from aiokprod.security import Secret
from aiokprod.testing.fake_cluster import FakeCluster, Request
from tests.simulation.oracle import Violation
from tests.simulation.seeds import Plan
from tests.simulation.wire_log import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Wire

USER, PASSWORD = "simulated", "password-of-the-simulation"
LIFETIMES_S = (2.0, 5.0, 5.0, 15.0)
PUNCTUAL_S = 0.05
"""Maximum delay of timers. With later timers the shortest session might not be renewed in time."""
THROTTLES_MS = (20, 400, 2_000)
MOST_THROTTLED_S = max(THROTTLES_MS) / 1000
LATEST_RENEWAL = 0.95
"""Share of a lifetime after which a client must renew the session before it sends another
request."""
OPTIONS: dict[str, Any] = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_allow_cleartext": True,
    "sasl_mechanism": "PLAIN",
    "sasl_username": USER,
    "sasl_password": Secret(PASSWORD),
}


class Sessions:
    """Brokers that require SASL, whose sessions are short, and which throttle occasionally."""

    def __init__(self, plan: Plan, cluster: FakeCluster) -> None:
        self._rng = random.Random(plan.seed * 113 + 61)
        lifetimes = LIFETIMES_S if plan.late_timers_s <= PUNCTUAL_S else LIFETIMES_S[1:]
        self._plan = plan
        self._rate = self._rng.choice((0.05, 0.2))
        self._is_calm = False
        cluster.require_sasl({USER: PASSWORD}, self._rng.choice(lifetimes))
        cluster.answer_filters.append(self._throttled)

    def calm(self) -> None:
        """End the throttling. Sessions stay short."""
        self._is_calm = True

    def _throttled(self, request: Request, message: Any) -> Any:
        has_session = request.connection.session_ends_at is not None
        if not (has_session and hasattr(message, "throttle_time_ms")) or self._is_calm:
            return message
        if self._rng.random() > self._rate:
            return message
        return dataclasses.replace(message, throttle_time_ms=self._rng.choice(THROTTLES_MS))

    def check(self, wire: Wire, stalled_s: Callable[[float, float], float]) -> int:
        """Check all connections, and return how many sessions were renewed.

        Raises:
            Violation: a request left after the client should have renewed its session, or a renewal
                began before the responses to all requests were received.
        """
        renewed = 0
        for exchanges in wire.connections():
            granted_at = ends_at = float("inf")
            for number, one in enumerate(exchanges):
                if one.api_key == SASL_HANDSHAKE and ends_at < float("inf"):
                    renewed += 1
                    late = [each for each in exchanges[:number] if one.sent_at < each.answered_at]
                    if late:
                        raise Violation(f"renewed before {late[0]} ended: {one}")
                elif one.api_key == SASL_AUTHENTICATE and one.answer is not None:
                    lifetime_s = one.answer.session_lifetime_ms / 1000
                    granted_at = one.heard_at
                    ends_at = granted_at + LATEST_RENEWAL * lifetime_s if lifetime_s else ends_at
                elif one.api_key not in (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE):
                    slack_s = 2 * self._plan.late_timers_s + 0.001
                    if one.sent_at > ends_at + slack_s + stalled_s(granted_at, one.sent_at):
                        raise Violation(f"sent after its session ended at {ends_at}: {one}")
        return renewed
