"""`send_threadsafe`: records that other threads send with a producer on a real event loop."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    Blocking,
    DeliveryTimeout,
    ForkedProcess,
    KafkaError,
    KafkaTimeout,
    MetadataTimeout,
    Outcome,
    Producer,
    ProducerClosed,
    ProducerFailed,
    TopicDrain,
    WrongLoop,
)
from aiokprod._client import thread_queue
from aiokprod._client.record_future import RecordFuture
from aiokprod._client.thread_queue import ThreadQueue
from aiokprod.testing import FakeCluster
from tests.hang import HANG_S, until
from tests.scenarios.scenario_helpers import runtime_of

LONG: dict[str, Any] = {
    "linger_ms": 60_000, "adaptive_linger": False, "delivery_timeout_ms": 300_000,
}  # fmt: skip
Main = Callable[[Producer[Any, Any], FakeCluster], Coroutine[Any, Any, None]]


def play(main: Main, **settings: Any) -> None:
    """Run `main(producer, cluster)` on a real event loop. Topic "t" has one partition."""

    async def start() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        producer: Producer[Any, Any] = Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            **settings,
        )
        async with producer:
            await main(producer, cluster)

    asyncio.run(start())


def test_record_of_another_thread_is_sent_and_its_outcome_known_there() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        def send(value: bytes) -> int | None:
            future = producer.send_threadsafe("t", value, key=b"k", headers=[("h", None)])
            return future.result(HANG_S).offset

        assert await asyncio.to_thread(send, b"slow path") == 0
        assert await asyncio.to_thread(send, b"fast path") == 1
        assert cluster.values("t", 0) == [b"slow path", b"fast path"]
        assert cluster.log("t", 0)[1].headers == (("h", None),)

    play(main)


def test_record_of_the_loop_itself_can_be_awaited_but_not_waited_for() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        future = producer.send_threadsafe("t", b"v")
        with pytest.raises(WrongLoop, match="would block that loop"):
            future.result()
        with pytest.raises(WrongLoop):
            future.exception(0)
        assert (await asyncio.wrap_future(future)).offset == 0
        assert future.result().offset == 0

    play(main)


def test_records_are_taken_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wakeup of the loop handles all records that arrived before it."""

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.send("t", b"first")
        takes = 0
        loop = asyncio.get_running_loop()
        wake = loop.call_soon_threadsafe

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal takes
            takes += 1
            return wake(*arguments, **options)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        records = [producer.send_threadsafe("t", b"%d" % n) for n in range(1_000)]
        assert takes == 1
        await producer.flush()
        assert all(record.done() for record in records)
        assert takes == 1
        assert cluster.values("t", 0)[1:] == [b"%d" % n for n in range(1_000)]

    play(main)


def test_fast_callers_are_served_after_pauses_and_nothing_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread_queue, "BUSY", 0)  # every group counts as busy

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        def send() -> None:
            for _ in range(5):
                records = [producer.send_threadsafe("t", b"v") for _ in range(700)]
                for record in records:
                    record.result(HANG_S)

        await asyncio.to_thread(send)
        assert len(cluster.values("t", 0)) == 3_500

    play(main)


def test_record_is_refused_before_the_start_and_after_the_end() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        fresh = Producer(bootstrap_servers="localhost:1")
        with pytest.raises(WrongLoop, match="is not started"):
            fresh.send_threadsafe("t", b"v")
        await fresh.close()
        with pytest.raises(ProducerClosed):
            fresh.send_threadsafe("t", b"v")
        await producer.close()
        with pytest.raises(ProducerClosed):
            await asyncio.to_thread(producer.send_threadsafe, "t", b"v")
        producer._lifecycle.forked = True
        with pytest.raises(ForkedProcess):
            producer.send_threadsafe("t", b"v")
        producer._lifecycle.forked = False

    play(main)


def test_record_of_a_producer_that_failed_is_refused() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        runtime_of(producer).fail(ZeroDivisionError("on purpose"))
        with pytest.raises(ProducerFailed) as caught:
            producer.send_threadsafe("t", b"v")
        assert caught.value.outcome is Outcome.NOT_SENT

    play(main)


def test_records_in_the_queue_of_a_producer_that_fails_fail() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        records = [producer.send_threadsafe("absent", b"v") for _ in range(3)]
        await asyncio.sleep(0.05)
        runtime_of(producer).fail(ZeroDivisionError("on purpose"))
        await until(lambda: all(record.done() for record in records))
        assert all(isinstance(record.exception(), ProducerFailed) for record in records)

    play(main)


def test_task_that_appends_waiting_records_may_be_cancelled_by_others() -> None:
    """A shutdown may cancel the task. Its records must then fail as not sent, and later records
    must be sent."""

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        for pause in (0.0, 0.05):
            records = [producer.send_threadsafe("absent", b"v") for _ in range(3)]
            await until(lambda: tasks("aiokprod-records-of-threads"))
            await asyncio.sleep(pause)
            tasks("aiokprod-records-of-threads")[0].cancel()
            await until(lambda records=records: all(record.done() for record in records))  # type: ignore[misc]
            for record in records:
                error = record.exception()
                assert isinstance(error, ProducerClosed)
                assert error.outcome is Outcome.NOT_SENT
        assert (await asyncio.wrap_future(producer.send_threadsafe("t", b"v"))).offset == 0

    play(main)


def test_task_that_appends_a_record_may_be_cancelled_by_others() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        records = [producer.send_threadsafe("absent", b"v") for _ in range(2)]
        for record in records:
            await until(lambda record=record: record._appending is not None)  # type: ignore[misc]
            record._appending.cancel()  # type: ignore[attr-defined]
            await until(record.done)
            error = record.exception()
            assert isinstance(error, ProducerClosed)
            assert error.outcome is Outcome.NOT_SENT
        await until(lambda: producer.metrics()["records_refused"] == 2)
        assert (await asyncio.wrap_future(producer.send_threadsafe("t", b"v"))).offset == 0

    play(main)


def queue_of(producer: Producer[Any, Any]) -> thread_queue.ThreadQueue:
    queue = producer._lifecycle.thread_queue
    assert queue is not None
    return queue


def tasks(name: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == name]


def test_record_that_waits_can_be_cancelled_in_every_state() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        queued = producer.send_threadsafe("t", b"v")
        assert queued.cancel()
        first, second = (producer.send_threadsafe("absent", b"v") for _ in range(2))
        await asyncio.sleep(0.05)
        assert first.cancel()
        assert second.cancel()
        done, _ = await asyncio.to_thread(concurrent.futures.wait, [queued, first, second], HANG_S)
        assert len(done) == 3
        await producer.flush()
        await producer.send("t", b"kept")
        assert cluster.values("t", 0) == [b"kept"]

    play(main)


def test_flush_waits_for_records_that_wait_for_metadata() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        record = producer.send_threadsafe("absent", b"v")
        with pytest.raises(DeliveryTimeout):
            await producer.flush(0.05)
        assert not record.done()
        await producer.flush()
        assert isinstance(record.exception(), MetadataTimeout)

    play(main, max_block_ms=500)


def test_flush_ends_if_the_records_before_are_refused() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        producer.send_threadsafe("absent", b"v")
        await asyncio.sleep(0.05)
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0.05)
        (task,) = tasks("aiokprod-records-of-threads")
        task.cancel()
        await asyncio.wait_for(flushing, HANG_S)

    play(main)


def test_close_takes_the_records_that_arrived_before_it() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.send("t", b"first")
        records = [
            producer.send_threadsafe(topic, b"v") for topic in ("t", "new") for _ in range(400)
        ]
        report = await producer.close()
        assert report.by_topic == (TopicDrain("new", delivered=400), TopicDrain("t", delivered=400))
        assert all(record.exception() is None for record in records)

    play(main)


def test_records_that_end_in_the_queue_are_counted_as_refused() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.send("t", b"v")
        cancelled, queued = (producer.send_threadsafe("t", b"v") for _ in range(2))
        assert cancelled.cancel()
        assert (await asyncio.wrap_future(queued)).offset == 1
        waiting = [producer.send_threadsafe("missing", b"v") for _ in range(2)]
        await asyncio.sleep(0.05)
        burst = [producer.send_threadsafe("t", b"v") for _ in range(2 * thread_queue.GROUP)]
        await producer.close(0)
        assert {type(one.exception()) for one in (*waiting, *burst)} == {ProducerClosed}
        await asyncio.sleep(0)
        metrics = producer.metrics(by=["topic"])
        assert metrics["records_acknowledged"] == 2
        assert metrics["records_failed"] + metrics["records_refused"] == 1 + 2 + len(burst)
        assert metrics["refusals"] == {
            "KafkaError": 2,  # one was cancelled, one waited for metadata
            "ProducerClosed": metrics["records_refused"] - 2,
        }
        assert metrics["topics"]["t"]["records_refused"] > thread_queue.GROUP / 2

    play(main, allow_auto_create_topics=False)


def test_cancelled_close_refuses_what_is_in_the_queue() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        record = producer.send_threadsafe("absent", b"v")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.close()
        assert (await producer.close()).by_topic == (TopicDrain("absent", not_sent=1),)
        assert isinstance(record.exception(), ProducerClosed)

    play(main)


def test_close_task_that_is_cancelled_refuses_what_is_in_the_queue() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        record = producer.send_threadsafe("absent", b"v")
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0.05)
        (task,) = tasks("aiokprod-close")
        task.cancel()
        assert (await closing).by_topic == (TopicDrain("absent", not_sent=1),)
        await until(record.done)

    play(main)


def test_loop_that_was_closed_under_the_producer_refuses_records() -> None:
    cluster = FakeCluster(1)
    loop = asyncio.new_event_loop()
    producer: Producer[Any, Any] = Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    )
    loop.run_until_complete(producer.start())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    runtime_of(producer).failure = None  # as if no task had noticed
    queue_of(producer)._refusal = None
    loop.close()
    future = producer.send_threadsafe("t", b"v")
    assert isinstance(future.exception(), ProducerClosed)
    with pytest.raises(ProducerClosed, match="loop"):
        producer.send_threadsafe("t", b"v")
    assert not future.cancel()
    producer._lifecycle.closed = True  # the producer cannot be closed any more


def test_serializer_that_raises_or_is_asynchronous() -> None:
    async def encode(value: str) -> bytes:
        await asyncio.sleep(0.01)
        if value == "wrong":
            raise ZeroDivisionError
        return value.encode()

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        records = [producer.send_threadsafe("t", value) for value in ("a", "wrong", "b")]
        await producer.flush()
        assert [type(record.exception()).__name__ for record in records] == [
            "NoneType", "SerializationError", "NoneType",
        ]  # fmt: skip
        assert cluster.values("t", 0) == [b"a", b"b"]

    play(main, value_serializer=encode)


def test_error_that_is_no_exception_does_not_stop_the_queue() -> None:
    class Stop(BaseException):
        pass

    def encode(value: str) -> bytes:
        if value == "stop":
            raise Stop
        return value.encode()

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.send("t", "first")
        record = producer.send_threadsafe("t", "stop")
        later = producer.send_threadsafe("t", "later")
        take = runtime_of(producer).loop
        assert take is asyncio.get_running_loop()
        queue = producer._lifecycle.thread_queue
        assert queue is not None
        with pytest.raises(Stop):
            queue._take()
        assert isinstance(record.exception(), Stop)
        assert (await asyncio.wrap_future(later)).offset == 1

    play(main, value_serializer=encode)


def test_callback_that_raises_is_logged_and_others_run(caplog: pytest.LogCaptureFixture) -> None:
    called = threading.Event()

    def fail(_: object) -> None:
        raise ZeroDivisionError

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        future = producer.send_threadsafe("t", b"v")
        future.add_done_callback(fail)
        future.add_done_callback(lambda _: called.set())
        await producer.flush()

    play(main)
    assert called.is_set()
    assert any("exception calling callback" in record.getMessage() for record in caplog.records)


def test_error_that_is_no_exception_ends_a_line_and_its_bytes_are_counted_once() -> None:
    class Stop(BaseException):
        pass

    def encode(value: str) -> bytes:
        if value == "stop":
            raise Stop
        return value.encode()

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        records = [producer.send_threadsafe("t", value) for value in ("first", "stop", "later")]
        await until(lambda: all(record.done() for record in records))
        assert [type(record.exception()) for record in records] == [
            type(None), Stop, ProducerClosed,
        ]  # fmt: skip
        queue = queue_of(producer)
        assert queue._bytes_in == queue._bytes_out > 0

    play(main, value_serializer=encode)


# -- interruptions, and callers that withdraw records ---------------------------------------------


class _Late(deque[Any]):
    """A queue whose last record is withdrawn just before the loop takes it."""

    stale = 2

    def __len__(self) -> int:
        self.stale -= 1
        return super().__len__() + (self.stale >= 0)


@pytest.mark.parametrize("name", ["_take", "give_up"])
def test_record_may_be_taken_back_while_the_loop_is_about_to_take_it(name: str) -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.warm(["t"])
        queue = queue_of(producer)
        record = producer.send_threadsafe("t", b"v")
        queue._records = _Late(queue._records)
        getattr(queue, name)()
        await producer.flush()
        assert record.done()
        assert (record.exception() is None) is (name == "_take")

    play(main)


def test_close_ends_if_the_last_record_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of events: a caller finds room, `close` begins, the caller appends its record, the
    earlier records end, and the caller withdraws its record."""
    has_room, take_back = ThreadQueue._has_room, ThreadQueue._take_back
    checking, appended = threading.Event(), threading.Event()
    may_append, may_take_back = threading.Event(), threading.Event()

    def slow_check(queue: ThreadQueue, size: int) -> bool:
        checking.set()
        may_append.wait(HANG_S)
        return has_room(queue, size)

    def slow_take_back(queue: ThreadQueue, record: Any) -> bool:
        appended.set()
        may_take_back.wait(HANG_S)
        return take_back(queue, record)

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.warm(["t"])
        cluster.auto_create = False
        waiting = producer.send_threadsafe("absent", b"v")
        await until(lambda: bool(queue_of(producer)._topic_queues))
        monkeypatch.setattr(ThreadQueue, "_has_room", slow_check)
        monkeypatch.setattr(ThreadQueue, "_take_back", slow_take_back)
        late = asyncio.ensure_future(asyncio.to_thread(producer.send_threadsafe, "t", b"late"))
        await until(checking.is_set)
        closing = asyncio.ensure_future(producer.close())
        await until(lambda: queue_of(producer)._refusal is not None)
        may_append.set()
        await until(appended.is_set)
        waiting.cancel()
        await until(lambda: not queue_of(producer)._topic_queues)
        may_take_back.set()
        await asyncio.wait_for(closing, HANG_S)
        with pytest.raises(ProducerClosed):
            await late
        assert cluster.values("t", 0) == []

    play(main)


def test_flush_ends_if_a_record_is_taken_back() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        queue = queue_of(producer)
        queue._is_scheduled = True  # set by a caller that has not woken the loop yet
        record = producer.send_threadsafe("t", b"v")
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        assert isinstance(record, RecordFuture)
        assert queue._take_back(record)
        queue._take()
        await asyncio.wait_for(flushing, HANG_S)

    play(main)


def test_failures_that_die_in_two_threads_at_once_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        unread = queue_of(producer)._unread
        unread._errors.append(KafkaError("of a thread that has not woken the loop yet"))
        unread.add(KafkaError("unread"))
        await until(lambda: producer.metrics()["records_unretrieved"] == 2)
        unread.add(KafkaError("one more"))
        await until(lambda: producer.metrics()["records_unretrieved"] == 3)

    play(main)
    assert "records of other threads failed" in caplog.text


@pytest.mark.parametrize("place", ["_accepts", "_wake"])
def test_signal_handler_may_close_the_producer_in_the_middle_of_a_call(
    monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The interrupted call holds its lock while the signal handler waits for the loop."""
    cluster = FakeCluster(1)
    producer = Blocking(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    )
    producer.warm(["t"])
    has_room, wake = ThreadQueue._has_room, ThreadQueue._wake

    def close() -> None:
        monkeypatch.undo()
        closing = threading.Thread(target=producer.close, daemon=True)
        closing.start()
        closing.join(HANG_S)
        assert not closing.is_alive()

    def interrupted(queue: ThreadQueue, size: int) -> bool:
        close()
        return has_room(queue, size)

    def interrupted_wake(queue: ThreadQueue) -> None:
        close()
        wake(queue)

    if place == "_accepts":
        monkeypatch.setattr(ThreadQueue, "_has_room", interrupted)
        with pytest.raises(ProducerClosed):
            producer.submit("t", b"v")
    else:
        monkeypatch.setattr(ThreadQueue, "_wake", interrupted_wake)
        record = producer.submit("t", b"v")
        assert record.result(HANG_S).offset == 0  # the record was drained


def test_interrupted_call_does_not_stop_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """KeyboardInterrupt is raised before the loop was woken. The interrupted record is withdrawn,
    and other records are sent."""

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.send("t", b"first")
        loop = asyncio.get_running_loop()

        def interrupt(*_: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

        for end in (producer.flush, producer.close):
            monkeypatch.setattr(loop, "call_soon_threadsafe", interrupt)
            with pytest.raises(KeyboardInterrupt):
                producer.send_threadsafe("t", b"interrupted")
            record = producer.send_threadsafe("t", b"next")
            await asyncio.wait_for(end(), HANG_S)
            assert record.done()
        assert cluster.values("t", 0) == [b"first", b"next", b"next"]

    play(main)


def test_flush_ends_if_the_queue_is_emptied_by_close() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.send("t", b"first")
        records = [producer.send_threadsafe("t", b"v") for _ in range(1_000)]
        flushing = asyncio.ensure_future(producer.flush())
        await asyncio.sleep(0)
        report = await producer.close(0)
        with contextlib.suppress(KafkaError):
            await asyncio.wait_for(flushing, HANG_S)
        assert report.delivered + report.failed == 1_000
        assert all(record.done() for record in records)

    play(main)


def test_record_that_is_appended_while_its_line_is_cancelled_is_not_reported_as_not_sent() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        record = producer.send_threadsafe("t", b"v")  # waits for metadata
        await until(lambda: tasks("aiokprod-records-of-threads"))
        (line,) = tasks("aiokprod-records-of-threads")
        await until(lambda: record._appending is not None)  # type: ignore[attr-defined]
        appending = record._appending  # type: ignore[attr-defined]
        appending.add_done_callback(lambda _: line.cancel())
        assert (await asyncio.wait_for(asyncio.wrap_future(record), HANG_S)).offset == 0
        assert cluster.values("t", 0) == [b"v"]

    play(main)


def test_records_end_at_once_if_the_producer_fails_or_its_loop_is_closed() -> None:
    outcomes: list[BaseException | None] = []

    async def main() -> threading.Thread:
        cluster = FakeCluster(1)
        producer: Producer[Any, Any] = Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), **LONG
        )
        await producer.start()
        await producer.warm(["t"])
        cluster.pause(1)  # from now on, no batch is acknowledged

        def send() -> None:
            records = []
            with contextlib.suppress(KafkaError):
                while True:
                    records.append(producer.send_threadsafe("t", b"v"))
            outcomes.extend(record.exception(HANG_S) for record in records)

        thread = threading.Thread(target=send)
        thread.start()
        await asyncio.sleep(0.05)
        # The producer is never closed, because its loop ends first.
        producer._lifecycle.warn_if_unclosed = lambda producer: None  # type: ignore[method-assign]
        return thread

    thread = asyncio.run(main())
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert outcomes
    assert {type(error) for error in outcomes} <= {ProducerFailed, ProducerClosed}


def test_wait_for_a_record_of_a_closed_loop_is_an_error() -> None:
    loop = asyncio.new_event_loop()
    cluster = FakeCluster(1)
    producer: Producer[Any, Any] = Producer(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
    )
    loop.run_until_complete(producer.start())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    # As if the producer were still in use.
    runtime_of(producer).failure = queue_of(producer)._refusal = None
    records = [producer.send_threadsafe("t", b"v")]  # the loop no longer runs
    loop.close()
    records.append(producer.send_threadsafe("t", b"v"))
    assert all(isinstance(record.exception(), ProducerClosed) for record in records)
    producer._lifecycle.closed = True  # the producer cannot be closed any more


def test_report_of_close_has_the_records_that_fail_before_they_are_in_a_batch() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        record = producer.send_threadsafe("absent", b"v")
        report = await producer.close()
        assert isinstance(record.exception(), MetadataTimeout)
        assert report.by_topic == (TopicDrain("absent", not_sent=1),)
        assert report.failed == 1
        assert report.complete

    play(main, max_block_ms=200)


# -- transactions -------------------------------------------------------------------------------


def test_transaction_has_the_records_of_other_threads_and_no_others() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.warm(["t"])
        async with producer.transaction():
            records = [producer.send_threadsafe("t", b"1") for _ in range(600)]
            records.append(producer.send_threadsafe("new", b"1"))
        assert cluster.committed_values("t", 0) == [b"1"] * 600
        assert all(record.exception() is None for record in records)
        await producer.begin_transaction()
        records = [producer.send_threadsafe("t", b"2") for _ in range(600)]
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"3")
        assert cluster.committed_values("t", 0)[600:] == [b"3"]
        assert all(isinstance(record.exception(), KafkaError) for record in records)

    play(main, transactional_id="id")


def test_transaction_that_lacks_a_record_of_another_thread_is_not_committed() -> None:
    def encode(value: str) -> bytes:
        if value == "wrong":
            raise ZeroDivisionError
        return value.encode()

    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        await producer.warm(["t"])
        await producer.begin_transaction()
        record = producer.send_threadsafe("t", "wrong")
        producer.send_threadsafe("t", "right")
        with pytest.raises(AbortableTransactionError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert record.exception() is not None
        assert cluster.committed_values("t", 0) == []

    play(main, transactional_id="id", value_serializer=encode)


def test_commit_whose_records_still_wait_can_be_repeated() -> None:
    async def main(producer: Producer[Any, Any], cluster: FakeCluster) -> None:
        cluster.auto_create = False
        await producer.begin_transaction()
        record = producer.send_threadsafe("absent", b"v")
        with pytest.raises(KafkaTimeout, match="records of other threads still wait") as caught:
            await producer.commit_transaction(0.05)
        assert caught.value.outcome is Outcome.NOT_SENT
        cluster.create_topic("absent", 1)
        await producer.commit_transaction()
        assert record.result().offset == 0
        assert cluster.committed_values("absent", 0) == [b"v"]

    play(main, transactional_id="id")
