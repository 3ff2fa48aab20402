"""`AIOProducer` with the interface of `confluent_kafka.aio`, on `aiokprod.Producer`.

::

    from aiokprod.compat.confluent import AIOProducer

    async with AIOProducer({"bootstrap.servers": "localhost:9092"}) as producer:
        future = await producer.produce("topic", b"value", key=b"key", headers={"h": b"1"})
        message = await future

confluent-kafka does not have to be installed; if it is, errors are also instances of its
`KafkaException`. docs/migration/confluent-kafka.md lists what is the same, what differs, and every
setting.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aiokprod._client.validation import check_on_delivery
from aiokprod._compat.bootstrap_watch import BootstrapWatch
from aiokprod._compat.confluent_errors import as_theirs, their_error
from aiokprod._compat.librdkafka_settings import translate
from aiokprod._log_fields import log_fields
from aiokprod.cluster import ClusterSnapshot
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import ConfigError, DeliveryTimeout, KafkaError, KafkaTimeout, Outcome
from aiokprod.producer import Producer
from aiokprod.records import RecordMetadata
from aiokprod.security import Credentials

__all__ = [
    "AIOProducer",
    "BrokerView",
    "ClusterMetadata",
    "PartitionMetadata",
    "ProducedMessage",
    "TopicMetadata",
]

T = TypeVar("T")

logger = logging.getLogger("aiokprod.compat")

TIMESTAMP_NOT_AVAILABLE: Final = 0
TIMESTAMP_CREATE_TIME: Final = 1

Headers = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
OnDelivery = Callable[[Any, "ProducedMessage"], object]


class ProducedMessage:
    """A produced record with its partition and offset. It has the methods of
    `confluent_kafka.Message`."""

    __slots__ = ("_error", "_headers", "_key", "_latency", "_metadata", "_topic", "_value")

    def __init__(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]] | None,
        metadata: RecordMetadata | None,
        error: Any,
        latency: float,
    ) -> None:
        self._topic = topic
        self._key = key
        self._value = value
        self._headers = headers
        self._metadata = metadata
        self._error = error
        self._latency = latency

    def topic(self) -> str:
        """Return the topic's name."""
        return self._topic

    def partition(self) -> int | None:
        """Return the partition; None for a record that failed."""
        return None if self._metadata is None else self._metadata.partition

    def offset(self) -> int | None:
        """Return the offset; None for a failed record, a detected duplicate, or with acks=0."""
        return None if self._metadata is None else self._metadata.offset

    def key(self) -> bytes | None:
        """Return the key as sent."""
        return self._key

    def value(self) -> bytes | None:
        """Return the value as sent."""
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers as sent; None for a record without headers."""
        return self._headers

    def timestamp(self) -> tuple[int, int]:
        """Return type and Unix time in ms: (1, time), or (0, 0) for a record that failed."""
        if self._metadata is None:
            return (TIMESTAMP_NOT_AVAILABLE, 0)
        return (TIMESTAMP_CREATE_TIME, self._metadata.timestamp_ms)

    def latency(self) -> float:
        """Return the seconds from the call of `produce` to the outcome."""
        return self._latency

    def error(self) -> Any:
        """Return the `KafkaError` of a record that failed, or None."""
        return self._error

    def __len__(self) -> int:
        return len(self._value or b"")


@dataclass(frozen=True, slots=True)
class BrokerView:
    """A broker, like `confluent_kafka.admin.BrokerMetadata`."""

    id: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """A partition; `leader` is -1 if there is no leader."""

    id: int
    leader: int
    replicas: list[int]
    isrs: list[int]
    error: None = None


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic and its partitions by number."""

    topic: str
    partitions: dict[int, PartitionMetadata]
    error: None = None


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """The result of `AIOProducer.list_topics`."""

    cluster_id: str | None
    controller_id: int
    brokers: dict[int, BrokerView]
    topics: dict[str, TopicMetadata]


def _bytes(field: str, value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"{field} must be bytes, str or None, not {type(value).__name__}")


def _headers(headers: Headers | None) -> list[tuple[str, bytes | None]] | None:
    if not headers:
        return None
    pairs: Iterable[Any] = headers.items() if isinstance(headers, Mapping) else headers
    made: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError("headers must be a dict, or a list of pairs of a str and bytes or str")
        made.append((pair[0], _bytes("the value of a header", pair[1])))
    return made


def _refused(text: str) -> KafkaError:
    """Return a `ConfigError` that is also a `KafkaException`, like every error of these methods."""
    return as_theirs(ConfigError(text))


def _seconds(timeout: float | None) -> float | None:
    """Return the timeout; None if it is negative, which means no limit in confluent-kafka."""
    return None if timeout is None or timeout < 0 else timeout


class AIOProducer:
    """A producer with the interface of `confluent_kafka.aio.AIOProducer` (2.15).

    Args:
        producer_conf: settings with librdkafka's names. The mapping is not changed. Settings that
            are not given have aiokprod's defaults, but the default partitioner is librdkafka's.
        max_workers, executor, batch_size, buffer_timeout: ignored: this class has neither threads
            nor a batch timer.
        environment: network and clocks, for tests.

    Raises:
        ConfigError: a setting is refused, unknown or invalid; the message contains the reason.

    One log record at level WARNING lists the settings that have no effect. `producer` is the
    `aiokprod.Producer` that sends the records.
    """

    def __init__(
        self,
        producer_conf: Mapping[str, Any],
        max_workers: int = 4,
        executor: Any = None,
        batch_size: int = 1000,
        buffer_timeout: float = 1.0,
        *,
        environment: Environment | None = None,
    ) -> None:
        translated = translate(producer_conf)
        settings = translated.settings
        self._credentials: Credentials | None = None
        if settings.get("sasl_username") and settings.get("sasl_password"):
            self._credentials = settings["sasl_credentials"] = Credentials(
                settings.pop("sasl_username"), settings.pop("sasl_password")
            )
        config = ProducerConfig.from_mapping(settings)
        self._watch = BootstrapWatch()
        self._transactional = config.transactional_id is not None
        self._pending = 0
        self._unpolled = 0  # outcomes since the last `poll` or `flush`
        self._outcome = asyncio.Event()
        self.producer: Producer[bytes, bytes] = Producer(
            config,
            partitioner=translated.partitioner,
            plugins=[self._watch],
            environment=environment,
        )
        if translated.without_effect:
            logger.warning(
                "settings without effect in aiokprod: %s",
                "; ".join(translated.without_effect),
                extra=log_fields("setting_adjusted"),
            )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send the pending records, wait for their outcomes and close all connections; idempotent.

        `producer.drain_report` contains the numbers. Cancellation: pending records fail at once.
        """
        await self.producer.close()

    def __len__(self) -> int:
        """Return the number of records without an outcome."""
        return self._pending

    def __bool__(self) -> bool:
        return True

    # -- records --------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: OnDelivery | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> asyncio.Future[ProducedMessage]:
        """Append one record and return the future of its outcome, which needs no `flush`.

        Args:
            value, key: str is encoded as UTF-8.
            partition: -1 lets the partitioner choose.
            on_delivery: called with (error or None, message) before the future is done.
            timestamp: Unix time in ms; 0 for now.
            headers: a dict, or a list of pairs.

        Returns:
            A future of `ProducedMessage`. It fails with a `KafkaException`, whose `.outcome` says
            whether the record may be in the log. Cancelling the future does not stop the record.

        Raises:
            TypeError: a key, value or header has another type, or `on_delivery` is a coroutine
                function; nothing was sent.
            KafkaException (an `aiokprod.KafkaError`): see `aiokprod.Producer.submit`. The call
                waits for memory, up to max_block_ms, instead of raising BufferError.

        Cancellation of this coroutine: the record is not sent.
        """
        key_bytes, value_bytes = _bytes("key", key), _bytes("value", value)
        pairs = _headers(headers)
        try:
            check_on_delivery("produce", on_delivery)
        except ConfigError:
            raise TypeError(
                "on_delivery must be a plain callable that takes (error, message), not "
                f"{on_delivery!r}"
            ) from None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ProducedMessage] = loop.create_future()
        started = loop.time()

        def settle(metadata: RecordMetadata | None, error: KafkaError | None) -> None:
            self._pending -= 1
            self._unpolled += 1
            self._outcome.set()
            reason = None if error is None else their_error(error)
            message = ProducedMessage(
                topic, key_bytes, value_bytes, pairs, metadata, reason, loop.time() - started
            )
            try:
                if on_delivery is not None:
                    on_delivery(reason, message)
            finally:
                if not future.done():
                    if error is None:
                        future.set_result(message)
                    else:
                        future.set_exception(as_theirs(error))

        self._pending += 1
        try:
            await self.producer.submit(
                topic,
                value_bytes,
                key=key_bytes,
                partition=None if partition == -1 else partition,
                timestamp_ms=timestamp or None,
                headers=pairs,
                on_delivery=settle,
            )
        except KafkaError as error:
            self._pending -= 1
            raise as_theirs(error) from error.__cause__
        except BaseException:
            self._pending -= 1
            raise
        return future

    async def flush(self, timeout: float = -1) -> int:
        """Wait until every record produced before this call has its outcome.

        Args:
            timeout: limit in seconds; negative for no limit.

        Returns:
            The number of records without an outcome, 0 unless the timeout passed.
        """
        try:
            await self.producer.flush(_seconds(timeout))
        except DeliveryTimeout:
            return self._pending
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__
        self._unpolled = 0
        return self._pending

    async def poll(self, timeout: float = 0) -> int:
        """Wait until a record has its outcome. Callbacks are called even without calls of `poll`.

        Args:
            timeout: limit in seconds; negative for no limit while records have no outcome.

        Returns:
            The number of outcomes since the last call of `poll` or `flush`.
        """
        limit = _seconds(timeout)
        if limit == 0 or self._unpolled or (limit is None and not self._pending):
            await asyncio.sleep(0)
        else:
            self._outcome.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await self._outcome.wait()
        polled, self._unpolled = self._unpolled, 0
        return polled

    async def purge(
        self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True
    ) -> None:
        """Not supported.

        Raises:
            ConfigError: always. ``producer.close(0)`` fails all pending records at once.
        """
        raise _refused(
            "purge() is not supported: records cannot be removed while the producer stays open; "
            "producer.close(0) of aiokprod fails all pending records at once"
        )

    # -- metadata -------------------------------------------------------------------------------

    async def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """Return the brokers, and the partitions of one topic.

        Args:
            topic: the topic; required, because a producer requests only the topics in use.
            timeout: limit in seconds; negative for max_block_ms.

        Raises:
            ConfigError: no topic is given.
            KafkaException: see `aiokprod.Producer.partitions_for`.
        """
        if topic is None:
            raise _refused(
                "list_topics() without a topic is not supported: use an admin client, or "
                "list_topics(topic)"
            )
        name = topic

        async def fetch() -> None:
            await self.producer.start()
            await self.producer.partitions_for(name)

        await self._within("list_topics", fetch(), timeout)
        return _cluster_metadata(self._watch.snapshot, name)

    async def cluster_id(self, timeout: float = -1) -> str | None:
        """Return the id of the cluster. Waits for metadata up to `timeout` seconds, or max_block_ms
        if `timeout` is negative."""

        async def fetch() -> None:
            await self.producer.start()
            await self.producer.refresh_metadata()

        if self._watch.snapshot.cluster_id is None:
            await self._within("cluster_id", fetch(), timeout)
        return self._watch.snapshot.cluster_id

    async def _within(self, call: str, work: Awaitable[T], timeout: float) -> T:
        try:
            async with asyncio.timeout(_seconds(timeout)):
                return await work
        except KafkaError as error:  # must come first, because KafkaTimeout is a TimeoutError
            raise as_theirs(error) from error.__cause__
        except TimeoutError:
            raise as_theirs(
                KafkaTimeout(f"{call}: no response after {timeout} s", outcome=Outcome.NOT_SENT)
            ) from None

    # -- transactions ---------------------------------------------------------------------------

    async def init_transactions(self, timeout: float = -1) -> None:
        """Get the producer id, which fences an earlier producer with this transactional.id.

        Raises:
            ConfigError: there is no transactional.id.
            KafkaException: see `aiokprod.Producer.start`.
        """
        if not self._transactional:
            raise _refused("init_transactions() needs the setting transactional.id")
        await self._within("init_transactions", self.producer.start(), timeout)

    async def begin_transaction(self) -> None:
        """Begin a transaction. Errors: see `aiokprod.Producer.begin_transaction`."""
        await self._within("begin_transaction", self.producer.begin_transaction(), -1)

    async def commit_transaction(self, timeout: float = -1) -> None:
        """Flush and commit the transaction. After a timeout (in seconds), call this method again.

        Errors: see `aiokprod.Producer.commit_transaction`.
        """
        await self._within(
            "commit_transaction", self.producer.commit_transaction(_seconds(timeout)), -1
        )

    async def abort_transaction(self, timeout: float = -1) -> None:
        """Abort the transaction; unsent records fail. Errors: see
        `aiokprod.Producer.abort_transaction`."""
        await self._within(
            "abort_transaction", self.producer.abort_transaction(_seconds(timeout)), -1
        )

    async def send_offsets_to_transaction(
        self, positions: Any, group_metadata: Any, timeout: float = -1
    ) -> None:
        """Commit a consumer group's offsets with the open transaction.

        Args:
            positions: a list of `confluent_kafka.TopicPartition`.
            group_metadata: the result of ``consumer.consumer_group_metadata()``.
        """
        await self._within(
            "send_offsets_to_transaction",
            self.producer.send_offsets_to_transaction(positions, group_metadata, _seconds(timeout)),
            -1,
        )

    async def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replace user name and password, for new connections and re-authentications.

        Raises:
            ConfigError: the producer has no sasl.username and sasl.password.
        """
        if self._credentials is None:
            raise _refused(
                "set_sasl_credentials() replaces sasl.username and sasl.password, which this "
                "producer does not have"
            )
        self._credentials.replace(username, password)

    def __repr__(self) -> str:
        return f"<AIOProducer of aiokprod {self.producer.client_id}>"


def _cluster_metadata(snapshot: ClusterSnapshot, topic: str) -> ClusterMetadata:
    found = snapshot.topics.get(topic)
    partitions = {} if found is None else {
        p.partition: PartitionMetadata(
            p.partition, -1 if p.leader is None else p.leader, list(p.replicas), list(p.isr)
        )
        for p in found.partitions
    }  # fmt: skip
    return ClusterMetadata(
        snapshot.cluster_id,
        -1 if snapshot.controller_id is None else snapshot.controller_id,
        {n: BrokerView(n, node.host, node.port) for n, node in snapshot.nodes.items()},
        {topic: TopicMetadata(topic, partitions)},
    )
