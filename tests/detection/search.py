"""Measures how many seeds it takes to find a bug."""

from __future__ import annotations

import contextlib
import gc
import inspect
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest

from aiokprod.testing.virtual import VirtualTimeError
from tests.detection import exemption_bugs, own_bugs  # noqa: F401  (enter theirs)
from tests.detection.bugs import BUGS, SIMULATION, TRANSACTIONS, WHERE
from tests.liveness_check import check_passes
from tests.simulation.oracle import Violation
from tests.simulation.run import run_seed
from tests.transactions import test_simulation as transactions


@dataclass(frozen=True)
class Finding:
    """The first seed that found a bug.

    Attributes:
        seed: None if no seed found it.
        seeds_run: seeds until then, including that one.
        verdict: the violation.
        again: how many of all executed seeds find the bug (with `--all`).
    """

    name: str
    seed: int | None
    seeds_run: int
    verdict: str
    seconds: float
    again: int = 0


def search(name: str, first: int, most: int, sample: int) -> Finding:
    """Run seeds with one bug until one finds it, then up to `sample` seeds to count the others."""
    started = time.monotonic()
    where = WHERE[name]
    if where not in (SIMULATION, TRANSACTIONS):
        return _search_tests(name, where)
    gc.disable()
    found: tuple[int, str] | None = None
    hits = seeds_run = 0
    for seed in range(first, first + most):
        if found is not None and seeds_run >= sample:
            break
        seeds_run += 1
        with pytest.MonkeyPatch.context() as patch:
            put_back(name, patch)
            verdict = verdict_on(seed, where)
        # A failure that also occurs without the bug does not count.
        if verdict is not None and verdict_on(seed, where) is None:
            hits += 1
            found = found or (seed, verdict)
        if not seeds_run % 20:
            gc.collect()
    gc.enable()
    seconds = time.monotonic() - started
    if found is None:
        return Finding(name, None, seeds_run, "", seconds)
    return Finding(name, found[0], seeds_run, found[1], seconds, hits)


class _FittingPatch:
    """A `MonkeyPatch` that refuses functions with another signature than the original: a bug must
    be found by its effect on records, not by a TypeError."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def setattr(self, target: Any, name: str, value: Any) -> None:
        old = inspect.getattr_static(target, name)
        if isinstance(old, property) or isinstance(value, property):
            fits = type(old) is type(value)
        else:
            fits = _fits(getattr(target, name), value)
        if not fits:
            raise TypeError(f"{target}.{name} has other parameters now: mend the bug")
        self._patch.setattr(target, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._patch, name)


def _fits(old: Any, new: Any) -> bool:
    if not callable(old):
        return not callable(new)
    try:
        wanted, offered = (inspect.signature(one).parameters.values() for one in (old, new))
    except ValueError:  # compiled without a signature
        return True
    kinds = {one.kind for one in offered}
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}

    def count(parameters: Any) -> int:
        return sum(one.kind in positional for one in parameters)

    def named(parameters: Any) -> set[str]:
        return {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}

    return (inspect.Parameter.VAR_POSITIONAL in kinds or count(wanted) == count(offered)) and (
        inspect.Parameter.VAR_KEYWORD in kinds or named(wanted) == named(offered)
    )


def put_back(name: str, patch: pytest.MonkeyPatch) -> None:
    """Introduce this bug into the engine until `patch` is undone."""
    BUGS[name](_FittingPatch(patch))  # type: ignore[arg-type]


def searched(task: tuple[str, int, int, int]) -> Finding:
    """Run `search` in a process of a pool."""
    return search(*task)


def verdict_on(seed: int, where: str = SIMULATION) -> str | None:
    """Return the violation in a seed, or None. Raise any error that is not a broken promise."""
    try:
        if where == TRANSACTIONS:
            transactions.play(seed)
        else:
            run_seed(seed)
    except (Violation, VirtualTimeError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    except AssertionError as error:
        return f"AssertionError: {str(error) or 'promise broken'}".splitlines()[0]
    finally:
        with contextlib.suppress(AssertionError):
            check_passes()  # drop the findings about the bug
    return None


def _search_tests(name: str, where: str) -> Finding:
    """Return whether tests fail with a bug and pass without it, in separate processes."""
    started = time.monotonic()
    good = _pytest("", where)
    done = _pytest(name, where)
    seconds = time.monotonic() - started
    if good.returncode != 0 or done.returncode != 1:
        return Finding(name, None, 0, f"pytest ended with {done.returncode}", seconds)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    return Finding(name, 0, 1, failed[0] if failed else where, seconds, 1)


def _pytest(name: str, where: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.detection.with_bug", name, where]
    return subprocess.run(command, capture_output=True, text=True, check=False)
