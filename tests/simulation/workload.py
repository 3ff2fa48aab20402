"""The application of a simulation: submits records by every method and stores the results. Its
order of events is finer than virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

from aiokprod._core.batch import Delivery, RecordMetadata
from aiokprod.errors import DeliveryTimeout, KafkaError, Outcome
from aiokprod.producer import Producer
from tests.scenarios.scenario_helpers import now
from tests.simulation.call_interrupts import Injector, Interrupt, TimeUp, stepped
from tests.simulation.seeds import PARTITIONS, TOPICS, Plan
from tests.simulation.user_objects import HOOKS_FILE, HookError, HookInterrupt

CALLS = 6
"""Number of calls during which an injector may strike."""
GROUP_MAX = 5
"""Maximum number of records of one `send_many`."""

Result = RecordMetadata | BaseException

REFUSED = (KafkaError, HookError, HookInterrupt)
"""Exceptions that a call raises by itself or because of an object of the application."""


def key_of(number: int) -> bytes | None:
    """Return the key of the record with this number."""
    return None if number % 3 else b"key-%d" % (number % 7)


def headers_of(number: int) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of the record with this number."""
    return () if number % 5 else (("number", b"%d" % number),)


def bare(error: BaseException) -> BaseException:
    """Return the error without its frames and those of its contexts, which reference interrupted
    objects."""
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        found = found.__context__
    return error


@dataclass(eq=False)
class Attempt:
    """One submitted record.

    Attributes:
        partition: the requested partition; None: the producer's choice.
        began, admitted: numbers of the events "the call began" and "the record was accepted". A
            record that was admitted before another call began precedes the records of that call
            (P3).
        admitted_at: when the record was known to be admitted; None if it was not, or if no call
            reported it.
        limit_s: the time limit of the caller.
        handle: its `Delivery`, if the method of sending returns one.
        task: where it was submitted; None: in the simulation's own task.
        group: the attempts of the same call (send_many), including this one.
        is_immediate: submitted by a call that does not wait (try_submit).
        is_struck: an injector struck inside the call, which may have raised anything.
    """

    number: int
    topic: str
    partition: int | None
    value: bytes = field(repr=False)
    began: int
    started_at: float
    limit_s: float | None = None
    admitted: int | None = None
    admitted_at: float | None = None
    result: Result | None = None
    settled_at: float = 0.0
    handle: Delivery | None = None
    task: asyncio.Task[Any] | None = field(default=None, repr=False)
    group: Sequence[Attempt] = field(default=(), repr=False)
    is_immediate: bool = False
    is_struck: bool = False

    @property
    def is_admitted(self) -> bool:
        """True if, by its outcome, the record was added to a batch."""
        if isinstance(self.result, DeliveryTimeout):
            return True  # only a record in a batch can wait for its acknowledgment
        refused = isinstance(self.result, KafkaError) and self.result.outcome is Outcome.NOT_SENT
        return not refused

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of a call, except topic and value."""
        return {
            "key": key_of(self.number),
            "headers": headers_of(self.number),
            "partition": self.partition,
            "timestamp_ms": self.timestamp_ms,
        }

    @property
    def timestamp_ms(self) -> int | None:
        """The requested timestamp; None: the producer's wall clock."""
        return None if self.number % 4 else 1_600_000_000_000 + 1_000 * self.number

    @property
    def where(self) -> tuple[str, int | None]:
        return self.topic, self.partition


REPORTS = ("on_acknowledgement", "on_batch_settled", "on_record_unsent")
"""Methods of hooks that receive an outcome."""


class PassedOn:
    """Exceptions of signal handlers that are passed to the loop's exception handler, because they
    are raised while an outcome is reported to a hook.

    Attributes:
        lost: exceptions that must be passed to the loop and have not been.
    """

    def __init__(self) -> None:
        self.lost: list[BaseException] = []
        self._allowed: list[BaseException] = []

    def note(self, raised: BaseException, frame: FrameType | None) -> None:
        """Record an exception that is about to be raised in the caller of this frame.

        An `Exception` in a call that a hook makes is logged as the failure of the hook, unless the
        hook catches it. While the failure of a hook is logged, every exception is passed to the
        loop.
        """
        is_interrupt = isinstance(raised, Interrupt)
        while frame is not None:
            name = frame.f_code.co_name
            if name in REPORTS and frame.f_code.co_filename == HOOKS_FILE:
                self.lost += [raised] * is_interrupt
                return
            if name == "failed" and frame.f_locals.get("method") in REPORTS:
                (self.lost if is_interrupt else self._allowed).append(raised)
                return
            frame = frame.f_back

    def take(self, error: object) -> bool:
        """Remove an exception that the loop's handler received. Return True if it had to or could
        receive it; only once per exception."""
        for waiting in (self.lost, self._allowed):
            for index, one in enumerate(waiting):
                if one is error:
                    del waiting[index]
                    return True
        return False


class Load:
    """All records that the application has submitted so far."""

    def __init__(self, plan: Plan, producer: Producer[Any, Any], rng: random.Random) -> None:
        self.plan = plan
        self.producer = producer
        self.rng = rng
        self.attempts: list[Attempt] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.complaints: list[str] = []
        self.cancelled: set[asyncio.Task[Any]] = set()
        self._events = itertools.count(1)
        self._is_within = False
        self._calls: list[Attempt] = []  # calls that an injector may strike
        self.touched: set[int] = set()  # numbers of records within whose calls a handler raised
        self.passed_on = PassedOn()
        self._ways = (
            self._send, self._send_within, self._submit, self._submit, self._try_submit,
            self._send_many,
        )  # fmt: skip

    def hand_over(self) -> None:
        """Submit a few records, or start another kind of call."""
        dice = self.rng.random()
        if dice < 0.08:
            self._spawn(self._flush())
        elif dice < 0.10:
            self._spawn(self._warm())
        elif dice < 0.30:
            self._spawn(self._burst())
        else:
            way = self.rng.choice(self._ways)
            attempt = self._new()
            attempt.task = task = self._spawn(way(attempt))
            task.add_done_callback(lambda done: self._if_never_begun(attempt))

    def cancel_one(self) -> None:
        """Cancel the task of a recent call."""
        recent = [task for task in self.tasks[-30:] if not task.done()]
        if recent:
            task = self.rng.choice(recent)
            self.cancelled.add(task)
            task.cancel()

    def pending(self) -> list[Attempt]:
        """Return the attempts without an outcome."""
        return [attempt for attempt in self.attempts if attempt.result is None]

    def submit_later(self, topic: str, partition: int, size: int | None = None) -> Attempt:
        """Submit one record in a separate task."""
        attempt = self._new(topic, partition, size)
        attempt.task = self._spawn(self._submit(attempt))
        return attempt

    # -- calls within calls ---------------------------------------------------------------------

    def interrupt(self, step: int, error: type[BaseException]) -> None:
        """Let a signal handler raise inside one of the next calls."""

        def strike() -> None:
            self.touched.update(attempt.number for attempt in self._calls)
            raised = error()
            self.passed_on.note(raised, sys._getframe())
            raise raised

        self._call_under(step, strike)

    def reenter(self, step: int) -> None:
        """Let a signal handler or a finalizer submit records inside one of the next calls."""
        self._call_under(step, self.submit_within)

    def submit_within(self) -> None:
        """Submit a few records without waiting, as a hook of the application does."""
        if self._is_within:
            return
        self._is_within = True
        try:
            for _ in range(self.rng.randrange(1, 4)):
                attempt = self._new()
                attempt.is_immediate = True
                self._try_now(attempt)
        finally:
            self._is_within = False

    def _call_under(self, step: int, strike: Callable[[], object]) -> None:
        injector = Injector(step, strike)
        if self.rng.random() < 0.5:
            self._spawn(self._submit_under(injector))
            return
        for _ in range(CALLS):
            attempt = self._new()
            attempt.is_immediate = True
            self._try_now(attempt, injector)

    def _try_now(self, attempt: Attempt, injector: Injector | None = None) -> None:
        under = contextlib.nullcontext() if injector is None else injector.armed()
        self._calls.append(attempt)
        try:
            with under:
                handle = self.producer.try_submit(attempt.topic, attempt.value, **attempt.options)
        except (*REFUSED, Interrupt, TimeUp) as error:
            attempt.is_struck = isinstance(error, Interrupt | TimeUp)
            self._end(attempt, bare(error))
            if attempt.is_struck and injector is None:
                raise  # propagates through the outer call
            return
        finally:
            self._calls.remove(attempt)
        self._admit(attempt, handle)
        handle.add_done_callback(partial(self._on_done, attempt))

    async def _submit_under(self, injector: Injector) -> None:
        """Submit records of one partition sequentially until the injector strikes."""
        topic, partition = self.rng.choice(TOPICS), self.rng.randrange(PARTITIONS)
        for _ in range(CALLS):
            attempt = self._new(topic, partition)
            attempt.task = asyncio.current_task()
            self._calls.append(attempt)
            try:
                with injector.armed():
                    submitting = self.producer.submit(topic, attempt.value, **attempt.options)
                handle = await stepped(submitting, injector)
            except (*REFUSED, Interrupt, TimeUp, asyncio.CancelledError) as error:
                attempt.is_struck = isinstance(error, Interrupt | TimeUp)
                self._end(attempt, bare(error))
                if isinstance(error, asyncio.CancelledError):
                    return
                continue
            finally:
                self._calls.remove(attempt)
            self._admit(attempt, handle)
            handle.add_done_callback(partial(self._on_done, attempt))

    # -- ways of sending ------------------------------------------------------------------------

    async def _send(self, attempt: Attempt) -> None:
        sending = self.producer.send(attempt.topic, attempt.value, **attempt.options)
        await self._settle(attempt, sending)

    async def _send_within(self, attempt: Attempt) -> None:
        attempt.limit_s = self.rng.choice((0.05, 1.0, 5.0))
        sending = self.producer.send(
            attempt.topic, attempt.value, timeout=attempt.limit_s, **attempt.options
        )
        await self._settle(attempt, sending)

    async def _submit(self, attempt: Attempt) -> None:
        async def submit() -> Delivery:  # an object of the application may raise in the call
            return await self.producer.submit(attempt.topic, attempt.value, **attempt.options)

        await self._settle(attempt, self._taken_over(attempt, submit()))

    async def _try_submit(self, attempt: Attempt) -> None:
        attempt.is_immediate = True

        async def try_now() -> Delivery:
            return self.producer.try_submit(attempt.topic, attempt.value, **attempt.options)

        await self._settle(attempt, self._taken_over(attempt, try_now()))

    async def _send_many(self, first: Attempt) -> None:
        partition = first.partition or 0
        first.partition = partition
        more = self.rng.randrange(GROUP_MAX)
        group = [first, *(self._new(first.topic, partition) for _ in range(more))]
        for each in group:
            each.group, each.task = group, first.task
        columns: dict[str, Any] = {
            "values": [each.value for each in group],
            "keys": [key_of(each.number) for each in group],
            "headers": [headers_of(each.number) for each in group],
            "timestamps_ms": [each.timestamp_ms for each in group],
        }
        try:
            result = await self.producer.send_many(first.topic, partition=partition, **columns)
        except (*REFUSED, asyncio.CancelledError) as error:
            for each in group:
                self._end(each, error)
            return
        for index, each in enumerate(group):
            failure = result.errors.get(index)
            offset = result.offsets[index]
            self._end(
                each,
                failure or RecordMetadata(each.topic, partition, offset, 0, -1, len(each.value)),
            )

    async def _burst(self) -> None:
        """Submit some records of one partition sequentially: their order is certain."""
        topic, partition = self.rng.choice(TOPICS), self.rng.randrange(PARTITIONS)
        waits = []
        for _ in range(self.rng.randrange(2, 8)):
            attempt = self._new(topic, partition)
            attempt.task = asyncio.current_task()
            try:
                handle = await self.producer.submit(topic, attempt.value, **attempt.options)
            except (*REFUSED, asyncio.CancelledError) as error:
                self._end(attempt, error)
                if isinstance(error, asyncio.CancelledError):
                    break
                continue
            self._admit(attempt, handle)
            handle.add_done_callback(partial(self._on_done, attempt))
            waits.append(handle)
        if waits and self.rng.random() < 0.3:
            await asyncio.gather(*waits, return_exceptions=True)

    # -- bystanders -----------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Flush, and check that everything submitted before has an outcome when flush returns."""
        before = next(self._events)
        handed = [a for a in self.attempts if a.handle is not None and (a.admitted or 0) < before]
        timeout = self.rng.choice((None, 0.5))
        try:
            await self.producer.flush(timeout)
        except (KafkaError, asyncio.CancelledError):
            return
        open_still = [a for a in handed if a.admitted and not a.handle.done()]  # type: ignore[union-attr]
        if open_still:
            self.complaints.append(f"flush left records behind: {open_still[:2]}")

    async def _warm(self) -> None:
        try:
            await self.producer.warm([self.rng.choice(TOPICS)])
        except (KafkaError, asyncio.CancelledError):
            return

    # -- internals ------------------------------------------------------------------------------

    def _spawn(self, coroutine: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(coroutine)
        self.tasks.append(task)
        return task

    def _if_never_begun(self, attempt: Attempt) -> None:
        """Record that the attempt's task was cancelled before its first step."""
        if attempt.result is None:
            self._end(attempt, asyncio.CancelledError())

    def _new(
        self, topic: str | None = None, partition: int | None = None, size: int | None = None
    ) -> Attempt:
        if topic is None:
            topic = self.rng.choice(TOPICS)
            partition = self.rng.choice((None, *range(PARTITIONS), *range(PARTITIONS)))
        number = len(self.attempts)
        head = f"{self.plan.seed}/{topic}/{'?' if partition is None else partition}/{number}/"
        if size is None:
            size = self.rng.choice((0, 0, 200, 1_500))
        value = head.encode().ljust(size, b".")
        value += b"%08x" % zlib.crc32(value)
        attempt = Attempt(number, topic, partition, value, next(self._events), now())
        self.attempts.append(attempt)
        return attempt

    def _admit(self, attempt: Attempt, handle: Delivery) -> None:
        attempt.admitted = next(self._events)
        attempt.admitted_at = now()
        attempt.handle = handle

    async def _taken_over(self, attempt: Attempt, submitting: Any) -> RecordMetadata:
        handle: Delivery = await submitting
        self._admit(attempt, handle)
        metadata: RecordMetadata = await handle
        return metadata

    async def _settle(self, attempt: Attempt, sending: Any) -> None:
        try:
            self._end(attempt, await sending)
        except (*REFUSED, asyncio.CancelledError) as error:
            self._end(attempt, error)

    def _on_done(self, attempt: Attempt, handle: Delivery) -> None:
        if handle.cancelled():
            self._end(attempt, asyncio.CancelledError())
            return
        error = handle.exception()
        self._end(attempt, handle.result() if error is None else error)

    @staticmethod
    def _end(attempt: Attempt, result: Result) -> None:
        attempt.result = result
        attempt.settled_at = now()


class Habit:
    """A serializer and an interceptor of the application that submit records themselves, once per
    few records that they process (a log of sent records, a schema registration)."""

    def __init__(self) -> None:
        self.load: Load | None = None
        self._seen = 0

    def __call__(self, value: bytes) -> bytes:
        self._pass()
        return value

    def on_send(self, record: Any) -> Any:
        """See `ProducerInterceptor.on_send`."""
        self._pass()
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def _pass(self) -> None:
        self._seen += 1
        if self.load is not None and self._seen % 5 == 0:
            self.load.submit_within()
