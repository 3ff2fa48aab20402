"""The web examples under real servers, which the tests end with SIGTERM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aiokprod.testing.mock_cluster import MockCluster
from tests.examples.servers import DRAIN_S, check_bounded, check_exactly_once

QUICK = (
    "uvicorn-fastapi", "gunicorn-preload", "hypercorn-quart", "granian-litestar", "aiohttp",
    "gunicorn-django",
)  # fmt: skip
QUICK_WITHOUT_BROKERS = {"uvicorn-fastapi": "dead", "gunicorn": "frozen", "uvicorn-django": "dead"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as brokers:
        yield brokers


@pytest.mark.parametrize("name", QUICK)
def test_sigterm_under_load_loses_and_doubles_nothing(cluster: MockCluster, name: str) -> None:
    check_exactly_once(cluster, name, f"{name}-once", seconds=0.5)


@pytest.mark.parametrize(("name", "how"), QUICK_WITHOUT_BROKERS.items())
def test_sigterm_without_brokers_ends_in_time_and_reports_every_record(name: str, how: str) -> None:
    check_bounded(name, how, limit=DRAIN_S + 30)  # the machine may be busy
