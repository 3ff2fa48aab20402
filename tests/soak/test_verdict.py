"""What makes a soak fail."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.soak.__main__ import Watch, _result


def verdict(*, failed: int = 0, rate: float = 1000.0, mib_per_sample: float = 0.0) -> Any:
    """Of 80 samples, five seconds apart, of a load of 1000 records/s."""
    load: Any = SimpleNamespace(acknowledged=0, rate=1000, failed=failed, errors={}, visitors=1)
    watch = Watch(load, 0.0, 80)
    for number in range(80):
        size = 50.0 + mib_per_sample * number
        watch._table[number] = (5 * number, True, rate, size, 8, 1000, 17, 6, 7, 1, 2, 3)
    watch._taken = 80
    chosen: Any = SimpleNamespace(hours=0.1)
    result = _result(chosen, load, watch, 2000.0)
    json.dumps(result)
    return result


def test_soak_without_a_fault_is_good() -> None:
    assert verdict()["good"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"failed": 1}, "failed"),
        ({"rate": 900.0}, "rate"),
        ({"mib_per_sample": 0.1}, "rss_mib"),
    ],
)
def test_soak_fails_for_each_of_its_promises(what: dict[str, Any], told: str) -> None:
    result = verdict(**what)
    assert not result["good"]
    words = ("FAILED", "BELOW", "GROWS")
    assert [name for name, text in result["verdicts"].items() if text.startswith(words)] == [told]
