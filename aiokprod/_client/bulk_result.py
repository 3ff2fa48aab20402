"""`BulkResult` and `BulkProgress`: the outcomes of the records of one bulk call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from aiokprod._core.batch import handle_of
from aiokprod.errors import ConfigError, KafkaError
from aiokprod.records import TopicPartition

if TYPE_CHECKING:
    from aiokprod._client.send_many import BulkSender
    from aiokprod._core.batch import BatchCore, Delivery
    from aiokprod._core.bulk_tracker import BulkTracker
    from aiokprod.records import Header


class OffsetRange(NamedTuple):
    """The number of records of one partition, with their lowest and highest offset (None if the
    broker did not return it). The range may also contain records of other producers."""

    records: int
    first: int | None
    last: int | None


_NOTHING = OffsetRange(0, None, None)


def _choose(pick: Callable[[int, int], int], known: int | None, other: int | None) -> int | None:
    if known is None or other is None:
        return other if known is None else known
    return pick(known, other)


class BulkResult:
    """The outcomes of a `send_many` or `send_table` call, by position of the record in the call.

    Objects per record are created only on access. `offsets` and `errors` iterate over all records;
    keep their results if you need them twice. Failures of records are not raised: check `ok` or
    `errors`, or call `raise_for_errors`. If the result is deleted unread, failures are reported to
    the observer and logged.

    Attributes:
        interrupted: the error that ended the reading of a table or iterable early, or None. Later
            records were not sent and are not in the result.
    """

    __slots__ = ("_on_unretrieved", "_refused", "_tracker", "interrupted")

    def __init__(
        self,
        tracker: BulkTracker,
        refused: dict[int, KafkaError],
        interrupted: KafkaError | None = None,
        on_unretrieved: Callable[[int, KafkaError], None] | None = None,
    ) -> None:
        self._tracker = tracker
        self._refused = refused  # by position in the call
        self.interrupted = interrupted
        self._on_unretrieved = on_unretrieved  # None once the result was read

    def __del__(self) -> None:
        tell = self._on_unretrieved
        if tell is None:
            return
        failed = self._tracker.failed()
        if self._refused:
            tell(len(self._refused) + len(failed), next(iter(self._refused.values())))
        elif failed:
            error = self._tracker.position(failed[0])[2]
            assert error is not None, "a failed entry has an error"
            tell(len(failed), error)
        elif self.interrupted is not None:
            tell(0, self.interrupted)

    def __len__(self) -> int:
        return self._tracker.count + len(self._refused)

    @property
    def ok(self) -> bool:
        """True if every record was acknowledged."""
        self._on_unretrieved = None
        return self.interrupted is None and not self._refused and not self._tracker.failed()

    @property
    def errors(self) -> dict[int, KafkaError]:
        """The errors of the failed records, by position. The `outcome` of an error says whether the
        record may be in the log."""
        self._on_unretrieved = None
        found = dict(self._refused)
        positions = self._positions()
        for entry in self._tracker.failed():
            found[positions[entry]] = self._tracker.error(entry)
        return dict(sorted(found.items()))

    @property
    def offsets(self) -> list[int | None]:
        """The offset of each record; None if the record failed or the broker returned no offset."""
        offsets: list[int | None] = [None] * len(self)
        for entry, position in enumerate(self._positions()):
            offsets[position] = self._tracker.position(entry)[1]
        return offsets

    @property
    def partitions(self) -> list[int | None]:
        """The partition of each record; None if the record failed before a partition was chosen."""
        partitions: list[int | None] = [None] * len(self)
        for entry, position in enumerate(self._positions()):
            partitions[position] = self._tracker.position(entry)[0]
        return partitions

    def partition_and_offset(self, position: int) -> tuple[int | None, int | None]:
        """Return partition and offset of one record; see `partitions` and `offsets`.

        Args:
            position: position of the record in the call, 0 to ``len(self) - 1``.

        Raises:
            IndexError: there is no such record.
        """
        if position in self._refused:
            return None, None
        entry = position if not self._refused else self._positions().index(position)
        partition, offset, _ = self._tracker.position(entry)
        return partition, offset

    @property
    def ranges(self) -> dict[TopicPartition, OffsetRange]:
        """Offset ranges of the acknowledged records, by partition. O(batches), not O(records)."""
        found: dict[TopicPartition, OffsetRange] = {}
        for topic, partition, records, first, last in self._tracker.ranges():
            key = TopicPartition(topic, partition)
            known = found.get(key, _NOTHING)
            found[key] = OffsetRange(
                known.records + records,
                _choose(min, known.first, first),
                _choose(max, known.last, last),
            )
        return found

    def raise_for_errors(self) -> None:
        """Raise the error of the first failed record. Without one, raise `interrupted` if set."""
        for error in self.errors.values():
            raise error
        if self.interrupted is not None:
            raise self.interrupted

    def _positions(self) -> Sequence[int]:
        """Return the position in the call of each tracked record."""
        if not self._refused:
            return range(self._tracker.count)
        return [i for i in range(len(self)) if i not in self._refused]

    def __repr__(self) -> str:
        failed = len(self._refused) + len(self._tracker.failed())
        return f"<BulkResult {len(self)} records, {failed} failed>"


class BulkProgress:
    """Keeps the outcomes of one `send_many` or `send_table` call, even if the call is cancelled.

        progress = BulkProgress()
        try:
            async with asyncio.timeout(5):
                result = await producer.send_many("topic", values, progress=progress)
        except TimeoutError:
            result = await progress.result()
            unsent = values[len(result):]

    An object serves one call. If the call was cancelled and `result` was not called, failures of
    its records are reported to the observer and logged when the object is deleted.
    """

    __slots__ = ("_call", "_is_read")

    def __init__(self) -> None:
        self._call: BulkSender | None = None
        self._is_read = False

    def begin(self, call: BulkSender) -> None:
        """Attach the object to a call. Used by the producer."""
        if self._call is not None:
            raise ConfigError("a BulkProgress serves one call: create a new one for this call")
        self._call = call

    @property
    def position(self) -> int:
        """Number of records that have been appended to a batch or refused so far."""
        return 0 if self._call is None else self._call.position

    async def result(self) -> BulkResult:
        """Return the outcomes of the records before `position`, after the call was cancelled or
        raised an exception.

        Waits until each of these records has an outcome, at most for delivery_timeout_ms. Later
        records were not sent; if there are any, `interrupted` of the result contains the reason. If
        a record of a transaction was refused, the transaction can only be aborted.

        Raises:
            ConfigError: the call has not begun or is still running.

        Cancellation ends the wait. The method can be called again.
        """
        call = self._call
        if call is None or call.is_running:
            state = "has not begun" if call is None else "is still running"
            raise ConfigError(f"the call {state}: await or cancel it before calling result()")
        self._is_read = True
        call.tell_refused()
        await call.wait_settled()
        return call.result()

    def __del__(self) -> None:
        call = self._call
        if call is not None and call.raised and not self._is_read:
            call.abandon()

    def __repr__(self) -> str:
        return f"<BulkProgress {self.position} records>"


def check_progress(call: str, progress: Any) -> None:
    """Check that an argument is a `BulkProgress` or None."""
    if progress is not None and not isinstance(progress, BulkProgress):
        raise ConfigError(
            f"{call}: progress must be a BulkProgress() or None, not {type(progress).__name__}"
        )


class Columns:
    """The checked column arguments of a `send_many` call: lists of the same length, or None."""

    __slots__ = ("headers", "keys", "timestamps", "values")

    def __init__(
        self,
        values: Iterable[Any],
        keys: Iterable[Any] | None,
        timestamps_ms: Iterable[int | None] | None,
        headers: Iterable[Sequence[Header] | None] | None,
    ) -> None:
        self.values = _column("values", values)
        size = len(self.values)
        self.keys = _column("keys", keys, size)
        self.timestamps = _column("timestamps_ms", timestamps_ms, size)
        self.headers = _column("headers", headers, size)

    def row(self, i: int) -> tuple[Any, Any, int | None, Sequence[Header] | None]:
        """Return (value, key, timestamp_ms, headers) of one record."""
        return (
            self.values[i],
            None if self.keys is None else self.keys[i],
            None if self.timestamps is None else self.timestamps[i],
            None if self.headers is None else self.headers[i],
        )


def _column(name: str, column: Iterable[Any] | None, size: int | None = None) -> Any:
    if column is None:
        if size is None:
            raise ConfigError(f"{name} must be an iterable of records' {name}, not None")
        return None
    if isinstance(column, (str, bytes, bytearray, memoryview)) or not isinstance(column, Iterable):
        raise ConfigError(
            f"{name} must be a list with one entry per record, not {type(column).__name__}"
        )
    rows = list(column)  # a copy, because the caller may change the list while the call waits
    if size is not None and len(rows) != size:
        raise ConfigError(f"{name} has {len(rows)} entries, values has {size}: give one each")
    return rows


async def wait_settled(cores: Iterable[BatchCore]) -> None:
    """Wait until every batch, including the parts of split batches, was acknowledged or has failed.

    Cancellation ends the wait; the records in batches are still sent.
    """
    for core in cores:
        delivery = handle_of(core)
        if not delivery.done():
            # Do not await the delivery directly: cancellation would withdraw its record.
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            delivery.add_done_callback(partial(_set, settled))
            await settled
        if core.parts is not None:
            await wait_settled(core.parts)


def _set(future: asyncio.Future[None], delivery: Delivery) -> None:
    if not future.done():
        future.set_result(None)
