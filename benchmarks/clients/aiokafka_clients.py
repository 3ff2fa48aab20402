"""aiokafka as a client of the benchmarks, with its defaults and with tuned settings."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any

from benchmarks.clients.base import AsyncClient
from benchmarks.clients.drivers import Call, Limit
from benchmarks.payloads import serializer


class Aiokafka(AsyncClient):
    """aiokafka with its default batch size and linger."""

    settings: dict[str, Any] = {}  # noqa: RUF012 - read only

    async def start(self, servers: str, topic: str) -> None:
        from aiokafka import AIOKafkaProducer

        case = self.case
        self.topic = topic
        self.producer: Any = AIOKafkaProducer(
            bootstrap_servers=servers,
            acks=case.acks if case.acks == "all" else int(case.acks),
            enable_idempotence=case.idempotent,
            compression_type=None if case.codec == "none" else case.codec,
            value_serializer=serializer(case),
            **({} if case.partitioner == "default" else {"partitioner": lambda *record: 0}),
            **self.settings,
        )
        await self.producer.start()

    async def stop(self) -> None:
        await self.producer.stop()

    def submit_call(self) -> Call:
        call: Call = self.producer.send
        return call

    def send_call(self) -> Call:
        call: Call = self.producer.send_and_wait
        timeout = self.case.timeout
        if not timeout:
            return call

        def within(topic: str, value: Any, key: Any = None, **options: Any) -> Awaitable[Any]:
            return asyncio.wait_for(call(topic, value, key=key, **options), timeout)

        return within

    async def flush(self) -> None:
        await self.producer.flush()

    async def bulk(self, limit: Limit) -> int:
        """Fill batches by `create_batch` and send them to the partitions in turn."""
        producer, topic = self.producer, self.topic
        partitions = itertools.cycle(sorted(await producer.partitions_for(topic)))
        pool = self.payloads
        headers = pool.headers or []
        records = zip(pool.endless(), pool.endless_keys(), strict=False)
        value, key = next(records)
        sent, futures = 0, []
        while sent < limit.records and not limit.reached:
            batch = producer.create_batch()
            left = limit.records - sent
            count = 0
            while count < left:
                if batch.append(key=key, value=value, timestamp=None, headers=headers) is None:
                    break
                count += 1
                value, key = next(records)
            sent += count
            futures.append(await producer.send_batch(batch, topic, partition=next(partitions)))
        for future in futures:
            await future
        return sent


class AiokafkaTuned(Aiokafka):
    """aiokafka with the default batch size and linger of aiokprod."""

    settings = {"linger_ms": 5, "max_batch_size": 131_072}  # noqa: RUF012 - read only
