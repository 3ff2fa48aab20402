"""`TaskSender`: sends the rows of one task, on the loop thread.

A sender submits the tables in order, processes their outcomes in the background, stores the
acknowledged offsets as one range per partition, and stops at the first failure.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiokprod.errors import KafkaError
from aiokprod.spark.failures import Counts, SinkError, describe
from aiokprod.spark.rows import RowError, check_partitions, with_audit_header
from aiokprod.spark.table_handoff import TableHandoff, submit_table

if TYPE_CHECKING:
    from aiokprod.producer import Producer
    from aiokprod.spark.table_handoff import SinkBatch

_FORGET_EVERY: Final = 1024
"""Number of stored batches above which those without rows of a pending table are dropped."""


@dataclass(slots=True)
class Range:
    """Acknowledged records of one partition. Offsets are None if the broker returned none."""

    first: int | None = None
    last: int | None = None
    count: int = 0

    def add(self, base: int, count: int) -> None:
        """Add a batch of `count` records that starts at offset `base`, or -1 if that is unknown."""
        self.count += count
        if base < 0:
            return
        end = base + count - 1
        self.first = base if self.first is None else min(self.first, base)
        self.last = end if self.last is None else max(self.last, end)


class TaskSender:
    """Sends the rows of one task attempt, with a producer that only this task uses.

    Attributes:
        rows, size: number of rows and size of the Arrow columns in bytes, submitted so far.
        ranges: the ranges acknowledged so far, by (topic, partition).
    """

    def __init__(
        self,
        producer: Producer[Any, Any],
        *,
        topic: str | None,
        transactional: bool,
        audit_prefix: str | None = None,
    ) -> None:
        self._audit_prefix = audit_prefix
        self._producer = producer
        self._topic = topic
        self._transactional = transactional
        self._turn = asyncio.Lock()
        self._live: deque[TableHandoff] = deque()
        self._counted: dict[int, SinkBatch] = {}
        self._partition_counts: dict[str, int] = {}
        self._settling: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self._where = topic or "this task"
        self._row: int | None = None  # number of the failed row, if known
        self._counts = Counts()  # rows of tables that are no longer pending
        self.rows = 0
        self.size = 0
        self.ranges: dict[tuple[str, int], Range] = {}

    async def submit(self, table: Any) -> None:
        """Submit a RecordBatch of `rows.project`. Returns once all rows are in batches, and waits
        while the buffer is full.

        Raises:
            SinkError: a row of this or an earlier batch failed.
        """
        async with self._turn:  # in the order of the calls
            self._check()
            if self._audit_prefix is not None:
                table = with_audit_header(table, self._audit_prefix, self.rows)
            handed = TableHandoff(self.rows)
            self._live.append(handed)
            try:
                await self._look_up(table)
                await self._check_partitions(table)
                await submit_table(self._producer, self._topic, table, handed)
            except (KafkaError, RowError) as error:
                self._note(error)
                taken = handed.appended + len(handed.refused)
                self._counts.unsent += table.num_rows - taken
            self.rows += table.num_rows
            self.size += table.nbytes
            if handed.refused:
                row, refusal = handed.first_refused()
                self._note(refusal, row=row)
            handed.complete = True
            if self._settling is None or self._settling.done():
                self._settling = asyncio.get_running_loop().create_task(self._settle())
            self._check()

    async def finish(self) -> None:
        """Wait until every row is acknowledged.

        Raises:
            SinkError: a row failed.
        """
        async with self._turn:
            self._check()
            if self._settling is not None:
                await self._producer.flush()
                await self._settling
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self.failure()

    @property
    def cause(self) -> BaseException | None:
        """The first failure, or None if there is none."""
        return self._failure

    def blame(self, error: BaseException) -> None:
        """Store the error that ended the attempt, unless an earlier error is stored."""
        if not isinstance(error, SinkError):  # the cause of a SinkError is already stored
            self._note(error)

    def failure(self, error: BaseException | None = None) -> SinkError:
        """Return the exception that fails this attempt. No row may be pending."""
        first = self._failure or error
        assert first is not None, "only failures are described"
        counts = copy.copy(self._counts)
        for handed in self._live:
            handed.count_into(counts)
        return describe(
            first, counts, where=self._where, transactional=self._transactional, row=self._row
        )

    def _note(self, error: BaseException, where: str | None = None, row: int | None = None) -> None:
        if self._failure is None:
            self._failure = error
            self._row = row
            if where is not None:
                self._where = where

    async def _look_up(self, table: Any) -> None:
        """Fetch the metadata of all new topics concurrently. Otherwise the rows, which are appended
        one by one, would wait for each new topic in turn.

        Raises:
            KafkaError: a topic has no metadata. The error is stored with the topic's first row.
        """
        if self._topic is None:
            named = table.column("topic")
            wanted = named.unique().to_pylist()
        else:
            wanted = [self._topic] if "partition" in table.schema.names else []
        new = [name for name in wanted if name not in self._partition_counts]
        if not new:
            return
        found = await asyncio.gather(
            *map(self._producer.partitions_for, new), return_exceptions=True
        )
        for name, answer in zip(new, found, strict=True):
            if not isinstance(answer, BaseException):
                self._partition_counts[name] = len(answer)
                continue
            if isinstance(answer, KafkaError):
                row = self.rows + (0 if self._topic else named.index(name).as_py())
                self._note(answer, name, row)
            raise answer

    async def _check_partitions(self, table: Any) -> None:
        if "partition" not in table.schema.names:
            return
        try:
            check_partitions(table, self._partition_counts, topic=self._topic, first_row=self.rows)
        except RowError:
            # Refresh the metadata, because a producer kept from an earlier task may have been
            # created before the partition.
            await self._producer.refresh_metadata()
            for name in list(self._partition_counts):
                self._partition_counts[name] = len(await self._producer.partitions_for(name))
            check_partitions(table, self._partition_counts, topic=self._topic, first_row=self.rows)

    # -- outcomes -------------------------------------------------------------------------------

    async def _settle(self) -> None:
        while self._live and self._live[0].complete:
            handed = self._live[0]
            await handed.wait_settled()
            bad = handed.first_failure()
            if bad is not None:
                where, row, error = bad
                self._note(error, where, row)
            if bad is not None or handed.refused:
                return  # `failure` counts the remaining rows
            for core in handed.cores:
                self._count(core)
            self._counts.acknowledged += handed.appended
            self._live.popleft()
            self._forget()

    def _count(self, core: SinkBatch) -> None:
        if core.parts is not None:
            for part in core.parts:
                self._count(part)
        elif id(core) not in self._counted:
            self._counted[id(core)] = core  # a reference, so that no other object gets this id
            found = self.ranges.setdefault((core.topic, core.partition), Range())
            found.add(core.base_offset, core.record_count)

    def _forget(self) -> None:
        """Drop batches without rows of a pending table, because they cannot be counted again."""
        if len(self._counted) > _FORGET_EVERY:
            live = {id(core) for handed in self._live for core in handed.cores}
            self._counted = {key: core for key, core in self._counted.items() if key in live}
