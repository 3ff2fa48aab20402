"""The arguments of `send_offsets_to_transaction`: offsets and consumer group metadata.

Objects of other packages are recognised by their attributes; no such package is imported.
Source: KIP-447; librdkafka `rd_kafka_consumer_group_metadata_write`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from aiokprod.errors import ConfigError
from aiokprod.records import TopicPartition, validate_partition, validate_topic

_CONFLUENT_MAGIC: Final = b"CGMDv2:"
MAX_OFFSET: Final = 2**63 - 1


class Offset(NamedTuple):
    """Offset of the next record to read (≥ 0), leader epoch (-1 if unknown) and commit metadata."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """Metadata of a consumer in its group.

    With a generation and a member id, the broker rejects offsets of a consumer whose partitions
    were assigned to another consumer (KIP-447). The group id alone does not give this protection.

    Attributes:
        generation_id: generation of the group; -1 if unknown.
        group_instance_id: group.instance.id of a static member; None for other members.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def group_metadata(source: Any) -> GroupMetadata:
    """Convert the group metadata that a caller passes.

    Args:
        source: a `GroupMetadata`; the result of confluent-kafka's
            ``consumer.consumer_group_metadata()``; a started `AIOKafkaConsumer`; an object with
            group_id, generation_id, member_id and group_instance_id, like that of kafka-python; or
            a group id.

    Raises:
        ConfigError: `source` is none of these.
    """
    if isinstance(source, GroupMetadata):
        found = source
    elif isinstance(source, str):
        found = GroupMetadata(source)
    elif isinstance(source, bytes):
        found = _of_confluent(source)
    elif hasattr(source, "group_id") and hasattr(source, "generation_id"):
        found = GroupMetadata(
            source.group_id,
            source.generation_id,
            source.member_id or "",
            getattr(source, "group_instance_id", None),
        )
    else:
        found = _of_aiokafka(source)
    if not found.group_id:
        raise ConfigError("send_offsets_to_transaction: the consumer has no group id")
    return found


def _of_confluent(data: bytes) -> GroupMetadata:
    """Decode librdkafka's format: magic, generation in native byte order, group id, member id, a
    flag, and the instance id unless the flag is set. Strings end in a zero byte."""
    try:
        if not data.startswith(_CONFLUENT_MAGIC):
            raise ValueError
        at = len(_CONFLUENT_MAGIC) + 4
        generation = int.from_bytes(data[at - 4 : at], sys.byteorder, signed=True)
        group, at = _text(data, at)
        member, at = _text(data, at)
        no_instance = data[at]
        instance = None if no_instance else _text(data, at + 1)[0]
    except (ValueError, IndexError):
        raise ConfigError(
            "send_offsets_to_transaction: these bytes are not group metadata of confluent-kafka; "
            "pass consumer.consumer_group_metadata()"
        ) from None
    return GroupMetadata(group, generation, member, instance)


def _text(data: bytes, at: int) -> tuple[str, int]:
    end = data.index(0, at)
    return data[at:end].decode(), end + 1


def _of_aiokafka(consumer: Any) -> GroupMetadata:
    coordinator = getattr(consumer, "_coordinator", None)
    generation = getattr(coordinator, "generation", None)
    if not isinstance(generation, int):
        raise ConfigError(
            "send_offsets_to_transaction: group_metadata must be a GroupMetadata, a group id, a "
            "started AIOKafkaConsumer with a group, or confluent-kafka's "
            f"consumer.consumer_group_metadata(); not {type(consumer).__name__}"
        )
    return GroupMetadata(
        coordinator.group_id,  # type: ignore[union-attr]
        generation,
        coordinator.member_id or "",  # type: ignore[union-attr]
        getattr(consumer, "_group_instance_id", None),
    )


def checked_offsets(offsets: Any) -> dict[TopicPartition, Offset]:
    """Validate the offsets that a caller passes, and convert them to `Offset` by partition.

    Args:
        offsets: a mapping from (topic, partition) to an int or an object with `offset` (and
            optionally `metadata` and `leader_epoch`), like that of aiokafka; or an iterable of
            objects with `topic`, `partition` and `offset`, like the result of confluent-kafka's
            ``consumer.position(...)``. Negative offsets in it (nothing read yet) are ignored.

    Raises:
        ConfigError: `offsets` has another type, or an offset is out of range.
    """
    found: dict[TopicPartition, Offset] = {}
    if isinstance(offsets, Mapping):
        for key, value in offsets.items():
            found[_partition(key)] = _checked(value)
    elif isinstance(offsets, Iterable) and not isinstance(offsets, (str, bytes)):
        for entry in offsets:
            if not hasattr(entry, "offset"):
                raise ConfigError(
                    "send_offsets_to_transaction: entries need topic, partition and offset; got "
                    f"{type(entry).__name__}"
                )
            if entry.offset >= 0:
                found[_partition(entry)] = _checked(entry)
    else:
        raise ConfigError(
            "send_offsets_to_transaction: offsets must map (topic, partition) to offsets, not "
            f"{type(offsets).__name__}"
        )
    return found


def _partition(key: Any) -> TopicPartition:
    if hasattr(key, "topic") and hasattr(key, "partition"):
        topic, partition = key.topic, key.partition
    else:
        try:
            topic, partition = key
        except (TypeError, ValueError):
            raise ConfigError(
                f"send_offsets_to_transaction: {key!r} is not (topic, partition)"
            ) from None
    return TopicPartition(validate_topic(topic), validate_partition(partition))


def _checked(value: Any) -> Offset:
    offset = getattr(value, "offset", value)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= MAX_OFFSET:
        raise ConfigError(
            f"send_offsets_to_transaction: offset {offset!r} is not in the range 0 to 2**63 - 1; "
            "give the offset of the next record to read"
        )
    epoch = getattr(value, "leader_epoch", None)
    return Offset(offset, -1 if epoch is None else epoch, getattr(value, "metadata", None) or "")
