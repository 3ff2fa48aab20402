from __future__ import annotations

import asyncio
import dataclasses
import gzip
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from aiokprod._wire.messages.api_versions import ApiVersionsRequest
from aiokprod._wire.messages.describe_transactions import DescribeTransactionsRequest
from aiokprod._wire.messages.find_coordinator import FindCoordinatorRequest
from aiokprod._wire.messages.init_producer_id import InitProducerIdRequest
from aiokprod._wire.messages.list_transactions import ListTransactionsRequest
from aiokprod._wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from aiokprod._wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from aiokprod._wire.messages.produce import PartitionProduceResponse
from aiokprod._wire.messages.sasl_authenticate import SaslAuthenticateRequest
from aiokprod._wire.messages.sasl_handshake import SaslHandshakeRequest
from aiokprod._wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from aiokprod.errors import Code, DialError
from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster, TopicConfig
from aiokprod.testing.fake_cluster.batches import BatchRefused, read_batch
from aiokprod.testing.fake_cluster.tcp import serve_tcp
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.virtual import run
from tests.testing.raw_client import Closed, RawClient, batch, only, produce


def scenario(function: Callable[[FakeCluster], Coroutine[Any, Any, Any]]) -> Callable[[], None]:
    """Run an async test in virtual time with a cluster of three brokers and a topic "t" of one
    partition."""

    def test() -> None:
        async def main() -> None:
            cluster = FakeCluster()
            cluster.create_topic("t", 1)
            await function(cluster)

        run(main)

    test.__name__ = function.__name__
    return test


async def send(
    client: RawClient, data: bytes, version: int = 9, **options: int
) -> PartitionProduceResponse:
    return only(await client.ask(produce("t", 0, data, **options), version))


# -- batches ------------------------------------------------------------------------------------


def test_read_batch_returns_records() -> None:
    found = read_batch(batch(b"a", b"b", key=b"k", pid=7, epoch=1, sequence=3), produce_version=9)
    assert [record.value for record in found.records] == [b"a", b"b"]
    assert found.records[0].key == b"k"
    assert (found.producer_id, found.epoch, found.base_sequence, found.last_sequence) == (
        7,
        1,
        3,
        4,
    )
    assert found.oddities == ()


def test_last_sequence_wraps_to_zero() -> None:
    found = read_batch(batch(b"a", b"b", pid=7, epoch=1, sequence=2**31 - 1), produce_version=9)
    assert found.last_sequence == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"crc": 1}, Code.CORRUPT_MESSAGE),
        ({"magic": 1}, Code.INVALID_RECORD),
        ({"length": 5000}, Code.CORRUPT_MESSAGE),
        ({"length": 50}, Code.INVALID_RECORD),
        ({"last_delta": 5}, Code.INVALID_RECORD),
        ({"count": 0}, Code.INVALID_RECORD),
        ({"count": 1, "last_delta": 0}, Code.INVALID_RECORD),
        ({"count": 3, "last_delta": 2}, Code.CORRUPT_MESSAGE),
        ({"attributes": 0x20}, Code.INVALID_RECORD),
        ({"attributes": 0x10}, Code.INVALID_RECORD),
        ({"attributes": 6}, Code.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 1}, Code.CORRUPT_MESSAGE),
        ({"pid": 5}, Code.INVALID_RECORD),
    ],
)
def test_read_batch_refuses_bad_layout(changes: dict[str, Any], code: Code) -> None:
    with pytest.raises(BatchRefused) as info:
        read_batch(batch(b"a", b"b", **changes), produce_version=9)
    assert info.value.code == code


def test_read_batch_refuses_every_truncation() -> None:
    data = batch(b"value", key=b"key", pid=1, epoch=0, sequence=0)
    for size in range(len(data)):
        with pytest.raises(BatchRefused):
            read_batch(data[:size], produce_version=9)


def test_read_batch_refuses_zstd_before_v7() -> None:
    with pytest.raises(BatchRefused) as info:
        read_batch(batch(b"a", attributes=4), produce_version=6)
    assert info.value.code == Code.UNSUPPORTED_COMPRESSION_TYPE


def test_read_batch_names_oddities() -> None:
    found = read_batch(batch(b"a", base_offset=9, max_timestamp=1), produce_version=9)
    assert len(found.oddities) == 2


def test_read_batch_decompresses_gzip() -> None:
    import crc32c

    plain = batch(b"a", b"b")
    data = bytearray(plain[:61] + gzip.compress(plain[61:]))
    data[8:12] = (len(data) - 12).to_bytes(4, "big")
    data[22] |= 1
    data[17:21] = crc32c.crc32c(bytes(data[21:])).to_bytes(4, "big")
    assert [r.value for r in read_batch(bytes(data), produce_version=9).records] == [b"a", b"b"]


# -- produce ------------------------------------------------------------------------------------


@scenario
async def test_produce_appends_and_returns_offsets(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    assert (await send(client, batch(b"a", b"b"))).base_offset == 0
    assert (await send(client, batch(b"c"))).base_offset == 2
    assert cluster.values("t", 0) == [b"a", b"b", b"c"]
    assert [record.offset for record in cluster.log("t", 0)] == [0, 1, 2]
    assert cluster.count(0) == 2
    assert cluster.violations == []
    await client.close()


@pytest.mark.matrix
@pytest.mark.parametrize("version", range(3, 14))
def test_produce_every_version(version: int) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        topic = cluster.create_topic("t", 1)
        client = await RawClient.connect(cluster)
        name = topic.topic_id if version >= 13 else "t"
        answer = only(await client.ask(produce(name, 0, batch(b"a")), version))
        assert (answer.error_code, answer.base_offset) == (0, 0)
        await client.close()

    run(main)


@scenario
async def test_sequence_window_recognises_five_batches_and_no_more(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    for sequence in range(6):
        answer = await send(client, batch(b"%d" % sequence, pid=1, epoch=0, sequence=sequence))
        assert answer.base_offset == sequence
    for sequence in range(1, 6):
        answer = await send(client, batch(b"again", pid=1, epoch=0, sequence=sequence))
        assert (answer.error_code, answer.base_offset) == (0, sequence)
    answer = await send(client, batch(b"0", pid=1, epoch=0, sequence=0))
    assert answer.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert len(cluster.log("t", 0)) == 6
    assert cluster.duplicates == 5
    await client.close()


@scenario
async def test_sequence_gap_is_refused(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    await send(client, batch(b"a", b"b", pid=1, epoch=0, sequence=0))
    answer = await send(client, batch(b"x", pid=1, epoch=0, sequence=3))
    assert answer.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert [refusal.code for refusal in cluster.refusals] == [Code.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert (await send(client, batch(b"c", pid=1, epoch=0, sequence=2))).error_code == 0
    await client.close()


@scenario
async def test_sequence_wraps_from_maximum_to_zero(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.forget_producers("t", 0)
    last = 2**31 - 1
    assert (await send(client, batch(b"a", pid=1, epoch=0, sequence=last))).error_code == 0
    assert (await send(client, batch(b"b", pid=1, epoch=0, sequence=0))).error_code == 0
    await client.close()


@scenario
async def test_epoch_bump_restarts_at_zero_and_fences_the_old(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    await send(client, batch(b"a", pid=1, epoch=0, sequence=0))
    late = await send(client, batch(b"b", pid=1, epoch=1, sequence=1))
    assert late.error_code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await send(client, batch(b"b", pid=1, epoch=1, sequence=0))).error_code == 0
    old = await send(client, batch(b"c", pid=1, epoch=0, sequence=1))
    assert old.error_code == Code.INVALID_PRODUCER_EPOCH
    await client.close()


def test_unknown_producer_by_broker_version() -> None:
    async def main(profile: str) -> int:
        cluster = FakeCluster(version_profile=profile)
        cluster.create_topic("t", 1)
        client = await RawClient.connect(cluster)
        await send(client, batch(b"a", pid=1, epoch=0, sequence=0), 5)
        cluster.forget_producers("t", 0)
        answer = await send(client, batch(b"b", pid=1, epoch=0, sequence=1), 5)
        await client.close()
        return answer.error_code

    assert run(lambda: main("2.1")) == Code.UNKNOWN_PRODUCER_ID
    assert run(lambda: main("4.3")) == 0


@scenario
async def test_producer_state_expires_by_the_timestamp_of_its_last_batch(
    cluster: FakeCluster,
) -> None:
    client = await RawClient.connect(cluster)
    ledger = cluster.topics["t"].partitions[0].log.ledger
    present = cluster.unix_ms()
    for sequence, timestamp in enumerate((present - 10_000, present)):
        await send(client, batch(b"a", pid=1, epoch=0, sequence=sequence, timestamp=timestamp))
    await send(client, batch(b"b", pid=2, epoch=0, sequence=0, timestamp=present - 10_000))
    assert cluster.expire_producers(20_000) == []
    partitions = cluster.expire_producers(10_000)
    assert [(partition.topic, partition.index) for partition in partitions] == [("t", 0)]
    assert ledger.knows(1)
    assert not ledger.knows(2)
    await send(client, batch(b"c", pid=2, epoch=0, sequence=1))
    assert cluster.violations == []
    assert cluster.values("t", 0) == [b"a", b"a", b"b", b"c"]
    await client.close()


async def authenticate(client: RawClient, password: bytes, version: int = 1) -> Any:
    await client.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    return await client.ask(SaslAuthenticateRequest(auth_bytes=b"\0me\0" + password), version)


@scenario
async def test_sasl_session_expires_unless_it_is_renewed(cluster: FakeCluster) -> None:
    listener = cluster.require_sasl({"me": "right"}, lifetime_s=10.0)
    client = await RawClient.connect(cluster)
    assert (await authenticate(client, b"right")).session_lifetime_ms == 10_000
    await asyncio.sleep(9.0)
    await client.ask(MetadataRequest(), 9)
    await asyncio.sleep(3.0)
    assert (await authenticate(client, b"right")).error_code == 0
    await client.ask(MetadataRequest(), 9)
    await asyncio.sleep(11.0)
    with pytest.raises(Closed):
        await client.ask(MetadataRequest(), 9)
    assert (listener.sessions, len(listener.expired)) == (2, 1)


@scenario
async def test_sasl_listener_serves_nobody_without_a_session(cluster: FakeCluster) -> None:
    cluster.require_sasl({"me": "right"})
    client = await RawClient.connect(cluster)
    refused = await client.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert refused.error_code == Code.UNSUPPORTED_SASL_MECHANISM
    assert list(refused.mechanisms) == ["PLAIN"]
    wrong = await authenticate(client, b"wrong")
    assert wrong.error_code == Code.SASL_AUTHENTICATION_FAILED
    with pytest.raises(Closed):
        await client.ask(MetadataRequest(), 9)
    client = await RawClient.connect(cluster)
    assert (await authenticate(client, b"right")).error_code == 0
    await asyncio.sleep(500.0)
    await client.ask(MetadataRequest(), 9)
    await client.close()


@scenario
async def test_client_is_throttled_once_it_is_authenticated(cluster: FakeCluster) -> None:
    cluster.require_sasl({"me": "right"})
    cluster.throttle(700)
    client = await RawClient.connect(cluster)
    assert (await client.ask(ApiVersionsRequest(), 3)).throttle_time_ms == 0
    await authenticate(client, b"right")
    assert (await client.ask(MetadataRequest(), 9)).throttle_time_ms == 700
    await client.close()


@pytest.mark.parametrize(("profile", "highest"), [("1.0", 0), ("2.4", 1), ("4.3", 2)])
def test_sasl_versions_are_those_of_the_release(profile: str, highest: int) -> None:
    cluster = FakeCluster(1, version_profile=profile)
    cluster.require_sasl({})
    ranges = cluster.brokers[1].profile.ranges
    assert (ranges[17], ranges[36]) == ((0, 1), (0, highest))


@scenario
async def test_sasl_without_a_listener_is_out_of_place(cluster: FakeCluster) -> None:
    listener = cluster.require_sasl({})
    client = await RawClient.connect(cluster)
    cluster.sasl = None
    assert (await authenticate(client, b"right")).error_code == Code.ILLEGAL_SASL_STATE
    assert listener.sessions == 0
    await client.close()


@scenario
async def test_first_batch_of_a_producer_above_zero_is_a_violation(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    await send(client, batch(b"a", pid=1, epoch=0, sequence=4))
    assert cluster.violations == ["('t', 0): producer 1 begins at 4"]
    await client.close()


@scenario
async def test_corrupt_batch_is_refused(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    answer = await send(client, batch(b"a", crc=5))
    assert answer.error_code == Code.CORRUPT_MESSAGE
    assert cluster.log("t", 0) == []
    await client.close()


@scenario
async def test_acks_zero_appends_without_an_answer(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    client.send(produce("t", 0, batch(b"a"), acks=0), 9)
    assert (await send(client, batch(b"b"))).base_offset == 1
    client.send(produce("nowhere", 0, batch(b"a"), acks=0), 9)
    with pytest.raises(Closed):
        await client.frame()


@scenario
async def test_acks_out_of_range_are_refused(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    assert (await send(client, batch(b"a"), acks=2)).error_code == Code.INVALID_REQUIRED_ACKS
    await client.close()


def test_topic_limits() -> None:
    async def main() -> None:
        cluster = FakeCluster()
        config = TopicConfig(
            max_message_bytes=100,
            min_insync_replicas=2,
            log_append_time=True,
            compacted=True,
            max_timestamp_skew_ms=1000,
        )
        cluster.create_topic("t", 1, config=config)
        client = await RawClient.connect(cluster)
        now = cluster.unix_ms()
        big = await send(client, batch(b"x" * 100, key=b"k", timestamp=now))
        assert big.error_code == Code.MESSAGE_TOO_LARGE
        old = await send(client, batch(b"a", key=b"k", timestamp=now - 5000))
        assert old.error_code == Code.INVALID_TIMESTAMP
        keyless = await send(client, batch(b"a", timestamp=now))
        assert keyless.error_code == Code.INVALID_RECORD
        assert keyless.record_errors[0].batch_index == 0
        fine = await send(client, batch(b"a", key=b"k", timestamp=now - 500))
        assert fine.log_append_time_ms == cluster.log("t", 0)[0].timestamp_ms > now - 500
        cluster.kill(2)
        cluster.kill(3)
        await asyncio.sleep(1)
        few = await send(client, batch(b"a", key=b"k", timestamp=cluster.unix_ms()))
        assert few.error_code == Code.NOT_ENOUGH_REPLICAS
        one = await send(client, batch(b"a", key=b"k", timestamp=cluster.unix_ms()), acks=1)
        assert one.error_code == 0
        await client.close()

    run(main)


@scenario
async def test_not_the_leader_names_the_leader(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster, 2)
    old = await send(client, batch(b"a"), 9)
    assert old.error_code == Code.NOT_LEADER_OR_FOLLOWER
    assert old.current_leader.leader_id == -1
    response = await client.ask(produce("t", 0, batch(b"a")), 10)
    assert only(response).current_leader.leader_id == 1
    assert [(node.node_id, node.host) for node in response.node_endpoints] == [(1, "broker1")]
    await client.close()


@scenario
async def test_unknown_places_are_refused(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    assert only(await client.ask(produce("t", 9, batch(b"a")), 9)).error_code == 3
    assert only(await client.ask(produce("u", 0, batch(b"a")), 9)).error_code == 3
    assert only(await client.ask(produce(b"u" * 16, 0, batch(b"a")), 13)).error_code == 100
    cluster.denied_topics.add("t")
    assert (await send(client, batch(b"a"))).error_code == Code.TOPIC_AUTHORIZATION_FAILED
    await client.close()


def test_replication_delays_acks_all_and_a_killed_leader_loses_the_tail() -> None:
    async def main() -> None:
        cluster = FakeCluster(replication_s=1.0)
        cluster.create_topic("t", 1)
        client = await RawClient.connect(cluster)
        start = cluster.loop.time()
        assert (await send(client, batch(b"a"))).base_offset == 0
        assert 1.0 <= cluster.loop.time() - start < 1.1
        assert (await send(client, batch(b"b"), acks=1)).base_offset == 1
        assert cluster.loop.time() - start < 1.1
        client.send(produce("t", 0, batch(b"c")), 9)
        await asyncio.sleep(0.1)
        assert len(cluster.log("t", 0)) == 3
        cluster.kill(1)
        with pytest.raises(Closed):
            await client.frame()
        await asyncio.sleep(1)
        assert cluster.values("t", 0) == [b"a"]
        assert cluster.leader_of("t", 0).broker_id == 2

    run(main)


def test_slow_replicas_time_the_request_out_after_the_append() -> None:
    async def main() -> None:
        cluster = FakeCluster(replication_s=60.0)
        cluster.create_topic("t", 1)
        client = await RawClient.connect(cluster)
        answer = await send(client, batch(b"a"), timeout_ms=1500)
        assert answer.error_code == Code.REQUEST_TIMED_OUT
        assert len(cluster.log("t", 0)) == 1
        await client.close()

    run(main)


@scenario
async def test_scripted_produce_errors_come_in_order(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.fail_produce(("t", 0), Code.NOT_ENOUGH_REPLICAS, 2)
    cluster.fail_produce(("t", 0), 0)
    cluster.fail_produce(("t", 0), Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND, append=True, message="m")
    codes = [(await send(client, batch(b"%d" % n))).error_code for n in range(5)]
    assert codes == [19, 19, 0, 20, 0]
    assert cluster.values("t", 0) == [b"2", b"3", b"4"]
    assert cluster.refusals == []
    await client.close()


# -- other APIs ---------------------------------------------------------------------------------


async def committed_offset(cluster: FakeCluster, client: RawClient, where: tuple[str, int]) -> None:
    """Run a transaction of "x" that commits offset 7 of group "g" with metadata."""
    code, producer_id, epoch = cluster.transactions.init("x", 10_000, -1, -1)
    assert code == Code.NONE
    cluster.transactions.add("x", set(), "g")
    partition = TxnOffsetCommitRequestPartition(
        partition_index=where[1], committed_offset=7, committed_metadata="note"
    )
    response = await client.ask(
        TxnOffsetCommitRequest(
            transactional_id="x", group_id="g", producer_id=producer_id, producer_epoch=epoch,
            topics=[TxnOffsetCommitRequestTopic(name=where[0], partitions=[partition])],
        ),
        3,
    )  # fmt: skip
    assert response.topics[0].partitions[0].error_code == Code.NONE


async def offsets(client: RawClient, version: int, *, stable: bool = False) -> Any:
    """Return the response to OffsetFetch for group "g" as (topic, partition, offset, metadata,
    code)."""
    more: dict[str, Any] = {"require_stable": stable} if version >= 7 else {}
    if version >= 8:
        group = OffsetFetchRequestGroup(group_id="g", topics=None)
        body = (await client.ask(OffsetFetchRequest(groups=[group], **more), version)).groups[0]
    else:
        body = await client.ask(OffsetFetchRequest(group_id="g", topics=None, **more), version)
    assert body.error_code == Code.NONE
    return [
        (topic.name, one.partition_index, one.committed_offset, one.metadata, one.error_code)
        for topic in body.topics
        for one in topic.partitions
    ]


@pytest.mark.parametrize("version", [2, 7, 9])
def test_offset_fetch_returns_what_transactions_committed(version: int) -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 2)
        client = await RawClient.connect(cluster)
        assert await offsets(client, version) == []
        await committed_offset(cluster, client, ("t", 1))
        assert await offsets(client, version) == []
        if version >= 7:
            unstable = int(Code.UNSTABLE_OFFSET_COMMIT)
            found = await offsets(client, version, stable=True)
            assert found == [("t", 1, -1, None, unstable)]
        cluster.transactions.end("x", 0, commit=True, tv2=False)
        assert await offsets(client, version, stable=True) == [("t", 1, 7, "note", 0)]
        wanted = OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])
        group = OffsetFetchRequestGroup(group_id="g", topics=[wanted])
        (named,) = (await client.ask(OffsetFetchRequest(groups=[group]), 8)).groups
        assert [one.committed_offset for one in named.topics[0].partitions] == [-1, 7]
        cluster.delete_topic("t")
        assert await offsets(client, version) == []
        await client.close()

    run(main)


def test_offsets_expire_unless_a_transaction_replaces_them() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 2)
        client = await RawClient.connect(cluster)
        await committed_offset(cluster, client, ("t", 0))
        cluster.transactions.end("x", 0, commit=True, tv2=False)
        await asyncio.sleep(60.0)
        assert cluster.transactions.expire_offsets(61.0) == 0
        await committed_offset(cluster, client, ("t", 0))
        assert cluster.transactions.expire_offsets(59.0) == 0, "a transaction is open"
        cluster.transactions.end("x", 1, commit=False, tv2=False)
        assert cluster.transactions.expire_offsets(59.0) == 1
        assert await offsets(client, 9) == []
        await client.close()

    run(main)


def test_transactions_are_described_and_listed_by_their_coordinator() -> None:
    async def main() -> None:
        cluster = FakeCluster(2)
        cluster.create_topic("t", 1)
        cluster.coordinator_ids = (1,)
        cluster.transactions.init("x", 10_000, -1, -1)
        cluster.transactions.init("y", 10_000, -1, -1)
        cluster.transactions.add("x", {("t", 0)})
        first, second = [await RawClient.connect(cluster, broker) for broker in (1, 2)]
        request = DescribeTransactionsRequest(transactional_ids=["x", "y", "z"])
        states = (await first.ask(request, 0)).transaction_states
        assert [(one.transactional_id, one.transaction_state) for one in states] == [
            ("x", "Ongoing"), ("y", "Empty"), ("z", ""),
        ]  # fmt: skip
        assert (states[0].producer_id, states[0].producer_epoch) == (0, 0)
        assert states[0].transaction_timeout_ms == 10_000
        assert [(one.topic, list(one.partitions)) for one in states[0].topics] == [("t", [0])]
        codes = [one.error_code for one in states]
        assert codes == [0, 0, Code.TRANSACTIONAL_ID_NOT_FOUND]
        states = (await second.ask(request, 0)).transaction_states
        assert {one.error_code for one in states} == {Code.NOT_COORDINATOR}
        for filters, names in (["Ongoing"], ["x"]), ([], ["x", "y"]):
            listed = await first.ask(ListTransactionsRequest(state_filters=filters), 0)
            assert [one.transactional_id for one in listed.transaction_states] == names
        listed = await second.ask(ListTransactionsRequest(state_filters=[]), 0)
        assert not listed.transaction_states
        await first.close()
        await second.close()

    run(main)


def test_offsets_and_states_are_refused_with_a_scripted_code() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        client = await RawClient.connect(cluster)
        loading = Code.COORDINATOR_LOAD_IN_PROGRESS
        for key in (9, 65, 66):
            cluster.control(key, faults.refuse(int(loading)))
        group = OffsetFetchRequestGroup(group_id="g", topics=None)
        offset = await client.ask(OffsetFetchRequest(groups=[group]), 8)
        assert offset.groups[0].error_code == loading
        old = await client.ask(OffsetFetchRequest(group_id="g", topics=None), 7)
        assert old.error_code == loading
        state = await client.ask(DescribeTransactionsRequest(transactional_ids=["x"]), 0)
        assert state.transaction_states[0].error_code == loading
        listed = await client.ask(ListTransactionsRequest(state_filters=[]), 0)
        assert listed.error_code == loading
        await client.close()

    run(main)


@scenario
async def test_api_versions_lists_the_profile(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    response = await client.ask(ApiVersionsRequest("raw", "1"), 4)
    ranges = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
    assert ranges[0] == (0, 13)
    await client.close()


@pytest.mark.parametrize(("profile", "named"), [("2.1", []), ("2.8", [(18, 0, 3)])])
def test_api_versions_too_new_is_answered_in_version_zero(
    profile: str, named: list[tuple[int, int, int]]
) -> None:
    async def main() -> None:
        cluster = FakeCluster(version_profile=profile)
        client = await RawClient.connect(cluster)
        correlation_id = client.send(ApiVersionsRequest("raw", "1"), 4)
        response = await client.receive(18, 0, correlation_id)
        assert response.error_code == Code.UNSUPPORTED_VERSION
        assert [(k.api_key, k.min_version, k.max_version) for k in response.api_keys] == named
        assert (await client.ask(ApiVersionsRequest(), 0)).error_code == 0
        await client.close()

    run(main)


@scenario
async def test_version_not_offered_closes_the_connection(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    client.send(InitProducerIdRequest(transactional_id=None), 6)
    with pytest.raises(Closed):
        await client.frame()
    assert len(cluster.violations) == 1


@scenario
async def test_garbage_closes_the_connection(cluster: FakeCluster) -> None:
    for data in (b"\xff\xff\xff\xff", b"\x00\x00\x00\x00", b"\x00\x00\x00\x0c" + b"\x00" * 12):
        client = await RawClient.connect(cluster)
        client.transport.write(data)
        with pytest.raises(Closed):
            await client.frame()
    assert len(cluster.violations) == 3


@pytest.mark.matrix
@pytest.mark.parametrize("version", range(14))
def test_metadata_every_version(version: int) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        topic = cluster.create_topic("t", 2)
        client = await RawClient.connect(cluster)
        response = await client.ask(
            MetadataRequest(topics=[MetadataRequestTopic(name="t")]), version
        )
        assert [broker.node_id for broker in response.brokers] == [1, 2, 3]
        (found,) = response.topics
        assert [part.leader_id for part in found.partitions] == [1, 2]
        assert found.topic_id == (topic.topic_id if version >= 10 else bytes(16))
        await client.close()

    run(main)


@scenario
async def test_metadata_names_what_is_wrong(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.denied_topics.add("secret")
    names = ["t", "secret", "bad name", "fresh"]
    wanted = [MetadataRequestTopic(name=name) for name in names]
    response = await client.ask(MetadataRequest(topics=wanted), 9)
    assert [topic.error_code for topic in response.topics] == [0, 29, 17, 3]
    await asyncio.sleep(1)
    response = await client.ask(MetadataRequest(topics=wanted), 9)
    assert [topic.error_code for topic in response.topics] == [0, 29, 17, 0]
    assert len(response.topics[3].partitions) == 3
    unknown = [MetadataRequestTopic(name=None, topic_id=b"x" * 16)]
    response = await client.ask(MetadataRequest(topics=unknown), 12)
    assert response.topics[0].error_code == Code.UNKNOWN_TOPIC_ID
    await client.close()


@scenario
async def test_metadata_creates_only_when_allowed(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    wanted = [MetadataRequestTopic(name="fresh")]
    await client.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), 9)
    await asyncio.sleep(1)
    assert "fresh" not in cluster.topics
    await client.close()


@scenario
async def test_init_producer_id_hands_out_new_ids(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    first = await client.ask(InitProducerIdRequest(transactional_id=None), 4)
    second = await client.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert (second.producer_id, second.producer_epoch) == (first.producer_id + 1, 0)
    empty = await client.ask(InitProducerIdRequest(transactional_id=""), 4)
    assert empty.error_code == Code.INVALID_REQUEST
    await client.close()


@scenario
async def test_find_coordinator_answers_in_old_and_new_form(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    old = await client.ask(FindCoordinatorRequest(key="id", key_type=1), 3)
    new = await client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["id"]), 4)
    assert old.node_id == new.coordinators[0].node_id in (1, 2, 3)
    await client.close()


# -- scripts ------------------------------------------------------------------------------------


@scenario
async def test_control_delays_loses_and_refuses(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    start = cluster.loop.time()
    cluster.control(0, faults.delay(2.0), times=1)
    await send(client, batch(b"a"))
    assert cluster.loop.time() - start >= 2.0
    cluster.control(0, faults.refuse(Code.KAFKA_STORAGE_ERROR), times=1)
    assert (await send(client, batch(b"b"))).error_code == Code.KAFKA_STORAGE_ERROR
    cluster.control(0, faults.lose_answer(), times=1)
    client.send(produce("t", 0, batch(b"c")), 9)
    client.send(produce("t", 0, batch(b"d")), 9)
    await asyncio.sleep(100)
    assert client.buffer == b""
    assert cluster.values("t", 0) == [b"a", b"c"]
    await client.close()


@scenario
async def test_control_function_sees_requests_and_can_be_removed(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    seen = []
    remove = cluster.control(0, lambda request: seen.append(request.body.acks))
    await send(client, batch(b"a"))
    remove()
    await send(client, batch(b"b"))
    assert seen == [-1]
    await client.close()


@scenario
async def test_control_edits_message_and_bytes(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.control(22, faults.edit(lambda message: type(message)(producer_id=99)), times=1)
    assert (await client.ask(InitProducerIdRequest(transactional_id=None), 4)).producer_id == 99
    cluster.control(22, faults.garbage(b"\x00\x00\x00\x02hi"), times=1)
    client.send(InitProducerIdRequest(transactional_id=None), 4)
    assert await client.frame() == b"hi"
    cluster.control(22, faults.edit_frame(lambda frame: frame[:4] + b"1234" + frame[8:]), times=1)
    client.send(InitProducerIdRequest(transactional_id=None), 4)
    assert (await client.frame())[:4] == b"1234"
    await client.close()


@pytest.mark.parametrize("size", [0, 1, 10])
def test_control_cuts_the_answer(size: int) -> None:
    async def main() -> None:
        cluster = FakeCluster()
        cluster.create_topic("t", 1)
        client = await RawClient.connect(cluster)
        cluster.control(0, faults.cut(size), times=1)
        client.send(produce("t", 0, batch(b"a")), 9)
        with pytest.raises(Closed) as info:
            await client.frame()
        assert len(info.value.args[0]) == size
        assert len(cluster.log("t", 0)) == 1

    run(main)


@scenario
async def test_control_cuts_a_connection_whose_request_is_not_answered(
    cluster: FakeCluster,
) -> None:
    client = await RawClient.connect(cluster)
    cluster.control(0, faults.cut(8, process=False), times=1)
    client.send(produce("t", 0, batch(b"a")), 9)
    with pytest.raises(Closed) as info:
        await client.frame()
    assert info.value.args[0] == b""
    assert cluster.open_connections() == 0


@scenario
async def test_control_closes_without_processing(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.control(None, faults.close())
    client.send(produce("t", 0, batch(b"a")), 9)
    with pytest.raises(Closed):
        await client.frame()
    assert cluster.log("t", 0) == []


# -- brokers ------------------------------------------------------------------------------------


@scenario
async def test_killed_leader_is_replaced_and_comes_back(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.kill(1)
    await asyncio.sleep(0.05)
    assert client.lost
    assert cluster.leader_of("t", 0).broker_id == 1
    with pytest.raises(DialError):
        await RawClient.connect(cluster)
    await asyncio.sleep(0.1)
    partition = cluster.topics["t"].partitions[0]
    assert (partition.leader, partition.leader_epoch, partition.isr) == (2, 1, (2, 3))
    cluster.start(1, port=9999)
    assert partition.isr == (1, 2, 3)
    assert (await RawClient.connect(cluster)) is not None
    (link,) = cluster.network.links_to("broker1", 9999)
    link.client.abort()
    await asyncio.sleep(0.1)


@scenario
async def test_without_a_leader_no_replica_becomes_in_sync(cluster: FakeCluster) -> None:
    partition = cluster.topics["t"].partitions[0]
    for broker_id in (1, 3, 2):
        cluster.kill(broker_id)
        await asyncio.sleep(0.2)
    assert (partition.leader, partition.isr) == (None, (2,))
    cluster.start(1)
    cluster.start(3)
    await asyncio.sleep(0.2)
    cluster.kill(3)  # the death and the return of broker 3 have no effect
    await asyncio.sleep(0.2)
    cluster.start(3)
    assert (partition.leader, partition.isr) == (None, (2,))
    cluster.start(2)
    assert (partition.leader, partition.isr) == (2, (1, 2, 3))


@scenario
async def test_a_dead_leader_lets_no_replica_become_in_sync(cluster: FakeCluster) -> None:
    partition = cluster.topics["t"].partitions[0]
    cluster.kill(2)
    await asyncio.sleep(0.2)
    cluster.kill(1)
    cluster.start(2)  # the controller has not noticed the death of the leader yet
    assert (partition.leader, partition.isr) == (1, (1, 3))
    await asyncio.sleep(0.2)
    assert (partition.leader, partition.isr) == (3, (2, 3))


@scenario
async def test_last_replica_keeps_its_records_through_death(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    await send(client, batch(b"a"))
    for broker_id in (1, 2, 3):
        cluster.kill(broker_id)
        await asyncio.sleep(1)
    assert cluster.topics["t"].partitions[0].leader is None
    cluster.start(1)
    assert cluster.topics["t"].partitions[0].leader is None
    cluster.start(3)
    assert cluster.leader_of("t", 0).broker_id == 3
    assert cluster.values("t", 0) == [b"a"]


@scenario
async def test_stopped_broker_hands_over_before_it_ends(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.stop(1)
    assert cluster.leader_of("t", 0).broker_id == 2
    await asyncio.sleep(0.1)
    assert client.lost


async def after_restart(cluster: FakeCluster, *answers_of: int) -> Any:
    """Send three batches of one producer, and stop and start broker 1. Then send the batches again
    to each of the given brokers.

    Return the error code, base offset and append time of each repeated batch.
    """
    first = await RawClient.connect(cluster)
    again = [batch(b"%d" % n, pid=7, epoch=0, sequence=n, timestamp=50 + n) for n in range(3)]
    for sent in again:
        assert (await send(first, sent)).error_code == 0
    cluster.stop(1)
    await asyncio.sleep(0.1)
    cluster.start(1)
    found = []
    for broker_id in answers_of:
        cluster.move_leader("t", 0, broker_id)
        client = await RawClient.connect(cluster, broker_id)
        for sent in again:
            answer = await send(client, sent)
            found.append((answer.error_code, answer.base_offset, answer.log_append_time_ms))
        await client.close()
    return found


@scenario
async def test_broker_stopped_in_order_knows_only_the_newest_batch_of_a_producer(
    cluster: FakeCluster,
) -> None:
    """The snapshot of the broker contains only that batch. Replicas that continued to run recognise
    all batches. They return the timestamp that Kafka returns for a duplicate."""
    gap = Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    known = [(0, 0, 50), (0, 1, 51), (0, 2, 52)]
    assert await after_restart(cluster, 2, 1) == [*known, (gap, -1, -1), (gap, -1, -1), (0, 2, 52)]


@scenario
async def test_broker_stopped_in_order_knows_the_batches_it_got_afterwards(
    cluster: FakeCluster,
) -> None:
    await after_restart(cluster)
    cluster.move_leader("t", 0, 1)
    client = await RawClient.connect(cluster, 1)
    later = [batch(b"l", pid=7, epoch=0, sequence=number) for number in (3, 4)]
    for sent in later:
        assert (await send(client, sent)).error_code == 0
    answers = [await send(client, sent) for sent in later]
    assert [answer.base_offset for answer in answers] == [3, 4]
    await client.close()


@scenario
async def test_paused_broker_serves_what_it_got_after_waking(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.pause(1)
    client.send(produce("t", 0, batch(b"a")), 9)
    await asyncio.sleep(10)
    assert client.buffer == b""
    late = await RawClient.connect(cluster)
    client.transport.abort()
    await asyncio.sleep(1)
    cluster.resume(1)
    await asyncio.sleep(1)
    assert cluster.values("t", 0) == [b"a"]
    await late.close()
    assert cluster.open_connections() == 0


@scenario
async def test_paused_broker_loses_its_leaders_to_the_controller(cluster: FakeCluster) -> None:
    cluster.pause(1, failover_s=6)
    await asyncio.sleep(7)
    assert cluster.leader_of("t", 0).broker_id == 2
    cluster.resume(1)
    assert cluster.topics["t"].partitions[0].isr == (1, 2, 3)


@scenario
async def test_silent_death_tells_nobody(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.kill(1, silent=True)
    client.send(produce("t", 0, batch(b"a")), 9)
    await asyncio.sleep(100)
    assert not client.lost
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(RawClient.connect(cluster), 100)
    assert cluster.leader_of("t", 0).broker_id == 2
    await client.close()


@scenario
async def test_throttled_connection_is_mute_for_the_time_named(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.throttle(1000)
    response = await client.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert response.throttle_time_ms == 1000
    start = cluster.loop.time()
    await asyncio.sleep(0.1)
    await client.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert cluster.loop.time() - start >= 0.99
    assert cluster.sends_while_throttled == 1
    await client.close()


async def sends_after(cluster: FakeCluster, data: bytes) -> int:
    """Return the number of sends during a throttle, if these bytes precede a response with a
    throttle time."""
    client = await RawClient.connect(cluster)
    cluster.throttle(1000)
    cluster.control(22, faults.garbage(data), times=1)
    for _ in range(3):
        client.send(InitProducerIdRequest(transactional_id=None), 4)
        await asyncio.sleep(0.01)
    await client.close()
    return cluster.sends_while_throttled


@scenario
async def test_throttle_time_behind_the_beginning_of_a_longer_frame_is_not_read(
    cluster: FakeCluster,
) -> None:
    """The frame is still incomplete at the end of the throttle time, so the client waits for more
    bytes."""
    assert await sends_after(cluster, (9_268_821).to_bytes(4, "big") + b"ab") == 0


@scenario
async def test_throttle_time_behind_a_part_of_a_length_is_not_read(cluster: FakeCluster) -> None:
    assert await sends_after(cluster, b"\0") == 0


@scenario
async def test_throttle_time_behind_a_complete_frame_is_read(cluster: FakeCluster) -> None:
    assert await sends_after(cluster, (2).to_bytes(4, "big") + b"ab") == 1


@scenario
async def test_topic_operations(cluster: FakeCluster) -> None:
    old_id = cluster.topics["t"].topic_id
    cluster.expand_topic("t", 3)
    assert [part.leader for part in cluster.topics["t"].partitions] == [1, 2, 3]
    assert cluster.move_leader("t", 0) == 2
    assert cluster.topics["t"].partitions[0].leader_epoch == 1
    cluster.recreate_topic("t")
    assert cluster.topics["t"].topic_id != old_id
    assert len(cluster.topics["t"].partitions) == 3
    cluster.delete_topic("t")
    assert cluster.topics == {}


@scenario
async def test_six_produce_requests_at_once_are_a_violation(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    for number in range(6):
        client.send(produce("t", 0, batch(b"%d" % number)), 9)
    for _ in range(6):
        await client.frame()
    assert cluster.violations == ["6 Produce requests in flight"]
    await client.close()


def test_equal_runs_have_equal_traces() -> None:
    def trace() -> int:
        async def main() -> int:
            cluster = FakeCluster(network=MemoryNetwork())
            cluster.create_topic("t", 1)
            client = await RawClient.connect(cluster)
            await send(client, batch(b"a"))
            await client.close()
            return cluster.network.trace

        return run(main)

    assert trace() == trace() != 0


def test_serve_tcp_speaks_over_real_sockets() -> None:
    async def main() -> None:
        cluster = FakeCluster(brokers=2, default_replication=1)
        cluster.create_topic("t", 1)
        async with serve_tcp(cluster) as bootstrap:
            host, port = bootstrap.split(",")[0].split(":")
            loop = asyncio.get_running_loop()
            transport, client = await loop.create_connection(RawClient, host, int(port))
            assert (await send(client, batch(b"a"))).base_offset == 0
            cluster.control(0, faults.cut(3), times=1)
            client.send(produce("t", 0, batch(b"b")), 9)
            with pytest.raises(Closed):
                await client.frame()
            cluster.kill(1)
            _, dead = await loop.create_connection(RawClient, host, int(port))
            with pytest.raises((Closed, ConnectionError)):
                await dead.frame()
            transport.abort()
        assert cluster.values("t", 0) == [b"a", b"b"]

    asyncio.run(main())


@scenario
async def test_scripted_sequence_error_does_not_hit_a_duplicate(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    data = batch(b"a", pid=1, epoch=0, sequence=0)
    await send(client, data)
    cluster.fail_produce(("t", 0), Code.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert (await send(client, data)).base_offset == 0
    await client.close()


@scenario
async def test_environment_is_the_world_of_the_cluster(cluster: FakeCluster) -> None:
    environment = cluster.environment(seed=5)
    assert environment.dialer is cluster.network
    assert environment.unix_ms() == cluster.unix_ms()
    assert environment.rng.random() == cluster.environment(seed=5).rng.random()


def test_duplicate_is_acknowledged_only_once_the_replicas_have_it() -> None:
    async def main() -> None:
        cluster = FakeCluster(replication_s=1.0)
        cluster.create_topic("t", 1)
        first, second = await RawClient.connect(cluster), await RawClient.connect(cluster)
        data = batch(b"a", pid=1, epoch=0, sequence=0)
        first.send(produce("t", 0, data), 9)
        await asyncio.sleep(0.1)
        start = cluster.loop.time()
        assert (await send(second, data)).base_offset == 0
        assert cluster.loop.time() - start >= 0.9
        assert (await send(second, data)).base_offset == 0
        assert cluster.loop.time() - start < 2.0
        await first.close()
        await second.close()

    run(main)


@scenario
async def test_producer_ids_begin_at_zero(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    assert [(await client.ask(request, 1)).producer_id for _ in range(2)] == [0, 1]
    await client.close()


@scenario
async def test_plain_batch_in_a_transactional_request_is_refused(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    cluster.transactions.init("x", 10_000, -1, -1)
    cluster.transactions.add("x", {("t", 0)})

    async def ask(data: bytes) -> int:
        request = dataclasses.replace(produce("t", 0, data), transactional_id="x")
        return only(await client.ask(request, 9)).error_code

    assert await ask(batch(b"a", pid=0, epoch=0, sequence=0, attributes=0x10)) == Code.NONE
    assert cluster.violations == []
    plain = batch(b"b", pid=0, epoch=0, sequence=1)
    assert await ask(plain) == Code.INVALID_TXN_STATE
    assert cluster.values("t", 0) == [b"a"]
    assert cluster.violations == ["t-0: plain batch in a transactional request"]
    cluster.transactions.end("x", 0, commit=True, tv2=False)
    assert await ask(plain) == Code.NONE, "brokers take it where no transaction is open"
    assert len(cluster.violations) == 2
    await client.close()


@scenario
async def test_kafka_0_11_recognises_the_last_batch_only(cluster: FakeCluster) -> None:
    old = FakeCluster(version_profile="0.11", network=MemoryNetwork())
    for harness, expected in ((cluster, Code.NONE), (old, Code.OUT_OF_ORDER_SEQUENCE_NUMBER)):
        if harness is old:
            old.create_topic("t", 1)
        client = await RawClient.connect(harness)
        first, second = (batch(b"%d" % n, pid=1, epoch=0, sequence=n) for n in range(2))
        assert (await send(client, first, 3)).error_code == Code.NONE
        assert (await send(client, second, 3)).error_code == Code.NONE
        assert (await send(client, first, 3)).error_code == expected
        assert (await send(client, second, 3)).base_offset == 1
        await client.close()


@scenario
async def test_answer_filters_change_every_answer_and_may_put_null_anywhere(
    cluster: FakeCluster,
) -> None:
    client = await RawClient.connect(cluster)

    def change(request: faults.Request, message: Any) -> Any:
        if request.api_key != 10:
            return message
        return dataclasses.replace(message, host=None)

    cluster.answer_filters.append(change)
    cluster.control(10, faults.refuse(15))
    correlation_id = client.send(FindCoordinatorRequest(key="x", key_type=1), 1)
    frame = await client.frame()
    assert frame[:4] == correlation_id.to_bytes(4, "big")
    # throttle time, error code, empty message, node -1, null host, port
    assert frame[4:] == b"\0\0\0\0" + b"\0\x0f\0\0" + b"\xff" * 4 + b"\xff\xff" + bytes(4)
    cluster.answer_filters.clear()
    answer = await client.ask(FindCoordinatorRequest(key="x", key_type=1), 1)
    assert answer.host == ""
    await client.close()


@scenario
async def test_renumbered_brokers_keep_addresses_data_and_connections(cluster: FakeCluster) -> None:
    client = await RawClient.connect(cluster)
    await send(client, batch(b"a"))
    partition = cluster.topics["t"].partitions[0]
    epoch = partition.leader_epoch
    cluster.renumber({1: 3, 3: 9})
    assert [(b.broker_id, b.host) for b in cluster.brokers.values()] == [
        (2, "broker2"), (3, "broker1"), (9, "broker3"),
    ]  # fmt: skip
    assert (partition.leader, partition.leader_epoch) == (3, epoch)
    assert set(partition.isr) == {2, 3, 9}
    assert cluster.controller_id == 3
    answer = await client.ask(MetadataRequest(topics=None), 9)
    assert {b.node_id: b.host for b in answer.brokers} == {2: "broker2", 3: "broker1", 9: "broker3"}
    assert (await send(client, batch(b"b"))).error_code == Code.NONE
    with pytest.raises(ValueError, match="the same id"):
        cluster.renumber({2: 3})
    await client.close()


@scenario
async def test_coordinators_that_metadata_do_not_list(cluster: FakeCluster) -> None:
    hidden = cluster.brokers[3]
    hidden.is_listed = False
    cluster.coordinator_ids = (3,)
    client = await RawClient.connect(cluster)
    listed = (await client.ask(MetadataRequest(topics=None), 9)).brokers
    assert [broker.node_id for broker in listed] == [1, 2]
    found = await client.ask(FindCoordinatorRequest(key="x", key_type=1), 1)
    assert (found.node_id, found.host) == (3, "broker3")
    topic = cluster.create_topic("u", 3)
    assert all(3 not in partition.replicas for partition in topic.partitions)
    await client.close()
