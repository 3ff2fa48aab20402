"""Kill the driver, executors and Python workers of a streaming run with SIGKILL at random, then
audit the topic.

    python -m tests.spark.campaign --kills 20 --delivery exactly_once

The stream runs on a separate master, local-cluster[2,1,1024], so that executors are processes. The
driver is restarted whenever it has exited. At the end an independent client reads the topic back.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import read_back, stable

ROOT = Path(__file__).parents[2]
ROWS = 2000
PARTS = 3


def stream(servers: str, topic: str, folder: str, delivery: str, master: str) -> None:
    """Run the driver's program until it is killed, or until a file named stop appears."""
    from pyspark.sql import SparkSession

    from tests.spark.integration.spark_helpers import rate, start_stream

    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "600m")
        .config("spark.executor.memory", "600m")
        .config("spark.executorEnv.PYTHONPATH", str(ROOT))
        .config("spark.task.maxFailures", "8")
        .config("spark.deploy.maxExecutorRetries", "-1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    options: dict[str, Any] = {"delivery": delivery}
    if delivery == "exactly_once":
        options["transactionalIdPrefix"] = "campaign"
    frame = rate(spark, ROWS, PARTS)
    query = start_stream(frame, servers, topic, Path(folder), **options)
    while query.isActive:
        if (Path(folder) / "stop").exists():
            query.stop()
            last = start_stream(frame, servers, topic, Path(folder), finish=True, **options)
            last.awaitTermination(120)
            return
        time.sleep(0.2)
    sys.exit(f"query failed: {query.exception()}")


def descendants(root: int) -> dict[str, list[int]]:
    """Return the processes below the driver by kind: driver (the JVM), executor, worker."""
    parents, kinds = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            kinds[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, IndexError, ValueError):
            continue
    found: dict[str, list[int]] = {"driver": [], "executor": [], "worker": []}
    for pid, text in kinds.items():
        at = pid
        while at in parents and at != root:
            at = parents[at]
        if at != root or pid == root:
            continue
        if "CoarseGrainedExecutorBackend" in text:
            found["executor"].append(pid)
        elif "SparkSubmit" in text:
            found["driver"].append(pid)
        elif (
            "pyspark.daemon" in text
            and parents[pid] in kinds
            and "pyspark.daemon" in kinds[parents[pid]]
        ):
            found["worker"].append(pid)
    return found


class Campaign:
    """One run of the campaign."""

    def __init__(self, servers: str, arguments: argparse.Namespace) -> None:
        self.servers = servers
        self.topic = f"campaign-{arguments.delivery.replace('_', '-')}-{arguments.seed}"
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.folder = Path(tempfile.mkdtemp(prefix="aiokprod-campaign-"))
        self.driver: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.log = (self.folder / "driver.log").open("ab")

    def start(self) -> None:
        """Start a new driver process, in a separate process group."""
        self.starts += 1
        command = [sys.executable, "-m", "tests.spark.campaign", "--stream", self.servers]
        command += [self.topic, str(self.folder), self.arguments.delivery, self.arguments.master]
        environment = dict(os.environ, PYTHONPATH=str(ROOT), PYSPARK_PYTHON=sys.executable)
        self.driver = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=self.log, stderr=self.log,
            start_new_session=True,
        )  # fmt: skip

    def commits(self) -> int:
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))

    def await_batches(self, more: int, seconds: float = 180.0) -> None:
        """Wait until this many more batches are finished. Restart the driver if it has exited."""
        goal, give_up = self.commits() + more, time.monotonic() + seconds
        while self.commits() < goal:
            assert self.driver is not None
            if self.driver.poll() is not None:
                self.end()
                self.start()
            assert time.monotonic() < give_up, (
                f"no progress: see {self.folder / 'driver.log'}\n"
                + (self.folder / "driver.log").read_text(errors="replace")[-3000:]
            )
            time.sleep(0.1)

    def end(self) -> None:
        """Kill the processes of the driver's process group that still run."""
        assert self.driver is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()

    def run(self) -> dict[str, int]:
        killed = {"driver": 0, "executor": 0, "worker": 0}
        self.start()
        self.await_batches(2)
        while sum(killed.values()) < self.arguments.kills:
            time.sleep(self.rng.uniform(0.0, 1.5))
            assert self.driver is not None
            kind = self.rng.choice(["driver", "executor", "worker", "worker", "executor"])
            found = descendants(self.driver.pid)[kind]
            if not found:
                self.await_batches(1)
                continue
            if kind == "driver":
                self.end()  # executors of local-cluster die with their driver
            else:
                os.kill(self.rng.choice(found), signal.SIGKILL)
            killed[kind] += 1
            print(f"kill {sum(killed.values())}: {kind}, {self.commits()} batches", flush=True)
            self.await_batches(1)
        self.await_batches(2)
        (self.folder / "stop").touch()
        assert self.driver is not None
        assert self.driver.wait(120) == 0, f"the last run failed: see {self.folder / 'driver.log'}"
        return killed

    def judge(self) -> str:
        """Check finished batches for lost and duplicated rows, and check that no transaction is
        open."""
        done = self.commits()
        assert stable(self.servers, self.topic), "a transaction stays open"
        records = read_back(self.servers, self.topic)
        keys = [int(record.key or b"") for record in records]
        unique = set(keys)
        lost = set(range(done * ROWS)) - unique
        doubled = len(keys) - len(unique)
        text = (
            f"{self.arguments.delivery}: {done} batches, {len(keys)} records, {len(lost)} lost, "
            f"{doubled} duplicates, {self.starts} driver starts"
        )
        assert not lost, text
        if self.arguments.delivery == "exactly_once":
            assert not doubled, text
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description="Random kills in a streaming run.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delivery", default="exactly_once")
    parser.add_argument("--master", default="local-cluster[2,1,700]")
    parser.add_argument("--servers", default="", help="existing brokers instead of new ones")
    parser.add_argument("--stream", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stream:
        stream(*arguments.stream)
        return
    cluster = None
    if not arguments.servers:
        cluster = KafkaCluster(3)
        cluster.start_blocking()
        arguments.servers = cluster.bootstrap_servers
    campaign = Campaign(arguments.servers, arguments)
    try:
        if cluster is not None:
            asyncio.run(cluster.create_topic(campaign.topic, partitions=3))
        killed = campaign.run()
        print(killed, campaign.judge(), flush=True)
    finally:
        if campaign.driver is not None:
            campaign.end()
        if cluster is not None:
            cluster.stop_blocking()


if __name__ == "__main__":
    main()
