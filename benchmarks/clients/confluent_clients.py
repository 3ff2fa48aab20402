"""confluent-kafka as a client of the benchmarks: its Producer and its AIOProducer."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable
from typing import Any, Final

from benchmarks.case import Case
from benchmarks.clients.base import AsyncClient, share_of
from benchmarks.clients.drivers import Call, Limit
from benchmarks.payloads import CHUNK, Payloads, serializer

FLUSH_TIMEOUT: Final = 120


def settings(case: Case, servers: str) -> dict[str, Any]:
    """Return librdkafka's settings for a case: its defaults (10 000 records or 1 MB per batch,
    linger 5 ms), with a larger queue."""
    return {
        "bootstrap.servers": servers,
        "acks": case.acks,
        "enable.idempotence": case.idempotent,
        "compression.type": case.codec,
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,  # with the default of 100 000, the loop waits
        "log_level": 0,
    }


class Confluent:
    """Calls `produce` with a delivery callback for each record. librdkafka's threads send them."""

    on_loop = False
    callbacks = True

    def __init__(self, case: Case, payloads: Payloads) -> None:
        self.case = case
        self.payloads = payloads
        self.latencies: array[float] = array("d")
        self._delivered = 0

    def _settled(self, error: Any, message: Any) -> None:
        if error is not None:
            raise RuntimeError(f"not delivered: {error}")
        self._delivered += 1

    async def start(self, servers: str, topic: str) -> None:
        from confluent_kafka import Producer, SerializingProducer

        self.topic = topic
        self.producer: Any
        options = settings(self.case, servers)
        if self.case.partitioner != "default":
            options["partitioner"] = self.case.partitioner.replace("-", "_")
        serialize = serializer(self.case)
        if serialize is None:
            self.producer = Producer(options)
        else:
            options["value.serializer"] = lambda data, _context: serialize(data)
            self.producer = SerializingProducer(options)

    async def stop(self) -> None:
        """Do nothing, because the client has no `close`."""

    def sent(self) -> dict[str, int]:
        return {}

    async def run(self, limit: Limit) -> int:
        self._delivered = 0
        sent = self._bulk(limit) if self.case.scenario == "bulk" else self._fire(limit)
        left = self.producer.flush(FLUSH_TIMEOUT)
        if left or (self.callbacks and self._delivered != sent):
            raise RuntimeError(f"{self._delivered} of {sent} records delivered, {left} are queued")
        return sent

    def _fire(self, limit: Limit) -> int:
        produce, poll, topic = self.producer.produce, self.producer.poll, self.topic
        extra: dict[str, Any] = {"on_delivery": self._settled} if self.callbacks else {}
        if self.payloads.headers is not None:
            extra["headers"] = self.payloads.headers
        values = self.payloads.chunk()
        keys = self.payloads.endless_keys()
        sent = 0
        while sent < limit.records and not limit.reached:
            size = min(CHUNK, limit.records - sent)
            for value, key in zip(values[:size], keys, strict=False):
                while True:
                    try:
                        produce(topic, value=value, key=key, **extra)
                        break
                    except BufferError:
                        poll(0.01)
            poll(0)
            sent += size
        return sent

    def _bulk(self, limit: Limit) -> int:
        size = share_of(self.case)
        values = self.payloads.chunk(size)
        sent = 0
        while sent < limit.records and not limit.reached:
            messages = [{"value": value} for value in values[: limit.records - sent]]
            while messages:
                taken = self.producer.produce_batch(self.topic, messages, on_delivery=self._settled)
                sent += taken
                self.producer.poll(0)
                if taken < len(messages):  # the queue is full; rejected messages have "_error"
                    messages = [{"value": m["value"]} for m in messages if "_error" in m]
                    self.producer.poll(0.01)
                else:
                    messages = []
        return sent


class ConfluentSilent(Confluent):
    """Calls `produce` without callbacks, so that the outcomes of records are not reported."""

    callbacks = False


class ConfluentAio(AsyncClient):
    """AIOProducer. It passes batches of 1 000 records to librdkafka, after at most a second."""

    batching: dict[str, Any] = {}  # noqa: RUF012 - read only

    async def start(self, servers: str, topic: str) -> None:
        from confluent_kafka.aio import AIOProducer

        self.topic = topic
        self.producer: Any = AIOProducer(settings(self.case, servers), **self.batching)

    async def stop(self) -> None:
        await self.producer.close()

    def submit_call(self) -> Call:
        call: Call = self.producer.produce
        return call

    def send_call(self) -> Call:
        produce = self.producer.produce

        async def send(topic: str, value: bytes, key: bytes | None = None) -> object:
            acknowledged: Awaitable[object] = await produce(topic, value, key)
            return await acknowledged

        return send

    async def flush(self) -> None:
        await self.producer.flush()


class ConfluentAioTuned(ConfluentAio):
    """AIOProducer with batches of 64 records, which 64 tasks fill immediately."""

    batching = {"batch_size": 64, "buffer_timeout": 0.01}  # noqa: RUF012 - read only
