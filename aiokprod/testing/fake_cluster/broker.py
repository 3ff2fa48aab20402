"""One broker of a fake cluster: its address, connections and state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from aiokprod._wire.message import Message
from aiokprod.testing.fake_cluster.profiles import Profile
from aiokprod.testing.transports import Link

if TYPE_CHECKING:
    from aiokprod.testing.fake_cluster.batches import Batch
    from aiokprod.testing.fake_cluster.cluster import FakeCluster
    from aiokprod.testing.fake_cluster.connection import ServerConnection
    from aiokprod.testing.fake_cluster.ledger import Remembered
    from aiokprod.testing.fake_cluster.log import PartitionLog
    from aiokprod.testing.fake_cluster.topology import Partition


class FakeBroker:
    """A broker.

    Attributes:
        is_up: True if the broker process runs and listens.
        is_registered: True if the controller considers the broker alive, so that Metadata lists it.
        is_listed: if False, Metadata does not list the broker and it leads no partition, but
            FindCoordinator may return it (as with a proxy that does not list its coordinators).
        is_paused: True if the broker is frozen (SIGSTOP). It then accepts connections and bytes,
            but does not process them.
        throttle_ms: throttle_time_ms of its responses.
        stale_view: leaders and epochs in its Metadata responses by (topic id, partition) while it
            gets no metadata updates, or None for current metadata.
        on_resume: callbacks for the end of the freeze.
        deaths: number of times that the broker was killed or stopped. Requests in progress at that
            time are never finished.
        held: number of requests that the broker has read but not yet processed.
        stopped_at: end offsets of its partitions at its last controlled shutdown.
    """

    def __init__(
        self, cluster: FakeCluster, broker_id: int, host: str, port: int, profile: Profile
    ) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.host = host
        self.port = port
        self.profile = profile
        self.rack: str | None = None
        self.is_up = False
        self.is_registered = False
        self.is_listed = True
        self.is_paused = False
        self.throttle_ms = 0
        self.deaths = 0
        self.held = 0
        self.stopped_at: dict[PartitionLog, int] = {}
        self.stale_view: dict[tuple[bytes, int], tuple[int | None, int]] | None = None
        self.connections: list[ServerConnection] = []
        self.on_resume: list[Callable[[], object]] = []

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "up" if self.is_up else "down"
        return f"<FakeBroker {self.broker_id} {self.host}:{self.port} {state}>"

    @property
    def address(self) -> str:
        """The address as "host:port", for `bootstrap_servers`."""
        return f"{self.host}:{self.port}"

    def accept(self, link: Link | None) -> asyncio.Protocol:
        """Return a protocol for a new connection."""
        from aiokprod.testing.fake_cluster.connection import ServerConnection

        return ServerConnection(self, link)

    def view_of(self, topic_id: bytes, partition: Partition) -> tuple[int | None, int]:
        """Return the leader and leader epoch of a partition in this broker's Metadata responses."""
        present = partition.leader, partition.leader_epoch
        if self.stale_view is None:
            return present
        return self.stale_view.get((topic_id, partition.index), present)

    def duplicate_of(self, partition: Partition, batch: Batch) -> Remembered | None:
        """Return the earlier append of the batch, or None if this broker remembers none."""
        return partition.log.ledger.duplicate_of(batch, self.stopped_at.get(partition.log, 0))

    def throttled(self, message: Message) -> Message:
        """Return the response with the throttle time, if it has a field for it."""
        if self.throttle_ms and hasattr(message, "throttle_time_ms"):
            return replace(message, throttle_time_ms=self.throttle_ms)
        return message

    def freeze(self) -> None:
        """Freeze the broker, as SIGSTOP does."""
        self.is_paused = True

    def thaw(self) -> None:
        """Resume the broker, as SIGCONT does. It then processes, in order, the requests received
        while it was frozen."""
        self.is_paused = False
        waiting, self.on_resume = self.on_resume, []
        for function in waiting:
            function()
        for connection in list(self.connections):
            connection.serve_next()
