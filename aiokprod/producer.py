"""`Producer`: the public facade, and the place where everything is put together."""

from __future__ import annotations

import asyncio
import itertools
import os
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from aiokprod.admission import Admission
from aiokprod.arguments import (
    check_plugins,
    check_timeout,
    checked_config,
    checked_interceptors,
    checked_record,
    checked_topics,
    tcp_environment,
)
from aiokprod.bulk import BulkResult
from aiokprod.bulk_send import BulkSender
from aiokprod.config import ProducerConfig
from aiokprod.engine.bootstrap import check_bootstrap
from aiokprod.environment import Environment
from aiokprod.errors import (
    BufferFull,
    ConfigError,
    DeliveryTimeout,
    ForkedProcess,
    KafkaError,
    Outcome,
    ProducerClosed,
    WrongLoop,
)
from aiokprod.interceptors import InterceptorChain, ProducerInterceptor
from aiokprod.observer import Metrics, Observer, ObserverChain
from aiokprod.partitioners import AnyPartitioner
from aiokprod.partitioners import adapt as adapt_partitioner
from aiokprod.plugins import close_plugins, configure_plugins
from aiokprod.records import DrainReport, ProducerRecord, RecordMetadata, validate_topic
from aiokprod.reports import DrainCounter, Health, explain, health
from aiokprod.runtime import Runtime
from aiokprod.serialization import RecordSerializers
from aiokprod.table_send import TableSender
from aiokprod.transactions import Transaction, Transactions, run_transaction
from aiokprod.version import __version__

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from types import TracebackType

    from aiokprod.cluster import PartitionInfo
    from aiokprod.hot.core import Delivery
    from aiokprod.records import Header
    from aiokprod.serializers import AnySerializer, Serializer

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")

_numbers = itertools.count(1)
_live: weakref.WeakSet[Producer[Any, Any]] = weakref.WeakSet()

FOREVER: Final = float("inf")


class Producer(Generic[K, V]):
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
        self._runtime: Runtime | None = None
        self._closed = False
        self._forked = False
        self._config = checked_config(config, settings)
        self._serializers = RecordSerializers(key_serializer, value_serializer)
        self._partitioner = adapt_partitioner(partitioner) if partitioner is not None else None
        checked = checked_interceptors(interceptors)
        self._interceptors = InterceptorChain(checked) if checked else None
        check_plugins(observer, environment)
        self._metrics = Metrics()
        self._observer: Observer = self._metrics
        if observer is not None:
            self._observer = ObserverChain([self._metrics, observer])
        self._user_observer = observer
        self._environment = environment or tcp_environment(self._config)
        self._client_id = self._config.client_id or f"aiokprod-{next(_numbers)}"
        self._closing: asyncio.Task[DrainReport] | None = None
        self._max_block = self._config.max_block_ms / 1000
        self._transactions = Transactions(lambda: self._live().transactions, self._max_block)
        self._admission: Admission
        configure_plugins([*self._serializers.parts(), partitioner, *checked], self._config)
        _live.add(self)

    # -- life -----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, and check that at least one bootstrap server can be resolved.

        Optional and idempotent: the first send starts too. Contacts no broker by itself; brokers
        that are down now may be up later.

        With a transactional_id it also waits, up to max_block_ms, for the coordinator: an earlier
        instance with this id is fenced then, and what it left open is aborted.

        Raises:
            ConfigError: no bootstrap server can be resolved within the connection setup timeout.
            KafkaTimeout: the transaction coordinator did not answer in time.
            TransactionError, BrokerError: it refused.
            ProducerClosed, WrongLoop, ForkedProcess: the producer cannot be used here.
        """
        fresh = self._runtime is None
        self._usable()
        if fresh:
            await check_bootstrap(
                self._config.bootstrap_addresses(),
                self._environment.dialer,
                timeout=self._config.socket_connection_setup_timeout_ms / 1000,
            )
        await self._transactions.initialise()

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
        if not self._forked:  # in a child it is not ours to close
            await self.close()

    async def close(self, timeout: float | None = None) -> DrainReport:
        """Send what was handed over, then end everything.

        Idempotent: later and concurrent calls get the same report.

        Args:
            timeout: seconds for the draining, never exceeded; 0 fails what is pending at once;
                None waits until every record has its outcome (at most delivery_timeout_ms).

        Records without an outcome by then fail with ProducerClosed and are listed in the report.
        Cancellation: pending records fail at once.

        Raises:
            ConfigError: timeout is negative.
            WrongLoop, ForkedProcess: called where the producer does not live.
        """
        check_timeout("close", timeout)
        self._check_place()
        if self._closing is None or self._closing.cancelled():
            self._closed = True
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(timeout), name="aiokprod-close")
        try:
            return await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            if self._runtime is not None and not self._closing.done():
                self._runtime.flushes.give_up()
            raise

    async def _close(self, timeout: float | None) -> DrainReport:
        loop = asyncio.get_running_loop()
        start = loop.time()
        runtime = self._runtime
        if runtime is None:
            self._close_plugins()
            return DrainReport(0, 0, (), 0.0, complete=True)
        deadline = FOREVER if timeout is None else start + timeout
        counter = DrainCounter(self._metrics)
        runtime.refuse(ProducerClosed("the producer was closed while the send was in progress"))
        try:
            if timeout != 0 and runtime.failure is None:
                await runtime.drain(deadline)
                if runtime.transactions is not None:
                    await self._transactions.abandon(runtime.transactions, deadline)
        except asyncio.CancelledError:
            # Somebody cancelled this very task (a "cancel everything" shutdown): end at once.
            deadline = loop.time()
        undelivered = counter.undelivered(runtime.accumulator.incomplete)
        await runtime.close(loop.time() if timeout == 0 else deadline)
        self._close_plugins()
        return counter.report(undelivered, loop.time() - start)

    def _plugins(self) -> list[object]:
        return [
            *self._serializers.parts(),
            self._partitioner,
            self._interceptors,
            self._user_observer,
        ]

    def _close_plugins(self) -> None:
        close_plugins(self._plugins())

    def __del__(self) -> None:
        if getattr(self, "_runtime", None) is not None and not self._closed and not self._forked:
            warnings.warn(
                f"unclosed producer {self._client_id}: use `async with` or `await close()`",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- checks ---------------------------------------------------------------------------------

    def _check_place(self) -> None:
        if self._forked:
            raise ForkedProcess(
                "this producer was started before the process forked; its connections belong to "
                "the parent. Create a producer in each process, after the fork"
            )
        runtime = self._runtime
        if runtime is None:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not runtime.loop:
            raise WrongLoop(
                "this producer was started on another event loop than the one running here; use "
                "one producer per loop, and hand records over with "
                "asyncio.run_coroutine_threadsafe"
            )

    def _usable(self) -> Runtime:
        """The runtime, started if need be; raises if records cannot be taken here and now."""
        runtime = self._live()
        fatal = runtime.state.fatal_error
        if fatal is not None:
            raise fatal.copy()
        return runtime

    def _live(self) -> Runtime:
        """The runtime, started if need be; a fatal error of the producer state is let pass."""
        self._check_place()
        if self._closed:
            raise ProducerClosed("the producer is closed; create a new one")
        runtime = self._runtime
        if runtime is None:
            runtime = self._launch()
        if runtime.failure is not None:
            raise runtime.failure.copy()
        return runtime

    def _launch(self) -> Runtime:
        config = self._config
        runtime = Runtime(
            config,
            self._environment,
            asyncio.get_running_loop(),
            client_id=self._client_id,
            version=__version__,
            observer=self._observer,
            slow_submit=self._submit,
        )
        self._admission = Admission(
            config, runtime, self._serializers, self._partitioner, self._interceptors,
            self._check_running,
        )  # fmt: skip
        runtime.allow_fast_path(
            self._serializers.plain and self._partitioner is None and self._interceptors is None
        )
        self._runtime = runtime
        if type(self).submit is Producer.submit:
            # Calls go straight to compiled code; its slow path leads back to `_submit`.
            self.__dict__["submit"] = runtime.appender.submit
        runtime.start()
        return runtime

    def _check_running(self) -> None:
        """After a wait in the slow path: is the producer still what it was?"""
        runtime = self._runtime
        assert runtime is not None, "records are admitted by a started producer"
        if runtime.failure is not None:
            raise runtime.failure.copy()
        if self._closed:
            raise ProducerClosed("the producer was closed while the send was in progress")

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
        while metadata are missing, memory is short, or this task has held the loop for about a
        millisecond. The `Delivery` is an awaitable for the `RecordMetadata`; it works with
        gather, wait, wait_for, shield and `add_done_callback`. A failure nobody waits for goes to
        the observer and the log, once per batch.

        Raises (at the call or on await): as `send`, but for the errors of the delivery itself.
        """
        runtime = self._runtime
        if runtime is None:
            return self._submit(topic, value, key, partition, timestamp_ms, headers)
        return runtime.appender.submit(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

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
        runtime = self._usable()
        record = checked_record(topic, value, key, partition, timestamp_ms, headers)
        block = self._max_block if block is None else min(block, self._max_block)
        delivery = await self._admission.admit(record, runtime.loop.time() + block)
        if runtime.appender.slice_is_over():
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
                self._runtime.state.on_refused(late)
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
        runtime = self._usable()
        delivery = runtime.appender.try_append(topic, value, key, partition, timestamp_ms, headers)
        if delivery is None:
            record = checked_record(topic, value, key, partition, timestamp_ms, headers)
            delivery = self._admission.try_admit(record)
        if delivery is None:
            raise BufferFull(
                f"buffer_memory ({self._config.buffer_memory} bytes), or the part of it that one "
                "broker may hold, is used up: wait, or shed load"
            )
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
        iterable of `ProducerRecord` for any topics. Waits for room in memory as often as needed.

        Returns:
            `BulkResult`: outcomes by position. A record that fails, at admission or delivery,
            never hides the outcome of another.

        Raises:
            ConfigError: columns differ in length, or the arguments fit neither form.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: before anything was sent.

        Cancellation: stops handing over; what was admitted is delivered all the same.
        """
        sender = BulkSender(self._usable(), self._admission, self._check_running, self._max_block)
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
            `interrupted` says why and later rows are not in it: they were not sent.

        With interceptors or a partitioner of your own they see every row, as a record each: slow.

        Raises:
            ConfigError: no such table or topic, a column is missing or of the wrong type, or the
                producer has serializers (bytes are sent as they are). Nothing was sent.
            SerializationError: the table could not be read. Nothing was sent.
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: before anything was sent.

        Cancellation: stops handing over; what was admitted is delivered all the same.

        Source: Arrow C data, C stream and PyCapsule interfaces.
        """
        runtime = self._usable()
        if not self._serializers.plain:
            raise ConfigError(
                "send_table sends the bytes of the columns as they are, but this producer has a "
                "key_serializer or value_serializer: use a producer without, or send_many"
            )
        sender = TableSender(runtime, self._admission, self._check_running, self._max_block)
        columns = {
            "key": key_column, "value": value_column, "headers": headers_column,
            "timestamp": timestamp_column, "partition": partition_column, "topic": topic_column,
        }  # fmt: skip
        return await sender.send_table(topic, table, columns)

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

    # -- transactions ---------------------------------------------------------------------------

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """``async with producer.transaction() as txn``: commit at the end, abort on an exception.

        Args:
            timeout: seconds for each of begin, offsets, commit and abort; None is max_block_ms.

        Raises (on entry and exit): as `begin_transaction`, `commit_transaction` and
        `abort_transaction`; see `Transaction`.
        """
        check_timeout("transaction", timeout)
        return Transaction(self._transactions, timeout)

    async def begin_transaction(self, timeout: float | None = None) -> None:
        """Open a transaction; what is sent from now on belongs to it.

        Waits for the producer id, and for an earlier commit or abort whose call timed out.

        Raises:
            ConfigError: the producer has no transactional_id.
            TransactionError: a transaction is open, or another transactional call in progress.
            AbortableTransactionError: the transaction before failed: abort it first.
            FatalTransactionError, ProducerFenced: close the producer.
            KafkaTimeout: not within `timeout` seconds (None: max_block_ms).

        Cancellation: no transaction is open.
        """
        await self._transactions.begin(timeout)

    async def commit_transaction(self, timeout: float | None = None) -> None:
        """Flush, then commit: all records and offsets of the transaction become visible at once.

        Raises:
            AbortableTransactionError: a record failed or the coordinator refused; nothing becomes
                visible. Call `abort_transaction`.
            KafkaTimeout: no definite answer within `timeout` seconds (None: max_block_ms): the
                outcome is unknown. Call `commit_transaction` again, it goes on waiting;
                `abort_transaction` is refused. `begin_transaction` waits for the outcome too.
            FatalTransactionError, ProducerFenced: close the producer. With `.outcome` UNKNOWN the
                transaction may be committed.
            TransactionError: no transaction is open, or another call is in progress.

        Cancellation: stops waiting only, as a timeout does.
        """
        await self._transactions.end(commit=True, timeout=timeout)

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort: records not sent yet fail, nothing of the transaction becomes visible.

        Raises:
            KafkaTimeout: no definite answer yet; call it again, or begin the next transaction.
            Others: as `commit_transaction`.

        Cancellation: stops waiting only.
        """
        await self._transactions.end(commit=False, timeout=timeout)

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
            timeout: seconds; None is max_block_ms.

        Raises:
            ConfigError: the arguments are something else.
            AbortableTransactionError: refused, e.g. because the group rebalanced.
            KafkaTimeout: not accepted yet; the commit waits for it.
            Others: as `commit_transaction`.

        Cancellation: stops waiting only.
        """
        await self._transactions.send_offsets(offsets, group_metadata, timeout)

    async def run_transaction(
        self,
        function: Callable[[Transaction], Awaitable[R]],
        *,
        retries: int = 3,
        timeout: float | None = None,
    ) -> R:
        """Run ``await function(txn)`` in a transaction; again, up to `retries` times, if that was
        aborted for a reason that may pass. Returns what the function returned.

        Never repeats after a commit whose outcome is unknown: that could write everything twice.

        Raises: what the function raised, and as `transaction`.
        """
        return await run_transaction(
            self._transactions, function, retries=retries, timeout=timeout, pause=self._pause
        )

    def _pause(self, attempt: int) -> float:
        return self._usable().backoff(attempt)

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

    async def warm(self, topics: Iterable[str]) -> None:
        """Fetch the metadata of `topics` and connect to their leaders, so that first sends need
        no set-up; waits up to max_block_ms.

        Raises:
            MetadataTimeout, InvalidTopic, AuthorizationError: as `send`.
            AuthenticationError: a broker refuses us.
        """
        names = checked_topics("warm", topics)
        runtime = self._usable()
        deadline = runtime.loop.time() + self._max_block
        for topic in names:
            await self.partitions_for(topic)
        await runtime.connect_leaders(names, deadline)

    def metrics(self) -> dict[str, Any]:
        """Counters since start, histograms and gauges by name; see `Metrics`. Plain values,
        independent of what happens afterwards."""
        return self._metrics.snapshot() | (self._runtime.gauges() if self._runtime else {})

    def health(self) -> Health:
        """A snapshot for liveness and readiness checks; never waits."""
        return health(self._runtime, closed=self._closed or self._forked)

    def explain(self) -> str:
        """Effective settings, negotiated versions and risky combinations, as text for humans.
        Contains no secrets."""
        return explain(self._config, self._runtime)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "started" if self._runtime else "new"
        return f"<Producer {self._client_id} {state}>"

    def _after_fork(self) -> None:
        self._forked = self._runtime is not None
        if self._runtime is not None:
            self._runtime.appender.enabled = False


def _after_fork() -> None:
    for producer in list(_live):
        producer._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

__all__ = ["KafkaError", "Producer"]
