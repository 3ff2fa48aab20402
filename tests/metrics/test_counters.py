from __future__ import annotations

from aiokprod._metrics.counters import (
    MAX_NODES,
    MAX_TOPICS,
    NODE_COUNTERS,
    OTHER_NODES,
    OTHER_TOPICS,
    NodeTable,
    TopicTable,
)


def test_topics_beyond_the_limit_are_counted_together() -> None:
    table = TopicTable()
    own = [table.add(f"t{number}") for number in range(MAX_TOPICS)]
    assert len({id(counts) for counts in own}) == MAX_TOPICS
    assert table.add("one more") is table.add("another") is table.counters[OTHER_TOPICS]
    assert len(table.counters) == MAX_TOPICS + 1


def test_records_without_a_topic_are_counted_with_the_others() -> None:
    table = TopicTable()
    assert table.add("") is table.counters[OTHER_TOPICS]


def test_brokers_beyond_the_limit_are_counted_together() -> None:
    table = NodeTable()
    own = [table.of(number) for number in range(MAX_NODES)]
    assert len({id(counts) for counts in own}) == MAX_NODES
    assert table.of(5) is own[5]
    assert table.of(MAX_NODES) is table.of(MAX_NODES + 7) is table.counters[OTHER_NODES]
    assert len(table.counters) == MAX_NODES + 1


def test_addresses_that_are_no_brokers_are_counted_together() -> None:
    """Ids of coordinators are never used again, so separate counters would be useless."""
    table = NodeTable()
    assert table.of(-1) is table.of(-2) is table.of(-1_000_000) is table.of(-1_000_077)
    assert list(table.counters) == [OTHER_NODES]


def test_snapshots_have_plain_values_by_name() -> None:
    topic = TopicTable().add("t")
    topic.records_failed += 3
    assert topic.snapshot()["records_failed"] == 3
    node = NodeTable().of(1)
    node.requests_sent += 1
    node.request_latency_s.add(0.5)
    values = node.snapshot()
    node.requests_sent += 1
    assert values["requests_sent"] == 1
    assert values["request_latency_s"]["max"] == 0.5
    assert set(values) == {*NODE_COUNTERS, "request_latency_s", "throttle_time_s"}
