"""Statistics, the results file, verdicts and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.case import Case
from benchmarks.java import parse
from benchmarks.summary import Results, Spread, Summary, quantile, summarise
from benchmarks.targets import verdicts


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.51, 3.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 1001)], 0.999, 999.0),
        ([1.0, 2.0], 0.0, 1.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_quantile_is_the_nearest_rank(values: list[float], share: float, expected: float) -> None:
    assert quantile(values, share) == expected


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 1.1), ([1.0], -0.1)])
def test_quantile_refuses_what_has_none(values: list[float], share: float) -> None:
    with pytest.raises(ValueError, match=r"quantile|share="):
        quantile(values, share)


def test_spread_is_median_and_extremes() -> None:
    assert Spread.of([3.0, 9.0, 1.0]) == Spread(3.0, 1.0, 9.0)


def some(group: str, label: str, cluster: str = "mock", **figures: float) -> Summary:
    client = label if label in ("aiokafka", "confluent") else "aiokprod"
    case = Case(client=client, cluster=cluster)
    return Summary(group, label, case, 3, {n: Spread(v, v, v) for n, v in figures.items()})


def test_summary_takes_rates_from_counts_and_seconds() -> None:
    runs = [
        {"count": count, "seconds": 2.0, "warm_up": 5, "cpu_us": cpu}
        for count, cpu in ((100, 3.0), (300, 1.0), (200, 2.0))
    ]
    summary = summarise("fire", "aiokprod", Case(), runs)
    assert summary.figures["rate"] == Spread(100.0, 50.0, 150.0)
    assert summary["cpu_us"] == 2.0
    assert summary.get("p50_ms") is None
    assert "warm_up" not in summary.figures


def test_results_survive_the_file(tmp_path: Path) -> None:
    results = Results({"machine": "m"})
    results.add([some("fire", "aiokprod", rate=1.5e6, cpu_us=0.5)])
    results.micro = {"append_ns": 40.0}
    results.save(tmp_path / "r.json")
    loaded = Results.load(tmp_path / "r.json")
    assert loaded.summaries == results.summaries
    assert (loaded.about, loaded.micro) == (results.about, results.micro)


def test_a_group_measured_again_replaces_its_figures_only() -> None:
    results = Results()
    results.add([some("fire", "old", rate=1.0), some("await", "kept", rate=2.0)])
    results.add([some("fire", "fire", cluster="kafka", rate=3.0)])
    results.add([some("fire", "new", rate=4.0)])
    assert [s.label for s in results.group("mock", "fire")] == ["new"]
    assert [s.label for s in results.group("mock", "await")] == ["kept"]
    assert [s.label for s in results.group("kafka", "fire")] == ["fire"]


def test_merging_takes_over_groups_and_small_figures() -> None:
    first, second = Results({"date": "a", "mock": "m"}), Results({"date": "b"})
    first.add([some("fire", "old", rate=1.0), some("await", "kept", rate=2.0)])
    first.micro = {"append_ns": 1.0, "import_ms": 2.0}
    second.add([some("fire", "new", rate=4.0)])
    second.micro = {"append_ns": 3.0}
    first.merge(second)
    assert first.about == {"date": "b", "mock": "m"}
    assert first.micro == {"append_ns": 3.0, "import_ms": 2.0}
    assert [s.label for s in first.group("mock", "fire")] == ["new"]
    assert [s.label for s in first.group("mock", "await")] == ["kept"]


def test_verdicts_are_reached_or_missed_by_the_medians() -> None:
    results = Results()
    results.add(
        [
            some("fire", "aiokprod", rate=2.5e6, cpu_us=0.4, lag_ms=7.0, apart_ms=1.5, held_ms=4.0),
            some("fire", "aiokafka", rate=1e5, cpu_us=9.0),
            some("fire", "confluent", rate=8e5, cpu_us=1.0),
        ]
    )
    found = {(v.scenario, v.target): v.reached for v in verdicts(results)}
    name = "`submit`, each handle awaited, mock"
    assert found[name, "≤ 0.5 µs CPU"] is True
    assert found[name, "≥ 20 times less CPU than aiokafka"] is True
    assert found[name, "≥ 3 times less CPU than confluent"] is False
    assert found[name, "≥ 2 M/s"] is True
    assert found[name, "loop lag ≤ 5 ms"] is False
    assert found["loop lag, every case, less the collector's pauses", "≤ 5 ms (medians)"] is True
    assert "1.5 ms less the collector's pauses" in report.targets(results)
    assert [v.scenario for v in report.missed(results)] == [
        name,
        name,
        "loop lag, every case, by the clock",
    ]


def test_nothing_measured_gives_no_verdicts() -> None:
    assert verdicts(Results()) == []


def test_table_leaves_out_what_no_case_has() -> None:
    plain = report.table([some("fire", "aiokprod", rate=1234.0, cpu_us=0.5)])
    assert "p50" not in plain
    assert "| aiokprod | 1,234 | 1,234..1,234 | 0.5 | - |" in plain
    timed = some("await", "aiokprod", rate=1.0, p50_ms=1.0, p99_ms=2.0, p999_ms=3.0, lag_ms=4.0)
    assert "| 1 / 2 / 3 | 4.0 | - | - |" in report.table([timed])


def test_readme_sections_are_replaced_between_their_marks() -> None:
    page = "a\n<!-- begin mock -->\nold\n<!-- end mock -->\nb\n"
    once = report.fill(page, {"mock": "new \\1", "kafka": "nowhere"})
    assert once == "a\n<!-- begin mock -->\nnew \\1\n<!-- end mock -->\nb\n"
    assert report.fill(once, {"mock": "new \\1"}) == once


def test_java_summary_without_the_warm_up_counts() -> None:
    words = (
        "50001 records sent, 70000.0 records/sec (6.68 MB/sec), 1.0 ms avg latency\n"
        "550000 records sent, 400000.0 records/sec (38.1 MB/sec), 5.00 ms avg latency, "
        "90.00 ms max latency, 4 ms 50th, 9 ms 95th, 20 ms 99th, 30 ms 99.9th.\n"
        "500000 steady state records sent, 500000.0 records/sec (47.7 MB/sec), 4.00 ms avg "
        "latency, 40.00 ms max latency, 3 ms 50th, 8 ms 95th, 19 ms 99th, 29 ms 99.9th.\n"
    )
    assert parse(words) == (500_000, 1.0)
    with pytest.raises(RuntimeError, match="no summary"):
        parse("Exception in thread main")
