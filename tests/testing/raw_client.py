"""A minimal client with one connection and one request at a time."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import crc32c

from aiokprod._wire.message import Message
from aiokprod._wire.messages import RESPONSES
from aiokprod._wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from aiokprod.testing.fake_cluster import FakeCluster


class Closed(Exception):
    """The broker closed the connection."""


class RawClient(asyncio.Protocol):
    """Sends encoded requests and returns raw frames."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.buffer = bytearray()
        self.changed = asyncio.Event()
        self.lost = False
        self.correlation_id = 0

    @classmethod
    async def connect(cls, cluster: FakeCluster, broker_id: int = 1) -> RawClient:
        broker = cluster.brokers[broker_id]
        _, client = await cluster.network.connect(cls, broker.host, broker.port)
        assert isinstance(client, RawClient)
        return client

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        self.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.changed.set()

    async def close(self) -> None:
        self.transport.abort()
        await asyncio.sleep(0.1)

    def send(self, request: Message, version: int) -> int:
        self.correlation_id += 1
        head = struct.pack(">hhih", request.api_key, version, self.correlation_id, 3) + b"raw"
        if request.is_flexible(version):
            head += b"\x00"
        body = head + request.encode(version)
        self.transport.write(struct.pack(">i", len(body)) + body)
        return self.correlation_id

    async def frame(self) -> bytes:
        while True:
            if len(self.buffer) >= 4:
                size = int.from_bytes(self.buffer[:4], "big")
                if len(self.buffer) >= 4 + size:
                    frame = bytes(self.buffer[4 : 4 + size])
                    del self.buffer[: 4 + size]
                    return frame
            if self.lost:
                raise Closed(bytes(self.buffer))
            self.changed.clear()
            await self.changed.wait()

    async def receive(self, api_key: int, version: int, correlation_id: int) -> Any:
        frame = await self.frame()
        assert int.from_bytes(frame[:4], "big") == correlation_id
        message = RESPONSES[api_key]
        at = 4 + (message.is_flexible(version) and api_key != 18)
        return message.decode(frame[at:], version)

    async def ask(self, request: Message, version: int) -> Any:
        correlation_id = self.send(request, version)
        return await self.receive(request.api_key, version, correlation_id)


def varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch(
    *values: bytes,
    key: bytes | None = None,
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp: int = 1_700_000_000_000,
    **changes: int,
) -> bytes:
    """Return an uncompressed record batch built by hand. `changes` overwrite header fields."""
    body = b""
    for index, value in enumerate(values):
        record = b"\x00" + varint(0) + varint(index) + nullable(key) + nullable(value) + varint(0)
        body += varint(len(record)) + record
    header = {
        "attributes": 0,
        "last_delta": len(values) - 1,
        "base_timestamp": timestamp,
        "max_timestamp": timestamp,
        "pid": pid,
        "epoch": epoch,
        "sequence": sequence,
        "count": len(values),
        "base_offset": 0,
        "leader_epoch": -1,
        "magic": 2,
        "crc": -1,
        "length": -1,
    } | changes
    tail = struct.pack(
        ">hiqqqhii",
        *(header[name] for name in list(header)[:8]),
    )
    crc = crc32c.crc32c(tail + body) if header["crc"] < 0 else header["crc"]
    length = 9 + len(tail) + len(body) if header["length"] < 0 else header["length"]
    head = struct.pack(
        ">qiibI", header["base_offset"], length, header["leader_epoch"], header["magic"], crc
    )
    return head + tail + body


def produce(
    topic: str | bytes, partition: int, data: bytes, *, acks: int = -1, timeout_ms: int = 30_000
) -> ProduceRequest:
    """Return a request for one partition. A topic given as bytes is a topic id."""
    where: dict[str, Any] = {"topic_id": topic} if isinstance(topic, bytes) else {"name": topic}
    part = PartitionProduceData(index=partition, records=data)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(partition_data=[part], **where)],
    )


def only(response: ProduceResponse) -> PartitionProduceResponse:
    """Return the only partition of a Produce response."""
    (topic,) = response.responses
    (part,) = topic.partition_responses
    return part
