"""Finds the coordinators of transactions and groups, and sends requests to them.

`Coordinators` makes one attempt at a time. The callers decide whether to repeat an attempt, because
the meaning of a lost response depends on the request. This module does not depend on the state of a
transaction.

Source: Java `Sender.maybeSendAndPollTransactionalRequest`, `TransactionManager.lookupCoordinator`;
KIP-699 for FindCoordinator v4.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokprod._engine.wakeup import WakeupEvent
from aiokprod._log_fields import log_fields
from aiokprod._wire.messages.find_coordinator import FindCoordinatorRequest
from aiokprod.cluster import Node
from aiokprod.errors import AuthenticationError, Code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiokprod._engine.metadata.cache import Metadata
    from aiokprod._engine.ports import BrokerClient, ClientResponse, ReadyConnection
    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.errors import KafkaError

logger = logging.getLogger(__name__)

_BATCHED_FROM: Final = 4
_NO_CODE: Final = int(Code.NONE)
_PORTS: Final = 1 << 16
_MOST_KNOWN: Final = 1000
"""Maximum number of coordinators in the cache, which an application that commits the offsets of
ever new groups may reach."""


class CoordinatorKind(enum.IntEnum):
    """Key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one attempt: the `body` of the response, or the `error`.

    Attributes:
        version: API version of the request, or -1 if none was sent.
        maybe_written: True if there is no response but the broker may have received the request.
    """

    body: Any
    error: KafkaError | None
    version: int
    maybe_written: bool


class VersionedRequest:
    """A request whose message is built once the API version is negotiated. Implements the callable
    `(version) -> Message` of `ReadyConnection.send`.

    Attributes:
        sent: True once the request was sent.
    """

    __slots__ = ("_build", "api_key", "max_version", "sent")

    def __init__(
        self, api_key: int, build: Callable[[int], Any], max_version: int | None = None
    ) -> None:
        self.api_key = api_key
        self._build = build
        self.max_version = max_version
        self.sent = False

    def __call__(self, version: int) -> Any:
        """Return the message for this version. Raises UnsupportedVersion if the version is too old
        for the request."""
        return self._build(version)


@dataclass(slots=True)
class _KnownCoordinator:
    """A coordinator from a FindCoordinator response.

    Attributes:
        listed: True if the latest metadata contains this node with this address.
    """

    node: Node
    listed: bool


class Coordinators:
    """Finds coordinators and sends one request at a time to them. For use by one task.

    A coordinator is reached at the address in the FindCoordinator response, even if the metadata
    has another address for this node, or no such node. The metadata may be older, or may never
    contain the node (behind a proxy).

    Attributes:
        waiting_for: broker whose next free in-flight slot is reserved for a request to a
            coordinator: the sender sends nothing to this broker until `on_free` is called. If
            authentication to the broker fails, `on_refused` gets the error, and the request
            continues to wait.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: BrokerClient,
        metadata: Metadata,
        *,
        request_timeout: float,
        on_free: Callable[[], None],
        on_refused: Callable[[AuthenticationError], None],
    ) -> None:
        self._loop = loop
        self._client = client
        self._metadata = metadata
        self._request_timeout = request_timeout
        self._on_free = on_free
        self._on_refused = on_refused
        self.waiting_for: int | None = None
        self._network = WakeupEvent(loop)
        self._known: dict[tuple[CoordinatorKind, str], _KnownCoordinator] = {}

    def on_network(self) -> None:
        """Wake the waiting attempt, because a connection changed, a response arrived, or a request
        may no longer be wanted."""
        self._network.set()

    def on_snapshot(self, snapshot: ClusterSnapshot) -> None:
        """Forget coordinators whose node was removed from the metadata or got another address. The
        connection to such a node is being closed, and the node is probably shutting down."""
        for where, coordinator in list(self._known.items()):
            listed = _lists(snapshot, coordinator.node)
            if coordinator.listed and not listed:
                del self._known[where]
            coordinator.listed = listed
        self._network.set()

    def known(self, kind: CoordinatorKind, key: str) -> int | None:
        """Return the node id of the coordinator, or None if it must be looked up."""
        coordinator = self._known.get((kind, key))
        return None if coordinator is None else coordinator.node.id

    def forget(self, kind: CoordinatorKind, key: str) -> None:
        """Forget the coordinator, which has moved or cannot be reached, so that it is looked up
        again."""
        self._known.pop((kind, key), None)

    def on_disconnect(self, node_id: int, error: KafkaError) -> None:
        """Forget the coordinators at a broker whose connection, or connection attempt, has ended,
        because they may have moved. If an attempt waits for this broker and authentication failed,
        call `on_refused`."""
        if node_id == self.waiting_for and isinstance(error, AuthenticationError):
            self._on_refused(error)
        for where, coordinator in list(self._known.items()):
            if self._client.coordinator_id(coordinator.node) == node_id:
                del self._known[where]
        self._network.set()

    async def find(
        self, kind: CoordinatorKind, key: str, wanted: Callable[[], bool] = lambda: True
    ) -> tuple[int, Reply | None]:
        """Ask any available broker for the coordinator, once. If this succeeds, `known` returns it
        afterwards.

        Args:
            wanted: returns False to end the wait for an available broker.

        Returns:
            The error code and, if there was no response, the result of the attempt; (0, None) on
            success or if the lookup is no longer wanted.
        """
        try:
            connection = await self._any_node(wanted)
            if connection is None:
                return _NO_CODE, None
            answer = self._send(connection, _find_request(kind, key))
        finally:
            self.waiting_for = None
            self._on_free()
        reply = await answer
        if reply.body is None:
            return _NO_CODE, reply
        entry = reply.body
        if reply.version >= _BATCHED_FROM:
            found = reply.body.coordinators
            if len(found) != 1:
                return int(Code.COORDINATOR_NOT_AVAILABLE), None
            # Only one key was requested, so the key in the response is not compared: gateways omit
            # it or return an internal name (Java ignores it too).
            entry = found[0]
        if entry.error_code != Code.NONE:
            return int(entry.error_code), None
        if entry.node_id < 0 or not entry.host or not 0 < entry.port < _PORTS:
            return int(Code.COORDINATOR_NOT_AVAILABLE), None
        node = Node(entry.node_id, entry.host, entry.port)
        logger.info(
            "coordinator of %s %s is broker %s", kind.name, key, node,
            extra=log_fields("coordinator_found", kind=kind.name, key=key, node_id=node.id),
        )  # fmt: skip
        self.forget(kind, key)  # so that the entry becomes the newest
        self._known[kind, key] = _KnownCoordinator(node, _lists(self._metadata.snapshot, node))
        if len(self._known) > _MOST_KNOWN:
            del self._known[next(iter(self._known))]  # the oldest is looked up again if needed
        self._client.set_coordinators([one.node for one in self._known.values()])
        return _NO_CODE, None

    async def _any_node(self, wanted: Callable[[], bool]) -> ReadyConnection | None:
        while wanted():
            self._network.clear()
            now = self._loop.time()
            node_id = self._client.least_loaded(now)
            if node_id is None:  # all nodes are busy or unreachable: wait for one
                node_id = next(iter(self._metadata.snapshot.nodes), None)
            connection = None if node_id is None else self._client.ready(node_id, now)
            if connection is not None:
                return connection
            self.waiting_for = node_id
            # If no node is known, the next connection of the metadata updater wakes this task.
            again = math.inf if node_id is None else self._client.retry_at(node_id, now)
            await self._network.wait(min(again, now + self._request_timeout))
        return None

    async def attempt(
        self,
        kind: CoordinatorKind,
        key: str,
        request: VersionedRequest,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Reply | None:
        """Send the request once to the known coordinator.

        Returns:
            The result of the attempt; None if nothing was sent, because the coordinator could not
            be reached or the request is no longer wanted.

        Cancellation: a later response is ignored.
        """
        try:
            connection = await self._connected(kind, key, wanted)
            if connection is None:
                self.forget(kind, key)
                return None
            answer = self._send(connection, request)
        finally:
            self.waiting_for = None
            self._on_free()
        reply = await answer
        if reply.body is None:
            self.forget(kind, key)
        return reply

    async def _connected(
        self, kind: CoordinatorKind, key: str, wanted: Callable[[], bool]
    ) -> ReadyConnection | None:
        """Return the connection to the coordinator once it accepts a request, or None if the
        coordinator must be looked up again or the request is no longer wanted.

        The coordinator may have moved if an attempt to connect failed (`on_disconnect` has
        forgotten it), if its node was removed from the metadata, or after request_timeout_ms. A
        coordinator that throttles this client or has no free in-flight slot is connected; another
        lookup would not help.
        """
        coordinator = self._known[kind, key]
        give_up = self._loop.time() + self._request_timeout
        while self._known.get((kind, key)) is coordinator and wanted():
            self._network.clear()
            now = self._loop.time()
            node_id = self.waiting_for = self._client.coordinator_id(coordinator.node)
            connection = self._client.ready(node_id, now)
            if connection is not None:
                return connection
            if now >= give_up:
                return None
            await self._network.wait(min(self._client.retry_at(node_id, now), give_up))
        return None

    def _send(self, connection: ReadyConnection, request: VersionedRequest) -> Awaitable[Reply]:
        """Send the request immediately; the awaitable returns its reply."""
        done: asyncio.Future[ClientResponse] = self._loop.create_future()

        def on_done(response: ClientResponse) -> None:
            if not done.done():
                done.set_result(response)

        request.sent = True
        connection.send(
            request,
            on_done,
            self._loop.time(),
            timeout=self._request_timeout,
            max_version=request.max_version,
        )
        return self._reply(done)

    @staticmethod
    async def _reply(done: asyncio.Future[ClientResponse]) -> Reply:
        response = await done
        return Reply(response.body, response.error, response.version, response.maybe_written)


def _lists(snapshot: ClusterSnapshot, node: Node) -> bool:
    known = snapshot.nodes.get(node.id)
    return known is not None and (known.host, known.port) == (node.host, node.port)


def _find_request(kind: CoordinatorKind, key: str) -> VersionedRequest:
    def build(version: int) -> FindCoordinatorRequest:
        if version >= _BATCHED_FROM:
            return FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        return FindCoordinatorRequest(key=key, key_type=kind)

    return VersionedRequest(FindCoordinatorRequest.api_key, build)
