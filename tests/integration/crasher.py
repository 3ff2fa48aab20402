"""Open a transaction, report it, and wait to be killed.

python -m tests.integration.crasher SERVERS TOPIC TRANSACTION_TIMEOUT_MS
"""

from __future__ import annotations

import asyncio
import sys

from aiokprod import Producer


async def crash(servers: str, topic: str, timeout_ms: int) -> None:
    producer: Producer[bytes, bytes] = Producer(
        bootstrap_servers=servers,
        transactional_id=f"crash-{topic}",
        transaction_timeout_ms=timeout_ms,
    )
    await producer.begin_transaction()
    await producer.send(topic, b"never visible", partition=0)
    print("open", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(crash(sys.argv[1], sys.argv[2], int(sys.argv[3])))
