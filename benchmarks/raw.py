"""Measures plain sockets: the highest rate and the lowest latency that the brokers allow.

This module builds Produce v7 frames (without flexible encoding) from batches of aiokafka, so that
the figures do not depend on the compared clients. The batches have no producer id.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.case import CODECS, Case
from benchmarks.clients.drivers import Limit
from benchmarks.payloads import Payloads

IN_FLIGHT: Final = 5
BATCH_BYTES: Final = 131_072
REQUEST_BYTES: Final = 1_000_000
TIMEOUT: Final = 60.0
_ACKS: Final = {"0": 0, "1": 1, "all": -1}


@dataclass(frozen=True, slots=True)
class Leader:
    """A broker, and the partitions of the topic that it leads."""

    host: str
    port: int
    partitions: tuple[int, ...]


def leaders(servers: str, topic: str) -> list[Leader]:
    """Return the leaders of the partitions, from an independent client."""
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(
        topic, timeout=30
    )
    led: dict[int, list[int]] = {}
    for number, partition in sorted(metadata.topics[topic].partitions.items()):
        led.setdefault(partition.leader, []).append(number)
    return [
        Leader(metadata.brokers[node].host, metadata.brokers[node].port, tuple(numbers))
        for node, numbers in led.items()
    ]


def build_batch(values: Sequence[bytes], codec: str, limit: int) -> tuple[bytes, int]:
    """Return a record batch with as many values as fit into `limit` bytes, but at least one, and
    the number of values."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=CODECS.index(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=limit,
    )
    now = int(time.time() * 1000)
    count = 0
    for value in values:
        if builder.append(count, now, None, value, []) is None:
            break
        count += 1
    return bytes(builder.build()), count


def produce_frame(topic: str, partitions: Sequence[int], records: bytes, acks: int = -1) -> bytes:
    """Return a complete Produce v7 request with the same batch for each partition."""
    name = topic.encode()
    parts = [
        struct.pack(">hhih", 0, 7, 1, -1),  # api, version, correlation id, null client id
        struct.pack(">hhi", -1, acks, 30_000),  # no transaction, acks, timeout ms
        struct.pack(">ih", 1, len(name)) + name,
        struct.pack(">i", len(partitions)),
    ]
    for partition in partitions:
        parts += (struct.pack(">ii", partition, len(records)), records)
    body = b"".join(parts)
    return struct.pack(">i", len(body)) + body


def check_answer(answer: bytes, topic: str) -> None:
    """Raise RuntimeError if any partition of a Produce v7 response has an error."""
    at = 4 + 4 + 2 + len(topic)  # correlation id, topics, name
    (count,) = struct.unpack_from(">i", answer, at)
    for number in range(count):
        # partition, error, base offset, log append time, log start offset
        partition, error = struct.unpack_from(">ih", answer, at + 4 + number * 30)
        if error:
            raise RuntimeError(f"the broker refused partition {partition} with error {error}")


class _Connection:
    """A connection to one broker, with at most five requests in flight."""

    def __init__(self, leader: Leader) -> None:
        self.socket = socket.create_connection((leader.host, leader.port), timeout=TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(1 << 16))

    def answer(self) -> bytes:
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        got = 0
        while got < size:
            part = self.socket.recv_into(self._buffer[got:size])
            if not part:
                raise ConnectionError("the broker closed the connection")
            got += part
        return bytes(self._buffer[:size])


class _Stream(threading.Thread):
    """Sends to one broker from a thread, by blocking calls, which release the GIL."""

    def __init__(self, leader: Leader, topic: str, frame: bytes, each: int, limit: Limit) -> None:
        super().__init__(name=f"blaster-{leader.port}")
        self._connection = _Connection(leader)
        self._topic = topic
        self._frame = frame
        self._each = each
        self._limit = limit
        self.sent = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._blast()
        except BaseException as error:  # `blast` waits for all threads and raises the error
            self.error = error
        finally:
            self._connection.socket.close()

    def _blast(self) -> None:
        waiting: deque[int] = deque()
        connection, limit = self._connection, self._limit
        while True:
            more = self.sent + self._each <= limit.records and not limit.reached
            if not more and not waiting:
                return
            if more and len(waiting) < IN_FLIGHT:
                connection.socket.sendall(self._frame)
                self.sent += self._each
                waiting.append(self._each)
            else:
                check_answer(connection.answer(), self._topic)
                waiting.popleft()


def blast(
    servers: str, topic: str, case: Case, payloads: Payloads, limit_s: float
) -> tuple[int, float]:
    """Send the same prebuilt batches repeatedly, over one connection to each leader. Return the
    number of acknowledged records and the seconds. Each leader gets at least one request."""
    led = leaders(servers, topic)
    most = max(len(leader.partitions) for leader in led)
    values = payloads.chunk(max(1, 2 * BATCH_BYTES // case.size))
    records, count = build_batch(values, case.codec, min(BATCH_BYTES, REQUEST_BYTES // most))
    share = max(case.records // len(led), count * most)
    limit = Limit(share, limit_s)  # the clock is restarted when all threads are ready
    streams = [
        _Stream(
            leader,
            topic,
            produce_frame(topic, leader.partitions, records, _ACKS[case.acks]),
            count * len(leader.partitions),
            limit,
        )
        for leader in led
    ]
    limit.restart()
    for stream in streams:
        stream.start()
    for stream in streams:
        stream.join()
        if stream.error is not None:
            raise stream.error
    return sum(stream.sent for stream in streams), time.perf_counter() - limit.started


def round_trips(
    servers: str, topic: str, case: Case, payloads: Payloads, seconds: float
) -> list[float]:
    """Return the seconds of each round trip of one record to the leader of partition 0."""
    leader = next(leader for leader in leaders(servers, topic) if 0 in leader.partitions)
    records, _ = build_batch(payloads.values[:1], "none", 1 << 20)
    frame = produce_frame(topic, [0], records, _ACKS[case.acks])
    connection = _Connection(leader)
    latencies: list[float] = []
    limit = Limit(case.records, seconds)
    while len(latencies) < case.records and not limit.reached:
        started = time.perf_counter()
        connection.socket.sendall(frame)
        answer = connection.answer()
        latencies.append(time.perf_counter() - started)
        check_answer(answer, topic)
    connection.socket.close()
    return latencies
