"""Mutation testing: would the tests notice wrong code?

    python -m tests.mutants --count 500 --seed 1 --jobs 2

A seeded sample of mutants, Cython included. Each meets the tests that run its line, those of its
module first, then wider ones (a part of the simulation, the whole of a group's tests). The first
run records which test runs which line, which takes as long as the tests under coverage do.
Results are kept in .cache/mutants, so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, Final

from tests.mutants.contexts import DURATIONS, TestMap
from tests.mutants.operators import Mutation
from tests.mutants.plan import GROUPS, ROOT, Group, sample
from tests.mutants.report import reasons, report
from tests.mutants.trial import Bench

CACHE: Final = ROOT / ".cache" / "mutants"
MAPPED: Final = ("engine", "net", "faults", "transactions", "security", "foundation", "spark",
                 "tables", "hot", "wire")  # fmt: skip
# They run the whole tool chain again, or prove something about the tests themselves.
NOT_MAPPED: Final = ("tests/spark/integration",)
_LEFT_OUT: Final = shutil.ignore_patterns(
    ".git", ".venv", ".cache", "__pycache__", ".mypy_cache", ".hypothesis", ".pytest_cache",
    ".ruff_cache",
)  # fmt: skip


def tests_by_line(*, fresh: bool) -> TestMap:
    """The map of the repository's tests, recorded if there is none."""
    data, durations = CACHE / "coverage", CACHE / "durations"
    if fresh or not (data.exists() and durations.exists()):
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob("coverage*"):
            old.unlink()
        durations.unlink(missing_ok=True)
        configuration = CACHE / "coveragerc"
        configuration.write_text(f"[run]\nsource = aiokprod\ndata_file = {data}\n")
        environment = {**os.environ, DURATIONS: str(durations)}
        for part in MAPPED:
            print(f"recording which lines the tests of {part} run", flush=True)
            done = subprocess.run(
                [sys.executable, "-m", "coverage", "run", "--append", f"--rcfile={configuration}",
                 "-m", "pytest", "-q", "-p", "tests.mutants.contexts", f"tests/{part}",
                 *(f"--ignore={path}" for path in NOT_MAPPED)],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                durations.unlink(missing_ok=True)
                sys.exit(f"the tests of {part} fail without a mutant:\n{done.stdout[-4000:]}")
    return TestMap(data, durations)


@contextmanager
def benches(jobs: int, tests: TestMap) -> Iterator[Queue[Bench]]:
    """Copies of the repository, one for each job."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        free: Queue[Bench] = Queue()
        for number in range(jobs):
            tree = Path(folder) / str(number)
            shutil.copytree(ROOT, tree, ignore=_LEFT_OUT, symlinks=True)
            free.put(Bench(tree, tests))
        yield free


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="mutants (default: 500)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--group", choices=[group.name for group in GROUPS], help="only this one")
    parser.add_argument("--minutes", type=float, help="begin no mutant after so many minutes")
    parser.add_argument("--fresh", action="store_true", help="record the map of tests again")
    parser.add_argument("--report", action="store_true", help="print the results so far")
    options = parser.parse_args()

    chosen = [
        pair for pair in sample(options.count, options.seed)
        if options.group in (None, pair[0].name)
    ]  # fmt: skip
    kept = CACHE / f"results-{options.seed}.jsonl"
    done = _read(kept)
    if not options.report:
        tests = tests_by_line(fresh=options.fresh)
        until = time.monotonic() + 60 * (options.minutes or 1e9)
        todo = [pair for pair in chosen if _identity(pair[1]) not in done]
        with benches(options.jobs, tests) as free, kept.open("a") as file:

            def one(pair: tuple[Group, Mutation]) -> None:
                if time.monotonic() > until:
                    return
                group, mutation = pair
                bench = free.get()
                try:
                    verdict = bench.judge(group, mutation)
                finally:
                    free.put(bench)
                entry = {
                    "id": _identity(mutation),
                    "group": group.name,
                    "key": mutation.key,
                    "text": mutation.text,
                    "line": mutation.line,
                    **verdict.__dict__,
                }
                done[entry["id"]] = entry
                file.write(json.dumps(entry) + "\n")
                file.flush()
                print(f"{len(done)}/{len(chosen)} {verdict.result} {verdict.seconds:.0f} s "
                      f"{mutation.path}:{mutation.line} {mutation.kind} {verdict.by}", flush=True)

            with ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(one, todo))
    results = [done[_identity(m)] for _, m in chosen if _identity(m) in done]
    text, good = report(results, reasons())
    print(text)
    if len(results) < len(chosen):
        print(f"{len(chosen) - len(results)} mutants were not run")
        return 1
    return 0 if good else 1


def _identity(mutation: Mutation) -> str:
    """Of the mutant in this state of its file: a file that changed has new mutants."""
    content = (ROOT / mutation.path).read_bytes()
    what = f"{mutation.key} {mutation.text} {mutation.start}".encode()
    return hashlib.sha256(content + what).hexdigest()[:24]


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry["id"]: entry for entry in entries}


if __name__ == "__main__":
    sys.exit(main())
