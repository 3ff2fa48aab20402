"""Detects brokers that do not respond, so that the sender requests metadata early.

Connections to a broker that hangs or is cut off are not reset. Until request_timeout_ms or the
connection setup timeout has passed, nothing else would request metadata, and records would wait
even if another broker has become the leader. Therefore metadata is requested every second while a
broker does not respond. Java waits for the timeout.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

OVERDUE_AFTER_S: Final = 1.0
"""Seconds without a response after which a broker is overdue, and the interval of the checks."""


class UnresponsiveBrokers:
    """The time since which each broker has not responded. Times are `loop.time()`.

    Attributes:
        in_flight: number of Produce requests in flight by broker; brokers without any are absent.
        connecting: brokers that have queued records and are being connected, each with the time at
            which this began.
        next_check_at: the time at which a broker may be overdue; inf while no response is awaited.
    """

    __slots__ = ("_unanswered", "connecting", "in_flight", "next_check_at")

    def __init__(self) -> None:
        self.in_flight: dict[int, int] = {}
        self._unanswered: dict[int, float] = {}
        self.connecting: dict[int, float] = {}
        self.next_check_at = math.inf

    def request_sent(self, node_id: int, now: float) -> None:
        """Count a request in flight, and record the time since which the broker has not
        responded."""
        self.in_flight[node_id] = self.in_flight.get(node_id, 0) + 1
        self._unanswered.setdefault(node_id, now)
        self.next_check_at = min(self.next_check_at, now + OVERDUE_AFTER_S)

    def response_received(self, node_id: int, now: float) -> None:
        """Count a request that has ended, and record the response. `now` is in the future if the
        broker throttles this client until then."""
        self.in_flight[node_id] -= 1
        if self.in_flight[node_id]:
            self._unanswered[node_id] = now
            return
        del self.in_flight[node_id], self._unanswered[node_id]
        if not self._unanswered and not self.connecting:
            self.next_check_at = math.inf

    def connecting_to(self, node_ids: Collection[int], now: float) -> None:
        """Set the brokers that have queued records and are being connected."""
        self.connecting = {node_id: self.connecting.get(node_id, now) for node_id in node_ids}
        if self.connecting:
            self.next_check_at = min(self.next_check_at, now + OVERDUE_AFTER_S)
        elif not self._unanswered:
            self.next_check_at = math.inf

    def silent_since(self, node_id: int) -> float | None:
        """Return the time since which a broker has not responded to Produce requests or to a
        connection attempt, or None if it has neither. The time is in the future while the broker
        throttles this client."""
        return self._unanswered.get(node_id, self.connecting.get(node_id))

    def any_overdue(self, now: float) -> bool:
        """Return True if a broker is overdue, and set the time of the next check."""
        sinces = [*self._unanswered.values(), *self.connecting.values()]
        late = any(since + OVERDUE_AFTER_S <= now for since in sinces)
        ends = [since + OVERDUE_AFTER_S for since in sinces if since + OVERDUE_AFTER_S > now]
        self.next_check_at = min([*ends, now + OVERDUE_AFTER_S] if sinces else [math.inf])
        return late

    def overdue_nodes(self, now: float) -> set[int]:
        """Return the brokers whose Produce response is overdue."""
        return {
            node_id for node_id, since in self._unanswered.items() if since + OVERDUE_AFTER_S <= now
        }
