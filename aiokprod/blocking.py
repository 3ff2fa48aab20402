"""`Blocking`: a producer for synchronous code.

It runs an event loop in a separate thread. No other part of this package starts a thread for a
producer. Everything else works like `Producer`.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, overload

from aiokprod._client.child_exit import at_exit_of_child_processes
from aiokprod._client.drain import EMPTY_DRAIN
from aiokprod._client.event_loops import LoopCall, ThreadedLoop
from aiokprod._client.record_future import RecordFuture
from aiokprod._client.validation import check_timeout, checked_config
from aiokprod.config import ProducerConfig
from aiokprod.errors import (
    DeliveryTimeout,
    ForkedProcess,
    KafkaError,
    Outcome,
    ProducerClosed,
    WrongLoop,
)
from aiokprod.producer import Producer
from aiokprod.records import DrainReport, RecordMetadata

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from aiokprod._client.status import Health
    from aiokprod.environment import Environment
    from aiokprod.interceptors import ProducerInterceptor
    from aiokprod.observer import Observer
    from aiokprod.partitioners import AnyPartitioner
    from aiokprod.plugins import RecordPlugin
    from aiokprod.records import Header
    from aiokprod.serializers import AnySerializer, Serializer

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")

STOP_TIMEOUT: Final = 1.0
"""Seconds that `close` waits for the thread, once the producer is closed."""


class Blocking(Generic[K, V]):
    """A producer for scripts, threads, Django, Celery and other synchronous code.

    ::

        with Blocking(bootstrap_servers="localhost:9092") as producer:
            metadata = producer.send("topic", b"value", key=b"key")

    The arguments are those of `Producer`. Any number of threads can use one object and share
    batches. The first call starts a daemon thread with an event loop, which runs the producer.
    Serializers, interceptors, plug-ins and partitioners are called in that thread, in a copy of the
    caller's context.

    A program that ends without `close` still sends the pending records: an `atexit` function closes
    the object within `close_timeout_ms`, like the end of ``with``. This function does not run if
    the process is killed, or ends by a signal without a handler (SIGTERM) or by `os._exit`.

    After a fork, the child process starts another thread and another producer when it first uses
    the object. Records that were pending at the fork belong to the parent. A transactional producer
    that was started before the fork raises ForkedProcess in the child, because two processes with
    one transactional_id would fence each other. Objects that are passed to the constructor are
    used in both processes; their `configure` is called again in the child.

    Raises:
        ConfigError: see `Producer`.

    All methods raise `KafkaError`s, whose `.outcome` says whether the record can be in the log.
    Methods that wait raise WrongLoop if they are called on the event loop of the object, where they
    would wait for themselves.
    """

    @overload
    def __init__(
        self: Blocking[bytes, bytes],
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: None = None,
        value_serializer: None = None,
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: Blocking[bytes, V],
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: None = None,
        value_serializer: Serializer[V] | Callable[[V], Any],
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self: Blocking[K, bytes],
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: Serializer[K] | Callable[[K], Any],
        value_serializer: None = None,
        **options: Any,
    ) -> None: ...

    @overload
    def __init__(
        self,
        config: ProducerConfig | None = None,
        /,
        *,
        key_serializer: Serializer[K] | Callable[[K], Any],
        value_serializer: Serializer[V] | Callable[[V], Any],
        **options: Any,
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
        plugins: Sequence[RecordPlugin | Observer] = (),
        observer: Observer | None = None,
        environment: Environment | None = None,
        **settings: Any,
    ) -> None:
        self._config = checked_config(config, settings)
        self._objects: dict[str, Any] = {
            "key_serializer": key_serializer,
            "value_serializer": value_serializer,
            "partitioner": partitioner,
            "interceptors": tuple(interceptors),
            "plugins": tuple(plugins),
            "observer": observer,
            "environment": environment,
        }
        self._producer: Producer[K, V] = self._new_producer()
        self._lock = threading.RLock()
        self._thread: ThreadedLoop | None = None
        self._starting: ThreadedLoop | None = None
        self._closing: LoopCall[DrainReport] | None = None
        self._is_closed = False
        self._refusal: KafkaError | None = None
        _objects.add(self)

    def _new_producer(self) -> Producer[K, V]:
        return Producer(self._config, **self._objects)

    # -- start and close ------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the thread and the producer; see `Producer.start`. The first send starts them too.

        Raises:
            ConfigError: no bootstrap server can be resolved.
            KafkaTimeout, TransactionError, BrokerError: with a transactional_id, see
                `Producer.start`.
            ProducerClosed, ForkedProcess: the producer is unusable.
        """
        self._running()
        return self

    def _running(self) -> ThreadedLoop:
        """Return the thread, with a started producer. Start both if necessary."""
        thread = self._thread
        if thread is None or self._is_closed:
            with self._lock:
                if self._is_closed:
                    raise ProducerClosed("the producer is closed; create a new one")
                if self._refusal is not None:
                    raise self._refusal.copy()
                thread = self._thread
                if thread is None:
                    thread = self._start()
        if thread.is_current:
            raise WrongLoop("this would block the producer's event loop: call it in another thread")
        return thread

    def _start(self) -> ThreadedLoop:
        thread = self._starting or ThreadedLoop("aiokprod-blocking")
        if self._starting is None:
            self._starting = thread
        else:  # in or after a signal handler that has interrupted this function
            if thread is not self._starting:
                thread.stop(STOP_TIMEOUT)
            self._starting.run(self._producer.start())
            return self._starting
        try:
            thread.run(self._producer.start())
        except BaseException:
            # As in `Producer.__aenter__`, the producer cannot be used. The next call starts a new
            # producer.
            self._starting = None
            if not self._is_closed:  # a signal handler may have closed it
                try:
                    thread.run(self._producer.close(0))
                finally:
                    thread.stop(STOP_TIMEOUT)
                    self._producer = self._new_producer()
            raise
        self._thread = thread
        _open.add(self)
        at_exit_of_child_processes(_close_all)
        return thread

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close(0)
            raise

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._begin_close_at_exit()
        self.close()

    def _begin_close_at_exit(self) -> None:
        timeout_ms = self._config.close_timeout_ms
        with self._lock:
            self._begin_close(None if timeout_ms < 0 else timeout_ms / 1000)

    def close(self, timeout: float | None = None) -> DrainReport:
        """Send the pending records, then stop the producer and its thread.

        Idempotent: later and concurrent calls return the same report.

        Args:
            timeout: limit in seconds for sending pending records; 0 fails them at once;
                None waits until every record has its outcome (at most max_block_ms +
                delivery_timeout_ms). The end of ``with`` waits for at most close_timeout_ms.

        Records without an outcome at the timeout fail with ProducerClosed and are in the report.
        An interrupted call (KeyboardInterrupt) fails pending records at once.

        Raises:
            ConfigError: timeout is negative.
            WrongLoop: called in the thread of the producer.
        """
        check_timeout("close", timeout)
        with self._lock:
            closing = self._begin_close(timeout)
        try:
            report = closing.result()
        except concurrent.futures.CancelledError:  # by an interrupted call in another thread
            assert self._closing is not None
            report = self._closing.result()
        except BaseException:
            self._give_up_drain(closing)
            raise
        finally:
            self._end_close()
        return report

    def _give_up_drain(self, closing: LoopCall[DrainReport]) -> None:
        """End the drain at once, and wait for the report, which later calls of `close` return."""
        with self._lock:
            if self._closing is closing and not closing.done():
                assert self._thread is not None
                self._closing = self._thread.start(self._producer.close(0))
                closing.cancel()
            closing = self._closing or closing
        closing.wait()

    def _begin_close(self, timeout: float | None) -> LoopCall[DrainReport]:
        """Reject further calls and start the drain. The caller holds the lock."""
        if self._thread is not None and self._thread.is_current:
            raise WrongLoop("the producer cannot be closed in its own thread")
        if self._closing is None:
            thread = self._thread or self._starting or ThreadedLoop("aiokprod-blocking")
            self._is_closed = True
            self._thread = thread
            self._closing = thread.start(self._producer.close(timeout))
        return self._closing

    def _end_close(self) -> None:
        _open.discard(self)
        if self._thread is not None:
            self._thread.stop(STOP_TIMEOUT)

    @property
    def drain_report(self) -> DrainReport | None:
        """The result of `close` or of the end of ``with``; None before."""
        return self._producer.drain_report

    # -- sending --------------------------------------------------------------------------------

    def send(
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

        For arguments, result and errors, see `Producer.send`. If the timeout passes or the call is
        interrupted (KeyboardInterrupt), a record that is still in an open batch is withdrawn.
        """
        check_timeout("send", timeout, zero=False)
        self._running()  # raises WrongLoop in the thread of the producer
        record = self._producer.send_threadsafe(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )
        assert isinstance(record, RecordFuture)
        try:
            return record.result(timeout)
        except TimeoutError as error:
            if isinstance(error, KafkaError):
                raise
        except BaseException:
            record.cancel()
            raise
        return self._given_up(record, topic, timeout)

    def _given_up(self, record: RecordFuture, topic: str, timeout: float | None) -> RecordMetadata:
        """Withdraw a record whose timeout has passed, and raise the error. If the record has an
        outcome by now, return its metadata or raise its error."""
        if not record.cancel():
            return record.result()
        thread = self._thread or self._starting
        assert thread is not None
        assert timeout is not None
        try:
            error = thread.run(self._producer._submitter.late(record, timeout), STOP_TIMEOUT)
        except (RuntimeError, TimeoutError, concurrent.futures.CancelledError):
            raise DeliveryTimeout(
                f"{topic}: no acknowledgment within the timeout of {timeout} s; the producer's "
                "thread does not respond, so that the record may be in the log",
                outcome=Outcome.UNKNOWN,
            ) from None
        raise error

    def submit(
        self,
        topic: str,
        value: V | None = None,
        *,
        key: K | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Sequence[Header] | None = None,
    ) -> Future[RecordMetadata]:
        """Send one record without waiting for its outcome; see `Producer.send_threadsafe`.

        Blocks only while 10 000 records or 8 MiB are waiting for the event loop, for up to
        max_block_ms.

        Returns:
            A `concurrent.futures.Future` of the record's metadata.
        """
        if self._thread is None or self._is_closed:
            self._running()
        return self._producer.send_threadsafe(
            topic, value, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
        )

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every record sent before this call has its outcome. See `Producer.flush`."""
        check_timeout("flush", timeout)
        if self._thread is None and not self._is_closed:
            return
        self._run(lambda: self._producer.flush(timeout))

    def warm(self, topics: Iterable[str]) -> None:
        """Fetch metadata and connect to the leaders of topics. See `Producer.warm`."""
        self._run(lambda: self._producer.warm(topics))

    def call(
        self, function: Callable[[Producer[K, V]], Awaitable[R]], timeout: float | None = None
    ) -> R:
        """Run ``await function(producer)`` on the event loop and return its result.

        For all other methods of `Producer`::

            result = producer.call(lambda p: p.send_many("topic", values))

            async def transfer(txn): ...
            producer.call(lambda p: p.run_transaction(transfer))

        Args:
            function: must not block and must not use this `Blocking` object.
            timeout: limit in seconds, after which the awaitable is cancelled; None waits until it
                ends.

        Raises:
            TimeoutError: the timeout passed. Others: the exceptions of the function.
        """
        check_timeout("call", timeout)

        async def run() -> R:
            return await function(self._producer)

        return self._run(run, timeout)

    def _run(
        self, function: Callable[[], Coroutine[Any, Any, R]], timeout: float | None = None
    ) -> R:
        """Run a coroutine function on the loop."""
        thread = self._running()
        try:
            return thread.run(function(), timeout)
        except (RuntimeError, concurrent.futures.CancelledError) as error:
            if not self._is_closed or not thread.is_ending:
                raise
            raise ProducerClosed("the producer was closed during the call") from error

    # -- status ---------------------------------------------------------------------------------

    def _read(self, function: Callable[[], R]) -> R:
        """Call a function of the producer on its loop, or in this thread if the loop is not
        running."""
        thread = self._thread
        if thread is None or thread.is_current:
            return function()
        try:
            return thread.read(function)
        except (RuntimeError, concurrent.futures.CancelledError):
            if not self._is_closed:
                raise
            return function()

    def metrics(self) -> dict[str, Any]:
        """See `Producer.metrics`."""
        return self._read(self._producer.metrics)

    def health(self) -> Health:
        """See `Producer.health`."""
        return self._read(self._producer.health)

    def explain(self) -> str:
        """See `Producer.explain`."""
        return self._read(self._producer.explain)

    def __repr__(self) -> str:
        return f"<Blocking {self._producer!r}>"

    # -- fork -----------------------------------------------------------------------------------

    def _after_fork(self) -> None:
        """Drop the thread in the child process, where it does not exist."""
        self._lock = threading.RLock()  # another thread may have held the lock at the fork
        self._starting = None
        if self._is_closed:  # the drain may not have ended before the fork
            self._closing = LoopCall.ended(self._producer.drain_report or EMPTY_DRAIN)
        elif self._thread is None and self._producer._lifecycle.forked:
            self._producer = self._new_producer()  # the parent was starting the earlier one
        if self._thread is None:
            return
        # Keep the loop, because destroying it in the child would change the parent's epoll object.
        _parents.append((self._thread, self._producer))
        self._thread = None
        if self._is_closed:
            return
        if self._config.transactional_id is not None:
            self._refusal = ForkedProcess(
                "this transactional producer was started before the process forked; create one in "
                "each process, after the fork, with different transactional_ids"
            )
        else:
            self._producer = self._new_producer()


_objects: weakref.WeakSet[Blocking[Any, Any]] = weakref.WeakSet()
_open: set[Blocking[Any, Any]] = set()
_parents: list[object] = []


def _close_all() -> None:
    """Close all open objects concurrently."""
    objects = list(_open)
    for one in objects:
        one._begin_close_at_exit()
    for one in objects:
        one.close()


def _after_fork() -> None:
    _open.clear()
    for one in list(_objects):
        one._after_fork()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
