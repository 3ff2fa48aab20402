"""The lower bound for an awaited record: one Produce request on a plain blocking socket.

The frame (Produce v7, classic encoding) is built byte by byte around a batch from aiokafka, so the
measurement does not depend on the client under test.
"""

from __future__ import annotations

import socket
import struct
import time


def produce_frame(topic: str, partition: int, value: bytes) -> bytes:
    """Return a complete Produce v7 request with acks=all and one record without producer id."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    builder.append(0, int(time.time() * 1000), None, value, [])
    records = bytes(builder.build())
    name = topic.encode()
    body = (
        struct.pack(">hhih", 0, 7, 1, -1)  # api, version, correlation id, null client id
        + struct.pack(">hhi", -1, -1, 30_000)  # no transaction, acks=all, timeout ms
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iii", 1, partition, len(records))
        + records
    )
    return struct.pack(">i", len(body)) + body


def measure(servers: str, topic: str, value: bytes, count: int) -> list[float]:
    """Return the seconds of each of `count` round trips to the leader of partition 0."""
    from confluent_kafka import Consumer

    probe = Consumer({"bootstrap.servers": servers, "group.id": "probe", "log_level": 0})
    metadata = probe.list_topics(topic, timeout=30)
    leader = metadata.brokers[metadata.topics[topic].partitions[0].leader]
    probe.close()
    frame = produce_frame(topic, 0, value)
    latencies = []
    with socket.create_connection((leader.host, leader.port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            started = time.perf_counter()
            connection.sendall(frame)
            answer = read_frame(connection)
            latencies.append(time.perf_counter() - started)
            if error := produce_error(answer, topic):
                raise RuntimeError(f"the broker refused the probe with error {error}")
    return latencies


def read_frame(connection: socket.socket) -> bytes:
    """Read one response, without its length. Raise OSError if the connection is closed before."""
    size = struct.unpack(">i", _read(connection, 4))[0]
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def produce_error(answer: bytes, topic: str) -> int:
    """Return the error code in the response to `produce_frame`."""
    # correlation id, topics, name, partitions, partition, error
    error: int = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0]
    return error
