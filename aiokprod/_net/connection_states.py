"""State of a node that outlives its connections: backoff, setup timeout, addresses.

This module uses neither a clock nor connections: times are passed as `now`, and `rng` is injected.
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
        failures: failed attempts and lost connections since READY.
        name: host and port of the last dial.
        last_attempt: time of the last dial, or of its end.
        not_before: end of the backoff.
        throttled_until: end of the broker's throttling; survives reconnects.
        addresses: resolved addresses; `index` is the next one to dial.
        last_address: the address dialled last, which is tried last after the next look-up.
        sought: the last dial was part of a search for any broker that responds.
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
"""A search for any broker that responds pauses after `_SEARCH_FAILURES` failures within
`_SEARCH_WINDOW_S` seconds. So a live address among a few is found at once. Because every address
has a separate backoff, a long list of dead ones would otherwise be dialled hundreds of times in the
first second. Java pauses after each failure, and needs a minute to find the only live address among
fifty."""

_MAX_NAMES: Final = 1024
"""Limit of hosts for which failures are counted; above it the counts are cleared."""


class ClusterConnectionStates:
    """States by node id. A state is created by the first attempt and dropped by `forget`.

    Attempts that failed before READY are counted by host and port: after a bootstrap a broker has a
    new id, and its setup timeout, which has grown for a slow handshake, must not start again.
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
        """The time from which the node may be dialled; -inf for now."""
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.not_before

    def can_connect(self, node_id: int, now: float) -> bool:
        """True if the backoff is over. The caller checks whether there is a connection."""
        return now >= self.not_before(node_id)

    def may_search(self, now: float) -> bool:
        """True if a search for any broker may dial another node, because few of its dials have
        failed recently. Dials of a particular node have only the backoff of that node and are not
        counted; otherwise retries of a dead leader would stop the search."""
        failures = self._failed_at
        return len(failures) < _SEARCH_FAILURES or failures[0] + _SEARCH_WINDOW_S <= now

    def last_attempt(self, node_id: int) -> float:
        """Time of the last attempt, -inf if there was none."""
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.last_attempt

    def throttled_until(self, node_id: int) -> float:
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.throttled_until

    def throttle(self, node_id: int, until: float) -> float:
        """Send no request before `until`, or before an earlier call's later time.

        Returns:
            The time that applies now.
        """
        record = self._record(node_id)
        record.throttled_until = max(record.throttled_until, until)
        return record.throttled_until

    def connecting(self, node_id: int, now: float, name: Address, *, sought: bool = False) -> float:
        """Note an attempt; returns its setup timeout in seconds.

        Args:
            name: host and port from the metadata or the configuration.
            sought: the dial is part of a search for any broker.
        """
        record = self._record(node_id)
        record.sought = sought
        record.last_attempt = now
        record.name = name
        return self._setup.after(self._setup_failures.get(name, 0), self._rng)

    def address(self, node_id: int) -> Address | None:
        """The address to dial, or None if the name must be looked up first."""
        record = self._record(node_id)
        if record.index >= len(record.addresses):
            return None
        record.last_address = record.addresses[record.index]
        return record.last_address

    def resolved(self, node_id: int, addresses: list[Address]) -> None:
        """Store the result of a look-up; an address that has just failed is moved to the end."""
        record = self._record(node_id)
        if len(addresses) > 1 and addresses[0] == record.last_address:
            addresses = [*addresses[1:], addresses[0]]
        record.addresses = tuple(addresses)
        record.index = 0

    def ready(self, node_id: int, now: float) -> None:
        """The connection is READY: reset the backoff. Reset the setup timeout too, unless this
        connection needed more time than the first attempt gets (Java: always)."""
        record = self._record(node_id)
        record.failures = 0
        if record.name is not None and now - record.last_attempt < self._setup.initial:
            self._setup_failures.pop(record.name, None)
        record.not_before = _NEVER

    def disconnected(self, node_id: int, now: float, *, was_up: bool, was_ready: bool) -> None:
        """An attempt failed or a connection was lost: start the backoff.

        Args:
            was_up: the transport was established. Then the name is looked up again, because the
                broker may have another address; otherwise the next address is tried.
            was_ready: the connection was READY. Otherwise the next attempt gets a longer setup
                timeout, so that a slow TLS or SASL handshake eventually succeeds.

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
        """The client closed an idle connection. This is not a failure, so there is no backoff."""
        record = self._record(node_id)
        record.last_attempt = now
        record.addresses = ()

    def forget(self, node_id: int) -> None:
        """Forget a node that was removed or moved to another host."""
        self._nodes.pop(node_id, None)

    def reset(self) -> None:
        """Forget failures and addresses of all nodes, but not their throttling."""
        self._setup_failures.clear()
        for node_id, record in self._nodes.items():
            self._nodes[node_id] = NodeConnectionState(throttled_until=record.throttled_until)
