"""The error texts of newcomers' mistakes, except obvious ones, say what to do.

The numbers are the rows of the list of mistakes that newcomers made.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from aiokprod import JsonSerializer, Producer, ProducerConfig
from aiokprod._wire.versions import negotiate
from aiokprod.testing import FakeCluster, run

SERVERS: dict[str, Any] = {"bootstrap_servers": "b:1"}
UNTYPED: Any = Producer
"""Type checkers report these mistakes too."""


def raising(*arguments: Any) -> int:
    raise ZeroDivisionError("secret-payload")


@pytest.mark.parametrize(
    ("row", "call", "texts"),
    [
        (4, lambda: UNTYPED("host:9092"), ["Producer(bootstrap_servers='host:9092')"]),
        (4, lambda: UNTYPED("user:pw@host:9092"), ["from_mapping"]),
        (6, lambda: UNTYPED(config=ProducerConfig(**SERVERS)), ["first positional argument"]),
        (7, lambda: UNTYPED(**SERVERS, **{"linger.ms": 5}), ["keyword it is linger_ms"]),
        (7, lambda: UNTYPED(**{"bootstrap.servers": "b:1"}), ["it is bootstrap_servers"]),
        (8, lambda: UNTYPED(**SERVERS, acks_all=True), ["did you mean 'acks'"]),
        (9, lambda: UNTYPED(**SERVERS, max_batch_size=5), ["use batch_size"]),
        (9, lambda: UNTYPED(**SERVERS, stats_cb=print), ["producer.metrics()"]),
        (44, lambda: UNTYPED(**SERVERS).send_and_wait, ["use await producer.send"]),
        (44, lambda: UNTYPED(**SERVERS).stop, ["producer.close()"]),
        (44, lambda: UNTYPED(**SERVERS).produce, ["producer.submit"]),
        (56, lambda: pickle.dumps(UNTYPED(**SERVERS)), ["create one in each process"]),
        (36, lambda: negotiate(3, {18: (0, 3)}), ["port of a controller"]),
    ],
)
def test_a_call_says_what_to_do(row: int, call: Callable[[], Any], texts: list[str]) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        call()
    for text in texts:
        assert text in str(caught.value), row
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "settings", "call", "texts", "longest_s"),
    [
        (19, {"value_serializer": json.dumps}, lambda p: p.send("t", {}), ["str instead"], 1),
        (21, {"value_serializer": JsonSerializer()}, lambda p: p.send("t", object()),
         ["cannot encode object", "JsonSerializer(default=...)"], 1),
        (26, {}, lambda p: p.send("t", b"v", partition=99), ["partitions 0 to 5, not 99"], 1),
        (27, {}, lambda p: p.send("no", b"v"), ["UNKNOWN_TOPIC_OR_PARTITION", "create the"], 61),
        (32, {}, lambda p: p.send("no", b"v", timeout=2), ["after 2 s:", "create the topic"], 3),
        (51, {}, lambda p: p.send_many("t", ["v"]), ["encode it or pass a serializer"], 1),
        (51, {}, lambda p: p.send_many([("t", b"v")]), ["tuple, not ProducerRecord"], 1),
        (54, {"partitioner": raising}, lambda p: p.send("t", b"v"), ["raising failed"], 1),
        (54, {"partitioner": lambda a: 0}, lambda p: p.send("t", b"v"), ["is called with"], 1),
    ],
)  # fmt: skip
def test_a_send_says_what_to_do(
    row: int,
    settings: dict[str, Any],
    call: Callable[[Producer[Any, Any]], Awaitable[Any]],
    texts: list[str],
    longest_s: float,
) -> None:
    async def main() -> None:
        cluster = FakeCluster(3, auto_create=False)
        cluster.create_topic("t", 6)
        loop = asyncio.get_running_loop()
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            **settings,
        ) as producer:
            await producer.partitions_for("t")
            started = loop.time()
            with pytest.raises(Exception) as caught:  # noqa: PT011
                await call(producer)
            assert loop.time() - started < longest_s
        for text in texts:
            assert text in str(caught.value), row
        assert "secret-payload" not in str(caught.value)

    run(main, debug=False)


def test_row_30_a_timestamp_in_seconds_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        cluster = FakeCluster(3)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers, environment=cluster.environment()
        ) as producer:
            await producer.send("t", b"v")
            assert not caplog.records
            for _ in range(2):
                await producer.send("t", b"v", timestamp_ms=1_795_701_353)
        assert cluster.all_values("t") == [b"v"] * 3

    run(main, debug=False)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    for text in ("timestamp_ms=1795701353 is of 1970-01-21", "int(time.time() * 1000)"):
        assert text in record.getMessage()


def test_a_record_that_was_never_sent_for_lack_of_a_leader_says_so() -> None:
    async def main() -> None:
        cluster = FakeCluster(2, default_replication=1)
        topic = cluster.create_topic("t", 2)
        async with Producer(
            bootstrap_servers=cluster.bootstrap_servers,
            environment=cluster.environment(),
            delivery_timeout_ms=4_000,
            request_timeout_ms=3_000,
        ) as producer:
            await producer.partitions_for("t")
            leader = topic.partitions[0].leader
            assert leader is not None
            cluster.kill(leader)
            await asyncio.sleep(2)
            with pytest.raises(Exception, match="never sent: no leader is known"):
                await producer.send("t", b"v", partition=0)

    run(main, debug=False)
