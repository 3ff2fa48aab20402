from __future__ import annotations

import dataclasses

import pytest

from aiokprod.cluster import ZERO_TOPIC_ID, ClusterSnapshot, Node, PartitionInfo, TopicInfo
from aiokprod.records import TopicPartition


def topic(name: str, leaders: list[int | None], topic_id: bytes = ZERO_TOPIC_ID) -> TopicInfo:
    partitions = tuple(
        PartitionInfo(name, index, leader, leader_epoch=index)
        for index, leader in enumerate(leaders)
    )
    return TopicInfo(name, topic_id, partitions)


SNAPSHOT = ClusterSnapshot(
    generation=3,
    cluster_id="c",
    nodes={1: Node(1, "a", 9), 2: Node(2, "b", 9, "rack")},
    controller_id=1,
    topics={
        "t": topic("t", [1, None, 2, 1], b"i" * 16),
        "u": topic("u", [2]),
        "v": topic("v", [None]),
    },
)


def test_snapshot_answers_about_known_topics() -> None:
    assert SNAPSHOT.partition_count("t") == 4
    assert SNAPSHOT.available_partitions("t") == (0, 2, 3)
    assert SNAPSHOT.available_partitions("v") == ()
    assert SNAPSHOT.leader_of(TopicPartition("t", 2)) == 2
    assert SNAPSHOT.leader_of(TopicPartition("t", 1)) is None
    assert SNAPSHOT.leader_epoch_of(TopicPartition("t", 2)) == 2
    assert SNAPSHOT.topic_id("t") == b"i" * 16
    info = SNAPSHOT.partition("t", 3)
    assert info is not None
    assert info.topic_partition == TopicPartition("t", 3)


@pytest.mark.parametrize("partition", [-1, 4, 2**31])
def test_snapshot_partition_out_of_range_is_unknown(partition: int) -> None:
    assert SNAPSHOT.partition("t", partition) is None
    assert SNAPSHOT.leader_of(TopicPartition("t", partition)) is None
    assert SNAPSHOT.leader_epoch_of(TopicPartition("t", partition)) == -1


def test_snapshot_unknown_topic_is_none_never_zero() -> None:
    assert SNAPSHOT.partition_count("x") is None
    assert SNAPSHOT.available_partitions("x") == ()
    assert SNAPSHOT.leader_of(TopicPartition("x", 0)) is None
    assert SNAPSHOT.topic_id("x") == ZERO_TOPIC_ID


def test_snapshot_is_frozen_and_compared_by_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SNAPSHOT.generation = 4  # type: ignore[misc]
    assert dataclasses.replace(SNAPSHOT) == SNAPSHOT
    assert ClusterSnapshot() == ClusterSnapshot()


def test_node_reads_as_address_and_id() -> None:
    assert str(Node(-1, "host", 9092)) == "host:9092 (id -1)"


def test_snapshot_cannot_be_changed_by_those_who_read_it() -> None:
    nodes = {1: Node(1, "h", 1)}
    snapshot = ClusterSnapshot(nodes=nodes, topics={})
    for mapping in (snapshot.nodes, snapshot.topics):
        with pytest.raises(TypeError):
            mapping["x"] = 1  # type: ignore[index]
    assert snapshot.nodes == nodes
    # The next snapshot shares an unchanged view instead of copying it.
    assert ClusterSnapshot(nodes=snapshot.nodes).nodes is snapshot.nodes
