"""The verdicts on the samples of a soak test: no growth, no drift, no failed record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.soak.load import BUFFER, MIB
from tests.soak.trend import trend

LIMITS = {
    "rss_mib": (1.0, 2.5),
    "allocated_mib": (1.0, 2.5),
    "blocks": (10_000.0, 25_000.0),
    "descriptors": (0.0, 0.5),
    "tasks": (0.0, 0.5),
    "timers": (0.5, 0.5),
}
"""Maximum growth per hour, and maximum rise in total. For memory, the rise is two arenas of
CPython's allocator. For counted objects it is half an object, because an object that each fault or
visitor leaks makes thirty to hundreds per hour. Descriptors and tasks never vary at rest, so they
may not grow at all; timers do vary."""
BACKLOG_MIB = BUFFER / MIB + 12
"""Memory in MiB that the process may hold during a fault in addition to that at rest:
`buffer_memory`, and responses, blocks and the objects of batches."""
HELD = 0.95
"""Minimum share of the requested rate without a fault (median)."""
DRIFT = 1.2
"""Maximum factor between the last and the first quarter, for the median p99 (1 ms is always
allowed) and for the processor time per record."""
CALM = 0.02
"""Maximum share of stolen processor time for which latencies are compared."""
CALM_SAMPLES = 10
"""Minimum number of such samples in each quarter."""

Sample = dict[str, float]


@dataclass(frozen=True)
class Verdict:
    """The verdict on one promise. `word` says in which way the promise was kept or broken. `good`
    is None if that is unknown."""

    good: bool | None
    word: str
    figures: str

    def __str__(self) -> str:
        return f"{self.word}: {self.figures}"


def judged(samples: Sequence[Sample], rate: float, failed: int) -> dict[str, Verdict]:
    """Return the verdicts by name on a load of `rate` records/s, of which `failed` records
    failed."""
    quiet = [sample for sample in samples if sample["quiet"]]
    quarter = max(1, len(quiet) // 4)
    first, last = quiet[:quarter], quiet[-quarter:]
    return {
        **_grown(quiet),
        "backlog_mib": _backlog(samples, quiet),
        "cpu_us": _cost(first, last),
        "p99_ms": _latency(first, last),
        "failed": Verdict(not failed, "FAILED" if failed else "none", str(failed)),
        "rate": _rate(quiet, rate),
    }


def _grown(quiet: Sequence[Sample]) -> dict[str, Verdict]:
    seconds = [sample["second"] for sample in quiet]
    verdicts = {}
    for name, limits in LIMITS.items():
        found = trend(seconds, [sample[name] for sample in quiet])
        flat = found.flat(*limits)
        verdicts[name] = Verdict(flat, "flat" if flat else "GROWS", str(found))
    return verdicts


def _backlog(samples: Sequence[Sample], quiet: Sequence[Sample]) -> Verdict:
    """Judge the maximum memory in use after the warm-up, beyond that at rest."""
    rest = statistics.median(sample["rss_mib"] for sample in quiet)
    most = max(one["rss_mib"] for one in samples if one["second"] >= quiet[0]["second"])
    bounded = most - rest <= BACKLOG_MIB
    word = "bounded" if bounded else "UNBOUNDED"
    return Verdict(bounded, word, f"{most - rest:.2f} of {BACKLOG_MIB:.0f}")


def _cost(first: Sequence[Sample], last: Sequence[Sample]) -> Verdict:
    before, after = (statistics.median(one["cpu_us"] for one in part) for part in (first, last))
    steady = after <= DRIFT * before
    return Verdict(steady, "steady" if steady else "DRIFTS", f"{before:.3f} -> {after:.3f}")


def _latency(first: Sequence[Sample], last: Sequence[Sample]) -> Verdict:
    calm = [[one["p99_ms"] for one in part if one["stolen"] < CALM] for part in (first, last)]
    counts = f"{len(calm[0])} of {len(first)} and {len(calm[1])} of {len(last)} samples were calm"
    if min(map(len, calm)) < CALM_SAMPLES:
        return Verdict(None, "UNJUDGED", counts)
    before, after = map(statistics.median, calm)
    steady = after <= max(DRIFT * before, before + 1.0)
    word = "steady" if steady else "DRIFTS"
    return Verdict(steady, word, f"{before:.2f} -> {after:.2f} ({counts})")


def _rate(quiet: Sequence[Sample], rate: float) -> Verdict:
    found = statistics.median(sample["rate"] for sample in quiet)
    held = found >= HELD * rate
    return Verdict(held, "held" if held else "BELOW", f"{found:,.0f} of {rate:,} records/s")
