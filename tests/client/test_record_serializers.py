"""Both serializers of a producer, synchronous or asynchronous, in the order of Java's producer."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from aiokprod._client.record_serializers import RecordSerializers
from aiokprod.errors import ConfigError, SerializationError
from aiokprod.records import Header, ProducerRecord

RECORD: ProducerRecord[Any, Any] = ProducerRecord("t", "v", "k")


class Noting:
    """Appends its name to the headers; if asynchronous, after an iteration of the event loop."""

    def __init__(self, name: str, log: list[str], asynchronous: bool) -> None:
        self.name, self.log, self.asynchronous = name, log, asynchronous

    def serialize(self, topic: str, headers: Any, data: str) -> Any:
        if self.asynchronous:
            return self._later(headers, data)
        return self._now(headers, data)

    async def _later(self, headers: list[Header], data: str) -> bytes:
        await asyncio.sleep(0)
        return self._now(headers, data)

    def _now(self, headers: list[Header], data: str) -> bytes:
        self.log.append(self.name)
        headers.append((self.name, None))
        return data.encode()


@pytest.mark.parametrize("key_later", [False, True])
@pytest.mark.parametrize("value_later", [False, True])
def test_key_is_serialized_before_the_value_also_if_one_has_to_be_awaited(
    key_later: bool, value_later: bool
) -> None:
    log: list[str] = []
    both = RecordSerializers(Noting("key", log, key_later), Noting("value", log, value_later))
    started = both.start(RECORD)
    assert asyncio.run(both.finish(RECORD, started, math.inf)) == (b"v", b"k")
    assert (log, started.headers) == (["key", "value"], [("key", None), ("value", None)])
    assert not both.plain


def test_value_is_not_serialized_after_a_key_that_fails() -> None:
    log: list[str] = []

    async def fails(data: Any) -> bytes:
        raise ZeroDivisionError

    both = RecordSerializers(fails, Noting("value", log, False))
    with pytest.raises(SerializationError, match="key_serializer"):
        asyncio.run(both.finish(RECORD, both.start(RECORD), math.inf))
    assert log == []


@pytest.mark.parametrize(("key_later", "value_later"), [(True, False), (False, True)])
def test_asynchronous_serializer_is_refused_where_nothing_can_be_awaited(
    key_later: bool, value_later: bool
) -> None:
    log: list[str] = []
    both = RecordSerializers(Noting("key", log, key_later), Noting("value", log, value_later))
    name = "key" if key_later else "value"
    with pytest.raises(ConfigError, match=f"{name}_serializer Noting is asynchronous"):
        both.finish_now(both.start(RECORD))
    now = RecordSerializers(Noting("key", log, False), Noting("value", log, False))
    assert now.finish_now(now.start(RECORD)) == (b"v", b"k")


def test_producer_without_serializers_takes_bytes_as_they_are() -> None:
    none = RecordSerializers(None, None)
    assert none.plain
    assert none.finish_now(none.start(ProducerRecord("t", b"v", None))) == (b"v", None)
