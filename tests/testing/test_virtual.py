from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from aiokprod.testing.virtual import (
    START_TIME,
    DeadlockError,
    LeakError,
    LivelockError,
    UnhandledError,
    VirtualLoop,
    VirtualTimeLimit,
    run,
)


def loop() -> VirtualLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualLoop)
    return running


def test_run_returns_result_of_main() -> None:
    async def main() -> int:
        return 7

    assert run(main) == 7


def test_clock_jumps_to_next_timer_exactly() -> None:
    async def main() -> list[float]:
        seen = [loop().time()]
        await asyncio.sleep(3600.0)
        seen.append(loop().time())
        await asyncio.sleep(0.1)
        seen.append(loop().time())
        return seen

    assert run(main) == [START_TIME, START_TIME + 3600.0, START_TIME + 3600.0 + 0.1]


def test_sleep_beyond_a_day_ends_at_its_time() -> None:
    async def main() -> float:
        await asyncio.sleep(200_000.0)
        return loop().time()

    assert run(main, limit_s=1e9) == START_TIME + 200_000.0


def test_deadlock_raises_at_once_and_names_task_and_place() -> None:
    async def stuck() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.create_task(stuck(), name="the-stuck-one")

    with pytest.raises(DeadlockError, match=r"the-stuck-one: .*stuck:\d+"):
        run(main)


def test_endless_retry_ends_at_the_limit() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(1.0)

    with pytest.raises(VirtualTimeLimit, match=r"main:\d+"):
        run(main, limit_s=100.0)


def test_busy_loop_without_clock_is_livelock() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(LivelockError):
        run(main)


def test_pending_task_is_a_leak_and_gets_cancelled() -> None:
    cancelled: list[str] = []

    async def background() -> None:
        try:
            await asyncio.sleep(100.0)
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise

    async def main() -> None:
        main.task = asyncio.create_task(background(), name="left")  # type: ignore[attr-defined]
        await asyncio.sleep(0)

    with pytest.raises(LeakError, match="task left"):
        run(main)
    assert cancelled == ["yes"]


def test_pending_timer_is_a_leak() -> None:
    async def main() -> None:
        loop().call_later(5.0, print)

    with pytest.raises(LeakError, match="timer"):
        run(main)


def test_timer_of_an_object_that_is_gone_is_no_leak() -> None:
    class Gone:
        pass

    async def main() -> None:
        asyncio.get_running_loop().call_later(60, repr, weakref.ref(Gone()))

    run(main)


def test_timer_of_an_object_that_is_alive_is_a_leak() -> None:
    class Alive:
        pass

    alive = Alive()

    async def main() -> None:
        asyncio.get_running_loop().call_later(60, repr, weakref.ref(alive))

    with pytest.raises(LeakError, match="timer"):
        run(main)


def test_cancelled_timer_is_no_leak() -> None:
    async def main() -> None:
        loop().call_later(5.0, print).cancel()

    run(main)


def test_exception_never_retrieved_fails_the_run() -> None:
    async def bad() -> None:
        raise ValueError("lost")

    async def main() -> None:
        task = asyncio.create_task(bad())
        await asyncio.sleep(0)
        del task

    with pytest.raises(UnhandledError, match="lost"):
        run(main)


def test_error_in_callback_fails_the_run() -> None:
    def bad() -> None:
        raise ValueError("in callback")

    async def main() -> None:
        loop().call_soon(bad)
        await asyncio.sleep(0)

    with pytest.raises(UnhandledError, match="in callback"):
        run(main)


def test_error_of_main_wins_and_carries_unhandled_as_note() -> None:
    def bad() -> None:
        raise ValueError("in callback")

    async def main() -> None:
        loop().call_soon(bad)
        await asyncio.sleep(1)
        raise KeyError("main")

    with pytest.raises(KeyError) as info:
        run(main)
    assert "in callback" in info.value.__notes__[0]


def test_executor_runs_inline_and_settles_after_its_delay() -> None:
    async def main() -> tuple[bool, float]:
        loop().executor_delay_s = 2.0
        thread = await asyncio.to_thread(threading.current_thread)
        return thread is threading.current_thread(), loop().time() - START_TIME

    assert run(main) == (True, 2.0)


def test_executor_passes_errors_on() -> None:
    def bad() -> None:
        raise ValueError("job")

    async def main() -> None:
        with pytest.raises(ValueError, match="job"):
            await loop().run_in_executor(None, bad)

    run(main)


def test_world_event_comes_before_timer_due_in_the_same_pass() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        start = loop().time()
        loop().call_at(start + 1.0, seen.append, "timer")
        loop().world_at(start + 2.0, seen.append, "bytes")
        loop().stall(5.0)
        await asyncio.sleep(1.0)
        return seen

    assert run(main) == ["bytes", "timer"]


def test_cancelled_world_event_does_not_happen() -> None:
    async def main() -> list[str]:
        seen: list[str] = []
        loop().world_at(loop().time() + 1.0, seen.append, "no").cancel()
        loop().world_at(loop().time() + 2.0, seen.append, "yes")
        await asyncio.sleep(3.0)
        return seen

    assert run(main) == ["yes"]


def interleaving(seed: int | None) -> list[int]:
    async def main() -> list[int]:
        seen: list[int] = []

        async def one(number: int) -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(number)

        await asyncio.gather(*(one(number) for number in range(6)))
        return seen

    return run(main, seed=seed)


def test_seed_shuffles_tasks_and_repeats() -> None:
    fifo = interleaving(None)
    assert fifo == [0, 1, 2, 3, 4, 5] * 3
    shuffled = {tuple(interleaving(seed)) for seed in range(8)}
    assert len(shuffled) > 4
    assert interleaving(3) == interleaving(3)


def test_seed_keeps_order_of_plain_callbacks() -> None:
    async def main() -> list[int]:
        seen: list[int] = []
        for number in range(20):
            loop().call_soon(seen.append, number)
        await asyncio.sleep(0.1)
        return seen

    assert run(main, seed=5) == list(range(20))


def test_late_timers_overshoot_within_bound() -> None:
    async def main() -> float:
        await asyncio.sleep(1.0)
        return loop().time() - START_TIME

    late = run(main, seed=1, late_timers_s=0.5)
    assert 1.0 < late <= 1.5


def test_loop_without_network_refuses_connections() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="no network"):
            await loop().create_connection(asyncio.Protocol, "host", 1)
        with pytest.raises(OSError, match="no network"):
            await loop().getaddrinfo("host", 1)

    run(main)


def test_pending_task_after_deadlock_does_not_warn_when_collected() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run(main)
    gc.collect()
