"""Soak test: steady load with a fault every few minutes; no resource of the process may grow.

    python -m tests.soak --hours 0.5                 half of the measured peak rate
    python -m tests.soak --hours 6 --rate 20000

The brokers are the mock brokers of the confluent-kafka wheel, in a separate process: they use
little memory and no disk, so hours of load cost only time. Faults come from a TCP proxy, and from
stopping the brokers' process. The warm-up plays every fault three times. Only later samples count,
and only those taken without a fault.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from aiokprod.testing.kafka_node import free_ports
from aiokprod.testing.mock_cluster import MockCluster
from tests.chaos.proxy import FaultyNetwork
from tests.soak.load import (
    FAULTS,
    Load,
    allocated_mib,
    descriptors,
    resident_mib,
    stolen,
    timers,
)
from tests.soak.verdict import judged

WARM_UP_PAUSE = 5.0
RECOVERED = 15.0
"""Seconds after a fault until samples count again."""
VISIT_EVERY = 10.0
COLUMNS = (
    "second", "quiet", "rate", "rss_mib", "allocated_mib", "blocks", "descriptors", "tasks",
    "timers", "p50_ms", "p99_ms", "lag_ms", "cpu_us", "stolen",
)  # fmt: skip
"""Columns of a sample. `cpu_us`: processor time per record; `stolen`: share of the machine's
processor time that its host gave to other machines."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Steady load with faults, for hours.")
    parser.add_argument("--hours", type=float, default=0.5)
    parser.add_argument("--rate", type=int, default=0, help="records/s; default: --share of peak")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--every", type=float, default=120.0, help="seconds between faults")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between samples")
    parser.add_argument("--out", type=Path, default=Path("build/soak.json"))
    return parser.parse_args()


class Watch:
    """Samples of the process, and whether there was a fault at that time. The table is allocated at
    the start, so that the measurement itself does not grow."""

    def __init__(self, load: Load, began: float, most: int) -> None:
        self._table = np.full((most, len(COLUMNS)), np.nan)
        self._taken = 0
        self._load = load
        self._began = began
        self._acknowledged = load.acknowledged
        self._at = began
        self._cpu = time.process_time()
        self._stolen = stolen()
        self.quiet_from = float("inf")

    @property
    def samples(self) -> list[dict[str, float]]:
        """Return one dict per sample, by `COLUMNS`."""
        rows = self._table[: self._taken].tolist()
        return [dict(zip(COLUMNS, row, strict=True)) for row in rows]

    def take(self) -> None:
        load, loop, now = self._load, asyncio.get_running_loop(), time.monotonic()
        latencies = sorted(load.latencies)
        load.latencies.clear()
        cpu, lost = time.process_time(), stolen()
        gc.collect()
        acknowledged = load.acknowledged
        taken = acknowledged - self._acknowledged
        self._table[self._taken] = (
            round(now - self._began, 1),
            now - self.quiet_from >= RECOVERED,
            round(taken / (now - self._at)),
            round(resident_mib(), 3),
            round(allocated_mib(), 3),
            sys.getallocatedblocks(),
            descriptors(),
            len(asyncio.all_tasks()),
            timers(loop),
            _quantile(latencies, 0.5),
            _quantile(latencies, 0.99),
            round(load.lag * 1000, 1),
            (cpu - self._cpu) * 1e6 / max(1, taken),
            (lost[0] - self._stolen[0]) / max(1, lost[1] - self._stolen[1]),
        )
        self._cpu, self._stolen = time.process_time(), lost
        self._taken += 1
        load.lag = 0.0
        self._acknowledged, self._at = acknowledged, now


def _quantile(ordered: list[float], q: float) -> float:
    return round(1000 * ordered[int(q * (len(ordered) - 1))], 3) if ordered else 0.0


async def _faults(
    network: FaultyNetwork, brokers: int, watch: Watch, every: float, counted_from: asyncio.Event
) -> None:
    def freeze(stop: bool) -> None:
        os.killpg(brokers, signal.SIGSTOP if stop else signal.SIGCONT)

    turn = 0
    for fault in FAULTS * 3:  # warm-up: one-time allocations of a fault are not growth
        await fault(network, turn, freeze)
        await asyncio.sleep(WARM_UP_PAUSE)
    counted_from.set()
    while True:
        watch.quiet_from = time.monotonic()
        await asyncio.sleep(every)
        watch.quiet_from = float("inf")
        fault = FAULTS[turn % len(FAULTS)]
        print(f"{time.strftime('%H:%M:%S')} {fault.__name__}", flush=True)
        await fault(network, turn, freeze)
        turn += 1


async def soak(chosen: argparse.Namespace) -> dict[str, Any]:
    async with MockCluster(3) as brokers:
        ports = [int(server.rsplit(":", 1)[1]) for server in brokers.bootstrap_servers.split(",")]
        doors = dict(zip(ports, free_ports(len(ports)), strict=True))
        links = {f"broker-{port}": (door, port) for port, door in doors.items()}
        process = brokers._process
        assert process is not None
        with FaultyNetwork(links) as network:
            load = Load(brokers.bootstrap_servers, doors, chosen.rate)
            async with load.producer:
                peak = await load.peak(5.0)
                if not load.rate:
                    load.rate = round(chosen.share * peak)
                print(f"peak {peak:,.0f} records/s, soaking at {load.rate:,}", flush=True)
                watch = await _watched(chosen, load, network, process.pid)
    return _result(chosen, load, watch, peak)


async def _watched(
    chosen: argparse.Namespace, load: Load, network: FaultyNetwork, brokers: int
) -> Watch:
    began = time.monotonic()
    watch = Watch(load, began, 2 + round(chosen.hours * 3600 / chosen.interval))
    warm = asyncio.Event()
    tasks = [
        asyncio.create_task(load.run()),
        asyncio.create_task(load.visit(VISIT_EVERY)),
        asyncio.create_task(_faults(network, brokers, watch, chosen.every, warm)),
    ]
    try:
        while time.monotonic() - began < chosen.hours * 3600:
            done, _ = await asyncio.wait(
                tasks, timeout=chosen.interval, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()  # none of them ends unless it fails
            watch.take()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        network.heal()
    return watch


def _result(chosen: argparse.Namespace, load: Load, watch: Watch, peak: float) -> dict[str, Any]:
    found = judged(watch.samples, load.rate, load.failed)
    return {
        "good": all(one.good is not False for one in found.values()),
        "all_judged": all(one.good is not None for one in found.values()),
        "hours": chosen.hours,
        "peak_rate": round(peak),
        "rate": load.rate,
        "acknowledged": load.acknowledged,
        "failed": load.failed,
        "errors": load.errors,
        "visitors": load.visitors,
        "samples_counted": sum(bool(sample["quiet"]) for sample in watch.samples),
        "verdicts": {name: str(one) for name, one in found.items()},
        "samples": watch.samples,
    }


def main() -> int:
    chosen = arguments()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    result = asyncio.run(soak(chosen))
    chosen.out.write_text(json.dumps(result, indent=1))
    for name, value in result.items():
        if name not in ("samples", "verdicts"):
            print(f"{name}: {value}")
    for name, verdict in result["verdicts"].items():
        print(f"{name}: {verdict}")
    if not result["good"]:
        return 1
    return 0 if result["all_judged"] else 2  # the host took too much processor time


if __name__ == "__main__":
    sys.exit(main())
