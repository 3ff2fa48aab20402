"""Requests to coordinators: who is it, is it connected, what came back.

One attempt at a time; whether an answer is repeated is decided by the callers, who alone know what
a lost answer means to them. Knows no transaction states.

Source: Java `Sender.maybeSendAndPollTransactionalRequest`, `TransactionManager.lookupCoordinator`;
KIP-699 for FindCoordinator v4.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokprod.engine.wakeup import Wakeup
from aiokprod.errors import AuthenticationError, Code
from aiokprod.wire.messages.find_coordinator import FindCoordinatorRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiokprod.engine.metadata import Metadata
    from aiokprod.engine.ports import BrokerClient, Response
    from aiokprod.errors import KafkaError

logger = logging.getLogger(__name__)

_BATCHED_FROM: Final = 4
_NO_CODE: Final = int(Code.NONE)


class CoordinatorKind(enum.IntEnum):
    """Key types of FindCoordinator."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class Reply:
    """The end of one attempt: `body`, or `error`.

    Attributes:
        version: of the request, -1 if none was sent.
        maybe_written: without a body: the broker may have acted on the request.
    """

    body: Any
    error: KafkaError | None
    version: int
    maybe_written: bool


class VersionedRequest:
    """A request made for the negotiated version; the port's `(version) -> message`."""

    __slots__ = ("_build", "api_key", "max_version")

    def __init__(
        self, api_key: int, build: Callable[[int], Any], max_version: int | None = None
    ) -> None:
        self.api_key = api_key
        self._build = build
        self.max_version = max_version

    def __call__(self, version: int) -> Any:
        """The message."""
        return self._build(version)


class Coordinators:
    """Finds coordinators and carries one request at a time to them. For one task.

    Attributes:
        waiting_for: broker whose next free place in flight is taken by a request from here; the
            sender leaves it alone, `on_free` tells it when it need not any more. If it refuses us,
            `on_refused` tells why; the request waits on.
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
        self._network = Wakeup(loop)
        self._known: dict[tuple[CoordinatorKind, str], int] = {}

    def on_network(self) -> None:
        """Something changed: a connection, an answer, the metadata."""
        self._network.set()

    def known(self, kind: CoordinatorKind, key: str) -> int | None:
        """The coordinator's node, None if it must be looked up."""
        return self._known.get((kind, key))

    def forget(self, kind: CoordinatorKind, key: str) -> None:
        """It is not the coordinator, or cannot be reached: look it up again."""
        self._known.pop((kind, key), None)

    def on_disconnect(self, node_id: int, error: KafkaError) -> None:
        """The connection to a broker ended: its coordinators may move."""
        if node_id == self.waiting_for and isinstance(error, AuthenticationError):
            self._on_refused(error)
        for where in [where for where, node in self._known.items() if node == node_id]:
            del self._known[where]

    async def find(self, kind: CoordinatorKind, key: str) -> tuple[int, KafkaError | None]:
        """One lookup at any broker: (error code, error of the client). `known` has the find."""
        try:
            answer = self._send(await self._any_node(), _find_request(kind, key))
        finally:
            self.waiting_for = None
            self._on_free()
        reply = await answer
        if reply.body is None:
            return _NO_CODE, reply.error
        entry = reply.body
        if reply.version >= _BATCHED_FROM:
            found = [one for one in reply.body.coordinators if one.key == key]
            if not found:
                return int(Code.COORDINATOR_NOT_AVAILABLE), None
            entry = found[0]
        if entry.error_code == Code.NONE:
            logger.info("coordinator of %s %s is broker %d", kind.name, key, entry.node_id)
            self._known[kind, key] = entry.node_id
        return int(entry.error_code), None

    async def _any_node(self) -> int:
        while True:
            self._network.clear()
            now = self._loop.time()
            node_id = self._client.least_loaded(now)
            if node_id is None:  # all are busy or cannot be reached: stand in line at one
                node_id = next(iter(self._metadata.snapshot.nodes), None)
            if node_id is not None and self._client.ready(node_id, now):
                return node_id
            self.waiting_for = node_id
            # Without a node to dial the metadata updater's next dial wakes us.
            again = float("inf") if node_id is None else self._client.retry_at(node_id, now)
            await self._network.wait(min(again, now + self._request_timeout))

    async def attempt(
        self, kind: CoordinatorKind, key: str, request: VersionedRequest
    ) -> Reply | None:
        """Send once to the known coordinator; None if it could not be reached (nothing was sent).

        Cancellation: the answer, if one comes, is dropped.
        """
        node_id = self._known[kind, key]
        self.waiting_for = node_id
        try:
            if not await self._connected(node_id):
                self.forget(kind, key)
                return None
            answer = self._send(node_id, request)
        finally:
            self.waiting_for = None
            self._on_free()
        reply = await answer
        if reply.body is None:
            self.forget(kind, key)
        return reply

    async def _connected(self, node_id: int) -> bool:
        """Wait for a connection; False once one attempt at it failed."""
        if node_id not in self._metadata.snapshot.nodes:
            self._metadata.request_update()
        give_up = self._loop.time() + self._request_timeout
        tried = False
        while True:
            self._network.clear()
            now = self._loop.time()
            if self._client.ready(node_id, now):
                return True
            known = node_id in self._metadata.snapshot.nodes
            retry_at = self._client.retry_at(node_id, now)
            backing_off = known and retry_at < float("inf")
            if now >= give_up or (tried and backing_off):
                return False
            tried = tried or known
            if known and backing_off:
                await self._network.wait(min(retry_at, give_up))
            else:
                await self._network.wait(min(give_up, now + (30.0 if known else 1.0)))
                if not known and self._loop.time() >= give_up:
                    return False

    def _send(self, node_id: int, request: VersionedRequest) -> Awaitable[Reply]:
        """Hand the request over at once; await the result for the answer."""
        done: asyncio.Future[Response] = self._loop.create_future()

        def on_done(response: Response) -> None:
            if not done.done():
                done.set_result(response)

        self._client.send(
            node_id,
            request,
            on_done,
            self._loop.time(),
            timeout=self._request_timeout,
            max_version=request.max_version,
        )
        return self._reply(done)

    @staticmethod
    async def _reply(done: asyncio.Future[Response]) -> Reply:
        response = await done
        return Reply(response.body, response.error, response.version, response.maybe_written)


def _find_request(kind: CoordinatorKind, key: str) -> VersionedRequest:
    def build(version: int) -> FindCoordinatorRequest:
        if version >= _BATCHED_FROM:
            return FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        return FindCoordinatorRequest(key=key, key_type=kind)

    return VersionedRequest(FindCoordinatorRequest.api_key, build)
