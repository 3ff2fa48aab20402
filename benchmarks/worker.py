"""Runs one measurement in a separate process, and prints a line of JSON.

    python -m benchmarks.worker '{"servers": "host:port", "topic": "t", "case": {...}}'

A short warm-up of the same case comes first and is not timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import franz, java, payloads, raw
from benchmarks.case import Case
from benchmarks.clients import PYTHON_CLIENTS
from benchmarks.clients.drivers import Limit
from benchmarks.lag import FINE_TICK, CollectorTime, LoopLag
from benchmarks.summary import quantile

WARM_UP_SHARE: Final = 0.1
WARM_UP_SECONDS: Final = 0.25
PERF_STARTS: Final = 0.5
PERF_ENDS: Final = 30.0


def rss_mib() -> float:
    """Return the peak memory of this process, MiB. VmHWM is preferred, because on Linux a process
    inherits `ru_maxrss` from the process that started it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    """Return percentiles in milliseconds. The dict is empty if there are no latencies."""
    if not latencies:
        return {}
    ordered = sorted(latencies)
    shares = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999, "max_ms": 1.0}
    return {name: quantile(ordered, share) * 1000 for name, share in shares.items()}


@contextlib.contextmanager
def profiled(output: str | None) -> Iterator[None]:
    """Profile this process with `perf` within the block if a file is given."""
    if output is None:
        yield
        return
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "4000", "-o", output]
    watcher = subprocess.Popen(
        [*command, "-p", str(os.getpid())], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(PERF_STARTS)
    yield
    watcher.send_signal(signal.SIGINT)
    watcher.wait(PERF_ENDS)


async def measure(
    case: Case, servers: str, topic: str, profile: str | None = None
) -> dict[str, Any]:
    """Measure a Python client: wall-clock and CPU seconds for the acknowledged records, latencies,
    loop lag and memory."""
    client = PYTHON_CLIENTS[case.client](case, payloads.make(case))
    await client.start(servers, topic)
    warm = max(case.tasks, int(case.records * WARM_UP_SHARE))
    warm_up = await client.run(Limit(warm, min(WARM_UP_SECONDS, case.seconds)))
    client.latencies = type(client.latencies)("d")
    gc.collect()
    gc.freeze()
    before = rss_mib()
    collector = CollectorTime()
    lag, fine = LoopLag(collector=collector), LoopLag(FINE_TICK)
    with contextlib.ExitStack() as stack:
        if client.on_loop:
            stack.enter_context(collector)
            stack.enter_context(lag)
            stack.enter_context(fine)
        stack.enter_context(profiled(profile))
        earlier = client.sent()
        limit = Limit(case.records, case.seconds)
        count = await client.run(limit)
        seconds = time.perf_counter() - limit.started
        used = time.process_time() - limit.used
    result = {
        "count": count,
        "warm_up": warm_up,
        "seconds": seconds,
        "cpu_us": used / count * 1e6,
        "rss_mib": rss_mib(),
        "rss_grown_mib": rss_mib() - before,
        **percentiles(client.latencies),
        **{name: number - earlier[name] for name, number in client.sent().items()},
    }
    if client.on_loop:
        result["lag_ms"] = lag.worst * 1000
        result["apart_ms"] = lag.apart * 1000
        result["held_ms"] = fine.held * 1000
    await client.stop()
    return result


def measure_raw(case: Case, servers: str, topic: str) -> dict[str, Any]:
    """Measure plain sockets: throughput or round trips."""
    records = payloads.make(case)
    warm_s = min(WARM_UP_SECONDS, case.seconds)
    if case.client == "round-trip":
        warm_up = len(raw.round_trips(servers, topic, case, records, warm_s))
        used = time.process_time()
        latencies = raw.round_trips(servers, topic, case, records, case.seconds)
        count, seconds = len(latencies), sum(latencies)
    else:
        warm_up, _ = raw.blast(servers, topic, case, records, warm_s)
        latencies = []
        used = time.process_time()
        count, seconds = raw.blast(servers, topic, case, records, case.seconds)
    return {
        "count": count,
        "warm_up": warm_up,
        "seconds": seconds,
        "cpu_us": (time.process_time() - used) / count * 1e6,
        "rss_mib": rss_mib(),
        **percentiles(latencies),
    }


def measure_java(case: Case, servers: str, topic: str) -> dict[str, Any]:
    warm_up = case.records // 2  # the JIT compiler needs a longer warm-up
    result = java.measure(servers, topic, case, payloads.make(case), warm_up)
    return result | {"warm_up": case.records + warm_up - result["count"]}


def measure_franz(case: Case, servers: str, topic: str) -> dict[str, Any]:
    warm = max(1, int(case.records * WARM_UP_SHARE)), min(WARM_UP_SECONDS, case.seconds)
    return franz.measure(servers, topic, case, payloads.make(case), *warm)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run the measurement that `job` describes."""
    case = Case(**job["case"])
    where = job["servers"], job["topic"]
    if job.get("cpu") is not None:
        os.sched_setaffinity(0, {job["cpu"]})
    if case.client.startswith("java"):
        return measure_java(case, *where)
    if case.client == "franz-go":
        return measure_franz(case, *where)
    if case.client not in PYTHON_CLIENTS:
        return measure_raw(case, *where)
    factory = None
    if case.loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(measure(case, *where, job.get("profile")))


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
