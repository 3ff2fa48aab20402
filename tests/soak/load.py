"""The load and the faults of a soak test for one producer, and the measurements of the process."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiokprod import Delivery, Environment, KafkaError, Producer
from aiokprod._net.dialer import TcpDialer
from tests.chaos.proxy import FaultyNetwork

STEP = 0.01
SAMPLE_EVERY = 50
"""The latency of one in this number of records is recorded."""
TOPICS = tuple(f"soak-{number}" for number in range(4))
KEYS = [b"key-%d" % number for number in range(997)]
VALUE = b"v" * 100
MIB = 1024 * 1024
BUFFER = 16 * MIB
"""Small enough that every outage fills it. The first outage, in the warm-up, then reaches the
maximum memory use, including the memory that the allocator keeps."""


class ProxyDialer(TcpDialer):
    """Connects to every broker through the faulty network. `doors`: broker port -> proxy port."""

    def __init__(self, doors: dict[int, int]) -> None:
        super().__init__()
        self._doors = doors

    async def connect(
        self,
        protocol_factory: Callable[[], asyncio.Protocol],
        host: str,
        port: int,
        **options: Any,
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        return await super().connect(protocol_factory, host, self._doors[port], **options)


class Load:
    """Sends records through `submit`, half of them keyed, to several topics. Occasionally it
    creates a producer for one record.

    Attributes:
        refused: records that `submit` refused.
        visitors, strays: producers created for one record, and their errors.
        errors: errors of sampled records and of visitors, by kind.
        latencies: seconds from submission to acknowledgment of sampled records; the reader clears
            the list.
        lag: longest delay of a timer since the reader set it to 0.
    """

    def __init__(self, servers: str, doors: dict[int, int], rate: int) -> None:
        self._servers = servers
        self._doors = doors
        self.rate = rate
        self.visitors = self.strays = self.refused = 0
        self.errors: dict[str, int] = {}
        self.latencies: list[float] = []
        self.lag = 0.0
        self.producer = self._make()

    def _make(self) -> Producer[bytes, bytes]:
        return Producer(
            bootstrap_servers=self._servers,
            environment=Environment(ProxyDialer(self._doors)),
            request_timeout_ms=3_000,
            buffer_memory=BUFFER,
        )

    async def peak(self, seconds: float) -> float:
        """Return the acknowledged records per second of this load without a limit."""
        await self.producer.warm(TOPICS)
        started = time.perf_counter()
        number = 0
        while time.perf_counter() - started < seconds:
            for _ in range(1_000):
                number += 1
                await self._hand_over(number)
        await self.producer.flush()
        return self.acknowledged / (time.perf_counter() - started)

    async def run(self) -> None:
        """Send records until cancelled."""
        loop = asyncio.get_running_loop()
        per_step = max(1, round(self.rate * STEP))
        due = loop.time()
        number = 0
        while True:
            for _ in range(per_step):
                number += 1
                await self._hand_over(number)
            due = max(due + STEP, loop.time() - 0.1)
            pause = max(0.0, due - loop.time())
            before = loop.time()
            await asyncio.sleep(pause)
            self.lag = max(self.lag, loop.time() - before - pause)

    async def _hand_over(self, number: int) -> None:
        key = KEYS[number % 997] if number & 1 else None
        try:
            delivery = await self.producer.submit(TOPICS[number & 3], VALUE, key=key)
        except KafkaError as error:
            self.refused += 1
            self._note(error)
            return
        if not number % SAMPLE_EVERY:
            began = time.perf_counter()
            delivery.add_done_callback(lambda done: self._sampled(done, began))

    def _sampled(self, delivery: Delivery, began: float) -> None:
        self.latencies.append(time.perf_counter() - began)
        error = delivery.exception()
        if error is not None:
            self._note(error)

    @property
    def acknowledged(self) -> int:
        """Acknowledged records since the start, from the producer's metrics, at no cost per
        record."""
        return int(self.producer.metrics()["records_acknowledged"])

    @property
    def failed(self) -> int:
        """Records that were refused or failed since the start, including those of visitors."""
        failed = self.producer.metrics()["records_failed"]
        return self.refused + self.strays + int(failed)

    def _note(self, error: KafkaError) -> None:
        name = f"{type(error).__name__} [{error.outcome.name}]"
        self.errors[name] = self.errors.get(name, 0) + 1

    async def visit(self, every: float) -> None:
        """Create short-lived producers until cancelled."""
        while True:
            await asyncio.sleep(every)
            try:
                async with self._make() as visitor:
                    await visitor.send(TOPICS[0], VALUE)
            except KafkaError as error:
                self.strays += 1
                self._note(error)
            self.visitors += 1


Fault = Callable[[FaultyNetwork, int, Callable[[bool], None]], Awaitable[None]]


def _names(network: FaultyNetwork) -> list[str]:
    return sorted(network.links)


async def reset(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    for _ in range(5):
        network.reset()
        await asyncio.sleep(0.5)


async def blackhole(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    name = _names(network)[turn % len(network.links)]
    network.set(name, silent_to_broker=True, silent_to_client=True)
    await asyncio.sleep(8.0)
    network.heal(name)


async def cut_off(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    network.set(silent_to_broker=True, silent_to_client=True)
    await asyncio.sleep(8.0)
    network.heal()


async def slow(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    network.set(delay_s=0.05)
    await asyncio.sleep(10.0)
    network.heal()


async def lossy(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    network.set(loss=0.05)
    await asyncio.sleep(10.0)
    network.heal()


async def half_open(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    name = _names(network)[turn % len(network.links)]
    network.set(name, silent_to_client=True)
    await asyncio.sleep(4.0)
    network.reset(name)
    network.heal(name)


async def frozen(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    """Stop all brokers for a while."""
    freeze(True)
    try:
        await asyncio.sleep(6.0)
    finally:
        freeze(False)


async def refused(network: FaultyNetwork, turn: int, freeze: Callable[[bool], None]) -> None:
    name = _names(network)[turn % len(network.links)]
    network.set(name, refuse=True)
    network.reset(name)
    await asyncio.sleep(4.0)
    network.heal(name)


FAULTS: tuple[Fault, ...] = (reset, blackhole, cut_off, slow, lossy, half_open, frozen, refused)


def resident_mib() -> float:
    """Return the resident size after the C library has returned free memory to the system. Without
    that call, the amount that the library keeps depends on the last fault and varies by more than
    one MiB. Fragments remain."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


class _MallInfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


def allocated_mib() -> float:
    """Return the memory that the C library has allocated and not freed, or 0 where it does not
    report this. Unlike the resident size it includes no fragments and no pages kept for later."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return 0.0
    mallinfo.restype = _MallInfo
    told = mallinfo()
    return float(told.uordblks + told.hblkhd) / MIB


def stolen() -> tuple[int, int]:
    """Ticks of this machine's processors that the host gave to other machines, and all ticks."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[7], sum(ticks)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def timers(loop: asyncio.AbstractEventLoop) -> int:
    """Return the number of timers that are not cancelled. Only asyncio's own loop reports them."""
    scheduled: list[asyncio.TimerHandle] = loop._scheduled  # type: ignore[attr-defined]
    return sum(not handle.cancelled() for handle in scheduled)
