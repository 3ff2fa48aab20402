"""Timestamps that seem to be seconds cause one warning for each producer."""

from __future__ import annotations

import pytest

from tests.engine.engine_harness import EngineHarness, virtual


@virtual
@pytest.mark.parametrize(
    ("stamp", "warned"),
    [
        (99_999_999, False),
        (100_000_000, True),
        (9_999_999_999, True),
        (10_000_000_000, False),
        (1_795_701_353_000, False),
    ],
)
async def test_only_times_of_today_in_seconds_are_reported(
    stamp: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    harness = EngineHarness()
    harness.append(b"v", timestamp_ms=stamp)
    harness.step()
    found = [r for r in caplog.records if vars(r)["kafka_event"] == "timestamp_in_seconds"]
    assert [vars(record)["kafka_timestamp_ms"] for record in found] == [stamp] * warned


@virtual
async def test_it_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    harness = EngineHarness()
    for _ in range(2):
        harness.append(b"v", timestamp_ms=1_795_701_353)
        harness.step()
        harness.brokers.last.ack()
        harness.step()
    (record,) = caplog.records
    assert "1970-01-21" in record.getMessage()
