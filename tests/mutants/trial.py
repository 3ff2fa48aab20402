"""One mutant against the tests that should detect it."""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.contexts import Recorded, TestMap
from tests.mutants.operators import Mutation
from tests.mutants.plan import SPARK_TESTS, Group
from tests.mutants.server import Command, Ended, Server

NEAR_S: Final = 8.0
"""CPU seconds of each part of the first round without a mutant, under the tracer."""
NEAR_FILES: Final = 6
"""Number of test files, besides those of the module itself, from which the first round takes tests:
those with the most tests that run the line. Collecting a file takes longer than many tests."""
FAR_S: Final = 40.0
"""Like `NEAR_S`, for each part of the second round."""
_SLACK: Final = 1.5
_START_S: Final = 6.0
"""A round may take `_SLACK` times the recorded CPU seconds, plus the seconds of a start. The tracer
causes half of the recorded time, so this is about three times what the tests need."""
_WIDER_S: Final = 600
_SPARK_IDLE_S: Final = 300.0
_TESTS_FAILED: Final = 1
_NO_TESTS: Final = 5
_ALL: Final = ("-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider")
_PYTEST: Final = (*_ALL, "-m", "not slow")


@dataclass(frozen=True)
class Round:
    """Tests that run in one process.

    Attributes:
        name: name in the report.
        arguments: arguments of the interpreter.
        cpu: CPU seconds after which the tests count as hung.
    """

    name: str
    arguments: tuple[str, ...]
    cpu: int


@dataclass(frozen=True)
class Verdict:
    """The result of a mutant.

    Attributes:
        result: "killed", "hung" (killed by a test that did not end), "survived", "open" (survived
            the first round, and the other rounds have not run) or "invalid" (it cannot be
            compiled).
        by: the round and the first test that failed; for a survivor, why its Spark round gave no
            verdict, if so.
        tests: number of tests that run the mutated line; -1 for Cython, where it is not recorded.
        seconds: CPU time of all rounds.
    """

    result: str
    by: str
    tests: int
    seconds: float


class Bench:
    """A copy of the repository in which one mutant is tested at a time."""

    def __init__(
        self, tree: Path, tests: TestMap, spark_tests: Mapping[str, str] = SPARK_TESTS
    ) -> None:
        self._spark_tests = spark_tests
        self._tree = tree
        self._tests = tests
        self._server = Server(tree)
        self._output = tree / ".mutant-output"

    def close(self) -> None:
        """End the process in the tree."""
        self._server.close()

    def judge(self, group: Group, mutation: Mutation, *, first: bool) -> Verdict:
        """Run the first round, or all other rounds."""
        covering: set[str] | None = None
        if not mutation.path.endswith(".pyx"):
            covering = self._tests.covering(mutation.path, mutation.line, mutation.last_line)
        quick, wider = self._rounds(group, mutation, covering)
        count = -1 if covering is None else len(covering)
        seconds = 0.0
        with self._put(mutation) as valid:
            if not valid:
                return Verdict("invalid", "does not compile", count, seconds)
            for one in quick if first else wider:
                result, by, used = self._meet(one)
                seconds += used
                if result:
                    return Verdict(result, by, count, seconds)
        if first:
            return Verdict("open", "", count, seconds)
        if mutation.path in self._spark_tests:
            return self._judge_on_spark(mutation, count, seconds)
        return Verdict("survived", "", count, seconds)

    def _meet(self, one: Round) -> tuple[str, str, float]:
        """Run a round against the mutant in the tree. Return its result ("" if none), its cause,
        and the CPU seconds.

        A test that fails has to fail again when it runs alone. Otherwise the mutant was not the
        reason: the test is left out, and the other tests run again.
        """
        arguments, seconds = one.arguments, 0.0
        while True:
            ended = self._server.run(Command(arguments, str(self._output), cpu=one.cpu))
            seconds += ended.cpu
            if ended.hung:
                return "hung", one.name, seconds
            if ended.status in (0, _NO_TESTS):
                return "", "", seconds
            told = _first_failure(self._output.read_text(errors="replace"))
            if "::" not in told:
                by = told or f"exit status {ended.status}"
                return "killed", f"{one.name}: {by}", seconds
            alone = self._server.run(Command((*_PYTEST, told), str(self._output), cpu=one.cpu))
            seconds += alone.cpu
            if alone.hung or alone.status not in (0, _NO_TESTS):
                return "killed", f"{one.name}: {told}", seconds
            arguments = (*arguments, "--deselect", told)

    def _judge_on_spark(self, mutation: Mutation, count: int, seconds: float) -> Verdict:
        """Run the module's Spark tests.

        A JVM may fail to start, run out of memory or be killed for reasons of its own. Therefore
        the mutant counts as detected only if a test fails with it and passes without it. Nothing
        else gives a verdict, such as an error of a fixture or a process that does not end.
        """
        missing = missing_for_spark()
        if missing:
            return Verdict("survived", f"spark: not run, {missing}", count, seconds)
        with self._put(mutation):
            ended = self._on_spark(self._spark_tests[mutation.path])
        seconds += ended.cpu
        if ended.status == 0:
            return Verdict("survived", "", count, seconds)
        output = self._output.read_text(errors="replace")
        failed = _first_failure(output, kinds=("FAILED",))
        if ended.hung or ended.status != _TESTS_FAILED or not failed:
            why = "hung" if ended.hung else _first_failure(output) or f"status {ended.status}"
            return Verdict("survived", f"spark: no test failed, {why}", count, seconds)
        without = self._on_spark(failed)
        seconds += without.cpu
        if without.status != 0:
            return Verdict("survived", f"spark: fails without it too, {failed}", count, seconds)
        return Verdict("killed", f"spark: {failed}", count, seconds)

    def _on_spark(self, tests: str) -> Ended:
        arguments = (*_ALL, tests)
        return self._server.run(
            Command(arguments, str(self._output), cpu=_WIDER_S, idle=_SPARK_IDLE_S)
        )

    # -- rounds ---------------------------------------------------------------------------------

    def _rounds(
        self, group: Group, mutation: Mutation, covering: set[str] | None
    ) -> tuple[list[Round], list[Round]]:
        """Return the first round, with the quick tests of the line, and the wider rounds."""
        wider = [Round("wider", command, _WIDER_S) for command in group.wider]
        if covering is None:
            naming, others = self._test_files(group, mutation)
            first = [Round("own", (*_PYTEST, *naming), _WIDER_S)]
            rest = [Round("others", (*_PYTEST, *others), _WIDER_S)] if others else []
            return first, rest + wider
        stem = Path(mutation.path).stem
        tests = [self._tests.tests[name] for name in covering]
        own = _ordered(test for test in tests if stem in Path(test.file).stem)
        files = Counter(test.file for test in tests if stem not in Path(test.file).stem)
        nearest = dict(files.most_common(NEAR_FILES))
        near = _ordered(test for test in tests if test.file in nearest)
        # The cases that were not recorded also run the line, or lines near it.
        functions = {t.function: t.seconds * t.cases for t in [*own, *_ordered(tests)]}
        first = [
            *_round("own", NEAR_S, [(test.name, test.seconds) for test in own]),
            *_round("near", NEAR_S, [(test.name, test.seconds) for test in near]),
        ]
        files_first = [*self._named_after(stem), *nearest]
        return first, [
            *self._whole_files(files_first),
            *_round("far", FAR_S, list(functions.items())),
            *wider,
        ]

    def _named_after(self, stem: str) -> list[str]:
        return sorted(name for name in self._tests.files() if stem in Path(name).stem)

    def _whole_files(self, names: list[str]) -> list[Round]:
        """Return whole test files, as far as they fit. The map lacks tests of which only unrecorded
        cases run the line, and tests that read a constant and run no line."""
        seconds = self._tests.files()
        failing = [f"--deselect={name}" for name in self._tests.failed]
        return [
            Round(one.name, (*one.arguments, *failing), one.cpu)
            for one in _round("files", FAR_S, [(name, seconds[name]) for name in names])
        ]

    def _test_files(self, group: Group, mutation: Mutation) -> tuple[list[str], list[str]]:
        """Return, for a compiled module, the files that name it, then the other files of its
        group."""
        stem = Path(mutation.path).stem
        near: list[str] = []
        far: list[str] = []
        for folder in group.own:
            for path in sorted((self._tree / folder).glob("test_*.py")):
                named = stem in path.stem or f".{stem} " in path.read_text()
                (near if named else far).append(path.relative_to(self._tree).as_posix())
        near.sort(key=lambda name: stem not in Path(name).stem)
        return (near, far) if near else (far, [])

    # -- the mutant -----------------------------------------------------------------------------

    @contextmanager
    def _put(self, mutation: Mutation) -> Iterator[bool]:
        """Put the mutant into the tree; yield False if it does not compile."""
        path = self._tree / mutation.path
        kept = {file: file.with_name(file.name + ".kept") for file in self._files(path)}
        for file, copy in kept.items():
            shutil.copy2(file, copy)
        path.write_bytes(mutation.apply(path.read_bytes()))
        try:
            yield path.suffix != ".pyx" or self._compiled(path)
        finally:
            for file, copy in kept.items():
                copy.replace(file)

    def _files(self, path: Path) -> list[Path]:
        """Return the source and the compiled module. Cached bytecode is deleted: it would be used
        for a mutant of the same size that is written in the same second."""
        for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            cached.unlink()
        return [path, *self._extension(path)] if path.suffix == ".pyx" else [path]

    @staticmethod
    def _extension(path: Path) -> list[Path]:
        return [path.with_name(path.stem + sysconfig.get_config_var("EXT_SUFFIX"))]

    def _compiled(self, path: Path) -> bool:
        """Compile one module without optimisation, which would take most of the time."""
        source = path.with_suffix(".c")
        cython = [sys.executable, "-m", "cython", "-3", path.relative_to(self._tree).as_posix(),
                  "-o", str(source)]  # fmt: skip
        compiler = [
            *sysconfig.get_config_var("CC").split(), "-shared", "-fPIC", "-O0", "-g0", "-w",
            f"-I{sysconfig.get_path('include')}", str(source), "-o", str(self._extension(path)[0]),
        ]  # fmt: skip
        for command in (cython, compiler):
            done = subprocess.run(command, cwd=self._tree, capture_output=True, check=False)
            if done.returncode:
                return False
        return True


def _ordered(tests: Iterable[Recorded]) -> list[Recorded]:
    """Return one case of each test first, quick ones before slow ones."""
    seen: Counter[str] = Counter()
    ranked = []
    for test in sorted(tests, key=lambda test: test.name):
        seen[test.function] += 1
        ranked.append((seen[test.function], test.seconds, test))
    return [test for _, _, test in sorted(ranked, key=lambda rank: rank[:2])]


def _round(name: str, seconds: float, tests: Sequence[tuple[str, float]]) -> list[Round]:
    """Return a round with the first tests that fit into the time, skipping longer ones, or none."""
    taken, left = [], seconds
    for test, each in tests:
        if each <= left:
            taken.append(test)
            left -= each
    limit = math.ceil(_START_S + _SLACK * (seconds - left))
    return [Round(name, (*_PYTEST, *taken), limit)] if taken else []


def _first_failure(output: str, kinds: Sequence[str] = ("FAILED", "ERROR")) -> str:
    """Return the first test in pytest's summary with one of these words."""
    for line in output.splitlines():
        if line.startswith(tuple(f"{kind} tests/" for kind in kinds)):
            return line.split(" - ")[0].split(" ", 1)[1]
    return ""


def missing_for_spark() -> str:
    """Return what this machine lacks for Spark, or ""."""
    if importlib.util.find_spec("pyspark") is None:
        return "PySpark is not installed"
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "there is no Java"
    return ""
