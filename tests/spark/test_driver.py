"""The driver's side of transactions: what it ends besides its own batch."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod.spark import driver
from aiokprod.spark.context import Task
from aiokprod.spark.driver import TransactionEnder
from aiokprod.spark.messages import Prepared, report_fields
from aiokprod.spark.options import EXACTLY_ONCE, SealedOptions, SinkOptions


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


def test_orphans_are_tasks_of_this_query_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_swept", {})
    options = SinkOptions(
        kafka=SealedOptions({}), delivery=EXACTLY_ONCE, transactional_id_prefix="p"
    )
    task = Task(0, 1, "host", 7, "orders", "run", speculation=False)
    fields = report_fields(task, rows=1, size=1, ranges={}, seconds=0.1)
    tasks = [Prepared(**fields, transactional_id="p.orders.0")]

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
        ender = TransactionEnder(options, 5)
        session: Any = cluster
        await ender._fence_orphans(session, tasks, None, 60.0)
        return cluster.ended

    assert asyncio.run(fenced()) == ["p.orders.2"]
