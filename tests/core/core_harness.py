"""Append records without an engine: an `Appender` whose batches are opened by the test."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self

import pytest
import uvloop

from aiokprod._core.append import Appender
from aiokprod._core.batch import BatchCore, Delivery, RecordMetadata
from aiokprod._core.memory import MemoryBudget, Reservation
from aiokprod._core.slots import PartitionSlot, TopicSlot
from aiokprod._core.yielding import YieldQueue

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}

OnDelivery = Callable[[RecordMetadata | None, Any], object]

NOW_MS = 1_700_000_000_000


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on asyncio's loop and on uvloop's loop.

    The test fails if the exception handler of the loop is called. These tests must not wait for
    time to pass.
    """

    @pytest.mark.parametrize("kind", LOOPS)
    @functools.wraps(test)
    def wrapper(kind: str, **kwargs: Any) -> None:
        unhandled: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=LOOPS[kind], debug=kind == "asyncio") as runner:
            runner.get_loop().set_exception_handler(lambda loop, context: unhandled.append(context))
            runner.run(test(**kwargs))
        assert not unhandled, unhandled

    del wrapper.__wrapped__
    typed: Callable[..., None] = wrapper
    return typed


class CoreHarness:
    """One topic "t", an append path, and a list of all opened batches."""

    def __init__(
        self,
        partitions: int = 1,
        *,
        limit: int = 1 << 20,
        memory: int = 1 << 30,
        ratio: float = 1.0,
        capacity: int = 0,
        loop: asyncio.AbstractEventLoop | None = None,
        slice_length: float = 0.001,
        **options: Any,
    ) -> None:
        self.loop = loop or asyncio.get_running_loop()
        self.limit = limit
        self.ratio = ratio
        self.capacity = capacity
        self.memory = MemoryBudget(memory)
        self.rolls: list[tuple[int, int]] = []
        self.opened: list[BatchCore] = []
        self.sticky = 0
        self.clock_reads = 0
        self.slow: list[tuple[Any, ...]] = []
        self.owner: Any = None
        self.on_roll: Callable[[], None] = lambda: None
        options.setdefault("max_request_size", 1 << 30)
        sticky_limit = options.pop("sticky_limit", 1 << 20)
        self.yield_queue = YieldQueue(self.loop, self.loop.time, self.memory, slice_length)
        self.appender = Appender(
            memory=self.memory,
            open_new_batch=self.open_new_batch,
            slow_submit=self.slow_submit,
            unix_ms=self.unix_ms,
            yield_queue=self.yield_queue,
            **options,
        )
        self.appender.enabled = True
        self.topic = self.appender.topics["t"] = TopicSlot("t", sticky_limit)
        self.topic.slots.extend(PartitionSlot("t", number) for number in range(partitions))

    def open_new_batch(
        self, topic: TopicSlot, partition: int, size: int, permit: object
    ) -> PartitionSlot:
        self.rolls.append((partition, size))
        self.on_roll()
        if partition < 0:
            partition = topic.sticky = self.sticky
            topic.sticky_bytes = 0
        slot: PartitionSlot = topic.slots[partition]
        slot.core = BatchCore("t", partition, self.loop, self.limit, self.ratio, self.capacity)
        slot.core.owner = self.owner
        self.opened.append(slot.core)
        return slot

    async def slow_submit(self, *fields: Any) -> Any:
        self.slow.append(fields)
        return "slow"

    def unix_ms(self) -> int:
        self.clock_reads += 1
        return NOW_MS

    @property
    def core(self) -> BatchCore:
        """The open batch of partition 0, or the newest batch if none is open."""
        return self.opened[-1]

    def append(
        self,
        value: bytes | None = b"v",
        key: bytes | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        *,
        partition: int | None = 0,
        reserved: int = 0,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        reservation = Reservation(self.memory)
        reservation.on_delivery = on_delivery
        if reserved:
            reservation.grant(reserved)
        delivery = self.appender.append(
            self.topic, partition, value, key, timestamp, headers, reservation
        ).delivery
        assert reservation.size == 0
        assert delivery is not None
        return delivery

    def deliveries(self, count: int, on_delivery: OnDelivery | None = None) -> list[Delivery]:
        """Append `count` records to one batch and return their handles."""
        return [self.append(b"%d" % number, on_delivery=on_delivery) for number in range(count)]


class IdleLoop:
    """The methods of a running event loop that the append path uses, for tests without tasks."""

    def __init__(self) -> None:
        self.calls: list[Callable[..., object]] = []

    def time(self) -> float:
        return 0.0

    def is_running(self) -> bool:
        return True

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Any = None
    ) -> None:
        self.calls.append(functools.partial(callback, *args))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise AssertionError(context)


def idle_harness(partitions: int = 1, **options: Any) -> CoreHarness:
    return CoreHarness(partitions, loop=IdleLoop(), **options)  # type: ignore[arg-type]


class PassCount:
    """Counts the iterations of the running loop within a `with` block."""

    def __init__(self) -> None:
        self.passes = 0

    def __enter__(self) -> Self:
        self._task = asyncio.ensure_future(self._count())
        return self

    def __exit__(self, *_: object) -> None:
        self._task.cancel()

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.passes += 1
