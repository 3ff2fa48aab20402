"""DescribeConfigs (32): the settings of topics, and of the broker, that affect a producer."""

from __future__ import annotations

from typing import Any

from aiokprod._errors import Code
from aiokprod._wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.topology import Topic

TOPIC, BROKER = 2, 4


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Describe each resource. Settings that the model lacks are left out."""
    results = [_described(broker, resource) for resource in request.body.resources]
    return Answer(DescribeConfigsResponse(results=results))


def error(broker: FakeBroker, request: Request, code: int) -> DescribeConfigsResponse:
    """Return a response with this error code for every resource."""
    results = [_result(resource, code, {}) for resource in request.body.resources]
    return DescribeConfigsResponse(results=results)


def _described(broker: FakeBroker, resource: Any) -> DescribeConfigsResult:
    cluster, name = broker.cluster, resource.resource_name
    if resource.resource_type == BROKER:
        if name != str(broker.broker_id):
            return _result(resource, Code.INVALID_REQUEST, {})
        return _result(
            resource, Code.NONE, {"auto.create.topics.enable": str(cluster.auto_create).lower()}
        )
    if name in cluster.denied_topics or name in cluster.hidden_settings:
        return _result(resource, Code.TOPIC_AUTHORIZATION_FAILED, {})
    topic = cluster.topics.get(name)
    if topic is None:
        return _result(resource, Code.UNKNOWN_TOPIC_OR_PARTITION, {})
    return _result(resource, Code.NONE, _settings(topic))


def _settings(topic: Topic) -> dict[str, str]:
    config = topic.config
    return {
        "cleanup.policy": "compact" if config.compacted else "delete",
        "max.message.bytes": str(config.max_message_bytes),
        "message.timestamp.type": "LogAppendTime" if config.log_append_time else "CreateTime",
        "min.insync.replicas": str(config.min_insync_replicas),
    }


def _result(resource: Any, code: int, settings: dict[str, str]) -> DescribeConfigsResult:
    wanted = resource.configuration_keys
    return DescribeConfigsResult(
        error_code=code,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[
            DescribeConfigsResourceResult(name=name, value=value)
            for name, value in settings.items()
            if wanted is None or name in wanted
        ],
    )
