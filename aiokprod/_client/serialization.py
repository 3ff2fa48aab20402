"""Key and value of a record to bytes, in Java's order: key first."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from aiokprod.serializers import adapt

if TYPE_CHECKING:
    from aiokprod.records import Header, ProducerRecord
    from aiokprod.serializers import AnySerializer

Payload = tuple[bytes | None, bytes | None]


class RecordSerializers:
    """A producer's two serializers.

    Attributes:
        plain: both take bytes as they are, so that the fast path need not ask them.
    """

    def __init__(
        self, key_serializer: AnySerializer | None, value_serializer: AnySerializer | None
    ) -> None:
        self._key = adapt(key_serializer, "key")
        self._value = adapt(value_serializer, "value")
        self.plain = self._key.passthrough and self._value.passthrough

    def parts(self) -> tuple[object, object]:
        """The serializer objects, for `configure` and `close`."""
        return self._key.serializer, self._value.serializer

    async def serialize(self, record: ProducerRecord[Any, Any], headers: list[Header]) -> Payload:
        """(key, value); serializers may append to `headers` and may be asynchronous.

        Raises:
            SerializationError: a serializer failed; nothing was appended.
        """
        key = self._key(record.topic, headers, record.key)
        if type(key) is not bytes and inspect.isawaitable(key):
            key = await key
        value = self._value(record.topic, headers, record.value)
        if type(value) is not bytes and inspect.isawaitable(value):
            value = await value
        return key, value

    def serialize_now(self, record: ProducerRecord[Any, Any], headers: list[Header]) -> Payload:
        """As `serialize`, for callers that cannot wait.

        Raises:
            ConfigError: a serializer is asynchronous.
        """
        key = self._key.now(record.topic, headers, record.key)
        value = self._value.now(record.topic, headers, record.value)
        return key, value
