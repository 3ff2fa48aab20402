"""OffsetFetch (9), served by the group coordinator. Since version 8, a request may name several
groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aiokprod._errors import Code
from aiokprod._wire.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from aiokprod.testing.fake_cluster.apis.answer import Answer
from aiokprod.testing.fake_cluster.apis.find_coordinator import refusal
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.framing import Request

GROUPS_FROM = 8
"""First version with several groups (KIP-709)."""
GROUP_CODE_FROM = 2
"""First version with an error code for the group (KIP-88)."""

Entry = tuple[str, int, int, str | None, int]
"""(topic, partition, committed offset or -1, metadata, error code)."""


def handle(broker: FakeBroker, request: Request) -> Answer:
    """Return all committed offsets, or those of the partitions that the request names."""
    body = request.body
    groups: list[tuple[str, Any]] = [(body.group_id, body.topics)]
    if request.version >= GROUPS_FROM:
        groups = [(one.group_id, one.topics) for one in body.groups]
    found = []
    for group, topics in groups:
        code = refusal(broker, group)
        entries = [] if code else _entries(broker, group, topics, stable=body.require_stable)
        found.append((group, entries, int(code)))
    return Answer(response(found, request.version))


def _entries(broker: FakeBroker, group: str, topics: Any, *, stable: bool) -> list[Entry]:
    model = broker.cluster.transactions
    committed = model.committed_offsets.get(group, {})
    pending = model.pending_offsets(group)
    wanted: Iterable[tuple[str, int]] = sorted(committed.keys() | (pending if stable else set()))
    if topics is not None:
        wanted = [(topic.name, index) for topic in topics for index in topic.partition_indexes]
    entries: list[Entry] = []
    for where in wanted:
        offset = committed.get(where)
        if stable and where in pending:
            entries.append((*where, -1, None, int(Code.UNSTABLE_OFFSET_COMMIT)))
        elif offset is None:
            entries.append((*where, -1, "", 0))
        else:
            entries.append((*where, int(offset), offset.metadata, 0))
    return entries


def error(broker: FakeBroker, request: Request, code: int) -> OffsetFetchResponse:
    """Return a response with this error code for every group."""
    names = [request.body.group_id]
    if request.version >= GROUPS_FROM:
        names = [one.group_id for one in request.body.groups]
    return response([(name, [], code) for name in names], request.version)


def response(groups: list[tuple[str, list[Entry], int]], version: int) -> OffsetFetchResponse:
    """Return a response with these groups: (name, offsets, error code). Before version 8, it
    contains only the first group."""
    if version >= GROUPS_FROM:
        return OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(group_id=name, topics=_topics(entries), error_code=code)
                for name, entries, code in groups
            ]
        )
    _, entries, code = groups[0]
    flat = [
        OffsetFetchResponseTopic(
            name=name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=partition, committed_offset=offset, metadata=metadata,
                    error_code=own or (code if version < GROUP_CODE_FROM else 0),
                )
                for topic, partition, offset, metadata, own in entries if topic == name
            ],
        )
        for name in _names(entries)
    ]  # fmt: skip
    return OffsetFetchResponse(topics=flat, error_code=code if version >= GROUP_CODE_FROM else 0)


def _topics(entries: list[Entry]) -> list[OffsetFetchResponseTopics]:
    return [
        OffsetFetchResponseTopics(
            name=name,
            partitions=[
                OffsetFetchResponsePartitions(
                    partition_index=partition, committed_offset=offset, metadata=metadata,
                    error_code=code,
                )
                for topic, partition, offset, metadata, code in entries if topic == name
            ],
        )
        for name in _names(entries)
    ]  # fmt: skip


def _names(entries: list[Entry]) -> list[str]:
    return list(dict.fromkeys(entry[0] for entry in entries))
