"""Serializers with a registry in a producer, in virtual time: when they send requests to the
registry, which calls wait, and the texts of errors."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import pytest

from aiokprod import ConfigError, Producer, SchemaMissing, SerializationError, WouldBlock
from aiokprod._client.slow_path import SlowPath
from aiokprod.serdes import (
    AvroSerializer,
    JsonSchemaSerializer,
    Registry,
    RegistryError,
    SchemaReference,
    record_name,
    topic_record_name,
)
from aiokprod.serdes._shared_calls import RepeatableProblem
from aiokprod.serializers import Field
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.scenarios.scenario_helpers import make_producer, now
from tests.serdes.memory_registry import URL, MemoryRegistry
from tests.serdes.schemas import BOB, USER, USER_JSON
from tests.virtual_time import in_virtual_time

ENCODED = b"\x06bob\x02\x06"


def cluster_with(topic: str = "users") -> FakeCluster:
    cluster = FakeCluster(brokers=1)
    cluster.create_topic(topic, 1)
    return cluster


def avro(server: MemoryRegistry, **options: Any) -> AvroSerializer:
    return AvroSerializer(Registry(URL, transport=server), USER, **options)


def producer_for(cluster: FakeCluster, serializer: Any, **options: Any) -> Producer[Any, Any]:
    return make_producer(cluster, value_serializer=serializer, **options)


def log_of(cluster: FakeCluster, topic: str = "users") -> list[Any]:
    return [(record.value, list(record.headers)) for record in cluster.log(topic, 0)]


def test_ten_thousand_concurrent_first_sends_make_one_request() -> None:
    cluster, server = cluster_with(), MemoryRegistry(delay=1.0)

    async def main() -> None:
        async with producer_for(cluster, avro(server, register=True)) as producer:
            await asyncio.gather(*(producer.send("users", BOB) for _ in range(10_000)))

    run(main, debug=False)
    assert server.requests == ["POST /subjects/users-value/versions"]
    assert log_of(cluster) == [(b"\0\0\0\0\x01" + ENCODED, [])] * 10_000


@in_virtual_time
async def test_serializers_of_one_registry_share_requests() -> None:
    server = MemoryRegistry()
    registry = Registry(URL, transport=server)
    both = [AvroSerializer(registry, USER, register=True) for _ in range(2)]
    await asyncio.gather(*(one.warm("users") for one in both))
    await AvroSerializer(registry, USER, register=True).warm("users")
    assert len(server.requests) == 1


@in_virtual_time
async def test_records_stay_on_the_fast_path_once_the_id_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    async with producer_for(cluster, avro(server, register=True)) as producer:
        await producer.warm(["users"])
        await producer.send("users", BOB)  # opens a batch
        monkeypatch.setattr(SlowPath, "try_append", None)  # a call of the slow path would fail
        for _ in range(100):
            producer.try_submit("users", BOB)
        monkeypatch.undo()
        await producer.flush()
    assert len(log_of(cluster)) == 101
    assert len(server.requests) == 1


@in_virtual_time
async def test_try_submit_asks_the_registry_and_would_block() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    async with producer_for(cluster, avro(server, register=True)) as producer:
        await producer.partitions_for("users")
        for _ in range(3):
            with pytest.raises(SchemaMissing, match=r"topic users: AvroSerializer") as caught:
                producer.try_submit("users", BOB)
            assert isinstance(caught.value, WouldBlock)
            assert caught.value.retriable
        await asyncio.sleep(0.1)
        producer.try_submit("users", BOB)
    assert len(server.requests) == 1
    assert len(log_of(cluster)) == 1


@in_virtual_time
async def test_registry_that_is_down_stops_only_unknown_schemas() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    cluster.create_topic("others", 1)
    serializer = avro(server, register=True)
    async with producer_for(cluster, serializer, max_block_ms=2_000) as producer:
        await producer.warm(["users"])
        server.is_down = True
        begun = now()
        with pytest.raises(SerializationError, match=r"others-value.*ConnectionRefused") as caught:
            await producer.send("others", BOB)
        assert now() - begun <= 2.0
        assert caught.value.retriable
        await producer.send("users", BOB)
        server.is_down = False
        await asyncio.sleep(1.1)  # a failure is cached for one second
        await producer.send("others", BOB)


@in_virtual_time
async def test_registry_that_does_not_respond_is_waited_for_until_max_block_ms() -> None:
    cluster, server = cluster_with(), MemoryRegistry(delay=1e6)
    async with producer_for(cluster, avro(server), max_block_ms=2_000) as producer:
        await producer.partitions_for("users")
        begun = now()
        with pytest.raises(SerializationError, match="max_block_ms"):
            await producer.send("users", BOB)
        assert now() - begun == pytest.approx(2.0)
    async with producer_for(cluster, avro(server)) as producer:
        with pytest.raises(SerializationError, match=r"users-value.*no response within 10 s"):
            await producer.send("users", BOB)


@in_virtual_time
async def test_failure_is_not_a_request_for_each_record() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    async with producer_for(cluster, avro(server)) as producer:
        for _ in range(50):
            with pytest.raises(SerializationError, match=r"users-value.*status 404, code 40401"):
                await producer.send("users", BOB)
        with pytest.raises(SerializationError, match="code 40401"):
            producer.try_submit("users", BOB)
    assert len(server.requests) == 1


@in_virtual_time
async def test_cancelled_send_leaves_the_request_to_the_others() -> None:
    cluster, server = cluster_with(), MemoryRegistry(delay=1.0)
    async with producer_for(cluster, avro(server, register=True)) as producer:
        first, second = (asyncio.create_task(producer.send("users", BOB)) for _ in range(2))
        await asyncio.sleep(0.5)
        first.cancel()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
    assert len(server.requests) == 1


@in_virtual_time
async def test_close_ends_requests_for_which_no_record_waits() -> None:
    cluster, server = cluster_with(), MemoryRegistry(delay=1e6)
    async with producer_for(cluster, avro(server)) as producer:
        await producer.partitions_for("users")
        with pytest.raises(SchemaMissing):
            producer.try_submit("users", BOB)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    left = [one.get_name() for one in asyncio.all_tasks() if "schema" in one.get_name()]
    assert left == []


@in_virtual_time
async def test_close_of_one_producer_leaves_requests_to_others_that_share_the_serializer() -> None:
    cluster, server = cluster_with(), MemoryRegistry(delay=1.0)
    serializer = avro(server, register=True)
    async with producer_for(cluster, serializer) as producer:
        async with producer_for(cluster, serializer) as other:
            sending = asyncio.create_task(producer.send("users", BOB))
            await other.partitions_for("users")
            await asyncio.sleep(0.5)
        await sending
    assert len(server.requests) == 1


@in_virtual_time
async def test_frame_that_was_displaced_is_asked_for_again() -> None:
    server = MemoryRegistry()
    registry = Registry(URL, transport=server, cache=1)
    serializer = AvroSerializer(registry, USER, register=True)
    for topic in ("a", "b", "b", "a"):
        await serializer.warm(topic)
        assert serializer.serialize(topic, [], BOB) == b"\0\0\0\0\x01" + ENCODED
    assert [one.split("/")[2] for one in server.requests] == ["a-value", "b-value", "a-value"]


@in_virtual_time
async def test_records_whose_frames_displace_each_other_are_all_sent() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    cluster.create_topic("others", 1)
    registry = Registry(URL, transport=server, cache=1)
    serializer = AvroSerializer(registry, USER, register=True)
    async with producer_for(cluster, serializer) as producer:
        await asyncio.gather(*(producer.send(topic, BOB) for topic in ("users", "others") * 3))
    assert len(log_of(cluster)) == len(log_of(cluster, "others")) == 3


@in_virtual_time
async def test_guid_goes_to_a_header_in_place_of_one_that_is_there() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    serializer = avro(server, register=True, framing="header")
    stale = ("__value_schema_id", b"\x01stale")
    frame = ("__value_schema_id", b"\x01" + server.guid(1).bytes)
    async with producer_for(cluster, serializer) as producer:
        for _ in range(2):
            await producer.send("users", BOB, headers=[("a", b"1"), stale, ("b", None)])
        await producer.send("users", BOB)
    with_others = (ENCODED, [("a", b"1"), ("b", None), frame])
    assert log_of(cluster) == [with_others, with_others, (ENCODED, [frame])]


@in_virtual_time
async def test_registry_without_guid_is_an_error_of_header_framing_only() -> None:
    server = MemoryRegistry()
    server.gives_guid = False
    await avro(server, register=True).warm("users")
    with pytest.raises(RegistryError, match="returns no GUID"):
        await avro(server, register=True, framing="header").warm("users")


@in_virtual_time
async def test_warm_names_topic_and_reason() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    async with producer_for(cluster, avro(server)) as producer:
        with pytest.raises(
            SerializationError,
            match=r"topic 'users': value_serializer AvroSerializer cannot be prepared: subject "
            r"'users-value'.*40401",
        ):
            await producer.warm(["users"])


@in_virtual_time
async def test_warm_prepares_key_and_value_at_the_same_time() -> None:
    cluster, server = cluster_with(), MemoryRegistry(delay=1.0)
    registry = Registry(URL, transport=server)
    key = AvroSerializer(registry, "string", field="key", register=True)
    value = AvroSerializer(registry, USER, register=True)
    async with make_producer(cluster, key_serializer=key, value_serializer=value) as producer:
        begun = now()
        await producer.warm(["users"])
        assert now() - begun < 1.5
        producer.try_submit("users", BOB, key="k")
    assert sorted(server.requests) == [
        "POST /subjects/users-key/versions", "POST /subjects/users-value/versions"
    ]  # fmt: skip


def test_serializer_for_the_other_field_is_refused() -> None:
    serializer = avro(MemoryRegistry(), field="key")
    with pytest.raises(ConfigError, match="set field='value'"):
        Producer(bootstrap_servers="b:1", value_serializer=serializer)


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (record_name, "example.User"),
        (topic_record_name, "users-example.User"),
        ("fixed/name", "fixed%2Fname"),
        (lambda topic, field, record: f"{field}.{topic}.{record}", "value.users.example.User"),
    ],
)
@in_virtual_time
async def test_subjects(subject: Any, expected: str) -> None:
    server = MemoryRegistry()
    await avro(server, subject=subject, register=True).warm("users")
    assert server.requests == [f"POST /subjects/{expected}/versions"]


@in_virtual_time
async def test_subject_that_cannot_be_made_is_an_error_of_the_record() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    registry = Registry(URL, transport=server)
    unnamed = AvroSerializer(registry, "string", subject=record_name)
    async with producer_for(cluster, unnamed) as producer:
        with pytest.raises(SerializationError, match="the schema has no name"):
            await producer.send("users", "text")
    wrong: Any = lambda topic, field, record: None  # noqa: E731
    with pytest.raises(RepeatableProblem, match="returned NoneType"):
        await avro(server, subject=wrong).warm("users")

    def failing(topic: str, field: Field, record: str | None) -> str:
        raise LookupError("canary")

    with pytest.raises(RepeatableProblem, match=r"the schema cannot be used \(LookupError\)$"):
        await avro(server, subject=failing).warm("users")
    assert server.requests == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"field": "both"}, "field='both'"),
        ({"framing": "suffix"}, "framing='suffix'"),
        ({"subject": ""}, "subject=''"),
        ({"references": ["a"]}, "SchemaReference"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        avro(MemoryRegistry(), **options)
    with pytest.raises(ConfigError, match="use a Registry"):
        AvroSerializer("http://localhost", USER)  # type: ignore[arg-type]


@in_virtual_time
async def test_references_are_fetched_once_in_the_order_of_their_use() -> None:
    """`Order` refers to `Item` and `Place`, and `Item` refers to `Place`."""
    server = MemoryRegistry()
    place = {"type": "record", "name": "Place", "fields": [{"name": "town", "type": "string"}]}
    item = {"type": "record", "name": "Item", "fields": [{"name": "from", "type": "Place"}]}
    order = {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "item", "type": "Item"}, {"name": "to", "type": "Place"}],
    }
    to_place = {"name": "Place", "subject": "place", "version": 1}
    server.register("place", json.dumps(place))
    server.register("item", json.dumps(item), "AVRO", [to_place])
    serializer = AvroSerializer(
        Registry(URL, transport=server),
        order,
        references=[SchemaReference("Item", "item", 1), SchemaReference("Place", "place", 1)],
        register=True,
    )
    for topic in ("orders", "more"):
        await serializer.warm(topic)
    encoded = serializer.serialize(
        "orders", [], {"item": {"from": {"town": "a"}}, "to": {"town": ""}}
    )
    assert encoded == b"\0\0\0\0\x03\x02a\0"
    assert sorted(server.requests) == [
        "GET /subjects/item/versions/1",
        "GET /subjects/place/versions/1",
        "POST /subjects/more-value/versions",
        "POST /subjects/orders-value/versions",
    ]


@in_virtual_time
async def test_references_that_form_a_cycle_are_an_error() -> None:
    server = MemoryRegistry()
    for one, other in (("a", "b"), ("b", "a")):
        to_other = {"name": other, "subject": other, "version": 1}
        server.register(one, json.dumps({"type": "record", "name": one}), "AVRO", [to_other])
    serializer = avro(server, references=[SchemaReference("a", "a", 1)], register=True)
    with pytest.raises(RegistryError, match="nested more than 32 levels deep") as caught:
        await serializer.warm("users")
    assert not caught.value.retriable
    assert server.requests[1:] == ["GET /subjects/a/versions/1", "GET /subjects/b/versions/1"]


def test_copy_of_a_pickled_serializer_knows_its_frames_and_has_no_producer() -> None:
    cluster, server = cluster_with(), MemoryRegistry()
    serializer = avro(server, register=True)

    async def main() -> AvroSerializer:
        async with producer_for(cluster, serializer) as producer:
            await producer.warm(["users"])
            copy: AvroSerializer = pickle.loads(pickle.dumps(serializer))
        return copy

    copy = run(main)
    assert copy.serialize("users", [], BOB) == b"\0\0\0\0\x01" + ENCODED
    assert (serializer._users, copy._users) == (0, 0)


@in_virtual_time
async def test_no_payload_is_in_the_text_of_an_error() -> None:
    """Error texts of the libraries quote data. See also tests/secret_leak_check.py."""
    cluster, server = cluster_with(), MemoryRegistry()
    registry = Registry(URL, transport=server)
    bad: list[tuple[Any, Any]] = [
        (AvroSerializer(registry, USER, register=True), {"name": "bob", "age": "canary"}),
        (AvroSerializer(registry, USER, register=True, strict=True), {**BOB, "canary": "canary"}),
        (AvroSerializer(registry, "bytes", register=True), 7),
        (JsonSchemaSerializer(registry, USER_JSON, register=True), {"name": {"canary": "canary"}}),
        (JsonSchemaSerializer(registry, USER_JSON, register=True), {"name": "\ud800canary"}),
        (JsonSchemaSerializer(registry, USER_JSON, register=True), {"canary": object()}),
    ]
    for serializer, data in bad:
        async with producer_for(cluster, serializer) as producer:
            for _ in range(2):
                with pytest.raises(SerializationError) as caught:
                    await producer.send("users", data)
                error: BaseException | None = caught.value
                while error is not None:
                    assert "canary" not in f"{error} {error!r} {error.args}"
                    error = error.__cause__ or error.__context__
