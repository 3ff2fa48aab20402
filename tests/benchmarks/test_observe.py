"""`python -m benchmarks.observe`: every case runs."""

from __future__ import annotations

import pytest

from benchmarks.observe import CASES, scrape


@pytest.mark.parametrize("name", CASES)
def test_case_sends_its_records(name: str) -> None:
    CASES[name](200)


def test_scrape_gives_times() -> None:
    took, hold = scrape()
    assert 0 < hold <= took * 10
