"""Serializes key and value of a record on the slow path. The fast path uses only the compiled base
class, `SerializerPair`."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

from aiokprod._core.serialization import SerializerPair
from aiokprod.serializers import adapt

if TYPE_CHECKING:
    from aiokprod._core.serialization import SerializedRecord
    from aiokprod.records import ProducerRecord
    from aiokprod.serializers import AnySerializer

Payload = tuple[bytes | None, bytes | None]


def close_coroutines(serialized: SerializedRecord | None) -> None:
    """Close the coroutines of asynchronous serializers that were not awaited."""
    if serialized is not None:
        for result in (serialized.key, serialized.value):
            if inspect.iscoroutine(result):
                result.close()


class RecordSerializers(SerializerPair):
    """The key serializer and the value serializer of a producer."""

    def __init__(
        self, key_serializer: AnySerializer | None, value_serializer: AnySerializer | None
    ) -> None:
        self._bound_key = adapt(key_serializer, "key")
        self._bound_value = adapt(value_serializer, "value")
        super().__init__(self._bound_key, self._bound_value)

    def parts(self) -> tuple[object, object]:
        """Return the serializer objects, for `configure` and `close`."""
        return self._bound_key.serializer, self._bound_value.serializer

    async def warm(self, topics: list[str], deadline: float) -> None:
        """Prepare the serializers for all topics concurrently.

        Raises:
            SerializationError: a serializer cannot be prepared, or not before `deadline` (loop
                time). The other preparations are then cancelled.
        """
        tasks = [
            asyncio.create_task(bound.warm(topic, deadline), name="aiokprod-warm-serializer")
            for bound in (self._bound_key, self._bound_value)
            if hasattr(bound.serializer, "warm")
            for topic in topics
        ]
        try:
            for task in tasks:
                await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def start(
        self, record: ProducerRecord[Any, Any], serialized: SerializedRecord | None = None
    ) -> SerializedRecord:
        """Call the serializers of a record. `finish` or `finish_now` must be called afterwards."""
        return self.serialize(record.topic, record.headers, record.value, record.key, serialized)

    async def finish(
        self, record: ProducerRecord[Any, Any], serialized: SerializedRecord, deadline: float
    ) -> Payload:
        """Wait for asynchronous serializers until `deadline` (loop time). Return (value, key).

        Raises:
            SerializationError: a serializer failed or took too long; nothing was appended.
        """
        self._raise_failure(serialized)
        key, value = serialized.key, serialized.value
        if key is not None and not isinstance(key, bytes):
            key = await self._bound_key.finish(record.topic, record.key, key, deadline)
        if not serialized.has_value:
            headers = () if serialized.headers is None else serialized.headers
            value = self._bound_value(record.topic, headers, record.value)
        if value is not None and not isinstance(value, bytes):
            value = await self._bound_value.finish(record.topic, record.value, value, deadline)
        return value, key

    def finish_now(self, serialized: SerializedRecord) -> Payload:
        """Like `finish`, for callers that cannot wait.

        Raises:
            ConfigError: a serializer is asynchronous.
        """
        self._raise_failure(serialized)
        key, value = serialized.key, serialized.value
        if key is not None and not isinstance(key, bytes):
            raise self._bound_key.asynchronous_error(key)
        if value is not None and not isinstance(value, bytes):
            raise self._bound_value.asynchronous_error(value)
        return value, key

    @staticmethod
    def _raise_failure(serialized: SerializedRecord) -> None:
        failure = serialized.take_failure()
        if failure is None:
            return
        try:
            raise failure
        finally:
            del failure  # avoid a reference cycle of error, traceback and frame
