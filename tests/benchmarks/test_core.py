"""`python -m benchmarks core`: what it measures, and which targets it reports as reached or
missed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from benchmarks import core, runner
from benchmarks.__main__ import main
from benchmarks.case import CLUSTERS, Case
from benchmarks.summary import Spread, Summary

AIOKPROD = ("aiokprod", "aiokafka", "aiokafka-tuned")


def made(group: str, **figures: Mapping[str, float]) -> dict[str, Summary]:
    """Summaries by label; a client without figures never succeeded."""
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
    """A cluster in which every topic holds what was sent."""

    name, servers = "nowhere", "none"

    @contextlib.contextmanager
    def topic(self, case: Case) -> Iterator[str]:
        yield "t"

    def count(self, topic: str) -> int:
        return 12


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
        return {"count": 10, "warm_up": 2, "seconds": seconds, "p50_ms": seconds}

    def run_group(brokers: Any, group: runner.Group, **options: Any) -> list[Summary]:
        return runner.run_group(brokers, group, worker=worker, **options)

    monkeypatch.setattr(core, "running", lambda kind: contextlib.nullcontext(Anywhere()))
    monkeypatch.setattr(core, "run_group", run_group)
    assert main(["core", "--cluster", "mock", "--runs", "2"]) == status
    lines = capsys.readouterr().out.splitlines()[-3:]
    assert [line.split()[0] for line in lines] == [word] * 3


def test_no_runs_are_refused() -> None:
    assert main(["core", "--runs", "0"]) == 2
