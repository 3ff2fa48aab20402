"""An interceptor that adds a trace id to every record and counts outcomes.

python -m examples.interceptor localhost:9092
"""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import uuid
from collections import Counter

from aiokprod import KafkaError, Producer, ProducerRecord, RecordMetadata


class Tracing:
    """Intercepts each record before its serialization, and once when it has its outcome.

    Exceptions raised by an interceptor are logged and do not affect the record.
    """

    def __init__(self) -> None:
        self.settled: Counter[str] = Counter()

    def on_send(self, record: ProducerRecord[bytes, bytes]) -> ProducerRecord[bytes, bytes]:
        """Returns the record to send, with a trace id."""
        trace = ("trace-id", uuid.uuid4().hex.encode())
        return dataclasses.replace(record, headers=[*record.headers, trace])

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        """Counts the outcome. Called on the event loop, so it must not block."""
        if error is not None:
            self.settled[f"failed: {error.outcome.value}"] += 1
        else:
            self.settled["acknowledged"] += 1

    def close(self) -> None:
        """Called once, when the producer is closed."""


async def run(bootstrap: str) -> Tracing:
    """Sends ten records through the interceptor."""
    tracing = Tracing()
    async with Producer(bootstrap_servers=bootstrap, interceptors=[tracing]) as producer:
        for number in range(10):
            await producer.submit("traced", b"record %d" % number)
    return tracing


def main() -> None:
    tracing = asyncio.run(run(sys.argv[1] if len(sys.argv) > 1 else "localhost:9092"))
    for what, count in tracing.settled.items():
        print(f"{what}: {count}")


if __name__ == "__main__":
    main()
