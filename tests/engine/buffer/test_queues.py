"""The queue of a partition."""

from __future__ import annotations

import itertools
from pathlib import Path

from aiokprod._engine.buffer import queues
from tests.engine.engine_harness import EngineHarness, virtual
from tests.simulation.call_interrupts import Injector

BUFFER = str(Path(queues.__file__).parent)


@virtual
async def test_batch_is_put_before_all_others_and_the_rest_in_order() -> None:
    harness = EngineHarness()
    harness.append_all(b"a", b"b", b"c")
    queue = harness.accumulator.queue("t", 0)
    first, second, third = queue.batches
    queue.put_first(third)
    assert list(queue.batches) == [third, first, second]
    queue.put_first(second)
    assert list(queue.batches) == [second, first, third]
    queue.put_first(None)
    assert list(queue.batches) == [first, second, third]


def test_batch_opened_anywhere_while_another_is_put_first_stays_in_the_queue() -> None:
    """A finalizer or a signal handler sends the record that opens the batch."""

    def opened(step: int) -> bool:
        harness: EngineHarness
        injector = Injector(step, lambda: harness.append(b"d"), BUFFER)

        @virtual
        async def scene() -> None:
            nonlocal harness
            harness = EngineHarness()
            harness.append_all(b"a", b"b", b"c")
            queue = harness.accumulator.queue("t", 0)
            first, second, third = queue.batches
            with injector.armed():
                queue.put_first(third)
            ordered = list(queue.batches)
            assert ordered[:3] == [third, first, second]
            assert set(ordered) == set(harness.accumulator.incomplete)

        scene()
        return injector.has_struck

    assert any(not opened(step) for step in itertools.count(1))
