"""Tests of `ThreadedLoop` and `LateExecutor`."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod._client.event_loops import LoopCall, ThreadedLoop, new_event_loop
from aiokprod._client.late_executor import LateExecutor
from tests.hang import HANG_S
from tests.interruptions import interrupted_everywhere


@pytest.mark.parametrize("installed", [True, False])
def test_new_event_loop_is_of_uvloop_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_event_loop()
    assert type(loop).__module__.startswith("uvloop") is installed
    loop.close()


def test_loop_thread_runs_and_stops() -> None:
    thread = ThreadedLoop("loop")

    async def name() -> str:
        assert thread.is_current
        return threading.current_thread().name

    assert thread.run(name()) == "loop"
    assert not thread.is_current
    assert thread.read(lambda: 1) == 1
    with pytest.raises(TimeoutError):
        thread.run(asyncio.sleep(HANG_S), 0.01)
    pending = thread.start(asyncio.sleep(HANG_S))
    thread.stop(HANG_S)
    assert pending.cancelled()
    assert thread.loop.is_closed()
    with pytest.raises(RuntimeError):
        thread.run(name())
    thread.stop(HANG_S)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_loop_thread_survives_what_user_code_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, installed: bool,
    error: type[BaseException],
) -> None:  # fmt: skip
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    thread = ThreadedLoop("loop")

    def fail() -> None:
        raise error

    thread.loop.call_soon_threadsafe(fail)
    assert thread.read(lambda: 1) == 1
    thread.stop(HANG_S)
    assert thread.loop.is_closed()
    assert f"{error.__name__} was raised in the thread of the loop" in caplog.text


def test_call_that_a_stopped_loop_did_not_begin_fails() -> None:
    thread = ThreadedLoop("loop")
    reached, may_end = threading.Event(), threading.Event()

    def last(wait: bool) -> None:
        reached.set()
        may_end.wait(HANG_S)

    thread._executor.shutdown = last  # type: ignore[method-assign, assignment]
    thread.loop.call_soon_threadsafe(thread.loop.stop)
    assert reached.wait(HANG_S)
    coroutine = asyncio.sleep(0)
    call = thread.start(coroutine)  # the loop has stopped but is not closed
    may_end.set()
    with pytest.raises(RuntimeError, match="Event loop is closed"):
        call.result(HANG_S)
    coroutine.close()
    thread.stop(HANG_S)


def test_late_executor_works_after_the_threads_of_executors_were_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = LateExecutor(1)
    assert executor.submit(threading.get_ident).result(HANG_S) != threading.get_ident()
    monkeypatch.setattr(concurrent.futures.thread, "_shutdown", True)
    assert executor.submit(threading.get_ident).result() == threading.get_ident()
    assert isinstance(executor.submit(lambda: 1 // 0).exception(), ZeroDivisionError)
    executor.shutdown()
    with pytest.raises(RuntimeError):
        executor.submit(threading.get_ident)


def test_late_executor_runs_a_function_once_if_no_thread_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    executor, threads = LateExecutor(2), list[int]()

    def note() -> None:
        threads.append(threading.get_ident())

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        executor.submit(note).result(0)
    may_end = threading.Event()
    busy = executor.submit(may_end.wait, HANG_S)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        waiting = executor.submit(note)
    assert threads == [threading.get_ident()]
    may_end.set()
    waiting.result(HANG_S)
    assert busy.result(HANG_S)
    executor.shutdown()
    assert len(threads) == len(set(threads)) == 2


def test_call_that_a_closing_loop_does_not_begin_ends() -> None:
    thread = ThreadedLoop("loop")
    thread.run(asyncio.sleep(0))
    thread.stop(HANG_S)
    kept: list[object] = []  # stands for a loop that is closed right after it accepted the call
    loop: Any = SimpleNamespace(
        call_soon_threadsafe=lambda *call, **context: kept.append(call), is_closed=lambda: True
    )
    thread.loop = loop
    coroutine = asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="closed"):
        thread.start(coroutine).result(HANG_S)
    coroutine.close()


def test_signal_handler_that_waits_for_the_loop_may_interrupt_a_call() -> None:
    thread = ThreadedLoop("loop")
    may_end: list[asyncio.Event] = []

    async def wait() -> int:
        await may_end[-1].wait()
        return 1

    def end() -> None:
        thread.read(may_end[-1].set)
        thread.run(asyncio.sleep(0))

    def make() -> Any:
        may_end.append(asyncio.Event())
        return lambda: thread.run(wait())

    results = interrupted_everywhere(make, end)
    assert len(results) > 10
    assert set(results) == {1}
    thread.stop(HANG_S)


def test_cancelled_call_has_no_result_and_ends_on_the_loop() -> None:
    thread = ThreadedLoop("loop")
    ended = threading.Event()

    async def sleep() -> None:
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.set()

    call = thread.start(sleep())
    thread.run(asyncio.sleep(0))
    call.cancel()
    call.cancel()
    assert call.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        call.result(0)
    assert ended.wait(HANG_S)
    coroutine = sleep()
    call = LoopCall(thread.loop, coroutine, lambda _: None)
    call.cancel()
    call.begin()  # must not run the coroutine
    assert not LoopCall.ended(1).cancelled()
    assert LoopCall.ended(1).result() == 1
    thread.stop(HANG_S)
