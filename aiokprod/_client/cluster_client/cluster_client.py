"""`ClusterClient`: connections to the brokers of a cluster, for requests without records.

Source: Java `KafkaAdminClient` (nodes and retries), `CoordinatorStrategy` (KIP-699).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from aiokprod._backoff import ExponentialBackoff
from aiokprod._client.cluster_client.broker_access import BrokerAccess
from aiokprod._client.validation import tcp_environment
from aiokprod._engine.identity.coordinators import CoordinatorKind, VersionedRequest
from aiokprod._engine.metadata.cache import Metadata
from aiokprod._engine.metadata.updater import MetadataUpdater
from aiokprod._engine.wakeup import WakeupEvent
from aiokprod._net.client import NetworkClient
from aiokprod._version import __version__
from aiokprod._wire.messages.find_coordinator import FindCoordinatorRequest
from aiokprod.cluster import Node
from aiokprod.errors import (
    AuthenticationError,
    Code,
    KafkaError,
    KafkaTimeout,
    NetworkError,
    ProducerClosed,
    error_code,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from aiokprod._engine.ports import ClientResponse, ReadyConnection
    from aiokprod._wire.message import Message
    from aiokprod.cluster import ClusterSnapshot, TopicInfo
    from aiokprod.config import ProducerConfig
    from aiokprod.environment import Environment

_RECHECK: Final = 0.25
"""Seconds between two checks for a usable connection, because newer metadata may list another
broker."""
_BATCHED_FROM: Final = 4
"""First FindCoordinator version with several keys (KIP-699)."""
_PORTS: Final = 1 << 16


class _Replaced(Exception):
    """Raised because a bootstrap address was replaced by the brokers in the metadata."""


class ClusterClient:
    """Connections to one cluster, on the event loop that is running when the client is created.

    Every call waits for a connection until its deadline (`loop.time()`). If a broker rejects the
    credentials, requests to which any broker can respond are sent to another broker. A call fails
    with a rejection if every broker, or the broker that the call needs, has rejected the
    credentials for `patience` seconds.

    Args:
        config: servers, security and timeouts.
        patience: seconds; None uses socket_connection_setup_timeout_ms, as in the producer.
    """

    def __init__(
        self,
        config: ProducerConfig,
        environment: Environment | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        environment = environment or tcp_environment(config)
        self._rng = environment.rng
        self._waiting: set[WakeupEvent] = set()
        self._coordinators: dict[tuple[CoordinatorKind, str], Node] = {}
        self._asked: list[Node] = []  # coordinators with a request in progress
        self._ended: dict[int, KafkaError] = {}  # error of the last connection or dial, by broker
        self._retry = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        if patience is None:
            patience = config.socket_connection_setup_timeout_ms / 1000
        self._broker_access = BrokerAccess(patience)
        self.metadata = Metadata(config, environment.rng)
        self.client = NetworkClient(
            config,
            environment,
            self.loop,
            on_wakeup=self._on_network,
            on_disconnect=self._on_disconnect,
            on_connection_opened=self._broker_access.connected,
            client_id=config.client_id or "aiokprod-spark",
            software_version=__version__,
        )
        self._updater = MetadataUpdater(
            self.metadata, self.client, config, self.loop.time, on_request_sent=self._on_network
        )
        # Register this listener last, so that it runs after the update of `client`.
        self.metadata.on_change(lambda _: self._on_network())
        self._task = self.loop.create_task(self._updater.run(), name="aiokprod-cluster-client")

    def _on_network(self) -> None:
        for wakeup in self._waiting:
            wakeup.set()
        if self._updater.awaits_network:
            self._updater.wake()

    def _on_disconnect(self, node_id: int, error: KafkaError) -> None:
        self._broker_access.lost(node_id, error, self.loop.time())
        self._ended[node_id] = error
        self._updater.on_disconnect(node_id, error)
        self._on_network()

    async def close(self, timeout: float | None = None) -> None:
        """Close all connections within `timeout` seconds, or 5 s if None."""
        self.metadata.close(ProducerClosed("the cluster client was closed"))
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.client.close(self.loop.time() + (5.0 if timeout is None else timeout))

    # -- metadata -------------------------------------------------------------------------------

    async def topic(self, name: str, deadline: float) -> TopicInfo:
        """Return a topic's partitions and leaders.

        Raises:
            MetadataTimeout, InvalidTopic, AuthorizationError: see `Producer.send`.
            AuthenticationError: every broker rejects the credentials.
        """
        while True:
            try:
                snapshot: ClusterSnapshot = await self.metadata.wait_for_topic(
                    name, deadline=deadline
                )
            except AuthenticationError:  # from one broker; another broker may respond
                await self._connected(None, deadline)
            else:
                return snapshot.topics[name]

    async def nodes(self, deadline: float) -> list[int]:
        """Return the node ids of all brokers. Waits for the first metadata.

        Raises:
            AuthenticationError: every broker rejects the credentials.
            KafkaTimeout: there was no metadata before `deadline`.
        """
        while not self.metadata.snapshot.nodes:
            await self._connected(None, deadline)
            generation = self.metadata.request_update()
            await self.metadata.wait_newer(generation, deadline=deadline)
        return sorted(self.metadata.snapshot.nodes)

    def refresh(self) -> None:
        """Request a metadata update, for example because a leader has changed."""
        self.metadata.request_update()

    async def connect(self, node_id: int, deadline: float) -> ReadyConnection | None:
        """Connect to a broker. Unlike the other calls, this call does not retry; it raises the
        error of the first failed attempt.

        Returns:
            The connection, or None if `node_id` is a bootstrap address that was already replaced
            by the brokers in the metadata.

        Raises:
            AuthenticationError, NetworkError, KafkaError: the connection attempt failed.
            KafkaTimeout: there was no connection before `deadline`.
        """
        try:
            return await self._connected(node_id, deadline, once=True)
        except _Replaced:
            return None

    # -- requests -------------------------------------------------------------------------------

    async def ask(
        self, where: int | Node | None, request: Message | VersionedRequest, deadline: float
    ) -> ClientResponse:
        """Send one request to a broker and return its response.

        Args:
            where: node id of a broker in the metadata; or a coordinator with the address from
                FindCoordinator, even if the metadata does not list it; or None for any broker.

        Raises:
            AuthenticationError: the broker (with None: every broker) rejects the credentials.
            KafkaTimeout: there was no connection before `deadline`.
            NetworkError: the connection ended, or no connection to the coordinator could be made.
            KafkaError: the broker does not support the request, or its response could not be
                decoded.
        """
        if not isinstance(where, Node):
            return await self._ask(where, request, deadline)
        self._asked.append(where)
        try:
            self.client.set_coordinators([*self._coordinators.values(), *self._asked])
            return await self._ask(where, request, deadline)
        finally:
            self._asked.remove(where)

    async def _ask(
        self, where: int | Node | None, request: Message | VersionedRequest, deadline: float
    ) -> ClientResponse:
        connection = await self._connected(where, deadline)
        done: asyncio.Future[ClientResponse] = self.loop.create_future()

        def on_done(response: ClientResponse) -> None:
            if not done.done():
                done.set_result(response)

        now = self.loop.time()
        timeout = min(self.config.request_timeout_ms / 1000, max(0.001, deadline - now))
        cap = request.max_version if isinstance(request, VersionedRequest) else None
        connection.send(request, on_done, now, timeout=timeout, max_version=cap)
        response = await done
        if response.error is not None:
            raise response.error
        return response

    async def _connected(
        self, where: int | Node | None, deadline: float, *, once: bool = False
    ) -> ReadyConnection:
        """Wait until a broker's connection accepts a request, and return the connection. With
        `once`, raise the error of the first failed attempt."""
        node_id: int | None
        wakeup = WakeupEvent(self.loop)
        began = self.loop.time()
        before = dict(self._ended)
        self._waiting.add(wakeup)
        try:
            while True:
                wakeup.clear()
                now = self.loop.time()
                if isinstance(where, Node):
                    # The id changes once the metadata lists the node.
                    node_id = self.client.coordinator_id(where)
                    ended = self._ended.get(node_id)
                    if isinstance(ended, NetworkError) and ended is not before.get(node_id):
                        raise ended.copy()  # another broker may be the coordinator by now
                else:
                    node_id = where
                node = self.client.least_loaded(now) if node_id is None else node_id
                connection = None if node is None else self.client.ready(node, now)
                if connection is not None:
                    return connection
                if once and node_id is not None:
                    error = self._ended.get(node_id)
                    if error is not None and error is not before.get(node_id):
                        raise error.copy()
                    if node_id < 0 and not self.metadata.only_bootstrap_nodes:
                        raise _Replaced
                self._check_reachable(node_id, began, now, deadline)
                if node is not None and node >= 0 and node not in self.metadata.snapshot.nodes:
                    self.refresh()
                await wakeup.wait(min(deadline, now + _RECHECK))
        finally:
            self._waiting.discard(wakeup)

    def _check_reachable(
        self, node_id: int | None, began: float, now: float, deadline: float
    ) -> None:
        late = now >= deadline
        if node_id is None:
            nodes = self.metadata.snapshot.nodes
            refusal = self._broker_access.of_all(nodes, began, now, last_word=late)
        else:
            refusal = self._broker_access.of(node_id, began, now, last_word=late)
        if refusal is not None:
            raise refusal.copy()
        if late:
            servers = ", ".join(self.config.bootstrap_servers)
            what = servers if node_id is None else f"broker {node_id} of {servers}"
            cause = self.metadata.last_error
            why = f": {cause}" if cause is not None else ""
            error = KafkaTimeout(f"{what}: no connection in time{why}", retriable=True)
            error.__cause__ = cause
            raise error

    async def coordinate(
        self,
        kind: CoordinatorKind,
        key: str,
        request: VersionedRequest,
        deadline: float,
        codes: Callable[[Any], int] = lambda body: int(body.error_code),
    ) -> Any:
        """Send a request to a coordinator, and repeat it after every retriable error.

        The request must be safe to execute twice. Returns the first response body whose error code
        is not retriable.

        Args:
            codes: returns the error code of a response body.

        Raises:
            KafkaTimeout: there was no definite response before `deadline`.
            AuthenticationError: the coordinator, or every broker, rejects the credentials.
            KafkaError: the broker does not support the request, or its response could not be
                decoded.
        """
        found = await self.coordinate_all(
            kind, [key], lambda keys: request, lambda body: {key: (codes(body), body)}, deadline
        )
        return found[key]

    async def coordinate_all(
        self,
        kind: CoordinatorKind,
        keys: Collection[str],
        request: Callable[[list[str]], Message | VersionedRequest],
        answers: Callable[[Any], Mapping[str, tuple[int, Any]]],
        deadline: float,
    ) -> dict[str, Any]:
        """Like `coordinate`, for many keys. Each coordinator gets one request; all are concurrent.

        Keys that are missing in the response, or that have a retriable error code, are requested
        again.

        Args:
            request: builds the request for some of the keys.
            answers: returns the (error code, result) of each key in a response body.

        Returns:
            The result of each key.
        """
        found: dict[str, Any] = {}
        left = set(keys)
        attempts = 0
        while left:
            groups, last = await self._located(kind, sorted(left), deadline)
            responses = await asyncio.gather(
                *(self.ask(node, request(part), deadline) for node, part in groups.items()),
                return_exceptions=True,
            )
            for part, response in zip(groups.values(), responses, strict=True):
                if isinstance(response, NetworkError):
                    self._forget(kind, part)
                    last = response.message
                    continue
                if isinstance(response, BaseException):
                    raise response
                for key, (code, answer) in answers(response.body).items():
                    row = error_code(code)
                    if not row.retriable:
                        found[key] = answer
                        continue
                    if row.refresh_coordinator:
                        self._forget(kind, [key])
                    last = row.name
            left -= found.keys()
            if not left:
                break
            attempts += 1
            pause = self._retry.after(attempts - 1, self._rng)
            if self.loop.time() + pause > deadline:
                raise KafkaTimeout(
                    f"coordinator of {kind.name.lower()} {min(left)}: no definite response in "
                    f"time: {last}"
                )
            await asyncio.sleep(pause)
        return found

    def _forget(self, kind: CoordinatorKind, keys: Collection[str]) -> None:
        for key in keys:
            self._coordinators.pop((kind, key), None)

    async def _located(
        self, kind: CoordinatorKind, keys: list[str], deadline: float
    ) -> tuple[dict[Node, list[str]], str]:
        """Return the keys by coordinator, and the reason why the other coordinators are unknown."""
        unknown = [key for key in keys if (kind, key) not in self._coordinators]
        last = "no broker responded"
        try:
            while unknown:  # from FindCoordinator v4 on, one request has all keys (KIP-699)
                answers = await self._find(kind, unknown, deadline)
                unknown = [key for key in unknown if key not in answers]
                for key, answer in answers.items():
                    code = answer.error_code
                    if code == Code.NONE:
                        node = Node(answer.node_id, answer.host, answer.port)
                        if node.id >= 0 and node.host and 0 < node.port < _PORTS:
                            self._coordinators[kind, key] = node
                            continue
                        code = Code.COORDINATOR_NOT_AVAILABLE  # the address is missing
                    found = error_code(code)
                    if not found.retriable:
                        raise KafkaError(
                            f"coordinator of {kind.name.lower()} {key}: {found.text}", code=found
                        )
                    last = found.name
        except NetworkError as error:
            last = error.message
        groups: dict[Node, list[str]] = {}
        for key in keys:
            known = self._coordinators.get((kind, key))
            if known is not None:
                groups.setdefault(known, []).append(key)
        return groups, last

    async def _find(
        self, kind: CoordinatorKind, keys: list[str], deadline: float
    ) -> dict[str, Any]:
        """Return the FindCoordinator results of these keys. The result may have fewer keys; before
        v4 it has only the first key."""

        def build(version: int) -> FindCoordinatorRequest:
            if version >= _BATCHED_FROM:
                return FindCoordinatorRequest(key_type=kind, coordinator_keys=keys)
            return FindCoordinatorRequest(key=keys[0], key_type=kind)

        request = VersionedRequest(FindCoordinatorRequest.api_key, build)
        response = await self.ask(None, request, deadline)
        if response.version < _BATCHED_FROM:
            return {keys[0]: response.body}
        found = response.body.coordinators
        if len(keys) == len(found) == 1:
            return {keys[0]: found[0]}  # gateways may omit or rewrite the key
        answered = {answer.key: answer for answer in found if answer.key in keys}
        if answered:
            return answered
        if len(keys) > 1:
            return await self._find(kind, keys[:1], deadline)
        raise KafkaError(
            f"FindCoordinator: {len(found)} coordinators for one key, none of them with that key"
        )
