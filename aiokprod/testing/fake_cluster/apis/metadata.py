"""Metadata (3): brokers, topics, automatic topic creation, and topic ids since version 10."""

from __future__ import annotations

import re
from typing import Any

from aiokprod._errors import Code
from aiokprod._wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.topology import Partition, Topic

ZERO_ID = bytes(16)
BY_ID_FROM = 12
PERMISSIONS_FROM = 8
WRITE, DESCRIBE = 1 << 4, 1 << 8
"""Bits of AclOperation."""
_NOT_REPORTED = -(2**31)
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Describe the cluster and the requested topics, or all topics if the list is null."""
    cluster = broker.cluster
    wanted = request.body.topics
    if wanted is None or (request.version == 0 and not wanted):
        topics = [_topic(broker, topic) for topic in cluster.topics.values()]
    else:
        topics = [_asked(broker, item, request) for item in wanted]
    return Answer(_around(broker, topics))


def error(broker: FakeBroker, request: Request, code: int) -> MetadataResponse:
    """Return a response with this error code, at top level (since version 13) or for each requested
    topic."""
    wanted = request.body.topics or ()
    topics = [
        MetadataResponseTopic(error_code=code, name=item.name or "", topic_id=item.topic_id)
        for item in wanted
    ]
    message = _around(broker, topics)
    if request.version < 13:
        return message
    return MetadataResponse(
        brokers=message.brokers,
        cluster_id=message.cluster_id,
        controller_id=message.controller_id,
        topics=topics,
        error_code=code,
    )


def _around(broker: FakeBroker, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    cluster = broker.cluster
    brokers = [
        MetadataResponseBroker(
            node_id=other.broker_id, host=other.host, port=other.port, rack=other.rack
        )
        for other in cluster.registered()
        if other.is_listed
    ]
    return MetadataResponse(
        brokers=brokers,
        cluster_id=cluster.cluster_id,
        controller_id=cluster.controller_id,
        topics=topics,
    )


def _asked(broker: FakeBroker, item: Any, request: Request) -> MetadataResponseTopic:
    cluster = broker.cluster
    name = item.name
    if request.version >= BY_ID_FROM and name is None:
        found = cluster.topic_by_id(item.topic_id)
        if found is None:
            return MetadataResponseTopic(
                error_code=Code.UNKNOWN_TOPIC_ID, name=None, topic_id=item.topic_id
            )
        name = found.name
    if name in cluster.denied_topics:
        return MetadataResponseTopic(error_code=Code.TOPIC_AUTHORIZATION_FAILED, name=name)
    if not _LEGAL.fullmatch(name) or name in (".", ".."):
        return MetadataResponseTopic(error_code=Code.INVALID_TOPIC_EXCEPTION, name=name)
    topic = cluster.topics.get(name)
    if topic is not None:
        operations = _NOT_REPORTED
        if request.version >= PERMISSIONS_FROM and request.body.include_topic_authorized_operations:
            operations = DESCRIBE if name in cluster.read_only_topics else DESCRIBE | WRITE
        return _topic(broker, topic, operations)
    if request.body.allow_auto_topic_creation and cluster.auto_create:
        cluster.create_soon(name)
    return MetadataResponseTopic(error_code=Code.UNKNOWN_TOPIC_OR_PARTITION, name=name)


def _topic(
    broker: FakeBroker, topic: Topic, operations: int = _NOT_REPORTED
) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        topic_authorized_operations=operations,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[_partition(broker, topic, each) for each in topic.partitions],
    )


def _partition(broker: FakeBroker, topic: Topic, partition: Partition) -> MetadataResponsePartition:
    registered = {other.broker_id for other in broker.cluster.registered()}
    leader, epoch = broker.view_of(topic.topic_id, partition)
    missing = leader is None
    return MetadataResponsePartition(
        error_code=Code.LEADER_NOT_AVAILABLE if missing else Code.NONE,
        partition_index=partition.index,
        leader_id=-1 if leader is None else leader,
        leader_epoch=epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[node for node in partition.replicas if node not in registered],
    )
