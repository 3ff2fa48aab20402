"""The catalogue of faults and its tests: no row may be without one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from aiokprod._errors import Code
from tests.scenarios.test_matrix_errors import CODES, UNKNOWN_CODES
from tests.scenarios.test_matrix_in_flight import BATCHES, FATES, everything

TESTS = Path(__file__).parent.parent
ROWS = range(1, 80)
NAMED = re.compile(r"test_((?:f\d+_)+)")


def rows_of_tests():
    """The tests that name a row of the catalogue (F1 to F79), as file::test."""
    found = {row: [] for row in ROWS}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            named = NAMED.match(node.name)
            for row in re.findall(r"\d+", named[1]) if named else ():
                if int(row) in found:
                    found[int(row)].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


BY_ROW = rows_of_tests()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"F{row}")
def test_row_has_a_test_that_runs_without_a_broker(row):
    assert [name for name in BY_ROW[row] if not name.startswith("integration")], (
        f"F{row} has no test named test_f{row}_…"
    )


def test_matrix_of_errors_has_every_code():
    assert set(CODES) == (set(range(-1, 134)) | set(UNKNOWN_CODES)) - {0}
    assert {int(code) for code in Code} <= set(range(-1, 134))


def test_permutations_in_flight_are_more_than_ten_thousand():
    cases = list(everything())
    assert len(cases) == len(set(cases)) == (len(FATES) + 1) ** BATCHES
    assert 2 * len(cases) >= 10_000  # each with the batches appended and not
