"""The clusters of the benchmarks. They create a topic for each run and count its records."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

from aiokprod.testing.kafka_admin import ClusterAdmin
from aiokprod.testing.kafka_cluster import KafkaCluster
from benchmarks.case import Case

NODES: Final = 3
STOP_TIMEOUT: Final = 10.0


class Brokers(Protocol):
    """A running cluster.

    Attributes:
        name: name in headings.
        servers: `host:port` of every broker, separated by commas.
    """

    name: str
    servers: str

    def topic(self, case: Case) -> contextlib.AbstractContextManager[str]:
        """Create a new topic for one run."""

    def count(self, topic: str) -> int:
        """Return the number of records in the topic, from the end offsets of its partitions."""

    def cpu_seconds(self) -> float | None:
        """Return the CPU time of all brokers since their start, s, or None if it is unknown."""


def new_name() -> str:
    return f"bench-{uuid.uuid4().hex[:8]}"


def cpu_seconds(pids: Iterable[int]) -> float | None:
    """Return the CPU time of all threads of running processes, s, or None without `/proc`."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        ticks += int(fields[11]) + int(fields[12])  # utime, stime
    return ticks / os.sysconf("SC_CLK_TCK")


class MockBrokers:
    """librdkafka's mock cluster in a separate process. It writes nothing to a disk."""

    def __init__(self) -> None:
        self.name = f"mock cluster of librdkafka, {NODES} brokers"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mock_host", str(NODES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.servers = self._answer()
        self._admin = ClusterAdmin(self.servers)
        self._topics = 0

    @contextlib.contextmanager
    def topic(self, case: Case) -> Iterator[str]:
        while self._topics < case.topics - 1:
            self._create(f"other-{self._topics}", 1, 1)
        name = new_name()
        self._create(name, case.partitions, case.replicas)
        yield name

    def count(self, topic: str) -> int:
        return sum(self._admin.end_offsets(topic).values())

    def cpu_seconds(self) -> float | None:
        return cpu_seconds([self._process.pid])

    def _create(self, name: str, partitions: int, replicas: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {partitions} {replicas}\n")
        self._process.stdin.flush()
        code = self._answer()
        if code != "0":
            raise RuntimeError(f"the mock cluster refused topic {name}: error {code}")
        self._topics += 1

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError("the mock cluster ended; its words are above")
        return line

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class KafkaBrokers:
    """Three real nodes on this machine."""

    def __init__(self) -> None:
        self._cluster = KafkaCluster(NODES, heap="768m")
        self._cluster.start_blocking()
        self.name = f"Apache Kafka {self._cluster.version}, {NODES} nodes"
        self.servers = self._cluster.bootstrap_servers
        self._admin = ClusterAdmin(self.servers)
        self._others: set[str] = set()

    @contextlib.contextmanager
    def topic(self, case: Case) -> Iterator[str]:
        while len(self._others) < case.topics - 1:
            other = f"other-{len(self._others)}"
            self._admin.create_topic(other, 1, 1)
            self._others.add(other)
        name = new_name()
        configs = {"min.insync.replicas": "2"} if case.replicas == NODES else None
        self._admin.create_topic(name, case.partitions, case.replicas, configs)
        try:
            yield name
        finally:
            self._admin.delete_topic(name)

    def count(self, topic: str) -> int:
        return sum(self._admin.end_offsets(topic).values())

    def cpu_seconds(self) -> float | None:
        return cpu_seconds(self._cluster.pids())

    def stop(self) -> None:
        self._cluster.stop_blocking()


@contextlib.contextmanager
def running(kind: str) -> Iterator[Brokers]:
    """Run the cluster "mock" or "kafka" until the end of the block."""
    brokers = MockBrokers() if kind == "mock" else KafkaBrokers()
    try:
        yield brokers
    finally:
        brokers.stop()
