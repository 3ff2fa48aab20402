"""Unusual responses of real brokers and gateways, and actions on the cluster. Every entry is one
function; scripts refer to it by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from aiokprod._wire.message import Message
from aiokprod.testing.fake_cluster import FakeCluster, Request
from aiokprod.testing.fake_cluster.apis.find_coordinator import coordinator_of
from aiokprod.testing.fake_cluster.apis.produce import HINTS_FROM
from aiokprod.testing.fake_cluster.log import PartitionLog
from tests.differential.script import (
    ADD_PARTITIONS,
    API_VERSIONS,
    END_TXN,
    FIND_COORDINATOR,
    GROUP,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TOPIC,
    TXN_OFFSET_COMMIT,
    Do,
)

Edit = Callable[[FakeCluster, Request, Any, int], Message]
"""Maps (cluster, request, the model's response, the script's value) to another response."""

TRANSACTIONAL_ID: Final = "x"
EDITS: Final[dict[str, tuple[int, Edit]]] = {}
ACTIONS: Final[dict[str, Callable[[FakeCluster, Do], None]]] = {}


def _edit(api: int, name: str) -> Callable[[Edit], Edit]:
    def enter(function: Edit) -> Edit:
        EDITS[name] = api, function
        return function

    return enter


def _each_partition(message: Any, change: Callable[[Any], Any]) -> Any:
    topics = [
        replace(topic, partitions=[change(one) for one in topic.partitions])
        for topic in message.topics
    ]
    return replace(message, topics=topics)


# -- Metadata -------------------------------------------------------------------------------------


@_edit(METADATA, "leader-minus-1")
def _leader_minus_1(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Partitions have no leader, and error code `value` (0: none)."""
    return _each_partition(message, lambda p: replace(p, leader_id=-1, error_code=value))


@_edit(METADATA, "leader-minus-1-one")
def _leader_minus_1_one(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Partition `value` has no leader and no error code."""
    return _each_partition(
        message, lambda p: replace(p, leader_id=-1) if p.partition_index == value else p
    )


@_edit(METADATA, "leader-unknown")
def _leader_unknown(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The leader is a node that the response does not list."""
    return _each_partition(message, lambda p: replace(p, leader_id=99))


@_edit(METADATA, "leader-other")
def _leader_other(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The response names a broker that is not the leader."""
    others = {b: next(o for o in cluster.brokers if o != b) for b in cluster.brokers}
    return _each_partition(message, lambda p: replace(p, leader_id=others.get(p.leader_id, -1)))


@_edit(METADATA, "epoch")
def _epoch(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Leader epochs are `value`: -1 without KIP-320, 0 from brokers that do not maintain epochs."""
    return _each_partition(message, lambda p: replace(p, leader_epoch=value))


@_edit(METADATA, "epoch-plus")
def _epoch_plus(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Leader epochs are higher than the cluster's by `value`."""
    return _each_partition(message, lambda p: replace(p, leader_epoch=p.leader_epoch + value))


@_edit(METADATA, "partition-error")
def _partition_error(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Every partition carries an error code in addition to its correct leader."""
    return _each_partition(message, lambda p: replace(p, error_code=value))


@_edit(METADATA, "partition-error-leaderless")
def _partition_error_leaderless(
    cluster: FakeCluster, request: Request, message: Any, value: int
) -> Any:
    """Every partition carries an error code and no leader."""
    return _each_partition(message, lambda p: replace(p, error_code=value, leader_id=-1))


@_edit(METADATA, "topic-error")
def _topic_error(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Every topic carries an error code in addition to its partitions."""
    return replace(message, topics=[replace(t, error_code=value) for t in message.topics])


@_edit(METADATA, "topic-error-bare")
def _topic_error_bare(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Every topic carries an error code and nothing else."""
    return replace(
        message, topics=[replace(t, error_code=value, partitions=[]) for t in message.topics]
    )


@_edit(METADATA, "no-partitions")
def _no_partitions(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, topics=[replace(t, partitions=[]) for t in message.topics])


@_edit(METADATA, "fewer-partitions")
def _fewer_partitions(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Partition 0 is missing."""
    return replace(
        message, topics=[replace(t, partitions=t.partitions[1:]) for t in message.topics]
    )


@_edit(METADATA, "no-topics")
def _no_topics(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, topics=[])


@_edit(METADATA, "no-brokers")
def _no_brokers(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, brokers=[])


@_edit(METADATA, "empty")
def _empty(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, brokers=[], topics=[], controller_id=-1)


@_edit(METADATA, "no-controller")
def _no_controller(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, controller_id=-1)


@_edit(METADATA, "null-cluster-id")
def _null_cluster_id(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, cluster_id=None)


@_edit(METADATA, "other-cluster-id")
def _other_cluster_id(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, cluster_id="another-cluster")


@_edit(METADATA, "only-this-broker")
def _only_this_broker(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The response lists only this broker, as after its start."""
    return replace(message, brokers=[b for b in message.brokers if b.node_id == request.broker_id])


@_edit(METADATA, "no-replicas")
def _no_replicas(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return _each_partition(
        message, lambda p: replace(p, replica_nodes=[], isr_nodes=[], offline_replicas=[])
    )


@_edit(METADATA, "no-topic-ids")
def _no_topic_ids(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """There are no topic ids; for profiles whose Produce requests contain topic names."""
    return replace(message, topics=[replace(t, topic_id=bytes(16)) for t in message.topics])


@_edit(METADATA, "other-topic-id")
def _other_topic_id(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, topics=[replace(t, topic_id=bytes([7] * 16)) for t in message.topics])


@_edit(METADATA, "reversed")
def _reversed(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Brokers and partitions are in another order."""
    topics = [replace(t, partitions=list(reversed(t.partitions))) for t in message.topics]
    return replace(message, topics=topics, brokers=list(reversed(message.brokers)))


@_edit(METADATA, "twice")
def _twice(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """Every partition is listed twice."""
    topics = [replace(t, partitions=[*t.partitions, *t.partitions]) for t in message.topics]
    return replace(message, topics=topics)


@_edit(METADATA, "no-coordinator")
def _no_coordinator(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The transaction coordinator's node is not listed (and leads no partition in the response)."""
    chosen = coordinator_of(cluster.brokers[1], TRANSACTIONAL_ID)
    gone = chosen.broker_id if chosen is not None else -1
    brokers = [b for b in message.brokers if b.node_id != gone]
    return replace(message, brokers=brokers)


# -- FindCoordinator ------------------------------------------------------------------------------


def _coordinators(message: Any, **changes: Any) -> Any:
    if message.coordinators:
        found = [replace(one, **changes) for one in message.coordinators]
        return replace(message, coordinators=found)
    return replace(message, **{k: v for k, v in changes.items() if k != "key"})


@_edit(FIND_COORDINATOR, "coordinator-minus-1")
def _coordinator_minus_1(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """There is no coordinator and no error code."""
    return _coordinators(message, node_id=-1, host="", port=-1)


@_edit(FIND_COORDINATOR, "coordinator-empty-host")
def _coordinator_empty_host(
    cluster: FakeCluster, request: Request, message: Any, value: int
) -> Any:
    return _coordinators(message, host="", port=0)


@_edit(FIND_COORDINATOR, "coordinator-other-node")
def _coordinator_other_node(
    cluster: FakeCluster, request: Request, message: Any, value: int
) -> Any:
    """The address is correct, but the node id is in no metadata."""
    return _coordinators(message, node_id=77)


@_edit(FIND_COORDINATOR, "coordinator-wrong")
def _coordinator_wrong(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The response contains a broker that is not (or no longer) the coordinator."""
    chosen = coordinator_of(cluster.brokers[1], TRANSACTIONAL_ID)
    other = next(b for b in cluster.brokers.values() if b is not chosen)
    return _coordinators(message, node_id=other.broker_id, host=other.host, port=other.port)


@_edit(FIND_COORDINATOR, "coordinator-other-key")
def _coordinator_other_key(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return _coordinators(message, key="somebody-else")


@_edit(FIND_COORDINATOR, "coordinator-empty-key")
def _coordinator_empty_key(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return _coordinators(message, key="")


@_edit(FIND_COORDINATOR, "coordinators-none")
def _coordinators_none(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, coordinators=[])


# -- producer ids, transactions -------------------------------------------------------------------


@_edit(INIT_PRODUCER_ID, "producer-id-minus-1")
def _producer_id_minus_1(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """There is no producer id and no error code."""
    return replace(message, producer_id=-1, producer_epoch=-1)


@_edit(ADD_PARTITIONS, "add-partitions-empty")
def _add_partitions_empty(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, results_by_topic_v3_and_below=[])


@_edit(TXN_OFFSET_COMMIT, "offsets-empty")
def _offsets_empty(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, topics=[])


@_edit(END_TXN, "end-txn-id-minus-1")
def _end_txn_id_minus_1(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The transaction ended, but the response lacks the next epoch."""
    return replace(message, producer_id=-1, producer_epoch=-1)


# -- Produce --------------------------------------------------------------------------------------


def _each_answer(message: Any, change: Callable[[Any], Any]) -> Any:
    topics = [
        replace(topic, partition_responses=[change(one) for one in topic.partition_responses])
        for topic in message.responses
    ]
    return replace(message, responses=topics)


@_edit(PRODUCE, "produce-empty")
def _produce_empty(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The records are stored, but the response has no topic."""
    return replace(message, responses=[])


@_edit(PRODUCE, "produce-no-partitions")
def _produce_no_partitions(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(
        message, responses=[replace(t, partition_responses=[]) for t in message.responses]
    )


@_edit(PRODUCE, "produce-other-partition")
def _produce_other_partition(
    cluster: FakeCluster, request: Request, message: Any, value: int
) -> Any:
    """The records are stored, but the response is for a partition that was not in the request."""
    return _each_answer(message, lambda p: replace(p, index=77))


@_edit(PRODUCE, "produce-twice")
def _produce_twice(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(
        message,
        responses=[
            replace(t, partition_responses=[*t.partition_responses, *t.partition_responses])
            for t in message.responses
        ],
    )


@_edit(PRODUCE, "produce-strangers")
def _produce_strangers(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The response has an additional partition that was not in the request."""
    return replace(
        message,
        responses=[
            replace(
                t,
                partition_responses=[
                    *[replace(p, index=77, error_code=6) for p in t.partition_responses],
                    *t.partition_responses,
                ],
            )
            for t in message.responses
        ],
    )


@_edit(PRODUCE, "produce-offset-minus-1")
def _produce_offset_minus_1(
    cluster: FakeCluster, request: Request, message: Any, value: int
) -> Any:
    """The records are stored and acknowledged, but the response lacks the offset."""
    return _each_answer(message, lambda p: replace(p, base_offset=-1))


@_edit(PRODUCE, "produce-no-hints")
def _produce_no_hints(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The response has no leader hints, like the responses of gateways without KIP-951."""
    if request.version < HINTS_FROM:
        return message
    return replace(
        _each_answer(message, lambda p: replace(p, current_leader=type(p.current_leader)())),
        node_endpoints=[],
    )


@_edit(PRODUCE, "produce-hint-unknown-node")
def _produce_hint_unknown_node(
    cluster: FakeCluster, request: Request, message: Any, value: int
) -> Any:
    """NOT_LEADER with a hint to a node whose address is not in the response."""
    if request.version < HINTS_FROM:
        return message
    return replace(
        _each_answer(
            message,
            lambda p: replace(
                p, current_leader=replace(p.current_leader, leader_id=99, leader_epoch=50)
            ),
        ),
        node_endpoints=[],
    )


# -- ApiVersions ----------------------------------------------------------------------------------


@_edit(API_VERSIONS, "no-api-keys")
def _no_api_keys(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, api_keys=[])


@_edit(API_VERSIONS, "without-api")
def _without_api(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    """The API `value` is missing."""
    return replace(message, api_keys=[k for k in message.api_keys if k.api_key != value])


@_edit(API_VERSIONS, "versions-error")
def _versions_error(cluster: FakeCluster, request: Request, message: Any, value: int) -> Any:
    return replace(message, error_code=value)


# -- what happens to the cluster ------------------------------------------------------------------


def _action(name: str) -> Callable[[Callable[[FakeCluster, Do], None]], None]:
    def enter(function: Callable[[FakeCluster, Do], None]) -> None:
        ACTIONS[name] = function

    return enter


@_action("move-leader")
def _move_leader(cluster: FakeCluster, do: Do) -> None:
    cluster.move_leader(TOPIC, do.partition)


@_action("move-leader-quietly")
def _move_leader_quietly(cluster: FakeCluster, do: Do) -> None:
    """The leader changes without a new epoch, as with brokers that do not maintain epochs."""
    partition = cluster.topics[TOPIC].partitions[do.partition]
    old = partition.leader
    partition.leader = next((node for node in partition.isr if node != old), old)


@_action("take-leader")
def _take_leader(cluster: FakeCluster, do: Do) -> None:
    cluster.topics[TOPIC].partitions[do.partition].elect(None)


@_action("give-leader")
def _give_leader(cluster: FakeCluster, do: Do) -> None:
    partition = cluster.topics[TOPIC].partitions[do.partition]
    if partition.leader is None:
        partition.elect(partition.replicas[0])


@_action("recreate")
def _recreate(cluster: FakeCluster, do: Do) -> None:
    """Create another topic with the same name."""
    cluster.recreate_topic(TOPIC)


@_action("recreate-elsewhere")
def _recreate_elsewhere(cluster: FakeCluster, do: Do) -> None:
    """Create another topic with the same name, with other leaders and epochs from 0."""
    before = [partition.leader for partition in cluster.topics[TOPIC].partitions]
    cluster.recreate_topic(TOPIC)
    for partition, old in zip(cluster.topics[TOPIC].partitions, before, strict=True):
        partition.leader = next((node for node in partition.isr if node != old), partition.leader)


@_action("expand")
def _expand(cluster: FakeCluster, do: Do) -> None:
    cluster.expand_topic(TOPIC, len(cluster.topics[TOPIC].partitions) + 2)


@_action("disconnect")
def _disconnect(cluster: FakeCluster, do: Do) -> None:
    """Break all connections of a broker (0: of all brokers)."""
    for broker in cluster.brokers.values():
        if do.broker in (0, broker.broker_id):
            for connection in list(broker.connections):
                connection.reset()


@_action("kill")
def _kill(cluster: FakeCluster, do: Do) -> None:
    cluster.kill(do.broker, failover_s=0.02)


@_action("kill-leader")
def _kill_leader(cluster: FakeCluster, do: Do) -> None:
    leader = cluster.topics[TOPIC].partitions[do.partition].leader
    if leader is not None:
        cluster.kill(leader, failover_s=0.02)


@_action("kill-coordinator")
def _kill_coordinator(cluster: FakeCluster, do: Do) -> None:
    chosen = coordinator_of(cluster.brokers[1], TRANSACTIONAL_ID)
    if chosen is not None and len(cluster.living()) > 1:
        cluster.kill(chosen.broker_id, failover_s=0.02)


@_action("stop")
def _stop(cluster: FakeCluster, do: Do) -> None:
    cluster.stop(do.broker)


@_action("start")
def _start(cluster: FakeCluster, do: Do) -> None:
    """Restart the brokers that are down."""
    for broker in list(cluster.brokers.values()):
        if not broker.is_up:
            cluster.start(broker.broker_id)


@_action("freeze-views")
def _freeze_views(cluster: FakeCluster, do: Do) -> None:
    """Let a broker return the current leaders from now on (0: all brokers)."""
    for broker in cluster.brokers.values():
        if do.broker in (0, broker.broker_id):
            cluster.freeze_view(broker.broker_id)


@_action("refresh-views")
def _refresh_views(cluster: FakeCluster, do: Do) -> None:
    cluster.refresh_views()


@_action("forget-producers")
def _forget_producers(cluster: FakeCluster, do: Do) -> None:
    """Remove the producer state of a partition."""
    cluster.forget_producers(TOPIC, do.partition)


@_action("retain")
def _retain(cluster: FakeCluster, do: Do) -> None:
    """Let retention delete all records, and the producer state with them."""
    cluster.retain(TOPIC, do.partition)


@_action("fence")
def _fence(cluster: FakeCluster, do: Do) -> None:
    """Start another instance with the same transactional id."""
    for _ in range(2):  # the first call finds an open transaction and ends it
        code, _, _ = cluster.transactions.init(TRANSACTIONAL_ID, 30_000, -1, -1)
        if not code:
            return


@_action("expire-transaction")
def _expire_transaction(cluster: FakeCluster, do: Do) -> None:
    """Abort a transaction that has been open for too long, as the coordinator does."""
    entry = cluster.transactions.ids.get(TRANSACTIONAL_ID)
    if entry is not None:
        cluster.transactions._timed_out(entry, entry.number)


@_action("forget-transactions")
def _forget_transactions(cluster: FakeCluster, do: Do) -> None:
    """Delete the coordinator's state, as after the loss of its topic."""
    cluster.transactions.ids.pop(TRANSACTIONAL_ID, None)


@_action("rebalance")
def _rebalance(cluster: FakeCluster, do: Do) -> None:
    cluster.group_generations[GROUP] = 7


def every_log(cluster: FakeCluster) -> list[tuple[str, int, PartitionLog]]:
    """Return (topic, partition, log) for all topics, including deleted ones."""
    return [
        (topic.name, partition.index, partition.log)
        for topic in [*cluster.topics.values(), *cluster.deleted]
        for partition in topic.partitions
    ]
