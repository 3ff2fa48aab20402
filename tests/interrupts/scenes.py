"""A producer whose calls are interrupted, and the check of every record's outcome."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiokprod import (
    BulkResult,
    Delivery,
    DeliveryTimeout,
    KafkaError,
    Outcome,
    ProducerRecord,
    RecordMetadata,
)
from aiokprod.interceptors import ProducerInterceptor
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.memory import MemoryNetwork
from tests.interrupts.inject import NEVER, Alarm, Injector, Stepped
from tests.scenarios.scenario_helpers import make_producer

TOPIC = "t"
PARTITIONS = 3
BATCH = 2_000
BUFFER = 40_000
SETTLED_S = 2.0
"""Virtual seconds within which a healthy cluster acknowledges the buffered records."""


class Token:
    """The plug-in's return value of `on_append` for a record; counts the reports about that
    record."""

    def __init__(self) -> None:
        self.reports = 0


class Hooks(ProducerInterceptor):
    """An interceptor and a plug-in that count reports."""

    def __init__(self) -> None:
        self.sent = 0
        self.ended = 0
        self.tokens: list[Token] = []

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        self.sent += 1
        return record

    def on_acknowledgement(
        self, metadata: Any, error: KafkaError | None, headers: Any = ()
    ) -> None:
        self.ended += 1

    def on_append(self, topic: str, key: Any, value: Any, headers: Any) -> Any:
        self.tokens.append(Token())
        return headers, self.tokens[-1]

    def on_batch_settled(self, batch: Any, tokens: Any, base_offset: Any, error: Any) -> None:
        for _, token in tokens:
            token.reports += 1

    def on_record_unsent(self, topic: str, partition: Any, token: Any, error: Any) -> None:
        if token is not None:
            token.reports += 1

    def close(self) -> None:
        """Do nothing: no resource is open."""

    def are_even(self) -> bool:
        """Return True if each record was reported as often as it was seen."""
        return self.sent == self.ended and all(token.reports == 1 for token in self.tokens)


@dataclass
class InterruptHarness:
    """One producer, one cluster, and every record that was submitted since the last check."""

    options: dict[str, Any]
    seed: int
    rng: random.Random = field(init=False)
    cluster: FakeCluster = field(init=False)
    producer: Any = field(init=False)
    number: int = 0
    handles: list[tuple[bytes, Delivery]] = field(default_factory=list)
    results: list[tuple[bytes, RecordMetadata | KafkaError]] = field(default_factory=list)
    bulks: list[tuple[list[bytes], BulkResult]] = field(default_factory=list)
    known: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """Place of each value in the logs."""
    hooks: Hooks | None = None
    is_reported: bool = False
    """True if the last record had an `on_delivery`."""
    reports: dict[bytes, list[Any]] = field(default_factory=dict)
    """Arguments of `on_delivery` for each value that has one."""
    read: list[int] = field(default_factory=lambda: [0] * PARTITIONS)

    async def start(self) -> None:
        self.rng = random.Random(self.seed)
        self.cluster = FakeCluster(3, network=MemoryNetwork())
        self.cluster.create_topic(TOPIC, PARTITIONS)
        options: dict[str, Any] = {
            "batch_size": BATCH, "buffer_memory": BUFFER, "linger_ms": 0, "max_block_ms": 3_000,
            "delivery_timeout_ms": 8_000, "request_timeout_ms": 2_000, "seed": self.seed,
        }  # fmt: skip
        options |= self.options
        if options.pop("watched", False):
            self.hooks = Hooks()
            options |= {"interceptors": [self.hooks], "plugins": [self.hooks]}
        self.producer = make_producer(self.cluster, **options)
        await self.producer.start()
        await self.producer.warm([TOPIC])

    def value(self, size: int = 0) -> bytes:
        """Return a unique value."""
        self.number += 1
        return (b"%d/" % self.number).ljust(size, b".")

    def reported(self, value: bytes) -> dict[str, Any]:
        """Return the `on_delivery` argument for every other record."""
        self.is_reported = not self.is_reported
        if not self.is_reported:
            return {}
        found = self.reports[value] = []
        return {"on_delivery": lambda metadata, error: found.append(error or metadata)}

    # -- the calls -------------------------------------------------------------------------------

    async def step(self, injector: Injector | Alarm, coroutine: Any) -> Any:
        return await Stepped(injector, coroutine)

    def try_submit(
        self,
        injector: Injector | Alarm,
        size: int,
        *,
        expected: tuple[type[KafkaError], ...] = (),
        **options: Any,
    ) -> None:
        value = self.value(size)
        with self.refusal(value, injector, expected):
            options |= self.reported(value)
            handle = injector.call(lambda: self.producer.try_submit(TOPIC, value, **options))
            self.handles.append((value, handle))

    @contextlib.contextmanager
    def refusal(
        self, value: bytes, injector: Injector | Alarm, expected: tuple[type[KafkaError], ...] = ()
    ) -> Iterator[None]:
        """Check that an error that the library made of the exception is true as well."""
        try:
            yield
        except KafkaError as error:
            if not injector.place and not isinstance(error, expected):
                raise
            self.results.append((value, error))

    async def submit(self, injector: Injector | Alarm, size: int, **options: Any) -> None:
        value = self.value(size)
        options |= self.reported(value)

        async def call() -> Delivery:
            found: Delivery = await self.producer.submit(TOPIC, value, **options)
            return found

        with self.refusal(value, injector):
            self.handles.append((value, await self.step(injector, call())))

    async def send(
        self,
        injector: Injector | Alarm,
        size: int,
        *,
        expected: tuple[type[KafkaError], ...] = (),
        **options: Any,
    ) -> None:
        value = self.value(size)
        with self.refusal(value, injector, expected):
            sending = self.producer.send(TOPIC, value, **options)
            self.results.append((value, await self.step(injector, sending)))

    async def send_many(
        self, injector: Injector | Alarm, count: int, size: int, **options: Any
    ) -> None:
        values = [self.value(size) for _ in range(count)]
        sending = self.producer.send_many(TOPIC, values, **options)
        self.bulks.append((values, await self.step(injector, sending)))

    async def send_records(self, injector: Injector | Alarm, count: int, size: int) -> None:
        values = [self.value(size) for _ in range(count)]
        records = [
            ProducerRecord(TOPIC, value, key=b"k%d" % i, headers=[("h", b"x")])
            for i, value in enumerate(values)
        ]
        sending = self.producer.send_many(records)
        self.bulks.append((values, await self.step(injector, sending)))

    # -- the judge -------------------------------------------------------------------------------

    async def check(self) -> None:
        """Check that every accepted record has its outcome, nothing remains of the interrupted call
        (no bytes, no permit, no waiter), and the producer continues."""
        producer = self.producer
        runtime = producer._lifecycle.runtime
        await producer.flush(60)
        assert producer.health().ok, producer.health()
        assert not runtime.accumulator.incomplete
        after = self.value()
        metadata = await asyncio.wait_for(producer.send(TOPIC, after), 1.0)
        self._read_logs()
        assert self.known[after] == (metadata.partition, metadata.offset)
        self._judge_records()
        await self._judge_reports()
        self._look_for_remains()
        assert not self.cluster.violations, self.cluster.violations
        assert not self.cluster.refusals, self.cluster.refusals
        for queue in runtime.accumulator._queues.values():
            assert not queue.batches
            assert queue.reserved_bytes == queue.in_flight == 0

    async def settled(self) -> None:
        """Check that every record accepted since the last check is acknowledged in time, without a
        flush or another call that wakes the sender. The cluster works, so an error, or a wait until
        the delivery timeout, is a consequence of an exception."""
        runtime = self.producer._lifecycle.runtime
        try:
            async with asyncio.timeout(SETTLED_S):
                for _, delivery in self.handles:
                    if not delivery.done():
                        await asyncio.wait([delivery])  # type: ignore[type-var]
                while runtime.accumulator.incomplete:  # noqa: ASYNC110  # of interrupted calls
                    await asyncio.sleep(0.001)
        except TimeoutError:
            pending = [value[:20] for value, delivery in self.handles if not delivery.done()]
            raise AssertionError(
                f"no outcome: {pending}, incomplete: {list(runtime.accumulator.incomplete)}"
            ) from None
        for value, delivery in self.handles:
            assert delivery.exception() is None, f"{value[:20]!r}: {delivery.exception()!r}"
        assert self.producer.health().ok, self.producer.health()
        self._read_logs()
        self._judge_records()
        await self._judge_reports()
        self._look_for_remains()

    async def _judge_reports(self) -> None:
        """Check that each record was reported once to each hook that has seen it, and to its
        `on_delivery` if it was in a batch."""
        for turn in range(4):
            await asyncio.sleep(0)
            if turn == 1 and self.hooks is not None and not self.hooks.are_even():
                gc.collect()  # the traceback of the exception may hold a record
        if self.hooks is not None:
            hooks = self.hooks
            lost = [token.reports for token in hooks.tokens if token.reports != 1]
            assert hooks.are_even(), f"{hooks.sent} sent, {hooks.ended} ended, tokens: {lost}"
            hooks.tokens.clear()
        for value, found in self.reports.items():
            if value in self.known:
                assert len(found) == 1, f"{value[:20]!r}: {found}"
                self._judge(value, found[0])
            else:
                assert len(found) <= 1, f"{value[:20]!r}: {found}"
        self.reports.clear()

    def _judge_records(self) -> None:
        for value, delivery in self.handles:
            assert delivery.done(), f"no outcome: {value[:20]!r}"
            self._judge(value, delivery.exception() or delivery.result())
        for value, found in self.results:
            self._judge(value, found)
        for values, bulk in self.bulks:
            assert bulk.interrupted is not None or len(bulk) == len(values)
            errors, offsets, partitions = bulk.errors, bulk.offsets, bulk.partitions
            for position, value in enumerate(values):
                if position >= len(bulk):
                    assert value not in self.known, f"after the end, yet stored: {value[:20]!r}"
                elif position in errors:
                    self._judge(value, errors[position])
                else:
                    assert self.known[value] == (partitions[position], offsets[position])
        self.handles.clear()
        self.results.clear()
        self.bulks.clear()

    def _look_for_remains(self) -> None:
        runtime = self.producer._lifecycle.runtime
        if runtime.memory.used:
            gc.collect()  # the traceback of the exception may hold a reservation
        assert runtime.memory.used == 0, runtime.memory.used
        assert runtime.memory.waiting == runtime.quota.waiting == 0
        assert not runtime.memory.has_waiters
        assert not runtime.quota._granted
        assert not any(count.bytes for count in runtime.quota._held.values())
        assert not runtime.flushes.active
        assert not runtime.yield_queue.waiting

    def _read_logs(self) -> None:
        for partition in range(PARTITIONS):
            batches = self.cluster.topics[TOPIC].partitions[partition].log.batches
            for stored in batches[self.read[partition] :]:
                for offset, record in enumerate(stored.batch.records, stored.base_offset):
                    assert record.value is not None
                    assert record.value not in self.known, f"stored twice: {record.value[:20]!r}"
                    self.known[record.value] = (partition, offset)
            self.read[partition] = len(batches)

    def _judge(self, value: bytes, result: Any) -> None:
        if isinstance(result, RecordMetadata):
            place = result.partition, result.offset
            assert self.known.get(value) == place, f"lost: {value[:20]!r}"
        else:
            assert isinstance(result, KafkaError), repr(result)
            if result.outcome is not Outcome.UNKNOWN:
                assert value not in self.known, f"definite, yet stored: {value[:20]!r}"


Scene = Callable[[InterruptHarness, Injector | Alarm], Awaitable[None]]


async def fresh_batch(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """The first record: a partition is chosen, and a batch is opened."""
    harness.try_submit(injector, 10)


async def into_open_batch(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    harness.try_submit(NEVER, 10, partition=0)
    harness.try_submit(injector, 10, partition=0)
    harness.try_submit(NEVER, 10, partition=0)


async def full_batch(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """The open batch is sealed and another one is opened, twice."""
    harness.try_submit(NEVER, 1_500, partition=0)
    harness.try_submit(NEVER, 1_500, partition=0)
    harness.try_submit(injector, 1_500, partition=0)
    harness.try_submit(NEVER, 1_500, partition=0)


async def sticky_change(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    for _ in range(3):
        harness.try_submit(NEVER, 700)
    harness.try_submit(injector, 700)
    harness.try_submit(NEVER, 700)


async def keyed_with_headers(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    await harness.submit(injector, 50, key=b"key", headers=[("a", b"1"), ("b", None)])


async def submit_slowly(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """Submit while the fast path accepts no record."""
    appender = harness.producer._lifecycle.runtime.appender
    appender.enabled = False
    try:
        await harness.submit(injector, 50, key=b"key")
    finally:
        appender.enabled = True


async def send_one(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    await harness.send(injector, 50)


async def send_with_timeout(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    await harness.send(injector, 50, timeout=5.0)


async def send_that_times_out(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    await harness.send(injector, 50, timeout=0.0001, expected=(DeliveryTimeout,))


async def submit_under_timeout(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """Submit while many other records have deadlines."""
    sends = [asyncio.ensure_future(harness.send(NEVER, 10, timeout=5.0)) for _ in range(3)]
    try:
        async with asyncio.timeout(5.0):
            await harness.submit(injector, 50)
    finally:
        await asyncio.gather(*sends)


async def short_of_memory(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """The call waits for memory, behind other waiting calls."""
    while harness.producer._lifecycle.runtime.memory.used < BUFFER - 4_000:
        harness.try_submit(NEVER, 1_700, partition=harness.number % PARTITIONS)
    waiting = [
        asyncio.ensure_future(harness.submit(NEVER, 1_700, partition=i % PARTITIONS))
        for i in range(4)
    ]
    await asyncio.sleep(0)
    try:
        await harness.submit(injector, 1_900)
    finally:
        await asyncio.gather(*waiting)


async def share_used_up(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """The call waits in the queue of one broker."""
    for _ in range(14):
        await harness.submit(NEVER, 1_700, partition=0)
    waiting = [asyncio.ensure_future(harness.submit(NEVER, 1_700, partition=0)) for _ in range(2)]
    await asyncio.sleep(0)
    try:
        await harness.submit(injector, 1_700, partition=0)
    finally:
        await asyncio.gather(*waiting)


async def column(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """Batches are opened and sealed in the middle of the call."""
    await harness.send_many(injector, 30, 300)


async def column_of_everything(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    count = 12
    await harness.send_many(
        injector, count, 300,
        keys=[b"k%d" % i for i in range(count)],
        headers=[[("h", b"x")] if i % 2 else None for i in range(count)],
        timestamps_ms=[1_700_000_000_000 + i if i % 3 else None for i in range(count)],
    )  # fmt: skip


async def column_larger_than_memory(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    await harness.send_many(injector, 60, 1_200)


async def records(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    await harness.send_records(injector, 12, 400)


async def on_the_way(harness: InterruptHarness, injector: Injector | Alarm) -> None:
    """Requests are in flight, and their responses arrive."""
    for i in range(6):
        harness.try_submit(NEVER, 900, partition=i % PARTITIONS)
    await asyncio.sleep(harness.rng.choice((0.0, 0.001, 0.002)))
    await harness.submit(injector, 900, partition=0)


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        fresh_batch, into_open_batch, full_batch, sticky_change, keyed_with_headers, submit_slowly,
        send_one, send_with_timeout, send_that_times_out, submit_under_timeout, short_of_memory,
        share_used_up, column, column_of_everything,
        column_larger_than_memory, records, on_the_way,
    )
}  # fmt: skip


def _bytes(data: Any) -> bytes:
    return bytes(data) if data is not None else b""


OPTIONS: dict[str, dict[str, Any]] = {
    "idempotent": {},
    "plain": {"enable_idempotence": False},
    "compressed": {"compression_type": "gzip"},
    "elastic": {"elastic_batch_size": 8_000, "linger_ms": 20, "adaptive_linger": False},
    "watched": {"watched": True},
    "watched and serialized": {"watched": True, "value_serializer": _bytes},
    "serialized": {"value_serializer": _bytes, "key_serializer": _bytes},
}
"""Settings of the producers."""
