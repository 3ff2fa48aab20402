"""The interface of the network to the engine.

`NetworkClient` implements `BrokerClient`, and `Connection` implements `ReadyConnection`; tests pass
fakes. Times are seconds of `loop.time()`. Source: Java `KafkaClient`, `ClientResponse`.
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
        """API version that was used, or -1 if none could be chosen."""

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
        """Seconds from the call of `send` to completion."""

    @property
    def throttle_ms(self) -> int:
        """The broker's throttle time in ms; 0 if it does not throttle this client."""


class ReadyConnection(Protocol):
    """A connection that accepts a request now. Use it before the task suspends: afterwards the
    connection may be full, throttled or closed."""

    @property
    def node_id(self) -> int: ...

    def can_send(self, now: float) -> bool:
        """True if it accepts one more request."""

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

        `on_done(response)` runs exactly once, never inside this call, and the client's `on_wakeup`
        after it. `max_version` caps the negotiated version. `request` is a wire Message, or a
        callable `(version) -> Message` when the body depends on the version. `timeout` is in
        seconds.
        """


class BrokerClient(Protocol):
    """Requests to brokers by node id. All methods are synchronous and never suspend."""

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Replace the known brokers (from metadata). Connections to nodes that were removed or
        moved are closed after their requests in flight have ended."""

    def set_coordinators(self, nodes: Iterable[Node]) -> None:
        """Replace the coordinators' addresses from FindCoordinator; those that the metadata does
        not list get separate connections."""

    def coordinator_id(self, node: Node) -> int:
        """The node id that addresses a coordinator of `set_coordinators` in all other methods."""

    def ready(self, node_id: int, now: float) -> ReadyConnection | None:
        """A connection on which to send now. If there is none, returns None, and starts to connect
        if the backoff allows it."""

    def can_send(self, node_id: int, now: float) -> bool:
        """True if `ready` would return a connection; without side effect."""

    def retry_at(self, node_id: int, now: float) -> float:
        """The time at which the result of `ready` may change without an event (end of a backoff or
        of throttling); inf if only an event can change it (connection made, response, write buffer
        drained), which `on_wakeup` reports."""

    def in_flight_count(self, node_id: int) -> int: ...

    def total_in_flight(self) -> int: ...

    def least_loaded(self, now: float) -> int | None:
        """A node that accepts a request, else one that is connecting, else one that may be dialled,
        else None. Source: Java `NetworkClient.leastLoadedNode`."""

    def version_range(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        """The lowest and highest version that both sides support on this connection; None if not
        connected or not supported."""

    def finalized_feature(self, name: str) -> int:
        """Finalized level of a cluster feature, from the response with the highest feature epoch; 0
        if unknown (KIP-584)."""

    def give_up(self, node_id: int, error: KafkaError) -> None:
        """Close all connections to a node, even if the metadata no longer contains it. Their
        requests in flight end with `error` during this call."""

    def reset_backoff(self) -> None:
        """Rebootstrap: reset the backoff of every node."""
