"""When can a topic be written again? Asked of every broker over a fresh socket each time, so that
no client's backoff hides the moment."""

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
    """What a broker says of a topic; None if it does not answer."""
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
    """True if every running broker says that each of at least `partitions` partitions is led by a
    running broker and has at least `in_sync` replicas in sync."""
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
    """The moment (`time.monotonic()`) at which the topic, with at least this number of partitions,
    can be written again."""
    give_up = time.monotonic() + timeout
    while not await asyncio.to_thread(serving, cluster, topic, in_sync, partitions):
        assert time.monotonic() < give_up, f"{topic} cannot be written after {timeout} s"
        await asyncio.sleep(0.03)
    return time.monotonic()
