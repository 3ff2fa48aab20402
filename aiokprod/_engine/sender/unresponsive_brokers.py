"""Brokers that owe us an answer or a connection: when to ask who leads their partitions by now.

A broker that is frozen or cut off resets nothing. Until request_timeout_ms or the time to connect
is over, no event would make anybody fetch metadata, and its records would wait although another
broker leads their partitions long since. So metadata are fetched every second while a broker is
silent. Java waits for the time-out.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Final

PATIENCE_S: Final = 1.0
"""Silence that is nothing special, and the time from one look to the next."""


class UnresponsiveBrokers:
    """Since when we wait for which broker. Instants are `loop.time()`.

    Attributes:
        next_check_at: when a broker may have been silent for too long; inf while we wait for none.
    """

    __slots__ = ("_connecting", "_unanswered", "next_check_at")

    def __init__(self) -> None:
        self._unanswered: dict[int, float] = {}
        self._connecting: dict[int, float] = {}
        self.next_check_at = math.inf

    def request_sent(self, node_id: int, now: float) -> None:
        """A request is on its way."""
        self._unanswered.setdefault(node_id, now)
        self.next_check_at = min(self.next_check_at, now + PATIENCE_S)

    def response_received(self, node_id: int, now: float, *, more: bool) -> None:
        """A request has ended; `more`: others are still on their way. `now` may lie ahead: a broker
        that throttles us is silent until then."""
        if more:
            self._unanswered[node_id] = now
        else:
            self._unanswered.pop(node_id, None)
            self._rest()

    def connecting_to(self, node_ids: Collection[int], now: float) -> None:
        """Those for which data wait that only an event can set going; all others can send."""
        if not node_ids and not self._connecting:
            return
        self._connecting = {node_id: self._connecting.get(node_id, now) for node_id in node_ids}
        if self._connecting:
            self.next_check_at = min(self.next_check_at, now + PATIENCE_S)
        else:
            self._rest()

    def _rest(self) -> None:
        if not self._unanswered and not self._connecting:
            self.next_check_at = math.inf

    def any_overdue(self, now: float) -> bool:
        """True if a broker has been silent for too long; plans the next look."""
        sinces = [*self._unanswered.values(), *self._connecting.values()]
        late = any(since + PATIENCE_S <= now for since in sinces)
        ends = [since + PATIENCE_S for since in sinces if since + PATIENCE_S > now]
        self.next_check_at = min([*ends, now + PATIENCE_S] if sinces else [math.inf])
        return late

    def overdue_nodes(self, now: float) -> set[int]:
        """Brokers that have owed us an answer for too long."""
        return {node_id for node_id, since in self._unanswered.items() if since + PATIENCE_S <= now}
