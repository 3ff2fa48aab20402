"""The cache: what calls wait for, and when the next fetch is due (Java MetadataTest,
ProducerMetadataTest, KafkaProducerTest)."""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import pytest

from aiokprod._engine.metadata.cache import Metadata, UpdatePlan
from aiokprod._engine.metadata.merge import MISSES_BEFORE_FORGETTING
from aiokprod._engine.metadata.topics import TrackedTopics
from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod.cluster import ZERO_TOPIC_ID, ClusterSnapshot, Node
from aiokprod.errors import (
    AuthenticationError,
    AuthorizationError,
    Code,
    DialError,
    InvalidTopic,
    KafkaError,
    MetadataTimeout,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    RecordRejected,
    UnknownTopic,
)
from aiokprod.records import TopicPartition
from aiokprod.testing.virtual import run
from tests.engine.metadata.metadata_fakes import (
    OTHER_ID,
    TOPIC_ID,
    answer,
    metadata,
    partition,
    topic,
)

NOW = 500.0
T0 = TopicPartition("t", 0)


def refresh(
    cache: Metadata, response: MetadataResponse, now: float = NOW, **options: Any
) -> UpdatePlan:
    """Make one request and process its response."""
    plan = cache.plan(now)
    cache.update(plan.request_generation, response, plan.partial, now, **options)
    return plan


def known(now: float = NOW, **settings: Any) -> Metadata:
    """Return a cache with topic t with two partitions, fetched at `now`."""
    cache = metadata(**settings)
    cache.mark_used("t", now)
    refresh(cache, answer(topic("t", 2)), now)
    return cache


def pause(cache: Metadata, now: float = NOW) -> float:
    """Return the seconds until a requested update may be sent."""
    cache.request_update()
    return cache.next_update_at(now) - now


# -- the view -----------------------------------------------------------------------------------


def test_new_cache_holds_the_bootstrap_addresses_and_wants_an_update() -> None:
    cache = metadata()
    assert cache.snapshot.nodes == {-1: Node(-1, "boot-a", 9092), -2: Node(-2, "boot-b", 9093)}
    assert cache.only_bootstrap_nodes
    assert cache.snapshot.generation == 1
    assert cache.update_due(NOW)
    assert cache.plan(NOW) == UpdatePlan(0, False, ())
    assert not cache.update_due(NOW)
    assert "generation=1 nodes=2 topics=0/0" in repr(cache)


def test_lookup_returns_the_view_only_if_topic_and_partition_are_known() -> None:
    cache = known()
    assert cache.lookup("t") is cache.snapshot
    assert cache.lookup("t", 1) is cache.snapshot
    assert cache.lookup("t", 2) is None
    assert cache.lookup("u") is None


def test_lookup_of_an_invalid_topic_raises_as_long_as_the_view_lists_it() -> None:
    cache = metadata()
    cache.mark_used("bad topic", NOW)
    refresh(cache, answer(topic("bad topic", 0, error=17)))
    for _ in range(2):
        with pytest.raises(InvalidTopic) as caught:
            cache.lookup("bad topic")
        assert caught.value.outcome is Outcome.NOT_SENT
    refresh(cache, answer(topic("bad topic", 1)), NOW + 1)
    assert cache.lookup("bad topic") is not None


def test_every_swap_raises_the_generation_and_tells_listeners() -> None:
    cache = metadata()
    seen: list[ClusterSnapshot] = []
    cache.on_change(seen.append)
    cache.mark_used("t", NOW)
    refresh(cache, answer(topic("t", 1)))
    refresh(cache, answer(topic("t", 1)), NOW + 1)
    cache.update_leaders({T0: (2, 9)})
    cache.rebootstrap()
    assert [snapshot.generation for snapshot in seen] == [2, 3, 4, 5]
    assert seen[-1] is cache.snapshot


# -- what is asked for --------------------------------------------------------------------------


def test_touch_of_a_new_topic_asks_for_new_topics_only() -> None:
    cache = known()
    calls: list[str] = []
    cache.on_request(lambda: calls.append("wake"))
    cache.mark_used("u", NOW)
    cache.mark_used("u", NOW)
    cache.mark_used("t", NOW)
    assert calls == ["wake"]
    assert cache.plan(NOW) == UpdatePlan(2, True, ("u",))
    assert cache.topics() == ("t", "u")


def test_full_request_asks_for_all_topics_in_use() -> None:
    cache = known()
    cache.mark_used("u", NOW)
    cache.request_update()
    assert cache.plan(NOW) == UpdatePlan(2, False, ("t", "u"))


def test_topic_added_while_a_request_is_under_way_is_asked_for_next() -> None:
    cache = metadata()
    cache.mark_used("t", NOW)
    plan = cache.plan(NOW)
    cache.mark_used("u", NOW)
    assert not cache.update_due(NOW)
    cache.update(plan.request_generation, answer(topic("t", 1)), plan.partial, NOW)
    assert cache.next_update_at(NOW) == NOW
    assert cache.plan(NOW) == UpdatePlan(2, True, ("u",))


def test_answer_about_a_topic_added_since_leaves_nothing_to_ask() -> None:
    cache = metadata()
    plan = cache.plan(NOW)
    cache.mark_used("t", NOW)
    cache.update(plan.request_generation, answer(topic("t", 1)), plan.partial, NOW)
    assert cache.next_update_at(NOW) > NOW + 100


def test_topic_answered_with_an_error_is_asked_for_by_full_requests_from_then_on() -> None:
    cache = known()
    cache.mark_used("u", NOW)
    assert refresh(cache, answer(topic("u", 0, error=3))).partial
    plan = cache.plan(NOW + 1)
    assert (plan.partial, plan.topics) == (False, ("t", "u"))


def test_omitted_new_topic_is_asked_for_again_after_the_backoff() -> None:
    cache = known()
    cache.mark_used("u", NOW)
    assert refresh(cache, answer()).topics == ("u",)
    assert NOW < cache.next_update_at(NOW) < NOW + 0.2
    assert cache.topic_error("u") == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert cache.lookup("t") is not None


def test_topic_is_forgotten_once_so_many_answers_in_a_row_lacked_it() -> None:
    cache = known()
    for miss in range(MISSES_BEFORE_FORGETTING):
        assert cache.lookup("t") is not None, f"after {miss} misses"
        cache.request_update()
        refresh(cache, answer(), NOW + miss)
    assert cache.lookup("t") is None


def test_request_update_does_nothing_if_the_cache_is_newer_than_what_was_seen() -> None:
    cache = known()
    seen = cache.request_update()
    refresh(cache, answer(topic("t", 2)), NOW + 1)
    later = NOW + 2
    assert cache.request_update(seen) == cache.snapshot.generation
    assert cache.next_update_at(later) > later
    cache.request_update(cache.snapshot.generation)
    assert cache.next_update_at(later) == later


@pytest.mark.parametrize("swap", ["partial", "hint"])
def test_request_update_is_not_silenced_by_news_about_something_else(swap: str) -> None:
    cache = known()
    seen = cache.snapshot.generation
    if swap == "partial":
        cache.mark_used("u", NOW)
        refresh(cache, answer(topic("u", 1)))
    else:
        cache.update_leaders({T0: (2, 9)})
    assert cache.snapshot.generation > seen
    cache.request_update(seen)
    assert cache.update_due(NOW + 2)


def test_request_made_while_an_older_one_is_under_way_is_followed_by_another() -> None:
    cache = known()
    cache.request_update()
    plan = cache.plan(NOW)
    cache.request_update()
    cache.update(plan.request_generation, answer(topic()), plan.partial, NOW)
    assert cache.next_update_at(NOW) < NOW + 1.0
    plan = cache.plan(NOW + 1.0)
    assert not plan.partial
    cache.update(plan.request_generation, answer(topic()), plan.partial, NOW + 1.0)
    assert cache.next_update_at(NOW + 1.0) > NOW + 100.0


def test_complaint_about_a_view_is_settled_by_the_request_under_way() -> None:
    """Each refused batch reports the metadata as wrong; they must not cause one request each."""
    cache = known()
    cache.request_update()
    plan = cache.plan(NOW)
    cache.request_update(cache.snapshot.generation)
    cache.update(plan.request_generation, answer(topic()), plan.partial, NOW)
    assert cache.next_update_at(NOW) > NOW + 100.0


def test_request_update_wakes_the_updater_once_until_it_is_served() -> None:
    cache = known()
    calls: list[str] = []
    cache.on_request(lambda: calls.append("wake"))
    cache.request_update()
    cache.request_update()
    assert calls == ["wake"]


def test_idle_topic_is_forgotten_after_metadata_max_idle_F60() -> None:
    cache = known(metadata_max_idle_ms=5_000)
    cache.mark_used("u", NOW + 3)
    refresh(cache, answer(topic("t", 2), topic("u", 1)), NOW + 4)
    assert set(cache.snapshot.topics) == {"t", "u"}
    cache.request_update()
    assert refresh(cache, answer(topic("u", 1)), NOW + 6).topics == ("u",)
    assert set(cache.snapshot.topics) == {"u"}
    assert cache.topics() == ("u",)
    assert cache.topic_error("t") == 0
    cache.mark_used("t", NOW + 7)
    assert cache.plan(NOW + 7).topics == ("t",)


def test_idle_topic_without_any_answer_is_kept() -> None:
    cache = metadata(metadata_max_idle_ms=5_000)
    cache.mark_used("t", NOW)
    assert cache.plan(NOW + 60).topics == ("t",)


# -- when ---------------------------------------------------------------------------------------


def test_full_update_is_due_by_age_since_the_last_full_success() -> None:
    cache = known(metadata_max_age_ms=10_000)
    assert cache.next_update_at(NOW) == NOW + 10
    cache.mark_used("u", NOW + 5)
    assert refresh(cache, answer(topic("u", 1)), NOW + 5).partial
    assert cache.next_update_at(NOW + 6) == NOW + 10
    assert not cache.plan(NOW + 10).partial


def test_partial_request_becomes_full_when_the_age_is_over() -> None:
    cache = known(metadata_max_age_ms=10_000)
    cache.mark_used("u", NOW + 11)
    assert cache.plan(NOW + 11) == UpdatePlan(2, False, ("t", "u"))


@pytest.mark.parametrize(
    ("failures", "low", "high"), [(1, 0.08, 0.12), (2, 0.16, 0.24), (4, 0.64, 0.96), (9, 0.8, 1.0)]
)
def test_failed_attempts_back_off_exponentially_with_jitter(
    failures: int, low: float, high: float
) -> None:
    waits = set()
    for seed in range(20):
        cache = metadata(seed=seed)
        for _ in range(failures):
            cache.plan(NOW)
            cache.failed(NOW)
        waits.add(pause(cache))
    assert low <= min(waits) <= max(waits) <= high + 1e-9
    assert len(waits) > 1 or low == high


def test_success_ends_the_backoff_of_failures() -> None:
    cache = metadata()
    for _ in range(6):
        cache.failed(NOW)
    cache.mark_used("t", NOW)
    refresh(cache, answer(topic("t", 1)))
    assert pause(cache) <= 0.12


def test_answers_that_change_nothing_back_off_too() -> None:
    cache = known()
    waits = []
    now = NOW
    for _ in range(6):
        cache.request_update()
        now = cache.next_update_at(now)
        refresh(cache, answer(topic("t", 2)), now)
        waits.append(pause(cache, now))
    assert waits[0] <= 0.12
    assert waits[1] >= 0.16
    assert waits[-1] == 1.0
    refresh(cache, answer(topic("t", 3)), now)
    assert pause(cache, now) <= 0.12


def without_ids(epoch: int) -> MetadataResponse:
    return answer(topic("t", [partition(0, 1, epoch)], topic_id=ZERO_TOPIC_ID))


def test_refused_topic_id_is_removed_by_a_response_without_ids() -> None:
    cache = known()
    cache.refuse_topic_id("t", TOPIC_ID)
    refresh(cache, answer(topic("t", 2, topic_id=ZERO_TOPIC_ID)))
    assert cache.snapshot.topic_id("t") == ZERO_TOPIC_ID


def test_topic_id_is_kept_if_another_one_was_refused() -> None:
    cache = known()
    cache.refuse_topic_id("t", OTHER_ID)
    refresh(cache, answer(topic("t", 2, topic_id=ZERO_TOPIC_ID)))
    assert cache.snapshot.topic_id("t") == TOPIC_ID


def test_topic_id_is_kept_if_a_response_has_confirmed_it_since_it_was_refused() -> None:
    cache = known()
    cache.refuse_topic_id("t", TOPIC_ID)
    refresh(cache, answer(topic("t", error=Code.LEADER_NOT_AVAILABLE)))
    refresh(cache, answer(topic("t", 2)))
    refresh(cache, answer(topic("t", 2, topic_id=ZERO_TOPIC_ID)))
    assert cache.snapshot.topic_id("t") == TOPIC_ID


def test_topic_id_is_still_refused_after_an_answer_that_has_only_an_error() -> None:
    cache = known()
    cache.refuse_topic_id("t", TOPIC_ID)
    refresh(cache, answer(topic("t", error=Code.LEADER_NOT_AVAILABLE)))
    refresh(cache, without_ids(0))
    assert cache.snapshot.topic_id("t") == ZERO_TOPIC_ID


def test_topic_named_in_the_request_has_no_id_to_refuse() -> None:
    cache, now = backed_off()
    cache.refuse_topic_id("t", ZERO_TOPIC_ID)
    refresh(cache, without_ids(0), now)
    assert cache.snapshot.leader_epoch_of(T0) == 5


def backed_off() -> tuple[Metadata, float]:
    """Return a cache without topic ids whose last responses changed nothing, and the time."""
    cache = metadata()
    cache.mark_used("t", NOW)
    now = NOW
    for _ in range(8):
        cache.request_update()
        now = max(now, cache.next_update_at(now))
        refresh(cache, without_ids(5), now)
    assert pause(cache, now) == 1.0
    return cache, now


def test_lower_epochs_are_decided_on_within_two_seconds_whatever_the_backoff_was() -> None:
    cache, now = backed_off()
    first = now = cache.next_update_at(now)
    for count in range(MISSES_BEFORE_FORGETTING):
        assert cache.snapshot.leader_epoch_of(T0) == 5, f"after {count} answers"
        refresh(cache, without_ids(0), now)
        decided = now
        cache.request_update()
        now = cache.next_update_at(now)
    assert cache.snapshot.leader_epoch_of(T0) == 0
    assert decided - first < 2.0


def kept() -> tuple[Metadata, float, int]:
    """Return a cache without topic ids, the time, and a generation whose leader two later responses
    have contradicted. No complaint about that leader caused their requests."""
    cache = metadata()
    cache.mark_used("t", NOW)
    refresh(cache, without_ids(5), NOW)
    seen = cache.snapshot.generation
    for number in (1, 2):
        scheduled(cache, without_ids(0), NOW + number)
    assert cache.snapshot.leader_epoch_of(T0) == 5
    return cache, NOW + 2, seen


def scheduled(cache: Metadata, response: MetadataResponse, now: float) -> None:
    """Request all topics, as for metadata that is too old, and process the response."""
    cache.request_refresh()
    assert not refresh(cache, response, now).partial


def test_responses_that_contradict_a_leader_do_not_answer_a_complaint_about_it() -> None:
    """Otherwise slow Produce requests could never show that the leader is wrong."""
    cache, now, seen = kept()
    for count in range(MISSES_BEFORE_FORGETTING):
        assert cache.snapshot.leader_epoch_of(T0) == 5, f"after {count} complaints"
        scheduled(cache, without_ids(0), now + 1)
        cache.request_update(seen, T0)
        now += 3
        assert cache.update_due(now)
        refresh(cache, without_ids(0), now)
    assert cache.snapshot.leader_epoch_of(T0) == 0


@pytest.mark.parametrize("about", [None, TopicPartition("t", 1), TopicPartition("u", 0)])
def test_responses_that_contradict_a_leader_answer_other_complaints(
    about: TopicPartition | None,
) -> None:
    cache, now, seen = kept()
    cache.request_update(seen, about)
    assert not cache.update_due(now + 3)


@pytest.mark.parametrize("by", ["response", "hint"])
def test_complaint_about_a_leader_that_was_replaced_since_requests_nothing(by: str) -> None:
    """Several requests may have been sent to the old leader. When each is refused, no further
    metadata request must follow."""
    cache, now, seen = kept()
    if by == "response":
        scheduled(cache, without_ids(6), now)
    else:
        cache.update_leaders({T0: (2, 6)})
    cache.request_update(seen, T0)
    assert not cache.update_due(now + 3)


def test_lower_epochs_that_come_and_go_keep_to_the_backoff() -> None:
    cache, now = backed_off()
    began = now
    for number in range(40):
        cache.request_update()
        now = cache.next_update_at(now)
        refresh(cache, without_ids(5 * (number % 2)), now)
    assert now - began > 25.0


def test_answers_that_change_nothing_far_apart_do_not_back_off() -> None:
    cache = known()
    for minute in range(1, 9):
        refresh(cache, answer(topic("t", 2)), NOW + 60 * minute)
    assert pause(cache, NOW + 480) <= 0.12


def test_pause_is_never_below_a_twentieth_second() -> None:
    cache = known(retry_backoff_ms=0)
    assert pause(cache) == pytest.approx(0.05)
    cache.plan(NOW)
    cache.failed(NOW)
    assert pause(cache) == pytest.approx(0.05)


def test_new_topic_passes_the_backoff_once_only() -> None:
    cache = metadata()
    for _ in range(5):
        cache.failed(NOW)
    assert cache.next_update_at(NOW) > NOW
    cache.mark_used("t", NOW)
    assert cache.next_update_at(NOW) == NOW
    cache.plan(NOW)
    cache.failed(NOW)
    cache.mark_used("t", NOW)
    assert cache.next_update_at(NOW) > NOW + 0.5


def test_request_under_way_is_not_due_again() -> None:
    cache = metadata()
    assert cache.update_due(NOW)
    cache.plan(NOW)
    assert not cache.update_due(NOW)
    cache.failed(NOW)
    assert not cache.update_due(NOW)
    assert cache.update_due(NOW + 1)


# -- leader hints, rebootstrap ------------------------------------------------------------------


def test_leader_hint_is_applied_and_not_rolled_back_by_an_older_answer() -> None:
    cache = known()
    node = Node(7, "host-7", 9092)
    assert cache.update_leaders({T0: (7, 6)}, [node]) == {T0}
    assert not cache.update_leaders({T0: (1, 6)})
    assert cache.update_leaders({T0: (7, 6)}) == frozenset()
    assert cache.snapshot.leader_of(T0) == 7
    stale = answer(topic("t", [partition(0, 1, 5), partition(1)]), brokers=[1, 2, 7])
    refresh(cache, stale, NOW + 1)
    assert cache.snapshot.leader_of(T0) == 7


def test_rebootstrap_keeps_topics_and_wants_an_update() -> None:
    cache = known()
    refresh(cache, answer(topic("t", 2)), NOW + 1)
    cache.rebootstrap()
    before = cache.only_bootstrap_nodes
    assert before
    assert list(cache.snapshot.nodes) == [-1, -2]
    assert cache.lookup("t", 1) is cache.snapshot
    assert cache.snapshot.leader_of(T0) is None
    assert cache.update_due(NOW + 3)
    refresh(cache, answer(topic("t", [partition(0, 2, 0), partition(1)])), NOW + 3)
    after = cache.only_bootstrap_nodes
    assert not after
    assert cache.snapshot.leader_of(T0) == 2


def test_being_sent_back_to_brokers_given_up_is_no_news() -> None:
    cache = known()
    now = NOW
    waits = []
    for _ in range(6):
        cache.rebootstrap()
        now = cache.next_update_at(now)
        refresh(cache, answer(topic("t", 2)), now)
        waits.append(pause(cache, now))
    assert waits[-1] == 1.0
    cache.rebootstrap()
    refresh(cache, answer(topic("t", 2), brokers=[1, 2, 3]), now + 1)
    assert pause(cache, now + 1) <= 0.12


# -- waiting ------------------------------------------------------------------------------------


def in_time(test: Any) -> None:
    """Run `test(now)` in virtual time."""

    async def main() -> None:
        await test(asyncio.get_running_loop().time())

    run(main)


def test_wait_for_a_known_topic_returns_without_suspending() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        cache.mark_used("t", now)
        refresh(cache, answer(topic("t", 2)), now)
        waiter = cache.wait_for_topic("t", 1, deadline=-math.inf)
        with pytest.raises(StopIteration) as done:
            waiter.send(None)
        assert done.value.value is cache.snapshot

    in_time(test)


def test_waiters_share_one_fetch_and_wake_once() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiters = [
            asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60)) for _ in range(10)
        ]
        await asyncio.sleep(0)
        plan = cache.plan(now)
        late = asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60))
        await asyncio.sleep(0)
        assert plan.topics == ("t",)
        cache.update(plan.request_generation, answer(topic("t", 1)), plan.partial, now)
        assert await asyncio.gather(*waiters, late) == [cache.snapshot] * 11
        assert cache.next_update_at(now) > now + 100

    in_time(test)


def test_waiter_asks_again_until_the_topic_is_there_F17() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiter = asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60))
        await asyncio.sleep(0)
        for error in (3, 5, 3):
            at = cache.next_update_at(now)
            assert at < now + 1.0
            refresh(cache, answer(topic("t", 0, error=error)), at)
            await asyncio.sleep(0)
        assert not waiter.done()
        refresh(cache, answer(topic("t", 1)), now + 3)
        assert (await waiter).partition_count("t") == 1

    in_time(test)


def test_waiter_for_a_partition_asks_again_until_the_topic_has_grown_F18() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(topic("t", 2)), now)
        await asyncio.sleep(0)
        assert not waiter.done()
        assert cache.next_update_at(now) < now + 0.2
        assert not cache.plan(now + 1).partial
        cache.update(0, answer(topic("t", 3)), False, now + 1)
        assert (await waiter).partition_count("t") == 3

    in_time(test)


def test_waiter_for_a_partition_that_never_comes_times_out_naming_the_count_F18() -> None:
    async def test(now: float) -> None:
        cache = metadata(max_block_ms=1_500)
        cache.mark_used("t", now)
        refresh(cache, answer(topic("t", 2)), now)
        with pytest.raises(MetadataTimeout) as caught:
            await cache.wait_for_topic("t", 2, deadline=now + 1.5)
        text = str(caught.value)
        assert "partition 2 is not among the 2 of topic 't'" in text
        assert "after 1.5 s (max_block_ms=1500)" in text
        assert caught.value.__cause__ is None
        assert caught.value.outcome is Outcome.NOT_SENT
        assert asyncio.get_running_loop().time() == now + 1.5

    in_time(test)


async def stays_waiting(waiter: asyncio.Task[Any]) -> None:
    """Check that the waiter processed the update and continues to wait."""
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiter.done()


async def fails_for_want_of_partition_2(waiter: asyncio.Task[Any]) -> None:
    with pytest.raises(UnknownTopic, match="has the partitions 0 to 1, not 2") as caught:
        await waiter
    assert caught.value.outcome is Outcome.NOT_SENT
    assert caught.value.code is not None
    assert caught.value.code.number == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_partition_that_a_known_topic_lacks_fails_after_one_response_F18() -> None:
    async def test(now: float) -> None:
        cache = known(now)
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await stays_waiting(waiter)  # metadata from before the call does not decide
        refresh(cache, answer(topic("t", 2)), now + 1)
        await fails_for_want_of_partition_2(waiter)
        assert asyncio.get_running_loop().time() == now

    in_time(test)


def test_partition_that_a_new_topic_lacks_fails_after_two_responses_F18() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(topic("t", 2)), now)
        await stays_waiting(waiter)
        refresh(cache, answer(topic("t", 2)), now + 1)
        await fails_for_want_of_partition_2(waiter)

    in_time(test)


def test_response_to_a_request_sent_before_the_call_does_not_decide_about_a_partition_F18() -> None:
    async def test(now: float) -> None:
        cache = known(now)
        cache.request_refresh()
        plan = cache.plan(now + 1)
        assert plan.topics == ("t",)
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        cache.update(plan.request_generation, answer(topic("t", 2)), plan.partial, now + 1)
        await stays_waiting(waiter)
        refresh(cache, answer(topic("t", 2)), now + 2)
        await fails_for_want_of_partition_2(waiter)

    in_time(test)


def test_response_about_another_topic_does_not_decide_about_a_partition_F18() -> None:
    async def test(now: float) -> None:
        cache = known(now)
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        cache.mark_used("u", now)
        plan = cache.plan(now)
        assert (plan.partial, plan.topics) == (True, ("u",))
        await asyncio.sleep(0)
        cache.update(plan.request_generation, answer(topic("u", 1)), plan.partial, now)
        await stays_waiting(waiter)
        refresh(cache, answer(topic("t", 2), topic("u", 1)), now + 1)
        await fails_for_want_of_partition_2(waiter)

    in_time(test)


@pytest.mark.parametrize("failed", [1, 3])
def test_partition_is_not_decided_on_without_a_response_F18(failed: int) -> None:
    async def test(now: float) -> None:
        cache = known(now)
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        lost = DialError("no response from host-1:9092")
        for attempt in range(failed):
            cache.plan(now + attempt)
            cache.failed(now + attempt, lost)
        with pytest.raises(MetadataTimeout, match="partition 2 is not among the 2") as caught:
            await waiter
        assert caught.value.__cause__ is lost
        assert asyncio.get_running_loop().time() == now + 60

    in_time(test)


def test_one_response_about_a_new_topic_does_not_decide_about_a_partition_F18() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(topic("t", 2)), now)
        with pytest.raises(MetadataTimeout, match="partition 2 is not among the 2"):
            await waiter

    in_time(test)


@pytest.mark.parametrize("error", [3, 5])
def test_response_with_an_error_of_the_topic_does_not_decide_about_a_partition_F18(
    error: int,
) -> None:
    async def test(now: float) -> None:
        cache = known(now)
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(topic("t", 0, error=error)), now + 1)
        assert cache.snapshot.partition_count("t") == 2
        await stays_waiting(waiter)
        refresh(cache, answer(topic("t", 2)), now + 2)
        await fails_for_want_of_partition_2(waiter)

    in_time(test)


def test_partition_errors_of_a_new_topic_count_as_responses_about_its_partitions_F18() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        leaderless = [partition(index, leader=-1, error=5) for index in range(2)]
        refresh(cache, answer(topic("t", leaderless)), now)
        await stays_waiting(waiter)
        refresh(cache, answer(topic("t", leaderless)), now + 1)
        await fails_for_want_of_partition_2(waiter)

    in_time(test)


def test_wait_for_a_partition_ends_when_it_exists_although_it_has_no_leader_F18() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiter = asyncio.create_task(cache.wait_for_topic("t", 2, deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(topic("t", 2)), now)
        await stays_waiting(waiter)
        grown = [partition(0), partition(1), partition(2, leader=-1, error=5)]
        refresh(cache, answer(topic("t", grown)), now + 1)
        assert await waiter is cache.snapshot
        found = cache.snapshot.partition("t", 2)
        assert found is not None
        assert (found.leader, found.error) == (None, Code.LEADER_NOT_AVAILABLE)

    in_time(test)


def test_waiter_times_out_with_the_topic_error_as_cause() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        cache.mark_used("t", now)
        refresh(cache, answer(topic("t", 0, error=3)), now)
        with pytest.raises(MetadataTimeout, match="topic 't' is not in the metadata") as caught:
            await cache.wait_for_topic("t", deadline=now + 60)
        assert isinstance(caught.value.__cause__, UnknownTopic)
        assert "no usable response" not in str(caught.value)

    in_time(test)


def test_waiter_without_any_broker_times_out_naming_addresses_and_network_error() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        refused = DialError("connection refused by boot-b:9093")
        cache.plan(now)
        cache.failed(now, DialError("first"))
        cache.failed(now)
        cache.note_error(refused)
        assert cache.last_error is refused
        with pytest.raises(MetadataTimeout) as caught:
            await cache.wait_for_topic("t", deadline=now + 60)
        assert "boot-a:9092, boot-b:9093: connection refused by boot-b:9093" in str(caught.value)
        assert caught.value.__cause__ is refused

    in_time(test)


def test_waiter_without_any_answer_yet_times_out_naming_the_addresses() -> None:
    async def test(now: float) -> None:
        servers = [f"boot-{i}:1" for i in range(7)]
        cache = metadata(bootstrap_servers=servers)
        with pytest.raises(MetadataTimeout) as caught:
            await cache.wait_for_topic("t", deadline=now + 1)
        assert "no usable response from boot-0:1, boot-1:1" in str(caught.value)
        assert str(caught.value).endswith("boot-4:1 and 2 more")

    in_time(test)


def test_waiter_with_a_deadline_in_the_past_times_out_at_once() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        with pytest.raises(MetadataTimeout):
            await cache.wait_for_topic("t", deadline=now - 5)
        assert cache.topics() == ("t",)

    in_time(test)


@pytest.mark.parametrize(
    ("code", "cls"), [(17, InvalidTopic), (29, AuthorizationError), (44, RecordRejected)]
)
def test_refusal_reaches_the_waiters_of_that_topic_only(code: int, cls: type[KafkaError]) -> None:
    async def test(now: float) -> None:
        cache = metadata()
        refused = asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60))
        other = asyncio.create_task(cache.wait_for_topic("u", deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(topic("t", 0, error=code), topic("u", 0, error=5)), now)
        with pytest.raises(cls) as caught:
            await refused
        assert caught.value.outcome is Outcome.NOT_SENT
        assert caught.value.code is not None
        assert caught.value.code.number == code
        refresh(cache, answer(topic("t", 0, error=code), topic("u", 1)), now + 1)
        assert (await other).partition_count("u") == 1

    in_time(test)


def test_refusal_that_is_older_than_the_call_is_asked_about_again() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        cache.mark_used("t", now)
        refresh(cache, answer(topic("t", 0, error=29)), now)
        waiter = asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60))
        await asyncio.sleep(0)
        cache.mark_used("u", now)
        refresh(cache, answer(topic("u", 1)), now)  # partial: does not contain t
        await asyncio.sleep(0)
        assert not waiter.done()
        refresh(cache, answer(topic("t", 1), topic("u", 1)), now + 1)
        assert (await waiter).partition_count("t") == 1

    in_time(test)


def test_failed_attempt_wakes_nobody() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiter = asyncio.create_task(cache.wait_for_topic("t", deadline=math.inf))
        await asyncio.sleep(0)
        cache.plan(now)
        cache.failed(now, DialError("refused"))
        await asyncio.sleep(5)
        assert not waiter.done()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

    in_time(test)


def test_fatal_error_reaches_every_present_waiter_with_a_copy_of_its_own() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        waiters = [
            asyncio.create_task(cache.wait_for_topic(name, deadline=now + 60)) for name in "tuv"
        ]
        await asyncio.sleep(0)
        cause = AuthenticationError("wrong password")
        cache.fatal(now, cause)
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert all(isinstance(result, AuthenticationError) for result in results)
        assert all(getattr(result, "__cause__", None) is cause for result in results)
        assert len(set(map(id, results))) == 3
        late = asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(topic("t", 1)), now + 1)
        assert (await late).partition_count("t") == 1
        assert cache.last_error is None

    in_time(test)


def test_cancelled_waiter_leaves_the_others_waiting() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        first = asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60))
        second = asyncio.create_task(cache.wait_for_topic("t", deadline=now + 60))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        refresh(cache, answer(topic("t", 1)), now)
        assert (await second).partition_count("t") == 1

    in_time(test)


def test_wait_newer_returns_the_first_view_beyond_a_generation() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        assert await cache.wait_newer(0, deadline=-math.inf) is cache.snapshot
        waiter = asyncio.create_task(cache.wait_newer(2, deadline=now + 60))
        await asyncio.sleep(0)
        refresh(cache, answer(), now)
        await asyncio.sleep(0)
        assert not waiter.done()
        refresh(cache, answer(), now + 1)
        assert (await waiter).generation == 3

    in_time(test)


def test_wait_newer_times_out_with_the_network_error_as_cause() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        refused = DialError("refused")
        cache.failed(now, refused)
        with pytest.raises(
            MetadataTimeout, match=r"no newer metadata after 2 s.*refused"
        ) as caught:
            await cache.wait_newer(1, deadline=now + 2)
        assert caught.value.__cause__ is refused
        with pytest.raises(MetadataTimeout):
            await cache.wait_newer(1, deadline=now)

    in_time(test)


def test_close_ends_all_waits_and_later_calls() -> None:
    async def test(now: float) -> None:
        cache = metadata()
        cache.mark_used("t", now)
        refresh(cache, answer(topic("t", 1)), now)
        waits = [
            asyncio.create_task(cache.wait_for_topic("u", deadline=math.inf)),
            asyncio.create_task(cache.wait_newer(9, deadline=math.inf)),
        ]
        await asyncio.sleep(0)
        cache.close()
        cache.close(ProducerFailed("too late"))
        for wait in waits:
            with pytest.raises(ProducerClosed):
                await wait
        with pytest.raises(ProducerClosed):
            cache.lookup("t")
        with pytest.raises(ProducerClosed):
            await cache.wait_for_topic("t", deadline=math.inf)
        with pytest.raises(ProducerClosed):
            await cache.wait_newer(9, deadline=math.inf)
        with pytest.raises(ProducerClosed):
            cache.update(0, answer(), False, now)
        assert cache.next_update_at(now) == math.inf
        assert not cache.update_due(now)

    in_time(test)


def test_close_with_an_error_raises_that_one() -> None:
    cause = ProducerFailed("a task died")
    cache = known()
    cache.close(cause)
    with pytest.raises(ProducerFailed) as caught:
        cache.lookup("t")
    assert caught.value.__cause__ is cause


def test_topic_error_is_logged_when_it_changes_not_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = metadata(allow_auto_create_topics=False)
    cache.mark_used("t", NOW)
    with caplog.at_level(logging.WARNING):
        for step, code in enumerate([3, 3, 3, 5, 5, 3]):
            refresh(cache, answer(topic("t", 0, error=code)), NOW + step)
    assert [message.split(": ")[1].split(",")[0] for message in caplog.messages] == [
        "UNKNOWN_TOPIC_OR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "UNKNOWN_TOPIC_OR_PARTITION",
    ]
    assert [vars(record)["kafka_topic"] for record in caplog.records] == ["t"] * 3


@pytest.mark.parametrize("code", [Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE])
def test_topic_that_is_being_created_is_not_warned_of(
    code: int, caplog: pytest.LogCaptureFixture
) -> None:
    cache = metadata()
    cache.mark_used("t", NOW)
    for step in (0.0, 1.0, 2.9):
        refresh(cache, answer(topic("t", 0, error=code)), NOW + step)
    refresh(cache, answer(topic("t", 1)), NOW + 2.95)
    assert not caplog.records
    refresh(cache, answer(topic("t", 0, error=code)), NOW + 100)
    assert len(caplog.records) == 1, "it existed before"


def test_topic_that_no_broker_creates_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    cache = metadata()
    cache.mark_used("t", NOW)
    for step in (0.0, 2.9, 3.0, 4.0, 5.0):
        refresh(cache, answer(topic("t", 0, error=3)), NOW + step)
    (record,) = caplog.records
    assert "no broker has created it within 3 s: create it, or set auto.create" in caplog.text
    assert vars(record)["kafka_event"] == "topic_error"
    assert vars(record)["kafka_code"] == "UNKNOWN_TOPIC_OR_PARTITION"


def test_waits_for_a_topic_are_counted_until_they_end() -> None:
    async def main() -> None:
        clock = asyncio.get_running_loop().time
        cache, start = metadata(), clock()
        begun: list[dict[str, int]] = []
        cache.on_waiting = lambda: begun.append({t: w.calls for t, w in cache.waits.items()})
        calls = [
            asyncio.create_task(cache.wait_for_topic("t", deadline=start + seconds))
            for seconds in (1.0, 2.0)
        ]
        await asyncio.sleep(1.5)
        assert begun == [{"t": 1}, {"t": 2}]
        assert cache.waits["t"].calls == 1
        assert cache.waits["t"].since == start
        calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert not cache.waits

    run(main)


def test_lookup_among_thousands_of_topics_keeps_untouched_ones_identical_F60() -> None:
    cache = metadata()
    names = [f"topic-{i}" for i in range(2_000)]
    for name in names:
        cache.mark_used(name, NOW)
    everything = answer(*(topic(name, 2) for name in names))
    assert len(refresh(cache, everything).topics) == 2_000
    before = cache.snapshot
    refresh(cache, everything, NOW + 1)
    assert cache.snapshot.topics is before.topics
    cache.mark_used("another", NOW + 1)
    assert refresh(cache, answer(topic("another", 1)), NOW + 1).topics == ("another",)
    assert all(cache.snapshot.topics[name] is before.topics[name] for name in names)


def test_errors_of_topics_in_one_response_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    topics = TrackedTopics(60.0, lambda: None)
    codes = {f"t{number:02}": int(Code.UNKNOWN_TOPIC_OR_PARTITION) for number in range(12)}
    codes |= {"fine": 0, "bad": int(Code.INVALID_TOPIC_EXCEPTION)}
    with caplog.at_level(logging.WARNING):
        topics.note_answers(codes, 1, 10.0)
        topics.note_answers(codes, 2, 10.0)
        assert len(caplog.messages) == 2, "the same errors are logged once"
        topics.note_answers(codes | {"bad": 0, "t00": 0, "fine": 29}, 3, 10.0)
        topics.note_answers(codes, 4, 10.0)
    names = ", ".join(f"t{number:02}" for number in range(10))
    assert caplog.messages[0].startswith(
        f"metadata of topics {names} and 2 more: UNKNOWN_TOPIC_OR_PARTITION, "
    )
    assert [one.partition(":")[0] for one in caplog.messages[1:]] == [
        "metadata of topic bad", "metadata of topic fine", "metadata of topic t00",
        "metadata of topic bad",
    ]  # fmt: skip
    assert topics.answer("t00") == (4, int(Code.UNKNOWN_TOPIC_OR_PARTITION))
