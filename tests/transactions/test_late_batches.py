"""A batch of one transaction that arrives during the next transaction must have an outdated
epoch."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokprod import KafkaError, Producer
from aiokprod.testing.fake_cluster import FakeCluster, Reaction, Request, delay, lose_request
from tests.transactions.transaction_helpers import PRODUCE, committed, one, transactional

ARRIVES_S = 8.0


def first_late_others_lost() -> Any:
    """Return a reaction: the first request arrives after the client has closed its connection, and
    its retries are lost."""
    seen = 0

    def control(request: Request) -> Reaction:
        nonlocal seen
        seen += 1
        return delay(ARRIVES_S) if seen == 1 else lose_request()

    return control


@transactional(linger_ms=0, request_timeout_ms=2_000, delivery_timeout_ms=4_000)
async def test_late_batch_expired_while_aborting_never_joins_the_next_transaction(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await one(producer, b"before")
    await producer.begin_transaction()
    stop = cluster.control(PRODUCE, first_late_others_lost())
    lost = await producer.submit("t", b"lost", partition=0)
    await asyncio.sleep(0.1)
    await producer.abort_transaction(timeout=20)
    assert isinstance(await asyncio.wait_for(_error(lost), 20), KafkaError)
    stop()
    async with producer.transaction(timeout=20):
        await producer.submit("t", b"next", partition=0)
        await asyncio.sleep(ARRIVES_S + 2)
    await asyncio.sleep(ARRIVES_S)
    assert committed(cluster) == [b"before", b"next"]


async def _error(delivery: Any) -> BaseException | None:
    try:
        await delivery
    except KafkaError as error:
        return error
    return None
