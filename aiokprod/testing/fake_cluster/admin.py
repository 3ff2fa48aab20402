"""Operations on a fake cluster: topics, leaders, starting and stopping brokers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aiokprod.testing.fake_cluster.log import PartitionLog
from aiokprod.testing.fake_cluster.profiles import profile_named
from aiokprod.testing.fake_cluster.topology import (
    Partition,
    Topic,
    TopicConfig,
    grow_isr,
    new_topic_id,
    shrink_isr,
    spread,
)
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.pipes import world_at

if TYPE_CHECKING:
    from aiokprod.testing.fake_cluster.broker import FakeBroker


class FakeClusterAdmin:
    """Administrative operations and failures of a cluster. The base class of `FakeCluster`."""

    network: MemoryNetwork
    default_partitions: int
    default_replication: int
    failover_s: float
    controller_s: float
    replication_s: float
    strict_ledger: bool
    batches_remembered: int

    def __init__(self) -> None:
        self.brokers: dict[int, FakeBroker] = {}
        self.topics: dict[str, Topic] = {}
        self.deleted: list[Topic] = []
        self.controller_id = 1
        # Partitions that lost producer state: a producer may start there above sequence 0.
        self.forgotten: set[tuple[str, int]] = set()
        self.max_in_flight = 5
        self._topics_made = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return asyncio.get_running_loop()

    def unix_ms(self) -> int:
        """Return the time of the brokers' wall clock, Unix ms."""
        raise NotImplementedError  # abstract: `FakeCluster` has the clock

    # -- topics ---------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication: int | None = None,
        config: TopicConfig | None = None,
    ) -> Topic:
        """Create a topic. Leaders are assigned round robin, starting with the first broker."""
        self._topics_made += 1
        topic = Topic(name, new_topic_id(self._topics_made), config or TopicConfig())
        self.topics[name] = topic
        self._add_partitions(topic, partitions or self.default_partitions, replication)
        return topic

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records immediately. `deleted` keeps the topic for checks."""
        self.deleted.append(self.topics.pop(name))

    def recreate_topic(self, name: str, partitions: int | None = None) -> Topic:
        """Delete a topic and create it again with the same name, a new topic id and empty logs."""
        count = len(self.topics[name].partitions) if partitions is None else partitions
        config = self.topics[name].config
        self.delete_topic(name)
        return self.create_topic(name, count, config=config)

    def expand_topic(self, name: str, total: int) -> None:
        """Increase the number of partitions to `total`."""
        topic = self.topics[name]
        self._add_partitions(topic, total - len(topic.partitions), None)

    def _add_partitions(self, topic: Topic, count: int, replication: int | None) -> None:
        first = len(topic.partitions)
        factor = self.default_replication if replication is None else replication
        living = [
            broker.broker_id
            for broker in self.brokers.values()
            if broker.is_registered and broker.is_listed
        ]
        for step, replicas in enumerate(spread(living, count, factor, first)):
            topic.partitions.append(
                Partition(
                    topic=topic.name,
                    index=first + step,
                    replicas=replicas,
                    leader=replicas[0],
                    isr=replicas,
                    log=PartitionLog(
                        strict_ledger=self.strict_ledger, window=self.batches_remembered
                    ),
                )
            )

    def forget_producers(self, topic: str, partition: int, producer_id: int | None = None) -> None:
        """Drop a partition's producer state, as retention does."""
        self.forgotten.add((topic, partition))
        self.topics[topic].partitions[partition].log.ledger.forget(producer_id)

    def expire_producers(self, expiration_ms: int) -> list[Partition]:
        """Drop the state of producers that have sent nothing for `expiration_ms`, like a broker
        with this producer.id.expiration.ms. See `PartitionLog.expire_producers`.

        Returns:
            The partitions in which the state of a producer was dropped.
        """
        limit_ms = self.unix_ms() - expiration_ms
        expired = [p for p in self._partitions() if p.log.expire_producers(limit_ms)]
        self.forgotten.update((partition.topic, partition.index) for partition in expired)
        return expired

    def retain(self, topic: str, partition: int) -> None:
        """Drop all records of a partition and its producer state, as retention does."""
        self.forgotten.add((topic, partition))
        log = self.topics[topic].partitions[partition].log
        log.delete_before(log.end_offset)
        log.high_watermark = log.end_offset

    # -- leaders --------------------------------------------------------------------------------

    def leader_of(self, topic: str, partition: int) -> FakeBroker:
        """Return the leader of a partition. Raises LookupError if there is no leader."""
        leader = self.topics[topic].partitions[partition].leader
        if leader is None:
            raise LookupError(f"{topic}-{partition} has no leader")
        return self.brokers[leader]

    def move_leader(self, topic: str, partition: int, broker_id: int | None = None) -> int:
        """Move leadership to a broker, or to the next in-sync replica. Return the leader's id."""
        found = self.topics[topic].partitions[partition]
        if broker_id is None:
            others = [node for node in found.isr if node != found.leader]
            broker_id = others[0] if others else found.isr[0]
        found.log.high_watermark = found.log.end_offset
        found.elect(broker_id)
        return broker_id

    def move_controller(self) -> int:
        """Make another broker the controller. Return the controller's id."""
        others = [node for node in self._registered_ids() if node != self.controller_id]
        if others:
            self.controller_id = others[0]
        return self.controller_id

    def freeze_view(self, broker_id: int) -> None:
        """Stop metadata updates to a broker. Its Metadata responses keep the current leaders."""
        self.brokers[broker_id].stale_view = {
            (topic.topic_id, partition.index): (partition.leader, partition.leader_epoch)
            for topic in self.topics.values()
            for partition in topic.partitions
        }

    def refresh_views(self) -> None:
        """Resume metadata updates to all brokers."""
        for broker in self.brokers.values():
            broker.stale_view = None

    def renumber(self, ids: dict[int, int]) -> None:
        """Change broker ids. Addresses, connections and data stay the same. This models a gateway
        that renumbers its brokers, or a broker that lost its meta.properties.

        Args:
            ids: new id by old id. A new id may be in use only if the broker that has it also gets a
                new id.
        """
        renamed = {ids.get(one, one): broker for one, broker in self.brokers.items()}
        if len(renamed) != len(self.brokers):
            raise ValueError(f"{ids} gives two brokers of {list(self.brokers)} the same id")
        self.brokers.clear()
        self.brokers.update(sorted(renamed.items()))
        for number, broker in self.brokers.items():
            broker.broker_id = number
            if broker.stale_view is not None:
                broker.stale_view = {
                    where: (None if leader is None else ids.get(leader, leader), epoch)
                    for where, (leader, epoch) in broker.stale_view.items()
                }
        self.controller_id = ids.get(self.controller_id, self.controller_id)
        for partition in self._partitions():
            partition.replicas = tuple(ids.get(one, one) for one in partition.replicas)
            partition.isr = tuple(ids.get(one, one) for one in partition.isr)
            if partition.leader is not None:
                partition.leader = ids.get(partition.leader, partition.leader)

    # -- starting and stopping brokers ------------------------------------------------------------

    def kill(
        self, broker_id: int, *, silent: bool = False, failover_s: float | None = None
    ) -> None:
        """Kill a broker (SIGKILL). Its connections are reset, and the unreplicated records of the
        partitions that it leads are lost.

        Args:
            silent: as in a power failure, connections are not reset and connection attempts hang.
            failover_s: seconds until new leaders are elected. The default is `failover_s` of the
                cluster.
        """
        broker = self.brokers[broker_id]
        self._take_down(broker, reset=not silent)
        if silent:
            self.network.blackhole(broker.host, broker.port)
        for partition in self._led_by(broker_id):
            others = [node for node in partition.isr if node != broker_id]
            if others:
                partition.log.truncate(partition.log.high_watermark)
        wait = self.failover_s if failover_s is None else failover_s
        if broker_id == self.controller_id:
            wait += self.controller_s  # a new controller is elected first
        world_at(self.loop, self.loop.time() + wait, self._unregister, broker)

    def stop(self, broker_id: int) -> None:
        """Shut down a broker in a controlled way: move its leaders, then close its connections.
        After a restart, the broker remembers only the newest batch of each producer and partition.
        """
        broker = self.brokers[broker_id]
        for partition in self._partitions():
            if broker_id in partition.replicas:
                broker.stopped_at[partition.log] = partition.log.end_offset
        self._take_down(broker, reset=False)
        self._unregister(broker)
        for connection in list(broker.connections):
            connection.close()

    def start(
        self,
        broker_id: int,
        *,
        host: str | None = None,
        port: int | None = None,
        version_profile: str | None = None,
    ) -> None:
        """Start a stopped broker, with a new address or version if given."""
        broker = self.brokers[broker_id]
        if version_profile is not None:
            broker.profile = profile_named(version_profile)
        broker.stale_view = None
        self.network.heal(broker.host, broker.port)
        broker.host = host or broker.host
        broker.port = port or broker.port
        broker.is_paused = False
        broker.on_resume.clear()
        self._bring_up(broker)
        self._rejoin(broker_id)

    def pause(self, broker_id: int, *, failover_s: float | None = None) -> None:
        """Freeze a broker (SIGSTOP). It accepts connections and bytes, but does not respond.

        Args:
            failover_s: seconds until the controller elects other leaders. None means never.
        """
        broker = self.brokers[broker_id]
        broker.freeze()
        if failover_s is not None:
            when = self.loop.time() + failover_s
            world_at(self.loop, when, self._unregister_if_paused, broker)

    def resume(self, broker_id: int) -> None:
        """Resume a broker that `pause` froze (SIGCONT)."""
        broker = self.brokers[broker_id]
        if not broker.is_registered:
            broker.is_registered = True
            self._rejoin(broker_id)
        broker.thaw()

    def _rejoin(self, broker_id: int) -> None:
        """Register a restarted broker. It leads the partitions that have no leader if it is in
        their in-sync set, and follows in all others."""
        for partition in self._partitions():
            if partition.leader is None and broker_id in partition.isr:
                partition.elect(broker_id)
                partition.log.high_watermark = partition.log.end_offset
        self._catch_up()

    def _catch_up(self) -> None:
        """Add live replicas to the in-sync sets. Only a live leader expands its set. Without a
        leader, the set does not change, so that all members have all records and any member that
        returns can be elected. Source: KIP-497; Java `Partition.maybeExpandIsr`."""
        living = [broker.broker_id for broker in self.brokers.values()
                  if broker.is_registered and broker.is_up]  # fmt: skip
        for partition in self._partitions():
            if partition.leader in living:
                grow_isr(partition, living)

    def _bring_up(self, broker: FakeBroker) -> None:
        broker.is_up = broker.is_registered = True
        self.network.listen(broker.host, broker.port, broker.accept)

    def _take_down(self, broker: FakeBroker, *, reset: bool) -> None:
        broker.is_up = False
        broker.deaths += 1
        broker.held = 0
        self.network.unlisten(broker.host, broker.port)
        if reset:
            for connection in list(broker.connections):
                connection.reset()

    def _unregister_if_paused(self, broker: FakeBroker) -> None:
        if broker.is_paused:
            self._unregister(broker)

    def _unregister(self, broker: FakeBroker) -> None:
        if broker.is_up and not broker.is_paused:
            return
        broker.is_registered = False
        alive = self._registered_ids()
        if broker.broker_id == self.controller_id and alive:
            self.controller_id = alive[0]
        for partition in self._partitions():
            shrink_isr(partition, alive)
            if partition.leader == broker.broker_id:
                electable = [n for n in partition.replicas if n in partition.isr and n in alive]
                partition.elect(electable[0] if electable else None)
                if electable:
                    partition.log.high_watermark = partition.log.end_offset
        self._catch_up()

    def _registered_ids(self) -> list[int]:
        return [broker.broker_id for broker in self.brokers.values() if broker.is_registered]

    def _partitions(self) -> list[Partition]:
        return [partition for topic in self.topics.values() for partition in topic.partitions]

    def _led_by(self, broker_id: int) -> list[Partition]:
        return [partition for partition in self._partitions() if partition.leader == broker_id]
