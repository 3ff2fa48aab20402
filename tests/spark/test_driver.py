"""The driver's side of transactions: what it ends besides its own batch."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod.errors import Code, KafkaTimeout
from aiokprod.spark import driver
from aiokprod.spark.context import Task
from aiokprod.spark.driver import CommitFailed, TransactionEnder
from aiokprod.spark.failures import NonDeterministicReplay
from aiokprod.spark.markers import Marker
from aiokprod.spark.messages import Prepared, report_fields
from aiokprod.spark.options import EXACTLY_ONCE, TRANSACTIONAL, SealedOptions, SinkOptions
from aiokprod.spark.sending import Range


class Cluster:
    """A session with a cluster that has these open transactions."""

    def __init__(self, *open_ids: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.metadata = SimpleNamespace(snapshot=SimpleNamespace(nodes={1: None}))
        self._open = open_ids
        self.undecided = False  # a transaction of the driver's id is open
        self.waited = 0.0
        self.ended: list[str] = []

    async def ask(self, node_id: int, request: Any, deadline: float) -> Any:
        states = [SimpleNamespace(transactional_id=name) for name in self._open]
        return SimpleNamespace(body=SimpleNamespace(transaction_states=states))

    async def coordinate(
        self, kind: Any, key: str, request: Any, deadline: float, codes: Any = None
    ) -> Any:
        if codes is not None:  # the marker of a group
            if self.undecided:
                self.waited = deadline - self.loop.time()
                raise KafkaTimeout("UNSTABLE_OFFSET_COMMIT")
            return SimpleNamespace(groups=(), error_code=0, topics=())
        self.undecided = False
        self.ended.append(key)
        return SimpleNamespace(error_code=0)


def prepared(number: int, rows: int) -> Prepared:
    task = Task(number, 1, "host", 7, "orders", "run", speculation=False)
    ranges = {("t", 0): Range(0, rows - 1, rows)}
    fields = report_fields(task, rows=rows, size=1, ranges=ranges, seconds=0.1)
    return Prepared(**fields, transactional_id=f"p.orders.{number}", row_hash=rows)


OPTIONS = SinkOptions(kafka=SealedOptions({}), delivery=EXACTLY_ONCE, transactional_id_prefix="p")


def test_orphans_are_tasks_of_this_query_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_swept", {})
    tasks = [prepared(0, 1)]

    async def fenced() -> list[str]:
        cluster = Cluster(
            "p.orders.0",  # just committed
            "p.orders.2",
            "p.orders.driver",
            "p.orders.v2.0",  # of the query "orders.v2"
            "p.orders.v2.driver",
            "p.orders2.3",
            "p.orders",
        )
        ender = TransactionEnder(OPTIONS, 5)
        session: Any = cluster
        await ender._fence_orphans(session, tasks, None, 60.0)
        return cluster.ended

    assert asyncio.run(fenced()) == ["p.orders.2"]


@pytest.mark.parametrize(
    ("decided", "committed", "refused", "fenced"),
    [
        # Three tasks, of which the last one was committed: its rows are in the others now.
        (Marker(7, 9, 9, 3), {"p.orders.2": Marker(7, 3, 3, 0)}, True, ["p.orders.2"]),
        (Marker(7, 9, 9, 3), {"p.orders.2": Marker(6, 3, 3, 0)}, False, ["p.orders.2"]),
        (Marker(7, 9, 9, 4), {}, False, ["p.orders.2", "p.orders.3"]),
        (Marker(6, 9, 9, 3), {"p.orders.2": Marker(6, 3, 3, 0)}, False, []),
        (None, {}, False, []),
    ],
)
def test_replay_of_fewer_tasks_is_refused_if_a_dropped_one_was_committed(
    monkeypatch: pytest.MonkeyPatch,
    decided: Marker | None,
    committed: dict[str, Marker],
    refused: bool,
    fenced: list[str],
) -> None:
    written: list[Marker] = []
    markers = {"p.orders.driver": decided, **committed}

    async def read_marker(session: Any, group: str, deadline: float) -> Marker | None:
        return markers.get(group)

    async def write(ender: Any, group: str, topic: str, decision: Marker) -> None:
        written.append(decision)

    monkeypatch.setattr(driver, "read_marker", read_marker)
    monkeypatch.setattr(TransactionEnder, "_write", write)

    async def decide() -> list[str]:
        session: Any = Cluster()
        tasks = [prepared(0, 4), prepared(1, 5)]
        expected = pytest.raises(NonDeterministicReplay, match="it had 3 tasks and has 2 now")
        with expected if refused else contextlib.nullcontext():
            await TransactionEnder(OPTIONS, 7)._decide(session, tasks, 60.0)
        ended: list[str] = session.ended
        return ended

    assert asyncio.run(decide()) == fenced
    assert written == ([] if refused else [Marker(7, 9, 9, 2)])


async def _not_written(ender: Any, group: str, topic: str, decision: Marker) -> None:
    """Instead of a producer."""


def test_decision_that_nobody_ends_is_ended_by_the_next_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TransactionEnder, "_write", _not_written)

    async def decide() -> Cluster:
        session: Any = Cluster()
        session.undecided = True
        deadline = session.loop.time() + 120
        await TransactionEnder(OPTIONS, 0)._decide(session, [prepared(0, 4)], deadline)
        cluster: Cluster = session
        return cluster

    cluster = asyncio.run(decide())
    assert cluster.ended == ["p.orders.driver"]
    assert 1 < cluster.waited < 5, "long enough for a driver that lives"


@pytest.mark.parametrize(
    ("batch", "missing", "told"),
    [(7, "warn", "warned"), (7, "fail", "refused"), (0, "warn", ""), (0, "fail", "")],
)
def test_batch_of_which_nothing_before_is_recorded(
    batch: int,
    missing: str,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(TransactionEnder, "_write", _not_written)
    options = replace(OPTIONS, missing_markers=missing)

    async def decide() -> None:
        session: Any = Cluster()
        await TransactionEnder(options, batch)._decide(session, [prepared(0, 4)], 60.0)

    with caplog.at_level("WARNING", "aiokprod.spark"):
        if told == "refused":
            with pytest.raises(NonDeterministicReplay, match=r"offsets\.retention\.minutes"):
                asyncio.run(decide())
        else:
            asyncio.run(decide())
    assert ("offsets.retention.minutes" in caplog.text) is (told == "warned")


@pytest.mark.parametrize("delivery", [EXACTLY_ONCE, TRANSACTIONAL])
def test_failed_commit_tells_what_a_replay_does(delivery: str) -> None:
    class Fenced(Cluster):
        async def coordinate(self, *arguments: Any) -> Any:
            return SimpleNamespace(error_code=int(Code.PRODUCER_FENCED))

    async def end() -> None:
        session: Any = Fenced()
        ender = TransactionEnder(replace(OPTIONS, delivery=delivery), 7)
        await ender._end_all(session, [replace(prepared(0, 4), producer_id=5)], 60.0, commit=True)

    with pytest.raises(CommitFailed) as caught:
        asyncio.run(end())
    assert ("are skipped then" in str(caught.value)) is (delivery == EXACTLY_ONCE)
    assert ("writes all rows again" in str(caught.value)) is (delivery == TRANSACTIONAL)
