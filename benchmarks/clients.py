"""One way of producing per class: the same job done with aiokprod and with other clients.

Every class hands over `count` records and returns once each is acknowledged by all in-sync
replicas. Values of 100 bytes by default, no keys, no compression, idempotence on where the client
has it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any, Protocol

TASKS = 64


class Client(Protocol):
    """A started producer; `run` is what is timed."""

    async def start(self, servers: str, topic: str) -> None: ...
    async def run(self, value: bytes, count: int) -> None: ...
    async def stop(self) -> None: ...


class _Aiokprod:
    def __init__(self) -> None:
        self.producer: Any = None
        self.topic = ""

    async def start(self, servers: str, topic: str) -> None:
        from aiokprod import Producer

        self.topic = topic
        self.producer = Producer(bootstrap_servers=servers)
        await self.producer.start()
        await self.producer.send(topic, b"warm-up")

    async def stop(self) -> None:
        await self.producer.close()


class AiokprodSend(_Aiokprod):
    """64 tasks, each awaits one `send` after the other."""

    async def run(self, value: bytes, count: int) -> None:
        send, topic = self.producer.send, self.topic
        ticket = itertools.count(1)

        async def worker() -> None:
            while next(ticket) <= count:
                await send(topic, value)

        await asyncio.gather(*(worker() for _ in range(TASKS)))


class AiokprodSubmit(_Aiokprod):
    """One task submits everything, then flushes."""

    async def run(self, value: bytes, count: int) -> None:
        submit, topic = self.producer.submit, self.topic
        for _ in range(count):
            await submit(topic, value)
        await self.producer.flush()


class AiokprodSendMany(_Aiokprod):
    """Columns of 10 000 values, one after the other."""

    async def run(self, value: bytes, count: int) -> None:
        left = count
        while left:
            chunk = min(left, 10_000)
            result = await self.producer.send_many(self.topic, [value] * chunk)
            assert result.ok
            left -= chunk


class AiokprodLone(_Aiokprod):
    """One awaited record after the other; keeps each latency."""

    def __init__(self) -> None:
        super().__init__()
        self.latencies: list[float] = []

    async def run(self, value: bytes, count: int) -> None:
        for _ in range(count):
            started = time.perf_counter()
            await self.producer.send(self.topic, value, partition=0)
            self.latencies.append(time.perf_counter() - started)


class _Aiokafka:
    """`acks="all"`; `tuned` has the batch size and linger that aiokprod has by default."""

    tuned = False

    def __init__(self) -> None:
        self.producer: Any = None
        self.topic = ""

    async def start(self, servers: str, topic: str) -> None:
        from aiokafka import AIOKafkaProducer

        settings: dict[str, Any] = {"acks": "all", "enable_idempotence": True}
        if self.tuned:
            settings |= {"linger_ms": 5, "max_batch_size": 131_072}
        self.topic = topic
        self.producer = AIOKafkaProducer(bootstrap_servers=servers, **settings)
        await self.producer.start()
        await self.producer.send_and_wait(topic, b"warm-up")

    async def stop(self) -> None:
        await self.producer.stop()


class AiokafkaSend(_Aiokafka):
    """64 tasks, each awaits one `send_and_wait` after the other."""

    async def run(self, value: bytes, count: int) -> None:
        send, topic = self.producer.send_and_wait, self.topic
        ticket = itertools.count(1)

        async def worker() -> None:
            while next(ticket) <= count:
                await send(topic, value)

        await asyncio.gather(*(worker() for _ in range(TASKS)))


class AiokafkaSendTuned(AiokafkaSend):
    tuned = True


class AiokafkaSubmit(_Aiokafka):
    """One task awaits `send` (which queues), then flushes."""

    async def run(self, value: bytes, count: int) -> None:
        send, topic = self.producer.send, self.topic
        for _ in range(count):
            await send(topic, value)
        await self.producer.flush()


class AiokafkaSubmitTuned(AiokafkaSubmit):
    tuned = True


class AiokafkaLone(_Aiokafka):
    """One awaited record after the other; keeps each latency."""

    def __init__(self) -> None:
        super().__init__()
        self.latencies: list[float] = []

    async def run(self, value: bytes, count: int) -> None:
        for _ in range(count):
            started = time.perf_counter()
            await self.producer.send_and_wait(self.topic, value, partition=0)
            self.latencies.append(time.perf_counter() - started)


class ConfluentProduce:
    """`produce` with a delivery callback, polled now and then: librdkafka's threads do the rest."""

    def __init__(self) -> None:
        self.producer: Any = None
        self.topic = ""
        self.delivered = 0

    def _settled(self, error: Any, message: Any) -> None:
        assert error is None, error
        self.delivered += 1

    async def start(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer

        self.topic = topic
        self.producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )
        self.producer.produce(topic, b"warm-up")
        self.producer.flush(30)

    async def run(self, value: bytes, count: int) -> None:
        produce, poll, topic = self.producer.produce, self.producer.poll, self.topic
        for number in range(count):
            while True:
                try:
                    produce(topic, value, on_delivery=self._settled)
                    break
                except BufferError:
                    poll(0.01)
            if number % 1000 == 0:
                poll(0)
        self.producer.flush(120)
        assert self.delivered == count, f"{self.delivered} of {count} delivered"

    async def stop(self) -> None:
        return None


class ConfluentAio:
    """64 tasks, each awaits one record of confluent's own asyncio producer after the other."""

    def __init__(self) -> None:
        self.producer: Any = None
        self.topic = ""

    async def start(self, servers: str, topic: str) -> None:
        from confluent_kafka.aio import AIOProducer

        self.topic = topic
        self.producer = AIOProducer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0},
            batch_size=TASKS,
            buffer_timeout=0.01,  # the default of 1 s is also what a lone batch waits
        )
        await (await self.producer.produce(topic, value=b"warm-up"))

    async def run(self, value: bytes, count: int) -> None:
        produce, topic = self.producer.produce, self.topic
        ticket = itertools.count(1)

        async def worker() -> None:
            while next(ticket) <= count:
                await (await produce(topic, value=value))

        await asyncio.gather(*(worker() for _ in range(TASKS)))

    async def stop(self) -> None:
        await self.producer.close()


CLIENTS: dict[str, type[Client]] = {
    "aiokprod-send": AiokprodSend,
    "aiokprod-submit": AiokprodSubmit,
    "aiokprod-send-many": AiokprodSendMany,
    "aiokprod-lone": AiokprodLone,
    "aiokafka-send": AiokafkaSend,
    "aiokafka-send-tuned": AiokafkaSendTuned,
    "aiokafka-submit": AiokafkaSubmit,
    "aiokafka-submit-tuned": AiokafkaSubmitTuned,
    "aiokafka-lone": AiokafkaLone,
    "confluent-aio-send": ConfluentAio,
    "confluent-produce": ConfluentProduce,
}
