from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from aiokprod import ConfigError, JsonSerializer
from aiokprod.serdes import JsonSchemaSerializer, Registry, SchemaReference
from aiokprod.serializers import SchemaMismatch
from tests.serdes.memory_registry import URL, MemoryRegistry
from tests.serdes.schemas import USER_JSON
from tests.virtual_time import in_virtual_time


async def ready(schema: Any, server: MemoryRegistry | None = None, **options: Any) -> Any:
    registry = Registry(URL, transport=server or MemoryRegistry())
    serializer = JsonSchemaSerializer(registry, schema, register=True, **options)
    await serializer.warm("t")
    return serializer


@in_virtual_time
async def test_mismatch_names_the_place_in_the_schema() -> None:
    serializer = await ready(USER_JSON)
    with pytest.raises(SchemaMismatch, match="schema User: properties/age/type"):
        serializer.serialize("t", [], {"name": "bob", "age": "x"})
    with pytest.raises(SchemaMismatch, match="schema User: required"):
        serializer.serialize("t", [], {})


@in_virtual_time
async def test_validation_can_be_left_out() -> None:
    serializer = await ready(USER_JSON, validate=False)
    assert serializer.serialize("t", [], {"other": 1}) == b'\0\0\0\0\x01{"other":1}'


@in_virtual_time
async def test_what_is_sent_is_validated_whatever_it_was_made_from() -> None:
    serializer = await ready(USER_JSON, encoder=JsonSerializer(backend="json"))
    assert serializer.serialize("t", [], {"name": "bob", "tags": ("a", "b")})
    with pytest.raises(SchemaMismatch, match="properties/name/type"):
        serializer.serialize("t", [], {"name": {1, 2}})


@in_virtual_time
async def test_references_are_those_of_the_registry() -> None:
    server = MemoryRegistry()
    server.register("town", json.dumps({"type": "string", "minLength": 2}), "JSON")
    schema = {"title": "Home", "properties": {"town": {"$ref": "town.json"}}}
    serializer = await ready(schema, server, references=[SchemaReference("town.json", "town", 1)])
    assert serializer.serialize("t", [], {"town": "ab"})
    with pytest.raises(SchemaMismatch, match=r"schema Home: properties/town/.*minLength"):
        serializer.serialize("t", [], {"town": "a"})


@in_virtual_time
async def test_references_are_not_used_if_nothing_is_validated() -> None:
    server = MemoryRegistry()
    server.register("town", "canary", "JSON")
    schema = {"properties": {"town": {"$ref": "town.json"}}}
    references = [SchemaReference("town.json", "town", 1)]
    serializer = await ready(schema, server, references=references, validate=False)
    assert serializer.serialize("t", [], {"town": 1}).endswith(b'{"town":1}')


@in_virtual_time
async def test_what_is_sent_is_what_convert_returns() -> None:
    serializer = await ready(USER_JSON, convert=lambda name: {"name": name})
    assert serializer.serialize("t", [], "bob") == b'\0\0\0\0\x01{"name":"bob"}'
    with pytest.raises(SchemaMismatch, match="properties/name/type"):
        serializer.serialize("t", [], 5)


@in_virtual_time
async def test_pickled_serializer_validates_with_the_references_that_it_knew() -> None:
    server = MemoryRegistry()
    server.register("town", json.dumps({"type": "string"}), "JSON")
    schema = {"title": "Home", "properties": {"town": {"$ref": "town.json"}}}
    references = [SchemaReference("town.json", "town", 1)]
    early = JsonSchemaSerializer(
        Registry(URL, transport=server), schema, references=references, register=True
    )
    late = await ready(schema, server, references=references)
    for one in (early, late):
        copy = pickle.loads(pickle.dumps(one))
        await copy.warm("t")
        assert copy.serialize("t", [], {"town": "a"}) == b'\0\0\0\0\x02{"town":"a"}'
        with pytest.raises(SchemaMismatch, match="schema Home: properties/town"):
            copy.serialize("t", [], {"town": 1})


@in_virtual_time
async def test_reference_to_elsewhere_is_not_fetched() -> None:
    schema = {"properties": {"a": {"$ref": "http://localhost:1/a.json"}}}
    serializer = await ready(schema)
    with pytest.raises(SchemaMismatch, match="cannot be applied"):
        serializer.serialize("t", [], {"a": 1})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"schema": "{"}, "is not JSON"),
        ({"schema": "3"}, "use an object"),
        ({"schema": {"type": "nothing"}}, "is not a valid JSON Schema"),
        ({"schema": True, "encoder": json.dumps}, "use a JsonSerializer"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        JsonSchemaSerializer(Registry(URL), **arguments)
