"""Every example runs, against the mock cluster, and does what it says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from aiohttp.test_utils import TestClient, TestServer

from aiokprod.testing.mock_cluster import MockCluster
from examples import (
    aiohttp_app,
    arrow_table,
    batch_job,
    custom_partitioner,
    fastapi_app,
    interceptor,
    send_columns,
)
from examples.flights import FLIGHTS, read_flights
from examples.readback import Fingerprint
from tests.integration.checker import read_topic


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockCluster]:
    """Separate brokers for each test, so that topics are empty at first; the web applications find
    them by name."""
    with MockCluster() as brokers:
        monkeypatch.setenv("KAFKA_BOOTSTRAP", brokers.bootstrap_servers)
        yield brokers


def stored(cluster: MockCluster, topic: str) -> dict[tuple[Any, Any], tuple[Any, Any]]:
    """(partition, offset) → (key, value) by an independent client."""
    records = read_topic(cluster.bootstrap_servers, topic)
    return {(partition, offset): (key, value) for partition, offset, key, value in records}


def test_fastapi_app_answers_with_the_place_of_the_event(cluster: MockCluster) -> None:
    async def scenario() -> list[dict[str, int]]:
        app = fastapi_app.app
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://app") as client,
        ):
            answers = await asyncio.gather(
                *(client.post("/events/ann", json={"number": number}) for number in range(20))
            )
        assert {answer.status_code for answer in answers} == {201}
        return [answer.json() for answer in answers]

    places = asyncio.run(scenario())
    log = stored(cluster, "events")
    assert len(log) == 20
    for number, place in enumerate(places):
        key, value = log[place["partition"], place["offset"]]
        assert key == b"ann"
        assert json.loads(value) == {"number": number}


def test_fastapi_app_value_that_is_not_json_503_and_safe_to_repeat(cluster: MockCluster) -> None:
    async def scenario() -> httpx.Response:
        app = fastapi_app.app
        transport = httpx.ASGITransport(app=app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://app") as client,
        ):
            huge = {"blob": "x" * 2_000_000}
            return await client.post("/events/ann", json=huge)

    answer = asyncio.run(scenario())
    assert answer.status_code == 503
    assert answer.json()["detail"]["safe_to_repeat"] is True


def test_aiohttp_app_answers_with_the_place_of_the_click(cluster: MockCluster) -> None:
    async def scenario() -> list[dict[str, int]]:
        async with TestClient(TestServer(aiohttp_app.make_app())) as client:
            places = []
            for number in range(5):
                async with client.post("/events/bob", data=b"click %d" % number) as answer:
                    assert answer.status == 201
                    places.append(await answer.json())
            return places

    places = asyncio.run(scenario())
    log = stored(cluster, "clicks")
    found = [log[place["partition"], place["offset"]] for place in places]
    assert found == [(b"bob", b"click %d" % number) for number in range(5)]


def test_batch_job_delivers_every_line(cluster: MockCluster) -> None:
    lines = [f"line {number}\n" for number in range(20_000)]
    summary = asyncio.run(batch_job.run(cluster.bootstrap_servers, "lines", lines))
    assert (summary.delivered, summary.failed) == (len(lines), [])
    values = sorted(value for _, value in stored(cluster, "lines").values())
    assert values == sorted(line.rstrip("\n").encode() for line in lines)


def test_send_columns_returns_true_offsets(cluster: MockCluster) -> None:
    columns, mixed = asyncio.run(send_columns.run(cluster.bootstrap_servers, 5_000))
    assert columns.ok
    assert mixed.ok
    log = stored(cluster, "readings")
    assert len(log) == 5_001
    for number, place in enumerate(zip(columns.partitions, columns.offsets, strict=True)):
        assert log[place][1] == b'{"reading": %d}' % number
    assert [value for _, value in stored(cluster, "audit").values()] == [b"import finished"]


def test_arrow_table_sends_every_row_once(cluster: MockCluster) -> None:
    result = asyncio.run(arrow_table.run(cluster.bootstrap_servers, 5_000))
    assert result.ok
    log = stored(cluster, "table-readings")
    assert len(log) == 5_000
    for row, place in enumerate(zip(result.partitions, result.offsets, strict=True)):
        value = None if row % 100 == 99 else b'{"row": %d}' % row
        assert log[place] == (arrow_table.SENSORS[row % 3].encode(), value)


def test_custom_partitioner_big_customers_have_partitions_to_themselves(
    cluster: MockCluster,
) -> None:
    seen = asyncio.run(custom_partitioner.run(cluster.bootstrap_servers))
    assert seen.pop(b"acme") == {0}
    assert seen.pop(b"globex") == {1}
    assert all(len(partitions) == 1 for partitions in seen.values())
    assert {0, 1}.isdisjoint(set().union(*seen.values()))


def test_interceptor_counts_every_record(cluster: MockCluster) -> None:
    tracing = asyncio.run(interceptor.run(cluster.bootstrap_servers))
    assert dict(tracing.settled) == {"acknowledged": 10}
    assert len(stored(cluster, "traced")) == 10


def test_flights_are_all_there() -> None:
    keys, values = 0, 0
    for flight in read_flights():
        keys += flight.key is not None
        values += 1
    assert (values, keys) == (FLIGHTS, FLIGHTS - 2_512)
    assert json.loads(flight.value)["month"] == 9


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ([(b"a", b"1"), (b"a", b"2"), (None, b"x"), (None, b"y")], False),
        ([(None, b"y"), (b"a", b"1"), (None, b"x"), (b"a", b"2")], False),
        ([(b"a", b"2"), (b"a", b"1"), (None, b"x"), (None, b"y")], True),
        ([(b"a", b"1"), (b"a", b"2"), (None, b"x"), (None, b"z")], True),
        ([(b"a", b"1"), (b"b", b"2"), (None, b"x"), (None, b"y")], True),
        ([(b"a", b"1"), (b"a", b"2"), (None, b"x")], True),
    ],
    ids=["same", "other-interleaving", "order", "bytes", "key", "missing"],
)
def test_fingerprint_sees_what_differs(
    found: list[tuple[bytes | None, bytes]], wrong: bool
) -> None:
    sent, read = Fingerprint(), Fingerprint()
    for key, value in [(b"a", b"1"), (b"a", b"2"), (None, b"x"), (None, b"y")]:
        sent.add(key, value)
    for key, value in found:
        read.add(key, value)
    assert bool(sent.differences(read)) is wrong
