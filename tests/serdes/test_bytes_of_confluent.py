"""The bytes of the serializers are those of confluent-kafka's, in both framings, for records of
Hypothesis. AIOKPROD_SERDES_RECORDS=100000 for the long run (`make release-checks`)."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
    topic_subject_name_strategy,
)
from confluent_kafka.schema_registry import (
    SchemaReference as TheirReference,
)
from confluent_kafka.schema_registry.avro import AvroSerializer as TheirAvro
from confluent_kafka.schema_registry.json_schema import JSONSerializer as TheirJson
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer as TheirProtobuf
from confluent_kafka.serialization import SerializationContext
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from aiokprod.serdes import (
    AvroSerializer,
    Framing,
    JsonSchemaSerializer,
    ProtobufSerializer,
    Registry,
    RegistryRequest,
    RegistryResponse,
)
from aiokprod.serdes._schema_serializer import SchemaSerializer
from aiokprod.serializers import Field
from tests.serdes.memory_registry import URL
from tests.serdes.schemas import USER_JSON, Envelope, Many64, Place, Stamp, User

RECORDS = int(os.environ.get("AIOKPROD_SERDES_RECORDS", "150"))
"""Of each format; each is compared as key and as value in both framings."""

WAYS: list[tuple[Framing, Field]] = [
    ("prefix", "value"), ("header", "value"), ("prefix", "key"), ("header", "key")
]  # fmt: skip

each_record = settings(
    max_examples=RECORDS,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # a record that differs is small enough as it is
    suppress_health_check=[*HealthCheck],
)


class TheirRegistry:
    """The registry in memory of confluent-kafka, as the transport of ours: both have its ids."""

    def __init__(self) -> None:
        self.client = SchemaRegistryClient.new_client({"url": "mock://aiokprod"})

    async def __call__(self, request: RegistryRequest) -> RegistryResponse:
        path = request.url.removeprefix(URL).partition("?")[0].split("/")
        subject = path[2].replace("%2F", "/")
        assert request.body is not None
        document = json.loads(request.body)
        references = [
            TheirReference(one["name"], one["subject"], one["version"])
            for one in document.get("references", [])
        ]
        schema = Schema(document["schema"], document.get("schemaType", "AVRO"), references)
        found = self.client.register_schema_full_response(subject, schema)
        answer = {"id": found.schema_id, "guid": found.guid, "version": found.version}
        return RegistryResponse(200, json.dumps(answer).encode())


def theirs(kind: Any, registry: TheirRegistry, schema: Any, framing: Framing, **more: Any) -> Any:
    ids = prefix_schema_id_serializer if framing == "prefix" else header_schema_id_serializer
    configuration = {
        "auto.register.schemas": True,
        "schema.id.serializer": ids,
        "subject.name.strategy": topic_subject_name_strategy,
        **more,
    }
    if kind is TheirProtobuf:
        return kind(schema, registry.client, configuration)
    return (
        kind(registry.client, json.dumps(schema), conf=configuration)
        if (kind is TheirAvro)
        else kind(json.dumps(schema), registry.client, conf=configuration)
    )


def check(ours: SchemaSerializer, their: Any, field: Field, data: Any) -> None:
    """Key or value, and headers, are equal."""
    context = SerializationContext("users", field, [("a", b"1")])
    expected = their(data, context)
    headers: list[tuple[str, bytes | None]] = [("a", b"1")]
    result = ours.serialize("users", headers, data)
    if not isinstance(result, bytes | None):
        pending = result

        async def finished() -> Any:
            return await pending

        result = asyncio.run(finished())
    assert (result, headers) == (expected, context.headers)


integers = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
floats = st.floats(allow_nan=False)
AVRO = {
    "type": "record",
    "name": "Everything",
    "namespace": "example",
    "fields": [
        {"name": "text", "type": "string"},
        {"name": "number", "type": "int"},
        {"name": "long", "type": "long"},
        {"name": "flag", "type": "boolean"},
        {"name": "real", "type": "double"},
        {"name": "short", "type": "float"},
        {"name": "raw", "type": "bytes"},
        {"name": "maybe", "type": ["null", "string", "long"], "default": None},
        {"name": "list", "type": {"type": "array", "items": "long"}},
        {"name": "map", "type": {"type": "map", "values": "double"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9,
                                   "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "next", "type": ["null", "Everything"], "default": None},
    ],
}  # fmt: skip
_avro_fields: dict[str, Any] = {
    "text": st.text(),
    "number": integers,
    "long": longs,
    "flag": st.booleans(),
    "real": floats,
    "short": st.floats(allow_nan=False, width=32),
    "raw": st.binary(),
    "maybe": st.none() | st.text() | longs,
    "list": st.lists(longs, max_size=5),
    "map": st.dictionaries(st.text(), floats, max_size=5),
    "kind": st.sampled_from(["A", "B"]),
    "hash": st.binary(min_size=4, max_size=4),
    "price": st.decimals(-9999, 9999, places=2),
    "at": st.datetimes(timezones=st.timezones(), allow_imaginary=False),
    "day": st.dates(),
    "id": st.uuids(),
}
avro_records: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries(_avro_fields),
    lambda inner: st.fixed_dictionaries({**_avro_fields, "next": st.none() | inner}),
    max_leaves=3,
)
json_texts = st.text(st.characters(exclude_categories=["Cs"]))
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | longs | floats | json_texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(json_texts, inner, max_size=4),
    max_leaves=10,
)
json_records = st.fixed_dictionaries(
    {"name": json_texts},
    optional={
        "age": st.none() | longs,
        "tags": st.lists(json_texts, max_size=4),
        "score": floats.filter(lambda number: abs(number) < 1e308),
        "extra": st.dictionaries(json_texts, json_values, max_size=4),
    },
)
users = st.builds(
    User,
    name=json_texts,
    age=integers,
    score=floats,
    photo=st.binary(),
    tags=st.lists(json_texts, max_size=4),
    numbers=st.lists(longs, max_size=4),
    home=st.none() | st.builds(Place, town=json_texts),
    points=st.dictionaries(json_texts, integers, max_size=4),
)


def test_avro() -> None:
    registry = TheirRegistry()
    client = Registry(URL, transport=registry)
    pairs = [
        (
            AvroSerializer(client, AVRO, field=field, framing=framing, register=True),
            theirs(TheirAvro, registry, AVRO, framing),
            field,
        )
        for framing, field in WAYS
    ]

    @each_record
    @given(avro_records)
    def records(data: Any) -> None:
        for ours, their, field in pairs:
            check(ours, their, field, data)

    records()


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ("string", "text"),
        ('"string"', "text"),
        ({"type": "string"}, ""),
        ("bytes", b"\x00raw"),
        ({"type": "bytes"}, b""),
        ("long", -(1 << 63)),
        (["null", "string", "int"], 3),
        ({"type": "array", "items": "int"}, [1, 2]),
    ],
)
@pytest.mark.parametrize(("framing", "field"), WAYS)
def test_avro_without_record(framing: Framing, field: Field, schema: Any, data: Any) -> None:
    registry = TheirRegistry()
    ours = AvroSerializer(
        Registry(URL, transport=registry), schema, field=field, framing=framing, register=True
    )
    given_to_them = json.loads(schema) if schema == '"string"' else schema
    check(ours, theirs(TheirAvro, registry, given_to_them, framing), field, data)


def test_json_schema() -> None:
    registry = TheirRegistry()
    client = Registry(URL, transport=registry)
    pairs = [
        (
            JsonSchemaSerializer(client, USER_JSON, field=field, framing=framing, register=True),
            theirs(TheirJson, registry, USER_JSON, framing),
            field,
        )
        for framing, field in WAYS
    ]

    @each_record
    @given(json_records)
    def records(data: Any) -> None:
        for ours, their, field in pairs:
            check(ours, their, field, data)

    records()


def test_protobuf() -> None:
    registry = TheirRegistry()
    client = Registry(URL, transport=registry)
    pairs = [
        (
            ProtobufSerializer(client, User, field=field, framing=framing, register=True),
            theirs(TheirProtobuf, registry, User, framing),
            field,
        )
        for framing, field in WAYS
    ]

    @each_record
    @given(users)
    def records(data: Any) -> None:
        for ours, their, field in pairs:
            check(ours, their, field, data)

    records()


@pytest.mark.parametrize("message", [User, Envelope, Stamp, Many64])
@pytest.mark.parametrize(("framing", "field"), WAYS)
def test_protobuf_indexes_of_messages(framing: Framing, field: Field, message: Any) -> None:
    registry = TheirRegistry()
    ours = ProtobufSerializer(
        Registry(URL, transport=registry), message, field=field, framing=framing, register=True
    )
    check(ours, theirs(TheirProtobuf, registry, message, framing), field, message())
