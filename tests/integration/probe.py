"""Determine when a topic can be written again. Each request uses a new socket to a broker, so no
client's backoff delays the result."""

from __future__ import annotations

import asyncio
import socket
import time

from aiokprod._wire.headers import decode_response_header, encode_request
from aiokprod._wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseTopic,
)
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.integration.roundtrip import read_frame

VERSION = 9
ANSWER_WITHIN = 0.5


def ask(address: str, topic: str) -> MetadataResponseTopic | None:
    """Return the broker's metadata of a topic, or None if the broker does not respond."""
    host, port = address.rsplit(":", 1)
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
    )
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWER_WITHIN) as connection:
            connection.sendall(b"".join(encode_request(request, VERSION, 1, "probe")))
            frame = read_frame(connection)
    except OSError:
        return None
    _, body = decode_response_header(frame, MetadataRequest.api_key, VERSION)
    return MetadataResponse.decode(body, VERSION).topics[0]


def serving(cluster: KafkaCluster, topic: str, in_sync: int, partitions: int = 1) -> bool:
    """Return True if all running brokers agree that at least `partitions` partitions have a running
    leader and `in_sync` running in-sync replicas."""
    running = {node for node in cluster.node_ids if cluster.is_running(node)}
    for node in running:
        answer = ask(cluster.address(node), topic)
        if answer is None or answer.error_code or len(answer.partitions) < partitions:
            return False
        for partition in answer.partitions:
            alive = running.intersection(partition.isr_nodes)
            if partition.leader_id not in running or len(alive) < in_sync:
                return False
    return bool(running)


async def until_serving(
    cluster: KafkaCluster,
    topic: str,
    *,
    in_sync: int = 2,
    partitions: int = 1,
    timeout: float = 90.0,
) -> float:
    """Wait until the topic, with at least this number of partitions, can be written. Return the
    time (`time.monotonic()`)."""
    give_up = time.monotonic() + timeout
    while not await asyncio.to_thread(serving, cluster, topic, in_sync, partitions):
        assert time.monotonic() < give_up, f"{topic} cannot be written after {timeout} s"
        await asyncio.sleep(0.03)
    return time.monotonic()
