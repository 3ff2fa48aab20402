"""The lifecycle of a producer: start, close, and the checks at the start of every call."""

from __future__ import annotations

import asyncio
import math
import os
import warnings
import weakref
from typing import TYPE_CHECKING

from aiokprod._client.drain import EMPTY_DRAIN, Drain
from aiokprod._client.transactions import abort_on_close
from aiokprod._client.validation import check_timeout
from aiokprod._engine.metadata.bootstrap import check_bootstrap
from aiokprod.errors import ForkedProcess, KafkaError, Outcome, ProducerClosed, WrongLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiokprod._client.runtime import Runtime
    from aiokprod._client.thread_queue import ThreadQueue
    from aiokprod._client.user_hooks import UserHooks
    from aiokprod.config import ProducerConfig
    from aiokprod.environment import Environment
    from aiokprod.records import DrainReport

_live: weakref.WeakSet[Lifecycle] = weakref.WeakSet()


class Lifecycle:
    """Starts a producer on its first call, closes it, and rejects calls on an unusable producer.

    Attributes:
        runtime: the components on the event loop; None until the producer is started.
        closed: True once the producer rejects calls because of `close`.
        forked: True in a child process of the process in which the producer was started.
        thread_queue: the queue for records of other threads; None until the producer is started.
        drain_report: the result of `close`; None until `close` has ended.
    """

    def __init__(
        self,
        config: ProducerConfig,
        environment: Environment,
        client_id: str,
        hooks: UserHooks,
        launch: Callable[[], Runtime],
    ) -> None:
        self.runtime: Runtime | None = None
        self.closed = False
        self.forked = False
        self.thread_queue: ThreadQueue | None = None
        self.drain_report: DrainReport | None = None
        self._config = config
        self._environment = environment
        self._client_id = client_id
        self._hooks = hooks
        self._launch = launch
        self._closing: asyncio.Task[DrainReport] | None = None
        _live.add(self)

    async def start(self) -> None:
        """Start the runtime.

        Raises:
            ConfigError: no bootstrap server can be resolved.
        """
        fresh = self.runtime is None
        self.usable()
        if fresh:
            await check_bootstrap(
                self._config.bootstrap_addresses(),
                self._environment.dialer,
                timeout=self._config.socket_connection_setup_timeout_ms / 1000,
            )

    async def close(self, timeout: float | None = None) -> DrainReport:
        """See `Producer.close`."""
        check_timeout("close", timeout)
        self.check_loop_and_process()
        if self._closing is None or self._closing.cancelled():
            if self.thread_queue is None or self.thread_queue.is_empty:
                self._stop()  # otherwise `_close` does it after the queued records were appended
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(timeout), name="aiokprod-close")
        try:
            return await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            if self.runtime is not None and not self._closing.done():
                if self.thread_queue is not None:
                    self.thread_queue.give_up()
                self.runtime.flushes.give_up()
            raise

    def _stop(self) -> None:
        """Reject further calls."""
        self.closed = True
        if self.runtime is not None:
            self.runtime.fast_path.stop()  # `submit` does not check `closed`

    async def close_at_exit(self) -> DrainReport:
        """Close the producer at the end of ``async with``, with close_timeout_ms as timeout."""
        timeout_ms = self._config.close_timeout_ms
        return await self.close(None if timeout_ms < 0 else timeout_ms / 1000)

    async def _close(self, timeout: float | None) -> DrainReport:
        runtime = self.runtime
        if runtime is None:
            self._stop()
            self._hooks.close()
            self.drain_report = EMPTY_DRAIN
        else:
            self.drain_report = await self._drain_and_close(runtime, timeout)
        return self.drain_report

    async def _drain_and_close(self, runtime: Runtime, timeout: float | None) -> DrainReport:
        loop = asyncio.get_running_loop()
        deadline = math.inf if timeout is None else loop.time() + timeout
        drain = Drain(runtime.accumulator.incomplete, loop, self._client_id)
        try:
            if self.thread_queue is not None:
                await self.thread_queue.finish(drain, deadline)
        except asyncio.CancelledError:
            deadline = loop.time()
        self._stop()
        runtime.stop_accepting(
            ProducerClosed("the producer was closed while the send was in progress")
        )
        try:
            if timeout != 0 and runtime.failure is None:
                await runtime.drain(deadline)
                if runtime.transactions is not None:
                    max_block = self._config.max_block_ms / 1000
                    await abort_on_close(runtime.transactions, deadline, max_block)
        except asyncio.CancelledError:
            # A shutdown that cancels all tasks has cancelled this task: close at once.
            deadline = loop.time()
        drain.give_up(runtime.accumulator.incomplete)
        try:
            await runtime.close(loop.time() if timeout == 0 else deadline)
        finally:
            self._hooks.close()
        return drain.report()

    def warn_if_unclosed(self, producer: object) -> None:
        """Issue a ResourceWarning if a started producer is deleted without `close`."""
        if self.runtime is not None and not self.closed and not self.forked:
            warnings.warn(
                f"unclosed producer {self._client_id}: use `async with` or `await close()`",
                ResourceWarning,
                source=producer,
                stacklevel=2,
            )

    # -- checks ---------------------------------------------------------------------------------

    def check_loop_and_process(self, *, running: bool = False) -> None:
        """Raise unless called in the producer's process and on its event loop.

        A producer that is not started has no loop yet. With `running`, any loop must be running.
        """
        self._check_process()
        runtime = self.runtime
        if runtime is None and not running:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if runtime is None:
            if here is None:
                raise WrongLoop(
                    "no event loop runs in this thread: call the producer from its loop, send "
                    "records with producer.send_threadsafe(...) once it is started, or other "
                    "coroutines with asyncio.run_coroutine_threadsafe(producer.send(...), loop)"
                )
        elif here is not runtime.loop:
            raise WrongLoop(
                "this producer was started on another event loop than the one running here; use "
                "one producer per loop, or send records with producer.send_threadsafe(...) or "
                "asyncio.run_coroutine_threadsafe"
            )

    def _check_process(self) -> None:
        if self.forked:
            raise ForkedProcess(
                "this producer was started before the process forked; its connections belong to "
                "the parent. Create a producer in each process, after the fork"
            )

    def usable(self) -> Runtime:
        """Return the runtime, and start it if necessary.

        Raises:
            ProducerClosed, ProducerFailed, WrongLoop, ForkedProcess: the producer is unusable.
            KafkaError: the fatal error of the producer state.
        """
        runtime = self.live()
        fatal = runtime.state.source.fatal_error
        if fatal is not None:
            raise fatal.copy()
        return runtime

    def runtime_for_sending(self) -> Runtime:
        """Like `usable`, for calls that send records. Errors have the outcome NOT_SENT, because it
        applies to the records of this call, not to those that caused the error."""
        try:
            return self.usable()
        except KafkaError as error:
            refused = error.with_(outcome=Outcome.NOT_SENT)
        try:
            raise refused
        finally:
            del refused  # avoid a reference cycle of error, traceback and frame

    def live(self) -> Runtime:
        """Like `usable`, but do not raise a fatal error of the producer state."""
        self.check_loop_and_process(running=True)
        if self.closed:
            raise ProducerClosed("the producer is closed; create a new one")
        runtime = self.runtime
        if runtime is None:
            runtime = self._launch()
            self.runtime = runtime
            runtime.start()
        if runtime.failure is not None:
            raise runtime.failure.copy()
        return runtime

    def check_running(self) -> None:
        """Raise if the producer failed or was closed. Called after a wait."""
        runtime = self.started()
        if runtime.failure is not None:
            raise runtime.failure.copy().with_(outcome=Outcome.NOT_SENT)
        if self.closed:
            raise ProducerClosed("the producer was closed while the send was in progress")

    def thread_queue_for_sending(self) -> ThreadQueue:
        """Return the queue for records of other threads.

        Raises:
            ProducerClosed, ProducerFailed, ForkedProcess: the producer is unusable.
            WrongLoop: the producer is not started and has no event loop yet.
        """
        self._check_process()
        if self.closed:
            raise ProducerClosed("the producer is closed; create a new one")
        if self.runtime is None or self.thread_queue is None:
            raise WrongLoop(
                "the producer is not started, so its event loop is not known: call "
                "`await producer.start()` on it before other threads send records"
            )
        if self.runtime.failure is not None:
            raise self.runtime.failure.copy().with_(outcome=Outcome.NOT_SENT)
        return self.thread_queue

    def started(self) -> Runtime:
        """Return the runtime of a producer that was started."""
        assert self.runtime is not None, "only called once the producer is started"
        return self.runtime

    def after_fork(self) -> None:
        self.forked = self.runtime is not None
        if self.runtime is not None:
            self.runtime.fast_path.stop()
        if self.thread_queue is not None:
            self.thread_queue.after_fork()


def _after_fork() -> None:
    for lifecycle in list(_live):
        lifecycle.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
