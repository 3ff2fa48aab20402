"""Assertions on the records of a `FakeCluster`.

::

    expected = expecting(cluster)
    await service.place_order()
    expected.record("orders", key=b"1")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

    from aiokprod.testing.fake_cluster.cluster import FakeCluster
    from aiokprod.testing.fake_cluster.log import StoredRecord

_SHOWN: Final = 10
"""Maximum number of records in the text of a failed assertion."""


class _Anything:
    """The default of arguments that are not compared."""

    def __repr__(self) -> str:
        return "anything"


ANYTHING: Final[Any] = _Anything()


class Expectations:
    """The records written since this object was created; earlier records are ignored.

    As a context manager, it covers the records that are written in the block. Its methods may be
    called inside or after the block.

    Args:
        committed: ignore records of open and aborted transactions, like a read_committed consumer.
    """

    def __init__(self, cluster: FakeCluster, *, committed: bool = False) -> None:
        self._cluster = cluster
        self._committed = committed
        self._starts: dict[tuple[str, int], int] = {}
        self._note_starts()

    def _note_starts(self) -> None:
        self._starts = {
            (name, partition.index): partition.log.end_offset
            for name, topic in self._cluster.topics.items()
            for partition in topic.partitions
        }

    def __enter__(self) -> Self:
        self._note_starts()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        return None

    def records(self, topic: str) -> list[StoredRecord]:
        """Return the new records of a topic, ordered by partition and offset. The list is empty if
        the topic does not exist."""
        known = self._cluster.topics.get(topic)
        count = 0 if known is None else len(known.partitions)
        return [record for index in range(count) for record in self._in_partition(topic, index)]

    def record(
        self,
        topic: str,
        *,
        value: bytes | None = ANYTHING,
        key: bytes | None = ANYTHING,
        partition: int | None = None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None = None,
        timestamp_ms: int | None = None,
        times: int = 1,
    ) -> StoredRecord:
        """Assert that exactly `times` new records of the topic match. Return the first of them.

        Arguments that are not given are not compared. A key or value of None means null.

        Args:
            headers: headers that the record must have. It may have further headers.

        Raises:
            AssertionError: more or fewer records match. The text lists the new records of the
                topic.
            ValueError: times is less than 1. Use `no_record` instead.
        """
        if times < 1:
            raise ValueError(f"times={times}: use 1 or more, or no_record()")
        wanted = _wanted(headers)
        found = [
            record
            for record in (
                self.records(topic) if partition is None else self._in_partition(topic, partition)
            )
            if _equal(value, record.value)
            and _equal(key, record.key)
            and wanted <= set(record.headers)
            and timestamp_ms in (None, record.timestamp_ms)
        ]
        if len(found) != times:
            given = {"value": value, "key": key, "partition": partition, "headers": headers,
                     "timestamp_ms": timestamp_ms}  # fmt: skip
            compared = [name for name in given if given[name] not in (None, ANYTHING)]
            compared += [name for name in ("value", "key") if given[name] is None]
            wish = ", ".join(f"{name}={given[name]!r}" for name in compared)
            raise AssertionError(
                f"{len(found)} new records of topic {topic!r} instead of {times} have "
                f"{wish or 'any content'}; {self._listed(topic)}"
            )
        return found[0]

    def no_record(self, topic: str) -> None:
        """Assert that no record was written to the topic.

        Raises:
            AssertionError: a record was written. The text lists the records.
        """
        if self.records(topic):
            raise AssertionError(f"expected no new record; {self._listed(topic)}")

    def values(self, topic: str, values: Iterable[bytes | None], *, ordered: bool = False) -> None:
        """Assert that the new records of the topic have exactly these values.

        Args:
            ordered: also require this order. The order is defined only for a topic with one
                partition.

        Raises:
            AssertionError: a value is missing or unexpected. The text lists the new records.
        """
        wanted, found = list(values), [record.value for record in self.records(topic)]
        if not ordered:
            wanted, found = sorted(wanted, key=repr), sorted(found, key=repr)
        if wanted != found:
            raise AssertionError(f"expected the values {wanted!r}; {self._listed(topic)}")

    def _in_partition(self, topic: str, index: int) -> list[StoredRecord]:
        known = self._cluster.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return []
        log = known.partitions[index].log
        start = self._starts.get((topic, index), 0)
        records = log.committed() if self._committed else log.records()
        return [record for record in records if record.offset >= start]

    def _listed(self, topic: str) -> str:
        if topic not in self._cluster.topics:
            names = ", ".join(sorted(self._cluster.topics)) or "none"
            return f"there is no topic {topic!r}; topics: {names}"
        found = self.records(topic)
        if not found:
            return "the topic has no new record"
        lines = [
            f"  key={record.key!r} value={record.value!r} headers={dict(record.headers)!r} "
            f"timestamp_ms={record.timestamp_ms} offset={record.offset}"
            for record in found[:_SHOWN]
        ]
        more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        return "the topic has these new records:\n" + "\n".join(lines + more)


def _equal(wanted: Any, found: bytes | None) -> bool:
    return wanted is ANYTHING or wanted == found


def _wanted(
    headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] | None,
) -> set[tuple[str, bytes | None]]:
    if headers is None:
        return set()
    return set(headers.items() if isinstance(headers, Mapping) else headers)


def expecting(cluster: FakeCluster, *, committed: bool = False) -> Expectations:
    """Return assertions on the records written to `cluster` from now on. See `Expectations`."""
    return Expectations(cluster, committed=committed)
