"""Runs one task attempt. Spark's thread iterates over the rows, and the loop thread sends them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiokprod.producer import Producer
from aiokprod.spark.batch_handoff import BatchHandoff
from aiokprod.spark.commit_messages import TaskReport, report_fields
from aiokprod.spark.context import audit_prefix
from aiokprod.spark.failures import describe_early
from aiokprod.spark.jvm_socket_watch import LOOK_EVERY, JvmSocketWatch
from aiokprod.spark.options import AT_LEAST_ONCE
from aiokprod.spark.rows import project
from aiokprod.spark.task_logging import quiet_metadata
from aiokprod.spark.task_sender import TaskSender
from aiokprod.spark.transactional_task import run_transactional
from aiokprod.spark.worker_loop import LoopThread, loop_thread

if TYPE_CHECKING:
    from aiokprod.spark.context import Task
    from aiokprod.spark.options import SinkOptions
    from aiokprod.spark.sink_schema import SinkColumns

R = TypeVar("R")

_GIVE_UP: Final = 2.0
"""Seconds in which a cancelled task may close its producer."""


def run_task(
    options: SinkOptions,
    columns: SinkColumns,
    task: Task,
    batches: Iterator[Any],
    *,
    job: str | None,
) -> TaskReport:
    """Send all rows of `batches` (RecordBatches). Returns once all rows are acknowledged.

    Raises:
        SinkError: a row failed.
    """
    quiet_metadata()
    thread = loop_thread(options.loop)
    socket_watch = JvmSocketWatch.of_this_task()
    handoff = BatchHandoff(thread.loop)
    work: Coroutine[Any, Any, TaskReport]
    if options.delivery == AT_LEAST_ONCE:
        work = _run_plain(thread, options, task, handoff, job)
    else:
        work = run_transactional(thread, options, task, handoff, job)
    ended = threading.Event()
    future = thread.start(_tracked(work, ended))
    future.add_done_callback(lambda _: handoff.close())
    try:
        rows = 0
        for batch in batches:
            table = project(batch, columns, topic=options.topic, first_row=rows)
            if not handoff.put(table, socket_watch.check):
                break
            rows += batch.num_rows
        socket_watch.check()  # the iterator of a killed task ends as if the data were complete
        handoff.end()
        return _wait(future, socket_watch)
    except BaseException:
        if not future.done():
            future.cancel()
            ended.wait(_GIVE_UP)  # until the producer is closed, so that no more rows are sent
        raise


def _wait(future: concurrent.futures.Future[R], socket_watch: JvmSocketWatch) -> R:
    while True:
        try:
            return future.result(LOOK_EVERY)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise
            socket_watch.check()


async def _tracked(work: Coroutine[Any, Any, R], ended: threading.Event) -> R:
    """Await `work`, and set `ended` afterwards. The concurrent future does not show this: a
    cancelled future is done before the coroutine has ended."""
    try:
        return await work
    finally:
        ended.set()


async def _run_plain(
    thread: LoopThread, options: SinkOptions, task: Task, handoff: BatchHandoff, job: str | None
) -> TaskReport:
    started = thread.loop.time()

    async def make() -> Producer[Any, Any]:
        return Producer(options.producer_config())

    async with contextlib.AsyncExitStack() as stack:
        key = ("producer", options.kafka, options.max_buffered_bytes)
        borrowed = thread.borrowed(key, make, keep=options.reuse_producer)
        try:
            producer = await stack.enter_async_context(borrowed)
        except Exception as error:
            raise describe_early(error) from error
        sender = TaskSender(
            producer,
            topic=options.topic,
            transactional=False,
            audit_prefix=audit_prefix(options, task, job),
        )
        await send_all(producer, sender, handoff)
        return TaskReport(
            **report_fields(
                task,
                rows=sender.rows,
                size=sender.size,
                ranges=sender.ranges,
                seconds=thread.loop.time() - started,
            )
        )


async def send_all(producer: Producer[Any, Any], sender: TaskSender, handoff: BatchHandoff) -> None:
    """Send all tables of `handoff` and wait for the acknowledgments.

    Raises:
        SinkError: a row failed. The producer was closed, so that every row has an outcome.
    """
    try:
        while (table := await handoff.get()) is not None:
            await sender.submit(table)
        await sender.finish()
    except Exception as error:
        sender.blame(error)  # before `close`, which fails pending rows for another reason
        await producer.close(0)
        raise sender.failure() from None
