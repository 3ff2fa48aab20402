"""Connections that are cut after byte k of a request or a response, for every k."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import pytest

from aiokprod.errors import NetworkError, Outcome
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.transports import Link
from tests.scenarios.scenario_helpers import RECOVERY, Attempt, error_of, harness, noted_sizes, play

pytestmark = pytest.mark.matrix

PLAIN: dict[str, Any] = {"enable_idempotence": False, "retries": 0}
LAST = -1


async def exchange_sizes(api_key: int) -> dict[str, int]:
    """Return the sizes in bytes of one request of an API and of its response."""
    async with harness() as (cluster, producer, _):
        sizes: list[int] = []
        cluster.control(api_key, noted_sizes(sizes))
        for _ in range(2):
            await producer.send("t", b"value", partition=0)
        requests = [note.size for note in cluster.requests if note.api_key == api_key]
        return {"request": requests[LAST], "answer": sizes[LAST]}


async def one_cut(
    k: int, *, way: str, cut_with: Literal["reset", "eof"], **options: Any
) -> tuple[Attempt, Attempt]:
    """Break the connection while a record is in flight. Return the outcomes of that record and the
    next."""
    async with harness(**options) as (cluster, _, history):
        await history.send()
        link = cluster.network.links_to("broker1", 9092)[LAST]
        pipe = link.up if way == "request" else link.down
        pipe.cut_at, pipe.cut_with = pipe.taken + k, cut_with
        attempt = await history.send()
        later = await history.send()
        assert later.settled_at - attempt.started_at < RECOVERY
        history.check()
        return attempt, later


@pytest.mark.parametrize("cut_with", ["reset", "eof"])
@pytest.mark.parametrize("way", ["request", "answer"])
def test_produce_cut_after_every_byte_is_acked_once(
    way: str, cut_with: Literal["reset", "eof"]
) -> None:
    size = play(lambda: exchange_sizes(0))[way]
    for k in range(size + 1):
        attempts = play(partial(one_cut, k, way=way, cut_with=cut_with))
        assert all(attempt.acked for attempt in attempts), k


@pytest.mark.parametrize("way", ["request", "answer"])
def test_produce_cut_without_retries_is_acked_or_told_truly(way: str) -> None:
    size = play(lambda: exchange_sizes(0))[way]
    for k in range(size + 1):
        attempts = play(partial(one_cut, k, way=way, cut_with="reset", **PLAIN))
        first, later = attempts
        assert first.acked or error_of(first, NetworkError).outcome is Outcome.UNKNOWN, k
        if not later.acked:  # the connection was broken before anything was written: NOT_SENT
            assert error_of(later, NetworkError).outcome in (Outcome.UNKNOWN, Outcome.NOT_SENT), k


async def first_send(prepare: Callable[[FakeCluster], None]) -> None:
    """Send the first record of a producer whose start is disturbed."""
    async with harness() as (cluster, _, history):
        prepare(cluster)
        attempt = await history.send()
        assert attempt.settled_at - attempt.started_at < RECOVERY
        history.all_acked()


@pytest.mark.parametrize("api_key", [3, 18, 22])
def test_start_up_answer_cut_after_every_byte_delays_only(api_key: int) -> None:
    size = play(lambda: exchange_sizes(api_key))["answer"]
    for k in range(size + 1):
        cut = faults.cut(k)

        def prepare(cluster: FakeCluster, cut: faults.Reaction = cut) -> None:
            cluster.control(api_key, cut, times=1)

        play(partial(first_send, prepare))


def test_first_connection_cut_after_every_byte_sent_delays_only() -> None:
    """The search covers all bytes that a start-up sends there and ends with the first k beyond
    them."""
    links = []
    for k in range(1_000):

        def prepare(cluster: FakeCluster, k: int = k) -> None:
            def first_only(link: Link) -> None:
                links.append(link)
                link.up.cut_at = k
                cluster.network.on_link = None

            cluster.network.on_link = first_only

        play(partial(first_send, prepare))
        if links[-1].up.taken < k:
            break
    assert len(links) == k + 1
    assert 100 < k < 999, "ApiVersions and Metadata are there"


def test_every_connection_cut_after_a_while_still_delivers_everything_once() -> None:
    async def main() -> None:
        async with harness(partitions=3) as (cluster, _, history):
            lengths = iter(range(700, 1_000_000, 97))

            def cut(link: Link) -> None:
                link.up.cut_at = next(lengths)
                link.down.cut_at = next(lengths)

            cluster.network.on_link = cut
            await history.submit_many(400, every=0.01, partitions=(0, 1, 2))
            await history.settle()
            history.all_acked()

    play(main)
