"""The sink's transactions without Spark and sockets: tasks and drivers on a fake cluster.

`SparkCluster` is a `FakeCluster` that also answers what only the sink asks for: committed offsets
with their metadata, and the states of transactions. `Query` plays Spark: it runs the attempts of
tasks, the commit and the abort of a batch, in virtual time.
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
from aiokprod._wire.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TransactionState,
)
from aiokprod._wire.messages.list_transactions import (
    ListTransactionsResponse,
)
from aiokprod._wire.messages.list_transactions import TransactionState as Listed
from aiokprod._wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from aiokprod.errors import Code
from aiokprod.producer import Producer
from aiokprod.spark import driver_commit, tasks, transactional_task
from aiokprod.spark.commit_messages import Prepared, TaskReport
from aiokprod.spark.context import Task
from aiokprod.spark.driver_commit import TransactionEnder
from aiokprod.spark.options import AT_LEAST_ONCE, EXACTLY_ONCE, SinkOptions
from aiokprod.spark.worker_loop import LoopThread
from aiokprod.testing import virtual
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.control import Reaction, Script, answer
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.transactions import Phase

PRODUCE, FIND_COORDINATOR, OFFSET_FETCH, END_TXN, TXN_OFFSET_COMMIT = 0, 10, 9, 26, 28
INIT_PRODUCER_ID = 22
DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 65, 66
GROUPS_FROM = 8
"""OffsetFetch has groups since this version (KIP-709)."""
GROUP_CODE_FROM = 2
"""OffsetFetch has an error code of the group since this version (KIP-88)."""
FIRST_WITH_STATES = "3.0"
"""The first release with DescribeTransactions and ListTransactions (KIP-664)."""


class _Offset(int):
    """A committed offset that keeps its metadata on its way through the model."""

    metadata: str | None = None


class _Served(Script):
    """Serves the APIs that only the sink uses, unless a rule of the test applies."""

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
    """A cluster with offsets' metadata, OffsetFetch, DescribeTransactions, ListTransactions.

    Attributes:
        order: turns round the order of topics in the answers to OffsetFetch if -1.
    """

    def __init__(self, brokers: int = 3, *, version_profile: str = "4.3") -> None:
        super().__init__(brokers, version_profile=version_profile)
        self.order = 1
        self.script = _Served(self)
        self.serving: dict[int, Callable[[Request], Message | Reaction | None]] = {
            TXN_OFFSET_COMMIT: self._remember,
            OFFSET_FETCH: self._offsets,
            DESCRIBE_TRANSACTIONS: self._describe,
            LIST_TRANSACTIONS: self._list,
        }
        for broker in self.brokers.values():
            ranges = broker.profile.ranges | {OFFSET_FETCH: (1, 9)}
            if float(version_profile) >= float(FIRST_WITH_STATES):
                ranges |= {DESCRIBE_TRANSACTIONS: (0, 0), LIST_TRANSACTIONS: (0, 2)}
            broker.profile = dataclasses.replace(broker.profile, ranges=ranges)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, and with it the offsets that groups committed for it."""
        super().delete_topic(name)
        for offsets in self.transactions.committed_offsets.values():
            for where in [where for where in offsets if where[0] == name]:
                del offsets[where]

    def time_out(self, transactional_id: str) -> None:
        """The coordinator aborts a transaction because of its timeout."""
        entry = self.transactions.ids[transactional_id]
        assert entry.phase is Phase.ONGOING
        self.transactions._timed_out(entry, entry.number)

    def open_ids(self) -> set[str]:
        """Transactional ids with an open transaction."""
        ids = self.transactions.ids
        return {name for name, entry in ids.items() if entry.phase is Phase.ONGOING}

    def committed(self, *topics: str) -> list[str]:
        """The values that read_committed consumers see, sorted."""
        return sorted(
            (value or b"").decode()
            for topic in topics
            for partition in range(len(self.topics[topic].partitions))
            for value in self.committed_values(topic, partition)
        )

    def _remember(self, request: Request) -> None:
        for topic in request.body.topics:
            for partition in topic.partitions:
                offset = _Offset(partition.committed_offset)
                offset.metadata = partition.committed_metadata
                object.__setattr__(partition, "committed_offset", offset)

    def _offsets(self, request: Request) -> Message:
        if request.version < GROUPS_FROM:
            group, wanted = request.body.group_id, request.body.topics
        else:
            (asked,) = request.body.groups
            group, wanted = asked.group_id, asked.topics
        assert wanted is None, "all topics, whatever they are"
        code = int(refusal(self.brokers[request.broker_id], group))
        pending = {
            where
            for entry in self.transactions.ids.values()
            for where in entry.offsets.get(group, ())
        }
        committed = self.transactions.committed_offsets.get(group, {})
        found: dict[str, OffsetFetchResponsePartitions] = {}
        for where in [] if code else sorted(pending | committed.keys())[:: self.order]:
            offset = committed.get(where, _Offset(-1))
            unstable = request.body.require_stable and where in pending
            found[where[0]] = OffsetFetchResponsePartitions(
                partition_index=where[1],
                committed_offset=-1 if unstable else int(offset),
                metadata=getattr(offset, "metadata", None),
                error_code=int(Code.UNSTABLE_OFFSET_COMMIT) if unstable else 0,
            )
        return offsets_answer(group, found, code=code, version=request.version)

    def _describe(self, request: Request) -> Message:
        states = [self._state(request, name) for name in request.body.transactional_ids]
        return DescribeTransactionsResponse(transaction_states=states)

    def _state(self, request: Request, name: str) -> TransactionState:
        code = int(refusal(self.brokers[request.broker_id], name))
        entry = self.transactions.ids.get(name)
        if code == 0 and entry is None:
            code = int(Code.TRANSACTIONAL_ID_NOT_FOUND)
        if code or entry is None:
            phase, producer_id, epoch, timeout_ms = "", -1, -1, 0
        else:
            phase, timeout_ms = entry.phase.value, entry.timeout_ms
            producer_id, epoch = entry.producer_id, entry.epoch
        return TransactionState(
            error_code=code,
            transactional_id=name,
            transaction_state=phase,
            transaction_timeout_ms=timeout_ms,
            transaction_start_time_ms=-1,
            producer_id=producer_id,
            producer_epoch=epoch,
            topics=[],
        )

    def _list(self, request: Request) -> Message:
        broker = self.brokers[request.broker_id]
        listed = [
            Listed(
                transactional_id=entry.name,
                producer_id=entry.producer_id,
                transaction_state=entry.phase.value,
            )
            for entry in self.transactions.ids.values()
            if not refusal(broker, entry.name) and entry.phase.value in request.body.state_filters
        ]
        return ListTransactionsResponse(
            error_code=0, unknown_state_filters=[], transaction_states=listed
        )


def offsets_answer(
    group: str,
    partitions: Mapping[str, OffsetFetchResponsePartitions],
    *,
    code: int = 0,
    version: int = GROUPS_FROM,
) -> OffsetFetchResponse:
    """OffsetFetch with one partition of each topic."""
    if version >= GROUPS_FROM:
        topics = [
            OffsetFetchResponseTopics(name=name, partitions=[one])
            for name, one in partitions.items()
        ]
        answered = OffsetFetchResponseGroup(group_id=group, topics=topics, error_code=code)
        return OffsetFetchResponse(groups=[answered])
    flat = [
        OffsetFetchResponseTopic(
            name=name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=one.partition_index,
                    committed_offset=one.committed_offset,
                    metadata=one.metadata,
                    error_code=one.error_code or (code if version < GROUP_CODE_FROM else 0),
                )
            ],
        )
        for name, one in partitions.items()
    ]
    return OffsetFetchResponse(topics=flat, error_code=code if version >= GROUP_CODE_FROM else 0)


class _Loop(LoopThread):
    """The virtual loop in the place of a worker's loop thread."""

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
"""(topic, value) of each row."""


class Query:
    """A stream, or a batch job if `delivery` is another one, as its writer sees it.

    The DataFrame has a topic column, unless the option `topic` is given.
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
        """Transactional id of a task."""
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
        """One task attempt within a transaction; `then` is called after its last row."""
        streaming = self.options.delivery == EXACTLY_ONCE
        task, feed = self._attempt(batch, number, rows, attempt, then)
        return await transactional_task.run_transactional(
            self.thread, self.options, task, feed, None if streaming else "job"
        )

    async def plain_task(
        self, number: int, rows: Rows, *, partition: int | None = None
    ) -> TaskReport:
        """One task attempt with delivery=at_least_once, all rows for this partition if given."""
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
        """All tasks of a batch, one after the other."""
        return [await self.task(batch, number, rows) for number, rows in enumerate(parts)]

    async def commit(self, messages: list[Prepared], batch: int | None = None) -> None:
        """The driver's commit, by a separate writer, as Spark makes one for each."""
        await TransactionEnder(self.options, batch).commit(messages)

    async def abort(self, messages: list[Prepared], batch: int | None = None) -> None:
        """The driver's abort."""
        await TransactionEnder(self.options, batch).abort(messages)

    async def run(self, batch: int | None, parts: list[Rows]) -> list[Prepared]:
        """A whole batch; after a failed commit Spark calls abort."""
        messages = await self.tasks(batch, parts)
        try:
            await self.commit(messages, batch)
        except Exception:
            await self.abort(messages, batch)
            raise
        return messages

    async def crash(self, messages: list[Prepared], batch: int, *, ended: int) -> None:
        """A driver that dies after its decision and this many EndTxn; its process ends too."""
        ender = TransactionEnder(self.options, batch)
        async with ender._cluster_client() as client:
            deadline = client.loop.time() + 60.0
            await ender._decide(client, messages, deadline)
            await ender._end_all(client, messages[:ended], deadline, commit=True)
        await self.restart()

    async def restart(self) -> None:
        """Another driver process, and other workers: nothing is kept."""
        await self.thread.drop(lambda key: True)
        driver_commit._swept.clear()


def run(body: Callable[[], Awaitable[None]]) -> None:
    """Run the body of a test in virtual time."""

    async def main() -> None:
        await body()

    virtual.run(main)
