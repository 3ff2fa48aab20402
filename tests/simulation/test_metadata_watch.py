"""The check of leader epochs: which decreases are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import math
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod.cluster import ClusterSnapshot
from aiokprod.testing.virtual import run
from tests.engine.metadata.metadata_fakes import answer, metadata, partition, topic
from tests.simulation.metadata_watch import ANSWERS, EpochWatch
from tests.simulation.oracle import Violation
from tests.simulation.wire_log import METADATA, Exchange

KNOWN = 3
BACK_AT_S = 10.0


def told(epoch: int, *, sent_at: float, heard_at: float) -> Exchange:
    """Return a Metadata request whose response has this epoch for partition 0. Times are seconds
    since the start."""
    body = None if heard_at == math.inf else answer(topic("t", [partition(0, epoch=epoch)]))
    return Exchange(METADATA, 13, 1, sent_at, b"", ("broker", 9092), math.inf, heard_at, body)


def lower(count: int) -> list[Exchange]:
    """Return fetches with epoch 0, one per second. The last response arrives when the epoch
    decreases."""
    return [told(0, sent_at=at - 0.5, heard_at=at) for at in (BACK_AT_S - n for n in range(count))]


def judged(exchanges: list[Exchange]) -> None:
    """Let the epoch decrease from `KNOWN` to 0. Raise Violation if that is not allowed."""

    def snapshot(epoch: int) -> ClusterSnapshot:
        cache = metadata()
        cache.mark_used("t", 0.0)
        body = answer(topic("t", [partition(0, epoch=epoch)], topic_id=bytes(16)))
        plan = cache.plan(0.0)
        cache.update(plan.request_generation, body, plan.partial, 0.0)
        return cache.snapshot

    async def main() -> None:
        start = asyncio.get_running_loop().time()
        for one in exchanges:
            one.sent_at += start
            one.heard_at += start
        misfortunes: Any = SimpleNamespace(oldest_metadata=13)
        wire: Any = SimpleNamespace(exchanges=lambda: exchanges)
        watch = EpochWatch(misfortunes, wire)
        cache = SimpleNamespace(only_bootstrap_nodes=False, on_change=lambda listener: None)
        runtime = SimpleNamespace(metadata=cache)
        watch.follow(SimpleNamespace(_lifecycle=SimpleNamespace(runtime=runtime)))
        watch._look(snapshot(KNOWN))
        await asyncio.sleep(BACK_AT_S)
        watch._look(snapshot(0))
        watch.check()

    run(main)


@pytest.mark.parametrize(
    ("exchanges", "is_allowed"),
    [
        pytest.param(lower(ANSWERS), True, id="five-in-a-row"),
        pytest.param(lower(ANSWERS - 1), False, id="four"),
        pytest.param(
            [*lower(ANSWERS - 1), told(KNOWN, sent_at=8.2, heard_at=8.3)], False, id="interrupted"
        ),
        pytest.param(
            [*lower(ANSWERS), told(KNOWN, sent_at=4.0, heard_at=9.2)], True, id="ignored-higher"
        ),
        pytest.param(
            [*lower(ANSWERS - 1), told(0, sent_at=6.8, heard_at=9.2)], False, id="ignored-lower"
        ),
        pytest.param(
            [*lower(ANSWERS), told(KNOWN, sent_at=4.0, heard_at=math.inf)], True, id="unanswered"
        ),
        pytest.param([*lower(ANSWERS), told(KNOWN, sent_at=10.1, heard_at=10.2)], True, id="later"),
    ],
)
def test_epoch_goes_back_only_after_five_responses_in_a_row_that_were_used(
    exchanges: list[Exchange], is_allowed: bool
) -> None:
    with contextlib.nullcontext() if is_allowed else pytest.raises(Violation, match="went back"):
        judged(exchanges)
