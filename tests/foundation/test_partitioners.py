from __future__ import annotations

import random
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from aiokprod._core.record_fields import murmur2
from aiokprod.cluster import ZERO_TOPIC_ID, ClusterSnapshot, PartitionInfo, TopicInfo
from aiokprod.errors import ConfigError
from aiokprod.partitioners import (
    CallablePartitioner,
    ConsistentRandomPartitioner,
    DefaultPartitioner,
    Partitioner,
    RoundRobinPartitioner,
    StickyLoad,
    adapt,
    choose,
    key_partition,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its import uses importlib.resources
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


def cluster(**leaders: list[int | None]) -> ClusterSnapshot:
    """Return a cluster snapshot. Each argument is a topic, given as the list of the leaders of its
    partitions (None: no leader)."""
    topics = {
        name: TopicInfo(
            name,
            ZERO_TOPIC_ID,
            tuple(PartitionInfo(name, i, leader) for i, leader in enumerate(of)),
        )
        for name, of in leaders.items()
    }
    return ClusterSnapshot(topics=topics)


class Counting(random.Random):
    """Returns 0, 1, 2, … instead of random numbers, as in Java's test."""

    def __init__(self) -> None:
        super().__init__(0)
        self.turn = -1

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self.turn += 1
        return self.turn % start


def ask(partitioner: Partitioner, view: ClusterSnapshot, key: bytes | None = None) -> int:
    return partitioner.partition("t", None, key, None, b"v", view)


# -- the key's hash -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_equals_the_java_vectors(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed


@pytest.mark.parametrize(
    ("key", "partition"),
    [
        (b"", 681),
        (b"a", 524),
        (b"ab", 434),
        (b"abc", 107),
        (b"123456789", 566),
        (b"\x00 ", 742),
    ],
)
def test_key_partition_equals_the_published_vectors_of_1000_partitions(
    key: bytes, partition: int
) -> None:
    assert key_partition(key, 1000) == partition


@pytest.mark.parametrize(
    ("key", "positive_hash"),
    [
        (b"", 0x106E08D9),
        (b"23456", 0x058D780F),
        (b"this is another string with more length to it perhaps", 0x4F7703DA),
        (b"hejsan", 0x5EC19395),
    ],
)
def test_key_partition_equals_librdkafkas_murmur2(key: bytes, positive_hash: int) -> None:
    for partitions in (1, 7, 17, 1000):
        assert key_partition(key, partitions) == positive_hash % partitions


@given(st.binary(max_size=64))
def test_murmur2_equals_other_clients(key: bytes) -> None:
    ours = murmur2(key) & 0xFFFFFFFF
    assert ours == aiokafka_murmur2(key) & 0xFFFFFFFF
    assert ours == kafka_python_murmur2(key) & 0xFFFFFFFF


def test_murmur2_equals_another_client_on_many_random_keys() -> None:
    rng = random.Random(7)
    for _ in range(20_000):
        key = rng.randbytes(rng.randrange(24))
        assert murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key) & 0xFFFFFFFF


# -- choice by load -----------------------------------------------------------------------------


def test_load_weighs_partitions_by_longest_queue_plus_one_minus_own() -> None:
    """Port of Java's `BuiltInPartitionerTest.adaptivePartitionsTest`."""
    sizes = [5, 0, 3, 0, 1]
    weights = [6 - size for size in sizes]
    load, rng = StickyLoad(), Counting()
    chosen = Counter(load.next_partition(range(5), 5, sizes, rng) for _ in range(2 * sum(weights)))
    assert [chosen[i] for i in range(5)] == [2 * weight for weight in weights]


def test_load_names_partitions_by_their_own_number() -> None:
    load, rng = StickyLoad(), Counting()
    chosen = [load.next_partition([3, 7], 9, [1, 0], rng) for _ in range(6)]
    assert chosen == [3, 7, 7, 3, 7, 7]


@pytest.mark.parametrize(
    ("adaptive", "sizes"), [(True, None), (False, [9, 0, 0]), (True, [2, 2, 2])]
)
def test_load_is_uniform_without_queue_sizes(adaptive: bool, sizes: list[int] | None) -> None:
    load, rng = StickyLoad(adaptive), Counting()
    chosen = Counter(load.next_partition([0, 1, 2], 3, sizes, rng) for _ in range(90))
    assert set(chosen.values()) == {30}


def test_load_prefers_available_partitions_and_takes_any_if_there_is_none() -> None:
    """Port of Java's `BuiltInPartitionerTest.unavailablePartitionsTest`."""
    load, rng = StickyLoad(), random.Random(1)
    assert {load.next_partition([0, 2], 3, None, rng) for _ in range(100)} == {0, 2}
    assert {load.next_partition([], 3, None, rng) for _ in range(100)} == {0, 1, 2}
    assert {load.next_partition([], 3, [], rng) for _ in range(100)} == {0, 1, 2}


def test_load_of_a_single_partition_has_no_choice() -> None:
    assert StickyLoad().next_partition([0], 1, [7], random.Random(1)) == 0
    assert StickyLoad().next_partition([4], 9, [7], random.Random(1)) == 4


def chi_square(counts: list[int], expected: list[float]) -> float:
    return sum((count - want) ** 2 / want for count, want in zip(counts, expected, strict=True))


@pytest.mark.parametrize("sizes", [None, [4, 0, 1, 0, 2, 3, 0, 9, 1, 1]])
def test_load_distribution_passes_a_chi_square_test(sizes: list[int] | None) -> None:
    turns, partitions = 200_000, 10
    load, rng = StickyLoad(), random.Random(20_240)
    chosen = Counter(
        load.next_partition(range(partitions), partitions, sizes, rng) for _ in range(turns)
    )
    weights = [1] * partitions if sizes is None else [max(sizes) + 1 - size for size in sizes]
    expected = [turns * weight / sum(weights) for weight in weights]
    # 27.88 is the 99.9 % quantile of the chi-square distribution with 9 degrees of freedom.
    assert chi_square([chosen[i] for i in range(partitions)], expected) < 27.88
    for index, want in enumerate(expected):
        assert abs(chosen[index] - want) < 0.01 * turns


# -- the default --------------------------------------------------------------------------------


def test_default_hashes_keys_over_all_partitions() -> None:
    view = cluster(t=[1, None, None, None, 1])
    partitioner = DefaultPartitioner(rng=random.Random(1))
    for key in (b"", b"a", b"abc", b"21"):
        assert ask(partitioner, view, key) == key_partition(key, 5)


def test_default_can_ignore_keys() -> None:
    view = cluster(t=[1, 1, 1, 1, 1])
    partitioner = DefaultPartitioner(ignore_keys=True, rng=random.Random(1))
    assert len({ask(partitioner, view, bytes([i])) for i in range(50)}) == 1


def test_default_sticks_to_a_partition_for_a_batch_of_bytes() -> None:
    """Port of Java's `BuiltInPartitionerTest.testStickyPartitioning`."""
    view = cluster(t=[1, 1, 1])
    partitioner = DefaultPartitioner(rng=Counting(), batch_size=6)
    assert [ask(partitioner, view) for _ in range(9)] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_default_never_sticks_to_a_partition_that_is_gone() -> None:
    partitioner = DefaultPartitioner(rng=Counting(), batch_size=10**6)
    wide, narrow = cluster(t=[None, None, 1]), cluster(t=[1])
    assert ask(partitioner, wide) == 2
    assert ask(partitioner, narrow) == 0


def test_default_forgets_topics_that_are_not_in_use() -> None:
    partitioner = DefaultPartitioner(rng=random.Random(1))
    partitioner.partition("old", None, None, None, None, cluster(old=[1], t=[1]))
    ask(partitioner, cluster(t=[1]))
    assert list(partitioner._sticky) == ["t"]


def test_default_without_metadata_of_the_topic_says_so() -> None:
    with pytest.raises(ConfigError, match="'t' is not in the cluster's metadata"):
        ask(DefaultPartitioner(), cluster(u=[1]))


# -- round robin --------------------------------------------------------------------------------


def test_round_robin_takes_available_partitions_in_turn_ignoring_keys() -> None:
    view = cluster(t=[1, None, 1, 1])
    partitioner = RoundRobinPartitioner()
    assert [ask(partitioner, view, b"k") for _ in range(7)] == [0, 2, 3, 0, 2, 3, 0]


def test_round_robin_takes_all_partitions_in_turn_if_none_is_available() -> None:
    partitioner = RoundRobinPartitioner()
    assert [ask(partitioner, cluster(t=[None, None])) for _ in range(4)] == [0, 1, 0, 1]


def test_round_robin_counts_per_topic_and_forgets_topics() -> None:
    partitioner = RoundRobinPartitioner()
    both = cluster(t=[1, 1, 1], u=[1, 1, 1])
    assert ask(partitioner, both) == 0
    assert partitioner.partition("u", None, None, None, None, both) == 0
    assert ask(partitioner, both) == 1
    partitioner.partition("v", None, None, None, None, cluster(v=[1], t=[1]))
    assert sorted(partitioner._counters) == ["t", "v"]


# -- CRC-32 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "crc"),
    [
        (b"23456", 0xB1B451D7),
        (b"this is another string with more length to it perhaps", 0xB0150DF7),
        (b"hejsan", 0xD077037E),
    ],
)
@pytest.mark.parametrize("partitions", [1, 7, 17])
def test_consistent_random_equals_librdkafkas_vectors(
    key: bytes, crc: int, partitions: int
) -> None:
    view = cluster(t=[None] * partitions)
    assert ask(ConsistentRandomPartitioner(), view, key) == crc % partitions


@given(st.binary(min_size=1), st.integers(1, 100))
def test_consistent_random_is_the_crc_of_the_key(key: bytes, partitions: int) -> None:
    view = cluster(t=[1] * partitions)
    assert ask(ConsistentRandomPartitioner(), view, key) == zlib.crc32(key) % partitions


@pytest.mark.parametrize("key", [None, b""])
def test_consistent_random_without_key_is_random_over_available_partitions(
    key: bytes | None,
) -> None:
    partitioner = ConsistentRandomPartitioner(random.Random(1))
    assert {ask(partitioner, cluster(t=[1, None, 1]), key) for _ in range(100)} == {0, 2}
    assert {ask(partitioner, cluster(t=[None] * 3), key) for _ in range(100)} == {0, 1, 2}


# -- invalid results and unusual arguments ------------------------------------------------------


def last(*arguments: Any) -> int:
    return -1


def test_adapt_takes_objects_and_callables() -> None:
    default = DefaultPartitioner()
    assert adapt(default) is default
    seen: list[tuple[Any, ...]] = []

    def function(*arguments: Any) -> int:
        seen.append(arguments)
        return 1

    view = cluster(t=[1, 1])
    adapted = adapt(function)
    assert isinstance(adapted, CallablePartitioner)
    assert choose(adapted, "t", "k", b"k", "v", b"v", view) == 1
    assert seen == [("t", "k", b"k", "v", b"v", view)]


@pytest.mark.parametrize("wrong", [None, 7, "murmur2", DefaultPartitioner])
def test_adapt_refuses_everything_else(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="partitioner"):
        adapt(wrong)


@pytest.mark.parametrize("wrong", [-1, 2, 2**40, True, None, "0", 1.0])
def test_choose_refuses_what_is_no_partition_of_the_topic(wrong: Any) -> None:
    function: Callable[..., Any] = lambda *arguments: wrong  # noqa: E731
    with pytest.raises(ConfigError, match=r"lambda.* returned .* for topic 't'.* 0 to 1"):
        choose(adapt(function), "t", None, None, None, None, cluster(t=[1, 1]))


def test_choose_names_the_class_of_a_partitioner_object() -> None:
    class Mine:
        def partition(self, *arguments: Any) -> int:
            return 99

    with pytest.raises(ConfigError, match="partitioner Mine returned 99"):
        choose(Mine(), "t", None, None, None, None, cluster(t=[1]))


def test_choose_names_the_partitioner_that_failed() -> None:
    def broken(*arguments: Any) -> int:
        raise ZeroDivisionError

    with pytest.raises(ConfigError, match=r"broken failed for topic 't' \(ZeroDivision") as caught:
        choose(adapt(broken), "t", None, None, None, None, cluster(t=[1]))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
