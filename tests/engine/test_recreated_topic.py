"""A topic that is deleted and created anew: epochs begin again, and nothing waits for long."""

from __future__ import annotations

import pytest

from aiokprod.engine.metadata_merge import MISSES_BEFORE_FORGETTING
from aiokprod.errors import Code
from aiokprod.records import TopicPartition
from tests.engine.world import World, offset_of, virtual


@virtual
async def test_backoff_topic_created_anew_ends_when_its_leader_is_known() -> None:
    """The backoff of the metadata and that of the batch must not add up: two seconds are all that
    a user should wait once the topic can be written again."""
    world = World()
    for _ in range(5):
        world.publish()
    delivery = world.append(b"v")
    world.step()
    world.brokers.last.refuse(Code.UNKNOWN_TOPIC_ID)
    world.move(0, None)
    world.step()
    assert len(world.brokers.produce) == 1
    world.incarnations["t"] += 1
    world.epoch = 0
    world.move(0, 1)
    world.step()
    assert len(world.brokers.produce) == 2, "the batch waits out a backoff that has no object"
    world.brokers.last.ack()
    assert offset_of(delivery) == 0


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("known_first", [True, False])
@virtual
async def test_backoff_topic_created_anew_ends_when_its_leader_has_a_lower_epoch(
    with_ids: bool, known_first: bool
) -> None:
    """Another broker leads the new topic, and its metadata never lacked a leader. `known_first`:
    they come before the old leader refuses the batch."""
    world = World(brokers=2, ids=with_ids)
    for _ in range(5):
        world.publish()
    world.move(0, 2)
    world.append(b"v")
    world.step()
    refused = world.brokers.last
    if not known_first:
        refused.refuse(Code.NOT_LEADER_OR_FOLLOWER)
        world.step()
    world.metadata.request_update()  # a complaint: without ids, lower epochs are believed after it
    world.incarnations["t"] += 1
    for _ in range(1 if with_ids else MISSES_BEFORE_FORGETTING):
        world.epoch = 0
        world.published.clear()
        world.move(0, 1)
        world.metadata.request_update()
    assert world.metadata.snapshot.leader_of(TopicPartition("t", 0)) == 1
    if known_first:
        refused.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    world.step()
    assert [sent.node_id for sent in world.brokers.waiting] == [1]
