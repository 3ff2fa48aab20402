"""`FakeCluster`: a Kafka cluster in the test process that speaks the wire protocol.

It validates requests like a broker and stores records, so that a test can check the logs
afterwards. Hooks inject faults. There are two simplifications: a partition has one log instead of
one per replica (an unreplicated tail can be lost, see `kill`), and replicas catch up immediately.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from aiokprod._errors import Code, ErrorCode
from aiokprod.environment import Environment
from aiokprod.testing.fake_cluster.admin import FakeClusterAdmin
from aiokprod.testing.fake_cluster.batches import Batch, BatchRefused
from aiokprod.testing.fake_cluster.broker import FakeBroker
from aiokprod.testing.fake_cluster.control import (
    AnswerFilter,
    ControlFunction,
    ProduceFault,
    ProduceScript,
    Reaction,
    Script,
)
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.fake_cluster.log import StoredRecord
from aiokprod.testing.fake_cluster.profiles import NEWEST, PRODUCE, profile_named
from aiokprod.testing.fake_cluster.sasl import SaslListener
from aiokprod.testing.fake_cluster.telemetry import ClientTelemetry
from aiokprod.testing.fake_cluster.topology import Partition, Topic
from aiokprod.testing.fake_cluster.transactions import TransactionModel
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.pipes import world_at

EPOCH_MS = 1_700_000_000_000
"""Wall clock of the brokers, Unix ms, at time 0 of the loop's clock."""


@dataclass(frozen=True, slots=True)
class RequestNote:
    """A request that a broker received. `time` is the loop time in s. `size` is the size in bytes,
    with the length prefix."""

    time: float
    broker_id: int
    api_key: int
    version: int
    client_id: str | None
    size: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """A batch that the model rejected, without a script."""

    time: float
    broker_id: int
    topic: str
    partition: int
    code: Code
    text: str


@dataclass(frozen=True, slots=True)
class LateBeginning:
    """The first batch of a producer in a partition, with a sequence above 0. The broker may have
    rejected it."""

    time: float
    topic: str
    partition: int
    batch: Batch

    def __str__(self) -> str:
        where = self.topic, self.partition
        return f"{where}: producer {self.batch.producer_id} begins at {self.batch.base_sequence}"


class FakeCluster(FakeClusterAdmin):
    """A scripted cluster.

    Args:
        brokers: number of brokers. Their ids start at 1.
        network: the network on which the brokers listen, or None for a new network.
        version_profile: Kafka version to emulate. See `profiles`.
        default_partitions, default_replication: defaults for new topics.
        auto_create: True if Metadata requests may create topics.
        create_s: seconds until an automatically created topic exists.
        replication_s: seconds until the other replicas have a batch (acks=all waits for them).
        failover_s: seconds from a broker's death to the election of new leaders.
        controller_s: additional seconds if the broker was the controller.
        transaction_version: finalized level of transaction.version. None uses the profile's level.
        marker_s: seconds from EndTxn until the markers have been written.

    Attributes:
        denied_topics: topics that clients may not describe.
        read_only_topics: topics that clients may not write to.
        hidden_settings: topics whose settings clients may not read.
        transactions: state of the transaction coordinators.
        answer_filters: functions that are applied in order to every response, after the edits of
            the script. Each gets the request and the message, and returns the message to send.
        coordinator_ids: ids of the brokers that may be coordinators. None means all that run.
        group_generations: current generation of each consumer group whose generation is checked.
        requests: all received requests, in order.
        refusals: batches that the model rejected. A correct client with a current epoch causes
            none.
        violations: protocol violations of the client. Must be empty.
        late_beginnings: first batches with a sequence above 0. Their texts are in `violations` too.
            A correct producer sends such a batch only after a batch that it has given up and that
            may be in the log.
        duplicates: number of batches that were already in the log.
        sends_while_throttled: number of requests that a client sent during a throttle time
            (KIP-219).
        sasl: the authentication that `require_sasl` set, or None without SASL.
        telemetry: the subscription that `subscribe` set, with the pushed metrics, or None.
    """

    def __init__(
        self,
        brokers: int = 3,
        *,
        network: MemoryNetwork | None = None,
        version_profile: str = NEWEST,
        default_partitions: int = 3,
        default_replication: int = 3,
        auto_create: bool = True,
        create_s: float = 0.05,
        replication_s: float = 0.0,
        failover_s: float = 0.1,
        controller_s: float = 0.0,
        transaction_version: int | None = None,
        marker_s: float = 0.0,
    ) -> None:
        super().__init__()
        self.network = MemoryNetwork() if network is None else network
        self.cluster_id = "fake-cluster-000000000"
        self.default_partitions = default_partitions
        self.default_replication = default_replication
        self.auto_create = auto_create
        self.create_s = create_s
        self.replication_s = replication_s
        self.failover_s = failover_s
        self.controller_s = controller_s
        self.denied_topics: set[str] = set()
        self.read_only_topics: set[str] = set()
        self.hidden_settings: set[str] = set()
        self.script = Script()
        self.answer_filters: list[AnswerFilter] = []
        self.produce_script = ProduceScript()
        self.requests: list[RequestNote] = []
        self.refused_api_versions: list[tuple[int, int]] = []
        self.refusals: list[Refusal] = []
        self.violations: list[str] = []
        self.late_beginnings: list[LateBeginning] = []
        self.duplicates = 0
        self.sends_while_throttled = 0
        self.telemetry: ClientTelemetry | None = None
        self.sasl: SaslListener | None = None
        self.next_producer_id = 0
        self.first_epoch = 0
        self._creating: set[str] = set()
        self.coordinator_ids: tuple[int, ...] | None = None
        profile = profile_named(version_profile)
        self.strict_ledger = profile.strict_ledger
        self.batches_remembered = profile.batches_remembered
        if transaction_version is None:
            transaction_version = profile.transaction_version
        self.transactions = TransactionModel(self, transaction_version, marker_s)
        self.group_generations: dict[str, int] = {}
        for broker_id in range(1, brokers + 1):
            broker = FakeBroker(
                self, broker_id, f"broker{broker_id}", 9092, profile_named(version_profile)
            )
            self.brokers[broker_id] = broker
            self._bring_up(broker)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop."""
        return asyncio.get_running_loop()

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` of all brokers, separated by commas."""
        return ",".join(broker.address for broker in self.brokers.values())

    def environment(self, seed: int = 0) -> Environment:
        """Return an environment for a producer, with this cluster's network and clock, and seeded
        randomness."""
        return Environment(
            self.network, self.unix_ms, random.Random(seed), stopwatch=lambda: self.loop.time()
        )

    def unix_ms(self) -> int:
        """Return the brokers' wall clock time, Unix ms. It advances with the loop's clock."""
        return EPOCH_MS + int(self.loop.time() * 1000)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its records and its committed offsets."""
        super().delete_topic(name)
        self.transactions.delete_offsets_of(name)

    # -- faults ---------------------------------------------------------------------------------

    def control(
        self,
        api_key: int | None,
        function: ControlFunction | Reaction,
        *,
        times: int | None = None,
        broker_id: int | None = None,
    ) -> Callable[[], None]:
        """Intercept requests of an API, or of all APIs if `api_key` is None.

        Args:
            function: called with each `Request`. Returns a `Reaction`, or None for normal
                processing. May also be a `Reaction` for all requests.
            times: number of reactions after which the rule ends. None means no limit.
            broker_id: intercept only requests to this broker.

        Returns:
            A function that removes the rule.
        """
        return self.script.add(api_key, function, times=times, broker_id=broker_id)

    def fail_produce(
        self,
        where: tuple[str, int],
        code: int,
        times: int | None = 1,
        *,
        append: bool = False,
        message: str | None = None,
        record_errors: tuple[tuple[int, str], ...] = (),
        leader_hint: bool = True,
    ) -> None:
        """Respond to the next batches of a partition with an error code, where 0 means no error.

        Args:
            append: append the batches despite the error.
            message, record_errors: texts for the batch and for single records (KIP-467).
            leader_hint: name the current leader in the response (KIP-951).
        """
        fault = ProduceFault(
            code=code,
            append=append,
            message=message,
            record_errors=record_errors,
            leader_hint=leader_hint,
        )
        self.produce_script.add(where, fault if code else None, times)

    def fail(
        self,
        api: int,
        code: Code | ErrorCode | int,
        *,
        times: int | None = 1,
        broker_id: int | None = None,
    ) -> Callable[[], None]:
        """Respond to the next requests of an API with an error code, without processing them:
        ``cluster.fail(Api.PRODUCE, Code.NOT_LEADER_OR_FOLLOWER)``.

        Args:
            times: see `control`. None means until the returned function is called.
            broker_id: see `control`.

        Raises:
            ValueError: the code is 0 or is not a Kafka error code.
        """
        number = code.number if isinstance(code, ErrorCode) else int(code)
        if number == Code.NONE or number not in Code._value2member_map_:
            raise ValueError(f"{code!r} is not an error code: use a member of Code other than NONE")
        return self.control(
            int(api), Reaction(process=False, error=number), times=times, broker_id=broker_id
        )

    def throttle(self, milliseconds: int, broker_id: int | None = None) -> None:
        """Set the throttle time in the responses of a broker, or of all brokers. 0 ends the
        throttling."""
        for broker in self.brokers.values():
            if broker_id in (None, broker.broker_id):
                broker.throttle_ms = milliseconds

    # -- received requests and logs -------------------------------------------------------------

    def subscribe(self, *requested: str, **settings: Any) -> ClientTelemetry:
        """Request metrics from clients that connect from now on (KIP-714).

        Args:
            requested: prefixes of metric names. "" requests all metrics.
            settings: other attributes of `ClientTelemetry`.
        """
        self.telemetry = ClientTelemetry(requested, **settings)
        for broker in self.brokers.values():
            ranges = broker.profile.ranges | {71: (0, 0), 72: (0, 0)}
            broker.profile = replace(broker.profile, ranges=ranges)
        return self.telemetry

    def require_sasl(self, users: dict[str, str], lifetime_s: float = 0.0) -> SaslListener:
        """Serve only clients that authenticate with SASL/PLAIN. Call `SaslListener.offer` for a
        broker that is started with another version.

        Args:
            users: password by user name.
            lifetime_s: seconds after which clients must authenticate again (KIP-368). 0 means
                never.
        """
        self.sasl = SaslListener(users, lifetime_s)
        for broker in self.brokers.values():
            self.sasl.offer(broker)
        return self.sasl

    def log(self, topic: str, partition: int) -> list[StoredRecord]:
        """Return the records of a partition, ordered by offset."""
        return self.topics[topic].partitions[partition].log.records()

    def logs(self, topic: str) -> list[list[StoredRecord]]:
        """Return the records of each partition of a topic."""
        return [partition.log.records() for partition in self.topics[topic].partitions]

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """Return the values of a partition, ordered by offset."""
        return [record.value for record in self.log(topic, partition)]

    def all_values(self, topic: str) -> list[bytes | None]:
        """Return the values of a topic, ordered by partition and offset."""
        return [record.value for log in self.logs(topic) for record in log]

    def committed_values(self, topic: str, partition: int) -> list[bytes | None]:
        """Return the values that a read_committed consumer receives, ordered by offset."""
        log = self.topics[topic].partitions[partition].log
        return [record.value for record in log.committed()]

    def count(
        self, api_key: int, *, since: float = 0.0, until: float = float("inf"), broker_id: int = 0
    ) -> int:
        """Return the number of requests of an API received from `since` to `until` (loop time), by
        one broker or, if `broker_id` is 0, by all brokers."""
        return sum(
            note.api_key == api_key
            and since <= note.time <= until
            and broker_id in (0, note.broker_id)
            for note in self.requests
        )

    def living(self) -> list[FakeBroker]:
        """Return the running brokers, sorted by id."""
        return [broker for broker in self.brokers.values() if broker.is_up]

    def registered(self) -> list[FakeBroker]:
        """Return the registered brokers, sorted by id."""
        return [broker for broker in self.brokers.values() if broker.is_registered]

    def topic_by_id(self, topic_id: bytes) -> Topic | None:
        """Return the topic with this id, or None if there is none."""
        for topic in self.topics.values():
            if topic.topic_id == topic_id:
                return topic
        return None

    def open_connections(self) -> int:
        """Return the number of open connections of all brokers."""
        return sum(len(broker.connections) for broker in self.brokers.values())

    # -- called by the API modules --------------------------------------------------------------

    def new_producer_id(self) -> tuple[int, int]:
        """Return the next producer id and its first epoch. The first id is 0, as in Kafka."""
        self.next_producer_id += 1
        return self.next_producer_id - 1, self.first_epoch

    def create_soon(self, name: str) -> None:
        """Create a topic with default settings after `create_s` seconds."""
        if name not in self._creating:
            self._creating.add(name)
            world_at(self.loop, self.loop.time() + self.create_s, self._create_now, name)

    def _create_now(self, name: str) -> None:
        self._creating.discard(name)
        if name not in self.topics:
            self.create_topic(name)

    def replicate(self, partition: Partition) -> None:
        """Advance the high watermark to the current end of the log after the replication time."""
        end = partition.log.end_offset
        if self.replication_s <= 0 or len(partition.isr) < 2:
            partition.log.high_watermark = end
            return
        when = self.loop.time() + self.replication_s
        world_at(self.loop, when, self._replicated, partition, partition.leader_epoch, end)

    @staticmethod
    def _replicated(partition: Partition, leader_epoch: int, end: int) -> None:
        log = partition.log
        if partition.leader_epoch == leader_epoch:
            log.high_watermark = max(log.high_watermark, min(end, log.end_offset))

    def note_request(self, request: Request) -> None:
        """Record a request. Too many Produce requests in flight are a violation."""
        self.requests.append(
            RequestNote(
                request.time,
                request.broker_id,
                request.api_key,
                request.version,
                request.client_id,
                request.size,
            )
        )
        if request.api_key == PRODUCE and request.body.acks != 0:
            at_once = 1 + sum(frame[:2] == b"\x00\x00" for frame in request.connection.frames)
            if at_once > self.max_in_flight:
                self.note_violation(f"{at_once} Produce requests in flight")

    def note_refused_api_versions(self, broker_id: int, version: int) -> None:
        """Record an ApiVersions request of a version that the broker does not support."""
        self.refused_api_versions.append((broker_id, version))

    def note_refusal(
        self, request: Request, topic: str, partition: int, refused: BatchRefused
    ) -> None:
        """Record a batch that the model rejected."""
        self.refusals.append(
            Refusal(request.time, request.broker_id, topic, partition, refused.code, str(refused))
        )

    def note_first_batch(self, partition: Partition, batch: Batch) -> None:
        """Check that a producer starts at sequence 0 in a partition, unless its state was lost."""
        where = partition.topic, partition.index
        if (
            batch.base_sequence != 0
            and not partition.log.ledger.knows(batch.producer_id)
            and where not in self.forgotten
        ):
            late = LateBeginning(self.loop.time(), *where, batch)
            self.late_beginnings.append(late)
            self.note_violation(str(late))

    def note_violation(self, text: str) -> None:
        """Record a protocol violation of the client."""
        self.violations.append(text)
