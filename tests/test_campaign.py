"""Long seeded runs continue after a stop, and end at the first finding."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from tests import campaign
from tests.campaign import Journal, results


def square(task: tuple[str, int]) -> dict[str, Any]:
    """Do the work of a slice. Spawned processes must be able to import it."""
    what, number = task
    if what == "raise":
        raise AssertionError(f"finding {number}")
    if what == "crash":
        os._exit(9)
    return {"number": number, "square": number * number}


def journal(path: Path) -> Journal[dict[str, Any]]:
    return Journal(path, dict)


def test_a_stopped_run_goes_on_after_the_last_whole_slice(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal"
    tasks = [("square", number) for number in range(6)]
    running = results(tasks, square, 1, journal(path), dict)
    first = [next(running), next(running)]
    running.close()
    with path.open("a") as file:
        file.write('{"code":')  # stopped in the middle of a line
    lines = path.read_text().split("\n")
    again = list(results(tasks, square, 2, journal(path), dict))
    assert again[:2] == first == [{"number": 0, "square": 0}, {"number": 1, "square": 1}]
    assert sorted(found["square"] for found in again) == [0, 1, 4, 9, 16, 25]
    assert len(path.read_text().split("\n")) > len(lines)
    assert all(journal(path).find(task) is not None for task in tasks)
    assert list(results(tasks[:1], None, 1, journal(path), dict)) == again[:1]  # type: ignore[arg-type]


def test_slices_of_another_compiled_core_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal(path).add(("square", 1), {"number": 1})
    assert journal(path).find(("square", 1)) == {"number": 1}
    assert journal(path).find(("square", 2)) is None
    monkeypatch.setattr(campaign, "fingerprint", lambda: 7)
    assert journal(path).find(("square", 1)) is None


@pytest.mark.parametrize(
    ("what", "error"), [("raise", AssertionError), ("crash", BrokenProcessPool)]
)
def test_a_finding_or_a_crash_ends_the_run_and_is_not_in_the_journal(
    what: str, error: type[Exception], tmp_path: Path
) -> None:
    path = tmp_path / "journal"
    with pytest.raises(error):
        list(results([("square", 1), (what, 2)], square, 1, journal(path), dict))
    assert journal(path).find(("square", 1)) is not None
    assert journal(path).find((what, 2)) is None
