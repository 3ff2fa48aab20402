"""A topic that is deleted and created anew: epochs begin again, and nothing waits for long."""

from __future__ import annotations

from aiokprod.errors import Code
from tests.engine.engine_harness import EngineHarness, offset_of, virtual


@virtual
async def test_backoff_topic_created_anew_ends_when_its_leader_is_known() -> None:
    """The backoff of the metadata and that of the batch must not add up: two seconds are all that
    a user should wait once the topic can be written again."""
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
