"""What is remembered of a node between its connections: backoff, setup timeout, addresses.

Pure values: instants come in as `now`, randomness as an injected `rng`. Whether a connection
exists is the client's knowledge. Source: Java `ClusterConnectionStates`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Self, TypeAlias

from aiokprod.backoff import ExponentialBackoff
from aiokprod.config import ProducerConfig

Address: TypeAlias = tuple[str, int]

_NEVER: Final = float("-inf")


@dataclass(slots=True)
class NodeConnectionState:
    """The record of one node.

    Attributes:
        failures: failed attempts and lost connections since READY.
        setup_failures: attempts since READY that failed before the transport was up.
        last_attempt: instant of the last dial, or of its end.
        not_before: instant the backoff ends.
        throttled_until: instant the broker's throttle ends; survives reconnects.
        addresses: resolved and not yet used up; `index` is the one to dial.
        last_address: the one dialled last, to be avoided after the next look-up.
    """

    failures: int = 0
    setup_failures: int = 0
    last_attempt: float = _NEVER
    not_before: float = _NEVER
    throttled_until: float = _NEVER
    addresses: tuple[Address, ...] = ()
    index: int = 0
    last_address: Address | None = None


class ClusterConnectionStates:
    """Records by node id. A record is created by the first attempt and dropped by `forget`."""

    def __init__(
        self, reconnect: ExponentialBackoff, setup: ExponentialBackoff, rng: random.Random
    ) -> None:
        self._reconnect = reconnect
        self._setup = setup
        self._rng = rng
        self._nodes: dict[int, NodeConnectionState] = {}

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

    def connecting(self, node_id: int, now: float) -> float:
        """Note an attempt; returns its setup timeout in seconds."""
        record = self._record(node_id)
        record.last_attempt = now
        return self._setup.after(record.setup_failures, self._rng)

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

    def ready(self, node_id: int) -> None:
        """The connection works: backoff and setup timeout start afresh."""
        record = self._record(node_id)
        record.failures = 0
        record.setup_failures = 0
        record.not_before = _NEVER

    def disconnected(self, node_id: int, now: float, *, was_up: bool) -> None:
        """An attempt failed or a connection was lost: start the backoff.

        Args:
            was_up: the transport had been established. Then the name is looked up again (the
                broker may come back elsewhere); otherwise the next address is tried.
        """
        record = self._record(node_id)
        record.last_attempt = now
        record.not_before = now + self._reconnect.after(record.failures, self._rng)
        record.failures += 1
        if was_up:
            record.addresses = ()
            record.index = 0
        else:
            record.setup_failures += 1
            record.index += 1

    def expired(self, node_id: int, now: float) -> None:
        """An idle connection was closed on purpose: no failure, hence no backoff."""
        record = self._record(node_id)
        record.last_attempt = now
        record.addresses = ()
        record.index = 0

    def forget(self, node_id: int) -> None:
        """The node vanished or moved to another host."""
        self._nodes.pop(node_id, None)

    def reset(self) -> None:
        """Forget failures and addresses of all nodes; throttles stay."""
        for node_id, record in self._nodes.items():
            self._nodes[node_id] = NodeConnectionState(throttled_until=record.throttled_until)
