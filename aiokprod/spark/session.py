"""Requests of the driver and of the audit to a cluster: any broker, leaders, coordinators.

A `Session` is what a producer is without records: connections, metadata and coordinators.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from aiokprod.arguments import tcp_environment
from aiokprod.backoff import ExponentialBackoff
from aiokprod.engine.coordinators import CoordinatorKind, VersionedRequest
from aiokprod.engine.metadata import Metadata
from aiokprod.engine.metadata_updater import MetadataUpdater
from aiokprod.engine.wakeup import Wakeup
from aiokprod.errors import (
    AuthenticationError,
    Code,
    KafkaError,
    KafkaTimeout,
    NetworkError,
    ProducerClosed,
    error_code,
)
from aiokprod.net.client import NetworkClient
from aiokprod.spark.outside import Outside
from aiokprod.version import __version__
from aiokprod.wire.messages.find_coordinator import FindCoordinatorRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod.cluster import ClusterSnapshot, TopicInfo
    from aiokprod.config import ProducerConfig
    from aiokprod.engine.ports import Response
    from aiokprod.environment import Environment
    from aiokprod.wire.message import Message

_LOOK_AGAIN: Final = 0.25
"""Seconds; the metadata may have brought another broker in the meantime."""
_BATCHED_FROM: Final = 4
_LOOKUP: Final = frozenset({Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE})


class Session:
    """Connections to one cluster, for the loop it is made on.

    Every call waits for connections as long as its deadline (in `loop.time()`) allows. A broker
    that refuses us is stood in for by any other where that is possible; a refusal ends a call once
    nobody is left who might let us in, or the broker it needs has refused us for `patience`.

    Args:
        config: gives servers and security.
        patience: seconds; None is what a connection may take to be set up, as in the producer.
    """

    def __init__(
        self,
        config: ProducerConfig,
        environment: Environment | None = None,
        *,
        patience: float | None = None,
    ) -> None:
        self._config = config
        self.loop = asyncio.get_running_loop()
        environment = environment or tcp_environment(config)
        self._rng = environment.rng
        self._waiting: set[Wakeup] = set()
        self._coordinators: dict[tuple[CoordinatorKind, str], int] = {}
        self._retry = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        if patience is None:
            patience = config.socket_connection_setup_timeout_ms / 1000
        self._outside = Outside(patience)
        self.metadata = Metadata(config, environment.rng)
        self.client = NetworkClient(
            config,
            environment,
            self.loop,
            on_wakeup=self._on_network,
            on_disconnect=self._on_disconnect,
            on_connection_opened=self._outside.connected,
            client_id=config.client_id or "aiokprod-spark",
            software_version=__version__,
        )
        self._updater = MetadataUpdater(
            self.metadata, self.client, config, self.loop.time, on_request_sent=self._on_network
        )
        self.metadata.on_change(lambda _: self._on_network())  # after the updater told the client
        self._task = self.loop.create_task(self._updater.run(), name="aiokprod-session")

    def _on_network(self) -> None:
        for wakeup in self._waiting:
            wakeup.set()
        self._updater.on_network()

    def _on_disconnect(self, node_id: int, error: KafkaError) -> None:
        self._outside.lost(node_id, error, self.loop.time())
        self._updater.on_disconnect(node_id, error)
        self._on_network()

    async def close(self, timeout: float | None = None) -> None:
        """End all connections."""
        self.metadata.close(ProducerClosed("the session was closed"))
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self.client.close(self.loop.time() + (5.0 if timeout is None else timeout))

    # -- looking --------------------------------------------------------------------------------

    async def topic(self, name: str, deadline: float) -> TopicInfo:
        """A topic's partitions and leaders.

        Raises:
            MetadataTimeout, InvalidTopic, AuthorizationError: as `Producer.send`.
            AuthenticationError: no broker lets us in.
        """
        while True:
            try:
                snapshot: ClusterSnapshot = await self.metadata.wait_for_topic(
                    name, deadline=deadline
                )
            except AuthenticationError:  # of one broker, whichever was asked
                await self._connected(None, deadline)
            else:
                return snapshot.topics[name]

    def refresh(self) -> None:
        """Leaders may have moved: ask for metadata."""
        self.metadata.request_update()

    # -- requests -------------------------------------------------------------------------------

    async def ask(
        self, node_id: int | None, request: Message | VersionedRequest, deadline: float
    ) -> Response:
        """One request to a broker, any one if `node_id` is None.

        Raises:
            AuthenticationError: the broker, or every one, refuses us.
            KafkaTimeout: no connection until `deadline`.
            KafkaError: the connection ended or the answer was none.
        """
        node = await self._connected(node_id, deadline)
        done: asyncio.Future[Response] = self.loop.create_future()

        def on_done(response: Response) -> None:
            if not done.done():
                done.set_result(response)

        now = self.loop.time()
        timeout = min(self._config.request_timeout_ms / 1000, max(0.001, deadline - now))
        cap = request.max_version if isinstance(request, VersionedRequest) else None
        self.client.send(node, request, on_done, now, timeout=timeout, max_version=cap)
        response = await done
        if response.error is not None:
            raise response.error
        return response

    async def _connected(self, node_id: int | None, deadline: float) -> int:
        wakeup = Wakeup(self.loop)
        began = self.loop.time()
        self._waiting.add(wakeup)
        try:
            while True:
                wakeup.clear()
                now = self.loop.time()
                node = self.client.least_loaded(now) if node_id is None else node_id
                if node is not None and self.client.ready(node, now):
                    return node
                self._check_reachable(node_id, began, now, deadline)
                if node is not None and node >= 0 and node not in self.metadata.snapshot.nodes:
                    self.refresh()
                await wakeup.wait(min(deadline, now + _LOOK_AGAIN))
        finally:
            self._waiting.discard(wakeup)

    def _check_reachable(
        self, node_id: int | None, began: float, now: float, deadline: float
    ) -> None:
        late = now >= deadline
        if node_id is None:
            nodes = self.metadata.snapshot.nodes
            refusal = self._outside.of_all(nodes, began, now, last_word=late)
        else:
            refusal = self._outside.of(node_id, began, now, last_word=late)
        if refusal is not None:
            raise refusal.copy()
        if late:
            servers = ", ".join(self._config.bootstrap_servers)
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
        """One request to a coordinator, repeated while the reason of a refusal passes.

        For requests that may be carried out twice without harm. Returns the body, also one with a
        code that does not pass.

        Raises:
            KafkaTimeout: no definite answer until `deadline`.
            AuthenticationError: the coordinator, or every broker, refuses us.
            KafkaError: the request cannot be made.
        """
        where = (kind, key)
        last = "nobody could be reached"
        attempts = 0
        while True:
            try:
                node = await self._coordinator(where, deadline)
                body = (await self.ask(node, request, deadline)).body
            except NetworkError as error:
                self._coordinators.pop(where, None)
                last = error.message
            except _Passing as refusal:
                last = str(refusal)
            else:
                code = codes(body)
                if code in _LOOKUP:
                    self._coordinators.pop(where, None)
                elif not error_code(code).retriable:
                    return body
                last = error_code(code).name
            attempts += 1
            pause = self._retry.after(attempts - 1, self._rng)
            if self.loop.time() + pause > deadline:
                raise KafkaTimeout(
                    f"coordinator of {kind.name.lower()} {key}: no definite answer in time: {last}"
                )
            await asyncio.sleep(pause)

    async def _coordinator(self, where: tuple[CoordinatorKind, str], deadline: float) -> int:
        node = self._coordinators.get(where)
        if node is None:
            node = self._coordinators[where] = await self._find(*where, deadline)
        return node

    async def _find(self, kind: CoordinatorKind, key: str, deadline: float) -> int:
        def build(version: int) -> FindCoordinatorRequest:
            if version >= _BATCHED_FROM:
                return FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
            return FindCoordinatorRequest(key=key, key_type=kind)

        request = VersionedRequest(FindCoordinatorRequest.api_key, build)
        response = await self.ask(None, request, deadline)
        answer = response.body
        if response.version >= _BATCHED_FROM:
            (answer,) = response.body.coordinators
        if answer.error_code == Code.NONE:
            return int(answer.node_id)
        found = error_code(answer.error_code)
        if found.retriable:
            raise _Passing(found.name)
        raise KafkaError(f"coordinator of {kind.name.lower()} {key}: {found.text}", code=found)


class _Passing(Exception):
    """A refusal whose reason passes."""
