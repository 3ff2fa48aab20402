"""`send_table`: sends a data frame or query result without a Python object per row.

python -m examples.arrow_table localhost:9092     (pyarrow; tables of polars or duckdb work too)
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from typing import Any

from aiokprod import BulkResult, Producer

SENSORS = ("oslo-1", "lima-2", "perth-3")


def readings(count: int) -> Any:
    """Returns a table with a column for each field of a record. `run` shows how to use other
    column names."""
    import pyarrow as pa

    start = datetime.datetime(2025, 1, 1, tzinfo=datetime.UTC)
    return pa.table(
        {
            "sensor": [SENSORS[row % len(SENSORS)] for row in range(count)],
            # A null value is a tombstone. Here, every 100th reading is one.
            "value": [None if row % 100 == 99 else f'{{"row": {row}}}' for row in range(count)],
            "timestamp": pa.array(
                [start + datetime.timedelta(seconds=row) for row in range(count)],
                pa.timestamp("us", "UTC"),
            ),
            "headers": pa.array(
                [[("unit", b"celsius")] if row % 2 else None for row in range(count)],
                pa.map_(pa.string(), pa.binary()),
            ),
        }
    )


async def run(bootstrap: str, count: int = 100_000) -> BulkResult:
    """Sends `count` readings, keyed by their sensor, and waits until each has an outcome."""
    async with Producer(bootstrap_servers=bootstrap, compression_type="zstd") as producer:
        return await producer.send_table("table-readings", readings(count), key_column="sensor")


def main() -> None:
    result = asyncio.run(run(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"))
    for place, (records, first, last) in sorted(result.ranges.items()):
        print(f"{place}: {records} records, offsets {first} to {last}")
    for row, error in list(result.errors.items())[:10]:
        print(f"row {row}: {error.outcome.value}: {error}")


if __name__ == "__main__":
    main()
