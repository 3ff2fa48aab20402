"""The whole producer with a broker whose responses are damaged in transit.

Damaged bytes may decode to something that was never true, so offsets are not judged here. What must
hold is P6 (everything ends in time, with a documented outcome), P8 and P9.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from typing import Any

from aiokprod.errors import KafkaError
from aiokprod.records import RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster, Reaction, Request, edit_frame
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import run
from tests.fuzz.decoders import Figures, Finding
from tests.fuzz.mutations import INTERESTING, mutate
from tests.scenarios.scenario_helpers import TICK, make_producer, now

RECORDS = 60
DELIVERY_S, BLOCK_S = 5.0, 2.0


def fuzz_client(executions: int, seed: int) -> Figures:
    """Run producers until `executions` responses have been damaged."""
    figures = Figures()
    started = time.process_time()
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        number = seed * 1_000_000
        while figures.executions < executions:
            number += 1
            figures.executions += damage_one_run(number)
    finally:
        logging.disable(disabled)
    figures.per_target["client"] = figures.executions
    figures.seconds = time.process_time() - started
    return figures


def damage_one_run(seed: int) -> int:
    """Run one producer from start to end; return how many responses were damaged.

    Raises:
        Finding: a call did not end, or not as documented.
        VirtualTimeError: a hang, a hot loop, a leak, an unhandled exception.
    """
    try:
        return run(lambda: _run(seed), seed=seed, debug=False, collect_garbage=False)
    except Exception as error:
        error.add_note(f"fuzz_client seed {seed}")
        raise


async def _run(seed: int) -> int:
    rng = random.Random(seed)
    cluster = FakeCluster(
        network=MemoryNetwork(),
        version_profile=rng.choice(("2.1", "2.8", "3.9", "4.0", "4.3")),
    )
    cluster.create_topic("t", 3)
    producer = make_producer(
        cluster, seed=seed, delivery_timeout_ms=int(DELIVERY_S * 1000), request_timeout_ms=500,
        max_block_ms=int(BLOCK_S * 1000), buffer_memory=200_000, linger_ms=0,
        enable_idempotence=rng.random() < 0.7, receive_max_bytes=1_000_000,
    )  # fmt: skip
    damage = _Damage(rng)
    cluster.control(None, damage)
    waiting = []
    for number in range(RECORDS):
        waiting.append(asyncio.ensure_future(_send(producer, number)))
        await asyncio.sleep(rng.choice((0, 0.001, 0.05, 0.3)))
    await asyncio.gather(*waiting)
    start = now()
    await producer.close(5.0)
    if now() - start > 5.0 + TICK:
        raise Finding(f"close took {now() - start} s")
    used = producer.metrics()
    if used["buffer_available_bytes"] != used["buffer_total_bytes"]:
        raise Finding(f"memory is still counted: {used}")
    return damage.done


async def _send(producer: Any, number: int) -> None:
    start = now()
    try:
        result = await producer.send("t", b"value %d" % number, partition=number % 3)
    except KafkaError as error:
        if error.outcome is None:
            raise Finding(f"no outcome: {error!r}") from error
    else:
        if not isinstance(result, RecordMetadata):
            raise Finding(f"not a result: {result!r}")
    took = now() - start
    if took > DELIVERY_S + BLOCK_S + TICK:
        raise Finding(f"record {number} took {took} s")


class _Damage:
    """Damages some of the responses, most of them after an intact length and correlation id."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rate = rng.choice((0.05, 0.3, 0.9))
        self.done = 0

    def __call__(self, request: Request) -> Reaction | None:
        return edit_frame(self._damaged) if self.rng.random() < self.rate else None

    def _damaged(self, frame: bytes) -> bytes:
        if not frame:
            return frame
        self.done += 1
        rng = self.rng
        if rng.random() < 0.2:
            return mutate(frame, rng.choice(INTERESTING), rng)
        body = frame[4:8] + mutate(frame[8:], rng.choice(INTERESTING), rng)
        return len(body).to_bytes(4, "big") + body
