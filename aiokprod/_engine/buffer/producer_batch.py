"""`ProducerBatch`: a batch of records from its opening to its outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiokprod._engine.buffer.batch_states import IN_REQUEST, OPEN, TRANSITIONS, BatchState
from aiokprod._wire.record_batch import HEADER_SIZE, NO_PRODUCER_ID, NO_SEQUENCE, batch_header

if TYPE_CHECKING:
    from aiokprod._core.batch import BatchCore
    from aiokprod._engine.buffer.queues import PartitionQueue
    from aiokprod.errors import KafkaError


class ProducerBatch:
    """The engine's view of a `BatchCore`: attempts, deadlines, sequence, state of the request.

    Attributes:
        topic_partition: the partition to which it is sent.
        order: position among all batches, (n,) or (n, part) after a split; equals sequence order
            within a partition.
        deadline: loop time at which its records fail if they have no outcome yet.
        not_before: loop time before which a retry must not be sent.
        state: see `BatchState`; only `change_state` writes it.
        possibly_appended: True if it is unknown whether the broker appended the batch in some
            attempt. Never cleared, because a later rejection says nothing about that attempt.
        in_doubt: like `possibly_appended`, but cleared when a sequence error proves that the batch
            is not in the log.
        lost: True if a request with the batch got no response. A copy may still arrive at a broker,
            even after responses to later attempts.
        divided_in_doubt: True for a part of a batch that was in doubt when it was split. A sequence
            error then proves nothing, because brokers do not recognise the parts of a batch that
            they have stored.
        proven_offset: its base offset, if the response to a newer batch proves that offset; -1 if
            unknown.
        maybe_written: True once bytes of some attempt may have reached a broker, even if the
            response was an error. From then on, its sequence must not be assigned to other records.
        payload: the records as they are sent; None before READY and once DONE.
        wire_node: the broker to which it was last sent.
        last_failure: name of the error code, and the error, of the last failed attempt.
        sequence_reset: True if `PartitionSequences.reset_sequences` has given it new sequences.

    docs/design/idempotence.md has a table that shows when each flag is set, cleared and read.

    Source: Java `ProducerBatch`.
    """

    __slots__ = (
        "attempts",
        "base_sequence",
        "codec_id",
        "core",
        "created_at",
        "deadline",
        "divided_in_doubt",
        "in_doubt",
        "last_failure",
        "leader_epoch",
        "lost",
        "maybe_written",
        "not_before",
        "order",
        "payload",
        "plain_size",
        "possibly_appended",
        "producer_epoch",
        "producer_id",
        "proven_offset",
        "queue",
        "sent_at",
        "sequence_reset",
        "state",
        "topic_partition",
        "transactional",
        "wire_node",
    )

    def __init__(
        self,
        core: BatchCore,
        queue: PartitionQueue,
        order: tuple[int, ...],
        created_at: float,
        deadline: float,
    ) -> None:
        self.core = core
        self.queue = queue
        self.topic_partition = queue.topic_partition
        self.order = order
        self.created_at = created_at
        self.deadline = deadline
        self.attempts = 0
        self.not_before = 0.0
        self.sent_at = 0.0
        self.wire_node = -1
        self.leader_epoch = -1
        self.last_failure: tuple[str, KafkaError | None] = ("", None)
        self.state = OPEN
        self.possibly_appended = False
        self.in_doubt = False
        self.lost = False
        self.divided_in_doubt = False
        self.proven_offset = -1
        self.maybe_written = False
        self.payload: bytes | None = None
        self.plain_size = 0
        self.codec_id = 0
        self.producer_id = NO_PRODUCER_ID
        self.producer_epoch = -1
        self.base_sequence = NO_SEQUENCE
        self.sequence_reset = False
        self.transactional = False
        core.owner = self

    def change_state(self, state: BatchState) -> None:
        """Set the state. Raises `AssertionError` if `TRANSITIONS` does not allow this."""
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"{self!r}: {self.state} -> {state}")
        self.state = state

    @property
    def in_flight(self) -> bool:
        """True if the batch is in a request that has not ended."""
        return self.state in IN_REQUEST

    @property
    def size(self) -> int:
        """Size in a request, including the header, in bytes; an upper bound while the batch is
        open."""
        payload = self.core.size if self.payload is None else len(self.payload)
        return HEADER_SIZE + payload

    @property
    def compression_ratio(self) -> float:
        """Compressed size / plain size of the records; 1 until the batch is encoded."""
        payload = self.payload
        return 1.0 if payload is None or not self.plain_size else len(payload) / self.plain_size

    @property
    def has_sequence(self) -> bool:
        """True once the batch has a sequence, with which it may have reached a broker."""
        return self.base_sequence != NO_SEQUENCE

    def leader_changed(self, leader_epoch: int) -> bool:
        """Return True if the leader epoch in the metadata differs from that of the last attempt. It
        is lower only if the topic was created again: otherwise the metadata accepts no lower epoch.
        Source: Java `ProducerBatch.hasLeaderChangedForTheOngoingRetry`."""
        known = self.leader_epoch >= 0 and leader_epoch >= 0
        return known and leader_epoch != self.leader_epoch

    def chunks(self) -> tuple[bytes, bytes]:
        """Return the encoded header and the records of the batch. The header is created for each
        attempt; neither is ever changed."""
        core = self.core
        assert self.payload is not None, "batch is not encoded"
        header = batch_header(
            self.payload,
            count=core.record_count,
            base_timestamp=core.base_timestamp,
            max_timestamp=core.max_timestamp,
            codec_id=self.codec_id,
            producer_id=self.producer_id,
            epoch=self.producer_epoch,
            base_sequence=self.base_sequence,
            transactional=self.transactional,
        )
        return header, self.payload

    def note_unknown(self, *, lost: bool = False) -> None:
        """Record that it is unknown after an attempt whether the broker has appended the batch.
        `lost` means that there was no response at all."""
        self.maybe_written = True
        self.lost = self.lost or lost
        self.possibly_appended = True
        self.in_doubt = True

    def on_emptied(self) -> None:
        """Discard the batch. Called by `BatchCore` when all records were withdrawn before the batch
        was encoded."""
        self.queue.accumulator.discard(self)

    def fail(self, error: KafkaError, record_errors: dict[int, KafkaError] | None = None) -> bool:
        """Fail all records. Return False if they already have their outcome."""
        return self.core.fail(error, record_errors, self)

    def __repr__(self) -> str:
        return (
            f"<ProducerBatch {self.topic_partition} #{self.order} records="
            f"{self.core.record_count} state={self.state} attempts={self.attempts} "
            f"sequence={self.base_sequence}>"
        )
