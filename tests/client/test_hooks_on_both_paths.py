"""Partitioners, interceptors and plug-ins behave alike on the fast path and on the slow path.

Each case runs with two producers. They differ only in the fast path, which is disabled in the
second one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod import Observer, Producer, ProducerRecord, RecordMetadata
from aiokprod._client.record_hooks import RecordHooks
from aiokprod._client.record_serializers import RecordSerializers
from aiokprod._core.append import Appender
from aiokprod._core.batch import BatchCore
from aiokprod._core.memory import MemoryBudget
from aiokprod._core.slots import PartitionSlot, TopicSlot
from aiokprod._core.yielding import YieldQueue
from aiokprod.errors import (
    BufferFull,
    ConfigError,
    KafkaError,
    MetadataMissing,
    Outcome,
    ProducerClosed,
    RecordTooLarge,
)
from aiokprod.partitioners import ConsistentRandomPartitioner, RoundRobinPartitioner
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from benchmarks.append_harness import StillLoop
from tests.client.test_serializers_on_both_paths import described
from tests.scenarios.scenario_helpers import make_producer, runtime_of

PARTITIONS = 3


class Number(enum.IntEnum):
    """An int subclass, which is not a valid partition."""

    TWO = 2


@dataclass(frozen=True)
class Case:
    """One record, the call that sends it, and the behaviour of each hook."""

    call: str
    partitioner: str
    interceptor: str
    serializer: str
    plugin: str
    partition: int | None
    headers: Any


class Script:
    """A serializer, a partitioner and an interceptor that behave as the current case requires.

    The value of a record is its case until the serializer converts it to bytes.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.inner: list[Any] = []
        self.plugin = "token"
        self.producer: Producer[Any, Any] | None = None

    def configure(self, config: Any) -> None:
        """Do nothing."""

    def close(self) -> None:
        self.calls.append("close")

    def send(self, what: str) -> None:
        """Send another record, which is appended before the current one."""
        assert self.producer is not None
        self.inner.append(self.producer.try_submit("t", what.encode(), partition=0))

    # -- serializer --

    def serialize(self, topic: str, headers: list[Any], data: Any) -> Any:
        if isinstance(data, bytes):
            return data
        self.calls.append(("serialize", topic, list(headers)))
        if data.serializer == "raises":
            raise ValueError(data.call)
        if data.serializer == "header":
            headers.append(("s", b"1"))
        if data.serializer == "large":
            return b"x" * 20_000
        if data.serializer == "coroutine":
            return self.later(data)
        return data.partitioner.encode()

    async def later(self, data: Case) -> bytes:
        await asyncio.sleep(0.01)
        return data.partitioner.encode()

    # -- partitioner

    def partition(
        self, topic: str, key: Any, key_bytes: Any, value: Any, value_bytes: Any, cluster: Any
    ) -> Any:
        self.calls.append(("partition", topic, key, key_bytes, value, value_bytes))
        assert cluster.partition_count(topic) == PARTITIONS
        does = value.partitioner if isinstance(value, Case) else "plain"
        if does == "raises":
            raise LookupError(topic)
        if does == "raises_kafka_error":
            raise BufferFull("of a partitioner")
        if does == "reentrant":
            self.send("from the partitioner")
        return RESULTS.get(does, 1)

    # -- interceptor

    def on_send(self, record: Any) -> Any:
        case = record.value
        if not isinstance(case, Case):
            return record
        self.calls.append(("on_send", record))
        if case.interceptor == "raises":
            raise OSError
        if case.interceptor == "rubbish":
            return "a record"
        if case.interceptor == "reentrant":
            self.send("from the interceptor")
        if case.interceptor == "appends_header" and isinstance(record.headers, list):
            record.headers.append(("a", None))
        return dataclasses.replace(record, **CHANGES.get(case.interceptor, {}))

    def on_acknowledgement(self, metadata: Any, error: Any, headers: Any = ()) -> None:
        self.calls.append(
            ("end", metadata, error and (described(error), error.topic, error.partition), headers)
        )

    # -- plug-in

    def on_append(self, topic: str, key: Any, value: Any, headers: Any) -> Any:
        self.calls.append(("on_append", topic, key, value, headers))
        does, token = self.plugin, len(self.calls)
        if does == "raises":
            raise AttributeError
        if does == "reentrant" and value != b"from the plug-in":
            self.send("from the plug-in")
        if does == "header":
            return [*headers, ("p", b"3")], token
        if does == "no_token":
            return headers, None
        return PLUGIN_RESULTS.get(does, (headers, token))

    def on_batch_settled(self, batch: Any, tokens: Any, base_offset: Any, error: Any) -> None:
        topic_partition = tuple(batch.topic_partition)
        self.calls.append(
            ("settled", topic_partition, tokens, base_offset, error and described(error))
        )

    def on_record_unsent(self, topic: str, partition: Any, token: Any, error: Any) -> None:
        self.calls.append(("unsent", topic, partition, token, described(error)))


class Counting:
    """An interceptor whose `on_acknowledgement` takes no headers, as in older versions."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = 0

    def on_send(self, record: Any) -> Any:
        self.sent += 1
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        assert (metadata is None) != (error is None)
        self.ended += 1

    def close(self) -> None:
        """Do nothing: no resource is open."""


class Tokens:
    """A plug-in that gives each record a token and records the end of each token. Both of its end
    hooks raise."""

    def __init__(self) -> None:
        self.given = 0
        self.refused_early = 0
        self.ended: list[int] = []

    def on_append(self, topic: str, key: Any, value: Any, headers: Any) -> Any:
        self.given += 1
        return headers, self.given

    def on_batch_settled(self, batch: Any, tokens: Any, base_offset: Any, error: Any) -> None:
        assert (error is None) == (base_offset is not None)
        assert [index for index, _ in tokens] == sorted({index for index, _ in tokens})
        assert all(0 <= index < batch.core.record_count for index, _ in tokens)
        self.ended += [token for _, token in tokens]
        raise ArithmeticError

    def on_record_unsent(self, topic: str, partition: Any, token: Any, error: Any) -> None:
        assert isinstance(error, KafkaError)
        if token is None:
            self.refused_early += 1
        else:
            self.ended.append(token)
        raise ArithmeticError


class Refusals(Observer):
    """Records the rejected records."""

    def __init__(self) -> None:
        self.refused: list[Any] = []

    def on_record_refused(self, error: KafkaError) -> None:
        self.refused.append((type(error), error.topic, error.partition))


RESULTS: dict[str, Any] = {
    "plain": 1, "bool": True, "negative": -1, "too_large": PARTITIONS, "huge": 2**70, "text": "1",
    "nothing": None, "float": 1.0, "enum": Number.TWO,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "topic": {"topic": "u"}, "missing_topic": {"topic": "missing"}, "key": {"key": b"k"},
    "partition": {"partition": 2}, "missing_partition": {"partition": 7},
    "timestamp": {"timestamp_ms": 77}, "header": {"headers": [("i", b"2")]},
    "wrong_header": {"headers": [("i", "2")]}, "header_mapping": {"headers": {"i": b"2"}},
    "value": {"value": b"changed"},
}  # fmt: skip

PLUGIN_RESULTS: dict[str, Any] = {
    "none": None, "number": 5, "long": ((), 1, 2), "text_headers": ("headers", 1),
    "wrong_headers": ([("p", "text")], 1), "list": [(), 1],
}  # fmt: skip

cases = st.builds(
    Case,
    st.sampled_from(["send", "submit", "try_submit", "column", "record"]),
    st.sampled_from([*RESULTS, "raises", "raises_kafka_error", "reentrant"]),
    st.sampled_from([*CHANGES, "same", "raises", "rubbish", "reentrant", "appends_header"]),
    st.sampled_from(["bytes", "bytes", "raises", "header", "large", "coroutine"]),
    st.sampled_from([*PLUGIN_RESULTS, "token", "no_token", "raises", "header", "reentrant"]),
    st.none() | st.none() | st.integers(0, PARTITIONS - 1),
    st.none() | st.just([("h", b"0")]),
)


async def send(producer: Producer[Any, Any], case: Case) -> Any:
    """Send a record with the call of the case. Return its result, or the error of the call or of
    the record."""
    options: dict[str, Any] = {"partition": case.partition, "headers": case.headers}
    try:
        if case.call == "send":
            return await producer.send("t", case, **options)
        if case.call == "submit":
            return await (await producer.submit("t", case, **options))
        if case.call == "try_submit":
            return await producer.try_submit("t", case, **options)
        if case.call == "column":
            options["headers"] = [case.headers]
            result = await producer.send_many("t", [case], **options)
        else:
            record: ProducerRecord[Any, Any] = ProducerRecord(
                "t", case, None, case.partition, None, case.headers or ()
            )
            result = await producer.send_many([record])
        return result.errors.get(0) or (result.partitions[0], result.offsets[0])
    except Exception as error:
        return error


def told(outcome: Any) -> Any:
    """Return the outcome without the parts that differ between two runs."""
    if isinstance(outcome, Exception) and not isinstance(outcome, KafkaError):
        return type(outcome), str(outcome)
    if isinstance(outcome, KafkaError):
        return described(outcome), outcome.topic, outcome.partition
    return described(outcome)


def play(script: list[Case], *, slowly: bool = False) -> tuple[Any, ...]:
    """Send the records of the script with one producer. Return the outcomes, the calls of hooks,
    and the log."""
    user, counting, refusals, tokens = Script(), Counting(), Refusals(), Tokens()

    async def main() -> tuple[Any, ...]:
        cluster = FakeCluster(brokers=1, auto_create=False)
        for topic in ("t", "u"):
            cluster.create_topic(topic, PARTITIONS)
        async with make_producer(
            cluster, value_serializer=user, partitioner=user, interceptors=[user, counting],
            plugins=[user, tokens], observer=refusals, max_request_size=15_000, linger_ms=0,
            max_block_ms=500,
        ) as producer:  # fmt: skip
            user.producer = producer
            for topic in ("t", "u"):  # the fast path needs the topic's metadata
                await producer.send(topic, None, partition=0)
            if slowly:
                runtime_of(producer).fast_path.stop()
            outcomes = []
            for case in script:
                user.plugin = case.plugin
                outcomes.append(told(await send(producer, case)))
            inner = [told(await one) for one in user.inner]
            log = [
                [(r.key, r.value, tuple(r.headers)) for r in cluster.log(topic, index)]
                for topic in ("t", "u")
                for index in range(PARTITIONS)
            ]
            assert producer.metrics()["records_refused"] == len(refusals.refused)
        assert counting.sent == counting.ended == len(script) + len(inner) + 2
        ends = [call for call in user.calls if call[0] == "end"]
        assert len(ends) == counting.ended
        failed = [outcome for outcome in outcomes if not isinstance(outcome[0], (str, int))]
        assert len(refusals.refused) == len(failed)
        assert sorted(tokens.ended) == list(range(1, tokens.given + 1))
        assert tokens.given + tokens.refused_early == counting.sent
        return outcomes, inner, log, user.calls, refusals.refused

    # `run` collects garbage, because an unawaited coroutine warns only then.
    return run(main, debug=False)


@settings(deadline=None, max_examples=50)
@given(st.lists(cases, min_size=1, max_size=5))
def test_every_behaviour_of_hooks_is_the_same_on_both_paths(script: list[Case]) -> None:
    assert comparable(play(script)) == comparable(play(script, slowly=True))


def comparable(played: tuple[Any, ...]) -> list[Any]:
    """Return the results of `play` without timestamps."""
    outcomes, inner, log, calls, refused = played
    plain = []
    for call in calls:
        if call[0] == "end" and call[1] is not None:
            call = ("end", call[1].topic, call[1].partition, call[1].offset, *call[2:])
        plain.append(call)
    return [outcomes, inner, log, plain, refused]


@pytest.mark.parametrize(
    "options",
    [
        {"partitioner": RoundRobinPartitioner()},
        {"partitioner": ConsistentRandomPartitioner()},
        {"partitioner": lambda *arguments: 0},
        {"interceptors": [Counting()]},
        {"interceptors": [Counting()], "partitioner": lambda *arguments: 0},
    ],
    ids=["round robin", "consistent random", "callable", "interceptor", "both"],
)
def test_hooks_do_not_leave_the_fast_path(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", PARTITIONS)
        async with make_producer(cluster, **options) as producer:
            await producer.send("t", b"a")  # fetches the topic's metadata
            monkeypatch.setattr(producer._slow_path, "append", None)
            monkeypatch.setattr(producer._slow_path, "try_append", None)
            await producer.send("t", b"b", key=b"k")
            await (await producer.submit("t", b"c"))
            await producer.try_submit("t", b"d")
            (await producer.send_many("t", [b"e", b"f"])).raise_for_errors()
            (await producer.send_many([ProducerRecord("t", b"g")])).raise_for_errors()
            values = [r.value for index in range(PARTITIONS) for r in cluster.log("t", index)]
            assert sorted(v for v in values if v) == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]

    run(main)


def test_partitioner_is_not_called_for_a_record_that_is_too_large_or_has_to_wait() -> None:
    async def main() -> None:
        called: list[Any] = []

        def partitioner(topic: str, key: Any, *rest: Any) -> int:
            called.append(key)
            return 0

        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, partitioner=partitioner, buffer_memory=4_000, max_request_size=3_000
        ) as producer:
            with pytest.raises(MetadataMissing):
                producer.try_submit("t", b"v")
            await producer.warm(["t"])
            with pytest.raises(RecordTooLarge):
                producer.try_submit("t", bytes(3_000))
            assert called == []
            cluster.control(0, faults.delay(1.0))
            first = producer.try_submit("t", bytes(2_500), key=b"first")
            waiting = asyncio.ensure_future(producer.submit("t", bytes(2_500), key=b"second"))
            await asyncio.sleep(0)
            assert called == [b"first"]
            await first
            await (await waiting)
            assert called == [b"first", b"second"]

    run(main)


def test_partitioner_gets_the_snapshot_of_the_newest_metadata() -> None:
    async def main() -> None:
        seen: list[Any] = []

        def partitioner(topic: str, key: Any, kb: Any, value: Any, vb: Any, snapshot: Any) -> int:
            seen.append(snapshot)
            return int(snapshot.partition_count(topic)) - 1

        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, partitioner=partitioner) as producer:
            await producer.send("t", b"0")
            assert (await producer.send("t", b"1")).partition == 0
            cluster.expand_topic("t", 3)
            await producer.refresh_metadata()
            assert (await producer.send("t", b"2")).partition == 2
            assert seen[-1] is runtime_of(producer).metadata.snapshot

    run(main)


@pytest.mark.parametrize("call", ["submit", "try_submit"])
def test_interrupt_in_a_partitioner_is_reported_to_interceptors_once(call: str) -> None:
    def partitioner(*arguments: Any) -> int:
        raise KeyboardInterrupt

    async def main() -> None:
        counting, refusals = Counting(), Refusals()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, partitioner=partitioner, interceptors=[counting], observer=refusals
        ) as producer:
            await producer.send("t", b"v", partition=0)
            with pytest.raises(KeyboardInterrupt):
                getattr(producer, call)("t", b"v")
            assert counting.sent == counting.ended == 2
            assert refusals.refused == [(KafkaError, "t", None)]

    run(main)


def unchanged(data: bytes) -> bytes:
    """A serializer that takes no headers."""
    return data


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("call", ["submit", "try_submit"])
def test_record_without_headers_is_reported_although_no_serializer_takes_headers(
    call: str, error: type[BaseException]
) -> None:
    """In this case no list of headers was created."""

    def partitioner(*arguments: Any) -> int:
        raise error

    async def main() -> None:
        script = Script()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, partitioner=partitioner, interceptors=[script, counting := Counting()],
            key_serializer=unchanged, value_serializer=unchanged,
        ) as producer:  # fmt: skip
            await producer.warm(["t"])
            with pytest.raises(error):
                await getattr(producer, call)("t", b"v")
            assert counting.sent == counting.ended == 1
            assert [entry[3] for entry in script.calls if entry[0] == "end"] == [()]

    run(main)


def test_record_without_headers_is_reported_if_its_call_is_cancelled_before_it_runs() -> None:
    async def main() -> None:
        counting = Counting()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, interceptors=[counting], key_serializer=unchanged, value_serializer=unchanged,
            buffer_memory=4_000,
        ) as producer:  # fmt: skip
            await producer.warm(["t"])
            cluster.control(0, faults.delay(1.0))
            first = producer.try_submit("t", bytes(3_000))
            task = asyncio.ensure_future(producer.submit("t", bytes(3_000)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            await first
            gc.collect()
            await asyncio.sleep(0)
            assert counting.sent == counting.ended == 2

    run(main, debug=False)


def test_partitioner_that_ends_the_producer_gets_its_record_refused() -> None:
    async def main() -> None:
        counting = Counting()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)

        def partitioner(*arguments: Any) -> int:
            runtime_of(producer).fail(ProducerClosed("by a partitioner"))
            return 0

        producer = make_producer(cluster, partitioner=partitioner, interceptors=[counting])
        await producer.send("t", b"v", partition=0)
        with pytest.raises(KafkaError) as caught:
            await producer.send("t", b"v")
        assert caught.value.outcome is Outcome.NOT_SENT
        assert counting.sent == counting.ended == 2
        await producer.close()
        assert len(cluster.log("t", 0)) == 1

    run(main)


def test_coroutine_that_is_cancelled_before_it_runs_is_reported_to_interceptors() -> None:
    """The fast path called `on_send` before it found too little free memory."""

    async def main() -> None:
        counting, refusals = Counting(), Refusals()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, interceptors=[counting], observer=refusals, buffer_memory=4_000
        ) as producer:
            await producer.warm(["t"])
            cluster.control(0, faults.delay(1.0))
            first = producer.try_submit("t", bytes(3_000))
            task = asyncio.ensure_future(producer.submit("t", bytes(3_000)))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            await first
            gc.collect()
            await asyncio.sleep(0)
            assert counting.sent == counting.ended == 2
            assert len(refusals.refused) == 1

    run(main, debug=False)


def test_headers_of_interceptors_are_decided_by_the_signature() -> None:
    seen: list[Any] = []

    class Base:
        def on_send(self, record: Any) -> Any:
            return record

        def close(self) -> None:
            """Do nothing: no resource is open."""

    class Both(Base):
        def on_acknowledgement(self, metadata: Any, error: Any, headers: Any = ()) -> None:
            seen.append(headers)

    class Keyword(Base):
        def on_acknowledgement(self, metadata: Any, error: Any, *, headers: Any) -> None:
            seen.append(headers)

    class Other(Base):
        def on_acknowledgement(self, metadata: Any, error: Any, log: Any = seen) -> None:
            log.append("none")

    class Any_(Base):
        def on_acknowledgement(self, *arguments: Any) -> None:
            seen.append(len(arguments))

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(
            cluster, interceptors=[Both(), Keyword(), Other(), Any_()], max_block_ms=100
        ) as producer:
            await producer.send("t", b"v", headers=[("h", b"1")])
            pair = (("h", b"1"),)
            assert seen == [pair, pair, "none", 2]
            seen.clear()
            await producer.send("t", b"v")
            assert seen == [(), (), "none", 2]
            seen.clear()
            with pytest.raises(KafkaError):
                await producer.send("t", b"v", partition=5, headers=[("h", b"1")])
            assert seen == [pair, pair, "none", 2]
            seen.clear()
            delivery = producer.try_submit("t", b"v", headers=[("h", b"1")])
            assert delivery.cancel()
            assert seen == [pair, pair, "none", 2]

    run(main)


@pytest.mark.parametrize("way", ["failed", "split", "withdrawn", "closed"])
def test_every_record_of_a_batch_is_reported_with_its_offset(way: str) -> None:
    async def main() -> None:
        ends: dict[bytes, Any] = {}

        class Noting(Counting):
            def on_acknowledgement(  # type: ignore[override]
                self, metadata: Any, error: Any, headers: Any
            ) -> None:
                [(_, name)] = headers
                assert name not in ends
                ends[name] = metadata.offset if error is None else type(error)

        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        producer = make_producer(
            cluster, interceptors=[Noting()], linger_ms=100, adaptive_linger=False
        )
        await producer.warm(["t"])
        if way == "failed":
            cluster.fail_produce(("t", 0), 44)
        elif way == "split":
            cluster.fail_produce(("t", 0), 10, times=2)
        names = [b"%d" % number for number in range(9)]
        handles = [producer.try_submit("t", bytes(100), headers=[("n", name)]) for name in names]
        expected: dict[bytes, Any] = {name: number for number, name in enumerate(names)}
        if way == "withdrawn":
            for number in (7, 2, 5):
                handles[number].cancel()
            left = [name for number, name in enumerate(names) if number not in (2, 5, 7)]
            expected = {name: number for number, name in enumerate(left)}
            expected |= {names[number]: KafkaError for number in (2, 5, 7)}
        elif way == "closed":
            cluster.control(0, faults.lose_request())
            await producer.close(0)
            expected = dict.fromkeys(names, ProducerClosed)
        elif way == "failed":
            expected = {}
        await asyncio.gather(*handles, return_exceptions=True)
        await producer.close()
        if way == "failed":
            assert set(ends) == set(names)
            assert all(isinstance(end, type) for end in ends.values())
        else:
            assert ends == expected
        if way == "split":
            assert producer.metrics()["batches_split"] > 0

    run(main)


def test_result_of_a_partitioner_that_is_no_partition_is_refused_by_name() -> None:
    def partitioner(*arguments: Any) -> Any:
        return 5

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, partitioner=partitioner) as producer:
            await producer.send("t", b"v", partition=0)
            calls: list[Callable[[], Any]] = [
                lambda: producer.send("t", b"v"),
                lambda: producer.submit("t", b"v"),
            ]
            for call in calls:
                with pytest.raises(ConfigError, match="returned 5 for topic 't'") as caught:
                    await call()
                assert (caught.value.topic, caught.value.partition) == ("t", None)
            with pytest.raises(ConfigError, match="partitions 0 to 0"):
                producer.try_submit("t", b"v")

    run(main)


# -- plug-ins -------------------------------------------------------------------------------------


class Pairs:
    """A plug-in whose token is the value of the record. It records the offset or error of each
    record."""

    def __init__(self) -> None:
        self.ended: dict[bytes | None, Any] = {}
        self.batches: list[tuple[int, int]] = []

    def on_append(self, topic: str, key: Any, value: Any, headers: Any) -> Any:
        return None if value is None or value.startswith(b"-") else (headers, value)

    def on_batch_settled(self, batch: Any, tokens: Any, base_offset: Any, error: Any) -> None:
        self.batches.append((batch.attempts, len(tokens)))
        for index, token in tokens:
            assert token not in self.ended
            self.ended[token] = type(error) if error else base_offset + index

    def on_record_unsent(self, topic: str, partition: Any, token: Any, error: Any) -> None:
        assert token not in self.ended
        assert error.topic == topic
        self.ended[token] = type(error)


@pytest.mark.parametrize("way", ["acknowledged", "failed", "split", "withdrawn", "closed"])
def test_tokens_come_back_once_with_the_offsets_of_their_records(way: str) -> None:
    async def main() -> None:
        pairs = Pairs()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        producer = make_producer(cluster, plugins=[pairs], linger_ms=100, adaptive_linger=False)
        await producer.warm(["t"])
        if way == "failed":
            cluster.fail_produce(("t", 0), 44)
        elif way == "split":
            cluster.fail_produce(("t", 0), 10, times=2)
        # Every third record has no token.
        names = [b"%s%d" % (b"" if number % 3 else b"-", number) for number in range(12)]
        handles = [producer.try_submit("t", name) for name in names]
        gone = (0, 2, 3, 7, 11) if way == "withdrawn" else ()
        for number in reversed(gone):
            handles[number].cancel()
        if way == "closed":
            cluster.control(0, faults.lose_request())
            await producer.close(0)
        found = await asyncio.gather(*handles, return_exceptions=True)
        await producer.close()
        expected = {
            name: end.offset if isinstance(end, RecordMetadata) else type(end)
            for name, end in zip(names, found, strict=True)
            if not name.startswith(b"-")
        }
        for number in gone:
            if names[number] in expected:
                expected[names[number]] = KafkaError
        assert pairs.ended == expected
        if way == "acknowledged":
            assert pairs.batches == [(1, 8)]
        if way == "split":
            assert len(pairs.batches) > 1

    run(main)


def test_records_with_errors_of_their_own_are_reported_separately() -> None:
    class Noting(Pairs):
        def on_batch_settled(self, batch: Any, tokens: Any, base_offset: Any, error: Any) -> None:
            super().on_batch_settled(batch, tokens, base_offset, error)
            texts.append((len(tokens), error.message))

    texts: list[Any] = []
    loop: Any = StillLoop()
    core = BatchCore("t", 0, loop, 1000)
    hooks = RecordHooks(None, (Noting(),), Observer())
    harness = Appending(core, hooks)
    for number in range(4):
        harness.append(b"%d" % number)
    core.fail(KafkaError("all"), {1: KafkaError("one"), 3: KafkaError("three")}, view=View())
    assert texts == [(2, "all"), (1, "one"), (1, "three")]


class View:
    """The part of a batch that plug-ins read."""

    attempts = 1


class Appending:
    """Appends records to one batch without an engine."""

    def __init__(self, core: BatchCore, hooks: RecordHooks) -> None:
        self.hooks = hooks
        memory = MemoryBudget(1 << 20)
        loop: Any = StillLoop()
        unused: Any = None
        self.appender = Appender(
            memory=memory,
            open_new_batch=unused,
            slow_submit=unused,
            unix_ms=lambda: 0,
            yield_queue=YieldQueue(loop, loop.time, memory),
            max_request_size=1 << 20,
            serializers=RecordSerializers(None, None),
            hooks=hooks,
        )
        self.appender.enabled = True
        slot = self.appender.topics["t"] = TopicSlot("t", 1 << 20)
        slot.slots.append(PartitionSlot("t", 0))
        slot.slots[0].core = core

    def append(self, value: bytes) -> Any:
        return self.appender.try_append("t", value, None, 0)


def test_no_op_plugin_keeps_nothing_and_does_not_leave_the_fast_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Idle(Pairs):
        def on_append(self, topic: str, key: Any, value: Any, headers: Any) -> Any:
            assert type(headers) is tuple
            return headers, None

    async def main() -> None:
        idle = Idle()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, plugins=[idle]) as producer:
            await producer.send("t", b"a")
            monkeypatch.setattr(producer._slow_path, "append", None)
            monkeypatch.setattr(producer._slow_path, "try_append", None)
            await producer.send("t", b"b", headers=[("h", None)])
            await (await producer.submit("t", b"c"))
            (await producer.send_many("t", [b"d", b"e"])).raise_for_errors()
            assert len(cluster.log("t", 0)) == 5
        assert idle.ended == {}
        assert idle.batches == []

    run(main)


def test_rows_of_tables_pass_through_plugins() -> None:
    pyarrow = pytest.importorskip("pyarrow")

    async def main() -> None:
        pairs = Pairs()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, plugins=[pairs]) as producer:
            (
                await producer.send_table("t", pyarrow.table({"value": ["a", "b"]}))
            ).raise_for_errors()
        assert pairs.ended == {b"a": 0, b"b": 1}

    run(main)


def test_failing_plugin_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, plugins=[Tokens()]) as producer:
            for _ in range(3):
                await producer.send("t", b"v")

    with caplog.at_level(logging.INFO):
        run(main)
    told = [record for record in caplog.records if "plug-in Tokens failed" in record.getMessage()]
    assert len(told) == 1
    assert told[0].exc_info is not None


def test_plugin_may_be_an_observer_as_well() -> None:
    class Both(Pairs, Observer):
        def __init__(self) -> None:
            super().__init__()
            self.acknowledged = 0
            self.closed = 0

        def on_batch_acknowledged(self, batch: Any, now: float) -> None:
            self.acknowledged += 1

        def close(self) -> None:
            self.closed += 1

    async def main() -> None:
        both = Both()
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, plugins=[both, Refusals()]) as producer:
            await producer.send("t", b"v")
        assert (both.ended, both.acknowledged, both.closed) == ({b"v": 0}, 1, 1)

    run(main)


class Asynchronous(Pairs):
    """A plug-in with a coroutine function as a hook."""

    async def on_record_unsent(self, *arguments: Any) -> None:  # type: ignore[override]
        """Never called."""


class Incomplete:
    """A plug-in that lacks the two other methods."""

    def on_append(self, *arguments: Any) -> None:
        """Never called."""


@pytest.mark.parametrize(
    ("plugins", "text"),
    [
        (5, "must be a list of plug-ins, not int"),
        ([5], r"plugins\[0\] of type int must be an object with the methods on_append"),
        ([Pairs], "pass an instance"),
        ([Refusals], "of type type must be an object"),
        ([Incomplete()], "on_batch_settled, on_record_unsent missing"),
        ([Asynchronous()], "has asynchronous methods"),
    ],
)
def test_invalid_plugins_are_refused_by_name(plugins: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Producer(bootstrap_servers="localhost:9092", plugins=plugins)
