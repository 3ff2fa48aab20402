"""`Producer`: the public facade, and the place where everything is put together."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import sys
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from aiokprod._client.bulk_result import BulkResult
from aiokprod._client.hooks import UserHooks
from aiokprod._client.runtime import Runtime, codec_of
from aiokprod._client.send_many import BulkSender
from aiokprod._client.send_table import TableSender
from aiokprod._client.serialization import RecordSerializers
from aiokprod._client.slow_path import SlowPath
from aiokprod._client.transaction_methods import TransactionMethods
from aiokprod._client.transactions import Transactions
from aiokprod._client.validation import (
    check_plugins,
    check_timeout,
    checked_config,
    checked_interceptors,
    checked_record,
    checked_topics,
    tcp_environment,
)
from aiokprod._core.append import Appender
from aiokprod._version import __version__
from aiokprod.config import ProducerConfig
from aiokprod.environment import Environment
from aiokprod.errors import (
    ConfigError,
    DeliveryTimeout,
    KafkaError,
    Outcome,
)
from aiokprod.interceptors import InterceptorChain, ProducerInterceptor
from aiokprod.observer import Metrics, Observer, ObserverChain
from aiokprod.partitioners import AnyPartitioner
from aiokprod.partitioners import adapt as adapt_partitioner
from aiokprod.records import ProducerRecord, RecordMetadata, validate_topic

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from aiokprod._core.batch import Delivery
    from aiokprod.cluster import PartitionInfo
    from aiokprod.records import Header
    from aiokprod.serializers import AnySerializer, Serializer

K = TypeVar("K")
V = TypeVar("V")

_numbers = itertools.count(1)


class Producer(TransactionMethods, Generic[K, V]):
    """Sends records to Kafka from one event loop.

    ::

        async with Producer(bootstrap_servers="localhost:9092") as producer:
            metadata = await producer.send("topic", b"value", key=b"key")

    Settings are keyword arguments or a ready `ProducerConfig`; behaviour is passed as objects.
    Any number of tasks of one loop share a producer, and should: sharing gives larger batches.
    The constructor opens nothing; `start`, `async with` or the first send does.

    Args:
        config: settings; or give them as keywords, see `ProducerConfig`.
        key_serializer, value_serializer: `Serializer` objects or callables; None takes bytes.
        partitioner: `Partitioner` or callable; None is Kafka's built-in logic (murmur2 of the
            key; sticky without key).
        interceptors: called in order, see `ProducerInterceptor`.
        observer: told what happens, see `Observer`.
        environment: network, wall clock and randomness; for tests.

    Raises:
        ConfigError: a setting is unknown, wrong or in conflict; names it and the mend.

    Errors of its calls are `KafkaError`s whose `.outcome` says whether the record can be in the
    log. Source: Java `KafkaProducer`.
    """

    # What is sent follows from the serializers: bytes where there is none.
    @overload
    def __init__(
        self: Producer[bytes, bytes],
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[bytes, V],
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[V] | Callable[[V], Any],
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: Producer[K, bytes],
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: Serializer[K] | Callable[[K], Any],
        value_serializer: None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: Serializer[K] | Callable[[K], Any],
        value_serializer: Serializer[V] | Callable[[V], Any],
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None: ...

    def __init__(
        self,
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: AnySerializer | None = None,
        value_serializer: AnySerializer | None = None,
        partitioner: AnyPartitioner | None = None,
        interceptors: Sequence[ProducerInterceptor] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None:
        checked_settings = checked_config(config, settings)
        codec_of(checked_settings)  # it may be missing; and it is imported before a loop is busy
        self._serializers = RecordSerializers(key_serializer, value_serializer)
        self._partitioner = adapt_partitioner(partitioner) if partitioner is not None else None
        checked = checked_interceptors(interceptors)
        self._interceptors = InterceptorChain(checked) if checked else None
        check_plugins(observer, environment)
        super().__init__(
            checked_settings,
            environment or tcp_environment(checked_settings),
            checked_settings.client_id or f"aiokprod-{next(_numbers)}",
            Metrics(),
        )
        self._observer: Observer = self._metrics
        if observer is not None:
            self._observer = ObserverChain([self._metrics, observer])
        self._max_block = self._config.max_block_ms / 1000
        self._transactions = Transactions(lambda: self._live().transactions, self._max_block)
        self._slow_path: SlowPath
        self._hooks = UserHooks([*self._serializers.parts(), partitioner, *checked, observer])
        self._hooks.configure(self._config)

    # -- start ----------------------------------------------------------------------------------

    def _launch(self) -> Runtime:
        config = self._config
        runtime = Runtime(
            config,
            self._environment,
            asyncio.get_running_loop(),
            client_id=self._client_id,
            version=__version__,
            observer=self._observer,
            slow_submit=self._submit_here,
            plain_records=(
                self._serializers.plain and self._partitioner is None and self._interceptors is None
            ),
        )
        self._slow_path = SlowPath(
            config, runtime, self._serializers, self._partitioner, self._interceptors,
            self._check_running,
        )  # fmt: skip
        self._runtime = runtime
        if type(self).submit is _SUBMIT:  # neither overridden nor instrumented
            # Calls go straight to compiled code; its slow path leads back to `_submit`.
            self.__dict__["submit"] = runtime.appender.submit
        runtime.start()
        return runtime

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
            key: decides the partition; None is no key.
            partition: 0 to 2³¹-1, or None to let the partitioner choose.
            timestamp_ms: Unix time in ms, or None for now.
            headers: (name, bytes or None) pairs, order kept.
            timeout: seconds for everything, waits for metadata and memory included. When it
                passes, a record not yet on its way is withdrawn. None: max_block_ms for the
                waits before, delivery_timeout_ms for the delivery.

        Returns:
            Where the record is; `offset` is None with acks=0 and for a recognised duplicate.

        Raises:
            ConfigError, SerializationError, RecordTooLarge: the record cannot be sent as it is.
            MetadataTimeout, BufferTimeout: max_block_ms passed; nothing was sent.
            DeliveryTimeout: no acknowledgment in time; see `.outcome`.
            BrokerError: the broker refused it; see `.code` and `.outcome`.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: the producer is unusable.

        Cancellation withdraws the record if its batch has not been closed for sending; otherwise
        only the waiting ends and the record is delivered or fails all the same.
        """
        if timeout is not None:
            return await self._send_within(
                timeout, topic, value, key, partition, timestamp_ms, headers
            )
        runtime = self._runtime
        delivery = None
        if runtime is not None:
            delivery = runtime.appender.try_append(
                topic, value, key, partition, timestamp_ms, headers
            )
        if delivery is None:
            delivery = await self._submit(topic, value, key, partition, timestamp_ms, headers)
        metadata: RecordMetadata = await delivery
        return metadata

    def submit(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Awaitable[Delivery]:
        """Admit one record: `delivery = await producer.submit(...)`.

        Arguments as `send`. Awaiting returns once the record is in a batch, which suspends only
        while metadata are missing, memory is short, or this task sends on although a pass of the
        loop has taken a millisecond: then others who do so have their turn first. If that wait is
        cancelled (`wait_for`), the record was admitted already. The `Delivery` is an awaitable for
        the `RecordMetadata`; it works with gather, wait, wait_for, shield and `add_done_callback`.
        A failure nobody waits for goes to the observer and the log, once per batch.

        Raises (at the call or on await): as `send`, but for the errors of the delivery itself.
        WrongLoop is raised at the call.

        Counts as a coroutine function for `inspect` (3.12 and newer) and `asyncio`, so that
        frameworks which run plain functions in threads await it on the loop. For the same reason
        the loop's debug mode refuses it as a callback (`call_soon`, `call_later`), where nothing
        would await the record's admission: use `try_submit` there.
        """
        runtime = self._runtime
        if runtime is None:
            return self._submit_here(topic, value, key, partition, timestamp_ms, headers)
        return runtime.appender.submit(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    def _submit_here(self, *fields: Any) -> Awaitable[Delivery]:
        """The slow path of `submit`. Off the producer's loop it raises at the call: a coroutine
        handed to another thread would never run, and the record would be lost in silence."""
        self._check_place(running=True)
        return self._submit(*fields)

    async def _submit(
        self,
        topic: Any,
        value: Any,
        key: Any,
        partition: Any,
        timestamp_ms: Any,
        headers: Any,
        block: float | None = None,
    ) -> Delivery:
        runtime = self._accepting()
        record = checked_record(topic, value, key, partition, timestamp_ms, headers)
        block = self._max_block if block is None else min(block, self._max_block)
        delivery = await self._slow_path.admit(record, runtime.loop.time() + block)
        if runtime.yield_queue.slice_is_over():
            await asyncio.sleep(0)
        return delivery

    async def _send_within(
        self, timeout: float, topic: Any, value: Any, key: Any, partition: Any,
        timestamp_ms: Any, headers: Any,
    ) -> RecordMetadata:  # fmt: skip
        check_timeout("send", timeout, zero=False)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        delivery = await self._submit(
            topic, value, key, partition, timestamp_ms, headers, block=timeout
        )
        expired = False
        task = asyncio.current_task()
        cancelling = 0 if task is None else task.cancelling()

        def give_up() -> None:
            nonlocal expired
            expired = delivery.cancel()

        timer = loop.call_at(deadline, give_up)
        try:
            metadata: RecordMetadata = await delivery
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not expired or (task is not None and task.cancelling() > cancelling):
                raise
            withdrawn = delivery.withdrawn
            late = DeliveryTimeout(
                f"{delivery.topic}-{delivery.partition}: no acknowledgment within the timeout of "
                f"{timeout} s; the record "
                + ("was withdrawn and is not in the log" if withdrawn else "may be in the log"),
                outcome=Outcome.NOT_SENT if withdrawn else Outcome.UNKNOWN,
            )
            if self._runtime is not None:
                self._runtime.state.gate.on_refused(late)
            raise late from None
        finally:
            timer.cancel()
        return metadata

    def try_submit(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Delivery:
        """Admit one record without ever waiting; for synchronous code on the producer's loop.

        Arguments as `send`.

        Raises:
            MetadataMissing: the topic is not known yet; it is being fetched.
            BufferFull: buffer_memory is used up.
            Others: as `send`.
        """
        runtime = self._accepting()
        delivery = runtime.appender.try_append(topic, value, key, partition, timestamp_ms, headers)
        if delivery is None:
            record = checked_record(topic, value, key, partition, timestamp_ms, headers)
            delivery = self._slow_path.try_admit(record)
        return delivery

    @overload
    async def send_many(self, topic: Iterable[ProducerRecord[K, V]], /) -> BulkResult: ...

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
    ) -> BulkResult:
        """Send many records and wait until each has its outcome.

        Either columns of equal length for one topic, ``send_many("t", values, keys=keys)``, or an
        iterable of `ProducerRecord` for any topics. Waits for room in memory as often as needed, up
        to max_block_ms each time; once that was in vain, later records wait no more until one
        gets in, so that a call of many records ends soon if no broker answers.

        Returns:
            `BulkResult`: outcomes by position. A record that fails, at admission or delivery,
            never hides the outcome of another; an open transaction can only be aborted then.

        Raises:
            ConfigError: columns differ in length, or the arguments fit neither form.
            SerializationError, ConfigError: of the first record, if every record of the call has a
                wrong type: a key or value that its serializer does not take (without one: no
                bytes), an entry that is no ProducerRecord. Nothing was sent.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: before anything was sent.

        Cancellation: stops handing over; what was admitted is delivered all the same.
        """
        runtime = self._accepting()
        sender = BulkSender(runtime, self._slow_path, self._check_running, self._max_block)
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
    ) -> BulkResult:
        """Send every row of an Arrow table and wait until each has its outcome.

        Rows go from the table's buffers into record batches in compiled code, without a Python
        object each. Waits for room in memory as often as needed; the table is kept until its rows
        are copied. Streams (``__arrow_c_stream__``) are read in a worker thread, a batch ahead.

        Args:
            topic: of all rows; a topic column is then not looked at. None: by the topic column.
            table: an object with ``__arrow_c_array__`` or ``__arrow_c_stream__``: a pyarrow
                RecordBatch, Table or RecordBatchReader, a polars DataFrame, a duckdb result.
            value_column: binary or string; null is a tombstone. Must be there.
            key_column: binary or string; null is no key.
            headers_column: list<struct<key: string, value: binary>> or map<string, binary>; null
                is no headers, a null value a header without value.
            timestamp_column: timestamp of any unit, cut to ms, or an integer of Unix ms; null is
                now.
            partition_column: an integer; null lets the partitioner choose.
            topic_column: string; null is an error of the row.

        A column that bears the default name may be missing, one you name may not; None is no
        column. Other columns are not looked at. Order is kept per partition.

        Returns:
            `BulkResult`: outcomes by row number over all batches. A row that fails never hides the
            outcome of another. If the table breaks off, or the producer ends, in the middle, its
            `interrupted` says why and later rows are not in it: they were not sent. A transaction
            with part of a table that broke off can only be aborted.

        With interceptors or a partitioner of your own they see every row, as a record each: slow.

        Raises:
            ConfigError: no such table or topic, a column is missing or of the wrong type, or the
                producer has serializers (bytes are sent as they are). Nothing was sent.
            SerializationError: the table could not be read. Nothing was sent.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: before anything was sent.

        Cancellation: stops handing over; what was admitted is delivered all the same.

        Source: Arrow C data, C stream and PyCapsule interfaces.
        """
        columns = {
            "key": key_column, "value": value_column, "headers": headers_column,
            "timestamp": timestamp_column, "partition": partition_column, "topic": topic_column,
        }  # fmt: skip
        return await self.table_sender().send_table(topic, table, columns)

    def table_sender(self) -> TableSender:
        """What `send_table` works with: one call's hand-over, apart from the wait for outcomes.
        For layers such as the Spark sink, which hand over many tables before they look at any.

        Raises:
            ConfigError: the producer has serializers.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: it takes no records.
        """
        runtime = self._accepting()
        if not self._serializers.plain:
            raise ConfigError(
                "send_table sends the bytes of the columns as they are, but this producer has a "
                "key_serializer or value_serializer: use a producer without, or send_many"
            )
        return TableSender(runtime, self._slow_path, self._check_running, self._max_block)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything handed over before this call has its outcome; linger is void.

        Failures are not raised here: each record tells its own.

        Args:
            timeout: seconds, or None for no limit but delivery_timeout_ms.

        Raises:
            DeliveryTimeout: the timeout passed; records go on being delivered.

        Cancellation: stops waiting only.
        """
        check_timeout("flush", timeout)
        if self._runtime is None and not self._closed:
            return
        runtime = self._usable()
        pending = list(runtime.accumulator.incomplete)
        waiting = runtime.flushes.wait(pending)
        runtime.sender.wakeup()
        try:
            async with asyncio.timeout(timeout):
                await waiting
        except TimeoutError:
            raise DeliveryTimeout(
                f"flush: {sum(not batch.core.settled for batch in pending)} batches have no "
                f"outcome after {timeout} s; they go on being delivered",
                outcome=Outcome.UNKNOWN,
            ) from None

    # -- looking --------------------------------------------------------------------------------

    async def partitions_for(self, topic: str) -> tuple[PartitionInfo, ...]:
        """The topic's partitions and leaders; waits for metadata up to max_block_ms.

        Raises:
            MetadataTimeout, InvalidTopic, AuthorizationError: as `send`.
        """
        validate_topic(topic)
        runtime = self._usable()
        deadline = runtime.loop.time() + self._max_block
        snapshot = await runtime.metadata.wait_for_topic(topic, deadline=deadline)
        return snapshot.topics[topic].partitions

    async def refresh_metadata(self) -> None:
        """Wait, up to max_block_ms, for metadata that are newer than this call.

        For layers such as the Spark sink, which must know that a topic has got more partitions.

        Raises:
            MetadataTimeout: there were none.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: the producer is unusable.
        """
        runtime = self._usable()
        generation = runtime.metadata.request_update()
        deadline = runtime.loop.time() + self._max_block
        await runtime.metadata.wait_newer(generation, deadline=deadline)

    async def warm(self, topics: Iterable[str]) -> None:
        """Fetch the metadata of `topics` and connect to their leaders, so that first sends need
        no set-up; waits up to max_block_ms.

        Raises:
            MetadataTimeout, InvalidTopic, AuthorizationError: as `send`.
            AuthenticationError: a broker refuses us.
            ProducerClosed, ProducerFailed: the producer ended meanwhile.
        """
        names = checked_topics("warm", topics)
        runtime = self._usable()
        deadline = runtime.loop.time() + self._max_block
        for topic in names:
            await self.partitions_for(topic)
        await runtime.connect_leaders(names, deadline)


def _mark_as_coroutine_function(function: Any) -> None:
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    mark = getattr(asyncio.coroutines, "_is_coroutine", None)  # until 3.13
    if mark is not None:
        function._is_coroutine = mark


_mark_as_coroutine_function(Producer.submit)
_mark_as_coroutine_function(Appender.submit)  # stands in the instance instead
_SUBMIT = Producer.submit

__all__ = ["KafkaError", "Producer"]
