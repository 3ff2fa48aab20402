"""The life of a producer: start, close, who may call it, and what it tells about itself."""

from __future__ import annotations

import asyncio
import os
import warnings
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Self

from aiokprod._client.hooks import UserHooks
from aiokprod._client.status import DrainCounter, Health, explain, health
from aiokprod._client.validation import check_timeout
from aiokprod._engine.metadata.bootstrap import check_bootstrap
from aiokprod.errors import ForkedProcess, KafkaError, Outcome, ProducerClosed, WrongLoop
from aiokprod.records import DrainReport

if TYPE_CHECKING:
    from types import TracebackType

    from aiokprod._client.runtime import Runtime
    from aiokprod._client.transactions import Transactions
    from aiokprod.config import ProducerConfig
    from aiokprod.environment import Environment
    from aiokprod.observer import Metrics

FOREVER: Final = float("inf")

_live: weakref.WeakSet[ProducerLifecycle] = weakref.WeakSet()


class ProducerLifecycle(ABC):
    """What `Producer` inherits, apart from sending."""

    def __init__(
        self, config: ProducerConfig, environment: Environment, client_id: str, metrics: Metrics
    ) -> None:
        self._runtime: Runtime | None = None
        self._closed = False
        self._forked = False
        self._config = config
        self._environment = environment
        self._client_id = client_id
        self._metrics = metrics
        self._closing: asyncio.Task[DrainReport] | None = None
        self._transactions: Transactions
        self._hooks: UserHooks
        _live.add(self)

    @abstractmethod
    def _launch(self) -> Runtime:
        """Build and start the runtime on the running loop."""

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
            self._hooks.close()
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
        try:
            await runtime.close(loop.time() if timeout == 0 else deadline)
        finally:
            self._hooks.close()
        return counter.report(undelivered, loop.time() - start)

    def __del__(self) -> None:
        if getattr(self, "_runtime", None) is not None and not self._closed and not self._forked:
            warnings.warn(
                f"unclosed producer {self._client_id}: use `async with` or `await close()`",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    # -- checks ---------------------------------------------------------------------------------

    def _check_place(self, *, running: bool = False) -> None:
        """Raises off the producer's loop; with `running` also where no loop runs, before it is
        started."""
        if self._forked:
            raise ForkedProcess(
                "this producer was started before the process forked; its connections belong to "
                "the parent. Create a producer in each process, after the fork"
            )
        runtime = self._runtime
        if runtime is None and not running:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if runtime is None:
            if here is None:
                raise WrongLoop(
                    "no event loop runs in this thread: call the producer from its loop, or hand "
                    "records over with asyncio.run_coroutine_threadsafe(producer.send(...), loop)"
                )
        elif here is not runtime.loop:
            raise WrongLoop(
                "this producer was started on another event loop than the one running here; use "
                "one producer per loop, and hand records over with "
                "asyncio.run_coroutine_threadsafe"
            )

    def _usable(self) -> Runtime:
        """The runtime, started if need be; raises if records cannot be taken here and now."""
        runtime = self._live()
        fatal = runtime.state.source.fatal_error
        if fatal is not None:
            raise fatal.copy()
        return runtime

    def _accepting(self) -> Runtime:
        """As `_usable`, for calls that hand records over: a record refused here was never sent,
        whatever became of others."""
        try:
            return self._usable()
        except KafkaError as error:
            refused = error.with_(outcome=Outcome.NOT_SENT)
        try:
            raise refused
        finally:
            del refused  # no cycle of error, traceback and frame

    def _live(self) -> Runtime:
        """The runtime, started if need be; a fatal error of the producer state is let pass."""
        self._check_place(running=True)
        if self._closed:
            raise ProducerClosed("the producer is closed; create a new one")
        runtime = self._runtime
        if runtime is None:
            runtime = self._launch()
        if runtime.failure is not None:
            raise runtime.failure.copy()
        return runtime

    def _check_running(self) -> None:
        """After a wait in the slow path: is the producer still what it was?"""
        runtime = self._runtime
        assert runtime is not None, "records are admitted by a started producer"
        if runtime.failure is not None:
            raise runtime.failure.copy().with_(outcome=Outcome.NOT_SENT)
        if self._closed:
            raise ProducerClosed("the producer was closed while the send was in progress")

    # -- looking --------------------------------------------------------------------------------

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
            self._runtime.fast_path.stop()


def _after_fork() -> None:
    for producer in list(_live):
        producer._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
