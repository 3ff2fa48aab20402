"""Pushed metrics (KIP-714), with a whole producer and a cluster that receives them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from aiokprod._engine.telemetry import pusher as pusher_module
from aiokprod._engine.telemetry.collection import PREFIX, Collection
from aiokprod._errors import Code
from aiokprod._wire.compression import codec_by_id
from aiokprod.producer import Producer
from aiokprod.testing.fake_cluster import FakeCluster, close, delay, lose_answer, refuse
from aiokprod.testing.fake_cluster.telemetry import ClientTelemetry, Push
from aiokprod.testing.virtual import run

GET, PUSH = 71, 72
ALL_CODECS = (4, 3, 1, 2)


def values_of(push: Push) -> dict[str, float]:
    """Return metric values by name; of metrics with several points, their sum."""
    data = push.data
    if push.codec_id:
        data = codec_by_id(push.codec_id).decompress(data, 1 << 20)
    found: dict[str, float] = {}
    for metric in MetricsData.FromString(data).resource_metrics[0].scope_metrics[0].metrics:
        points = metric.sum.data_points or metric.gauge.data_points
        name = metric.name.removeprefix(PREFIX)
        found[name] = sum(point.as_double for point in points)
    return found


def with_telemetry(body: Any, *requested: str, close_s: float | None = None, **options: Any) -> Any:
    """Run `body(cluster, telemetry, producer)` in virtual time. Options with the name of an
    attribute of `ClientTelemetry` configure it; the others configure the producer."""
    own = {name: options.pop(name) for name in list(options) if hasattr(ClientTelemetry(()), name)}

    async def main() -> Any:
        cluster = FakeCluster(2)
        cluster.create_topic("t", 2)
        telemetry = cluster.subscribe(*requested, **own)
        producer = Producer[Any, Any](
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(1),
            **options,
        )
        try:
            found = await body(cluster, telemetry, producer)
        finally:
            await producer.close(close_s)
        await asyncio.sleep(1)
        return found, telemetry.pushes

    return run(main)


async def sending(producer: Producer[Any, Any], seconds: float) -> None:
    """Send one record per second."""
    for _ in range(int(seconds)):
        await producer.send("t", b"value")
        await asyncio.sleep(1)


def test_requested_metrics_are_pushed_at_the_interval() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        await sending(producer, 100)

    _, pushes = with_telemetry(body, "", interval_ms=10_000)
    times = [push.time for push in pushes[:-1]]
    for early, late in itertools.pairwise(times):
        assert late - early == pytest.approx(10, abs=0.1)
    assert 0 < len(times) - 100 / 10 + 1.5 <= 2, "the first one after 0.5 to 1.5 intervals"
    assert len({push.client_instance_id for push in pushes}) == 1
    assert any(pushes[0].client_instance_id)
    assert [push.terminating for push in pushes] == [False] * (len(pushes) - 1) + [True]
    assert sum(values_of(push)["record.send.total"] for push in pushes) == 100  # delta
    assert values_of(pushes[2])["record.send.total"] == pytest.approx(10, abs=1)


def test_sums_are_cumulative_if_the_broker_wants_it() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        await sending(producer, 40)

    _, pushes = with_telemetry(body, "", delta=False)
    sums = [values_of(push)["record.send.total"] for push in pushes]
    assert sums == sorted(sums)
    assert sums[-1] == 40


def test_last_push_has_what_close_has_changed() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        await sending(producer, 20)
        cluster.fail_produce(("t", 0), 6, times=None)
        await producer.submit("t", b"value", partition=0)

    _, pushes = with_telemetry(body, PREFIX + "record.", close_s=2.0, delta=False)
    assert pushes[-1].terminating
    assert values_of(pushes[-1])["record.error.total"] == 1


def test_only_requested_metrics_are_pushed() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        await sending(producer, 20)

    requested = (PREFIX + "connection.creation", PREFIX + "record.queue")
    _, pushes = with_telemetry(body, *requested)
    assert set(values_of(pushes[0])) == {
        "connection.creation.rate", "connection.creation.total",
        "record.queue.time.avg", "record.queue.time.max",
    }  # fmt: skip


@pytest.mark.parametrize("codec_id", [0, 1, 2, 3, 4])
def test_metrics_are_compressed_by_the_first_accepted_codec(codec_id: int) -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        await sending(producer, 20)

    codecs = (codec_id, *ALL_CODECS) if codec_id else ()
    _, pushes = with_telemetry(body, "", codecs=codecs)
    assert {push.codec_id for push in pushes} == {codec_id}
    assert values_of(pushes[0])["connection.count"] >= 1


def test_refused_codec_is_not_used_again() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        cluster.control(PUSH, refuse(Code.UNSUPPORTED_COMPRESSION_TYPE), times=1)
        await sending(producer, 60)

    _, pushes = with_telemetry(body, "", codecs=(4,))
    assert {push.codec_id for push in pushes} == {0}


def test_changed_subscription_is_requested_at_once() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        await sending(producer, 20)
        telemetry.subscription_id, telemetry.requested = 2, (PREFIX + "connection.count",)
        await sending(producer, 20)
        return cluster.count(GET)

    asked, pushes = with_telemetry(body, "")
    assert asked == 2
    assert set(values_of(pushes[-1])) == {"connection.count"}


def test_nothing_is_pushed_without_requested_metrics() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        await sending(producer, 45)
        return cluster.count(GET)

    asked, pushes = with_telemetry(body)
    assert pushes == []
    assert asked == 5, "it asks again at the interval"


def test_telemetry_that_is_too_large_is_not_sent() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        await sending(producer, 45)
        return cluster.count(PUSH)

    pushed, pushes = with_telemetry(body, "", max_bytes=100)
    assert pushed == 0
    assert pushes == []


def test_limit_of_the_size_is_that_of_compressed_metrics() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        await sending(producer, 30)

    _, pushes = with_telemetry(body, "", codecs=(4,))
    sizes = [len(push.data) for push in pushes]
    plain = [len(codec_by_id(4).decompress(push.data, 1 << 20)) for push in pushes]
    limit = max(sizes) + 100
    assert limit < min(plain)
    _, limited = with_telemetry(body, "", codecs=(4,), max_bytes=limit)
    assert len(limited) == len(pushes)


@pytest.mark.parametrize("interval_ms", [0, -1])
def test_interval_that_is_not_valid_is_that_of_java(interval_ms: int) -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        await sending(producer, 1)
        await asyncio.sleep(900)
        return cluster.count(PUSH)

    pushed, _ = with_telemetry(body, "", interval_ms=interval_ms, connections_max_idle_ms=-1)
    assert 1 <= pushed <= 3, "once in 5 minutes"


def test_response_to_an_earlier_push_does_not_end_the_wait_for_the_last_one() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> float:
        await sending(producer, 2)
        cluster.control(PUSH, delay(1.0), times=1)
        for _ in range(100):
            await asyncio.sleep(0.1)
            if cluster.count(PUSH):
                break
        await asyncio.sleep(0.5)
        cluster.control(PUSH, delay(0.8), times=1)
        before = asyncio.get_running_loop().time()
        await producer.close()
        return asyncio.get_running_loop().time() - before

    took, pushes = with_telemetry(body, "")
    assert took >= 0.75
    assert pushes[-1].terminating


def test_switch_turns_it_off() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        await sending(producer, 20)
        return cluster.count(GET)

    assert with_telemetry(body, "", enable_metrics_push=False) == (0, [])


def test_brokers_without_the_api_are_not_asked() -> None:
    async def main() -> None:
        cluster = FakeCluster(1)
        async with Producer[Any, Any](
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment(1)
        ) as producer:
            await producer.send("t", b"value")
            await asyncio.sleep(1000)
        assert cluster.count(GET) == 0

    run(main)


REFUSALS = [
    code for code in Code
    if code not in (Code.NONE, Code.UNKNOWN_SUBSCRIPTION_ID, Code.UNSUPPORTED_COMPRESSION_TYPE)
]  # fmt: skip


@pytest.mark.parametrize("api_key", [GET, PUSH])
@pytest.mark.parametrize(
    "code", [*REFUSALS[::8], Code.TELEMETRY_TOO_LARGE], ids=lambda one: one.name
)
def test_refusals_are_quiet_and_do_not_concern_records(
    api_key: int, code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        cluster.control(api_key, refuse(code), times=None)
        await sending(producer, 2)
        await asyncio.sleep(58)
        await sending(producer, 1)
        return cluster.count(api_key)

    with caplog.at_level(logging.DEBUG):
        asked, pushes = with_telemetry(body, "")
    assert pushes == []
    assert 1 <= asked <= 13, "no more often than once in 5 s"
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


@pytest.mark.parametrize("code", [Code.UNKNOWN_SUBSCRIPTION_ID, Code.UNSUPPORTED_COMPRESSION_TYPE])
def test_broker_that_always_wants_another_subscription_is_not_asked_in_a_loop(code: Code) -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        cluster.control(PUSH, refuse(code), times=None)
        await sending(producer, 100)
        return cluster.count(GET)

    asked, pushes = with_telemetry(body, "")
    assert pushes == []
    assert asked <= 20


@pytest.mark.parametrize("code", [Code.INVALID_REQUEST, Code.INVALID_RECORD])
def test_pushing_ends_where_it_would_be_refused_again(code: Code) -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        cluster.control(PUSH, refuse(code), times=1)
        await sending(producer, 200)
        return cluster.count(GET) + cluster.count(PUSH)

    assert with_telemetry(body, "") == (2, [])


@pytest.mark.parametrize("reaction", [lose_answer(), close()])
def test_lost_responses_delay_the_next_push_only(reaction: Any) -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        cluster.control(PUSH, reaction, times=1)
        await sending(producer, 120)

    _, pushes = with_telemetry(body, "", request_timeout_ms=3_000)
    assert len(pushes) >= 5


def test_close_does_not_wait_long_for_the_last_push() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> float:
        await sending(producer, 20)
        cluster.control(PUSH, lose_answer(), times=None)
        before = asyncio.get_running_loop().time()
        await producer.close()
        return asyncio.get_running_loop().time() - before

    took, _ = with_telemetry(body, "")
    assert took <= 1.1


def test_close_at_once_does_not_wait() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> float:
        await sending(producer, 20)
        cluster.control(PUSH, lose_answer(), times=None)
        before = asyncio.get_running_loop().time()
        await producer.close(0)
        return asyncio.get_running_loop().time() - before

    took, _ = with_telemetry(body, "")
    assert took <= 0.2


def test_bug_in_telemetry_ends_telemetry_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any, **options: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Collection, "points", broken)

    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> int:
        await sending(producer, 60)
        return int(producer.metrics()["records_acknowledged"])

    assert with_telemetry(body, "") == (60, [])
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.name == pusher_module.__name__


def test_transactional_id_is_an_attribute_of_the_resource() -> None:
    async def body(cluster: FakeCluster, telemetry: ClientTelemetry, producer: Any) -> None:
        await producer.start()
        await asyncio.sleep(20)

    _, pushes = with_telemetry(body, "", transactional_id="billing")
    resource = MetricsData.FromString(pushes[0].data).resource_metrics[0].resource
    (attribute,) = resource.attributes
    assert (attribute.key, attribute.value.string_value) == ("transactional_id", "billing")
