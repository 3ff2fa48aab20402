"""Authentication failures of brokers, and the time for which records wait for such a broker.

If a password is wrong, records must not wait for the whole delivery timeout, nor fail after a
single rejected attempt. Therefore they wait for the connection setup timeout after the first
rejection. After that, every further rejection fails the records that wait for the broker. In Java,
buffered records wait for delivery.timeout.ms.
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
    """The authentication failure of a broker: the times of the first and the latest rejection, and
    the error."""

    since: float
    last: float
    error: AuthenticationError


class AuthFailures:
    """The brokers whose latest connection attempt failed authentication. Times are `loop.time()`.

    Args:
        patience: seconds that records wait (socket_connection_setup_timeout_ms).

    Attributes:
        next_check_at: the time at which to check for records that have waited too long; inf without
            failures.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._by_node: dict[int, AuthFailure] = {}
        self._by_all: AuthFailure | None = None
        self._inside: set[int] = set()
        self.next_check_at = math.inf

    def reason(self, node_id: int) -> AuthenticationError | None:
        """Return the authentication error of a broker, or None if it has none."""
        refusal = self._by_node.get(node_id)
        return None if refusal is None else refusal.error

    def lost(self, node_id: int, error: KafkaError, now: float) -> None:
        """Record why a connection or a connection attempt failed."""
        self._inside.discard(node_id)
        if isinstance(error, AuthenticationError):
            self._by_node[node_id] = _continued(self._by_node.get(node_id), error, now)
            if not self._inside:
                self._by_all = _continued(self._by_all, error, now)
            self.next_check_at = now
        else:
            # The broker is unreachable, so the rejection no longer counts: the broker may be
            # restarting with a corrected configuration.
            self._by_node.pop(node_id, None)

    def connected(self, node_id: int) -> None:
        """Forget the failures of a broker that has accepted the credentials."""
        self._by_node.pop(node_id, None)
        self._by_all = None
        self._inside.add(node_id)

    def closed(self, node_id: int) -> None:
        """Record that a connection ended, closed by either side."""
        self._inside.discard(node_id)

    def batches_to_fail(
        self, batches: Iterable[ProducerBatch], now: float
    ) -> list[tuple[ProducerBatch, AuthenticationError]]:
        """Return the batches that have waited for `patience` seconds, with the error of their
        broker. Batches of partitions without a leader fail only if no broker accepts the
        credentials."""
        found = []
        self.next_check_at = math.inf
        for refusal in (self._by_all, *self._by_node.values()):
            if refusal is not None:
                final_at = refusal.since + self._patience
                # After `final_at`, check again when a batch created now would be due. Older batches
                # are considered below.
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
        """Return the brokers for which no caller should wait any longer, with their errors."""
        return {
            node: refusal.error
            for node, refusal in self._by_node.items()
            if self._is_final(refusal, now)
        }

    def final_of_all(self, now: float) -> AuthenticationError | None:
        """Return the error if all brokers have rejected the credentials for so long that no caller
        should wait any longer, or None."""
        refusal = self._by_all
        return None if refusal is None or not self._is_final(refusal, now) else refusal.error

    def _is_final(self, refusal: AuthFailure, now: float) -> bool:
        """Return True if the first rejection is older than the patience, and the latest one is
        not."""
        return refusal.since + self._patience <= now <= refusal.last + self._patience


def _continued(before: AuthFailure | None, error: AuthenticationError, now: float) -> AuthFailure:
    return AuthFailure(now if before is None else before.since, now, error)
