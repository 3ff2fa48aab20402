"""Records which test runs which line, and how long it takes.

Each file is recorded separately: an interrupted run continues with the next file, and a changed
test file is recorded alone. Of a parametrised test a few cases are recorded, because the other
cases mostly run the same lines.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import coverage
import pytest

from tests.mutants.server import Command, Server

CASES: Final = 3
"""Cases of a parametrised test that are recorded, spread evenly."""
_TIMES: Final = "AIOKPROD_MUTANTS_TIMES"
"""Environment variable with the path of the plug-in's output file."""


@dataclass(frozen=True)
class Recorded:
    """One case of a test.

    Attributes:
        name: pytest's node id.
        seconds: CPU time under the tracer.
        cases: how many cases the test has.
    """

    name: str
    seconds: float
    cases: int

    @property
    def function(self) -> str:
        """The node id without the case."""
        return self.name.split("[")[0]

    @property
    def file(self) -> str:
        """The test file."""
        return self.name.split("::")[0]


# -- the plug-in, in the process that records -----------------------------------------------


class Recorder:
    """pytest hooks that record one coverage context per test."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._cases: dict[str, int] = {}
        self._seconds: dict[str, float] = {}
        self._failed: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Deselect slow tests and all but a few cases."""
        functions: dict[str, list[pytest.Item]] = {}
        for item in items:
            if item.get_closest_marker("slow") is None:
                functions.setdefault(item.nodeid.split("[")[0], []).append(item)
        kept: list[pytest.Item] = []
        for name, cases in functions.items():
            self._cases[name] = len(cases)
            step = max(1, (len(cases) - 1) / (CASES - 1))
            kept += [cases[round(n * step)] for n in range(CASES) if round(n * step) < len(cases)]
        items[:] = kept

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        measured = coverage.Coverage.current()
        assert measured is not None
        measured.switch_context(item.nodeid)
        started = time.process_time()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = time.process_time() - started
            measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        told = {
            "tests": [
                (name, seconds, self._cases[name.split("[")[0]])
                for name, seconds in self._seconds.items()
                if name not in self._failed
            ],
            "failed": sorted(self._failed),
        }
        Path(self._path).write_text(json.dumps(told))


def pytest_configure(config: pytest.Config) -> None:
    """Register the hooks."""
    config.pluginmanager.register(Recorder(os.environ[_TIMES]), "mutants-recorder")


# -- the map --------------------------------------------------------------------------------


class TestMap:
    """The recorded data of test files.

    Attributes:
        tests: recorded tests by node id.
        failed: tests that fail without a mutant, and therefore cannot judge one.
    """

    __test__ = False

    def __init__(self, parts: list[Path]) -> None:
        self.tests: dict[str, Recorded] = {}
        self.failed: list[str] = []
        self._parts = parts
        self._lines: dict[str, dict[int, set[str]]] = {}
        for part in parts:
            told = json.loads(part.read_text())
            self.tests |= {name: Recorded(name, *rest) for name, *rest in told["tests"]}
            self.failed += told["failed"]

    def covering(self, path: str, first: int, last: int) -> set[str]:
        """Return the tests that run any of the lines `first` to `last` of the file, given by its
        path in the repository.

        For lines that run at the import of the module, return all tests that run any line of the
        file.
        """
        lines = self._lines.get(path)
        if lines is None:
            lines = self._lines[path] = self._read(path)
        found: set[str] = set()
        for number in range(first, last + 1):
            found |= lines.get(number, set())
        if "" in found:
            found = set().union(*lines.values())
        return found & self.tests.keys()

    def files(self) -> dict[str, float]:
        """Return the test files, and the CPU seconds of all their cases."""
        seconds: dict[str, float] = {}
        recorded: dict[str, int] = {}
        for test in self.tests.values():
            recorded[test.function] = recorded.get(test.function, 0) + 1
        for test in self.tests.values():
            share = test.seconds * test.cases / recorded[test.function]
            seconds[test.file] = seconds.get(test.file, 0.0) + share
        return seconds

    def _read(self, path: str) -> dict[int, set[str]]:
        lines: dict[int, set[str]] = {}
        for part in self._parts:
            data = coverage.CoverageData(str(part.with_suffix(".coverage")))
            data.read()
            for name in data.measured_files():
                if name.endswith("/" + path):
                    for number, tests in data.contexts_by_lineno(name).items():
                        lines.setdefault(number, set()).update(tests)
            data.close()
        return lines


def record(tree: Path, test_files: list[Path], cache: Path) -> TestMap:
    """Return the map of these test files. Record those that the cache lacks for the current state.

    Args:
        tree: the repository, or a copy of it, in which the tests run.
        test_files: paths relative to the tree.
        cache: folder of earlier recordings.
    """
    sources = hashlib.sha256()
    for path in sorted((tree / "aiokprod").rglob("*.py*")):
        if path.suffix in (".py", ".pyx", ".pxd") and "testing" not in path.parts:
            sources.update(path.read_bytes())
    folder = cache / f"map-{sources.hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    server = None
    for number, path in enumerate(test_files, 1):
        digest = hashlib.sha256((tree / path).read_bytes()).hexdigest()[:12]
        part = folder / f"{'.'.join(path.with_suffix('').parts)}.{digest}.json"
        parts.append(part)
        if not part.exists():
            server = server or Server(tree)
            seconds = _record(server, path, part)
            print(f"recorded {number}/{len(test_files)} {path} {seconds:.0f} s", flush=True)
    if server is not None:
        server.close()
    return TestMap(parts)


def _record(server: Server, path: Path, part: Path) -> float:
    fresh, lines = part.with_suffix(".new"), part.with_suffix(".coverage")
    lines.unlink(missing_ok=True)
    output = part.with_suffix(".txt")
    arguments = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", __name__, str(path))
    ended = server.run(
        Command(
            arguments,
            str(output),
            cpu=1200,
            idle=300.0,
            coverage=str(lines),
            bytecode=True,
            environment={_TIMES: str(fresh)},
        )
    )
    if ended.hung or ended.status not in (0, 1, 5) or not fresh.exists():
        raise SystemExit(f"{path} cannot be recorded, see {output}:\n{output.read_text()[-2000:]}")
    fresh.rename(part)
    return ended.cpu


__all__ = ["Recorded", "TestMap", "record"]
