"""What is remembered of a node between its connections: backoff, setup timeout, addresses.

Pure values: instants come in as `now`, randomness as an injected `rng`. Whether a connection
exists is the client's knowledge. Source: Java `ClusterConnectionStates`.
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
    """The record of one node.

    Attributes:
        failures: failed attempts and lost connections since READY.
        name: host and port that were dialled last.
        last_attempt: instant of the last dial, or of its end.
        not_before: instant the backoff ends.
        throttled_until: instant the broker's throttle ends; survives reconnects.
        addresses: resolved and not yet used up; `index` is the one to dial.
        last_address: the one dialled last, to be avoided after the next look-up.
        sought: the last dial was one in search of any broker that answers.
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
"""No further node is dialled in search of any that answers after so many failures within so many
seconds. A living address among a few is found at once; a long list of dead ones, each with a
backoff of its own, would be dialled hundreds of times in the first second. Java pauses after each
failure, and needs a minute to find the only living one of fifty."""

_MAX_NAMES: Final = 1024
"""Of hosts that were not reached; beyond it the counts start again."""


class ClusterConnectionStates:
    """Records by node id. A record is created by the first attempt and dropped by `forget`.

    Attempts that failed before READY are counted by host and port: a bootstrap gives a broker a
    new id, and would cut the time for a slow handshake down again each time.
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
        """With the backoff and the setup timeout of a configuration."""
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
        """When the node may be dialled; -inf if at once."""
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.not_before

    def can_connect(self, node_id: int, now: float) -> bool:
        """The backoff is over. Whether a connection exists is for the caller to know."""
        return now >= self.not_before(node_id)

    def may_search(self, now: float) -> bool:
        """Few dials in search of any broker that answers have failed lately: another node may be
        dialled. Nodes that are needed for themselves have only their own backoff, and do not count:
        a dead leader that is dialled again and again would end the search for a living broker."""
        failures = self._failed_at
        return len(failures) < _SEARCH_FAILURES or failures[0] + _SEARCH_WINDOW_S <= now

    def last_attempt(self, node_id: int) -> float:
        """Instant of the last attempt, -inf if never tried."""
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.last_attempt

    def throttled_until(self, node_id: int) -> float:
        record = self._nodes.get(node_id)
        return _NEVER if record is None else record.throttled_until

    def throttle(self, node_id: int, until: float) -> float:
        """No request before `until`; a smaller value never shortens a longer one.

        Returns:
            The instant that counts now.
        """
        record = self._record(node_id)
        record.throttled_until = max(record.throttled_until, until)
        return record.throttled_until

    def connecting(self, node_id: int, now: float, name: Address, *, sought: bool = False) -> float:
        """Note an attempt; returns its setup timeout in seconds.

        Args:
            name: host and port as the broker or the configuration gave them.
            sought: any broker that answers is wanted, not this one.
        """
        record = self._record(node_id)
        record.sought = sought
        record.last_attempt = now
        record.name = name
        return self._setup.after(self._setup_failures.get(name, 0), self._rng)

    def address(self, node_id: int) -> Address | None:
        """The address to dial, None if the name must be looked up first."""
        record = self._record(node_id)
        if record.index >= len(record.addresses):
            return None
        record.last_address = record.addresses[record.index]
        return record.last_address

    def resolved(self, node_id: int, addresses: list[Address]) -> None:
        """Store a look-up's result; the address that just failed goes last if there are others."""
        record = self._record(node_id)
        if len(addresses) > 1 and addresses[0] == record.last_address:
            addresses = [*addresses[1:], addresses[0]]
        record.addresses = tuple(addresses)
        record.index = 0

    def ready(self, node_id: int, now: float) -> None:
        """The connection works: the backoff starts afresh, and so does the setup timeout unless
        that connection needed a longer one than the first attempt gets (Java: always)."""
        record = self._record(node_id)
        record.failures = 0
        if record.name is not None and now - record.last_attempt < self._setup.initial:
            self._setup_failures.pop(record.name, None)
        record.not_before = _NEVER

    def disconnected(self, node_id: int, now: float, *, was_up: bool, was_ready: bool) -> None:
        """An attempt failed or a connection was lost: start the backoff.

        Args:
            was_up: the transport had been established. Then the name is looked up again (the
                broker may come back elsewhere); otherwise the next address is tried.
            was_ready: the connection took requests. Otherwise the next attempt gets a longer setup
                timeout: a slow TLS or SASL handshake must succeed in the end.

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
        """An idle connection was closed on purpose: no failure, hence no backoff."""
        record = self._record(node_id)
        record.last_attempt = now
        record.addresses = ()

    def forget(self, node_id: int) -> None:
        """The node vanished or moved to another host."""
        self._nodes.pop(node_id, None)

    def reset(self) -> None:
        """Forget failures and addresses of all nodes; throttles stay."""
        self._setup_failures.clear()
        for node_id, record in self._nodes.items():
            self._nodes[node_id] = NodeConnectionState(throttled_until=record.throttled_until)
