"""The history check detects each kind of broken promise."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Sequence
from typing import Any

import pytest

from aiokprod.errors import DeliveryTimeout, Outcome
from aiokprod.records import RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import UnhandledError, run
from tests.scenarios.scenario_helpers import Attempt, History
from tests.testing.raw_client import RawClient, batch, produce


def judged(
    stored: Sequence[tuple[int, bytes]],
    attempts: Sequence[tuple[bytes, int | BaseException | None]],
) -> None:
    """Run the check on a log with these values and on attempts (value, offset or error)."""

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 2)
        client = await RawClient.connect(cluster)
        for partition, value in stored:
            await client.ask(produce("t", partition, batch(value)), 9)
        await client.close()
        producer: Any = types.SimpleNamespace()
        history = History(cluster, producer)
        for number, (value, result) in enumerate(attempts):
            told = (
                RecordMetadata("t", 0, result, 0, -1, len(value))
                if isinstance(result, int)
                else result
            )
            history.attempts.append(Attempt(number, "t", 0, value, told))
        history.check()

    run(main)


UNKNOWN = DeliveryTimeout("late", outcome=Outcome.UNKNOWN)
DEFINITE = DeliveryTimeout("late", outcome=Outcome.NOT_SENT)


def test_true_history_passes() -> None:
    judged(
        [(0, b"a"), (0, b"b"), (0, b"c")],
        [(b"a", 0), (b"b", UNKNOWN), (b"c", 2), (b"d", UNKNOWN), (b"e", DEFINITE)],
    )


@pytest.mark.parametrize(
    ("stored", "attempts", "verdict"),
    [
        ([], [(b"a", 0)], "lost"),
        ([(0, b"a"), (0, b"a")], [(b"a", 0)], "stored 2 times"),
        ([(0, b"a"), (0, b"a")], [(b"a", UNKNOWN)], "stored 2 times"),
        ([(0, b"a")], [(b"a", DEFINITE)], "definite, yet stored"),
        ([(0, b"b"), (0, b"a")], [(b"a", 0), (b"b", 1)], "offset"),
        ([(0, b"b"), (0, b"a")], [(b"a", 1), (b"b", 0)], "after number 0"),
        ([(1, b"a")], [(b"a", 0)], "Attempt"),
        ([(0, b"a"), (0, b"x")], [(b"a", 0)], "never sent"),
        ([(0, b"a")], [(b"a", None)], "never settled"),
    ],
)
def test_broken_promise_is_found(
    stored: list[tuple[int, bytes]],
    attempts: list[tuple[bytes, DeliveryTimeout | int | None]],
    verdict: str,
) -> None:
    with pytest.raises(AssertionError, match=verdict):
        judged(stored, attempts)


def test_record_in_another_partition_under_success_is_found() -> None:
    """CVE-2026-35554: the bytes are stored elsewhere and the call succeeds."""
    with pytest.raises(AssertionError):
        judged([(1, b"a"), (0, b"b")], [(b"a", 0), (b"b", 0)])


def test_buffer_reused_before_the_broker_has_it_is_found() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        client = await RawClient.connect(cluster)
        pooled = bytearray(b"\x00\x00\x00\x10" + bytes(16))
        client.transport.write(pooled)
        pooled[4:] = b"next batch......"
        await asyncio.sleep(1)
        await client.close()

    with pytest.raises(UnhandledError, match="changed after they were written"):
        run(main)
