"""Which test runs which line: a pytest plug-in that records it, and the map that is read back.

    python -m coverage run -m pytest -p tests.mutants.contexts tests/engine ...

Coverage's own `dynamic_context = test_function` cannot tell two tests of the same name apart and
knows no durations.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import coverage
import pytest

DURATIONS: Final = "AIOKPROD_TEST_DURATIONS"
"""Environment variable: the file that the plug-in adds its durations to, a JSON line per test."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Switch coverage to the context of the test, parameters left out."""
    name = item.nodeid.split("[")[0]
    measured = coverage.Coverage.current()
    if measured is not None:
        measured.switch_context(name)
    started = time.perf_counter()
    try:
        return (yield)
    finally:
        seconds = time.perf_counter() - started
        if measured is not None:
            measured.switch_context("")
        if path := os.environ.get(DURATIONS):
            with open(path, "a") as file:
                file.write(json.dumps([name, seconds]) + "\n")


class TestMap:
    """Tests by line, and how long each takes.

    Attributes:
        durations: seconds of each test, all its parameters together.
    """

    __test__ = False

    def __init__(self, data: Path, durations: Path) -> None:
        self.durations: dict[str, float] = {}
        for line in durations.read_text().splitlines():
            name, seconds = json.loads(line)
            self.durations[name] = self.durations.get(name, 0.0) + seconds
        self._lines: dict[str, dict[int, set[str]]] = {}
        self._data = coverage.CoverageData(str(data))
        self._data.read()
        self._files = {Path(name).as_posix(): name for name in self._data.measured_files()}

    def covering(self, path: str, first: int, last: int) -> set[str]:
        """Tests that run a line of `first` to `last` of the file, by the path in the repository."""
        lines = self._lines.get(path)
        if lines is None:
            lines = self._lines[path] = self._read(path)
        found: set[str] = set()
        for number in range(first, last + 1):
            found |= lines.get(number, set())
        return found & self.durations.keys()

    def _read(self, path: str) -> dict[int, set[str]]:
        for known, name in self._files.items():
            if known == path or known.endswith("/" + path):
                contexts = self._data.contexts_by_lineno(name)
                return {number: set(tests) - {""} for number, tests in contexts.items()}
        return {}


__all__ = ["DURATIONS", "TestMap"]
