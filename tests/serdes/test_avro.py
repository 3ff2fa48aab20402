from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from aiokprod import ConfigError
from aiokprod.serdes import AvroSerializer, Registry
from aiokprod.serializers import SchemaMismatch
from tests.serdes.memory_registry import URL, MemoryRegistry
from tests.serdes.schemas import BOB, USER
from tests.virtual_time import in_virtual_time


async def ready(schema: Any, **options: Any) -> AvroSerializer:
    registry = Registry(URL, transport=MemoryRegistry())
    serializer = AvroSerializer(registry, schema, register=True, **options)
    await serializer.warm("t")
    return serializer


@pytest.mark.parametrize(
    ("data", "where"),
    [
        ({"name": 3, "age": None}, "at example.User.name"),
        ({"age": None}, "at example.User.name"),
        ({"name": "bob", "age": "x"}, "at example.User.age"),
        (5, "example.User"),
    ],
)
@in_virtual_time
async def test_mismatch_names_schema_and_field(data: Any, where: str) -> None:
    serializer = await ready(USER)
    with pytest.raises(SchemaMismatch, match=where):
        serializer.serialize("t", [], data)


@in_virtual_time
async def test_strict_refuses_fields_that_the_schema_does_not_have() -> None:
    more = {**BOB, "other": 1}
    assert (await ready(USER)).serialize("t", [], more)
    with pytest.raises(SchemaMismatch):
        (await ready(USER, strict=True)).serialize("t", [], more)


@in_virtual_time
async def test_convert_makes_what_fastavro_writes() -> None:
    @dataclasses.dataclass
    class Person:
        name: str
        age: int

    serializer = await ready(USER, convert=dataclasses.asdict)
    assert serializer.serialize("t", [], Person("bob", 3)) == b"\0\0\0\0\x01\x06bob\x02\x06"


@pytest.mark.parametrize("schema", ["{", {"type": "record"}, {"type": "nothing"}])
def test_schema_is_checked(schema: Any) -> None:
    with pytest.raises(ConfigError, match=r"AvroSerializer\(schema=...\)"):
        AvroSerializer(Registry(URL), schema)
