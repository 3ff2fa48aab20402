"""`Runtime` by itself: its tasks, and the partitions that it considers for keyless records."""

from __future__ import annotations

import asyncio

import pytest

from aiokprod._core.slots import TopicSlot
from aiokprod.errors import ProducerFailed
from tests.scenarios.scenario_helpers import TICK, harness, now, play, runtime_of


@pytest.mark.parametrize("task", ["sender", "metadata", "transactions"])
def test_task_of_the_engine_that_somebody_cancels_ends_the_producer(task: str) -> None:
    """If the producer continued, every record would wait for its delivery deadline."""

    async def main() -> None:
        async with harness(transactional_id="x") as (cluster, producer, _):
            await producer.begin_transaction()
            await producer.send("t", b"0")
            for broker in (1, 2, 3):
                cluster.pause(broker)
            handle = await producer.submit("t", b"x")
            await asyncio.sleep(0.1)
            (found,) = (one for one in asyncio.all_tasks() if one.get_name() == f"aiokprod-{task}")
            found.cancel()
            started = now()
            with pytest.raises(ProducerFailed, match=f"the task aiokprod-{task} was cancelled"):
                await handle
            with pytest.raises(ProducerFailed, match="close it and create a new one"):
                await producer.submit("t", b"y")
            assert now() - started < TICK
            assert producer.health().state == "failed"

    play(main)


@pytest.mark.parametrize(("width", "sample"), [(3, 3), (64, 64), (65, 32), (500, 32)])
def test_keyless_batches_of_a_wide_topic_look_at_a_sample(
    width: int, sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with harness(partitions=width) as (_, producer, _):
            await producer.send("t", b"x")
            runtime = runtime_of(producer)
            accumulator, slot = runtime.accumulator, runtime.appender.topics["t"]
            looked_at = []
            usable = accumulator.usable

            def note(topic: TopicSlot, partitions: list[int]) -> list[int]:
                looked_at.append(len(set(partitions)))
                return usable(topic, partitions)

            monkeypatch.setattr(accumulator, "usable", note)
            chosen = [runtime._choose_sticky(slot) for _ in range(6 * width)]
            assert set(looked_at) == {sample}
            assert len(set(chosen)) > 0.9 * width
            assert max(map(chosen.count, set(chosen))) < 30
            # If no partition of the sample is usable, all partitions are considered.
            last = width - 1
            monkeypatch.setattr(accumulator, "usable", lambda _, all_: [last] * (last in all_))
            assert {runtime._choose_sticky(slot) for _ in range(50)} == {last}

    play(main)
