"""MockCluster: librdkafka's mock broker from the confluent-kafka wheel, in a separate process.

This cluster is meant for demos, examples and quick benchmarks: it starts in a fraction of a second
and needs no Java. It supports Produce up to v10, idempotence and transactions. Topics are created
with four partitions on first use. Each partition keeps only its newest 5 MiB, in memory. There is
neither TLS nor SASL. The cluster runs in a separate process, because its threads would otherwise
compete with the client under test for the GIL.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

START_TIMEOUT: Final = 30.0
STOP_TIMEOUT: Final = 10.0


class MockCluster:
    """`nodes` simulated brokers on the loopback interface. Needs `confluent-kafka`.

    Use it with `async with` or `with`. The brokers stop when this process exits.
    """

    def __init__(self, nodes: int = 3) -> None:
        if nodes < 1:
            raise ValueError(f"nodes={nodes}: a cluster has at least one")
        self._nodes = nodes
        self._process: subprocess.Popen[str] | None = None
        self._bootstrap = ""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of every broker, separated by commas. Empty before the start."""
        return self._bootstrap

    async def __aenter__(self) -> MockCluster:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def __enter__(self) -> MockCluster:
        self.start_blocking()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop_blocking()

    async def start(self) -> None:
        """Starts the brokers and waits until they listen. Raises RuntimeError with the reason if
        the start fails."""
        await asyncio.to_thread(self.start_blocking)

    async def stop(self) -> None:
        await asyncio.to_thread(self.stop_blocking)

    def start_blocking(self) -> None:
        """Synchronous form of `start`. Takes a fraction of a second."""
        if self._process is not None:
            raise RuntimeError("this mock cluster was started already")
        process = subprocess.Popen(
            [sys.executable, "-m", "aiokprod.testing.mock_cluster", str(self._nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert process.stdout is not None
        self._process = process
        line = process.stdout.readline().strip()
        if not line:
            _, words = process.communicate(timeout=STOP_TIMEOUT)
            self._process = None
            raise RuntimeError(f"the mock cluster did not start:\n{words[-2000:]}")
        self._bootstrap = line

    def stop_blocking(self) -> None:
        """Synchronous form of `stop`. A second call does nothing."""
        process, self._process = self._process, None
        self._bootstrap = ""
        if process is None:
            return
        try:
            process.communicate(timeout=STOP_TIMEOUT)  # closes standard input: the process exits
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


def serve(nodes: int) -> None:
    """Runs the brokers until standard input closes, at the latest when the owner exits."""
    from confluent_kafka import Producer

    # Disable the log, because the owner reads standard error only if the start fails.
    host = Producer({"bootstrap.servers": "", "test.mock.num.brokers": nodes, "log_level": 0})
    brokers = host.list_topics(timeout=START_TIMEOUT).brokers.values()
    print(",".join(f"{broker.host}:{broker.port}" for broker in brokers), flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read()


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m aiokprod.testing.mock_cluster`."""
    parser = argparse.ArgumentParser(
        prog="python -m aiokprod.testing.mock_cluster",
        description="Runs librdkafka's mock brokers until standard input closes. The first line of "
        "the output has their bootstrap servers. Needs confluent-kafka.",
    )
    parser.add_argument(
        "nodes", nargs="?", type=int, default=3, metavar="N", help="number of brokers (3)"
    )
    nodes: int = parser.parse_args(arguments).nodes
    if nodes < 1:
        parser.error("N must be 1 or more")
    serve(nodes)


if __name__ == "__main__":
    main()
