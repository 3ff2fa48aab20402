"""aiokprod as a client of the benchmarks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.case import Case
from benchmarks.clients.base import AsyncClient, share_of
from benchmarks.clients.drivers import Call, Limit
from benchmarks.payloads import serializer

if TYPE_CHECKING:
    from aiokprod._client.bulk_result import BulkResult


class NothingDone:
    """An interceptor and a plug-in that does nothing."""

    def on_send(self, record: Any) -> Any:
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        """Do nothing."""

    def on_append(self, topic: str, key: Any, value: Any, headers: Any) -> Any:
        return headers, None

    def on_batch_settled(self, *arguments: Any) -> None:
        """Is not called without tokens."""

    def on_record_unsent(self, *arguments: Any) -> None:
        """Is not called without tokens."""

    def close(self) -> None:
        """Do nothing, because there is nothing to close."""


def _partitioner(case: Case) -> Any:
    from aiokprod.partitioners import ConsistentRandomPartitioner, RoundRobinPartitioner

    made: dict[str, Callable[[], Any]] = {
        "default": lambda: None,
        "callable": lambda: lambda *record: 0,
        "round-robin": RoundRobinPartitioner,
        "consistent-random": ConsistentRandomPartitioner,
    }
    return made[case.partitioner]()


BULK_TASKS: Final = 2
"""Number of concurrent bulk calls. One call fills batches while the last batches of the other call
are sent."""


class Aiokprod(AsyncClient):
    """aiokprod with its defaults, except for the settings of the case."""

    adaptive = True

    async def start(self, servers: str, topic: str) -> None:
        from aiokprod import Producer, ProducerConfig

        case = self.case
        self.topic = topic
        config = ProducerConfig(
            bootstrap_servers=servers,
            acks=case.acks if case.acks == "all" else int(case.acks),
            enable_idempotence=case.idempotent,
            compression_type=case.codec,
            adaptive_linger=self.adaptive,
        )
        self.producer: Any = Producer(
            config,
            value_serializer=serializer(case),
            partitioner=_partitioner(case),
            interceptors=[NothingDone()] if case.hook == "interceptor" else (),
            plugins=[NothingDone()] if case.hook == "plugin" else (),
        )
        await self.producer.start()

    async def stop(self) -> None:
        await self.producer.close()

    def sent(self) -> dict[str, int]:
        metrics = self.producer.metrics()
        return {
            "requests": metrics["produce_requests"],
            "batches": metrics["batches_sent"],
            "bytes_sent": metrics["bytes_sent"],
        }

    def submit_call(self) -> Call:
        call: Call = self.producer.submit
        return call

    def send_call(self) -> Call:
        call: Call = self.producer.send
        if self.case.timeout:
            return partial(call, timeout=self.case.timeout)
        return call

    async def flush(self) -> None:
        await self.producer.flush()

    async def bulk(self, limit: Limit) -> int:
        size = share_of(self.case)
        values, keys = self.payloads.chunk(size), self.payloads.key_chunk(size)
        headers = None if self.payloads.headers is None else [self.payloads.headers] * size
        send_many, topic = self.producer.send_many, self.topic

        def send(count: int) -> Awaitable[BulkResult]:
            result: Awaitable[BulkResult] = send_many(
                topic,
                values[:count],
                keys=None if keys is None else keys[:count],
                headers=None if headers is None else headers[:count],
            )
            return result

        return await _in_turns(send, size, limit)

    async def columns(self, limit: Limit) -> int:
        import pyarrow as pa

        size = share_of(self.case)
        columns = {"value": pa.array(self.payloads.chunk(size), pa.binary())}
        keys = self.payloads.key_chunk(size)
        if keys is not None:
            columns["key"] = pa.array(keys, pa.binary())
        table = pa.RecordBatch.from_pydict(columns)
        send_table, topic = self.producer.send_table, self.topic

        def send(count: int) -> Awaitable[BulkResult]:
            result: Awaitable[BulkResult] = send_table(topic, table.slice(0, count))
            return result

        return await _in_turns(send, size, limit)


class AiokprodAsIs(Aiokprod):
    adaptive = False


async def _in_turns(send: Callable[[int], Awaitable[BulkResult]], size: int, limit: Limit) -> int:
    """Send `size` records per call from `BULK_TASKS` tasks until the limit. Check every result, and
    return the number of records."""
    starts = itertools.count(0, size)
    sent = 0

    async def task() -> None:
        nonlocal sent
        for start in starts:
            count = min(size, limit.records - start)
            if count <= 0 or limit.reached:
                return
            result = await send(count)
            if not result.ok:
                raise RuntimeError(f"bulk call of {count} records: {result!r}")
            sent += count

    await asyncio.gather(*(task() for _ in range(BULK_TASKS)))
    return sent
