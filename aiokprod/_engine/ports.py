"""The interfaces through which the engine uses the network.

`NetworkClient` implements `BrokerClient`, and `Connection` implements `ReadyConnection`; tests pass
fakes. Times are seconds of `loop.time()`. Source: Java `KafkaClient`, `ClientResponse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from aiokprod.cluster import Node
from aiokprod.errors import KafkaError


class ClientResponse(Protocol):
    """The result of one request. Exactly one of `body` and `error` is set.

    With `expect_response=False` (acks=0), both are None once the bytes have been written.
    """

    @property
    def node_id(self) -> int: ...
    @property
    def version(self) -> int:
        """API version of the request, or -1 if no version could be chosen."""

    @property
    def body(self) -> Any:
        """Decoded response message, or None."""

    @property
    def error(self) -> KafkaError | None:
        """The error of a failed request, or None: Disconnected, RequestTimedOut, ProtocolError,
        UnsupportedVersion or AuthenticationError."""

    @property
    def maybe_written(self) -> bool:
        """True if any byte of the request may have reached the broker."""

    @property
    def latency(self) -> float:
        """Seconds from the call of `send` to completion."""

    @property
    def throttle_ms(self) -> int:
        """Throttle time in the response, in ms; 0 if the broker does not throttle this client."""


class ReadyConnection(Protocol):
    """A connection that accepts a request now. Use it before the task suspends: afterwards the
    connection may be full, throttled or closed."""

    @property
    def node_id(self) -> int: ...

    def can_send(self, now: float) -> bool:
        """Return True if the connection accepts one more request."""

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

        `on_done(response)` is called exactly once, never inside this call; then the client calls
        `on_wakeup`. `max_version` caps the negotiated version. `request` is a wire Message, or a
        callable `(version) -> Message` when the body depends on the version. `timeout` is in
        seconds.
        """


class BrokerClient(Protocol):
    """Sends requests to brokers, which are identified by node id. All methods are synchronous and
    never suspend."""

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Replace the known brokers with those in the metadata. Connections to nodes that were
        removed or moved are closed after their requests in flight have ended."""

    def set_coordinators(self, nodes: Iterable[Node]) -> None:
        """Replace the coordinators' addresses, which FindCoordinator has returned. Coordinators
        that the metadata does not list get separate connections."""

    def coordinator_id(self, node: Node) -> int:
        """Return the node id of a coordinator from `set_coordinators`, for use in all other
        methods."""

    def ready(self, node_id: int, now: float) -> ReadyConnection | None:
        """Return a connection that accepts a request now. If there is none, return None, and start
        to connect if the backoff allows it."""

    def can_send(self, node_id: int, now: float) -> bool:
        """Return True if `ready` would return a connection. Has no side effects."""

    def retry_at(self, node_id: int, now: float) -> float:
        """Return the time at which a backoff or throttling ends, so that the result of `ready` may
        change. Return inf if only an event can change the result (connection made, response
        received, write buffer drained); `on_wakeup` reports such events."""

    def in_flight_count(self, node_id: int) -> int: ...

    def total_in_flight(self) -> int: ...

    def least_loaded(self, now: float) -> int | None:
        """Return a node that accepts a request; if there is none, a node that is being connected,
        or a node that may be dialled, or None. Source: Java `NetworkClient.leastLoadedNode`."""

    def version_range(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        """Return the lowest and highest version of an API that both sides support, or None if the
        node is not connected or does not support the API."""

    def finalized_feature(self, name: str) -> int:
        """Return the finalized level of a cluster feature, from the response with the highest
        feature epoch, or 0 if unknown (KIP-584)."""

    def give_up(self, node_id: int, error: KafkaError) -> None:
        """Close all connections to a node, even if the metadata no longer contains it. Their
        requests in flight end with `error` during this call."""

    def reset_backoff(self) -> None:
        """Reset the backoff of every node, for a rebootstrap."""
