"""Measures the transactions of one client in a separate process, and prints a line of JSON.

    python -m benchmarks.transaction_worker CLIENT SERVERS TOPIC TRANSACTIONS EACH SIZE LOOP

The process runs one transaction after the other, each with EACH records of SIZE bytes and a commit.
A warm-up of a fifth of TRANSACTIONS, but at least three, comes first. The records have no keys and
are not compressed. The linger time of clients is 5 ms; `commit` ends it early.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from typing import Any, Protocol


class Client(Protocol):
    """A producer whose `transaction` is timed."""

    async def start(self, servers: str, topic: str) -> None: ...
    async def transaction(self, value: bytes, count: int) -> None: ...
    async def stop(self) -> None: ...


class AiokprodSubmit:
    """Calls `submit` for every record, and commits at the end of `async with`."""

    transactional = True

    def __init__(self) -> None:
        self.producer: Any = None
        self.topic = ""

    async def start(self, servers: str, topic: str) -> None:
        from aiokprod import Producer

        self.topic = topic
        name = f"{topic}-aiokprod" if self.transactional else None
        self.producer = Producer(bootstrap_servers=servers, transactional_id=name)
        await self.producer.start()

    async def transaction(self, value: bytes, count: int) -> None:
        submit, topic = self.producer.submit, self.topic
        async with self.producer.transaction():
            for _ in range(count):
                await submit(topic, value)

    async def stop(self) -> None:
        await self.producer.close()


class AiokprodSendMany(AiokprodSubmit):
    """Sends one column of values per transaction by `send_many`."""

    async def transaction(self, value: bytes, count: int) -> None:
        async with self.producer.transaction():
            result = await self.producer.send_many(self.topic, [value] * count)
            assert result.ok


class AiokprodIdempotent(AiokprodSubmit):
    """Sends the same records without transactions. `flush` takes the place of the commit."""

    transactional = False

    async def transaction(self, value: bytes, count: int) -> None:
        submit, topic = self.producer.submit, self.topic
        for _ in range(count):
            await submit(topic, value)
        await self.producer.flush()


class Aiokafka:
    """Calls `send` for every record. `tuned` uses aiokprod's default batch size and linger."""

    tuned = False

    def __init__(self) -> None:
        self.producer: Any = None
        self.topic = ""

    async def start(self, servers: str, topic: str) -> None:
        from aiokafka import AIOKafkaProducer

        settings: dict[str, Any] = {"transactional_id": f"{topic}-aiokafka"}
        if self.tuned:
            settings |= {"linger_ms": 5, "max_batch_size": 131_072}
        self.topic = topic
        self.producer = AIOKafkaProducer(bootstrap_servers=servers, **settings)
        await self.producer.start()

    async def transaction(self, value: bytes, count: int) -> None:
        send, topic = self.producer.send, self.topic
        async with self.producer.transaction():
            for _ in range(count):
                await send(topic, value)

    async def stop(self) -> None:
        await self.producer.stop()


class AiokafkaTuned(Aiokafka):
    tuned = True


class Confluent:
    """Calls `produce` for every record, then the blocking commit, which flushes."""

    def __init__(self) -> None:
        self.producer: Any = None
        self.topic = ""

    async def start(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self.topic = topic
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": f"{topic}-confluent",
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self.producer.init_transactions(60)

    async def transaction(self, value: bytes, count: int) -> None:
        producer, produce, topic = self.producer, self.producer.produce, self.topic
        producer.begin_transaction()
        for _ in range(count):
            while True:
                try:
                    produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.commit_transaction(60)

    async def stop(self) -> None:
        return None


OVERHEAD = "overhead"

CLIENTS: dict[str, type[Client]] = {
    "aiokprod": AiokprodSubmit,
    "aiokprod-send-many": AiokprodSendMany,
    "aiokprod-idempotent": AiokprodIdempotent,
    "aiokafka": Aiokafka,
    "aiokafka-tuned": AiokafkaTuned,
    "confluent": Confluent,
}


def warm_up(transactions: int) -> int:
    """Return the number of transactions of the warm-up."""
    return max(3, transactions // 5)


async def measure(
    name: str, servers: str, topic: str, transactions: int, each: int, size: int
) -> dict[str, object]:
    """Return the wall-clock and CPU seconds of all transactions, and the time of each one."""
    client = CLIENTS[name]()
    await client.start(servers, topic)
    value = b"v" * size
    warm = warm_up(transactions)
    for _ in range(warm):
        await client.transaction(value, each)
    gc.collect()
    latencies = []
    used = time.process_time()
    started = time.perf_counter()
    for _ in range(transactions):
        began = time.perf_counter()
        await client.transaction(value, each)
        latencies.append(time.perf_counter() - began)
    seconds = time.perf_counter() - started
    used = time.process_time() - used
    await client.stop()
    return {"seconds": seconds, "cpu": used, "warm_up": warm, "latencies": latencies}


async def measure_overhead(
    servers: str, topic: str, pairs: int, each: int, size: int
) -> dict[str, object]:
    """Return the CPU seconds of the same records with and without transactions: until the records
    are acknowledged, and for the commit.

    Both producers run alternately in this process, and their order changes from pair to pair, so
    that other programs affect both equally.
    """
    clients = AiokprodSubmit(), AiokprodIdempotent()
    for client in clients:
        await client.start(servers, topic)
    value = b"v" * size
    warm = warm_up(pairs)
    spent: dict[str, list[float]] = {"transactions": [], "commits": [], "plain": []}

    async def records(producer: Any) -> float:
        used = time.process_time()
        for _ in range(each):
            await producer.submit(topic, value)
        await producer.flush()
        return time.process_time() - used

    for number in range(warm + pairs):
        for which in (0, 1) if number % 2 else (1, 0):
            producer = clients[which].producer
            gc.collect()
            if which == 1:
                spent["plain"].append(await records(producer))
                continue
            await producer.begin_transaction()
            spent["transactions"].append(await records(producer))
            used = time.process_time()
            await producer.commit_transaction()
            spent["commits"].append(time.process_time() - used)
    for client in clients:
        await client.stop()
    return {"warm_up": warm, **{name: found[warm:] for name, found in spent.items()}}


def main() -> None:
    name, servers, topic, transactions, each, size, loop = sys.argv[1:]
    factory = None
    if loop == "uvloop":
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        numbers = int(transactions), int(each), int(size)
        if name == OVERHEAD:
            result = runner.run(measure_overhead(servers, topic, *numbers))
        else:
            result = runner.run(measure(name, servers, topic, *numbers))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
