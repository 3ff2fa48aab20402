"""One more fault after recovery, judged by the time that the producer takes.

In the middle of many faults nearly everything excuses a delay. Here one thing is wrong and all else
is well, so that a wait of some seconds too many is a defect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from aiokprod.errors import KafkaError
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.profiles import PRODUCE
from aiokprod.testing.fake_cluster.topology import Partition
from tests.scenarios.scenario_helpers import now, runtime_of
from tests.simulation.oracle import Violation
from tests.simulation.seeds import PARTITIONS, TOPICS

if TYPE_CHECKING:
    from tests.simulation.run import Simulation

SILENCE_S = 2.0
"""Until a silent broker makes the producer ask for metadata, and for their answer."""

LARGE = 8_000
"""Bytes of a record of which a few dozen fill a broker's share of the memory."""
MOST_LARGE = 200

FAR_S = 3.0
"""How long the answers of a far broker are in flight."""
FAR_PAUSE_S = 1.15
"""Between its records: a few of them are in flight at any time, and fewer than the limit."""
LOAD_S = 4.0
ANSWER_S = FAR_S + 1.0
"""Within which the far broker, asked at once, has answered a Metadata request."""

ON_THE_WIRE_S = 0.4
"""How long a batch is in flight whose answer is lost then."""

OUTAGE_S = 40.0
GROWTH = 6
"""Failed connects in a row after which reconnect_backoff_max_ms (1 s) limits the backoff."""
FEW_GAPS = 25
"""Below this number of backoffs their jitter is not judged: half of them last 1 s."""


class LastFault:
    """The last fault of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.cluster = simulation.cluster
        self.producer = simulation.producer
        self.load = simulation.load

    async def strike(self) -> None:
        """Cause the fault, check the producer, and end the fault. Records in flight are left to the
        simulation.

        Raises:
            Violation: the producer took too long.
        """
        await getattr(self, self.simulation.plan.last_fault)()

    # -- a waiting caller -----------------------------------------------------------------------

    async def frozen_leader(self) -> None:
        """A broker freezes and holds its share of the memory. A caller waits for room there, then
        its partition moves to another broker: the caller is served by that one."""
        staying = self.cluster.topics[TOPICS[0]].partitions[0]
        frozen = staying.leader
        moving = self._moving_from(frozen, staying)
        if frozen is None or moving is None:
            return
        for partition in (staying, moving):
            await self.simulation.fresh(partition.topic, partition.index)
        if len(runtime_of(self.producer).metadata.snapshot.nodes) < 2:
            return  # a broker was down at the last metadata request: one may use all memory
        if self._seems_older(moving):
            return  # it would learn of the new leader only from requests that the old one refuses
        self.cluster.pause(frozen)
        for _ in range(MOST_LARGE):
            self.load.submit_later(staying.topic, staying.index, LARGE)
            await asyncio.sleep(0.001)
            if self.producer.metrics()["waiting_sends"]:
                break
        caller = self.load.submit_later(moving.topic, moving.index)
        await asyncio.sleep(0.5)
        self.cluster.move_leader(moving.topic, moving.index)
        # Records of the application's hooks are queued before it, one per batch, and the new leader
        # processes them one by one.
        before = sum(one.where != (staying.topic, staying.index) for one in self.load.pending())
        slow_s = before * self.simulation.plan.cluster["replication_s"]
        await asyncio.sleep(self.simulation.recovery_s() + SILENCE_S + slow_s)
        if caller.result is None:
            raise Violation(f"waits for a broker that does not lead its partition: {caller}")
        self.cluster.resume(frozen)

    def _seems_older(self, partition: Partition) -> bool:
        """The producer knows a higher leader epoch than the next leader will have: that of a topic
        without an id, before it was created again. Metadata with a lower epoch are not believed, as
        in Java, as long as no request proves the known leader wrong, and a frozen one refuses none.
        """
        snapshot = runtime_of(self.producer).metadata.snapshot
        known = snapshot.partition(partition.topic, partition.index)
        return known is not None and known.leader_epoch > partition.leader_epoch + 1

    def _moving_from(self, leader: int | None, other: Partition) -> Partition | None:
        """Another partition of this leader that a second broker can lead; made so if need be."""
        able = [
            partition
            for topic in TOPICS
            for partition in self.cluster.topics[topic].partitions[:PARTITIONS]
            if partition is not other and leader in partition.isr and len(partition.isr) > 1
        ]
        for partition in able:
            if partition.leader == leader:
                return partition
        for partition in able:
            self.cluster.move_leader(partition.topic, partition.index, leader)
            return partition
        return None

    # -- metadata -------------------------------------------------------------------------------

    async def far_broker(self) -> None:
        """One broker answers after some seconds, the others cannot be connected any more. Metadata
        is requested from the one that answers, not after all others have been tried."""
        partition = self.cluster.topics[TOPICS[0]].partitions[0]
        assert partition.leader is not None, "everything has been healed"
        far = self.cluster.brokers[partition.leader]
        await self.simulation.fresh(partition.topic, partition.index)
        for link in self.cluster.network.links_to(far.host, far.port):
            link.down.latency_s = FAR_S
        for _ in range(int(LOAD_S / FAR_PAUSE_S)):
            self.load.submit_later(partition.topic, partition.index)
            await asyncio.sleep(FAR_PAUSE_S)
        others = [broker for broker in self.cluster.brokers.values() if broker is not far]
        for broker in others:
            self._cut_off(broker)
        self.cluster.create_topic("late", 1)
        asked_at = now()
        loading = asyncio.ensure_future(self._load(partition))
        try:
            await self.producer.partitions_for("late")
        except KafkaError as error:
            raise Violation(f"no metadata from the broker that answers: {error!r}") from error
        finally:
            loading.cancel()
        took = now() - asked_at
        for broker in others:
            self.cluster.network.hang(broker.host, broker.port, False)
        if took > ANSWER_S + 5 * self.simulation.plan.late_timers_s:
            raise Violation(f"metadata after {took} s, its only broker answers in {FAR_S} s")

    async def _load(self, partition: Partition) -> None:
        while True:
            self.load.submit_later(partition.topic, partition.index)
            await asyncio.sleep(FAR_PAUSE_S)

    def _cut_off(self, broker: FakeBroker) -> None:
        self.cluster.network.hang(broker.host, broker.port)
        for link in self.cluster.network.links_to(broker.host, broker.port):
            link.reset()

    # -- sequences ------------------------------------------------------------------------------

    async def recreated_topic(self) -> None:
        """A topic is deleted and created again with its leader, so that a producer that uses topic
        names continues. Then a broker appends a batch to the new log and its response is lost, with
        more batches after it. From the metadata the producer learns that the sequences have to
        restart, but it must not renumber a batch whose outcome is unknown."""
        topic = TOPICS[0]
        leader = self.cluster.topics[topic].partitions[0].leader
        await self.simulation.fresh(topic, 0)
        self.simulation.misfortunes.recreate_topic(topic)
        partition = self.cluster.topics[topic].partitions[0]
        if leader in partition.isr:
            partition.elect(leader)
        # The new log knows the producer after one record. The oracle accepts copies of records
        # submitted before that.
        await asyncio.sleep(ON_THE_WIRE_S)
        await self.simulation.fresh(topic, 0)
        await asyncio.sleep(ON_THE_WIRE_S)
        lost = dataclasses.replace(faults.answer_late(ON_THE_WIRE_S), cut_at=0)
        remove = self.cluster.control(PRODUCE, lost, times=1)
        for _ in range(4):
            self.load.submit_later(topic, 0)
            await asyncio.sleep(ON_THE_WIRE_S / 4)
        await asyncio.sleep(self.simulation.recovery_s())
        remove()

    # -- backoff --------------------------------------------------------------------------------

    async def refused_connections(self) -> None:
        """All connections are refused for a while. Backoffs at their maximum have jitter, so that
        the clients of a broker do not all reconnect at the same time."""
        network = self.cluster.network
        began = now()
        for broker in self.cluster.brokers.values():
            network.unlisten(broker.host, broker.port)
            for link in network.links_to(broker.host, broker.port):
                link.reset()
        while now() < began + OUTAGE_S:
            self.load.submit_later(TOPICS[0], 0)
            await asyncio.sleep(2.0)
        for broker in self.cluster.brokers.values():
            network.listen(broker.host, broker.port, broker.accept)
        gaps = list(self._grown_backoffs(began))
        if len(gaps) >= FEW_GAPS and min(gaps) >= 1.0:
            raise Violation(f"{len(gaps)} backoffs without jitter: {gaps[:5]}")

    def _grown_backoffs(self, since: float) -> Iterator[float]:
        """Seconds between connects to a broker after `GROWTH` refused ones."""
        dials: dict[tuple[str, int], list[float]] = defaultdict(list)
        for dial in self.cluster.network.dials:
            if dial.time >= since:
                dials[dial.address].append(dial.time)
        for times in dials.values():
            for before, after in itertools.pairwise(times[GROWTH:]):
                yield after - before
