"""The loop thread of a process, the batch handoff, and the watch of the JVM socket, without Spark
and Kafka."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
import threading
import traceback
from collections import UserDict
from typing import Any

import pytest

from aiokprod.errors import ConfigError
from aiokprod.spark import worker_loop
from aiokprod.spark.batch_handoff import BatchHandoff
from aiokprod.spark.jvm_socket_watch import JvmSocketWatch, TaskCancelled
from aiokprod.spark.traceback_redaction import redacted
from aiokprod.spark.worker_loop import loop_thread
from tests.hang import HANG_S


class Item:
    """An item that a loop thread can keep."""

    def __init__(self) -> None:
        self.closed = 0
        self.ended = threading.Event()

    async def close(self, timeout: float | None = None) -> None:
        self.closed += 1
        self.ended.set()


def test_loop_thread_is_one_per_process_and_kind() -> None:
    assert loop_thread("asyncio") is loop_thread("asyncio")
    assert loop_thread("asyncio") is not loop_thread("uvloop")
    assert loop_thread("asyncio").run(asyncio.sleep(0, 5)) == 5


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # as Spark forks
def test_loop_thread_in_a_forked_child_is_a_new_one() -> None:
    parent = loop_thread("asyncio")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        fresh = loop_thread("asyncio")
        good = fresh is not parent and fresh.run(asyncio.sleep(0, 7)) == 7 and not parent.usable
        os.write(write, b"1" if good else b"0")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)
    assert loop_thread("asyncio") is parent


LEAVING = """
import asyncio, ctypes, sys
from aiokprod.spark.worker_loop import loop_thread
from tests.hang import HANG_S


class Item:
    async def close(self, timeout=None):
        print("closed", flush=True)
        asyncio.get_running_loop().call_later(float(sys.argv[3]), print, "too late")
        await asyncio.sleep(float(sys.argv[2]))

async def wait():
    try:
        await asyncio.sleep(60)
    finally:
        print("cancelled", flush=True)

async def keep(thread):
    async with thread.borrowed("item", make, keep=True):
        pass

async def make():
    return Item()

thread = loop_thread(sys.argv[1])
thread.run(keep(thread))
thread.start(wait())
thread.run(asyncio.sleep(0))
# Something of C holds up the process after the interpreter has gone, until the input ends.
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.getchar, ctypes.c_void_p), None, None)
"""


@pytest.mark.parametrize("closing", [0, 60], ids=["at once", "slowly"])
@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_loop_thread_ends_with_the_interpreter(kind: str, closing: int) -> None:
    late = 2.0 + (worker_loop.EXIT_SECONDS if closing else 0.0)
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", LEAVING, kind, str(closing), str(late)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as leaving:  # fmt: skip
        assert leaving.stdin is not None
        assert leaving.stdout is not None
        assert [leaving.stdout.readline(), leaving.stdout.readline()] == ["cancelled\n", "closed\n"]
        with pytest.raises(subprocess.TimeoutExpired):
            leaving.wait(late + 1.0)
        out, err = leaving.communicate("")
    assert (leaving.returncode, out, err) == (0, "", "")


def test_stop_does_not_wait_for_a_loop_that_is_held_up() -> None:
    thread = worker_loop.LoopThread("asyncio")
    held = threading.Event()
    thread.loop.call_soon_threadsafe(held.wait)
    thread.stop(0.01)
    assert thread.usable
    held.set()
    thread._thread.join()


class Slow(Item):
    """An item that takes `seconds` to close."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    async def close(self, timeout: float | None = None) -> None:
        await asyncio.sleep(self.seconds)
        await super().close(timeout)


def keep(thread: worker_loop.LoopThread, key: object, item: Item) -> None:
    """Borrow the item once, so that the thread keeps it."""

    async def make() -> Item:
        return item

    async def use() -> None:
        async with thread.borrowed(key, make, keep=True):
            pass

    thread.run(use())


def test_stop_cancels_what_runs_closes_what_is_kept_and_waits_for_the_thread() -> None:
    thread = worker_loop.LoopThread("asyncio")
    items = [Slow(0.1), Slow(0.1)]
    for number, item in enumerate(items):
        keep(thread, number, item)
    order: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(HANG_S)
        finally:
            order.append(f"cancelled, {sum(item.closed for item in items)} closed")

    async def spawn() -> None:
        async def beside() -> None:
            try:
                await asyncio.sleep(HANG_S)
            finally:
                order.append(f"other task, {sum(item.closed for item in items)} closed")

        keeping.append(asyncio.create_task(beside()))

    keeping: list[asyncio.Task[None]] = []
    work_done = thread.start(work())
    thread.run(spawn())
    thread.run(asyncio.sleep(0))
    thread.stop(HANG_S)
    assert not thread.usable, "it waits until the thread has ended"
    assert thread.loop.is_closed()
    assert [item.closed for item in items] == [1, 1]
    assert order == ["cancelled, 0 closed", "other task, 2 closed"]
    assert work_done.cancelled()
    assert thread.kept == {}
    thread.stop(HANG_S)  # no effect on a closed loop


def test_stop_ends_a_thread_whose_items_do_not_close() -> None:
    thread = worker_loop.LoopThread("asyncio")
    item = Slow(HANG_S)
    keep(thread, "k", item)
    thread.stop(0.2)
    thread._thread.join(HANG_S / 2)
    assert not thread.usable
    assert thread.loop.is_closed()
    assert item.closed == 0


def test_stop_of_the_process_ends_every_thread_that_is_alive() -> None:
    own = worker_loop._Process()
    threads = [own.loop_thread(kind) for kind in ("asyncio", "uvloop")]
    gone = worker_loop.LoopThread("asyncio")
    gone.stop(HANG_S)
    own._threads["gone"] = gone
    own.stop()
    for thread in threads:
        thread._thread.join(HANG_S)
        assert not thread.usable
        assert thread.loop.is_closed()
    assert own.loop_thread("asyncio") not in threads
    own.stop()


def test_thread_that_ended_is_replaced() -> None:
    own = worker_loop._Process()
    first = own.loop_thread("asyncio")
    assert own.loop_thread("asyncio") is first
    first.stop(HANG_S)
    second = own.loop_thread("asyncio")
    assert second is not first
    assert second.usable
    own.stop()


def test_child_does_not_wait_for_a_lock_that_its_parent_held() -> None:
    own = worker_loop._Process()
    assert own._lock.acquire(timeout=HANG_S)
    own.renew_lock()
    assert own._lock.acquire(blocking=False)


def test_run_that_times_out_cancels_the_work() -> None:
    thread = loop_thread("asyncio")
    ended = threading.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(HANG_S)
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        thread.run(work(), 0.05)
    assert ended.wait(HANG_S)


def test_uvloop_is_a_choice_and_refused_by_name_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import uvloop

    for kind, expected in (("auto", uvloop.Loop), ("uvloop", uvloop.Loop),
                           ("asyncio", asyncio.SelectorEventLoop)):  # fmt: skip
        loop = worker_loop._new_loop(kind)
        assert type(loop) is expected
        loop.close()
    monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = worker_loop._new_loop("auto")
    assert type(loop) is asyncio.SelectorEventLoop
    loop.close()
    with pytest.raises(ConfigError, match="option 'loop' is 'uvloop', which is not installed"):
        worker_loop._new_loop("uvloop")


def test_borrowed_item_is_kept_reused_and_dropped_after_an_error() -> None:
    thread = loop_thread("asyncio")
    made: list[Item] = []

    async def make() -> Item:
        made.append(Item())
        return made[-1]

    async def use(*, keep: bool = True, fail: bool = False) -> Item:
        async with thread.borrowed("k", make, keep=keep) as item:
            if fail:
                raise ValueError("on purpose")
            return item

    first = thread.run(use())
    assert thread.run(use()) is first
    with pytest.raises(ValueError, match="on purpose"):
        thread.run(use(fail=True))
    assert first.closed == 1
    second = thread.run(use(keep=False))
    assert second is not first
    assert second.closed == 1
    assert len(made) == 2


def test_borrowed_item_is_closed_when_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_loop, "IDLE_SECONDS", 0.02)
    thread = loop_thread("asyncio")

    async def use() -> Item:
        async with thread.borrowed("idle", make, keep=True) as item:
            return item

    async def make() -> Item:
        return Item()

    item = thread.run(use())

    assert item.ended.wait(HANG_S)
    assert "idle" not in thread.kept


def test_two_borrowers_at_once_get_two_items_and_one_is_kept() -> None:
    thread = loop_thread("asyncio")

    async def make() -> Item:
        return Item()

    async def both() -> tuple[Item, Item]:
        async with thread.borrowed("two", make, keep=True) as one:  # noqa: SIM117
            async with thread.borrowed("two", make, keep=True) as other:
                return one, other

    one, other = thread.run(both())
    assert (one.closed, other.closed) == (1, 0)


def test_feed_hands_over_in_order_and_one_at_a_time() -> None:
    thread = loop_thread("asyncio")
    handoff = BatchHandoff(thread.loop)
    taken: list[Any] = []

    async def take_all() -> None:
        while (table := await handoff.get()) is not None:
            taken.append(table)

    future = thread.start(take_all())
    for number in range(1, 101):
        assert handoff.put(number)
    handoff.end()
    future.result(5)
    assert taken == list(range(1, 101))


def test_feed_waits_while_nothing_is_taken_and_looks_around() -> None:
    handoff = BatchHandoff(loop_thread("asyncio").loop)
    looks = []

    def look() -> None:
        looks.append(1)
        raise TaskCancelled("gone")

    assert handoff.put("first")
    with pytest.raises(TaskCancelled):
        handoff.put("second", look)
    assert looks == [1]


def test_feed_closed_lets_the_putter_go() -> None:
    handoff = BatchHandoff(loop_thread("asyncio").loop)
    assert handoff.put("first")
    timer = threading.Timer(0.05, handoff.close)
    timer.start()
    assert not handoff.put("second")
    timer.join()


@pytest.mark.skipif(not hasattr(select, "poll"), reason="no poll on this system")
def test_lifeline_notices_that_the_other_side_closed() -> None:
    ours, theirs = socket.socketpair()
    socket_watch = JvmSocketWatch(ours.fileno())
    assert not socket_watch.cut()
    theirs.send(b"data does not matter")
    assert not socket_watch.cut()
    theirs.close()
    assert socket_watch.cut()
    with pytest.raises(TaskCancelled, match="killed or cancelled this task"):
        socket_watch.check()
    ours.close()


def test_lifeline_is_found_in_the_workers_frame() -> None:
    ours, theirs = socket.socketpair()

    def main(infile: Any, outfile: Any) -> JvmSocketWatch:
        return JvmSocketWatch.of_this_task()

    socket_watch = main(None, ours)
    assert socket_watch.watched
    theirs.close()
    assert socket_watch.cut()
    ours.close()
    assert not JvmSocketWatch.of_this_task().watched
    assert not JvmSocketWatch(None).cut()


def test_redacted_masks_locals_of_callers_when_the_body_raises() -> None:
    def plan() -> dict[str, Any]:
        options = UserDict({"kafka.sasl.password": "s3cret", "topic": "t"})
        value = "s3cret"
        plain = {"x": "s3cret"}
        other = "t"
        try:
            fail()
        except ValueError as error:
            shown = traceback.TracebackException.from_exception(error, capture_locals=True)
            text = "".join(shown.format()).replace('deep("s3cret")', "")
            assert "wrong option 1" in text
            assert "settings = " in text
            lines = [line for line in text.splitlines() if " = " in line]
            assert not [line for line in lines if "s3" + "cret" in line]
            return {"data": options.data, "value": value, "plain": plain, "other": other}
        raise AssertionError

    def deep(text: str) -> None:
        settings = {"sasl.password": text}
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError(f"wrong option {len(settings)}") from None

    def fail() -> None:
        with redacted({"kafka.sasl.password": "s3cret", "topic": "t"}):
            deep("s3cret")

    found = plan()
    assert "s3" + "cret" not in repr(found)
    assert found["other"] == "t"


def test_drop_closes_what_is_unused_and_unwanted() -> None:
    thread = loop_thread("asyncio")

    async def make() -> Item:
        return Item()

    async def use(key: object) -> Item:
        async with thread.borrowed(key, make, keep=True) as item:
            return item

    one, other = thread.run(use(("d", 1))), thread.run(use(("d", 2)))
    thread.run(thread.drop(lambda key: key == ("d", 1)))
    assert (one.closed, other.closed) == (1, 0)
    assert thread.run(use(("d", 2))) is other
