"""The metadata cache: the current snapshot of the cluster, the calls that wait for a newer one, and
the time of the next request. `updater.py` sends the requests; this module uses no sockets.

It is used on one event loop. Every update replaces the immutable `ClusterSnapshot` and wakes each
waiter once (`Broadcast`).

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
from aiokprod._engine.metadata.topics import TopicWait, TrackedTopics
from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod.cluster import ZERO_TOPIC_ID, ClusterSnapshot, Node
from aiokprod.config import ProducerConfig
from aiokprod.errors import (
    Code,
    KafkaError,
    MetadataTimeout,
    Outcome,
    ProducerClosed,
    UnknownTopic,
    broker_error,
    error_code,
)
from aiokprod.records import TopicPartition

logger = logging.getLogger(__name__)

Listener = Callable[[ClusterSnapshot], None]


@dataclass(frozen=True, slots=True)
class UpdatePlan:
    """The content of the next request. `Metadata.update` gets these values together with the
    response.

    Attributes:
        request_generation: shows whether topics were added after the request was created.
        partial: True if only new topics are requested.
        topics: the names, without duplicates.
    """

    request_generation: int
    partial: bool
    topics: tuple[str, ...]


class Metadata:
    """The cache. All times are seconds of `loop.time()`.

    Only topics in use are tracked: `mark_used` keeps a topic for metadata_max_idle_ms.

    Attributes:
        snapshot: the current view. Updates replace it, so use one reference during an operation.
        claimed: nodes whose next free in-flight slot is reserved for a metadata request, because
            another node has not responded to this request in time. No Produce requests are sent to
            these nodes. Set by the updater.
        waits: by topic, the number of calls that wait for the topic, and the time since which at
            least one call has waited.
        queued: returns the topics with queued records. These topics are kept even if none of their
            records was sent for metadata_max_idle_ms because their leaders cannot be reached.
        on_waiting: called when a call begins to wait for a topic; may be None.
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
        self._only_bootstrap_nodes = True
        self._given_up: Mapping[int, Node] = {}  # nodes before the last rebootstrap
        self._broadcast = Broadcast()
        self._listeners: list[Listener] = []
        self._on_request: Callable[[], None] | None = None
        self._closed_by: KafkaError | None = None
        self._refused_by: KafkaError | None = None

        self.waits: dict[str, TopicWait] = {}
        self.on_waiting: Callable[[], None] | None = None
        self.queued: Callable[[], Iterable[str]] = tuple

        self._topics = TrackedTopics(
            config.metadata_max_idle_ms / 1000,
            self._request_partial,
            auto_create=config.allow_auto_create_topics,
        )
        self.mark_used = self._topics.mark_used
        """Keep a topic in use, and request its metadata if it is new. O(1)."""
        self.claimed: frozenset[int] = frozenset()
        self._asked: frozenset[str] | None = None  # topics in the request in flight
        self._ask_again = False  # send another request after the one in flight
        self._request_generation = 0
        self._full_generation = 0
        self._last_error: KafkaError | None = None

    def __repr__(self) -> str:
        snapshot = self.snapshot
        return (
            f"<Metadata generation={snapshot.generation} nodes={len(snapshot.nodes)} "
            f"topics={len(snapshot.topics)}/{len(self._topics)} failures={self._schedule.failures}>"
        )

    # -- contents ---------------------------------------------------------------------------------

    @property
    def updated_at(self) -> float | None:
        """Time of the last response with metadata; None before the first."""
        return self._schedule.updated_at

    @property
    def only_bootstrap_nodes(self) -> bool:
        """True while only the bootstrap addresses are known as nodes."""
        return self._only_bootstrap_nodes

    @property
    def last_error(self) -> KafkaError | None:
        """The last error of a fetch or of the network; None after a successful fetch."""
        return self._last_error

    def topics(self) -> tuple[str, ...]:
        """Return the topics in use."""
        return self._topics.names()

    def topic_error(self, topic: str) -> int:
        """Return the error code of the topic in the last response that contained it, or 0 if
        none."""
        return self._topics.answer(topic)[1]

    def lookup(self, topic: str, partition: int | None = None) -> ClusterSnapshot | None:
        """Return the snapshot if it contains the topic (and the partition), or None if the caller
        must wait. O(1).

        Raises:
            InvalidTopic: according to the last response, the name is invalid.
            ProducerClosed: `close` was called. If an error was passed to `close`, that error is
                raised.
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
        """Call `listener(snapshot)` after every update, before any waiter runs. The listener must
        not raise."""
        self._listeners.append(listener)

    # -- called by users of the cache -------------------------------------------------------------

    def request_topic(self, topic: str, now: float) -> None:
        """Keep the topic in use, and request it again even if it is already cached. O(1)."""
        self.mark_used(topic, now)
        self.request_update()

    def request_update(
        self, seen_generation: int | None = None, partition: TopicPartition | None = None
    ) -> int:
        """Request metadata of all topics in use, because the metadata was found to be wrong. The
        request is sent after the backoff.

        Args:
            seen_generation: generation of the snapshot that was found to be wrong. If the cache has
                received a full response since then, nothing is requested. If None, a request in
                flight may be too old, so another request follows it.
            partition: the partition whose leader was found to be wrong. Full responses that
                contradicted that leader but did not replace it do not count, because the metadata
                is still wrong.

        Returns:
            The current generation; the requested metadata has a higher one.
        """
        if seen_generation is None and self._asked is not None:
            self._ask_again = True
        replaced = self._full_generation
        if partition is not None:
            replaced = self._topics.contradicted.get(partition, replaced)
        if seen_generation is None or replaced <= seen_generation:
            self._schedule.wrong = True
            self.request_refresh()
        return self.snapshot.generation

    def refuse_topic_id(self, topic: str, topic_id: bytes) -> None:
        """Record that a broker does not know this topic id. If the id is still in the cache, a
        response without topic ids removes it. The caller must also call `request_update`."""
        if ZERO_TOPIC_ID != topic_id == self.snapshot.topic_id(topic):
            self._topics.refused_ids.add(topic)

    def request_refresh(self) -> None:
        """Request metadata of all topics in use, even if it was not found to be wrong."""
        if not self._schedule.need_full:
            self._schedule.need_full = True
            self._wake_updater()

    async def wait_for_topic(
        self, topic: str, partition: int | None = None, *, deadline: float
    ) -> ClusterSnapshot:
        """Return the first snapshot that contains the topic (and the partition). Waiters share one
        request.

        Raises:
            MetadataTimeout: the deadline passed; the cause is the last error of the topic or the
                network.
            InvalidTopic, AuthorizationError, BrokerError: a response newer than the call has such
                an error for the topic.
            UnknownTopic: the response to a request that was sent after the call has the topic
                without the partition. If the topic was not known, a second such response is
                required.
            AuthenticationError, UnsupportedVersion: no broker accepts a request.
            ProducerClosed: `close` was called.
            KafkaError: the error passed to `fail_waits`.

        Cancellation: only the wait ends; the topic stays in use.

        Source: Java `KafkaProducer.waitOnMetadata`.
        """
        loop = asyncio.get_running_loop()
        start = now = loop.time()
        first_generation = self.snapshot.generation
        self.mark_used(topic, now)
        snapshot = self.lookup(topic, partition)
        if snapshot is not None:
            return snapshot
        wait = self.waits.setdefault(topic, TopicWait(now))
        wait.calls += 1
        try:
            if self.on_waiting is not None:
                self.on_waiting()
            return await self._wait_for_topic(topic, partition, deadline, start, first_generation)
        finally:
            wait.calls -= 1
            if not wait.calls:
                del self.waits[topic]

    async def _wait_for_topic(
        self, topic: str, partition: int | None, deadline: float, start: float, first: int
    ) -> ClusterSnapshot:
        """Implement `wait_for_topic`. `start` is the time, and `first` the generation, at the
        beginning of the call."""
        loop = asyncio.get_running_loop()
        now = start
        # Do not trust the next response if it may be older than the call, or if it may come from a
        # broker that does not have all partitions of a new topic yet.
        doubtful = topic in (self._asked or ()) or self.snapshot.partition_count(topic) is None
        fresh_after = first
        while True:
            self.mark_used(topic, now)
            snapshot = self.lookup(topic, partition)
            if snapshot is not None:
                return snapshot
            if self._refused_by is not None:
                raise self._refused_by.copy()
            generation, code = self._topics.answer(topic)
            if error_code(code).fails_topic and generation > first:
                raise self._refusal(topic, code)
            count = self.snapshot.partition_count(topic)
            if count is not None and not code and generation > fresh_after:
                if not doubtful:
                    raise self._no_partition(topic, partition, count)
                doubtful, fresh_after = False, generation
            if now >= deadline:
                raise self._timeout(topic, partition, now - start)
            self._request_for(topic)
            await self._broadcast.wait(deadline)
            now = loop.time()

    async def wait_newer(self, generation: int, *, deadline: float) -> ClusterSnapshot:
        """Wait for a snapshot newer than `generation`, and return it. Does not request one.

        Raises:
            MetadataTimeout: the deadline passed.
            KafkaError: see `wait_for_topic`.
        """
        loop = asyncio.get_running_loop()
        start = now = loop.time()
        while self.snapshot.generation <= generation:
            if self._closed_by is not None:
                raise self._closed_by.copy()
            if now >= deadline:
                text = f"no newer metadata after {now - start:.3g} s" + self.network_text()
                raise MetadataTimeout(text) from self._last_error
            await self._broadcast.wait(deadline)
            now = loop.time()
        return self.snapshot

    # -- called by the updater --------------------------------------------------------------------

    def on_request(self, callback: Callable[[], None]) -> None:
        """Set the callback that is called when a request is needed earlier than `next_update_at`
        returned."""
        self._on_request = callback

    def next_update_at(self, now: float) -> float:
        """Return the time at which to send the next request. `now` or earlier means immediately;
        inf means that the cache is closed."""
        if self._closed_by is not None:
            return math.inf
        if self._topics.fast_retry:
            return now
        return self._schedule.next_at(now)

    def update_due(self, now: float) -> bool:
        """Return True if a metadata request is due but not sent yet. Produce requests wait for
        it."""
        return self._asked is None and self.next_update_at(now) <= now

    def plan(self, now: float) -> UpdatePlan:
        """Return the content of a request that is about to be sent. The caller must then call
        `update`, `failed` or `fatal`."""
        for topic in self.queued():
            self._topics.keep(topic, now)
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
        """Merge a Metadata response with at least one broker into a new snapshot.

        Args:
            request_generation, partial: from the `UpdatePlan` of the request.
            reliable_epochs: False for versions below 9, in which a leader epoch may be older than
                the leader.

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
            contradicted=self._topics.contradicted,
            reliable_epochs=reliable_epochs,
            complained=self._schedule.wrong,
            refused_ids=self._topics.refused_ids,
        )
        merged = merger.merge(partial=partial, asked=self._asked or ())
        snapshot = merged.snapshot
        self._topics.misses = merged.misses
        doubtful = not merged.lower_epochs.keys() <= self._topics.lower_epochs.keys()
        self._topics.lower_epochs = merged.lower_epochs
        self._topics.note_answers(merged.answered, snapshot.generation, now)
        # A response after a rebootstrap that lists the same unreachable brokers as before does not
        # count as a change: without backoff, these brokers would be tried ten times a second.
        sent_back = self._only_bootstrap_nodes and snapshot.nodes == self._given_up
        changed = snapshot.nodes is not old.nodes or snapshot.topics is not old.topics
        self._schedule.succeeded(
            now, full=not partial, changed=changed and not sent_back, doubtful=doubtful
        )
        added_since = request_generation < self._request_generation
        self._schedule.need_partial = added_since and bool(self._topics.new)
        if not partial:
            self._full_generation = snapshot.generation
            self._topics.contradicted = merged.contradicted
        if merged.stale or self._ask_again:
            self._schedule.need_full = self._schedule.wrong = True
        self._asked = None
        self._last_error = None
        self._only_bootstrap_nodes = False
        self._swap(snapshot)

    def update_leaders(
        self,
        leaders: Mapping[TopicPartition, tuple[int, int]],
        endpoints: Iterable[Node] = (),
    ) -> frozenset[TopicPartition]:
        """Apply the leaders in a Produce response: (broker id, leader epoch) by partition.

        Args:
            endpoints: addresses of these leaders in the same response.

        Returns:
            The partitions whose leader epoch is newer than the known one; their batches need no
            backoff. The other leaders are ignored.
        """
        snapshot, accepted = with_leaders(self.snapshot, leaders, endpoints)
        for key in accepted:
            self._topics.contradicted.pop(key, None)
        if accepted:
            self._swap(snapshot)
        return accepted

    def failed(self, now: float, error: KafkaError | None = None) -> None:
        """Start the backoff after a request without a usable response. The metadata is still
        needed; no waiter is woken.

        Source: Java `Metadata.failedUpdate`.
        """
        self._asked = None
        self._topics.fast_retry.clear()
        self._schedule.failed(now)
        if error is not None:
            self._last_error = error

    def fatal(self, now: float, error: KafkaError) -> None:
        """Make the current waiters raise `error`. Called if a request has failed and another
        attempt would also fail."""
        self.failed(now, error)
        self._broadcast.notify_all(error)

    def note_error(self, error: KafkaError) -> None:
        """Remember a network error as the cause of later timeouts."""
        self._last_error = error

    def rebootstrap(self) -> None:
        """Forget the brokers and start again from the bootstrap addresses.

        The topics are kept without leaders, so that records are still buffered.

        Source: Java `Metadata.rebootstrap`; KIP-899, KIP-1102.
        """
        if not self._only_bootstrap_nodes:
            self._given_up = self.snapshot.nodes
        self._only_bootstrap_nodes = True
        self._schedule.need_full = self._schedule.wrong = True
        self._topics.misses = {}
        self._topics.lower_epochs = {}
        self._swap(without_leaders(self.snapshot, self._bootstrap_nodes))

    def fail_waits(self, error: KafkaError) -> None:
        """Fail all current and later waits for a topic with a copy of `error`. Requests continue
        for the records that still have to be delivered."""
        self._refused_by = error
        self._broadcast.notify_all()

    def close(self, error: KafkaError | None = None) -> None:
        """Make all waiters and later calls raise `error`, by default ProducerClosed. Idempotent."""
        if self._closed_by is None:
            self._closed_by = error or ProducerClosed("the producer is closed")
            self._broadcast.notify_all(self._closed_by)
            self._wake_updater()

    # -- internals --------------------------------------------------------------------------------

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

    def _no_partition(self, topic: str, partition: int | None, count: int) -> KafkaError:
        text = (
            f"topic {topic!r} has the partitions 0 to {count - 1}, not {partition}, according to "
            "the current metadata: use one of them or None, or add partitions to the topic"
        )
        code = error_code(Code.UNKNOWN_TOPIC_OR_PARTITION)
        return UnknownTopic(text, code=code, outcome=Outcome.NOT_SENT)

    def _timeout(self, topic: str, partition: int | None, waited: float) -> MetadataTimeout:
        count = self.snapshot.partition_count(topic)
        limit = f"after {waited:.3g} s"
        if waited >= 0.99 * self._max_block_ms / 1000:  # false if the caller set a shorter limit
            limit += f" (max_block_ms={self._max_block_ms})"
        if count is None:
            text = f"topic {topic!r} is not in the metadata {limit}"
        else:
            text = f"partition {partition} is not among the {count} of topic {topic!r} {limit}"
        code = self.topic_error(topic)
        if code and self._last_error is None:
            text += f": the brokers respond with {error_code(code).name}"
            if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                text += "; create the topic, or let brokers do it (auto.create.topics.enable=true "
                text += "there, allow_auto_create_topics=True here)"
        error = MetadataTimeout(text + self.network_text())
        if self._last_error is not None or not code:
            error.__cause__ = self._last_error
        else:
            error.__cause__ = broker_error(code, f"topic {topic!r}", outcome=Outcome.NOT_SENT)
        return error

    def network_text(self) -> str:
        """Return the end of an error message: the brokers without a usable response, and the last
        error. Empty if the last request succeeded."""
        if self._last_error is None and not self._only_bootstrap_nodes:
            return ""
        nodes = list(self.snapshot.nodes.values())
        tried = ", ".join(f"{node.host}:{node.port}" for node in nodes[:5])
        more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
        why = f": {self._last_error}" if self._last_error is not None else ""
        return f"; no usable response from {tried}{more}{why}"
