"""Five batches in flight, of which some fail in every possible way: P2, P3 and P4 must hold.

A sample runs every day. `python -m tests.scenarios.in_flight` runs all 65 536 cases: each of the
five batches fails in one of seven ways or not at all, with and without an append.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import pytest

from aiokprod._wire.compression import CODEC_NAMES
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import TICK, harness, now, play

pytestmark = pytest.mark.matrix

TP = ("t", 0)
Fate: TypeAlias = int | str | None
"""The outcome of a request: no fault, an error code, or "cut"."""

FATES: tuple[Fate, ...] = (6, 7, 20, 45, 46, 59, "cut")
APPENDING = {7, 20, 46}
"""Codes that a broker may return although it appended the batch (46: because it did)."""

BATCHES = 5
HELD_S = 0.02
"""Seconds for which the first of the five requests is delayed."""
SAMPLE = int(os.environ.get("AIOKPROD_IN_FLIGHT_CASES", "400"))

# Options that put every record in its own batch, so that all five requests are sent together.
ONE_EACH: dict[str, Any] = {"linger_ms": 0, "batch_size": 1}


def script(cluster: FakeCluster, fates: Sequence[Fate], *, appended: bool) -> None:
    """Give the next requests these outcomes. The first one is delayed until all five have
    arrived."""
    seen = itertools.count()

    def control(request: faults.Request) -> faults.Reaction | None:
        number = next(seen)
        before_s = HELD_S if number == 0 else 0.0
        if number < len(fates) and fates[number] == "cut":
            return faults.Reaction(process=appended, silent=True, close=True, before_s=before_s)
        return faults.delay(before_s) if before_s else None

    for fate in fates:
        if fate == "cut" and not appended:
            continue
        code = fate if isinstance(fate, int) else 0
        cluster.fail_produce(TP, code, append=(code in APPENDING and appended) or code == 46)
    cluster.control(0, control)


async def five_in_flight(fates: Sequence[Fate], *, appended: bool) -> None:
    async with harness(**ONE_EACH) as (cluster, producer, history):
        await history.send()
        script(cluster, fates, appended=appended)
        for _ in range(BATCHES):
            await history.submit()
        start = now()
        await asyncio.sleep(HELD_S / 2)
        assert producer.metrics()["requests_in_flight"] == BATCHES, "before the first answer"
        await history.settle()
        assert now() - start <= 10, "took too long"
        await history.send()
        history.all_acked(refusals=True)


def everything() -> Iterator[tuple[Fate, ...]]:
    """Return every combination of outcomes of the batches."""
    return itertools.product((None, *FATES), repeat=BATCHES)


def play_all(part: int, parts: int) -> int:
    """Run one part of all cases; return the number of cases."""
    chosen = itertools.islice(itertools.product(everything(), (False, True)), part, None, parts)
    number = 0
    for fates, appended in chosen:
        number += 1
        play_one(fates, appended)
    return number


def play_one(fates: Sequence[Fate], appended: bool) -> None:
    """Run one case. A failure names the case."""
    try:
        play(lambda: five_in_flight(fates, appended=appended))
    except BaseException as error:
        error.add_note(f"fates {fates}, appended {appended}")
        raise


def cases() -> Iterator[tuple[Fate, ...]]:
    """Yield every subset of five with one kind of failure, then random mixtures."""
    for fate in FATES:
        yield from itertools.product((None, fate), repeat=BATCHES)
    rng = random.Random(2026)
    while True:
        yield tuple(rng.choice((None, None, *FATES)) for _ in range(BATCHES))


@pytest.mark.parametrize("part", range(10))
def test_idempotent_in_flight_failures_lose_and_double_nothing(part: int) -> None:
    chosen = itertools.islice(cases(), part, SAMPLE, 10)
    for number, fates in enumerate(chosen):
        play_one(fates, appended=bool((number + part) % 2))


async def one_in_flight(fates: Sequence[Fate], *, appended: bool) -> None:
    options: dict[str, Any] = {
        **ONE_EACH,
        "enable_idempotence": False,
        "max_in_flight_requests_per_connection": 1,
    }
    async with harness(**options) as (cluster, _, history):
        await history.send()
        script(cluster, fates, appended=appended)
        for _ in range(BATCHES):
            await history.submit()
        await history.settle()
        history.all_acked(unique=False)
        first_at: dict[bytes | None, int] = {}
        for record in cluster.log("t", 0):
            first_at.setdefault(record.value, record.offset)
        offsets = [first_at[a.value] for a in history.attempts]
        assert offsets == sorted(offsets)


@pytest.mark.parametrize("part", range(4))
def test_one_in_flight_without_idempotence_keeps_order(part: int) -> None:
    """Duplicates are allowed here, but no inversions or losses."""
    rng = random.Random(part)
    for _ in range(60):
        some: tuple[Fate, ...] = (None, 6, 7, 20, "cut")
        fates = tuple(rng.choice(some) for _ in range(BATCHES))
        appended = rng.random() < 0.5
        try:
            play(partial(one_in_flight, fates, appended=appended))
        except BaseException as error:
            error.add_note(f"fates {fates}, appended {appended}")
            raise


def random_options(rng: random.Random) -> dict[str, Any]:
    return {
        "linger_ms": rng.choice((0, 5, 50)),
        "batch_size": rng.choice((1, 500, 131_072)),
        "request_timeout_ms": rng.choice((1_000, 5_000)),
        "delivery_timeout_ms": 60_000,
        "compression_type": rng.choice(CODEC_NAMES),
    }


@pytest.mark.parametrize("seed", range(20))
def test_random_storm_keeps_every_promise(seed: int) -> None:
    """Three brokers under load, with random crashes, leader moves, cut connections and errors.
    Afterwards every record must get an outcome."""
    rng = random.Random(seed)

    async def main() -> None:
        slow = {"replication_s": rng.choice((0.0, 0.01, 0.2))}
        options = random_options(rng)
        async with harness(partitions=3, cluster=slow, seed=seed, **options) as (
            cluster,
            _,
            history,
        ):
            remove = cluster.control(None, unreliable(rng))
            for _ in range(60):
                await history.submit_many(rng.randrange(1, 15), every=0.005, partitions=(0, 1, 2))
                await misfortune(cluster, rng)
            remove()
            heal(cluster)
            healed = now()
            await history.settle()
            assert now() - healed <= 60 + TICK
            fresh = await history.send()
            assert fresh.acked
            history.check(refusals=True)

    play(main, seed=seed)


def unreliable(rng: random.Random) -> Callable[[faults.Request], faults.Reaction | None]:
    """Return a control that loses, delays and cuts a few responses."""

    def control(request: faults.Request) -> faults.Reaction | None:
        dice = rng.random()
        if dice < 0.02:
            return faults.close(process=rng.random() < 0.5)
        if dice < 0.04:
            return faults.cut(rng.randrange(40))
        if dice < 0.06:
            return faults.delay(rng.uniform(0, 0.5))
        if dice < 0.07:
            return faults.lose_answer()
        return None

    return control


def heal(cluster: FakeCluster) -> None:
    """End all faults."""
    cluster.produce_script.clear()
    for broker in cluster.brokers.values():
        if broker.is_paused:
            cluster.resume(broker.broker_id)
        if not broker.is_up:
            cluster.start(broker.broker_id)


async def misfortune(cluster: FakeCluster, rng: random.Random) -> None:
    """Inject one random fault into a cluster, with at most one broker down at a time."""
    down = [b.broker_id for b in cluster.brokers.values() if b.is_paused or not b.is_up]
    dice = rng.random()
    if down:
        broker = cluster.brokers[down[0]]
        if dice < 0.5:
            if broker.is_paused:
                cluster.resume(broker.broker_id)
            else:
                cluster.start(broker.broker_id)
            await asyncio.sleep(0.5)
    elif dice < 0.05:
        cluster.kill(rng.choice((1, 2, 3)))
    elif dice < 0.08:
        cluster.stop(rng.choice((1, 2, 3)))
    elif dice < 0.11:
        cluster.pause(rng.choice((1, 2, 3)), failover_s=rng.choice((None, 1.0)))
    elif dice < 0.25:
        cluster.move_leader("t", rng.randrange(3))
    elif dice < 0.45:
        code = rng.choice((2, 3, 5, 6, 7, 19, 20, 56, 74))
        cluster.fail_produce(
            ("t", rng.randrange(3)), code, rng.randrange(1, 4), append=code in (7, 20)
        )
    elif dice < 0.5:
        for link in cluster.network.links[-3:]:
            link.reset()
    elif dice < 0.55:
        await asyncio.sleep(rng.uniform(0, 3))
