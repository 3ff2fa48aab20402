"""The transaction coordinators of a fake cluster: state machines of both protocols.

The state belongs to the cluster, so it survives the death of a coordinator. FindCoordinator returns
the coordinator of a transactional id. All other brokers respond with NOT_COORDINATOR.

Source: Java `TransactionCoordinator`, `TransactionMetadata`, `TransactionStateManager`;
KIP-98, KIP-360, KIP-447, KIP-890.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from aiokprod._errors import Code
from aiokprod.testing.pipes import world_at

if TYPE_CHECKING:
    from aiokprod.testing.fake_cluster.cluster import FakeCluster
    from aiokprod.testing.fake_cluster.topology import Partition

MAX_EPOCH: Final = 2**15 - 2
MAX_TIMEOUT_MS: Final = 900_000
"""The broker's transaction.max.timeout.ms."""

Where = tuple[str, int]


class CommittedOffset(int):
    """A committed offset with its metadata and the time of the commit.

    Attributes:
        metadata: the metadata string of the commit.
        committed_at: loop time of the TxnOffsetCommit request, s. The retention starts then.
    """

    metadata: str | None
    committed_at: float

    def __new__(
        cls, offset: int, metadata: str | None = "", committed_at: float = 0.0
    ) -> CommittedOffset:
        found = super().__new__(cls, offset)
        found.metadata = metadata
        found.committed_at = committed_at
        return found


class Phase(enum.Enum):
    """States of a transactional id."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


_PREPARING: Final = (Phase.PREPARE_COMMIT, Phase.PREPARE_ABORT)


@dataclass(slots=True)
class Transactional:
    """The coordinator's state of a transactional id.

    Attributes:
        last_epoch: the previous epoch, whose producer may repeat its request, or -1 after fencing.
        number: number of the transaction, for the timer to recognise its transaction.
        history: result of every ended transaction, oldest first.
        known: every (epoch, partition) that has ever been part of a transaction.
    """

    name: str
    producer_id: int
    epoch: int
    timeout_ms: int
    last_epoch: int = -1
    phase: Phase = Phase.EMPTY
    partitions: set[Where] = field(default_factory=set)
    offsets: dict[str, dict[Where, CommittedOffset]] = field(default_factory=dict)
    number: int = 0
    history: list[bool] = field(default_factory=list)
    known: set[tuple[int, Where]] = field(default_factory=set)


class TransactionModel:
    """All transactional ids of a cluster.

    Attributes:
        version: finalized level of transaction.version.
        marker_s: seconds from PrepareX to CompleteX.
        committed_offsets: offsets of committed transactions, by group.
    """

    def __init__(self, cluster: FakeCluster, version: int, marker_s: float) -> None:
        self.version = version
        self.marker_s = marker_s
        self.ids: dict[str, Transactional] = {}
        self.committed_offsets: dict[str, dict[Where, CommittedOffset]] = {}
        self._cluster = cluster

    # -- requests -------------------------------------------------------------------------------

    def init(
        self, name: str, timeout_ms: int, producer_id: int, epoch: int
    ) -> tuple[Code, int, int]:
        """Handle InitProducerId. Return (code, producer id, epoch)."""
        if not 0 < timeout_ms <= MAX_TIMEOUT_MS:
            return Code.INVALID_TRANSACTION_TIMEOUT, -1, -1
        entry = self.ids.get(name)
        if entry is None:
            fresh, first = self._cluster.new_producer_id()
            entry = self.ids[name] = Transactional(name, fresh, first, timeout_ms)
            return Code.NONE, entry.producer_id, entry.epoch
        if producer_id >= 0 and (
            producer_id != entry.producer_id or epoch not in (entry.epoch, entry.last_epoch)
        ):
            return Code.PRODUCER_FENCED, -1, -1
        if entry.phase in _PREPARING:
            return Code.CONCURRENT_TRANSACTIONS, -1, -1
        if entry.phase is Phase.ONGOING:
            self._fence(entry)
            return Code.CONCURRENT_TRANSACTIONS, -1, -1
        entry.timeout_ms = timeout_ms
        if producer_id >= 0 and epoch == entry.last_epoch != entry.epoch:
            return Code.NONE, entry.producer_id, entry.epoch  # the earlier response was lost
        self._bump(entry, known=producer_id >= 0)
        entry.phase = Phase.EMPTY
        return Code.NONE, entry.producer_id, entry.epoch

    def check(self, name: str | None, producer_id: int, epoch: int) -> Code:
        """Return NONE if this is the current producer of the transactional id, otherwise the error
        code."""
        entry = self.ids.get(name or "")
        if entry is None or entry.producer_id != producer_id:
            return Code.INVALID_PRODUCER_ID_MAPPING
        return Code.NONE if entry.epoch == epoch else Code.PRODUCER_FENCED

    def add(self, name: str, partitions: set[Where], group: str | None = None) -> Code:
        """Add partitions, and a group, to the transaction. Open a transaction if none is open."""
        entry = self.ids[name]
        if entry.phase in _PREPARING:
            return Code.CONCURRENT_TRANSACTIONS
        if entry.phase is not Phase.ONGOING:
            entry.phase = Phase.ONGOING
            entry.number += 1
            when = self._loop.time() + entry.timeout_ms / 1000
            world_at(self._loop, when, self._timed_out, entry, entry.number)
        entry.partitions |= partitions
        entry.known |= {(entry.epoch, where) for where in partitions}
        if group is not None:
            entry.offsets.setdefault(group, {})
        return Code.NONE

    def has(self, name: str | None, where: Where) -> bool:
        """Return True if the partition is part of the open transaction."""
        entry = self.ids.get(name or "")
        return entry is not None and entry.phase is Phase.ONGOING and where in entry.partitions

    def was_added(self, name: str | None, where: Where) -> bool:
        """Return True if the partition was part of a transaction of the current epoch."""
        entry = self.ids.get(name or "")
        return entry is not None and (entry.epoch, where) in entry.known

    def end(self, name: str, epoch: int, *, commit: bool, tv2: bool) -> tuple[Code, int, int]:
        """Handle EndTxn. Return (code, producer id, epoch of the next transaction)."""
        entry = self.ids[name]
        complete = Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT
        repeated = tv2 and epoch == entry.last_epoch and entry.phase is not Phase.ONGOING
        # In the second protocol, preparing the end already bumps the epoch.
        current = epoch == entry.epoch and not (tv2 and entry.phase in _PREPARING)
        if not (current or repeated):
            return Code.PRODUCER_FENCED, -1, -1
        code = Code.NONE
        if entry.phase is Phase.ONGOING:
            if tv2:
                self._bump(entry, known=True)
            self._prepare(entry, commit=commit)
        elif entry.phase in _PREPARING:
            code = Code.CONCURRENT_TRANSACTIONS
        elif tv2 and not repeated and not commit:
            # All Produce requests failed, so no transaction was opened. The client cannot detect
            # this, so the abort succeeds.
            self._bump(entry, known=True)
            entry.phase = Phase.COMPLETE_ABORT
        elif entry.phase is not complete or (tv2 and not repeated):
            code = Code.INVALID_TXN_STATE
        return code, entry.producer_id, entry.epoch

    # -- offsets of groups ----------------------------------------------------------------------

    def pending_offsets(self, group: str) -> set[Where]:
        """Return the partitions for which an incomplete transaction has offsets of the group."""
        return {where for entry in self.ids.values() for where in entry.offsets.get(group, ())}

    def delete_offsets_of(self, topic: str) -> None:
        """Delete the offsets of a deleted topic, including those of open transactions.

        Source: Java `OffsetMetadataManager.onPartitionsDeleted`.
        """
        stored = [*self.committed_offsets.values()]
        for entry in self.ids.values():
            stored += entry.offsets.values()
        for offsets in stored:
            for where in [where for where in offsets if where[0] == topic]:
                del offsets[where]

    def expire_offsets(self, retention_s: float) -> int:
        """Delete offsets that are older than `retention_s` seconds, except those that an open
        transaction replaces. Brokers do this with groups that have no members, after
        offsets.retention.minutes. Return the number of deleted offsets.

        Source: Java `OffsetMetadataManager.cleanupExpiredOffsets`.
        """
        oldest = self._loop.time() - retention_s
        deleted = 0
        for group, offsets in self.committed_offsets.items():
            pending = self.pending_offsets(group)
            for where, offset in list(offsets.items()):
                if offset.committed_at < oldest and where not in pending:
                    del offsets[where]
                    deleted += 1
        return deleted

    # -- internals ------------------------------------------------------------------------------

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._cluster.loop

    def _bump(self, entry: Transactional, *, known: bool) -> None:
        if entry.epoch >= MAX_EPOCH:
            entry.producer_id, entry.epoch = self._cluster.new_producer_id()
            entry.last_epoch = -1
            return
        entry.last_epoch = entry.epoch if known else -1
        entry.epoch += 1

    def _fence(self, entry: Transactional) -> None:
        entry.epoch += 1
        entry.last_epoch = -1
        self._prepare(entry, commit=False)

    def _timed_out(self, entry: Transactional, number: int) -> None:
        if entry.phase is Phase.ONGOING and entry.number == number:
            self._fence(entry)

    def _prepare(self, entry: Transactional, *, commit: bool) -> None:
        entry.phase = Phase.PREPARE_COMMIT if commit else Phase.PREPARE_ABORT
        if self.marker_s > 0:
            when = self._loop.time() + self.marker_s
            world_at(self._loop, when, self._complete, entry, commit)
        else:
            self._complete(entry, commit)

    def _complete(self, entry: Transactional, commit: bool) -> None:
        for topic, index in sorted(entry.partitions):
            partition = self._partition(topic, index)
            if partition is not None:
                partition.log.append_marker(entry.producer_id, entry.epoch, commit=commit)
        if commit:
            for group, offsets in entry.offsets.items():
                self.committed_offsets.setdefault(group, {}).update(offsets)
        entry.partitions.clear()
        entry.offsets.clear()
        entry.history.append(commit)
        entry.phase = Phase.COMPLETE_COMMIT if commit else Phase.COMPLETE_ABORT

    def _partition(self, topic: str, index: int) -> Partition | None:
        found = self._cluster.topics.get(topic)
        return found.partitions[index] if found and index < len(found.partitions) else None
