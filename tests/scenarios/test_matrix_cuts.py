"""Connections cut after byte k of a request or an answer, for every k."""

from __future__ import annotations

import pytest

from aiokprod.errors import NetworkError, Outcome
from aiokprod.testing import fake_cluster as faults
from tests.scenarios.scenario_helpers import RECOVERY, error_of, harness, play

pytestmark = pytest.mark.matrix

PLAIN = {"enable_idempotence": False, "retries": 0}
LAST = -1


async def exchange_sizes(api_key):
    """Bytes of one request of an API and of its answer."""
    async with harness() as (cluster, producer, _):
        sizes = []
        cluster.control(api_key, faults.edit_frame(lambda f: (sizes.append(len(f)), f)[1]))
        for _ in range(2):
            await producer.send("t", b"value", partition=0)
        requests = [note.size for note in cluster.requests if note.api_key == api_key]
        return {"request": requests[LAST], "answer": sizes[LAST]}


async def one_cut(k, *, way, cut_with, **options):
    """Cut while a record is on its way; how it and the next one ended."""
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
def test_produce_cut_after_every_byte_is_acked_once(way, cut_with):
    size = play(lambda: exchange_sizes(0))[way]
    for k in range(size + 1):
        attempts = play(lambda k=k: one_cut(k, way=way, cut_with=cut_with))
        assert all(attempt.acked for attempt in attempts), k


@pytest.mark.parametrize("way", ["request", "answer"])
def test_produce_cut_without_retries_is_acked_or_told_truly(way):
    size = play(lambda: exchange_sizes(0))[way]
    for k in range(size + 1):
        attempts = play(lambda k=k: one_cut(k, way=way, cut_with="reset", **PLAIN))
        first, later = attempts
        assert first.acked or error_of(first, NetworkError).outcome is Outcome.UNKNOWN, k
        if not later.acked:  # of a connection found broken before anything was written: NOT_SENT
            assert error_of(later, NetworkError).outcome in (Outcome.UNKNOWN, Outcome.NOT_SENT), k


async def first_send(prepare):
    """The first record of a producer whose start-up is disturbed."""
    async with harness() as (cluster, _, history):
        prepare(cluster)
        attempt = await history.send()
        assert attempt.settled_at - attempt.started_at < RECOVERY
        history.all_acked()


@pytest.mark.parametrize("api_key", [3, 18, 22])
def test_start_up_answer_cut_after_every_byte_delays_only(api_key):
    size = play(lambda: exchange_sizes(api_key))["answer"]
    for k in range(size + 1):
        cut = faults.cut(k)
        play(lambda cut=cut: first_send(lambda c, cut=cut: c.control(api_key, cut, times=1)))


def test_first_connection_cut_after_every_byte_sent_delays_only():
    """All that a start-up sends there: the first cut that is never reached ends the search."""
    links = []
    for k in range(1_000):

        def prepare(cluster, k=k):
            def first_only(link):
                links.append(link)
                link.up.cut_at = k
                cluster.network.on_link = None

            cluster.network.on_link = first_only

        play(lambda prepare=prepare: first_send(prepare))
        if links[-1].up.taken < k:
            break
    assert len(links) == k + 1
    assert 100 < k < 999, "ApiVersions and Metadata are there"


def test_every_connection_cut_after_a_while_still_delivers_everything_once():
    async def main():
        async with harness(partitions=3) as (cluster, _, history):
            lengths = iter(range(700, 1_000_000, 97))

            def cut(link):
                link.up.cut_at = next(lengths)
                link.down.cut_at = next(lengths)

            cluster.network.on_link = cut
            await history.submit_many(400, every=0.01, partitions=(0, 1, 2))
            await history.settle()
            history.all_acked()

    play(main)
