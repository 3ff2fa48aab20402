"""`send_many` with columns: the fastest way to send many Python objects.

python -m examples.send_columns localhost:9092
"""

from __future__ import annotations

import asyncio
import sys

from aiokprod import BulkResult, Producer, ProducerRecord

CITIES = (b"Oslo", b"Lima", b"Perth", b"Quito")


async def run(bootstrap: str, count: int = 100_000) -> tuple[BulkResult, BulkResult]:
    """Sends `count` readings of one topic as columns, then a few records of two topics."""
    async with Producer(bootstrap_servers=bootstrap, compression_type="zstd") as producer:
        # Columns: one topic, a list of values, and optional lists of keys, headers and timestamps.
        values = [b'{"reading": %d}' % number for number in range(count)]
        keys = [CITIES[number % len(CITIES)] for number in range(count)]
        columns = await producer.send_many("readings", values, keys=keys)

        # Records: any mix of topics, partitions and headers.
        records = [
            ProducerRecord("audit", b"import finished", headers=[("job", b"42")]),
            ProducerRecord("readings", b'{"reading": -1}', key=b"Oslo"),
        ]
        mixed = await producer.send_many(records)
    return columns, mixed


def main() -> None:
    columns, mixed = asyncio.run(run(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"))
    for name, result in (("columns", columns), ("records", mixed)):
        # An invalid record does not affect the others. `errors` maps the positions of failed
        # records to their errors.
        print(f"{name}: {len(result.offsets)} sent, all acknowledged: {result.ok}")
        for position, error in list(result.errors.items())[:10]:
            print(f"  record {position}: {error.outcome.value}: {error}")


if __name__ == "__main__":
    main()
