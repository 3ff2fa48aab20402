"""Edge cases of the public API: deliveries in asyncio's helpers, interceptors, observers,
accounting."""

from __future__ import annotations

import asyncio
import enum
import functools
import gc
import inspect
import logging
import pickle
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiokprod import Delivery, Producer
from aiokprod.errors import (
    BufferFull,
    BufferTimeout,
    DeliveryTimeout,
    KafkaError,
    MetadataTimeout,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    RecordTooLarge,
    SerializationError,
    UnknownTopic,
)
from aiokprod.observer import Observer
from aiokprod.records import ProducerRecord, RecordMetadata
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster
from tests.scenarios.scenario_helpers import (
    TICK,
    History,
    clock,
    harness,
    now,
    play,
    runtime_of,
    scenario,
)


async def three(producer: Producer[Any, Any]) -> list[Delivery]:
    return [await producer.submit("t", b"%d" % n, partition=0) for n in range(3)]


# -- deliveries ---------------------------------------------------------------------------------


@scenario(partitions=1)
async def test_deliveries_work_with_every_helper_of_asyncio(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    assert [m.offset for m in await asyncio.gather(*await three(producer))] == [0, 1, 2]
    done, pending = await asyncio.wait(await three(producer))  # type: ignore[type-var]
    assert not pending
    assert {d.result().offset for d in done} == {3, 4, 5}
    offsets = [(await first).offset for first in asyncio.as_completed(await three(producer))]
    assert len(offsets) == 3
    assert set(offsets) == {6, 7, 8}
    delivery: Any = await producer.submit("t", b"x", partition=0)
    assert (await asyncio.wait_for(delivery, 5)).offset == 9
    delivery = await producer.submit("t", b"x", partition=0)
    assert (await asyncio.shield(delivery)).offset == 10
    delivery = await producer.submit("t", b"x", partition=0)
    async with asyncio.timeout(5):
        assert (await delivery).offset == 11
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(producer.send("t", b"x", partition=0)) for _ in range(3)]
    assert [task.result().offset for task in tasks] == [12, 13, 14]
    assert asyncio.isfuture(delivery)


@scenario(partitions=1)
async def test_delivery_awaited_again_gives_the_same_answer(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    delivery = await producer.submit("t", b"x", partition=0)
    first = await delivery
    assert await delivery == first == delivery.result()
    assert delivery.done()
    assert delivery.exception() is None
    seen = []
    delivery.add_done_callback(lambda d: seen.append(d.result()))
    await asyncio.sleep(0.01)
    assert seen == [first]


@scenario(partitions=1)
async def test_failed_delivery_gives_each_waiter_a_copy_of_its_own(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await producer.warm(["t"])
    cluster.fail_produce(("t", 0), 44)
    delivery = await producer.submit("t", b"x", partition=0)

    async def wait() -> KafkaError:
        with pytest.raises(KafkaError) as info:
            await delivery
        return info.value

    errors = await asyncio.gather(wait(), wait(), wait())
    assert len({id(error) for error in errors}) == 3
    assert len({str(error) for error in errors}) == 1
    for error in errors:
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), copy.outcome) == (type(error), str(error), error.outcome)


@scenario(partitions=1)
async def test_removed_callback_is_not_called(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    seen: list[Delivery] = []
    delivery = await producer.submit("t", b"x", partition=0)
    delivery.add_done_callback(seen.append)
    delivery.remove_done_callback(seen.append)
    await delivery
    await asyncio.sleep(0.01)
    assert seen == []


# -- interceptors -------------------------------------------------------------------------------


class Ledger:
    """Counts the calls of an interceptor for each record."""

    def __init__(self) -> None:
        self.sent = 0
        self.heard: list[tuple[RecordMetadata | None, Any]] = []

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        self.sent += 1
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.heard.append((metadata, error))

    def close(self) -> None:
        pass

    def errors(self) -> list[type[KafkaError]]:
        return [type(error) for _, error in self.heard if error is not None]


async def every_way_to_end(cluster: FakeCluster, producer: Producer[Any, Any]) -> list[Any]:
    """End records in each possible way; return the error of each submitted record."""
    expected: list[type[BaseException] | None] = []

    async def ends(kind: type[KafkaError] | None, coroutine: Awaitable[Any]) -> None:
        expected.append(kind)
        if kind is None:
            await coroutine
        else:
            with pytest.raises(kind):
                await coroutine

    await ends(None, producer.send("t", b"ok", partition=0))
    await ends(SerializationError, producer.send("t", object(), partition=0))
    await ends(RecordTooLarge, producer.send("t", b"x" * 20_000, partition=0))
    await ends(MetadataTimeout, producer.send("absent", b"x"))
    await ends(UnknownTopic, producer.send("t", b"x", partition=9))
    cluster.fail_produce(("t", 0), 44)
    await ends(KafkaError, producer.send("t", b"x", partition=0))
    cluster.control(0, faults.delay(3), times=1)
    await ends(DeliveryTimeout, producer.send("t", b"late", partition=0, timeout=0.5))
    await producer.flush()
    result = await producer.send_many("t", [b"1", object(), b"3"], partition=0)
    expected += [None, SerializationError, None]
    assert len(result.errors) == 1
    await producer.send_many([ProducerRecord("t", b"1", partition=0)])
    expected.append(None)
    cluster.control(0, faults.delay(5), times=1)
    fill = [producer.try_submit("t", b"x" * 8_000, partition=0) for _ in range(2)]
    await ends(BufferTimeout, producer.send("t", b"x" * 9_000, partition=0))
    await asyncio.gather(*fill)
    expected += [None, None]
    task = asyncio.ensure_future(producer.send("absent2", b"x"))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    expected.append(asyncio.CancelledError)
    return expected


def test_interceptor_hears_of_every_record_exactly_once() -> None:
    async def main() -> None:
        ledger = Ledger()
        options: dict[str, Any] = {
            "interceptors": [ledger],
            "max_block_ms": 1_000,
            "max_request_size": 10_000,
            "buffer_memory": 20_000,
        }
        async with harness(cluster={"auto_create": False}, **options) as (cluster, producer, _):
            expected = await every_way_to_end(cluster, producer)
            await producer.flush()
        assert ledger.sent == len(expected)
        assert len(ledger.heard) == len(expected)
        for metadata, error in ledger.heard:
            assert (error is None) == (metadata is not None and metadata.offset is not None)

    play(main)


def test_interceptor_hears_of_records_that_close_gave_up() -> None:
    async def main() -> None:
        ledger = Ledger()
        async with harness(interceptors=[ledger]) as (cluster, producer, _):
            await producer.send("t", b"1", partition=0)
            cluster.control(0, faults.lose_request())
            deliveries = await three(producer)
            await producer.close(0)
            found = await asyncio.gather(*deliveries, return_exceptions=True)
            assert all(isinstance(error, ProducerClosed) for error in found)
        assert ledger.sent == len(ledger.heard) == 4
        assert len(ledger.errors()) == 3

    play(main)


def test_interceptor_hears_of_a_record_that_try_submit_had_no_room_for() -> None:
    async def main() -> None:
        ledger = Ledger()
        options: dict[str, Any] = {
            "interceptors": [ledger],
            "buffer_memory": 3_000,
            "batch_size": 500,
        }
        async with harness(**options) as (cluster, producer, _):
            await producer.warm(["t"])
            cluster.control(0, faults.delay(1.0))
            taken = []

            def fill() -> None:
                while True:
                    taken.append(producer.try_submit("t", b"x" * 300, partition=0))

            with pytest.raises(BufferFull):
                fill()
            assert ledger.sent == len(taken) + 1
            assert ledger.errors() == [BufferFull]
            await asyncio.gather(*taken)
        assert len(ledger.heard) == ledger.sent

    play(main)


class Alarm(BaseException):
    """An exception that the signal handler of a job runner may raise."""


async def try_submitted(producer: Producer[Any, Any]) -> None:
    producer.try_submit("t", b"alarm", partition=0)


CALLS: dict[str, Callable[[Producer[Any, Any]], Awaitable[object]]] = {
    "try_submit": try_submitted,
    "submit": lambda producer: producer.submit("t", b"alarm", partition=0),
}


@pytest.mark.parametrize("way", CALLS)
def test_exception_of_a_signal_handler_in_a_serializer_ends_the_record(way: str) -> None:
    """The call raises it unchanged, interceptors are notified, and the producer continues to
    work."""

    def interrupted(value: bytes) -> bytes:
        if value == b"alarm":
            raise Alarm
        return value

    async def main() -> None:
        ledger = Ledger()
        async with harness(interceptors=[ledger], value_serializer=interrupted) as (_, producer, _):
            await producer.warm(["t"])
            with pytest.raises(Alarm):
                await CALLS[way](producer)
            assert ledger.errors() == [KafkaError]
            assert ledger.heard[0][1].outcome is Outcome.NOT_SENT
            assert (await producer.try_submit("t", b"fine", partition=0)).offset == 0
        assert len(ledger.heard) == ledger.sent == 2

    play(main)


def test_interceptors_change_records_in_turn() -> None:
    class Add(Ledger):
        def __init__(self, text: bytes) -> None:
            super().__init__()
            self.text = text

        def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            return ProducerRecord(
                record.topic, (record.value or b"") + self.text, record.key, record.partition
            )

    async def main() -> None:
        async with harness(interceptors=[Add(b"1"), Add(b"2")]) as (cluster, producer, _):
            await producer.send("t", b"0", partition=0)
            await producer.send_many("t", [b"m"], partition=0)
            assert cluster.values("t", 0) == [b"012", b"m12"]

    play(main)


def test_topic_that_an_interceptor_takes_from_an_enum_is_accepted() -> None:
    class Topic(enum.StrEnum):
        OTHER = "t"

    class Redirect(Ledger):
        def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
            return ProducerRecord(Topic.OTHER, record.value)

    async def main() -> Any:
        async with harness(interceptors=[Redirect()]) as (cluster, producer, _):
            metadata = await producer.send("elsewhere", b"0")
            assert type(metadata.topic) is str
            assert (await producer.send_many("elsewhere", [b"1"])).ok
            assert cluster.values("t", 0) == [b"0", b"1"]

    play(main)


# -- failures that no task waits for ------------------------------------------------------------


class Watcher(Observer):
    """Records failures that were not retrieved."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_unretrieved_failure(self, *arguments: Any) -> None:
        self.calls.append(arguments)


def test_failure_nobody_waits_for_is_told_once_per_batch(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        watcher = Watcher()
        options: dict[str, Any] = {"linger_ms": 20, "adaptive_linger": False, "observer": watcher}
        async with harness(**options) as (cluster, producer, _):
            await producer.warm(["t"])
            cluster.fail_produce(("t", 0), 44)
            await three(producer)
            await producer.flush()
            gc.collect()
            await asyncio.sleep(1)
            assert len(watcher.calls) == 1
            cluster.fail_produce(("t", 0), 44)
            deliveries = await three(producer)
            found = await asyncio.gather(*deliveries, return_exceptions=True)
            assert all(isinstance(error, KafkaError) for error in found)
            await asyncio.sleep(1)
            assert len(watcher.calls) == 1, "these were waited for"

    with caplog.at_level(logging.WARNING):
        play(main)
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 1
    assert "t-0" in told[0].getMessage()


@pytest.mark.parametrize("interceptors", [0, 1])
@pytest.mark.parametrize("way", ["submit", "send_many", "cancelled send", "timeout of send"])
def test_failure_that_no_call_raises_is_logged(
    way: str, interceptors: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"delivery_timeout_ms": 2_000, "request_timeout_ms": 1_000}
        heard = [Ledger() for _ in range(interceptors)]
        async with harness(interceptors=heard, **options) as (cluster, producer, _):
            await producer.warm(["t"])
            for broker in cluster.brokers:
                cluster.pause(broker)
            if way == "submit":
                await producer.submit("t", b"v")
            elif way == "timeout of send":
                with pytest.raises(DeliveryTimeout):
                    await producer.send("t", b"v", timeout=0.5)
            else:
                call = producer.send_many("t", [b"v"]) if way == "send_many" else producer.send("t")
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(call, 0.5)
            await producer.flush()
            assert producer.metrics()["records_unretrieved"] == 1

    play(main)
    assert sum("no task was waiting" in record.getMessage() for record in caplog.records) == 1


def test_record_contents_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = b"canary-4711-secret"

    async def main() -> None:
        async with harness(delivery_timeout_ms=3_000, request_timeout_ms=1_000) as (
            cluster,
            producer,
            _,
        ):
            await producer.send("t", secret, key=secret, headers=[("h", secret)], partition=0)
            for code in (44, -1, 2, 6, 45):
                cluster.fail_produce(("t", 0), code)
                await producer.submit("t", secret, key=secret, partition=0)
            cluster.kill(1, failover_s=100)
            await producer.submit("t", secret, key=secret, partition=0)
            with pytest.raises(SerializationError) as info:
                await producer.send("t", [secret])
            assert "4711" not in str(info.value)
            await producer.flush()
            for text in (repr(producer), producer.explain(), str(producer.health())):
                assert "4711" not in text

    with caplog.at_level(logging.DEBUG):
        play(main)
    assert "4711" not in caplog.text


# -- memory and laps of the loop ----------------------------------------------------------------


@scenario(partitions=1, buffer_memory=100_000, max_request_size=50_000)
async def test_many_waiters_wake_only_as_room_appears(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Promise 12 of the design: waking is proportional to work."""
    await producer.warm(["t"])
    cluster.control(0, faults.delay(0.05))
    tasks = [asyncio.ensure_future(producer.send("t", b"x" * 10_000)) for _ in range(500)]
    found = await asyncio.gather(*tasks)
    assert len(found) == 500
    assert clock().passes < 20_000


def test_submit_in_a_tight_loop_lets_others_run() -> None:
    """A sending task must not starve a heartbeat. The time slice is real time, so this needs a real
    loop."""

    async def main() -> Any:
        async with harness(partitions=3) as (_, producer, _):
            await producer.warm(["t"])
            beats = 0

            async def heartbeat() -> None:
                nonlocal beats
                while True:
                    beats += 1
                    await asyncio.sleep(0)

            beating = asyncio.ensure_future(heartbeat())
            for number in range(100_000):
                await producer.submit("t", b"x" * 50, partition=number % 3)
            beating.cancel()
            await producer.flush()
            return beats

    assert asyncio.run(main()) > 3


def test_instrumented_methods_are_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry wraps methods of a class this way."""
    calls = []

    def wrap(name: str) -> None:
        original = getattr(Producer, name)

        @functools.wraps(original)
        def wrapper(*args: Any, **options: Any) -> Any:
            calls.append(name)
            return original(*args, **options)

        monkeypatch.setattr(Producer, name, wrapper)

    wrap("submit")
    wrap("send")

    async def main() -> None:
        async with harness(partitions=1) as (_, producer, _):
            await producer.start()
            await producer.warm(["t"])
            await (await producer.submit("t", b"x"))
            await producer.send("t", b"x")

    play(main)
    assert calls == ["submit", "send"]


@scenario(partitions=1)
async def test_send_is_a_coroutine_function_before_and_after_the_start(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    assert inspect.iscoroutinefunction(producer.send)
    await producer.start()
    await producer.warm(["t"])
    assert inspect.iscoroutinefunction(producer.send)
    assert asyncio.iscoroutinefunction(producer.send)


@scenario(partitions=1)
async def test_metadata_of_a_record_is_what_the_log_says(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    metadata = await producer.send("t", b"value", key=b"key", partition=0, timestamp_ms=77)
    assert metadata == RecordMetadata("t", 0, 0, 77, 3, 5)
    empty = await producer.send("t", None, partition=0)
    assert (empty.serialized_key_size, empty.serialized_value_size) == (-1, -1)
    assert empty.offset == 1


@scenario(partitions=1)
async def test_error_says_what_to_do_and_where(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    await history.send()
    cluster.fail_produce(("t", 0), 44, message="policy says no")
    with pytest.raises(KafkaError) as info:
        await producer.send("t", b"x", partition=0)
    text = str(info.value)
    for part in ("t-0", "broker 1", "POLICY_VIOLATION", "policy says no"):
        assert part in text, text
    assert info.value.outcome is Outcome.REJECTED
    assert info.value.code is not None
    assert info.value.code.number == 44


@pytest.mark.parametrize("end", ["acknowledged", "failed", "cancelled"])
def test_handle_that_is_kept_keeps_no_engine(end: str) -> None:
    """A handle references its batch and the loop, and the garbage collector does not traverse
    it."""
    kept = []

    async def main() -> Any:
        async with harness(linger_ms=50, adaptive_linger=False) as (cluster, producer, _):
            await producer.send("t", b"first", partition=0)
            if end == "failed":
                cluster.fail_produce(("t", 0), 29)
            delivery = await producer.submit("t", b"kept", partition=0)
            kept.append(delivery)
            if end == "cancelled":
                assert delivery.cancel()
            await producer.flush()
            assert delivery.cancelled() == (end == "cancelled")
            if end != "cancelled":
                assert (delivery.exception() is None) == (end == "acknowledged")
            return weakref.ref(runtime_of(producer))

    runtime = play(main)
    gc.collect()
    assert runtime() is None
    assert kept[0].done()


@pytest.mark.parametrize("end", ["close", "stranger"])
@scenario(partitions=3, brokers=1)
async def test_warm_that_waits_for_a_connection_ends_with_the_producer(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History, end: str
) -> None:
    """The metadata is cached and the leader is not connected (seed 38632 of the simulation)."""
    await history.send()
    cluster.network.hang("broker1", 9092)
    for link in cluster.network.links:
        link.reset()
    await asyncio.sleep(0.01)
    warming = asyncio.ensure_future(producer.warm(["t"]))
    await asyncio.sleep(0.5)
    assert not warming.done()
    started = now()
    if end == "close":
        await producer.close(0)
    else:
        next(t for t in asyncio.all_tasks() if t.get_name() == "aiokprod-sender").cancel()
    with pytest.raises(ProducerClosed if end == "close" else ProducerFailed):
        await warming
    assert now() - started <= TICK


# -- which record an error is of ------------------------------------------------------------------


class Noting:
    """Stores the arguments that interceptors get about failed records."""

    def __init__(self) -> None:
        self.seen = 0
        self.ended: list[tuple[RecordMetadata | None, Any]] = []

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        self.seen += 1
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.ended.append((metadata, error))

    def close(self) -> None: ...

    @property
    def failed(self) -> list[tuple[str | None, int | None]]:
        return [(error.topic, error.partition) for _, error in self.ended if error is not None]


@scenario(partitions=3, interceptors=[Noting()], max_block_ms=500, allow_auto_create_topics=False)
async def test_error_told_to_interceptors_names_topic_and_partition(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Topic and partition are reported as far as they are known, for every kind of failure (Java:
    always)."""
    chain = producer._hooks.interceptors
    assert chain is not None
    [noting] = chain.interceptors
    caught: pytest.ExceptionInfo[Any]
    with pytest.raises(MetadataTimeout) as caught:
        await producer.send("missing", b"v")
    assert (caught.value.topic, caught.value.partition) == ("missing", None)
    with pytest.raises(UnknownTopic) as caught:
        await producer.send("t", b"v", partition=7)
    assert (caught.value.topic, caught.value.partition) == ("t", 7)
    with pytest.raises(RecordTooLarge) as caught:
        await producer.send("t", bytes(2**21), partition=1)
    assert (caught.value.topic, caught.value.partition) == ("t", 1)
    with pytest.raises(RecordTooLarge) as caught:
        producer.try_submit("t", bytes(2**21), partition=2)
    assert (caught.value.topic, caught.value.partition) == ("t", 2)
    assert noting.failed == [("missing", None), ("t", 7), ("t", 1), ("t", 2)]

    cluster.fail_produce(("t", 1), 87, times=1)  # INVALID_RECORD
    with pytest.raises(KafkaError) as caught:
        await producer.send("t", b"v", partition=1)
    assert (caught.value.topic, caught.value.partition) == ("t", 1)
    assert noting.failed[-1] == ("t", 1)

    delivery = await producer.submit("t", b"withdrawn", partition=2)
    assert delivery.cancel()
    assert noting.failed[-1] == ("t", 2)
    assert noting.ended[-1][1].outcome is Outcome.NOT_SENT

    sending = asyncio.create_task(producer.send("missing", b"v", partition=0))
    await asyncio.sleep(0.1)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert noting.failed[-1] == ("missing", 0)

    metadata = await producer.send("t", b"v", partition=0)
    assert noting.ended[-1] == (metadata, None)
    assert noting.seen == len(noting.ended) == 8


@scenario(partitions=2)
async def test_errors_of_deliveries_and_bulk_calls_name_topic_and_partition(
    cluster: FakeCluster, producer: Producer[Any, Any], history: History
) -> None:
    """Each record gets a separate error, even if several partitions fail with the same code at
    once."""
    await producer.warm(["t"])
    cluster.fail_produce(("t", 0), 87, times=None)
    cluster.fail_produce(("t", 1), 87, times=None)
    deliveries = [await producer.submit("t", b"v", partition=n % 2) for n in range(4)]
    await asyncio.wait(deliveries)  # type: ignore[type-var]
    errors: list[Any] = [delivery.exception() for delivery in deliveries]
    assert [(error.topic, error.partition) for error in errors] == [("t", 0), ("t", 1)] * 2
    result = await producer.send_many(ProducerRecord("t", b"v", partition=n % 2) for n in range(4))
    assert [(error.topic, error.partition) for error in result.errors.values()] == [
        ("t", 0),
        ("t", 1),
    ] * 2
    copy = pickle.loads(pickle.dumps(errors[1]))
    assert (copy.topic, copy.partition) == ("t", 1)
    assert (KafkaError("x").topic, KafkaError("x").partition) == (None, None)
    cluster.produce_script.clear()
