"""The faults that all clients meet. Real brokers produce them where possible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.cluster import ChaosCluster
from tests.contrast.broker import ScriptedBroker
from tests.integration.probe import until_serving

NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 19, 20
OUT_OF_ORDER_SEQUENCE_NUMBER = 45


@dataclass
class Stage:
    """The cluster, topic and client process of a scenario. `tell` sends a line to the client's
    process.

    Attributes:
        topic_made_at: the time at which a deleted topic was created again.
    """

    topic: str
    tell: Callable[[str], None]
    cluster: ChaosCluster | None = None
    broker: ScriptedBroker | None = None
    topic_made_at: float | None = None

    @property
    def kafka(self) -> ChaosCluster:
        assert self.cluster is not None
        return self.cluster

    async def whole(self) -> float:
        """Wait until every replica is in sync, and return that time."""
        return await until_serving(self.kafka, self.topic, in_sync=len(self.kafka.node_ids))

    @property
    def fake(self) -> ScriptedBroker:
        assert self.broker is not None
        return self.broker


@dataclass(frozen=True)
class Scenario:
    """A fault and the load during which it occurs.

    Attributes:
        text: description for the report.
        real: True for real brokers; otherwise the scripted broker is used.
        network: True if clients reach the real brokers through the proxy.
        awaiting: True if a separate task sends and awaits each record.
        settings: settings of the clients.
        topic_config: configuration of the real topic.
    """

    text: str
    play: Callable[[Stage], Awaitable[None]]
    real: bool = True
    network: bool = False
    awaiting: bool = False
    rate: int = 1_000
    settings: dict[str, Any] = field(default_factory=dict)
    topic_config: dict[str, str] = field(default_factory=dict)


async def leader_killed(stage: Stage) -> None:
    """Kill the leader. With only one node no other leader is possible, so the node restarts after 2
    s."""
    node = await stage.kafka.leader_of(stage.topic, 0)
    await stage.kafka.kill(node)
    if len(stage.kafka.node_ids) > 1:
        await until_serving(stage.kafka, stage.topic)
    else:
        await asyncio.sleep(2.0)
    await stage.kafka.start_node(node)
    await stage.whole()


async def all_down(stage: Stage) -> None:
    await stage.kafka.kill_all()
    await asyncio.sleep(20.0)
    await stage.kafka.start_nodes(stage.kafka.node_ids)
    await stage.whole()


async def topic_recreated(stage: Stage) -> None:
    await stage.kafka.delete_topic(stage.topic)
    await asyncio.sleep(1.0)
    stage.topic_made_at = time.monotonic()
    await stage.kafka.create_topic(stage.topic, 3)
    await stage.whole()


async def leader_frozen(stage: Stage) -> None:
    node = await stage.kafka.leader_of(stage.topic, 0)
    await stage.kafka.pause(node)
    await asyncio.sleep(12.0)
    await stage.kafka.resume(node)
    await stage.whole()


async def answers_lost(stage: Stage) -> None:
    """Deliver requests to one leader but drop its responses, then reset the connection. Do so
    twice."""
    node = await stage.kafka.leader_of(stage.topic, 0)
    network, link = stage.kafka.network, f"client-{node}"
    for _ in range(2):
        network.set(link, silent_to_client=True)
        await asyncio.sleep(1.0)
        network.reset(link)
    network.heal(link)


async def not_enough_replicas(stage: Stage) -> None:
    stage.fake.fail(NOT_ENOUGH_REPLICAS, 5)
    await asyncio.sleep(6.0)


async def not_enough_replicas_after_append(stage: Stage) -> None:
    stage.fake.fail(NOT_ENOUGH_REPLICAS_AFTER_APPEND, 5, append=True)
    await asyncio.sleep(6.0)


async def out_of_order(stage: Stage) -> None:
    """Answer one batch with OUT_OF_ORDER_SEQUENCE_NUMBER without a cause, as seen after an outage
    (aiokafka #1017)."""
    stage.fake.fail(OUT_OF_ORDER_SEQUENCE_NUMBER, 1)
    await asyncio.sleep(4.0)


async def too_large(stage: Stage) -> None:
    """Only wait: batches of many small records exceed the topic's limit without any further
    fault."""
    await asyncio.sleep(3.0)


async def tasks_cancelled(stage: Stage) -> None:
    stage.fake.react("delay")
    for _ in range(5):
        await asyncio.sleep(0.5)
        stage.tell("cancel")
    stage.fake.heal()


async def everything_cancelled(stage: Stage) -> None:
    """Other code cancels every task of the loop except its own (aiokafka #1039)."""
    stage.tell("cancel-all")
    await asyncio.sleep(2.0)


async def timed_out_on_the_wire(stage: Stage) -> None:
    """Answer no written request for longer than the delivery timeout. Then the cluster recovers."""
    stage.fake.react("lose-answer")
    await asyncio.sleep(9.0)
    stage.fake.heal()
    await asyncio.sleep(4.0)


SCENARIOS: dict[str, Scenario] = {
    "leader-killed": Scenario("leader killed with SIGKILL under load", leader_killed),
    "all-down": Scenario("all brokers killed, back after 20 s", all_down),
    "topic-recreated": Scenario("topic deleted and created again", topic_recreated),
    "leader-frozen": Scenario(
        "leader stopped (SIGSTOP) for 12 s, request timeout 5 s",
        leader_frozen,
        settings={"request_s": 5.0},
    ),
    "answers-lost": Scenario("requests arrive, answers lost, RST", answers_lost, network=True),
    "too-large": Scenario(
        "batches larger than the topic's max.message.bytes, each record small",
        too_large,
        rate=5_000,
        settings={"batch_size": 65_536},
        topic_config={"max.message.bytes": "2000"},
    ),
    "not-enough-replicas": Scenario("NOT_ENOUGH_REPLICAS 5 times", not_enough_replicas, real=False),
    "not-enough-replicas-after-append": Scenario(
        "NOT_ENOUGH_REPLICAS_AFTER_APPEND 5 times (written!)",
        not_enough_replicas_after_append,
        real=False,
    ),
    "out-of-order": Scenario("OUT_OF_ORDER_SEQUENCE_NUMBER once", out_of_order, real=False),
    "timed-out": Scenario(
        "answers lost for longer than the delivery timeout (6 s)",
        timed_out_on_the_wire,
        real=False,
        settings={"request_s": 2.0, "delivery_s": 6.0},
    ),
    "tasks-cancelled": Scenario(
        "every second sending task cancelled, slow broker",
        tasks_cancelled,
        real=False,
        awaiting=True,
        rate=200,
    ),
    "everything-cancelled": Scenario(
        "a stranger cancels all tasks of the loop",
        everything_cancelled,
        real=False,
        awaiting=True,
        rate=200,
    ),
}
