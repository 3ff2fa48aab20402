"""Calls with many records: a wait that timed out is not repeated, and no outcome is lost."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Awaitable, Callable, Container, Iterator
from typing import Any

import pyarrow as pa
import pytest

import aiokprod._engine.buffer.accumulator as accumulator_module
from aiokprod import BulkResult
from aiokprod._core.yielding import YieldQueue
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._wire.message import Message
from aiokprod.errors import (
    AbortableTransactionError,
    BufferTimeout,
    Code,
    ConfigError,
    KafkaError,
    MetadataTimeout,
    Outcome,
    ProducerClosed,
    RecordTooLarge,
    SerializationError,
    UnknownTopic,
    broker_error,
)
from aiokprod.producer import Producer
from aiokprod.records import ProducerRecord, RecordMetadata
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import (
    RECOVERY,
    TICK,
    History,
    harness,
    now,
    play,
    scenario,
    until,
)

CALLS = {
    "columns": lambda producer, values: producer.send_many("t", values, partition=0),
    "records": lambda producer, values: producer.send_many(
        [ProducerRecord("t", value, partition=0) for value in values]
    ),
    "table": lambda producer, values: producer.send_table(
        "t", pa.table({"value": values, "partition": [0] * len(values)})
    ),
}


class Shortage:
    """Makes the opening of a batch fail with MemoryError, by the number of the attempt."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: Container[int]) -> None:
        self.failing = failing
        self.attempts = 0
        self._open = ProducerBatch
        monkeypatch.setattr(accumulator_module, "ProducerBatch", self)

    def __call__(self, *arguments: Any) -> Any:
        self.attempts += 1
        if self.attempts in self.failing:
            raise MemoryError
        return self._open(*arguments)


@pytest.mark.parametrize("call", CALLS)
def test_memory_missing_for_one_record_hides_no_other(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with harness(batch_size=0) as (cluster, producer, _):
            await producer.warm(["t"])
            # There is no memory for the third record, on the compiled path and on the slow path.
            Shortage(monkeypatch, {3, 4})
            result = await CALLS[call](producer, [b"%d" % number for number in range(6)])
            assert list(result.errors) == [2]
            error = result.errors[2]
            assert isinstance(error, KafkaError)
            assert error.outcome is Outcome.NOT_SENT
            assert isinstance(error.__cause__, MemoryError)
            assert result.offsets == [0, 1, None, 2, 3, 4]
            assert cluster.values("t", 0) == [b"0", b"1", b"3", b"4", b"5"]
            metrics = producer.metrics()
            assert metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]

    play(main)


@pytest.mark.parametrize("call", CALLS)
def test_memory_that_is_there_again_is_used(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with harness(batch_size=0) as (cluster, producer, _):
            await producer.warm(["t"])
            Shortage(monkeypatch, {2, 5})
            values = [b"%d" % number for number in range(6)]
            result = await CALLS[call](producer, values)
            assert result.ok
            assert cluster.values("t", 0) == values

    play(main)


SMALL: dict[str, Any] = {"buffer_memory": 20_000, "max_request_size": 9_000, "max_block_ms": 1_000}


@pytest.mark.parametrize("call", CALLS)
def test_room_that_does_not_come_is_waited_for_once(call: str) -> None:
    async def main() -> None:
        async with harness(**SMALL) as (cluster, producer, _):
            await producer.send("t", b"first", partition=0)
            for broker in (1, 2, 3):
                cluster.pause(broker)
            started = now()
            values = [b"%d" % number + b"x" * 900 for number in range(300)]
            sending = asyncio.ensure_future(CALLS[call](producer, values))
            await until(lambda: producer.metrics()["waiting_sends"] == 1)
            waited = await until(lambda: producer.metrics()["waiting_sends"] == 0, within=3)
            assert waited <= 1 + TICK
            for broker in (1, 2, 3):
                cluster.resume(broker)
            result = await sending
            assert now() - started < 1 + 2 * RECOVERY
            errors = result.errors
            assert 0 < 300 - len(errors) < 60
            assert all(isinstance(error, BufferTimeout) for error in errors.values())
            stored = [offset for offset in result.offsets if offset is not None]
            assert stored == list(range(1, len(stored) + 1))

    play(main)


@pytest.mark.parametrize("call", CALLS)
def test_room_that_comes_slowly_is_waited_for_every_time(call: str) -> None:
    async def main() -> None:
        async with harness(**SMALL) as (cluster, producer, _):
            await producer.warm(["t"])
            cluster.replication_s = 0.9
            values = [b"%d" % number + b"x" * 3_000 for number in range(40)]
            started = now()
            result = await CALLS[call](producer, values)
            assert result.ok, result.errors
            assert now() - started > 4, "longer than max_block_ms in all"
            assert cluster.values("t", 0) == values

    play(main)


@scenario(partitions=2, max_block_ms=1_000)
async def test_missing_partitions_of_records_cost_one_wait_in_all(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    started = now()
    records: list[ProducerRecord[Any, Any]] = [
        ProducerRecord("t", b"x", partition=number % 4) for number in range(400)
    ]
    result = await producer.send_many(records)
    assert now() - started < 3
    assert list(result.errors) == [number for number in range(400) if number % 4 > 1]
    assert all(isinstance(error, UnknownTopic) for error in result.errors.values())
    assert [len(log) for log in cluster.logs("t")] == [100, 100]


@pytest.mark.parametrize("code", [Code.INVALID_TOPIC_EXCEPTION, Code.TOPIC_AUTHORIZATION_FAILED])
def test_topic_refused_for_one_record_is_not_asked_for_again_in_the_call(code: Code) -> None:
    """This holds even if the metadata later reports the topic as missing instead of refused."""
    answers = iter([code])

    def refuse_once(message: Any) -> Message:
        def refused(topic: Any) -> Any:
            if topic.name != "refused":
                return topic
            return dataclasses.replace(topic, error_code=next(answers, 3), partitions=[])

        changed: Message = dataclasses.replace(
            message, topics=[refused(topic) for topic in message.topics]
        )
        return changed

    async def main() -> None:
        options: dict[str, Any] = {"max_block_ms": 1_000, "metadata_max_age_ms": 300}
        async with harness(cluster={"auto_create": False}, **options) as (cluster, producer, _):
            await producer.warm(["t"])
            cluster.control(3, faults.edit(refuse_once))
            names = ["refused", "missing", "refused", "t", "refused"]
            started = now()
            result = await producer.send_many([ProducerRecord(name, b"x") for name in names])
            assert now() - started < 1 + 2 * TICK, "one wait, for the missing topic"
            assert next(answers, None) is None
            kind = type(broker_error(code, "x"))
            assert [type(result.errors.get(number)) for number in range(5)] == [
                kind, MetadataTimeout, kind, type(None), kind
            ]  # fmt: skip
            assert {error.outcome for error in result.errors.values()} == {Outcome.NOT_SENT}

    play(main)


def test_missing_topics_are_waited_for_one_by_one_and_interceptors_hear_of_all() -> None:
    class Ledger:
        def __init__(self) -> None:
            self.sent = self.heard = 0

        def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            self.sent += 1
            return record

        def on_acknowledgement(
            self, metadata: RecordMetadata | None, error: KafkaError | None
        ) -> None:
            self.heard += 1

        def close(self) -> None:
            pass

    async def main() -> None:
        ledger = Ledger()
        options: dict[str, Any] = {"max_block_ms": 3_000, "interceptors": [ledger]}
        async with harness(cluster={"auto_create": False}, **options) as (cluster, producer, _):
            names = ["a", "b", "t", "a", "b", "t"]
            asyncio.get_running_loop().call_later(3.5, cluster.create_topic, "b", 1)
            result = await producer.send_many([ProducerRecord(name, b"x") for name in names])
            assert list(result.errors) == [0, 3]
            assert result.errors[0].outcome is Outcome.NOT_SENT
        assert ledger.sent == ledger.heard == 6

    play(main)


@scenario(partitions=1)
async def test_records_that_break_off_tell_what_was_sent(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    def records(count: int) -> Iterator[ProducerRecord[Any, Any]]:
        for number in range(count):
            yield ProducerRecord("t", b"%d" % number, partition=0)
        raise ValueError("word of the caller")

    result = await producer.send_many(records(3))
    assert not result.ok
    assert result.offsets == [0, 1, 2]
    assert isinstance(result.interrupted, SerializationError)
    assert result.interrupted.outcome is Outcome.NOT_SENT
    assert "after record 3 (ValueError, chained)" in str(result.interrupted)
    with pytest.raises(SerializationError):
        result.raise_for_errors()
    with pytest.raises(ValueError, match="word"):
        await producer.send_many(records(0))


@scenario(partitions=1, transactional_id="bulk")
async def test_part_of_records_that_break_off_is_never_committed(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    def records() -> Iterator[ProducerRecord[Any, Any]]:
        yield ProducerRecord("t", b"1", partition=0)
        raise ValueError("gone")

    await producer.begin_transaction()
    result = await producer.send_many(records())
    assert result.interrupted is not None
    with pytest.raises(AbortableTransactionError, match="failed after record 1"):
        await producer.commit_transaction()
    await producer.abort_transaction()
    assert cluster.committed_values("t", 0) == []


def test_bulk_call_takes_nothing_more_once_close_was_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds although the close itself begins one iteration of the event loop later."""
    slice_always_over = functools.partial(YieldQueue, slice_length=-1.0)
    monkeypatch.setattr("aiokprod._client.runtime.YieldQueue", slice_always_over)

    async def main() -> None:
        async with harness(linger_ms=0) as (cluster, producer, _):
            await producer.warm(["t"])
            cluster.control(0, faults.delay(1.0))
            sending = asyncio.ensure_future(producer.send_many("t", [b"x"] * 20_000, partition=0))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert producer.metrics()["batches_incomplete"] > 0
            closing = asyncio.ensure_future(producer.close(30))
            await asyncio.sleep(0)
            left = producer.metrics()["buffer_available_bytes"]
            for _ in range(3):
                await asyncio.sleep(0)
                assert producer.metrics()["buffer_available_bytes"] == left, "taken after close()"
            report = await closing
            result = await sending
            assert 0 < report.delivered < 20_000
            assert isinstance(result.errors[19_999], ProducerClosed)

    play(main)


def raised_by(result: BulkResult) -> None:
    with pytest.raises(KafkaError):
        result.raise_for_errors()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "look",
    [None, lambda result: result.ok, lambda result: result.errors, raised_by],
    ids=["nothing", "ok", "errors", "raise_for_errors"],
)
def test_failures_of_a_result_that_is_dropped_unread_are_logged_once_and_counted(
    call: str, look: Callable[..., Any] | None, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with harness(delivery_timeout_ms=2_000, request_timeout_ms=1_000) as (cluster, p, _):
            await p.warm(["t"])
            for broker in cluster.brokers:
                cluster.pause(broker)
            result = await CALLS[call](p, [b"1", b"2", b"3"])
            if look is not None:
                look(result)
            del result
            await asyncio.sleep(0)
            told = [r for r in caplog.records if "its result was not read" in r.getMessage()]
            assert len(told) == (look is None)
            assert p.metrics()["records_unretrieved"] == (3 if look is None else 0)
            if look is None:
                assert told[0].levelname == "ERROR"
                assert told[0].getMessage().startswith("3 records of a bulk call failed")

    with caplog.at_level("ERROR", logger="aiokprod"):
        play(main)


def test_refused_records_of_a_dropped_result_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with harness() as (_, producer, _):
            await producer.warm(["t"])
            await producer.send_many("t", [b"a", b"b"], timestamps_ms=[-1, -2])
            await asyncio.sleep(0)
            assert producer.metrics()["records_unretrieved"] == 2

    play(main)
    assert sum("its result was not read" in r.getMessage() for r in caplog.records) == 1


def test_result_without_failures_is_dropped_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with harness() as (_, producer, _):
            await producer.send_many("t", [b"a", b"b"])
            await asyncio.sleep(0)
            assert producer.metrics()["records_unretrieved"] == 0

    play(main)
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


@pytest.mark.parametrize("call", CALLS)
def test_failures_after_a_cancelled_call_are_logged(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with harness(delivery_timeout_ms=2_000, request_timeout_ms=1_000) as (cluster, p, _):
            await p.warm(["t"])
            for broker in cluster.brokers:
                cluster.pause(broker)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(CALLS[call](p, [b"1", b"2"]), 0.5)
            await p.flush()
            assert p.metrics()["records_unretrieved"] == 2

    play(main)
    assert sum("no task was waiting for them" in r.getMessage() for r in caplog.records) == 1


class Hearing:
    """An interceptor that counts its calls."""

    def __init__(self) -> None:
        self.sent = 0
        self.refused: list[type[KafkaError | None]] = []

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        self.sent += 1
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.refused.append(type(error))

    def close(self) -> None:
        pass


WRONG: dict[str, tuple[Callable[[Any], Awaitable[object]], type[KafkaError], str]] = {
    "str": (lambda p: p.send_many("t", ["a", "b"]), SerializationError, "not str; encode it"),
    "mixed": (lambda p: p.send_many("t", ["a", 1]), SerializationError, "not str; encode it"),
    "keys": (
        lambda p: p.send_many("t", [b"a", b"b"], keys=["k", "l"]), SerializationError, "key_seri",
    ),
    "tuples": (
        lambda p: p.send_many([("t", b"x"), ("t", b"y")]), ConfigError, "entry 0 is tuple",
    ),
    "records": (
        lambda p: p.send_many(ProducerRecord("t", "x") for _ in range(3)),
        SerializationError, "not str; encode it",
    ),
    "records and others": (
        lambda p: p.send_many([ProducerRecord("t", "x"), "y"]), SerializationError, "not str",
    ),
}  # fmt: skip


@pytest.mark.parametrize("call", WRONG)
def test_call_of_which_every_record_has_a_wrong_type_raises(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with harness() as (cluster, producer, _):
            await producer.warm(["t"])
            make, kind, text = WRONG[call]
            with pytest.raises(kind, match=text) as info:
                await make(producer)
            assert info.value.outcome is Outcome.NOT_SENT
            assert cluster.values("t", 0) == []
            del info

    play(main)
    assert not caplog.records, "raised, so there is nothing to log"


@pytest.mark.parametrize("good", [0, 1, 2])
def test_one_record_of_a_right_type_keeps_the_result(good: int) -> None:
    async def main() -> None:
        async with harness() as (cluster, producer, _):
            values: list[Any] = ["x"] * 3
            values[good] = b"good"
            for result in (
                await producer.send_many("t", values),
                await producer.send_many([ProducerRecord("t", value) for value in values]),
            ):
                assert sorted(result.errors) == sorted({0, 1, 2} - {good})
            assert cluster.values("t", 0) == [b"good"] * 2

    play(main)


def test_records_that_fail_for_what_is_in_them_never_raise() -> None:
    """A program that reads the errors of its records also gets the error of a single record."""

    def upper(value: str) -> bytes:
        if value == "bad":
            raise ValueError("what the serializer says")
        return value.encode()

    async def main() -> None:
        async with harness(max_request_size=9_000, value_serializer=upper) as (_, producer, _):
            bad = await producer.send_many("t", ["bad"])
            assert isinstance(bad.errors[0], SerializationError)
            large = await producer.send_many("t", ["x" * 10_000])
            assert isinstance(large.errors[0], RecordTooLarge)
            early = await producer.send_many("t", ["x"], timestamps_ms=[-1])
            assert isinstance(early.errors[0], ConfigError)

    play(main)


def test_column_of_one_wrong_type_is_refused_at_once() -> None:
    hearing = Hearing()

    async def main() -> None:
        async with harness(interceptors=[hearing]) as (_, producer, _):
            with pytest.raises(SerializationError):
                await producer.send_many("t", ["x"] * 100_000)
            assert hearing.sent == 1
            assert hearing.refused == [SerializationError]

    play(main)


def test_serializer_that_refuses_some_contents_is_asked_for_each() -> None:
    """The type of a value does not determine what a custom serializer returns."""

    async def main() -> None:
        options: dict[str, Any] = {
            "value_serializer": lambda text: text if text == "bad" else text.encode()
        }
        async with harness(**options) as (cluster, producer, _):
            result = await producer.send_many("t", ["bad", "good"])
            assert isinstance(result.errors[0], SerializationError)
            assert cluster.values("t", 0) == [b"good"]
            with pytest.raises(SerializationError, match="returned str instead of bytes"):
                await producer.send_many("t", ["bad", "bad"])

    play(main)


def test_transaction_that_lacks_records_of_a_wrong_type_can_only_be_aborted() -> None:
    async def main() -> None:
        async with harness(transactional_id="x") as (cluster, producer, _):
            await producer.begin_transaction()
            with pytest.raises(SerializationError):
                await producer.send_many("t", ["a", "b"])
            with pytest.raises(AbortableTransactionError):
                await producer.commit_transaction()
            await producer.abort_transaction()
            assert cluster.committed_values("t", 0) == []

    play(main)
