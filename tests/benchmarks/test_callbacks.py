"""The comparison of callbacks with futures runs every case, and relates the right cases."""

from __future__ import annotations

import asyncio

from benchmarks import callbacks


def test_every_case_runs_and_has_a_ratio() -> None:
    times = asyncio.run(callbacks.measure("none", callbacks.GROUP, 1))
    assert set(times) == {case.__name__ for case in callbacks.CASES}
    assert all(took > 0 for took in times.values())
    assert set(callbacks.ratios(times)) == {"done callback", "on_delivery", "gather", "wait"}


def test_limits_are_compared_with_the_costs_of_futures() -> None:
    times = {
        "plain": 1.0, "done_callback": 1.25, "on_delivery": 1.3, "gather": 2.8, "wait": 1.0,
        "future_callback": 1.0, "future_gather": 3.0, "future_wait": 1.0,
    }  # fmt: skip
    found = {verdict.scenario: verdict.reached for verdict in callbacks.verdicts("zstd", times)}
    assert found == {
        "done callback, zstd": True, "on_delivery, zstd": False, "gather, zstd": False,
    }  # fmt: skip
