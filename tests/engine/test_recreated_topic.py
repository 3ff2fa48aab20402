"""A topic that is deleted and created anew: epochs begin again, and nothing waits for long."""

from __future__ import annotations

from aiokprod.errors import Code
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
