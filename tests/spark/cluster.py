"""The sink's transactions without Spark and without sockets: tasks and drivers on a fake cluster.

`SparkCluster` is a `FakeCluster` with shortcuts to its transactions and offsets. `Query` takes the
place of Spark. It runs the attempts of tasks, and the commit and the abort of a batch, in virtual
time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from aiokprod._client.cluster_client import ClusterClient
from aiokprod._wire.message import Message
from aiokprod._wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponsePartitions,
)
from aiokprod.producer import Producer
from aiokprod.spark import driver_commit, tasks, transactional_task
from aiokprod.spark.commit_messages import Prepared, TaskReport
from aiokprod.spark.context import Task
from aiokprod.spark.driver_commit import TransactionEnder
from aiokprod.spark.options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from aiokprod.spark.worker_loop import LoopThread
from aiokprod.testing import virtual
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.apis.offset_fetch import response
from aiokprod.testing.fake_cluster.control import Reaction, Script, answer
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.transactions import Phase

PRODUCE, FIND_COORDINATOR, OFFSET_FETCH, END_TXN, TXN_OFFSET_COMMIT = 0, 10, 9, 26, 28
INIT_PRODUCER_ID = 22
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66


class _Served(Script):
    """Serves the APIs that a test adds, unless a rule of the test applies."""

    def __init__(self, cluster: SparkCluster) -> None:
        super().__init__()
        self._cluster = cluster

    def reaction_to(self, request: Request) -> Reaction:
        found = super().reaction_to(request)
        serve = self._cluster.serving.get(request.api_key)
        if serve is None or found != Reaction():
            return found
        reply = serve(request)
        if reply is None:
            return found
        return reply if isinstance(reply, Reaction) else answer(reply)


class SparkCluster(FakeCluster):
    """A cluster whose state tests inspect.

    Attributes:
        order: -1 reverses the order of topics in the responses to OffsetFetch.
        serving: maps an API that a test adds to the function that responds to it.
    """

    def __init__(self, brokers: int = 3, *, version_profile: str = "4.3") -> None:
        super().__init__(brokers, version_profile=version_profile)
        self.order = 1
        self.script = _Served(self)
        self.serving: dict[int, Callable[[Request], Message | Reaction | None]] = {}
        self.answer_filters.append(self._in_order)

    def _in_order(self, request: Request, message: Any) -> Message:
        if request.api_key == OFFSET_FETCH and self.order < 0:
            message = dataclasses.replace(
                message,
                topics=message.topics[::-1],
                groups=[
                    dataclasses.replace(one, topics=one.topics[::-1]) for one in message.groups
                ],
            )
        return message  # type: ignore[no-any-return]

    def time_out(self, transactional_id: str) -> None:
        """Abort a transaction on the coordinator because of its timeout."""
        entry = self.transactions.ids[transactional_id]
        assert entry.phase is Phase.ONGOING
        self.transactions._timed_out(entry, entry.number)

    def open_ids(self) -> set[str]:
        """Return the transactional ids with an open transaction."""
        ids = self.transactions.ids
        return {name for name, entry in ids.items() if entry.phase is Phase.ONGOING}

    def committed(self, *topics: str) -> list[str]:
        """Return the sorted values that read_committed consumers receive."""
        return sorted(
            (value or b"").decode()
            for topic in topics
            for partition in range(len(self.topics[topic].partitions))
            for value in self.committed_values(topic, partition)
        )


def offsets_answer(
    group: str,
    partitions: Mapping[str, OffsetFetchResponsePartitions],
    *,
    code: int = 0,
    version: int,
) -> OffsetFetchResponse:
    """Return an OffsetFetch response with one partition of each topic."""
    entries = [
        (name, one.partition_index, one.committed_offset, one.metadata, one.error_code)
        for name, one in partitions.items()
    ]
    return response([(group, entries, code)], version)


class _Loop(LoopThread):
    """The virtual event loop in place of a worker's loop thread."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.kept = {}


class _Rows:
    """The feed of one task attempt."""

    def __init__(self, tables: list[Any], then: Callable[[], None] | None) -> None:
        self._tables = tables
        self._then = then

    async def get(self) -> Any:
        if self._tables:
            return self._tables.pop(0)
        if self._then is not None:
            self._then()
        return None


Rows = Iterable[tuple[str, str]]
"""The (topic, value) pair of each row."""


class Query:
    """A query as its writer sees it: a stream, or a batch job for other values of `delivery` than
    exactly_once.

    The DataFrame has a topic column unless the option `topic` is given.
    """

    def __init__(self, patch: pytest.MonkeyPatch, cluster: SparkCluster, **options: str) -> None:
        self.cluster = cluster
        self.thread = _Loop()
        self.options = SinkOptions.parse(
            {
                "kafka.bootstrap.servers": cluster.bootstrap_servers,
                "delivery": EXACTLY_ONCE,
            }
            | ({} if options.get("delivery") == AT_LEAST_ONCE else {"transactionalIdPrefix": "p"})
            | options
        )
        environment = cluster.environment()
        patch.setattr(driver_commit, "loop_thread", lambda kind: self.thread)
        patch.setattr(driver_commit, "_swept", {})
        for module in (driver_commit, transactional_task, tasks):
            patch.setattr(module, "Producer", partial(Producer, environment=environment))
        for module in (driver_commit, transactional_task):
            client = partial(ClusterClient, environment=environment)
            patch.setattr(module, "ClusterClient", client)

    def id(self, number: int) -> str:
        """Return the transactional id of a task."""
        return f"p.{'q' if self.options.delivery == EXACTLY_ONCE else 'job'}.{number}"

    async def task(
        self,
        batch: int | None,
        number: int,
        rows: Rows,
        *,
        attempt: int = 0,
        then: Callable[[], None] | None = None,
    ) -> Prepared:
        """Run one task attempt within a transaction. `then` is called after its last row."""
        streaming = self.options.delivery == EXACTLY_ONCE
        task, feed = self._attempt(batch, number, rows, attempt, then)
        return await transactional_task.run_transactional(
            self.thread, self.options, task, feed, None if streaming else "job"
        )

    async def plain_task(
        self, number: int, rows: Rows, *, partition: int | None = None
    ) -> TaskReport:
        """Run one task attempt with delivery=at_least_once. If `partition` is given, all rows go to
        it."""
        task, feed = self._attempt(None, number, rows, 0, None, partition)
        return await tasks._run_plain(self.thread, self.options, task, feed, None)

    def _attempt(
        self,
        batch: int | None,
        number: int,
        rows: Rows,
        attempt: int,
        then: Callable[[], None] | None,
        partition: int | None = None,
    ) -> tuple[Task, Any]:
        streaming = self.options.delivery == EXACTLY_ONCE
        task = Task(
            number, attempt, "host", batch if streaming else None, "q" if streaming else None,
            None, speculation=False,
        )  # fmt: skip
        rows = list(rows)
        columns = {"value": pa.array([value.encode() for _, value in rows], pa.binary())}
        if self.options.topic is None:
            columns["topic"] = pa.array([topic for topic, _ in rows], pa.string())
        if partition is not None:
            columns["partition"] = pa.array([partition] * len(rows), pa.int32())
        given = [pa.RecordBatch.from_pydict(columns)] if rows else []
        return task, _Rows(given, then)

    async def tasks(self, batch: int | None, parts: list[Rows]) -> list[Prepared]:
        """Run all tasks of a batch, one after another."""
        return [await self.task(batch, number, rows) for number, rows in enumerate(parts)]

    async def commit(self, messages: list[Prepared], batch: int | None = None) -> None:
        """Commit as the driver does. The writer is a separate one, because Spark creates one for
        each commit."""
        await TransactionEnder(self.options, batch).commit(messages)

    async def abort(self, messages: list[Prepared], batch: int | None = None) -> None:
        """Abort as the driver does."""
        await TransactionEnder(self.options, batch).abort(messages)

    async def run(self, batch: int | None, parts: list[Rows]) -> list[Prepared]:
        """Run a complete batch. If the commit fails, abort the batch, as Spark does."""
        messages = await self.tasks(batch, parts)
        try:
            await self.commit(messages, batch)
        except Exception:
            await self.abort(messages, batch)
            raise
        return messages

    async def crash(self, messages: list[Prepared], batch: int, *, ended: int) -> None:
        """Simulate the death of the driver after its decision and `ended` EndTxn requests. Its
        process ends, too."""
        ender = TransactionEnder(self.options, batch)
        async with ender._cluster_client() as client:
            deadline = client.loop.time() + 60.0
            await ender._decide(client, messages, deadline)
            await ender._end_all(client, messages[:ended], deadline, commit=True)
        await self.restart()

    async def restart(self) -> None:
        """Simulate a new driver process and new workers, which have no state."""
        await self.thread.drop(lambda key: True)
        driver_commit._swept.clear()


def run(body: Callable[[], Awaitable[None]]) -> None:
    """Run the body of a test in virtual time."""

    async def main() -> None:
        await body()

    virtual.run(main)
