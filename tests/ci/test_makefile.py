"""The target `release-checks` runs every check of a release, including tests that other targets
exclude by marker."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def commands(target: str) -> list[str]:
    """Return the commands that `make` would run, with continued lines joined."""
    answer = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return answer.stdout.replace("\\\n", " ").splitlines()


@pytest.fixture(scope="module")
def release() -> list[str]:
    return commands("release-checks")


@pytest.mark.parametrize(
    "words",
    [
        r"pytest -n 2 .*tests/engine",
        r"pytest -n 2 -m matrix$",
        r"pytest tests/integration$",
        r"pytest tests/spark/integration",
        r"tests\.simulation --seeds",
        r"tests\.detection",
        r"tests\.scenarios\.in_flight",
        r"tests\.fuzz --executions",
        r"tests\.differential",
        r"tests\.mutants --count",
        r"tests\.chaos --faults all --runs 3",
        r"tests\.soak --hours",
        r"AIOKPROD_TXN_SEEDS=10000",
        r"AIOKPROD_COPIER_RUNS=3",
        r"check_dist\.py",
        r"audit\.py --strict",
        r"check_coverage\.py",
    ],
)
def test_release_checks_run(release: list[str], words: str) -> None:
    assert any(re.search(words, line) for line in release), "\n".join(release)


def test_release_checks_leave_no_slow_test_out(release: list[str]) -> None:
    assert not [line for line in release if "not slow" in line]


def marks_slow_tests(source: str) -> bool:
    """Return True if the code itself uses the marker. A string that contains the marker does not
    count."""
    return "mark.slow" in source and any(
        isinstance(node, ast.Attribute) and node.attr == "slow"
        for node in ast.walk(ast.parse(source))
    )


def test_what_the_other_targets_skip_is_named_here() -> None:
    """`.ci/run` skips the slow tests in these two folders. The release checks run both folders."""
    marked = {
        path.relative_to(ROOT).parts[1]
        for path in (ROOT / "tests").rglob("*.py")
        if marks_slow_tests(path.read_text(encoding="utf-8"))
    }
    assert marked == {"integration", "spark"}
    assert "not slow" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_matrices_are_all_that_the_unit_tests_skip() -> None:
    """`make matrices` runs the marked tests of every folder that pytest collects, and `.ci/run`
    runs `make matrices`."""
    runs = [line for line in commands("unit") if "-m pytest" in line]
    assert runs
    assert all('-m "not matrix"' in line for line in runs)
    [rest] = [line for line in commands("matrices") if "-m pytest" in line]
    assert rest.endswith("-m pytest -n 2 -m matrix")
    assert "make matrices" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
