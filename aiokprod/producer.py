"""`Producer`: the public class. Its methods check arguments and delegate to `_client`."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import sys
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Self, TypeVar, Unpack, overload

from aiokprod._client.bulk_result import BulkProgress, BulkResult, check_progress
from aiokprod._client.explanation import explain
from aiokprod._client.foreign_methods import no_such_attribute
from aiokprod._client.lifecycle import Lifecycle
from aiokprod._client.metrics import collect_metrics
from aiokprod._client.record_hooks import RecordHooks
from aiokprod._client.record_serializers import RecordSerializers
from aiokprod._client.record_submitter import RecordSubmitter
from aiokprod._client.runtime import Runtime
from aiokprod._client.send_many import BulkSender
from aiokprod._client.send_table import TableSender
from aiokprod._client.slow_path import SlowPath
from aiokprod._client.status import Health, health
from aiokprod._client.thread_queue import ThreadQueue
from aiokprod._client.transactions import Transaction, Transactions, run_transaction
from aiokprod._client.user_hooks import UserHooks
from aiokprod._client.validation import (
    check_on_delivery,
    check_plugins,
    check_timeout,
    checked_config,
    checked_interceptors,
    checked_plugins,
    checked_topics,
    has_hooks,
    is_record_plugin,
    tcp_environment,
)
from aiokprod._config.profiles import NO_PROFILE, profiles_of
from aiokprod._core import append
from aiokprod._core.batch import Delivery, WaitExpired
from aiokprod._core.callbacks import mark_as_coroutine_function
from aiokprod._engine.buffer.topic_settings import configured_codec
from aiokprod._version import __version__
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import (
    ConfigError,
    DeliveryTimeout,
    KafkaError,
    Outcome,
)
from aiokprod.findings import Finding
from aiokprod.interceptors import InterceptorChain, ProducerInterceptor
from aiokprod.observer import Metrics, Observer, ObserverChain
from aiokprod.partitioners import AnyPartitioner
from aiokprod.partitioners import adapt as adapt_partitioner
from aiokprod.plugins import RecordPlugin
from aiokprod.records import DrainReport, ProducerRecord, RecordMetadata, validate_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from aiokprod._client.record_submitter import OnDelivery
    from aiokprod._config.settings import Settings
    from aiokprod._core.append import Appender
    from aiokprod._core.deadlines import Deadlines
    from aiokprod._engine.buffer.producer_batch import ProducerBatch
    from aiokprod.cluster import PartitionInfo
    from aiokprod.records import Header
    from aiokprod.serializers import AnySerializer, SerializerOf

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")

_numbers = itertools.count(1)


class Producer(Generic[K, V]):
    """Sends records to Kafka from one event loop.

    ::

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            metadata = await producer.send("topic", b"value", key=b"key")

    Settings are keyword arguments or a `ProducerConfig`. Serializers, the partitioner and hooks are
    passed as objects. Any number of tasks of one loop can share a producer, which makes batches
    larger. The constructor opens no connections; `start`, `async with` or the first send does.

    Args:
        config: the settings; alternatively, pass them as keywords. See `ProducerConfig`.
        key_serializer, value_serializer: `Serializer` objects or callables; None expects bytes.
        partitioner: `Partitioner` or callable, which may be called more than once for a record;
            None for Kafka's built-in partitioner (murmur2 of the key; sticky for records without a
            key).
        interceptors: called in order; see `ProducerInterceptor`.
        plugins: called in order; see `RecordPlugin`. They may also have hooks of `Observer`.
        observer: receives events; see `Observer`.
        environment: network, clocks and random source; for tests.

    Raises:
        ConfigError: a setting is unknown, invalid or in conflict with another setting; the message
            names the setting and the fix.

    All methods raise `KafkaError`s, whose `.outcome` says whether the record can be in the log.
    Source: Java `KafkaProducer`.
    """

    # The serializers determine the types of keys and values, which are bytes without a serializer.
    # Settings are keywords, or all in a `ProducerConfig`.
    @overload
    def __init__(
        self: Producer[bytes, bytes],
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Unpack[Settings],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[bytes, bytes],
        config: ProducerConfig,
        /,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[bytes, V],
        *,
        key_serializer: None = None,
        value_serializer: SerializerOf[V],
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Unpack[Settings],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[bytes, V],
        config: ProducerConfig,
        /,
        *,
        key_serializer: None = None,
        value_serializer: SerializerOf[V],
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, bytes],
        *,
        key_serializer: SerializerOf[K],
        value_serializer: None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Unpack[Settings],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, bytes],
        config: ProducerConfig,
        /,
        *,
        key_serializer: SerializerOf[K],
        value_serializer: None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, V],
        *,
        key_serializer: SerializerOf[K],
        value_serializer: SerializerOf[V],
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Unpack[Settings],
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, V],
        config: ProducerConfig,
        /,
        *,
        key_serializer: SerializerOf[K],
        value_serializer: SerializerOf[V],
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
    ) -> None: ...

    # mypy does not compare unpacked keywords with `Any`.
    def __init__(  # type: ignore[misc]
        self,
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: AnySerializer | None = None,
        value_serializer: AnySerializer | None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None:
        self._config = checked_config(config, settings)
        # Fail early if the package of a codec is missing; import it before the loop runs.
        for profile in (NO_PROFILE, *(profile for _, profile in profiles_of(self._config))):
            configured_codec(self._config, profile)
        self._serializers = RecordSerializers(key_serializer, value_serializer)
        self._partitioner = adapt_partitioner(partitioner) if partitioner is not None else None
        checked = checked_interceptors(interceptors)
        interceptor_chain = InterceptorChain(checked) if checked else None
        plugged = checked_plugins(plugins)
        check_plugins(observer, environment)
        self._environment = environment or tcp_environment(self._config)
        self._client_id = self._config.client_id or f"aiokprod-{next(_numbers)}"
        self._metrics = Metrics()
        self._observer: Observer = self._metrics
        watching = [x for x in (observer, *plugged) if x is not None and has_hooks(x)]
        if watching:
            self._observer = ObserverChain([self._metrics, *watching], self._metrics.plugin_failed)
        self._hooks = RecordHooks(
            interceptor_chain,
            tuple(filter(is_record_plugin, plugged)),
            self._observer,
            self._metrics.plugin_failed,
        )
        self._max_block = self._config.max_block_ms / 1000
        self._appender: Appender | None = None  # read by the compiled `submit`
        self._deadlines: Deadlines | None = None
        hooks = UserHooks([*self._serializers.parts(), partitioner, *checked, *plugged, observer])
        self._lifecycle = Lifecycle(
            self._config, self._environment, self._client_id, hooks, self._launch
        )
        self._slow_path = SlowPath(
            self._config,
            self._lifecycle.started,
            self._serializers,
            self._partitioner,
            self._hooks,
            self._lifecycle.check_running,
        )
        self._submitter = RecordSubmitter(self._lifecycle, self._slow_path, self._max_block)
        self._transactions = Transactions(
            lambda: self._lifecycle.live().transactions,
            self._max_block,
            self._observer.on_transaction_call,
            lambda: self._lifecycle.thread_queue,
        )
        hooks.configure(self._config)

    # -- start and close ------------------------------------------------------------------------

    def _launch(self) -> Runtime:
        """Build the parts that belong to the running event loop."""
        runtime = Runtime(
            self._config,
            self._environment,
            asyncio.get_running_loop(),
            client_id=self._client_id,
            version=__version__,
            observer=self._observer,
            metrics=self._metrics,
            slow_submit=self._submit_slowly,
            serializers=self._serializers,
            hooks=self._hooks,
            partitioner=self._partitioner,
        )
        self._appender = runtime.appender
        self._deadlines = runtime.deadlines
        self._lifecycle.thread_queue = ThreadQueue(runtime, self._submitter, self._max_block)
        return runtime

    async def start(self, *, check: bool | Iterable[str] = False) -> tuple[Finding, ...]:
        """Start the producer, and check that at least one bootstrap server can be resolved.

        Optional and idempotent: the first send starts the producer too. No broker has to be up.

        Args:
            check: True to check servers and brokers, or names of topics to check those too; see
                `check`. Findings are logged and returned, and do not prevent the start.

        Returns:
            The findings; empty without `check`.

        With a transactional_id, the call also initialises transactions. It waits up to max_block_ms
        for the coordinator, which fences an earlier producer with this id and aborts its
        transaction.

        Raises:
            ConfigError: no bootstrap server can be resolved within the connection setup timeout.
            KafkaTimeout: the transaction coordinator did not respond in time.
            TransactionError, BrokerError: the coordinator rejected the request.
            ProducerClosed, WrongLoop, ForkedProcess: the producer cannot be used here.
        """
        if isinstance(check, bool):
            topics: Iterable[str] | None = () if check else None
        else:
            topics = checked_topics("start", check)
        await self._lifecycle.start()
        findings: tuple[Finding, ...] = ()
        if topics is not None:
            from aiokprod._client.check import log_findings

            findings = await self.check(topics)
            log_findings(findings, self._client_id)
        await self._transactions.initialise()
        return findings

    async def check(
        self, topics: Iterable[str] = (), *, timeout: float = 15.0
    ) -> tuple[Finding, ...]:
        """Check for problems that would prevent records from being delivered.

        Checks each bootstrap server (name, every address, TLS, SASL, versions), each broker of the
        cluster at the address that it advertises, and the topics: existence, permission to write,
        leaders, acks against replicas and min.insync.replicas, batch_size and max_request_size
        against max.message.bytes. Uses separate connections, sends no record and creates no topic.
        The producer does not have to be started.

        Args:
            topics: names of the topics to which records will be sent.
            timeout: maximum time of the check in seconds, greater than 0. Each check that is not
                completed in time is a finding.

        Returns:
            The findings, errors first; empty if nothing was found. docs/check.md lists them.

        Raises:
            ConfigError: an argument is invalid.
            WrongLoop, ForkedProcess: the producer belongs to another event loop or process.

        Cancellation ends the check and closes its connections.
        """
        names = checked_topics("check", topics)
        check_timeout("check", timeout, zero=False)
        self._lifecycle.check_loop_and_process(running=True)
        from aiokprod._client.check import check as run_check  # rarely needed, slow to import

        return await run_check(self._config, self._environment, names, timeout)

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close(0)
            raise
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._lifecycle.forked:  # a child process must not close its parent's producer
            await self._lifecycle.close_at_exit()

    async def close(self, timeout: float | None = None) -> DrainReport:
        """Send the pending records, then stop the producer.

        Idempotent: later and concurrent calls return the same report.

        Args:
            timeout: limit in seconds for sending pending records; 0 fails them at once;
                None waits until every record has its outcome (at most delivery_timeout_ms). The
                end of ``async with`` waits for at most close_timeout_ms.

        The report is also logged, and stored in `drain_report`. Records without an outcome at the
        timeout fail with ProducerClosed and are in the report.
        Cancellation: pending records fail at once.

        Raises:
            ConfigError: timeout is negative.
            WrongLoop, ForkedProcess: called on another event loop or in another process.
        """
        return await self._lifecycle.close(timeout)

    @property
    def drain_report(self) -> DrainReport | None:
        """The result of `close` or of the end of ``async with``; None before."""
        return self._lifecycle.drain_report

    def __del__(self) -> None:
        lifecycle = getattr(self, "_lifecycle", None)  # missing if the constructor failed
        if lifecycle is not None:
            lifecycle.warn_if_unclosed(self)

    # -- sending --------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
        timeout: float | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged.

        Args:
            topic: 1 to 249 characters of ``a-z A-Z 0-9 . _ -``.
            value: None is a tombstone on compacted topics.
            key: determines the partition; None stands for no key.
            partition: 0 to 2³¹-1, or None to let the partitioner choose.
            timestamp_ms: Unix time in ms, or None for now.
            headers: (name, bytes or None) pairs, sent in this order.
            timeout: limit in seconds for the whole call, including waits for metadata and memory;
                the call may end late by up to 0.8 % of the timeout. A record that is still in an
                open batch then is withdrawn. None applies max_block_ms to the waits before the
                append and delivery_timeout_ms to the delivery.

        Returns:
            Topic, partition and offset; `offset` is None with acks=0 and for a detected duplicate.

        Raises:
            ConfigError, SerializationError, RecordTooLarge: the record is invalid or too large.
            UnknownTopic: in current metadata, the topic does not have the partition; nothing was
                sent.
            MetadataTimeout, BufferTimeout: max_block_ms passed; nothing was sent. For an
                asynchronous serializer, which is cancelled, the error is a SerializationError.
            DeliveryTimeout: no acknowledgment in time; see `.outcome`.
            BrokerError: the broker rejected the record; see `.code` and `.outcome`.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: the producer is unusable.

        Check the `.outcome` of an error first: if it is UNKNOWN, sending the record again may store
        it twice. `.retriable` can be True even then.

        Cancellation withdraws the record if its batch has not been encoded for sending; otherwise
        only the wait ends, and the record is still delivered or fails.
        """
        deadlines, deadline = self._deadlines, 0.0
        if timeout is not None:
            if deadlines is None:  # not started
                check_timeout("send", timeout, zero=False)
                deadlines = self._lifecycle.runtime_for_sending().deadlines
            deadline = deadlines.begin(timeout)
        appender = self._appender
        result = None
        if appender is not None:
            result = appender.try_append(topic, value, key, partition, timestamp_ms, headers)
        if not isinstance(result, Delivery):
            result = await self._submitter.append(
                topic, value, key, partition, timestamp_ms, headers, result, block=timeout
            )
        metadata: RecordMetadata
        if timeout is None or deadlines is None:
            metadata = await result
            return metadata
        deadlines.watch(result, deadline, timeout)
        try:
            metadata = await result
            return metadata
        except WaitExpired:
            late = self._submitter.timed_out(result, timeout)
        try:
            raise late
        finally:
            del late  # no cycle of error, traceback and frame

    if TYPE_CHECKING:

        def submit(
            self,
            topic: str,
            value: V | None = None,
            *,
            key: K | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
            headers: Sequence[Header] | None = None,
            on_delivery: OnDelivery | None = None,
        ) -> Coroutine[Any, Any, Delivery]:
            """See `aiokprod._core.append.submit`."""
            ...

    else:
        # `submit` is a compiled function, so that a call has no Python frame. It uses `_appender`
        # and `_submit_slowly`.
        submit = append.submit

    def _submit_slowly(self, *fields: Any) -> Awaitable[Delivery]:
        return self._submitter.submit(*fields)

    def try_submit(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Append one record to a batch without waiting; for synchronous code on the event loop.

        For the arguments, see `send`; for `on_delivery`, see `submit`.

        Raises:
            MetadataMissing: the topic's metadata is not known yet; it is being fetched.
            SchemaMissing: the id of a serializer's schema is not known yet; it is being fetched.
            BufferFull: buffer_memory is exhausted.
            Others: see `send`.
        """
        runtime = self._lifecycle.runtime_for_sending()
        if on_delivery is not None:
            check_on_delivery("try_submit", on_delivery)
        result = runtime.appender.try_append(
            topic, value, key, partition, timestamp_ms, headers, on_delivery
        )
        if not isinstance(result, Delivery):
            result = self._submitter.try_append(
                topic, value, key, partition, timestamp_ms, headers, result, on_delivery
            )
        return result

    def send_threadsafe(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record from another thread, such as that of a ``def`` endpoint.

        Like `asyncio.run_coroutine_threadsafe` with `send`, but records that arrive together are
        passed to the loop together, so that the records of many threads share batches. For the
        arguments, see `send`; key, value and headers must not be changed before the record has its
        outcome. Serializers, interceptors and plug-ins are called on the event loop, in a copy of
        the caller's context.

        Returns at once, unless 10 000 records or 8 MiB are waiting for the event loop: then the
        call waits for up to max_block_ms. Records that a thread sends to one topic keep their
        order.

        A transaction contains all records whose call returned before the commit was called. If one
        of these records fails, the commit fails.

        Returns:
            A `concurrent.futures.Future`: `result(timeout)` waits for the record's metadata or
            raises its error, like `send`; a timeout only ends the wait. `cancel()` withdraws
            the record if its batch has not been encoded for sending. A failure that is never
            retrieved is logged and counted in records_unretrieved. On the event loop, `result()`
            raises WrongLoop if the record has no outcome yet.

        Raises:
            ConfigError: the topic name is not legal.
            BufferTimeout: too many records were waiting during the whole of max_block_ms.
            BufferFull: too many records are waiting, and the call was made on the event loop, which
                must not block.
            ProducerClosed, ProducerFailed, ForkedProcess: the producer is unusable.
            WrongLoop: the producer is not started.
        """
        queue = self._lifecycle.thread_queue_for_sending()
        return queue.put(topic, value, key, partition, timestamp_ms, headers)

    @overload
    async def send_many(
        self,
        topic: Iterable[ProducerRecord[K, V]],
        /,
        *,
        progress: BulkProgress | None = None,
    ) -> BulkResult: ...

    @overload
    async def send_many(
        self,
        topic: str,
        values: Iterable[V | None],
        *,
        keys: Iterable[K | None] | None = None,
        headers: Iterable[Sequence[Header] | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        partition: int | None = None,
        progress: BulkProgress | None = None,
    ) -> BulkResult: ...

    async def send_many(
        self,
        topic: str | Iterable[ProducerRecord[K, V]],
        values: Iterable[V | None] | None = None,
        *,
        keys: Iterable[K | None] | None = None,
        headers: Iterable[Sequence[Header] | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        partition: int | None = None,
        progress: BulkProgress | None = None,
    ) -> BulkResult:
        """Send many records and wait until each has its outcome.

        Pass either columns of equal length for one topic, ``send_many("t", values, keys=keys)``, or
        an iterable of `ProducerRecord` for any topics. Waits for memory as often as needed, up to
        max_block_ms each time. After a wait for memory has timed out, later records fail at once
        until a record can be appended again. So a call with many records ends soon if no broker
        responds.

        Args:
            progress: reports the progress, and keeps the outcomes if the call is cancelled.

        Returns:
            `BulkResult`: outcomes by position. The failure of a record, before or after its append,
            does not hide the outcomes of other records. An open transaction can then only be
            aborted.

        Raises:
            ConfigError: columns differ in length, or the arguments match neither form.
            SerializationError, ConfigError: every record of the call has a wrong type: a key or
                value that the serializer does not accept (without a serializer: not bytes), or an
                entry that is not a ProducerRecord. The error is that of the first record; nothing
                was sent.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: before anything was sent.

        Cancellation: no further records are appended. Records in batches are still delivered, and
        `progress` has their outcomes.
        """
        check_progress("send_many", progress)
        runtime = self._lifecycle.runtime_for_sending()
        sender = BulkSender(
            runtime, self._slow_path, self._lifecycle.check_running, self._max_block, progress
        )
        if isinstance(topic, str):
            if values is None:
                raise ConfigError("send_many: give values, a list with one entry per record")
            return await sender.send_columns(topic, values, keys, timestamps_ms, headers, partition)
        if any(x is not None for x in (values, keys, headers, timestamps_ms, partition)):
            raise ConfigError(
                "send_many takes either a topic with columns or an iterable of ProducerRecord, "
                "not both"
            )
        return await sender.send_records(topic)

    async def send_table(
        self,
        topic: str | None,
        table: Any,
        *,
        key_column: str | None = "key",
        value_column: str = "value",
        headers_column: str | None = "headers",
        timestamp_column: str | None = "timestamp",
        partition_column: str | None = "partition",
        topic_column: str | None = "topic",
        progress: BulkProgress | None = None,
    ) -> BulkResult:
        """Send every row of an Arrow table as a record and wait until each has its outcome.

        Compiled code copies the rows from the table's buffers into record batches, without a Python
        object per row. Waits for memory as often as needed; the table is referenced until its rows
        are copied. Streams (``__arrow_c_stream__``) are read in a worker thread, one batch ahead.

        Args:
            topic: topic of all rows, or None to use the topic column.
            table: an object with ``__arrow_c_array__`` or ``__arrow_c_stream__``: a pyarrow
                RecordBatch, Table or RecordBatchReader, a polars DataFrame, a duckdb result.
            value_column: binary or string; null is a tombstone. Required.
            key_column: binary or string; null stands for no key.
            headers_column: list<struct<key: string, value: binary>> or map<string, binary>; null
                means no headers, a null value is a header without a value.
            timestamp_column: timestamp of any unit, truncated to ms, or integer of Unix ms; null
                means now.
            partition_column: an integer; null lets the partitioner choose.
            topic_column: string; null fails the row.
            progress: reports the progress, and keeps the outcomes if the call is cancelled.

        Columns with default names may be missing, except for the value; columns that you name must
        exist. None disables a column. Other columns are ignored. Order is kept per partition.

        Returns:
            `BulkResult`: outcomes by row number over all batches. The failure of a row does not
            hide the outcomes of other rows. If reading the table fails or the producer ends during
            the call, `interrupted` is the cause, and later rows are not in the result: they were
            not sent. A transaction that contains part of such a table can only be aborted.

        Serializers, interceptors and custom partitioners are called for every row. A serializer
        gets a str if the column is a string column, else bytes.

        Raises:
            ConfigError: the table or topic is invalid, or a column is missing or has the wrong
                type. Nothing was sent.
            SerializationError: the table could not be read. Nothing was sent.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: before anything was sent.

        Cancellation: no further rows are appended. Rows in batches are still delivered, and
        `progress` has their outcomes.

        Source: Arrow C data, C stream and PyCapsule interfaces.
        """
        columns = {
            "key": key_column, "value": value_column, "headers": headers_column,
            "timestamp": timestamp_column, "partition": partition_column, "topic": topic_column,
        }  # fmt: skip
        check_progress("send_table", progress)
        return await self.table_sender(progress).send_table(topic, table, columns)

    def table_sender(self, progress: BulkProgress | None = None) -> TableSender:
        """Return an object that appends the rows of one table and separately waits for outcomes.

        For integrations such as the Spark sink, which append many tables before they wait.

        Raises:
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: the producer is unusable.
        """
        runtime = self._lifecycle.runtime_for_sending()
        return TableSender(
            runtime, self._slow_path, self._lifecycle.check_running, self._max_block, progress
        )

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent before this call has its outcome; ignores `linger_ms`.

        Failures are not raised here, but by each record's `Delivery`.

        Args:
            timeout: limit in seconds; None waits until all records have their outcomes (at most
                delivery_timeout_ms).

        Raises:
            DeliveryTimeout: the timeout passed; delivery continues.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: the producer is unusable.

        Cancellation: only the wait ends; delivery continues.
        """
        check_timeout("flush", timeout)
        if self._lifecycle.runtime is None and not self._lifecycle.closed:
            return
        runtime = self._lifecycle.usable()
        queue = self._lifecycle.thread_queue
        pending: list[ProducerBatch] = []
        started = runtime.loop.time()
        try:
            async with asyncio.timeout(timeout):
                if queue is not None and not queue.is_empty:
                    await queue.flush()
                pending = list(runtime.accumulator.incomplete)
                waiting = runtime.flushes.wait(pending)
                runtime.wake_sender()
                await waiting
        except TimeoutError:
            raise DeliveryTimeout(
                f"flush: {sum(not batch.core.settled for batch in pending)} batches have no "
                f"outcome after {timeout} s; delivery continues",
                outcome=Outcome.UNKNOWN,
            ) from None
        finally:
            self._metrics.histograms["flush_time_s"].add(runtime.loop.time() - started)

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """Return a context manager that begins a transaction and commits it, or aborts it on an
        exception: ``async with producer.transaction() as txn``.

        Args:
            timeout: seconds for each of begin, offsets, commit and abort; None stands for
                max_block_ms.

        Raises (on entry and exit): see `begin_transaction`, `commit_transaction` and
        `abort_transaction`; see `Transaction`.
        """
        check_timeout("transaction", timeout)
        return Transaction(self._transactions, timeout)

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Begin a transaction. Records sent from now on belong to it.

        Waits for the producer id, and for the end of an earlier commit or abort that timed out.

        Raises:
            ConfigError: the producer has no transactional_id.
            TransactionError: a transaction is open, or another transactional call is in progress.
            AbortableTransactionError: the previous transaction failed; abort it first.
            FatalTransactionError, ProducerFenced: close the producer.
            KafkaTimeout: the call took longer than `timeout` seconds (None: max_block_ms).

        Cancellation: no transaction is open afterwards.
        """
        await self._transactions.begin(timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush, then commit: all records and offsets of the transaction become visible at once.

        Raises:
            AbortableTransactionError: a record failed or the coordinator rejected the commit;
                nothing becomes visible. Call `abort_transaction`.
            KafkaTimeout: no definite response within `timeout` seconds (None: max_block_ms). The
                outcome is unknown. Call `commit_transaction` again, which continues to wait;
                `abort_transaction` is not allowed. `begin_transaction` waits for the outcome too.
            FatalTransactionError, ProducerFenced: close the producer. With `.outcome` UNKNOWN the
                transaction may be committed.
            TransactionError: no transaction is open, or another call is in progress.

        Cancellation: only the wait ends, like after a timeout.
        """
        await self._transactions.end(commit=True, timeout=timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort: unsent records fail, and no record of the transaction becomes visible. A
        `send_offsets_to_transaction` of another task that is in progress fails.

        Raises:
            KafkaTimeout: no definite response yet. Call `abort_transaction` again, or begin the
                next transaction.
            Others: see `commit_transaction`.

        Cancellation: only the wait ends.
        """
        await self._transactions.end(commit=False, timeout=timeout)

    async def prepare_transaction(self) -> tuple[int, int, bool]:
        """Prepare the open transaction so that another process can end it with EndTxn.

        For integrations such as the Spark sink. Flush first. Afterwards the producer accepts no
        more records, and closing it does not abort the transaction.

        Returns:
            Producer id, epoch, and True if the transaction follows the second protocol
            (KIP-890).

        Raises:
            TransactionError: no transaction is open, or some records or offsets have no outcome
                yet.
            AbortableTransactionError: a record failed; abort the transaction.
        """
        return await self._transactions.prepare()

    async def send_offsets_to_transaction(
        self, offsets: Any, group_metadata: Any, timeout: float | None = None
    ) -> None:
        """Commit a consumer group's offsets with the open transaction (KIP-98, KIP-447).

        Args:
            offsets: offset of the next record to read per partition: a mapping from (topic,
                partition) to an int or to aiokafka's ``OffsetAndMetadata``, or confluent-kafka's
                list of ``TopicPartition``.
            group_metadata: a `GroupMetadata`, the started ``AIOKafkaConsumer``, confluent-kafka's
                ``consumer.consumer_group_metadata()``, or a group id (which protects less).
            timeout: seconds; None stands for max_block_ms.

        Raises:
            ConfigError: an argument has another type, or an offset is out of range.
            AbortableTransactionError: the coordinator rejected the offsets, e.g. after a rebalance.
            KafkaTimeout: no response yet; `commit_transaction` waits for it.
            Others: see `commit_transaction`.

        Cancellation: only the wait ends.
        """
        await self._transactions.send_offsets(offsets, group_metadata, timeout)

    async def run_transaction(
        self,
        function: Callable[[Transaction], Awaitable[R]],
        *,
        retries: int = 3,
        timeout: float | None = None,
    ) -> R:
        """Run ``await function(txn)`` in a transaction and return its result. If the transaction
        was aborted because of a transient error, repeat it up to `retries` times.

        A transaction is not repeated after a commit with an unknown outcome, because that could
        duplicate all its records. If the function sends from several tasks, it must end them before
        it returns or raises (`asyncio.TaskGroup` does, `asyncio.gather` does not): a task that
        continues would send its next records in the repeated transaction.

        Raises: the exceptions of the function and of `transaction`.
        """
        return await run_transaction(
            self._transactions, function, retries=retries, timeout=timeout, pause=self._pause
        )

    def _pause(self, attempt: int) -> float:
        return self._lifecycle.usable().backoff(attempt)

    # -- metadata --------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Return the topic's partitions and leaders. Waits for metadata up to max_block_ms.

        Raises:
            MetadataTimeout, InvalidTopic, AuthorizationError: see `send`.
        """
        validate_topic(topic)
        runtime = self._lifecycle.usable()
        deadline = runtime.loop.time() + self._max_block
        snapshot = await runtime.metadata.wait_for_topic(topic, deadline=deadline)
        return snapshot.topics[topic].partitions

    async def refresh_metadata(self) -> None:
        """Wait up to max_block_ms for metadata that is newer than this call.

        For integrations such as the Spark sink, which must notice that a topic has new partitions.

        Raises:
            MetadataTimeout: no response arrived in time.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: the producer is unusable.
        """
        runtime = self._lifecycle.usable()
        generation = runtime.metadata.request_update()
        deadline = runtime.loop.time() + self._max_block
        await runtime.metadata.wait_newer(generation, deadline=deadline)

    async def warm(self, topics: Iterable[str]) -> None:
        """Prepare the first sends to `topics`: fetch their metadata and the schema ids that the
        serializers need, and connect to their leaders. Waits up to max_block_ms.

        Raises:
            MetadataTimeout, InvalidTopic, AuthorizationError: see `send`.
            SerializationError: a serializer cannot be prepared, for instance because the Schema
                Registry does not have its schema.
            AuthenticationError: a broker rejected the credentials.
            ProducerClosed, ProducerFailed: the producer ended during the call.
        """
        names = checked_topics("warm", topics)
        runtime = self._lifecycle.usable()
        deadline = runtime.loop.time() + self._max_block
        for topic in names:
            await self.partitions_for(topic)
        await self._serializers.warm(names, deadline)
        await runtime.warm_up.connect_leaders(names, deadline)

    # -- status ---------------------------------------------------------------------------------

    @property
    def client_id(self) -> str:
        """The name of this producer for brokers, logs and metrics: the setting `client_id`, or a
        generated name that is unique in this process."""
        return self._client_id

    def metrics(self, *, by: Sequence[Literal["topic", "node"]] = ()) -> dict[str, Any]:
        """Return counters since the start, histograms and gauges by name, as plain values that
        later events do not change. docs/monitoring.md has a table of all names.

        May be called in any thread, and after `close`. Gauges are missing before the start.

        Args:
            by: "topic" adds `topics`, the metrics of each topic by name, and "node" adds `nodes`,
                the metrics of each broker by node id. At most 1000 topics and brokers are counted
                separately; further ones are counted together under "(other)" and -1. -1 also stands
                for addresses that are not brokers of the metadata.

        Raises:
            ConfigError: `by` contains another value.
        """
        return collect_metrics(self._metrics, self._lifecycle.runtime, by)

    def health(self) -> Health:
        """Return a snapshot for liveness and readiness checks. Never waits."""
        lifecycle = self._lifecycle
        return health(lifecycle.runtime, closed=lifecycle.closed or lifecycle.forked)

    def explain(self) -> str:
        """Return the state of the producer as text for humans: the waiting records and calls with
        their brokers and reasons, the connections, the settings that differ from the defaults, and
        risky combinations of settings. Contains no secrets."""
        lifecycle = self._lifecycle
        closed = lifecycle.closed or lifecycle.forked
        return explain(self._config, lifecycle.runtime, self._client_id, closed=closed)

    if not TYPE_CHECKING:  # type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raise an AttributeError with a hint. Called only for names that do not exist."""
            raise AttributeError(no_such_attribute(name), name=name, obj=self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Producer has connections and cannot be pickled or copied: create one in each "
            "process; its ProducerConfig can be pickled"
        )

    def __repr__(self) -> str:
        lifecycle = self._lifecycle
        state = "closed" if lifecycle.closed else "started" if lifecycle.runtime else "new"
        return f"<Producer {self._client_id} {state}>"


# With this mark, frameworks that run plain functions in threads await `submit` on the loop.
if sys.version_info >= (3, 12):
    inspect.markcoroutinefunction(append.submit)
else:
    mark_as_coroutine_function(append.submit)

__all__ = ["KafkaError", "Producer"]
