"""Offsets and group metadata of other packages' consumers, which are recognised by their
attributes."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._consumer_groups import GroupMetadata, Offset, checked_offsets, group_metadata
from aiokprod.errors import ConfigError
from aiokprod.records import TopicPartition


def confluent(generation: int, group: str, member: str, instance: str | None) -> bytes:
    """Encode like `rd_kafka_consumer_group_metadata_write`."""
    number = generation.to_bytes(4, sys.byteorder, signed=True)
    flag = b"\x01" if instance is None else b"\x00" + instance.encode() + b"\0"
    return b"CGMDv2:" + number + group.encode() + b"\0" + member.encode() + b"\0" + flag


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (GroupMetadata("g", 3, "m", "i"), GroupMetadata("g", 3, "m", "i")),
        ("g", GroupMetadata("g", -1, "", None)),
        (confluent(7, "grüppe", "m-1", None), GroupMetadata("grüppe", 7, "m-1", None)),
        (confluent(-1, "g", "", "static"), GroupMetadata("g", -1, "", "static")),
        (
            SimpleNamespace(group_id="g", generation_id=4, member_id=None),
            GroupMetadata("g", 4, "", None),
        ),
        (
            SimpleNamespace(group_id="g", generation_id=4, member_id="m", group_instance_id="i"),
            GroupMetadata("g", 4, "m", "i"),
        ),
        (
            SimpleNamespace(
                _coordinator=SimpleNamespace(group_id="g", generation=5, member_id="m"),
                _group_instance_id="i",
            ),
            GroupMetadata("g", 5, "m", "i"),
        ),
    ],
    ids=["own", "id", "confluent", "confluent static", "kafka-python", "Java-like", "aiokafka"],
)
def test_group_metadata_is_read_from_every_consumer_it_names(
    source: Any, expected: GroupMetadata
) -> None:
    assert group_metadata(source) == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", "the consumer has no group id"),
        (GroupMetadata(""), "the consumer has no group id"),
        (b"", "not group metadata of confluent-kafka"),
        (b"CGMDv1:xxxx", "not group metadata of confluent-kafka"),
        (b"CGMDv2:", "not group metadata of confluent-kafka"),
        (confluent(7, "g", "m", None)[:-1], "not group metadata of confluent-kafka"),
        (b"CGMDv2:\0\0\0\0\xff\0m\0\x01", "not group metadata of confluent-kafka"),
        (None, "not NoneType"),
        (object(), "not object"),
        (SimpleNamespace(_coordinator=SimpleNamespace(generation=None)), "not SimpleNamespace"),
    ],
)
def test_group_metadata_of_anything_else_is_refused(source: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        group_metadata(source)


T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ({}, {}),
        ({("t", 0): 5, T1: Offset(6, 2, "text")}, {T0: Offset(5), T1: Offset(6, 2, "text")}),
        ({T0: SimpleNamespace(offset=7, metadata="text")}, {T0: Offset(7, -1, "text")}),
        (
            [
                SimpleNamespace(topic="t", partition=0, offset=8),
                SimpleNamespace(topic="t", partition=1, offset=-1001),  # nothing consumed yet
            ],
            {T0: Offset(8)},
        ),
    ],
)
def test_offsets_are_read_from_mappings_and_lists(
    offsets: Any, expected: dict[TopicPartition, Offset]
) -> None:
    assert checked_offsets(offsets) == expected


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        (5, "must map"),
        ("text", "must map"),
        (["text"], "entries need topic, partition and offset; got str"),
        ({"t": 5}, "'t' is no"),
        ({5: 5}, "5 is no"),
        ({("t", -1): 5}, "partition"),
        ({("no topic!", 0): 5}, "topic"),
        ({("t", 0): -1}, "offset -1 is not in the range"),
        ({("t", 0): True}, "offset True is not in the range"),
        ({("t", 0): 2**63}, "is not in the range"),
        ({("t", 0): "5"}, "is not in the range"),
        ({("t", 0): None}, "is not in the range"),
    ],
)
def test_offsets_of_any_other_shape_are_refused(offsets: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        checked_offsets(offsets)
