"""One more fault after recovery, judged by the time that the producer takes.

Among many faults nearly every delay has an excuse. Here only one thing fails, so a wait that is a
few seconds too long is a defect.
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
"""Seconds until a silent broker makes the producer request metadata, including the response."""

LARGE = 8_000
"""Size of a record in bytes. A few dozen such records fill a broker's share of the memory."""
MOST_LARGE = 200

FAR_S = 3.0
"""Seconds that a response of the far broker is in flight."""
FAR_PAUSE_S = 1.15
"""Seconds between records to the far broker: a few records are always in flight, but fewer than the
limit."""
LOAD_S = 4.0
ANSWER_S = FAR_S + 1.0
"""Seconds within which the far broker has answered a Metadata request that is sent at once."""

ON_THE_WIRE_S = 0.4
"""Seconds that a batch is in flight before its response is lost."""

OUTAGE_S = 40.0
GROWTH = 6
"""Number of consecutive failed connects after which reconnect_backoff_max_ms (1 s) limits the
backoff."""
FEW_GAPS = 25
"""The jitter is judged only from this number of backoffs on: half of the backoffs last 1 s."""


class LastFault:
    """The last fault of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.cluster = simulation.cluster
        self.producer = simulation.producer
        self.load = simulation.load

    async def strike(self) -> None:
        """Cause the fault, check the producer, and end the fault. The simulation settles the
        records in flight.

        Raises:
            Violation: the producer took too long.
        """
        await getattr(self, self.simulation.plan.last_fault)()

    # -- a waiting caller -----------------------------------------------------------------------

    async def frozen_leader(self) -> None:
        """A broker freezes and holds its share of the memory. A caller waits for memory to send to
        one of its partitions. When the partition moves to another broker, the call must complete
        there."""
        staying = self.cluster.topics[TOPICS[0]].partitions[0]
        frozen = staying.leader
        moving = self._moving_from(frozen, staying)
        if frozen is None or moving is None:
            return
        for partition in (staying, moving):
            await self.simulation.fresh(partition.topic, partition.index)
        if len(runtime_of(self.producer).metadata.snapshot.nodes) < 2:
            return  # a broker was down at the last metadata request: one broker may use all memory
        if self._seems_older(moving):
            return  # the producer would ignore the new leader until the old one refuses a request
        self.cluster.pause(frozen)
        for _ in range(MOST_LARGE):
            self.load.submit_later(staying.topic, staying.index, LARGE)
            await asyncio.sleep(0.001)
            if self.producer.metrics()["waiting_sends"]:
                break
        caller = self.load.submit_later(moving.topic, moving.index)
        await asyncio.sleep(0.5)
        self.cluster.move_leader(moving.topic, moving.index)
        # Records of the application's hooks are queued before this record, one per batch, and the
        # new leader processes them one by one.
        before = sum(one.where != (staying.topic, staying.index) for one in self.load.pending())
        slow_s = before * self.simulation.plan.cluster["replication_s"]
        await asyncio.sleep(self.simulation.recovery_s() + SILENCE_S + slow_s)
        if caller.result is None:
            raise Violation(f"waits for a broker that does not lead its partition: {caller}")
        self.cluster.resume(frozen)

    def _seems_older(self, partition: Partition) -> bool:
        """Return True if the producer has a higher leader epoch than the next leader will get: the
        epoch of a topic without an id, from before it was recreated. Like Java, the producer
        ignores metadata with a lower epoch until a request shows that the cached leader is wrong. A
        frozen leader refuses no request."""
        snapshot = runtime_of(self.producer).metadata.snapshot
        known = snapshot.partition(partition.topic, partition.index)
        return known is not None and known.leader_epoch > partition.leader_epoch + 1

    def _moving_from(self, leader: int | None, other: Partition) -> Partition | None:
        """Return another partition of this leader that a second broker can lead, reassigned if
        necessary."""
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
        """One broker responds after some seconds; the others refuse new connections. The producer
        must request metadata from the responding broker without trying all others first."""
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
        """A topic is deleted and recreated with the same leader, so a producer that uses topic
        names continues. Then a broker appends a batch to the new log, and the response is lost
        while more batches follow. The metadata shows the producer that the sequences have to
        restart, but it must not renumber a batch in doubt."""
        topic = TOPICS[0]
        leader = self.cluster.topics[topic].partitions[0].leader
        await self.simulation.fresh(topic, 0)
        self.simulation.misfortunes.recreate_topic(topic)
        partition = self.cluster.topics[topic].partitions[0]
        if leader in partition.isr:
            partition.elect(leader)
        # The new log has state of the producer after one record. The oracle accepts copies of
        # records submitted before that.
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
        """All connections are refused for a while. Backoffs at their maximum must have jitter, so
        that the clients of a broker do not all reconnect at the same time."""
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
        """Yield the seconds between connects to a broker after `GROWTH` refused connects."""
        dials: dict[tuple[str, int], list[float]] = defaultdict(list)
        for dial in self.cluster.network.dials:
            if dial.time >= since:
                dials[dial.address].append(dial.time)
        for times in dials.values():
            for before, after in itertools.pairwise(times[GROWTH:]):
                yield after - before
