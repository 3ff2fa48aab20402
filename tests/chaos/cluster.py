"""Three real nodes. Clients and, on request, replicas connect through the faulty network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aiokprod.testing.kafka_cluster import HOST, KafkaCluster
from aiokprod.testing.kafka_node import free_ports
from tests.chaos.proxy import FaultyNetwork

PATIENCE = 90.0


class ChaosCluster(KafkaCluster):
    """A `KafkaCluster` with two more listeners per node.

    The plaintext listener of the base class stays direct: the checker, the probe, and clients use
    it when the fault is not in the network. `proxied_servers` uses the links `client-1`,
    `client-2`, …; with `replicas_through_proxy` the brokers fetch from each other through
    `replica-1`, ….
    """

    def __init__(self, nodes: int = 3, *, replicas_through_proxy: bool = False) -> None:
        config = {
            # Free the space of deleted topics at once, because a campaign writes gigabytes.
            "file.delete.delay.ms": "1000",
            "auto.create.topics.enable": "false",
        }
        if replicas_through_proxy:
            config["replica.lag.time.max.ms"] = "5000"
        super().__init__(nodes, config=config)
        self.replicas_through_proxy = replicas_through_proxy
        ports = iter(free_ports(4 * nodes))
        self._extra = {
            node: {name: next(ports) for name in ("client", "replica")} for node in self.node_ids
        }
        self._doors = {
            (name, node): next(ports) for node in self.node_ids for name in ("client", "replica")
        }
        self.network = FaultyNetwork(
            {
                f"{name}-{node}": (door, self._extra[node][name])
                for (name, node), door in self._doors.items()
            }
        )

    def _properties(self, node_id: int, controllers: Mapping[int, int]) -> dict[str, str]:
        properties = super()._properties(node_id, controllers)
        extra = self._extra[node_id]
        client, replica = self._doors["client", node_id], self._doors["replica", node_id]
        if not self.replicas_through_proxy:
            replica = extra["replica"]
        properties["listeners"] += (
            f",CLIENT://{HOST}:{extra['client']},REPLICA://{HOST}:{extra['replica']}"
        )
        properties["advertised.listeners"] += (
            f",CLIENT://{HOST}:{client},REPLICA://{HOST}:{replica}"
        )
        properties["listener.security.protocol.map"] += ",CLIENT:PLAINTEXT,REPLICA:PLAINTEXT"
        properties["inter.broker.listener.name"] = "REPLICA"
        return properties

    async def __aenter__(self) -> ChaosCluster:
        await self.start()
        return self

    def start_blocking(self, timeout: float = 180.0) -> None:
        self.network.__enter__()
        super().start_blocking(timeout)

    def stop_blocking(self) -> None:
        super().stop_blocking()
        self.network.__exit__()

    @property
    def proxied_servers(self) -> str:
        return ",".join(f"{HOST}:{self._doors['client', node]}" for node in self.node_ids)

    # -- what the base class has no use for ----------------------------------------------------

    async def reassign(self, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
        """Assign other replicas to partitions (the first one leads); return when that is
        complete."""
        await asyncio.to_thread(self._reassign, topic, replicas)

    def _reassign(self, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
        from kafka import TopicPartition

        wanted = {TopicPartition(topic, number): list(nodes) for number, nodes in replicas.items()}
        admin = self._kafka_python()
        try:
            refused = {k: v for k, v in admin.alter_partition_reassignments(wanted).items() if v}
            assert not refused, f"the reassignment was refused: {refused}"
            give_up = time.monotonic() + PATIENCE
            while admin.list_partition_reassignments({topic: list(replicas)}):
                assert time.monotonic() < give_up, "the reassignment does not end"
                time.sleep(0.1)
        finally:
            admin.close()

    async def elect_preferred(self, topic: str, partitions: Sequence[int]) -> None:
        """Make the first replica of each partition its leader."""
        await asyncio.to_thread(self._elect, topic, list(partitions))

    def _elect(self, topic: str, partitions: list[int]) -> None:
        admin = self._kafka_python()
        try:
            admin.elect_leaders(0, {topic: partitions})
        finally:
            admin.close()

    def _kafka_python(self) -> Any:
        # confluent-kafka's admin client cannot reassign partitions.
        from kafka.admin import KafkaAdminClient

        return KafkaAdminClient(bootstrap_servers=self.bootstrap_servers.split(","))

    async def controller(self) -> int:
        """Return the node whose controller is active."""
        return await asyncio.to_thread(self._controller)

    def _controller(self) -> int:
        # Ask the quorum, because brokers may return any node as the controller in Metadata
        # (KIP-590).
        admin = self._kafka_python()
        try:
            quorum = admin.describe_metadata_quorum()
            return int(quorum["topics"][0]["partitions"][0]["leader_id"])
        finally:
            admin.close()
