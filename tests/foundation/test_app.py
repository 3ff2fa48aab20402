"""`aiokprod.app`: `serving` and `probes` in virtual time, `run` with real signals."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from aiokprod import (
    ConfigError,
    DeliveryTimeout,
    DrainReport,
    MetadataTimeout,
    Producer,
    ProducerConfig,
    TopicDrain,
)
from aiokprod.app import Probe, Probes, probes, run, serving
from aiokprod.testing import FakeCluster
from aiokprod.testing import run as run_virtual
from tests.hang import HANG_S
from tests.scenarios.scenario_helpers import make_producer, now

TICK = 0.25


def play(main: Callable[[FakeCluster], Coroutine[Any, Any, None]]) -> None:
    """Run `main(cluster)` in virtual time, with one broker and topic "t" of one partition."""

    async def start() -> None:
        cluster = FakeCluster(1)
        cluster.create_topic("t", 1)
        await main(cluster)

    run_virtual(start)


# -- serving ------------------------------------------------------------------------------------


def test_serving_starts_and_drains() -> None:
    async def main(cluster: FakeCluster) -> None:
        reports: list[DrainReport] = []
        producer = make_producer(cluster, linger_ms=5_000, adaptive_linger=False)
        async with serving(producer, on_report=reports.append) as served:
            assert served is producer
            assert producer.health().state == "running"
            await producer.submit("t", b"v")
        assert cluster.values("t", 0) == [b"v"]
        assert reports == [producer.drain_report]
        assert reports[0].by_topic == (TopicDrain("t", delivered=1),)

    play(main)


@pytest.mark.parametrize(("drain_s", "limit"), [(0, 0.0), (2.0, 2.0), (None, 7.0)])
def test_serving_limits_the_drain(drain_s: float | None, limit: float) -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster, close_timeout_ms=7_000)
        async with serving(producer, drain_s=drain_s):
            await producer.send("t", b"first")
            cluster.pause(1)
            await producer.submit("t", b"v")
            await asyncio.sleep(0.1)
            start = now()
        assert now() - start == pytest.approx(limit, abs=TICK)
        assert producer.drain_report is not None
        assert producer.drain_report.by_topic == (TopicDrain("t", unknown=1),)

    play(main)


def test_serving_drains_after_an_exception_and_when_it_is_cancelled() -> None:
    async def main(cluster: FakeCluster) -> None:
        reports: list[DrainReport] = []
        producer = make_producer(cluster, linger_ms=5_000, adaptive_linger=False)

        async def serve() -> None:
            async with serving(producer, on_report=reports.append):
                await producer.submit("t", b"v")
                await asyncio.sleep(1_000)

        task = asyncio.ensure_future(serve())
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert reports[0].by_topic == (TopicDrain("t", delivered=1),)

    play(main)


@pytest.mark.parametrize("reporting", [True, False])
def test_serving_whose_drain_is_cancelled_ends_at_once_and_reports(reporting: bool) -> None:
    async def main(cluster: FakeCluster) -> None:
        reports: list[DrainReport] = []
        producer = make_producer(cluster)

        async def serve() -> None:
            on_report = reports.append if reporting else None
            async with serving(producer, drain_s=20, on_report=on_report):
                await producer.send("t", b"first")
                cluster.pause(1)
                await producer.submit("t", b"v")

        task = asyncio.ensure_future(serve())
        await asyncio.sleep(3.0)
        task.cancel()
        start = now()
        await asyncio.wait([task])
        assert task.cancelled()
        assert now() - start < TICK
        assert producer.drain_report is not None
        assert producer.drain_report.by_topic == (TopicDrain("t", unknown=1),)
        assert reports == ([producer.drain_report] if reporting else [])

    play(main)


def test_serving_with_warm_required_waits_for_the_leaders() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        async with serving(producer, warm=["t"], warm_required=True):
            assert Probes(producer).started() == Probe(True)
            assert Probes(producer).ready() == Probe(True)

    play(main)


def test_serving_with_warm_required_fails_without_brokers() -> None:
    async def main(cluster: FakeCluster) -> None:
        cluster.pause(1)
        producer = make_producer(cluster, max_block_ms=3_000)
        start = now()
        with pytest.raises(MetadataTimeout):
            await serving(producer, warm=["t"], warm_required=True).__aenter__()
        assert now() - start == pytest.approx(3.0, abs=TICK)
        assert producer.health().state == "closed"

    play(main)


def test_serving_warms_up_in_the_background_until_that_succeeds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: FakeCluster) -> None:
        cluster.kill(1)
        producer = make_producer(cluster, max_block_ms=1_000)
        start = now()
        async with serving(producer, warm=["t"]):
            found = Probes(producer)
            assert now() - start < TICK
            assert found.started() == Probe(False, ("the warm-up has not ended",))
            await asyncio.sleep(10.0)
            (reason,) = found.started().reasons
            assert "the warm-up failed and is repeated" in reason
            assert found.ready() == found.started()
            cluster.start(1)
            await asyncio.sleep(10.0)
            assert found.started() == found.ready() == Probe(True)

    with caplog.at_level(logging.DEBUG, "aiokprod.app"):
        play(main)
    levels = [record.levelname for record in caplog.records if record.name == "aiokprod.app"]
    assert levels[0] == "WARNING"
    assert set(levels[1:-1]) == {"DEBUG"}
    assert levels[-1] == "INFO"


def test_serving_that_ends_before_it_is_warm_leaves_no_task() -> None:
    async def main(cluster: FakeCluster) -> None:
        cluster.pause(1)
        async with serving(make_producer(cluster), warm=["t"], drain_s=1.0):
            await asyncio.sleep(0.5)

    play(main)


def test_serving_whose_producer_fails_stops_to_warm_up() -> None:
    async def main(cluster: FakeCluster) -> None:
        cluster.pause(1)
        producer = make_producer(cluster)
        async with serving(producer, warm=["t"]):
            await asyncio.sleep(0.5)
            runtime = producer._lifecycle.runtime
            assert runtime is not None
            runtime.fail(ZeroDivisionError("on purpose"))
            await asyncio.sleep(0.5)
            assert not Probes(producer).live().ok
            (reason,) = Probes(producer, topics=[]).live().reasons
            assert "on purpose" in reason

    play(main)


@pytest.mark.parametrize("wrong", [{"warm": "t"}, {"drain_s": -1}, {"warm": 3}])
def test_serving_checks_its_arguments(wrong: dict[str, Any]) -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        with pytest.raises(ConfigError, match="serving"):
            await serving(producer, **wrong).__aenter__()
        await producer.close()

    play(main)


# -- probes -------------------------------------------------------------------------------------


def test_probes_of_a_producer_over_its_life() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        found = probes(producer)
        assert found.live() == Probe(True)
        assert found.started() == found.ready() == Probe(False, ("the producer is not started",))
        await producer.start()
        assert found.started() == Probe(True)
        unknown = "no bootstrap server has responded; no usable response from broker1:9092"
        assert found.ready() == Probe(False, (unknown,))
        await producer.send("t", b"v")
        assert found.ready() == Probe(True)
        await producer.close()
        assert found.ready() == Probe(False, ("the producer is being closed or is closed",))
        assert found.live() == found.started() == Probe(True)

    play(main)


def test_probes_are_not_ready_while_serving_drains() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        found = probes(producer)
        seen: list[Probe] = []
        async with serving(producer, warm=["t"], warm_required=True):
            assert found.ready().ok
            cluster.pause(1)
            await producer.submit("t", b"v")
            asyncio.get_running_loop().call_later(0.5, lambda: seen.append(found.ready()))
            asyncio.get_running_loop().call_later(0.5, lambda: seen.append(found.live()))
            asyncio.get_running_loop().call_later(1.0, cluster.resume, 1)
        assert seen == [Probe(False, ("the producer is being closed or is closed",)), Probe(True)]

    play(main)


def test_probe_for_readiness_sees_old_records_and_a_full_buffer() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster, buffer_memory=100_000, max_request_size=90_000)
        async with serving(producer, drain_s=0):
            await producer.send("t", b"v")
            cluster.pause(1)
            await producer.submit("t", bytes(80_000))
            await asyncio.sleep(2.0)
            assert probes(producer).ready().ok
            (reason,) = probes(producer, max_age_s=1.0).ready().reasons
            assert reason.startswith("the oldest record has had no outcome for 2.0 s, more than")
            (reason,) = probes(producer, max_pressure=0.5).ready().reasons
            assert reason.startswith("80% of the buffer is in use")
            await asyncio.sleep(60.0)
            assert not probes(producer).ready().ok

    play(main)


def test_probe_for_readiness_sees_topics_without_leader_but_not_idle_ones() -> None:
    async def main() -> None:
        cluster = FakeCluster(2)
        cluster.create_topic("t", 1, replication=1)
        cluster.create_topic("u", 1, replication=1)
        cluster.move_leader("u", 0, 2)
        producer = make_producer(
            cluster, metadata_max_idle_ms=5_000, metadata_max_age_ms=1_000, max_block_ms=2_000
        )
        async with serving(producer, warm=["t", "u"], warm_required=True, drain_s=0):
            found = probes(producer)
            only = probes(producer, topics=["t"])
            missing = probes(producer, topics=["unknown"])
            assert found.ready() == only.ready() == Probe(True)
            assert missing.ready() == Probe(False, ("topic unknown has no leader",))
            cluster.kill(1)
            await asyncio.sleep(3.0)
            assert found.ready() == only.ready() == Probe(False, ("topic t has no leader",))
            await asyncio.sleep(30.0)  # idle topics are forgotten
            assert found.ready() == Probe(True)

    run_virtual(main)


async def ask(app: Probes, path: str, method: str = "GET") -> tuple[int, Any, dict[bytes, bytes]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    await app({"type": "http", "path": path, "method": method}, receive, send)
    start, body = sent
    content = json.loads(body["body"]) if body["body"] else None
    return start["status"], content, dict(start["headers"])


def test_probes_are_an_asgi_application() -> None:
    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)
        app = probes(producer)
        async with serving(producer, warm=["t"], warm_required=True):
            for path in ("/livez", "/readyz", "/kafka/startupz", "/readyz/"):
                status, body, headers = await ask(app, path)
                assert (status, body) == (200, {"status": "ok", "reasons": []})
                assert headers[b"content-type"] == b"application/json"
                assert headers[b"cache-control"] == b"no-store"
            status, body, headers = await ask(app, "/readyz", "HEAD")
            assert (status, body) == (200, None)
            assert int(headers[b"content-length"]) > 0
            status, body, headers = await ask(app, "/readyz", "POST")
            assert (status, headers[b"allow"]) == (405, b"GET, HEAD")
            status, body, _ = await ask(app, "/other")
            assert (status, body["probes"]) == (404, ["livez", "readyz", "startupz"])
        status, body, _ = await ask(app, "/readyz")
        assert (status, body["status"]) == (503, "unavailable")

    play(main)


def test_probes_as_an_application_of_a_server() -> None:
    async def main(cluster: FakeCluster) -> None:
        app = probes(lambda: None)
        messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message["type"])

        async def receive() -> Any:
            return messages.pop(0)

        await app({"type": "lifespan"}, receive, send)
        await app({"type": "websocket", "path": "/"}, receive, send)
        assert sent == [
            "lifespan.startup.complete", "lifespan.shutdown.complete", "websocket.close",
        ]  # fmt: skip
        assert app.live() == Probe(True)
        assert not app.ready().ok
        assert app.started() == Probe(False, ("the producer is not started",))

    play(main)


@pytest.mark.parametrize(
    "wrong",
    [{"topics": "t"}, {"max_pressure": 0}, {"max_pressure": "1"}, {"max_pressure": True},
     {"max_pressure": 1.5}, {"max_age_s": -1.0}, {"producer": "p"}],
    ids=str,
)  # fmt: skip
def test_probes_check_their_arguments(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="probes"):
        probes(**({"producer": lambda: None} | wrong))


def test_probes_mounted_in_starlette() -> None:
    import httpx
    from starlette.applications import Starlette
    from starlette.routing import Mount

    async def main(cluster: FakeCluster) -> None:
        producer = make_producer(cluster)

        @asynccontextmanager
        async def lifespan(app: Starlette) -> Any:
            async with serving(producer, warm=["t"], warm_required=True):
                yield

        app = Starlette(routes=[Mount("/kafka", probes(producer))], lifespan=lifespan)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            assert (await client.get("/kafka/readyz")).status_code == 503
            async with app.router.lifespan_context(app):
                assert (await client.get("/kafka/readyz")).json() == {"status": "ok", "reasons": []}
                assert (await client.get("/kafka/none")).status_code == 404

    play(main)


# -- run ----------------------------------------------------------------------------------------


def config(**settings: Any) -> ProducerConfig:
    few: dict[str, Any] = {"close_timeout_ms": 100, "max_block_ms": 100}
    return ProducerConfig(bootstrap_servers="127.0.0.1:1", **(few | settings))


async def nothing(producer: Producer[Any, Any]) -> str:
    return type(asyncio.get_running_loop()).__module__


def test_run_uses_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(nothing, config()).startswith("uvloop")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run(nothing, config()).startswith("asyncio")
    assert run(nothing, config(), loop_factory=asyncio.SelectorEventLoop).startswith("asyncio")


def test_run_returns_the_result_and_raises_the_errors_of_main() -> None:
    async def main(producer: Producer[Any, Any]) -> int:
        assert producer.health().state == "running"
        return 1 // divisor

    divisor = 1
    reports: list[DrainReport] = []
    assert run(main, Producer(config()), on_report=reports.append) == 1
    assert len(reports) == 1
    divisor = 0
    with pytest.raises(ZeroDivisionError):
        run(main, config())


def test_run_restores_the_handlers_of_signals() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run(nothing, config())
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_run_works_in_other_threads() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(run(nothing, config())))
    thread.start()
    thread.join(HANG_S)
    assert found


def test_run_refuses_other_objects_and_a_running_loop() -> None:
    with pytest.raises(ConfigError, match="Producer or a ProducerConfig"):
        run(nothing, "localhost:9092")  # type: ignore[arg-type]

    async def main() -> None:
        with pytest.raises(RuntimeError):
            run(nothing, config())

    asyncio.run(main())


def test_run_whose_records_are_not_delivered_raises() -> None:
    cluster = FakeCluster(1)
    cluster.create_topic("t", 1)
    producer = Producer(
        bootstrap_servers=cluster.bootstrap_servers,
        environment=cluster.environment(),
        close_timeout_ms=50,
    )

    async def main(_: Producer[Any, Any]) -> None:
        await producer.send("t", b"first")
        cluster.pause(1)
        await producer.submit("t", b"v")

    with pytest.raises(DeliveryTimeout, match="t: 1 unknown"):
        run(main, producer)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["asyncio.new_event_loop", "new_event_loop"])
def test_run_drains_after_a_signal_and_exits_with_its_number(
    number: signal.Signals, loop: str
) -> None:
    done = run_script(
        f"""
        async def main(producer):
            await producer.warm(["t"])
            for _ in range(10):
                await producer.submit("t", b"v")
            os.kill(os.getpid(), {int(number)})
            await asyncio.sleep(3600)

        run(main, producer(linger_ms=60_000, adaptive_linger=False, delivery_timeout_ms=120_000),
            on_report=print, loop_factory={loop})
        """
    )
    assert done.returncode == 128 + number
    assert "t: 10 delivered" in done.stdout


def test_run_whose_main_catches_the_cancellation_returns_its_result() -> None:
    done = run_script(
        """
        async def main(producer):
            os.kill(os.getpid(), signal.SIGTERM)
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                return "finished"

        print(run(main, producer()))
        """
    )
    assert done.returncode == 0
    assert done.stdout.strip() == "finished"


def test_run_second_signal_ends_the_drain_with_its_report() -> None:
    done = run_script(
        """
        async def main(producer):
            await producer.send("t", b"first")
            cluster.pause(1)
            await producer.submit("t", b"v")
            asyncio.get_running_loop().call_later(0.5, os.kill, os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(3600)

        run(main, producer(), drain_s=3600, on_report=print)
        """
    )
    assert done.returncode == 128 + signal.SIGINT
    assert "t: 1 unknown" in done.stdout


def test_run_third_signal_kills() -> None:
    done = run_script(
        """
        async def main(producer):
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    pass

        run(main, producer())
        """
    )
    assert done.returncode == -signal.SIGTERM


def run_script(body: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a fake cluster on the producer's event loop, in a separate process."""
    prelude = """
    import asyncio, os, signal
    from aiokprod import Producer
    from aiokprod.app import new_event_loop, run
    from aiokprod.testing import FakeCluster
    cluster = FakeCluster(1)
    cluster.create_topic("t", 1)
    def producer(**settings):
        return Producer(bootstrap_servers=cluster.bootstrap_servers,
                        environment=cluster.environment(), **settings)
    """
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(prelude) + textwrap.dedent(body)],
        capture_output=True, text=True, timeout=300, check=False, env=os.environ.copy(),
    )  # fmt: skip
