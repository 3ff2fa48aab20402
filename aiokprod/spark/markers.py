"""Markers of exactly-once streams: committed offsets that record which batch of a task is in Kafka.

A task's marker is committed within the task's transaction, so it exists if and only if the task's
rows exist. It is an offset of partition 0 of every topic that the task wrote to. If a topic is
deleted, Kafka deletes its offsets too, but the other topics still have both marker and rows.
This module names, encodes and reads markers. docs/spark.md describes the protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiokprod._client.cluster_client import group_offsets
from aiokprod.errors import Code, KafkaError, error_code
from aiokprod.spark._readback import RowHashes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiokprod._client.cluster_client import ClusterClient, GroupOffset

_OFFSET_WIDTH: Final = {"binary": 4, "string": 4, "large_binary": 8, "large_string": 8}
_INTEGER_WIDTH: Final = {"int16": 2, "int32": 4, "int64": 8}


class MarkerOffset(NamedTuple):
    """Offset and metadata of one partition, for `Producer.send_offsets_to_transaction`."""

    offset: int
    metadata: str


@dataclass(frozen=True, slots=True)
class Marker:
    """The last batch of a task or query: its number, its rows and their hash.

    The marker of a query is called a decision. The driver writes it before it commits the tasks.

    Attributes:
        tasks: in a decision, the number of tasks; in the marker of a task, its attempt.
        version: in a decision, the number of earlier decisions of the same batch. Earlier decisions
            can remain in other topics; the decision with the highest version is valid.
    """

    batch_id: int
    rows: int
    row_hash: int
    tasks: int
    version: int = 0

    def offsets(self, topics: Iterable[str]) -> dict[tuple[str, int], MarkerOffset]:
        """Encode the marker as committed offsets. The offset is the batch number + 1, because 0
        means that there is no marker."""
        text = f"{self.rows} {self.row_hash:016x} {self.tasks} {self.version}"
        return {(topic, 0): MarkerOffset(self.batch_id + 1, text) for topic in sorted(topics)}

    @classmethod
    def of(cls, offset: int, metadata: str | None) -> Marker:
        """Decode the marker in a committed offset.

        Raises:
            KafkaError: the offset was not written by this sink.
        """
        try:
            rows, row_hash, tasks, *version = (metadata or "").split()
            (number,) = map(int, version or ["0"])  # old markers have no version
            return cls(offset - 1, int(rows), int(row_hash, 16), int(tasks), number)
        except ValueError:
            raise KafkaError(
                "the consumer group of a marker has an offset that this sink did not write: use a "
                "transactionalIdPrefix that nothing else uses"
            ) from None


def stream_id(prefix: str, query_id: str) -> str:
    """Return the prefix of all transactional ids of a query."""
    return f"{prefix}.{query_id}"


def task_id(sid: str, partition: int) -> str:
    """Return the transactional id of a task. It is also the consumer group of the task's marker."""
    return f"{sid}.{partition}"


def is_task_id(name: str, sid: str) -> bool:
    """Return True if `name` is `sid`, a dot and a number. A prefix check is not enough, because the
    id of another query may begin with `sid` and a dot."""
    number = name.removeprefix(f"{sid}.")
    return number != name and number.isascii() and number.isdecimal()


def driver_id(sid: str) -> str:
    """Return the transactional id of the driver's decisions. It is also their consumer group."""
    return f"{sid}.driver"


class UnstableMarker(KafkaError):
    """A transaction that changes a marker did not end in time."""


async def read_marker(
    client: ClusterClient, group: str, deadline: float, unstable_for: float | None = None
) -> Marker | None:
    """Return the newest marker of a group, or None if there is none.

    The newest marker has the highest batch number, and the highest version of that batch. The read
    waits until transactions of the group have ended (KIP-447, require_stable). The wait is limited
    to `unstable_for` seconds if given.

    Raises:
        UnstableMarker: a transaction was still open after `unstable_for` seconds.
        KafkaError: the group cannot be read.
    """
    unstable_since: float | None = None

    def check_unstable(code: int) -> None:
        nonlocal unstable_since
        if code == Code.UNSTABLE_OFFSET_COMMIT and unstable_for is not None:
            now = client.loop.time()
            unstable_since = now if unstable_since is None else unstable_since
            if now - unstable_since >= unstable_for:
                raise UnstableMarker(f"marker group {group}: a transaction of it stays open")

    offsets = await _fetch(client, group, deadline, check_unstable, stable=True)
    markers = (Marker.of(one.offset, one.metadata) for one in offsets)
    return max(markers, key=lambda marker: (marker.batch_id, marker.version), default=None)


async def marked_topics(client: ClusterClient, group: str, deadline: float) -> list[str]:
    """Return the sorted names of the topics that hold a marker of this group. Does not wait for
    transactions.

    Raises:
        KafkaError: the group cannot be read.
    """
    offsets = await _fetch(client, group, deadline, lambda code: None, stable=False)
    return sorted({one.topic for one in offsets})


async def _fetch(
    client: ClusterClient,
    group: str,
    deadline: float,
    on_code: Callable[[int], None],
    *,
    stable: bool,
) -> list[GroupOffset]:
    """Return those offsets of a group that are markers."""
    code, offsets = await group_offsets(client, group, deadline, stable=stable, on_code=on_code)
    if code != Code.NONE:
        found = error_code(code)
        raise KafkaError(f"marker group {group}: {found.text}", code=found)
    return [one for one in offsets if one.offset > 0]


def hash_rows(table: Any) -> int:
    """Return the sum of the 64-bit hashes of a RecordBatch's rows, independent of their order.

    The hash covers all columns of `rows.project`; null and empty values differ. It is computed from
    the Arrow buffers, because a replay may run with another session time zone or other versions of
    pyarrow and Python. Timestamps are hashed as microseconds since the epoch.

    Raises:
        TypeError: a column has a type that the sink does not accept.
    """
    hashes = RowHashes(table.num_rows)
    if table.num_rows:
        for name in sorted(table.schema.names):
            _hash_column(hashes, table.column(name))
    return int(hashes.total())


def _hash_column(hashes: RowHashes, column: Any) -> None:
    kind = str(column.type)
    buffers = column.buffers()
    if kind in _OFFSET_WIDTH:
        validity, offsets, data = buffers
        hashes.binary(validity, column.offset, offsets, _OFFSET_WIDTH[kind], data)
    elif kind in _INTEGER_WIDTH or kind.startswith("timestamp[us"):
        validity, data = buffers
        hashes.fixed(validity, column.offset, data, _INTEGER_WIDTH.get(kind, 8))
    elif kind.startswith(("list<", "large_list<")):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        elements = column.values.slice(first, last - first)  # only the values of this slice
        fields = RowHashes(len(elements))
        for name in ("key", "value"):
            _hash_column(fields, elements.field(name))
        width = 8 if kind.startswith("large") else 4
        hashes.lists(buffers[0], column.offset, buffers[1], width, fields, first)
    else:
        raise TypeError(f"a column of type {kind} cannot be hashed")
