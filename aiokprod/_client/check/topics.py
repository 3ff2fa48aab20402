"""Checks topics: existence, permissions, leaders, replicas and message size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiokprod._client.cluster_client import describe_configs, describe_topics
from aiokprod._config.profiles import NO_PROFILE, EffectiveSettings, compiled, profiles_of
from aiokprod.errors import Code, KafkaError, UnsupportedVersion, error_code
from aiokprod.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiokprod._client.cluster_client import ClusterClient, TopicDescription

_WRITE: Final = 1 << 4
"""Bit of AclOperation.WRITE."""
_NOT_REPORTED: Final = -(2**31)
_TOPIC: Final = 2
_BROKER: Final = 4
_NOT_VISIBLE: Final = frozenset(
    {
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.CLUSTER_AUTHORIZATION_FAILED,
        Code.UNSUPPORTED_VERSION,
    }
)
"""Error codes that mean that the settings of a topic cannot be read."""
_MIN_ISR: Final = "min.insync.replicas"
_MAX_BYTES: Final = "max.message.bytes"
_AUTO_CREATE: Final = "auto.create.topics.enable"
_BATCH_HEADER: Final = 61


async def check_topics(
    client: ClusterClient, topics: Sequence[str], node_id: int, deadline: float
) -> list[Finding]:
    """Check topics through a connected broker.

    Raises:
        KafkaError: see `ClusterClient.ask`.
    """
    described = await describe_topics(client, topics, deadline)
    existing = [topic.name for topic in described if topic.error_code == Code.NONE]
    wanted = [(_TOPIC, name, (_MIN_ISR, _MAX_BYTES)) for name in existing]
    why = "the credentials may not read the settings of the topic"
    remedy = "grant DESCRIBE_CONFIGS on the topic to have them checked"
    try:
        configs = await describe_configs(client, node_id, wanted, deadline)
    except UnsupportedVersion:
        why = "the broker does not offer DescribeConfigs"
        remedy = "compare them with acks, batch_size and max_request_size yourself"
        configs = {(_TOPIC, name): (int(Code.UNSUPPORTED_VERSION), {}) for name in existing}
    found: list[Finding] = []
    for topic in described:
        if topic.error_code != Code.NONE:
            found.append(await _missing(client, topic, node_id, deadline))
            continue
        code, settings = configs.get((_TOPIC, topic.name), (int(Code.NONE), {}))
        found += _permission(topic)
        found += _leaders(topic)
        found += _replicas(client, topic, settings)
        found += _size(client, topic.name, settings)
        if code in _NOT_VISIBLE:
            found.append(
                Finding(
                    "topic_settings_not_visible", Severity.INFO, f"topic {topic.name}",
                    f"{_MIN_ISR} and {_MAX_BYTES} are not checked: {why}", remedy,
                )
            )  # fmt: skip
    return found


async def _missing(
    client: ClusterClient, topic: TopicDescription, node_id: int, deadline: float
) -> Finding:
    subject, code = f"topic {topic.name}", topic.error_code
    row = error_code(code)
    if code == Code.TOPIC_AUTHORIZATION_FAILED:
        return _not_authorized(topic, "DESCRIBE and WRITE")
    if code != Code.UNKNOWN_TOPIC_OR_PARTITION:
        remedy = "try again later" if row.retriable else "use another topic"
        severity = Severity.WARNING if row.retriable else Severity.ERROR
        return Finding("topic_unavailable", severity, subject, f"{row.name}: {row.text}", remedy)
    create = "create the topic, or correct its name"
    if not client.config.allow_auto_create_topics:
        text = "it does not exist, and allow_auto_create_topics is off"
        return Finding("topic_missing", Severity.ERROR, subject, text, create)
    key = (_BROKER, str(node_id))
    try:
        configs = await describe_configs(client, node_id, [(*key, (_AUTO_CREATE,))], deadline)
        value = configs[key][1].get(_AUTO_CREATE)
    except (KafkaError, KeyError):
        value = None
    if value == "false":
        text = f"it does not exist, and the brokers do not create topics ({_AUTO_CREATE}=false)"
        return Finding("topic_missing", Severity.ERROR, subject, text, create)
    if value == "true":
        text = "it does not exist; the brokers create it with their defaults at the first send"
        return Finding(
            "topic_missing", Severity.WARNING, subject, text,
            "create it yourself to choose partitions and replicas",
        )  # fmt: skip
    text = "it does not exist, and it is unknown whether the brokers create topics"
    return Finding("topic_missing", Severity.ERROR, subject, text, create)


def _not_authorized(topic: TopicDescription, operations: str) -> Finding:
    return Finding(
        "not_authorized", Severity.ERROR, f"topic {topic.name}",
        "the credentials may not write to it",
        f"grant {operations} on the topic to the principal of these credentials (kafka-acls)",
    )  # fmt: skip


def _permission(topic: TopicDescription) -> list[Finding]:
    if topic.operations == _NOT_REPORTED or topic.operations & _WRITE:
        return []
    return [_not_authorized(topic, "WRITE")]


def _listed(partitions: Sequence[int]) -> str:
    more = f" and {len(partitions) - 5} more" if len(partitions) > 5 else ""
    return ", ".join(map(str, partitions[:5])) + more


def _leaders(topic: TopicDescription) -> list[Finding]:
    without = [p.number for p in topic.partitions if p.leader < 0]
    if not without:
        return []
    return [
        Finding(
            "no_leader", Severity.ERROR, f"topic {topic.name}",
            f"{len(without)} of {len(topic.partitions)} partitions have no leader: "
            f"{_listed(without)}",
            "start the brokers that have the replicas of these partitions",
        )
    ]  # fmt: skip


def _replicas(
    client: ClusterClient, topic: TopicDescription, settings: Mapping[str, str | None]
) -> list[Finding]:
    """Compare the replicas with acks and min.insync.replicas."""
    if client.config.required_acks != -1 or not topic.partitions:
        return []
    subject, found = f"topic {topic.name}", []
    factor = min(len(p.replicas) for p in topic.partitions)
    if factor == 1:
        found.append(
            Finding(
                "single_replica", Severity.WARNING, subject,
                "it has one replica: acks='all' waits for a single broker, whose loss loses "
                "acknowledged records",
                "raise the replication factor to 3",
            )
        )  # fmt: skip
    value = settings.get(_MIN_ISR)
    if value is None or not value.isdigit():
        return found
    least = int(value)
    short = [p.number for p in topic.partitions if p.leader >= 0 and len(p.isr) < least]
    if factor < least:
        found.append(
            Finding(
                "too_few_replicas", Severity.ERROR, subject,
                f"{_MIN_ISR}={least} is more than its {factor} replicas: with acks='all' every "
                "record fails with NOT_ENOUGH_REPLICAS",
                f"raise the replication factor, or lower {_MIN_ISR}",
            )
        )  # fmt: skip
    elif short:
        found.append(
            Finding(
                "too_few_in_sync_replicas", Severity.ERROR, subject,
                f"partitions {_listed(short)} have fewer than {_MIN_ISR}={least} in-sync replicas: "
                "with acks='all' their records fail with NOT_ENOUGH_REPLICAS",
                "start the brokers that are down, and wait until their replicas are in sync",
            )
        )  # fmt: skip
    elif factor == least > 1:
        found.append(
            Finding(
                "no_spare_replica", Severity.WARNING, subject,
                f"{_MIN_ISR}={least} is the number of its replicas: while one broker is down, no "
                "record can be written with acks='all'",
                f"raise the replication factor, or lower {_MIN_ISR} to {least - 1}",
            )
        )  # fmt: skip
    return found


def _size(client: ClusterClient, topic: str, settings: Mapping[str, str | None]) -> list[Finding]:
    """Compare max.message.bytes with batch_size and max_request_size."""
    value = settings.get(_MAX_BYTES)
    if value is None or not value.isdigit():
        return []
    limit = int(value)
    config = client.config
    profiles = (p for pattern, p in profiles_of(config) if compiled(pattern).fullmatch(topic))
    batch_size = EffectiveSettings.of(config, next(profiles, NO_PROFILE)).batch_size
    batch = min(batch_size, config.max_request_size)
    if limit < batch:
        text = (
            f"{_MAX_BYTES}={limit} is less than batch_size={batch}: full batches are rejected and "
            "sent again in parts, and larger records fail"
        )
        remedy = f"set batch_size={limit} or less, or raise {_MAX_BYTES} of the topic"
    elif limit < config.max_request_size - _BATCH_HEADER:
        text = (
            f"{_MAX_BYTES}={limit} is less than max_request_size={config.max_request_size}: the "
            "client accepts records between these sizes, and the broker rejects them"
        )
        remedy = f"set max_request_size={limit}, or raise {_MAX_BYTES} of the topic"
    else:
        return []
    return [Finding("message_size", Severity.WARNING, f"topic {topic}", text, remedy)]
