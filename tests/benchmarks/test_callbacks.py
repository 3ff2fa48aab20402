"""The comparison of callbacks with futures runs, and relates the right cases."""

from __future__ import annotations

import asyncio

from benchmarks import callbacks


def test_every_case_runs_and_has_a_ratio() -> None:
    times = asyncio.run(callbacks.measure("none", callbacks.GROUP, 1))
    assert set(times) == {case.__name__ for case in callbacks.CASES}
    assert all(took > 0 for took in times.values())
    assert set(callbacks.ratios(times)) == {"done callback", "on_delivery", "gather", "wait"}
