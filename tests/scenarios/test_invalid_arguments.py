"""Invalid input: the error names field, value and fix in bounded time, and other records are not
affected."""

from __future__ import annotations

import array
import asyncio
import math
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aiokprod._core.record_fields import DELIVERY_CHARGE, record_size_bound
from aiokprod.errors import (
    ConfigError,
    KafkaError,
    MetadataMissing,
    MetadataTimeout,
    Outcome,
    RecordTooLarge,
    SerializationError,
)
from aiokprod.producer import Producer
from aiokprod.records import ProducerRecord, RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import TICK, History, error_of, harness, now, play, scenario

TOPICS = ["", ".", "..", "a" * 250, "bad name", "ü", "a/b", None, 5, b"t", "\udc80", "t\n", "t\0"]


async def both_ways(producer: Producer[Any, Any], **arguments: Any) -> list[KafkaError]:
    """Return the errors of `send` and `try_submit` for the same arguments."""
    found = []
    for method in (producer.send, producer.try_submit):
        with pytest.raises(KafkaError) as info:
            await method(**arguments)
        assert info.value.outcome is Outcome.NOT_SENT
        found.append(info.value)
    return found


@scenario()
async def test_bad_topics_are_refused_by_name(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    topic: Any
    for topic in TOPICS:
        for error in await both_ways(producer, topic=topic, value=b"v"):
            assert isinstance(error, ConfigError)
            assert isinstance(error, ValueError)
            assert "topic" in str(error)
        for call in (producer.partitions_for(topic), producer.warm([topic])):
            with pytest.raises(ConfigError, match="topic"):
                await call
        with pytest.raises(ConfigError):
            await producer.send_many(topic, [b"v"])
    await history.send()
    history.all_acked()


@scenario()
@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("partition", value) for value in (-1, True, 1.0, "0", 2**31, 2**70, b"1")),
        *(("timestamp_ms", value) for value in (-1, True, 1.0, "0", 2**63, 2**70, math.nan)),
        ("headers", [("a",)]),
        ("headers", [("a", b"b", 1)]),
        ("headers", [(b"a", b"b")]),
        ("headers", [("a", "b")]),
        ("headers", [("\udc80", b"")]),
        ("headers", [(None, b"")]),
        ("headers", ["ab"]),
        ("headers", 5),
        ("headers", "ab"),
        ("headers", [("a", 5)]),
        ("headers", [None]),
    ],
)
async def test_bad_fields_are_refused_by_name(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, field: str, value: Any
) -> None:
    await history.send()
    arguments = {"topic": "t", "value": b"v", field: value}
    for error in await both_ways(producer, **arguments):
        assert isinstance(error, ConfigError)
        assert field.split("_")[0] in str(error)
    await history.send()
    history.all_acked()


@scenario()
@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize("data", ["text", 5, 1.5, True, object(), [b"x"], array.array("i", [1])])
async def test_data_that_is_no_bytes_is_refused_by_name(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, field: str, data: Any
) -> None:
    await history.send()
    for error in await both_ways(producer, **{"topic": "t", "value": b"v", field: data}):
        assert isinstance(error, SerializationError)
        assert field in str(error)
        assert type(data).__name__ in str(error)
    await history.send()
    history.all_acked()


@scenario(partitions=1)
@pytest.mark.parametrize("timeout", [-1, 0, math.nan, "5", b"5", [], object()])
async def test_bad_timeouts_are_refused_by_name(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, timeout: Any
) -> None:
    with pytest.raises(ConfigError, match="timeout"):
        await producer.send("t", b"v", timeout=timeout)
    if timeout != 0:
        with pytest.raises(ConfigError, match="timeout"):
            await producer.flush(timeout)
        with pytest.raises(ConfigError, match="timeout"):
            await producer.close(timeout)
    await history.send()
    history.all_acked()


@scenario(partitions=1)
async def test_infinite_timeout_is_no_timeout(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send(timeout=math.inf)
    await producer.flush(math.inf)
    history.all_acked()


def released() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


@scenario()
async def test_released_views_are_refused_by_name(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    for field in ("key", "value"):
        for error in await both_ways(producer, **{"topic": "t", "value": b"v", field: released()}):
            assert isinstance(error, SerializationError)
            assert field in str(error)
    headers = [("h", b""), ("gone", released())]
    for error in await both_ways(producer, topic="t", value=b"v", headers=headers):
        assert isinstance(error, ConfigError)
        assert "headers[1] ('gone')" in str(error)
    await history.send()
    history.all_acked()


@scenario(partitions=1)
async def test_views_and_mutable_buffers_are_taken_as_they_are_now(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    buffer = bytearray(b"before")
    headers: list[Any] = [("h", buffer)]
    deliveries = [
        await producer.submit("t", buffer, partition=0),
        await producer.submit("t", memoryview(buffer), partition=0),
        await producer.submit("t", memoryview(b"abcdef")[::2], partition=0),
        await producer.submit("t", b"", key=buffer, partition=0, headers=headers),
        await producer.submit("t", memoryview(array.array("i", [1, 2])), partition=0),
    ]
    buffer[:] = b"after!"
    await asyncio.gather(*deliveries)
    stored = cluster.log("t", 0)
    values = [record.value for record in stored]
    assert values[:4] == [b"before", b"before", b"ace", b""]
    assert values[4] == array.array("i", [1, 2]).tobytes()
    assert stored[3].key == b"before"
    assert stored[3].headers == (("h", b"before"),)


@scenario(partitions=1)
async def test_null_and_empty_are_kept_apart(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    for key, value in ((None, None), (b"", b""), (None, b""), (b"", None)):
        await producer.send("t", value, key=key, partition=0)
    headers = [("n", None), ("e", b""), ("", b"x"), ("ü€😀", b"y"), ("n", b"again")]
    await producer.send("t", b"h", headers=headers, partition=0)
    stored = cluster.log("t", 0)
    assert [(r.key, r.value) for r in stored[:4]] == [
        (None, None),
        (b"", b""),
        (None, b""),
        (b"", None),
    ]
    assert list(stored[4].headers) == headers


@scenario(partitions=1, max_request_size=100_000)
@pytest.mark.parametrize("field", ["key", "value", "headers"])
async def test_too_large_record_is_refused_with_the_sizes(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, field: str
) -> None:
    await history.send()
    huge = b"x" * 100_001
    arguments = {field: [("h", huge)] if field == "headers" else huge}
    for error in await both_ways(producer, topic="t", **arguments):
        assert isinstance(error, RecordTooLarge)
        assert "100000" in str(error)
        assert "max_request_size" in str(error)
    await history.send()
    history.all_acked()


@scenario(partitions=1)
async def test_too_many_headers_are_refused_or_stored(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    few = [("h", b"")] * 10_000
    await producer.send("t", b"few", headers=few, partition=0)
    assert len(cluster.log("t", 0)[0].headers) == 10_000
    with pytest.raises(RecordTooLarge):
        await producer.send("t", b"many", headers=[("h", b"")] * 400_000, partition=0)
    await history.send()


# -- send_many ----------------------------------------------------------------------------------


def raising() -> Iterator[bytes]:
    yield b"1"
    raise RuntimeError("midway")


@scenario(partitions=1)
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("t", "text"), {}),
        (("t", b"bytes"), {}),
        (("t",), {}),
        (("t", 5), {}),
        (("t", [b"1", b"2"]), {"keys": [b"k"]}),
        (("t", [b"1"]), {"keys": [b"k", b"l"]}),
        (("t", [b"1"]), {"keys": b"k"}),
        (("t", iter([b"1", b"2"])), {"keys": iter([b"k"])}),
        (("t", [b"1", b"2"]), {"headers": [None]}),
        (("t", [b"1", b"2"]), {"timestamps_ms": [1]}),
        (("t", [b"1"]), {"partition": -1}),
        (("t", [b"1"]), {"partition": "0"}),
        (([ProducerRecord("t", b"1")],), {"keys": [b"k"]}),
        ((None, [b"1"]), {}),
        ((5,), {}),
    ],
)
async def test_send_many_refuses_the_whole_call_before_sending(
    cluster: FakeCluster,
    producer: Producer[Any, Any],
    history: History,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError):
        await producer.send_many(*arguments, **options)
    assert cluster.log("t", 0) == []
    await history.send()
    history.all_acked()


@scenario(partitions=1)
async def test_send_many_passes_the_error_of_its_input_on(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    with pytest.raises(RuntimeError, match="midway"):
        await producer.send_many("t", raising())
    await producer.flush()
    await history.send()


@scenario(partitions=1)
@pytest.mark.parametrize(
    ("values", "options", "bad"),
    [
        ([b"1", 5, b"3"], {}, 1),
        ([b"1", b"2"], {"keys": [b"k", 5]}, 1),
        ([b"1", b"2"], {"headers": [[("a", 5)], None]}, 0),
        ([b"1", b"2"], {"timestamps_ms": [-1, 1]}, 0),
        ([b"1", b"x" * 2_000_000, b"3"], {}, 1),
        ([b"1", "\udc80"], {}, 1),
    ],
)
async def test_send_many_fails_the_bad_record_only(
    cluster: FakeCluster,
    producer: Producer[Any, Any],
    history: History,
    values: list[bytes | int | str],
    options: dict[str, Any],
    bad: int,
) -> None:
    result = await producer.send_many("t", values, partition=0, **options)
    assert len(result) == len(values)
    assert not result.ok
    assert list(result.errors) == [bad]
    assert result.errors[bad].outcome is Outcome.NOT_SENT
    assert result.offsets[bad] is None
    wanted = [value for index, value in enumerate(values) if index != bad]
    assert cluster.values("t", 0) == wanted
    for index, offset in enumerate(result.offsets):
        if index != bad:
            assert offset is not None
            assert cluster.values("t", 0)[offset] == values[index]


@scenario(partitions=1)
async def test_send_many_of_records_fails_strangers_only(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    records: list[Any] = [ProducerRecord("t", b"1"), "stranger", ProducerRecord("t", b"2"), None]
    result = await producer.send_many(records)
    assert list(result.errors) == [1, 3]
    assert cluster.values("t", 0) == [b"1", b"2"]
    empty = await producer.send_many([])
    assert empty.ok
    assert len(empty) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"topic": "a b"},
        {"topic": "t", "partition": -1},
        {"topic": "t", "partition": 1.5},
        {"topic": "t", "timestamp_ms": -1},
        {"topic": "t", "timestamp_ms": 2**63},
    ],
)
def test_producer_record_refuses_bad_fields(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ProducerRecord(**fields)


# -- configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "servers",
    [
        "", [], None, 5, "host", "host:", "host:x", ":9092", "host:0", "host:70000", "::1:9092",
        "h h:1", "a:1;b:2", b"a:1", ["a:1", 5], "host:-1", "h:1:2", "host:9092/path", "h\udc80:1",
        ",", "a:1\0",
    ],
)  # fmt: skip
def test_bad_bootstrap_servers_are_refused_by_name(servers: Any) -> None:
    with pytest.raises(ConfigError, match="bootstrap_servers"):
        Producer(bootstrap_servers=servers)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", 2), ("acks", "two"), ("acks", None), ("retries", -1), ("retries", "3"),
        ("linger_ms", -1), ("linger_ms", "5"), ("linger_ms", 1.5), ("linger_ms", True),
        ("batch_size", -1), ("buffer_memory", 0), ("compression_type", "brotli"),
        ("compression_type", None), ("client_id", 5), ("client_id", "a\nb"),
        ("client_id", "\udc80"), ("client_id", "x" * 40_000), ("request_timeout_ms", 0),
        ("max_request_size", 2**40), ("max_block_ms", -1), ("security_protocol", "x"),
        ("max_in_flight_requests_per_connection", 0), ("delivery_timeout_ms", math.nan),
        ("key_serializer", 5), ("value_serializer", "StringSerializer"), ("partitioner", 5),
        ("interceptors", 5), ("interceptors", [5]), ("observer", 5), ("environment", 5),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=name.rstrip("s")):
        Producer(bootstrap_servers="h:1", **{name: value})


@pytest.mark.parametrize(
    "settings",
    [
        {"acks": 0, "enable_idempotence": True},
        {"acks": 1, "enable_idempotence": True},
        {"retries": 0, "enable_idempotence": True},
        {"max_in_flight_requests_per_connection": 6, "enable_idempotence": True},
        {"delivery_timeout_ms": 10, "linger_ms": 5},
    ],
)
def test_conflicting_settings_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as info:
        Producer(bootstrap_servers="h:1", **settings)
    assert any(name in str(info.value) for name in settings)


@pytest.mark.parametrize("name", ["lingr_ms", "linger.ms.", "bootstrap", "acs"])
def test_unknown_settings_are_refused_with_the_nearest_name(name: str) -> None:
    settings: dict[str, Any] = {name: 5}
    with pytest.raises(ConfigError, match="did you mean"):
        Producer(bootstrap_servers="h:1", **settings)


# -- extension points ---------------------------------------------------------------------------


@pytest.mark.parametrize("result", [-1, 1000, 2**40, "0", None, True, 1.0])
def test_partitioner_that_returns_nonsense_fails_its_record(result: float | str | None) -> None:
    async def main() -> None:
        async with harness(partitions=2, partitioner=lambda *a: result) as (_, producer, history):
            start = now()
            with pytest.raises(KafkaError) as info:
                await producer.send("t", b"v", key=b"k")
            assert info.value.outcome is Outcome.NOT_SENT
            assert now() - start <= 60 + TICK
            await history.send()
            history.all_acked()

    play(main)


@pytest.mark.parametrize("result", ["text", 5, object()])
def test_serializer_that_returns_nonsense_fails_its_record(result: object | int | str) -> None:
    async def main() -> None:
        async with harness(key_serializer=lambda data: result) as (_, producer, history):
            with pytest.raises(SerializationError, match="key_serializer"):
                await producer.send("t", b"v", key=b"k", partition=0)
            await history.send()
            history.all_acked()

    play(main)


@pytest.mark.parametrize("result", [None, 5, "x"])
def test_interceptor_that_returns_nonsense_is_ignored(result: int | str | None) -> None:
    class Strange:
        def on_send(self, record: ProducerRecord[Any, Any]) -> Any:
            return result

        def on_acknowledgement(
            self, metadata: RecordMetadata | None, error: KafkaError | None
        ) -> Any:
            return result

        def close(self) -> Any:
            return result

    async def main() -> None:
        async with harness(interceptors=[Strange()]) as (_, _, history):
            await history.send()
            history.all_acked()

    play(main)


@scenario(topic=None, cluster={"auto_create": False}, max_block_ms=2_000)
async def test_warm_refuses_a_bare_name(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    with pytest.raises(ConfigError):
        await producer.warm("topic")
    with pytest.raises(ConfigError):
        await producer.warm(5)  # type: ignore[arg-type]
    with pytest.raises(MetadataTimeout):
        await producer.warm(["absent"])


# -- anything at all ----------------------------------------------------------------------------

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.lists(st.binary(max_size=3), max_size=3),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
    st.dictionaries(st.text(max_size=3), st.binary(max_size=3), max_size=3),
)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "topic": st.just("t") | ANYTHING,
            "value": st.binary(max_size=50) | ANYTHING,
            "key": st.binary(max_size=50) | ANYTHING,
            "partition": st.integers(0, 1) | ANYTHING,
            "timestamp_ms": st.integers(0, 2**63 - 1) | ANYTHING,
            "headers": ANYTHING,
            "timeout": st.floats(0.1, 100) | ANYTHING,
        },
    )
)
def test_any_arguments_end_in_an_answer_or_a_documented_error(arguments: dict[str, Any]) -> None:
    async def main() -> None:
        async with harness(partitions=2, max_block_ms=3_000) as (cluster, producer, history):
            start = now()
            try:
                metadata = await producer.send(**({"topic": "t"} | arguments))
            except KafkaError as error:
                assert error.outcome is Outcome.NOT_SENT, repr(error)  # noqa: PT017
            else:
                assert metadata.topic in cluster.topics
            assert now() - start <= 3 + TICK
            attempt = await history.send()
            assert attempt.acked, error_of(attempt)
            assert cluster.violations == []

    play(main)


@scenario()
async def test_partition_that_try_submit_does_not_know_is_named(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    with pytest.raises(MetadataMissing, match="metadata of topic t is not known"):
        producer.try_submit("t", b"", partition=3)
    await producer.warm(["t"])
    with pytest.raises(MetadataMissing, match="metadata of partition 3 of topic t is not known"):
        producer.try_submit("t", b"", partition=3)


@pytest.mark.parametrize("by", ["send", "try_submit", "send_many", "send_table"])
def test_record_as_large_as_the_whole_buffer_is_taken_and_one_byte_more_is_refused(by: str) -> None:
    value = b"v" * 2_000
    size = record_size_bound(value, None, ()) + DELIVERY_CHARGE

    async def main() -> None:
        async with harness(buffer_memory=size, batch_size=500) as (cluster, producer, _):
            await producer.warm(["t"])

            async def hand_over(value: Any) -> None:
                if by == "send":
                    await producer.send("t", value, partition=0)
                elif by == "send_many":
                    (await producer.send_many("t", [value], partition=0)).raise_for_errors()
                elif by == "send_table":
                    (
                        await producer.send_table("t", pa.table({"value": [value]}))
                    ).raise_for_errors()
                else:
                    await producer.try_submit("t", value, partition=0)

            await hand_over(value)
            with pytest.raises(RecordTooLarge, match="buffer_memory"):
                await hand_over(value + b"v")
            assert cluster.values("t", 0) == [value]

    play(main)
