"""aiokprod beside aiokafka and confluent-kafka on the same brokers.

    python -m benchmarks.compare                   mock cluster, then three real Kafka nodes
    python -m benchmarks.compare --cluster mock    only the mock cluster
    python -m benchmarks.compare --check           exit 1 unless the promises below hold

Every measurement runs in a process of its own on a new topic; the clients take turns, and the
median of the runs counts. After each the topic's end offsets must equal what was sent.

Promises (on the median): 64 tasks awaiting `send` reach at least aiokafka's rate; `submit` reaches
five times aiokafka's; a lone awaited record takes at most one bare Produce round trip + 1 ms.
aiokafka stands for the better of its default and its tuned settings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import statistics
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiokprod.testing.kafka_cluster import KafkaCluster
from aiokprod.testing.mock_cluster import MockCluster
from benchmarks.worker import ROUND_TRIP

WORKER_TIMEOUT = 300.0
PARTITIONS = 6

# (title, client, share of --records)
RATES = (
    ("aiokprod   send, 64 tasks", "aiokprod-send", 1.0),
    ("aiokafka   send_and_wait, 64 tasks", "aiokafka-send", 1.0),
    ("aiokafka   the same, tuned", "aiokafka-send-tuned", 1.0),
    ("confluent  AIOProducer, 64 tasks", "confluent-aio-send", 0.04),
    ("aiokprod   submit", "aiokprod-submit", 5.0),
    ("aiokafka   send", "aiokafka-submit", 1.0),
    ("aiokafka   send, tuned", "aiokafka-submit-tuned", 1.0),
    ("confluent  produce", "confluent-produce", 5.0),
    ("aiokprod   send_many", "aiokprod-send-many", 10.0),
)
LATENCIES = (
    ("bare Produce round trip", ROUND_TRIP),
    ("aiokprod   lone send", "aiokprod-lone"),
    ("aiokafka   lone send_and_wait", "aiokafka-lone"),
)
LONE_RECORDS = 500
WARM_UP = (("confluent-produce", 20), ("aiokafka-send", 1))


@dataclass
class Measured:
    """All runs of one client on one cluster."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.latencies) * 1000

    @property
    def p99_ms(self) -> float:
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)] * 1000


class Brokers:
    """A running cluster, mock or real, and the counting of what arrived."""

    def __init__(self, cluster: MockCluster | KafkaCluster) -> None:
        self.servers = cluster.bootstrap_servers
        self._real = isinstance(cluster, KafkaCluster)

    @contextlib.contextmanager
    def topic(self) -> Iterator[str]:
        from aiokprod.testing.kafka_admin import ClusterAdmin

        name = f"bench-{uuid.uuid4().hex[:8]}"
        if not self._real:
            self.count(name)  # asking for it makes it
            yield name
            return
        admin = ClusterAdmin(self.servers)
        admin.create_topic(name, PARTITIONS, 3)
        yield name
        admin.delete_topic(name)

    def count(self, topic: str) -> int:
        """Records in the topic, by the end offsets of its partitions."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "bench",
                "allow.auto.create.topics": True,
                "log_level": 0,
            }
        )
        try:
            partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
            return sum(
                consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30)[1]
                for p in partitions
            )
        finally:
            consumer.close()


def run_worker(
    brokers: Brokers, client: str, count: int, size: int, loop: str
) -> dict[str, object]:
    """One measurement, verified. Raises RuntimeError if it failed or records are missing."""
    with brokers.topic() as topic:
        command = [sys.executable, "-m", "benchmarks.worker", client, brokers.servers, topic]
        done = subprocess.run(
            [*command, str(count), str(size), loop],
            capture_output=True,
            text=True,
            timeout=WORKER_TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{client} failed:\n{done.stderr[-3000:]}")
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        expected = count + int(str(result["warm_up"]))
        found = brokers.count(topic)
        if found != expected:
            raise RuntimeError(f"{client}: {expected} records sent, {found} in {topic}")
        return result


def measure(brokers: Brokers, chosen: argparse.Namespace) -> dict[str, Measured]:
    """All clients in turn, `runs` times over."""
    results: dict[str, Measured] = {}
    jobs = [(client, int(chosen.records * share)) for _, client, share in RATES]
    jobs += [(client, LONE_RECORDS) for _, client in LATENCIES]
    for run in range(chosen.runs):
        for client, count in jobs:
            if chosen.only and not any(word in client for word in chosen.only):
                continue
            print(f"\r run {run + 1}: {client:24}", end="", file=sys.stderr, flush=True)
            result = run_worker(brokers, client, count, chosen.size, chosen.loop)
            measured = results.setdefault(client, Measured())
            measured.rates.append(count / float(str(result["seconds"])))
            if "cpu" in result:
                measured.cpu.append(float(str(result["cpu"])) / count * 1e6)
            latencies = result["latencies"]
            assert isinstance(latencies, list)
            measured.latencies += latencies
    print("\r" + " " * 40 + "\r", end="", file=sys.stderr, flush=True)
    return results


def show(results: dict[str, Measured]) -> None:
    print(f"{'':36}{'records/s':>12}{'slowest..fastest':>24}{'CPU µs/record':>15}")
    for title, client, _ in RATES:
        if client in results:
            m = results[client]
            spread = f"{min(m.rates):,.0f}..{max(m.rates):,.0f}"
            print(f"{title:36}{m.rate:>12,.0f}{spread:>24}{statistics.median(m.cpu):>15.2f}")
    print(f"{'':36}{'p50 ms':>12}{'p99 ms':>12}")
    for title, client in LATENCIES:
        if client in results:
            m = results[client]
            print(f"{title:36}{m.p50_ms:>12.3f}{m.p99_ms:>12.3f}")


def promises(results: dict[str, Measured]) -> list[tuple[bool, str]]:
    """(kept, words) for each promise that these results can judge."""
    kept = []

    def rate(*clients: str) -> float:
        return max((results[c].rate for c in clients if c in results), default=0.0)

    def ratio(ours: str, floor: float, *theirs: str) -> None:
        other = rate(*theirs)
        if ours in results and other:
            times = rate(ours) / other
            kept.append((times >= floor, f"{ours} is {times:.1f} times aiokafka, floor {floor}"))

    ratio("aiokprod-send", 1.0, "aiokafka-send", "aiokafka-send-tuned")
    ratio("aiokprod-submit", 5.0, "aiokafka-submit", "aiokafka-submit-tuned")
    if "aiokprod-lone" in results and ROUND_TRIP in results:
        above = results["aiokprod-lone"].p50_ms - results[ROUND_TRIP].p50_ms
        kept.append((above <= 1.0, f"lone send is {above:.3f} ms above a round trip, limit 1 ms"))
    return kept


def main() -> None:
    parser = argparse.ArgumentParser(description="aiokprod beside other clients.")
    parser.add_argument("--cluster", choices=("mock", "kafka", "both"), default="both")
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a value")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--only", nargs="*", help="clients whose name contains one of these")
    parser.add_argument("--check", action="store_true", help="exit 1 if a promise is broken")
    chosen = parser.parse_args()

    import aiokprod

    print(
        f"aiokprod {aiokprod.__version__} (compiled: {aiokprod.COMPILED}), "
        f"{platform.python_implementation()} {platform.python_version()}, {chosen.loop}; "
        f"values of {chosen.size} bytes, acks=all, median of {chosen.runs} runs"
    )
    broken = False
    for kind in ("mock", "kafka"):
        if chosen.cluster not in (kind, "both"):
            continue
        with contextlib.ExitStack() as stack:
            cluster: MockCluster | KafkaCluster
            if kind == "mock":
                cluster = stack.enter_context(MockCluster(3))
                title = "mock cluster, 3 brokers, 4 partitions"
            else:
                cluster = KafkaCluster(3)
                cluster.start_blocking()
                stack.callback(cluster.stop_blocking)
                title = f"Apache Kafka {cluster.version}, 3 nodes, {PARTITIONS} partitions, RF 3"
            print(f"\n{title}")
            brokers = Brokers(cluster)
            if kind == "kafka":  # young JVMs are several times slower
                for client, share in WARM_UP:
                    run_worker(brokers, client, chosen.records * share, chosen.size, chosen.loop)
            results = measure(brokers, chosen)
        show(results)
        for held, words in promises(results):
            broken |= not held
            print(f"{'kept  ' if held else 'BROKEN'}  {words}")
    sys.exit(1 if broken and chosen.check else 0)


if __name__ == "__main__":
    main()
