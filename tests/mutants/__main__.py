"""Mutation testing: do the tests detect wrong code?

    python -m tests.mutants --count 500 --seed 1 --jobs 2

A seeded sample of mutants, including Cython. Each mutant is tested with tests that run its line,
first with those of its module and the quick ones. Survivors are tested with the other tests of the
line, then with a part of the simulation. Mutants of code that only Spark can run are tested with
their Spark tests (PySpark and Java; a survivor whose Spark tests were not run is reported with the
reason). The first run records which test runs which line. All results are kept in .cache/mutants,
so that an interrupted run can resume.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Final

from tests.mutants.contexts import TestMap, record
from tests.mutants.operators import Mutation
from tests.mutants.plan import GROUPS, ROOT, Group, sample
from tests.mutants.report import REASONS, reasons, report, stale
from tests.mutants.server import Command, Server
from tests.mutants.trial import Bench

CACHE: Final = ROOT / ".cache" / "mutants"
MAPPED: Final = ("engine", "net", "transactions", "security", "foundation", "client", "spark",
                 "arrow", "scenarios", "simulation")  # fmt: skip
_SEARCHES: Final = ("test_history_check.py", "test_simulation.py")
"""Test files that are not mapped, because they start many processes. The simulation is one of the
wider rounds."""
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", ".cache", "__pycache__", ".mypy_cache", ".hypothesis", ".pytest_cache",
    ".ruff_cache", "*.c",
)  # fmt: skip


def tests_by_line(tree: Path) -> TestMap:
    """Return the map of the repository's tests; record the missing parts."""
    found = [
        path.relative_to(ROOT)
        for folder in MAPPED
        for path in sorted((ROOT / "tests" / folder).rglob("test_*.py"))
        if path.name not in _SEARCHES
    ]
    return record(tree, found, CACHE)


def copies(count: int) -> list[Path]:
    """Return copies of the repository. They are kept, so that their compiled files are used
    again."""
    trees = []
    for number in range(count):
        tree = CACHE / "trees" / str(number)
        for path in list(tree.rglob("*.py")):
            if not (ROOT / path.relative_to(tree)).exists():
                path.unlink()
        shutil.copytree(ROOT, tree, ignore=_LEFT_OUT, symlinks=True, dirs_exist_ok=True)
        server = Server(tree)
        output = tree / ".mutant-output"
        arguments = ("-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "tests")
        ended = server.run(Command(arguments, str(output), bytecode=True))
        server.close()
        if ended.status:
            sys.exit(f"the tests cannot be collected:\n{output.read_text()[-4000:]}")
        trees.append(tree)
    return trees


@contextmanager
def benches(trees: Sequence[Path], tests: TestMap) -> Iterator[Queue[Bench]]:
    """Yield a queue with one bench per tree."""
    free: Queue[Bench] = Queue()
    made = [Bench(tree, tests) for tree in trees]
    for bench in made:
        free.put(bench)
    try:
        yield free
    finally:
        for bench in made:
            bench.close()


class Journal:
    """A file with results by the identity of the mutant; new results are appended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self._entries[entry["id"]] = entry

    def result(self, mutation: Mutation) -> str:
        """Return the result of a mutant, or "" if it was not run."""
        return str(self._entries.get(identity(mutation), {"result": ""})["result"])

    def add(self, entry: dict[str, Any]) -> None:
        """Store the result of a mutant, which replaces its previous result."""
        self._entries[entry["id"]] = entry
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def of(self, chosen: Sequence[tuple[Group, Mutation]]) -> list[dict[str, Any]]:
        """Return the existing results of these mutants."""
        known = [self._entries.get(identity(mutation)) for _, mutation in chosen]
        return [entry for entry in known if entry is not None]


def identity(mutation: Mutation) -> str:
    """Return the identity of the mutant in this state of its file: a changed file has new
    mutants."""
    content = (ROOT / mutation.path).read_bytes()
    what = f"{mutation.key} {mutation.text} {mutation.start}".encode()
    return hashlib.sha256(content + what).hexdigest()[:24]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="mutants (default: 500)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--group", choices=[group.name for group in GROUPS], help="only this one")
    parser.add_argument("--minutes", type=float, help="begin no mutant after so many minutes")
    text = "run survivors again: there are new tests"
    parser.add_argument("--again", action="store_true", help=text)
    parser.add_argument("--report", action="store_true", help="print the results so far")
    options = parser.parse_args()

    chosen = [
        pair for pair in sample(options.count, options.seed)
        if options.group in (None, pair[0].name)
    ]  # fmt: skip
    CACHE.mkdir(parents=True, exist_ok=True)
    journal = Journal(CACHE / f"results-{options.seed}.jsonl")
    if not options.report:
        until = time.monotonic() + 60 * (options.minutes or 1e9)
        run(chosen, journal, options.jobs, until, again=options.again)
    known = reasons()
    results = journal.of(chosen)
    text, good = report(results, known)
    print(text)
    for key in stale(known):
        good = False
        print(f"{REASONS.name} names a mutant that does not exist: {key}")
    if len(results) < len(chosen):
        good = False
        print(f"{len(chosen) - len(results)} mutants were not run")
    return 0 if good else 1


def run(
    chosen: Sequence[tuple[Group, Mutation]],
    journal: Journal,
    jobs: int,
    until: float,
    *,
    again: bool,
) -> None:
    """Run the first round of every mutant, then the wider rounds of those that survived it."""
    trees = copies(jobs)
    tests = tests_by_line(trees[0])
    for name in tests.failed:
        print(f"not used, fails without a mutant: {name}")
    with benches(trees, tests) as free, ThreadPoolExecutor(jobs) as pool:
        for first, results in ((True, {"", "survived"} if again else {""}), (False, {"open"})):
            todo = [pair for pair in chosen if journal.result(pair[1]) in results]

            def one(numbered: tuple[int, tuple[Group, Mutation]]) -> None:
                number, (group, mutation) = numbered
                if time.monotonic() > until:
                    return
                bench = free.get()
                try:
                    verdict = bench.judge(group, mutation, first=first)  # noqa: B023
                finally:
                    free.put(bench)
                journal.add(
                    {
                        "id": identity(mutation),
                        "group": group.name,
                        "key": mutation.key,
                        "text": mutation.text,
                        "line": mutation.line,
                        **verdict.__dict__,
                    }
                )
                print(
                    f"{number}/{len(todo)} {verdict.result} {verdict.seconds:.1f} s "  # noqa: B023
                    f"{mutation.path}:{mutation.line} {mutation.kind} {verdict.by}",
                    flush=True,
                )

            list(pool.map(one, enumerate(todo, 1)))


if __name__ == "__main__":
    sys.exit(main())
