"""The metadata cache: the present view of the cluster, who waits for a newer one, and when the
next fetch is due. It sends nothing itself (`updater.py`) and knows no sockets.

Confined to one event loop. Every update swaps in a new immutable `ClusterSnapshot` and a fresh
Event and sets the old Event: every waiter wakes once, and no set/clear race exists.

Source: Java `Metadata`, `ProducerMetadata`, `KafkaProducer.waitOnMetadata`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from aiokprod._backoff import ExponentialBackoff
from aiokprod._engine.broadcast import Broadcast
from aiokprod._engine.metadata.merge import ResponseMerger, with_leaders, without_leaders
from aiokprod._engine.metadata.schedule import UpdateSchedule
from aiokprod._engine.metadata.topics import TrackedTopics
from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod.cluster import ClusterSnapshot, Node
from aiokprod.config import ProducerConfig
from aiokprod.errors import (
    Code,
    KafkaError,
    MetadataTimeout,
    Outcome,
    ProducerClosed,
    broker_error,
    error_code,
)
from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

Listener = Callable[[ClusterSnapshot], None]


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """What the next request asks for; travels with it to `Metadata.update`.

    Attributes:
        request_generation: tells whether topics were added after the request was built.
        partial: asks for new topics only.
        topics: names, each once.
    """

    request_generation: int
    partial: bool
    topics: tuple[str, ...]


class Metadata:
    """The cache. All instants are seconds of `loop.time()`.

    Only topics in use are tracked: `mark_used` keeps a topic for metadata_max_idle_ms.

    Attributes:
        snapshot: the present view; replaced by updates, so keep one reference per operation.
        claimed: nodes whose next free slot belongs to a metadata request that another node has not
            answered in time: data must leave it that slot. Set by the updater.
    """

    def __init__(self, config: ProducerConfig, rng: random.Random) -> None:
        self._max_block_ms = config.max_block_ms
        backoff = ExponentialBackoff(
            config.retry_backoff_ms / 1000, config.retry_backoff_max_ms / 1000
        )
        self._schedule = UpdateSchedule(backoff, config.metadata_max_age_ms / 1000, rng)
        self._bootstrap_nodes = tuple(
            Node(-1 - index, host, port)
            for index, (host, port) in enumerate(config.bootstrap_addresses())
        )
        self.snapshot = without_leaders(ClusterSnapshot(), self._bootstrap_nodes)
        self._bootstrapped = True
        self._given_up: Mapping[int, Node] = {}  # nodes before the last rebootstrap
        self._broadcast = Broadcast()
        self._listeners: list[Listener] = []
        self._on_request: Callable[[], None] | None = None
        self._closed_by: KafkaError | None = None
        self._refused_by: KafkaError | None = None

        self._topics = TrackedTopics(config.metadata_max_idle_ms / 1000)
        self.claimed: frozenset[int] = frozenset()
        self._asked: frozenset[str] | None = None  # topics in the request in flight
        self._ask_again = False  # after the response to the request in flight
        self._request_generation = 0
        self._full_generation = 0
        self._last_error: KafkaError | None = None

    def __repr__(self) -> str:
        snapshot = self.snapshot
        return (
            f"<Metadata generation={snapshot.generation} nodes={len(snapshot.nodes)} "
            f"topics={len(snapshot.topics)}/{len(self._topics)} failures={self._schedule.failures}>"
        )

    # -- the view ---------------------------------------------------------------------------------

    @property
    def bootstrapped(self) -> bool:
        """True while only the bootstrap addresses are known as nodes."""
        return self._bootstrapped

    @property
    def bootstrap_nodes(self) -> tuple[Node, ...]:
        """The configured addresses as nodes -1, -2, …"""
        return self._bootstrap_nodes

    @property
    def last_error(self) -> KafkaError | None:
        """What went wrong last; None after a successful fetch."""
        return self._last_error

    def topics(self) -> tuple[str, ...]:
        """The topics in use."""
        return self._topics.names()

    def topic_error(self, topic: str) -> int:
        """Error code of the last answer about the topic; 0 if none."""
        return self._topics.answer(topic)[1]

    def lookup(self, topic: str, partition: int | None = None) -> ClusterSnapshot | None:
        """The view if it has the topic (and the partition); None if a caller must wait. O(1).

        Raises:
            InvalidTopic: the last answer called the name invalid.
            ProducerClosed: after `close` (or whatever error `close` was given).
        """
        snapshot = self.snapshot
        count = snapshot.partition_count(topic)
        if self._closed_by is not None:
            raise self._closed_by.copy()
        if count is None:
            if topic in snapshot.invalid_topics:
                raise self._refusal(topic, Code.INVALID_TOPIC_EXCEPTION)
            return None
        return snapshot if partition is None or partition < count else None

    def on_change(self, listener: Listener) -> None:
        """Call `listener(snapshot)` after every swap, before any waiter runs. Must not raise."""
        self._listeners.append(listener)

    # -- what callers want ------------------------------------------------------------------------

    def mark_used(self, topic: str, now: float) -> None:
        """Keep the topic; request a fetch if it is new. O(1)."""
        if self._topics.mark_used(topic, now):
            self._request_partial()

    def request_topic(self, topic: str, now: float) -> None:
        """Keep the topic, and request it again even if it is already cached. O(1)."""
        self.mark_used(topic, now)
        self.request_update()

    def request_update(self, seen_generation: int | None = None) -> int:
        """Ask for a fetch of everything in use; sent when the backoff allows.

        Args:
            seen_generation: generation of the snapshot that proved wrong. If the cache got a full
                response since then, nothing happens. If it is None, a request in flight may be too
                old, so another one follows it.

        Returns:
            The generation that a waiter must see exceeded.
        """
        if seen_generation is None and self._asked is not None:
            self._ask_again = True
        unseen = seen_generation is None or self._full_generation <= seen_generation
        if unseen:
            self._schedule.wrong = True
            self._request_full()
        return self.snapshot.generation

    def request_refresh(self) -> None:
        """Ask for a fetch of everything in use though nothing has proved the view wrong."""
        self._request_full()

    def _request_full(self) -> None:
        if not self._schedule.need_full:
            self._schedule.need_full = True
            self._wake_updater()

    async def wait_for_topic(
        self, topic: str, partition: int | None = None, *, deadline: float
    ) -> ClusterSnapshot:
        """The first view that has the topic (and the partition). Waiters share one fetch.

        Raises:
            MetadataTimeout: the deadline passed; the cause is the last error about the topic or
                the network.
            InvalidTopic, AuthorizationError, BrokerError: an answer newer than the call refused
                the topic.
            AuthenticationError, UnsupportedVersion: no broker can be asked.
            ProducerClosed: `close` was called.
            KafkaError: the error given to `refuse`.

        Cancellation leaves the topic in use and nothing else behind.

        Source: Java `KafkaProducer.waitOnMetadata`.
        """
        loop = asyncio.get_running_loop()
        start = now = loop.time()
        first_generation = self.snapshot.generation
        while True:
            self.mark_used(topic, now)
            snapshot = self.lookup(topic, partition)
            if snapshot is not None:
                return snapshot
            if self._refused_by is not None:
                raise self._refused_by.copy()
            generation, code = self._topics.answer(topic)
            if error_code(code).fails_topic and generation > first_generation:
                raise self._refusal(topic, code)
            if now >= deadline:
                raise self._timeout(topic, partition, now - start)
            self._request_for(topic)
            await self._broadcast.wait(deadline)
            now = loop.time()

    async def wait_newer(self, generation: int, *, deadline: float) -> ClusterSnapshot:
        """The first view newer than `generation`; does not request one.

        Raises:
            MetadataTimeout: the deadline passed.
            KafkaError: as `wait_for_topic`.
        """
        loop = asyncio.get_running_loop()
        start = now = loop.time()
        while self.snapshot.generation <= generation:
            if self._closed_by is not None:
                raise self._closed_by.copy()
            if now >= deadline:
                text = f"no newer metadata after {now - start:.3g} s" + self._network_text()
                raise MetadataTimeout(text) from self._last_error
            await self._broadcast.wait(deadline)
            now = loop.time()
        return self.snapshot

    # -- what the updater does --------------------------------------------------------------------

    def on_request(self, callback: Callable[[], None]) -> None:
        """Who to wake when a fetch is wanted earlier than `next_update_at` said."""
        self._on_request = callback

    def next_update_at(self, now: float) -> float:
        """When the next request should be sent; `now` or earlier means at once. inf if closed."""
        if self._closed_by is not None:
            return math.inf
        if self._topics.fast_retry:
            return now
        return self._schedule.next_at(now)

    def update_due(self, now: float) -> bool:
        """A request should be on its way but is not: data must leave it the first slot."""
        return self._asked is None and self.next_update_at(now) <= now

    def plan(self, now: float) -> UpdatePlan:
        """What to ask for. Must be followed by `update`, `failed` or `fatal`."""
        full = self._schedule.full_due(now)
        if full:
            topics = tuple(n for n in self._topics.names() if self._topics.retain(n, now))
        else:
            topics = tuple(self._topics.new)
        self._topics.fast_retry.clear()
        self._asked = frozenset(topics)
        self._ask_again = False
        return UpdatePlan(self._request_generation, not full, topics)

    def update(
        self,
        request_generation: int,
        response: MetadataResponse,
        partial: bool,
        now: float,
        *,
        reliable_epochs: bool = True,
    ) -> None:
        """Take over an answer that names at least one broker.

        Args:
            request_generation, partial: as in the plan of the request.
            reliable_epochs: the answer's version is 9 or later.

        Raises:
            ProducerClosed: after `close`.

        Source: Java `Metadata.update`, `ProducerMetadata.update`.
        """
        if self._closed_by is not None:
            raise self._closed_by.copy()
        old = self.snapshot
        merger = ResponseMerger(
            old,
            response,
            retain=lambda name: self._topics.retain(name, now),
            misses=self._topics.misses,
            lower_epochs=self._topics.lower_epochs,
            reliable_epochs=reliable_epochs,
            complained=self._schedule.wrong,
        )
        merged = merger.merge(partial=partial, asked=self._asked or ())
        snapshot = merged.snapshot
        self._topics.misses = merged.misses
        doubtful = not merged.lower_epochs.keys() <= self._topics.lower_epochs.keys()
        self._topics.lower_epochs = merged.lower_epochs
        for name, code in merged.answered.items():
            self._topics.note_answer(name, code, snapshot.generation)
        # Being sent back to the brokers that were given up is no news: otherwise dead brokers
        # behind a living bootstrap address would be tried ten times a second.
        sent_back = self._bootstrapped and snapshot.nodes == self._given_up
        changed = snapshot.nodes is not old.nodes or snapshot.topics is not old.topics
        self._schedule.succeeded(
            now, full=not partial, changed=changed and not sent_back, doubtful=doubtful
        )
        added_since = request_generation < self._request_generation
        self._schedule.need_partial = added_since and bool(self._topics.new)
        if not partial:
            self._full_generation = snapshot.generation
        if merged.stale or self._ask_again:
            self._schedule.need_full = self._schedule.wrong = True
        self._asked = None
        self._last_error = None
        self._bootstrapped = False
        self._swap(snapshot)

    def update_leaders(
        self,
        leaders: Mapping[TopicPartition, tuple[int, int]],
        endpoints: Iterable[Node] = (),
    ) -> frozenset[TopicPartition]:
        """Apply leaders that a Produce answer named: (broker id, leader epoch) by partition.

        Args:
            endpoints: addresses that came with them.

        Returns:
            The partitions whose leader is newer than what was known; their batches need no
            backoff. The rest is left to the next fetch.
        """
        snapshot, accepted = with_leaders(self.snapshot, leaders, endpoints)
        if accepted:
            self._swap(snapshot)
        return accepted

    def update_leader(
        self,
        topic_partition: TopicPartition,
        leader_id: int,
        leader_epoch: int,
        endpoints: Iterable[Node] = (),
    ) -> bool:
        """`update_leaders` for one partition; True if it was applied."""
        return bool(self.update_leaders({topic_partition: (leader_id, leader_epoch)}, endpoints))

    def failed(self, now: float, error: KafkaError | None = None) -> None:
        """An attempt got no usable response. The update is still needed; no waiter is woken.

        Source: Java `Metadata.failedUpdate`.
        """
        self._asked = None
        self._topics.fast_retry.clear()
        self._schedule.failed(now)
        if error is not None:
            self._last_error = error

    def fatal(self, now: float, error: KafkaError) -> None:
        """An attempt failed in a way that waiting does not heal: present waiters raise it."""
        self.failed(now, error)
        self._broadcast.notify_all(error)

    def note_error(self, error: KafkaError) -> None:
        """Remember a network error as the cause of timeouts to come."""
        self._last_error = error

    def rebootstrap(self) -> None:
        """Forget the brokers and start again from the bootstrap addresses.

        Topics stay known, without leaders, so that records are still buffered.

        Source: Java `Metadata.rebootstrap`; KIP-899, KIP-1102.
        """
        if not self._bootstrapped:
            self._given_up = self.snapshot.nodes
        self._bootstrapped = True
        self._schedule.need_full = self._schedule.wrong = True
        self._topics.misses = {}
        self._topics.lower_epochs = {}
        self._swap(without_leaders(self.snapshot, self._bootstrap_nodes))

    def refuse(self, error: KafkaError) -> None:
        """Fail all current and later waits for a topic with a copy of `error`; fetches continue for
        the records that are still to be delivered."""
        self._refused_by = error
        self._broadcast.notify_all()

    def close(self, error: KafkaError | None = None) -> None:
        """Make all waiters and later calls raise `error`, by default ProducerClosed. Idempotent."""
        if self._closed_by is None:
            self._closed_by = error or ProducerClosed("the producer is closed")
            self._broadcast.notify_all(self._closed_by)
            self._wake_updater()

    # -- inside -----------------------------------------------------------------------------------

    def _request_for(self, topic: str) -> None:
        if self._asked is not None and topic in self._asked:
            return
        if topic in self._topics.new:
            self._request_partial()
        else:
            self.request_update()

    def _request_partial(self) -> None:
        self._schedule.need_partial = True
        self._request_generation += 1
        self._wake_updater()

    def _wake_updater(self) -> None:
        if self._on_request is not None:
            self._on_request()

    def _swap(self, snapshot: ClusterSnapshot) -> None:
        self.snapshot = snapshot
        for listener in self._listeners:
            listener(snapshot)
        self._broadcast.notify_all()

    def _refusal(self, topic: str, code: int) -> KafkaError:
        return broker_error(code, f"topic {topic!r}", outcome=Outcome.NOT_SENT)

    def _timeout(self, topic: str, partition: int | None, waited: float) -> MetadataTimeout:
        count = self.snapshot.partition_count(topic)
        limit = f"after {waited:.3g} s (max_block_ms={self._max_block_ms})"
        if count is None:
            text = f"topic {topic!r} is not in the metadata {limit}"
        else:
            text = f"partition {partition} is not among the {count} of topic {topic!r} {limit}"
        code = self.topic_error(topic)
        error = MetadataTimeout(text + self._network_text())
        if self._last_error is not None or not code:
            error.__cause__ = self._last_error
        else:
            error.__cause__ = broker_error(code, f"topic {topic!r}", outcome=Outcome.NOT_SENT)
        return error

    def _network_text(self) -> str:
        if self._last_error is None and not self._bootstrapped:
            return ""
        nodes = list(self.snapshot.nodes.values())
        tried = ", ".join(f"{node.host}:{node.port}" for node in nodes[:5])
        more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
        why = f": {self._last_error}" if self._last_error is not None else ""
        return f"; no usable answer from {tried}{more}{why}"
