"""A partition's log: stored records, offsets, high watermark, loss of an unreplicated tail."""

from __future__ import annotations

from dataclasses import dataclass

from aiokprod.testing.fake_cluster.batches import Batch, Header
from aiokprod.testing.fake_cluster.ledger import WINDOW, Ledger, remembered


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record in a log. `sequence` is -1 without a producer id."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    producer_id: int
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch in a log.

    Attributes:
        marker: kind of a transaction marker (True: commit, False: abort), or None if the batch
            contains data.
        stored_at: loop time of the append, s. Used only by tests.
    """

    base_offset: int
    batch: Batch
    append_time_ms: int | None
    marker: bool | None = None
    stored_at: float = 0.0

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + (1 if self.marker is not None else len(self.batch.records))

    def records(self) -> list[StoredRecord]:
        """Return the records of the batch with their offsets and final timestamps."""
        batch = self.batch
        return [
            StoredRecord(
                offset=self.base_offset + index,
                timestamp_ms=(
                    record.timestamp_ms if self.append_time_ms is None else self.append_time_ms
                ),
                key=record.key,
                value=record.value,
                headers=record.headers,
                producer_id=batch.producer_id,
                epoch=batch.epoch,
                sequence=-1 if batch.base_sequence < 0 else (batch.base_sequence + index) % 2**31,
            )
            for index, record in enumerate(batch.records)
        ]


class PartitionLog:
    """The log of one partition.

    Attributes:
        batches: stored batches, oldest first.
        start_offset: log start offset.
        high_watermark: the offset below which all in-sync replicas have the records.
        ledger: state of idempotent producers.
        removed: batches that retention deleted, oldest first. Used only by checks.
        truncated: batches that were lost with their leader before they were replicated.
    """

    def __init__(self, *, strict_ledger: bool = False, window: int = WINDOW) -> None:
        self.batches: list[StoredBatch] = []
        self.start_offset = 0
        self.high_watermark = 0
        self.ledger = Ledger(strict=strict_ledger, window=window)
        self.removed: list[StoredBatch] = []
        self.truncated: list[StoredBatch] = []

    @property
    def end_offset(self) -> int:
        """Offset of the next record."""
        return self.batches[-1].next_offset if self.batches else self.start_offset

    def append(self, batch: Batch, append_time_ms: int | None, now: float = 0.0) -> int:
        """Append a valid batch and return its base offset."""
        base_offset = self.end_offset
        self.batches.append(StoredBatch(base_offset, batch, append_time_ms, stored_at=now))
        self.ledger.append(batch, base_offset, append_time_ms)
        return base_offset

    def append_marker(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """Append a transaction marker of a producer. All replicas have the marker immediately."""
        batch = Batch("none", producer_id, epoch, -1, True, -1, 78, ())
        self.batches.append(StoredBatch(self.end_offset, batch, None, commit))
        self.ledger.note_marker(producer_id, epoch)
        self.high_watermark = self.end_offset

    def has_open_transaction(self, producer_id: int) -> bool:
        """Return True if the producer has written transactional batches since its last marker.

        Source: Java `ProducerStateEntry.currentTxnFirstOffset`, which `ProducerAppendInfo` checks.
        """
        for stored in reversed(self.batches):
            if stored.batch.producer_id == producer_id:
                return stored.marker is None and stored.batch.is_transactional
        return False

    @property
    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, or the high watermark if there is none."""
        first: dict[int, int] = {}
        for stored in self.batches:
            if stored.marker is not None:
                first.pop(stored.batch.producer_id, None)
            elif stored.batch.is_transactional:
                first.setdefault(stored.batch.producer_id, stored.base_offset)
        return min([self.high_watermark, *first.values()])

    def committed(self) -> list[StoredRecord]:
        """Return the records that a read_committed consumer receives, ordered by offset."""
        stable = self.last_stable_offset
        verdicts: dict[int, bool] = {}
        visible: list[StoredBatch] = []
        for stored in reversed(self.batches):
            batch = stored.batch
            if stored.marker is not None:
                verdicts[batch.producer_id] = stored.marker
            elif stored.base_offset < stable and (
                not batch.is_transactional or verdicts.get(batch.producer_id, False)
            ):
                visible.append(stored)
        return [record for stored in reversed(visible) for record in stored.records()]

    def truncate(self, offset: int) -> int:
        """Drop the batches from `offset` on. Return the number of dropped records."""
        end = self.end_offset
        self.truncated += [stored for stored in self.batches if stored.next_offset > offset]
        self.batches = [stored for stored in self.batches if stored.next_offset <= offset]
        self.high_watermark = min(self.high_watermark, self.end_offset)
        self._rebuild_ledger()
        return end - self.end_offset

    def delete_before(self, offset: int, *, forget_producers: bool = True) -> None:
        """Delete whole batches below `offset`, as retention does. With `forget_producers`, drop
        the state of producers that have no other batches."""
        end = self.end_offset
        self.removed += [stored for stored in self.batches if stored.next_offset <= offset]
        self.batches = [stored for stored in self.batches if stored.next_offset > offset]
        self.start_offset = self.batches[0].base_offset if self.batches else end
        if forget_producers:
            self._rebuild_ledger()

    def expire_producers(self, limit_ms: int) -> list[int]:
        """Drop the state of producers without an open transaction whose last batch has a timestamp
        of `limit_ms` or earlier. Return their ids.

        Source: Java `ProducerStateManager.isProducerExpired`. It compares the largest timestamp in
        the batch, which clients may set, instead of the time of the append.
        """
        expired = [
            producer_id
            for producer_id in self.ledger.last_written_before(limit_ms)
            if not self.has_open_transaction(producer_id)
        ]
        for producer_id in expired:
            self.ledger.forget(producer_id)
        return expired

    def records(self) -> list[StoredRecord]:
        """Return all records in the log, ordered by offset."""
        return [record for stored in self.batches for record in stored.records()]

    def _rebuild_ledger(self) -> None:
        self.ledger.rebuild(
            (
                stored.batch.producer_id,
                remembered(stored.batch, stored.base_offset, stored.append_time_ms),
            )
            for stored in self.batches
            if stored.batch.producer_id >= 0 and stored.marker is None
        )
        for stored in self.batches:
            if stored.marker is not None:
                self.ledger.note_marker(stored.batch.producer_id, stored.batch.epoch)
