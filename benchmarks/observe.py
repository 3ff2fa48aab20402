"""Measures the cost of observing a producer: metrics, scrapes, traces, pushed telemetry.

    python -m benchmarks.observe             # instructions (valgrind) and CPU time
    python -m benchmarks.observe --cpu       # CPU time only

Instructions per record are the difference of two runs under `valgrind --tool=callgrind`, divided by
the difference of their records, as in `benchmarks.instructions`. CPU time is the minimum of several
runs in this process. The cost of traces excludes that of the same record without plug-ins.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

VALUE: Final = b"v" * 100
RECORDS: Final = 20_000, 120_000
SCRAPED_TOPICS: Final = 200
_COLLECTED: Final = re.compile(r"Collected : (\d+)")


def plain(count: int) -> None:
    """Call `await submit()` without metrics, with a broker that does almost no work."""
    _submit(count, metrics=False)


def metrics(count: int) -> None:
    """Do the same as `plain`, with the producer's metrics."""
    _submit(count, metrics=True)


def _submit(count: int, *, metrics: bool) -> None:
    from aiokprod import Producer
    from aiokprod.observer import Observer
    from benchmarks.loopback_broker import TOPIC, NearbyBroker

    async def main() -> None:
        # All batches must be full, so that their number does not depend on the time of a run.
        producer = Producer(
            bootstrap_servers="nearby:9092",
            environment=NearbyBroker().environment(),
            linger_ms=600_000,
            delivery_timeout_ms=1_200_000,
            adaptive_linger=False,
        )
        if not metrics:
            producer._observer = Observer()
        async with producer:
            for value in [VALUE] * count:
                await producer.submit(TOPIC, value)
            await producer.flush()

    asyncio.run(main())


def _appended(count: int, plugins: tuple[Any, ...], context: Callable[[], Any] | None) -> None:
    """Append records as `try_submit` does, and settle their batches."""
    from aiokprod._client.record_hooks import RecordHooks
    from aiokprod._client.record_serializers import RecordSerializers
    from aiokprod.observer import Observer
    from benchmarks.append_harness import TOPIC, AppendHarness

    harness = AppendHarness(
        1,
        keep=True,
        serializers=RecordSerializers(None, None),
        hooks=RecordHooks(None, plugins, Observer()),
    )
    append = harness.appender.try_append
    for _ in range(count):
        with context() if context else nullcontext():
            append(TOPIC, VALUE)
    # Run on a loop, because the plug-in reads the loop's clock.
    asyncio.run(_settle(harness))


async def _settle(harness: Any) -> None:
    from types import SimpleNamespace

    from aiokprod.records import TopicPartition

    for core in harness.kept:
        view = SimpleNamespace(
            topic_partition=TopicPartition("t", 0), core=core, attempts=1, wire_node=1,
            created_at=asyncio.get_running_loop().time(),
        )  # fmt: skip
        core.acknowledge(0, -1, view)


def _active(sampled: bool) -> Callable[[], Any]:
    """Return a function that enters a context with a new span for each record."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

    number = iter(range(1, 1 << 40))

    def make() -> Any:
        flags = TraceFlags(int(sampled))
        return use_span(NonRecordingSpan(SpanContext(next(number), next(number), False, flags)))

    return make


def _active_some() -> Callable[[], Any]:
    """Return a function like that of `_active`, with one of 100 spans sampled."""
    yes, no = _active(sampled=True), _active(sampled=False)
    number = iter(range(1 << 40))
    return lambda: yes() if next(number) % 100 == 0 else no()


def _traced(count: int, context: Callable[[], Any] | None, *, traced: bool = True) -> None:
    plugins: tuple[Any, ...] = ()
    if traced:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        from aiokprod.observe.otel import Telemetry

        plugins = (Telemetry(TracerProvider(sampler=ALWAYS_ON)),)
    _appended(count, plugins, context)


CASES: Final[Mapping[str, Callable[[int], None]]] = {
    "plain": plain,
    "metrics": metrics,
    "no_plugin": lambda count: _traced(count, None, traced=False),
    "no_span": lambda count: _traced(count, None),
    "span_alone": lambda count: _traced(count, _active(sampled=False), traced=False),
    "unsampled": lambda count: _traced(count, _active(sampled=False)),
    "sampled_1_percent": lambda count: _traced(count, _active_some()),
}


def instructions(name: str) -> float:
    """Return the instructions per record. Raises RuntimeError with valgrind's output."""
    few, many = (_instructions(name, count) for count in RECORDS)
    return (many - few) / (RECORDS[1] - RECORDS[0])


def _instructions(name: str, count: int) -> int:
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
         sys.executable, "-m", "benchmarks.observe", "--inside", name, str(count)],
        capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip
    found = _COLLECTED.search(done.stderr)
    if done.returncode != 0 or found is None:
        raise RuntimeError(f"valgrind failed:\n{done.stderr[-2000:]}")
    return int(found.group(1))


def cpu(call: Callable[[], object], runs: int = 5) -> float:
    """Return the minimum CPU time of a call, s."""
    times = []
    for _ in range(runs):
        before = time.process_time()
        call()
        times.append(time.process_time() - before)
    return min(times)


def scrape() -> tuple[float, float]:
    """Return the CPU time of a scrape of 200 topics and its longest time with the GIL held, s."""
    from prometheus_client import CollectorRegistry

    from aiokprod import Producer
    from aiokprod.observe.prometheus import collector, exposition

    producer = Producer(bootstrap_servers="b:1")
    for number in range(SCRAPED_TOPICS):
        counts = producer._metrics.topics.add(f"orders.eu-west-{number:03}")
        counts.records_acknowledged = counts.bytes_sent = 1000 + number
    for node in range(3):
        for value in range(1, 400):
            producer._metrics.nodes.of(node).request_latency_s.add(value / 1000)
    registry = CollectorRegistry()
    registry.register(collector(producer))
    took = cpu(lambda: exposition(registry), 30)

    holds = []
    sleep = time.sleep
    for _ in range(10):
        longest = 0.0
        last = time.thread_time()

        def pause(seconds: float) -> None:
            nonlocal longest, last
            longest = max(longest, time.thread_time() - last)
            sleep(seconds)
            last = time.thread_time()

        def run() -> None:
            nonlocal last
            last = time.thread_time()
            exposition(registry)
            pause(0)

        time.sleep = pause  # type: ignore[assignment]
        try:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        finally:
            time.sleep = sleep
        holds.append(longest)
    return took, min(holds)


def push() -> tuple[float, float]:
    """Return the CPU time of a KIP-714 push of all metrics, s, with one topic and with 200 topics.
    It covers the metrics, OTLP and compression, but not the socket."""
    return _push(1), _push(SCRAPED_TOPICS)


def _push(topics: int) -> float:
    from types import SimpleNamespace

    from aiokprod import Producer
    from aiokprod._engine.telemetry.collection import Collection
    from aiokprod._engine.telemetry.pusher import Subscription, TelemetryPusher

    producer = Producer(bootstrap_servers="b:1")
    metrics = producer._metrics
    for number in range(topics):
        metrics.topics.add(f"orders.eu-west-{number:03}").records_acknowledged = 1000 + number
    sent: list[Any] = []
    connection: Any = SimpleNamespace(
        node_id=1, send=lambda request, *_, **__: sent.append(request)
    )
    subscription = Subscription(1, (4, 3, 1), 30.0, 1 << 20, delta=True, requested=("",))
    loop = asyncio.new_event_loop()
    pusher = TelemetryPusher(
        loop,
        connection,  # not used
        Collection(metrics, dict),
        nodes=lambda: [1, 2, 3],
        unix_ms=lambda: int(time.time() * 1000),
        rng=random.Random(0),
        request_timeout=30,
        resource={"client_id": "benchmark"},
    )

    def once() -> None:
        for node in range(3):  # new values, because otherwise averages are not pushed
            metrics.on_produce_done(node, 0.003)
        metrics.histograms["queue_time_s"].add(0.005)
        pusher._push(connection, subscription)

    try:
        return cpu(once, 50)
    finally:
        loop.close()
        assert len(sent) == 50
        assert all(request.metrics for request in sent)


def _report(measure: Callable[[str], float], unit: str, scale: float) -> None:
    found = {name: measure(name) for name in CASES}
    for name, value in found.items():
        print(f"{name:20} {value * scale:10.2f} {unit} a record")
    share = (found["metrics"] - found["plain"]) / found["plain"] * 100
    print(f"metrics: {share:.2f} % of submit")
    print(f"no active span: +{(found['no_span'] - found['no_plugin']) * scale:.2f} {unit}")
    added = found["unsampled"] - found["span_alone"]
    print(f"unsampled span: +{added * scale:.2f} {unit}")
    more = (found["sampled_1_percent"] - found["unsampled"]) / found["unsampled"] * 100
    print(f"1 % sampled: {more:+.1f} % over unsampled")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.observe",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cpu", action="store_true", help="CPU time only")
    parser.add_argument("--inside", nargs=2, metavar=("CASE", "RECORDS"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        name, records = chosen.inside
        CASES[name](int(records))
        return 0
    took, hold = scrape()
    print(f"scrape of {SCRAPED_TOPICS} topics: {took * 1e3:.2f} ms, at a time {hold * 1e3:.2f} ms")
    few_topics, many_topics = push()
    print(
        f"push: {few_topics * 1e3:.2f} ms, with {SCRAPED_TOPICS} topics {many_topics * 1e3:.2f} ms"
    )
    if not chosen.cpu:
        _report(instructions, "instructions", 1)
    few, most = RECORDS

    def each(name: str) -> float:
        case = CASES[name]
        return (cpu(partial(case, most)) - cpu(partial(case, few))) / (most - few)

    _report(each, "us", 1e6)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
