"""A pytest plug-in for the tests of opentelemetry-instrumentation-aiokafka.

Tests that send replace `producer._message_accumulator.add_message`, which receives the records of
aiokafka's producer. aiokprod passes records to `FutureResults.submit` instead, so a class of this
module forwards them to the mock in aiokafka's form.
"""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

from aiokafka.structs import TopicPartition

import aiokprod.compat.aiokafka as compat

TIMEOUT = 40.0
"""aiokafka's default timeout for the wait in its buffer, in seconds."""


class ProducerWithAccumulator(compat.AIOKafkaProducer):
    """An `AIOKafkaProducer` that passes its records to `_message_accumulator.add_message`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._message_accumulator = SimpleNamespace(add_message=None)
        self._sender = SimpleNamespace(start=None)
        results: Any = SimpleNamespace(submit=self._submit)
        self._results = results

    async def start(self) -> None:
        """Do nothing, because the tests have no broker."""

    async def _submit(
        self,
        future: asyncio.Future[None],
        producer: Any,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Any,
    ) -> None:
        chosen = self._partition(topic, partition, key, value, key, value)
        added = await self._message_accumulator.add_message(
            TopicPartition(topic, chosen), key, value, TIMEOUT,
            timestamp_ms=timestamp_ms, headers=headers,
        )  # fmt: skip
        if inspect.isawaitable(added):
            await added
        future.set_result(None)


compat.AIOKafkaProducer = ProducerWithAccumulator  # type: ignore[misc]
compat.install()  # before the test modules import the name
