"""Many runs of the web examples under real servers: SIGTERM under load, and SIGTERM without
brokers."""

from __future__ import annotations

import os

import pytest

from aiokprod.testing.mock_cluster import MockCluster
from tests.examples.servers import DRAIN_S, SERVERS, check_bounded, check_exactly_once

RUNS = int(os.environ.get("AIOKPROD_SERVER_RUNS", "100"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_under_load(name: str) -> None:
    stored = 0
    for run in range(RUNS):
        with MockCluster() as cluster:
            stored += check_exactly_once(cluster, name, f"{name}-{run}", seconds=1.0)
    print(f"{name}: {RUNS} runs, {stored} requests answered 201, each once in the log")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dead", "frozen"])
@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_without_brokers(name: str, how: str) -> None:
    slowest = 0.0
    for _ in range(RUNS):
        slowest = max(slowest, check_bounded(name, how, limit=DRAIN_S + 1))
    print(f"{name}, brokers {how}: {RUNS} runs, the slowest {slowest:.2f} s")
