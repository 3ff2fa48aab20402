"""The web examples under real servers, which the tests end with SIGTERM."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from aiokprod.testing.mock_cluster import MockCluster
from tests.examples.servers import SERVERS, Traffic, counts, end_under_load, post, reported, running
from tests.hang import until
from tests.integration.checker import read_topic

DRAIN_S = 2.0
ACCEPTED = 20
RUNS = int(os.environ.get("AIOKPROD_SERVER_RUNS", "100"))
"""Runs of the slow tests."""

QUICK = (
    "uvicorn-fastapi", "gunicorn-preload", "hypercorn-quart", "granian-litestar", "aiohttp",
    "gunicorn-django",
)  # fmt: skip
QUICK_WITHOUT_BROKERS = {"uvicorn-fastapi": "dead", "gunicorn": "frozen", "uvicorn-django": "dead"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    with MockCluster() as brokers:
        yield brokers


def check_exactly_once(cluster: MockCluster, name: str, prefix: str, seconds: float) -> int:
    """One run; the number of requests that were answered 201."""
    with_threads = "examples.fastapi_app:app" in SERVERS[name].command
    paths = ("events", "sync-events") if with_threads else ("events",)
    with running(name, cluster.bootstrap_servers) as server:
        traffic, _ = asyncio.run(end_under_load(server, prefix, paths=paths, seconds=seconds))
        output = server.output()
        assert server.process.returncode in (0, -signal.SIGTERM), output
    stored = traffic.stored
    assert stored, output
    found = counts(read_topic(cluster.bootstrap_servers, SERVERS[name].topic), stored)
    wrong = {key: times for key, times in found.items() if times != 1}
    assert not wrong, output
    return len(stored)


@pytest.mark.parametrize("name", QUICK)
def test_sigterm_under_load_loses_and_doubles_nothing(cluster: MockCluster, name: str) -> None:
    check_exactly_once(cluster, name, f"{name}-once", seconds=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_under_load_many_runs(name: str) -> None:
    for run in range(RUNS):
        with MockCluster() as cluster:
            check_exactly_once(cluster, name, f"{name}-{run}", seconds=1.0)


def state_of(pid: int) -> str:
    """The state of a process as the kernel names it; "T" is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


async def accept_and_end(name: str, cluster: MockCluster, how: str) -> tuple[Traffic, float, str]:
    """Let a service accept records, make the brokers fail, and end the service.

    Returns:
        The requests, the seconds from SIGTERM to the end of the process, and its output.
    """
    traffic = Traffic()
    process = cluster._process
    assert process is not None
    with running(name, cluster.bootstrap_servers, drain_s=DRAIN_S) as server:
        async with aiohttp.ClientSession() as session:
            await server.ready(session)
            # Every worker knows the topic, so that it accepts records without the brokers.
            for number in range(40):
                await post(session, server, "events", f"first-{number}", Traffic())
            if how == "frozen":
                os.kill(process.pid, signal.SIGSTOP)
                await until(lambda: state_of(process.pid) == "T")
            else:
                process.kill()
                process.wait()
            for number in range(ACCEPTED):
                await post(session, server, "clicks", f"accepted-{number}", traffic)
        seconds = await server.ended()
        return traffic, seconds, server.output()


def check_bounded(name: str, how: str, limit: float) -> None:
    with MockCluster() as cluster:
        try:
            traffic, seconds, output = asyncio.run(accept_and_end(name, cluster, how))
        finally:
            if how == "frozen" and cluster._process is not None:
                os.kill(cluster._process.pid, signal.SIGCONT)
    accepted = len(traffic.keys.get(202, []))
    assert accepted == ACCEPTED, (traffic, output)
    assert seconds < limit, output
    report = reported(output)
    assert sum(report.values()) == accepted, (report, output)
    assert not report.get("delivered"), output


@pytest.mark.parametrize(("name", "how"), QUICK_WITHOUT_BROKERS.items())
def test_sigterm_without_brokers_ends_in_time_and_reports_every_record(name: str, how: str) -> None:
    check_bounded(name, how, limit=DRAIN_S + 30)  # the machine may be busy


@pytest.mark.slow
@pytest.mark.parametrize("how", ["dead", "frozen"])
@pytest.mark.parametrize("name", SERVERS)
def test_sigterm_without_brokers_many_runs(name: str, how: str) -> None:
    for _ in range(RUNS):
        check_bounded(name, how, limit=DRAIN_S + 1)
