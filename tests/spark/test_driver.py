"""The driver's side of transactions: what it ends besides its own batch."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod.spark import driver
from aiokprod.spark.context import Task
from aiokprod.spark.driver import TransactionEnder
from aiokprod.spark.failures import NonDeterministicReplay
from aiokprod.spark.markers import Marker
from aiokprod.spark.messages import Prepared, report_fields
from aiokprod.spark.options import EXACTLY_ONCE, SealedOptions, SinkOptions
from aiokprod.spark.sending import Range


class Cluster:
    """A session with a cluster that has these open transactions."""

    def __init__(self, *open_ids: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.metadata = SimpleNamespace(snapshot=SimpleNamespace(nodes={1: None}))
        self._open = open_ids
        self.ended: list[str] = []

    async def ask(self, node_id: int, request: Any, deadline: float) -> Any:
        states = [SimpleNamespace(transactional_id=name) for name in self._open]
        return SimpleNamespace(body=SimpleNamespace(transaction_states=states))

    async def coordinate(self, kind: Any, key: str, request: Any, deadline: float) -> Any:
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
