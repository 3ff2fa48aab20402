"""Bugs of this client, reintroduced one at a time (issue 17, D1 to D11 and B0 to B3).

As in `bugs`, each patches the engine from outside. H2 and H3 were in compiled code, which cannot be
patched: `make sanitize` and tests/core search for bugs of their kind.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from aiokprod._backoff import ExponentialBackoff
from aiokprod._core.batch import BatchCore
from aiokprod._engine.buffer.accumulator import RecordAccumulator
from aiokprod._engine.buffer.broker_memory_quota import BrokerMemoryQuota
from aiokprod._engine.buffer.producer_batch import ProducerBatch
from aiokprod._engine.identity import sequence_errors, sequences, transaction_driver
from aiokprod._engine.identity.coordinators import Coordinators
from aiokprod._engine.identity.idempotence import IdempotentSequences
from aiokprod._engine.identity.producer_id_requests import ProducerIdRequests
from aiokprod._engine.identity.sequence_errors import SequenceAction, SequenceDecision
from aiokprod._engine.identity.sequences import PartitionSequences
from aiokprod._engine.identity.transaction_driver import TransactionDriver
from aiokprod._engine.metadata.cache import Metadata
from aiokprod._engine.metadata.merge import ResponseMerger
from aiokprod._engine.metadata.updater import MetadataUpdater
from aiokprod._errors import TxnApi
from aiokprod._net.channel import KafkaChannel
from aiokprod._net.channel_states import Event, State
from aiokprod._net.connection import Connection
from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod._net.tls_transport import TlsTransport
from aiokprod._wire.record_batch import HEADER_SIZE
from aiokprod.errors import AuthenticationError, Code, NetworkError
from tests.detection.bugs import TRANSACTIONS, Patch, bug, found_by, rated

WRITTEN = "test_acks0_futures_resolve_when_the_bytes_have_left_the_process"

# -- records --------------------------------------------------------------------------------------


@bug
def sequence_given_out_again_after_an_error(patch: Patch) -> None:
    """D1: 56 and 3 counted as refusals, and the next batch reused the sequence of a stored one: it
    was acknowledged with the offset of that batch, and lost."""
    rated(patch, {3, 56})
    may_reuse = PartitionSequences.may_reuse

    def careless(self: Any, batch: Any) -> bool:
        known, batch.maybe_written = batch.maybe_written, batch.possibly_appended
        try:
            return may_reuse(self, batch)
        finally:
            batch.maybe_written = known

    patch.setattr(PartitionSequences, "may_reuse", careless)


@bug
def storage_error_called_definite(patch: Patch) -> None:
    """B0: KAFKA_STORAGE_ERROR also follows an append."""
    rated(patch, {56})


@bug
def fenced_epoch_fails_the_batch(patch: Patch) -> None:
    """D11: INVALID_PRODUCER_EPOCH scheduled an epoch bump but failed the batch nevertheless."""
    classify = IdempotentSequences.classify

    def helpless(self: Any, batch: Any, code: int, log_start: int) -> SequenceAction:
        action = classify(self, batch, code, log_start)
        if code == Code.INVALID_PRODUCER_EPOCH:
            return dataclasses.replace(action, decision=SequenceDecision.NONE)
        return action

    patch.setattr(IdempotentSequences, "classify", helpless)


@bug
def out_of_order_taken_for_absence(patch: Patch) -> None:
    """A restarted broker recognises only the newest batch of a producer; older ones were renumbered
    and stored twice."""
    patch.setattr(sequence_errors, "_classify_by_newer", lambda batch, entry: None)


# -- waiting --------------------------------------------------------------------------------------


@bug
def leaderless_looked_at_too_early(patch: Patch) -> None:
    """A batch that becomes ready in the same run waits for a leader that no request asks for."""
    advance = RecordAccumulator.advance
    before: dict[int, bool] = {}
    leaderless = vars(RecordAccumulator)["leaderless"].fget
    assert leaderless is not None

    def advanced(self: Any, now: float) -> None:
        before[id(self)] = leaderless(self)
        advance(self, now)

    patch.setattr(RecordAccumulator, "advance", advanced)
    patch.setattr(
        RecordAccumulator,
        "leaderless",
        property(lambda self: before.get(id(self), False)),
    )


@bug
def batch_opened_before_it_is_known(patch: Patch) -> None:
    """H1: the append path used the open batch before anything else had a reference to it. If a
    signal handler raised before the other steps, the batch was in no queue and in no set, without a
    deadline, or no task was woken: records of later calls were added to it and never got an
    outcome."""

    def opened(self: Any, queue: Any) -> bool:
        self._maybe_add_partition(queue.topic_partition)
        now = self._loop.time()
        limit = max(1, queue.settings.batch_size - HEADER_SIZE)
        core = BatchCore(
            queue.topic, queue.partition, self._loop, limit, self._compressor.ratio(queue.topic), 0
        )
        deadline = now + queue.settings.delivery_timeout
        batch = ProducerBatch(core, queue, (next(self._orders),), now, deadline)
        queue.core = core
        queue.batches.append(batch)
        self.incomplete[batch] = None
        self.expires_at = min(self.expires_at, deadline)
        self.place(queue, now)
        self._wakeup()
        return True

    patch.setattr(RecordAccumulator, "_open", opened)


@bug
def waiter_stays_in_the_line_of_the_old_leader(patch: Patch) -> None:
    """D5: a call waits for a broker that no longer leads its partition."""
    patch.setattr(BrokerMemoryQuota, "follow", lambda self, nodes: None)


# -- metadata -------------------------------------------------------------------------------------


@bug
def missing_epoch_is_older(patch: Patch) -> None:
    """D6: epoch -1 counted as older than any other, so the old leader was kept forever."""
    lags = ResponseMerger._lags

    def older(self: Any, known: Any, epoch: int, *, same_id: bool) -> bool:
        if self._reliable_epochs and epoch < 0 <= known.leader_epoch:
            return True
        return lags(self, known, epoch, same_id=same_id)

    patch.setattr(ResponseMerger, "_lags", older)


@bug
def lower_epochs_never_believed(patch: Patch) -> None:
    """D9: the epochs of a topic that was recreated without an id restart at 0, so the old leader
    was kept forever."""
    patch.setattr(
        ResponseMerger,
        "_lags",
        lambda self, known, epoch, *, same_id: 0 <= epoch < known.leader_epoch,
    )


@found_by("tests/scenarios/test_inconsistent_metadata.py")
def old_epochs_believed_while_anything_is_wrong(patch: Patch) -> None:
    """A broker that was cut off restored the old leader after five requests because of another
    partition, although the topic's id had not changed."""
    lags = ResponseMerger._lags
    patch.setattr(
        ResponseMerger,
        "_lags",
        lambda self, known, epoch, *, same_id: lags(self, known, epoch, same_id=False),
    )


@found_by("tests/scenarios/test_inconsistent_metadata.py")
def contradicted_leader_counts_as_confirmed(patch: Patch) -> None:
    """A topic without an id was recreated, and metadata was fetched during each of its slow Produce
    requests: the refusals counted as older than the metadata, so the lower epochs were never
    accepted (seed 229353)."""
    request = Metadata.request_update
    patch.setattr(Metadata, "request_update", lambda self, seen=None, *_: request(self, seen))


@bug
def slow_broker_is_not_asked_for_metadata(patch: Patch) -> None:
    """D8: the producer waited for unreachable brokers instead of asking a slow one."""

    def chosen_only(self: Any, chosen: int | None, now: float) -> Any:
        fetch = self._fetch
        if chosen is None or (fetch is not None and chosen in fetch.asked):
            return None
        return self._client.ready(chosen, now)

    patch.setattr(MetadataUpdater, "_askable", chosen_only)


# -- connections ----------------------------------------------------------------------------------


@bug
def slow_handshake_gets_no_more_time(patch: Patch) -> None:
    """B2: the ApiVersions exchange and the authentication shared the setup timeout of the first
    attempt."""
    begin, disconnected = Connection.begin_setup, ClusterConnectionStates.disconnected

    def hurried(self: Any, now: float, timeout: float) -> None:
        begin(self, now, timeout)
        self._request_timeout = 0.0

    def forgiven(self: Any, node_id: int, now: float, *, was_up: bool, was_ready: bool) -> None:
        disconnected(self, node_id, now, was_up=was_up, was_ready=was_ready or was_up)

    patch.setattr(Connection, "begin_setup", hurried)
    patch.setattr(ClusterConnectionStates, "disconnected", forgiven)


@found_by("tests/net/test_tls_transport.py::" + WRITTEN)
def encrypted_bytes_count_as_written(patch: Patch) -> None:
    """B1: the TLS layer reported only bytes that were not yet encrypted. Encrypted bytes in the
    process counted as written: records with acks=0 succeeded, and `close` lost them."""
    patch.setattr(TlsTransport, "get_write_buffer_size", lambda self: 0)
    patch.setattr(TlsTransport, "pause_writing", lambda self: None)


@bug
def no_jitter_at_the_maximum(patch: Patch) -> None:
    """B3: backoffs that grow above the maximum before they are limited all have the same length."""

    def after(self: Any, failures: int, rng: Any) -> float:
        grown = self.initial * self.multiplier ** min(failures, 32)
        jittered = grown * rng.uniform(1 - self.jitter, 1 + self.jitter)
        return float(min(jittered, self.maximum))

    patch.setattr(ExponentialBackoff, "after", after)


# -- transactions ---------------------------------------------------------------------------------


def _without_doubt(patch: Patch, calls: set[TxnApi]) -> None:
    original = TransactionDriver._read

    def certain(call: TxnApi, reply: Any, result: Any, *rest: Any) -> None:
        original(call, reply, result, *rest)
        if call in calls:
            result.in_doubt = result.lost

    patch.setattr(TransactionDriver, "_read", staticmethod(certain))


@found_by(TRANSACTIONS)
def refused_end_called_definite(patch: Patch) -> None:
    """D2: EndTxn was executed, returned 15, 16 or an unknown code, and was reported as refused."""
    _without_doubt(patch, {TxnApi.END})


@found_by(TRANSACTIONS)
def refused_addition_called_definite(patch: Patch) -> None:
    """D10: AddPartitionsToTxn was executed and returned 15 or 16, and the abort sent no EndTxn."""
    _without_doubt(patch, {TxnApi.ADD_PARTITIONS, TxnApi.ADD_OFFSETS})


@found_by(TRANSACTIONS)
def throttled_coordinator_is_unreachable(patch: Patch) -> None:
    """D3: the end of a throttle was treated like the end of a reconnect backoff."""

    async def connected(self: Any, kind: Any, key: str, wanted: Any) -> Any:
        coordinator = self._known[kind, key]
        give_up = self._loop.time() + self._request_timeout
        tried = False
        while self._known.get((kind, key)) is coordinator and wanted():
            self._network.clear()
            now = self._loop.time()
            node_id: int = self._client.coordinator_id(coordinator.node)
            self.waiting_for = node_id
            slot = self._client.ready(node_id, now)
            if slot is not None:
                return slot
            retry_at = self._client.retry_at(node_id, now)
            if now >= give_up or (tried and retry_at < math.inf):
                return None
            tried = True
            await self._network.wait(min(retry_at, give_up))
        return None

    patch.setattr(Coordinators, "_connected", connected)


@found_by(TRANSACTIONS)
def coordinator_must_be_in_the_metadata(patch: Patch) -> None:
    """D4: the address in the FindCoordinator response was not used."""
    connected = Coordinators._connected

    async def listed(self: Any, kind: Any, key: str, wanted: Any) -> Any:
        node = self._known[kind, key].node
        give_up = self._loop.time() + self._request_timeout
        self._metadata.request_update()
        while node.id not in self._metadata.snapshot.nodes:
            now = self._loop.time()
            if now >= give_up or not wanted():
                return None
            self._network.clear()
            await self._network.wait(min(give_up, now + 1.0))
        if (kind, key) not in self._known:
            return None
        return await connected(self, kind, key, wanted)

    patch.setattr(Coordinators, "_connected", listed)


@found_by(TRANSACTIONS)
def damaged_lookup_is_fatal(patch: Patch) -> None:
    """D7: one unreadable FindCoordinator response ended the producer."""

    def unsendable(reply: Any) -> bool:
        return not isinstance(reply.error, NetworkError | AuthenticationError)

    patch.setattr(transaction_driver, "_unsendable", unsendable)


# -- rare faults ----------------------------------------------------------------------------------


@bug
def idle_producer_taken_for_known(patch: Patch) -> None:
    """Several batches were sent at once although the producer had been idle for longer than brokers
    keep its state: the first was refused, and the broker accepted the second as the first one of an
    unknown producer."""
    patch.setattr(sequences, "STATE_KEPT_S", math.inf)


@bug
def producer_id_kept_in_another_cluster(patch: Patch) -> None:
    """The producer kept its id after the cluster id had changed: a reinstalled cluster had
    allocated the id to another producer, and the batches of each were treated as the other's."""
    patch.setattr(IdempotentSequences, "on_cluster_changed", lambda self: False)


@bug
def producer_id_given_once_more_begins_anew(patch: Patch) -> None:
    """A cluster that had been reinstalled on the old disks allocated the id that the producer had
    used there before: its first batches were treated as duplicates of old ones."""
    assign = ProducerIdRequests._assign

    def forgetful(self: Any, producer_id: int, epoch: int, now: float) -> None:
        self._tracker.used.clear()
        assign(self, producer_id, epoch, now)

    patch.setattr(ProducerIdRequests, "_assign", forgetful)


@bug
def batch_in_doubt_sent_to_another_cluster(patch: Patch) -> None:
    """Batches that might be in the log of the old cluster were resent to the new one, which may
    have them from a mirror of the old one."""
    changed = IdempotentSequences.on_cluster_changed

    def kept(self: Any) -> bool:
        changed(self)
        for entry in self.tracker.partitions.values():
            entry.foreign = False
        return False

    patch.setattr(IdempotentSequences, "on_cluster_changed", kept)


@bug
def session_renewed_while_throttled(patch: Patch) -> None:
    """A SASL session that expired while a broker throttled the client was renewed at once. The
    broker read nothing before the end of the throttle, and the connection failed."""
    renew = Connection._reauthenticate

    def at_once(self: Any) -> bool:
        until, self.throttled_until = self.throttled_until, 0.0
        try:
            return renew(self)
        finally:
            self.throttled_until = until

    patch.setattr(Connection, "_reauthenticate", at_once)


@bug
def session_renewed_when_it_has_ended(patch: Patch) -> None:
    """KIP-368: brokers close a connection on which anything but a renewal arrives after the end of
    its session."""
    become_ready = Connection._become_ready

    def late(self: Any, event: Any) -> None:
        self.channel.session_lifetime_s *= 1.2
        become_ready(self, event)

    patch.setattr(Connection, "_become_ready", late)


@bug
def session_renewed_behind_requests(patch: Patch) -> None:
    """KIP-368: the requests of a renewal must not be sent while other requests are in flight
    (F78)."""

    def begin(self: Any, now: float, deadline: float) -> None:
        self._advance(Event.REAUTHENTICATE)
        self._handshake_deadline = deadline
        self._start_authentication(now)

    def is_due(self: Any) -> bool:
        return bool(self.held and self.state is State.READY)

    patch.setattr(KafkaChannel, "reauthenticate", begin)
    patch.setattr(KafkaChannel, "reauthentication_due", property(is_due))
