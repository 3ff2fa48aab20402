"""How one response changes the snapshot (Java MetadataTest, and further rules for responses without
a verdict)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

import pytest

from aiokprod._engine.metadata.merge import (
    MISSES_BEFORE_FORGETTING,
    Merged,
    ResponseMerger,
    with_leaders,
    without_leaders,
)
from aiokprod._wire.messages.metadata import MetadataResponse
from aiokprod.cluster import ZERO_TOPIC_ID, ClusterSnapshot, Node
from aiokprod.errors import Code
from aiokprod.records import TopicPartition
from tests.engine.metadata.metadata_fakes import OTHER_ID, TOPIC_ID, answer, partition, topic

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)


def everything(name: str) -> bool:
    return True


def merge(
    old: ClusterSnapshot,
    response: MetadataResponse,
    *,
    partial: bool = False,
    asked: Collection[str] = (),
    misses: dict[str, int] | None = None,
    lower_epochs: dict[TopicPartition, int] | None = None,
    contradicted: dict[TopicPartition, int] | None = None,
    retain: Callable[[str], bool] = everything,
    reliable_epochs: bool = True,
    complained: bool = True,
    refused_ids: Collection[str] = (),
) -> Merged:
    merger = ResponseMerger(
        old,
        response,
        retain=retain,
        misses=misses or {},
        lower_epochs=lower_epochs or {},
        contradicted=contradicted or {},
        reliable_epochs=reliable_epochs,
        complained=complained,
        refused_ids=refused_ids,
    )
    return merger.merge(partial=partial, asked=asked)


def view(*topics: object, **options: object) -> ClusterSnapshot:
    return merge(ClusterSnapshot(), answer(*topics, **options)).snapshot  # type: ignore[arg-type]


def test_answer_becomes_a_snapshot() -> None:
    response = answer(
        topic("t", [partition(0, 1, 7, offline=[2]), partition(1, 2, 8)], internal=True),
        brokers=[1, 2],
        controller=2,
    )
    merged = merge(ClusterSnapshot(generation=4), response)
    snapshot = merged.snapshot
    assert snapshot.generation == 5
    assert snapshot.cluster_id == "cluster"
    assert snapshot.controller_id == 2
    assert snapshot.nodes == {1: Node(1, "host-1", 9092), 2: Node(2, "host-2", 9092)}
    assert snapshot.partition_count("t") == 2
    assert snapshot.leader_of(T1) == 2
    assert snapshot.leader_epoch_of(T1) == 8
    assert snapshot.topic_id("t") == TOPIC_ID
    assert snapshot.topics["t"].internal
    info = snapshot.partition("t", 0)
    assert info is not None
    assert (info.replicas, info.isr, info.offline, info.error) == ((1, 2), (1, 2), (2,), 0)
    assert merged.answered == {"t": 0}
    assert not merged.stale
    assert not merged.misses


def test_controller_unknown_or_not_among_the_brokers_is_none() -> None:
    assert view(controller=-1).controller_id is None
    assert view(controller=9).controller_id is None


def test_unchanged_answer_reuses_every_object() -> None:
    old = view(topic("t", 3), topic("u", 1))
    new = merge(old, answer(topic("u", 1), topic("t", 3))).snapshot
    assert new.generation == old.generation + 1
    assert new.topics is old.topics
    assert new.nodes is old.nodes


def test_changed_partition_leaves_the_others_alone() -> None:
    old = view(topic("t", 3), topic("u", 1))
    new = merge(
        old, answer(topic("t", [partition(0), partition(1, 2, 6), partition(2)]), topic("u", 1))
    )
    assert new.snapshot.topics["u"] is old.topics["u"]
    assert new.snapshot.partition("t", 0) is old.partition("t", 0)
    assert new.snapshot.leader_of(T1) == 2


@pytest.mark.parametrize(
    "change", [{"isr": [1]}, {"replicas": [1]}, {"offline": [2]}, {"error": 9}]
)
def test_every_field_of_a_partition_counts_as_change(change: dict[str, object]) -> None:
    old = view(topic("t", 1))
    new = merge(old, answer(topic("t", [partition(0, **change)]))).snapshot  # type: ignore[arg-type]
    assert new.topics is not old.topics
    assert new.partition("t", 0) != old.partition("t", 0)


def test_internal_flag_and_topic_id_count_as_change() -> None:
    old = view(topic("t", 1))
    assert merge(old, answer(topic("t", 1, internal=True))).snapshot.topics["t"].internal
    idless = view(topic("t", 1, topic_id=ZERO_TOPIC_ID))
    assert merge(idless, answer(topic("t", 1))).snapshot.topic_id("t") == TOPIC_ID


def test_answer_without_topic_ids_keeps_the_known_id() -> None:
    old = view(topic("t", 1))
    kept = merge(old, answer(topic("t", 1, topic_id=ZERO_TOPIC_ID)), refused_ids=["other"])
    assert kept.snapshot.topics["t"] is old.topics["t"]


def test_answer_without_topic_ids_removes_an_id_that_a_broker_refused() -> None:
    """The cached partitions may be those of a deleted topic, so they must be replaced, even by
    lower epochs."""
    old = view(topic("t", [partition(0, 1, 5), partition(1, 1, 5)]))
    without = answer(topic("t", [partition(0, 2, 0)], topic_id=ZERO_TOPIC_ID))
    merged = merge(old, without, refused_ids=["t"])
    assert merged.snapshot.topic_id("t") == ZERO_TOPIC_ID
    assert merged.snapshot.partition_count("t") == 1
    assert merged.snapshot.leader_of(T0) == 2
    assert not merged.stale
    assert merge(merged.snapshot, answer(topic("t", 1))).snapshot.topic_id("t") == TOPIC_ID


def test_refused_id_that_the_answer_confirms_is_kept() -> None:
    old = view(topic("t", [partition(0, 1, 5)]))
    lower = answer(topic("t", [partition(0, 2, 4)]))
    assert merge(old, lower, refused_ids=["t"]).snapshot.topics["t"] is old.topics["t"]


def test_topics_not_retained_are_not_kept_and_not_answered() -> None:
    old = view(topic("gone", 1), topic("t", 1))
    merged = merge(old, answer(topic("t", 1), topic("odd", 1)), retain=lambda name: name == "t")
    assert set(merged.snapshot.topics) == {"t"}
    assert merged.answered == {"t": 0}


def test_topic_without_a_name_is_ignored() -> None:
    assert merge(ClusterSnapshot(), answer(topic(None, 1))).answered == {}


# -- full and partial ---------------------------------------------------------------------------


def test_partial_answer_keeps_topics_it_was_not_asked_about() -> None:
    old = view(topic("t", 2), topic("u", 1))
    merged = merge(old, answer(topic("new", 1)), partial=True, asked={"new"}, misses={"t": 2})
    assert set(merged.snapshot.topics) == {"t", "u", "new"}
    assert merged.snapshot.topics["t"] is old.topics["t"]
    assert merged.answered == {"new": 0}
    assert merged.misses == {"t": 2}


def test_partial_answer_drops_topics_no_longer_in_use() -> None:
    old = view(topic("t", 1), topic("u", 1))
    merged = merge(old, answer(topic("u", 1)), partial=True, retain=lambda name: name == "u")
    assert set(merged.snapshot.topics) == {"u"}


def test_partial_answer_keeps_refusals_of_other_topics() -> None:
    old = view(topic("bad", 0, error=17), topic("no", 0, error=29))
    merged = merge(old, answer(topic("t", 1)), partial=True)
    assert merged.snapshot.invalid_topics == {"bad"}
    assert merged.snapshot.unauthorized_topics == {"no"}
    cleared = merge(old, answer(topic("bad", 1), topic("no", 1)), partial=True)
    assert not cleared.snapshot.invalid_topics
    assert not cleared.snapshot.unauthorized_topics


def test_full_answer_forgets_refusals_it_does_not_repeat() -> None:
    old = view(topic("bad", 0, error=17), topic("no", 0, error=29))
    snapshot = merge(old, answer()).snapshot
    assert not snapshot.invalid_topics
    assert not snapshot.unauthorized_topics


# -- topic errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "field"), [(17, "invalid_topics"), (29, "unauthorized_topics")])
def test_refusal_of_a_topic_is_a_verdict_about_that_topic_only(code: int, field: str) -> None:
    old = view(topic("t", 1), topic("u", 1))
    merged = merge(old, answer(topic("t", 0, error=code), topic("u", 1)))
    assert merged.snapshot.partition_count("t") is None
    assert merged.snapshot.partition_count("u") == 1
    assert getattr(merged.snapshot, field) == {"t"}
    assert merged.answered == {"t": code, "u": 0}
    assert not merged.stale


@pytest.mark.parametrize("code", [3, 5, 6, 9, 72, 100])
def test_stale_metadata_error_of_a_topic_asks_for_another_answer(code: int) -> None:
    merged = merge(ClusterSnapshot(), answer(topic("t", 0, error=code)))
    assert merged.stale
    assert merged.answered == {"t": code}
    assert merged.snapshot.partition_count("t") is None


@pytest.mark.parametrize("code", [-1, 38, 44, 4711])
def test_other_error_of_a_topic_is_kept_without_asking_again(code: int) -> None:
    merged = merge(ClusterSnapshot(), answer(topic("t", 0, error=code)))
    assert not merged.stale
    assert merged.answered == {"t": code}


def repeat(old: ClusterSnapshot, response: MetadataResponse, times: int) -> Merged:
    merged = Merged(old)
    for _ in range(times):
        merged = merge(merged.snapshot, response, misses=merged.misses, asked=["t"])
    return merged


@pytest.mark.parametrize(
    "response",
    [
        answer(topic("t", 0, error=3)),
        answer(topic("t", 0, error=5)),
        answer(topic("t", 0)),
        answer(),
    ],
    ids=["unknown", "no-leader", "zero-partitions-F55", "omitted"],
)
def test_known_topic_is_forgotten_only_after_repeated_answers_without_it(
    response: MetadataResponse, caplog: pytest.LogCaptureFixture
) -> None:
    old = view(topic("t", 2))
    kept = repeat(old, response, MISSES_BEFORE_FORGETTING - 1)
    assert kept.snapshot.topics["t"] is old.topics["t"]
    assert kept.stale
    assert kept.answered["t"] != 0
    assert "is gone" not in caplog.text
    with caplog.at_level(logging.WARNING):
        gone = merge(kept.snapshot, response, misses=kept.misses, asked=["t"])
        gone = merge(gone.snapshot, response, misses=gone.misses, asked=["t"])
    assert gone.snapshot.partition_count("t") is None
    assert caplog.text.count("is gone") == 1


def test_known_topic_omitted_by_a_full_answer_counts_as_miss() -> None:
    old = view(topic("t", 2))
    merged = merge(old, answer())
    assert merged.snapshot.topics["t"] is old.topics["t"]
    assert merged.misses == {"t": 1}
    assert merged.stale


def test_good_answer_starts_the_count_of_misses_again() -> None:
    old = view(topic("t", 2))
    kept = repeat(old, answer(topic("t", 0, error=3)), MISSES_BEFORE_FORGETTING - 1)
    good = merge(kept.snapshot, answer(topic("t", 2)), misses=kept.misses)
    assert not good.misses
    assert not good.stale


def test_asked_topic_omitted_by_a_partial_answer_counts_as_unknown() -> None:
    merged = merge(ClusterSnapshot(), answer(), partial=True, asked=["t"])
    assert merged.answered == {"t": Code.UNKNOWN_TOPIC_OR_PARTITION}
    assert merged.stale
    ignored = merge(
        ClusterSnapshot(), answer(), partial=True, asked=["t"], retain=lambda name: False
    )
    assert not ignored.answered


# -- partitions ---------------------------------------------------------------------------------


def test_partition_omitted_once_is_kept_F19() -> None:
    old = view(topic("t", 3))
    response = answer(topic("t", [partition(0), partition(2)]))
    merged = merge(old, response)
    assert merged.snapshot.topics["t"] is old.topics["t"]
    assert merged.stale
    assert merged.misses == {"t": 1}


def test_partitions_omitted_at_the_end_are_given_up_when_persistent_F19() -> None:
    old = view(topic("t", 3))
    response = answer(topic("t", 2))
    kept = repeat(old, response, MISSES_BEFORE_FORGETTING - 1)
    assert kept.snapshot.partition_count("t") == 3
    shrunk = merge(kept.snapshot, response, misses=kept.misses)
    assert shrunk.snapshot.partition_count("t") == 2
    settled = merge(shrunk.snapshot, response, misses=shrunk.misses)
    assert not settled.stale
    assert not settled.misses


def test_partition_missing_in_the_middle_of_a_new_topic_has_no_leader() -> None:
    merged = merge(ClusterSnapshot(), answer(topic("t", [partition(0), partition(2)])))
    info = merged.snapshot.partition("t", 1)
    assert info is not None
    assert info.leader is None
    assert info.error == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert merged.snapshot.available_partitions("t") == (0, 2)
    assert merged.stale


def test_partition_expansion_is_taken_over_F53() -> None:
    merged = merge(view(topic("t", 2)), answer(topic("t", 5)))
    assert merged.snapshot.partition_count("t") == 5
    assert not merged.stale


def test_partition_that_was_known_is_taken_from_an_answer_with_few_others() -> None:
    old = view(topic("t", 200))
    merged = merge(old, answer(topic("t", [partition(199, leader=2)])), asked=["t"])
    info = merged.snapshot.partition("t", 199)
    assert info is not None
    assert info.leader == 2
    assert merged.snapshot.partition_count("t") == 200


@pytest.mark.parametrize("index", [-1, 1000, 2**31 - 1])
def test_partition_index_without_sense_is_ignored(index: int) -> None:
    merged = merge(ClusterSnapshot(), answer(topic("t", [partition(0), partition(index)])))
    assert merged.snapshot.partition_count("t") == 1
    assert merged.stale


def test_topic_with_senseless_partitions_only_is_no_verdict() -> None:
    old = view(topic("t", 1))
    merged = merge(old, answer(topic("t", [partition(-5)])))
    assert merged.snapshot.topics["t"] is old.topics["t"]
    assert merged.answered == {"t": Code.UNKNOWN_TOPIC_OR_PARTITION}


@pytest.mark.parametrize("code", [5, 6, 9, 72])
def test_stale_metadata_error_of_a_partition_asks_again_but_counts(code: int) -> None:
    merged = merge(ClusterSnapshot(), answer(topic("t", [partition(0, -1, 9, error=code)])))
    info = merged.snapshot.partition("t", 0)
    assert info is not None
    assert (info.leader, info.leader_epoch, info.error) == (None, 9, code)
    assert merged.stale
    assert merged.answered == {"t": 0}


def test_leader_not_among_the_brokers_is_no_leader_F57() -> None:
    merged = merge(ClusterSnapshot(), answer(topic("t", [partition(0, 7)]), brokers=[1]))
    assert merged.snapshot.leader_of(T0) is None
    assert merged.stale
    healed = merge(merged.snapshot, answer(topic("t", [partition(0, 7)]), brokers=[1, 7]))
    assert healed.snapshot.leader_of(T0) == 7
    assert not healed.stale


def test_partition_without_leader_and_error_does_not_ask_again() -> None:
    assert not merge(ClusterSnapshot(), answer(topic("t", [partition(0, -1)]))).stale


# -- epochs and ids -----------------------------------------------------------------------------


def test_older_leader_epoch_does_not_replace_a_newer_one_F56() -> None:
    old = view(topic("t", [partition(0, 1, 5)]))
    lower = answer(topic("t", [partition(0, 2, 4)]))
    merged = Merged(old)
    for _ in range(3 * MISSES_BEFORE_FORGETTING):
        merged = merge(merged.snapshot, lower, lower_epochs=merged.lower_epochs)
        assert merged.snapshot.partition("t", 0) is old.partition("t", 0)
        assert merged.lower_epochs == {}, "the same topic by its id: its epochs only grow"


def test_leader_without_an_epoch_is_taken_as_told() -> None:
    old = view(topic("t", [partition(0, 1, 5)]))
    merged = merge(old, answer(topic("t", [partition(0, 2, -1)])))
    assert merged.snapshot.leader_of(T0) == 2
    assert merged.snapshot.leader_epoch_of(T0) == -1
    again = merge(merged.snapshot, answer(topic("t", [partition(0, 1, 0)])))
    assert again.snapshot.leader_of(T0) == 1
    assert again.snapshot.leader_epoch_of(T0) == 0


@pytest.mark.parametrize("known_id", [ZERO_TOPIC_ID, TOPIC_ID], ids=["never-an-id", "id-before"])
def test_lower_epochs_without_a_topic_id_are_believed_in_answers_in_a_row(
    caplog: pytest.LogCaptureFixture, known_id: bytes
) -> None:
    before = topic("t", [partition(0, 1, 5), partition(1, 1, 5)], topic_id=known_id)
    old = merged = merge(ClusterSnapshot(), answer(before))
    lower = answer(topic("t", [partition(0, 2, 0), partition(1, 1, 5)], topic_id=ZERO_TOPIC_ID))
    other = answer(topic("u", 1))
    for count in range(1, MISSES_BEFORE_FORGETTING):
        merged = merge(merged.snapshot, lower, lower_epochs=merged.lower_epochs)
        assert merged.snapshot.topics["t"] is old.snapshot.topics["t"]
        assert merged.lower_epochs == {T0: count}
        # A response that is not about the topic neither counts nor resets the count.
        merged = merge(
            merged.snapshot, other, partial=True, asked=["u"], lower_epochs=merged.lower_epochs
        )
        assert merged.lower_epochs == {T0: count}
    assert caplog.text == ""
    merged = merge(merged.snapshot, lower, lower_epochs=merged.lower_epochs)
    assert merged.snapshot.leader_of(T0) == 2
    assert merged.snapshot.leader_epoch_of(T0) == 0
    assert merged.snapshot.leader_of(T1) == 1
    assert merged.lower_epochs == {}
    assert "t-0: leader epoch 0 instead of 5" in caplog.text


def test_lower_epochs_are_not_counted_while_nothing_proves_the_view_wrong() -> None:
    before = topic("t", [partition(0, 1, 5)], topic_id=ZERO_TOPIC_ID)
    old = merged = merge(ClusterSnapshot(), answer(before))
    lower = answer(topic("t", [partition(0, 2, 4)], topic_id=ZERO_TOPIC_ID))
    merged = merge(merged.snapshot, lower)
    for _ in range(2 * MISSES_BEFORE_FORGETTING):
        merged = merge(merged.snapshot, lower, lower_epochs=merged.lower_epochs, complained=False)
        assert merged.snapshot.topics["t"] is old.snapshot.topics["t"]
        assert merged.lower_epochs == {T0: 1}
    for _ in range(MISSES_BEFORE_FORGETTING - 1):
        assert merged.snapshot.leader_of(T0) == 1
        merged = merge(merged.snapshot, lower, lower_epochs=merged.lower_epochs)
    assert merged.snapshot.leader_of(T0) == 2


@pytest.mark.parametrize("epoch", [5, 6, -1])
def test_epoch_that_is_not_lower_starts_the_count_of_lower_ones_again(epoch: int) -> None:
    old = view(topic("t", [partition(0, 1, 5)]))
    merged = merge(old, answer(topic("t", [partition(0, 1, epoch)])), lower_epochs={T0: 4})
    assert merged.snapshot.leader_epoch_of(T0) == epoch
    assert merged.lower_epochs == {}


@pytest.mark.parametrize("topic_id", [ZERO_TOPIC_ID, TOPIC_ID], ids=["no-id", "id"])
def test_kept_leader_is_contradicted_since_the_first_response_with_a_lower_epoch(
    topic_id: bytes,
) -> None:
    before = topic("t", [partition(0, 1, 5), partition(1, 1, 5)], topic_id=topic_id)
    lower = topic("t", [partition(0, 2, 4), partition(1, 1, 5)], topic_id=topic_id)
    merged = merge(ClusterSnapshot(), answer(before))
    since = merged.snapshot.generation
    assert merged.contradicted == {}
    for _ in range(3):
        merged = merge(merged.snapshot, answer(lower), contradicted=merged.contradicted)
        assert merged.contradicted == {T0: since}
    merged = merge(merged.snapshot, answer(before), contradicted=merged.contradicted)
    assert merged.contradicted == {}


def test_count_of_lower_epochs_goes_with_its_topic() -> None:
    old = view(topic("t", 1), topic("u", 1))
    merged = merge(
        old,
        answer(topic("u", 1)),
        partial=True,
        lower_epochs={T0: 4},
        retain=lambda name: name == "u",
    )
    assert merged.lower_epochs == {}


@pytest.mark.parametrize("epoch", [5, 6])
def test_same_or_newer_leader_epoch_replaces(epoch: int) -> None:
    merged = merge(
        view(topic("t", [partition(0, 1, 5)])), answer(topic("t", [partition(0, 2, epoch)]))
    )
    assert merged.snapshot.leader_of(T0) == 2
    assert merged.snapshot.leader_epoch_of(T0) == epoch


def test_kept_newer_view_whose_leader_vanished_has_no_leader() -> None:
    old = view(topic("t", [partition(0, 2, 5)]))
    merged = merge(old, answer(topic("t", [partition(0, 1, 4)]), brokers=[1]))
    assert merged.snapshot.leader_of(T0) is None
    assert merged.snapshot.leader_epoch_of(T0) == 5
    assert merged.stale


def test_epochs_of_old_versions_do_not_count() -> None:
    old = view(topic("t", [partition(0, 1, 5)]))
    merged = merge(old, answer(topic("t", [partition(0, 2, 4)])), reliable_epochs=False)
    assert merged.snapshot.leader_of(T0) == 2
    assert merged.snapshot.leader_epoch_of(T0) == -1


def test_changed_topic_id_resets_epochs_and_partitions_F52(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = view(topic("t", [partition(0, 1, 5), partition(1, 1, 5)]))
    with caplog.at_level(logging.WARNING):
        merged = merge(old, answer(topic("t", [partition(0, 2, 0)], topic_id=OTHER_ID)))
    assert merged.snapshot.topic_id("t") == OTHER_ID
    assert merged.snapshot.partition_count("t") == 1
    assert merged.snapshot.leader_of(T0) == 2
    assert merged.snapshot.leader_epoch_of(T0) == 0
    assert not merged.stale
    assert "its id changed" in caplog.text


def test_first_topic_id_overrides_epochs_of_a_topic_without_id() -> None:
    old = view(topic("t", [partition(0, 1, 5)], topic_id=ZERO_TOPIC_ID))
    merged = merge(old, answer(topic("t", [partition(0, 2, 0)])))
    assert merged.snapshot.leader_of(T0) == 2


def test_answer_without_topic_id_keeps_the_known_one() -> None:
    old = view(topic("t", [partition(0, 1, 5)]))
    merged = merge(old, answer(topic("t", [partition(0, 2, 4)], topic_id=ZERO_TOPIC_ID)))
    assert merged.snapshot.topic_id("t") == TOPIC_ID
    assert merged.snapshot.leader_of(T0) == 1


def test_changed_cluster_id_is_logged_and_resets_epochs_F58(
    caplog: pytest.LogCaptureFixture,
) -> None:
    old = view(topic("t", [partition(0, 1, 5)], topic_id=ZERO_TOPIC_ID))
    response = answer(
        topic("t", [partition(0, 2, 0)], topic_id=ZERO_TOPIC_ID), cluster_id="another"
    )
    with caplog.at_level(logging.ERROR):
        merged = merge(old, response)
    assert merged.snapshot.cluster_id == "another"
    assert merged.snapshot.leader_of(T0) == 2
    assert "changed from cluster to another" in caplog.text


def test_missing_cluster_id_keeps_the_known_one() -> None:
    assert merge(view(), answer(cluster_id=None)).snapshot.cluster_id == "cluster"


def test_partial_answer_takes_leaders_that_vanished_from_other_topics() -> None:
    old = view(topic("t", [partition(0, 1), partition(1, 2)]), topic("u", [partition(0, 1)]))
    merged = merge(old, answer(topic("new", 1), brokers=[1]), partial=True)
    assert merged.snapshot.leader_of(T0) == 1
    assert merged.snapshot.leader_of(T1) is None
    assert merged.snapshot.topics["u"] is old.topics["u"]
    assert merged.stale


# -- rebootstrap and leader hints ---------------------------------------------------------------


def test_without_leaders_keeps_topics_but_nobody_leads() -> None:
    old = view(topic("t", 2))
    new = without_leaders(old, [Node(-1, "boot", 1)])
    assert new.generation == old.generation + 1
    assert list(new.nodes) == [-1]
    assert new.partition_count("t") == 2
    assert new.topic_id("t") == TOPIC_ID
    assert new.available_partitions("t") == ()
    assert new.leader_epoch_of(T0) == -1
    assert new.cluster_id == "cluster"
    back = merge(new, answer(topic("t", [partition(0, 2, 0), partition(1, 2, 0)])))
    assert back.snapshot.leader_of(T0) == 2


def test_leader_hint_with_newer_epoch_is_applied_at_once() -> None:
    old = view(topic("t", 2), topic("u", 1))
    new, accepted = with_leaders(old, {T0: (3, 6), T1: (2, 7)}, [Node(3, "host-3", 9)])
    assert accepted == {T0, T1}
    assert new.generation == old.generation + 1
    assert new.nodes[3] == Node(3, "host-3", 9)
    assert (new.leader_of(T0), new.leader_epoch_of(T0)) == (3, 6)
    assert new.leader_of(T1) == 2
    assert new.topics["u"] is old.topics["u"]
    assert old.leader_of(T0) == 1


@pytest.mark.parametrize(
    "hint",
    [
        {T0: (2, 5)},
        {T0: (2, 4)},
        {T0: (2, -1)},
        {T0: (9, 6)},
        {T0: (-1, 6)},
        {TopicPartition("t", 2): (2, 6)},
        {TopicPartition("x", 0): (2, 6)},
        {},
    ],
    ids=["same", "older", "none", "no-address", "no-leader", "no-partition", "no-topic", "empty"],
)
def test_leader_hint_that_is_no_news_changes_nothing(
    hint: dict[TopicPartition, tuple[int, int]],
) -> None:
    old = view(topic("t", 2))
    new, accepted = with_leaders(old, hint, [])
    assert new is old
    assert not accepted


def test_leader_hint_clears_the_error_of_its_partition() -> None:
    old = view(topic("t", [partition(0, -1, 5, error=5)]))
    new, _ = with_leaders(old, {T0: (2, 6)}, [])
    info = new.partition("t", 0)
    assert info is not None
    assert info.error == 0
    assert new.available_partitions("t") == (0,)
