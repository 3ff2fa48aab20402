"""The state of each node that outlives its connections: backoff, setup timeout, addresses.

This module uses neither a clock nor connections. Times are passed as `now`, and `rng` is injected.
Source: Java `ClusterConnectionStates`.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from aiokprod._backoff import ExponentialBackoff
from aiokprod.config import ProducerConfig

Address: TypeAlias = tuple[str, int]

_NEVER: Final = float("-inf")


@dataclass(slots=True)
class NodeConnectionState:
    """The state of one node.

    Attributes:
        failures: number of failed attempts and lost connections since the last READY.
        name: host and port of the last dial, before resolution.
        last_attempt: time of the last dial, or of the end of that attempt or connection.
        not_before: end of the backoff.
        throttled_until: end of the broker's throttling; survives reconnects.
        addresses: resolved addresses; `index` is the next address to dial.
        last_address: the address dialled last. If the next look-up returns it first, it is moved to
            the end.
        sought: True if the last dial was part of a search for any available broker.
    """

    failures: int = 0
    name: Address | None = None
    last_attempt: float = _NEVER
    not_before: float = _NEVER
    throttled_until: float = _NEVER
    addresses: tuple[Address, ...] = ()
    index: int = 0
    last_address: Address | None = None
    sought: bool = False


_SEARCH_FAILURES: Final = 10
_SEARCH_WINDOW_S: Final = 1.0
"""A search for any available broker pauses after `_SEARCH_FAILURES` failures within
`_SEARCH_WINDOW_S` seconds. In a short list, the search therefore finds a live address at once.
Without the limit, a long list of dead addresses would be dialled hundreds of times in the first
second, because each address has a separate backoff. Java pauses after each failure, and needs a
minute to find the only live address among fifty."""

_MAX_NAMES: Final = 1024
"""Maximum number of hosts for which failures are counted. At this limit all counts are cleared."""


class ClusterConnectionStates:
    """Connection states by node id. The first attempt creates a state; `forget` deletes it.

    Attempts that failed before READY are counted by host and port, because a broker gets a new id
    after the bootstrap. Its setup timeout, which may have grown for a slow handshake, must not
    shrink then.
    """

    def __init__(
        self, reconnect: ExponentialBackoff, setup: ExponentialBackoff, rng: random.Random
    ) -> None:
        self._reconnect = reconnect
        self._setup = setup
        self._rng = rng
        self._nodes: dict[int, NodeConnectionState] = {}
        self._setup_failures: dict[Address, int] = {}
        self._failed_at: deque[float] = deque(maxlen=_SEARCH_FAILURES)

    @classmethod
    def of(cls, config: ProducerConfig, rng: random.Random) -> Self:
        """Create the states with the backoff and the setup timeout of a configuration."""
        return cls(
            ExponentialBackoff(
                config.reconnect_backoff_ms / 1000, config.reconnect_backoff_max_ms / 1000
            ),
            ExponentialBackoff(
                config.socket_connection_setup_timeout_ms / 1000,
                config.socket_connection_setup_timeout_max_ms / 1000,
            ),
            rng,
        )

    def __len__(self) -> int:
        return len(self._nodes)

    def _record(self, node_id: int) -> NodeConnectionState:
        return self._nodes.setdefault(node_id, NodeConnectionState())

    def not_before(self, node_id: int) -> float:
        """Return the time from which the node may be dialled, or -inf if there is no backoff."""
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.not_before

    def can_connect(self, node_id: int, now: float) -> bool:
        """Return True if the backoff has ended. The caller checks whether a connection exists."""
        return now >= self.not_before(node_id)

    def may_search(self, now: float) -> bool:
        """Return True if a search for any broker may dial another node, because few of its dials
        have failed recently. Dials of a particular node are limited only by that node's backoff and
        are not counted; otherwise retries of a dead leader would stop the search."""
        failures = self._failed_at
        return len(failures) < _SEARCH_FAILURES or failures[0] + _SEARCH_WINDOW_S <= now

    def last_attempt(self, node_id: int) -> float:
        """Return the time of the last attempt, or -inf if there was none."""
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.last_attempt

    def throttled_until(self, node_id: int) -> float:
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.throttled_until

    def throttle(self, node_id: int, until: float) -> float:
        """Throttle the node until `until`, unless an earlier call set a later time.

        Returns:
            The end of the throttling.
        """
        record = self._record(node_id)
        record.throttled_until = max(record.throttled_until, until)
        return record.throttled_until

    def connecting(self, node_id: int, now: float, name: Address, *, sought: bool = False) -> float:
        """Record an attempt and return its setup timeout in seconds.

        Args:
            name: host and port from the metadata or the configuration.
            sought: True if the dial is part of a search for any broker.
        """
        record = self._record(node_id)
        record.sought = sought
        record.last_attempt = now
        record.name = name
        return self._setup.after(self._setup_failures.get(name, 0), self._rng)

    def address(self, node_id: int) -> Address | None:
        """Return the address to dial, or None if the name must be resolved first."""
        record = self._record(node_id)
        if record.index >= len(record.addresses):
            return None
        record.last_address = record.addresses[record.index]
        return record.last_address

    def resolved(self, node_id: int, addresses: list[Address]) -> None:
        """Store the resolved addresses. If the first one was dialled last, move it to the end."""
        record = self._record(node_id)
        if len(addresses) > 1 and addresses[0] == record.last_address:
            addresses = [*addresses[1:], addresses[0]]
        record.addresses = tuple(addresses)
        record.index = 0

    def ready(self, node_id: int, now: float) -> None:
        """Reset the backoff of a node whose connection is READY. Reset the setup timeout only if
        the connection became READY within the initial setup timeout (Java: always)."""
        record = self._record(node_id)
        record.failures = 0
        if record.name is not None and now - record.last_attempt < self._setup.initial:
            self._setup_failures.pop(record.name, None)
        record.not_before = _NEVER

    def disconnected(self, node_id: int, now: float, *, was_up: bool, was_ready: bool) -> None:
        """Start the backoff after a failed attempt or a lost connection.

        Args:
            was_up: True if the transport was established. The name is then resolved again, because
                the broker may have another address. Otherwise the next address is dialled.
            was_ready: True if the connection was READY. Otherwise the next attempt gets a longer
                setup timeout, so that a slow TLS or SASL handshake eventually succeeds.

        Source: Java `ClusterConnectionStates.disconnected`.
        """
        record = self._record(node_id)
        record.last_attempt = now
        record.not_before = now + self._reconnect.after(record.failures, self._rng)
        record.failures += 1
        if was_up:
            record.addresses = ()
        else:
            record.index += 1
        if was_ready:
            return
        if record.sought:
            self._failed_at.append(now)
        if record.name is not None:
            if len(self._setup_failures) >= _MAX_NAMES:
                self._setup_failures.clear()
            self._setup_failures[record.name] = self._setup_failures.get(record.name, 0) + 1

    def expired(self, node_id: int, now: float) -> None:
        """Record that the client closed an idle connection, which causes no backoff."""
        record = self._record(node_id)
        record.last_attempt = now
        record.addresses = ()

    def forget(self, node_id: int) -> None:
        """Forget a node that was removed or moved to another host."""
        self._nodes.pop(node_id, None)

    def reset(self) -> None:
        """Forget the failures and addresses of all nodes. Throttling continues to apply."""
        self._setup_failures.clear()
        for node_id, record in self._nodes.items():
            self._nodes[node_id] = NodeConnectionState(throttled_until=record.throttled_until)
