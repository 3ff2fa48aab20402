"""`RecordFuture`: the states that functions of `concurrent.futures` can observe."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from typing import Any

import pytest

from aiokprod import KafkaError, RecordMetadata
from aiokprod._client.record_future import RecordFuture, size_of
from tests.hang import HANG_S
from tests.interruptions import interrupted_everywhere

METADATA = RecordMetadata("t", 0, 0, 0)


class Queue:
    """The part of `ThreadQueue` that a future needs. A test may replace the lock `outcomes`."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.outcomes: contextlib.AbstractContextManager[Any, Any] = threading.RLock()
        self.unread: list[BaseException] = []

    def check_waiting(self, record: RecordFuture) -> None:
        pass

    def on_unretrieved(self, error: BaseException) -> None:
        self.unread.append(error)


@pytest.fixture
def queue() -> Any:
    made = Queue()
    yield made
    made.loop.close()


def record_of(queue: Queue) -> RecordFuture:
    return RecordFuture(queue, ("t", b"value", b"key", None, None, None), 8, None)


class Gate:
    """A lock that calls `left` after each release."""

    def __init__(self, left: Any) -> None:
        self.lock = threading.RLock()
        self.left = left

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *error: object) -> None:
        self.lock.release()
        self.left()


def test_wait_sees_no_outcome_twice(queue: Queue) -> None:
    """If `wait` ran between the change of the state and the notification, it would count the record
    twice and return before the other record ends."""
    records = [record_of(queue) for _ in range(2)]
    assert not concurrent.futures.wait(records, 0).done  # from now on the records have conditions
    found: list[Any] = []
    waiting: list[threading.Thread] = []

    def wait() -> None:
        found.append(concurrent.futures.wait(records, HANG_S))

    def left() -> None:
        if threading.current_thread() is threading.main_thread() and not waiting:
            waiting.append(threading.Thread(target=wait))
            waiting[0].start()
            waiting[0].join(0.1)  # long enough to add its waiters, unless the lock blocks it

    queue.outcomes = Gate(left)
    records[0].settle(METADATA, None)
    waiting[0].join(0.1)
    assert waiting[0].is_alive()  # the other record has no outcome
    records[1].settle(METADATA, None)
    waiting[0].join(HANG_S)
    assert not found[0].not_done
    assert [record.result() for record in records] == [METADATA] * 2


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_future_does_not_keep_key_and_value(queue: Queue, error: Any) -> None:
    record = record_of(queue)
    assert record.fields[1] == b"value"
    if error is None:
        record.appended(None)  # type: ignore[arg-type]
    else:
        record.fail(error)
        assert record.exception() is error
    assert record.fields == (None,) * 6
    assert record.topic == "t"


def test_size_of_what_is_not_serialized_is_assumed() -> None:
    given: list[object] = [None, b"12", "123", bytearray(4), {}]
    assert [size_of(data) for data in given] == [0, 2, 3, 4, 256]


def test_wait_is_told_of_a_failed_record(queue: Queue) -> None:
    record, error = record_of(queue), KafkaError("refused")
    assert not concurrent.futures.wait([record], 0).done
    found: list[Any] = []

    def wait() -> None:
        found.append(concurrent.futures.wait([record], HANG_S, concurrent.futures.FIRST_EXCEPTION))

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not record._waiters:
        waiting.join(0.001)
    record.settle(None, error)
    waiting.join(HANG_S)
    assert found[0].done == {record}
    assert record.exception() is error


class Cancellable:
    """A task or a handle that only counts calls of `cancel`."""

    def __init__(self) -> None:
        self.cancellations = 0

    def cancel(self) -> None:
        self.cancellations += 1


def test_record_cancelled_on_its_way_is_withdrawn_where_it_arrives(queue: Queue) -> None:
    record, appending, delivery = record_of(queue), Cancellable(), Cancellable()
    assert record.cancel()
    record.waits(appending)  # type: ignore[arg-type]
    record.appended(delivery)  # type: ignore[arg-type]
    assert (appending.cancellations, delivery.cancellations) == (1, 1)


def test_signal_handler_that_waits_for_the_loop_may_interrupt_every_call(queue: Queue) -> None:
    calls: dict[str, Any] = {
        "result": lambda record: record.result(HANG_S) is METADATA,
        "exception": lambda record: record.exception(HANG_S) is None,
        "cancel": lambda record: record.cancel() is record.cancelled(),
        "add_done_callback": lambda record: record.add_done_callback(called.append) is None,
    }
    for name, call in calls.items():
        called: list[Any] = []
        records: list[RecordFuture] = []

        def make(call: Any = call, records: Any = records) -> Any:
            records.append(record_of(queue))
            return lambda: call(records[-1])

        def settle(records: Any = records) -> None:
            records[-1].settle(METADATA, None)

        results = interrupted_everywhere(make, settle)
        assert len(results) > 3
        assert all(results)
        assert called == (records[: len(results)] if name == "add_done_callback" else [])


def test_failure_that_overtakes_a_timeout_is_raised(queue: Queue) -> None:
    """Otherwise the failure would be neither raised nor reported as unread."""

    def make() -> Any:
        record = record_of(queue)
        made.append(record)

        def wait() -> bool:
            try:
                record.result(0)
            except KafkaError:
                return True
            except TimeoutError:
                return False
            raise AssertionError

        return wait

    made: list[RecordFuture] = []
    results = interrupted_everywhere(make, lambda: made[-1].settle(None, KafkaError("failed")))
    assert len(results) > 5
    assert all(results)
    made.clear()
    assert not queue.unread


def test_failure_of_a_record_with_an_outcome_is_not_reported(queue: Queue) -> None:
    record, first = record_of(queue), KafkaError("first")
    record.fail(first)
    called: list[Any] = []
    record.add_done_callback(called.append)
    concurrent.futures.wait([record], 0)
    record.fail(KafkaError("second"))
    assert record.exception() is first
    assert called == [record]
    del record, called
    assert not queue.unread
