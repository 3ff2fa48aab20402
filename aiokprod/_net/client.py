"""Manages the connections to all nodes: dialling, backoff, throttling, least loaded node, closing.

All decisions are synchronous. The only coroutines are the dial tasks and `close`.
Source: Java `NetworkClient`.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Iterable
from typing import Final

from aiokprod._config.security import TLS_PROTOCOLS
from aiokprod._metrics.counters import OTHER_NODES, NodeTable
from aiokprod._net.authentication import Authenticator
from aiokprod._net.channel_states import CloseReason
from aiokprod._net.connection import Connection
from aiokprod._net.connection_factory import ConnectionFactory
from aiokprod._net.connection_log import ConnectionLog
from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod._net.dial_tasks import DialTasks
from aiokprod._net.least_loaded import Candidate, least_loaded
from aiokprod._net.node_api_versions import NO_FEATURES
from aiokprod._net.sasl.factory import authenticators
from aiokprod._net.tls import TlsContexts
from aiokprod.cluster import Node
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import (
    ForkedProcess,
    KafkaError,
    ProducerClosed,
)

_COORDINATOR_IDS: Final = -1_000_000
"""Highest id of nodes whose address is known only from FindCoordinator. Their ids are far below
those of the bootstrap addresses (-1, -2, …)."""

_CANCEL_GRACE: Final = 0.1
"""Minimum time in seconds that `close` waits for cancelled dial tasks, which need some iterations
of the event loop to end."""


class NetworkClient:
    """Connections to brokers by node id; implements `_engine.ports.BrokerClient`.

    The initial nodes are the bootstrap addresses, with the ids -1, -2, …

    Args:
        loop: the event loop on which all methods are called.
        on_wakeup: called when a request may have become sendable: a connection is ready, responses
            were processed, the write buffer drained, or throttling or a connection ended. Must be
            cheap; may be called more often than necessary.
        on_disconnect: called when a connection or an attempt failed, so metadata should be
            refreshed; not called if the client closed it (idle, node removed, closing).
        on_throttle, on_connection_opened, on_connection_closed: see `Observer`.
            `on_connection_closed` is called for every end of a connection, with None if the client
            closed it.
        on_callback_error: called if an `on_done` raised; default: the loop's exception handler.
        authenticator: creates the authenticator of a connection; None uses the configuration.
        nodes: counters of requests and bytes by broker.

    Attributes:
        log: logs the events of the connections.
    """

    def __init__(
        self,
        config: ProducerConfig,
        environment: Environment,
        loop: asyncio.AbstractEventLoop,
        *,
        on_wakeup: Callable[[], None],
        on_disconnect: Callable[[int, KafkaError], None],
        on_throttle: Callable[[int, float], None] | None = None,
        on_connection_opened: Callable[[int], None] | None = None,
        on_connection_closed: Callable[[int, KafkaError | None], None] | None = None,
        on_callback_error: Callable[[BaseException], None] | None = None,
        client_id: str | None = None,
        software_version: str = "unknown",
        authenticator: Callable[[Node], Authenticator] | None = None,
        nodes: NodeTable | None = None,
    ) -> None:
        self._rng = environment.rng
        self._loop = loop
        self._on_wakeup = on_wakeup
        self._on_disconnect = on_disconnect
        self._on_throttle = on_throttle
        self._on_connection_opened = on_connection_opened
        self._on_connection_closed = on_connection_closed
        self._on_callback_error = on_callback_error
        if authenticator is None:
            authenticator = authenticators(config, environment.unix_ms)
        self.log = ConnectionLog(client_id or config.client_id)
        self._connection = ConnectionFactory(
            config, loop, self, client_id, software_version, authenticator, environment.rng,
            nodes or NodeTable(), is_kafka=self.log.is_kafka,
        )  # fmt: skip
        self._states = ClusterConnectionStates.of(config, environment.rng)
        self._bootstrap = tuple(
            Node(-1 - index, host, port)
            for index, (host, port) in enumerate(config.bootstrap_addresses())
        )
        self._brokers = {node.id: Candidate(node) for node in self._bootstrap}
        self._coordinators: dict[tuple[str, int], int] = {}  # address -> key in `_brokers`
        self._next_coordinator_id = _COORDINATOR_IDS
        self._connections: set[Connection] = set()
        tls = TlsContexts(config) if config.security_protocol in TLS_PROTOCOLS else None
        self._dials = DialTasks(environment.dialer, self._states, loop, self._forget_if_gone, tls)
        self._throttle_timers: dict[int, asyncio.TimerHandle] = {}
        self._features = NO_FEATURES
        self._closed = False
        self._sought: int | None = None  # the node to dial, if the last `least_loaded` chose one
        self._none_left = asyncio.Event()
        self._none_left.set()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        state = "closed, " if self._closed else ""
        return f"<NetworkClient {state}{[b.connection or b.node for b in self._brokers.values()]}>"

    # -- called by the engine -------------------------------------------------------------------

    def set_nodes(self, nodes: Iterable[Node]) -> None:
        """Replace the known brokers. An empty iterable restores the bootstrap addresses.

        Connections to nodes that were removed or moved to another address close after their
        requests in flight have ended (F14). Other connections stay open.
        """
        self._check_process()
        if self._closed:
            return
        wanted = {node.id: node for node in nodes} or {node.id: node for node in self._bootstrap}
        for node_id, broker in self._listed():
            new = wanted.get(node_id)
            if new is None or (new.host, new.port) != (broker.node.host, broker.node.port):
                self._retire(broker)
            else:
                broker.node = new
        for node_id, node in wanted.items():
            if node_id not in self._brokers:
                self._brokers[node_id] = Candidate(node)

    def set_coordinators(self, nodes: Iterable[Node]) -> None:
        """Replace the coordinator addresses that FindCoordinator has returned.

        Each address is a separate node, independent of `set_nodes`. It is used only while
        `set_nodes` has no node with the same id and address. Connections to coordinator addresses
        that are no longer listed close after their requests in flight have ended.
        """
        self._check_process()
        if self._closed:
            return
        wanted = dict.fromkeys((node.host, node.port) for node in nodes)
        for address in [address for address in self._coordinators if address not in wanted]:
            self._retire(self._brokers[self._coordinators.pop(address)])
        for address in wanted:
            if address not in self._coordinators:
                node_id = self._next_coordinator_id
                self._next_coordinator_id -= 1
                self._coordinators[address] = node_id
                self._brokers[node_id] = Candidate(Node(node_id, *address))

    def coordinator_id(self, node: Node) -> int:
        """Return the id for requests to a node that was passed to `set_coordinators`. This is the
        broker id if the metadata lists the node at this address, so that the connection is
        shared."""
        broker = self._brokers.get(node.id)
        if broker is not None and (broker.node.host, broker.node.port) == (node.host, node.port):
            return node.id
        return self._coordinators[node.host, node.port]

    def ready(self, node_id: int, now: float) -> Connection | None:
        """Return the node's connection if it accepts a request now, otherwise None. A node without
        a connection is dialled if its backoff allows that.

        Raises:
            ForkedProcess: called in a child process.
        """
        if os.getpid() != self._pid:
            self._check_process()
        broker = self._brokers.get(node_id)
        if broker is None or self._closed:
            return None
        connection = broker.connection
        if connection is not None:
            return connection if connection.can_send(now) else None
        if self._states.can_connect(node_id, now):
            self._dial(broker, now)
        return None

    def can_send(self, node_id: int, now: float) -> bool:
        """Return True if `ready` would return a connection. Never dials."""
        broker = self._brokers.get(node_id)
        return (
            broker is not None and broker.connection is not None and broker.connection.can_send(now)
        )

    def retry_at(self, node_id: int, now: float) -> float:
        """Return the time at which the result of `ready` may change without an event, or inf if
        only an event can change it."""
        broker = self._brokers.get(node_id)
        if broker is None or self._closed:
            return math.inf
        if broker.connection is None:
            return max(now, self._states.not_before(node_id))
        if broker.connection.channel.can_send and broker.connection.throttled_until > now:
            return broker.connection.throttled_until
        return math.inf

    def in_flight_count(self, node_id: int) -> int:
        """Return the number of requests in flight on a node's connection."""
        broker = self._brokers.get(node_id)
        if broker is None or broker.connection is None:
            return 0
        return len(broker.connection.channel.in_flight)

    def total_in_flight(self) -> int:
        """Return the number of requests in flight on all connections, including closing ones."""
        # Iterate over a copy, because another thread may call `metrics()`.
        return sum(len(connection.channel.in_flight) for connection in list(self._connections))

    def in_flight_by_node(self) -> dict[int, int]:
        """Return the numbers of requests in flight by node. All addresses that the metadata does
        not list as brokers are counted under `OTHER_NODES`."""
        counts: dict[int, int] = {}
        for connection in list(self._connections):
            node_id = max(connection.node_id, OTHER_NODES)
            counts[node_id] = counts.get(node_id, 0) + len(connection.channel.in_flight)
        return counts

    def least_loaded(self, now: float) -> int | None:
        """Return the node for a request to which any broker can respond, or None.

        The preferred node has the fewest requests in flight among the nodes that accept a request.
        The next choices are a connecting node, then the least recently tried node whose backoff has
        ended. The search starts at a random node, so that clients do not all choose the same
        broker.
        """
        if self._closed:
            return None
        brokers = [broker for _, broker in self._listed()]
        chosen = least_loaded(brokers, self._states, self._rng, now)
        dialable = chosen is not None and self._brokers[chosen].connection is None
        self._sought = chosen if dialable else None
        return chosen

    def version_range(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        """Return the versions of an API that both sides support, or None if the node is not
        connected or they have no common version."""
        broker = self._brokers.get(node_id)
        if broker is None or broker.connection is None:
            return None
        return broker.connection.channel.versions.get(api_key)

    def finalized_feature(self, name: str) -> int:
        """Return the finalized level of a cluster feature, or 0 if unknown (KIP-584). The source is
        the ApiVersions response with the highest feature epoch."""
        return self._features.levels.get(name, 0)

    def forget_features(self) -> None:
        """Keep only the features of open connections to the known brokers, when the addresses lead
        to another cluster. Its feature epoch may be lower."""
        self._features = NO_FEATURES
        for broker in self._brokers.values():
            if broker.connection is not None:
                self._note_features(broker.connection)

    def _note_features(self, connection: Connection) -> None:
        if connection.channel.features.epoch > self._features.epoch:
            self._features = connection.channel.features

    def give_up(self, node_id: int, error: KafkaError) -> None:
        """Close all connections to a node, even if the node was removed. Their requests in flight
        end with `error`; the `on_done` callbacks run during this call."""
        for connection in list(self._connections):
            if connection.node_id == node_id:
                connection.fail(CloseReason.TIMEOUT, error)

    def reset_backoff(self) -> None:
        """Forget failures and resolved addresses of all nodes, for a rebootstrap."""
        self._states.reset()

    # -- life cycle -----------------------------------------------------------------------------

    async def close(self, deadline: float, error: KafkaError | None = None) -> None:
        """Close all connections and wait until they are closed, or until `deadline`. Idempotent.

        Args:
            error: the error of requests in flight; `ProducerClosed` by default.

        Cancellation aborts the transports without waiting.

        Raises:
            ForkedProcess: called in a child process; the sockets belong to the parent.
        """
        self._check_process()
        self._closed = True
        for timer in self._throttle_timers.values():
            timer.cancel()
        self._throttle_timers.clear()
        if error is None:
            error = ProducerClosed("the producer was closed before the broker responded")
        for connection in list(self._connections):
            if connection.channel.in_flight or connection.channel.preparing:
                connection.fail(CloseReason.LOCAL, error)
            else:
                connection.close()
        try:
            await self._wait_until_gone(deadline)
        finally:
            for connection in list(self._connections):
                connection.abort_transport()

    async def _wait_until_gone(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(max(deadline, self._loop.time() + _CANCEL_GRACE)):
                await self._dials.wait()
            async with asyncio.timeout_at(deadline):
                await self._none_left.wait()
        except TimeoutError:
            if self._connections:
                self.log.dropped(len(self._connections))

    # -- dialling -------------------------------------------------------------------------------

    def _dial(self, broker: Candidate, now: float) -> None:
        node = broker.node
        connection = self._connection(node)
        sought, self._sought = node.id == self._sought, None
        name = node.host, node.port
        connection.begin_setup(now, self._states.connecting(node.id, now, name, sought=sought))
        connection.throttled_until = self._states.throttled_until(node.id)
        # Set this before dialling, because the call of `start` may complete the connection.
        broker.connection = connection
        self._connections.add(connection)
        self._none_left.clear()
        self.log.connecting(connection)
        self._dials.start(node, connection)

    def _listed(self) -> list[tuple[int, Candidate]]:
        """Return the nodes from the metadata or the bootstrap addresses, without coordinators."""
        return [item for item in self._brokers.items() if item[0] > _COORDINATOR_IDS]

    def _retire(self, broker: Candidate) -> None:
        """Forget a node that was removed or moved to another address. Its connection closes when
        the requests in flight have ended."""
        node_id = broker.node.id
        del self._brokers[node_id]
        self._states.forget(node_id)
        self._cancel_throttle(node_id)
        if broker.connection is not None:
            broker.connection.close()

    # -- connection events ----------------------------------------------------------------------

    def connection_ready(self, connection: Connection) -> None:
        """ConnectionOwner: reset the backoff and notify the engine."""
        self.log.connected(connection)
        # No check of `_is_current` is needed: a connection that is retired before READY is closed,
        # so this method is never called for it.
        self._states.ready(connection.node_id, self._loop.time())
        counters = connection.channel.counters
        counters.connections += 1
        counters.authentications += connection.channel.authenticates
        self._note_features(connection)
        if self._on_connection_opened is not None:
            self._on_connection_opened(connection.node_id)
        self._on_wakeup()

    def connection_throttled(self, connection: Connection, seconds: float) -> None:
        """ConnectionOwner: send no request for `seconds`, because of throttling (KIP-219).

        The time has no upper limit. Brokers do not limit it to the quota window for byte quotas, so
        a request of 1 MB under a quota of 1 KiB/s leads to 967 s (Java `QuotaUtils.throttleTime`).
        The broker does not read requests sent earlier. Records still expire at their delivery
        deadlines.
        """
        now = self._loop.time()
        until = now + seconds
        # The broker reads nothing until then, so postpone the deadlines of requests in flight.
        # Postpone them only by the additional time, because several responses may report the same
        # throttling.
        longer = until - max(connection.throttled_until, now)
        if longer > 0:
            connection.throttled_until = until
            connection.postpone(longer)
        if self._is_current(connection) and not self._closed:
            node_id = connection.node_id
            until = self._states.throttle(node_id, until)
            self._cancel_throttle(node_id)
            timer = self._loop.call_at(until, self._throttle_over, node_id)
            self._throttle_timers[node_id] = timer
        if self._on_throttle is not None:
            self._on_throttle(connection.node_id, seconds)

    def connection_progress(self, connection: Connection) -> None:
        """ConnectionOwner: notify the engine that the connection may accept requests again."""
        self._on_wakeup()

    def connection_closed(
        self, connection: Connection, reason: CloseReason, error: KafkaError | None
    ) -> None:
        """ConnectionOwner: start the backoff and notify the engine."""
        self._dials.cancel(connection)
        self._forget_if_gone(connection)
        own_wish = reason in (CloseReason.LOCAL, CloseReason.IDLE)
        counters = connection.channel.counters
        counters.connections -= connection.was_ready
        counters.connection_failures += not connection.was_ready and not own_wish
        counters.authentication_failures += reason is CloseReason.AUTH_FAILED
        if self._on_connection_closed is not None:
            self._on_connection_closed(connection.node_id, None if own_wish else error)
        if not self._is_current(connection):
            return
        node_id, now = connection.node_id, self._loop.time()
        self._brokers[node_id].connection = None
        if reason is CloseReason.IDLE:
            self._states.expired(node_id, now)
        else:
            self._states.disconnected(
                node_id, now, was_up=connection.was_up, was_ready=connection.was_ready
            )
        if error is not None and not self._closed:
            self.log.closed(connection, reason, error, now)
            # Do not refresh metadata if the client closed the connection. After an idle close the
            # refresh would open a connection, which would become idle again, and so on.
            if not own_wish:
                self._on_disconnect(node_id, error)
        self._on_wakeup()

    def transport_closed(self, connection: Connection) -> None:
        """ConnectionOwner: forget the connection if its dial task has ended too."""
        self._forget_if_gone(connection)

    def callback_failed(self, error: BaseException) -> None:
        """ConnectionOwner: report an error of an engine callback. The connection stays open."""
        if self._on_callback_error is not None:
            self._on_callback_error(error)
        else:
            self._loop.call_exception_handler(
                {"message": "aiokprod: a completion callback raised", "exception": error}
            )

    # -- internals ------------------------------------------------------------------------------

    def _is_current(self, connection: Connection) -> bool:
        broker = self._brokers.get(connection.node_id)
        return broker is not None and broker.connection is connection

    def _forget_if_gone(self, connection: Connection) -> None:
        if connection.gone and not self._dials.has(connection):
            self._connections.discard(connection)
            if not self._connections:
                self._none_left.set()

    def _cancel_throttle(self, node_id: int) -> None:
        timer = self._throttle_timers.pop(node_id, None)
        if timer is not None:
            timer.cancel()

    def _throttle_over(self, node_id: int) -> None:
        del self._throttle_timers[node_id]
        self._on_wakeup()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedProcess(
                "this producer belongs to the parent process; create one after the fork"
            )
