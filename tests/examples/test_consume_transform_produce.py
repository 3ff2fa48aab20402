"""The example of exactly-once processing runs with both consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aiokprod import Producer
from aiokprod.testing.mock_cluster import MockCluster
from examples import consume_transform_produce as example
from tests.hang import HANG_S
from tests.transactions.readback import read_committed

RECORDS = 1_200


@pytest.mark.parametrize("copy", [example.with_aiokafka, example.with_confluent])
def test_consume_transform_produce_everything_once(copy: Callable[..., Any]) -> None:
    async def scenario(servers: str) -> int:
        async with Producer(bootstrap_servers=servers) as producer:
            values = [b"order %d" % number for number in range(RECORDS)]
            assert (await producer.send_many("orders", values)).ok
        return await asyncio.wait_for(
            copy(servers, "orders", "invoices", bytes.upper, until=RECORDS), HANG_S
        )

    with MockCluster() as cluster:
        assert asyncio.run(scenario(cluster.bootstrap_servers)) == RECORDS
        by_partition = read_committed(cluster.bootstrap_servers, "invoices")
    found = [value for values in by_partition.values() for value in values]
    assert sorted(found) == sorted(b"ORDER %d" % number for number in range(RECORDS))
