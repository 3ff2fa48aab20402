"""`RecordAccumulator`: per-partition queues of batches, and when each may leave.

Costs follow the batches, not the partitions: a queue sits in one set of its leader's
`NodeQueues`, or waits in the deadline heap; nothing is scanned per pass. Knows no sockets and no
error codes.

Source: Java `RecordAccumulator`, `BuiltInPartitioner`.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from typing import TYPE_CHECKING

from aiokprod._core.append import TopicSlot
from aiokprod._core.batch import BatchCore
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
    from aiokprod.cluster import ClusterSnapshot
    from aiokprod.config import ProducerConfig
    from aiokprod.errors import KafkaError

_MAX_FIRST_CAPACITY = 1 << 20


class RecordAccumulator:
    """All queued batches of a producer.

    Invariants: a batch is in `queue.batches` while its state is in `QUEUED`; `incomplete` holds all
    that have no outcome, in order of creation; a queue is in at most one set of one `NodeQueues`.

    The append side (`open_new_batch`, `discard`) runs in users' calls, where a signal handler may
    raise between any two steps, and a finalizer may call it again. So it only notes which queues it
    changed, before it changes them, and a change is one step of compiled code (`PartitionSlot`).
    The sender's pass does the rest (`advance`). Whatever a call leaves behind is a batch that is
    known everywhere or nowhere; one without records is dropped when it would be sent.

    Attributes:
        expires_at: no delivery deadline passes before; `next_expiry` makes it exact.
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
        admit: Callable[[TopicPartition], None],
        wakeup: Callable[[], None],
        sticky_to_growth: bool = False,
    ) -> None:
        self._batch_size = max(1, min(config.batch_size, config.max_request_size))
        self.growth = BatchGrowth(config, self._batch_size)
        self.sticky_limit = max(self._batch_size, self.growth.limit * sticky_to_growth)
        self._linger = config.linger_ms / 1000
        self._delivery_timeout = config.delivery_timeout_ms / 1000
        self._adaptive = config.adaptive_linger
        self._availability_timeout = config.partitioner_availability_timeout_ms / 1000
        self._loop = loop
        self._memory = memory
        self._compressor = compressor
        self._flushes = flushes
        self._quota = quota
        self._choose_partition = choose_partition
        self._admit = admit
        self._wakeup = wakeup
        self._orders = itertools.count()
        self._tickets = itertools.count()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._partitions: dict[str, int] = {}  # of each topic: 1 + the highest one with a queue
        self._leaderless = NodeQueues()
        self._nodes: defaultdict[int | None, NodeQueues] = defaultdict(NodeQueues)
        self._nodes[None] = self._leaderless
        self._due: list[tuple[float, int, PartitionQueue]] = []
        self._changed: dict[PartitionQueue, None] = {}
        self._sealed: list[ProducerBatch] = []
        self._lingering_queues: list[PartitionQueue] = []
        self.incomplete: dict[ProducerBatch, None] = {}
        self.expires_at = math.inf
        self.closing = False
        self.completing = False

    # -- append side ----------------------------------------------------------------------------

    def queue(self, topic: str, partition: int) -> PartitionQueue:
        """The queue of a partition, made on first use."""
        key = TopicPartition(topic, partition)
        queue = self._queues.get(key)
        if queue is None:
            queue = PartitionQueue(self, topic, partition)
            queue.follow(self._quota.account(queue.node))
            queue = self._queues.setdefault(key, queue)
            self._partitions[topic] = max(partition + 1, self._partitions.get(topic, 0))
        return queue

    def open_new_batch(
        self, topic: TopicSlot, partition: int, size: int, permit: QuotaWaiter | None
    ) -> PartitionQueue:
        """Find or open a batch with room for a record of up to `size` bytes.

        Called by the append path when the open batch is missing or full.

        Args:
            partition: -1 means the sticky partition, which is chosen again once it has received
                `sticky_limit` bytes (KIP-794) or its broker's share of the buffer is used up.
            permit: the caller's place in a broker's queue if `BrokerMemoryQuota.wait` has let it
                through; None if the caller has not waited.

        Returns:
            The queue of the partition, without an open batch if its broker's share of the buffer
            is used up, or if other callers wait for it and `permit` is not of this broker.
        """
        if partition < 0:
            sticky = topic.sticky
            if (
                sticky < 0
                or topic.sticky_bytes >= self.sticky_limit
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
                    return queue  # the sticky choice fell on a batch with room
                if core.limit < self.growth.limit and self._grow(queue, core) and core.fits(size):
                    return queue
                self._seal(queue, core)
            if self._quota.exceeded(queue.node) or (
                self._quota.has_waiters(queue.node)
                and not (permit is not None and permit.granted and permit.node == queue.node)
            ):
                self._wakeup()  # the batch just sealed can leave
                return queue
            if self._open(queue):
                return queue

    def _grow(self, queue: PartitionQueue, core: BatchCore) -> bool:
        """Raise the limit of a full batch that has to wait behind another one (`BatchGrowth`)."""
        if len(queue.batches) < 2 or self._quota.exceeded(queue.node):
            return False
        limit = self.growth.next_limit(core.owner, self._loop.time())
        if limit <= core.limit:
            return False
        queue.hold(core)
        core.limit = limit
        return True

    def _open(self, queue: PartitionQueue) -> bool:
        """Give the queue an open batch; False if a call from within did so meanwhile."""
        opened = queue.opened
        self._admit(queue.topic_partition)
        now = self._loop.time()
        limit = max(1, self._batch_size - HEADER_SIZE)
        core = BatchCore(
            queue.topic,
            queue.partition,
            self._loop,
            limit,
            self._compressor.ratio(queue.topic),
            min(limit, _MAX_FIRST_CAPACITY) if queue.last_full else 0,
        )
        order = (next(self._orders),)
        batch = ProducerBatch(core, queue, order, now, now + self._delivery_timeout)
        # What must follow from the batch comes before it: its deadline, its place, a pass of the
        # sender. For a batch that does not come into being they are harmless.
        self.expires_at = min(self.expires_at, batch.deadline)
        self._changed[queue] = None
        self._wakeup()
        return queue.open(core, opened, batch, queue.batches, self.incomplete)

    def _seal(self, queue: PartitionQueue, core: BatchCore) -> None:
        """The open batch is full. The next pass of the sender compresses it."""
        batch: ProducerBatch = core.owner
        self._changed[queue] = None
        self._sealed.append(batch)
        queue.last_full = True
        queue.core = None
        core.seal()
        queue.hold(core)  # from now on its bytes count for its broker
        if batch.state is OPEN:
            batch.change_state(SEALED)

    def discard(self, batch: ProducerBatch) -> None:
        """All records of an unsent batch were withdrawn: it never existed."""
        self._changed[batch.queue] = None
        self._wakeup()  # a transaction's end may have waited for this batch
        self._drop(batch)

    def _drop(self, batch: ProducerBatch) -> None:
        """Forget a batch without records. It gets no outcome: no call may wait for one."""
        queue = batch.queue
        if queue.core is batch.core:
            queue.core = None
        self.settle(batch)
        if batch in queue.batches:
            queue.batches.remove(batch)

    # -- readiness ------------------------------------------------------------------------------

    def reclassify(self, queue: PartitionQueue, now: float) -> None:
        """Put a queue into the set it belongs to; call after any change to it."""
        node = self._nodes[queue.node]
        node.remove(queue)
        if not queue.batches:
            return
        head = queue.batches[0]
        if head.state is COMPRESSING:
            return  # `Sender.on_batch_closed` puts it back
        if head.not_before > now:
            heapq.heappush(self._due, (head.not_before, next(self._tickets), queue))
        elif (
            len(queue.batches) > 1
            or head.core is not queue.core  # it takes no more records; a retry never does
            or head.created_at + self._linger <= now
        ):
            node.ready[queue] = None
        else:
            node.lingering[queue] = None
            self._lingering_queues.append(queue)

    def advance(self, now: float) -> None:
        """Take in what the append side has noted, and move queues whose time came into their ready
        sets. Once per pass: what is appended during a pass wakes the sender for the next one."""
        if self._sealed:
            sealed, self._sealed = self._sealed, []
            for batch in sealed:
                if batch.state is SEALED:
                    self._compressor.close(batch)
        if self._changed:
            changed, self._changed = self._changed, {}
            for queue in list(changed):
                self.reclassify(queue, now)
        due = self._due
        while due and due[0][0] <= now:
            self.reclassify(heapq.heappop(due)[2], now)
        for queue in self._lingering_queues:  # after a stall of the loop
            if queue.batches and queue.batches[0].created_at + self._linger <= now:
                self.reclassify(queue, now)

    def next_due(self) -> float:
        """The next instant at which `advance` has something to do.

        Only what lingers still is noted: most batches leave in the pass after they were opened.
        """
        due = self._due
        if self._lingering_queues:
            for queue in self._lingering_queues:
                if queue.batches:
                    self._note_linger(queue)
            self._lingering_queues.clear()
        while due and not self._is_awaited(*due[0]):
            queue = heapq.heappop(due)[2]  # its batch is not at the head: no wake-up is needed
            queue.linger_at = -1.0  # once it is at the head, it must be noted again
        return due[0][0] if due else math.inf

    def _note_linger(self, queue: PartitionQueue) -> None:
        if queue in self._nodes[queue.node].lingering:
            linger_at = queue.batches[0].created_at + self._linger
            if queue.linger_at != linger_at:
                queue.linger_at = linger_at
                heapq.heappush(self._due, (linger_at, next(self._tickets), queue))

    def _is_awaited(self, at: float, _: int, queue: PartitionQueue) -> bool:
        """True if something of the queue still becomes due at that instant."""
        if not queue.batches:
            return False
        head = queue.batches[0]
        return at in (head.not_before, head.created_at + self._linger)

    def due_nodes(self, busy: Container[int]) -> list[int]:
        """Brokers something may leave for. `busy` are those with a Produce request in flight; with
        adaptive linger, open batches wait for no other broker."""
        found = []
        for node_id, node in self._nodes.items():
            if node_id is not None and (
                node.ready
                or (
                    node.lingering
                    and ((self._adaptive and node_id not in busy) or self.flush_pending)
                )
            ):
                found.append(node_id)
        return found

    def has_ready(self, node_id: int) -> bool:
        """True if something else must leave for this broker now."""
        node = self._nodes.get(node_id)
        return node is not None and bool(node.ready)

    @property
    def flush_pending(self) -> bool:
        """Linger is void: memory is short, a flush runs, a transaction or the producer ends."""
        return self.closing or self.completing or self._memory.has_waiters or self._flushes.active

    @property
    def leaderless(self) -> bool:
        """True if data are queued for partitions without a leader."""
        return bool(self._leaderless.ready or self._leaderless.lingering)

    def leaderless_topics(self) -> set[str]:
        """Topics with queued data for partitions without a leader."""
        node = self._leaderless
        return {queue.topic for queue in itertools.chain(node.ready, node.lingering)}

    # -- drain ----------------------------------------------------------------------------------

    def drain(
        self,
        node_id: int,
        max_size: int,
        may_drain: Callable[[PartitionQueue, ProducerBatch], bool],
    ) -> list[ProducerBatch]:
        """Take at most one batch per partition led by the node, up to `max_size` bytes in all
        (one batch in any case). Open batches ride along: the request leaves anyway."""
        node = self._nodes[node_id]
        node.undrained_since = math.inf
        taken: list[ProducerBatch] = []
        closing: list[PartitionQueue] = []
        size = 0
        for queue in itertools.chain(node.ready, node.lingering):
            while queue.batches and not queue.batches[0].core.record_count:
                self._drop(queue.batches[0])
            if not queue.batches:
                closing.append(queue)
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
            if self._compressor.close(batch):
                taken.append(batch)
                size += batch.size
            else:
                closing.append(queue)
        for queue in closing:
            node.remove(queue)
        now = self._loop.time()
        for batch in taken:
            queue = batch.queue
            queue.batches.popleft()
            batch.change_state(DRAINED)
            if queue.batches:
                self.reclassify(queue, now)
            else:
                node.remove(queue)
        return taken

    # -- after sending --------------------------------------------------------------------------

    def reenqueue(self, batch: ProducerBatch, now: float, not_before: float) -> None:
        """Put a batch back for another attempt, at its place in the order of its partition."""
        batch.not_before = not_before
        batch.change_state(READY)
        batch.queue.insert(batch)
        self.reclassify(batch.queue, now)

    def on_reordered(self, queue: PartitionQueue) -> None:
        """Another batch is at the head of a queue, which is classified again before the next
        drain."""
        self._changed[queue] = None

    def split(
        self, batch: ProducerBatch, payload: bytes, limit: int, now: float
    ) -> list[ProducerBatch]:
        """Replace a batch that is too large by smaller ones at the same place.

        `payload` is the plain records section. Parts inherit the deadline and what is known of
        earlier attempts; the refused one does not count. Java `splitAndReenqueue`.
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
            part.seen = batch.seen
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
        self.settle(batch)
        for part in parts:
            queue.insert(part)
        self.reclassify(queue, now)
        return parts

    def settle(self, batch: ProducerBatch) -> None:
        """The batch has its outcome. Gives its memory back, unless it is in flight: then once more
        after the response. Idempotent."""
        if batch in self.incomplete:
            self._flushes.settled(batch)  # first: while it is incomplete, this can be repeated
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
            self._memory.returned()

    def refuse_waiters(
        self, errors: Mapping[int, KafkaError], error_of_all: KafkaError | None
    ) -> None:
        """Fail the calls that wait for memory that only a broker of `errors` can give back; all
        calls, if there is an `error_of_all`."""
        for node_id, error in errors.items():
            self._quota.refuse(node_id, error)
        if error_of_all is not None:
            self._quota.refuse(None, error_of_all)
            self._memory.refuse(error_of_all)

    def remove(self, batch: ProducerBatch) -> bool:
        """Take a batch out of its queue; False if it is in none."""
        queue = batch.queue
        if batch.state not in QUEUED:
            return False
        if batch in queue.batches:  # else an interrupted call has taken it out
            queue.batches.remove(batch)
        batch.change_state(COMPLETING)
        if queue.core is batch.core:
            queue.core = None
        self.reclassify(queue, self._loop.time())
        return True

    # -- time -----------------------------------------------------------------------------------

    def expired(self, now: float) -> list[ProducerBatch]:
        """Batches past their delivery deadline and without an outcome, oldest first; O(batches)."""
        found = [batch for batch in list(self.incomplete) if batch.deadline <= now]
        found.sort(key=lambda batch: (batch.deadline, batch.order))
        return found

    def next_expiry(self) -> float:
        """The next delivery deadline, inf if nothing is incomplete; O(batches)."""
        deadlines = [batch.deadline for batch in list(self.incomplete)]
        self.expires_at = min(deadlines, default=math.inf)
        return self.expires_at

    # -- topology -------------------------------------------------------------------------------

    def on_snapshot(self, snapshot: ClusterSnapshot, now: float) -> None:
        """Move queues to the current leaders of their partitions. The backoff of a batch ends if
        another leader was elected since its last attempt, or if there was no leader in between. In
        that case the topic may have been created again: epochs then start again, perhaps with the
        epoch of the last attempt."""
        lost: dict[int | None, None] = {}  # in order, so that equal runs stay equal
        for queue in self._queues.values():
            before = queue.node
            self.follow_leader(queue, snapshot, now)
            if queue.node != before:
                lost[before] = None
        self._quota.follow(lost)

    def follow_leader(self, queue: PartitionQueue, snapshot: ClusterSnapshot, now: float) -> None:
        """Move one queue to its present leader."""
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
        """Drop the queues of a topic that is not in use any more.

        Returns:
            How many partitions it had at most; None if something is still queued, on the wire or
            without an outcome.
        """
        partitions = self._partitions.get(topic, 0)
        keys = [TopicPartition(topic, partition) for partition in range(partitions)]
        queues = [self._queues[key] for key in keys if key in self._queues]
        if any(queue.load for queue in queues):
            return None
        # A batch whose answer is being processed is neither queued nor on the wire, and the leaders
        # that this answer names may be what leads here. It comes back to its queue for a retry.
        if any(batch.queue.topic == topic for batch in list(self.incomplete)):
            return None
        for queue in queues:
            self._nodes[queue.node].remove(queue)
            del self._queues[queue.topic_partition]
        self._partitions.pop(topic, None)
        self._quota.forget(queues)
        self.growth.forget(topic)
        self._compressor.forget(topic)
        return partitions

    def loads(self, topic: TopicSlot, partitions: Iterable[int]) -> list[int]:
        """Queue sizes for the adaptive partitioner."""
        return [topic.slots[partition].load for partition in partitions]

    def usable(self, topic: TopicSlot, partitions: Iterable[int]) -> list[int]:
        """Those of `partitions` whose broker has room for another batch. One that has something
        queued is avoided while its broker has taken nothing for longer than
        partitioner_availability_timeout_ms (0: no limit; KIP-794), so that such a broker gets one
        batch for each of its partitions. Source: Java `RecordAccumulator.partitionReady`."""
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
        """Something is due for a broker that takes no request (Java `updateNodeLatencyStats`);
        `drain` ends that."""
        node = self._nodes[node_id]
        node.undrained_since = min(node.undrained_since, now)

    def _roomy(self, topic: TopicSlot, partitions: Iterable[int]) -> list[int]:
        return [p for p in partitions if not self._quota.exceeded(topic.slots[p].node)]
