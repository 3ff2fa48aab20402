"""`Runtime` by itself: which partitions a choice for keyless records compares."""

from __future__ import annotations

import pytest

from tests.faults.kit import play, world


@pytest.mark.parametrize(("width", "sample"), [(3, 3), (64, 64), (65, 32), (500, 32)])
def test_keyless_batches_of_a_wide_topic_look_at_a_sample(
    width: int, sample: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with world(partitions=width) as (_, producer, _):
            await producer.send("t", b"x")
            runtime = producer._runtime
            accumulator, slot = runtime.accumulator, runtime.appender.topics["t"]
            looked_at = []
            usable = accumulator.usable

            def note(topic: object, partitions: list[int]) -> list[int]:
                looked_at.append(len(set(partitions)))
                return usable(topic, partitions)

            monkeypatch.setattr(accumulator, "usable", note)
            chosen = [runtime._choose_sticky(slot) for _ in range(6 * width)]
            assert set(looked_at) == {sample}
            assert len(set(chosen)) > 0.9 * width
            assert max(map(chosen.count, set(chosen))) < 30
            # Where the whole sample is in the way, everything is looked at.
            last = width - 1
            monkeypatch.setattr(accumulator, "usable", lambda _, all_: [last] * (last in all_))
            assert {runtime._choose_sticky(slot) for _ in range(50)} == {last}

    play(main)
