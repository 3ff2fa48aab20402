"""`Blocking` in real time: threads, the exit of the interpreter, and forks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    Blocking,
    ConfigError,
    DeliveryTimeout,
    Environment,
    ForkedProcess,
    KafkaError,
    MetadataTimeout,
    Outcome,
    Producer,
    ProducerClosed,
    RecordTooLarge,
    StringSerializer,
    TopicDrain,
    WrongLoop,
)
from aiokprod import blocking as module
from aiokprod._client.drain import EMPTY_DRAIN
from aiokprod._client.event_loops import ThreadedLoop
from aiokprod._client.record_future import RecordFuture
from aiokprod.testing import FakeCluster
from aiokprod.testing.mock_cluster import MockCluster
from tests.hang import HANG_S, wait_until

LONG: dict[str, Any] = {
    "linger_ms": 60_000, "adaptive_linger": False, "delivery_timeout_ms": 300_000,
}  # fmt: skip


@pytest.fixture
def cluster() -> FakeCluster:
    made = FakeCluster(1)
    made.create_topic("t", 1)
    return made


def blocking(cluster: FakeCluster, **options: Any) -> Blocking[Any, Any]:
    return Blocking(
        bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(), **options
    )


def on_loop(producer: Blocking[Any, Any], function: Any, *arguments: Any) -> Any:
    """Call a function of the cluster on the event loop that the producer and the cluster share."""

    async def call(_: Producer[Any, Any]) -> Any:
        return function(*arguments)

    return producer.call(call)


def test_send_returns_the_place_of_the_record(cluster: FakeCluster) -> None:
    with blocking(cluster) as producer:
        places = [
            producer.send("t", b"%d" % number, key=b"k", partition=0, headers=[("h", b"1")])
            for number in range(3)
        ]
        assert [place.offset for place in places] == [0, 1, 2]
        assert producer.health().ok
        assert producer.metrics()["records_acknowledged"] == 3
        assert "settings:" in producer.explain()
        assert "started" in repr(producer)
    assert [(record.key, record.headers) for record in cluster.log("t", 0)] == [
        (b"k", (("h", b"1"),))
    ] * 3
    assert producer.drain_report is not None
    assert producer.drain_report.complete
    assert "closed" in repr(producer)
    assert producer.health().state == "closed"


def test_threads_share_batches_and_keep_their_order(cluster: FakeCluster) -> None:
    threads, each = 8, 500

    def work(number: int) -> None:
        records = [producer.submit("t", b"%d %d" % (number, n)) for n in range(each)]
        for record in records:
            record.result(HANG_S)

    with blocking(cluster) as producer:
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
        metrics = producer.metrics()
    values = [tuple(map(int, (value or b"").split())) for value in cluster.values("t", 0)]
    assert len(values) == threads * each
    for number in range(threads):
        assert [n for one, n in values if one == number] == list(range(each))
    assert metrics["records_per_batch"]["avg"] > 4


def test_records_of_unknown_topics_delay_no_other_topic(cluster: FakeCluster) -> None:
    cluster.auto_create = False
    with blocking(cluster, max_block_ms=1_500) as producer:
        lost = [producer.submit("absent", b"v") for _ in range(50)]
        assert producer.send("t", b"v", timeout=HANG_S).offset == 0
        assert not lost[0].done()
        for record in lost:
            error = record.exception(HANG_S)
            assert isinstance(error, MetadataTimeout)
            assert error.outcome is Outcome.NOT_SENT


def test_records_to_a_new_topic_keep_their_order(cluster: FakeCluster) -> None:
    with blocking(cluster) as producer:
        records = [producer.submit("new", b"%d" % n, partition=0) for n in range(1_000)]
        offsets = [record.result(HANG_S).offset for record in records]
    assert offsets == list(range(1_000))


def test_flush_waits_for_records_that_are_still_in_the_queue(cluster: FakeCluster) -> None:
    with blocking(cluster, **LONG) as producer:
        producer.warm(["t"])
        records = [producer.submit(topic, b"v") for topic in ("t", "new") for _ in range(300)]
        producer.flush()
        assert all(record.done() for record in records)
        producer.flush(0.5)


def test_flush_timeout_is_a_delivery_timeout(cluster: FakeCluster) -> None:
    with blocking(cluster, close_timeout_ms=0) as producer:
        producer.send("t", b"v")
        on_loop(producer, cluster.pause, 1)
        producer.submit("t", b"v")
        with pytest.raises(DeliveryTimeout, match="flush"):
            producer.flush(0.05)


def test_flush_of_a_producer_that_is_not_started_does_nothing() -> None:
    producer = Blocking(bootstrap_servers="localhost:1")
    producer.flush()
    assert producer.health().state == "new"
    producer.close()


def test_send_with_a_timeout_withdraws_a_record_in_an_open_batch(cluster: FakeCluster) -> None:
    with blocking(cluster, **LONG) as producer:
        producer.warm(["t"])
        with pytest.raises(DeliveryTimeout, match="withdrawn") as caught:
            producer.send("t", b"v", timeout=0.05)
        assert caught.value.outcome is Outcome.NOT_SENT
        assert not isinstance(caught.value, concurrent.futures.CancelledError)
    assert cluster.values("t", 0) == []


def test_send_with_a_timeout_withdraws_a_record_that_waits_for_metadata(
    cluster: FakeCluster,
) -> None:
    cluster.auto_create = False
    with blocking(cluster) as producer:
        with pytest.raises(DeliveryTimeout, match="waited for metadata or memory") as caught:
            producer.send("absent", b"v", timeout=0.05)
        assert caught.value.outcome is Outcome.NOT_SENT
        wait_until(lambda: not producer.metrics()["waiting_sends"])
    assert producer.drain_report is not None
    assert producer.drain_report.by_topic == ()


def test_send_with_a_timeout_does_not_know_about_a_record_that_was_sent(
    cluster: FakeCluster,
) -> None:
    with blocking(cluster, close_timeout_ms=0) as producer:
        producer.send("t", b"v")
        on_loop(producer, cluster.pause, 1)
        with pytest.raises(DeliveryTimeout, match="may be in the log") as caught:
            producer.send("t", b"v", timeout=0.2)
        assert caught.value.outcome is Outcome.UNKNOWN


def test_send_raises_the_error_of_the_record(cluster: FakeCluster) -> None:
    with blocking(cluster, max_request_size=1_000) as producer:
        with pytest.raises(RecordTooLarge):
            producer.send("t", bytes(2_000))
        with pytest.raises(ConfigError, match="topic"):
            producer.submit("no topic", b"v")
        with pytest.raises(ConfigError, match="timeout"):
            producer.send("t", b"v", timeout=-1)
        producer.send("t", b"v")


def test_error_of_the_record_that_is_a_timeout_is_not_taken_for_that_of_the_call(
    cluster: FakeCluster,
) -> None:
    cluster.auto_create = False
    with blocking(cluster, max_block_ms=50) as producer:
        with pytest.raises(MetadataTimeout, match="'absent' is not in the metadata") as caught:
            producer.send("absent", b"v", timeout=HANG_S)
        assert caught.value.outcome is Outcome.NOT_SENT


def test_record_that_is_acknowledged_while_its_timeout_is_handled_is_not_given_up(
    cluster: FakeCluster,
) -> None:
    with blocking(cluster) as producer:
        record = producer.submit("t", b"v")
        assert isinstance(record, RecordFuture)
        found = record.result(HANG_S)
        assert producer._given_up(record, "t", 0.1) is found


def test_cancelled_record_is_withdrawn(cluster: FakeCluster) -> None:
    with blocking(cluster, **LONG) as producer:
        producer.warm(["t"])
        kept, record, late = (producer.submit("t", b"%d" % n) for n in range(3))
        assert record.cancel()
        assert record.cancel()
        assert record.cancelled()
        assert record.done()
        done, _ = concurrent.futures.wait([record], HANG_S)
        assert done == {record}
        with pytest.raises(concurrent.futures.CancelledError):
            record.result()
        producer.flush()
        assert kept.result().offset == 0
        assert not late.cancel()
    assert cluster.values("t", 0) == [b"0", b"2"]


def test_wait_as_completed_and_callbacks_see_every_outcome(cluster: FakeCluster) -> None:
    called: list[Any] = []
    with blocking(cluster, max_request_size=1_000, **LONG) as producer:
        producer.warm(["t"])
        records = [producer.submit("t", value) for value in (b"a", bytes(2_000), b"b")]
        for record in records:
            record.add_done_callback(called.append)
            assert not record.running()
        waiting = threading.Thread(target=lambda: concurrent.futures.wait(records, HANG_S))
        waiting.start()
        wait_until(records[1].done)
        assert {record.done() for record in records} == {True, False}
        producer.flush()
        done = list(concurrent.futures.as_completed(records, HANG_S))
        waiting.join(HANG_S)
        assert not waiting.is_alive()
    assert set(done) == set(records)
    assert sorted(map(id, called)) == sorted(map(id, records))
    assert isinstance(records[1].exception(), RecordTooLarge)
    assert records[0].exception() is None


def test_record_can_be_awaited_on_another_loop(cluster: FakeCluster) -> None:
    with blocking(cluster) as producer:

        async def main() -> Any:
            return await asyncio.wrap_future(producer.submit("t", b"v"))

        assert asyncio.run(main()).offset == 0


def test_failures_that_are_not_read_are_logged_and_counted(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    with blocking(cluster, max_request_size=1_000) as producer:
        for _ in range(5):
            producer.submit("t", bytes(2_000))
        read = producer.submit("t", bytes(2_000))
        assert isinstance(read.exception(HANG_S), RecordTooLarge)
        del read
        wait_until(lambda: producer.metrics()["records_unretrieved"] >= 5)
        assert producer.metrics()["records_unretrieved"] == 5
    entries = [record for record in caplog.records if "were not read" in record.getMessage()]
    assert entries
    assert all(entry.levelno == logging.ERROR for entry in entries)


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")


def test_serializers_run_in_the_context_of_the_caller(cluster: FakeCluster) -> None:
    def tagged(value: str) -> bytes:
        return f"{VARIABLE.get()} {value} {threading.current_thread().name}".encode()

    with blocking(cluster, value_serializer=tagged) as producer:
        for name in ("slow path", "fast path"):
            context = contextvars.copy_context()
            context.run(VARIABLE.set, name)
            context.run(producer.send, "t", "v")
    assert cluster.values("t", 0) == [
        b"slow path v aiokprod-blocking", b"fast path v aiokprod-blocking",
    ]  # fmt: skip


def test_call_runs_other_methods_of_the_producer(cluster: FakeCluster) -> None:
    with blocking(cluster) as producer:
        assert producer.call(lambda p: p.send_many("t", [b"a", b"b"])).ok
        with pytest.raises(TimeoutError):
            producer.call(lambda p: asyncio.sleep(HANG_S), timeout=0.01)


def test_runtime_error_of_a_function_is_not_taken_for_the_end_of_the_thread(
    cluster: FakeCluster,
) -> None:
    async def failing(_: Producer[Any, Any]) -> None:
        raise RuntimeError("of the function")

    with blocking(cluster) as producer:
        with pytest.raises(RuntimeError, match=r"^of the function$"):
            producer.call(failing)
        assert producer.send("t", b"v").offset == 0


def test_transactions_by_call(cluster: FakeCluster) -> None:
    async def transfer(producer: Producer[Any, Any]) -> None:
        async with producer.transaction():
            await producer.send("t", b"v")

    with blocking(cluster, transactional_id="id") as producer:
        producer.call(transfer)
    assert cluster.committed_values("t", 0) == [b"v"]


def test_calls_in_the_thread_of_the_producer_would_wait_for_themselves(
    cluster: FakeCluster,
) -> None:
    async def main(_: Producer[Any, Any]) -> None:
        record = producer.submit("t", b"v")  # does not wait
        for call in (
            lambda: record.result(),
            lambda: record.exception(),
            lambda: producer.send("t", b"v"),
            lambda: producer.flush(),
            lambda: producer.close(),
            lambda: producer.call(main),
        ):
            with pytest.raises(WrongLoop):
                call()
        assert producer.health().state == "running"

    with blocking(cluster) as producer:
        producer.call(main)
    assert cluster.values("t", 0) == [b"v"]


def test_more_records_than_the_queue_holds_wait(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokprod._client.thread_queue.MAX_RECORDS", 20)
    with blocking(cluster) as producer:
        producer.send("t", b"v")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: [producer.submit("t", b"v") for _ in range(500)], range(4)))
    assert len(cluster.values("t", 0)) == 2_001


def test_full_queue_is_an_error_after_max_block_ms(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokprod._client.thread_queue.MAX_BYTES", 1_000)
    cluster.auto_create = False
    with blocking(cluster, max_block_ms=300) as producer:
        first = producer.submit("absent", bytes(2_000))  # one record is always accepted
        with contextlib.suppress(KafkaError):
            producer.submit("absent", bytes(2_000))
        assert isinstance(first.exception(HANG_S), MetadataTimeout)
        producer.flush()

        async def fill(_: Producer[Any, Any]) -> None:
            producer.submit("absent", bytes(2_000))
            with pytest.raises(KafkaError, match="cannot wait for itself") as caught:
                producer.submit("absent", bytes(2_000))
            assert caught.value.outcome is Outcome.NOT_SENT

        producer.call(fill)


# -- close --------------------------------------------------------------------------------------


def test_close_delivers_what_is_in_the_queue_and_reports_it(cluster: FakeCluster) -> None:
    producer = blocking(cluster)
    started, closing = threading.Event(), threading.Event()

    async def hold(_: Producer[Any, Any]) -> None:
        started.set()
        # Blocks the event loop, so nothing is delivered before `close` is called.
        closing.wait(HANG_S)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        holding = pool.submit(producer.call, hold)
        started.wait(HANG_S)
        records = [producer.submit(topic, b"v") for topic in ("t", "new") for _ in range(700)]
        waiting = pool.submit(producer.close)
        wait_until(lambda: producer._closing is not None)
        closing.set()
        report = waiting.result(HANG_S)
        holding.result(HANG_S)
    assert report.complete
    assert report.by_topic == (TopicDrain("new", delivered=700), TopicDrain("t", delivered=700))
    assert all(record.result().offset is not None for record in records)
    assert producer.close() is report
    assert producer.drain_report is report
    for call in (lambda: producer.submit("t", b"v"), lambda: producer.send("t", b"v")):
        with pytest.raises(ProducerClosed):
            call()


def test_close_with_a_timeout_reports_records_that_never_were_in_a_batch(
    cluster: FakeCluster,
) -> None:
    cluster.auto_create = False
    producer = blocking(cluster)
    producer.warm(["t"])
    records = [producer.submit("absent", b"v") for _ in range(3)]
    report = producer.close(0.1)
    assert not report.complete
    assert report.by_topic == (TopicDrain("absent", not_sent=3),)
    for record in records:
        error = record.exception()
        assert isinstance(error, ProducerClosed)
        assert error.outcome is Outcome.NOT_SENT


def test_close_wakes_callers_that_wait_for_room(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiokprod._client.thread_queue.MAX_RECORDS", 1)
    cluster.auto_create = False
    producer = blocking(cluster)
    producer.submit("absent", b"v")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(producer.submit, "absent", b"w")
        concurrent.futures.wait([waiting], 0.1)
        report = producer.close(0)
        assert isinstance(waiting.exception(HANG_S), ProducerClosed)
    assert report.by_topic == (TopicDrain("absent", not_sent=1),)


def test_interrupted_close_gives_up_the_drain_and_later_calls_get_its_report(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.auto_create = False
    producer = blocking(cluster)
    record = producer.submit("absent", b"v")
    with producer._lock:
        closing = producer._begin_close(None)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        other = pool.submit(producer.close)
        wait_until(other.running)
        result = closing.result

        def interrupt(timeout: float | None = None) -> Any:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return result(timeout)

        monkeypatch.setattr(closing, "result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            producer.close()
        report = other.result(HANG_S)
    assert report.by_topic == (TopicDrain("absent", not_sent=1),)
    assert producer.close() == report
    assert isinstance(record.exception(), ProducerClosed)


def test_close_in_the_thread_of_the_producer_is_refused_while_it_is_being_closed(
    cluster: FakeCluster,
) -> None:
    errors: list[BaseException] = []
    producer = blocking(cluster)
    record = producer.submit("t", b"v")

    def close(_: object) -> None:
        try:
            producer.close()
        except WrongLoop as error:
            errors.append(error)

    on_loop(producer, cluster.pause, 1)
    record.add_done_callback(close)
    with producer._lock:
        producer._begin_close(0.2)
    assert producer.close().failed == 1
    assert len(errors) == 1


def test_signal_handler_may_close_the_producer_while_it_is_being_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    producer = Blocking(bootstrap_servers="localhost:1", transactional_id="id")
    reports: list[Any] = []
    run = ThreadedLoop.run

    def interrupted(thread: ThreadedLoop, coroutine: Any, timeout: float | None = None) -> Any:
        call = thread.start(coroutine)
        monkeypatch.setattr(ThreadedLoop, "run", run)
        reports.append(producer.close(0))
        return call.result(timeout)

    monkeypatch.setattr(ThreadedLoop, "run", interrupted)
    with pytest.raises((KafkaError, concurrent.futures.CancelledError)):
        producer.start()
    assert reports == [producer.close()]
    assert producer.drain_report is reports[0]
    with pytest.raises(ProducerClosed):
        producer.start()


@pytest.mark.parametrize("place", ["run", "constructor"])
def test_signal_handler_may_send_while_the_producer_is_being_started(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with contextlib.closing(blocking(cluster)) as producer:
        run, sent = ThreadedLoop.run, []

        def handle() -> None:
            monkeypatch.undo()
            sent.append(producer.send("t", b"of the handler", timeout=HANG_S).offset)

        def interrupted(thread: ThreadedLoop, coroutine: Any, timeout: float | None = None) -> Any:
            handle()
            return run(thread, coroutine, timeout)

        def constructed(name: str) -> ThreadedLoop:
            handle()
            return ThreadedLoop(name)

        if place == "run":
            monkeypatch.setattr(ThreadedLoop, "run", interrupted)
        else:
            monkeypatch.setattr(module, "ThreadedLoop", constructed)
        producer.start()
        assert producer.send("t", b"v").offset == 1
        assert sent == [0]
    assert cluster.values("t", 0) == [b"of the handler", b"v"]


def test_serializer_that_raises_system_exit_ends_its_record_only(cluster: FakeCluster) -> None:
    def encode(value: str) -> bytes:
        if value == "exit":
            raise SystemExit(3)
        return value.encode()

    with blocking(cluster, value_serializer=encode) as producer:
        producer.send("t", "a")
        with pytest.raises(SystemExit):
            producer.send("t", "exit")
        assert producer.send("t", "b").offset == 1


def test_send_that_times_out_lets_the_transaction_only_be_aborted(cluster: FakeCluster) -> None:
    with blocking(cluster, transactional_id="id") as producer:
        for topic in ("t", "absent"):
            cluster.auto_create = False
            producer.call(lambda p: p.begin_transaction())
            on_loop(producer, cluster.pause, 1)
            with pytest.raises(DeliveryTimeout):
                producer.send(topic, b"v", timeout=0.05)
            on_loop(producer, cluster.resume, 1)
            with pytest.raises(AbortableTransactionError):
                producer.call(lambda p: p.commit_transaction())
            producer.call(lambda p: p.abort_transaction())
    assert cluster.committed_values("t", 0) == []


def test_calls_that_close_overtakes_raise_producer_closed(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = blocking(cluster)
    thread = producer.start()._thread
    assert thread is not None
    producer.close()
    monkeypatch.setattr(producer, "_running", lambda: thread)
    with pytest.raises(ProducerClosed):
        producer.flush()
    with pytest.raises(ProducerClosed):
        producer.warm(["t"])
    assert producer.health().state == "closed"


def test_end_of_with_keeps_close_timeout_ms(cluster: FakeCluster) -> None:
    with blocking(cluster, close_timeout_ms=200) as producer:
        producer.send("t", b"v")
        on_loop(producer, cluster.pause, 1)
        producer.submit("t", b"v")
    assert producer.drain_report is not None
    assert producer.drain_report.by_topic == (TopicDrain("t", unknown=1),)
    assert 0.1 < producer.drain_report.elapsed_s < HANG_S


def test_close_of_a_producer_that_was_not_started() -> None:
    producer = Blocking(bootstrap_servers="localhost:1")
    assert producer.close(0).complete
    with pytest.raises(ProducerClosed), producer:
        pass


def test_start_that_fails_can_be_repeated() -> None:
    producer = Blocking(bootstrap_servers="no-such-host.invalid:9092")
    for _ in range(2):
        with pytest.raises(ConfigError, match="no-such-host"):
            producer.start()
    with pytest.raises(ConfigError), producer:
        pass
    with pytest.raises(ProducerClosed):
        producer.start()


def test_settings_are_checked_by_the_constructor() -> None:
    with pytest.raises(ConfigError, match="linger_ms"):
        Blocking(bootstrap_servers="b:1", linger_ms=-1)
    with pytest.raises(ConfigError, match="did you mean"):
        Blocking(bootstrap_servers="b:1", lingerms=1)


def test_types_of_serializers_are_those_of_the_calls(cluster: FakeCluster) -> None:
    producer = Blocking(
        bootstrap_servers=cluster.bootstrap_servers,
        environment=cluster.environment(),
        value_serializer=StringSerializer(),
    )
    with producer:
        assert producer.send("t", "text").offset == 0


# -- exit of the interpreter --------------------------------------------------------------------


@pytest.fixture(scope="module")
def brokers() -> Iterator[MockCluster]:
    with MockCluster() as running:
        yield running


def run_script(body: str, servers: str, *, code: int = 0) -> str:
    script = (
        "import os, sys, threading, multiprocessing, signal\n"
        "from aiokprod import Blocking, KafkaError\n"
        f"servers = {servers!r}\n" + textwrap.dedent(body)
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def stored(servers: str, topic: str) -> list[bytes]:
    from tests.integration.checker import read_topic

    return sorted(value or b"" for _, _, _, value in read_topic(servers, topic))


EXITS = {
    "end": "",
    "sys.exit": "sys.exit(0)",
    "unclosed uvloop": "",
    "compressed": "",
    "threads": "threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]\n"
               "[thread.start() for thread in threads]",
}  # fmt: skip


@pytest.mark.parametrize("ending", EXITS)
def test_nothing_is_lost_at_the_exit_of_the_interpreter(brokers: MockCluster, ending: str) -> None:
    topic = "exit-" + ending.replace(" ", "-")
    options = ", compression_type='gzip', linger_ms=50" if ending == "compressed" else ""
    before = "sys.modules['uvloop'] = None" if ending == "end" else ""
    run_script(
        f"""
        {before}
        producer = Blocking(bootstrap_servers=servers{options})
        def work(number):
            for n in range(1000):
                producer.submit({topic!r}, b"%d %d" % (number, n))
        work(9)
        {EXITS[ending].replace(chr(10), chr(10) + " " * 8)}
        """,
        brokers.bootstrap_servers,
    )
    workers = (0, 1, 2, 3, 9) if ending == "threads" else (9,)
    assert stored(brokers.bootstrap_servers, topic) == sorted(
        b"%d %d" % (number, n) for number in workers for n in range(1000)
    )


def test_exit_of_the_interpreter_without_brokers_keeps_close_timeout_ms() -> None:
    out = run_script(
        """
        import atexit, time
        producer = Blocking(bootstrap_servers="127.0.0.1:1", close_timeout_ms=500)
        @atexit.register  # runs after the drain
        def end():
            pass
        for _ in range(10):
            producer.submit("t", b"v")
        start = time.monotonic()
        import aiokprod.blocking
        aiokprod.blocking._close_all()
        print(time.monotonic() - start < 5, producer.drain_report.by_topic)
        """,
        "",
    )
    assert out.strip() == (
        "True (TopicDrain(topic='t', delivered=0, not_sent=10, rejected=0, unknown=0),)"
    )


@pytest.mark.parametrize("started", [True, False])
@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_child_process_has_its_own_thread_and_loses_nothing(
    brokers: MockCluster, way: str, started: bool
) -> None:
    topic = f"fork-{way}-{started}"
    parent = "work(b'parent')" if started else ""
    child = {
        "fork": """
        pid = os.fork()
        if pid == 0:
            work(b"child")
            sys.exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """,
        "multiprocessing": """
        process = multiprocessing.get_context("fork").Process(target=work, args=(b"child",))
        process.start()
        process.join()
        assert process.exitcode == 0
        """,
    }[way]
    run_script(
        f"""
        producer = Blocking(bootstrap_servers=servers)
        def work(name):
            for n in range(500):
                producer.submit({topic!r}, b"%s %d" % (name, n))
        {parent}
        {child}
        work(b"after")
        """,
        brokers.bootstrap_servers,
    )
    names = (b"parent", b"child", b"after") if started else (b"child", b"after")
    assert stored(brokers.bootstrap_servers, topic) == sorted(
        b"%s %d" % (name, n) for name in names for n in range(500)
    )


def in_child(function: Any) -> int:
    """Call the function in a forked child, and return the exit code of the child."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_record_of_the_parent_and_a_transactional_producer_are_refused_in_the_child(
    cluster: FakeCluster,
) -> None:
    with blocking(cluster, transactional_id="id") as producer, blocking(cluster, **LONG) as plain:
        plain.warm(["t"])
        record = plain.submit("t", b"v")

        def child() -> None:
            with pytest.raises(ForkedProcess):
                record.result()
            with pytest.raises(ForkedProcess, match="different transactional_ids"):
                producer.submit("t", b"v")
            assert plain.health().state == "new"

        assert in_child(child) == 0
        assert producer.health().state == "running"
        plain.flush()
        assert record.result().offset == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_fork_while_the_producer_is_started_or_closed_by_another_thread(
    cluster: FakeCluster,
) -> None:
    cluster.auto_create = False
    closing, starting = blocking(cluster), blocking(cluster)
    closing.submit("absent", b"v")
    starting._producer = closing._producer  # its runtime belongs to the parent
    thread = threading.Thread(target=closing.close)
    thread.start()
    wait_until(lambda: closing._closing is not None)

    def child() -> None:
        assert closing.close().complete  # does not wait for the thread of the parent
        assert starting.start().health().state == "running"

    assert in_child(child) == 0
    on_loop_of = closing._thread
    assert on_loop_of is not None
    on_loop_of.loop.call_soon_threadsafe(closing._producer._lifecycle.thread_queue.give_up)  # type: ignore[union-attr]
    thread.join(HANG_S)
    assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_child_can_close_a_producer_that_only_the_parent_has_used(cluster: FakeCluster) -> None:
    with blocking(cluster) as producer:

        def child() -> None:
            assert producer._begin_close(0).result(HANG_S) == EMPTY_DRAIN
            producer.close()

        assert in_child(child) == 0
        assert producer.send("t", b"v").offset == 0


def test_module_keeps_no_object_that_was_closed(cluster: FakeCluster) -> None:
    with blocking(cluster) as producer:
        assert producer in module._open
    assert producer not in module._open


def test_environment_and_other_objects_are_passed_on(cluster: FakeCluster) -> None:
    seen: list[str] = []

    class Watching:
        def on_connection_opened(self, node_id: int) -> None:
            seen.append("opened")

        def configure(self, config: object) -> None:
            seen.append("configured")

        def close(self) -> None:
            seen.append("closed")

    environment: Environment = cluster.environment()
    with Blocking(
        bootstrap_servers=cluster.bootstrap_servers, observer=Watching(), environment=environment
    ) as producer:
        producer.send("t", b"v")
    assert (seen[0], seen[-1]) == ("configured", "closed")
    assert "opened" in seen


def test_multiprocessing_is_not_imported_for_it() -> None:
    run_script(
        """
        for name in [name for name in sys.modules if name.startswith("multiprocessing")]:
            del sys.modules[name]
        producer = Blocking(bootstrap_servers="127.0.0.1:1")
        producer.start()
        producer.close(0)
        assert "multiprocessing" not in sys.modules
        """,
        "",
    )
