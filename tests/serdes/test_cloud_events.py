from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from aiokprod import ConfigError, JsonSerializer, SerializationError, StringSerializer
from aiokprod.serdes import event_record, send_event
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import make_producer
from tests.virtual_time import in_virtual_time


def event(data: Any = None, **more: Any) -> CloudEvent:
    attributes = {
        "id": "1",
        "source": "/orders",
        "type": "created",
        "specversion": "1.0",
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "datacontenttype": "application/json",
        **more,
    }
    return CloudEvent(attributes, data)


@pytest.mark.parametrize("mode", ["binary", "structured"])
@in_virtual_time
async def test_event_is_read_back_by_the_library(mode: Any) -> None:
    cluster = FakeCluster(brokers=1)
    cluster.create_topic("t", 1)
    sent = event({"a": 1}, partitionkey="k1")
    async with make_producer(cluster) as producer:
        metadata = await send_event(producer, "t", sent, mode=mode)
        assert metadata.offset == 0
        await send_event(producer, "t", sent, mode=mode, key=b"other")
    first, second = cluster.log("t", 0)
    assert (first.key, second.key) == (b"k1", b"other")
    headers = {name: value or b"" for name, value in first.headers}
    assert first.value is not None
    found = from_kafka(KafkaMessage(headers, first.key, first.value), JSONFormat())
    assert found.get_data() == {"a": 1}
    assert found.get_attributes() == sent.get_attributes()
    assert ("ce_id" in headers) == (mode == "binary")


@in_virtual_time
async def test_key_goes_through_the_key_serializer() -> None:
    cluster = FakeCluster(brokers=1)
    cluster.create_topic("t", 1)
    async with make_producer(cluster, key_serializer=StringSerializer("utf-16-be")) as producer:
        await send_event(producer, "t", event(partitionkey="k"))
    assert cluster.log("t", 0)[0].key == b"\0k"


def test_event_without_data_is_a_null_value_in_binary_mode() -> None:
    key, value, headers = event_record(event())
    assert (key, value) == (None, None)
    assert ("ce_type", b"created") in headers
    structured = event_record(event(), mode="structured")[1]
    assert structured is not None
    assert json.loads(structured)["type"] == "created"


@in_virtual_time
async def test_producer_with_a_value_serializer_is_refused() -> None:
    cluster = FakeCluster(brokers=1)
    async with make_producer(cluster, value_serializer=JsonSerializer()) as producer:
        with pytest.raises(ConfigError, match="has a value_serializer"):
            await send_event(producer, "t", event({"a": 1}))


def test_arguments_are_checked_and_data_not_shown() -> None:
    with pytest.raises(ConfigError, match="mode='batch'"):
        event_record(event(), mode="batch")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="event=<dict>"):
        event_record({})
    with pytest.raises(SerializationError, match="cannot be encoded") as caught:
        event_record(event({"canary": object()}))
    assert caught.value.__context__ is None
