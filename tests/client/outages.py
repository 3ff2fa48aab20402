"""A producer with steady traffic on a `FakeCluster`, and a recorder of its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

from aiokprod import KafkaError, Producer
from aiokprod.testing.fake_cluster import FakeCluster


class LogTap(logging.Handler):
    """Collects the library's log records of level DEBUG and above, with the loop time of each
    record."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[tuple[float, logging.LogRecord]] = []

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(RuntimeError):
            self.lines.append((asyncio.get_running_loop().time(), record))

    def since(self, start: float, level: int = logging.INFO) -> list[tuple[float, str]]:
        """Return (seconds after `start`, text) of the later log records of at least this level."""
        return [
            (at - start, record.getMessage())
            for at, record in self.lines
            if at >= start and record.levelno >= level
        ]

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the fields of the log records of an event."""
        found = [vars(record) for _, record in self.lines]
        return [fields for fields in found if fields["kafka_event"] == event]


@contextlib.contextmanager
def tapped() -> Iterator[LogTap]:
    """Collect the log records of the library."""
    tap, logger = LogTap(), logging.getLogger("aiokprod")
    level = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(tap)
    try:
        yield tap
    finally:
        logger.removeHandler(tap)
        logger.setLevel(level)


@contextlib.asynccontextmanager
async def steady_traffic(
    cluster: FakeCluster, *, per_s: int = 6, topic: str = "t", **settings: Any
) -> AsyncIterator[Producer[Any, Any]]:
    """Start a producer that sends records to all partitions of a topic. It continues after
    failures."""
    producer: Producer[Any, Any] = Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), **settings
    )
    waiting: set[asyncio.Task[Any]] = set()

    async def send(number: int) -> None:
        with contextlib.suppress(KafkaError):
            await producer.send(topic, b"x", partition=number % 3)

    async def load() -> None:
        number = 0
        while True:
            waiting.add(task := asyncio.create_task(send(number)))
            task.add_done_callback(waiting.discard)
            number += 1
            await asyncio.sleep(1 / per_s)

    loading = asyncio.create_task(load())
    try:
        yield producer
    finally:
        loading.cancel()
        await producer.close(0)
        await asyncio.gather(*waiting, loading, return_exceptions=True)
