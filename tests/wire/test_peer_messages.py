"""Our messages compared with the encoders and decoders of kio, kafka-python and aiokafka."""

from __future__ import annotations

import importlib
import io
from typing import Any
from uuid import UUID

import kio.schema.index
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from aiokprod._wire.headers import decode_request_header, encode_request
from aiokprod._wire.message import Message
from aiokprod._wire.message_schema import Struct, WireType, fields_of
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokprod._wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.wire.peers import AIOKAFKA, KAFKA_PYTHON
from tests.wire.strategies import VERSIONED, filled, project, structs, versioned_id


def is_response(message: type[Message]) -> bool:
    return message.__name__.endswith("Response")


def samples(message: type[Message], version: int) -> list[Any]:
    return [
        message(),
        filled(message, version),
        filled(message, version, null=True),
    ]


# ── kio: every version, generated from Kafka's schemas ───────────────────────────────────────────


def kio_class(message: type[Message], version: int) -> Any:
    api = kio.schema.index.api_key_map[message.api_key]
    kind = "response" if is_response(message) else "request"
    module = importlib.import_module(f"kio.schema.{api}.v{version}.{kind}")
    return getattr(module, message.__name__)


def assert_same_fields(ours: type[Struct], theirs: Any, version: int) -> None:
    """Check that the fields have the same names in the same order. kio converts `_ms` integers to
    timedelta and datetime."""
    names = [spec.name for spec in fields_of(ours) if spec.versions.covers(version)]
    fields = theirs.__dataclass_fields__
    renamed = [
        name + "_ms"
        if field.metadata.get("kafka_type") in ("timedelta_i32", "timedelta_i64", "datetime_i64")
        and name + "_ms" in names
        else name
        for name, field in fields.items()
        if "ClassVar" not in str(field.type)
    ]
    assert renamed == names
    module = importlib.import_module(theirs.__module__)
    for spec in fields_of(ours):
        if spec.element is not None and spec.versions.covers(version):
            assert_same_fields(spec.element, getattr(module, spec.element.__name__), version)


@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_kio_declares_the_same_fields(message: type[Message], version: int) -> None:
    assert_same_fields(message, kio_class(message, version), version)


@pytest.mark.parametrize(("message", "version"), VERSIONED, ids=versioned_id)
def test_kio_reads_our_bytes_and_writes_the_same(message: type[Message], version: int) -> None:
    theirs = kio_class(message, version)
    for sample in samples(message, version):
        ours = sample.encode(version)
        value, size = entity_reader(theirs)(ours, 0)
        assert size == len(ours)
        written = io.BytesIO()
        entity_writer(theirs)(written, value)
        assert written.getvalue() == ours


# ── kafka-python: every version, from Kafka's schemas at run time ───────────────────────────────

IN_KAFKA_PYTHON = [
    (message, version)
    for message, version in VERSIONED
    if message.__name__ in KAFKA_PYTHON
    # If the error code is not 0, kafka-python decodes version 0 instead of the given version.
    and message.__name__ != "ApiVersionsResponse"
]

RENAMED_BY_KAFKA_PYTHON = {
    "MetadataResponse",  # authorized operations become sets
    "FetchRequest",  # the replica state defaults to None
}


def squeezed(name: str) -> str:
    return name.replace("_", "").lower()


def as_dict(struct: Any, version: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for spec in fields_of(type(struct)):
        if not spec.versions.covers(version):
            continue
        value = getattr(struct, spec.name)
        if value is not None and spec.element is not None:
            value = (
                [as_dict(item, version) for item in value]
                if spec.array
                else as_dict(value, version)
            )
        elif spec.array and value is not None:
            value = list(value)
        elif spec.wire_type is WireType.UUID:
            value = UUID(bytes=value)
        result[squeezed(spec.name)] = value
    return result


def squeezed_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {squeezed(name): squeezed_names(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [squeezed_names(item) for item in value]
    return value


def through_kafka_python(message: type[Message], version: int, data: bytes) -> tuple[Any, bytes]:
    value = KAFKA_PYTHON[message.__name__].decode(data, version=version)
    value._header = None  # decoding leaves the slot unset, but encoding needs it
    return squeezed_names(value.to_dict(json=False)), value.encode(version=version)


@pytest.mark.parametrize(("message", "version"), IN_KAFKA_PYTHON, ids=versioned_id)
def test_kafka_python_reads_the_same_values_and_writes_the_same_bytes(
    message: type[Message], version: int
) -> None:
    for sample in samples(message, version):
        ours = sample.encode(version)
        values, written = through_kafka_python(message, version, ours)
        assert written == ours
        if message.__name__ not in RENAMED_BY_KAFKA_PYTHON:
            assert values == as_dict(sample, version)


@pytest.mark.parametrize(
    "message", sorted({message for message, _ in IN_KAFKA_PYTHON}, key=str), ids=versioned_id
)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_kafka_python_agrees_on_arbitrary_values(
    message: type[Message], data: st.DataObject
) -> None:
    value = data.draw(structs(message))
    for version in range(message.min_version, message.max_version + 1):
        sample = project(value, version)
        ours = sample.encode(version)
        values, written = through_kafka_python(message, version, ours)
        assert written == ours
        if message.__name__ not in RENAMED_BY_KAFKA_PYTHON:
            assert values == as_dict(sample, version)


# ── aiokafka: hand-written schemas of the older versions ─────────────────────────────────────────

IN_AIOKAFKA = [
    (message, version)
    for message, version in VERSIONED
    if (is_response(message), message.api_key, version) in AIOKAFKA
    # aiokafka's ListOffsets requests 4 and 5 lack the leader epoch; kio and kafka-python have it.
    and (message.__name__, version) not in {("ListOffsetsRequest", 4), ("ListOffsetsRequest", 5)}
]


def leaves(value: Any) -> list[Any]:
    """Return all values in wire order, without the tagged fields, which aiokafka keeps as bytes."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [] if isinstance(value, dict) else [value]


def our_leaves(struct: Any, version: int) -> list[Any]:
    result: list[Any] = []
    for spec in fields_of(type(struct)):
        if spec.versions.covers(version) and spec.tag is None:
            value = getattr(struct, spec.name)
            for item in value if spec.array and value is not None else [value]:
                result += our_leaves(item, version) if isinstance(item, Struct) else [item]
    return result


@pytest.mark.parametrize(("message", "version"), IN_AIOKAFKA, ids=versioned_id)
def test_aiokafka_reads_the_same_values_and_writes_the_same_bytes(
    message: type[Message], version: int
) -> None:
    theirs = AIOKAFKA[is_response(message), message.api_key, version]
    for sample in samples(message, version):
        ours = sample.encode(version)
        value = theirs.decode(ours)
        assert value.encode() == ours
        values = [value.__dict__[name] for name in value.SCHEMA.names]
        assert leaves(values) == our_leaves(sample, version)


def test_aiokafka_covers_the_apis_of_a_producer() -> None:
    assert {message.api_key for message, _ in IN_AIOKAFKA} >= {0, 1, 3, 10, 18, 22, 24, 25, 26, 28}


# ── whole frames ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_kafka_python_frames_a_produce_request_as_we_do(version: int) -> None:
    partition = PartitionProduceData(3, b"batch")
    ours = ProduceRequest(
        acks=-1, timeout_ms=500, topic_data=(TopicProduceData("t", partition_data=(partition,)),)
    )
    cls = KAFKA_PYTHON["ProduceRequest"]
    topic = cls.TopicProduceData
    theirs = cls(
        transactional_id=None,
        acks=-1,
        timeout_ms=500,
        topic_data=[
            topic(name="t", partition_data=[topic.PartitionProduceData(index=3, records=b"batch")])
        ],
        version=version,
    )
    theirs.with_header(correlation_id=9, client_id="me")
    framed = theirs.encode(header=True, framed=True)
    assert b"".join(encode_request(ours, version, 9, "me")) == framed
    header, body = decode_request_header(framed[4:])
    assert (header.correlation_id, header.client_id) == (9, "me")
    assert ProduceRequest.decode(body, version) == ours


@pytest.mark.parametrize("version", [0, 8, 9, 13])
def test_kafka_python_frames_a_metadata_request_as_we_do(version: int) -> None:
    ours = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
    theirs = KAFKA_PYTHON["MetadataRequest"].decode(ours.encode(version), version=version)
    theirs.with_header(correlation_id=-1, client_id=None)
    framed = theirs.encode(version=version, header=True, framed=True)
    assert b"".join(encode_request(ours, version, -1, None)) == framed
