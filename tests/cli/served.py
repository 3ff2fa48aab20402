"""A `FakeCluster` behind real sockets, served by a thread, for commands that run their own event
loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster.tcp import serve_tcp

T = TypeVar("T")


class ServedCluster:
    """A cluster that a thread serves. `call` runs a function on the thread's event loop."""

    def __init__(self, cluster: FakeCluster, loop: asyncio.AbstractEventLoop, servers: str) -> None:
        self.cluster = cluster
        self.servers = servers
        self._loop = loop

    def call(self, function: Callable[[], T]) -> T:
        """Call the function on the event loop of the cluster and return its result."""

        async def calling() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(calling(), self._loop).result(60)

    def records(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Return the (key, value) pairs of a topic, partition by partition."""
        logs = self.call(lambda: self.cluster.logs(topic))
        return [(record.key, record.value) for log in logs for record in log]

    def values(self, topic: str) -> list[bytes | None]:
        """Return the values of a topic, partition by partition."""
        return [value for _, value in self.records(topic)]


@contextmanager
def served_cluster(cluster: FakeCluster) -> Iterator[ServedCluster]:
    """Serve `cluster` until the end of the block."""
    started = threading.Event()
    found: list[ServedCluster] = []
    ends: list[asyncio.Event] = []

    async def main() -> None:
        async with serve_tcp(cluster) as servers:
            ends.append(asyncio.Event())
            found.append(ServedCluster(cluster, asyncio.get_running_loop(), servers))
            started.set()
            await ends[0].wait()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert started.wait(60)
    try:
        yield found[0]
    finally:
        found[0].call(ends[0].set)
        thread.join(60)
