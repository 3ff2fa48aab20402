"""Runs a task attempt within a transaction. Only the driver commits the transaction.

The end of Spark's iterator does not prove that the data are complete: the iterator of a killed task
ends early without an error. So this module never commits.
"""

from __future__ import annotations

import contextlib
import zlib
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from aiokprod import GroupMetadata
from aiokprod._client.cluster_client import ClusterClient
from aiokprod.errors import Code, ConfigError, KafkaError, ProducerFenced
from aiokprod.producer import Producer
from aiokprod.spark.commit_messages import Prepared, report_fields, trimmed_topics
from aiokprod.spark.context import audit_prefix
from aiokprod.spark.failures import Counts, SinkError, describe, rolled_back
from aiokprod.spark.markers import (
    Marker,
    driver_id,
    hash_rows,
    marked_topics,
    read_marker,
    stream_id,
    task_id,
)
from aiokprod.spark.options import EXACTLY_ONCE
from aiokprod.spark.task_sender import TaskSender
from aiokprod.spark.verification import too_short

if TYPE_CHECKING:
    from aiokprod.spark.batch_handoff import BatchHandoff
    from aiokprod.spark.context import Task
    from aiokprod.spark.options import SinkOptions
    from aiokprod.spark.worker_loop import LoopThread

MARKER_SECONDS = 60.0
"""Time limit for reading a marker, s, including the abort of an earlier transaction."""

_FENCED = (
    "A later attempt of this task, or another query with the same transactionalIdPrefix and query "
    "id (a copied checkpoint?), took over"
)
_ENDED = frozenset(
    {
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.INVALID_TXN_STATE,
        Code.PRODUCER_FENCED,
    }
)
"""Error codes of requests for a transaction that is no longer open."""


async def run_transactional(
    thread: LoopThread, options: SinkOptions, task: Task, handoff: BatchHandoff, job: str | None
) -> Prepared:
    """Send all tables of `handoff` in a transaction and leave it open.

    Raises:
        SinkError: a row failed; the transaction is aborted.
    """
    try:
        return await _Run(thread, options, task, handoff, job).go()
    except SinkError:
        raise
    except Exception as error:  # not the failure of a row, which raises SinkError
        where = f"transaction of task {task.partition}"
        raise describe(error, Counts(), where=where, transactional=True) from error


def _transactional_id(options: SinkOptions, task: Task, job: str | None) -> str:
    prefix = options.transactional_id_prefix
    assert prefix is not None, "checked with the options"
    if options.delivery != EXACTLY_ONCE:
        assert job is not None, "made by writer()"
        return task_id(f"{prefix}.{job}", task.partition)
    if task.batch_id is None or task.query_id is None:
        raise ConfigError(
            "delivery=exactly_once: Spark did not set the batch id and query id of this task "
            "(local properties streaming.sql.batchId and sql.streaming.queryId): this Spark "
            "version is not supported, use foreach_batch or at_least_once"
        )
    return task_id(stream_id(prefix, task.query_id), task.partition)


class _Run:
    """One attempt at a task."""

    def __init__(
        self,
        thread: LoopThread,
        options: SinkOptions,
        task: Task,
        handoff: BatchHandoff,
        job: str | None,
    ) -> None:
        self._thread = thread
        self._options = options
        self._task = task
        self._handoff = handoff
        self._job = job
        self._id = _transactional_id(options, task, job)
        self._started = thread.loop.time()
        # Start the hash with the topic, so that equal rows for different topics have different
        # hashes.
        self._hash = 0 if options.topic is None else zlib.crc32(options.topic.encode())

    async def go(self) -> Prepared:
        config = self._options.producer_config(transactional_id=self._id)
        producer: Producer[Any, Any] = Producer(config)
        try:
            await producer.start()  # fences earlier attempts and aborts their transactions
            marker = await self._marker()
            ours = self._task.batch_id
            if marker is not None and ours is not None and marker.batch_id == ours:
                return await self._skip(marker)
            if marker is not None and ours is not None and marker.batch_id > ours:
                raise KafkaError(rolled_back(marker.batch_id, ours))
            return await self._send(producer, unmarked=marker is None)
        finally:
            with contextlib.suppress(Exception):
                await producer.close(10.0)  # aborts, unless prepared

    async def _marker(self) -> Marker | None:
        if self._options.delivery != EXACTLY_ONCE:
            return None
        async with self._cluster_client() as client:
            deadline = client.loop.time() + MARKER_SECONDS
            return await read_marker(client, self._id, deadline)

    def _cluster_client(self) -> AbstractAsyncContextManager[ClusterClient]:
        async def make() -> ClusterClient:
            return ClusterClient(self._options.producer_config())

        return self._thread.borrowed(("client", self._options.kafka), make, keep=True)

    async def _skip(self, marker: Marker) -> Prepared:
        """Count and hash the rows of a batch that has already been committed."""
        rows = 0
        while (table := await self._handoff.get()) is not None:
            rows += table.num_rows
            self._hash += hash_rows(table)
        return Prepared(
            **report_fields(
                self._task, rows=rows, size=0, ranges={},
                seconds=self._thread.loop.time() - self._started,
            ),
            transactional_id=self._id,
            row_hash=self._hash % 2**64,
            skipped=True,
            marked_rows=marker.rows,
            marked_hash=marker.row_hash,
        )  # fmt: skip

    async def _send(self, producer: Producer[Any, Any], *, unmarked: bool) -> Prepared:
        await producer.begin_transaction()
        begun = self._thread.loop.time()
        sender = TaskSender(
            producer,
            topic=self._options.topic,
            transactional=True,
            audit_prefix=audit_prefix(self._options, self._task, self._job),
        )
        marking = self._options.delivery == EXACTLY_ONCE
        try:
            while (table := await self._handoff.get()) is not None:
                if marking:
                    self._hash += hash_rows(table)
                await sender.submit(table)
            await sender.finish()
            marked = await self._mark(producer, sender) if marking else ()
            producer_id, epoch, second = await producer.prepare_transaction()
        except Exception as error:
            failure = sender.failure(error)
            why = self._why_ended(sender.cause or error, self._thread.loop.time() - begun)
            raise (failure if why is None else SinkError(f"{failure}. {why}")) from None
        return Prepared(
            **report_fields(
                self._task, rows=sender.rows, size=sender.size, ranges=sender.ranges,
                seconds=self._thread.loop.time() - self._started,
            ),
            transactional_id=self._id,
            producer_id=producer_id if sender.rows or marked else -1,
            epoch=epoch,
            second_protocol=second,
            row_hash=self._hash % 2**64,
            marked=marked,
            unmarked=unmarked,
        )  # fmt: skip

    def _why_ended(self, error: BaseException, seconds: float) -> str | None:
        """Return why the transaction is no longer open, or None if the failure has another cause.

        Args:
            seconds: age of the transaction.
        """
        code = error.code if isinstance(error, KafkaError) else None
        if not isinstance(error, ProducerFenced) and (code is None or code.number not in _ENDED):
            return None
        timeout = self._options.producer_config().transaction_timeout_ms
        return too_short(seconds, timeout) or _FENCED

    async def _mark(self, producer: Producer[Any, Any], sender: TaskSender) -> tuple[str, ...]:
        """Add the task's marker to the transaction. Return the topics that hold the marker."""
        assert self._task.batch_id is not None, "checked for the transactional id"
        topics = {topic for topic, _ in sender.ranges}
        if self._options.topic is not None:
            topics.add(self._options.topic)
        if not topics:  # without rows and a topic option, use a topic of an earlier batch
            topics.update(await self._former_topic())
        if not topics:
            return ()
        marker = Marker(self._task.batch_id, sender.rows, self._hash % 2**64, self._task.attempt)
        group = GroupMetadata(self._id)
        await producer.send_offsets_to_transaction(marker.offsets(topics), group)
        return trimmed_topics(topics)

    async def _former_topic(self) -> list[str]:
        prefix, query_id = self._options.transactional_id_prefix, self._task.query_id
        assert prefix is not None, "checked with the options"
        assert query_id is not None, "checked for the transactional id"
        async with self._cluster_client() as client:
            deadline = client.loop.time() + MARKER_SECONDS
            group = driver_id(stream_id(prefix, query_id))
            return (await marked_topics(client, group, deadline))[:1]
