"""Random Metadata responses: missing and invented epochs, topics, partitions, brokers and names,
brokers that contradict each other, damaged frames.

Two rules hold for every seed. While the responses are wrong, requests obey their backoff. After all
faults have ended, a send to every partition succeeds within ten seconds. `AIOKPROD_METADATA_SEEDS`
runs more seeds than the default; a failing seed is named and can be run alone:

    python -m tests.scenarios.test_random_metadata SEED
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod._wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokprod.records import TopicPartition
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Reaction, cut, edit_frame, garbage
from aiokprod.testing.memory import MemoryNetwork
from tests.scenarios.scenario_helpers import History, make_producer, now, play, runtime_of

pytestmark = pytest.mark.matrix

METADATA = 3
PRODUCE = 0
API_VERSIONS = 18

PARTITIONS = 3
STRANGE_S = 15.0
HEALED_WITHIN_S = 10.0

METADATA_PER_S = 21
"""`LEAST_PAUSE_S` limits all requests to 20 per second, whatever the responses contain; each new
topic adds one immediate request."""

DIALS_PER_S = 35
"""Six addresses (three brokers, three bootstrap ids), with five connection attempts each in the
first second."""

PRODUCE_PER_S = 20 * PARTITIONS
"""The load sends one record every 0.1 s to each partition. Batches are retried after pauses of 0.1,
0.2, 0.4 and 0.8 s, and at once for a leader with a newer epoch."""

CODES = [-77, -1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 19, 29, 41, 44, 56, 72, 100, 103, 129, 9999]
"""INVALID_TOPIC_EXCEPTION is missing: it stays valid until the metadata expires (300 s), as in
Java."""

SEEDS = int(os.environ.get("AIOKPROD_METADATA_SEEDS", "40"))
CHUNK = 10

_AFTER_THROTTLE = 13
"""Length, correlation id, tagged header fields and throttle time of a Metadata response."""

Topics = list[MetadataResponseTopic]


@dataclass
class Liar:
    """Changes the responses of one broker.

    Attributes:
        often: share of the responses that are changed.
        tricks: possible changes of a response, at most two at a time.
        lags_by: the broker's first responses by topic, for the trick `old_answer`.
        scrambled: bytes were changed, which may have produced a topic id.
    """

    rng: random.Random
    often: float
    tricks: Sequence[Callable[[Liar, MetadataResponse], MetadataResponse]] = ()
    lags_by: dict[str, Topics] = field(default_factory=dict)
    scrambled: bool = False

    @property
    def forges_ids(self) -> bool:
        """True if topic ids may be changed. A changed id means another topic, whose sequences
        restart: records may be stored twice or out of order."""
        return self.scrambled or other_topic_id in self.tricks

    def react(self, request: Any) -> Reaction | None:
        if self.rng.random() >= self.often:
            return None
        if self.rng.random() < 0.05:
            return self.rng.choice(
                (
                    cut(self.rng.randrange(60)),
                    garbage(self.rng.randbytes(self.rng.randrange(1, 200))),
                    edit_frame(lambda frame: frame[:-1]),
                    edit_frame(self._scramble),
                )
            )
        return Reaction(edit=self._change)

    def _scramble(self, frame: bytes) -> bytes:
        """Insert invalid nulls and lengths. The throttle time before them is unchanged: the client
        would obey one of weeks even after all faults have ended."""
        self.scrambled = True
        changed = bytearray(frame)
        for _ in range(3):
            at = self.rng.randrange(_AFTER_THROTTLE, len(changed))
            changed[at] = self.rng.choice((0, 1, 0x7F, 0xFF))
        return bytes(changed)

    def _change(self, body: MetadataResponse) -> MetadataResponse:
        for trick in self.rng.sample(self.tricks, min(len(self.tricks), self.rng.choice((1, 2)))):
            body = trick(self, body)
        return body


def partitions(
    function: Callable[[Liar, MetadataResponsePartition], MetadataResponsePartition],
) -> Callable[[Liar, MetadataResponse], MetadataResponse]:
    """Return a trick that changes some partitions."""

    def trick(liar: Liar, body: MetadataResponse) -> MetadataResponse:
        share = liar.rng.choice((0.4, 1.0))
        return replace(
            body,
            topics=[
                replace(
                    t,
                    partitions=[
                        function(liar, p) if liar.rng.random() < share else p for p in t.partitions
                    ],
                )
                for t in body.topics
            ],
        )

    trick.__name__ = function.__name__
    return trick


def topics(
    function: Callable[[Liar, MetadataResponseTopic], MetadataResponseTopic],
) -> Callable[[Liar, MetadataResponse], MetadataResponse]:
    """Return a trick that changes every topic."""

    def trick(liar: Liar, body: MetadataResponse) -> MetadataResponse:
        return replace(body, topics=[function(liar, t) for t in body.topics])

    trick.__name__ = function.__name__
    return trick


@partitions
def no_epoch(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, leader_epoch=-1)


@partitions
def epoch_zero(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, leader_epoch=0)


@partitions
def epochs_begin_anew(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, leader_epoch=p.leader_epoch % 2)


@partitions
def epoch_from_the_future(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, leader_epoch=p.leader_epoch + liar.rng.choice((1, 1000)))


@partitions
def other_leader(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, leader_id=liar.rng.choice((1, 2, 3)))


@partitions
def no_leader(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, leader_id=-1)


@partitions
def leader_unheard_of(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, leader_id=liar.rng.choice((0, 77, -5, 2**31 - 1)))


@partitions
def partition_code(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, error_code=liar.rng.choice(CODES))


@partitions
def partition_code_only(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    code = liar.rng.choice(CODES)
    return MetadataResponsePartition(code, p.partition_index, -1, -1, (), (), ())


@partitions
def other_index(liar: Liar, p: MetadataResponsePartition) -> MetadataResponsePartition:
    return replace(p, partition_index=liar.rng.choice((-1, 0, 1, 7, 2**31 - 1)))


@topics
def partitions_missing(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(t, partitions=[p for p in t.partitions if liar.rng.random() < 0.6])


@topics
def no_partitions(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(t, partitions=[])


@topics
def partitions_twice(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(t, partitions=[*t.partitions, *t.partitions])


@topics
def topic_code(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    kept = t.partitions if liar.rng.random() < 0.3 else []
    return replace(t, error_code=liar.rng.choice(CODES), partitions=kept)


@topics
def null_name(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(t, name=None)


@topics
def other_name(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(t, name=liar.rng.choice(("", "other", "T")))


@topics
def no_topic_id(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(t, topic_id=bytes(16))


@topics
def other_topic_id(liar: Liar, t: MetadataResponseTopic) -> MetadataResponseTopic:
    return replace(t, topic_id=liar.rng.randbytes(16))


def topics_missing(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    return replace(body, topics=[])


def topics_twice(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    again = [
        replace(t, partitions=[replace(p, leader_id=1) for p in t.partitions]) for t in body.topics
    ]
    return replace(body, topics=[*body.topics, *again])


def old_answer(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    """Always return the first response."""
    kept = [liar.lags_by.setdefault(t.name or "", [t])[0] for t in body.topics]
    return replace(body, topics=kept)


def no_brokers(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    return replace(body, brokers=[])


def brokers_missing(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    kept = [b for b in body.brokers if liar.rng.random() < 0.5]
    return replace(body, brokers=kept)


def brokers_swapped(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    ids = [b.node_id for b in body.brokers]
    return replace(
        body,
        brokers=[
            replace(b, node_id=i) for b, i in zip(body.brokers, ids[1:] + ids[:1], strict=True)
        ],
    )


def brokers_renumbered(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    return replace(
        body, brokers=[replace(b, node_id=b.node_id + 10) for b in body.brokers], controller_id=11
    )


def brokers_elsewhere(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    host, port = liar.rng.choice((("hole", 9092), ("nowhere", 9092), ("", 0), ("broker1", -1)))
    return replace(body, brokers=[replace(b, host=host, port=port) for b in body.brokers])


def broker_negative(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    more = MetadataResponseBroker(-1, "broker1", 9092, None)
    return replace(body, brokers=[*body.brokers, more, more], controller_id=-9)


def top_code(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    return replace(body, error_code=liar.rng.choice(CODES))


def throttled(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    return replace(body, throttle_time_ms=liar.rng.choice((-1, 10, 300)))


def other_cluster(liar: Liar, body: MetadataResponse) -> MetadataResponse:
    return replace(body, cluster_id=liar.rng.choice((None, "", "another")))


TRICKS: list[Callable[[Liar, MetadataResponse], MetadataResponse]] = [
    *(no_epoch, epoch_zero, epochs_begin_anew, epoch_from_the_future, other_leader, no_leader),
    *(leader_unheard_of, partition_code, partition_code_only, other_index, partitions_missing),
    *(no_partitions, partitions_twice, topic_code, null_name, other_name, no_topic_id),
    *(other_topic_id, topics_missing, topics_twice, old_answer, no_brokers, brokers_missing),
    *(brokers_swapped, brokers_renumbered, brokers_elsewhere, broker_negative, top_code, throttled),
    other_cluster,
]


async def world_of(seed: int) -> None:
    rng = random.Random(seed)
    profile = rng.choice(("4.0", "4.0", "3.9", "2.8", "2.4", "2.1", "1.0"))
    cluster = FakeCluster(3, network=MemoryNetwork(), version_profile=profile)
    cluster.create_topic("t", PARTITIONS)
    cluster.network.hang("hole", 9092)
    # Temperaments differ from broker to broker: one may be honest, or all may lie.
    liars = {
        broker: Liar(
            random.Random(rng.random()),
            rng.choice((0.0, 0.3, 0.9, 1.0)),
            rng.sample(TRICKS, rng.choice((1, 2, 4, 30))),
        )
        for broker in cluster.brokers
    }
    for broker_id, liar in liars.items():
        cluster.control(METADATA, liar.react, broker_id=broker_id)
    idempotent = rng.random() < 0.7
    producer = make_producer(
        cluster,
        seed=seed,
        linger_ms=0,
        enable_idempotence=idempotent,
        max_block_ms=5_000,
        delivery_timeout_ms=8_000,
        request_timeout_ms=2_000,
        metadata_max_age_ms=rng.choice((300_000, 1_000)),
        retry_backoff_ms=100,
    )
    history = History(cluster, producer)
    start = now()

    async def load(partition: int) -> None:
        while now() < start + STRANGE_S:
            await history.submit("t", partition)
            await asyncio.sleep(0.1)

    try:
        loads = [asyncio.ensure_future(load(p)) for p in range(PARTITIONS)]
        while now() < start + STRANGE_S:
            await asyncio.sleep(rng.uniform(0.2, 3.0))
            _disturb(cluster, rng)
        for broker in cluster.brokers.values():
            if not broker.is_up:
                cluster.start(broker.broker_id)
        cluster.script.clear()
        healed = now()
        await asyncio.sleep(0.3)  # responses in flight, and the elections of restarted brokers
        _outgrow_lies(cluster, producer)
        sends = [asyncio.ensure_future(_sent(history, p)) for p in range(PARTITIONS)]
        done, _ = await asyncio.wait(sends, timeout=HEALED_WITHIN_S)
        described = {b: (v.often, [t.__name__ for t in v.tricks]) for b, v in liars.items()}
        assert len(done) == len(sends), f"not healed in time: {described}"
        for sent in sends:
            await sent
        await asyncio.gather(*loads)
        await history.settle()
        assert producer.health().state == "running"
        _judge_requests(cluster, start, healed)
        sequenced = idempotent and not any(liar.forges_ids for liar in liars.values())
        history.check(unique=sequenced, ordered=sequenced, refusals=True)
    finally:
        await producer.close(5.0)


def _outgrow_lies(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    """Raise the leader epochs to those in the client's metadata. Like Java, the client keeps an
    invented higher epoch until the true one reaches it: with the same topic id, a lower epoch is
    outdated."""
    assert producer._lifecycle.runtime is not None
    told = runtime_of(producer).metadata.snapshot
    for partition in cluster.topics["t"].partitions:
        known = told.leader_epoch_of(TopicPartition("t", partition.index))
        partition.leader_epoch = max(partition.leader_epoch, known)


async def _sent(history: History, partition: int) -> None:
    """Repeat the call until one record is acknowledged."""
    for _ in range(200):
        if (await history.send("t", partition)).acked:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"200 sends to partition {partition} failed")


def _disturb(cluster: FakeCluster, rng: random.Random) -> None:
    down = [broker.broker_id for broker in cluster.brokers.values() if not broker.is_up]
    if down:
        cluster.start(rng.choice(down))
    elif rng.random() < 0.3:
        cluster.kill(rng.choice(list(cluster.brokers)))
    else:
        with contextlib.suppress(ValueError):
            cluster.move_leader("t", rng.randrange(PARTITIONS))


def _judge_requests(cluster: FakeCluster, start: float, end: float) -> None:
    bounds = {METADATA: METADATA_PER_S, PRODUCE: PRODUCE_PER_S}
    for api, bound in bounds.items():
        times = sorted(note.time for note in cluster.requests if note.api_key == api)
        _at_most(bound, [t for t in times if start <= t <= end], f"requests of API {api}")
    dials = [dial.time for dial in cluster.network.dials if start <= dial.time <= end]
    _at_most(DIALS_PER_S, dials, "dials")


def _at_most(bound: int, times: list[float], what: str) -> None:
    for index, at in enumerate(times):
        within = bisect_left(times, at + 1.0) - index
        assert within <= bound, f"{within} {what} in the second from {at:.3f}"


@pytest.mark.parametrize("chunk", range(max(SEEDS // CHUNK, 1)))
def test_strange_metadata_make_no_storm_and_heal(chunk: int) -> None:
    for seed in range(chunk * CHUNK, min((chunk + 1) * CHUNK, SEEDS)):
        try:
            play(partial(world_of, seed), limit_s=600.0)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


if __name__ == "__main__":
    play(lambda: world_of(int(sys.argv[1])), limit_s=600.0)
