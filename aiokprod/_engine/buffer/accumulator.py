"""`RecordAccumulator` has a queue of batches for each partition and decides when a batch may be
sent.

The cost of a sender pass depends on the number of ready batches, not of partitions. Each queue is
in one set of its leader's `NodeQueues` or in the deadline heap, so that no pass scans all queues.
This module depends neither on sockets nor on error codes.

Source: Java `RecordAccumulator`, `BuiltInPartitioner`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING

from aiokprod._core.batch import BatchCore
from aiokprod._core.slots import TopicSlot
from aiokprod._engine.buffer import timestamp_check
from aiokprod._engine.buffer.batch_growth import BatchGrowth
from aiokprod._engine.buffer.batch_states import (
    COMPLETING,
    COMPRESSING,
    DONE,
    DRAINED,
    IN_FLIGHT,
    IN_FLIGHT_FAILED,
    OPEN,
    QUEUED,
    READY,
    SEALED,
)
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.buffer.queues import NodeQueues, PartitionQueue
from aiokprod._wire.record_batch import HEADER_SIZE
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container, Iterable, Mapping

    from aiokprod._engine.buffer.batch_compressor import BatchCompressor
    from aiokprod._engine.buffer.broker_memory_quota import BrokerMemoryQuota, QuotaWaiter
    from aiokprod._engine.buffer.buffer_memory import BufferMemory
    from aiokprod._engine.buffer.flush import FlushTracker
    from aiokprod._engine.buffer.topic_settings import TopicSettingsTable
    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.config import ProducerConfig
    from aiokprod.errors import KafkaError

_MAX_FIRST_CAPACITY = 1 << 20


class RecordAccumulator:
    """All queued batches of a producer.

    Invariants: a batch is in `queue.batches` while its state is in `QUEUED`; `incomplete` contains
    all batches without an outcome, in order of creation; a queue is in at most one set of one
    `NodeQueues`.

    The append side (`open_new_batch`, `discard`) runs in application calls, where a signal handler
    may raise between any two steps. Signal handlers and finalizers may also call these methods
    during a sender pass or during another append. Therefore the append side records a change before
    making it, and makes it in one step of compiled code (`PartitionSlot`). The sender's next pass
    processes the changes (`drop_emptied`, `advance`); only the sender removes batches from a queue.
    After an interrupted call, a batch is in all of these collections or in none. A batch without
    records is dropped when it would be sent.

    Attributes:
        emptied: batches whose records were all withdrawn, for `drop_emptied`.
        expires_at: a lower bound of the delivery deadlines; `next_expiry` sets the exact value.
    """

    def __init__(
        self,
        config: ProducerConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        memory: BufferMemory,
        compressor: BatchCompressor,
        flushes: FlushTracker,
        quota: BrokerMemoryQuota,
        choose_partition: Callable[[TopicSlot], int],
        maybe_add_partition: Callable[[TopicPartition], None],
        wakeup: Callable[[], None],
        settings: TopicSettingsTable,
    ) -> None:
        self.settings = settings
        self.growth = BatchGrowth(config)
        self._adaptive = config.adaptive_linger
        self._availability_timeout = config.partitioner_availability_timeout_ms / 1000
        self._loop = loop
        self._memory = memory
        self._compressor = compressor
        self._flushes = flushes
        self._quota = quota
        self._choose_partition = choose_partition
        self._maybe_add_partition = maybe_add_partition
        self._wakeup = wakeup
        self._timestamps = timestamp_check.TimestampCheck()
        self._orders = itertools.count()
        self._tickets = itertools.count()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._partitions: dict[str, int] = {}  # by topic: 1 + its last partition with a queue
        self._leaderless = NodeQueues()
        self._nodes: defaultdict[int | None, NodeQueues] = defaultdict(NodeQueues)
        self._nodes[None] = self._leaderless
        self._due: list[tuple[float, int, PartitionQueue]] = []
        self._changed: dict[PartitionQueue, None] = {}
        self._sealed: list[ProducerBatch] = []
        self.emptied: list[ProducerBatch] = []
        self._lingering_queues: list[PartitionQueue] = []
        self.incomplete: dict[ProducerBatch, None] = {}
        self.expires_at = math.inf
        self.closing = False
        self.completing = False

    # -- append side ----------------------------------------------------------------------------

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """Return the queue of a partition; create it on first use."""
        key = TopicPartition(topic, partition)
        queue = self._queues.get(key)
        if queue is None:
            queue = PartitionQueue(self, topic, partition, self.settings.of(topic))
            queue.follow(self._quota.account(queue.node))
            queue = self._queues.setdefault(key, queue)
            self._partitions[topic] = max(partition + 1, self._partitions.get(topic, 0))
        return queue

    def known_queue(self, topic: str, partition: int) -> PartitionQueue | None:
        """Return the queue of a partition, or None if the partition has no queue."""
        return self._queues.get(TopicPartition(topic, partition))

    def open_new_batch(
        self, topic: TopicSlot, partition: int, size: int, permit: QuotaWaiter | None
    ) -> PartitionQueue:
        """Find or open a batch with room for a record of up to `size` bytes.

        Called by the append path when the open batch is missing or full.

        Args:
            partition: -1 means the sticky partition. Another sticky partition is chosen once the
                current one has received `sticky_limit` bytes (KIP-794) or its broker's share of the
                buffer is used up.
            permit: the result of `BrokerMemoryQuota.wait`; None if the caller has not waited.

        Returns:
            The queue of the partition. It has no open batch if its broker's share of the buffer is
            used up, or if other callers wait for that share and `permit` is not for this broker.
        """
        if partition < 0:
            sticky = topic.sticky
            if (
                sticky < 0
                or topic.sticky_bytes >= topic.sticky_limit
                or self._quota.exceeded(topic.slots[sticky].node)
            ):
                topic.sticky = self._choose_partition(topic)
                topic.sticky_bytes = 0
            partition = topic.sticky
        queue: PartitionQueue = topic.slots[partition]
        while True:
            core = queue.core
            if core is not None:
                if core.fits(size):
                    return queue  # the newly chosen sticky partition has a batch with room
                batch: ProducerBatch | None = core.owner
                if batch is None:
                    continue  # a signal handler or a finalizer has withdrawn its records
                if (
                    core.limit < queue.settings.growth_limit
                    and self._grow(batch)
                    and core.fits(size)
                ):
                    return queue
                self._seal(batch)
            if self._quota.exceeded(queue.node) or (
                self._quota.has_waiters(queue.node)
                and not (permit is not None and permit.granted and permit.node == queue.node)
            ):
                self._wakeup()  # the batch that was just sealed can be sent
                return queue
            if self._open(queue):
                return queue

    def _grow(self, batch: ProducerBatch) -> bool:
        """Raise the size limit of a full batch that waits behind another batch (`BatchGrowth`).
        Return False if it may not grow."""
        queue, core = batch.queue, batch.core
        if len(queue.batches) < 2 or self._quota.exceeded(queue.node):
            return False
        limit = self.growth.next_limit(batch, self._loop.time())
        if limit <= core.limit:
            return False
        queue.hold(core)
        core.limit = limit
        return True

    def _open(self, queue: PartitionQueue) -> bool:
        """Open a batch in the queue. Return False if a nested call (from a finalizer) has already
        opened one."""
        opened = queue.opened
        self._maybe_add_partition(queue.topic_partition)
        now = self._loop.time()
        settings = queue.settings
        limit = max(1, settings.batch_size - HEADER_SIZE)
        core = BatchCore(
            queue.topic,
            queue.partition,
            self._loop,
            limit,
            self._compressor.ratio(queue.topic),
            min(limit, _MAX_FIRST_CAPACITY) if queue.last_full else 0,
        )
        order = (next(self._orders),)
        batch = ProducerBatch(core, queue, order, now, now + settings.delivery_timeout)
        # Before the batch is in the queue, record everything that it requires: its deadline, the
        # change of its queue, and a sender pass. If the call is interrupted, these have no effect.
        self.expires_at = min(self.expires_at, batch.deadline)
        self._changed[queue] = None
        self._wakeup()
        return queue.open(core, opened, batch, queue.batches, self.incomplete)

    def _seal(self, batch: ProducerBatch) -> None:
        """Seal a full batch, so that it accepts no more records. The next sender pass compresses
        it."""
        queue, core = batch.queue, batch.core
        self._changed[queue] = None
        self._sealed.append(batch)
        queue.last_full = True
        queue.core = None
        core.seal()
        queue.hold(core)  # from now on, its bytes count against its broker's share
        if batch.state is OPEN:
            batch.change_state(SEALED)

    def discard(self, batch: ProducerBatch) -> None:
        """Return the memory of a batch whose records were all withdrawn before it was sent. The
        sender's next pass drops the batch."""
        queue, core = batch.queue, batch.core
        self.emptied.append(batch)
        self._changed[queue] = None
        self._wakeup()  # the end of a transaction may be waiting for this batch
        if queue.core is core:
            queue.core = None
        if core.record_count:
            return  # in the meantime, a signal handler or a finalizer has appended a record
        # Drop the reference: the application may keep handles of withdrawn records, which must not
        # keep the engine alive.
        core.owner = None
        if queue.let_go(core, self._memory):
            self._quota.returned(queue.node)
            self._memory.returned()

    def drop_emptied(self, now: float) -> None:
        """Drop the batches whose records were all withdrawn since the last sender pass."""
        emptied, self.emptied = self.emptied, []
        for batch in emptied:
            if not batch.core.record_count:
                batch.queue.on_given_up(batch, now)
                self._drop(batch)
                self.reclassify(batch.queue, now)

    def _drop(self, batch: ProducerBatch) -> None:
        """Remove a batch without records. It gets no outcome, because no task can wait for one."""
        queue = batch.queue
        if queue.core is batch.core:
            queue.core = None
        if batch in queue.batches:
            queue.batches.remove(batch)
        if batch.state in QUEUED:
            batch.change_state(COMPLETING)
        self.deallocate(batch)

    # -- readiness ------------------------------------------------------------------------------

    def reclassify(self, queue: PartitionQueue, now: float) -> None:
        """Move a queue to the set that matches its first batch. Call this after every change to the
        queue."""
        node = self._nodes[queue.node]
        node.remove(queue)
        if not queue.batches:
            return
        head = queue.batches[0]
        if head.state is COMPRESSING:
            return  # `Sender.on_batch_compressed` reclassifies the queue
        if head.not_before > now:
            heapq.heappush(self._due, (head.not_before, next(self._tickets), queue))
        elif (
            len(queue.batches) > 1
            or head.core is not queue.core  # the head is not open: it is full, or a retry
            or head.created_at + queue.settings.linger <= now
        ):
            node.ready[queue] = None
        else:
            (node.held if queue.settings.own_linger else node.lingering)[queue] = None
            self._lingering_queues.append(queue)

    def advance(self, now: float) -> None:
        """Process the changes that the append side has recorded, and move queues that are due to
        the ready sets.

        Called once per sender pass. A record that is appended during a pass causes another pass.
        """
        if self._sealed:
            sealed, self._sealed = self._sealed, []
            for batch in sealed:
                if batch.state is SEALED:
                    self._compressor.compress(batch)
        if self._changed:
            changed, self._changed = self._changed, {}
            for queue in list(changed):
                self.reclassify(queue, now)
        due = self._due
        while due and due[0][0] <= now:
            self.reclassify(heapq.heappop(due)[2], now)
        for queue in self._lingering_queues:  # after a stall of the event loop, some may be due
            if queue.batches and queue.batches[0].created_at + queue.settings.linger <= now:
                self.reclassify(queue, now)

    def next_due(self) -> float:
        """Return the next time at which `advance` has something to do.

        Linger deadlines are put into the heap here, not when a batch is opened, because most
        batches are sent in the pass after they were opened.
        """
        due = self._due
        if self._lingering_queues:
            for queue in self._lingering_queues:
                if queue.batches:
                    self._note_linger(queue)
            self._lingering_queues.clear()
        while due and not self._is_awaited(*due[0]):
            # The deadline is not that of the first batch of the queue, so no wake-up is needed.
            # Drop the deadline; `_note_linger` adds it again once its batch is the first.
            queue = heapq.heappop(due)[2]
            queue.linger_at = -1.0
        return due[0][0] if due else math.inf

    def _note_linger(self, queue: PartitionQueue) -> None:
        node = self._nodes[queue.node]
        if queue in node.lingering or queue in node.held:
            linger_at = queue.batches[0].created_at + queue.settings.linger
            if queue.linger_at != linger_at:
                queue.linger_at = linger_at
                heapq.heappush(self._due, (linger_at, next(self._tickets), queue))

    def _is_awaited(self, at: float, _: int, queue: PartitionQueue) -> bool:
        """Return True if the first batch of the queue becomes due at time `at`."""
        if not queue.batches:
            return False
        head = queue.batches[0]
        return at in (head.not_before, head.created_at + queue.settings.linger)

    def due_nodes(self, busy: Container[int]) -> list[int]:
        """Return the brokers for which batches are due.

        Args:
            busy: brokers with a Produce request in flight. With adaptive linger, an open batch
                waits only while its broker is busy, unless the profile of its topic sets a linger.
        """
        found = []
        for node_id, node in list(self._nodes.items()):
            if node_id is not None and (
                node.ready
                or (
                    node.lingering
                    and ((self._adaptive and node_id not in busy) or self.flush_pending)
                )
                or (node.held and self.flush_pending)
            ):
                found.append(node_id)
        return found

    def has_ready(self, node_id: int) -> bool:
        """Return True if more batches are due for this broker."""
        node = self._nodes.get(node_id)
        return node is not None and bool(node.ready)

    @property
    def flush_pending(self) -> bool:
        """True if batches are sent without waiting for `linger_ms`: memory is short, a flush is in
        progress, or the transaction or the producer is ending."""
        memory = self._memory
        short = memory.has_waiters or memory.refused
        return self.closing or self.completing or short or self._flushes.active

    @property
    def leaderless(self) -> bool:
        """True if records are queued for partitions without a leader."""
        node = self._leaderless
        return bool(node.ready or node.lingering or node.held)

    def leaderless_topics(self) -> set[str]:
        """Return the topics with queued records for partitions without a leader."""
        node = self._leaderless
        return {queue.topic for queue in itertools.chain(node.ready, node.lingering, node.held)}

    # -- drain ----------------------------------------------------------------------------------

    def drain(
        self,
        node_id: int,
        max_size: int,
        may_drain: Callable[[PartitionQueue, ProducerBatch], bool],
    ) -> list[ProducerBatch]:
        """Take at most one batch of each partition led by the node, up to `max_size` bytes in
        total; only the first batch may exceed this limit. Open batches are taken too, because a
        request is sent anyway; but those of topics whose profile sets a linger are taken only while
        `flush_pending`.
        """
        node = self._nodes[node_id]
        node.undrained_since = math.inf
        taken: list[ProducerBatch] = []
        unready: list[PartitionQueue] = []
        size = 0
        held = node.held if node.held and self.flush_pending else ()
        for queue in itertools.chain(node.ready, node.lingering, held):
            while queue.batches and not queue.batches[0].core.record_count:
                self._drop(queue.batches[0])
                self._wakeup()  # the end of a transaction may be waiting for this batch
            if not queue.batches:
                unready.append(queue)
                continue
            batch = queue.batches[0]
            if not may_drain(queue, batch):
                continue
            if taken and size + batch.size > max_size:
                break
            if queue.core is batch.core:
                queue.core = None
                queue.last_full = False
            if batch.state is OPEN:
                batch.core.seal()
                queue.hold(batch.core)
            if not self._compressor.compress(batch):
                unready.append(queue)
            # A batch is empty if all its records were withdrawn after `may_drain`.
            elif batch.core.record_count:
                taken.append(batch)
                size += batch.size
        for queue in unready:
            node.remove(queue)
        now = self._loop.time()
        for batch in taken:
            queue = batch.queue
            queue.batches.popleft()
            batch.change_state(DRAINED)
            if timestamp_check.FIRST <= batch.core.base_timestamp < timestamp_check.END:
                self._timestamps.suspect(batch)
            if queue.batches:
                self.reclassify(queue, now)
            else:
                node.remove(queue)
        return taken

    # -- after sending --------------------------------------------------------------------------

    def reenqueue(self, batch: ProducerBatch, now: float, not_before: float) -> None:
        """Put a batch back into its queue for another attempt, in sequence order."""
        batch.not_before = not_before
        batch.change_state(READY)
        batch.queue.insert(batch)
        self.reclassify(batch.queue, now)

    def on_reordered(self, queue: PartitionQueue) -> None:
        """Reclassify a queue before the next drain, because its first batch has changed."""
        self._changed[queue] = None

    def split(
        self, batch: ProducerBatch, payload: bytes, limit: int, now: float
    ) -> list[ProducerBatch]:
        """Replace a batch that is too large with smaller ones at the same position in its queue.

        Args:
            payload: the uncompressed records section.
            limit: maximum size of the records section of a part, in bytes before compression.

        The parts inherit the deadline, the flags and the number of attempts; the attempt that was
        rejected does not count. Source: Java `RecordAccumulator.splitAndReenqueue`.
        """
        queue = batch.queue
        parts = []
        for number, core in enumerate(batch.core.split(payload, limit)):
            order = (*batch.order, number)
            part = ProducerBatch(core, queue, order, batch.created_at, batch.deadline)
            part.change_state(SEALED)
            part.attempts = batch.attempts - 1
            part.possibly_appended = batch.possibly_appended
            part.in_doubt = batch.in_doubt
            part.maybe_written = batch.maybe_written
            part.lost = batch.lost
            part.divided_in_doubt = batch.in_doubt
            parts.append(part)
            self.incomplete[part] = None
        self.expires_at = min(self.expires_at, batch.deadline)
        share, rest = divmod(batch.core.buffered_bytes, len(parts))
        for part in parts:
            part.core.buffered_bytes = part.core.reserved_bytes = share
        parts[0].core.buffered_bytes += rest
        parts[0].core.reserved_bytes += rest
        batch.core.buffered_bytes = batch.core.reserved_bytes = 0
        self._flushes.replace(batch, parts)
        self._compressor.reset_ratio(queue.topic)
        self.deallocate(batch)
        for part in parts:
            queue.insert(part)
        self.reclassify(queue, now)
        return parts

    def deallocate(self, batch: ProducerBatch) -> None:
        """Remove a batch that has its outcome, and return its memory. The memory of a batch in
        flight stays counted until the response, when this is called again. Idempotent.

        Source: Java `RecordAccumulator.deallocate`.
        """
        if batch in self.incomplete:
            if self._flushes.active:
                # Do this first: as long as the batch is in `incomplete`, an interrupted call can be
                # repeated.
                self._flushes.on_batch_done(batch)
            self.incomplete.pop(batch, None)
            if not self.incomplete:
                self.expires_at = math.inf
        state = batch.state
        if state is IN_FLIGHT_FAILED:
            return
        if state is IN_FLIGHT:
            batch.change_state(IN_FLIGHT_FAILED)
            return
        if state is not DONE:
            batch.change_state(DONE)
        batch.payload = None
        queue = batch.queue
        if queue.let_go(batch.core, self._memory):
            self._quota.returned(queue.node)
            if self._memory.has_waiters or self._memory.refused:
                self._memory.returned()

    def fail_waiters(
        self, errors: Mapping[int, KafkaError], error_of_all: KafkaError | None
    ) -> None:
        """Fail the calls that wait for a share of the buffer of a broker in `errors`. With
        `error_of_all`, fail all calls that wait for memory."""
        for node_id, error in errors.items():
            self._quota.fail_waiters(node_id, error)
        if error_of_all is not None:
            self._quota.fail_waiters(None, error_of_all)
            self._memory.fail_waiters(error_of_all)

    def remove(self, batch: ProducerBatch) -> bool:
        """Remove a batch from its queue. Return False if it is not queued."""
        queue = batch.queue
        if batch.state not in QUEUED:
            return False
        if batch in queue.batches:  # false if an interrupted call has removed it
            queue.batches.remove(batch)
        batch.change_state(COMPLETING)
        if queue.core is batch.core:
            queue.core = None
        self.reclassify(queue, self._loop.time())
        return True

    # -- time -----------------------------------------------------------------------------------

    def expired(self, now: float) -> list[ProducerBatch]:
        """Return the batches without an outcome whose delivery deadline has passed, earliest
        deadline first. O(batches)."""
        found = [batch for batch in list(self.incomplete) if batch.deadline <= now]
        found.sort(key=lambda batch: (batch.deadline, batch.order))
        return found

    def next_expiry(self) -> float:
        """Return the earliest delivery deadline, or inf if no batch is incomplete. O(batches)."""
        deadlines = [batch.deadline for batch in list(self.incomplete)]
        self.expires_at = min(deadlines, default=math.inf)
        return self.expires_at

    # -- topology -------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Move queues to the current leaders of their partitions.

        The backoff of a batch ends if another leader was elected since its last attempt. It also
        ends if the partition had no leader for a time since then, because the topic may have been
        created again. In that case, its leader epochs restart and may equal the epoch of the last
        attempt.
        """
        lost: dict[int | None, None] = {}  # a dict, because the order must be deterministic
        for queue in self._queues.values():
            before = queue.node
            self.follow_leader(queue, snapshot, now)
            if queue.node != before:
                lost[before] = None
        self._quota.follow(lost)

    def follow_leader(self, queue: PartitionQueue, snapshot: ClusterSnapshot, now: float) -> None:
        """Move one queue to its current leader."""
        key = queue.topic_partition
        leader = snapshot.leader_of(key)
        moved = leader != queue.node
        returned = queue.node is None
        if moved:
            left = queue.node
            self._nodes[left].remove(queue)
            queue.node = leader
            queue.follow(self._quota.account(leader))
            self._quota.returned(left)
        if queue.batches:
            head = queue.batches[0]
            newer = head.leader_changed(snapshot.leader_epoch_of(key))
            hurry = leader is not None and head.not_before > now and (newer or (moved and returned))
            if hurry:
                head.not_before = now
            if moved or hurry:
                self.reclassify(queue, now)

    def forget(self, topic: str) -> int | None:
        """Drop the queues of a topic that is no longer in use.

        Returns:
            The highest number of partitions that the topic had; None if one of its batches is still
            queued, in flight or without an outcome.
        """
        partitions = self._partitions.get(topic, 0)
        keys = [TopicPartition(topic, partition) for partition in range(partitions)]
        queues = [self._queues[key] for key in keys if key in self._queues]
        if any(queue.load for queue in queues):
            return None
        # Also keep the queues if the response for a batch is being processed. Such a batch is
        # neither queued nor in flight, but may return to its queue for a retry. New leaders in that
        # response can be the reason for this call.
        if any(batch.queue.topic == topic for batch in list(self.incomplete)):
            return None
        for queue in queues:
            self._nodes[queue.node].remove(queue)
            del self._queues[queue.topic_partition]
        self._partitions.pop(topic, None)
        self._quota.forget(queues)
        self.growth.forget(topic)
        self._compressor.forget(topic)
        self.settings.forget(topic)
        return partitions

    def loads(self, topic: TopicSlot, partitions: Iterable[int]) -> list[int]:
        """Return the number of queued and in-flight batches of each partition, for the adaptive
        partitioner."""
        return [topic.slots[partition].load for partition in partitions]

    def usable(self, topic: TopicSlot, partitions: Iterable[int]) -> list[int]:
        """Return the partitions whose broker has not used up its share of the buffer.

        With partitioner_availability_timeout_ms (KIP-794; 0 disables it), partitions with queued
        batches are omitted if their broker has accepted no request for longer than that. Therefore
        each partition of such a broker gets at most one batch. Source: Java
        `RecordAccumulator.partitionReady`.
        """
        partitions = self._roomy(topic, partitions)
        if not self._availability_timeout:
            return partitions
        since = self._loop.time() - self._availability_timeout
        return [
            partition
            for partition in partitions
            if not topic.slots[partition].batches
            or self._nodes[topic.slots[partition].node].undrained_since >= since
        ]

    def note_undrainable(self, node_id: int, now: float) -> None:
        """Record that batches are due for a broker that accepts no request now. The next `drain`
        resets this.

        Source: Java `RecordAccumulator.updateNodeLatencyStats`.
        """
        node = self._nodes[node_id]
        node.undrained_since = min(node.undrained_since, now)

    def _roomy(self, topic: TopicSlot, partitions: Iterable[int]) -> list[int]:
        return [p for p in partitions if not self._quota.exceeded(topic.slots[p].node)]
