"""Measures the cost of TLS: the same producer on the plaintext and the SSL listener of a broker.

    python -m benchmarks.tls                        7 rounds of 200 000 records of 1 KiB
    python -m benchmarks.tls --rounds 15 --records 400000
    python -m benchmarks.tls --check                exit 1 below 60 % of the plaintext throughput

The listeners alternate, and each round begins with another listener. Every measurement is a
separate process that writes to a new topic. The results are medians. The topic's end offsets verify
the number of records.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiokprod import Producer
from aiokprod.testing.kafka_cluster import HOST, KafkaCluster
from tests.security.certs import Authority

PARTITIONS: Final = 6
TARGET: Final = 0.6
LISTENERS: Final = ("plaintext", "TLS")
WARM_UP: Final = 20_000


@dataclass
class Measured:
    """The results of all rounds of one listener: MB/s, and CPU seconds of the producer."""

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


async def produce(job: dict[str, Any]) -> dict[str, float]:
    """Measure in this process. Return the seconds and CPU seconds for `records`."""
    settings: dict[str, Any] = {"bootstrap_servers": job["servers"]}
    if job["ca"]:
        settings |= {"security_protocol": "SSL", "ssl_truststore_location": job["ca"]}
    value = b"v" * job["size"]
    async with Producer(**settings) as producer:
        await producer.warm([job["topic"]])
        for _ in range(WARM_UP):
            await producer.submit(job["topic"], value)
        await producer.flush()
        used, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for _ in range(job["records"]):
            await producer.submit(job["topic"], value)
        await producer.flush()
        seconds = time.perf_counter() - started
        now = resource.getrusage(resource.RUSAGE_SELF)
    cpu = now.ru_utime - used.ru_utime + now.ru_stime - used.ru_stime
    return {"seconds": seconds, "cpu": cpu}


def run_worker(job: dict[str, Any]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.tls", "--worker", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-3000:])
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(cluster: KafkaCluster, ca: str, chosen: argparse.Namespace) -> dict[str, Measured]:
    """Measure all rounds, after two rounds that warm up the broker."""
    results = {name: Measured() for name in LISTENERS}
    for number in range(-2, chosen.rounds):
        turn = number % len(LISTENERS)
        for name in LISTENERS[turn:] + LISTENERS[:turn]:
            topic = f"bench-{uuid.uuid4().hex[:8]}"
            asyncio.run(cluster.create_topic(topic, PARTITIONS))
            plain = name == "plaintext"
            job = {
                "servers": cluster.bootstrap_servers if plain else cluster.listener("TLS"),
                "ca": "" if plain else ca,
                "topic": topic,
                "records": chosen.records,
                "size": chosen.size,
                "loop": chosen.loop,
            }
            result = run_worker(job)
            arrived = sum(asyncio.run(cluster.end_offsets(topic)).values())
            if arrived != chosen.records + WARM_UP:
                raise RuntimeError(f"{name}: {arrived} records arrived")
            asyncio.run(cluster.delete_topic(topic))
            rate = chosen.records * chosen.size / result["seconds"] / 1e6
            print(f"round {number + 1}: {name} {rate:.1f} MB/s", file=sys.stderr, flush=True)
            if number >= 0:
                results[name].rates.append(rate)
                results[name].cpu.append(result["cpu"] / chosen.records * 1e6)
    return results


def show(results: dict[str, Measured], chosen: argparse.Namespace) -> float:
    """Print the results as a Markdown table. Return the throughput of TLS as a fraction of
    plaintext."""
    import aiokprod

    print(
        f"aiokprod {aiokprod.__version__}, {platform.python_implementation()} "
        f"{platform.python_version()}, {chosen.loop}; one node, {PARTITIONS} partitions; "
        f"{chosen.records:,} records of {chosen.size} bytes, median of {chosen.rounds} rounds"
    )
    print("\n| listener | MB/s | min..max | records/s | CPU µs/record |\n|---|---|---|---|---|")
    for name, m in results.items():
        print(
            f"| {name} | {m.rate:.1f} | {min(m.rates):.1f}..{max(m.rates):.1f} "
            f"| {m.rate * 1e6 / chosen.size:,.0f} | {statistics.median(m.cpu):.2f} |"
        )
    share = results["TLS"].rate / results["plaintext"].rate
    pairs = zip(results["TLS"].rates, results["plaintext"].rates, strict=True)
    shares = sorted(tls / plain for tls, plain in pairs)
    print(
        f"\nTLS reaches {share:.0%} of plaintext (round by round {shares[0]:.0%}..{shares[-1]:.0%})"
        f"; target {TARGET:.0%}"
    )
    return share


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="TLS beside plaintext on the same broker.")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a value")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    parser.add_argument("--check", action="store_true", help="exit 1 below the target")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    chosen = parse()
    if chosen.worker:
        job = json.loads(chosen.worker)
        factory = None
        if job.get("loop", "uvloop") == "uvloop":
            import uvloop

            factory = uvloop.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            print(json.dumps(runner.run(produce(job))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        authority = Authority("benchmark CA", 90)
        store = authority.issue(HOST, number=91).write(Path(folder), "broker")
        ca = Path(folder) / "ca.pem"
        ca.write_text(authority.pem)
        tls = {
            "security.protocol": "SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
        }
        cluster = KafkaCluster(1, listeners={"TLS": tls})
        cluster.start_blocking()
        try:
            results = measure(cluster, str(ca), chosen)
        finally:
            cluster.stop_blocking()
    share = show(results, chosen)
    return 1 if chosen.check and share < TARGET else 0


if __name__ == "__main__":
    sys.exit(main())
