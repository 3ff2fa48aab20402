"""Many runs of the web examples under real servers: SIGTERM under load, and without brokers."""

from __future__ import annotations

import os

import pytest

from aiokprod.testing.mock_cluster import MockCluster
from tests.examples.servers import DRAIN_S, SERVERS, check_bounded, check_exactly_once

NOTICE_S = {"gunicorn-django": 1.0}
"""Seconds until a server looks at the signal; gunicorn's workers with threads do once a second."""

RUNS = int(os.environ.get("AIOKPROD_SERVER_RUNS", "100"))


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_under_load(name: str) -> None:
    for run in range(RUNS):
        with MockCluster() as cluster:
            check_exactly_once(cluster, name, f"{name}-{run}", seconds=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dead", "frozen"])
@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_without_brokers(name: str, how: str) -> None:
    for _ in range(RUNS):
        check_bounded(name, how, limit=DRAIN_S + 1 + NOTICE_S.get(name, 0.0))
