"""Sends InitProducerId for an idempotent producer without transactions, and processes the response.

Source: KIP-98; Java `Sender.maybeSendAndPollTransactionalRequest`, `InitProducerIdHandler`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aiokprod._engine.identity.producer_state import StateRequest
from aiokprod._engine.identity.sequences import MAX_EPOCH
from aiokprod._wire.messages.init_producer_id import InitProducerIdRequest
from aiokprod._wire.record_batch import MAX_SEQUENCE, NO_PRODUCER_ID
from aiokprod.errors import Code, KafkaError, ProducerFailed, broker_error, error_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._engine.identity.sequences import SequenceTracker


class ProducerIdRequests:
    """The `IdentitySource` of an idempotent producer.

    Attributes:
        fatal_error: the error after which nothing can be sent any more; None if there is none.
        pending_failure: the error of a rejected InitProducerId request. It fails the pending
            batches; the request is repeated for later records.
    """

    transactional_id: str | None = None
    max_produce_version: int | None = None
    reserved_node: int | None = None

    def __init__(
        self,
        tracker: SequenceTracker,
        backoff: Callable[[int], float],
        on_ready: Callable[[], None],
    ) -> None:
        self.fatal_error: KafkaError | None = None
        self.pending_failure: KafkaError | None = None
        self._tracker = tracker
        self._backoff = backoff
        self._on_ready = on_ready
        self._attempts = 0
        self._request_at = 0.0
        self._requesting = False
        self._cluster = 0  # `SequenceTracker.clusters` when the request was sent

    def on_fatal(self, error: KafkaError) -> None:
        """Store the fatal error; only the first one is kept."""
        self.fatal_error = self.fatal_error or error

    def close(self, error: KafkaError) -> None:
        """Does nothing: no call waits for a producer id."""

    def next_request(self, now: float, pending: bool) -> StateRequest | None:
        """Return the InitProducerId request if it is due at `now`, or None. At most one is in
        flight."""
        if self.next_request_at(now, pending) > now:
            return None
        self._requesting = True
        self._cluster = self._tracker.clusters
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=MAX_SEQUENCE)
        return StateRequest(request, self._on_body, self._on_error)

    def next_request_at(self, now: float, pending: bool) -> float:
        """Return the time at which to send the next InitProducerId request; inf if there is a
        producer id or a request is in flight. After a failure, the request is sent only if records
        wait for the id, and only after the backoff."""
        if self._tracker.producer_id != NO_PRODUCER_ID or self._requesting:
            return math.inf
        wanted = self.fatal_error is None and (pending or not self._attempts)
        return self._request_at if wanted else math.inf

    def _on_body(self, body: Any, now: float) -> None:
        code = error_code(body.error_code)
        if code.number == Code.NONE and body.producer_id < 0:
            self._retry_later(now)  # neither an id nor an error
        elif self._cluster != self._tracker.clusters:
            self._retry_later(now)  # a broker of the previous cluster has responded
        elif code.number == Code.NONE:
            self._assign(body.producer_id, body.producer_epoch, now)
        elif code.retriable:
            self._retry_later(now)
        else:
            self._retry_later(now)
            self.pending_failure = broker_error(
                code.number,
                "the broker refuses a producer id (idempotence needs one); grant IdempotentWrite "
                "on the cluster or Write on a topic, or set enable_idempotence=False",
            )
            self._on_ready()

    def _assign(self, producer_id: int, epoch: int, now: float) -> None:
        """Use a producer id from a broker, with an epoch above all epochs that this producer has
        used with this id.

        A reinstalled cluster assigns ids from the beginning. If it has kept the old logs, brokers
        would take new batches for duplicates of old batches with the same id, epoch and sequence.
        """
        used = self._tracker.used.get(producer_id, -1)
        if used >= MAX_EPOCH:
            self._retry_later(now)
            return
        self._requesting = False
        self._attempts = 0
        self._tracker.set_producer_id(producer_id, max(epoch, used + 1))
        self._on_ready()

    def _on_error(self, error: KafkaError, now: float) -> None:
        if error.code is not None and error.code.number == Code.UNSUPPORTED_VERSION:
            self._requesting = False
            self.fatal_error = ProducerFailed(
                "the broker does not support InitProducerId: it is older than Kafka 0.11; set "
                "enable_idempotence=False"
            )
            self.fatal_error.__cause__ = error
            self._on_ready()
        else:
            self._retry_later(now)

    def _retry_later(self, now: float) -> None:
        self._requesting = False
        self._attempts += 1
        self._request_at = now + self._backoff(self._attempts)
