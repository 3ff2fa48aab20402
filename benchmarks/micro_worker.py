"""Measures one figure in a separate process and prints it as JSON.

python -m benchmarks.micro_worker FIGURE [SERVERS TOPIC]
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import selectors
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

VALUE: Final = b"v" * 100
RECORDS: Final = 500_000
IDLE_SECONDS: Final = 5.0
LATENCY: Final = 0.05
TURNS: Final = 500_000
CROWD: Final = 10_000

Figures = dict[str, float]


def append() -> Figures:
    """Measure the CPU time of the compiled append in ns, alone and called from Python."""
    from benchmarks.append_harness import TOPIC, AppendHarness

    harness = AppendHarness(3)
    column = [VALUE] * 100_000
    harness.append_column(column)
    started = time.process_time()
    for _ in range(20):
        harness.append_column(column)
    alone = (time.process_time() - started) / 20 / len(column)
    keys = [b"customer-%07d" % number for number in range(10_000)] * 10
    started = time.process_time()
    for _ in range(20):
        harness.append_column(column, keys)
    keyed = (time.process_time() - started) / 20 / len(column)
    submit = harness.appender.submit

    async def called() -> float:
        started = time.process_time()
        for value in column:
            await submit(TOPIC, value)
        return (time.process_time() - started) / len(column)

    steps = called()
    try:
        while True:
            steps.send(None)
    except StopIteration as done:
        by_submit = float(done.value)
    return {"append_ns": alone * 1e9, "append_keyed_ns": keyed * 1e9, "submit_ns": by_submit * 1e9}


def pending() -> Figures:
    """Measure the memory of a pending record in bytes, with its handle but without its value."""
    from benchmarks.append_harness import TOPIC, AppendHarness

    harness = AppendHarness(3, keep=True)
    append = harness.appender.try_append
    # Allocate the list first, so that it is not measured.
    handles: list[object] = [append(TOPIC, VALUE)] * RECORDS
    gc.collect()
    before = _rss()
    for number in range(RECORDS):
        handles[number] = append(TOPIC, VALUE)
    grown = _rss() - before
    return {"pending_bytes": grown / RECORDS - len(VALUE)}


def _rss() -> int:
    """Return the resident memory of this process in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


class CountingSelector(selectors.DefaultSelector):
    """Counts the wake-ups of an idle loop."""

    wakes = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout)
        self.wakes += 1
        return found


def idle(servers: str, topic: str) -> Figures:
    """Measure the wake-ups and the CPU time of an idle producer in one second."""
    from aiokprod import Producer

    selector = CountingSelector()

    async def watch(seconds: float) -> Figures:
        """Return the wake-ups and the CPU time during a sleep, including its timer."""
        gc.collect()
        switches, wakes, used = _switches(), selector.wakes, time.process_time()
        await asyncio.sleep(seconds)
        return {
            "idle_wakes": selector.wakes - wakes,
            "idle_switches": _switches() - switches,
            "idle_cpu_us": (time.process_time() - used) * 1e6,
        }

    async def main() -> Figures:
        await watch(0.1)
        own = await watch(0.5)  # without a producer
        async with Producer(bootstrap_servers=servers) as producer:
            await producer.warm([topic])
            for _ in range(100):
                await producer.send(topic, VALUE)
            await asyncio.sleep(1.0)
            found = await watch(IDLE_SECONDS)
            return {name: max(0.0, found[name] - own[name]) / IDLE_SECONDS for name in found}

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        return runner.run(main())


def crowd() -> Figures:
    """Measure the worst loop lag while 10 000 tasks start at the same time and do nothing."""
    import uvloop

    from benchmarks.lag import CollectorTime, LoopLag

    async def main() -> Figures:
        with CollectorTime() as collector, LoopLag(collector=collector) as lag:
            await asyncio.sleep(0.02)
            await asyncio.gather(*(asyncio.create_task(asyncio.sleep(0)) for _ in range(CROWD)))
        return {"crowd_lag_ms": lag.worst * 1000, "crowd_apart_ms": lag.apart * 1000}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def empty_loop() -> Figures:
    """Measure the worst loop lag of many iterations without work. The machine causes this lag,
    because its scheduler preempts a busy process."""
    import uvloop

    from benchmarks.lag import LoopLag

    async def main() -> Figures:
        with LoopLag() as lag:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        return {"empty_loop_lag_ms": lag.worst * 1000}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def _switches() -> int:
    """Return the number of voluntary context switches of all threads of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def start() -> Figures:
    """Measure the round trips from `start()` to the first acknowledgment, in virtual time."""
    from aiokprod import Producer
    from aiokprod.testing import FakeCluster, MemoryNetwork, run

    async def main() -> Figures:
        network = MemoryNetwork(latency_s=LATENCY)
        cluster = FakeCluster(network=network)
        cluster.create_topic("t", 3)
        loop = asyncio.get_running_loop()
        environment = cluster.environment()
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=environment
        ) as producer:
            began = loop.time()
            await producer.send("t", VALUE)
            cold = loop.time() - began
            dials = len(network.dials)
            await producer.warm(["t"])
            began = loop.time()
            await producer.send("t", VALUE)
            warm = loop.time() - began
        return {
            "start_trips": cold / LATENCY / 2,
            "start_dials": float(dials),
            "warm_trips": warm / LATENCY / 2,
        }

    return run(main, debug=False)


def importing() -> Figures:
    """Measure the CPU time of `import aiokprod` after `import asyncio`, in ms."""
    started = time.process_time()
    import aiokprod  # noqa: F401

    return {"import_ms": (time.process_time() - started) * 1000}


FIGURES: Final[Mapping[str, Callable[..., Figures]]] = {
    "append": append,
    "pending": pending,
    "idle": idle,
    "start": start,
    "import": importing,
    "empty_loop": empty_loop,
    "crowd": crowd,
}


def main(arguments: list[str]) -> Any:
    name, *rest = arguments
    return FIGURES[name](*rest)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
