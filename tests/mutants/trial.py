"""One mutant against the tests that should notice it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.contexts import TestMap
from tests.mutants.operators import Mutation
from tests.mutants.plan import Group

FIRST_S: Final = 12.0
"""Seconds that the first round of tests takes without a mutant; most mutants end there."""
SECOND_S: Final = 60.0
"""The same for the second round."""
WIDER_S: Final = 400.0
"""Longest time for one command of the last round."""
_NO_TESTS: Final = 5


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant.

    Attributes:
        result: "killed", "hung" (killed by a test that did not end), "survived" or "invalid" (it
            cannot be compiled, so it is no mutant).
        by: the round and the first test that failed.
        tests: how many tests run the mutated line.
        seconds: how long all rounds took.
    """

    result: str
    by: str
    tests: int
    seconds: float


class Bench:
    """A copy of the repository in which one mutant at a time is put."""

    def __init__(self, tree: Path, tests: TestMap) -> None:
        self._tree = tree
        self._tests = tests

    def judge(self, group: Group, mutation: Mutation) -> Verdict:
        started = time.monotonic()
        path = self._tree / mutation.path
        source = path.read_bytes()
        covering = self._tests.covering(mutation.path, mutation.line, mutation.last_line)
        path.write_bytes(mutation.apply(source))
        try:
            result, by = self._rounds(group, mutation, covering)
        finally:
            path.write_bytes(source)
            if path.suffix == ".pyx":
                self._compile()
        return Verdict(result, by, len(covering), time.monotonic() - started)

    def _rounds(self, group: Group, mutation: Mutation, covering: set[str]) -> tuple[str, str]:
        if mutation.path.endswith(".pyx"):
            if self._compile():
                return "invalid", "does not compile"
            first: list[str] = []
            rounds = [("own", [path], WIDER_S) for path in group.own]
        else:
            ordered = self._ordered(mutation, covering)
            first = self._take(ordered, FIRST_S)
            second = self._take(ordered[len(first) :], SECOND_S)
            rounds = [("first", first, 4 * FIRST_S + 30), ("second", second, 3 * SECOND_S + 30)]
        for name, tests, limit in rounds:
            if tests:
                arguments = ("-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider")
                result, by = self._run((*arguments, *tests), limit)
                if result != "survived":
                    return result, f"{name}: {by}"
        for command in group.wider:
            result, by = self._run(command, WIDER_S)
            if result != "survived":
                return result, f"wider: {by}"
        return "survived", ""

    def _ordered(self, mutation: Mutation, covering: set[str]) -> list[str]:
        """Tests of the module itself first, then the quick ones."""
        stem = Path(mutation.path).stem

        def rank(test: str) -> tuple[bool, float]:
            return stem not in Path(test.split("::")[0]).stem, self._tests.durations[test]

        return sorted(covering, key=rank)

    def _take(self, tests: Sequence[str], seconds: float) -> list[str]:
        taken = []
        for test in tests:
            seconds -= self._tests.durations[test]
            if seconds < 0:
                break
            taken.append(test)
        return taken

    def _compile(self) -> bool:
        """Build the extensions again; True if that failed."""
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
        environment = {**os.environ, "CFLAGS": "-O0 -g0"}
        done = subprocess.run(
            command, cwd=self._tree, env=environment, capture_output=True, check=False
        )
        return done.returncode != 0

    def _run(self, arguments: Sequence[str], limit: float) -> tuple[str, str]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(self._tree / ".hypothesis"),
        }
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "hung", " ".join(arguments[-1:])
        if process.returncode in (0, _NO_TESTS):
            return "survived", ""
        return "killed", _first_failure(output) or f"exit status {process.returncode}"


def _first_failure(output: str) -> str:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" - ")[0].split(" ", 1)[1]
    return ""
