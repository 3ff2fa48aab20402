"""Broker temperaments: permanent behaviour of brokers of a certain version or vendor.

A fault happens at an instant; a temperament lasts for the whole run. Temperaments are drawn per
seed. Each method of `Temperaments` is one of them; its docstring says which brokers behave this way
and why it is legal. `calm` ends the temperaments that would prevent recovery; the others continue
after all faults have ended.
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
"""First Produce version whose responses contain leader hints."""
UNKNOWN_TOPIC_IN_PURGATORY_BELOW = 9
"""Brokers that serve this Produce version (2.6 and later) answer NOT_LEADER_OR_FOLLOWER instead."""

AFTER_APPEND = {
    -1: "any exception between the append and the answer (`Errors.forException`)",
    13: "a proxy lost its broker after it had passed the request on",
    56: "`DelayedProduce.tryComplete`: the log directory went offline; `UnifiedLog.append`: flush",
    500: "a code that this client does not know",
}
"""Error codes that brokers may return although they have appended the batch, with the Java method
that returns them."""
AFTER_APPEND_WAITING = {
    6: "`DelayedProduce.tryComplete`: the partition has another leader by now",
    7: "`DelayedProduce.onExpiration`: the replicas did not follow in time",
    20: "`Partition.checkEnoughReplicasReachOffset`: too few replicas in sync by now",
}
"""Additional codes with acks=all, where the response waits in the purgatory for the replicas."""


class Temperaments:
    """The behaviour of the brokers of one seed.

    Attributes:
        legality: docstring of each temperament.
        throttle_ms: throttle time of every response, or 0 if not throttled.
        handshake_s: maximum seconds until a connection is established, after a failed attempt.
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
        """Limit the API versions that a broker offers. Called again when the broker restarts with
        another version."""
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
        """A partition without a leader carries no error code. Kafka returns LEADER_NOT_AVAILABLE,
        but by the schema leader_id -1 is sufficient, and gateways respond this way."""

        def change(request: Request, message: Any) -> Any:
            def one(partition: Any) -> Any:
                if partition.leader_id >= 0 or not partition.error_code:
                    return partition
                return dataclasses.replace(partition, error_code=0)

            return _each_partition(message, one)

        self._filter(METADATA, change)

    def epochs_missing(self) -> None:
        """All or some brokers return leader epoch -1, the schema's default for "unknown". Gateways
        do this, and Kafka 2.1 to 2.3 during an upgrade of the inter-broker protocol."""
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
        """The leader epoch is always 0: gateways whose partitions have no replicas to elect
        from."""
        self._filter(
            METADATA,
            lambda request, message: _each_partition(
                message, lambda p: dataclasses.replace(p, leader_epoch=min(p.leader_epoch, 0))
            ),
        )
        self._filter(PRODUCE, _without_hints)

    def no_topic_ids(self) -> None:
        """Topic ids are zero, so a recreated topic looks like the old topic with epochs that
        restart. Kafka before 2.8 (Metadata below v10) behaves this way, and gateways do at any
        version."""

        def change(request: Request, message: Any) -> Any:
            topics = [dataclasses.replace(topic, topic_id=bytes(16)) for topic in message.topics]
            return dataclasses.replace(message, topics=topics)

        self._filter(METADATA, change)
        self._filter(PRODUCE, _without_hints)

    def differing_metadata(self) -> None:
        """Brokers return different cluster metadata: one without a controller, another without a
        cluster id, a third with hosts without racks. Each broker responds from its own cache."""
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
        """Error responses contain null where the schema forbids it, or nothing where it requires a
        value. Brokers of other vendors set the error code and leave the other fields unset."""
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
        """A response carries an error although the batch was appended; `AFTER_APPEND` lists which
        code comes from where. This happens occasionally, or to nearly every batch, as with a broken
        disk."""
        rate = self.rng.choice((0.1, 0.5, 0.95))
        favourite = self.rng.random()

        def change(request: Request, message: Any) -> Any:
            codes = [n for n in AFTER_APPEND if n != 56 or request.version >= STORAGE_ERROR_FROM]
            if request.body.acks == -1:
                codes += AFTER_APPEND_WAITING
                if _is_before_2_6(request.connection.broker.profile):
                    # The partition was moved away from the broker while the response was delayed.
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
        """Responses of any API contain error codes that this client does not define. Newer brokers
        and other vendors return them; the protocol requires clients to treat them as
        UNKNOWN_SERVER_ERROR."""

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
        `RPCProducerIdManager` returns COORDINATOR_LOAD_IN_PROGRESS while its block of ids is used
        up and the controller has not allocated another one. Gateways that forward the request to a
        coordinator return COORDINATOR_NOT_AVAILABLE and NOT_COORDINATOR."""
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
        """A broker responds after twice the client's timeout, to all requests or to Metadata only:
        an overloaded broker, or a disk that hangs. Requests are processed at once; only the
        response is late."""
        broker = self.rng.choice(list(self.cluster.brokers.values()))
        api_key = self.rng.choice((None, METADATA, PRODUCE))
        late_s = 2 * self.plan.options["request_timeout_ms"] / 1000

        def react(request: Request) -> faults.Reaction | None:
            if request.connection.broker is not broker:
                return None
            return faults.answer_late(late_s) if request.api_key != API_VERSIONS else None

        self._removers.append(self.cluster.control(api_key, react))

    def slow_handshakes(self) -> None:
        """ApiVersions responses are always late: the broker is far away or behind a busy proxy.
        They take longer than the first connection attempt may (`seeds.plan_of` sets that limit)."""
        self.handshake_s = 1.5

        def react(request: Request) -> faults.Reaction | None:
            return faults.answer_late(0.8)

        self.cluster.control(API_VERSIONS, react)

    # -- versions -------------------------------------------------------------------------------

    def capped_versions(self) -> None:
        """All or some brokers omit APIs from ApiVersions or limit their versions one by one.
        Proxies and gateways offer only what they need; the result matches no release of Kafka."""
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
            if lacking:  # only the required APIs
                needed = (PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID)
                ranges = {api: broker.profile.ranges[api] for api in needed}
                broker.profile = dataclasses.replace(broker.profile, ranges=ranges)

    def old_versions(self) -> None:
        """Kafka from 0.11, 1.0 and 2.4: `seeds.plan_of` chooses the profile of the cluster."""
        assert self.plan.cluster["version_profile"] in OLD_PROFILES


LEGALITY = {
    name: getattr(Temperaments, name).__doc__ for name in (*TEMPERAMENTS, *RARE_TEMPERAMENTS)
}
"""Why each temperament is legal: no behaviour is drawn that a broker must not have."""


def _is_before_2_6(profile: Profile) -> bool:
    return profile.ranges[PRODUCE][1] < UNKNOWN_TOPIC_IN_PURGATORY_BELOW


def _each_partition(message: Any, change: Callable[[Any], Any]) -> Any:
    """Return a Metadata response with changed partitions."""
    topics = [
        topic
        if not topic.partitions
        else dataclasses.replace(topic, partitions=[change(one) for one in topic.partitions])
        for topic in message.topics
    ]
    return dataclasses.replace(message, topics=topics)


def _each_answer(message: Any, change: Callable[[Any], Any]) -> Any:
    """Return a Produce response with changed partitions."""
    responses = [
        dataclasses.replace(
            topic, partition_responses=[change(one) for one in topic.partition_responses]
        )
        for topic in message.responses
    ]
    return dataclasses.replace(message, responses=responses)


def _without_hints(request: Request, message: Any) -> Any:
    """Return a Produce response without leader hints (they are optional)."""
    if request.version < HINTS_FROM:
        return message

    def one(partition: Any) -> Any:
        return dataclasses.replace(partition, current_leader=type(partition.current_leader)())

    return dataclasses.replace(_each_answer(message, one), node_endpoints=())
