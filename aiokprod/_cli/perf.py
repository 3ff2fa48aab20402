"""`aiokprod perf`: measures rate and latency with records of one size."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from aiokprod._core.batch import Delivery
from aiokprod._histogram import Histogram
from aiokprod.errors import ConfigError, KafkaError
from aiokprod.producer import Producer
from aiokprod.records import RecordMetadata

SLICE_S: Final = 0.001
"""With `--rate`, the interval in seconds at which due records are submitted."""
WINDOW: Final = 10_000
"""Without `--rate`, the number of records in a window."""
SAMPLED: Final = 100
"""Without `--rate`, the latency of one out of this number of records is measured."""
QUANTILES: Final = (0.5, 0.95, 0.99, 0.999)


@dataclass(slots=True)
class PerfReport:
    """The result of a measurement. Latencies are in ms, and end with the record's outcome. With
    `--rate` they start when the record is due. Otherwise they start when it is submitted, and are
    measured for one out of 100 records."""

    sent: int
    failed: dict[str, int]
    seconds: float
    size: int
    mean_ms: float
    max_ms: float
    quantiles_ms: dict[str, float]
    late_ms: float = field(default=0.0)

    @property
    def ok(self) -> bool:
        """True if no record failed."""
        return not self.failed

    def as_dict(self) -> dict[str, Any]:
        """Return the report for `--report json`."""
        return {
            "records": self.sent,
            "failed": self.failed,
            "seconds": round(self.seconds, 4),
            "records_per_s": round(self.sent / self.seconds, 1) if self.seconds else 0.0,
            "value_bytes": self.size,
            "latency_ms": {"mean": self.mean_ms, **self.quantiles_ms, "max": self.max_ms},
            "late_ms": self.late_ms,
        }

    def lines(self) -> Iterator[str]:
        """Yield lines for `--report text`. The last line is like kafka-producer-perf-test's."""
        for outcome, count in self.failed.items():
            yield f"{count:,} records failed ({outcome})"
        rate = self.sent / self.seconds if self.seconds else 0.0
        quantiles = ", ".join(
            f"{value:.2f} ms {name.replace('p', '')}th" for name, value in self.quantiles_ms.items()
        )
        yield (
            f"{self.sent} records sent, {rate:.1f} records/sec "
            f"({rate * self.size / (1 << 20):.2f} MB/sec), {self.mean_ms:.2f} ms avg latency, "
            f"{self.max_ms:.2f} ms max latency, {quantiles}."
        )


def check_options(options: Namespace) -> None:
    """Check the numeric options.

    Raises:
        ConfigError: a number is out of range.
    """
    if options.size < 0 or options.duration <= 0 or options.rate < 0:
        raise ConfigError("--size and --rate must be 0 or more, --duration above 0")


class PerfRun:
    """One measurement."""

    def __init__(self, options: Namespace, producer: Producer[bytes, bytes]) -> None:
        self._options = options
        self._producer = producer
        self._latency = Histogram()
        self._failed: Counter[str] = Counter()
        self._waiting = 0
        self._idle = asyncio.Event()
        self._last = 0.0
        self._late = 0.0

    async def run(self) -> PerfReport:
        """Warm up, then measure."""
        options, producer = self._options, self._producer
        await producer.warm([options.topic])
        for delivery in [await producer.submit(options.topic, b"") for _ in range(100)]:
            await delivery
        began = time.perf_counter()
        sent = await (self._paced(began) if options.rate else self._unpaced(began))
        await producer.flush()
        while self._waiting:
            self._idle.clear()
            await self._idle.wait()
        latency = self._latency
        return PerfReport(
            sent=sent,
            failed=dict(self._failed),
            seconds=self._last - began,
            size=options.size,
            mean_ms=round(latency.total / max(1, latency.count) * 1e3, 3),
            max_ms=round(latency.maximum * 1e3, 3),
            quantiles_ms={
                f"p{100 * share:g}": round(latency.quantile(share) * 1e3, 3) for share in QUANTILES
            },
            late_ms=round(self._late * 1e3, 3),
        )

    async def _submit(self, value: bytes, due: float) -> None:
        def on_delivery(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
            self._last = now = time.perf_counter()
            self._latency.add(now - due)
            self._waiting -= 1
            if error is not None:
                self._failed[error.outcome.value] += 1
            if not self._waiting:
                self._idle.set()

        self._waiting += 1
        try:
            await self._producer.submit(self._options.topic, value, on_delivery=on_delivery)
        except KafkaError as error:
            on_delivery(None, error)

    async def _paced(self, began: float) -> int:
        """Submit every record when it is due."""
        options = self._options
        value = bytes(options.size)
        limit = int(options.duration * options.rate)
        if options.records is not None:
            limit = min(limit, options.records)
        sent = 0
        while sent < limit:
            due = min(limit, int((time.perf_counter() - began) * options.rate) + 1)
            while sent < due:
                at = began + sent / options.rate
                self._late = max(self._late, time.perf_counter() - at)
                await self._submit(value, at)
                sent += 1
            await asyncio.sleep(SLICE_S)
        return sent

    async def _unpaced(self, began: float) -> int:
        """Submit as fast as the producer accepts records, in windows, of which at most two are
        pending. One out of `SAMPLED` records has a callback; the others are awaited."""
        options, submit = self._options, self._producer.submit
        topic, value = options.topic, bytes(options.size)
        end = began + options.duration
        sent = 0
        before: list[Delivery] = []
        while (options.records is None or sent < options.records) and time.perf_counter() < end:
            window: list[Delivery] = []
            size = WINDOW if options.records is None else min(WINDOW, options.records - sent)
            for number in range(size):
                if number % SAMPLED:
                    window.append(await submit(topic, value))
                else:
                    await self._submit(value, time.perf_counter())
            sent += size
            await self._await(before)
            before = window
        await self._await(before)
        self._last = max(self._last, time.perf_counter())
        return sent

    async def _await(self, window: list[Delivery]) -> None:
        for delivery in window:
            try:
                await delivery
            except KafkaError as error:
                self._failed[error.outcome.value] += 1
