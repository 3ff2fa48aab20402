"""Which partition a record goes to.

A partitioner is an object with `partition(...)`, or a callable with the same arguments. It is asked
only when the record names no partition itself. It runs in the caller's task with one snapshot of
the cluster and must not block.

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

from aiokprod._core import append
from aiokprod.cluster import ClusterSnapshot
from aiokprod.errors import ConfigError

_DEFAULT_BATCH_SIZE: Final = 131_072


@runtime_checkable
class Partitioner(Protocol):
    """Chooses partitions. May also have `configure(config)` and `close()`."""

    def partition(
        self,
        topic: str,
        key: Any,
        key_bytes: bytes | None,
        value: Any,
        value_bytes: bytes | None,
        cluster: ClusterSnapshot,
    ) -> int:
        """A partition of the topic, which `cluster` knows: 0 to count - 1.

        `key` and `value` are the caller's objects, `key_bytes` and `value_bytes` what the
        serializers made of them.
        """


AnyPartitioner: TypeAlias = Partitioner | Callable[..., int]
"""What users may pass as partitioner."""


def key_partition(key_bytes: bytes, partitions: int) -> int:
    """The partition of a key: murmur2 modulo **all** partitions, also those without a leader.

    The same for every client that follows Java. Changing the number of partitions moves keys.
    """
    return append.key_partition(key_bytes, partitions)


class StickyLoad:
    """The next partition for keyless records, by the length of the partitions' queues.

    Args:
        adaptive: False ignores the queues (partitioner_adaptive_partitioning_enable).
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
        """One of `available`; one of all if none is available.

        Args:
            available: partitions with a leader, without those left out as too slow.
            total: number of partitions of the topic, 1 or more.
            queue_sizes: batches waiting for each of `available`, in the same order; None if not
                every partition of the topic has a queue yet. A partition is chosen with a weight
                of (longest queue + 1 - own queue); not at all is never.

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
    """Java's built-in logic: the key's hash, or without a key one partition for about a batch's
    worth of bytes, then another.

    A producer without a custom partitioner does the same inside its compiled append, where it
    also knows when a batch is full. This class is for partitioners that delegate to it; asked
    record by record, it switches after `batch_size` bytes.

    Args:
        adaptive: prefer partitions with short queues (partitioner_adaptive_partitioning_enable).
        availability_timeout_ms: avoid partitions whose broker could not be sent to for so long;
            0 is off.
        ignore_keys: treat keyed records like keyless ones.
        rng: seeded in tests.
        batch_size: bytes between two switches.
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
        self._sticky: dict[str, tuple[int, int]] = {}  # topic -> partition, bytes so far

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
    """One record after the other to the next partition that has a leader, keys or not; to the next
    of all if none has one."""

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
    """librdkafka's default: CRC-32 of the key modulo all partitions; without a key, or with an
    empty one, a random partition that has a leader.

    For topics that are also written by librdkafka clients with their default partitioner.
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
    """A plain callable as a partitioner."""

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
        """What the callable returns for the same arguments."""
        return self.function(topic, key, key_bytes, value, value_bytes, cluster)


def adapt(partitioner: AnyPartitioner) -> Partitioner:
    """A user's partitioner in the one form the producer calls.

    Raises:
        ConfigError: it is neither a partitioner object nor a callable.
    """
    if isinstance(partitioner, type):
        raise ConfigError(
            f"partitioner={partitioner.__name__}: pass an instance, {partitioner.__name__}()"
        )
    given: object = partitioner
    if isinstance(given, (str, bytes)):  # has a method partition, too
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
    """Ask a partitioner and check its answer. What it raises goes to the caller.

    Raises:
        ConfigError: the answer is not an int of 0 to count - 1.
    """
    answer: object = partitioner.partition(topic, key, key_bytes, value, value_bytes, cluster)
    total = _count(cluster, topic)
    if isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < total:
        return answer
    asked = partitioner.function if isinstance(partitioner, CallablePartitioner) else partitioner
    name = getattr(asked, "__qualname__", type(asked).__name__)
    raise ConfigError(
        f"partitioner {name} returned {answer!r} for topic {topic!r}, which has "
        f"partitions 0 to {total - 1}"
    )


def _count(cluster: ClusterSnapshot, topic: str) -> int:
    count = cluster.partition_count(topic)
    if count is None:
        raise ConfigError(f"topic {topic!r} is not in the cluster's metadata")
    return count


def _forget_unknown(state: dict[str, Any], cluster: ClusterSnapshot) -> None:
    """Drop what is remembered of topics that are no longer in use."""
    for topic in [topic for topic in state if topic not in cluster.topics]:
        del state[topic]
