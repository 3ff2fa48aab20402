"""Assertions on records: which records pass, which fail, and the text of the failure."""

from __future__ import annotations

import pytest

from aiokprod import Producer
from aiokprod.testing import FakeCluster, expecting, run


def test_expectations_see_new_records_only_and_name_what_is_there() -> None:
    async def main() -> None:
        cluster = FakeCluster(1, default_partitions=2, default_replication=1)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        ) as producer:
            await producer.send("t", b"old", partition=0)
            with expecting(cluster) as expected:
                expected.no_record("t")
                await producer.send("t", b"a", key=b"k", partition=0, headers=[("h", b"1")])
                await producer.send("t", b"b", partition=1)
        found = expected.record("t", key=b"k", headers=[("h", b"1")], partition=0)
        assert (found.value, found.offset) == (b"a", 1)
        expected.record("t", key=None, value=b"b", partition=1)
        expected.record("t", times=2)
        expected.values("t", [b"b", b"a"])
        expected.values("t", [b"a", b"b"], ordered=True)
        for call, text in (
            (lambda: expected.record("t", value=b"old"), "0 new records of topic 't' instead of 1"),
            (lambda: expected.record("t"), "2 new records .* have any content"),
            (lambda: expected.record("t", value=None), "value=None"),
            (lambda: expected.record("t", value=b"a", partition=1), "partition=1"),
            (lambda: expected.record("t", value=b"a", partition=9), "partition=9"),
            (lambda: expected.record("t", headers={"h": b"2"}), "headers="),
            (lambda: expected.record("t", key=b"k", timestamp_ms=1), "timestamp_ms=1"),
            (lambda: expected.no_record("t"), "expected no new record"),
            (lambda: expected.values("t", [b"a"]), "expected the values"),
            (lambda: expected.values("t", [b"b", b"a"], ordered=True), "expected the values"),
            (lambda: expected.record("u"), "there is no topic 'u'; topics: t"),
            (lambda: expecting(cluster).record("t"), "the topic has no new record"),
        ):
            with pytest.raises(AssertionError, match=text):
                call()
        with pytest.raises(AssertionError, match=r"key=b'k' value=b'a' headers=\{'h': b'1'\}"):
            expected.record("t", value=b"x")
        with pytest.raises(ValueError, match="times=0"):
            expected.record("t", times=0)

    run(main, debug=False)


def test_committed_expectations_do_not_see_aborted_records() -> None:
    async def main() -> None:
        cluster = FakeCluster(1, default_partitions=1, default_replication=1)
        expected, committed = expecting(cluster), expecting(cluster, committed=True)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            transactional_id="x",
        ) as producer:
            await producer.begin_transaction()
            await producer.send("t", b"a")
            await producer.abort_transaction()
        expected.record("t", value=b"a")
        committed.no_record("t")

    run(main, debug=False)


def test_a_long_list_of_records_is_cut() -> None:
    async def main() -> None:
        cluster = FakeCluster(1, default_partitions=1, default_replication=1)
        expected = expecting(cluster)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        ) as producer:
            await producer.send_many("t", [b"v"] * 15)
        with pytest.raises(AssertionError, match=r"and 5 more$"):
            expected.record("t")

    run(main, debug=False)
