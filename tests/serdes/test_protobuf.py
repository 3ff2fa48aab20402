from __future__ import annotations

import pickle
from typing import Any

import pytest

from aiokprod import ConfigError
from aiokprod.serdes import ProtobufSerializer, Registry, RegistryError, SchemaReference
from aiokprod.serializers import SchemaMismatch, WrongType
from tests.serdes.memory_registry import URL, MemoryRegistry
from tests.serdes.schemas import Place, Strict, User
from tests.virtual_time import in_virtual_time


@in_virtual_time
async def test_imported_files_are_registered_first_under_their_path() -> None:
    server = MemoryRegistry()
    serializer = ProtobufSerializer(Registry(URL, transport=server), User, register=True)
    await serializer.warm("t")
    assert server.requests == [
        "POST /subjects/example%2Fcommon.proto/versions", "POST /subjects/t-value/versions"
    ]  # fmt: skip
    reference = {"name": "example/common.proto", "subject": "example/common.proto", "version": 1}
    assert server.bodies[1]["references"] == [reference]
    assert server.bodies[1]["schemaType"] == "PROTOBUF"


@in_virtual_time
async def test_text_of_the_schema_needs_the_references() -> None:
    server = MemoryRegistry()
    registry = Registry(URL, transport=server)
    with pytest.raises(ConfigError, match="name them in references"):
        ProtobufSerializer(registry, User, schema="syntax = ...")
    serializer = ProtobufSerializer(
        registry,
        User,
        schema="syntax = ...",
        references=(SchemaReference("example/common.proto", "common", 3),),
        register=True,
    )
    await serializer.warm("t")
    assert server.requests == ["POST /subjects/t-value/versions"]
    assert server.bodies[0]["schema"] == "syntax = ..."


@in_virtual_time
async def test_wrong_messages_are_refused_without_their_content() -> None:
    registry = Registry(URL, transport=MemoryRegistry())
    serializer = ProtobufSerializer(registry, Strict, register=True)
    await serializer.warm("t")
    with pytest.raises(WrongType, match=r"expected example.Strict, not Place"):
        serializer.serialize("t", [], Place(town="canary"))
    with pytest.raises(SchemaMismatch, match="required and not set: number"):
        serializer.serialize("t", [], Strict())


@in_virtual_time
async def test_deterministic_maps() -> None:
    registry = Registry(URL, transport=MemoryRegistry())
    serializer = ProtobufSerializer(registry, User, deterministic=True, register=True)
    await serializer.warm("t")
    names = [str(number) for number in range(50)]
    made = {
        serializer.serialize("t", [], User(points=dict.fromkeys(order, 1)))
        for order in (names, names[::-1])
    }
    assert len(made) == 1


@in_virtual_time
async def test_imported_file_without_a_version_is_an_error() -> None:
    server = MemoryRegistry()
    server.refusals = [(200, {"id": 1})] * 2
    serializer = ProtobufSerializer(Registry(URL, transport=server), User, register=True)
    with pytest.raises(RegistryError, match="no valid version") as caught:
        await serializer.warm("t")
    assert caught.value.subject == "example/common.proto"
    assert server.requests == [
        "POST /subjects/example%2Fcommon.proto/versions", "POST /subjects/example%2Fcommon.proto"
    ]  # fmt: skip


@in_virtual_time
async def test_pickled_serializer_encodes_without_a_request() -> None:
    server = MemoryRegistry()
    serializer = ProtobufSerializer(Registry(URL, transport=server), User, register=True)
    await serializer.warm("t")
    asked = len(server.requests)
    copy = pickle.loads(pickle.dumps(serializer))
    assert copy.serialize("t", [], User(name="a")) == b"\0\0\0\0\x02\0\x0a\x01a"
    await copy.warm("other")
    assert len(copy.registry._transport.requests) == asked + 1


@pytest.mark.parametrize("given", [dict, User(), None])
def test_class_of_messages_is_checked(given: Any) -> None:
    with pytest.raises(ConfigError, match="use a class that protoc has generated"):
        ProtobufSerializer(Registry(URL), given)
