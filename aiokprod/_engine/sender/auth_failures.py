"""Brokers that refuse us: how long records wait for one of them.

A record must not wait out its delivery timeout because a password is wrong, nor fail because one
attempt was refused. So it waits for a broker that refuses us as long as a connection may take to be
set up. Once a broker has refused us for that long, every further refusal fails what waits for it.
Java lets buffered records wait for delivery.timeout.ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiokprod.errors import AuthenticationError, KafkaError

if TYPE_CHECKING:
    from aiokprod._engine.buffer.producer_batch import ProducerBatch


@dataclass(frozen=True, slots=True)
class AuthFailure:
    """What a broker says: since when, last at what instant, and why."""

    since: float
    last: float
    error: AuthenticationError


class AuthFailures:
    """Who refuses us now, by the newest word of each broker. Instants are `loop.time()`.

    Args:
        patience: seconds (socket_connection_setup_timeout_ms).

    Attributes:
        next_check_at: when something may be overdue; inf while nobody refuses us.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._by_node: dict[int, AuthFailure] = {}
        self._by_all: AuthFailure | None = None
        self._inside: set[int] = set()
        self.next_check_at = math.inf

    def reason(self, node_id: int) -> AuthenticationError | None:
        """Why a broker refuses us, None if it does not."""
        refusal = self._by_node.get(node_id)
        return None if refusal is None else refusal.error

    def lost(self, node_id: int, error: KafkaError, now: float) -> None:
        """A connection or an attempt at one ended, not by our own wish."""
        self._inside.discard(node_id)
        if isinstance(error, AuthenticationError):
            self._by_node[node_id] = _continued(self._by_node.get(node_id), error, now)
            if not self._inside:
                self._by_all = _continued(self._by_all, error, now)
            self.next_check_at = now
        else:
            # Unreachable: it may be restarting with what mends it.
            self._by_node.pop(node_id, None)

    def connected(self, node_id: int) -> None:
        """A broker let us in."""
        self._by_node.pop(node_id, None)
        self._by_all = None
        self._inside.add(node_id)

    def closed(self, node_id: int) -> None:
        """A connection ended, by our own wish or not."""
        self._inside.discard(node_id)

    def batches_to_fail(
        self, batches: Iterable[ProducerBatch], now: float
    ) -> list[tuple[ProducerBatch, AuthenticationError]]:
        """Those that waited long enough, with the reason. Batches of partitions without a leader
        wait for whichever broker lets us in first, or has let us in."""
        found = []
        self.next_check_at = math.inf
        for refusal in (self._by_all, *self._by_node.values()):
            if refusal is not None:
                final_at = refusal.since + self._patience
                # Whatever comes from now on is due later than that.
                self.next_check_at = min(
                    self.next_check_at, final_at if final_at > now else now + self._patience
                )
        for batch in batches:
            node = batch.queue.node
            refusal = self._by_all if node is None else self._by_node.get(node)
            if refusal is None or batch.in_flight:
                continue
            due = batch.created_at + self._patience
            if due <= now or (self._is_final(refusal, now) and refusal.last >= batch.created_at):
                found.append((batch, refusal.error))
            else:
                self.next_check_at = min(self.next_check_at, due)
        return found

    def final_failures(self, now: float) -> dict[int, AuthenticationError]:
        """Brokers that no caller should go on waiting for."""
        return {
            node: refusal.error
            for node, refusal in self._by_node.items()
            if self._is_final(refusal, now)
        }

    def final_of_all(self, now: float) -> AuthenticationError | None:
        """The reason, if we have been outside of all brokers for so long that callers should not
        wait."""
        refusal = self._by_all
        return None if refusal is None or not self._is_final(refusal, now) else refusal.error

    def _is_final(self, refusal: AuthFailure, now: float) -> bool:
        """True if it has refused us for long enough, and its last word is not too old to count."""
        return refusal.since + self._patience <= now <= refusal.last + self._patience


def _continued(before: AuthFailure | None, error: AuthenticationError, now: float) -> AuthFailure:
    return AuthFailure(now if before is None else before.since, now, error)
