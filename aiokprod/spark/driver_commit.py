"""The driver's part of the transactions. It checks a batch, commits or aborts the prepared
transactions of its tasks, and fences orphaned transactions.

Invariants: EndTxn(commit) is sent only after every transaction of the attempt was found open. If an
earlier attempt at the batch was committed in part, the batch must also have the same rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from aiokprod import GroupMetadata
from aiokprod._client.cluster_client import (
    ClusterClient,
    EndTransaction,
    ongoing_transactions,
)
from aiokprod._log_fields import log_fields
from aiokprod.errors import Code, KafkaError, ProducerFenced, UnsupportedVersion, error_code
from aiokprod.producer import Producer
from aiokprod.spark.failures import CheckpointRolledBack, NonDeterministicReplay, rolled_back
from aiokprod.spark.markers import (
    Marker,
    UnstableMarker,
    driver_id,
    is_task_id,
    read_marker,
    stream_id,
    task_id,
)
from aiokprod.spark.options import DEFAULT_TRANSACTION_TIMEOUT_MS, EXACTLY_ONCE, FAIL
from aiokprod.spark.orphans import fence_transaction
from aiokprod.spark.verification import TIMED_OUT, lost_transactions, too_short
from aiokprod.spark.worker_loop import loop_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiokprod.spark.commit_messages import Prepared
    from aiokprod.spark.options import SinkOptions

logger = logging.getLogger("aiokprod.spark")

_AT_ONCE: Final = 8
"""Maximum number of concurrent EndTxn requests."""
_SECONDS: Final = 120.0
"""Time limit for all requests of one commit, s."""
_GONE: Final = frozenset(
    {Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_TXN_STATE}
)
"""Codes of a transaction that is no longer open. Its timeout or a newer InitProducerId aborted it.
"""

_REPLAYED: Final = "Spark replays the batch; tasks that are committed are skipped then"
_PARTS: Final = (
    "Tasks of this job may remain committed. Read the topic with read_committed before you run "
    "the job again, because a new run writes all rows again"
)

_AGAIN: Final = "Run the job again"
_OLD_BROKERS: Final = (
    "aiokprod: brokers before Kafka 3.0 cannot report whether transactions are still open "
    "(DescribeTransactions, KIP-664): if one of a job's tasks timed out, the job may be committed "
    "in part"
)

_RIVAL: Final = (
    "Another driver runs this query: two queries share a copied checkpoint, or one "
    "transactionalIdPrefix and query_id"
)
_NOTHING: Final = object()

_UNSTABLE: Final = 2.0
"""Seconds to wait until another process ends the transaction in which it writes a decision."""
_SWEEP_EVERY: Final = 10.0
"""Seconds between two searches for orphaned transactions."""

_unverified: weakref.WeakSet[ClusterClient] = weakref.WeakSet()
"""Cluster clients for which the warning about brokers before 3.0 was logged."""
_warned: set[tuple[SinkOptions, str]] = set()
"""(options of a stream, kind of warning) for each warning that was logged."""
_swept: dict[str, float] = {}
"""Loop time at which this driver process last searched for orphaned transactions, by query."""


class CommitFailed(RuntimeError):
    """A transaction was not committed. Spark replays the batch, and the replay skips the tasks that
    are committed."""


class TransactionEnder:
    """Commits or aborts one batch."""

    def __init__(self, options: SinkOptions, batch_id: int | None) -> None:
        self._options = options
        self._batch_id = batch_id
        self._thread = loop_thread(options.loop)
        self._exactly_once = options.delivery == EXACTLY_ONCE
        self._seen: object = _NOTHING  # the previous decision, as it was first read

    def _cluster_client(self) -> AbstractAsyncContextManager[ClusterClient]:
        async def make() -> ClusterClient:
            return ClusterClient(self._options.producer_config())

        return self._thread.borrowed(("client", self._options.kafka), make, keep=True)

    async def commit(self, tasks: Sequence[Prepared]) -> None:
        """Make all rows of the batch visible.

        Raises:
            NonDeterministicReplay: the batch differs from an attempt that was committed in part;
                nothing more is committed.
            CheckpointRolledBack: Kafka has a later batch; nothing is committed.
            CommitFailed: a transaction was fenced or timed out.
            KafkaError: the brokers sent no definite response in time.
        """
        self._warn(tasks)
        async with self._cluster_client() as client:
            deadline = client.loop.time() + _SECONDS
            before = None
            await self._verify(client, tasks, deadline)
            if self._exactly_once and tasks:
                before = await self._decide(client, tasks, deadline)
                # Verify again: a transaction may have ended while the decision was written.
                await self._verify(client, tasks, deadline)
            await self._end_all(client, tasks, deadline, commit=True)
            if self._exactly_once and tasks:
                await self._fence_orphans(client, tasks, before, deadline)

    async def abort(self, tasks: Sequence[Prepared]) -> None:
        """Abort the transactions of the batch that are not committed."""
        async with self._cluster_client() as client:
            await self._end_all(client, tasks, client.loop.time() + 30.0, commit=False)

    def _warn(self, tasks: Sequence[Prepared]) -> None:
        """Warn once per job; for a stream, once in each process that commits its batches."""
        if len(tasks) > self._options.max_transactional_tasks and self._first("tasks"):
            logger.warning(
                "%s tasks, each with a separate transaction: coalesce(n) the stream, or raise "
                "maxTransactionalTasks (%s)",
                len(tasks), self._options.max_transactional_tasks,
                extra=log_fields("spark_many_transactions", tasks=len(tasks)),
            )  # fmt: skip
        timeout = self._options.kafka.get("transaction.timeout.ms", DEFAULT_TRANSACTION_TIMEOUT_MS)
        longest = max((task.seconds for task in tasks), default=0.0)
        if longest * 2000 > int(timeout) and self._first("timeout"):
            logger.warning(
                "a task took %.0f s, more than half of kafka.transaction.timeout.ms=%s: raise it, "
                "or make the batches smaller", longest, timeout,
                extra=log_fields("spark_slow_task", seconds=longest),
            )  # fmt: skip

    def _first(self, kind: str) -> bool:
        """Return False if this kind of warning was logged for an earlier batch of the stream."""
        known = (self._options, kind)
        if self._batch_id is None:
            return True
        first = known not in _warned
        _warned.add(known)
        return first

    # -- verifying ------------------------------------------------------------------------------

    async def _verify(
        self, client: ClusterClient, tasks: Sequence[Prepared], deadline: float
    ) -> None:
        """Raise CommitFailed unless every transaction of this attempt can still be committed."""
        try:
            lost = await lost_transactions(client, _open(tasks), deadline)
        except UnsupportedVersion:
            if not self._exactly_once and client not in _unverified:
                _unverified.add(client)
                logger.warning(_OLD_BROKERS, extra=log_fields("spark_unverified_commit"))
            return
        if lost:
            task, reason = lost[0]
            more = "" if len(lost) == 1 else f" (and {len(lost) - 1} more)"
            raise CommitFailed(
                f"aiokprod: transaction {task.transactional_id} of task {task.partition}{more} "
                f"cannot be committed: {reason}. Nothing of this attempt was committed. "
                f"{self._next_step(tasks)}"
            )

    def _next_step(self, tasks: Sequence[Prepared]) -> str:
        timeout = self._options.producer_config().transaction_timeout_ms
        longest = max(task.seconds for task in tasks)
        return too_short(longest, timeout) or (
            f"The longest task took {longest:.1f} s, and option kafka.transaction.timeout.ms is "
            f"{timeout}: it must cover the time from the first row of a task to the commit of all. "
            f"{_REPLAYED if self._exactly_once else _AGAIN}"
        )

    # -- deciding -------------------------------------------------------------------------------

    async def _decide(
        self, client: ClusterClient, tasks: Sequence[Prepared], deadline: float
    ) -> Marker | None:
        """Check a replay, or write the decision of a batch. Return the previous decision."""
        group = driver_id(self._sid(tasks))
        config = self._options.producer_config(transactional_id=group)

        async def make() -> Producer[Any, Any]:
            producer: Producer[Any, Any] = Producer(config)
            try:
                await producer.start()  # fences other drivers and aborts their transactions
            except BaseException:
                await producer.close(0)
                raise
            return producer

        key = ("decisions", group, self._options.kafka)
        # Close a kept producer of this query that has other options. It has the same transactional
        # id, so the two producers would fence each other.
        await self._thread.drop(
            lambda kept: isinstance(kept, tuple) and kept[:2] == key[:2] and kept != key
        )
        # Spark may commit from several processes. If another process has written a decision since
        # the last use of the kept producer, that producer is fenced. It also cannot end the
        # transaction of a dead process. Both cases need a new producer. Transactions of tasks are
        # not affected.
        try:
            if key in self._thread.kept:
                with contextlib.suppress(ProducerFenced, UnstableMarker):
                    async with self._thread.borrowed(key, make, keep=True) as producer:
                        return await self._judge(client, producer, tasks, deadline, _UNSTABLE)
            async with self._thread.borrowed(key, make, keep=True) as producer:
                return await self._judge(client, producer, tasks, deadline, None)
        except ProducerFenced as error:
            raise CommitFailed(f"aiokprod: {error}. {_RIVAL}") from error

    async def _judge(
        self,
        client: ClusterClient,
        producer: Producer[Any, Any],
        tasks: Sequence[Prepared],
        deadline: float,
        unstable_for: float | None,
    ) -> Marker | None:
        """Do the work of `_decide` with a producer that has the driver's transactional id. For
        `unstable_for`, see `read_marker`.

        Raises:
            ProducerFenced, UnstableMarker: another process uses, or used, the driver's id.
            NonDeterministicReplay, CheckpointRolledBack, CommitFailed: the batch must not be
                committed.
        """
        assert self._batch_id is not None, "streams have batch ids"
        sid = self._sid(tasks)
        now = Marker(
            self._batch_id,
            sum(task.rows for task in tasks),
            sum(task.row_hash for task in tasks) % 2**64,
            len(tasks),
        )
        before = await read_marker(client, driver_id(sid), deadline, unstable_for)
        if self._seen not in (_NOTHING, before):
            raise CommitFailed(f"aiokprod: batch {now.batch_id} was decided again. {_RIVAL}")
        self._seen = before
        if before is not None and before.batch_id > now.batch_id:
            raise CheckpointRolledBack(
                f"aiokprod: {rolled_back(before.batch_id, now.batch_id)}. Nothing of this attempt "
                "was committed"
            )
        if any(task.skipped for task in tasks):
            _check_replay(before, now, tasks)
            return before
        if before is not None and before.batch_id == now.batch_id:
            unmarked = await _check_dropped(client, sid, before, now, deadline)
            unmarked |= {task.partition for task in tasks if task.unmarked}
            if now.batch_id > 0 and any(index < before.tasks for index in unmarked):
                self._maybe_expired(now, unmarked)
            now = replace(now, version=before.version + 1)
        topics = {topic for task in tasks for topic in task.marked}
        if topics:  # the decision is written to every topic that has a marker
            if before is None and now.batch_id > 0:
                self._nothing_recorded(now)
            await self._note(producer, topics, now, driver_id(sid))
        return before

    async def _note(
        self, producer: Producer[Any, Any], topics: set[str], decision: Marker, group: str
    ) -> None:
        async with producer.transaction() as txn:
            await txn.send_offsets(decision.offsets(topics), GroupMetadata(group))

    def _nothing_recorded(self, now: Marker) -> None:
        """Warn or fail because there is no decision of an earlier batch. Either this is the first
        batch with exactly_once or with rows, or Kafka has deleted the decision. In the second case,
        an earlier attempt may have been committed in part."""
        text = (
            f"aiokprod: batch {now.batch_id} is not the first one, but Kafka has no record of an "
            "earlier batch. This is expected if the query was not exactly_once before, or had no "
            "rows. If the query was idle for longer than offsets.retention.minutes of the brokers, "
            "Kafka has deleted the records of earlier commits, and if its last run ended within a "
            "batch, rows of that batch may be stored twice"
        )
        self._missing(text)

    def _maybe_expired(self, now: Marker, unmarked: set[int]) -> None:
        """Warn or fail because an earlier attempt at the batch was decided, but Kafka has no marker
        of some of its tasks. Markers are older than the decision, so they expire first."""
        self._missing(
            f"aiokprod: an earlier attempt at batch {now.batch_id} was recorded, but Kafka has no "
            f"marker of task {min(unmarked)}. This is expected if the task had no rows until "
            "then. If the query was idle for about offsets.retention.minutes of the brokers, or "
            "a topic was deleted, the marker no longer exists, and if the earlier attempt was "
            "committed in part, rows of it may be stored twice"
        )

    def _missing(self, text: str) -> None:
        """Warn, or raise NonDeterministicReplay if the option missingMarkers is "fail"."""
        if self._options.missing_markers == FAIL:
            raise NonDeterministicReplay(
                f"{text}. Nothing of this attempt was committed. If that is not so, set "
                "option('missingMarkers', 'warn') until a batch is committed"
            )
        logger.warning("%s", text, extra=log_fields("spark_markers_missing"))

    def _sid(self, tasks: Sequence[Prepared]) -> str:
        prefix, query_id = self._options.transactional_id_prefix, tasks[0].query_id
        assert prefix is not None, "checked with the options"
        assert query_id is not None, "checked in the task"
        return stream_id(prefix, query_id)

    # -- ending ---------------------------------------------------------------------------------

    async def _end_all(
        self, client: ClusterClient, tasks: Sequence[Prepared], deadline: float, *, commit: bool
    ) -> None:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(task: Prepared) -> None:
            async with turns:
                await self._end(client, task, deadline, commit=commit)

        open_ones = _open(tasks)
        if commit:
            # Commit the first task alone. Every attempt at the batch has this task. If a later
            # attempt has fenced it, this commit fails, and nothing of this attempt is committed.
            open_ones.sort(key=lambda task: task.partition)
            await asyncio.gather(*map(one, open_ones[:1]))
            open_ones = open_ones[1:]
        results = await asyncio.gather(*map(one, open_ones), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _end(
        self, client: ClusterClient, task: Prepared, deadline: float, *, commit: bool
    ) -> None:
        end = EndTransaction(
            task.transactional_id, task.producer_id, task.epoch,
            commit=commit, second_protocol=task.second_protocol,
        )  # fmt: skip
        where = f"aiokprod: transaction {task.transactional_id} of task {task.partition}"
        next_step = _REPLAYED if self._exactly_once else _PARTS
        try:
            code = await end.send(client, deadline)
        except BaseException as error:  # interrupted, or no definite response
            if commit and end.in_doubt:
                why = str(error) or "the commit was interrupted"
                logger.warning(
                    "%s may be committed: %s. %s", where, why, next_step,
                    extra=log_fields(
                        "spark_commit_unknown", error=error, transactional_id=task.transactional_id
                    ),
                )  # fmt: skip
            raise
        if code == Code.NONE or (not commit and code in _GONE):
            return  # aborting a committed or fenced transaction changes nothing
        found = error_code(code)
        # An earlier request may have been executed in spite of this error.
        if end.in_doubt:
            what, why = "may be committed", found.text
        else:
            what, why = "was not committed", TIMED_OUT if code in _GONE else found.text
        raise CommitFailed(f"{where} {what}: {found.name}: {why}. {next_step}")

    # -- orphans --------------------------------------------------------------------------------

    async def _fence_orphans(
        self,
        client: ClusterClient,
        tasks: Sequence[Prepared],
        before: Marker | None,
        deadline: float,
    ) -> None:
        """Abort the transactions of tasks that this batch no longer has. Otherwise they would block
        read_committed consumers until they time out. A failure is only logged, because no data are
        lost."""
        sid = self._sid(tasks)
        try:
            orphans = set()
            if before is not None:
                orphans = {task_id(sid, index) for index in range(len(tasks), before.tasks)}
            now = client.loop.time()
            if now - _swept.get(sid, -_SWEEP_EVERY) >= _SWEEP_EVERY:
                open_ids = await ongoing_transactions(client, deadline)
                ours = {task.transactional_id for task in tasks}
                orphans |= {tid for tid in open_ids if is_task_id(tid, sid)} - ours
                _swept[sid] = now
            for orphan in sorted(orphans):
                logger.info(
                    "ending the transaction that task %s may have left open", orphan,
                    extra=log_fields("spark_orphan_ended", transactional_id=orphan),
                )  # fmt: skip
                await fence_transaction(client, orphan, deadline)
        except KafkaError as error:
            logger.warning(
                "orphaned transactions of %s are left to their timeout: %s", sid, error,
                extra=log_fields("spark_orphans_left", error=error),
            )  # fmt: skip


def _open(tasks: Sequence[Prepared]) -> list[Prepared]:
    """Return the tasks that have a prepared transaction."""
    return [task for task in tasks if not task.skipped and task.producer_id >= 0]


def _check_replay(before: Marker | None, now: Marker, tasks: Sequence[Prepared]) -> None:
    """Raise NonDeterministicReplay unless this replay has the tasks and rows of its decision."""
    if before is None or before.batch_id != now.batch_id:
        raise _differs(now, "Kafka no longer has a record of its tasks and rows")
    if before.tasks != now.tasks:
        raise _differs(now, f"it had {before.tasks} tasks and has {now.tasks} now")
    for task in tasks:
        if task.skipped and (task.rows, task.row_hash) != (task.marked_rows, task.marked_hash):
            raise _differs(
                now,
                f"task {task.partition} had {task.marked_rows} rows and has {task.rows} now, or "
                "different rows, or rows for another topic",
            )
    if (before.rows, before.row_hash) != (now.rows, now.row_hash):
        raise _differs(now, f"it had {before.rows} rows and has {now.rows} now, or different rows")


async def _check_dropped(
    client: ClusterClient, sid: str, before: Marker, now: Marker, deadline: float
) -> set[int]:
    """Raise NonDeterministicReplay if an earlier attempt at this batch committed a task that this
    attempt lacks: the rows of that task are now in other tasks. Return the tasks without a marker.
    """
    unmarked = set()
    for index in range(now.tasks, before.tasks):
        dropped = task_id(sid, index)
        # Fence the task first. Otherwise its transaction could still be committed later.
        await fence_transaction(client, dropped, deadline)
        marker = await read_marker(client, dropped, deadline)
        if marker is None:
            unmarked.add(index)
        elif marker.batch_id == now.batch_id:
            raise _differs(now, f"it had {before.tasks} tasks and has {now.tasks} now")
    return unmarked


def _differs(now: Marker, how: str) -> NonDeterministicReplay:
    return NonDeterministicReplay(
        f"aiokprod: batch {now.batch_id} was committed in part before a failure, and its replay "
        f"differs: {how}. Nothing more of it was committed. Restore what decides how rows are "
        "split into tasks (partition counts, spark.sql.shuffle.partitions, the source's splits, "
        "the query) and start again"
    )
