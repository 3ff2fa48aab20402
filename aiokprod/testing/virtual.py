"""Virtual time: an asyncio loop whose clock jumps to the next timer.

An hour's sleep takes no real time, a deadlocked test fails immediately instead of hanging, and
equal seeds produce equal interleavings. The loop has no sockets and no threads: connections come
from `aiokprod.testing.memory`, and executor jobs run inline. This module does not depend on Kafka.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import heapq
import itertools
import math
import random
import weakref
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

START_TIME = 1000.0
"""Initial time of the clock, s. It is not 0, to detect code that treats 0 as "not set"."""

DAY = 86_400.0


class VirtualTimeError(Exception):
    """The run cannot finish, or it left tasks, timers or transports."""


class DeadlockError(VirtualTimeError):
    """The result is pending, but no callback is ready and no timer is set."""


class LivelockError(VirtualTimeError):
    """The loop runs callbacks endlessly without advancing the clock."""


class VirtualTimeLimit(VirtualTimeError):
    """The run exceeded its limit of virtual seconds."""


class LeakError(VirtualTimeError):
    """Tasks, timers or transports remain after the run."""


class UnhandledError(VirtualTimeError):
    """The loop's exception handler was called. `contexts` contains its arguments."""

    def __init__(self, message: str, contexts: list[dict[str, Any]]) -> None:
        super().__init__(message)
        self.contexts = contexts


class WorldHandle:
    """A cancellable external event of the simulation (bytes arriving, a broker's delay)."""

    __slots__ = ("args", "callback", "cancelled_flag", "when")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.when = when
        self.callback = callback
        self.args = args
        self.cancelled_flag = False

    def cancel(self) -> None:
        """Cancel the event. Does nothing if it has already happened."""
        self.cancelled_flag = True


class _VirtualSelector:
    """Replaces the loop's selector. It advances the clock instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[WorldHandle]:
        return self._loop._advance(timeout)

    def close(self) -> None:
        """Does nothing, because there is no selector to close."""


class VirtualLoop(base_events.BaseEventLoop):
    """An event loop on a virtual clock.

    Args:
        seed: shuffles the tasks that are ready in the same iteration, because asyncio guarantees no
            order between tasks. Plain callbacks keep their order, because transports rely on it.
            None keeps tasks in FIFO order too.
        limit_s: virtual seconds until `VirtualTimeLimit`, to detect endless retries.
        late_timers_s: maximum seconds by which a jump to a timer overshoots. Needs a seed.
        max_idle_passes: iterations of the event loop without progress of the clock until
            `LivelockError`.

    As in a selector loop, an iteration handles received bytes before due timers. Together with
    `stall`, this tests code that must read pending bytes before it decides on a timeout.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(
        self,
        *,
        seed: int | None = None,
        limit_s: float = DAY,
        late_timers_s: float = 0.0,
        max_idle_passes: int = 20_000,
    ) -> None:
        super().__init__()
        self._selector = _VirtualSelector(self)
        self._clock_resolution = 1e-9
        self._now = START_TIME
        self._limit = START_TIME + limit_s
        self._rng = None if seed is None else random.Random(seed)
        self._late_timers_s = late_timers_s
        self._max_idle_passes = max_idle_passes
        self._idle_passes = 0
        self._world: list[tuple[float, int, WorldHandle]] = []
        self._world_order = itertools.count()
        self.executor_delay_s = 0.0
        self.passes = 0
        self.jumps = 0
        self.unhandled: list[dict[str, Any]] = []
        self.open_transports: dict[int, asyncio.BaseTransport] = {}
        self.set_exception_handler(_collect)

    def close(self) -> None:
        """Close the loop and drop all external events. An event may reference the handle of a
        record, and the handle references the loop. The garbage collector cannot break this cycle,
        because it does not traverse such handles."""
        super().close()
        self._world.clear()
        self.open_transports.clear()

    def time(self) -> float:
        """Return the virtual time in seconds. It starts at `START_TIME`."""
        return self._now

    def stall(self, seconds: float) -> None:
        """Advance the clock within the running callback, as blocking code would."""
        self._now += seconds

    def world_at(self, when: float, callback: Callable[..., object], *args: Any) -> WorldHandle:
        """Schedule an I/O event at `when` (seconds of this clock). The event runs before timers and
        does not count as a leak."""
        handle = WorldHandle(when, callback, args)
        heapq.heappush(self._world, (when, next(self._world_order), handle))
        return handle

    # -- the clock ------------------------------------------------------------------------------

    def _advance(self, timeout: float | None) -> list[WorldHandle]:
        self.passes += 1
        if timeout is None or timeout > 0:
            self._jump()
        else:
            self._idle_passes += 1
            if self._idle_passes > self._max_idle_passes:
                self._idle_passes = 0
                raise LivelockError(
                    f"{self._max_idle_passes} loop iterations at virtual time {self._now:.6f}\n"
                    + self.describe_tasks()
                )
        if self._rng is not None:
            self._shuffle_tasks(self._rng)
        due: list[WorldHandle] = []
        while self._world and self._world[0][0] <= self._now:
            handle = heapq.heappop(self._world)[2]
            if not handle.cancelled_flag:
                due.append(handle)
        return due

    def _jump(self) -> None:
        while self._world and self._world[0][2].cancelled_flag:
            heapq.heappop(self._world)
        timer = self._scheduled[0].when() if self._scheduled else math.inf
        world = self._world[0][0] if self._world else math.inf
        if self._rng is not None and self._late_timers_s and timer < world:
            timer = min(timer + self._rng.uniform(0.0, self._late_timers_s), world)
        target = min(timer, world)
        if target == math.inf:
            raise DeadlockError("nothing is ready and no timer is set\n" + self.describe_tasks())
        if target > self._limit:
            self._limit = math.inf
            raise VirtualTimeLimit(
                f"still running at virtual time {self._now:.3f}\n" + self.describe_tasks()
            )
        if target > self._now:
            # The loop runs all timers within the clock's resolution together. The clock must reach
            # the last of them. Otherwise code that waits for "now >= deadline" would spin.
            self._now = _latest_before(self._scheduled, target + self._clock_resolution, target)
            self._idle_passes = 0
            self.jumps += 1

    def _shuffle_tasks(self, rng: random.Random) -> None:
        """Permute the ready task steps. All other callbacks keep their positions in the queue."""
        if len(self._ready) < 2:
            return
        places = [
            index
            for index, handle in enumerate(self._ready)
            if isinstance(getattr(_callback_of(handle), "__self__", None), asyncio.Task)
        ]
        if len(places) < 2:
            return
        steps = [self._ready[index] for index in places]
        rng.shuffle(steps)
        for index, step in zip(places, steps, strict=True):
            self._ready[index] = step

    def _process_events(self, event_list: list[WorldHandle]) -> None:
        for event in event_list:
            self._ready.append(asyncio.Handle(_happen, [event], self))

    def _write_to_self(self) -> None:
        """Does nothing, because an iteration never blocks."""

    # -- external events ------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Run `func` now, on this thread. The future is done `executor_delay_s` later."""
        future: asyncio.Future[T] = self.create_future()
        try:
            result = func(*args)
        except Exception as error:
            self.world_at(self._now + self.executor_delay_s, _settle, future, None, error)
        else:
            self.world_at(self._now + self.executor_delay_s, _settle, future, result, None)
        return future

    async def getaddrinfo(self, *args: Any, **kwargs: Any) -> Any:
        """Raise OSError, because a virtual loop has no resolver."""
        raise OSError("VirtualLoop has no network: pass Environment(dialer=MemoryNetwork())")

    async def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        """Raise OSError, because a virtual loop has no sockets."""
        raise OSError("VirtualLoop has no network: pass Environment(dialer=MemoryNetwork())")

    # -- leaks ----------------------------------------------------------------------------------

    def pending_tasks(self) -> list[asyncio.Task[Any]]:
        """Return the pending tasks, sorted by name."""
        return sorted(
            (task for task in asyncio.all_tasks(self) if not task.done()),
            key=lambda task: task.get_name(),
        )

    def pending_timers(self) -> list[asyncio.TimerHandle]:
        """Return the active timers of `call_later` and `call_at`, soonest first."""
        return sorted(handle for handle in self._scheduled if not handle.cancelled())

    def describe_tasks(self) -> str:
        """Return a line per pending task: its name and the coroutines in which it is suspended."""
        lines = [f"  {task.get_name()}: {_waits_in(task)}" for task in self.pending_tasks()]
        return "pending tasks:\n" + ("\n".join(lines) or "  none")

    def describe_leaks(self) -> str:
        """Return the tasks, timers and transports that remain after a run, one per line. Return an
        empty string if none remain."""
        lines = [f"task {task.get_name()}: {_waits_in(task)}" for task in self.pending_tasks()]
        lines += [
            f"timer {timer!r}" for timer in self.pending_timers() if not _has_no_object(timer)
        ]
        lines += [f"transport {transport!r}" for transport in self.open_transports.values()]
        return "\n".join(lines)


def run(
    main: Callable[[], Coroutine[Any, Any, T]],
    *,
    seed: int | None = None,
    debug: bool = True,
    limit_s: float = DAY,
    late_timers_s: float = 0.0,
    check_leaks: bool = True,
    collect_garbage: bool = True,
) -> T:
    """Run `main()` in virtual time and return its result.

    Args:
        debug: enable asyncio's debug mode.
        check_leaks: fail with `LeakError` if tasks, timers or client transports remain.
        collect_garbage: collect cycles at the end, so that unretrieved exceptions are reported in
            the run that caused them. This is slow if there are thousands of runs.

    Raises:
        UnhandledError: the loop's exception handler was called, e.g. for an unretrieved error.
        DeadlockError, LivelockError, VirtualTimeLimit, LeakError: see these classes.
    """
    loop = VirtualLoop(seed=seed, limit_s=limit_s, late_timers_s=late_timers_s)
    loop.set_debug(debug)
    try:
        try:
            result = loop.run_until_complete(main())
            loop.run_until_complete(_settle_down(loop))
            leaks = loop.describe_leaks() if check_leaks else ""
        except BaseException as error:
            _note_unhandled(loop, error)
            raise
        finally:
            _cancel_rest(loop)
        if collect_garbage:
            gc.collect()
        if loop.unhandled:
            raise UnhandledError(_describe_unhandled(loop), loop.unhandled)
        if leaks:
            raise LeakError("left behind:\n" + leaks)
        return result
    finally:
        loop.close()


def _has_no_object(timer: asyncio.TimerHandle) -> bool:
    """Return True if all arguments of a timer are dead weak references. Such a timer does nothing.

    It is left by a call that a signal handler interrupted before it could cancel its timer.
    """
    return bool(timer._args) and all(
        isinstance(argument, weakref.ref) and argument() is None for argument in timer._args
    )


async def _settle_down(loop: VirtualLoop) -> None:
    """Run all callbacks that are ready now, without advancing the clock."""
    quiet = 0
    while quiet < 2:
        await asyncio.sleep(0)
        due = bool(loop._world) and loop._world[0][0] <= loop.time()
        quiet = 0 if loop._ready or due else quiet + 1


def _cancel_rest(loop: VirtualLoop) -> None:
    tasks = loop.pending_tasks()
    for task in tasks:
        task.cancel()
    if tasks:
        # A task that does not finish has already been reported as a leak or a deadlock.
        with contextlib.suppress(VirtualTimeError):
            loop.run_until_complete(asyncio.wait(tasks, timeout=60.0))
    with contextlib.suppress(VirtualTimeError):
        loop.run_until_complete(loop.shutdown_asyncgens())


def _collect(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    assert isinstance(loop, VirtualLoop)
    loop.unhandled.append(context)


def _describe_unhandled(loop: VirtualLoop) -> str:
    return "\n".join(
        f"{context.get('message')}: {context.get('exception')!r} ({_subject(context)})"
        for context in loop.unhandled
    )


def _subject(context: dict[str, Any]) -> str:
    keys = ("task", "future", "handle", "transport", "protocol")
    return ", ".join(f"{key}={context[key]!r}" for key in keys if key in context)


def _note_unhandled(loop: VirtualLoop, error: BaseException) -> None:
    if loop.unhandled:
        error.add_note("also unhandled: " + _describe_unhandled(loop))


def _latest_before(heap: list[asyncio.TimerHandle], limit: float, latest: float) -> float:
    """Return the latest time before `limit` in a heap of timers, but at least `latest`."""
    size = len(heap)
    below = [0]
    for place in below:  # the loop appends the children of each timer before the limit
        if place < size and (when := heap[place].when()) < limit:
            latest = max(latest, when)
            below += (2 * place + 1, 2 * place + 2)
    return latest


def _happen(event: WorldHandle) -> None:
    if not event.cancelled_flag:
        event.callback(*event.args)


def _settle(future: asyncio.Future[T], result: T, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


def _callback_of(handle: asyncio.Handle) -> object:
    return getattr(handle, "_callback", None)


def _waits_in(task: asyncio.Task[Any]) -> str:
    """Return the coroutines in which a task is suspended, with line numbers, outermost first."""
    names: list[str] = []
    current: Any = task.get_coro()
    while current is not None:
        frame = getattr(current, "cr_frame", None) or getattr(current, "gi_frame", None)
        if frame is None:
            names.append(repr(current))
            break
        names.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        current = getattr(current, "cr_await", None) or getattr(current, "gi_yieldfrom", None)
    return " > ".join(names)
