"""One run: a topic, three producers under load, a fault, and the verdict on each producer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.chaos.audit import Verdict, judge, read_log
from tests.chaos.cluster import ChaosCluster
from tests.chaos.faults import CATALOGUE, METADATA_MAX_AGE_MS, PARTITIONS, Entry, Scene
from tests.chaos.probe import Availability
from tests.chaos.spans import common, length
from tests.chaos.worker import ACKNOWLEDGED, Orders
from tests.integration.spy import busiest_second

WARM_UP = 10.0
"""Seconds of load before anything counts: brokers that have just started compile their code."""
BEFORE = 1.5
AFTER = 1.5
SETTLED = 2.0
"""Seconds after a fault until the load counts as undisturbed again."""
GRACE = 2.0
"""Maximum seconds that a producer may be unavailable longer than the brokers or the network."""
HELD = 10_000
"""Minimum records per second of all producers without a fault; if less is offered, nearly all of
it."""
NEARLY = 0.8
READY_WITHIN = 60.0
ENDS_WITHIN = 150.0

COMMON: dict[str, Any] = {
    "acks": "all",
    "request_timeout_ms": 3_000,
    "buffer_memory": 64 * 1024 * 1024,
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "idempotent": {"enable_idempotence": True},
    # Without idempotence, only one request in flight per connection keeps records in order.
    "plain": {"enable_idempotence": False, "max_in_flight_requests_per_connection": 1},
    # uses another `transactional_id` in each run
    "transactional": {},
}
TRANSACTIONS_PER_SECOND = 10
TRANSACTIONAL_SHARE = 6
"""The transactional producer is offered one record per this number of records of the others."""
RECOVERS = 10.0
"""Maximum seconds after a fault until a transaction commits."""


@dataclass
class Act:
    """One fault of a series and its times. The time of the next fault begins at `end`."""

    fault: str
    turn: int
    scene: Scene
    start: float = 0.0
    began: float = 0.0
    ended: float = 0.0
    end: float = 0.0

    @property
    def quiet(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The times before and after the fault without a disturbance."""
        return (self.start, self.began), (self.ended + SETTLED, self.end)


async def play(
    cluster: ChaosCluster, plan: Sequence[tuple[str, int]], rate: int, folder: Path
) -> list[dict[str, Any]]:
    """Play faults (name, turn) sequentially under the load of one producer per workload.

    Return one result per fault and workload. All workloads produce at the same time into the same
    topic. All faults of a plan use the same connections to the brokers and the same settings.
    """
    entry = CATALOGUE[plan[0][0]]
    topic = f"chaos-{uuid.uuid4().hex[:8]}"
    await cluster.create_topic(topic, PARTITIONS)
    probe = Availability(cluster, topic, PARTITIONS)
    acts = [Act(fault, turn, Scene(cluster, topic, probe, turn)) for fault, turn in plan]
    with tempfile.TemporaryDirectory(dir=folder) as kept, probe.running():
        workers = [
            _Worker(number, name, _orders(cluster, entry, topic, number, name, rate, Path(kept)))
            for number, name in enumerate(WORKLOADS)
        ]
        async with _all_ready(workers):
            await asyncio.sleep(WARM_UP)
            for act in acts:
                await _perform(act)
            statistics = await asyncio.gather(*(worker.finish() for worker in workers))
        told = [dict(np.load(worker.orders.result)) for worker in workers]
        commits = [promises.pop("commits") for promises in told]
    log = await asyncio.to_thread(read_log, cluster.bootstrap_servers, topic)
    options: dict[str, Any] = {
        "topic_made_at": acts[-1].scene.topic_made_at,
        "grown": acts[-1].scene.grown_at is not None,
        "partitions": PARTITIONS,
    }
    wanted = min(HELD, NEARLY * sum(worker.orders.rate for worker in workers))
    together = [sum(_rate(promises, *act.quiet) for promises in told) for act in acts]
    results = []
    for worker, stats, promises, committed in zip(workers, statistics, told, commits, strict=True):
        metadata = promises.pop("metadata")
        whole = judge(log, worker.number, promises, **options)
        cuts: Any = np.searchsorted(promises["handed"], [act.end for act in acts[:-1]])
        bounds = [0, *cuts.tolist(), len(promises["handed"])]
        parts = zip(acts, together, bounds, bounds[1:], strict=False)
        for act, of_both, first, stop in parts:
            part = {name: column[first:stop] for name, column in promises.items()}
            verdict = judge(log.part(first, stop), worker.number, part, **options)
            gaps = _gaps(promises, probe, act)
            recovered = _recovered(committed, act) if worker.orders.transaction else None
            wrong = _wrong(worker.name, verdict, whole, gaps, recovered) + _strange(stats)
            if of_both < wanted:
                wrong.append("rate")
            if not _grew(promises, act.scene):
                wrong.append("new partitions left out")
            now = metadata[(metadata >= act.start) & (metadata < act.end)]
            results.append(
                {
                    "fault": act.fault,
                    "turn": act.turn,
                    "workload": worker.name,
                    "nodes": len(cluster.node_ids),
                    "offered_rate": worker.orders.rate,
                    "fault_s": round(act.ended - act.began, 2),
                    "wrong": wrong,
                    "rate_held": round(_rate(promises, *act.quiet)),
                    "rate_together": round(of_both),
                    "metadata_most_per_second": busiest_second(now.tolist()),
                    **gaps,
                    "recovered_s": recovered,
                    "series": stats,
                    "verdict": asdict(verdict),
                }
            )
    with contextlib.suppress(Exception):
        await cluster.delete_topic(topic)
    return results


async def _perform(act: Act) -> None:
    act.start = time.monotonic()
    await asyncio.sleep(BEFORE)
    act.began = time.monotonic()
    await CATALOGUE[act.fault].play(act.scene)
    act.ended = time.monotonic()
    await asyncio.sleep(SETTLED + AFTER)
    act.end = time.monotonic()


def _orders(
    cluster: ChaosCluster,
    entry: Entry,
    topic: str,
    number: int,
    name: str,
    rate: int,
    folder: Path,
) -> Orders:
    settings = {**COMMON, **WORKLOADS[name], **entry.settings}
    records = 0
    if name == "transactional":
        settings["transactional_id"] = f"{topic}-{number}"
        rate //= TRANSACTIONAL_SHARE
        records = rate // TRANSACTIONS_PER_SECOND
    return Orders(
        bootstrap=cluster.proxied_servers if entry.network else cluster.bootstrap_servers,
        topic=topic,
        number=number,
        rate=rate,
        partitions=PARTITIONS,
        result=str(folder / f"{name}.npz"),
        transaction=records,
        settings=settings,
    )


def _recovered(commits: NDArray[Any], act: Act) -> float:
    """Return the seconds from the end of the fault to the next commit, or `inf` if there was
    none."""
    later = commits[commits >= act.ended]
    return round(float(later[0] - act.ended), 2) if len(later) else float("inf")


def _wrong(
    workload: str,
    verdict: Verdict,
    whole: Verdict,
    gaps: dict[str, float],
    recovered: float | None,
) -> list[str]:
    """Return the names of the promises that this fault broke. Violations that are only visible in
    the whole series count for every fault.

    Args:
        recovered: seconds to the first commit after the fault; None without transactions.
            Transactional records also wait for the transaction coordinator, which `gaps` does not
            include.
    """
    allowed = workload == "plain"
    wrong = verdict.wrong(duplicates_allowed=allowed)
    wrong += [name for name in whole.wrong(duplicates_allowed=allowed) if name not in wrong]
    if whole.acknowledged + whole.aborted < whole.records:
        wrong.append("failed")  # each fault is shorter than the delivery timeout
    if recovered is None:
        if gaps["excess_s"] > GRACE:
            wrong.append("slow recovery")
    elif recovered > RECOVERS:
        wrong.append("slow recovery")
    return wrong


def _strange(stats: dict[str, Any]) -> list[str]:
    """Return the violations that no record shows."""
    names = {
        "close_hung": "close hung",
        "changed_its_mind": "another outcome later",
        "unhandled": "unhandled error",
    }
    return [text for name, text in names.items() if stats[name]]


def _grew(told: dict[str, NDArray[Any]], scene: Scene) -> bool:
    """Check that added partitions are found and used as soon as the metadata is old."""
    if scene.grown_at is None:
        return True
    by = scene.grown_at + METADATA_MAX_AGE_MS / 1000 + GRACE
    seen = told["partition"][(told["state"] == ACKNOWLEDGED) & (told["settled"] <= by)]
    return set(range(PARTITIONS, 2 * PARTITIONS)) <= set(np.unique(seen).tolist())


def _rate(told: dict[str, NDArray[Any]], *windows: tuple[float, float]) -> float:
    """Return the acknowledged records per second in all windows together."""
    acks = told["settled"][told["state"] == ACKNOWLEDGED]
    count = sum(np.count_nonzero((acks >= begin) & (acks < end)) for begin, end in windows)
    return float(count / sum(end - begin for begin, end in windows))


def _gaps(told: dict[str, NDArray[Any]], probe: Availability, act: Act) -> dict[str, float]:
    """Return the longest time without an acknowledgment in any partition, the longest part of such
    a time in which the brokers would not have accepted a record of the partition either, and the
    longest part in which they would. `alone_s` is the last value without waits for other partitions
    of the same leader."""
    found = {"unavailable_s": 0.0, "broker_s": 0.0, "excess_s": 0.0, "alone_s": 0.0}
    acked = told["state"] == ACKNOWLEDGED
    for partition in range(PARTITIONS):
        acks = np.sort(told["settled"][acked & (told["partition"] == partition)])
        if not (acks < act.start).any():
            acks = np.concatenate(([act.start], acks))
        acks = np.append(acks, max(act.end, *acks[-1:]))
        # A whole gap belongs to the act in which it begins.
        mine = (acks[:-1] >= act.start) & (acks[:-1] < act.end)
        for at in np.flatnonzero(mine & (np.diff(acks) > 0.25)):
            gap = (float(acks[at]), float(acks[at + 1]))
            closed = probe.closed(partition, gap)
            for span, nodes in act.scene.outages:
                closed += common([span], probe.led(partition, nodes, gap))
            whole = length([gap])
            alone, excused = length(closed), length(closed + probe.shared(partition, gap))
            told_of = {
                "unavailable_s": whole,
                "broker_s": excused,
                "excess_s": whole - excused,
                "alone_s": whole - alone,
            }
            found = {name: max(found[name], seconds) for name, seconds in told_of.items()}
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
