"""A batch job: sends every line of a file as a record, as fast as the brokers accept them.

    python -m examples.batch_job localhost:9092 lines /var/log/some.log

`submit` returns once a record is in a batch. It waits while `buffer_memory` is full, so that a file
of any size needs only a few megabytes of memory. Each `Delivery` gets an offset or an error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field

from aiokprod import Delivery, KafkaError, Producer


@dataclass
class Summary:
    """Counts the outcomes of the lines."""

    delivered: int = 0
    failed: list[KafkaError] = field(default_factory=list)

    def settle(self, delivery: Delivery) -> None:
        """Counts the outcome of a record. Called once per record."""
        error = delivery.exception()
        if error is None:
            self.delivered += 1
        else:
            self.failed.append(error)


async def run(bootstrap: str, topic: str, lines: Iterable[str]) -> Summary:
    """Sends all lines and returns once each has an outcome."""
    summary = Summary()
    async with Producer(
        bootstrap_servers=bootstrap,
        compression_type="lz4",
        buffer_memory=4 * 1024 * 1024,
    ) as producer:
        for line in lines:
            delivery = await producer.submit(topic, line.rstrip("\n").encode())
            delivery.add_done_callback(summary.settle)
        await producer.flush()
    return summary


def main() -> None:
    bootstrap, topic, path = sys.argv[1:]
    with open(path, encoding="utf-8", errors="replace") as lines:
        summary = asyncio.run(run(bootstrap, topic, lines))
    print(f"{summary.delivered} lines delivered, {len(summary.failed)} failed")
    for error in summary.failed[:10]:
        print(f"  {error.outcome.value}: {error}")


if __name__ == "__main__":
    main()
