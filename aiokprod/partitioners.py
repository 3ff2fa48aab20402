"""Partitioners, which choose the partition of a record.

A partitioner is an object with `partition(...)`, or a callable with the same arguments. It is
called only for records without a partition. It is called again for the same record if the send had
to wait for memory or metadata. It runs in the caller's task, with one snapshot of the cluster, and
must not block.

Source: Java `KafkaProducer.partition`, `Partitioner`, `BuiltInPartitioner` (KIP-794),
`RoundRobinPartitioner`; librdkafka `rd_kafka_msg_partitioner_consistent_random`.
"""

from __future__ import annotations

import random
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

from aiokprod._core import record_fields
from aiokprod.cluster import ClusterSnapshot
from aiokprod.errors import ConfigError, KafkaError

_DEFAULT_BATCH_SIZE: Final = 131_072


@runtime_checkable
class Partitioner(Protocol):
    """Chooses partitions. An implementation may also have `configure(config)` and `close()`."""

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """Return the partition of a record: 0 to count - 1.

        `key` and `value` are the caller's objects, `key_bytes` and `value_bytes` the results of the
        serializers. `cluster` contains the topic's metadata. May be called again for the same
        record, if the send had to wait for memory or metadata.
        """


AnyPartitioner: TypeAlias = Partitioner | Callable[..., int]
"""The types that the argument `partitioner` accepts."""


def key_partition(key_bytes: bytes, partitions: int) -> int:
    """Return the partition of a key: murmur2 modulo **all** partitions, with or without a leader.

    The Java client returns the same partition. The result changes with the number of partitions.
    """
    return record_fields.key_partition(key_bytes, partitions)


class StickyLoad:
    """Chooses the next sticky partition for keyless records by the lengths of the queues.

    Args:
        adaptive: if False, ignore the queues (partitioner_adaptive_partitioning_enable).
    """

    __slots__ = ("adaptive",)

    def __init__(self, adaptive: bool = True) -> None:
        self.adaptive = adaptive

    def next_partition(
        self,
        available: Sequence[int],
        total: int,
        queue_sizes: Sequence[int] | None,
        rng: random.Random,
    ) -> int:
        """Return one of `available`, or any partition if none is available.

        Args:
            available: partitions with a leader, without those whose broker is too slow.
            total: number of partitions of the topic, 1 or more.
            queue_sizes: batches waiting for each of `available`, in the same order; None if not
                every partition of the topic has a queue yet. A partition has the weight
                (longest queue + 1 - its queue), which is never 0.

        Complexity: O(available).

        Source: Java `BuiltInPartitioner.nextPartition`, `updatePartitionLoadStats`.
        """
        if not available:
            return rng.randrange(total)
        if queue_sizes is None or not self.adaptive or total < 2:
            return available[rng.randrange(len(available))]
        longest = max(queue_sizes)
        sums = list(accumulate(longest + 1 - size for size in queue_sizes))
        return available[bisect_right(sums, rng.randrange(sums[-1]))]


class DefaultPartitioner:
    """Java's built-in partitioner. The hash of the key selects the partition. Records without a key
    go to the same partition for about `batch_size` bytes.

    A producer without a custom partitioner does the same in its compiled append path, where it
    switches to another partition when a batch is full. This class is for custom partitioners that
    delegate to it. It cannot see the batches, so it switches after `batch_size` bytes.

    Args:
        adaptive: prefer partitions with short queues (partitioner_adaptive_partitioning_enable).
        availability_timeout_ms: avoid partitions whose broker has accepted no request for this
            long; 0 turns this off.
        ignore_keys: treat records with a key like records without a key.
        rng: random source; seeded in tests.
        batch_size: bytes after which to switch to another partition.
    """

    def __init__(
        self,
        adaptive: bool = True,
        availability_timeout_ms: int = 0,
        ignore_keys: bool = False,
        rng: random.Random | None = None,
        batch_size: int = _DEFAULT_BATCH_SIZE,
    ) -> None:
        self.availability_timeout_ms = availability_timeout_ms
        self.ignore_keys = ignore_keys
        self.load = StickyLoad(adaptive)
        self._rng = rng or random.Random()
        self._batch_size = batch_size
        self._sticky: dict[str, tuple[int, int]] = {}  # topic -> partition, bytes sent to it

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """See `Partitioner`."""
        total = _count(cluster, topic)
        if key_bytes is not None and not self.ignore_keys:
            return key_partition(key_bytes, total)
        partition, produced = self._sticky.get(topic, (-1, 0))
        if not 0 <= partition < total or produced >= self._batch_size:
            _forget_unknown(self._sticky, cluster)
            available = cluster.available_partitions(topic)
            partition = self.load.next_partition(available, total, None, self._rng)
            produced = 0
        produced += len(key_bytes or b"") + len(value_bytes or b"") + 1
        self._sticky[topic] = (partition, produced)
        return partition


class RoundRobinPartitioner:
    """Uses the partitions with a leader in turn, for records with and without keys. If no partition
    has a leader, it uses all partitions in turn."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """See `Partitioner`."""
        counter = self._counters.get(topic)
        if counter is None:
            _forget_unknown(self._counters, cluster)
            counter = 0
        self._counters[topic] = counter + 1
        available = cluster.available_partitions(topic)
        if available:
            return available[counter % len(available)]
        return counter % _count(cluster, topic)


class ConsistentRandomPartitioner:
    """librdkafka's default partitioner: CRC-32 of the key modulo all partitions. Records with an
    empty key or none go to a random partition with a leader.

    For topics to which librdkafka clients with their default partitioner also write.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """See `Partitioner`."""
        total = _count(cluster, topic)
        if key_bytes:
            return zlib.crc32(key_bytes) % total
        available = cluster.available_partitions(topic)
        return (
            available[self._rng.randrange(len(available))]
            if available
            else (self._rng.randrange(total))
        )


class CallablePartitioner:
    """Wraps a plain callable as a `Partitioner`."""

    def __init__(self, function: Callable[..., int]) -> None:
        self.function = function

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """Call the callable with the same arguments."""
        return self.function(topic, key, key_bytes, value, value_bytes, cluster)


def adapt(partitioner: AnyPartitioner) -> Partitioner:
    """Convert a user's partitioner to a `Partitioner`.

    Raises:
        ConfigError: `partitioner` is neither a partitioner object nor a callable.
    """
    if isinstance(partitioner, type):
        raise ConfigError(
            f"partitioner={partitioner.__name__}: pass an instance, {partitioner.__name__}()"
        )
    given: object = partitioner
    if isinstance(given, (str, bytes)):  # both types have a method `partition`
        raise ConfigError(f"partitioner={given!r}: names are not loaded, pass an object")
    if isinstance(partitioner, Partitioner):
        return partitioner
    if callable(partitioner):
        return CallablePartitioner(partitioner)
    raise ConfigError(
        f"partitioner of type {type(partitioner).__name__}: pass an object with partition(...) or "
        "a callable (topic, key, key_bytes, value, value_bytes, cluster) -> int"
    )


def choose(
    partitioner: Partitioner,
    topic: str,
    key: Any,
    key_bytes: bytes | None,
    value: Any,
    value_bytes: bytes | None,
    cluster: ClusterSnapshot,
) -> int:
    """Call a partitioner and check its result.

    Raises:
        ConfigError: the result is not an int from 0 to count - 1, or the partitioner raised an
            exception, which is the cause.
    """
    call = calls_of(partitioner)
    answer: object = call(topic, key, key_bytes, value, value_bytes, cluster)
    return checked(partitioner, answer, topic, cluster)


def calls_of(partitioner: Partitioner) -> Callable[..., Any]:
    """Return the function that `choose` calls. An exception raised by the partitioner becomes the
    cause of a ConfigError, whose text does not quote the exception, because that may contain the
    record."""
    if isinstance(partitioner, CallablePartitioner):
        function: Callable[..., Any] = partitioner.function
    else:
        function = partitioner.partition

    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except KafkaError:
            raise
        except Exception as error:
            raise ConfigError(
                f"partitioner {_name(partitioner)} failed for topic {arguments[0]!r} "
                f"({type(error).__name__}, which is chained); it is called with (topic, key, "
                "key_bytes, value, value_bytes, cluster) and returns a partition number"
            ) from error

    return call


def checked(partitioner: Partitioner, answer: object, topic: str, cluster: ClusterSnapshot) -> int:
    """Check the result of a partitioner and return it.

    Raises:
        ConfigError: the result is not an int from 0 to count - 1.
    """
    total = _count(cluster, topic)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < total:
        return answer
    raise ConfigError(
        f"partitioner {_name(partitioner)} returned {answer!r} for topic {topic!r}, which has "
        f"partitions 0 to {total - 1}"
    )


def _name(partitioner: Partitioner) -> str:
    asked = partitioner.function if isinstance(partitioner, CallablePartitioner) else partitioner
    return str(getattr(asked, "__qualname__", type(asked).__name__))


def _count(cluster: ClusterSnapshot, topic: str) -> int:
    count = cluster.partition_count(topic)
    if count is None:
        raise ConfigError(f"topic {topic!r} is not in the cluster's metadata")
    return count


def _forget_unknown(state: dict[str, Any], cluster: ClusterSnapshot) -> None:
    """Drop the state of topics that are no longer in the metadata."""
    for topic in [topic for topic in state if topic not in cluster.topics]:
        del state[topic]
