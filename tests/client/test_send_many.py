"""`send_many` with serializers, with `ProducerRecord`s, and with values that are not exactly
bytes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aiokprod import BulkProgress, BulkResult, Producer, ProducerRecord
from aiokprod._core.yielding import YieldQueue
from aiokprod.errors import ConfigError, KafkaError, Outcome, ProducerFailed, SerializationError
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.virtual import run
from tests.client.test_serializers_on_both_paths import (
    PARTITIONS,
    Case,
    Data,
    Scripted,
    Text,
    cases,
    described,
)
from tests.scenarios.scenario_helpers import make_producer, runtime_of
from tests.scenarios.test_bulk_calls import Shortage

FORMS: dict[str, Callable[..., Any]] = {
    "columns": lambda producer, values, **options: producer.send_many(
        "t", values, partition=0, **options
    ),
    "list": lambda producer, values, **options: producer.send_many(
        [ProducerRecord("t", value, partition=0) for value in values], **options
    ),
    "generator": lambda producer, values, **options: producer.send_many(
        (ProducerRecord("t", value, partition=0) for value in values), **options
    ),
}
in_every_form = pytest.mark.parametrize("form", FORMS)


def play(main: Callable[[FakeCluster, Producer[Any, Any]], Any], **options: Any) -> Any:
    """Run `main` with a producer that has the metadata of the topics t and u. Their last partitions
    contain one record each."""

    async def played() -> Any:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", PARTITIONS)
        cluster.create_topic("u", PARTITIONS)
        async with make_producer(cluster, linger_ms=0, **options) as producer:
            for topic in "tu":  # the fast path needs the topic's metadata
                await producer.send(topic, None, partition=PARTITIONS - 1)
            return await main(cluster, producer)

    return run(played, debug=False)


def values_of(cluster: FakeCluster, topic: str = "t", partition: int = 0) -> list[Any]:
    return [record.value for record in cluster.log(topic, partition)]


# -- the same behaviour on both paths --------------------------------------------------------------


async def call(form: str, producer: Producer[Any, Any], script: list[Case]) -> BulkResult:
    """Send the records of the script: columns to topic t, other forms to topics t and u
    alternately."""
    if form == "columns":
        return await producer.send_many(
            "t", [case.value for case in script], keys=[case.key for case in script],
            headers=[case.headers for case in script],
            timestamps_ms=[case.timestamp_ms for case in script], partition=script[0].partition,
        )  # fmt: skip
    records: Any = (
        ProducerRecord(
            "tu"[number % 2], case.value, case.key, case.partition, case.timestamp_ms,
            case.headers or (),
        )
        for number, case in enumerate(script)
    )  # fmt: skip
    return await producer.send_many(list(records) if form == "list" else records)


def sent(form: str, script: list[Case], *, compiled: bool) -> tuple[Any, ...]:
    """Send the records of the script with one call. Return the outcomes, the calls of the
    serializers, and the logs."""
    called: list[Any] = []
    key, value = Scripted("key", called), Scripted("value", called)

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> tuple[Any, ...]:
        key.producer = value.producer = producer
        if not compiled:
            runtime_of(producer).fast_path.stop()
        try:
            result = await call(form, producer, script)
        except KafkaError as error:  # every record has a wrong type
            return described(error), called
        inner = [described(await one) for one in (*key.inner, *value.inner)]
        logs = [
            [(record.key, record.value, tuple(record.headers)) for record in cluster.log(topic, i)]
            for topic in "tu"
            for i in range(PARTITIONS)
        ]
        errors = {position: described(error) for position, error in result.errors.items()}
        places = [result.partition_and_offset(position) for position in range(len(result))]
        assert places == list(zip(result.partitions, result.offsets, strict=True))
        return errors, result.partitions, result.offsets, inner, logs, called

    options: dict[str, Any] = {"max_request_size": 15_000, "seed": 1}
    found: tuple[Any, ...] = play(main, key_serializer=key, value_serializer=value, **options)
    return found


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(sorted(FORMS)), st.lists(cases, min_size=2, max_size=8))
def test_rows_have_the_same_outcomes_on_both_paths(form: str, script: list[Case]) -> None:
    assert sent(form, script, compiled=True) == sent(form, script, compiled=False)


@in_every_form
def test_rows_with_serializers_take_the_fast_path(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        monkeypatch.setattr(producer._slow_path, "append", None)
        values = [str(number) for number in range(3_000)]
        result = await FORMS[form](producer, values)
        assert result.ok
        assert values_of(cluster) == [value.encode() for value in values]
        assert result.offsets == list(range(3_000))

    play(main, value_serializer=str.encode)


@pytest.mark.parametrize("kind", [bytearray, memoryview, Text])
@pytest.mark.parametrize("keyed", [False, True])
def test_columns_of_bytes_like_values_are_sent_like_bytes(
    kind: Callable[[bytes], Any], keyed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = [b"%d" % number * 20 for number in range(700)]

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> Any:
        monkeypatch.setattr(producer._slow_path, "append", None)
        columns = []
        for values in (plain, [kind(value) if len(value) % 3 else value for value in plain]):
            result = await producer.send_many("t", values, keys=values if keyed else None)
            assert result.ok
            columns.append(result.partitions)
        assert not keyed or columns[0] == columns[1]
        stored = [value for i in range(PARTITIONS) for value in values_of(cluster, "t", i)]
        assert sorted(filter(None, stored)) == sorted(plain + plain)

    play(main)


def test_bytes_like_value_that_cannot_be_read_fails_alone() -> None:
    released = memoryview(b"gone")
    released.release()

    class Refusing(bytes):
        def __bytes__(self) -> bytes:
            raise ValueError("no")

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        values = [b"a", released, memoryview(b"aXbX")[::2], Refusing(b"x"), bytearray(b"c")]
        result = await producer.send_many("t", values, partition=0)
        assert sorted(result.errors) == [1, 3]
        assert {error.outcome for error in result.errors.values()} == {Outcome.NOT_SENT}
        assert values_of(cluster) == [b"a", b"ab", b"c"]

    play(main)


def test_memory_is_counted_as_for_bytes() -> None:
    """Records of bulk calls have no handle."""

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> int:
        memory = runtime_of(producer).memory
        cluster.pause(1)
        sending = asyncio.ensure_future(producer.send_many("t", ["x" * 100] * 50, partition=0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        used: int = memory.used
        cluster.resume(1)
        assert (await sending).ok
        assert memory.used == 0
        return used

    encoded = play(main, value_serializer=str.encode)
    assert 50 * 100 < encoded < 50 * 120


# -- serializers that misbehave --------------------------------------------------------------------


@in_every_form
def test_serializer_that_raises_fails_its_row_only(form: str) -> None:
    def serializer(value: int) -> bytes:
        if value % 3 == 1:
            raise ValueError(value)
        return b"%d" % value

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        result: BulkResult = await FORMS[form](producer, range(8))
        assert sorted(result.errors) == [1, 4, 7]
        for error in result.errors.values():
            assert isinstance(error, SerializationError)
            assert error.outcome is Outcome.NOT_SENT
            assert isinstance(error.__cause__, ValueError)
        assert values_of(cluster) == [b"0", b"2", b"3", b"5", b"6"]
        assert result.offsets == [0, None, 1, 2, None, 3, 4, None]

    play(main, value_serializer=serializer)


@pytest.mark.parametrize("change", ["clear", "extend"])
def test_serializer_that_changes_the_list_of_values_changes_nothing(change: str) -> None:
    values = ["a", "b", "c"]

    def serializer(value: str) -> bytes:
        values.clear() if change == "clear" else values.extend(["d"] * 1_000)
        return value.encode()

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        result = await producer.send_many("t", values, keys=values, partition=0)
        assert result.ok
        assert len(result) == 3
        assert values_of(cluster) == [b"a", b"b", b"c"]

    play(main, value_serializer=serializer, key_serializer=serializer)


def test_serializer_that_changes_the_list_of_records_changes_what_is_read_later() -> None:
    records: list[ProducerRecord[Any, str]] = []

    def serializer(value: str) -> bytes:
        if value == "a":
            records.append(ProducerRecord("t", "last", partition=0))
        elif value == "last":
            records.clear()
        return value.encode()

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        records.extend(ProducerRecord("t", value, partition=0) for value in "ab")
        result = await producer.send_many(records)
        assert result.offsets == [0, 1, 2]
        assert values_of(cluster) == [b"a", b"b", b"last"]

    play(main, value_serializer=serializer)


@in_every_form
def test_serializer_that_sends_is_not_mixed_up_with_its_row(form: str) -> None:
    inner: list[Any] = []

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        def serialize(topic: str, headers: Any, value: bytes) -> bytes:
            if not value.startswith(b"inner"):
                inner.append(producer.try_submit("t", b"inner" + value, partition=0))
                if value == b"3":
                    inner.append(
                        asyncio.ensure_future(producer.send_many("t", [b"inner"], partition=0))
                    )
            return value

        own.serialize = serialize
        result: BulkResult = await FORMS[form](producer, [b"%d" % number for number in range(6)])
        assert result.offsets == [1, 3, 5, 7, 9, 11]
        assert values_of(cluster)[:12:2] == [b"inner%d" % number for number in range(6)]
        for one in inner:
            await one

    class Own:
        serialize: Any = staticmethod(lambda topic, headers, value: value)

        def __call__(self) -> None: ...

    own: Any = Own()
    play(main, value_serializer=lambda value: own.serialize("t", (), value))


@in_every_form
def test_serializer_that_cancels_the_call_ends_it_at_its_next_wait(form: str) -> None:
    called: list[str] = []

    def serializer(value: str) -> bytes:
        called.append(value)
        if value == "b":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return value.encode()

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        sending = asyncio.ensure_future(FORMS[form](producer, ["a", "b", "c"]))
        with pytest.raises(asyncio.CancelledError):
            await sending
        await producer.flush()
        assert values_of(cluster) == [value.encode() for value in called]
        assert called[:2] == ["a", "b"]

    play(main, value_serializer=serializer)


@in_every_form
def test_serializer_that_ends_the_producer_fails_its_row_and_the_rest(form: str) -> None:
    def serializer(value: str) -> bytes:
        if value == "c":
            runtime_of(made[0]).fail(ProducerFailed("by a serializer"))
        return value.encode()

    made: list[Any] = []

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        producer = make_producer(cluster, value_serializer=serializer)
        made.append(producer)
        await producer.warm(["t"])
        result = await FORMS[form](producer, ["a", "b", "c", "d", "e"])
        assert len(result) == 5
        assert sorted(result.errors) == [0, 1, 2, 3, 4]
        for position in (2, 3, 4):
            assert result.errors[position].outcome is Outcome.NOT_SENT
        await producer.close()

    run(main, debug=False)


@in_every_form
@pytest.mark.parametrize("slice_length", [0.001, -1.0])
def test_asynchronous_serializer_is_called_once_for_each_row(
    form: str, slice_length: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds even if only some results are awaitable, or if the time slice ends at such a
    row."""
    monkeypatch.setattr(
        "aiokprod._client.runtime.YieldQueue",
        functools.partial(YieldQueue, slice_length=slice_length),
    )
    called: list[int] = []

    def serializer(value: int) -> Any:
        async def later() -> bytes:
            await asyncio.sleep(0.01)
            return b"%d" % value

        called.append(value)
        return later() if value % 3 else b"%d" % value

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        result = await FORMS[form](producer, range(10))
        assert result.ok
        assert called == list(range(10))
        assert values_of(cluster) == [b"%d" % number for number in range(10)]

    play(main, value_serializer=serializer)


@in_every_form
def test_clock_is_read_after_each_call_of_a_serializer(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time slice ends immediately, so other tasks must run after every row."""
    monkeypatch.setattr(
        "aiokprod._client.runtime.YieldQueue", functools.partial(YieldQueue, slice_length=-1.0)
    )
    passes = 0
    seen: list[int] = []

    def serializer(value: str) -> bytes:
        seen.append(passes)
        if value == "bad":
            raise ValueError
        return value.encode()

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        nonlocal passes
        sending = asyncio.ensure_future(FORMS[form](producer, ["good", "bad"] * 10))
        while len(seen) < 20:
            await asyncio.sleep(0)
            passes += 1
        assert len((await sending).errors) == 10
        assert len(set(seen)) == 20

    play(main, value_serializer=serializer)


@in_every_form
def test_serializer_is_called_once_if_no_memory_can_be_allocated(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []

    def serializer(value: str) -> bytes:
        called.append(value)
        return value.encode()

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        # Allocation fails for the third record, on the compiled path and then on the slow path.
        Shortage(monkeypatch, {3, 4})
        result = await FORMS[form](producer, list("abcdef"))
        assert list(result.errors) == [2]
        assert isinstance(result.errors[2].__cause__, MemoryError)
        assert called == list("abcdef")
        assert values_of(cluster) == [b"a", b"b", b"d", b"e", b"f"]

    play(main, value_serializer=serializer, batch_size=0)


@in_every_form
def test_interrupt_within_a_serializer_reaches_the_caller_and_keeps_earlier_rows(
    form: str,
) -> None:
    def serializer(value: str) -> bytes:
        if value == "c":
            raise KeyboardInterrupt
        return value.encode()

    async def main() -> None:
        cluster = FakeCluster(brokers=1)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, value_serializer=serializer) as producer:
            await producer.warm(["t"])
            sending = FORMS[form](producer, list("abcd"))
            with pytest.raises(KeyboardInterrupt):
                sending.send(None)
            await producer.flush()
            assert values_of(cluster) == [b"a", b"b"]
            metrics = producer.metrics()
            assert metrics["buffer_available_bytes"] == metrics["buffer_total_bytes"]

    run(main, debug=False)


# -- cancelled calls -------------------------------------------------------------------------------


SMALL: dict[str, Any] = {"buffer_memory": 20_000, "max_request_size": 9_000}


@in_every_form
@pytest.mark.parametrize("serialized", [False, True])
def test_cancelled_call_has_the_outcomes_of_what_was_appended(form: str, serialized: bool) -> None:
    values = [b"%d" % number + b"x" * 900 for number in range(100)]

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        progress = BulkProgress()
        with pytest.raises(ConfigError, match="has not begun"):
            await progress.result()
        cluster.pause(1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await FORMS[form](producer, values, progress=progress)
        appended = progress.position
        assert 5 < appended < 30
        cluster.resume(1)
        result = await progress.result()
        assert len(result) == appended
        assert result.offsets == list(range(appended))
        assert values_of(cluster) == values[:appended]
        assert not result.ok
        assert not result.errors
        assert result.interrupted is not None
        assert result.interrupted.outcome is Outcome.NOT_SENT
        assert f"after record {appended} (CancelledError)" in str(result.interrupted)
        rest = await FORMS[form](producer, values[appended:])
        assert rest.ok
        assert values_of(cluster) == values

    play(main, value_serializer=(lambda value: value) if serialized else None, **SMALL)


@in_every_form
def test_call_cancelled_while_it_waits_for_outcomes_has_all_of_them(form: str) -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        progress = BulkProgress()
        cluster.pause(1)
        sending = asyncio.ensure_future(
            FORMS[form](producer, [b"a", "wrong", b"b"], progress=progress)
        )
        await asyncio.sleep(0.5)
        assert progress.position == 3
        assert repr(progress) == "<BulkProgress 3 records>"
        with pytest.raises(ConfigError, match="still running"):
            await progress.result()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        cluster.resume(1)
        result = await progress.result()
        assert result.interrupted is None
        assert list(result.errors) == [1]
        assert result.offsets == [0, None, 1]
        assert (await progress.result()).offsets == [0, None, 1]

    play(main)


def test_progress_of_a_call_that_returns_or_raises() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        progress = BulkProgress()
        result = await producer.send_many("t", [b"a"], partition=0, progress=progress)
        assert (await progress.result()).offsets == result.offsets == [0]
        with pytest.raises(ConfigError, match="serves one call"):
            await producer.send_many("t", [b"a"], progress=progress)
        refused = BulkProgress()
        with pytest.raises(SerializationError):
            await producer.send_many("t", ["a", "b"], progress=refused)
        assert list((await refused.result()).errors) == [0]
        unused = BulkProgress()
        with pytest.raises(ConfigError):
            await producer.send_many("t", [b"a"], keys=[b"b", b"c"], progress=unused)
        assert (await producer.send_many("t", [b"a"], progress=unused)).ok
        wrong: Any = "progress"
        with pytest.raises(ConfigError, match="BulkProgress"):
            await producer.send_many("t", [b"a"], progress=wrong)

    play(main)


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_failures_of_a_cancelled_call_are_logged_unless_its_progress_is_read(
    read: bool, late: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        progress = BulkProgress()
        cluster.pause(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(
                producer.send_many("t", [b"a", b"b"], partition=0, progress=progress), 0.5
            )
        if late:  # dropped before the records fail
            reading = asyncio.ensure_future(progress.result()) if read else None
            del progress
            await asyncio.sleep(5)
            assert reading is None or len((await reading).errors) == 2
        else:
            await asyncio.sleep(5)
            if read:
                assert len((await progress.result()).errors) == 2
            del progress
        await asyncio.sleep(0)
        assert producer.metrics()["records_unretrieved"] == (0 if read else 2)
        cluster.resume(1)

    play(main, delivery_timeout_ms=2_000, request_timeout_ms=1_000)
    told = [r for r in caplog.records if r.levelname == "ERROR" and "2 records" in r.getMessage()]
    assert len(told) == (0 if read else 1)


# -- records ---------------------------------------------------------------------------------------


def test_generator_that_raises_keeps_the_records_before() -> None:
    def records() -> Iterator[ProducerRecord[Any, str]]:
        yield ProducerRecord("t", "a", partition=0)
        yield ProducerRecord("u", "b", partition=0)
        raise KeyError("of the caller")

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        result = await producer.send_many(records())
        assert result.offsets == [0, 0]
        assert result.interrupted is not None
        assert "after record 2 (KeyError, chained)" in str(result.interrupted)
        assert isinstance(result.interrupted.__cause__, KeyError)
        assert values_of(cluster) == [b"a"]
        assert values_of(cluster, "u") == [b"b"]

    play(main, value_serializer=str.encode)


def test_generator_that_sends_and_raises_kafka_errors_is_no_end_of_the_producer() -> None:
    def records() -> Iterator[ProducerRecord[Any, bytes]]:
        yield ProducerRecord("t", b"a", partition=0)
        raise KafkaError("of the caller", outcome=Outcome.NOT_SENT)

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        result = await producer.send_many(records())
        assert len(result) == 1
        assert isinstance(result.interrupted, SerializationError)

    play(main)


def test_entries_of_other_types_and_subclasses_of_records() -> None:
    class Order(ProducerRecord[Any, Any]):
        pass

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        entries: list[Any] = [
            None, Order("t", b"a", partition=0), b"b", ProducerRecord("t", b"c", partition=0), None,
        ]  # fmt: skip
        result = await producer.send_many(entries)
        assert sorted(result.errors) == [0, 2, 4]
        assert "entry 4 is NoneType, not ProducerRecord" in str(result.errors[4])
        assert values_of(cluster) == [b"a", b"c"]

    play(main)


def test_slow_generator_does_not_hold_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator may be slow, so the clock must be read after each record, and the loop must
    continue before the next record."""
    monkeypatch.setattr(
        "aiokprod._client.runtime.YieldQueue", functools.partial(YieldQueue, slice_length=-1.0)
    )
    passes = 0
    seen: list[int] = []

    def records() -> Iterator[ProducerRecord[Any, Any]]:
        for _ in range(20):
            seen.append(passes)
            yield ProducerRecord("t", b"a", partition=0)

    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        nonlocal passes
        sending = asyncio.ensure_future(producer.send_many(records()))
        while len(seen) < 20:
            await asyncio.sleep(0)
            passes += 1
        assert (await sending).ok
        assert len(set(seen)) == 20

    play(main)


def test_record_that_waits_for_a_topic_delays_only_later_ones() -> None:
    async def main(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
        names = ["t", "new", "u", "new", "t"]
        result = await producer.send_many(
            ProducerRecord(name, Data("bytes", name.encode()), partition=0) for name in names
        )
        assert result.ok
        assert result.offsets == [0, 0, 0, 1, 1]

    play(main, value_serializer=Scripted("value", []))
