"""Three clients behind one interface: submit a record and get its outcome."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

ACKNOWLEDGED, ABSENT, UNKNOWN = 1, 2, 3


@dataclass(frozen=True)
class Told:
    """The outcome that a client reported for a record.

    Attributes:
        state: ACKNOWLEDGED; ABSENT if the client reported that the record is not in the log;
            UNKNOWN if it reported that the record may be in the log; None if its error does not say
            whether the record is in the log.
    """

    state: int | None
    partition: int = -1
    offset: int = -1
    error: str = ""


Report = Callable[[Told], None]


@dataclass(frozen=True)
class Settings:
    """Settings common to all clients, which also use acks=all and idempotence.

    Time limits are in seconds. aiokafka has one limit for requests and record expiry: `request_s`.
    """

    bootstrap: str
    topic: str
    request_s: float = 15.0
    delivery_s: float = 60.0
    batch_size: int = 16_384


class Client(Protocol):
    """A producer under test. `start` must be called first. `send` calls `report` exactly once, or
    never if the record hangs."""

    async def start(self) -> None: ...
    async def send(self, partition: int, value: bytes, report: Report) -> None:
        """Queue a record. May wait for free buffer memory."""

    async def deliver(self, partition: int, value: bytes) -> Told:
        """Send a record and wait for its outcome. The caller may cancel this call."""

    async def stop(self) -> None: ...


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text[:200]


class Aiokprod:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: Any = None

    async def start(self) -> None:
        from aiokprod import Producer

        settings = self._settings
        self._producer = Producer(
            bootstrap_servers=settings.bootstrap,
            request_timeout_ms=int(settings.request_s * 1000),
            delivery_timeout_ms=int(settings.delivery_s * 1000),
            max_block_ms=int(settings.delivery_s * 1000),
            batch_size=settings.batch_size,
        )
        await self._producer.start()

    async def send(self, partition: int, value: bytes, report: Report) -> None:
        from aiokprod import KafkaError

        try:
            delivery = await self._producer.submit(self._settings.topic, value, partition=partition)
        except KafkaError as error:
            report(self._failure(error))
        else:
            delivery.add_done_callback(lambda done: report(self._outcome(done)))

    def _outcome(self, delivery: Any) -> Told:
        error = delivery.exception()
        return self._success(delivery.result()) if error is None else self._failure(error)

    @staticmethod
    def _success(metadata: Any) -> Told:
        offset = -1 if metadata.offset is None else metadata.offset
        return Told(ACKNOWLEDGED, metadata.partition, offset)

    @staticmethod
    def _failure(error: Any) -> Told:
        unknown = error.outcome.name == "UNKNOWN"
        return Told(UNKNOWN if unknown else ABSENT, error=f"[{error.outcome.name}] {_short(error)}")

    async def deliver(self, partition: int, value: bytes) -> Told:
        from aiokprod import KafkaError

        try:
            return self._success(
                await self._producer.send(self._settings.topic, value, partition=partition)
            )
        except KafkaError as error:
            return self._failure(error)

    async def stop(self) -> None:
        await self._producer.close(5.0)


class Aiokafka:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: Any = None

    async def start(self) -> None:
        from aiokafka import AIOKafkaProducer

        settings = self._settings
        self._producer = AIOKafkaProducer(
            bootstrap_servers=settings.bootstrap,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=int(settings.request_s * 1000),
            max_batch_size=settings.batch_size,
            linger_ms=5,
        )
        await self._producer.start()

    async def send(self, partition: int, value: bytes, report: Report) -> None:
        try:
            future = await self._producer.send(self._settings.topic, value, partition=partition)
        except Exception as error:
            report(Told(None, error=_short(error)))
        else:
            future.add_done_callback(lambda done: report(self._outcome(done)))

    @staticmethod
    def _outcome(future: Any) -> Told:
        if future.cancelled():
            return Told(None, error="cancelled")
        error = future.exception()
        if error is not None:
            return Told(None, error=_short(error))
        return Told(ACKNOWLEDGED, future.result().partition, future.result().offset)

    async def deliver(self, partition: int, value: bytes) -> Told:
        try:
            metadata = await self._producer.send_and_wait(
                self._settings.topic, value, partition=partition
            )
        except Exception as error:
            return Told(None, error=_short(error))
        return Told(ACKNOWLEDGED, metadata.partition, metadata.offset)

    async def stop(self) -> None:
        await self._producer.stop()


def _confluent(settings: Settings) -> dict[str, Any]:
    return {
        "bootstrap.servers": settings.bootstrap,
        "enable.idempotence": True,
        "socket.timeout.ms": int(settings.request_s * 1000),
        "message.timeout.ms": int(settings.delivery_s * 1000),
        "batch.size": settings.batch_size,
        "linger.ms": 5,
        "log_level": 0,
    }


class Confluent:
    """Calls `produce` with delivery callbacks, which a thread serves. `deliver` uses the client's
    `AIOProducer`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: Any = None
        self._awaited: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    async def start(self) -> None:
        from confluent_kafka import Producer

        self._producer = Producer(_confluent(self._settings))
        self._thread.start()

    def _poll(self) -> None:
        while not self._stop.is_set():
            self._producer.poll(0.02)

    async def send(self, partition: int, value: bytes, report: Report) -> None:
        loop = asyncio.get_running_loop()

        def delivered(error: Any, message: Any) -> None:
            told = self._told(error, message)
            with contextlib.suppress(RuntimeError):  # the loop is already closed
                loop.call_soon_threadsafe(report, told)

        give_up = time.monotonic() + self._settings.delivery_s
        while True:
            try:
                self._producer.produce(
                    self._settings.topic, value, partition=partition, on_delivery=delivered
                )
                return
            except BufferError:
                if time.monotonic() > give_up:
                    report(Told(None, error="BufferError: queue full"))
                    return
                await asyncio.sleep(0.01)
            except Exception as error:
                report(Told(None, error=_short(error)))
                return

    @staticmethod
    def _told(error: Any, message: Any) -> Told:
        if error is not None:
            return Told(None, error=f"{error.name()}: {error.str()}"[:200])
        return Told(ACKNOWLEDGED, message.partition(), message.offset())

    async def deliver(self, partition: int, value: bytes) -> Told:
        from confluent_kafka import KafkaException
        from confluent_kafka.aio import AIOProducer

        if self._awaited is None:
            self._awaited = AIOProducer(_confluent(self._settings), buffer_timeout=0.01)
        try:
            message = await (
                await self._awaited.produce(self._settings.topic, value=value, partition=partition)
            )
        except KafkaException as error:
            return Told(None, error=_short(error))
        return Told(ACKNOWLEDGED, message.partition(), message.offset())

    async def stop(self) -> None:
        self._stop.set()
        self._thread.join(1)
        if self._awaited is not None:
            await self._awaited.close()


CLIENTS: dict[str, Callable[[Settings], Client]] = {
    "aiokprod": Aiokprod,
    "aiokafka": Aiokafka,
    "confluent-kafka": Confluent,
}
