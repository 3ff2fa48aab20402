"""Tables with false sizes, or whose memory changes during a read, cause an error or a bad row. They
never cause a read outside the table's memory.

AddressSanitizer detects such a read (`make sanitize`).
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import math
import struct
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from aiokprod._arrow.c_data import ArrowImportError, open_table
from aiokprod._arrow.table_appender import TableAppender
from aiokprod._core.bulk_tracker import BulkTracker
from aiokprod._core.slots import PartitionSlot
from aiokprod._engine.buffer import accumulator
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod.errors import RecordTooLarge
from aiokprod.spark._readback import RowHashes
from tests.arrow.capsules import ARRAY_RELEASE, STREAM_RELEASE, Batches, Column, binary, table
from tests.arrow.test_table_appender import append, bound
from tests.core.core_harness import CoreHarness, IdleLoop, idle_harness
from tests.scenarios.scenario_helpers import harness, play

HUGE = 2**62


@pytest.mark.parametrize(
    ("kind", "rows"),
    [("null", rows) for rows in (2**30, 2**31, 2**61, HUGE, 2**63 - 1)]
    + [("fixed_size_binary[0]", rows) for rows in (2**30, 2**31, 2**57)],
)
def test_null_columns_of_any_length_reserve_memory_for_a_slice_only(kind: str, rows: int) -> None:
    if kind == "null":
        value = pa.Array.from_buffers(pa.null(), rows, [None])
    else:
        value = pa.Array.from_buffers(pa.binary(0), rows, [None, pa.py_buffer(b"")])
    harness = idle_harness(memory=100_000)
    done, tracker = append(harness, pa.RecordBatch.from_arrays([value], ["value"]))
    assert 0 < done < 50_000, "until the memory was short"
    assert tracker.count == done


@pytest.mark.parametrize(
    "column",
    [
        Column("value", "z", 1, [None, bytes(8), b""], array__length=HUGE),
        Column("value", "z", 1, [None, bytes(8), b""], array__offset=2**63 - 1),
        Column("value", "vz", 1, [None, bytes(16), bytes(8)], array__length=2**59),
        Column("value", "w:0", HUGE, [None, b""]),
        Column("value", "w:4000000000", 2**40, [None, b""]),
        Column("value", "w:9223372036854775807", 2, [None, b""]),
    ],
    ids=["length", "offset", "views", "no width", "width", "largest width"],
)
def test_columns_that_no_memory_can_hold_are_refused(column: Column) -> None:
    with pytest.raises(ArrowImportError, match="no memory can hold"):
        bound(table(column, length=1))


def test_columns_are_bound_up_to_the_last_cell_that_memory_can_hold() -> None:
    last = HUGE // 16 - 1
    buffers = [None, bytes(8), b""]
    bound(table(Column("value", "z", 1, buffers, array__offset=last), length=1))
    with pytest.raises(ArrowImportError, match="no memory can hold"):
        bound(table(Column("value", "z", 1, buffers, array__offset=last + 1), length=1))


EXTREMES = (-(2**63), -1, 0, 1, 2**63 - 1)


@pytest.mark.parametrize(
    ("first", "second"),
    [(one, other) for one in EXTREMES for other in EXTREMES if not 0 <= one <= other],
)
def test_large_offsets_that_run_backwards_are_bad_rows(first: int, second: int) -> None:
    column = Column("value", "Z", 1, [None, struct.pack("=2q", first, second), b"x"])
    done, _ = append(idle_harness(), table(column))
    assert done == 0


def test_table_whose_position_does_not_fit_is_refused() -> None:
    stream = open_table(Batches(table(binary("value", b"x"), array__offset=2**63 - 1)))
    with pytest.raises(ArrowImportError):
        stream.next()


def is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


LEADS = (0x7F, 0x80, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4,
         0xF5, 0xFF)  # fmt: skip
FOLLOWS = (0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xFF)


@pytest.mark.parametrize("length", range(5))
def test_header_names_that_are_not_utf8_are_bad_rows(length: int) -> None:
    """`Chunk.row`, the slow path, rejects such names too, because a consumer cannot decode them."""
    names = [b""]
    if length:
        names = [
            bytes((lead, *rest))
            for lead in LEADS
            for rest in itertools.product(FOLLOWS, repeat=length - 1)
        ]
    rows = len(names)
    value = binary("value", *(b"v" for _ in names))
    key = binary("key", *(b"name " + name + b"." for name in names), format="u")
    entry = Column("entries", "+s", rows, [None], [key, value])
    ends = struct.pack(f"={rows + 1}i", *range(rows + 1))
    exported = table(value, Column("headers", "+l", rows, [None, ends], [entry]))
    chunk = bound(exported)
    harness = idle_harness(slice_length=math.inf)
    appender = TableAppender(harness.appender, BulkTracker())
    refused = []
    row = 0
    while (row := appender.append(chunk, harness.topic, row)) < rows:
        refused.append(names[row])
        row += 1
    assert refused == [name for name in names if not is_text(name)]


def row_whose_header_can_grow() -> tuple[Column, Callable[[], None]]:
    """Return a table of one row with a header, and a function that makes the header's value
    longer."""
    ends = ctypes.create_string_buffer(struct.pack("=2i", 0, 1), 8)
    value = Column("value", "z", 1, [None, bytes(ends), b"v" * 4000])
    entries = Column("entries", "+s", 1, [None], [binary("key", b"h", format="u"), value])
    headers = Column("headers", "+l", 1, [None, struct.pack("=2i", 0, 1)], [entries])
    place = ctypes.cast(value.array.buffers, ctypes.POINTER(ctypes.c_void_p))[1]

    def grow() -> None:
        ctypes.memmove(place, struct.pack("=2i", 0, 4000), 8)

    return table(binary("value", b"x"), headers), grow


def test_headers_that_grow_while_a_batch_is_opened_are_a_bad_row() -> None:
    """Another thread may write to the memory of a table. The sizes of a row are therefore measured
    again after a batch is opened."""
    exported, grow = row_whose_header_can_grow()
    harness = idle_harness(limit=200)
    harness.on_roll = grow
    done, tracker = append(harness, exported)
    assert done == tracker.count == 0
    assert harness.core.size == harness.core.count == 0
    assert harness.memory.used == 0
    assert tracker.cores == [], "the call waits for every batch it has entered"


def test_row_that_changes_while_it_is_written_does_not_wait_for_a_batch_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record of another caller enters the batch that is opened for the row. When that record is
    withdrawn, the batch is dropped without an outcome, so the table's call must not wait for the
    batch."""
    exported, grow = row_whose_header_can_grow()
    others: list[Any] = []

    async def main() -> None:
        slow: dict[str, Any] = {"linger_ms": 100, "adaptive_linger": False}
        async with harness(max_request_size=3000, **slow) as (_, producer, _):
            await producer.send("t", b"first")

            def race(*arguments: Any) -> ProducerBatch:
                grow()
                if not others:
                    others.append(None)
                    others[0] = producer.try_submit("t", b"other", partition=0)
                return ProducerBatch(*arguments)

            monkeypatch.setattr(accumulator, "ProducerBatch", race)
            sending = asyncio.ensure_future(producer.send_table("t", exported))
            await asyncio.sleep(0)
            assert others[0].cancel()
            assert others[0].withdrawn
            result = await sending
            assert isinstance(result.errors[0], RecordTooLarge)

    play(main)


def test_row_that_changes_while_it_is_written_leaves_the_records_of_others_as_they_are() -> None:
    exported, grow = row_whose_header_can_grow()

    class RacingHarness(CoreHarness):
        """Appends another caller's record to the batch that is opened for the row."""

        def open_new_batch(self, *arguments: Any) -> PartitionSlot:
            slot = super().open_new_batch(*arguments)
            grow()
            self.append(b"other", timestamp=5)
            return slot

    harness = RacingHarness(loop=IdleLoop())  # type: ignore[arg-type]
    done, tracker = append(harness, exported)
    assert done == tracker.count == 0
    assert harness.core.count == 1
    assert harness.core.base_timestamp == harness.core.max_timestamp == 5


def test_chunk_whose_release_closes_it_again_is_released_once() -> None:
    exported = table(binary("value", b"x"))
    released = []

    def release(array: Any) -> None:
        released.append("array")
        assert chunk is not None
        chunk.close()
        array.contents.release = ARRAY_RELEASE()

    kept = exported._keep(ARRAY_RELEASE(release))
    exported.array.release = kept
    chunk = open_table(exported).next()
    assert chunk is not None
    chunk.close()
    chunk.close()
    assert released == ["array"]


def test_stream_closed_by_several_threads_is_released_once() -> None:
    batches = Batches(table(binary("value", b"x")))
    released = []
    others = threading.Barrier(3)

    def release(stream: Any) -> None:
        released.append(threading.get_ident())
        with_others.wait(1)
        stream.contents.release = STREAM_RELEASE()

    with_others = threading.Event()
    kept = STREAM_RELEASE(release)
    batches.stream.release = kept
    stream = open_table(batches)

    def close() -> None:
        others.wait()
        stream.close()
        with_others.set()

    threads = [threading.Thread(target=close) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(released) == 1


def test_tracker_of_a_closed_chunk_stays_usable() -> None:
    harness = idle_harness()
    tracker = BulkTracker()
    chunk = bound(table(binary("value", b"x", b"y")))
    assert TableAppender(harness.appender, tracker).append(chunk, harness.topic, 0) == 2
    chunk.close()
    harness.core.acknowledge(0)
    assert [tracker.position(i)[1] for i in range(2)] == [0, 1]


def test_row_hashes_of_impossible_sizes_are_refused_and_unaligned_buffers_read() -> None:
    for count in (2**58 + 1, 2**60, 2**61, 2**63 - 1):
        with pytest.raises(MemoryError):
            RowHashes(count)
    hashes = RowHashes(1)
    for start in (2**58 + 1, 2**62, 2**63 - 1):
        with pytest.raises(ValueError, match="offsets buffer is too small"):
            hashes.binary(None, start, struct.pack("=2i", 0, 1), 4, b"x")
    totals = set()
    for shift in range(8):
        for width, code in ((4, "i"), (8, "q")):
            ends = memoryview(bytes(shift) + struct.pack(f"=3{code}", 0, 1, 3))[shift:]
            hashes = RowHashes(2)
            hashes.binary(None, 0, ends, width, b"xyz")
            totals.add(hashes.total())
    assert len(totals) == 1


def test_integers_and_lists_of_impossible_positions_are_refused_unaligned_ones_read() -> None:
    one = RowHashes(1)
    for start in (2**58 + 1, 2**61 + 2**40, 2**62, 2**63 - 1):
        with pytest.raises(ValueError, match="data buffer is too small"):
            one.fixed(b"", start, b"", 8)
        with pytest.raises(ValueError, match="offsets buffer is too small"):
            one.lists(b"", start, b"", 8, RowHashes(1), 0)
    for first, low, high in ((-(2**63), 0, 2**62), (-1, -1, 0), (-(2**63), -(2**63), 2**63 - 1)):
        with pytest.raises(ValueError, match="outside the elements"):
            one.lists(None, 0, struct.pack("=2q", low, high), 8, RowHashes(1), first)
    with pytest.raises(TypeError):
        one.lists(None, 0, bytes(16), 8, None, 0)  # type: ignore[arg-type]
    totals = set()
    for shift in range(8):
        for width, code in ((2, "h"), (4, "i"), (8, "q")):
            data = memoryview(bytes(shift) + struct.pack(f"=2{code}", -1, 7))[shift:]
            hashes = RowHashes(2)
            hashes.fixed(None, 0, data, width)
            totals.add(hashes.total())
    assert len(totals) == 1
    totals = set()
    for shift in range(8):
        for width, code in ((4, "i"), (8, "q")):
            ends = memoryview(bytes(shift) + struct.pack(f"=3{code}", 5, 6, 8))[shift:]
            hashes = RowHashes(2)
            hashes.lists(None, 0, ends, width, RowHashes(3), 5)
            totals.add(hashes.total())
    assert len(totals) == 1
