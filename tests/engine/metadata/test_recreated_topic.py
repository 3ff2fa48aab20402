"""A topic that is deleted and recreated: epochs restart, and nothing waits for long."""

from __future__ import annotations

import pytest

from aiokprod._engine.metadata.merge import MISSES_BEFORE_FORGETTING
from aiokprod.errors import Code
from aiokprod.records import TopicPartition
from tests.engine.engine_harness import EngineHarness, offset_of, virtual


@virtual
async def test_backoff_topic_created_anew_ends_when_its_leader_is_known() -> None:
    """The backoffs of the metadata and of the batch must not add up: a user should wait at most two
    seconds once the topic can be written again."""
    harness = EngineHarness()
    for _ in range(5):
        harness.publish()
    delivery = harness.append(b"v")
    harness.step()
    harness.brokers.last.refuse(Code.UNKNOWN_TOPIC_ID)
    harness.move(0, None)
    harness.step()
    assert len(harness.brokers.produce) == 1
    harness.incarnations["t"] += 1
    harness.epoch = 0
    harness.move(0, 1)
    harness.step()
    assert len(harness.brokers.produce) == 2, "the batch waits out a backoff that has no object"
    harness.brokers.last.ack()
    assert offset_of(delivery) == 0


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("known_first", [True, False])
@virtual
async def test_backoff_topic_created_anew_ends_when_its_leader_has_a_lower_epoch(
    with_ids: bool, known_first: bool
) -> None:
    """Another broker leads the new topic, and the metadata never lacked a leader. `known_first`:
    the new metadata arrives before the old leader refuses the batch."""
    harness = EngineHarness(brokers=2, ids=with_ids)
    for _ in range(5):
        harness.publish()
    harness.move(0, 2)
    harness.append(b"v")
    harness.step()
    refused = harness.brokers.last
    if not known_first:
        refused.refuse(Code.NOT_LEADER_OR_FOLLOWER)
        harness.step()
    # A refused batch requests metadata: without topic ids, lower epochs are accepted after that.
    harness.metadata.request_update()
    harness.incarnations["t"] += 1
    for _ in range(1 if with_ids else MISSES_BEFORE_FORGETTING):
        harness.epoch = -1  # as in Kafka, the first epoch is 0
        harness.published.clear()
        harness.move(0, 1)
        harness.metadata.request_update()
    assert harness.metadata.snapshot.leader_of(TopicPartition("t", 0)) == 1
    if known_first:
        refused.refuse(Code.NOT_LEADER_OR_FOLLOWER)
    harness.step()
    assert [sent.node_id for sent in harness.brokers.waiting] == [1]
