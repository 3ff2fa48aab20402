"""The protocol of the Spark sink in virtual time: the first seeds, and tests that the judge finds
known mistakes.

`AIOKPROD_SPARK_SEEDS=0-2000` selects other seeds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiokprod.spark import driver_commit
from aiokprod.spark.commit_messages import Prepared
from aiokprod.spark.driver_commit import TransactionEnder
from aiokprod.spark.markers import Marker
from aiokprod.spark.transactional_task import _Run
from tests.simulation.parallel_seeds import parsed
from tests.spark.model import __main__ as command
from tests.spark.model.defects import DEFECTS, search, verdict_on
from tests.spark.model.parallel import CHUNK, Totals, run_chunk
from tests.spark.model.plan import ACTIONS, FAULTS, Settings, plan_of
from tests.spark.model.run import run_seed

ROOT = Path(__file__).parents[3]
SEEDS = parsed(os.environ.get("AIOKPROD_SPARK_SEEDS", "0-100"))
PROGRAM = """
from tests.spark.model.run import run_seed
print([run_seed(seed).trace for seed in (2, 11)])
"""


@pytest.mark.parametrize("first", SEEDS[::CHUNK])
def test_seeds(first: int) -> None:
    totals = run_chunk(range(first, min(first + CHUNK, SEEDS.stop)))
    assert not totals.broken, "\n".join(totals.broken.values())
    assert totals.rows > 0


def test_equal_seeds_give_equal_runs_in_any_process() -> None:
    environment = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONHASHSEED="7")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str([run_seed(seed).trace for seed in (2, 11)])


def test_seeds_draw_all_faults_and_actions() -> None:
    menus = [plan_of(seed).menu for seed in range(200)]
    for name in (*FAULTS, *ACTIONS):
        assert any(name in menu for menu in menus), name
    assert any(not plan_of(seed).streaming for seed in range(50))


def test_replayed_rows_are_split_as_before() -> None:
    plan = plan_of(1)
    for split in ("round", "range", "skew", "topic"):
        settings = Settings(3, split)
        parts = plan.tasks(range(5, 17), settings)
        assert parts == plan.tasks(range(5, 17), settings)
        assert sorted(number for part in parts for number in part) == list(range(5, 17))


# -- the judge ------------------------------------------------------------------------------------


FOUND = {"R1": 30, "R2": 38, "R2b": 1486, "R4": 6}
"""A seed that finds each defect. `python -m tests.spark.model --detect` searches from seed 0 on."""


@pytest.mark.parametrize("name", list(DEFECTS))
def test_defect_that_is_put_back_is_found(name: str) -> None:
    assert search(name, [FOUND[name]]) is not None


def no_marker(patch: pytest.MonkeyPatch) -> None:
    """Remove the markers, so that a replay cannot detect which tasks were committed."""

    async def unmarked(*arguments: Any) -> tuple[str, ...]:
        return ()

    patch.setattr(_Run, "_mark", unmarked)


def markers_not_read(patch: pytest.MonkeyPatch) -> None:
    """Ignore the markers, so that a replay writes all rows again."""

    async def unread(*arguments: Any) -> Marker | None:
        return None

    patch.setattr(_Run, "_marker", unread)


def half_committed(patch: pytest.MonkeyPatch) -> None:
    """Leave out the last task of a batch in the commit."""
    all_open = driver_commit._open

    def most(tasks: Any) -> list[Prepared]:
        found = all_open(tasks)
        return found[:-1] if len(found) > 1 else found

    patch.setattr(driver_commit, "_open", most)


def abort_commits(patch: pytest.MonkeyPatch) -> None:
    """Make the driver commit where it should abort."""
    end_all = TransactionEnder._end_all

    async def commit(ender: Any, client: Any, tasks: Any, deadline: float, *, commit: bool) -> None:
        await end_all(ender, client, tasks, deadline, commit=True)

    patch.setattr(TransactionEnder, "_end_all", commit)


@pytest.mark.parametrize("mistake", [no_marker, markers_not_read, half_committed, abort_commits])
def test_mistake_in_the_protocol_is_found(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert any(verdict_on(seed) is not None for seed in range(10))


# -- the command line -----------------------------------------------------------------------------


def test_command_ends_with_1_if_a_seed_breaks_a_promise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["model", "--seeds", "2-4", "--jobs", "1"])
    assert command.main() == 0
    assert "2 seeds" in capsys.readouterr().out
    half_committed(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["model", "--seeds", "0-10", "--jobs", "1"])
    assert command.main() == 1
    assert "--- seed" in capsys.readouterr().out


def test_command_ends_with_1_if_a_defect_survives(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = str(FOUND["R4"])
    monkeypatch.setattr(sys, "argv", ["model", "--seeds", seed, "--detect", "R4"])
    assert command.main() == 0
    assert f"R4: seed {seed}" in capsys.readouterr().out
    monkeypatch.setitem(DEFECTS, "R4", (lambda patch: None, "report of batch"))
    assert command.main() == 1
    assert "R4: survived 1 seeds" in capsys.readouterr().out


def test_sums_of_parts_are_the_sum_of_all() -> None:
    both, first = Totals(), Totals()
    first.add(1, run_seed(2))
    second = Totals()
    second.add(2, "broken")
    both.merge(first)
    both.merge(second)
    assert (both.seeds, both.broken, both.hash) == (2, {2: "broken"}, first.hash)
    assert "violations: 1 [2]" in str(both)
