"""`aiokprod produce`: reads records in a thread and sends them with `send_many`."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiokprod._cli.inputs import SHOWN, Block, InputError, Place, Skipped, blocks
from aiokprod._cli.outcomes import describe
from aiokprod._cli.progress import ProgressLine
from aiokprod._client.bulk_result import BulkProgress, BulkResult
from aiokprod.errors import ConfigError, KafkaError
from aiokprod.producer import Producer

CALL_BYTES: Final = 8 << 20
"""Bytes of values after which no further block is added to a call of `send_many`."""
READ_AHEAD: Final = 16
"""Maximum number of blocks that wait to be sent."""
SHOWN_ERRORS: Final = 10
"""Maximum number of failed records that are described individually."""
LATE_S: Final = 1.0
"""Seconds that `close` may take after the drain."""


@dataclass(slots=True)
class ProduceReport:
    """The result of a run.

    Attributes:
        acknowledged: number of records in the log.
        unacknowledged: number of records sent with acks=0, which may or may not be in the log.
        failed: number of failed records by outcome: not_sent, rejected, unknown.
        bytes: size of the values in calls whose records were acknowledged, or sent with acks=0.
        seconds: time from the first read to the last outcome.
        complete_to: the last position up to which every record is acknowledged, or None.
        errors: positions and errors of the first failed records.
        skipped_count: number of malformed records in the input, which were not sent.
        skipped: the first malformed records.
        problem: the reason why the input was not read to its end, or None.
        interrupted: the signal that ended the run, or None.
    """

    acknowledged: int = 0
    unacknowledged: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    seconds: float = 0.0
    complete_to: Place | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    skipped_count: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    problem: str | None = None
    interrupted: str | None = None

    @property
    def ok(self) -> bool:
        """True if every record of the whole input was acknowledged, or sent with acks=0."""
        complete = self.problem is None and self.interrupted is None
        return complete and not self.failed and not self.skipped_count

    def as_dict(self) -> dict[str, Any]:
        """Return the report for `--report json`."""
        place = self.complete_to
        return {
            "acknowledged": self.acknowledged,
            "unacknowledged": self.unacknowledged,
            "failed": {name: self.failed[name] for name in ("not_sent", "rejected", "unknown")},
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "acknowledged_up_to": None
            if place is None
            else {"file": place.file, "record": place.records, "byte": place.bytes},
            "errors": self.errors,
            "skipped": {
                "count": self.skipped_count,
                "first": [
                    {"file": each.file, "record": each.record, "text": each.text}
                    for each in self.skipped
                ],
            },
            "problem": self.problem,
            "interrupted": self.interrupted,
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for `--report text`."""
        count = self.acknowledged or self.unacknowledged
        rate = count / self.seconds if self.seconds else 0.0
        done = "sent, without acknowledgements (acks=0)," if self.unacknowledged else "acknowledged"
        yield (
            f"{count:,} records {done} in {self.seconds:.2f} s "
            f"({rate:,.0f} records/s, {self.bytes / 1e6 / (self.seconds or 1):,.1f} MB/s)"
        )
        place = self.complete_to
        if not self.ok:
            for name, count in sorted(self.failed.items()):
                yield f"{count:,} failed, {_MEANING[name]}"
            for error in self.errors:
                yield f"  {error['file']}, record {error['record']}: {error['text']}"
            if sum(self.failed.values()) > len(self.errors) > 0:
                yield "  ..."
            if self.skipped_count:
                yield f"{self.skipped_count:,} skipped, not in the log: they are malformed"
                for each in self.skipped:
                    yield f"  {each.text}"
                if self.skipped_count > len(self.skipped):
                    yield "  ..."
            if self.problem:
                yield self.problem
            if self.interrupted:
                yield f"stopped by {self.interrupted}"
            yield (
                f"everything up to record {place.records:,} of {place.file} is in the log"
                if place
                else self._without_prefix()
            )

    def _without_prefix(self) -> str:
        if self.acknowledged:
            return (
                "the first record of the input is not among the acknowledged ones: there is no "
                "record up to which everything is in the log"
            )
        if self.failed["unknown"] or self.unacknowledged:
            return "no record of the input is known to be in the log"
        return "no record of the input is in the log"


_MEANING: Final = {
    "not_sent": "not in the log: they were not sent",
    "rejected": "not in the log: the broker rejected them",
    "unknown": "may be in the log",
}


class BlockReader:
    """Reads blocks in a thread. At most `READ_AHEAD` blocks wait for `take`."""

    def __init__(self, options: Namespace) -> None:
        self._blocks = blocks(options)
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Block | None] = asyncio.Queue()
        self._free = threading.Semaphore(READ_AHEAD)
        self._ended = False
        self._stopped = False
        self.problem: Exception | None = None
        # A daemon thread, because a read from a terminal or a pipe cannot be interrupted.
        self._thread = threading.Thread(target=self._read, name="aiokprod-input", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for block in self._blocks:
                self._free.acquire()
                if self._stopped:
                    return
                self._put(block)
        except (InputError, KafkaError) as error:
            self.problem = error
        except Exception as error:
            self.problem = InputError(f"the input cannot be read: {type(error).__name__}: {error}")
        finally:
            self._put(None)

    def _put(self, block: Block | None) -> None:
        with contextlib.suppress(RuntimeError):  # raised if the command has closed the loop
            self._loop.call_soon_threadsafe(self._queue.put_nowait, block)

    async def take(self) -> list[Block]:
        """Wait for the next block and return all available blocks, up to about `CALL_BYTES`. Return
        an empty list at the end of the input."""
        taken: list[Block] = []
        size = 0
        while not self._ended and (not taken or (size < CALL_BYTES and not self._queue.empty())):
            block = await self._queue.get()
            if block is None:
                self._ended = True
                break
            self._free.release()
            taken.append(block)
            size += size_of(block)
            if block.table is not None:
                break
        return taken

    def stop(self) -> None:
        """Stop reading."""
        self._stopped = True
        self._free.release()


def size_of(block: Block) -> int:
    """Return the size of a block's values in bytes, or that of its table."""
    if block.table is not None:
        size: int = block.table.nbytes
        return size
    return sum(len(value) for value in block.values or () if value)


class ProduceRun:
    """One run of the command."""

    def __init__(self, options: Namespace, producer: Producer[bytes, bytes]) -> None:
        self._options = options
        self._producer = producer
        self._headers = headers_of(options)
        self._acknowledged = producer._config.required_acks != 0
        self._call: asyncio.Task[BulkResult] | None = None
        self._stop = asyncio.Event()
        self.report = ProduceReport()

    def interrupt(self, number: signal.Signals) -> None:
        """Stop reading and appending records. `run` waits for the outcomes of appended records."""
        self.report.interrupted = number.name
        self._stop.set()
        if self._call is not None:
            self._call.cancel()

    async def run(self, total: int | None) -> ProduceReport:
        """Send all records of the input.

        Args:
            total: size of the input in bytes, for the progress line; None if unknown.
        """
        report = self.report
        line = ProgressLine(total, quiet=self._options.quiet)
        reader = BlockReader(self._options)
        began = time.monotonic()
        try:
            while not self._stop.is_set():
                taking = asyncio.ensure_future(reader.take())
                stopping = asyncio.ensure_future(self._stop.wait())
                await asyncio.wait({taking, stopping}, return_when=asyncio.FIRST_COMPLETED)
                stopping.cancel()
                if not taking.done():
                    taking.cancel()
                    break
                taken = taking.result()
                if not taken:
                    break
                if any(block.count for block in taken):
                    await self._send(taken)
                self._count_skipped(taken)
                report.seconds = time.monotonic() - began
                line.show(report.acknowledged + report.unacknowledged, report.bytes)
                if report.failed and not (self._options.keep_going or self._stop.is_set()):
                    report.problem = "stopped after the first failed records; --keep-going reads on"
                    break
        finally:
            reader.stop()
            line.end()
        if reader.problem is not None and report.problem is None:
            report.problem = str(reader.problem)
        report.seconds = time.monotonic() - began
        return report

    async def _send(self, taken: Sequence[Block]) -> None:
        progress = BulkProgress()
        result: BulkResult | None
        self._call = asyncio.ensure_future(self._sending(taken, progress))
        try:
            result = await self._call
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            result = await self._drained(progress)
        except KafkaError as error:
            self.report.failed[error.outcome.value] += sum(block.count for block in taken)
            self._note(place_of(taken, 0), error)
            return
        finally:
            self._call = None
        self._count(taken, result)

    async def _sending(self, taken: Sequence[Block], progress: BulkProgress) -> BulkResult:
        options, producer = self._options, self._producer
        if taken[0].table is not None:
            return await producer.send_table(
                options.topic, taken[0].table, value_column=options.value_column, progress=progress
            )
        values = [value for block in taken for value in block.values or ()]
        keys: list[bytes | None] | None = None
        if any(block.keys is not None for block in taken):
            keys = []
            for block in taken:
                keys += block.keys if block.keys is not None else [None] * block.count
        return await producer.send_many(
            options.topic,
            values,
            keys=keys,
            headers=[self._headers] * len(values) if self._headers else None,
            partition=options.partition,
            progress=progress,
        )

    async def _drained(self, progress: BulkProgress) -> BulkResult | None:
        """Return the outcomes of the records that were appended before the signal arrived. Records
        without an outcome after `--drain` seconds fail."""
        if progress.position == 0:
            return None
        try:
            async with asyncio.timeout(self._options.drain):
                return await progress.result()
        except TimeoutError:
            await self._producer.close(0)
            return await progress.result()

    def _count(self, taken: Sequence[Block], result: BulkResult | None) -> None:
        if result is None:
            return
        report = self.report
        errors = result.errors
        settled = len(result)
        for error in errors.values():
            report.failed[error.outcome.value] += 1
        if self._acknowledged:
            report.acknowledged += settled - len(errors)
        else:
            report.unacknowledged += settled - len(errors)
        report.bytes += sum(map(size_of, taken)) * settled // sum(block.count for block in taken)
        for position, error in list(errors.items())[: SHOWN_ERRORS - len(report.errors)]:
            self._note(place_of(taken, position), error)
        good = min(errors, default=settled)
        for index, block in enumerate(taken):
            if block.skipped_count:
                good = min(good, sum(before.count for before in taken[:index]))
                break
        is_prefix = not report.failed or sum(report.failed.values()) == len(errors)
        if good and is_prefix and self._acknowledged and not report.skipped_count:
            report.complete_to = place_of(taken, good - 1)

    def _count_skipped(self, taken: Sequence[Block]) -> None:
        report = self.report
        for block in taken:
            report.skipped_count += block.skipped_count
            report.skipped += block.skipped[: SHOWN - len(report.skipped)]

    def _note(self, place: Place, error: KafkaError) -> None:
        self.report.errors.append({"file": place.file, "record": place.records, **describe(error)})


def place_of(taken: Sequence[Block], position: int) -> Place:
    """Return the position after a record: file and number, and the number of bytes if the record is
    the last record of a block."""
    for block in taken:
        if position < block.count:
            if block.numbers is not None:
                number = block.numbers[position]
            else:
                number = block.end.records - block.count + position + 1
            ends = position == block.count - 1
            return Place(block.end.file, number, block.end.bytes if ends else None)
        position -= block.count
    raise IndexError(position)


def headers_of(options: Namespace) -> list[tuple[str, bytes]]:
    """Return the headers that the options `-H` define."""
    headers = []
    for text in options.header:
        name, separator, value = text.partition("=")
        if not separator:
            raise ConfigError(f"-H {name}: write NAME=VALUE")
        headers.append((name, value.encode()))
    return headers


def total_bytes(options: Namespace) -> int | None:
    """Return the size of all files; None if it is unknown or not the size of the values."""
    if options.format in ("parquet", "csv") or not options.files or "-" in options.files:
        return None
    with contextlib.suppress(OSError):
        return sum(Path(name).stat().st_size for name in options.files)
    return None


async def produce(options: Namespace, producer: Producer[bytes, bytes]) -> ProduceReport:
    """Send the input and return the report. Signals end the run early."""
    run = ProduceRun(options, producer)
    loop = asyncio.get_running_loop()
    caught = []
    if sys.platform != "win32":
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, run.interrupt, number)
            caught.append(number)
    try:
        return await run.run(total_bytes(options))
    finally:
        for number in caught:
            loop.remove_signal_handler(number)
        await producer.close(LATE_S if run.report.interrupted else None)
