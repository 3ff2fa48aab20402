"""The conditions under which a soak test fails."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.soak.__main__ import COLUMNS, Watch, _result

SAMPLES = 80
SAMPLE = dict.fromkeys(COLUMNS, 1.0) | {
    "quiet": True,
    "rate": 1000.0,
    "rss_mib": 50.0,
    "stolen": 0.0,
}
BAD = ("FAILED", "BELOW", "GROWS", "DRIFTS", "UNBOUNDED", "UNJUDGED")


def verdict(*, failed: int = 0, per_hour: dict[str, float] | None = None, **values: float) -> Any:
    """Return the verdict on 80 samples, half a minute apart, of a load of 1000 records/s. `values`
    replace those of a sample; `per_hour` makes some of them grow. There is a fault in the 70th
    sample, in which `broken` MiB are held."""
    load: Any = SimpleNamespace(acknowledged=0, rate=1000, failed=failed, errors={}, visitors=1)
    broken = values.pop("broken", 50.0)
    watch = Watch(load, 0.0, SAMPLES)
    for number in range(SAMPLES):
        sample = SAMPLE | values | {"second": 30.0 * number}
        for name, growth in (per_hour or {}).items():
            sample[name] += growth * number / 120
        if number == 70:
            sample |= {"quiet": False, "rss_mib": broken, "rate": 0.0, "timers": 40.0}
        watch._table[number] = [sample[name] for name in COLUMNS]
    watch._taken = SAMPLES
    chosen: Any = SimpleNamespace(hours=0.7)
    result = _result(chosen, load, watch, 2000.0)
    json.dumps(result)
    return result


def complaints(result: Any) -> list[str]:
    return [name for name, text in result["verdicts"].items() if text.startswith(BAD)]


def test_soak_without_a_fault_is_good() -> None:
    result = verdict()
    assert result["good"]
    assert complaints(result) == []


def test_soak_forgives_noise_and_the_backlog_of_a_fault() -> None:
    result = verdict(per_hour={"timers": 0.3, "rss_mib": 0.9}, broken=70.0)
    assert result["good"], result["verdicts"]


def test_soak_tells_that_latency_could_not_be_judged() -> None:
    result = verdict(stolen=0.02, per_hour={"p99_ms": 5.0})
    assert result["good"]
    assert not result["all_judged"]
    assert complaints(result) == ["p99_ms"]


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ({"failed": 1}, "failed"),
        ({"rate": 900.0}, "rate"),
        ({"per_hour": {"rss_mib": 4.0}}, "rss_mib"),
        ({"per_hour": {"allocated_mib": 4.0}}, "allocated_mib"),
        ({"per_hour": {"blocks": 40_000.0}}, "blocks"),
        ({"per_hour": {"descriptors": 1.0}}, "descriptors"),
        ({"per_hour": {"tasks": 1.0}}, "tasks"),
        ({"per_hour": {"timers": 1.0}}, "timers"),
        ({"per_hour": {"p99_ms": 5.0}}, "p99_ms"),
        ({"per_hour": {"p99_ms": 5.0, "stolen": 0.02}}, "p99_ms"),
        ({"per_hour": {"cpu_us": 1.0}}, "cpu_us"),
        ({"broken": 50.0 + 16 + 13}, "backlog_mib"),
    ],
)
def test_soak_fails_for_each_of_its_promises(what: dict[str, Any], told: str) -> None:
    result = verdict(**what)
    assert not result["good"]
    assert complaints(result) == [told]
    assert len(result["verdicts"]) == 11
