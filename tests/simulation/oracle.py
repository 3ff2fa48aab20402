"""The oracle of a simulated history. It checks promises P1 to P6, and that no resource leaks,
against the logs.

Its input is what the application submitted and received, the contents of the logs, and the faults
of the cluster. From the producer it reads only `metrics()`.
"""

from __future__ import annotations

import asyncio
import math
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiokprod._core.record_fields import murmur2
from aiokprod.errors import (
    BufferFull,
    BufferTimeout,
    Code,
    ConfigError,
    DeliveryTimeout,
    KafkaError,
    MetadataMissing,
    MetadataTimeout,
    NetworkError,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    ProtocolError,
    SerializationError,
)
from aiokprod.records import RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster, StoredRecord
from aiokprod.testing.fake_cluster.cluster import EPOCH_MS, LateBeginning
from aiokprod.testing.fake_cluster.log import StoredBatch
from aiokprod.testing.fake_cluster.topology import Partition, Topic
from tests.scenarios.scenario_helpers import TICK
from tests.simulation.call_interrupts import Interrupt, TimeUp
from tests.simulation.fault_scripts import DEFINITE, UNCLEAR, Misfortunes
from tests.simulation.reinstallation import MARK, Incarnation
from tests.simulation.seeds import PARTITIONS, UNKNOWN_CODES, Plan
from tests.simulation.user_objects import HookError, Judged, UserObjects
from tests.simulation.wire_log import FIND_COORDINATOR, INIT_PRODUCER_ID, METADATA, Wire
from tests.simulation.wire_log import Attempt as Sent
from tests.simulation.workload import Attempt, Load, headers_of, key_of

ENDS = {*DEFINITE, *UNCLEAR}
"""Codes that may fail a record before its deadline. MESSAGE_TOO_LARGE is not one of them: no record
of the load is larger than any topic allows, so the batch can be divided."""

BEFORE_APPEND = {2, 10, 18, 19, 29, 31, 32, 44, 45, 47, 59, 76, 87, 100, 103}
"""Codes that brokers return only before the append."""
AFTER_APPEND = {-1, 3, 7, 13, 20, 56, *UNKNOWN_CODES}
"""Codes that some broker returns after the append; they do not show whether the batch is in the
log."""
AFTER_REPLICATION = {6}
"""Like `AFTER_APPEND`, but only where the response waits for the replicas (acks=all)."""
TOO_LARGE = {10, 18}
"""Codes that make the producer divide a batch; such an attempt does not count against `retries`."""

IDLE_S = 700.0
"""A producer is idle in a partition if it has stored nothing there for this number of seconds: the
600 s for which brokers keep its state at least, and the longest time of a response to the last
batch."""

PRODUCE = 0
BY_ID = 13
"""First Produce version that names topics by id."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Place:
    """Where a record was found. `rank` is its position in the partition's history, `stored_at` the
    loop time of the append."""

    topic: str
    topic_id: bytes
    partition: int
    rank: int
    offset: int
    timestamp_ms: int
    is_live: bool
    stored_at: float

    @property
    def log(self) -> tuple[bytes, int]:
        return self.topic_id, self.partition


def longest(plan: Plan, attempt: Attempt, waits: int) -> float:
    """Return the maximum seconds that a record may take (P6) if its call may wait this many times
    for memory."""
    if attempt.limit_s is not None:
        return attempt.limit_s
    return plan.delivery_s_of(attempt.topic) + waits * plan.block_s


class Judge:
    """Checks a complete history once, after the last event.

    `ended_at`: when the producer was closed or broken; infinite if neither happened before the end.

    Attributes:
        used: how often each of `exemptions.EXEMPTIONS` was needed.
        foreign: topic id, partition and offset of records of another producer.
    """

    def __init__(
        self,
        plan: Plan,
        cluster: FakeCluster,
        load: Load,
        misfortunes: Misfortunes,
        wire: Wire,
        ended_at: float,
        objects: UserObjects | None = None,
    ) -> None:
        self.plan = plan
        self.objects = objects or UserObjects(0, ())
        self.cluster = cluster
        self.load = load
        self.misfortunes = misfortunes
        self.wire = wire
        self.places: dict[bytes, list[Place]] = {}
        self.truncated: dict[bytes, list[Place]] = {}
        self.ended_at = ended_at
        self.used: Counter[str] = Counter()
        self.foreign: set[tuple[bytes, int, int]] = set()
        self.slack_s = TICK + 5 * plan.late_timers_s
        by_name = [n.time for n in cluster.requests if n.api_key == PRODUCE and n.version < BY_ID]
        self.last_by_name = max(by_name, default=0.0)

    def check(self) -> None:
        """Run all checks."""
        self._read_logs()
        self.by_value = {attempt.value: attempt for attempt in self.load.attempts}
        strangers = [value for value in self.places if value not in self.by_value]
        _demand(not strangers, "never sent: {}", strangers[:3])
        for attempt in self.load.attempts:
            _demand(attempt.result is not None, "never settled: {}", attempt)
            self._check_place(attempt)
            self._check_answer(attempt)
            self._check_time(attempt)
            self._check_tries(attempt)
            self._check_reason(attempt)
        if self.plan.ordered:
            self._check_order()
        if self.plan.idempotent:
            self._check_sequences()
        self._check_strangers()
        self._check_objects()
        self._check_cluster()

    # -- what the logs hold ---------------------------------------------------------------------

    def _read_logs(self) -> None:
        for topic, partition in self._partitions():
            log = partition.log
            removed = len(log.removed)
            history = [*log.removed, *log.batches]
            for rank, (number, record) in enumerate(_records(history)):
                stored_at = history[number].stored_at
                self._note(
                    self.places, topic, partition, rank, record, number >= removed, stored_at
                )
            for rank, (number, record) in enumerate(_records(log.truncated)):
                stored_at = log.truncated[number].stored_at
                self._note(self.truncated, topic, partition, rank, record, False, stored_at)

    def _partitions(self) -> Iterator[tuple[Topic, Partition]]:
        for topic in self._topics():
            for partition in topic.partitions:
                yield topic, partition

    def _topics(self) -> list[Topic]:
        return [*self.cluster.deleted, *self.cluster.topics.values()]

    def _note(
        self,
        found: dict[bytes, list[Place]],
        topic: Topic,
        partition: Partition,
        rank: int,
        record: StoredRecord,
        is_live: bool,
        stored_at: float,
    ) -> None:
        value = record.value or b""
        if value.startswith(MARK):
            self.foreign.add((topic.topic_id, partition.index, record.offset))
            return
        _demand(
            zlib.crc32(value[:-8]) == int(value[-8:] or b"0", 16), "bytes were changed: {}", record
        )
        number = int(value.split(b"/", 4)[3])
        headers = self.objects.headers_of(number, headers_of(number))
        if number in self.load.touched:
            headers = record.headers  # a struck call may have dropped what an object returned
        fits = (record.key, record.headers) == (key_of(number), headers)
        _demand(fits, "the key or the headers are another record's: {}", record)
        place = Place(
            topic.name, topic.topic_id, partition.index, rank, record.offset, record.timestamp_ms,
            is_live, stored_at,
        )  # fmt: skip
        found.setdefault(value, []).append(place)

    # -- one record -----------------------------------------------------------------------------

    def _check_place(self, attempt: Attempt) -> None:
        found = self.places.get(attempt.value, [])
        for place in found:
            _demand(place.topic == attempt.topic, "in another topic: {} {}", attempt, place)
            self._check_timestamp(attempt, place)
            asked = attempt.partition
            _demand(asked in (None, place.partition), "in another partition: {} {}", attempt, place)
            key = None if self.plan.options["partitioner_ignore_keys"] else key_of(attempt.number)
            if asked is None and "partitioner" in self.plan.objects:
                choice = self.objects.chosen.get(attempt.number)
                _demand(choice == place.partition, "not chosen: {} {}", attempt, place)
                key = None
            if asked is None and key is not None:
                fits = place.partition in self._places_of(attempt.topic, key, PARTITIONS)
                if not fits and "strange" in self.misfortunes.done:
                    fits = place.partition in self._places_of(attempt.topic, key, 1)
                    self.used["places"] += 1
                _demand(fits, "where its key does not belong: {} {}", attempt, place)
        if not self.plan.idempotent:
            return
        for log, count in Counter(place.log for place in found).items():
            if count > 1:
                times = self._forgotten_during(log, attempt)
                _demand(count <= 1 + times, "stored {} times: {} {}", count, attempt, found)
                self.used["copies"] += 1

    def _check_timestamp(self, attempt: Attempt, place: Place) -> None:
        """Check the stored timestamp: the requested one, or the producer's wall clock during the
        submission. A fault may have set that clock during the submission."""
        told = place.timestamp_ms
        if attempt.timestamp_ms is not None:
            _demand(told == attempt.timestamp_ms, "another timestamp: {} {}", attempt, place)
            return
        # The clock is read once in an iteration of the event loop, which may be as long as a stall.
        pass_began = attempt.started_at
        for since, until in reversed(self.misfortunes.stalls):
            if until == pass_began:
                pass_began = since
        first, last = (EPOCH_MS + 1_000 * t for t in (pass_began, attempt.settled_at))
        fits = any(first - 1 <= told - offset <= last + 1 for offset in self.misfortunes.offsets_ms)
        _demand(fits, "not the time of its hand-over: {} {}", attempt, place)

    def _forgotten_during(self, log: tuple[bytes, int], attempt: Attempt) -> int:
        """Count how often the brokers of a log lost the state of the producer before they appended
        the last copy of this record, either while the record was in flight, or earlier without a
        later append. A copy on an abandoned connection may arrive at any time."""
        return self._forgotten_at(self._amnesia_of(log), log, attempt)

    def _forgotten_at(self, instants: list[float], log: tuple[bytes, int], attempt: Attempt) -> int:
        if not instants:
            return 0
        since = self._under_way_since(attempt)
        known = (
            other.started_at
            for other in self.load.attempts
            if other.settled_at <= since
            and isinstance(other.result, RecordMetadata)
            and any(place.log == log for place in self.places.get(other.value, []))
        )
        last_known = max(known, default=float("-inf"))
        last_copy = max(place.stored_at for place in self.places[attempt.value] if place.log == log)
        return sum(last_known <= instant <= last_copy for instant in instants)

    def _may_misorder(self, log: tuple[bytes, int], attempt: Attempt) -> bool:
        """Return True if the brokers lost the producer's state so that the order of records may
        change. A pause after which every broker has dropped the state does not count: a producer
        must expect that, and then send one batch at a time."""
        forgotten = self.misfortunes.amnesia.get(log, ())
        instants = [at for at in forgotten if not self._is_idle(log, at)]
        return self._forgotten_at(instants + self._reborn_at(log), log, attempt) > 0

    def _is_idle(self, log: tuple[bytes, int], at: float) -> bool:
        """Return True if the producer was idle in this log: for `IDLE_S` it had stored no batch
        there and none was in flight. Its last acknowledgment is then older than the minimum time
        for which brokers keep its state."""
        places = (place for found in self.places.values() for place in found)
        if any(at - IDLE_S < place.stored_at <= at for place in places if place.log == log):
            return False
        topic = next(topic.name for topic in self._topics() if topic.topic_id == log[0])
        return not any(
            attempt.started_at <= at < attempt.settled_at
            for attempt in self.load.attempts
            if attempt.topic == topic and attempt.partition in (None, log[1])
        )

    def _amnesia_of(self, log: tuple[bytes, int]) -> list[float]:
        return [*self.misfortunes.amnesia.get(log, ()), *self._reborn_at(log)]

    def _reborn_at(self, log: tuple[bytes, int]) -> list[float]:
        """Return when the topic of this log was recreated if a later request may have named it;
        such a request reaches the new log."""
        reborn_at = self.misfortunes.reborn.get(log)
        return [reborn_at] if reborn_at is not None and reborn_at <= self.last_by_name else []

    def _under_way_since(self, attempt: Attempt) -> float:
        """Return since when this record, or one before it, was in flight. Brokers without state of
        the producer may append later batches without a batch in doubt, and then all of them are
        renumbered."""
        return min(
            other.started_at
            for other in self.load.attempts
            if other is attempt
            or (
                other.topic == attempt.topic
                and (None in (other.partition, attempt.partition) or other.where == attempt.where)
                and other.started_at <= attempt.started_at <= other.settled_at
            )
        )

    def _places_of(self, topic: str, key: bytes, least: int) -> set[int]:
        """Return the partitions where a key may be stored if the metadata had at least `least`
        partitions."""
        most = max(len(one.partitions) for one in self._topics() if one.name == topic)
        positive = murmur2(key) & 0x7FFFFFFF
        return {positive % count for count in range(least, most + 1)}

    def _check_answer(self, attempt: Attempt) -> None:
        found = self.places.get(attempt.value, [])
        result = attempt.result
        if isinstance(result, RecordMetadata):
            refused = self.objects.must_fail(attempt)
            _demand(not refused, "acknowledged, yet refused by an object: {}", attempt)
            self._check_acknowledged(attempt, result, found)
        elif isinstance(result, KafkaError):
            if result.outcome is not Outcome.UNKNOWN:
                _demand(not found, "definite, yet stored: {} {}", attempt, found)
            self._check_outcome(attempt, result)
        else:
            asked = isinstance(result, asyncio.CancelledError) and self._is_cancelled(attempt)
            asked = asked or self.objects.explains(attempt)
            if isinstance(result, HookError):
                _demand(not found, "was refused, yet stored: {} {}", attempt, found)
            asked = asked or (attempt.is_struck and isinstance(result, Interrupt | TimeUp))
            _demand(asked, "no documented outcome: {} {!r}", attempt, result)

    def _check_outcome(self, attempt: Attempt, error: KafkaError) -> None:
        """Check that the outcome of an error follows from the responses to each attempt."""
        attempts = self._sent(attempt)
        if error.outcome is Outcome.NOT_SENT:
            _demand(not attempts, "was sent: {} {}", attempt, attempts)
            return
        open_still = [one for one in attempts if not self._tells(one, attempt.settled_at)]
        if error.outcome is Outcome.UNKNOWN:
            if attempt.limit_s is not None and isinstance(error, DeliveryTimeout):
                return  # only this call timed out: its batch may still be sent
            _demand(bool(attempts), "no request held it: {} {!r}", attempt, error)
            if isinstance(error, DeliveryTimeout):
                # A response between the expiry and a late wake-up of the task came too late. A
                # record in one batch with an older record expired before its own deadline.
                expired_at = min(attempt.settled_at, attempt.started_at + self._delivery_s(attempt))
                open_still = [one for one in attempts if not self._tells(one, expired_at)]
            if isinstance(error, ProducerClosed | ProducerFailed):
                # The producer ended and received the response in the same iteration of the event
                # loop.
                open_still += [one for one in attempts if one.heard_at == attempt.settled_at]
            _demand(bool(open_still), "each attempt was refused: {} {}", attempt, attempts)
        else:
            in_doubt = [one for one in open_still if self._may_be_appended(one)]
            _demand(not in_doubt, "definite, yet in doubt: {} {}", attempt, in_doubt)

    def _sent(self, attempt: Attempt) -> list[Sent]:
        """Return the requests that contained a record before it had its outcome."""
        return [
            one for one in self.wire.attempts(attempt.value) if one.sent_at <= attempt.settled_at
        ]

    def _unwritten(self, attempt: Attempt) -> list[Sent]:
        """Like `_sent`, for requests whose connection had just broken, so that no byte was
        written."""
        return [
            one
            for one in self.wire.unwritten_attempts(attempt.value)
            if one.sent_at <= attempt.settled_at
        ]

    def _tries(self, attempt: Attempt) -> int:
        """Return the number of attempts at a record that count against `retries`."""
        sent = self._sent(attempt)
        divided = sum(one.code in TOO_LARGE and one.heard_at <= attempt.settled_at for one in sent)
        return len(sent) + len(self._unwritten(attempt)) - divided

    def _check_tries(self, attempt: Attempt) -> None:
        tries, most = self._tries(attempt), self.plan.options["retries"] + 1
        _demand(tries <= most, "{} attempts, {} are allowed: {}", tries, most, attempt)

    def check_used_up(self, attempt: Attempt) -> None:
        """Check a record that failed after all faults had ended: each written attempt must have
        been refused, and there must be one more attempt than `retries`."""
        sent = self._sent(attempt)
        refused = [one for one in sent if one.code and one.heard_at <= attempt.settled_at]
        used_up = self._tries(attempt) == self.plan.options["retries"] + 1
        fits = used_up and len(refused) == len(sent)
        _demand(fits, "a fresh record failed: {} {}", attempt, sent)

    @staticmethod
    def _tells(sent: Sent, settled_at: float) -> bool:
        """Return True if the response showed that the broker had not appended."""
        return sent.heard_at <= settled_at and sent.code in BEFORE_APPEND

    @staticmethod
    def _may_be_appended(sent: Sent) -> bool:
        """Return True if there was no response, or one that a broker may send after the append."""
        if sent.code is None or sent.code in AFTER_APPEND:
            return True
        return sent.code in AFTER_REPLICATION and sent.acks == -1

    def _is_cancelled(self, attempt: Attempt) -> bool:
        return attempt.task in self.load.cancelled

    def _check_acknowledged(
        self, attempt: Attempt, result: RecordMetadata, found: list[Place]
    ) -> None:
        if self.plan.options["acks"] == 0:
            _demand(result.offset is None, "an offset nobody told: {}", attempt)
            return
        _demand(result.topic == attempt.topic, "told another topic: {}", attempt)
        found, truncated = self._of_the_cluster_that_answered(attempt, found)
        seen = [*found, *truncated]
        stored = any(
            (one.partition, one.offset) == (result.partition, result.offset) for one in seen
        )
        if not stored and self._is_confused(attempt, result):
            self.used["unaware"] += 1
            return
        if self.plan.durable:
            _demand(bool(found), "lost: {}", attempt)
        if result.offset is None:
            duplicated = (result.topic, result.partition) in self.misfortunes.duplicated
            forgetful = self.misfortunes.stopped or bool(self.misfortunes.amnesia)
            can_be = duplicated or forgetful
            _demand(can_be, "acknowledged without an offset: {}", attempt)
            self.used["offsets" if duplicated else "newest"] += 1
        else:
            told = result.partition, result.offset
            true = [(place.partition, place.offset) for place in seen]
            _demand(told in true, "wrong offset: {}, it is at {}", attempt, true)
        if attempt.group:
            return  # bulk calls return no timestamps
        stamps = [place.timestamp_ms for place in seen]
        fits = not seen or result.timestamp_ms in stamps
        _demand(fits, "told another timestamp: {}, it has {}", attempt, stamps)

    # -- clusters installed again -----------------------------------------------------------------

    def _answers(self, attempt: Attempt) -> list[Sent]:
        """Return the attempts at a record whose response says that it is in the log."""
        return [
            one
            for one in self._sent(attempt)
            if one.code in (Code.NONE, Code.DUPLICATE_SEQUENCE_NUMBER)
            and one.heard_at <= attempt.settled_at
        ]

    def _of_the_cluster_that_answered(
        self, attempt: Attempt, found: list[Place]
    ) -> tuple[list[Place], list[Place]]:
        """Return where a record was found and where it was truncated, without the logs of earlier
        clusters that no longer existed when the producer sent the first acknowledged attempt."""
        truncated = self.truncated.get(attempt.value, [])
        if not self.misfortunes.incarnations:
            return found, truncated
        first = min((one.sent_at for one in self._answers(attempt)), default=-math.inf)
        gone: set[bytes] = set()
        for cluster in self.misfortunes.incarnations:
            if first > cluster.at:
                gone |= cluster.gone
        kept = [place for place in found if place.topic_id not in gone]
        return kept, [place for place in truncated if place.topic_id not in gone]

    def _is_unaware(self, sent: Sent) -> Incarnation | None:
        """Return the cluster that got this request although the producer had not yet received its
        id, or None if the request went to no such cluster."""
        for cluster in reversed(self.misfortunes.incarnations):
            if cluster.at < sent.sent_at:
                known_at = self.wire.hears_of(cluster.cluster_id)
                return cluster if sent.sent_at <= known_at else None
        return None

    def _is_left_behind(self, attempt: Attempt, error: KafkaError) -> bool:
        """Return True if the producer gave the record up because it received the id of another
        cluster while the record was in doubt, so that no later request contained it. Only then may
        the record end with the client's own INCONSISTENT_CLUSTER_ID."""
        heard = [self.wire.hears_of(one.cluster_id) for one in self.misfortunes.incarnations]
        sent = [one.sent_at for one in self._sent(attempt)]
        left = error.outcome is Outcome.UNKNOWN and any(
            bool(sent) and max(sent) <= at <= attempt.settled_at for at in heard
        )
        is_own = error.code is not None and error.code.number == Code.INCONSISTENT_CLUSTER_ID
        _demand(left or not is_own, "of no other cluster: {} {!r}", attempt, error)
        return left

    def _is_confused(self, attempt: Attempt, result: RecordMetadata) -> bool:
        """Return True if the broker took the record for one of another producer that has the same
        id, from a cluster whose id this producer had not received."""
        for one in self._answers(attempt):
            cluster = self._is_unaware(one)
            if cluster is None or cluster.stranger is None:
                continue
            for topic in self._topics():
                place = topic.topic_id, result.partition, result.offset
                is_new = topic.name == result.topic and topic.topic_id not in cluster.gone
                if is_new and place in self.foreign:
                    return True
        return False

    def _check_strangers(self) -> None:
        """Check that no broker took a batch of another producer for one of this producer, unless
        this producer sent it without having received the cluster's id."""
        at = {
            (*place.log, place.offset): value
            for value, places in self.places.items()
            for place in places
        }
        for cluster in self.misfortunes.incarnations:
            for misled in () if cluster.stranger is None else cluster.stranger.misled:
                value = at.get((*misled.log, misled.offset))
                _demand(value is not None, "a stranger was told of a record of its own: {}", misled)
                assert value is not None
                sent = [one for one in self.wire.attempts(value) if cluster.at < one.sent_at]
                fits = any(self._is_unaware(one) is cluster for one in sent)
                _demand(fits, "taken for another producer's: {} {}", value, misled)
                self.used["unaware"] += 1

    def _check_time(self, attempt: Attempt) -> None:
        took = attempt.settled_at - attempt.started_at
        stalled = self.misfortunes.stalled_s(attempt.started_at, attempt.settled_at)
        if attempt.admitted_at is not None:
            # The call no longer waits for memory: the deadline of the record's batch applies.
            took_then = attempt.settled_at - attempt.admitted_at
            most = self._delivery_s(attempt) + self.slack_s + stalled
            _demand(took_then <= most, "took {} s, not {}: {}", took_then, most, attempt)
        limit = longest(self.plan, attempt, 1) + self.slack_s
        if took <= limit:
            return
        waits = 1 + sum(each.is_admitted for each in attempt.group)
        most = longest(self.plan, attempt, waits) + self.slack_s + stalled
        _demand(took <= most, "took {} s, not {}: {}", took, most, attempt)
        self.used["stalls" if took <= limit + stalled else "waits"] += 1

    def _delivery_s(self, attempt: Attempt) -> float:
        return self.plan.delivery_s_of(attempt.topic)

    def _batch_is_older(self, attempt: Attempt) -> bool:
        """Return True if the deadline of the batch may have been that of an earlier record."""
        begun = attempt.settled_at - self._delivery_s(attempt) + 0.002
        return any(
            other.started_at <= begun and self._may_share_batch(attempt, other)
            for other in self.load.attempts
        )

    def _check_reason(self, attempt: Attempt) -> None:
        """Check that a record failed before its deadline only for a reason that waiting would not
        remove."""
        error = attempt.result
        if not isinstance(error, KafkaError) or self.objects.explains(attempt):
            return
        if isinstance(error, ProducerClosed | ProducerFailed):
            _demand(attempt.settled_at >= self.ended_at, "not ended: {} {!r}", attempt, error)
            return
        took = attempt.settled_at - attempt.started_at
        if isinstance(error, DeliveryTimeout):
            if attempt.limit_s is not None and took >= attempt.limit_s - 0.002:
                return
            if took >= self._delivery_s(attempt) - 0.002:
                return
            _demand(self._batch_is_older(attempt), "failed before its time: {}", attempt)
            self.used["batch age"] += 1
            return
        elif isinstance(error, BufferTimeout | MetadataTimeout) or (
            isinstance(error, SerializationError) and isinstance(error.__cause__, TimeoutError)
        ):  # an asynchronous serializer was cancelled: earlier waits took most of the time
            least = min(self.plan.block_s, attempt.limit_s or self.plan.block_s)
            _demand(took >= least - 0.002, "failed after {} s, before its time: {}", took, attempt)
            return
        elif isinstance(error, BufferFull | MetadataMissing):
            _demand(attempt.is_immediate, "did not wait: {} {!r}", attempt, error)
            return
        elif isinstance(error, SerializationError | ConfigError):
            # A signal handler raised while a serializer or partitioner ran.
            struck = isinstance(error.__cause__, TimeUp)
            _demand(struck, "no user object raises: {} {!r}", attempt, error)
            return
        if self._is_left_behind(attempt, error):
            self.used["other cluster"] += 1
            return
        self._check_told(attempt, error)
        given_up = self._tries(attempt) == self.plan.options["retries"] + 1
        code = -2 if error.code is None else error.code.number
        sequence = code in (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, Code.INVALID_PRODUCER_EPOCH)
        if code == Code.DUPLICATE_SEQUENCE_NUMBER:
            sequence = self.misfortunes.wrapped  # brokers after the wrap may not have the batch
        if code == Code.UNKNOWN_PRODUCER_ID:
            # A part of a divided batch gets no new sequence while the whole batch may be in the
            # log.
            sequence = any(one.code in TOO_LARGE for one in self._sent(attempt))
        in_doubt = sequence and not error.outcome.definite
        ends = code in ENDS or in_doubt
        # After its deadline a record has another error class, whatever the last response was.
        _demand(given_up or ends, "failed without a reason: {} {!r}", attempt, error)
        self.used["codes" if ends else "retries"] += 1

    def _check_told(self, attempt: Attempt, error: KafkaError) -> None:
        """Check that the error's code was received in a response to this record, or is the code for
        an attempt without a response."""
        number = None if error.code is None else error.code.number
        attempts = self._sent(attempt)
        heard = [one for one in attempts if one.heard_at <= attempt.settled_at]
        if any(one.code == number for one in heard):
            return
        if isinstance(error, NetworkError):
            return  # of an attempt that may have failed before it reached its connection
        unheard = len(heard) < len(attempts) or any(one.code is None for one in heard)
        if unheard and (isinstance(error, ProtocolError) or number == Code.NETWORK_EXCEPTION):
            return  # the response cannot be read, or omits the partition
        # Without a producer id nothing is sent. A refused InitProducerId fails the waiting records.
        refused = any(
            one.api_key == INIT_PRODUCER_ID
            and one.heard_at <= attempt.settled_at
            and one.answer.error_code == number
            for one in self.wire.exchanges()
        )
        _demand(refused, "nobody told it: {} {!r} {}", attempt, error, attempts)

    def _may_share_batch(self, attempt: Attempt, other: Attempt) -> bool:
        """Return True if both records may have been in one batch and ended with it, as far as
        `other` waited for that."""
        if other.topic != attempt.topic:
            return False
        if None not in (attempt.partition, other.partition) and other.where != attempt.where:
            return False
        # A signal handler may end the call after the append.
        left_early = other.limit_s is not None or self._is_cancelled(other) or other.is_struck
        told_later = attempt.group or other.group  # when the whole call ends
        together = abs(other.settled_at - attempt.settled_at) < 0.002
        return bool(left_early or told_later or together or self._were_divided(attempt, other))

    def _were_divided(self, attempt: Attempt, other: Attempt) -> bool:
        """Return True if both records were in one batch that the broker found too large. The parts
        of the batch end separately, and each part has the deadline of the whole."""
        codes = (Code.MESSAGE_TOO_LARGE, Code.RECORD_LIST_TOO_LARGE)
        refused_at = {one.sent_at for one in self._sent(attempt) if one.code in codes}
        return any(one.sent_at in refused_at for one in self._sent(other) if one.code in codes)

    # -- order ----------------------------------------------------------------------------------

    def _check_order(self) -> None:
        """Check that records submitted later are stored later (P3), where the order of submission
        is certain."""
        logs: dict[tuple[bytes, int], list[tuple[Attempt, Place]]] = {}
        # A new epoch keeps abandoned batches out of the log; a new producer id cannot.
        all_count = self.plan.idempotent and self.plan.producer_epoch == 0
        for attempt in self.load.attempts:
            acked = isinstance(attempt.result, RecordMetadata)
            if not acked and not all_count:
                continue
            for place in self._counted(attempt):
                logs.setdefault(place.log, []).append((attempt, place))
        for log, entries in logs.items():
            for before, after in _inversions(entries):
                excused = any(self._may_misorder(log, one) for one in (before, after))
                _demand(excused, "{} stands before {}", after, before)
                self.used["order"] += 1

    def _counted(self, attempt: Attempt) -> list[Place]:
        found = self.places.get(attempt.value, [])
        if self.plan.idempotent or not isinstance(attempt.result, RecordMetadata):
            first: dict[tuple[bytes, int], Place] = {}
            for place in found:
                first.setdefault(place.log, place)
            return [*first.values()]  # another check judges whether there may be other copies
        # Without idempotence a retry may duplicate a record; the acknowledged copy counts.
        return [place for place in found if place.offset == attempt.result.offset]

    def _check_sequences(self) -> None:
        """Check that the sequences of each producer epoch are in the log without gaps or
        repetitions, except where the brokers dropped the producer's state between two batches."""
        for topic, partition in self._partitions():
            forgotten = self.misfortunes.amnesia.get((topic.topic_id, partition.index), ())
            expected: dict[tuple[int, int], int] = {}
            stored: dict[tuple[int, int], float] = {}
            for number, record in _records(partition.log.batches):
                if record.producer_id < 0:
                    continue
                epoch = record.producer_id, record.epoch
                wanted = expected.get(epoch, record.sequence)
                stored_at = partition.log.batches[number].stored_at
                fits = record.sequence == wanted or any(
                    stored[epoch] <= at <= stored_at for at in forgotten
                )
                _demand(fits, "sequence {}, not {}: {}", record.sequence, wanted, record)
                expected[epoch] = (record.sequence + 1) % 2**31
                stored[epoch] = stored_at

    # -- hooks ----------------------------------------------------------------------------------

    def _check_objects(self) -> None:
        """Check that each record was reported once, with its outcome, to each interceptor and
        plug-in."""
        judged = Judged(
            self.load.attempts,
            lambda attempt: self.places.get(attempt.value, []),
            lambda attempt: self.truncated.get(attempt.value, []),
            lambda attempt: not isinstance(attempt.result, KafkaError),
            self.plan.options["acks"] != 0,
            self.load.touched,
        )
        for text in self.objects.check(judged):
            raise Violation(text)

    # -- hygiene --------------------------------------------------------------------------------

    def _check_cluster(self) -> None:
        cluster = self.cluster
        _demand(not self.load.complaints, "{}", self.load.complaints[:3])
        _demand(not cluster.network.mutated, "{}", cluster.network.mutated[:3])
        excused = Counter(
            str(late) for late in cluster.late_beginnings if self._begins_rightly(late)
        )
        wrong = [*(Counter(cluster.violations) - excused).elements()]
        _demand(not wrong, "{}", wrong[:3])
        sent = cluster.sends_while_throttled
        _demand(not sent, "{} sends while throttled", sent)

    def _begins_rightly(self, late: LateBeginning) -> bool:
        """Return True if a producer may begin above sequence 0 at this broker. The broker never
        received the earlier batches, which the producer gave up in doubt. They may be in the log,
        so later batches keep their sequences: for example, the second part of a divided batch of
        which a copy was in flight. Brokers before 2.4 refuse the batch; then the producer renumbers
        it."""
        batch = late.batch
        before = [
            self.by_value[value]
            for one, epoch, sequence, value in self.wire.sequences(batch.producer_id)
            if one.partition == late.partition and one.sent_at < late.time
            if epoch == batch.epoch and sequence < batch.base_sequence
            if self.by_value[value].topic == late.topic
        ]
        return bool(before) and all(
            _is_given_up(one) and one.settled_at <= late.time for one in before
        )


def _is_given_up(attempt: Attempt) -> bool:
    """Return True if the record failed and may be in the log."""
    error = attempt.result
    return isinstance(error, KafkaError) and error.outcome is Outcome.UNKNOWN


HASTE = {
    METADATA: (1, 0.0), FIND_COORDINATOR: (5, 0.06), INIT_PRODUCER_ID: (1, 0.0),
}  # fmt: skip
"""Requests that may leave before the backoff after the previous request ends: a number, plus a
share of all requests. A request is repeated after a response that cannot be read. 200 seeds needed
0, 4 and 0, and in transactions what `more` allows."""


def check_haste(wire: Wire, more: int = 0) -> None:
    """Check that repeated requests obey their backoff. The limits are tight enough to detect twice
    the rate.

    `more`: additional requests, because successive producers do not share their backoffs.
    """
    for api_key, (few, share) in HASTE.items():
        is_metadata = api_key == METADATA
        hasty, count = wire.hasty_metadata() if is_metadata else wire.hasty(api_key)
        most = few + more + share * count
        _demand(hasty <= most, "{} of {} requests of API {} in haste", hasty, count, api_key)


def check_counts(cluster: FakeCluster, plan: Plan, span_s: float) -> None:
    """Check that no request and no connection attempt is repeated without a pause: the counts are
    within what the backoffs allow in `span_s` seconds."""
    produce = cluster.count(PRODUCE)
    dials = Counter(dial.address for dial in cluster.network.dials)
    for address, count in dials.items():
        _demand(count <= 26 * span_s + 10, "{} connects to {} in {} s", count, address, span_s)
    appended = sum(
        len(partition.log.batches) + len(partition.log.removed) + len(partition.log.truncated)
        for topic in [*cluster.deleted, *cluster.topics.values()]
        for partition in topic.partitions
    )
    partitions = sum(len(topic.partitions) for topic in cluster.topics.values())
    most = 3 * appended + 12 * partitions * (span_s + 5)
    _demand(
        produce <= most, "{} Produce requests for {} batches in {} s", produce, appended, span_s
    )


def check_idle(metrics: dict[str, Any]) -> None:
    """Check that all memory and all reservations were released."""
    free, total = metrics["buffer_available_bytes"], metrics["buffer_total_bytes"]
    _demand(free == total, "{} bytes are still counted", total - free)
    for gauge in ("waiting_sends", "batches_incomplete"):
        _demand(metrics[gauge] == 0, "{}: {}", gauge, metrics[gauge])


def _inversions(entries: list[tuple[Attempt, Place]]) -> Iterator[tuple[Attempt, Attempt]]:
    """Yield pairs of entries of one log that were submitted in one order and stored in the
    other."""
    entries.sort(key=lambda entry: entry[0].began)
    admitted = sorted(
        (entry for entry in entries if entry[0].admitted is not None),
        key=lambda entry: entry[0].admitted or 0,
    )
    highest: tuple[int, Attempt] | None = None
    index = 0
    for attempt, place in entries:
        while index < len(admitted) and (admitted[index][0].admitted or 0) < attempt.began:
            before, at = admitted[index]
            if highest is None or at.rank > highest[0]:
                highest = at.rank, before
            index += 1
        if highest is not None and highest[1] is not attempt and place.rank <= highest[0]:
            yield highest[1], attempt


def _records(batches: list[StoredBatch]) -> Iterator[tuple[int, StoredRecord]]:
    """Yield the records with the number of their batch."""
    for number, stored in enumerate(batches):
        for record in stored.records():
            yield number, record


def _demand(condition: bool, text: str, *parts: object) -> None:
    """Raise Violation unless the condition holds. The text is formatted only then, because
    formatting took most of the time."""
    if not condition:
        raise Violation(text.format(*parts))
