"""F77: interpreter shutdown, loops closed early, uvloop, eager tasks; each in a separate process.

Real event loops and sockets of this machine, nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import asyncio, gc, sys, warnings
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster, serve_tcp

def cluster():
    made = FakeCluster()
    made.create_topic("t", 3)
    return made
"""

NOISE = ("Traceback", "Exception ignored", "never retrieved", "never awaited", "was destroyed")


def run_script(body: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a script, which must exit by itself, with status 0 and without output to stderr."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", PRELUDE + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for word in NOISE:
        assert word not in done.stderr, done.stderr
    assert done.stdout.strip().endswith("done"), (done.stdout, done.stderr)
    return done


def test_f77_normal_use_leaves_nothing_to_say() -> None:
    done = run_script(
        """
        async def main():
            # Debug mode also reports how long callbacks took, which is the machine's affair.
            asyncio.get_running_loop().slow_callback_duration = 3600.0
            world = cluster()
            async with serve_tcp(world) as bootstrap:
                async with Producer(bootstrap_servers=bootstrap) as producer:
                    for number in range(20):
                        await producer.send("t", b"%d" % number)
                    await producer.send_many("t", [b"x"] * 1000)
            assert sum(len(log) for log in world.logs("t")) == 1020
        asyncio.run(main())
        print("done")
        """,
        "-X",
        "dev",
        "-W",
        "error",
    )
    assert done.stderr == ""


def test_f77_producer_never_closed_warns_only() -> None:
    done = run_script(
        """
        async def main():
            global producer
            async with serve_tcp(cluster()) as bootstrap:
                producer = Producer(bootstrap_servers=bootstrap)
                await producer.send("t", b"1")
        asyncio.run(main())
        print("done")
        """,
        "-W",
        "default",
    )
    assert "unclosed producer" in done.stderr


def test_f77_producer_never_closed_with_records_pending_warns_only() -> None:
    run_script(
        """
        from aiokprod.testing import fake_cluster as faults
        async def main():
            harness = cluster()
            async with serve_tcp(harness) as bootstrap:
                producer = Producer(bootstrap_servers=bootstrap)
                await producer.send("t", b"1")
                harness.control(0, faults.lose_request())
                for _ in range(10):
                    await producer.submit("t", b"2")
        asyncio.run(main())
        gc.collect()
        print("done")
        """
    )


def test_f77_loop_closed_under_the_producer() -> None:
    run_script(
        """
        loop = asyncio.new_event_loop()
        async def main():
            global producer
            async with serve_tcp(cluster()) as bootstrap:
                producer = Producer(bootstrap_servers=bootstrap)
                await producer.send("t", b"1")
        loop.run_until_complete(main())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()
        try:
            producer.try_submit("t", b"2")
        except Exception as error:
            print(type(error).__name__)
        del producer
        gc.collect()
        print("done")
        """
    )


def test_f77_producer_made_before_any_loop() -> None:
    run_script(
        """
        producer = Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=200)
        async def main():
            try:
                await producer.send("t", b"1")
            except TimeoutError:
                pass
            await producer.close()
        asyncio.run(main())
        print("done")
        """,
        "-W",
        "error",
    )


def test_f77_second_loop_after_the_first_ended_is_refused_not_hung() -> None:
    run_script(
        """
        from aiokprod.errors import KafkaError
        async def first():
            global producer
            async with serve_tcp(cluster()) as bootstrap:
                producer = Producer(bootstrap_servers=bootstrap)
                await producer.send("t", b"1")
        async def second():
            for call in (lambda: producer.send("t", b"2"), producer.flush, producer.close):
                try:
                    await asyncio.wait_for(call(), 60)
                except KafkaError as error:
                    print(type(error).__name__)
        asyncio.run(first())
        asyncio.run(second())
        print("done")
        """
    )


@pytest.mark.skipif(sys.platform == "win32", reason="uvloop is for Unix")
def test_f77_uvloop_delivers_retries_and_closes() -> None:
    run_script(
        """
        import uvloop
        async def main():
            world = cluster()
            async with serve_tcp(world) as bootstrap:
                async with Producer(bootstrap_servers=bootstrap) as producer:
                    deliveries = []
                    for number in range(3000):
                        deliveries.append(await producer.submit("t", b"%d" % number))
                        if number == 1500:
                            for connection in list(world.brokers[1].connections):
                                connection.reset()
                    for metadata in await asyncio.gather(*deliveries):
                        assert metadata.offset is not None
                    await asyncio.wait_for(producer.send("t", b"last"), 60)
            values = [r.value for log in world.logs("t") for r in log]
            assert len(values) == len(set(values)) == 3001
            assert world.violations == []
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
        print("done")
        """,
        "-W",
        "error",
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks are new in 3.12")
def test_f77_eager_tasks_change_nothing() -> None:
    run_script(
        """
        async def burst(producer, text):
            sends = [asyncio.create_task(producer.send("t", text % n)) for n in range(200)]
            await asyncio.gather(*sends)

        async def main():
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
            world = cluster()
            async with serve_tcp(world) as bootstrap:
                async with Producer(bootstrap_servers=bootstrap) as producer:
                    await burst(producer, b"1-%d")
                    world.kill(1)
                    world.move_leader("t", 0, 2)
                    world.move_leader("t", 0, 3)
                    await asyncio.wait_for(burst(producer, b"2-%d"), 60)
            values = [r.value for log in world.logs("t") for r in log]
            assert len(values) == len(set(values)) == 400
        asyncio.run(main())
        print("done")
        """
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_f77_forked_worker_is_refused_and_leaves_the_parent_alone() -> None:
    run_script(
        """
        import multiprocessing
        from aiokprod.errors import ForkedProcess

        def worker():
            async def use():
                for call in (lambda: producer.send("t", b"child"), producer.flush, producer.close):
                    try:
                        await asyncio.wait_for(call(), 60)
                    except ForkedProcess:
                        continue
                    sys.exit(7)
            asyncio.run(use())
            gc.collect()

        async def main():
            global producer
            harness = cluster()
            async with serve_tcp(harness) as bootstrap:
                async with Producer(bootstrap_servers=bootstrap) as producer:
                    await producer.send("t", b"parent")
                    child = multiprocessing.get_context("fork").Process(target=worker)
                    child.start()
                    await asyncio.to_thread(child.join, 60)
                    assert child.exitcode == 0, child.exitcode
                    await asyncio.wait_for(producer.send("t", b"parent again"), 60)
            assert sum(len(log) for log in harness.logs("t")) == 2
            assert harness.violations == []
        asyncio.run(main())
        print("done")
        """,
        "-W",
        "ignore::DeprecationWarning",
    )


def test_f77_keyboard_interrupt_ends_the_program() -> None:
    # Shells start background jobs with SIGINT ignored, and children inherit that.
    run_script(
        """
        import signal, os
        signal.signal(signal.SIGINT, signal.default_int_handler)
        async def main():
            world = cluster()
            async with serve_tcp(world) as bootstrap:
                async with Producer(bootstrap_servers=bootstrap) as producer:
                    await producer.send("t", b"1")
                    asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGINT)
                    while True:
                        await producer.send("t", b"2")
                        await asyncio.sleep(0.001)
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("done")
        """
    )
