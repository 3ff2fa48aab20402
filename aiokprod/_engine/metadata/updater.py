"""The task that requests metadata. `run_once` decides and sends synchronously; `run` waits for the
next event.

Source: Java `NetworkClient.DefaultMetadataUpdater`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aiokprod._engine.metadata.cache import Metadata, UpdatePlan
from aiokprod._engine.ports import BrokerClient, ClientResponse, ReadyConnection
from aiokprod._engine.sender.unresponsive_brokers import OVERDUE_AFTER_S
from aiokprod._log_fields import log_fields
from aiokprod._wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from aiokprod.cluster import ClusterSnapshot, Node
from aiokprod.config import ProducerConfig
from aiokprod.errors import (
    AuthenticationError,
    BrokerError,
    Code,
    DialError,
    KafkaError,
    UnsupportedVersion,
    broker_error,
)

logger = logging.getLogger(__name__)

_RELIABLE_EPOCHS_SINCE: Final = 9
"""The first Metadata version with reliable leader epochs. In older responses, a leader epoch may
not belong to the leader with which it is returned (KAFKA-7984)."""

_LEAST_WAIT_S: Final = 0.05
"""Shortest wait while no request can be sent, so that this task cannot run in a busy loop."""


_LEAST_TRIGGER_S: Final = 1.0
"""Shortest time between two rebootstraps, because each resets the reconnect backoff."""


@dataclass(slots=True)
class _Fetch:
    """A metadata request in flight to one or more nodes.

    Attributes:
        plan: the topics to request.
        give_up_at: time at which it fails if no node has responded.
        ask_again_at: time at which it is sent to another node if none has responded.
        asked: the nodes to which it was sent.
        unanswered: number of these nodes that have not responded.
        response: the first response, until `run_once` handles it.
    """

    plan: UpdatePlan
    give_up_at: float
    ask_again_at: float
    asked: set[int] = field(default_factory=set)
    unanswered: int = 0
    response: ClientResponse | None = None


class MetadataUpdater:
    """Keeps one `Metadata` up to date through one `BrokerClient`.

    There is at most one fetch at a time. If its node does not respond for a second, the request is
    also sent to another node (Java waits for request.timeout.ms), and the first response counts. If
    one of the two fails, or neither responds within request_timeout_ms, the request is sent to a
    third node.

    Connect `client`'s events to `wake` and `on_disconnect`, and run `run()` as a task of the
    producer. Broker and network errors are recorded in `metadata`; an exception from `run` is a bug
    and must fail the producer.

    Attributes:
        awaits_network: True if a request is due but no connection accepts one: call `wake` when the
            client makes progress.

    Args:
        clock: `loop.time` of the loop on which `run` will run.
        on_request_sent: called after a request has been sent, because Produce requests may have
            been waiting for it (`Metadata.update_due`, `Metadata.claimed`).
    """

    def __init__(
        self,
        metadata: Metadata,
        client: BrokerClient,
        config: ProducerConfig,
        clock: Callable[[], float],
        *,
        on_request_sent: Callable[[], None] | None = None,
    ) -> None:
        self._metadata = metadata
        self._client = client
        self._clock = clock
        self._on_request_sent = on_request_sent
        self._request_timeout = config.request_timeout_ms / 1000
        self._auto_create = config.allow_auto_create_topics
        self._may_rebootstrap = config.metadata_recovery_strategy == "rebootstrap"
        trigger = config.metadata_recovery_rebootstrap_trigger_ms / 1000
        self._trigger = max(trigger, _LEAST_TRIGGER_S)
        self._wake = asyncio.Event()
        self.awaits_network = False
        self._fetch: _Fetch | None = None
        self._trying_since: float | None = None
        self._nodes: dict[int, Node] = {}
        self._suspects: set[int] = set()  # nodes whose connection was lost since the last response
        self._failed: set[int] = set()  # nodes that could not be reached since the last response
        metadata.on_request(self.wake)
        metadata.on_change(self._follow)
        self._follow(metadata.snapshot)

    def wake(self) -> None:
        """Wake `run`, because a connection changed or metadata was requested. Unnecessary calls are
        cheap and harmless."""
        self._wake.clear()  # an earlier `set` may have been interrupted before it woke the task
        self._wake.set()

    def on_disconnect(self, node_id: int, error: KafkaError) -> None:
        """Request metadata after a connection or a connection attempt ended, because the metadata
        may be stale. Decide whether the node counts as failed and whether waiting calls fail.

        Source: Java `DefaultMetadataUpdater.handleServerDisconnect`.
        """
        now = self._clock()
        metadata = self._metadata
        # A node counts as failed only after a failed reconnect: a lost connection alone does not
        # mean that the node is gone.
        if isinstance(error, AuthenticationError):
            # The node was reached, so it has not failed. A rebootstrap would only contact it again
            # before its backoff has ended.
            self._failed.discard(node_id)
            self._suspects.discard(node_id)
        else:
            if isinstance(error, DialError) or node_id in self._suspects:
                self._failed.add(node_id)
            self._suspects.add(node_id)
        if isinstance(error, (AuthenticationError, UnsupportedVersion)):
            # Waiting calls fail only if no request is in flight and no other broker has accepted
            # the connection.
            if self._fetch is not None or any(map(self._connected, self._nodes)):
                metadata.note_error(error)
            else:
                metadata.fatal(now, error)
        elif (
            metadata.update_due(now)
            and self._client.least_loaded(now) is None
            and not self._all_lost()
        ):
            # No broker is available, so the update that was due has failed, and the backoff
            # applies.
            metadata.failed(now, error)
        else:
            metadata.note_error(error)
        metadata.request_update()
        self.wake()

    async def run(self) -> None:
        """Fetch metadata whenever an update is due. Ends only by cancellation."""
        while True:
            self._wake.clear()
            next_at = self.run_once(self._clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(next_at if next_at < math.inf else None):
                    await self._wake.wait()

    def run_once(self, now: float) -> float:
        """Handle a response, and send a request if one is due.

        Returns:
            The latest time at which to run again; inf if only an event can change anything.
        """
        self.awaits_network = False
        fetch = self._fetch
        if fetch is not None:
            if fetch.response is None and now < fetch.give_up_at:
                return min(self._ask_another(fetch, now), fetch.give_up_at)
            self._claim(frozenset())
            self._fetch = None
            if fetch.response is not None:
                self._finish(fetch.plan, fetch.response, now)
            else:
                self._metadata.failed(now)
        next_at = self._metadata.next_update_at(now)
        if next_at > now:
            return next_at
        if self._trying_since is None:
            self._trying_since = now
        node_id = self._choose_node(now)
        connection = self._askable(node_id, now)
        if connection is not None:
            fetch = self._fetch = _Fetch(
                self._metadata.plan(now),
                # The timeout of the request alone is not enough: throttling extends it.
                give_up_at=now + max(self._trigger, self._request_timeout),
                # If a slow node is used because the chosen node is still being connected, the
                # request is also sent to the chosen node as soon as it is connected.
                ask_again_at=now + OVERDUE_AFTER_S if connection.node_id == node_id else now,
            )
            self._send(fetch, connection, now)
            if self._on_request_sent is not None:
                self._on_request_sent()
            return min(self._ask_another(fetch, now), fetch.give_up_at)
        self.awaits_network = True
        if any(self._throttled(node, now) for node in self._nodes):
            self._trying_since = None  # throttled brokers are reachable: restart the timer
        return self._next_chance(now, node_id)

    # -- choosing ---------------------------------------------------------------------------------

    def _choose_node(self, now: float) -> int | None:
        if now > self._overdue_at():
            logger.warning(
                "no metadata for %.3g s: bootstrapping again", self._trigger,
                extra=log_fields("rebootstrap"),
            )  # fmt: skip
            self._rebootstrap(now)
        if self._all_lost():
            # The level is DEBUG, because this happens in every outage of the cluster;
            # `DeliveryWatch` warns once of an outage if records wait.
            logger.debug(
                "no known broker can be reached: bootstrapping again",
                extra=log_fields("rebootstrap"),
            )
            self._forget_failures()
            self._metadata.rebootstrap()
        return self._client.least_loaded(now)

    def _overdue_at(self) -> float:
        """Return the time at which to bootstrap again if there is no response before (KIP-1102)."""
        if not self._may_rebootstrap or self._trying_since is None:
            return math.inf
        return self._trying_since + self._trigger

    def _all_lost(self) -> bool:
        """Return True if no known broker was reached since the last response, so that the client
        must bootstrap again (KIP-899).

        Java checks whether all of them are in backoff at the same time, which never happens if
        brokers take long to refuse a connection.
        """
        return (
            self._may_rebootstrap
            and not self._metadata.only_bootstrap_nodes
            and self._failed.issuperset(self._nodes)
            and not any(map(self._connected, self._nodes))
        )

    def _forget_failures(self) -> None:
        self._suspects.clear()
        self._failed.clear()

    def _connected(self, node_id: int) -> bool:
        # API versions are known exactly while a connection is open, even if it is throttled or
        # full.
        return self._client.version_range(node_id, MetadataRequest.api_key) is not None

    def _throttled(self, node_id: int, now: float) -> bool:
        return self._connected(node_id) and now < self._client.retry_at(node_id, now) < math.inf

    def _next_chance(self, now: float, chosen: int | None) -> float:
        # A chosen node without a usable connection is being connected. Wait until the attempt has
        # ended or takes too long, even if another node could be dialled earlier.
        nodes = self._nodes if chosen is None else (chosen,)
        at = min((self._client.retry_at(node, now) for node in nodes), default=math.inf)
        if chosen is not None:
            at = min(at, now + OVERDUE_AFTER_S)
        return max(min(at, self._overdue_at()), now + _LEAST_WAIT_S)

    def _rebootstrap(self, now: float) -> None:
        self._trying_since = now
        self._forget_failures()
        self._metadata.rebootstrap()
        self._client.reset_backoff()

    def _follow(self, snapshot: ClusterSnapshot) -> None:
        if snapshot.nodes != self._nodes:
            self._nodes = dict(snapshot.nodes)
            self._client.set_nodes(self._nodes.values())

    # -- requests ---------------------------------------------------------------------------------

    def _askable(self, chosen: int | None, now: float) -> ReadyConnection | None:
        """Return a connection for the request: to the chosen node or, while that node is being
        connected, to another node that accepts requests, even if it is slow to respond. Return None
        if the request was already sent to all such nodes."""
        asked: Container[int] = () if self._fetch is None else self._fetch.asked
        connection = None
        if chosen is not None and chosen not in asked:
            connection = self._client.ready(chosen, now)
        if connection is None:
            client, others = self._client, (n for n in self._nodes if n not in asked)
            slow = next((n for n in others if client.can_send(n, now)), None)
            connection = None if slow is None else client.ready(slow, now)
        return connection

    def _send(self, fetch: _Fetch, connection: ReadyConnection, now: float) -> None:
        topics = fetch.plan.topics
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=self._auto_create,
        )
        fetch.asked.add(connection.node_id)
        fetch.unanswered += 1
        logger.debug(
            "asking node %d for metadata of %d topics", connection.node_id, len(topics),
            extra=log_fields("metadata_requested", node_id=connection.node_id, topics=len(topics)),
        )  # fmt: skip
        connection.send(request, partial(self._on_done, fetch), now, timeout=self._request_timeout)

    def _ask_another(self, fetch: _Fetch, now: float) -> float:
        """Send the request to another node if this is due. Return the time at which to run
        again."""
        if now < fetch.ask_again_at:
            return fetch.ask_again_at
        connection = self._askable(self._client.least_loaded(now), now)
        if connection is not None:
            self._send(fetch, connection, now)
            fetch.ask_again_at = now + self._request_timeout
            self._claim(frozenset())
            return fetch.ask_again_at
        # Use the first connection that is opened or accepts a request again.
        self.awaits_network = True
        self._claim(frozenset(n for n in self._nodes if n not in fetch.asked and self._full(n)))
        return now + OVERDUE_AFTER_S

    def _full(self, node_id: int) -> bool:
        return self._client.in_flight_count(node_id) > 0 and self._connected(node_id)

    def _claim(self, nodes: frozenset[int]) -> None:
        released = self._metadata.claimed - nodes
        self._metadata.claimed = nodes
        if released and self._on_request_sent is not None:
            self._on_request_sent()

    def _on_done(self, fetch: _Fetch, response: ClientResponse) -> None:
        if fetch is not self._fetch or fetch.response is not None:
            return  # the fetch has ended, or another node responded first
        fetch.unanswered -= 1
        if response.error is not None and fetch.unanswered:
            # The other node may still respond; send the request to a third node as well.
            fetch.ask_again_at = -math.inf
            self._wake.set()
            return
        # Handle the response later, in `run_once`, because an exception must end the updater's
        # task, not the connection.
        fetch.response = response
        self._wake.set()

    def _finish(self, plan: UpdatePlan, response: ClientResponse, now: float) -> None:
        metadata = self._metadata
        error = response.error or self._error_in(response.body, response.node_id)
        if error is None:
            self._trying_since = None
            self._forget_failures()
            metadata.update(
                plan.request_generation,
                response.body,
                plan.partial,
                now,
                reliable_epochs=response.version >= _RELIABLE_EPOCHS_SINCE,
            )
            return
        logger.debug(
            "metadata request to node %d failed: %s", response.node_id, error,
            extra=log_fields("metadata_request_failed", error=error, node_id=response.node_id),
        )  # fmt: skip
        if isinstance(response.error, (AuthenticationError, UnsupportedVersion)):
            metadata.fatal(now, error)
            return
        # This is not fatal: the error code may concern only this broker, and the next one may
        # respond without an error.
        metadata.failed(now, error)
        code = error.code
        if code is not None and code.number == Code.REBOOTSTRAP_REQUIRED and self._may_rebootstrap:
            logger.warning(
                "node %d asks to bootstrap again", response.node_id,
                extra=log_fields("rebootstrap", node_id=response.node_id),
            )  # fmt: skip
            self._rebootstrap(now)

    def _error_in(self, body: MetadataResponse, node_id: int) -> KafkaError | None:
        if body.error_code:
            return broker_error(body.error_code, f"metadata request to node {node_id}")
        if not body.brokers:
            # Request it from another broker: a broker that is still starting may not know any
            # brokers yet (F54 in docs/faults.md).
            return BrokerError(f"node {node_id} responded with an empty list of brokers")
        return None
