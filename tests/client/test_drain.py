"""The drain of `close()` and of ``async with``: its limit, its report and its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import pytest

from aiokprod import DrainReport, Outcome, TopicDrain, TopicPartition, UndeliveredBatch
from aiokprod._errors import Code
from aiokprod.testing import FakeCluster, run
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import TopicConfig
from tests.scenarios.scenario_helpers import make_producer, now

T = TypeVar("T")

TICK: Final = 0.25
API_PRODUCE: Final = 0
LONG: Final[dict[str, Any]] = {
    "linger_ms": 60_000,
    "adaptive_linger": False,
    "delivery_timeout_ms": 300_000,
}


def play(main: Callable[[FakeCluster], Coroutine[Any, Any, T]], *topics: str) -> T:
    """Run `main(cluster)` in virtual time, with one broker and topics of one partition."""

    async def start() -> T:
        cluster = FakeCluster(1)
        for topic in topics:
            cluster.create_topic(topic, 1)
        return await main(cluster)

    return run(start)


@pytest.mark.parametrize("settings", [{}, {"close_timeout_ms": 3_000}, {"close_timeout_ms": 0}])
def test_async_with_ends_at_close_timeout_ms(settings: dict[str, int]) -> None:
    limit = settings.get("close_timeout_ms", 20_000) / 1000

    async def main(cluster: FakeCluster) -> None:
        async with make_producer(cluster, **settings) as producer:
            await producer.send("a", b"first")
            cluster.pause(1)
            deliveries = [await producer.submit("a", b"v") for _ in range(10)]
            await asyncio.sleep(0.1)
            start = now()
        assert now() - start == pytest.approx(limit, abs=TICK)
        report = producer.drain_report
        assert report is not None
        assert not report.complete
        assert report.by_topic == (TopicDrain("a", unknown=10),)
        assert report.failed == 10
        assert all(delivery.exception() is not None for delivery in deliveries)

    play(main, "a")


def test_async_with_without_a_limit_waits_for_every_outcome() -> None:
    async def main(cluster: FakeCluster) -> None:
        async with make_producer(
            cluster, close_timeout_ms=-1, delivery_timeout_ms=40_000, request_timeout_ms=10_000
        ) as producer:
            await producer.send("a", b"first")
            cluster.pause(1)
            await producer.submit("a", b"v")
            start = now()
        assert now() - start == pytest.approx(40.0, abs=TICK)
        assert producer.drain_report is not None
        assert producer.drain_report.complete
        assert producer.drain_report.by_topic == (TopicDrain("a", unknown=1),)

    play(main, "a")


def test_async_with_drains_after_an_exception_too() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster, **LONG)

        async def fail() -> None:
            async with producer:
                await producer.warm(["a"])
                await producer.submit("a", b"v")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert cluster.values("a", 0) == [b"v"]
        assert producer.drain_report is not None
        assert producer.drain_report.by_topic == (TopicDrain("a", delivered=1),)

    play(main, "a")


def test_close_without_a_timeout_is_not_limited_by_close_timeout_ms() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster, close_timeout_ms=1_000)
        await producer.send("a", b"first")
        cluster.pause(1)
        await producer.submit("a", b"v")
        asyncio.get_running_loop().call_later(5.0, cluster.resume, 1)
        report = await producer.close()
        assert report.elapsed_s > 4.0
        assert report.by_topic == (TopicDrain("a", delivered=1),)

    play(main, "a")


def test_drain_report_is_none_until_the_producer_is_closed() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        before = [producer.drain_report]
        await producer.send("a", b"v")
        before.append(producer.drain_report)
        assert before == [None, None]
        report = await producer.close()
        assert producer.drain_report is report
        assert report.by_topic == ()

    play(main, "a")


def test_drain_report_of_a_producer_that_was_not_started_is_empty() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        report = await producer.close()
        assert report == DrainReport(0, 0, (), 0.0, True)
        assert producer.drain_report is report

    play(main, "a")


def test_drain_report_after_all_outcomes_says_that_nothing_was_pending() -> None:
    """The counts cover the drain only, not the life of the producer."""

    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        await producer.send("a", b"v")
        report = await producer.close()
        assert report == DrainReport(0, 0, (), report.elapsed_s, True)
        assert str(report) == f"no record was pending ({report.elapsed_s:.3f} s)"

    play(main, "a")


def test_drain_report_of_a_cancelled_close_is_available() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        await producer.send("a", b"first")
        cluster.pause(1)
        await producer.submit("a", b"v")
        await asyncio.sleep(0.1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2.0):
                await producer.close()
        report = await producer.close()
        assert producer.drain_report is report
        assert report.undelivered == (UndeliveredBatch(TopicPartition("a", 0), 1, Outcome.UNKNOWN),)
        assert report.elapsed_s == pytest.approx(2.0, abs=TICK)

    play(main, "a")


def test_drain_report_names_every_record_by_topic_count_and_outcome() -> None:
    """Topic "a" is delivered, "b" is rejected, "c" is sent without a response, "d" is not sent."""

    async def main() -> None:
        cluster = FakeCluster(3)
        for topic, leader in {"a": 1, "b": 1, "c": 2, "d": 3}.items():
            cluster.create_topic(topic, 1)
            cluster.move_leader(topic, 0, leader)
        cluster.pause(3)
        producer = make_producer(cluster, bootstrap_servers="broker1:9092", **LONG)
        await producer.partitions_for("d")
        await producer.warm([*"abc"])
        cluster.fail_produce(("b", 0), Code.INVALID_RECORD)
        for count, topic in enumerate("abcd", start=1):
            for _ in range(count):
                await producer.submit(topic, b"v")
        cluster.pause(2)
        report = await producer.close(5.0)
        assert report.by_topic == (
            TopicDrain("a", delivered=1),
            TopicDrain("b", rejected=2),
            TopicDrain("c", unknown=3),
            TopicDrain("d", not_sent=4),
        )
        assert (report.delivered, report.failed) == (1, 9)
        assert report.undelivered == (
            UndeliveredBatch(TopicPartition("c", 0), 3, Outcome.UNKNOWN),
            UndeliveredBatch(TopicPartition("d", 0), 4, Outcome.NOT_SENT),
        )
        assert str(report) == (
            "1 records delivered and 9 failed, 7 of them because the timeout expired, in 5.000 s; "
            "a: 1 delivered; b: 2 rejected; c: 3 unknown; d: 4 not sent"
        )

    run(main)


def test_drain_report_counts_a_batch_that_is_split_once() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("a", 1, config=TopicConfig(max_message_bytes=3_000))
        producer = make_producer(cluster, **LONG)
        await producer.warm([*"a"])
        for _ in range(10):
            await producer.submit("a", bytes(1_000))
        report = await producer.close()
        assert producer.metrics()["batches_split"] > 0
        assert report.by_topic == (TopicDrain("a", delivered=10),)
        assert (report.delivered, report.failed) == (10, 0)
        assert len(cluster.values("a", 0)) == 10

    run(main)


def test_drain_report_leaves_out_records_that_were_withdrawn() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster, **LONG)
        await producer.warm([*"ab"])
        for topic in "aab":
            delivery = await producer.submit(topic, b"v")
        assert delivery.cancel()
        report = await producer.close()
        assert report.by_topic == (TopicDrain("a", delivered=2),)

    play(main, "a", "b")


@pytest.mark.parametrize(
    ("prepare", "level"),
    [
        (lambda cluster: None, logging.INFO),
        (lambda cluster: cluster.fail_produce(("a", 0), Code.INVALID_RECORD), logging.WARNING),
        (lambda cluster: cluster.pause(1), logging.ERROR),
    ],
    ids=["delivered", "rejected", "no response"],
)
def test_drain_report_is_logged_once(
    caplog: pytest.LogCaptureFixture, prepare: Callable[[FakeCluster], None], level: int
) -> None:
    async def main(cluster: FakeCluster) -> DrainReport | None:
        async with make_producer(cluster, client_id="orders", **LONG) as producer:
            await producer.warm([*"a"])
            delivery = await producer.submit("a", b"v")
            prepare(cluster)
        delivery.exception()
        await producer.close()
        return producer.drain_report

    with caplog.at_level(logging.DEBUG, "aiokprod"):
        report = play(main, "a")
    (entry,) = (record for record in caplog.records if ": closed, " in record.getMessage())
    assert (entry.name, entry.levelno) == ("aiokprod", level)
    assert entry.getMessage() == f"orders: closed, {report}"


def test_drain_that_takes_longer_than_a_second_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: FakeCluster) -> None:
        async with make_producer(cluster, client_id="orders", **LONG) as producer:
            await producer.warm([*"ab"])
            for topic in "aab":
                await producer.submit(topic, b"v")
            cluster.fail_produce(("b", 0), Code.INVALID_RECORD)
            cluster.control(API_PRODUCE, faults.delay(1.5))

    with caplog.at_level(logging.INFO, "aiokprod"):
        play(main, "a", "b")
    messages = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert "orders: closing, records are still to be delivered: 2 to a, 1 to b" in messages


def test_drain_that_is_short_logs_its_report_only(caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: FakeCluster) -> None:
        async with make_producer(cluster) as producer:
            await producer.submit("a", b"v")
        await asyncio.sleep(5.0)

    with caplog.at_level(logging.INFO, "aiokprod"):
        play(main, "a")
    assert not [record for record in caplog.records if "closing" in record.getMessage()]
