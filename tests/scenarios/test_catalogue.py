"""The catalogue of faults (docs/faults.md): every row has a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from aiokprod._errors import Code
from tests.scenarios.test_matrix_errors import CODES, UNKNOWN_CODES
from tests.scenarios.test_matrix_in_flight import BATCHES, FATES, everything

TESTS = Path(__file__).parent.parent
CATALOGUE = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
ROWS = [int(row) for row in re.findall(r"^\| F(\d+) \|", CATALOGUE, re.MULTILINE)]
NAMED = re.compile(r"test_((?:f\d+_)+)")


def rows_of_tests() -> tuple[dict[int, list[str]], list[str]]:
    """Return the tests of each row of the catalogue, as file::test, and the tests of unknown
    rows."""
    found: dict[int, list[str]] = {row: [] for row in ROWS}
    unknown: list[str] = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            named = NAMED.match(node.name)
            for row in re.findall(r"\d+", named[1]) if named else ():
                place = f"{path.relative_to(TESTS)}::{node.name}"
                found.get(int(row), unknown).append(place)
    return found, unknown


BY_ROW, UNKNOWN = rows_of_tests()


def test_catalogue_has_the_rows_f1_to_f79_in_order() -> None:
    assert list(range(1, 80)) == ROWS


def test_every_test_that_names_a_row_names_one_of_the_catalogue() -> None:
    assert not UNKNOWN


def test_comments_of_the_package_cite_rows_of_the_catalogue() -> None:
    package = TESTS.parent / "aiokprod"
    sources = [*package.rglob("*.py"), *package.rglob("*.pyx")]
    cited = {
        int(row) for path in sources for row in re.findall(r"\bF(\d{1,2})\b", path.read_text())
    }
    assert cited <= set(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"F{row}")
def test_row_has_a_test_that_runs_without_a_broker(row: int) -> None:
    assert [name for name in BY_ROW[row] if not name.startswith("integration")], (
        f"F{row} has no test named test_f{row}_…"
    )


def test_matrix_of_errors_has_every_code() -> None:
    assert set(CODES) == (set(range(-1, 134)) | set(UNKNOWN_CODES)) - {0}
    assert {int(code) for code in Code} <= set(range(-1, 134))


def test_permutations_in_flight_are_more_than_ten_thousand() -> None:
    cases = list(everything())
    assert len(cases) == len(set(cases)) == (len(FATES) + 1) ** BATCHES
    assert 2 * len(cases) >= 10_000  # each with the batches appended and not
