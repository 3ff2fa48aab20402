"""The faults of the cluster. Each is a coroutine that returns when the cluster has recovered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.cluster import ChaosCluster
from tests.chaos.probe import Availability
from tests.chaos.spans import Span
from tests.integration.probe import until_serving

PARTITIONS = 6
METADATA_MAX_AGE_MS = 1_000
"""metadata.max.age.ms of producers that have to find added partitions."""


@dataclass
class Scene:
    """The cluster and the topic that a fault acts on, and the recorded effects.

    Attributes:
        outages: (from, to) of each network outage, instants of `time.monotonic()`, and the affected
            nodes.
        topic_made_at: when a deleted topic was recreated.
        grown_at: when each of the added partitions had its leader.
    """

    cluster: ChaosCluster
    topic: str
    probe: Availability
    turn: int
    outages: list[tuple[Span, set[int]]] = field(default_factory=list)
    topic_made_at: float | None = None
    grown_at: float | None = None

    @property
    def victim(self) -> int:
        """The affected node, another one in every run."""
        return 1 + self.turn % len(self.cluster.node_ids)

    def link(self, node: int | None = None, kind: str = "client") -> str:
        return f"{kind}-{node or self.victim}"

    def links(self) -> list[str]:
        return [self.link(node) for node in self.cluster.node_ids]

    async def whole(self, partitions: int = PARTITIONS) -> float:
        """Wait until every replica is in sync. Return the instant."""
        in_sync = len(self.cluster.node_ids)
        return await until_serving(self.cluster, self.topic, in_sync=in_sync, partitions=partitions)

    @asynccontextmanager
    async def weather(self, *links: str, dead: bool = False, **weather: Any) -> AsyncIterator[None]:
        """Disturb these links for a while. `dead`: no data gets through that a client can use."""
        network = self.cluster.network
        began = time.monotonic()
        network.set(*links, **weather)
        try:
            yield
        finally:
            network.heal(*links)
            if dead:
                nodes = {int(link.rsplit("-", 1)[1]) for link in links}
                self.outages.append(((began, time.monotonic()), nodes))


Fault = Callable[[Scene], Awaitable[None]]


@dataclass(frozen=True)
class Entry:
    """A fault of the catalogue.

    Attributes:
        text: description for the report.
        play: causes the fault.
        network: clients connect through the proxy.
        replicas: brokers fetch from each other through the proxy.
        alone: cannot share its topic with other faults.
        settings: producer settings in addition to the common ones.
    """

    text: str
    play: Fault
    network: bool = False
    replicas: bool = False
    alone: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


# -- processes ----------------------------------------------------------------------------------


async def leader_killed(scene: Scene) -> None:
    await scene.cluster.kill(scene.victim)
    if len(scene.cluster.node_ids) > 1:  # otherwise no other broker can take over
        await until_serving(scene.cluster, scene.topic)
    await asyncio.sleep(1.0)
    await scene.cluster.start_node(scene.victim)
    await scene.whole()


async def leader_terminated(scene: Scene) -> None:
    await scene.cluster.restart(scene.victim)
    await scene.whole()


async def controller_killed(scene: Scene) -> None:
    node = await scene.cluster.controller()
    await scene.cluster.kill(node)
    await until_serving(scene.cluster, scene.topic)
    await scene.cluster.start_node(node)
    await scene.whole()


async def _frozen(scene: Scene, seconds: float) -> None:
    await scene.cluster.pause(scene.victim)
    scene.probe.excluded.add(scene.victim)
    await asyncio.sleep(seconds)
    await scene.cluster.resume(scene.victim)
    scene.probe.excluded.discard(scene.victim)
    await scene.whole()


async def leader_frozen(scene: Scene) -> None:
    await _frozen(scene, 12.0)


async def leader_hiccup(scene: Scene) -> None:
    await _frozen(scene, 3.0)


async def rolling_restart(scene: Scene) -> None:
    for node in scene.cluster.node_ids:
        await scene.cluster.restart(node)
        await scene.whole()


async def all_down(scene: Scene) -> None:
    await scene.cluster.kill_all()
    await asyncio.sleep(5.0)
    await scene.cluster.start_nodes(scene.cluster.node_ids)
    await scene.whole()


# -- topics -------------------------------------------------------------------------------------


def _turned(node_ids: tuple[int, ...], by: int) -> list[int]:
    by %= len(node_ids)
    return [*node_ids[by:], *node_ids[:by]]


async def leaders_moved(scene: Scene) -> None:
    nodes = scene.cluster.node_ids
    for turn in range(1, 6):
        await scene.cluster.reassign(
            scene.topic, {p: _turned(nodes, p + turn) for p in range(PARTITIONS)}
        )
        await scene.cluster.elect_preferred(scene.topic, range(PARTITIONS))
        await asyncio.sleep(0.5)
    await scene.whole()


async def replicas_reassigned(scene: Scene) -> None:
    """Move the leader of every partition permanently, then add a third replica again."""
    nodes = scene.cluster.node_ids
    for turn in (1, 2):
        pairs = {p: _turned(nodes, p + turn)[:2] for p in range(PARTITIONS)}
        await scene.cluster.reassign(scene.topic, pairs)
        await asyncio.sleep(0.5)
        everyone = {p: _turned(nodes, p + turn + 1) for p in range(PARTITIONS)}
        await scene.cluster.reassign(scene.topic, everyone)
    await scene.cluster.elect_preferred(scene.topic, range(PARTITIONS))
    await scene.whole()


async def topic_recreated(scene: Scene) -> None:
    await scene.cluster.delete_topic(scene.topic)
    await asyncio.sleep(1.0)
    scene.topic_made_at = time.monotonic()
    await scene.cluster.create_topic(scene.topic, PARTITIONS)
    await scene.whole()


async def partitions_added(scene: Scene) -> None:
    await scene.cluster.create_partitions(scene.topic, 2 * PARTITIONS)
    scene.grown_at = await scene.whole(2 * PARTITIONS)
    await asyncio.sleep(2.0)


# -- network ------------------------------------------------------------------------------------


async def slow_network(scene: Scene) -> None:
    async with scene.weather(*scene.links(), delay_s=0.05):
        await asyncio.sleep(6.0)


async def narrow_network(scene: Scene) -> None:
    async with scene.weather(*scene.links(), rate=1_250_000):
        await asyncio.sleep(6.0)


async def lossy_network(scene: Scene) -> None:
    async with scene.weather(*scene.links(), loss=0.05):
        await asyncio.sleep(6.0)


async def blackhole(scene: Scene) -> None:
    both = {"silent_to_broker": True, "silent_to_client": True}
    async with scene.weather(scene.link(), dead=True, **both):
        await asyncio.sleep(7.0)


async def answers_lost(scene: Scene) -> None:
    """Let requests arrive but no responses; then break the connections."""
    async with scene.weather(scene.link(), dead=True, silent_to_client=True):
        await asyncio.sleep(2.0)
        scene.cluster.network.reset(scene.link())
        await asyncio.sleep(2.0)
        scene.cluster.network.reset(scene.link())


async def client_cut_off(scene: Scene) -> None:
    both = {"silent_to_broker": True, "silent_to_client": True}
    async with scene.weather(*scene.links(), dead=True, **both):
        await asyncio.sleep(8.0)


async def resets(scene: Scene) -> None:
    """Reset every connection after at most 0.4 s, so that only some of the requests succeed."""
    async with scene.weather(*scene.links()):
        for _ in range(12):
            scene.cluster.network.reset(*scene.links())
            await asyncio.sleep(0.4)


async def cuts(scene: Scene) -> None:
    """Break connections at random positions of requests and responses."""
    async with scene.weather(*scene.links(), cut_after=600_000):
        await asyncio.sleep(5.0)


async def refused(scene: Scene) -> None:
    async with scene.weather(scene.link(), dead=True, refuse=True):
        scene.cluster.network.reset(scene.link())
        await asyncio.sleep(4.0)


async def replication_cut(scene: Scene) -> None:
    """Stop the followers of one leader from fetching: its in-sync set shrinks below the minimum."""
    both = {"silent_to_broker": True, "silent_to_client": True}
    async with scene.weather(scene.link(kind="replica"), **both):
        await asyncio.sleep(12.0)
    await scene.whole()


CATALOGUE: dict[str, Entry] = {
    "leader-killed": Entry("SIGKILL of a leader, later started again", leader_killed),
    "leader-terminated": Entry("SIGTERM of a leader, started again", leader_terminated),
    "controller-killed": Entry("SIGKILL of the active controller", controller_killed),
    "leader-frozen": Entry("SIGSTOP of a leader for 12 s, SIGCONT", leader_frozen),
    "leader-hiccup": Entry("SIGSTOP of a leader for 3 s, no fail-over", leader_hiccup),
    "rolling-restart": Entry("SIGTERM and start of every node in turn", rolling_restart),
    "all-down": Entry("SIGKILL of all nodes, started after 5 s", all_down),
    "leaders-moved": Entry("all leaders moved 5 times (reassign + elect)", leaders_moved),
    "replicas-reassigned": Entry("replicas taken away and given back, twice", replicas_reassigned),
    "topic-recreated": Entry("topic deleted, created again after 1 s", topic_recreated, alone=True),
    "partitions-added": Entry(
        "6 partitions become 12",
        partitions_added,
        alone=True,
        settings={"metadata_max_age_ms": METADATA_MAX_AGE_MS},
    ),
    "slow-network": Entry("50 ms each way for 6 s", slow_network, network=True),
    "narrow-network": Entry(
        "10 Mbit/s per broker and direction for 6 s",
        narrow_network,
        network=True,
    ),
    "lossy-network": Entry("5 % of chunks held up 0.2 to 0.8 s, 6 s", lossy_network, network=True),
    "blackhole": Entry("one broker unreachable for 7 s, no RST", blackhole, network=True),
    "answers-lost": Entry("half-open: answers lost for 4 s, two RSTs", answers_lost, network=True),
    "client-cut-off": Entry("all brokers unreachable for 8 s", client_cut_off, network=True),
    "resets": Entry("RST on all connections, 12 times in 5 s", resets, network=True),
    "cuts": Entry("connections cut mid-frame, everywhere, for 5 s", cuts, network=True),
    "refused": Entry("one broker resets and refuses for 4 s", refused, network=True),
    "replication-cut": Entry(
        "followers cannot fetch from one leader for 12 s", replication_cut, replicas=True
    ),
}
