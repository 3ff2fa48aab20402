"""One task attempt: Spark's main thread iterates, the loop thread sends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from aiokprod.producer import Producer
from aiokprod.spark.failures import describe_early
from aiokprod.spark.feed import Feed
from aiokprod.spark.messages import TaskReport, report_fields
from aiokprod.spark.options import AT_LEAST_ONCE
from aiokprod.spark.process import LoopThread, loop_thread
from aiokprod.spark.rows import project
from aiokprod.spark.sending import TaskSender
from aiokprod.spark.transactional import run_transactional

if TYPE_CHECKING:
    from aiokprod.spark.context import Task
    from aiokprod.spark.options import SinkOptions
    from aiokprod.spark.schema import Columns


def run_task(
    options: SinkOptions, columns: Columns, task: Task, batches: Iterator[Any], *, job: str | None
) -> TaskReport:
    """Send all rows of `batches` (RecordBatches); returns when each is acknowledged.

    Raises:
        SinkError: a row failed.
    """
    thread = loop_thread(options.loop)
    feed = Feed(thread.loop)
    if options.delivery == AT_LEAST_ONCE:
        work = _run_plain(thread, options, task, feed)
    else:
        work = run_transactional(thread, options, task, feed, job)
    future = thread.start(work)
    future.add_done_callback(lambda _: feed.close())
    try:
        _pump(batches, feed, columns, options.topic)
    except BaseException:
        if not future.done():
            future.cancel()
            raise
        if future.exception() is None:
            raise
    return future.result()


def _pump(batches: Iterator[Any], feed: Feed, columns: Columns, topic: str | None) -> None:
    rows = 0
    for batch in batches:
        if not feed.put(project(batch, columns, topic=topic, first_row=rows)):
            return
        rows += batch.num_rows
    feed.end()


async def _run_plain(
    thread: LoopThread, options: SinkOptions, task: Task, feed: Feed
) -> TaskReport:
    started = thread.loop.time()

    async def make() -> Producer[Any, Any]:
        return Producer(options.producer_config())

    async with contextlib.AsyncExitStack() as stack:
        borrowed = thread.borrowed(options.kafka, make, keep=options.reuse_producer)
        try:
            producer = await stack.enter_async_context(borrowed)
        except Exception as error:
            raise describe_early(error) from error
        sender = TaskSender(producer, topic=options.topic, transactional=False)
        await send_all(producer, sender, feed)
        return TaskReport(
            **report_fields(
                task,
                rows=sender.rows,
                size=sender.size,
                ranges=sender.ranges,
                seconds=thread.loop.time() - started,
            )
        )


async def send_all(producer: Producer[Any, Any], sender: TaskSender, feed: Feed) -> None:
    """Send what comes out of the feed and wait for the acknowledgments.

    Raises:
        SinkError: a row failed. The producer is closed then, so that all is settled.
    """
    try:
        while (table := await feed.get()) is not None:
            await sender.admit(table)
        await sender.finish()
    except Exception as error:
        await producer.close(0)
        raise sender.failure(error) from None
