"""A cluster that is installed again at the same addresses, and another producer of the new
cluster."""

from __future__ import annotations

import dataclasses
import itertools
import random
from dataclasses import dataclass, field

from aiokprod._errors import Code
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.batches import Batch, BatchRecord, BatchRefused
from aiokprod.testing.fake_cluster.log import PartitionLog, StoredBatch
from aiokprod.testing.fake_cluster.topology import Partition
from tests.scenarios.scenario_helpers import clock, now
from tests.simulation.seeds import PARTITIONS, TOPICS

KINDS = ("empty", "mirrored", "disks", "disks")
"""Logs of the new cluster: "empty" has none. "mirrored" has those of a mirror, whose records have
other offsets and no producer id. "disks" has those of the old disks with the producers' state,
after the controllers' data was lost. A mirror and a backup may lack the newest batches."""

MAX_EPOCH = 2**15 - 1
WRITES = 40
EVERY_S = 0.15
MARK = b"stranger/"
"""Prefix of the values of another producer's records."""


@dataclass(eq=False)
class Incarnation:
    """A cluster since it was installed again.

    Attributes:
        gone: topic ids of the cluster before it.
        stranger: another producer of the new cluster.
    """

    at: float
    cluster_id: str
    kind: str
    gone: set[bytes]
    stranger: Stranger | None = None


@dataclass(frozen=True)
class Misled:
    """A batch of the stranger that a broker took for another batch, which has this offset."""

    at: float
    log: tuple[bytes, int]
    offset: int


def reinstall(cluster: FakeCluster, kind: str, rng: random.Random, first_id: int) -> Incarnation:
    """Install the cluster again, with a new cluster id, producer ids from `first_id` and new
    topics. The old topics are in `cluster.deleted`."""
    for number, broker in cluster.brokers.items():
        if broker.is_up:
            cluster.kill(number)
        for connection in list(broker.connections):
            connection.reset()
    for number in cluster.brokers:
        cluster.start(number)
    cluster.cluster_id = f"installed-at-{now():.3f}"
    cluster.controller_id = rng.choice(list(cluster.brokers))
    cluster.next_producer_id = first_id
    for name in TOPICS:
        old = cluster.topics[name]
        made = cluster.recreate_topic(name)
        for before, partition in zip(old.partitions, made.partitions, strict=True):
            cluster.forgotten.add((name, partition.index))
            if kind != "empty":
                _restore(before.log, partition.log, kind, rng)
    gone = {topic.topic_id for topic in cluster.deleted}
    return Incarnation(now(), cluster.cluster_id, kind, gone)


def _restore(old: PartitionLog, new: PartitionLog, kind: str, rng: random.Random) -> None:
    count = len(old.batches)
    if rng.random() < 0.5:
        count = rng.randrange(count + 1)
    kept = old.batches[:count]
    if kind == "mirrored":
        for stored in kept:
            new.batches.append(_mirrored(stored, new.end_offset))
    else:
        new.start_offset = old.start_offset
        new.batches = kept
        new._rebuild_ledger()
    new.high_watermark = new.end_offset


def _mirrored(stored: StoredBatch, offset: int) -> StoredBatch:
    batch = dataclasses.replace(stored.batch, producer_id=-1, epoch=-1, base_sequence=-1)
    return dataclasses.replace(stored, base_offset=offset, batch=batch)


@dataclass(eq=False)
class Stranger:
    """Another idempotent producer of one cluster. It appends one record at a time and never loses a
    response.

    Like Java's producer, it bumps its epoch if a broker refuses its sequence or its epoch.
    """

    cluster: FakeCluster
    rng: random.Random
    cluster_id: str
    misled: list[Misled] = field(default_factory=list)
    producer_id: int = -1
    epoch: int = -1
    _next: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    def start(self, after_s: float, epochs: int) -> None:
        """Start to append records after `after_s` seconds. `epochs` is the number of earlier epoch
        bumps."""
        loop = clock()
        loop.world_at(loop.time() + after_s, self._begin, epochs)

    def _begin(self, epochs: int) -> None:
        if self.cluster.cluster_id != self.cluster_id:
            return
        self.producer_id, epoch = self.cluster.new_producer_id()
        self.epoch = min(epoch + epochs, MAX_EPOCH)
        self._write(WRITES)

    def _write(self, left: int) -> None:
        if self.cluster.cluster_id != self.cluster_id:
            return
        where = self.rng.choice(TOPICS), self.rng.randrange(PARTITIONS)
        partition = self.cluster.topics[where[0]].partitions[where[1]]
        leader = self.cluster.brokers.get(partition.leader or 0)
        if leader is not None and leader.is_up and not leader.is_paused:
            while not self._append(partition):
                self._bump(where)
        if left:
            loop = clock()
            loop.world_at(loop.time() + EVERY_S, self._write, left - 1)

    def _append(self, partition: Partition) -> bool:
        """Append one record. Return False if the broker refuses its sequence or epoch."""
        where, log = (partition.topic, partition.index), partition.log
        epoch, sequence = self._next.get(where, (self.epoch, 0))
        stamp = self.cluster.unix_ms()
        value = MARK + b"%d" % next(self._numbers)
        records = (BatchRecord(stamp, None, value, ()),)
        batch = Batch("none", self.producer_id, epoch, sequence, False, stamp, 100, records)
        assert partition.leader is not None
        known = self.cluster.brokers[partition.leader].duplicate_of(partition, batch)
        if known is not None:
            topic_id = self.cluster.topics[partition.topic].topic_id
            self.misled.append(Misled(now(), (topic_id, partition.index), known.base_offset))
        else:
            try:
                log.ledger.check(batch)
            except BatchRefused as refused:
                return refused.code not in (
                    Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH,
                    Code.UNKNOWN_PRODUCER_ID,
                )  # fmt: skip
            log.append(batch, None, now())
            self.cluster.replicate(partition)
        self._next[where] = epoch, (sequence + 1) % 2**31
        return True

    def _bump(self, where: tuple[str, int]) -> None:
        if self.epoch >= MAX_EPOCH:
            self.producer_id, self.epoch = self.cluster.new_producer_id()
            self._next.clear()
        else:
            self.epoch += 1
        self._next[where] = self.epoch, 0
