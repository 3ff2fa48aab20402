"""The driver's part of transactions: which transactions it ends in addition to those of its
batch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

import pytest

from aiokprod.errors import Code, ProducerFenced
from aiokprod.spark import driver_commit
from aiokprod.spark.commit_messages import Prepared, report_fields
from aiokprod.spark.context import Task
from aiokprod.spark.driver_commit import CommitFailed, TransactionEnder
from aiokprod.spark.failures import NonDeterministicReplay
from aiokprod.spark.markers import Marker
from aiokprod.spark.options import EXACTLY_ONCE, TRANSACTIONAL, SealedOptions, SinkOptions
from aiokprod.spark.task_sender import Range
from aiokprod.spark.worker_loop import loop_thread

T = TypeVar("T")


class Cluster:
    """A client of a cluster with the given open transactions."""

    def __init__(self, *open_ids: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._open = open_ids
        self.undecided = False  # True while a transaction of the driver's id is open
        self.waited = 0.0
        self.ended: list[str] = []

    async def nodes(self, deadline: float) -> list[int]:
        return [1]

    async def ask(self, node_id: int, request: Any, deadline: float) -> Any:
        states = [SimpleNamespace(transactional_id=name) for name in self._open]
        return SimpleNamespace(body=SimpleNamespace(transaction_states=states))

    async def coordinate(
        self, kind: Any, key: str, request: Any, deadline: float, codes: Any = None
    ) -> Any:
        if codes is None:
            self.ended.append(key)
            return SimpleNamespace(error_code=0)
        while self.undecided:  # the request reads the marker of a group
            assert self.loop.time() < deadline
            code = Code.UNSTABLE_OFFSET_COMMIT
            codes(SimpleNamespace(groups=(), error_code=int(code), topics=()))
            await asyncio.sleep(0.05)
        return SimpleNamespace(groups=(), error_code=0, topics=())


class Deciding:
    """A stand-in for the producer that writes decisions."""

    clusters: ClassVar[list[Cluster]] = []
    started = 0

    def __init__(self, config: Any) -> None: ...

    async def start(self) -> None:
        Deciding.started += 1
        for cluster in self.clusters:
            cluster.undecided = False  # abort it, as InitProducerId does

    async def close(self, timeout: float | None = None) -> None: ...


class Notes:
    """Stores written decisions. It first raises the errors in `fenced`."""

    def __init__(self, *fenced: Exception) -> None:
        self.fenced = list(fenced)
        self.written: list[Marker] = []

    async def __call__(self, producer: Any, topics: set[str], decision: Marker, group: str) -> None:
        if self.fenced:
            raise self.fenced.pop(0)
        self.written.append(decision)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notes]:
    found = Notes()
    monkeypatch.setattr(driver_commit, "Producer", Deciding)
    monkeypatch.setattr(TransactionEnder, "_note", staticmethod(found))
    monkeypatch.setattr(Deciding, "started", 0)
    thread = loop_thread("auto")
    yield found
    thread.run(thread.drop(lambda key: True))


def on_the_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop thread, as the driver does."""
    return loop_thread("auto").run(work, 30.0)


def prepared(number: int, rows: int) -> Prepared:
    task = Task(number, 1, "host", 7, "orders", "run", speculation=False)
    ranges = {("t", 0): Range(0, rows - 1, rows)}
    fields = report_fields(task, rows=rows, size=1, ranges=ranges, seconds=0.1)
    return Prepared(**fields, transactional_id=f"p.orders.{number}", row_hash=rows, marked=("t",))


OPTIONS = SinkOptions(
    kafka=SealedOptions({"bootstrap.servers": "b:9092"}),
    delivery=EXACTLY_ONCE,
    transactional_id_prefix="p",
)


def test_orphans_are_tasks_of_this_query_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_commit, "_swept", {})
    tasks = [prepared(0, 1)]

    async def fenced() -> list[str]:
        cluster = Cluster(
            "p.orders.0",  # just committed
            "p.orders.2",
            "p.orders.driver",
            "p.orders.v2.0",  # belongs to the query "orders.v2"
            "p.orders.v2.driver",
            "p.orders2.3",
            "p.orders",
        )
        ender = TransactionEnder(OPTIONS, 5)
        client: Any = cluster
        await ender._fence_orphans(client, tasks, None, 60.0)
        return cluster.ended

    assert asyncio.run(fenced()) == ["p.orders.2"]


@pytest.mark.parametrize(
    ("decided", "committed", "refused", "fenced"),
    [
        # The last of three tasks was committed. Its rows now belong to the other tasks.
        (Marker(7, 9, 9, 3), {"p.orders.2": Marker(7, 3, 3, 0)}, True, ["p.orders.2"]),
        (Marker(7, 9, 9, 3), {"p.orders.2": Marker(6, 3, 3, 0)}, False, ["p.orders.2"]),
        (Marker(7, 9, 9, 4), {}, False, ["p.orders.2", "p.orders.3"]),
        (Marker(6, 9, 9, 3), {"p.orders.2": Marker(6, 3, 3, 0)}, False, []),
        (None, {}, False, []),
    ],
)
def test_replay_of_fewer_tasks_is_refused_if_a_dropped_one_was_committed(
    monkeypatch: pytest.MonkeyPatch,
    notes: Notes,
    decided: Marker | None,
    committed: dict[str, Marker],
    refused: bool,
    fenced: list[str],
) -> None:
    markers = {"p.orders.driver": decided, **committed}

    async def read_marker(client: Any, group: str, *times: float | None) -> Marker | None:
        return markers.get(group)

    monkeypatch.setattr(driver_commit, "read_marker", read_marker)

    async def decide() -> list[str]:
        client: Any = Cluster()
        tasks = [prepared(0, 4), prepared(1, 5)]
        expected = pytest.raises(NonDeterministicReplay, match="it had 3 tasks and has 2 now")
        with expected if refused else contextlib.nullcontext():
            await TransactionEnder(OPTIONS, 7)._decide(client, tasks, 60.0)
        ended: list[str] = client.ended
        return ended

    assert on_the_loop(decide()) == fenced
    again = decided is not None and decided.batch_id == 7
    assert notes.written == ([] if refused else [Marker(7, 9, 9, 2, version=int(again))])


async def decide(cluster: Cluster, *, batch: int = 0, options: SinkOptions = OPTIONS) -> None:
    client: Any = cluster
    deadline = cluster.loop.time() + 120
    await TransactionEnder(options, batch)._decide(client, [prepared(0, 4)], deadline)


def test_decision_of_a_driver_that_died_is_ended_before_it_is_read(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        cluster = Cluster()
        cluster.undecided = True
        monkeypatch.setattr(Deciding, "clusters", [cluster])
        await decide(cluster)

    on_the_loop(run())
    assert Deciding.started == 1
    assert len(notes.written) == 1


def test_decision_that_another_process_left_open_is_ended_by_a_new_producer(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The producer that this process keeps cannot end it."""
    monkeypatch.setattr(driver_commit, "_UNSTABLE", 0.2)

    async def run() -> None:
        cluster = Cluster()
        monkeypatch.setattr(Deciding, "clusters", [cluster])
        await decide(cluster)
        cluster.undecided = True
        await decide(cluster, batch=1)

    on_the_loop(run())
    assert Deciding.started == 2
    assert [marker.batch_id for marker in notes.written] == [0, 1]


def test_kept_producer_that_was_fenced_is_replaced_once(notes: Notes) -> None:
    async def run() -> None:
        cluster = Cluster()
        await decide(cluster)
        notes.fenced = [ProducerFenced("kept")]
        await decide(cluster)
        notes.fenced = [ProducerFenced("kept"), ProducerFenced("new")]
        with pytest.raises(CommitFailed, match="Another driver"):
            await decide(cluster)
        notes.fenced = [ProducerFenced("new")]
        with pytest.raises(CommitFailed, match="Another driver"):
            await decide(cluster)

    on_the_loop(run())
    assert len(notes.written) == 2


def test_decision_that_another_driver_wrote_meanwhile_is_not_overwritten(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = iter([None, Marker(4, 9, 9, 3), Marker(5, 9, 9, 2)])

    async def read_marker(client: Any, group: str, *times: float | None) -> Marker | None:
        return next(read)

    monkeypatch.setattr(driver_commit, "read_marker", read_marker)

    async def run() -> None:
        cluster = Cluster()
        await decide(cluster)  # keeps a producer
        notes.fenced = [ProducerFenced("kept")]
        with pytest.raises(CommitFailed, match="decided again"):
            await decide(cluster, batch=5)

    on_the_loop(run())
    assert [marker.batch_id for marker in notes.written] == [0]


def test_first_task_is_committed_alone() -> None:
    """Every attempt at a batch has this task. If the task is fenced, a later attempt exists."""
    asked: list[str] = []

    class Later(Cluster):
        async def coordinate(self, kind: Any, key: str, *more: Any) -> Any:
            asked.append(key)
            return SimpleNamespace(error_code=int(Code.PRODUCER_FENCED))

    async def end() -> None:
        client: Any = Later()
        tasks = [replace(prepared(n, 4), producer_id=5) for n in (2, 0, 1)]
        await TransactionEnder(OPTIONS, 7)._end_all(client, tasks, 60.0, commit=True)

    with pytest.raises(CommitFailed):
        asyncio.run(end())
    assert asked == ["p.orders.0"]


@pytest.mark.parametrize(
    ("batch", "missing", "told"),
    [(7, "warn", "warned"), (7, "fail", "refused"), (0, "warn", ""), (0, "fail", "")],
)
def test_batch_of_which_nothing_before_is_recorded(
    batch: int, missing: str, told: str, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    options = replace(OPTIONS, missing_markers=missing)

    async def run() -> None:
        await decide(Cluster(), batch=batch, options=options)

    with caplog.at_level("WARNING", "aiokprod.spark"):
        if told == "refused":
            with pytest.raises(NonDeterministicReplay, match=r"offsets\.retention\.minutes"):
                on_the_loop(run())
        else:
            on_the_loop(run())
    assert ("offsets.retention.minutes" in caplog.text) is (told == "warned")
    assert len(notes.written) == (told != "refused")


def test_empty_batches_without_a_topic_are_no_reason_to_warn(notes: Notes) -> None:
    async def run() -> None:
        client: Any = Cluster()
        options = replace(OPTIONS, missing_markers="fail")
        empty = replace(prepared(0, 0), ranges=(), marked=())
        await TransactionEnder(options, 3)._decide(client, [empty], 60.0)

    on_the_loop(run())
    assert notes.written == []


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, TRANSACTIONAL])
def test_failed_commit_tells_what_a_replay_does(delivery: str) -> None:
    class Fenced(Cluster):
        async def coordinate(self, *arguments: Any) -> Any:
            return SimpleNamespace(error_code=int(Code.PRODUCER_FENCED))

    async def end() -> None:
        client: Any = Fenced()
        ender = TransactionEnder(replace(OPTIONS, delivery=delivery), 7)
        await ender._end_all(client, [replace(prepared(0, 4), producer_id=5)], 60.0, commit=True)

    with pytest.raises(CommitFailed) as caught:
        asyncio.run(end())
    assert ("are skipped then" in str(caught.value)) is (delivery == EXACTLY_ONCE)
    assert ("writes all rows again" in str(caught.value)) is (delivery == TRANSACTIONAL)


def test_stream_is_warned_once_and_a_job_each_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_commit, "_warned", set())
    few = replace(OPTIONS, max_transactional_tasks=1)
    tasks = [replace(prepared(number, 1), seconds=800.0) for number in range(2)]
    for batch in (0, 1, 2):
        TransactionEnder(few, batch)._warn(tasks)
    assert len(caplog.messages) == 2, "of the number of tasks, and of the timeout"
    assert "2 tasks, each with a separate transaction" in caplog.messages[0]
    assert "a task took 800 s, more than half of" in caplog.messages[1]
    TransactionEnder(replace(few, transactional_id_prefix="other"), 3)._warn(tasks)
    assert len(caplog.messages) == 4
    for _ in range(2):
        TransactionEnder(replace(few, delivery=TRANSACTIONAL), None)._warn(tasks)
    assert len(caplog.messages) == 8
