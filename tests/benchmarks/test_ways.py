"""`benchmarks.ways` and `benchmarks.bulk`: every way of sending runs and is compared with its
limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks import bulk, ways


def test_every_way_runs_and_those_with_a_limit_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "GROUP", 200)
    found = ways.ways()
    times = asyncio.run(ways.measure(found, 1))
    assert list(times) == [way.name for way in found]
    assert all(took > 0 for took in times.values())
    judged = [verdict.scenario for verdict in ways.verdicts(found, times, 1)]
    assert judged == [way.name for way in found if way.limit is not None]
    assert "str, Python function" in judged


def test_a_limit_is_a_multiple_and_what_the_serializer_takes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ways, "alone", lambda way, rounds: 0.5 if way.alone else 0.0)
    chosen = [way for way in ways.ways() if way.name in ("str, Python function", "bytearray")]
    within, beyond = ways.verdicts(
        chosen, {"bytes": 1.0, "str, Python function": 1.8, "bytearray": 2.01}, 1
    )
    assert (within.target, within.reached) == ("≤ 1.80 µs", True)
    assert (beyond.target, beyond.reached) == ("≤ 2.00 µs", False)


@pytest.mark.parametrize(("took", "status"), [(0.1, 0), (9.0, 1)])
def test_check_ends_with_1_if_a_limit_is_exceeded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], took: float, status: int
) -> None:
    async def measure(found: list[ways.Way], rounds: int) -> dict[str, float]:
        return {way.name: took if way.limit else 1.0 for way in found}

    monkeypatch.setattr(ways, "measure", measure)
    monkeypatch.setattr(ways, "alone", lambda way, rounds: 0.0)
    monkeypatch.setattr("sys.argv", ["ways", "--check"])
    assert ways.main() == status
    out = capsys.readouterr().out
    assert ("kept" in out) is (status == 0)
    assert ("exceeded" in out) is (status == 1)


def test_bulk_forms_are_judged_without_their_serializers() -> None:
    times: dict[str, Any] = {
        "bytes": (5.0, 0.0),
        "ProducerRecord": (0.9, 0.0),
        "dict, orjson.dumps": (2.9, 2.0),
        "str, str.encode": (3.1, 2.0),
    }
    found = {verdict.scenario: verdict.reached for verdict in bulk.verdicts(times)}
    assert found == {
        "send_many, ProducerRecord": False,
        "send_many, dict, orjson.dumps": True,
        "send_many, str, str.encode": False,
    }
