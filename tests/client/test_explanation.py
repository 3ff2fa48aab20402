"""The text of `explain` without brokers. `test_delivery_watch.py` tests the text during an
outage."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod._client.explanation import explain
from aiokprod.config import ProducerConfig
from aiokprod.security import Secret

NO_ACK = "acks=0: records are lost without notice"
LEADER_ONLY = "acks=1: acknowledged records are lost if the leader dies"
DUPLICATES = "without idempotence a retry may duplicate"
REORDERS = "without idempotence and with more than one request in flight a retry may reorder"
NO_RETRY = "retries=0: every leader change fails records"


def shown(config: ProducerConfig, *, closed: bool = False) -> str:
    return explain(config, None, "orders", closed=closed)


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
    text = shown(ProducerConfig(bootstrap_servers="a:1", **settings))
    before, _, after = text.partition("\nconfiguration risks:")
    assert "\nsettings" in before
    assert "brokers:" not in before
    if risks:
        told = after.splitlines()[1:]
        assert [line.startswith(f"  {risk}") for line, risk in zip(told, risks, strict=True)] == [
            True for _ in risks
        ]
    else:
        assert after == " none known"


def test_explain_lists_the_settings_that_differ_from_the_defaults() -> None:
    text = shown(ProducerConfig(bootstrap_servers="a:1,b:2", acks=1, linger_ms=7, retries=3))
    assert text.splitlines() == [
        "producer orders: new, not ok",
        "  cause: the producer is new",
        "servers: a:1, b:2",
        "settings that differ from the defaults:",
        "  acks = 1",
        "  enable_idempotence = False",
        "  linger_ms = 7",
        "  retries = 3",
        "configuration risks:",
        f"  {LEADER_ONLY} before it replicates",
        f"  {DUPLICATES} records",
        f"  {REORDERS}",
    ]


def test_explain_of_the_defaults_is_short() -> None:
    assert shown(ProducerConfig(bootstrap_servers="a:1"), closed=True).splitlines() == [
        "producer orders: closed, not ok",
        "  cause: the producer is closed",
        "servers: a:1",
        "settings: the defaults",
        "configuration risks: none known",
    ]


def test_explain_masks_secrets() -> None:
    config = ProducerConfig(
        bootstrap_servers="a:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="alice",
        sasl_password=Secret("hunter2"),
    )
    text = shown(config)
    assert "sasl_username = 'alice'" in text
    assert "sasl_password" in text
    assert "hunter2" not in text
