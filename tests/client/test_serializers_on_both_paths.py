"""Serializers give the same result on the fast path and on the slow path.

Each case runs with two producers. They differ only in the fast path, which is disabled in the
second one.
"""

from __future__ import annotations

import asyncio
import functools
import gc
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod import Producer, ProducerRecord
from aiokprod._core.serialization import FieldSerializer, SerializedRecord, SerializerPair
from aiokprod._core.yielding import YieldQueue
from aiokprod.errors import (
    BufferFull,
    ConfigError,
    KafkaError,
    Outcome,
    ProducerClosed,
    SerializationError,
)
from aiokprod.records import Header, RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.core.core_harness import PassCount
from tests.scenarios.scenario_helpers import make_producer, runtime_of

PARTITIONS = 3


class Text(bytes):
    """A subclass of bytes."""


@dataclass(frozen=True)
class Data:
    """A value to send. It determines the behaviour of the serializer."""

    does: str
    content: bytes


class Awaitable:
    """An awaitable that is not a coroutine."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __await__(self) -> Any:
        yield from asyncio.sleep(0).__await__()
        return self._result


class Scripted:
    """A serializer whose behaviour is determined by its data."""

    def __init__(self, name: str, calls: list[Any]) -> None:
        self.name = name
        self.calls = calls
        self.producer: Producer[Any, Any] | None = None
        self.inner: list[Any] = []

    def serialize(self, topic: str, headers: list[Header], data: Data) -> Any:
        self.calls.append((self.name, topic, list(headers), data))
        return getattr(self, "_" + data.does)(headers, data.content)

    def _bytes(self, headers: list[Header], content: bytes) -> Any:
        return content

    def _none(self, headers: list[Header], content: bytes) -> Any:
        return None

    def _subclass(self, headers: list[Header], content: bytes) -> Any:
        return Text(content)

    def _bytearray(self, headers: list[Header], content: bytes) -> Any:
        return bytearray(content)

    def _memoryview(self, headers: list[Header], content: bytes) -> Any:
        return memoryview(content)[::-1]

    def _str(self, headers: list[Header], content: bytes) -> Any:
        return content.hex()

    def _raises(self, headers: list[Header], content: bytes) -> Any:
        raise ValueError(content)

    def _raises_kafka_error(self, headers: list[Header], content: bytes) -> Any:
        raise BufferFull("of a serializer")

    def _header(self, headers: list[Header], content: bytes) -> Any:
        headers.append((self.name, content))
        return content

    def _wrong_header(self, headers: list[Header], content: bytes) -> Any:
        headers.append((self.name, "text"))  # type: ignore[arg-type]
        return content

    def _large(self, headers: list[Header], content: bytes) -> Any:
        return content.ljust(20_000, b"x")

    def _coroutine(self, headers: list[Header], content: bytes) -> Any:
        async def later() -> bytes:
            await asyncio.sleep(0.01)
            headers.append((self.name, None))
            return content

        return later()

    def _failing_coroutine(self, headers: list[Header], content: bytes) -> Any:
        async def later() -> bytes:
            raise KeyError(content)

        return later()

    def _wrong_coroutine(self, headers: list[Header], content: bytes) -> Any:
        async def later() -> Any:
            return Awaitable(content)

        return later()

    def _awaitable(self, headers: list[Header], content: bytes) -> Any:
        return Awaitable(content)

    def _reentrant(self, headers: list[Header], content: bytes) -> Any:
        """Send another record, which must be appended before the current one."""
        assert self.producer is not None
        inner = self.producer.try_submit("t", Data("bytes", b"inner " + content), partition=0)
        self.inner.append(inner)
        return content


DOES = sorted(
    name[1:]
    for name in vars(Scripted)
    if name.startswith("_") and not name.startswith("__") and name != "_"
)
data = st.builds(Data, st.sampled_from(DOES), st.binary(max_size=12)) | st.none()
headers = st.none() | st.lists(
    st.tuples(st.text("ab", max_size=2), st.none() | st.binary(max_size=3)), max_size=2
)
partitions = st.none() | st.integers(0, PARTITIONS - 1)
calls = st.sampled_from(["send", "submit", "try_submit", "column", "record"])


@dataclass(frozen=True)
class Case:
    """One record and the call that sends it."""

    call: str
    key: Data | None
    value: Data | None
    headers: Any
    partition: int | None
    timestamp_ms: int | None


cases = st.builds(Case, calls, data, data, headers, partitions, st.none() | st.integers(0, 2**41))


async def send(producer: Producer[Any, Any], case: Case) -> Any:
    """Send a record with the call of the case."""
    options: dict[str, Any] = {
        "key": case.key, "partition": case.partition, "timestamp_ms": case.timestamp_ms,
        "headers": case.headers,
    }  # fmt: skip
    if case.call == "send":
        return await producer.send("t", case.value, **options)
    if case.call == "submit":
        return await (await producer.submit("t", case.value, **options))
    if case.call == "try_submit":
        return await producer.try_submit("t", case.value, **options)
    if case.call == "column":
        stamps = [case.timestamp_ms]
        result = await producer.send_many(
            "t", [case.value], keys=[case.key], headers=[case.headers], timestamps_ms=stamps,
            partition=case.partition,
        )  # fmt: skip
    else:
        record = ProducerRecord(
            "t", case.value, case.key, case.partition, case.timestamp_ms, case.headers or ()
        )
        result = await producer.send_many([record])
    return result.errors.get(0) or (result.partitions[0], result.offsets[0])


def described(outcome: Any) -> Any:
    """Return the outcome without the parts that differ between two runs."""
    if isinstance(outcome, tuple):
        return outcome
    if isinstance(outcome, RecordMetadata):
        return outcome.topic, outcome.partition, outcome.offset, outcome.serialized_key_size
    assert isinstance(outcome, KafkaError), repr(outcome)
    cause = outcome.__cause__
    return type(outcome), str(outcome), outcome.outcome, type(cause), str(cause)


async def outcome_of(producer: Producer[Any, Any], case: Case) -> Any:
    try:
        return described(await send(producer, case))
    except KafkaError as error:
        return described(error)


def play(script: list[Case], *, slowly: bool = False) -> tuple[Any, ...]:
    """Send the records of the script with one producer. Return the outcomes, the calls of the
    serializers, and the log."""
    called: list[Any] = []
    key, value = Scripted("key", called), Scripted("value", called)

    async def main() -> tuple[Any, ...]:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", PARTITIONS)
        async with make_producer(
            cluster, key_serializer=key, value_serializer=value, max_request_size=15_000,
            linger_ms=0,
        ) as producer:  # fmt: skip
            key.producer = value.producer = producer
            await producer.send("t", None, partition=0)  # the fast path needs the topic's metadata
            if slowly:
                runtime_of(producer).fast_path.stop()
            outcomes = [await outcome_of(producer, case) for case in script]
            inner = [described(await one) for one in (*key.inner, *value.inner)]
            log = [
                [(r.key, r.value, tuple(r.headers)) for r in cluster.log("t", index)]
                for index in range(PARTITIONS)
            ]

        return outcomes, inner, log, called

    # `run` collects garbage, because an unawaited coroutine warns only then.
    return run(main, debug=False)


@settings(deadline=None, max_examples=100)
@given(st.lists(cases, min_size=1, max_size=6))
def test_every_behaviour_of_a_serializer_is_the_same_on_both_paths(script: list[Case]) -> None:
    assert play(script) == play(script, slowly=True)


@pytest.mark.parametrize("call", ["send", "submit", "try_submit", "column", "record"])
@pytest.mark.parametrize("does", DOES)
def test_serializer_is_called_once_for_each_record(call: str, does: str) -> None:
    case = Case(call, Data("bytes", b"k"), Data(does, b"v"), None, 0, None)
    *_, called = play([case])
    own = [entry for entry in called if entry[3] in (case.key, case.value)]
    assert [entry[0] for entry in own] == ["key", "value"]


def test_serializer_is_called_once_if_the_record_waits_for_memory() -> None:
    called: list[bytes] = []

    def noting(data: bytes) -> bytes:
        called.append(data)
        return data

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, value_serializer=noting, buffer_memory=4_000, linger_ms=10
        ) as producer:
            await producer.warm(["t"])
            values = [bytes([number]) * 900 for number in range(40)]
            handles = [await producer.submit("t", value) for value in values]
            await asyncio.gather(*handles)
            assert called == values
            called.clear()
            await producer.send_many("t", values)
            assert called == values
            called.clear()
            await producer.send_many([ProducerRecord("t", value) for value in values])
            assert called == values
            full = 0
            called.clear()
            for value in values:
                try:
                    producer.try_submit("t", value)
                except BufferFull:
                    full += 1
            assert full > 0
            assert called == values

    run(main)


@pytest.mark.parametrize("given", [None, [], [("h", b"0")]], ids=["none", "empty", "one"])
def test_value_serializer_can_append_headers_after_an_asynchronous_key(given: Any) -> None:
    class Key:
        async def serialize(self, topic: str, headers: list[Header], data: bytes) -> bytes:
            return data

    class Value:
        def serialize(self, topic: str, headers: list[Header], data: bytes) -> bytes:
            headers.append(("v", b"1"))
            return data

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, key_serializer=Key(), value_serializer=Value()
        ) as producer:
            await producer.warm(["t"])
            await producer.send("t", b"v", key=b"k", headers=given)
            [record] = cluster.log("t", 0)
            assert list(record.headers) == [*(given or ()), ("v", b"1")]

    run(main)


@pytest.mark.parametrize("slowly", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("call", ["submit", "try_submit"])
def test_interrupt_within_a_serializer_is_reported_as_a_refused_record(
    call: str, slowly: bool
) -> None:
    def interrupted(data: bytes) -> bytes:
        raise asyncio.CancelledError

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=interrupted) as producer:
            await producer.warm(["t"])
            if slowly:
                runtime_of(producer).fast_path.stop()
            with pytest.raises(asyncio.CancelledError):
                await getattr(producer, call)("t", b"v")
            assert producer.metrics()["records_refused"] == 1

    run(main)


def test_serializers_are_not_taken_as_called_if_there_was_no_memory_for_the_headers() -> None:
    """Otherwise the slow path would send the record without its key and value."""
    testcapi = pytest.importorskip("_testcapi")
    pair = SerializerPair(
        FieldSerializer(lambda *given: b"k", takes_topic=True, passthrough=False),
        FieldSerializer(lambda *given: b"v", takes_topic=True, passthrough=False),
    )
    record, given = SerializedRecord(), (("h", b"1"),)
    failed = False
    testcapi.set_nomemory(0)
    try:
        pair.serialize("t", given, "value", "key", record)
    except MemoryError:
        failed = True
    finally:
        testcapi.remove_mem_hooks()
    assert failed
    assert not record.is_started


def test_task_with_a_slow_serializer_lets_other_tasks_continue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Other tasks run at least after every second record, even before the 64th record and after a
    wait."""
    monkeypatch.setattr(
        "aiokprod._client.runtime.YieldQueue", functools.partial(YieldQueue, slice_length=-1.0)
    )

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=str.encode) as producer:
            await producer.warm(["t"])
            with PassCount() as counted:
                handles = [await producer.submit("t", "v") for _ in range(200)]
            assert counted.passes >= 90
            await asyncio.gather(*handles)

    run(main)


def test_records_with_serializers_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=str.encode) as producer:
            await producer.send("t", "a")  # fetches the topic's metadata
            monkeypatch.setattr(producer._slow_path, "append", None)
            monkeypatch.setattr(producer._slow_path, "try_append", None)
            await producer.send("t", "b")
            await (await producer.submit("t", "c"))
            await producer.try_submit("t", "d")
            result = await producer.send_many("t", ["e", "f"])
            result.raise_for_errors()
            assert [record.value for record in cluster.log("t", 0)] == [
                b"a", b"b", b"c", b"d", b"e", b"f",
            ]  # fmt: skip

    run(main)


def test_serializer_that_ends_the_producer_gets_its_record_refused() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)

        def ends(data: bytes) -> bytes:
            runtime_of(producer).fail(ProducerClosed("by a serializer"))
            return data

        producer = make_producer(cluster, value_serializer=ends)
        await producer.send("t", None)  # fetches the topic's metadata
        with pytest.raises(KafkaError) as caught:
            await producer.send("t", b"v")
        assert caught.value.outcome is Outcome.NOT_SENT
        await producer.close()
        assert len(cluster.log("t", 0)) == 1

    run(main)


def test_interrupt_within_a_serializer_reaches_the_caller_and_sends_nothing() -> None:
    def interrupted(data: bytes) -> bytes:
        raise KeyboardInterrupt

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=interrupted) as producer:
            await producer.send("t", None)  # fetches the topic's metadata
            with pytest.raises(KeyboardInterrupt):
                producer.try_submit("t", b"v")
            with pytest.raises(KeyboardInterrupt):
                producer.submit("t", b"v")  # type: ignore[unused-coroutine]
            await producer.flush()
            assert len(cluster.log("t", 0)) == 1

    run(main)


@pytest.mark.parametrize(
    "value", [bytearray(b"abc"), memoryview(b"abc"), memoryview(b"aXbXcX")[::2]]
)
def test_buffers_are_sent_without_a_serializer(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster) as producer:
            await producer.send("t", b"first")  # fetches the topic's metadata
            monkeypatch.setattr(producer._slow_path, "append", None)
            await producer.send("t", value, key=value)
            record = cluster.log("t", 0)[1]
            assert (record.key, record.value) == (b"abc", b"abc")

    run(main)


def test_released_memoryview_is_refused_by_name() -> None:
    released = memoryview(b"abc")
    released.release()

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster) as producer:
            await producer.warm(["t"])
            with pytest.raises(SerializationError, match="of type memoryview"):
                await producer.send("t", released)

    run(main)


def test_asynchronous_serializer_is_refused_by_try_submit_and_its_coroutine_closed() -> None:
    async def later(data: bytes) -> bytes:
        return data

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=later) as producer:
            await producer.warm(["t"])
            with pytest.raises(ConfigError, match="asynchronous"):
                producer.try_submit("t", b"v")

    run(main)
    gc.collect()


@pytest.mark.parametrize("slowly", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("field", ["key", "value"])
@pytest.mark.parametrize(("options", "took"), [({}, 1.0), ({"timeout": 0.25}, 0.25)])
def test_asynchronous_serializer_that_does_not_end_is_cancelled_in_time(
    options: dict[str, Any], took: float, field: str, slowly: bool
) -> None:
    ended: list[BaseException] = []

    async def never(data: bytes) -> bytes:
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            ended.append(error)
            raise
        raise AssertionError

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        serializers: Any = {f"{field}_serializer": never}
        async with make_producer(cluster, max_block_ms=1_000, **serializers) as producer:
            await producer.send("t", None)  # fetches the topic's metadata
            if slowly:
                runtime_of(producer).fast_path.stop()
            began = asyncio.get_running_loop().time()
            with pytest.raises(SerializationError, match="had not finished when") as caught:
                await producer.send("t", b"v", key=b"k", **options)
            assert caught.value.outcome is Outcome.NOT_SENT
            assert asyncio.get_running_loop().time() - began == pytest.approx(took)
            result = await producer.send_many("t", [b"v", b"w"], keys=[b"k", None])
            assert set(result.errors) >= {0}
            assert all(isinstance(e, SerializationError) for e in result.errors.values())
            assert producer.metrics()["records_refused"] >= 2
        assert isinstance(ended[0], asyncio.CancelledError)
        assert isinstance(caught.value.__cause__, TimeoutError)

    run(main)


def test_cancelled_call_of_an_asynchronous_serializer_is_a_cancellation() -> None:
    async def never(data: bytes) -> bytes:
        await asyncio.get_running_loop().create_future()
        raise AssertionError

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=never) as producer:
            await producer.send("t", None)
            task = asyncio.ensure_future(producer.send("t", b"v", timeout=5))
            await asyncio.sleep(1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await producer.send("t", b"v", timeout=5)

    run(main)
