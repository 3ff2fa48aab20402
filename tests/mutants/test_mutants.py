"""The mutator: what it changes, what it leaves unchanged, and how results are reported."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mutants import trial
from tests.mutants.contexts import record
from tests.mutants.operators import sites
from tests.mutants.plan import GROUPS, ROOT, SPARK_TESTS, Group, sample
from tests.mutants.report import reasons, report, stale
from tests.mutants.server import Command, Server
from tests.mutants.trial import Bench

SOURCE = """
import logging
logger = logging.getLogger(__name__)

class Limit:
    __slots__ = ("top",)

    def __repr__(self) -> str:
        return f"top={self.top + 1}"

    def take(self, a: int, b: int) -> int | None:
        logger.info("taking %d", a + b)
        if a < b and not self.top:
            self.top = self.take(a, b) or max(a, b)
            return a - 1
        for i in (True, 7):
            continue
        return False
"""


def changed_lines(path: str, source: str) -> dict[str, set[str]]:
    """Map each kind of mutation to the changed lines."""
    found: dict[str, set[str]] = {}
    for mutation in sites(path, source):
        after = mutation.apply(source.encode()).decode().splitlines()
        found.setdefault(mutation.kind, set()).add(after[mutation.line - 1].strip())
    return found


def test_python_operators_change_what_their_names_say() -> None:
    found = changed_lines("x.py", SOURCE)
    assert found == {
        "condition-negated": {"if (not (a < b and (not self.top))):"},
        "and-or": {
            "if (a < b or not self.top):",
            "self.top = (self.take(a, b) and max(a, b))",
        },
        "comparison": {"if (a <= b) and not self.top:"},
        "not-dropped": {"if a < b and (self.top):"},
        "statement-dropped": {"pass"},
        "arguments-swapped": {"self.top = (self.take(b, a)) or max(a, b)"},
        "plus-minus": {"return (a + 1)"},
        "constant": {"return a - 0", "return True", "for i in (False, 7):", "for i in (True, 15):"},
        "return-none": {"return None"},
        "jump-dropped": {"pass"},
    }


def test_python_text_for_people_is_left_alone() -> None:
    lines = {mutation.original for mutation in sites("x.py", SOURCE)}
    assert not any("logger" in line or "__slots__" in line or "top={" in line for line in lines)


def test_cython_operators_change_code_and_no_declarations() -> None:
    source = '''
cdef class Core:
    """True and 1 == 1."""
    cdef int size

    cdef int put(self, char *at,
                 int room) except -1:
        # 1 == 1
        if room < 0 and self.size is not None:
            raise ValueError("not 0")
        self.size += 1
        memcpy(at, <char *>self.data, room - 1)
        return 0
'''
    found = changed_lines("x.pyx", source)
    assert found["comparison"] == {
        "if room <= 0 and self.size is not None:",
        "if room < 0 and self.size is None:",
    }
    assert found["statement-dropped"] == {"pass"}
    assert found["plus-minus"] == {
        "self.size -= 1",
        "memcpy(at, <char *>self.data, room + 1)",
    }
    assert {m.scope for m in sites("x.pyx", source)} == {"Core.put"}
    touched = {m.original for m in sites("x.pyx", source)}
    assert not any(line.startswith(("cdef", "#", "raise", '"""')) for line in touched)


def test_every_python_mutant_of_the_package_parses_and_has_a_key_of_its_own() -> None:
    path = "aiokprod/_engine/buffer/accumulator.py"
    source = (ROOT / path).read_text()
    mutants = sites(path, source)
    assert len(mutants) > 300
    assert len({mutant.key for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        after = mutant.apply(source.encode())
        ast.parse(after)
        assert after != source.encode()


def test_sample_is_the_same_for_the_same_seed_and_keeps_the_shares() -> None:
    first = sample(100, 3)
    assert [m for _, m in first] == [m for _, m in sample(100, 3)]
    assert [m for _, m in first] != [m for _, m in sample(100, 4)]
    counts = {group.name: sum(g is group for g, _ in first) for group in GROUPS}
    assert counts == {group.name: group.share for group in GROUPS}
    larger = [m for _, m in sample(200, 3)]
    assert all(mutation in larger for _, mutation in first), "a smaller sample is part of it"


def entry(result: str, key: str = "") -> dict[str, Any]:
    key = key or ("b" if result in ("killed", "hung") else "a")
    return {"group": "net", "result": result, "key": key, "text": "pass", "tests": 3}


@pytest.mark.parametrize(
    ("results", "known", "good"),
    [
        ([entry("killed")] * 19 + [entry("survived")], {"a": "equivalent"}, True),
        ([entry("hung")] * 19 + [entry("survived")], {"a": "equivalent"}, True),
        ([entry("killed")] * 19 + [entry("survived")], {}, False),
        ([entry("killed")] * 18 + [entry("survived")] * 2, {"a": "equivalent"}, False),
        ([entry("killed"), entry("invalid")], {}, True),
        ([entry("invalid")], {}, False),
        ([], {}, False),
    ],
)
def test_run_is_good_if_enough_are_noticed_and_survivors_have_reasons(
    results: list[dict[str, Any]], known: dict[str, str], good: bool
) -> None:
    text, verdict = report(results, known)
    assert verdict is good
    assert ("NO REASON" in text) is (entry("survived") in results and not known)


def test_survivor_with_a_reason_that_is_noticed_makes_the_run_fail() -> None:
    results = [entry("killed")] * 19 + [entry("killed", "c")]
    text, good = report(results, {"c": "equivalent"})
    assert not good
    assert "noticed, although survivors.toml says why not: c" in text


def test_mutant_that_met_the_first_round_only_makes_the_run_fail() -> None:
    text, good = report([entry("killed")] * 19 + [entry("open")], {"a": "equivalent"})
    assert not good
    assert "noticed: 95.0% of 20" in text
    assert "not finished: a" in text


def test_reasons_belong_to_mutants_that_exist() -> None:
    """A reason for a line that has changed is no longer valid and must be removed."""
    known = reasons()
    assert stale(known) == []
    path = "aiokprod/_engine/buffer/accumulator.py"
    real = sites(path, (ROOT / path).read_text())[0].key
    gone = [real.replace("accumulator.py", "no_such_module.py"), real + "0"]
    assert stale([real, *gone]) == gone


# -- a run in a small repository ------------------------------------------------------------

LIMIT = """\
ROOM = 9


def taken(size: int, room: int) -> bool:
    if size < room:
        return True
    return False


def waited(size: int) -> int:
    return -size if size > 3 else 7


def length(value: object) -> int:
    if isinstance(value, str):
        return 2 + 2
    return 0
"""
TESTS = """\
import pytest
from aiokprod.limit import ROOM, length, taken, waited

@pytest.mark.parametrize("size", range(9))
def test_taken(size):
    assert taken(size, 9)

def test_waited():
    assert (waited(3), waited(4)) == (7, -4)

def test_room_which_runs_no_line():
    assert ROOM == 9

@pytest.mark.parametrize("value", [1, 2, 3, "text", 5])
def test_length_whose_unrecorded_case_runs_the_line(value):
    assert length(value) == (4 if value == "text" else 0)

def test_that_fails():
    assert taken(9, 9)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Create a repository with one module, its tests and this package."""
    tree = tmp_path / "tree"
    for path in ("aiokprod/__init__.py", "tests/limit/test_limit.py", "tests/mutants/x"):
        (tree / path).parent.mkdir(parents=True)
    (tree / "aiokprod/__init__.py").touch()
    (tree / "aiokprod/limit.py").write_text(LIMIT)
    (tree / "tests/limit/test_limit.py").write_text(TESTS)
    (tree / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\naddopts = ["--import-mode=importlib"]\n'
        'pythonpath = ["."]\nmarkers = ["slow: x"]\n'
    )
    for module in Path(__file__).parent.glob("*.py"):
        shutil.copy2(module, tree / "tests/mutants")
    return tree


@pytest.mark.matrix  # a minute: it runs pytest many times
def test_record_and_judge(tree: Path) -> None:
    """The tests are recorded once; mutants are killed, hang or survive; the file is restored."""
    cache = tree.parent / "cache"
    files = [Path("tests/limit/test_limit.py")]
    tests = record(tree, files, cache)
    taken = "tests/limit/test_limit.py::test_taken"
    waited = "tests/limit/test_limit.py::test_waited"
    room = "tests/limit/test_limit.py::test_room_which_runs_no_line"
    assert {name for name in tests.tests if "length" not in name} == {
        f"{taken}[0]", f"{taken}[4]", f"{taken}[8]", waited, room
    }  # fmt: skip
    assert {test.cases for test in tests.tests.values() if test.function == taken} == {9}
    assert tests.failed == ["tests/limit/test_limit.py::test_that_fails"]
    assert tests.covering("aiokprod/limit.py", 11, 11) == {waited}
    assert tests.covering("aiokprod/limit.py", 7, 7) == set()
    assert tests.covering("aiokprod/limit.py", 16, 16) == set()
    assert tests.covering("aiokprod/limit.py", 10, 10) == set(tests.tests) - {room}, "at import"

    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.json")}
    assert record(tree, files, cache).tests == tests.tests
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.json")} == before

    group = Group("limit", (), (), 100, (), ())
    bench = Bench(tree, tests)
    found: dict[tuple[str, int], list[str]] = {}
    later: dict[int, str] = {}
    try:
        for mutation in sites("aiokprod/limit.py", LIMIT):
            if mutation.kind in ("condition-negated", "comparison", "constant"):
                first = bench.judge(group, mutation, first=True)
                found.setdefault((mutation.kind, mutation.line), []).append(first.result)
                if first.result == "open":
                    second = bench.judge(group, mutation, first=False)
                    later[mutation.line] = f"{second.result} {second.by}"
                assert (tree / "aiokprod/limit.py").read_text() == LIMIT
    finally:
        bench.close()
    assert found == {
        ("constant", 1): ["open"],
        ("comparison", 5): ["open"],
        ("condition-negated", 5): ["killed"],
        ("constant", 6): ["killed"],
        ("constant", 7): ["open"],
        ("comparison", 11): ["killed"],
        ("condition-negated", 11): ["killed"],
        ("constant", 11): ["killed", "killed"],
        ("condition-negated", 15): ["killed"],
        ("constant", 16): ["open", "open"],
        ("constant", 17): ["killed"],
    }
    length = "tests/limit/test_limit.py::test_length_whose_unrecorded_case_runs_the_line"
    assert later == {
        1: f"killed files: {room}",
        5: "survived ",
        7: "survived ",
        16: f"killed files: {length}[text]",
    }


FLAKY = """
from pathlib import Path

from aiokprod.limit import taken

def test_flaky():
    taken(3, 9)
    if Path("once").exists():
        Path("once").unlink()
        raise AssertionError("another reason")

def test_behind_it():
    sum(range(30_000_000))  # more than the set-up of the first test takes: the quickest runs first
    assert taken(3, 9)
"""


@pytest.mark.matrix  # a minute: it runs pytest many times
def test_test_that_fails_once_for_another_reason_is_left_out(tree: Path) -> None:
    """The tests after it are still run."""
    (tree / "tests/limit/test_limit.py").write_text(FLAKY)
    tests = record(tree, [Path("tests/limit/test_limit.py")], tree.parent / "cache")
    bench = Bench(tree, tests)
    group = Group("limit", (), (), 100, (), ())
    mutants = {one.text: one for one in sites("aiokprod/limit.py", LIMIT)}
    try:
        (tree / "once").touch()
        unnoticed = bench.judge(group, mutants["(size <= room)"], first=True)
        assert not (tree / "once").exists(), "the test failed"
        assert (unnoticed.result, unnoticed.by) == ("open", "")
        (tree / "once").touch()
        noticed = bench.judge(group, mutants["(not size < room)"], first=True)
        assert not (tree / "once").exists(), "the test failed"
        expected = "own: tests/limit/test_limit.py::test_behind_it"
        assert (noticed.result, noticed.by) == ("killed", expected)
    finally:
        bench.close()


SPARK_CASES = """\
import os
from pathlib import Path

import pytest

from aiokprod.limit import taken, waited


@pytest.fixture(scope="session")
def spark():
    \"\"\"Fails to start as a JVM would, where its file says so.\"\"\"
    if Path("no-jvm").exists():
        raise OSError("the JVM did not start")


@pytest.mark.slow
def test_size_that_has_room(spark):
    if Path("killed").exists():
        os._exit(137)
    assert not Path("flaky").exists(), "another reason"
    assert taken(0, 9)


def test_sizes(spark):
    assert [waited(size) for size in (3, 4)] == [7, -4]
"""


@pytest.mark.matrix  # a minute: it runs pytest many times
@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("", ("killed", "spark: tests/spark/test_limit.py::test_size_that_has_room")),
        (
            "flaky",
            (
                "survived",
                "spark: fails without it too, tests/spark/test_limit.py::test_size_that_has_room",
            ),
        ),
        (
            "no-jvm",
            (
                "survived",
                "spark: no test failed, tests/spark/test_limit.py::test_size_that_has_room",
            ),
        ),
        ("killed", ("survived", "spark: no test failed, status 137")),
        ("not installed", ("survived", "spark: not run, PySpark is not installed")),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_mutant_of_spark_code_is_noticed_only_if_its_test_fails_because_of_it(
    tree: Path, state: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing Spark, one that does not start, is killed or fails for another reason gives no
    verdict."""
    files = [Path("tests/limit/test_limit.py")]
    (tree / "tests/limit/test_limit.py").write_text("def test_nothing():\n    pass\n")
    (tree / "tests/spark").mkdir()
    (tree / "tests/spark/test_limit.py").write_text(SPARK_CASES)
    missing = "PySpark is not installed" if state == "not installed" else ""
    monkeypatch.setattr(trial, "missing_for_spark", lambda: missing)
    if state in ("flaky", "no-jvm", "killed"):
        (tree / state).touch()
    tests = record(tree, files, tree.parent / "cache")
    bench = Bench(tree, tests, {"aiokprod/limit.py": "tests/spark/test_limit.py"})
    group = Group("limit", (), (), 100, (), ())
    mutants = {one.text: one for one in sites("aiokprod/limit.py", LIMIT)}
    try:
        noticed, unnoticed = mutants["(not size < room)"], mutants["(size <= room)"]
        assert bench.judge(group, noticed, first=True).result == "open", "no test of the map"
        verdict = bench.judge(group, noticed, first=False)
        assert (verdict.result, verdict.by) == expected
        if not state:
            assert bench.judge(group, unnoticed, first=False).result == "survived"
        assert (tree / "aiokprod/limit.py").read_text() == LIMIT
    finally:
        bench.close()


def test_what_spark_needs_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/java")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert trial.missing_for_spark() == ""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert trial.missing_for_spark() == "there is no Java"
    monkeypatch.setenv("JAVA_HOME", "/opt/java")
    assert trial.missing_for_spark() == ""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert trial.missing_for_spark() == "PySpark is not installed"


def test_survivor_whose_spark_tests_were_not_run_says_so() -> None:
    found = entry("survived") | {"by": "spark: not run, there is no Java"}
    text, _ = report([entry("killed")] * 19 + [found], {})
    assert "NO REASON (3 tests run the line; spark: not run, there is no Java)" in text


def test_spark_tests_exist_for_modules_that_exist() -> None:
    for module, tests in SPARK_TESTS.items():
        assert sites(module, (ROOT / module).read_text())
        assert (ROOT / tests).exists()


def test_child_that_uses_up_its_time_or_none_has_hung(tree: Path) -> None:
    """The processes that it started also end; the next command runs normally."""
    server = Server(tree)
    output = tree / "output"
    (tree / "spin.py").write_text("while True: pass")
    (tree / "wait.py").write_text("import subprocess\nsubprocess.run(['sleep', '1000'])\n")
    (tree / "fail.py").write_text("print('seen'); raise SystemExit(3)")
    try:
        spun = server.run(Command(("-m", "spin"), str(output), cpu=1))
        assert (spun.hung, spun.status) == (True, -signal.SIGXCPU)
        assert spun.cpu > 0.5
        waited = server.run(Command(("-m", "wait"), str(output), idle=2.0))
        assert (waited.hung, waited.status) == (True, -signal.SIGKILL)
        failed = server.run(Command(("-m", "fail"), str(output)))
        assert (failed.hung, failed.status) == (False, 3)
        assert output.read_text() == "seen\n"
    finally:
        server.close()


def test_child_ends_with_the_process_that_asked(tree: Path) -> None:
    """A killed campaign must leave no running mutant."""
    (tree / "spin.py").write_text("print('begun', flush=True)\nwhile True: pass")
    script = (
        "from pathlib import Path\nfrom tests.mutants.server import Command, Server\n"
        "server = Server(Path.cwd())\nprint(server._process.pid, flush=True)\n"
        "server.run(Command(('-m', 'spin'), 'output'))\n"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdout is not None
    server = int(client.stdout.readline())
    while not (tree / "output").exists() or "begun" not in (tree / "output").read_text():
        time.sleep(0.05)
    children = Path(f"/proc/{server}/task/{server}/children")
    (child,) = children.read_text().split()
    client.kill()
    client.communicate()
    assert _gone_within(30.0, int(child))
    assert _gone_within(30.0, server)


def _gone_within(seconds: float, pid: int) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
