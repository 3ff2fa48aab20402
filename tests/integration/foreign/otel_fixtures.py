"""A pytest plug-in for the tests of opentelemetry-instrumentation-aiokafka.

Those that send replace `producer._message_accumulator.add_message`, where aiokafka's producer
hands its records on. Here that is `FutureResults.submit`, so a class of this module passes its
records to the mock in aiokafka's form.
"""

from __future__ import annotations

import asyncio
import inspect
from types import SimpleNamespace
from typing import Any

from aiokafka.structs import TopicPartition

import aiokprod.compat.aiokafka as compat

TIMEOUT = 40.0
"""Seconds: aiokafka's default for the wait in its buffer."""


class ProducerWithAccumulator(compat.AIOKafkaProducer):
    """`AIOKafkaProducer` whose records go to `_message_accumulator.add_message`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._message_accumulator = SimpleNamespace(add_message=None)
        self._sender = SimpleNamespace(start=None)
        results: Any = SimpleNamespace(submit=self._submit)
        self._results = results

    async def start(self) -> None:
        """The tests have no broker."""

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
