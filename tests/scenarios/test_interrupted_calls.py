"""A signal handler raises at every third bytecode of a call; later calls must work as before."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from aiokprod.errors import KafkaError
from tests.scenarios.scenario_helpers import harness, play
from tests.simulation.call_interrupts import Injector, Interrupt

pytestmark = pytest.mark.matrix

MOST = 3_000
"""Upper bound of the bytecodes that the first record of a topic takes."""


async def interrupted_at(step: int) -> bool:
    """Interrupt the first record of a topic. Return False if the call took fewer bytecodes."""
    async with harness(partitions=3, linger_ms=0) as (cluster, producer, _):
        await producer.partitions_for("t")

        def strike() -> None:
            raise Interrupt

        injector = Injector(step, strike)
        with injector.armed(), contextlib.suppress(Interrupt):
            producer.try_submit("t", b"interrupted", partition=0)
        later = [producer.try_submit("t", b"%d" % part, partition=part) for part in range(3)]
        later.append(producer.try_submit("t", b"any"))
        try:
            async with asyncio.timeout(5):
                await asyncio.gather(*later)
                await producer.flush()
        except (KafkaError, TimeoutError) as error:
            pytest.fail(f"interrupted at bytecode {step}, later records: {error!r}")
        values = [value for part in range(3) for value in cluster.values("t", part)]
        assert set(values) - {b"interrupted"} == {b"0", b"1", b"2", b"any"}
        assert len(values) == len(set(values))
        return injector.has_struck


def test_first_record_of_a_topic_may_be_interrupted_anywhere() -> None:
    async def main() -> None:
        for step in range(1, MOST, 3):
            if not await interrupted_at(step):
                assert step > 100, "the tracer saw the call"
                return
        raise AssertionError("the call never ends")

    play(main)
