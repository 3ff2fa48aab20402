from __future__ import annotations

from typing import Any

import pytest

from aiokprod import ProducerConfig, TopicProfile
from aiokprod._client.waiting import (
    STALL_S,
    Waiting,
    WaitingPartition,
    WaitingTopic,
    shortest_stall,
    stall_after,
)
from aiokprod.testing.fake_cluster import FakeCluster
from tests.client.outages import steady_traffic
from tests.virtual_time import in_virtual_time


def test_stall_is_noticed_before_the_first_record_expires() -> None:
    assert stall_after(120.0) == STALL_S
    assert stall_after(2 * STALL_S) == STALL_S
    assert stall_after(3.0) == 1.5


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, STALL_S),
        ({"delivery_timeout_ms": 3_000, "request_timeout_ms": 1_000}, 1.5),
        (
            {
                "delivery_timeout_ms": 20_000, "request_timeout_ms": 1_000,
                "topic_profiles": {
                    "a": TopicProfile(delivery_timeout_ms=5_000),
                    "b": TopicProfile(delivery_timeout_ms=2_000, linger_ms=500),
                },
            },
            0.75,
        ),
    ],
)  # fmt: skip
def test_shortest_stall_is_that_of_the_topic_with_the_shortest_delivery(
    settings: dict[str, Any], seconds: float
) -> None:
    config = ProducerConfig(bootstrap_servers="b:1", linger_ms=0, **settings)
    assert shortest_stall(config) == seconds


@in_virtual_time
async def test_cause_sums_up_by_reason_and_names_some() -> None:
    cluster = FakeCluster(1, default_replication=1)
    cluster.create_topic("t", 3)
    async with steady_traffic(cluster) as producer:
        await producer.warm(["t"])
        runtime = producer._lifecycle.started()
        await producer.send("t", b"x", partition=0)
        slots = runtime.appender.topics["t"].slots
        parts = [part(slots[index], reason) for index, reason in ((0, "a"), (1, "a"), (2, "b"))]
        topics = [WaitingTopic(f"u{n}", n, 7.0, n > 0, f"c{n}") for n in range(4)]
        found = Waiting([*parts, part(slots[0], "no stall", stalled=False)], topics)
        assert found.cause() == (
            "a (10 records of t-0, t-1); b (5 records of t-2); c1 (1 calls for topic u1); "
            "and 2 more causes"
        )
        assert found.silent_s() == 7.0
        assert [each.topic_partition.partition for each in found.stalled] == [0, 1, 2]
        assert Waiting([], []).cause() is None
        assert Waiting([], []).silent_s() == 0.0


def part(queue: Any, reason: str, *, stalled: bool = True) -> WaitingPartition:
    return WaitingPartition(queue, 1, 5, 9.0, 6.0, stalled, 1, "", reason)
