"""`ThreadWaits`: waits of threads without a shared lock."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable

import pytest

from aiokprod._client.thread_waits import ThreadWaits
from tests.hang import HANG_S, wait_until
from tests.interruptions import interrupted_everywhere


def test_wait_ends_at_once_later_or_with_its_timeout() -> None:
    waits, answers = ThreadWaits(), [False, True]
    assert waits.wait(lambda: True, 0)
    assert not waits.wait(lambda: False, 0)
    assert not waits.wait(lambda: False, 0.001)
    assert waits.wait(lambda: answers.pop(0), 0.001)  # checked once more at the timeout
    assert not waits
    waits.wake()


@pytest.mark.parametrize("timeout", [None, math.inf, 1e12])
def test_a_wait_may_be_without_a_limit(timeout: float | None) -> None:
    waits, has_ended = ThreadWaits(), threading.Event()

    def end() -> None:
        wait_until(lambda: bool(waits))
        has_ended.set()
        waits.wake()

    thread = threading.Thread(target=end)
    thread.start()
    assert waits.wait(has_ended.is_set, timeout)
    thread.join(HANG_S)


def test_every_thread_that_waits_is_woken_until_its_condition_holds() -> None:
    waits, allowed, ended = ThreadWaits(), [0], []

    def wait(number: int) -> None:
        assert waits.wait(lambda: number < allowed[0], HANG_S)
        ended.append(number)

    threads = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    for number, thread in enumerate(threads):
        wait_until(lambda number=number: len(waits._turns) == 3 - number)  # type: ignore[misc]
        allowed[0] += 1
        waits.wake()
        thread.join(HANG_S)
        assert ended == list(range(number + 1))
    assert not waits


def test_a_wait_may_end_while_the_others_are_woken() -> None:
    class Shrinking(deque[threading.Lock]):
        def __len__(self) -> int:
            return super().__len__() + 1  # simulates a removal after the count

    waits = ThreadWaits()
    waits._turns = Shrinking()
    turn = threading.Lock()
    turn.acquire()
    waits._turns.append(turn)
    waits.wake()
    assert not turn.locked()


def test_signal_handler_may_wait_for_the_thread_that_wakes() -> None:
    waits, has_ended = ThreadWaits(), threading.Event()

    def make() -> Callable[[], bool]:
        has_ended.clear()
        return lambda: waits.wait(has_ended.is_set, HANG_S)

    def end() -> None:
        has_ended.set()
        waits.wake()

    results = interrupted_everywhere(make, end)
    assert len(results) > 5
    assert all(results)
    assert not waits
