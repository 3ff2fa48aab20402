"""Finding coordinators and connecting to them: which address is dialled, when the wait for a
connection ends, and how unusual FindCoordinator responses are handled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from aiokprod import KafkaTimeout, Producer
from aiokprod._engine.identity.coordinators import CoordinatorKind, Coordinators
from aiokprod._errors import Code
from aiokprod._wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from aiokprod.cluster import Node
from aiokprod.testing.fake_cluster import FakeCluster, edit, refuse
from aiokprod.testing.fake_cluster.apis.find_coordinator import coordinator_of
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.control import answer_late, edit_frame, garbage
from tests.scenarios.scenario_helpers import now
from tests.transactions.transaction_helpers import (
    ADD_PARTITIONS,
    END,
    FIND,
    ID,
    INIT,
    PRODUCE,
    committed,
    full,
    one,
    stable,
    transactional,
)

QUICK_S = 1.5
"""Every wait here is shorter than one maximum backoff and some round trips."""
KEY = (CoordinatorKind.TRANSACTION, ID)


def coordinator(cluster: FakeCluster) -> FakeBroker:
    found = coordinator_of(cluster.brokers[min(cluster.brokers)], ID)
    assert found is not None
    return found


def elsewhere(cluster: FakeCluster) -> int:
    """Return a partition that the coordinator does not lead."""
    here = coordinator(cluster).broker_id
    return next(p.index for p in cluster.topics["t"].partitions if p.leader != here)


def coordinators_of(producer: Producer[Any, Any]) -> Coordinators:
    """The coordinators of a started producer whose driver is idle."""
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    assert runtime._coordinators is not None
    return runtime._coordinators


async def timed(what: Any) -> float:
    start = now()
    await what
    return now() - start


# -- a connected coordinator that cannot take the request yet ------------------------------------


@pytest.mark.parametrize("throttle_ms", [100, 1000])
@transactional(linger_ms=0)
async def test_throttled_coordinator_is_waited_for_and_not_looked_up(
    cluster: FakeCluster, producer: Producer[Any, Any], throttle_ms: int
) -> None:
    await producer.start()
    here = coordinator(cluster).broker_id
    partitions = cluster.topics["t"].partitions
    on_coordinator = next(p.index for p in partitions if p.leader == here)
    first, second = (p.index for p in partitions if p.leader != here)
    cluster.control(PRODUCE, edit(lambda m: replace(m, throttle_time_ms=throttle_ms)),
                    broker_id=here)  # fmt: skip

    async def load(partition: int) -> None:
        while True:
            await producer.submit("t", b"x", partition=partition)
            await asyncio.sleep(0.01)

    await producer.begin_transaction()
    loads = [asyncio.ensure_future(load(index)) for index in (on_coordinator, first)]
    await asyncio.sleep(5)
    start = now()
    limit = throttle_ms / 1000 + 0.1
    assert await timed(producer.send("t", b"new", partition=second)) < limit
    assert await timed(producer.send_offsets_to_transaction({("in", 0): 5}, "g")) < limit + 0.1
    assert cluster.count(FIND, since=start) == 1, "that of the group"
    for task in loads:
        task.cancel()
    assert cluster.sends_while_throttled == 0


@transactional(cluster={"brokers": 1}, linger_ms=0, max_in_flight_requests_per_connection=2)
async def test_batch_follows_at_once_the_request_that_had_its_broker_reserved(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    """The sender sends nothing to a broker while a request (AddPartitionsToTxn or FindCoordinator)
    waits for a free in-flight slot at that broker. It continues as soon as that request is sent,
    before its response."""
    cluster.network.latency_s = 0.1
    await producer.begin_transaction()
    await producer.send("t", b"0", partition=0)
    round_trip = await timed(producer.send("t", b"1", partition=0))
    assert round_trip > 0.1
    cluster.control(PRODUCE, answer_late(0.3), times=1)  # also delays the second response
    handles = []
    for value in (b"2", b"3"):
        handles.append(await producer.submit("t", value, partition=0))
        await asyncio.sleep(0.01)
    start = now()
    if tv == 1:
        reserving: asyncio.Task[Any] = asyncio.ensure_future(producer.send("t", b"x", partition=1))
    else:
        reserving = asyncio.ensure_future(producer.send_offsets_to_transaction({("a", 0): 1}, "g"))
    await asyncio.sleep(0.01)
    await producer.send("t", b"4", partition=0)
    assert all(handle.done() for handle in handles)
    assert 0.3 + round_trip < now() - start < 0.3 + 2 * round_trip + 0.05
    assert not reserving.done()
    await reserving
    await producer.commit_transaction()


@transactional(request_timeout_ms=2_000, protocols=(1,))
async def test_coordinator_throttled_beyond_the_request_timeout_is_looked_up_again(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    here = coordinator(cluster).broker_id
    connection_id = here
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    broker = runtime.client._brokers[connection_id]
    assert broker.connection is not None
    runtime.client.connection_throttled(broker.connection, 7.0)
    start = now()
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=elsewhere(cluster))
    assert 6.9 < now() - start < 8.5
    assert 3 <= cluster.count(FIND, since=start) <= 4, "one for each request_timeout_ms"
    await producer.commit_transaction()
    assert committed(cluster) == [b"v"]


@transactional(protocols=(1,))
async def test_slow_connection_is_waited_for(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """Connecting takes seconds: one lookup, one attempt."""
    cluster.network.latency_s = 0.8
    await producer.start()
    finds = cluster.count(FIND)
    assert finds == 1
    await one(producer, b"v")
    assert cluster.count(FIND) == 1
    assert committed(cluster) == [b"v"]


# -- the address in the response decides ---------------------------------------------------------


@transactional()
async def test_coordinator_that_left_the_metadata_and_then_ended_does_not_hold_up_the_commit(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """In a controlled shutdown the broker leaves the metadata first, and its sockets are closed
    later."""
    await producer.start()
    leaving = coordinator(cluster)
    await producer.begin_transaction()
    await producer.send("t", b"1", partition=elsewhere(cluster))
    leaving.is_registered = False
    for partition in cluster.topics["t"].partitions:
        if partition.leader == leaving.broker_id:
            partition.elect(next(n for n in partition.isr if n != leaving.broker_id))
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    runtime.metadata.request_update()
    await asyncio.sleep(1)
    cluster._take_down(leaving, reset=True)
    assert await timed(producer.commit_transaction()) < QUICK_S
    assert committed(cluster) == [b"1"]


@transactional(cluster={"failover_s": 0.0})
async def test_dead_coordinator_that_a_lagging_broker_still_names_is_asked_for_again(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    await producer.begin_transaction()
    dead = coordinator(cluster)
    await producer.send("t", b"1", partition=elsewhere(cluster))
    old = Coordinator(key=ID, node_id=dead.broker_id, host=dead.host, port=dead.port)
    stop = cluster.control(FIND, edit(lambda m: replace(m, coordinators=[old])))
    cluster.kill(dead.broker_id)
    asyncio.get_running_loop().call_later(0.5, stop)
    assert await timed(producer.commit_transaction()) < 0.5 + QUICK_S
    assert committed(cluster) == [b"1"]


@pytest.mark.parametrize(
    "ids", [{1: 2, 2: 3, 3: 1}, {1: 11, 2: 12, 3: 13}], ids=["permuted", "new"]
)
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@transactional()
async def test_renumbered_coordinator_is_reached_at_its_address(
    cluster: FakeCluster, producer: Producer[Any, Any], ids: dict[int, int], commit: bool
) -> None:
    """The cached metadata contains the old ids."""
    await producer.start()
    await producer.begin_transaction()
    await producer.send("t", b"1", partition=0)
    cluster.renumber(ids)
    for broker in cluster.brokers.values():
        for connection in list(broker.connections):
            connection.reset()
    ended = producer.commit_transaction() if commit else producer.abort_transaction()
    assert await timed(ended) < QUICK_S
    assert committed(cluster) == ([b"1"] if commit else [])
    assert await timed(one(producer, b"next")) < QUICK_S
    assert committed(cluster)[-1:] == [b"next"]


@pytest.mark.parametrize("listed_later", [True, False])
@transactional()
async def test_coordinator_that_the_metadata_do_not_list_is_dialled(
    cluster: FakeCluster, producer: Producer[Any, Any], listed_later: bool
) -> None:
    """The coordinator is a new broker that is not in the metadata yet, or that of a proxy, which
    never is."""
    hidden = cluster.brokers[2]
    cluster.coordinator_ids = (2,)
    for partition in cluster.topics["t"].partitions:
        if partition.leader == 2:
            partition.elect(1)
    hidden.is_listed = False
    assert await timed(producer.start()) < QUICK_S
    assert await timed(full(producer, b"1")) < QUICK_S
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    hidden.is_listed = listed_later
    runtime.metadata.request_update()
    await asyncio.sleep(1)
    assert (2 in runtime.metadata.snapshot.nodes) is listed_later
    assert runtime.client.coordinator_id(Node(2, "broker2", 9092)) == (
        2 if listed_later else -1_000_000
    )
    await producer.begin_transaction()
    await producer.send("t", b"2", partition=0)
    assert await timed(producer.abort_transaction()) < QUICK_S
    assert committed(cluster) == [b"1", b"1"]
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 1}}


@transactional()
async def test_listed_coordinator_shares_the_connection_of_the_metadata(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await full(producer, b"1")
    await full(producer, b"2")
    for broker in cluster.brokers.values():
        links = len(cluster.network.links_to(broker.host, broker.port))
        bootstrap = 1
        assert links <= 1 + bootstrap


@transactional()
async def test_unlisted_address_is_dropped_when_another_one_is_named(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    cluster.coordinator_ids = (2,)
    cluster.brokers[2].is_listed = False
    for partition in cluster.topics["t"].partitions:
        if partition.leader == 2:
            partition.elect(1)
    await one(producer, b"1")
    assert len(cluster.brokers[2].connections) == 1
    cluster.coordinator_ids = (3,)
    await one(producer, b"2")
    await asyncio.sleep(0.1)
    assert not cluster.brokers[2].connections
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    assert set(runtime.client._coordinators) == {("broker3", 9092)}
    assert committed(cluster) == [b"1", b"2"]


@transactional(protocols=(1,))
async def test_node_that_left_the_metadata_ends_the_waiting_for_its_connection(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The coordinator drops all packets, so no attempt fails before the setup timeout of 10 s."""
    await producer.start()
    await producer.begin_transaction()
    gone = coordinator(cluster)
    partition = elsewhere(cluster)
    cluster.network.blackhole(gone.host, gone.port)
    for connection in list(gone.connections):
        connection.reset()
    sending = asyncio.ensure_future(producer.send("t", b"1", partition=partition))
    await asyncio.sleep(2)
    assert not sending.done()
    cluster.network.heal(gone.host, gone.port)
    cluster.kill(gone.broker_id)
    cluster.network.blackhole(gone.host, gone.port)
    await asyncio.sleep(0.2)
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    runtime.metadata.request_update()
    assert await timed(sending) < QUICK_S
    await producer.commit_transaction()
    assert committed(cluster) == [b"1"]


@transactional(protocols=(1,))
async def test_snapshot_forgets_listed_coordinators_only(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    coordinators = coordinators_of(producer)
    here = coordinators.known(*KEY)
    assert here == coordinator(cluster).broker_id
    runtime = producer._lifecycle.runtime
    assert runtime is not None
    snapshot = runtime.metadata.snapshot
    coordinators.on_snapshot(snapshot)
    assert coordinators.known(*KEY) == here
    moved = Node(here, "elsewhere", 9092)
    coordinators.on_snapshot(replace(snapshot, nodes={**snapshot.nodes, here: moved}))
    assert coordinators.known(*KEY) is None
    assert await coordinators.find(*KEY) == (0, None)
    coordinators._known[KEY].listed = False  # the metadata did not list it when it was found
    coordinators.on_snapshot(replace(snapshot, nodes={}))
    assert coordinators.known(*KEY) == here
    coordinators.on_snapshot(snapshot)
    assert coordinators.known(*KEY) == here
    coordinators.on_snapshot(replace(snapshot, nodes={}))
    assert coordinators.known(*KEY) is None


@transactional(protocols=(1,))
async def test_number_of_known_coordinators_is_limited(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    coordinators = coordinators_of(producer)
    groups = [(CoordinatorKind.GROUP, f"g{number}") for number in range(1_005)]
    for group in groups:
        assert await coordinators.find(*group) == (0, None)
        assert coordinators.known(*group) is not None
    assert len(coordinators._known) == 1_000
    assert coordinators.known(*groups[0]) is None  # the oldest
    assert coordinators.known(*KEY) is None
    await full(producer, b"1")  # finds the coordinator again
    assert coordinators.known(*KEY) == coordinator(cluster).broker_id


# -- requests that are no longer wanted -----------------------------------------------------------


@pytest.mark.parametrize("hole", ["coordinator", "all"])
@transactional(protocols=(1,))
async def test_abort_does_not_wait_for_a_coordinator_that_has_nothing_to_end(
    cluster: FakeCluster, producer: Producer[Any, Any], hole: str
) -> None:
    """AddPartitionsToTxn was never sent: the coordinator has nothing to end."""
    await one(producer, b"0")
    added = cluster.count(ADD_PARTITIONS), cluster.count(END)
    await producer.begin_transaction()
    brokers = [coordinator(cluster)] if hole == "coordinator" else list(cluster.brokers.values())
    for broker in brokers:
        cluster.network.blackhole(broker.host, broker.port)
        for connection in list(broker.connections):
            connection.reset()
    handle = await producer.submit("t", b"1", partition=elsewhere(cluster))
    await asyncio.sleep(1.5)
    assert await timed(producer.abort_transaction()) < QUICK_S
    assert handle.done()
    assert (cluster.count(ADD_PARTITIONS), cluster.count(END)) == added
    for broker in brokers:
        cluster.network.heal(broker.host, broker.port)
    await one(producer, b"next")
    assert sorted(committed(cluster)) == [b"0", b"next"]
    assert stable(cluster)


# -- unusual responses ----------------------------------------------------------------------------


def found_with(**changes: Any) -> Callable[[Any], Any]:
    def change(message: Any) -> Any:
        return replace(message, coordinators=[replace(message.coordinators[0], **changes)])

    return change


@pytest.mark.parametrize("key", ["", "tenant-7.transfers"])
@transactional()
async def test_answer_for_the_only_key_is_taken_whatever_it_calls_the_key(
    cluster: FakeCluster, producer: Producer[Any, Any], key: str
) -> None:
    cluster.control(FIND, edit(found_with(key=key)))
    assert await timed(full(producer, b"1")) < QUICK_S
    assert cluster.count(FIND) == 2
    assert committed(cluster) == [b"1", b"1"]


STRANGE: dict[str, Callable[[Any], Any]] = {
    "none": lambda message: FindCoordinatorResponse(coordinators=[]),
    "two": lambda message: replace(message, coordinators=[*message.coordinators] * 2),
    "no-node": found_with(node_id=-1),
    "no-host": found_with(host=""),
    "port-zero": found_with(port=0),
    "port-negative": found_with(port=-1),
    "port-too-large": found_with(port=65536),
    "null-host": found_with(host=None),
    "null-key": found_with(key=None),
    "null-host-in-error": found_with(host=None, error_code=15, node_id=-1),
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=STRANGE)
@transactional(max_block_ms=10_000)
async def test_response_without_a_coordinator_is_retried_with_backoff(
    cluster: FakeCluster, producer: Producer[Any, Any], change: Callable[[Any], Any]
) -> None:
    stop = cluster.control(FIND, edit(change))
    with pytest.raises(KafkaTimeout):
        await producer.start()
    assert 8 <= cluster.count(FIND) <= 18, "0.1, 0.2, 0.4, 0.8, then every second for 10 s"
    stop()
    await full(producer, b"1")
    assert committed(cluster) == [b"1", b"1"]


DAMAGED = {
    "correlation": edit_frame(lambda frame: frame[:4] + b"\x7f\0\0\0" + frame[8:]),
    "length": garbage(b"\xff\xff\xff\xff"),
    "huge": garbage(b"\x7f\xff\xff\xff"),
    "http": garbage(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "short": edit_frame(lambda frame: b"\0\0\0\x06" + frame[4:10]),
    "scrambled": edit_frame(lambda frame: frame[:9] + b"\xff" * (len(frame) - 9)),
}


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("api", [FIND, INIT, ADD_PARTITIONS, 25, 28, END])
@transactional(request_timeout_ms=2_000)
async def test_damaged_answer_ends_the_connection_and_not_the_producer(
    cluster: FakeCluster, producer: Producer[Any, Any], api: int, damage: Any, times: int
) -> None:
    cluster.control(api, damage, times=times)
    await full(producer, b"1")
    await full(producer, b"2")
    assert committed(cluster) == [b"1", b"2"] * 2
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 2}}
    assert stable(cluster)


@transactional(max_block_ms=10_000)
async def test_init_answer_without_an_id_is_asked_for_again_with_backoff(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    stop = cluster.control(INIT, edit(lambda m: replace(m, producer_id=-1, producer_epoch=-1)))
    with pytest.raises(KafkaTimeout):
        await producer.start()
    assert 8 <= cluster.count(INIT) <= 18
    stop()
    await one(producer, b"1")
    assert committed(cluster) == [b"1"]


# -- backoff --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [Code.COORDINATOR_NOT_AVAILABLE, Code.NOT_COORDINATOR])
@transactional(max_block_ms=10_000)
async def test_lookup_that_is_refused_for_long_backs_off(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int
) -> None:
    cluster.control(FIND, refuse(code))
    with pytest.raises(KafkaTimeout):
        await producer.start()
    times = [note.time for note in cluster.requests if note.api_key == FIND]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert 8 <= len(times) <= 18
    assert gaps[0] < 0.15 < gaps[1] < 0.3 < gaps[2] < 0.6 < gaps[3]
    assert all(0.75 < gap < 1.25 for gap in gaps[4:])
