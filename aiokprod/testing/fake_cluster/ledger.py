"""The state that a partition keeps of its idempotent producers.

Source: Java `ProducerStateManager`, `ProducerAppendInfo`, `ProducerStateEntry`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from aiokprod._errors import Code
from aiokprod.testing.fake_cluster.batches import Batch, BatchRefused

WINDOW: Final = 5
"""Number of batches remembered per producer. It limits the requests in flight to five."""


@dataclass(frozen=True, slots=True)
class Remembered:
    """A remembered batch.

    Attributes:
        timestamp_ms: highest timestamp, or the append time if the topic has LogAppendTime.
    """

    epoch: int
    base_sequence: int
    last_sequence: int
    base_offset: int
    timestamp_ms: int = -1


class _Entry:
    __slots__ = ("epoch", "window")

    def __init__(self, epoch: int, window: int) -> None:
        self.epoch = epoch
        self.window: deque[Remembered] = deque(maxlen=window)


class Ledger:
    """Epoch and last batches of each producer id in one partition.

    Attributes:
        strict: respond with UNKNOWN_PRODUCER_ID if the first sequence of an unknown producer is not
            0, like brokers before 2.4. Later versions accept any first sequence.
        by_order: respond with DUPLICATE_SEQUENCE_NUMBER to every batch that ends before the oldest
            batch in the window, even if the sequences have wrapped. Kafka 1.0.0 and 1.0.1 do so
            (`ProducerAppendInfo.isDuplicate`; changed by KAFKA-6683).
    """

    def __init__(
        self, *, strict: bool = False, window: int = WINDOW, by_order: bool = False
    ) -> None:
        self.strict = strict
        self.by_order = by_order
        self._window = window
        self._entries: dict[int, _Entry] = {}

    def duplicate_of(self, batch: Batch, restarted_at: int = 0) -> Remembered | None:
        """Return the earlier append of this batch, or None if it is not remembered.

        Args:
            restarted_at: end offset at this broker's last controlled shutdown. The snapshot of that
                shutdown contains only the newest batch of each producer (Java
                `ProducerStateManager.writeSnapshot`).
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None or entry.epoch != batch.epoch:
            return None
        wanted = batch.base_sequence, batch.last_sequence
        newest = max((one.base_offset for one in entry.window if one.base_offset < restarted_at),
                     default=0)  # fmt: skip
        for known in entry.window:
            if (known.base_sequence, known.last_sequence) == wanted and known.base_offset >= newest:
                return known
        return None

    def check(self, batch: Batch) -> None:
        """Raise BatchRefused unless the batch is the next in its producer's sequence."""
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            if self.strict and batch.base_sequence != 0:
                raise _refused(Code.UNKNOWN_PRODUCER_ID, batch, "no such producer here")
            return
        if batch.epoch < entry.epoch:
            raise _refused(Code.INVALID_PRODUCER_EPOCH, batch, f"epoch is {entry.epoch}")
        if batch.epoch > entry.epoch:
            if batch.base_sequence != 0:
                raise _refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, batch, "new epoch, want 0")
            return
        oldest = entry.window[0].base_sequence if self.by_order and entry.window else 0
        if 0 != batch.last_sequence < oldest:
            raise _refused(Code.DUPLICATE_SEQUENCE_NUMBER, batch, "older than all that is known")
        # An epoch that is known only from a marker has no batch yet and starts at sequence 0.
        expected = (entry.window[-1].last_sequence + 1) % 2**31 if entry.window else 0
        if batch.base_sequence != expected:
            raise _refused(Code.OUT_OF_ORDER_SEQUENCE_NUMBER, batch, f"want {expected}")

    def knows(self, producer_id: int) -> bool:
        """Return True if the partition has a batch or a marker of the producer."""
        return producer_id in self._entries

    def append(self, batch: Batch, base_offset: int, append_time_ms: int | None) -> None:
        """Remember an appended batch."""
        if batch.producer_id >= 0:
            self.restore(batch.producer_id, remembered(batch, base_offset, append_time_ms))

    def restore(self, producer_id: int, known: Remembered) -> None:
        """Remember a batch that was read from the log."""
        entry = self._entries.get(producer_id)
        if entry is None or known.epoch > entry.epoch:
            entry = self._entries[producer_id] = _Entry(known.epoch, self._window)
        entry.window.append(known)

    def note_marker(self, producer_id: int, epoch: int) -> None:
        """Update the epoch from a transaction marker. A higher epoch fences lower epochs."""
        entry = self._entries.get(producer_id)
        if entry is None or epoch > entry.epoch:
            self._entries[producer_id] = _Entry(epoch, self._window)

    def forget(self, producer_id: int | None = None) -> None:
        """Drop the state of one producer or of all producers, as retention does."""
        if producer_id is None:
            self._entries.clear()
        else:
            self._entries.pop(producer_id, None)

    def last_written_before(self, limit_ms: int) -> list[int]:
        """Return the producer ids whose last batch has a timestamp of `limit_ms` or earlier."""
        return [
            producer_id
            for producer_id, entry in self._entries.items()
            if entry.window and entry.window[-1].timestamp_ms <= limit_ms
        ]

    def rebuild(self, batches: Iterable[tuple[int, Remembered]]) -> None:
        """Rebuild the state from the log, after a truncation."""
        self._entries.clear()
        for producer_id, known in batches:
            self.restore(producer_id, known)


def remembered(batch: Batch, base_offset: int, append_time_ms: int | None) -> Remembered:
    """Return the ledger entry of a batch. `append_time_ms` is None for topics with CreateTime."""
    stamp = batch.max_timestamp_ms if append_time_ms is None else append_time_ms
    return Remembered(batch.epoch, batch.base_sequence, batch.last_sequence, base_offset, stamp)


def _refused(code: Code, batch: Batch, reason: str) -> BatchRefused:
    producer = f"producer {batch.producer_id} epoch {batch.epoch} sequence {batch.base_sequence}"
    return BatchRefused(code, f"{producer}: {reason}")
