"""Connects to the leaders of topics before the first record is sent; see `Producer.warm`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokprod._engine.wakeup import WakeupEvent

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from aiokprod._engine.metadata.cache import Metadata
    from aiokprod._engine.sender.auth_failures import AuthFailures
    from aiokprod._net.client import NetworkClient
    from aiokprod.errors import KafkaError


class WarmUp:
    """Waits for connections to leaders. `wake` must be called when a connection opens or ends.

    Attributes:
        waiting: the events of the waiting calls.

    Args:
        failure: returns the error that ended the producer, or None.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        metadata: Metadata,
        client: NetworkClient,
        refusals: AuthFailures,
        failure: Callable[[], KafkaError | None],
    ) -> None:
        self._loop = loop
        self._metadata = metadata
        self._client = client
        self._refusals = refusals
        self._failure = failure
        self.waiting: dict[WakeupEvent, None] = {}  # ordered, so that runs are reproducible

    def wake(self) -> None:
        """Make the waiting calls check the connections again."""
        for wakeup in self.waiting:
            wakeup.set()

    async def connect_leaders(self, topics: list[str], deadline: float) -> None:
        """Connect to the leaders of `topics`. Return once all are connected, or at `deadline` (loop
        time).

        Raises:
            AuthenticationError: a leader rejects the credentials.
            ProducerClosed, ProducerFailed: the producer ended during the call.
        """
        wakeup = WakeupEvent(self._loop)
        known = {node: self._refusals.reason(node) for node in self._leaders(topics)}
        self.waiting[wakeup] = None
        try:
            while True:
                wakeup.clear()
                failure = self._failure()
                if failure is not None:
                    raise failure.copy()
                now = self._loop.time()
                for node in self._leaders(topics):
                    refusal = self._refusals.reason(node)
                    if refusal is not None and refusal is not known.get(node):
                        raise refusal.copy()
                waiting = [n for n in self._leaders(topics) if not self._client.ready(n, now)]
                if not waiting or now >= deadline:
                    return
                retry_at = min(self._client.retry_at(node, now) for node in waiting)
                await wakeup.wait(min(deadline, retry_at))
        finally:
            del self.waiting[wakeup]

    def _leaders(self, topics: list[str]) -> set[int]:
        known = self._metadata.snapshot.topics
        partitions = (
            info for topic in topics if topic in known for info in known[topic].partitions
        )
        return {info.leader for info in partitions if info.leader is not None}
