"""One run: a topic, two producers under load, a fault, and the verdict on both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.chaos.audit import Verdict, judge, read_log
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import CATALOGUE, PARTITIONS, Entry, Scene
from tests.chaos.probe import Availability
from tests.chaos.worker import ACKNOWLEDGED, Orders

BEFORE = 3.0
AFTER = 4.0
SETTLED = 2.0
"""Seconds after a fault from which load counts as undisturbed again."""
GRACE = 2.0
"""Seconds a producer may be unavailable longer than the brokers or the network."""
READY_WITHIN = 60.0
ENDS_WITHIN = 240.0

COMMON: dict[str, Any] = {
    "acks": "all",
    "request_timeout_ms": 3_000,
    "buffer_memory": 64 * 1024 * 1024,
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "idempotent": {"enable_idempotence": True},
    # In order without idempotence: one request in flight per connection.
    "plain": {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1},
}


async def play(
    cluster: ChaosCluster, fault: str, turn: int, rate: int, folder: Path
) -> list[dict[str, Any]]:
    """One result per workload; both ran at the same time, into the same topic."""
    entry = CATALOGUE[fault]
    topic = f"chaos-{uuid.uuid4().hex[:8]}"
    await cluster.create_topic(topic, PARTITIONS)
    probe = Availability(cluster, topic, PARTITIONS)
    scene = Scene(cluster, topic, probe, turn)
    with tempfile.TemporaryDirectory(dir=folder) as kept, probe.running():
        workers = [
            _Worker(number, name, _orders(cluster, entry, topic, number, name, rate, Path(kept)))
            for number, name in enumerate(WORKLOADS)
        ]
        async with _all_ready(workers):
            started = time.monotonic()
            await asyncio.sleep(BEFORE)
            began = time.monotonic()
            await entry.play(scene)
            ended = time.monotonic()
            await asyncio.sleep(SETTLED + AFTER)
            stopped = time.monotonic()
            statistics = await asyncio.gather(*(worker.finish() for worker in workers))
        told = [dict(np.load(worker.orders.result)) for worker in workers]
    log = await asyncio.to_thread(read_log, cluster.bootstrap_servers, topic)
    results = []
    for worker, stats, promises in zip(workers, statistics, told, strict=True):
        verdict = judge(log, worker.number, promises, topic_made_at=scene.topic_made_at)
        gaps = _gaps(promises, probe, scene, (started, stopped))
        results.append(
            {
                "fault": fault,
                "turn": turn,
                "workload": worker.name,
                "offered_rate": rate,
                "fault_s": round(ended - began, 2),
                "wrong": _wrong(worker.name, verdict, gaps),
                "rate_before": _rate(promises, started + 0.5, began),
                "rate_after": _rate(promises, ended + SETTLED, stopped),
                **gaps,
                **stats,
                "verdict": asdict(verdict),
            }
        )
    with contextlib.suppress(Exception):
        await cluster.delete_topic(topic)
    return results


def _orders(
    cluster: ChaosCluster,
    entry: Entry,
    topic: str,
    number: int,
    name: str,
    rate: int,
    folder: Path,
) -> Orders:
    return Orders(
        bootstrap=cluster.proxied_servers if entry.network else cluster.bootstrap_servers,
        topic=topic,
        number=number,
        rate=rate,
        partitions=PARTITIONS,
        result=str(folder / f"{name}.npz"),
        settings={**COMMON, **WORKLOADS[name], **entry.settings},
    )


def _wrong(workload: str, verdict: Verdict, gaps: dict[str, float]) -> list[str]:
    wrong = verdict.wrong(duplicates_allowed=workload == "plain")
    if gaps["excess_s"] > GRACE:
        wrong.append("slow recovery")
    return wrong


def _rate(told: dict[str, NDArray[Any]], begin: float, end: float) -> int:
    """Acknowledged records per second in a window."""
    acks = told["settled"][told["state"] == ACKNOWLEDGED]
    return round(np.count_nonzero((acks >= begin) & (acks < end)) / (end - begin))


def _gaps(
    told: dict[str, NDArray[Any]],
    probe: Availability,
    scene: Scene,
    window: tuple[float, float],
) -> dict[str, float]:
    """Longest time without an acknowledgment in any partition, for the producer and the brokers,
    and by how much the producer exceeded them."""
    found = {"unavailable_s": 0.0, "broker_s": 0.0, "excess_s": 0.0}
    acked = told["state"] == ACKNOWLEDGED
    for partition in range(PARTITIONS):
        acks = np.sort(told["settled"][acked & (told["partition"] == partition)])
        acks = np.concatenate(([window[0]], acks[(acks > window[0]) & (acks < window[1])]))
        acks = np.append(acks, window[1])
        for at in np.flatnonzero(np.diff(acks) > 0.25):
            begin, end = float(acks[at]), float(acks[at + 1])
            allowed = probe.longest_gap(partition, begin, end)
            dead = [b - a for a, b in scene.outages if b > begin and a < end]
            allowed = max([allowed, *dead])
            found["unavailable_s"] = max(found["unavailable_s"], end - begin)
            found["broker_s"] = max(found["broker_s"], allowed)
            found["excess_s"] = max(found["excess_s"], end - begin - allowed)
    return {name: round(value, 2) for name, value in found.items()}


class _Worker:
    def __init__(self, number: int, name: str, orders: Orders) -> None:
        self.number = number
        self.name = name
        self.orders = orders
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.worker",
            json.dumps(asdict(self.orders)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = await asyncio.wait_for(self._process.stdout.readline(), READY_WITHIN)
        if line.strip() != b"ready":
            raise RuntimeError(f"the {self.name} producer did not get ready: {line!r}")

    async def finish(self) -> dict[str, Any]:
        assert self._process is not None
        out, _ = await asyncio.wait_for(self._process.communicate(b"stop\n"), ENDS_WITHIN)
        if self._process.returncode:
            raise RuntimeError(f"the {self.name} producer ended with {self._process.returncode}")
        statistics: dict[str, Any] = json.loads(out.splitlines()[-1])
        return statistics

    async def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def _all_ready(workers: list[_Worker]) -> AsyncIterator[None]:
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        yield
    finally:
        await asyncio.gather(*(worker.kill() for worker in workers))
