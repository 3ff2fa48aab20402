"""Broker temperaments: permanent behaviour of brokers of some version or vendor, drawn per seed.

A fault happens at an instant; a temperament lasts for the whole run. Each method of
`Temperaments` is one of them, and its docstring says who behaves so and why it is legal. Those that
would prevent recovery end with `calm`; the others stay after everything has been healed.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from aiokprod.testing import fake_cluster as faults
from aiokprod.testing.fake_cluster import FakeCluster, Request
from aiokprod.testing.fake_cluster.apis.produce import STORAGE_ERROR_FROM
from aiokprod.testing.fake_cluster.batches import PRODUCE_SINCE
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.profiles import (
    API_VERSIONS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    Profile,
)
from tests.simulation.seeds import (
    OLD_PROFILES,
    RARE_TEMPERAMENTS,
    TEMPERAMENTS,
    UNKNOWN_CODES,
    Plan,
)

HINTS_FROM = 10
"""First Produce version whose answers name leaders."""
UNKNOWN_TOPIC_IN_PURGATORY_BELOW = 9
"""Brokers that serve this Produce version (2.6 and later) answer NOT_LEADER_OR_FOLLOWER instead."""

AFTER_APPEND = {
    -1: "any exception between the append and the answer (`Errors.forException`)",
    13: "a proxy lost its broker after it had passed the request on",
    56: "`DelayedProduce.tryComplete`: the log directory went offline; `UnifiedLog.append`: flush",
    500: "a code that this client does not know",
}
"""Codes that brokers may answer although they have appended the batch, and where."""
AFTER_APPEND_WAITING = {
    6: "`DelayedProduce.tryComplete`: the partition has another leader by now",
    7: "`DelayedProduce.onExpiration`: the replicas did not follow in time",
    20: "`Partition.checkEnoughReplicasReachOffset`: too few replicas in sync by now",
}
"""More of them with acks=all, where the answer waits in the purgatory for the replicas."""


class Temperaments:
    """The behaviour of the brokers of one seed.

    Attributes:
        legality: of each temperament, its docstring.
        throttle_ms: in every answer, or 0 if not throttled.
        handshake_s: seconds until a connection is up, at most, after a failed attempt.
    """

    def __init__(self, plan: Plan, cluster: FakeCluster) -> None:
        self.plan = plan
        self.cluster = cluster
        self.rng = random.Random(plan.seed * 104_729 + 7)
        self.throttle_ms = 0
        self.handshake_s = 0.0
        self._is_calm = False
        self._removers: list[Callable[[], None]] = []
        self._caps: dict[FakeBroker, dict[int, int]] = {}
        for name in plan.temperaments:
            getattr(self, name)()

    def calm(self) -> None:
        """End the behaviour that would prevent recovery."""
        self._is_calm = True
        for remove in self._removers:
            remove()
        self._removers.clear()

    def shape(self, broker: FakeBroker) -> None:
        """Limit the API versions that a broker offers; called again when it returns as another
        version."""
        caps = self._caps.get(broker)
        if caps:
            ranges = {
                api: (low, min(high, caps.get(api, high)))
                for api, (low, high) in broker.profile.ranges.items()
            }
            broker.profile = dataclasses.replace(broker.profile, ranges=ranges)
        if self.cluster.sasl is not None:
            self.cluster.sasl.offer(broker)

    def _filter(self, api_key: int, change: Callable[[Request, Any], Any]) -> None:
        def changed(request: Request, message: Any) -> Any:
            return change(request, message) if request.api_key == api_key else message

        self.cluster.answer_filters.append(changed)

    def _some_brokers(self) -> list[FakeBroker]:
        """All brokers, or a random choice of them."""
        brokers = list(self.cluster.brokers.values())
        if self.rng.random() < 0.5:
            return brokers
        return self.rng.sample(brokers, self.rng.randrange(1, len(brokers) + 1))

    # -- metadata -------------------------------------------------------------------------------

    def leaderless_without_code(self) -> None:
        """A partition without a leader carries no error code. Kafka answers LEADER_NOT_AVAILABLE,
        but the schema gives leader_id -1 that meaning alone, and gateways answer so."""

        def change(request: Request, message: Any) -> Any:
            def one(partition: Any) -> Any:
                if partition.leader_id >= 0 or not partition.error_code:
                    return partition
                return dataclasses.replace(partition, error_code=0)

            return _each_partition(message, one)

        self._filter(METADATA, change)

    def epochs_missing(self) -> None:
        """Leader epoch -1, at all brokers or at some. "Not known" by the schema's default;
        gateways and Kafka 2.1 to 2.3 during an upgrade of the inter-broker protocol."""
        brokers = self._some_brokers()
        silent = len(brokers) == len(self.cluster.brokers)

        def change(request: Request, message: Any) -> Any:
            if request.connection.broker not in brokers:
                return message
            return _each_partition(message, lambda p: dataclasses.replace(p, leader_epoch=-1))

        self._filter(METADATA, change)
        if silent:
            self._filter(PRODUCE, _without_hints)

    def epochs_zero(self) -> None:
        """Leader epoch 0 forever: gateways whose partitions have no replicas to elect from."""
        self._filter(
            METADATA,
            lambda request, message: _each_partition(
                message, lambda p: dataclasses.replace(p, leader_epoch=min(p.leader_epoch, 0))
            ),
        )
        self._filter(PRODUCE, _without_hints)

    def no_topic_ids(self) -> None:
        """Topic ids are zero, so that a topic created again looks like the old one with epochs that
        begin again: Kafka before 2.8 (Metadata below v10), and gateways at any version."""

        def change(request: Request, message: Any) -> Any:
            topics = [dataclasses.replace(topic, topic_id=bytes(16)) for topic in message.topics]
            return dataclasses.replace(message, topics=topics)

        self._filter(METADATA, change)
        self._filter(PRODUCE, _without_hints)

    def differing_metadata(self) -> None:
        """What brokers say of the cluster itself differs: one knows no controller, another no
        cluster id, a third names hosts without racks. Each answers from a separate cache."""
        brokers = list(self.cluster.brokers.values())
        strangers = {one: self.rng.randrange(3) for one in brokers if self.rng.random() < 0.6}

        def change(request: Request, message: Any) -> Any:
            kind = strangers.get(request.connection.broker)
            if kind == 0:
                return dataclasses.replace(message, controller_id=-1)
            if kind == 1:
                return dataclasses.replace(message, cluster_id=None)
            if kind == 2:
                return dataclasses.replace(message, brokers=list(reversed(message.brokers)))
            return message

        self._filter(METADATA, change)

    def null_in_errors(self) -> None:
        """Null where the schema allows none, or nothing where it wants something, in answers that
        carry an error: brokers of other makers fill in an error and leave the rest as it was."""
        value = self.rng.choice((None, ()))

        def metadata(request: Request, message: Any) -> Any:
            topics = [
                dataclasses.replace(topic, partitions=value) if topic.error_code else topic
                for topic in message.topics
            ]
            return dataclasses.replace(message, topics=topics)

        def produce(request: Request, message: Any) -> Any:
            def one(partition: Any) -> Any:
                if not partition.error_code:
                    return partition
                return dataclasses.replace(partition, record_errors=value)

            return _each_answer(message, one)

        self._filter(METADATA, metadata)
        self._filter(PRODUCE, produce)

    # -- codes ----------------------------------------------------------------------------------

    def errors_after_append(self) -> None:
        """An answer names an error although the batch was appended; `AFTER_APPEND` says who
        answers which code so. Now and then, or to nearly every batch, as a broken disk would."""
        rate = self.rng.choice((0.1, 0.5, 0.95))
        favourite = self.rng.random()

        def change(request: Request, message: Any) -> Any:
            codes = [n for n in AFTER_APPEND if n != 56 or request.version >= STORAGE_ERROR_FROM]
            if request.body.acks == -1:
                codes += AFTER_APPEND_WAITING
                if _is_before_2_6(request.connection.broker.profile):
                    # The partition was moved away from the broker while the answer waited.
                    codes.append(3)
            if self.rng.random() < 0.1:
                self.rng.shuffle(codes)

            def one(partition: Any) -> Any:
                if partition.error_code or self._is_calm or self.rng.random() > rate:
                    return partition
                return dataclasses.replace(
                    partition, error_code=codes[int(favourite * len(codes))], base_offset=-1
                )

            return _each_answer(message, one)

        self._filter(PRODUCE, change)

    def unknown_codes(self) -> None:
        """Error codes that this client has never heard of, in answers of any API: newer brokers,
        and other makers' (the protocol asks clients to treat them as UNKNOWN_SERVER_ERROR)."""

        def code() -> int:
            if self._is_calm or self.rng.random() > 0.1:
                return 0
            return self.rng.choice(UNKNOWN_CODES)

        def produce(request: Request, message: Any) -> Any:
            def one(partition: Any) -> Any:
                number = 0 if partition.error_code else code()
                if not number:
                    return partition
                return dataclasses.replace(partition, error_code=number, base_offset=-1)

            return _each_answer(message, one)

        def metadata(request: Request, message: Any) -> Any:
            def one(partition: Any) -> Any:
                number = 0 if partition.error_code else code()
                if not number:
                    return partition
                return dataclasses.replace(partition, error_code=number, leader_id=-1)

            return _each_partition(message, one)

        def producer_id(request: Request, message: Any) -> Any:
            number = 0 if message.error_code else code()
            if not number:
                return message
            return dataclasses.replace(message, error_code=number, producer_id=-1)

        self._filter(PRODUCE, produce)
        self._filter(METADATA, metadata)
        self._filter(INIT_PRODUCER_ID, producer_id)

    def producer_ids_unavailable(self) -> None:
        """Several requests in a row get a retriable error before one gets a producer id. Kafka's
        `RPCProducerIdManager` answers COORDINATOR_LOAD_IN_PROGRESS while its block of ids is used
        up and the controller has not given it another one; gateways that pass the request on to a
        coordinator answer COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR."""
        rng = random.Random(self.plan.seed * 73 + 19)
        refusals = rng.choice((2, 4, 8))
        codes = rng.choice(((14,), (14,), (14, 15, 16)))
        left = refusals

        def react(request: Request) -> faults.Reaction | None:
            nonlocal left
            left -= 1
            if left < 0:
                left = refusals  # for the next id
                return None
            return faults.refuse(rng.choice(codes))

        self._removers.append(self.cluster.control(INIT_PRODUCER_ID, react))

    # -- time -----------------------------------------------------------------------------------

    def throttling(self) -> None:
        """Every response carries a throttle time: the client is permanently over its quota."""
        self.throttle_ms = self.rng.choice((5, 20))
        self.cluster.throttle(self.throttle_ms)

    def slower_than_timeouts(self) -> None:
        """A broker answers after twice the client's timeout, all requests or Metadata only: an
        overloaded broker, or a disk that hangs. Requests are processed at once; the response is
        late."""
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        api_key = self.rng.choice((None, METADATA, PRODUCE))
        late_s = 2 * self.plan.options["request_timeout_ms"] / 1000

        def react(request: Request) -> faults.Reaction | None:
            if request.connection.broker is not broker:
                return None
            return faults.answer_late(late_s) if request.api_key != API_VERSIONS else None

        self._removers.append(self.cluster.control(api_key, react))

    def slow_handshakes(self) -> None:
        """ApiVersions are answered late, always: a broker far away or behind a busy proxy, which
        takes longer than the first attempt to connect may (`seeds.plan_of` sets that limit)."""
        self.handshake_s = 1.5

        def react(request: Request) -> faults.Reaction | None:
            return faults.answer_late(0.8)

        self.cluster.control(API_VERSIONS, react)

    # -- versions -------------------------------------------------------------------------------

    def capped_versions(self) -> None:
        """ApiVersions lack APIs or cap them one by one, at all brokers or at some: proxies and
        gateways serve what they need, and no release of Kafka ever looked like that."""
        lowest_produce = PRODUCE_SINCE.get(self.plan.options["compression_type"], 3)
        produce = [n for n in (3, 5, 7, 8, 9, 11, 12) if n >= lowest_produce]
        caps = {
            PRODUCE: self.rng.choice(produce),
            METADATA: self.rng.choice((1, 4, 7, 8, 9, 11, 13)),
            API_VERSIONS: self.rng.choice((0, 1, 2, 3)),
            INIT_PRODUCER_ID: self.rng.choice((0, 1, 3)),
        }
        chosen = dict(self.rng.sample(list(caps.items()), self.rng.randrange(1, len(caps) + 1)))
        lacking = self.rng.random() < 0.5
        for broker in self._some_brokers():
            self._caps[broker] = chosen
            self.shape(broker)
            if lacking:  # no APIs but those that are needed
                needed = (PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID)
                ranges = {api: broker.profile.ranges[api] for api in needed}
                broker.profile = dataclasses.replace(broker.profile, ranges=ranges)

    def old_versions(self) -> None:
        """Kafka from 0.11, 1.0 and 2.4: `seeds.plan_of` chooses the profile of the cluster."""
        assert self.plan.cluster["version_profile"] in OLD_PROFILES


LEGALITY = {
    name: getattr(Temperaments, name).__doc__ for name in (*TEMPERAMENTS, *RARE_TEMPERAMENTS)
}
"""Why each temperament may be: nothing is drawn that no broker may do."""


def _is_before_2_6(profile: Profile) -> bool:
    return profile.ranges[PRODUCE][1] < UNKNOWN_TOPIC_IN_PURGATORY_BELOW


def _each_partition(message: Any, change: Callable[[Any], Any]) -> Any:
    """A Metadata answer with its partitions changed."""
    topics = [
        topic
        if not topic.partitions
        else dataclasses.replace(topic, partitions=[change(one) for one in topic.partitions])
        for topic in message.topics
    ]
    return dataclasses.replace(message, topics=topics)


def _each_answer(message: Any, change: Callable[[Any], Any]) -> Any:
    """A Produce answer with its partitions changed."""
    responses = [
        dataclasses.replace(
            topic, partition_responses=[change(one) for one in topic.partition_responses]
        )
        for topic in message.responses
    ]
    return dataclasses.replace(message, responses=responses)


def _without_hints(request: Request, message: Any) -> Any:
    """A Produce answer that names no leaders (they are optional)."""
    if request.version < HINTS_FROM:
        return message

    def one(partition: Any) -> Any:
        return dataclasses.replace(partition, current_leader=type(partition.current_leader)())

    return dataclasses.replace(_each_answer(message, one), node_endpoints=())
