"""What the engine wants of a network, and nothing else.

`NetworkClient` satisfies `BrokerClient` structurally and `Connection` `Slot`; tests pass fakes.
Times are seconds of `loop.time()`. Source: Java `KafkaClient`, `ClientResponse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from aiokprod.cluster import Node
from aiokprod.errors import KafkaError


class ClientResponse(Protocol):
    """The end of one request: exactly one of `body` and `error` is set.

    With `expect_response=False` (acks=0) both are None once the bytes were written.
    """

    @property
    def node_id(self) -> int: ...
    @property
    def version(self) -> int:
        """API version that was used, -1 if none could be chosen."""

    @property
    def body(self) -> Any:
        """Decoded response message, or None."""

    @property
    def error(self) -> KafkaError | None:
        """Disconnected, RequestTimedOut, ProtocolError, UnsupportedVersion, AuthenticationError."""

    @property
    def maybe_written(self) -> bool:
        """True if any byte of the request may have reached the broker."""

    @property
    def latency(self) -> float:
        """Seconds from hand-over to completion."""

    @property
    def throttle_ms(self) -> int:
        """For how long the broker wants no further request; 0 if it does not say so."""


class Slot(Protocol):
    """A connection that takes a request now. Use it before the next suspension: later the
    connection may be full, throttled or closed."""

    @property
    def node_id(self) -> int: ...

    def can_send(self, now: float) -> bool:
        """True if it takes one more request."""

    def send(
        self,
        request: Any,
        on_done: Callable[[Any], None],
        now: float,
        *,
        timeout: float,
        max_version: int | None = None,
        expect_response: bool = True,
    ) -> None:
        """Encode and write a request.

        `on_done(response)` runs exactly once, never inside this call. `max_version` caps the
        negotiated version. `request` is a wire Message, or a callable `(version) -> Message` when
        the body depends on the version. `timeout` is in seconds.
        """


class BrokerClient(Protocol):
    """Requests to brokers by node id. All methods are synchronous and never suspend."""

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Replace the known brokers (from metadata); connections of vanished or moved nodes close
        after their in-flight requests ended."""

    def set_coordinators(self, nodes: Iterable[Node]) -> None:
        """Replace the addresses that FindCoordinator named; those that the metadata do not list
        get connections of their own."""

    def coordinator_id(self, node: Node) -> int:
        """The node id for all other methods by which one of `set_coordinators` is reached."""

    def ready(self, node_id: int, now: float) -> Slot | None:
        """What a request may be sent on now; None starts dialling where backoff allows."""

    def can_send(self, node_id: int, now: float) -> bool:
        """True if `ready` would return a slot; without side effect."""

    def retry_at(self, node_id: int, now: float) -> float:
        """When `ready` may change by time alone (backoff or throttle end); inf if only an event
        (connection made, reply, write drained: reported through `on_wakeup`) can change it."""

    def in_flight_count(self, node_id: int) -> int: ...

    def total_in_flight(self) -> int: ...

    def least_loaded(self, now: float) -> int | None:
        """Java NetworkClient.leastLoadedNode: a sendable node, else one connecting, else one that
        may be dialled, else None."""

    def version_range(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        """(min, max) usable on this connection: ours intersected with the broker's; None if not
        connected or not supported."""

    def finalized_feature(self, name: str) -> int:
        """Level of a cluster feature by the newest word of any broker; 0 if unknown (KIP-584)."""

    def give_up(self, node_id: int, error: KafkaError) -> None:
        """Close all connections to a node, known or vanished; their open requests end with
        `error`, inside this call."""

    def reset_backoff(self) -> None:
        """Rebootstrap: forget per-node failure history."""
