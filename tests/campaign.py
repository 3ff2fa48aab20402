"""Long seeded runs in slices on several processes, with a journal to resume after an
interruption."""

from __future__ import annotations

import json
import multiprocessing
import zlib
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, Generic, TypeVar

Task = TypeVar("Task", bound=tuple[Any, ...])
Result = TypeVar("Result")


class Journal(Generic[Result]):
    """The journal of complete slices without a finding, one line of JSON each.

    Lines of another compiled core (sources of aiokprod/_core) are ignored.
    """

    def __init__(self, path: Path, decode: Callable[[dict[str, Any]], Result]) -> None:
        self._path = path
        self._code = fingerprint()
        self._known: dict[str, Result] = {}
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # truncated when the run was stopped
            if entry["code"] == self._code:
                self._known[json.dumps(entry["task"])] = decode(entry["result"])

    def find(self, task: tuple[Any, ...]) -> Result | None:
        """Return the stored result of a slice, or None."""
        return self._known.get(json.dumps(task))

    def add(self, task: tuple[Any, ...], result: dict[str, Any]) -> None:
        """Store the result of a completed slice."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"code": self._code, "task": task, "result": result}
        with self._path.open("a") as file:
            file.write("\n" + json.dumps(entry) + "\n")  # the previous line may be truncated


def fingerprint() -> int:
    """Return a checksum over the sources of the compiled modules."""
    checksum = 0
    for path in sorted((Path(__file__).parents[1] / "aiokprod").rglob("*.p[yx][xd]")):
        checksum = zlib.crc32(path.read_bytes(), zlib.crc32(path.name.encode(), checksum))
    return checksum


def results(
    tasks: Iterable[Task],
    work: Callable[[Task], Result],
    jobs: int,
    journal: Journal[Result] | None,
    encode: Callable[[Result], dict[str, Any]],
) -> Generator[Result, None, None]:
    """Yield the results of all slices in the order in which they finish; results in the journal are
    yielded at once.

    At most `jobs` slices are started and not finished, so that an interruption loses little.

    Raises:
        BrokenProcessPool: a process crashed.
        Exception: as raised by `work`.
    """
    left = iter(tasks)
    running: dict[Future[Result], Task] = {}
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        more = True
        while more or running:
            while more and len(running) < jobs:
                task = next(left, None)
                if task is None:
                    more = False
                elif journal is not None and (known := journal.find(task)) is not None:
                    yield known
                else:
                    running[pool.submit(work, task)] = task
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                result = future.result()
                if journal is not None:
                    journal.add(task, encode(result))
                yield result
