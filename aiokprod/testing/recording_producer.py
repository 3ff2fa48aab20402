"""`RecordingProducer`: a `Producer` without brokers, for unit tests, like Java's `MockProducer`.

It is the real producer with a private `FakeCluster`, so that arguments, serializers, partitioners
and transactions behave, and fail, as in production.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiokprod.errors import BrokerError, Code, ConfigError, ErrorCode, KafkaError, error_code
from aiokprod.producer import Producer
from aiokprod.records import ProducerRecord, RecordMetadata
from aiokprod.testing.api import Api
from aiokprod.testing.expectations import Expectations, expecting
from aiokprod.testing.fake_cluster.cluster import FakeCluster
from aiokprod.testing.fake_cluster.control import Gate, Reaction
from aiokprod.testing.fake_cluster.topology import Topic

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._client.runtime import Runtime
    from aiokprod._engine.buffer.accumulator import RecordAccumulator
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod._engine.buffer.queues import PartitionQueue

K = TypeVar("K")
V = TypeVar("V")

_HELD: Final[dict[str, Any]] = {
    "batch_size": 0,
    "delivery_timeout_ms": 7_200_000,
    "request_timeout_ms": 3_600_000,
    "close_timeout_ms": 0,
}
"""Settings with auto_complete=False. Each record is a separate batch and waits for the test."""


_LEADER: Final = 1


class _OneLeaderCluster(FakeCluster):
    """A cluster in which broker 1 leads all partitions, and broker 2 responds to other requests.
    Responses of a connection keep the order of its requests, so that with a single broker a
    Metadata response would wait behind held records."""

    def __init__(self) -> None:
        super().__init__(2, default_partitions=1, default_replication=1, create_s=0.0)
        self.coordinator_ids = (2,)

    def _add_partitions(self, topic: Topic, count: int, replication: int | None) -> None:
        super()._add_partitions(topic, count, replication)
        for partition in topic.partitions[-count:]:
            partition.replicas = partition.isr = (_LEADER,)
            partition.leader = _LEADER


class _History:
    """An interceptor that stores the records and counts their outcomes."""

    def __init__(self) -> None:
        self.records: list[ProducerRecord[Any, Any]] = []
        self.settled = 0
        self.answered = 0  # number of settled records that a broker acknowledged or failed

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        self.records.append(record)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.settled += 1
        self.answered += error is None or isinstance(error, BrokerError)

    def close(self) -> None:
        """Nothing to close."""


def _send_in_order(accumulator: RecordAccumulator) -> None:
    """Send only the oldest record without an outcome, across all partitions. Otherwise the next
    record to complete could be in any partition."""
    drain = accumulator.drain

    def drain_oldest(
        node_id: int, max_size: int, may_drain: Callable[[PartitionQueue, ProducerBatch], bool]
    ) -> list[ProducerBatch]:
        def is_next(queue: PartitionQueue, batch: ProducerBatch) -> bool:
            waiting = (one for one in accumulator.incomplete if not one.core.settled)
            return next(waiting, None) is batch and may_drain(queue, batch)

        return drain(node_id, max_size, is_next)

    accumulator.drain = drain_oldest  # type: ignore[method-assign]


class RecordingProducer(Producer[K, V]):
    """A producer that sends its records to a cluster in the test's process and stores them.

    ::

        producer = RecordingProducer(value_serializer=JsonSerializer())
        await service(producer)
        assert producer.history[0].value == {"id": 1}

    The class has the arguments and methods of `Producer`. Topics are created with one partition on
    first use, unless the test has created them: ``producer.cluster.create_topic("t", 3)``.

    Args:
        auto_complete: acknowledge records immediately. If False, each record waits for
            `complete_next` or `fail_next`, in the order of sending. The producer then sends one
            record per request, and the end of `async with` does not wait for records.
        settings: see `Producer`. The defaults of bootstrap_servers and environment are those of
            `cluster`.

    Attributes:
        cluster: the `FakeCluster`, for topics, faults and logs.

    Source: Java `MockProducer`.
    """

    def __init__(self, *arguments: Any, auto_complete: bool = True, **settings: Any) -> None:
        if arguments:
            raise ConfigError("RecordingProducer takes its settings as keyword arguments")
        self.cluster: FakeCluster = _OneLeaderCluster()
        self._history = _History()
        self._gate: Gate | None = None
        self._decided = 0
        self._forgotten = 0
        settings.setdefault("bootstrap_servers", self.cluster.bootstrap_servers)
        settings.setdefault("environment", self.cluster.environment())
        if not auto_complete:
            settings = _HELD | settings
            self._gate = Gate()
            self.cluster.control(Api.PRODUCE, Reaction(gate=self._gate))
        given: Any = settings.pop("interceptors", ())
        interceptors = [*given, self._history] if isinstance(given, Sequence) else given
        super().__init__(interceptors=interceptors, **settings)

    def _launch(self) -> Runtime:
        runtime = super()._launch()
        if self._gate is not None:
            _send_in_order(runtime.accumulator)
        return runtime

    @property
    def history(self) -> list[ProducerRecord[K, V]]:
        """The records in the order of the calls, after the interceptors and before serialization.

        Records that failed later are included. Records with invalid arguments are not.
        """
        return self._history.records[self._forgotten :]

    @property
    def pending(self) -> int:
        """Number of records that have no outcome, and for which neither `complete_next` nor
        `fail_next` was called."""
        history = self._history
        deciding = max(0, self._decided - history.answered)
        return max(0, len(history.records) - history.settled - deciding)

    def complete_next(self) -> bool:
        """Acknowledge the oldest pending record. Await its `Delivery`, which is done a few
        iterations of the event loop later.

        Returns:
            False if no record is pending.

        Raises:
            ConfigError: the producer completes records itself.
        """
        return self._decide("complete_next", Reaction())

    def fail_next(self, error: Code | ErrorCode | int) -> bool:
        """Respond to the oldest pending record with a broker's error code. See `complete_next`.

        After a retriable code (`ErrorCode.retriable`), the producer retries the record, which is
        pending again. After any other code, the record fails.

        Returns:
            False if no record is pending.

        Raises:
            ConfigError: the producer completes records itself, or the code is 0.
        """
        number = error.number if isinstance(error, ErrorCode) else int(error)
        if number == 0:
            raise ConfigError("fail_next(0): 0 is not an error; use complete_next()")
        retried = error_code(number).retriable
        done = self._decide("fail_next", Reaction(process=False, error=number))
        if done and retried:
            self._decided -= 1
        return done

    def clear(self) -> None:
        """Clear the history. The records keep their outcomes."""
        self._forgotten = len(self._history.records)

    def expecting(self, *, committed: bool = False) -> Expectations:
        """Return assertions on the records written from now on. See `Expectations`."""
        return expecting(self.cluster, committed=committed)

    async def flush(self, timeout: float | None = None) -> None:
        """Acknowledge all pending records, then flush like `Producer.flush`."""
        while self._gate is not None and self.complete_next():
            pass
        await super().flush(timeout)

    def _decide(self, call: str, reaction: Reaction) -> bool:
        if self._gate is None:
            raise ConfigError(
                f"{call}: the producer completes records itself; create it with "
                "RecordingProducer(auto_complete=False)"
            )
        if self.pending <= 0:
            return False
        self._decided += 1
        self._gate.let_through(reaction)
        return True
