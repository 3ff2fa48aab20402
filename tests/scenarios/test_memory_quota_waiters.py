"""Calls that wait until a broker's share of the memory is free, and partitions that change their
leader."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.scenarios.scenario_helpers import harness, now, play, until


def test_caller_in_a_brokers_line_follows_its_partition_to_the_new_leader() -> None:
    """The call completes before later calls."""

    async def main() -> None:
        options: dict[str, Any] = {"linger_ms": 0, "buffer_memory": 1_000_000, "batch_size": 16384}
        brokers = {"brokers": 2, "default_replication": 2}
        async with harness(partitions=4, cluster=brokers, **options) as (
            cluster,
            producer,
            history,
        ):
            for partition in range(4):
                await history.send(partition=partition)
            partitions = cluster.topics["t"].partitions
            frozen = partitions[0].leader
            moving, staying = [p.index for p in partitions if p.leader == frozen]
            assert frozen is not None
            cluster.pause(frozen)

            async def fill() -> None:
                while True:
                    await producer.submit("t", b"x" * 4000, partition=staying)

            filling = asyncio.ensure_future(fill())
            await until(lambda: producer.metrics()["waiting_sends"] > 0)
            early = history.send_later(partition=moving)
            await asyncio.sleep(0.5)
            cluster.move_leader("t", moving)
            moved_at = now()
            await asyncio.sleep(0.01)
            late = history.send_later(partition=moving)
            first, second = await early, await late
            assert first.acked
            assert second.acked
            assert first.metadata.offset < second.metadata.offset, "in order of arrival"
            # The frozen broker is overdue after a second, and the metadata then shows the new
            # leader.
            assert first.settled_at - moved_at < 2.0
            filling.cancel()
            cluster.resume(frozen)

    play(main)


def test_caller_waiting_for_a_topic_that_vanished_waits_for_its_metadata() -> None:
    """It must not wait for the share of a broker that no longer leads any of its partitions."""

    async def main() -> None:
        options: dict[str, Any] = {"linger_ms": 0, "buffer_memory": 1_000_000, "batch_size": 16384,
                   "delivery_timeout_ms": 30_000, "request_timeout_ms": 10_000,
                   "max_block_ms": 50_000}  # fmt: skip
        brokers = {"brokers": 2, "default_replication": 2}
        async with harness(partitions=2, cluster=brokers, **options) as (
            cluster,
            producer,
            history,
        ):
            cluster.create_topic("u", 2)
            for topic in ("t", "u"):
                for partition in range(2):
                    await history.send(topic, partition)
            frozen = cluster.topics["t"].partitions[0].leader
            (of_u,) = [p.index for p in cluster.topics["u"].partitions if p.leader == frozen]
            assert frozen is not None
            cluster.pause(frozen)

            async def fill() -> None:
                while True:
                    await producer.submit("t", b"x" * 4000, partition=0)

            filling = asyncio.ensure_future(fill())
            await until(lambda: producer.metrics()["waiting_sends"] > 0)
            waiting = history.send_later("u", of_u)
            await asyncio.sleep(0.5)
            cluster.delete_topic("u")
            await asyncio.sleep(10.0)
            cluster.create_topic("u", 2)
            cluster.topics["u"].partitions[of_u].leader = 3 - frozen
            started = now()
            attempt = await waiting
            assert attempt.acked
            assert attempt.settled_at - started < 3.0
            filling.cancel()
            cluster.resume(frozen)

    play(main)
