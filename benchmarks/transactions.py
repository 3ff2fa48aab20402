"""Compares transactions per second with confluent-kafka, aiokafka and the Java producer on three
nodes.

    python -m benchmarks.transactions                     1, 100 and 10 000 records per transaction
    python -m benchmarks.transactions --each 1 --rounds 9
    python -m benchmarks.transactions --protocol 1        brokers before transaction.version 2
    python -m benchmarks.transactions --check             exit 1 unless the promises below hold

One producer runs one transaction after the other. Every measurement is a separate process with a
new topic (6 partitions, 3 replicas, min.insync.replicas 2). The clients run alternately within a
round, each round begins with another client, and the median of the rounds counts. After each
measurement, an independent read_committed consumer must receive every record that was sent.

Promises (for the medians):

- At every size, the rate is at least that of confluent-kafka, and twice that of aiokafka (the
  better of its default and tuned settings).
- With 10 000 records per transaction, a record takes at most 5 % more CPU time than without
  transactions, from submission to acknowledgment. The commit (two requests) is reported separately.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aiokprod.testing.kafka_admin import ClusterAdmin, downgrade_feature
from aiokprod.testing.kafka_artifacts import class_path, find_java
from aiokprod.testing.kafka_cluster import KAFKA_4, KafkaCluster
from benchmarks.transaction_worker import OVERHEAD

WORKER_TIMEOUT = 300.0
PARTITIONS = 6
JAVA = Path(__file__).with_name("TransactionRate.java")
DEFAULT_ROUNDS = 5
OVERHEAD_LIMIT = 0.05
PAIRS = 60

# Records per transaction -> number of timed transactions.
SIZES = {1: 300, 100: 200, 10_000: 30}
TITLES = {
    "aiokprod": "aiokprod, submit",
    "aiokprod-send-many": "aiokprod, send_many",
    "confluent": "confluent-kafka",
    "java": "Java",
    "aiokafka": "aiokafka",
    "aiokafka-tuned": "aiokafka, tuned",
    "aiokprod-idempotent": "aiokprod without transactions, flush",
}


@dataclass
class Measured:
    """The results of all rounds of one client at one size."""

    each: int
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu(self) -> float:
        """The client's CPU time per record in µs."""
        return statistics.median(self.cpu_us)

    def quantile_ms(self, share: float) -> float:
        return sorted(self.latencies)[int(len(self.latencies) * share)] * 1000


@contextlib.contextmanager
def new_topic(servers: str) -> Iterator[str]:
    """Create a new topic on all brokers, with three replicas if there are three brokers."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    admin = ClusterAdmin(servers)
    admin.create_topic(name, PARTITIONS, min(3, len(servers.split(","))))
    yield name
    admin.delete_topic(name)


def count_committed(servers: str, topic: str, limit_s: float = 60.0) -> int:
    """Return the number of records that a read_committed consumer receives up to the end of every
    partition."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
        unfinished, found = set(range(PARTITIONS)), 0
        give_up = time.monotonic() + limit_s
        while unfinished and time.monotonic() < give_up:
            for message in consumer.consume(10_000, timeout=0.5):
                error = message.error()
                if error is None:
                    found += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
        return found
    finally:
        consumer.close()


def command(client: str, servers: str, topic: str, numbers: list[str], loop: str) -> list[str]:
    if client != "java":
        worker = [sys.executable, "-m", "benchmarks.transaction_worker", client, servers, topic]
        return [*worker, *numbers, loop]
    java = find_java()
    if java is None:
        raise RuntimeError("no JDK 17 or newer: leave the Java producer out with --without java")
    # Use the same jars as the brokers.
    options = ["-cp", class_path(KAFKA_4), "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"]
    return [java, *options, str(JAVA), servers, topic, *numbers]


def run_worker(
    client: str, servers: str, each: int, transactions: int, size: int, loop: str, share: int = 1
) -> dict[str, object]:
    """Run and verify one measurement. Raises RuntimeError if it failed or records are missing.

    `share` is the number of times that the worker sends the records of the transactions.
    """
    with new_topic(servers) as topic:
        numbers = [str(transactions), str(each), str(size)]
        done = subprocess.run(
            command(client, servers, topic, numbers, loop),
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{client} failed:\n{done.stderr[-3000:]}")
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        expected = (transactions + int(str(result["warm_up"]))) * each * share
        found = count_committed(servers, topic)
        if found != expected:
            raise RuntimeError(f"{client}: {expected} records committed, {found} read")
        return result


def timed(each: int, chosen: argparse.Namespace) -> int:
    """Return the number of transactions in one measurement."""
    return max(3, int(SIZES[each] * float(chosen.scale)))


def measure(servers: str, each: int, chosen: argparse.Namespace) -> dict[str, Measured]:
    """Measure all clients, `rounds` times."""
    clients = [client for client in TITLES if client not in chosen.without]
    results = {client: Measured(each) for client in clients}
    transactions = timed(each, chosen)
    for number in range(chosen.rounds):
        turn = number % len(clients)
        for client in clients[turn:] + clients[:turn]:
            result = run_worker(client, servers, each, transactions, chosen.size, chosen.loop)
            measured = results[client]
            rate = transactions / float(str(result["seconds"]))
            note = f"{each} a transaction, round {number + 1}: {client} {rate:.1f}/s"
            print(note, file=sys.stderr, flush=True)
            measured.rates.append(rate)
            measured.cpu_us.append(float(str(result["cpu"])) / transactions / each * 1e6)
            latencies = result["latencies"]
            assert isinstance(latencies, list)
            measured.latencies += latencies
    return results


def show(each: int, results: dict[str, Measured]) -> None:
    """Print the results as a Markdown table for docs/reports."""
    print(f"\n| {each:,} a transaction | transactions/s | min..max | records/s | p50 ms | p99 ms "
          "| CPU µs/record |\n|---|---|---|---|---|---|---|")  # fmt: skip
    for client, m in results.items():
        spread = f"{min(m.rates):,.1f}..{max(m.rates):,.1f}"
        print(
            f"| {TITLES[client]} | {m.rate:,.1f} | {spread} | {m.rate * each:,.0f} | "
            f"{m.quantile_ms(0.5):.1f} | {m.quantile_ms(0.99):.1f} | {m.cpu:.2f} |"
        )


def promises(each: int, results: dict[str, Measured]) -> list[tuple[bool, str]]:
    """Return (kept, text) for each promise that has results."""
    kept = []
    ours = results["aiokprod"]

    def ratio(name: str, floor: float, theirs: list[Measured]) -> None:
        if theirs:
            times = ours.rate / max(other.rate for other in theirs)
            words = f"{each:,} a transaction: {times:.2f} times {name}, floor {floor}"
            kept.append((times >= floor, words))

    ratio("confluent-kafka", 1.0, [results[c] for c in ("confluent",) if c in results])
    ratio("aiokafka", 2.0, [results[c] for c in ("aiokafka", "aiokafka-tuned") if c in results])
    return kept


def overhead(servers: str, each: int, chosen: argparse.Namespace) -> tuple[bool, str]:
    """Return (kept, text) for the promise about the cost of a record in a transaction."""
    result = run_worker(OVERHEAD, servers, each, PAIRS, chosen.size, chosen.loop, share=2)
    found = {name: result[name] for name in ("transactions", "commits", "plain")}
    inside, commits, plain = (
        [float(str(seconds)) for seconds in values] if isinstance(values, list) else []
        for values in found.values()
    )
    more = statistics.median(a / b for a, b in zip(inside, plain, strict=True)) - 1
    whole = statistics.median(
        (a + b) / c for a, b, c in zip(inside, commits, plain, strict=True)
    ) - 1  # fmt: skip
    each_us = statistics.median(plain) / each * 1e6
    return more <= OVERHEAD_LIMIT, (
        f"{each:,} a transaction: {more:+.1%} processor time a record ({each_us:.2f} µs without "
        f"transactions), limit +5 %; commit included {whole:+.1%}; median of {PAIRS} pairs"
    )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Transactions beside other clients.")
    parser.add_argument("--each", type=int, nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=DEFAULT_ROUNDS)
    parser.add_argument("--scale", type=float, default=1.0, help="more or fewer transactions")
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--protocol", type=int, choices=(1, 2), default=2,
                        help="finalised transaction.version")  # fmt: skip
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=3)
    parser.add_argument("--without", nargs="*", default=[], choices=list(TITLES)[1:])
    parser.add_argument("--check", action="store_true", help="exit 1 if a promise is broken")
    return parser.parse_args()


def main() -> None:
    chosen = parse()
    import aiokprod

    cluster = KafkaCluster(chosen.nodes)
    cluster.start_blocking()
    try:
        servers = cluster.bootstrap_servers
        if chosen.protocol == 1:
            downgrade_feature(servers, "transaction.version", 1)
        print(
            f"aiokprod {aiokprod.__version__} (compiled: {aiokprod.COMPILED}), "
            f"{platform.python_implementation()} {platform.python_version()}, {chosen.loop}; "
            f"Apache Kafka {cluster.version}, {chosen.nodes} nodes, transaction.version "
            f"{chosen.protocol}, {PARTITIONS} partitions, RF {chosen.nodes}; values of "
            f"{chosen.size} bytes, median of {chosen.rounds} rounds"
        )
        for _ in range(2):  # warm up, because new JVMs are several times slower
            for client in ("confluent", "aiokprod"):
                for each in chosen.each:
                    count = timed(each, chosen)
                    run_worker(client, servers, each, count, chosen.size, chosen.loop)
        held = []
        for each in chosen.each:
            results = measure(servers, each, chosen)
            show(each, results)
            held += promises(each, results)
            if each == max(SIZES):
                held.append(overhead(servers, each, chosen))
    finally:
        cluster.stop_blocking()
    print()
    for kept, words in held:
        print(f"{'kept  ' if kept else 'BROKEN'}  {words}")
    sys.exit(0 if all(kept for kept, _ in held) or not chosen.check else 1)


if __name__ == "__main__":
    main()
