"""`AIOKafkaProducer` with the interface of aiokafka 0.14, on `aiokprod.Producer`.

::

    from aiokprod.compat.aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers="localhost:9092") as producer:
        metadata = await producer.send_and_wait("topic", b"value", key=b"key")

`install` replaces the class in aiokafka itself, for applications and frameworks that cannot change
their import. aiokafka does not have to be installed; if it is, errors are also instances of its
classes. docs/migration/aiokafka.md lists what is the same and what differs.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from aiokprod._compat.aiokafka_batch import BatchBuilder, BatchOutcome, whole_ms
from aiokprod._compat.aiokafka_client import (
    ClientView,
    ClusterMetadataView,
    KeyPartitioner,
    murmur2_or_random,
)
from aiokprod._compat.aiokafka_errors import as_theirs
from aiokprod._compat.aiokafka_settings import UNSET, translate
from aiokprod._compat.bootstrap_watch import BootstrapWatch
from aiokprod._compat.per_record import FutureResults
from aiokprod._log_fields import log_fields
from aiokprod.errors import (
    ConfigError,
    DialError,
    FatalTransactionError,
    KafkaError,
    ProducerClosed,
    TransactionError,
)
from aiokprod.producer import Producer
from aiokprod.records import Header
from aiokprod.security import Secret

try:
    import aiokafka.structs as _theirs
except ImportError:
    _theirs = None

if TYPE_CHECKING or _theirs is None:  # aiokafka has no types

    class TopicPartition(NamedTuple):
        """A topic and one of its partitions."""

        topic: str
        partition: int

    class RecordMetadata(NamedTuple):
        """Partition and offset of a record, like aiokafka's `RecordMetadata`.

        Attributes:
            offset: None for a detected duplicate.
            timestamp: Unix time in ms.
            timestamp_type: always 0, CreateTime.
            log_start_offset: always None.
        """

        topic: str
        partition: int
        topic_partition: TopicPartition
        offset: int | None
        timestamp: int | None
        timestamp_type: int
        log_start_offset: int | None

    class OffsetAndMetadata(NamedTuple):
        """An offset to commit, like aiokafka's `OffsetAndMetadata`."""

        offset: int
        metadata: str = ""

else:
    OffsetAndMetadata = _theirs.OffsetAndMetadata
    RecordMetadata = _theirs.RecordMetadata
    TopicPartition = _theirs.TopicPartition

__all__ = [
    "AIOKafkaProducer",
    "BatchBuilder",
    "OffsetAndMetadata",
    "RecordMetadata",
    "TopicPartition",
    "TransactionContext",
    "install",
    "uninstall",
]

logger = logging.getLogger("aiokprod.compat")

_reported: set[tuple[str, ...]] = set()
"""Lists of differences that this process has already logged."""


def _hidden(password: str | None) -> Secret | None:
    return None if password is None else Secret(password)


class AIOKafkaProducer:
    """A producer with the interface of `aiokafka.AIOKafkaProducer`.

    Args:
        bootstrap_servers: "host:port", several separated by commas, or a list; 9092 is the default
            port.
        defaults: "aiokprod" uses aiokprod's defaults for arguments that are not given (acks="all",
            idempotence, larger batches); one log record at level WARNING lists the differences.
            "aiokafka" uses aiokafka's defaults.
        loop, api_version: deprecated and ignored, as in aiokafka.
        settings: settings that only aiokprod has, such as `buffer_memory` or `plugins`.
        Others: see aiokafka. Arguments that are given have the same meaning as in aiokafka.

    Raises:
        ConfigError (a ValueError): an argument is invalid, or aiokprod has no equivalent; the
            message names what to use instead.

    Differences from aiokafka are listed in docs/migration/aiokafka.md. `producer` is the
    `aiokprod.Producer` that sends the records.
    """

    _closed: bool | None = None  # None if the constructor failed

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str | None = None,
        metadata_max_age_ms: int = UNSET,
        request_timeout_ms: int = UNSET,
        api_version: str | None = None,
        acks: int | str = UNSET,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
        compression_type: str | None = None,
        max_batch_size: int = UNSET,
        partitioner: Callable[[bytes | None, list[int], list[int]], int] | None = None,
        max_request_size: int = UNSET,
        linger_ms: int = UNSET,
        retry_backoff_ms: int = UNSET,
        security_protocol: str = "PLAINTEXT",
        ssl_context: Any = None,
        connections_max_idle_ms: int | None = UNSET,
        enable_idempotence: bool = UNSET,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = UNSET,
        sasl_mechanism: str = UNSET,
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = UNSET,
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: Any = None,
        defaults: str = "aiokprod",
        interceptors: Iterable[Any] = (),
        plugins: Iterable[Any] = (),
        **settings: Any,
    ) -> None:
        for name, value in (("loop", loop), ("api_version", api_version)):
            if value is not None:
                warnings.warn(
                    f"{name} is deprecated in aiokafka and ignored here; leave it out",
                    DeprecationWarning,
                    stacklevel=2,
                )
        given = {
            "bootstrap_servers": bootstrap_servers, "client_id": client_id,
            "metadata_max_age_ms": metadata_max_age_ms, "request_timeout_ms": request_timeout_ms,
            "acks": acks, "compression_type": compression_type, "max_batch_size": max_batch_size,
            "max_request_size": max_request_size, "linger_ms": linger_ms,
            "retry_backoff_ms": retry_backoff_ms, "security_protocol": security_protocol,
            "ssl_context": ssl_context, "connections_max_idle_ms": connections_max_idle_ms,
            "enable_idempotence": enable_idempotence, "transactional_id": transactional_id,
            "transaction_timeout_ms": transaction_timeout_ms, "sasl_mechanism": sasl_mechanism,
            "sasl_plain_password": _hidden(sasl_plain_password),
            "sasl_plain_username": sasl_plain_username,
            "sasl_kerberos_service_name": sasl_kerberos_service_name,
            "sasl_kerberos_domain_name": sasl_kerberos_domain_name,
            "sasl_oauth_token_provider": sasl_oauth_token_provider, **settings,
        }  # fmt: skip
        del sasl_plain_password  # tracebacks must not contain it
        for name, call in (
            ("key_serializer", key_serializer),
            ("value_serializer", value_serializer),
            ("partitioner", partitioner),
        ):
            if call is not None and not callable(call):
                raise ConfigError(f"{name} must be a callable, not {type(call).__name__}")
        translated = translate(given, defaults)
        given.clear()
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._watch = BootstrapWatch()
        self._batch_size = translated.batch_size
        self._results = FutureResults(
            RecordMetadata, TopicPartition, as_theirs, translated.settings.get("acks") == 0
        )
        self._transactional = translated.settings.get("transactional_id") is not None
        self._in_transaction = False
        self._loop = loop
        self._timeout = translated.settings.get("max_block_ms", 60_000) / 1000
        # The partial holds no reference to `self`, so that a producer that is dropped without
        # `stop` can be collected.
        self._create = functools.partial(
            Producer[bytes, bytes],
            partitioner=None if partitioner is None else KeyPartitioner(partitioner),
            interceptors=tuple(interceptors),
            plugins=[self._watch, *plugins],
            **translated.settings,
        )
        self._start_failed = False
        self._started = False
        self._start_lock = asyncio.Lock()
        self.producer: Producer[bytes, bytes] = self._create()
        # Count each address once, because the same address twice is one connection.
        self._watch.servers = len(set(self.producer._config.bootstrap_addresses()))
        environment = self.producer._environment
        self._unix_ms = environment.unix_ms
        self._partitioner = KeyPartitioner(partitioner or murmur2_or_random(environment.rng))
        # The functions below must not refer to `self`, which would keep an unclosed producer alive.
        watch = self._watch
        self.client = ClientView(
            bootstrap_servers if isinstance(bootstrap_servers, str) else list(bootstrap_servers),
            self.producer.client_id,
            ClusterMetadataView(lambda: watch.snapshot),
            self.producer.partitions_for,
        )
        self._closed = False
        if translated.differences and translated.differences not in _reported:
            _reported.add(translated.differences)
            logger.warning(
                "AIOKafkaProducer of aiokprod uses aiokprod's defaults where no argument is given: "
                '%s. Pass the argument to choose, or defaults="aiokafka"',
                "; ".join(translated.differences),
                extra=log_fields("setting_adjusted"),
            )

    def __del__(self) -> None:
        if self._closed is False and not self._start_failed:
            warnings.warn(
                f"Unclosed AIOKafkaProducer {self!r}: await stop()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
            loop = self._loop
            if loop is not None and not loop.is_closed():
                loop.call_exception_handler(
                    {"producer": self, "message": "Unclosed AIOKafkaProducer"}
                )

    # -- start and stop -------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect to the cluster and fetch its metadata. With a transactional_id, also get the
        producer id.

        Idempotent: concurrent calls wait for the first call. A failed start may be repeated, with a
        new `producer`; plug-ins and interceptors are closed and configured again.

        Raises:
            KafkaConnectionError: no bootstrap server can be resolved or reached.
            ProducerClosed: `stop` was called.
            Others: see `aiokprod.Producer.start`.

        Cancellation closes the connections, unless the producer was already started.
        """
        async with self._start_lock:
            self._check_open()
            if not self._started:
                await self._start()
                self._started = True

    async def _start(self) -> None:
        if self._start_failed:
            self._watch.reset()
            self.producer = self._create(client_id=self.client._client_id)
            self.client._wait_on_metadata = self.producer.partitions_for
            self._start_failed = False
        self._loop = asyncio.get_running_loop()
        try:
            try:
                await self.producer.start()
            except ConfigError as unresolved:
                raise DialError(
                    f"Unable to bootstrap from {self.client.hosts!r}: {unresolved.message}"
                ) from unresolved
            refresh = asyncio.ensure_future(self.producer.refresh_metadata())
            try:
                failed = await self._watch.wait(self._timeout)
            except TimeoutError:
                failed = DialError(f"no metadata after {self._timeout} s")
            finally:
                refresh.cancel()
                await asyncio.wait([refresh])
            self._check_open()
            if failed is not None:
                servers = self.client.hosts
                raise DialError(
                    f"Unable to bootstrap from {servers!r}: {failed.message}"
                ) from failed
        except BaseException as error:
            self._start_failed = True
            await self.producer.close(0)
            if isinstance(error, KafkaError):
                raise as_theirs(error) from error.__cause__
            raise

    async def stop(self) -> None:
        """Send the pending records and close all connections; idempotent.

        Waits until every record has its outcome. `producer.drain_report` contains the numbers.
        """
        if self._closed:
            return
        self._closed = True
        self._watch.give_up()
        await self.producer.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise as_theirs(ProducerClosed("the producer is stopped; create a new one"))

    # -- records --------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: float | None = None,
        headers: Sequence[Header] | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Append one record and return the future of its outcome.

        Args:
            value, key: not both None; passed to the serializers, without which they must be bytes.
            partition: None lets the partitioner choose.
            timestamp_ms: Unix time in ms, truncated to whole ms; None for now.
            headers: pairs of str and bytes.

        Returns:
            A future of `RecordMetadata`, or of None with acks=0. Cancelling the future does not
            stop the record.

        Raises:
            MessageSizeTooLargeError, UnknownTopicOrPartitionError, KafkaTimeoutError,
            IllegalOperation, ProducerClosed: see aiokafka; nothing was sent.
            TypeError: a key or value is not bytes.
            Others: exceptions of the serializers, unchanged.

        Cancellation of this coroutine: the record is not sent.
        """
        if value is None and key is None:
            raise ConfigError("Need at least one: key or value")
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=loop)
        try:
            await self._results.submit(
                future,
                self.producer,
                topic,
                value,
                key,
                partition,
                None if timestamp_ms is None else whole_ms(timestamp_ms),
                headers,
            )
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: float | None = None,
        headers: Sequence[Header] | None = None,
    ) -> RecordMetadata:
        """Like `send`, but wait for the outcome.

        Cancellation: once the record is in a batch, only the wait ends.
        """
        # Call `send`, because instrumentation packages wrap it.
        future = await self.send(topic, value, key, partition, timestamp_ms, headers)
        return await future

    def create_batch(self) -> BatchBuilder:
        """Return a new, empty batch of at most `max_batch_size` bytes, for `send_batch`."""
        return BatchBuilder(self._batch_size, self._serialize, self._unix_ms)

    async def send_batch(
        self, batch: BatchBuilder, topic: str, *, partition: int | None
    ) -> asyncio.Future[RecordMetadata]:
        """Append the records of a batch to a partition, which closes the batch.

        Args:
            partition: None lets the partitioner choose one partition for all records, without a
                key.

        Returns:
            A future of the `RecordMetadata` of the batch's first record. It fails with the error of
            the first record that failed; other records may have been delivered.

        Raises: see `send`; only before the first record was appended.
        """
        batch.close()
        self._check_open()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        records = batch.records
        if not records:
            future.set_result(None)
            return future
        if partition is None:
            await self.partitions_for(topic)
            partition = self._partition(topic, None, None, None, None, None)
        outcome = BatchOutcome(future, len(records), self._results.settle)
        for number, record in enumerate(records):
            try:
                await self.producer.submit(
                    topic,
                    record.value,
                    key=record.key,
                    partition=partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=record.headers,
                    on_delivery=outcome.on_delivery,
                )
            except KafkaError as error:
                if number == 0:
                    raise as_theirs(error) from error.__cause__
                for _ in records[number:]:
                    outcome.on_delivery(None, error)
                break
        return future

    async def flush(self) -> None:
        """Wait until every record sent before this call has its outcome."""
        try:
            await self.producer.flush()
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the numbers of the topic's partitions."""
        try:
            return {p.partition for p in await self.producer.partitions_for(topic)}
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__

    # Faust and OpenTelemetry's instrumentation use these private methods.

    def _serialize(self, key: Any, value: Any) -> tuple[Any, Any]:
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        return key, value

    def _partition(
        self,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        key_bytes: bytes | None,
        value_bytes: bytes | None,
    ) -> int:
        """Return the partition of a record. Without a key, it may differ from call to call."""
        known = self.client.cluster.partitions_for_topic(topic)
        if known is None:
            raise ConfigError(f"no metadata of topic {topic!r}: await partitions_for(...) first")
        if partition is not None:
            if partition not in known:
                raise ConfigError(f"Unrecognized partition {partition} of topic {topic!r}")
            return partition
        return self._partitioner.of(topic, key_bytes, self._watch.snapshot.topics)

    # -- transactions ---------------------------------------------------------------------------

    def _check_transactional(self) -> None:
        if not self._transactional:
            raise as_theirs(
                TransactionError("You need to configure transactional_id to use transactions")
            )

    async def begin_transaction(self) -> None:
        """Begin a transaction.

        Raises:
            IllegalOperation: the producer has no transactional_id, or a transaction is open.
            ProducerFenced and others: see `aiokprod.Producer.begin_transaction`.
        """
        self._check_transactional()
        try:
            await self.producer.begin_transaction()
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__
        self._in_transaction = True

    async def commit_transaction(self) -> None:
        """Flush and commit the transaction. Errors: see `aiokprod.Producer.commit_transaction`."""
        self._check_transactional()
        try:
            await self.producer.commit_transaction()
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__
        self._in_transaction = False

    async def abort_transaction(self) -> None:
        """Abort the transaction. Errors: see `aiokprod.Producer.abort_transaction`."""
        self._check_transactional()
        try:
            await self.producer.abort_transaction()
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__
        self._in_transaction = False

    def transaction(self) -> TransactionContext:
        """Return a context manager that commits at the end of the block, or aborts on an exception:
        ``async with producer.transaction()``."""
        return TransactionContext(self)

    async def send_offsets_to_transaction(self, offsets: Mapping[Any, Any], group_id: str) -> None:
        """Commit a consumer group's offsets with the open transaction.

        Args:
            offsets: dict by TopicPartition of ints, `OffsetAndMetadata` objects or pairs (offset,
                metadata).

        Raises:
            IllegalOperation: no transaction is open.
            ValueError: `group_id` is not a non-empty str, or an offset is invalid.
        """
        self._check_transactional()
        if not self._in_transaction:
            raise as_theirs(TransactionError("Not in the middle of a transaction"))
        if not group_id or not isinstance(group_id, str):
            raise ConfigError(f"group_id must be the name of a consumer group, not {group_id!r}")
        if not isinstance(offsets, Mapping):
            raise ConfigError(
                f"offsets must be a dict by TopicPartition, not {type(offsets).__name__}"
            )
        checked = {
            place: OffsetAndMetadata(*offset) if isinstance(offset, tuple) else offset
            for place, offset in offsets.items()
        }
        try:
            await self.producer.send_offsets_to_transaction(checked, group_id)
        except KafkaError as error:
            raise as_theirs(error) from error.__cause__

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<AIOKafkaProducer of aiokprod {self.producer.client_id} {state}>"


class TransactionContext:
    """The result of `AIOKafkaProducer.transaction`."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc_type is None:
            await self._producer.commit_transaction()
            return
        try:
            await self._producer.abort_transaction()
        except FatalTransactionError as error:
            # Do not raise this error, because the exception of the block is more informative.
            logger.debug(
                "abort after an exception failed: %s",
                error,
                extra=log_fields("abort_failed", error=error),
            )


# -- replacement in aiokafka ---------------------------------------------------------------------

_PLACES: Final = ("aiokafka", "aiokafka.producer", "aiokafka.producer.producer")
_originals: dict[str, Any] = {}


def install() -> None:
    """Replace `AIOKafkaProducer` in aiokafka with the class of this module; idempotent.

    Call this function before modules with ``from aiokafka import AIOKafkaProducer`` are imported.
    Modules that have already imported the name keep aiokafka's class, and a warning lists them.

    Raises:
        ConfigError: aiokafka is not installed.
    """
    try:
        import aiokafka.producer.producer  # noqa: F401
    except ImportError:
        raise ConfigError(
            "install() replaces a class of aiokafka, which is not installed"
        ) from None
    for place in _PLACES:
        module = sys.modules[place]
        if module.AIOKafkaProducer is not AIOKafkaProducer:
            _originals[place] = module.AIOKafkaProducer
            module.AIOKafkaProducer = AIOKafkaProducer  # type: ignore[attr-defined]
    original = _originals["aiokafka"]
    late = sorted(
        name
        for name, module in list(sys.modules.items())
        if name not in _PLACES
        and getattr(module, "__dict__", {}).get("AIOKafkaProducer") is original
    )
    if late:
        warnings.warn(
            f"imported aiokafka's AIOKafkaProducer before install(): {', '.join(late)}",
            RuntimeWarning,
            stacklevel=2,
        )


def uninstall() -> None:
    """Restore aiokafka's class in the modules in which `install` has replaced it."""
    for place, original in _originals.items():
        sys.modules[place].AIOKafkaProducer = original  # type: ignore[attr-defined]
    _originals.clear()
