"""`python -m benchmarks core`: its cases, and the targets that it reports as reached or missed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmarks import core, runner, targets
from benchmarks.__main__ import main
from benchmarks.case import CLUSTERS, Case
from benchmarks.summary import Spread, Summary
from benchmarks.targets import BESIDE, Verdict

AIOKPROD = ("aiokprod", "aiokafka", "aiokafka-tuned")


def made(group: str, **figures: Mapping[str, float]) -> dict[str, Summary]:
    """Return summaries by label. A client without figures has no successful run."""
    found = {}
    for name, values in figures.items():
        label = name.replace("_", "-")
        spreads = {figure: Spread(v, v * 0.9, v * 1.1) for figure, v in values.items()}
        found[label] = Summary(group, label, Case(), 3 if values else 0, spreads)
    return found


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_core_measures_defaults_beside_both_aiokafkas(cluster: str) -> None:
    fire, requests, lone = core.groups(cluster, seconds=0.5)
    assert tuple(fire.cases) == tuple(requests.cases) == AIOKPROD
    assert {"aiokprod", "aiokafka", "round-trip"} <= set(lone.cases)
    assert {c.tasks for c in requests.cases.values()} == {64}
    assert {c.tasks for c in lone.cases.values()} == {1}
    for group in (fire, requests, lone):
        for case in group.cases.values():
            assert (case.acks, case.idempotent, case.seconds) == ("all", True, 0.5)
            assert case.cluster == cluster
            assert case.replicas == (3 if cluster == "kafka" else 1)


@pytest.mark.parametrize(
    ("group", "figure", "ours", "theirs", "kept"),
    [
        ("fire", "rate", 500.0, 100.0, True),
        ("fire", "rate", 499.0, 100.0, False),
        ("fire-rf3", "rate", 499.0, 100.0, False),
        ("await", "rate", 100.0, 100.0, True),
        ("await-rf3", "rate", 99.0, 100.0, False),
    ],
)
def test_rates_are_judged_by_the_faster_aiokafka(
    group: str, figure: str, ours: float, theirs: float, kept: bool
) -> None:
    summaries = made(
        group, aiokprod={figure: ours}, aiokafka={figure: 1.0}, aiokafka_tuned={figure: theirs}
    )
    verdict = core.judge(group, summaries)
    assert verdict.reached is kept
    assert "aiokafka-tuned 100/s (90 to 110)" in verdict.figure
    assert core.line(verdict).startswith("kept" if kept else "BROKEN")


@pytest.mark.parametrize(("p50", "kept"), [(1.25, True), (1.26, False)])
def test_a_lone_record_is_judged_by_the_bare_round_trip(p50: float, kept: bool) -> None:
    summaries = made(
        "lone-rf3", aiokprod={"p50_ms": p50}, aiokafka={"p50_ms": 0.1}, round_trip={"p50_ms": 0.25}
    )
    verdict = core.judge("lone-rf3", summaries)
    assert verdict.reached is kept
    assert "bare 0.250 ms (0.225 to 0.275)" in verdict.figure


@pytest.mark.parametrize("group", ["fire", "await-rf3", "lone"])
def test_what_was_not_measured_is_not_kept(group: str) -> None:
    verdict = core.judge(group, made(group, aiokprod={"rate": 1.0, "p50_ms": 1.0}, aiokafka={}))
    assert verdict.reached is None
    assert core.line(verdict).startswith("NOT JUDGED")


class Anywhere:
    """A cluster in which every topic holds 12 records, as many as the stub worker sends."""

    name, servers = "nowhere", "none"

    @contextlib.contextmanager
    def topic(self, case: Case) -> Iterator[str]:
        yield "t"

    def count(self, topic: str) -> int:
        return 12

    def cpu_seconds(self) -> None:
        return None


@pytest.mark.parametrize(("aiokprod_s", "status", "word"), [(0.1, 0, "kept"), (10.0, 1, "BROKEN")])
def test_the_status_tells_whether_every_promise_is_kept(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    aiokprod_s: float,
    status: int,
    word: str,
) -> None:
    def worker(job: Mapping[str, Any]) -> dict[str, Any]:
        seconds = aiokprod_s if job["case"]["client"] == "aiokprod" else 1.0
        figures = {"count": 10, "warm_up": 2, "seconds": seconds, "p50_ms": seconds}
        return figures | {"cpu_us": seconds}

    def run_group(brokers: Any, group: runner.Group, **options: Any) -> list[Summary]:
        return runner.run_group(brokers, group, worker=worker, **options)

    monkeypatch.setattr(core, "running", lambda kind: contextlib.nullcontext(Anywhere()))
    monkeypatch.setattr(core, "run_group", run_group)
    limit = Verdict("a way", "≤ 1 µs", "0.5 µs", reached=aiokprod_s < 1)
    monkeypatch.setattr(core, "in_this_process", lambda: [limit])
    assert main(["core", "--cluster", "mock", "--runs", "2"]) == status
    promises = 3 + sum(len(pairs) for _, _, pairs in BESIDE) + 1
    lines = capsys.readouterr().out.splitlines()[-promises:]
    assert [line.split()[0] for line in lines] == [word] * promises


def test_ways_are_measured_beside_the_clients_that_they_are_compared_with() -> None:
    labels = set(core.ways_group(0.5).cases)
    for peer, _, pairs in BESIDE:
        for ours, theirs in pairs.items():
            assert {f"aiokprod, {ours}", f"{peer}, {theirs}"} <= labels
    assert {case.seconds for case in core.ways_group(0.5).cases.values()} == {0.5}


def test_ways_are_judged_by_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {
        "aiokprod, lambda": (5.0, 0.4), "aiokafka-tuned, lambda": (1.0, 6.0),
        "aiokprod, on_delivery": (1.4, 0.5), "confluent, callback": (1.0, 1.0),
    }  # fmt: skip
    summaries = {
        label: Summary(
            "ways", label, Case(), 3,
            {"rate": Spread(rate, rate, rate), "cpu_us": Spread(cpu, cpu, cpu)},
        )
        for label, (rate, cpu) in figures.items()
    }  # fmt: skip
    found = {verdict.scenario: verdict for verdict in targets.ways(summaries.get)}
    assert found["`submit`, lambda"].reached is True
    assert found["`submit`, lambda"].figure == "5.0 times; 15.0 times less CPU (0.40 µs)"
    assert found["`submit`, on_delivery"].reached is False


def test_no_runs_are_refused() -> None:
    assert main(["core", "--runs", "0"]) == 2
