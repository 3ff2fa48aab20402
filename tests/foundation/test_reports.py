"""What a producer reports about its settings: `explain` without brokers."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod._client.status import explain
from aiokprod.config import ProducerConfig

NO_ACK = "acks=0: records are lost without notice"
LEADER_ONLY = "acks=1: acknowledged records are lost if the leader dies"
DUPLICATES = "without idempotence a retry may duplicate"
REORDERS = "without idempotence and with more than one request in flight a retry may reorder"
NO_RETRY = "retries=0: every leader change fails records"


@pytest.mark.parametrize(
    ("settings", "risks"),
    [
        ({"acks": 0}, [NO_ACK, DUPLICATES, REORDERS]),
        ({"acks": 1}, [LEADER_ONLY, DUPLICATES, REORDERS]),
        ({"enable_idempotence": False}, [DUPLICATES, REORDERS]),
        (
            {"enable_idempotence": False, "max_in_flight_requests_per_connection": 2},
            [DUPLICATES, REORDERS],
        ),
        (
            {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1},
            [DUPLICATES],
        ),
        ({"retries": 0}, [DUPLICATES, REORDERS, NO_RETRY]),
        ({"retries": 1}, []),
        ({}, []),
    ],
)
def test_explain_names_exactly_the_risks_of_the_settings(
    settings: dict[str, Any], risks: list[str]
) -> None:
    text = explain(ProducerConfig(bootstrap_servers="a:1", **settings), None)
    before, _, after = text.partition("\nrisks:")
    assert before.startswith("settings:\n")
    assert "brokers:" not in before
    if risks:
        told = after.splitlines()[1:]
        assert [line.startswith(f"  {risk}") for line, risk in zip(told, risks, strict=True)] == [
            True for _ in risks
        ]
    else:
        assert after == " none known"


def test_explain_lists_every_setting_with_its_effective_value() -> None:
    config = ProducerConfig(bootstrap_servers="a:1", acks=1, linger_ms=7)
    lines = explain(config, None).partition("\nrisks:")[0].splitlines()[1:]
    assert lines == [f"  {name} = {value!r}" for name, value in sorted(config.effective().items())]
    assert "  linger_ms = 7" in lines
    assert "  enable_idempotence = False" in lines
