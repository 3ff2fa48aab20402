"""Measures the encoding of Arrow columns, in rows per second of one core, against a plain copy.

    python -m benchmarks.columns                 encode only, then `send_table` to the mock cluster
    python -m benchmarks.columns --check         exit 1 unless the promise below holds
    python -m benchmarks.columns --encode-only   needs no cluster, and no extra package but pyarrow

"Encode only" runs the compiled row loop with Kafka's partitioner. Batches get a header with CRC-32C
and are dropped, without any network. The variants run alternately, and the result is the median of
the runs. The copy is one `memcpy` of the same keys and values, which is the rate that the memory
allows without encoding. Encoding is measured in CPU time, `send_table` in wall-clock time.

Promise: with 16-byte keys and 100-byte values, uncompressed, at least 20 M rows/s or half the rate
of the copy.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokprod import Producer
from aiokprod._arrow.c_data import Chunk, open_table
from aiokprod._arrow.table_appender import TableAppender
from aiokprod._client.table_schema import ROLES, layout_of
from aiokprod._core.append import Appender
from aiokprod._core.batch import BatchCore
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.memory import MemoryBudget
from aiokprod._core.slots import PartitionSlot, TopicSlot
from aiokprod._core.yielding import YieldQueue
from aiokprod._wire.record_batch import HEADER_SIZE, batch_header
from aiokprod.testing.mock_cluster import MockCluster

ROWS = 100_000
KEY_BYTES = 16
VALUE_BYTES = 100
PARTITIONS = 6
BATCH_SIZE = 131_072
PROMISED_RATE = 20e6
PROMISED_SHARE = 0.5
NAMES: dict[str, str | None] = {role: role for role in ROLES}


class Press:
    """An append path that seals full batches, adds a header and drops them."""

    def __init__(self, partitions: int, batch_size: int) -> None:
        self.limit = batch_size - HEADER_SIZE
        self.batches = self.bytes = 0
        self.loop = asyncio.get_running_loop()
        self.memory = MemoryBudget(1 << 62)
        self.appender = Appender(
            memory=self.memory,
            open_new_batch=self.open_new_batch,
            slow_submit=self.refuse,
            unix_ms=lambda: int(time.time() * 1000),
            yield_queue=YieldQueue(self.loop, self.loop.time, self.memory, slice_length=3600.0),
            max_request_size=1 << 30,
        )
        self.topic = TopicSlot("t", batch_size)
        self.topic.slots.extend(PartitionSlot("t", number) for number in range(partitions))

    async def refuse(self, *fields: Any) -> Any:
        """Fail, because no row of these tables needs the slow path."""
        raise AssertionError(fields)

    def open_new_batch(
        self, topic: TopicSlot, partition: int, size: int, permit: object
    ) -> PartitionSlot:
        """Seal the full batch and open another batch."""
        if partition < 0:
            partition = topic.sticky = (topic.sticky + 1) % len(topic.slots)
            topic.sticky_bytes = 0
        slot: PartitionSlot = topic.slots[partition]
        if slot.core is not None:
            self.seal(slot)
        slot.core = BatchCore("t", partition, self.loop, self.limit, 1.0, self.limit)
        return slot

    def seal(self, slot: PartitionSlot) -> None:
        """Create the bytes as they would be sent."""
        core = slot.core
        assert core is not None, "only called with an open batch"
        payload = core.finish()
        header = batch_header(
            payload,
            count=core.record_count,
            base_timestamp=core.base_timestamp,
            max_timestamp=core.max_timestamp,
        )
        self.batches += 1
        self.bytes += len(header) + len(payload)
        slot.core = None

    def run(self, chunk: Chunk) -> None:
        """Append all rows of a bound chunk."""
        table = TableAppender(self.appender, BulkTracker())
        done = table.append(chunk, self.topic, 0)
        assert done == len(chunk), f"stopped at row {done}"


def make_table(rows: int, *, keys: bool = True, headers: bool = False) -> Any:
    """Return a table of incompressible keys and values of `KEY_BYTES` and `VALUE_BYTES`."""
    import numpy as np
    import pyarrow as pa

    rng = np.random.default_rng(1)

    def column(width: int) -> Any:
        data = pa.py_buffer(rng.bytes(rows * width))
        offsets = pa.py_buffer(np.arange(0, (rows + 1) * width, width, dtype=np.int32).tobytes())
        return pa.Array.from_buffers(pa.binary(), rows, [None, offsets, data])

    columns = {"value": column(VALUE_BYTES)}
    if keys:
        columns["key"] = column(KEY_BYTES)
    if headers:
        entry = pa.StructArray.from_arrays(
            [pa.array(["id", "source"] * rows), pa.array([b"12345678", b"spark"] * rows)],
            names=["key", "value"],
        )
        offsets = pa.array(np.arange(0, 2 * rows + 1, 2, dtype=np.int32))
        columns["headers"] = pa.ListArray.from_arrays(offsets, entry)
    return pa.record_batch(columns)


def bound(table: Any) -> Chunk:
    """Return the only chunk of a record batch, bound to its columns."""
    stream = open_table(table)
    chunk = stream.next()
    assert chunk is not None, "a record batch is one chunk"
    chunk.bind(layout_of(stream.schema, "t", NAMES))
    return chunk


@dataclass
class Variant:
    """An operation on all rows, and its measured rates."""

    title: str
    work: Callable[[], None]
    rates: list[float]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def copy_of(rows: int) -> Callable[[], None]:
    """Return a function that copies the bytes of all keys and values into an existing buffer."""
    source = bytes(rows * (KEY_BYTES + VALUE_BYTES))
    target = memoryview(bytearray(len(source)))

    def copy() -> None:
        target[:] = source

    return copy


async def encode_only(rows: int, runs: int, batch_size: int) -> tuple[float, float]:
    """Print a table of rates. Return the rates of the promised variant and of the copy."""
    variants = []
    for title, options in (
        ("16 B key + 100 B value", {}),
        ("100 B value, no key (sticky)", {"keys": False}),
        ("16 B key + 100 B value + 2 headers", {"headers": True}),
    ):
        chunk = bound(make_table(rows, **options))
        press = Press(PARTITIONS, batch_size)
        variants.append(Variant(title, lambda c=chunk, p=press: p.run(c), []))  # type: ignore[misc]
    copy = Variant("memcpy of the keys and values", copy_of(rows), [])
    repeats = max(1, 2_000_000 // rows)
    for variant in [*variants, copy]:
        variant.work()
    for _ in range(runs):
        for variant in [*variants, copy]:
            started = time.process_time()
            for _ in range(repeats):
                variant.work()
            variant.rates.append(rows * repeats / (time.process_time() - started))
    print(f"encode only, {PARTITIONS} partitions, batches of {batch_size} bytes, 1 core")
    for variant in [*variants, copy]:
        print(
            f"  {variant.title:38} {variant.rate / 1e6:7.2f} M rows/s  {1e9 / variant.rate:6.1f} "
            f"ns/row  (best {max(variant.rates) / 1e6:.2f})"
        )
    return variants[0].rate, copy.rate


async def to_mock_cluster(rows: int, total: int, batch_size: int) -> None:
    """Send `total` rows to librdkafka's mock cluster by `send_table`. Print the rate and lag."""
    import pyarrow as pa

    batch = make_table(rows)
    table = pa.Table.from_batches([batch] * max(1, total // rows))
    with MockCluster() as cluster:
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, batch_size=batch_size
        ) as producer:
            await producer.send_table("warm", batch)
            lags: list[tuple[float, float]] = []
            watch = asyncio.create_task(watch_lag(lags))
            started, cpu = time.perf_counter(), time.thread_time()
            result = await producer.send_table("t", table)
            elapsed, cpu = time.perf_counter() - started, time.thread_time() - cpu
            watch.cancel()
            assert result.ok, result
    print(
        f"send_table to the mock cluster: {len(result)} rows, {len(result) / elapsed / 1e6:.2f} M "
        f"rows/s, {cpu / len(result) * 1e9:.0f} ns CPU/row of the loop's thread, "
        f"longest turn of the loop {max(lags)[0] * 1000:.1f} ms, "
        f"{max(cpu for _, cpu in lags) * 1000:.1f} ms of it CPU"
    )


async def watch_lag(lags: list[tuple[float, float]]) -> None:
    """Measure an iteration of the event loop every few milliseconds. Append its wall-clock time and
    the thread's CPU time, which does not include other processes, s."""
    loop = asyncio.get_running_loop()
    while True:
        asked, cpu = loop.time(), time.thread_time()
        await asyncio.sleep(0)
        lags.append((loop.time() - asked, time.thread_time() - cpu))
        await asyncio.sleep(0.003)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS, help="per record batch")
    parser.add_argument("--total", type=int, default=5_000_000, help="rows to the mock cluster")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, help="bytes")
    parser.add_argument("--encode-only", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit 1 unless the promise holds")
    arguments = parser.parse_args()
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}")
    rate, copied = asyncio.run(encode_only(arguments.rows, arguments.runs, arguments.batch_size))
    if not arguments.encode_only:
        asyncio.run(to_mock_cluster(arguments.rows, arguments.total, arguments.batch_size))
    if arguments.check and rate < PROMISED_RATE and rate < PROMISED_SHARE * copied:
        sys.exit(f"{rate / 1e6:.1f} M rows/s: less than promised")


if __name__ == "__main__":
    main()
