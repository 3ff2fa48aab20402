"""Producers in virtual time whose telemetry the tests observe."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run

T = TypeVar("T")


def with_producer(
    body: Callable[[FakeCluster, Producer[Any, Any]], Awaitable[T]], **options: Any
) -> T:
    """Run `body` in virtual time with a cluster of three brokers and the topic `t`."""

    async def main() -> T:
        cluster = FakeCluster(3)
        cluster.create_topic("t", 3)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(1),
            **options,
        ) as producer:
            found = await body(cluster, producer)
            await asyncio.sleep(0)
            return found

    return run(main)
