"""`RecordingProducer`: a `Producer` without brokers, for unit tests, like Java's `MockProducer`.

It is the real producer with a separate `FakeCluster`, so that arguments, serializers, partitioners
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
"""Settings with auto_complete=False: each record is a batch, and waits for the test."""


_LEADER: Final = 1


class _OneLeaderCluster(FakeCluster):
    """Broker 1 leads all partitions, broker 2 responds to all other requests: responses of a
    connection keep the order of its requests, so metadata would wait behind records that are
    held."""

    def __init__(self) -> None:
        super().__init__(2, default_partitions=1, default_replication=1, create_s=0.0)
        self.coordinator_ids = (2,)

    def _add_partitions(self, topic: Topic, count: int, replication: int | None) -> None:
        super()._add_partitions(topic, count, replication)
        for partition in topic.partitions[-count:]:
            partition.replicas = partition.isr = (_LEADER,)
            partition.leader = _LEADER


class _History:
    """An interceptor that keeps the records and their outcomes."""

    def __init__(self) -> None:
        self.records: list[ProducerRecord[Any, Any]] = []
        self.settled = 0
        self.answered = 0  # number of these that a broker failed

    def on_send(self, record: ProducerRecord[Any, Any]) -> ProducerRecord[Any, Any]:
        self.records.append(record)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: KafkaError | None) -> None:
        self.settled += 1
        self.answered += error is None or isinstance(error, BrokerError)

    def close(self) -> None:
        """Nothing to close."""


def _send_in_order(accumulator: RecordAccumulator) -> None:
    """Send only the oldest record without an outcome of all partitions. Otherwise the next record
    to be completed could be one of any partition."""
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
    """A producer whose records go to a cluster in the test's process, and are kept.

    ::

        producer = RecordingProducer(value_serializer=JsonSerializer())
        await service(producer)
        assert producer.history[0].value == {"id": 1}

    Takes the arguments of `Producer` and has its methods. Topics are created with one partition on
    first use, unless the test has created them: ``producer.cluster.create_topic("t", 3)``.

    Args:
        auto_complete: acknowledge records at once. False: each waits for `complete_next` or
            `fail_next`, in the order of sending; the producer then sends one record in a request,
            and `async with` ends without waiting for them.
        settings: see `Producer`; bootstrap_servers and environment default to those of `cluster`.

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
        """The records in the order of the calls, before serialization and after the interceptors.

        Records that failed later are included. Records refused because of their arguments are not.
        """
        return self._history.records[self._forgotten :]

    @property
    def pending(self) -> int:
        """Number of records without an outcome or a decision by `complete_next` or `fail_next`."""
        history = self._history
        deciding = max(0, self._decided - history.answered)
        return max(0, len(history.records) - history.settled - deciding)

    def complete_next(self) -> bool:
        """Acknowledge the oldest pending record. Its `Delivery` is done a few iterations of the
        event loop later: await it.

        Returns:
            False if no record is pending.

        Raises:
            ConfigError: the producer completes records itself.
        """
        return self._decide("complete_next", Reaction())

    def fail_next(self, error: Code | ErrorCode | int) -> bool:
        """Fail the oldest pending record with an error code of a broker; see `complete_next`.

        The record fails if the producer does not retry the code: see `ErrorCode.retriable`. After a
        retriable code it is pending again.

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
        """Forget the history; records keep their outcomes."""
        self._forgotten = len(self._history.records)

    def expecting(self, *, committed: bool = False) -> Expectations:
        """Assertions on the records written from now on, see `expecting`."""
        return expecting(self.cluster, committed=committed)

    async def flush(self, timeout: float | None = None) -> None:
        """Complete all pending records, then flush like `Producer.flush`."""
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
