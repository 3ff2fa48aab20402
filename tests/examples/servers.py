"""Run the web examples under real servers, send requests to them, and end them with SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp

from aiokprod.testing.mock_cluster import MockCluster
from tests.hang import HANG_S, until
from tests.integration.checker import read_topic

ROOT: Final = Path(__file__).parents[2]
RATE: Final = 500
"""Requests per second."""

DRAIN_S: Final = 1.0
"""Time limit of the drain without brokers, in seconds."""

ACCEPTED: Final = 20
"""Number of records that a service accepts without brokers."""

COUNT: Final = r"(\d+) (delivered|not sent|rejected|unknown)"


@dataclass(frozen=True)
class Server:
    """A command that serves an example.

    Attributes:
        command: the arguments of the interpreter; PORT is replaced by the port.
        topic: the topic that the example writes to.
    """

    command: tuple[str, ...]
    topic: str = "events"


def _server(command: str, topic: str = "events") -> Server:
    return Server(tuple(command.split()), topic)


SERVERS: Final = {
    "uvicorn-fastapi": _server(
        "-m uvicorn examples.fastapi_app:app --port PORT --timeout-graceful-shutdown 8"
    ),
    "uvicorn-2-workers": _server(
        "-m uvicorn examples.fastapi_app:app --port PORT --timeout-graceful-shutdown 8 --workers 2"
    ),
    "gunicorn": _server(
        "-m gunicorn examples.fastapi_app:app -k uvicorn_worker.UvicornWorker -w 2 "
        "-b 127.0.0.1:PORT --graceful-timeout 25"
    ),
    "gunicorn-preload": _server(
        "-m gunicorn examples.starlette_app:app -k uvicorn_worker.UvicornWorker -w 2 "
        "-b 127.0.0.1:PORT --graceful-timeout 25 --preload"
    ),
    "hypercorn-starlette": _server(
        "-m hypercorn examples.starlette_app:app -b 127.0.0.1:PORT --graceful-timeout 8"
    ),
    "hypercorn-quart": _server(
        "-m hypercorn examples.quart_app:app -b 127.0.0.1:PORT --graceful-timeout 8"
    ),
    "granian-litestar": _server(
        "-m granian --interface asgi --host 127.0.0.1 --port PORT examples.litestar_app:app"
    ),
    "aiohttp": _server("-m examples.aiohttp_app", "clicks"),
    "gunicorn-django": _server(
        "-m gunicorn examples.django_app:wsgi -w 2 --threads 8 -b 127.0.0.1:PORT "
        "--graceful-timeout 25 --preload"
    ),
    "uvicorn-django": _server(
        "-m uvicorn examples.django_app:asgi --port PORT --timeout-graceful-shutdown 8"
    ),
}


@dataclass
class Traffic:
    """Keys of the sent records, grouped by HTTP status. Status 0 means that no response arrived."""

    keys: dict[int, list[str]] = field(default_factory=dict)

    @property
    def stored(self) -> list[str]:
        """Keys of the requests that were answered with status 201."""
        return self.keys.get(201, [])

    def note(self, key: str, status: int) -> None:
        """Record the status of a finished request."""
        self.keys.setdefault(status, []).append(key)


def free_port() -> int:
    """Return a port of the loopback interface on which no process listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Running:
    """A server process."""

    def __init__(self, server: Server, bootstrap: str, drain_s: float) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `kill`
        self.process = subprocess.Popen(
            [sys.executable, *(word.replace("PORT", str(self.port)) for word in server.command)],
            cwd=ROOT,
            env=os.environ | {
                "KAFKA_BOOTSTRAP": bootstrap, "DRAIN_S": str(drain_s), "PORT": str(self.port),
                "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            },
            stdout=self._output, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def output(self) -> str:
        """Return all output of the process."""
        self._output.seek(0)
        return self._output.read()

    async def ready(self, session: aiohttp.ClientSession) -> None:
        """Wait until the service is ready for traffic."""
        async with asyncio.timeout(HANG_S):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"{self.url}/kafka/readyz") as answer:
                        if answer.status == 200:
                            return
                assert self.process.poll() is None, self.output()
                await asyncio.sleep(0.05)

    async def ended(self) -> float:
        """Send SIGTERM and return the seconds until the process exits."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.process.wait, HANG_S)
        return time.monotonic() - start

    def kill(self) -> None:
        """Kill all processes of the server that still run, as after a failed test."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()


@contextlib.contextmanager
def running(name: str, bootstrap: str, *, drain_s: float = 15.0) -> Iterator[Running]:
    """Start a server of `SERVERS`, and kill it at the end of the block."""
    server = Running(SERVERS[name], bootstrap, drain_s)
    try:
        yield server
    finally:
        server.kill()


async def post(
    session: aiohttp.ClientSession, server: Running, path: str, key: str, traffic: Traffic
) -> None:
    """Send one request and record its status."""
    try:
        async with session.post(f"{server.url}/{path}/{key}", json={"key": key}) as answer:
            await answer.read()
            traffic.note(key, answer.status)
    except (aiohttp.ClientError, OSError, TimeoutError):
        traffic.note(key, 0)


async def end_under_load(
    server: Running, prefix: str, *, paths: tuple[str, ...] = ("events",), seconds: float = 1.0
) -> tuple[Traffic, float]:
    """Send 500 requests per second, send SIGTERM after `seconds`, and continue until the process
    exits.

    Returns:
        The recorded requests, and the seconds from SIGTERM to the exit of the process.
    """
    traffic = Traffic()
    requests: set[asyncio.Task[None]] = set()
    timeout = aiohttp.ClientTimeout(total=HANG_S)
    connector = aiohttp.TCPConnector(limit=100)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await server.ready(session)
        start = time.monotonic()
        ending: asyncio.Task[float] | None = None
        number = 0
        while ending is None or not ending.done():
            now = time.monotonic() - start
            while number < now * RATE and len(requests) < 2_000:
                path = paths[number % len(paths)]
                task = asyncio.create_task(
                    post(session, server, path, f"{prefix}-{number}", traffic)
                )
                requests.add(task)
                task.add_done_callback(requests.discard)
                number += 1
            if ending is None and now > seconds:
                ending = asyncio.create_task(server.ended())
            await asyncio.sleep(0.01)
        await asyncio.gather(*requests)
    return traffic, ending.result()


def reported(output: str) -> dict[str, int]:
    """Return the sums of the drain reports in a log: records by outcome, over all topics and
    workers."""
    found: dict[str, int] = {}
    for line in output.splitlines():
        if ": closed, " in line:
            for count, outcome in re.findall(COUNT, line.partition(" s; ")[2]):
                found[outcome] = found.get(outcome, 0) + int(count)
    return found


def counts(log: Iterable[Any], keys: list[str]) -> dict[str, int]:
    """Return how often each key is in the log."""
    found = dict.fromkeys(keys, 0)
    for _, _, key, _ in log:
        name = (key or b"").decode()
        if name in found:
            found[name] += 1
    return found


def check_exactly_once(cluster: MockCluster, name: str, prefix: str, seconds: float) -> int:
    """Run a server once, and return the number of requests that were answered with status 201.

    Each of their records must be in the log exactly once.
    """
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


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process, for example "T" for stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def kept_ports(bootstrap_servers: str) -> Iterator[None]:
    """Keep the ports of a killed cluster bound. Connections to them are refused.

    Without this, the brokers of a test that runs at the same time could get one of the ports.
    """
    with contextlib.ExitStack() as stack:
        for address in bootstrap_servers.split(","):
            kept = stack.enter_context(socket.socket())
            # Connections of the killed broker can be in TIME_WAIT.
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            host, _, port = address.rpartition(":")
            kept.bind((host, int(port)))
        yield


async def accept_and_end(name: str, cluster: MockCluster, how: str) -> tuple[Traffic, float, str]:
    """Make a service accept records, make the brokers fail, and end the service.

    Returns:
        The recorded requests, the seconds from SIGTERM to the exit of the process, and its output.
    """
    traffic = Traffic()
    process = cluster._process
    assert process is not None
    bootstrap_servers = cluster.bootstrap_servers
    with (
        running(name, bootstrap_servers, drain_s=DRAIN_S) as server,
        contextlib.ExitStack() as stack,
    ):
        async with aiohttp.ClientSession() as session:
            await server.ready(session)
            # After these requests every worker has the topic's metadata, so it accepts records
            # without brokers.
            for number in range(40):
                await post(session, server, "events", f"first-{number}", Traffic())
            if how == "frozen":
                os.kill(process.pid, signal.SIGSTOP)
                await until(lambda: state_of(process.pid) == "T")
            else:
                process.kill()
                process.wait()
                stack.enter_context(kept_ports(bootstrap_servers))
            for number in range(ACCEPTED):
                await post(session, server, "clicks", f"accepted-{number}", traffic)
        # Raise the priority of the service, so that tests running in parallel do not make it exceed
        # the time limit.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PGRP, server.process.pid, -20)
        seconds = await server.ended()
        return traffic, seconds, server.output()


def check_bounded(name: str, how: str, limit: float) -> float:
    """Check that the process exits within `limit` seconds and that its report includes every
    record.

    Returns:
        The seconds from SIGTERM to the exit of the process.
    """
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
    return seconds
