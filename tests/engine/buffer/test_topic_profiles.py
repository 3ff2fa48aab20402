"""Topics with different profiles in one accumulator: linger, batch size, codec, expiry."""

from __future__ import annotations

import math
import sys
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod import TopicProfile
from aiokprod._core.batch import Delivery
from aiokprod._wire.compression import CODEC_NAMES, Lz4
from aiokprod._wire.record_batch import HEADER_SIZE
from aiokprod.errors import Code, DeliveryTimeout
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import EngineHarness, error_of, outcome_of, virtual

A = TopicPartition("a", 0)
BATCH_DEADLINE = 20.0
"""Later wakeup times of the sender are not caused by a linger."""


def engine(a: TopicProfile, b: TopicProfile | None = None, **settings: object) -> EngineHarness:
    profiles = {"a": a} if b is None else {"a": a, "b": b}
    return EngineHarness(topics=("a", "b"), topic_profiles=profiles, **settings)  # type: ignore[arg-type]


def sent_topics(harness: EngineHarness) -> list[set[str]]:
    """Return the topics of each Produce request so far."""
    return [{where.topic for where in sent.batches} for sent in harness.brokers.produce]


# -- linger ---------------------------------------------------------------------------------------


@virtual
async def test_each_topic_waits_for_its_own_linger() -> None:
    harness = engine(TopicProfile(linger_ms=300), TopicProfile(linger_ms=50), adaptive_linger=False)
    start = harness.now
    harness.append(b"x", topic="a")
    harness.append(b"x", topic="b")
    assert harness.step() == pytest.approx(start + 0.05)
    harness.pass_time(0.05)
    assert harness.step() == pytest.approx(start + 0.3)
    assert sent_topics(harness) == [{"b"}]
    harness.pass_time(0.25)
    harness.step()
    assert sent_topics(harness) == [{"b"}, {"a"}]


@virtual
async def test_topic_with_a_linger_is_not_sent_together_with_other_topics() -> None:
    """The application wants larger batches of this topic; batches of others are sent at once."""
    harness = engine(TopicProfile(linger_ms=300), adaptive_linger=False)
    start = harness.now
    harness.append(b"x", topic="a")
    for _ in range(5):
        harness.append(b"y", topic="b")
        assert harness.step() == pytest.approx(start + 0.3)
        harness.brokers.last.ack()
        harness.append(b"x", topic="a")
        harness.pass_time(0.05)
    assert sent_topics(harness) == [{"b"}] * 5
    harness.pass_time(0.06)
    harness.step()
    assert sent_topics(harness)[-1] == {"a"}
    assert len(harness.brokers.last.values) == 6


@virtual
async def test_topics_without_a_linger_of_their_own_are_sent_together() -> None:
    harness = engine(TopicProfile(batch_size=9_000), linger_ms=300, adaptive_linger=False)
    harness.append(b"x", topic="a")
    harness.append(b"y", topic="b")
    harness.pass_time(0.3)
    harness.append(b"z" * 100, topic="a")
    harness.step()
    assert sent_topics(harness) == [{"a", "b"}]


@pytest.mark.parametrize("adaptive", [True, False])
@virtual
async def test_topic_with_a_linger_waits_for_it_even_if_its_broker_is_idle(adaptive: bool) -> None:
    harness = engine(TopicProfile(linger_ms=300), idempotent=False, adaptive_linger=adaptive)
    start = harness.now
    harness.append(b"x", topic="a")
    assert harness.step() == pytest.approx(start + 0.3)
    harness.append(b"y", topic="b")
    harness.step()
    assert sent_topics(harness) == [{"b"}]
    harness.brokers.last.ack()
    harness.append(b"x", topic="a")
    assert harness.later(0.299) == pytest.approx(start + 0.3)
    assert sent_topics(harness) == [{"b"}]
    harness.later(0.001)
    assert sent_topics(harness) == [{"b"}, {"a"}]
    assert len(harness.brokers.last.values) == 2


def calls_of_a_pass(partitions: int) -> int:
    """Count the Python calls of the accumulator in a sender run that sends one record, while that
    number of partitions of the same broker waits for the linger of a profile."""
    found = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal found
        found += event == "call" and "/_engine/" in frame.f_code.co_filename

    @virtual
    async def main() -> None:
        harness = engine(
            TopicProfile(linger_ms=300), linger_ms=300, adaptive_linger=False, partitions=partitions
        )
        for partition in range(partitions):
            harness.append(b"x", partition, topic="a")
        assert harness.drain() == []
        harness.accumulator.next_due()
        harness.append(b"y", topic="b")
        harness.close_open(topic="b")
        sys.setprofile(count)
        try:
            assert harness.accumulator.due_nodes(busy=()) == []
            harness.accumulator.advance(harness.now)
            assert harness.accumulator.due_nodes(busy=()) == [1]
            (batch,) = harness.drain()
            harness.accumulator.next_due()
        finally:
            sys.setprofile(None)
        assert batch.queue.topic == "b"

    main()
    return found


def test_pass_does_not_look_at_batches_that_wait_for_the_linger_of_a_profile() -> None:
    assert calls_of_a_pass(3) == calls_of_a_pass(200) > 3


@pytest.mark.parametrize("reason", ["flush", "close", "transaction", "memory", "refused record"])
@virtual
async def test_linger_of_a_profile_ends_early(reason: str) -> None:
    harness = engine(TopicProfile(linger_ms=300))
    delivery = harness.append(b"x", topic="a")
    harness.step()
    assert not sent_topics(harness)
    if reason == "flush":
        harness.flushes.active = True
    elif reason == "close":
        harness.accumulator.closing = True
    elif reason == "transaction":
        harness.accumulator.completing = True
    elif reason == "memory":
        harness.memory.has_waiters = True
    else:
        harness.memory.on_refused()
    harness.step()
    assert sent_topics(harness) == [{"a"}]
    harness.memory.has_waiters = harness.flushes.active = False
    harness.brokers.last.ack()
    assert outcome_of(delivery) is not None
    assert not harness.memory.refused


@virtual
async def test_partition_without_leader_is_reported_while_it_waits_for_the_linger() -> None:
    harness = engine(TopicProfile(linger_ms=300))
    harness.append(b"x", topic="a")
    harness.accumulator.advance(harness.now)
    harness.move(0, None, topic="a")
    assert harness.accumulator.leaderless
    assert harness.accumulator.leaderless_topics() == {"a"}


@virtual
async def test_flush_voids_the_linger_of_each_topic() -> None:
    harness = engine(
        TopicProfile(linger_ms=10_000), TopicProfile(linger_ms=20_000), adaptive_linger=False
    )
    harness.append(b"x", topic="a")
    harness.append(b"y", topic="b")
    harness.step()
    assert not sent_topics(harness)
    harness.accumulator.closing = True
    harness.step()
    assert sent_topics(harness) == [{"a", "b"}]


@virtual
async def test_full_batch_of_a_topic_with_a_linger_is_sent_at_once() -> None:
    harness = engine(TopicProfile(linger_ms=10_000, batch_size=500), adaptive_linger=False)
    for _ in range(6):
        harness.append(b"x" * 100, topic="a")
    harness.step()
    assert sent_topics(harness) == [{"a"}]
    assert len(harness.brokers.last.values) == 4


# -- sizes and codecs -----------------------------------------------------------------------------


@virtual
async def test_each_topic_has_its_own_batch_size() -> None:
    harness = engine(TopicProfile(batch_size=1_000), TopicProfile(batch_size=0), batch_size=3_000)
    harness.brokers.busy.add(1)
    for _ in range(40):
        harness.append(b"x" * 100, topic="a")
    for _ in range(3):
        harness.append(b"x" * 100, topic="b")
    sizes = [batch.core.size for batch in harness.queued(topic="a")]
    assert len(sizes) > 4
    assert max(sizes) <= 1_000 - HEADER_SIZE
    assert [batch.core.record_count for batch in harness.queued(topic="b")] == [1, 1, 1]


@virtual
async def test_batches_of_a_topic_grow_in_steps_of_its_batch_size() -> None:
    harness = engine(
        TopicProfile(batch_size=1_000), TopicProfile(batch_size=4_000), elastic_batch_size=3_000
    )
    harness.brokers.busy.add(1)
    for _ in range(80):
        harness.append(b"x" * 100, topic="a")
        harness.append(b"x" * 100, topic="b")
    grown = [batch.core.size for batch in harness.queued(topic="a")]
    assert grown[0] <= 1_000 < 2_800 < grown[1] <= 3_000
    kept = [batch.core.size for batch in harness.queued(topic="b")]
    assert 3_800 < kept[0] <= 4_000  # elastic_batch_size is less than its batch_size
    assert max(kept) <= 4_000


@virtual
async def test_batch_of_a_topic_is_split_by_its_batch_size_and_codec() -> None:
    harness = engine(
        TopicProfile(compression_type="gzip", batch_size=1_000_000), codec=Lz4(), batch_size=400
    )
    values = [b"%d" % number * 50 for number in range(40)]
    for value in values:
        harness.append(value, topic="a")
    harness.step()
    harness.brokers.last.refuse(Code.MESSAGE_TOO_LARGE)
    for _ in range(9):
        harness.step()
        for sent in list(harness.brokers.waiting):
            assert sent.batch.codec == "gzip"
            assert len(sent.values) < 40
            sent.ack()
    assert harness.brokers.stored(A) == values


@pytest.mark.parametrize("name", CODEC_NAMES)
@virtual
async def test_each_topic_has_its_own_codec_and_ratio(name: str) -> None:
    harness = engine(TopicProfile(compression_type=name), codec=Lz4())
    for _ in range(60):
        harness.append(b"x" * 100, topic="a")
        harness.append(b"x" * 100, topic="b")
    for batch in harness.drain():
        assert batch.codec_id == CODEC_NAMES.index(name if batch.queue.topic == "a" else "lz4")
    assert set(harness.accumulator._compressor._ratios) == set("b" if name == "none" else "ab")


# -- expiry ---------------------------------------------------------------------------------------


@virtual
async def test_later_batch_with_a_shorter_timeout_expires_first() -> None:
    harness = engine(
        TopicProfile(delivery_timeout_ms=60_000),
        TopicProfile(delivery_timeout_ms=31_000),
        delivery_timeout_ms=90_000,
    )
    harness.brokers.busy.add(1)
    start = harness.now
    first = harness.append(b"x", topic="a")
    harness.pass_time(1.0)
    second = harness.append(b"y", topic="b")
    assert harness.accumulator.next_expiry() == pytest.approx(start + 32)
    harness.pass_time(31.0)
    harness.step()
    harness.step()
    assert isinstance(error_of(second), DeliveryTimeout)
    assert outcome_of(first) is None
    assert harness.accumulator.expires_at == pytest.approx(start + 60)
    harness.pass_time(28.0)
    harness.step()
    harness.step()
    assert isinstance(error_of(first), DeliveryTimeout)
    assert harness.accumulator.expires_at == math.inf


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(*[st.integers(30_300, 90_000)] * 2),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20_000)), min_size=1, max_size=12),
)
def test_every_batch_expires_after_the_timeout_of_its_topic(
    timeouts: tuple[int, int], appends: list[tuple[str, int]]
) -> None:
    """The sender sleeps until the time that each run returns, and the broker accepts no request."""

    @virtual
    async def main() -> None:
        profiles = [TopicProfile(delivery_timeout_ms=timeout) for timeout in timeouts]
        limits = {"a": timeouts[0], "b": timeouts[1], "c": 120_000}
        harness = EngineHarness(
            topics=("a", "b", "c"), topic_profiles=dict(zip("ab", profiles, strict=True)),
            batch_size=1,
        )  # fmt: skip
        harness.brokers.busy.add(1)
        waiting: list[tuple[Delivery, float]] = []
        for topic, pause_ms in appends:
            waiting.append((harness.append(b"x", topic=topic), harness.now + limits[topic] / 1000))
            sleep_through(harness, waiting, harness.now + pause_ms / 1000)
        sleep_through(harness, waiting, math.inf)
        assert not waiting

    main()


def sleep_through(
    harness: EngineHarness, waiting: list[tuple[Delivery, float]], until: float
) -> None:
    """Run the sender until a time, and check each batch at each run."""
    while True:
        at = harness.step()
        for delivery, deadline in list(waiting):
            if deadline <= harness.now:
                assert isinstance(error_of(delivery), DeliveryTimeout)
                waiting.remove((delivery, deadline))
            else:
                assert outcome_of(delivery) is None
        if min(at, until) == math.inf:
            return
        harness.pass_time(min(at, until) - harness.now + 1e-6)
        if harness.now >= until:
            return


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.integers(0, 300)] * 3),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 200)), min_size=1, max_size=12),
    st.booleans(),
)
def test_every_batch_is_sent_after_the_linger_of_its_topic(
    lingers: tuple[int, int, int], appends: list[tuple[str, int]], adaptive: bool
) -> None:
    """Batches of a topic with a linger leave when it ends, regardless of other requests; other
    batches leave by then at the latest."""

    @virtual
    async def main() -> None:
        harness = EngineHarness(
            topics=("a", "b", "c"),
            topic_profiles={
                topic: TopicProfile(linger_ms=linger)
                for topic, linger in zip("ab", lingers, strict=False)
            },
            linger_ms=lingers[2], adaptive_linger=adaptive, idempotent=False,
            max_in_flight_requests_per_connection=100,
        )  # fmt: skip
        opened: list[tuple[str, float]] = []
        is_open: set[str] = set()

        def pass_until(until: float) -> None:
            while True:
                sent_before = len(harness.brokers.produce)
                at = harness.step()
                for sent in harness.brokers.produce[sent_before:]:
                    for where in sent.batches:
                        is_open.discard(where.topic)
                        times.setdefault(where.topic, []).append(sent.at)
                    sent.ack()
                if min(at, until) == math.inf or at >= BATCH_DEADLINE + start:
                    return
                harness.pass_time(max(0.0, min(at, until) - harness.now + 1e-6))
                if harness.now >= until:
                    return

        times: dict[str, list[float]] = {}
        start = harness.now
        for topic, pause_ms in appends:
            harness.append(b"x", topic=topic)
            if topic not in is_open:
                is_open.add(topic)
                opened.append((topic, harness.now))
            pass_until(harness.now + pause_ms / 1000)
        pass_until(math.inf)
        for topic, linger_ms in zip("abc", lingers, strict=True):
            due = [at + linger_ms / 1000 for name, at in opened if name == topic]
            found = times.get(topic, [])
            if topic == "c":
                assert all(at <= latest + 0.001 for at, latest in zip(found, due, strict=True))
            else:
                assert found == pytest.approx(due, abs=0.001)

    main()
