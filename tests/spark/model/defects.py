"""Former defects of the sink. Each is put back by a patch, and the model must find it. The numbers
and scripts are those of the report that found the defects."""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pytest

from aiokprod.spark import driver_commit, job_report
from aiokprod.spark.commit_messages import TaskReport
from aiokprod.spark.driver_commit import TransactionEnder
from aiokprod.spark.markers import Marker, read_marker
from aiokprod.spark.transactional_task import _Run
from aiokprod.testing.virtual import VirtualTimeError
from tests.spark.model.run import run_seed

Patch = pytest.MonkeyPatch

_batch: Final = contextvars.ContextVar[int]("batch")


def unverified_commit(patch: Patch) -> None:
    """R1: before the first transaction is committed, the driver does not check that all are
    open."""

    async def trusting(
        ender: TransactionEnder, client: Any, tasks: Sequence[Any], deadline: float
    ) -> None:
        return None

    patch.setattr(TransactionEnder, "_verify", trusting)


def older_batch_accepted(patch: Patch) -> None:
    """R2: only the marker of a task causes the rejection of an older batch, not the decision of a
    later batch. A task without rows has no marker."""
    judge = TransactionEnder._judge

    async def lenient(ender: TransactionEnder, *arguments: Any) -> Marker | None:
        assert ender._batch_id is not None
        token = _batch.set(ender._batch_id)
        try:
            return await judge(ender, *arguments)
        finally:
            _batch.reset(token)

    async def read(client: Any, group: str, *arguments: Any) -> Marker | None:
        found = await read_marker(client, group, *arguments)
        now = _batch.get(-1)
        if found is not None and group.endswith(".driver") and found.batch_id > now >= 0:
            return dataclasses.replace(found, batch_id=now - 1)
        return found

    async def unknown(attempt: _Run) -> list[str]:
        return []

    patch.setattr(TransactionEnder, "_judge", lenient)
    patch.setattr(driver_commit, "read_marker", read)
    patch.setattr(_Run, "_former_topic", unknown)


def marker_in_one_topic(patch: Patch) -> None:
    """R2b: the marker of a task is in one of its topics, and the decision is in the first topic by
    name."""
    offsets = Marker.offsets

    def few(marker: Marker, topics: Iterable[str]) -> Any:
        names = sorted(topics)
        return offsets(marker, [names[marker.row_hash % len(names)]])

    patch.setattr(Marker, "offsets", few)


def report_without_skipped(patch: Patch) -> None:
    """R4: the report of a replayed batch lacks ranges and does not mark the skipped tasks."""
    report = job_report.report

    def silent(tasks: Sequence[TaskReport], batch_id: int | None) -> dict[str, Any]:
        found = report(tasks, batch_id)
        for task in found["tasks"]:
            del task["skipped"]
        return found

    patch.setattr(job_report, "report", silent)


DEFECTS: Final[dict[str, tuple[Callable[[Patch], None], str]]] = {
    "R1": (unverified_commit, "lost before"),
    "R2": (older_batch_accepted, "times; committed"),
    "R2b": (marker_in_one_topic, "times; committed"),
    "R4": (report_without_skipped, "report of batch"),
}
"""The patch of each defect, and a text that the verdict of the judge must contain."""


def verdict_on(seed: int) -> str | None:
    """Return the violation that a seed causes, or None."""
    try:
        run_seed(seed)
    except (AssertionError, VirtualTimeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


def search(name: str, seeds: Iterable[int]) -> tuple[int, str] | None:
    """Return the first seed that finds a defect, and its verdict. The seed does not count if it
    also fails without the defect."""
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            put_back, sign = DEFECTS[name]
            put_back(patch)
            verdict = verdict_on(seed)
        if verdict is not None and sign in verdict and verdict_on(seed) is None:
            return seed, verdict
    return None
