"""Waits until the first metadata arrives or every bootstrap server has failed."""

from __future__ import annotations

import asyncio

from aiokprod.cluster import ClusterSnapshot
from aiokprod.errors import KafkaError
from aiokprod.observer import Observer


class BootstrapWatch(Observer):
    """Stores the latest metadata and the failures of bootstrap servers.

    Attributes:
        servers: number of bootstrap servers.
        snapshot: the latest metadata; without topics and brokers before the first response.
    """

    def __init__(self) -> None:
        self.servers = 1
        self._failed: dict[int, KafkaError] = {}
        self._changed: asyncio.Event | None = None
        self._has_metadata = False
        self._given_up = False
        self.snapshot = ClusterSnapshot()

    def give_up(self) -> None:
        """End the wait, because the producer is being stopped."""
        self._given_up = True
        self._notify()

    def forget_failures(self) -> None:
        """Clear the failures, so that the next wait lasts until every server has failed again."""
        self._failed.clear()

    def reset(self) -> None:
        """Clear the metadata and the failures, for a new producer."""
        self._failed.clear()
        self._has_metadata = False
        self.snapshot = ClusterSnapshot()

    def on_connection_closed(self, node_id: int, error: KafkaError | None) -> None:
        """Record the failure of a bootstrap server, which has a negative id."""
        if node_id < 0 and error is not None and not self._has_metadata:
            self._failed[node_id] = error
            self._notify()

    def on_metadata_updated(self, snapshot: ClusterSnapshot) -> None:
        """Store the snapshot."""
        self.snapshot = snapshot
        if any(node >= 0 for node in snapshot.nodes):
            self._has_metadata = True
            self._notify()

    def _notify(self) -> None:
        if self._changed is not None:
            self._changed.set()

    async def wait(self, timeout: float | None) -> KafkaError | None:
        """Wait for metadata, for a call of `give_up`, or until every bootstrap server has failed.
        Only one call at a time is allowed.

        Args:
            timeout: limit in seconds; None for no limit.

        Returns:
            The error of the server that failed last; None if not all servers have failed.

        Raises:
            TimeoutError: the timeout passed.
        """
        self._changed = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                while not self._has_metadata and not self._given_up:
                    if len(self._failed) >= self.servers:
                        return next(reversed(self._failed.values()))
                    await self._changed.wait()
                    self._changed.clear()
        finally:
            self._changed = None
        return None
