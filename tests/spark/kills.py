"""Random SIGKILLs of task, commit and abort processes. The retry and replay follow Spark's rules
but need no JVM, so hundreds of kills take minutes.

    python -m tests.spark.kills --kills 100 --delivery exactly_once

The parent process acts as Spark. It forks a process per task attempt and per commit, and kills some
of them at random moments. It retries tasks. It replays the batch after a failed commit or a "driver
crash", which may also follow a commit that succeeded but was not logged. At the end an independent
client reads the topic back, and no transaction may be open.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import read_back
from tests.spark.integration.test_protocol import ROWS, Query

TASKS = 3
ATTEMPTS = 6
DEADLINE = 120.0


class Child:
    """A forked process that runs a function. A pipe returns the result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            try:
                result: Any = function()
            except BaseException as error:
                result = f"{type(error).__name__}: {error}"
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(result, pipe)
            os._exit(0)
        os.close(write)
        self._done = False

    def kill(self) -> bool:
        """Send SIGKILL. Return False if the process had already exited."""
        if self.ended():
            return False
        os.kill(self.pid, signal.SIGKILL)
        return True

    def ended(self) -> bool:
        if not self._done:
            self._done = os.waitpid(self.pid, os.WNOHANG)[0] != 0
        return self._done

    def result(self) -> Any:
        """Return the result of the function, the text of its error, or None if the process was
        killed."""
        with os.fdopen(self._read, "rb") as pipe:
            data = pipe.read()
        if not self._done:
            os.waitpid(self.pid, 0)
            self._done = True
        return pickle.loads(data) if data else None


class Spark:
    """Runs batches by the rules of Spark's driver."""

    def __init__(self, query: Query, rng: random.Random, kills: int, share: float) -> None:
        self._query = query
        self._rng = rng
        self._wanted = kills
        self._share = share
        self.killed = {"task": 0, "driver": 0, "commit": 0, "abort": 0, "note": 0}
        self.batches = 0
        self._usual: dict[str, float] = {}  # seconds of the last run, by kind

    @property
    def done(self) -> bool:
        return sum(self.killed.values()) >= self._wanted

    def _unlucky(self, share: float | None = None) -> bool:
        return not self.done and self._rng.random() < (self._share if share is None else share)

    def _run(self, children: list[Child], what: str) -> list[Any]:
        """Wait for all children, and perhaps kill one of them at a random moment."""
        started = time.monotonic()
        if self._unlucky():
            time.sleep(self._rng.uniform(0, self._usual.get(what, 0.3)))
            self.killed[what] += self._rng.choice(children).kill()
            return [child.result() for child in children]
        results = [child.result() for child in children]
        self._usual[what] = time.monotonic() - started
        return results

    def run_batch(self) -> None:
        """Repeat the batch until its commit is logged."""
        give_up = time.monotonic() + DEADLINE
        while not self._attempt():
            assert time.monotonic() < give_up, f"batch {self.batches} does not get through"
        self.batches += 1

    def _attempt(self) -> bool:
        """Run the batch once. Return True if it succeeded, or False if it must be replayed."""
        messages = self._tasks()
        if messages is None:
            return False
        batch, query = self.batches, self._query
        if self._unlucky(self._share / 2):
            self.killed["driver"] += 1
            return False  # the driver died between the tasks and the commit

        def commit() -> str:
            query.writer().commit(messages, batch)
            return "done"

        (outcome,) = self._run([Child(commit)], "commit")
        if outcome == "done":
            if self._unlucky(self._share / 2):
                self.killed["note"] += 1
                return False  # the driver died after the commit and before it logged the batch
            return True
        if outcome is not None:  # commit raised: Spark calls abort, and the query restarts
            assert "NonDeterministicReplay" not in outcome, outcome
            self._abort(messages)
        return False

    def _tasks(self) -> list[Any] | None:
        """Return the messages of all tasks, or None if the job failed or the driver died."""
        waiting, messages = dict.fromkeys(range(TASKS), 0), [None] * TASKS
        while waiting:
            children = {number: self._task(number, attempt) for number, attempt in waiting.items()}
            if self._unlucky(self._share / 3):
                time.sleep(self._rng.uniform(0, self._usual.get("task", 0.3)))
                self.killed["driver"] += 1
                for child in children.values():
                    child.kill()
                for child in children.values():
                    child.result()
                return None
            results = self._run(list(children.values()), "task")
            for number, result in zip(list(waiting), results, strict=True):
                if isinstance(result, str):
                    print("task failed:", result, file=sys.stderr)
                if result is not None and not isinstance(result, str):
                    messages[number] = result
                    del waiting[number]
                else:
                    waiting[number] += 1
            if max(waiting.values(), default=0) >= ATTEMPTS:  # the job fails
                self._abort(messages)
                return None
        return messages

    def _abort(self, messages: list[Any]) -> None:
        batch, query = self.batches, self._query
        self._run([Child(lambda: query.writer().abort(messages, batch))], "abort")

    def _task(self, number: int, attempt: int) -> Child:
        batch, query = self.batches, self._query
        return Child(lambda: query.task(batch, number, TASKS, attempt=attempt))


def judge(query: Query, delivery: str, batches: int) -> str:
    """Check for lost and duplicated records. An open transaction is an error."""
    records = read_back(query.servers, query.topic)
    keys = [int(record.key or b"") for record in records]
    lost = set(range(batches * ROWS)) - set(keys)
    text = (
        f"{delivery}: {batches} batches, {len(keys)} records, {len(lost)} lost, "
        f"{len(keys) - len(set(keys))} duplicates"
    )
    assert not lost, text
    if delivery == "exactly_once":
        assert len(keys) == len(set(keys)), text
    return text


def run(servers: str, delivery: str, kills: int, seed: int, share: float) -> str:
    """Run a complete campaign."""
    options = {"delivery": delivery}
    query = Query(servers, **options)
    if delivery == "at_least_once":
        del query.options["transactionalIdPrefix"]
    asyncio.run(KafkaTopic(servers).create_topic(query.topic, 3))
    spark = Spark(query, random.Random(seed), kills, share)
    while not spark.done:
        spark.run_batch()
    spark.run_batch()
    open_ones = Child(query.settle).result()
    assert open_ones is None, open_ones
    text = judge(query, delivery, spark.batches)
    return f"{text}; kills {spark.killed}"


class KafkaTopic(KafkaCluster):
    """Running brokers on which topics can be created."""

    def __init__(self, servers: str) -> None:
        super().__init__(1)
        self._servers = servers

    @property
    def bootstrap_servers(self) -> str:
        return self._servers


def main() -> None:
    parser = argparse.ArgumentParser(description="Random kills without a JVM.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--share", type=float, default=0.6, help="of batches something is killed in"
    )
    parser.add_argument("--delivery", default="exactly_once")
    parser.add_argument("--servers", default="", help="existing brokers instead of a new one")
    arguments = parser.parse_args()
    cluster = None
    if not arguments.servers:
        cluster = KafkaCluster(1)
        cluster.start_blocking()
        arguments.servers = cluster.bootstrap_servers
    try:
        print(run(arguments.servers, arguments.delivery, arguments.kills, arguments.seed,
                  arguments.share), flush=True)  # fmt: skip
    finally:
        if cluster is not None:
            cluster.stop_blocking()


if __name__ == "__main__":
    main()
