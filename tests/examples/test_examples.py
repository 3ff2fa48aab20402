"""Every example runs against the mock cluster and has the documented effect."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
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
    """Start separate brokers for each test, so that topics are empty at first. The web applications
    read the address from the environment."""
    with MockCluster() as brokers:
        monkeypatch.setenv("KAFKA_BOOTSTRAP", brokers.bootstrap_servers)
        yield brokers


def stored(cluster: MockCluster, topic: str) -> dict[tuple[Any, Any], tuple[Any, Any]]:
    """Read the topic with an independent client. Return a map from (partition, offset) to (key,
    value)."""
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


def test_fastapi_app_refuses_a_value_that_is_too_large(cluster: MockCluster) -> None:
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
    assert answer.status_code == 413
    body = answer.json()
    assert "max_request_size" in body.pop("error")
    assert body == {"outcome": "not_sent", "may_be_in_log": False, "may_repeat": False}


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


TOO_LARGE = json.dumps("x" * 1_048_560).encode()
"""The frameworks accept this body, but with its key and lengths the record exceeds
max_request_size."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Litestar 2.25 prepares for 3.0
@pytest.mark.parametrize("name", ["starlette", "litestar", "quart", "django"])
def test_other_apps_answer_by_the_same_table(cluster: MockCluster, name: str) -> None:
    module = importlib.import_module(f"examples.{name}_app")
    if name != "django":  # Django is configured once per process
        module = importlib.reload(module)  # reads the address of these brokers
    app = module.asgi if name == "django" else module.app
    lifespan: Any = {
        "starlette": lambda: app.router.lifespan_context(app),
        "litestar": lambda: app.lifespan(),
        "quart": lambda: app.test_app(),
        "django": contextlib.nullcontext,
    }[name]

    async def scenario() -> httpx.Response:
        body = b'{"a": %s}' % TOO_LARGE if name == "litestar" else TOO_LARGE
        async with lifespan() as state:

            async def served(scope: Any, receive: Any, send: Any) -> None:
                if isinstance(state, dict):  # a server passes a dict to Starlette
                    scope["state"] = dict(state)
                await app(scope, receive, send)

            transport = httpx.ASGITransport(served)
            client = httpx.AsyncClient(transport=transport, base_url="http://app")
            return await client.post(
                "/events/ann", content=body, headers={"content-type": "application/json"}
            )

    answer = asyncio.run(scenario())
    assert answer.status_code == 413
    assert answer.json()["may_repeat"] is False


def test_aiohttp_app_answers_by_the_same_table(cluster: MockCluster) -> None:
    async def scenario() -> tuple[int, Any]:
        async with (
            TestClient(TestServer(aiohttp_app.make_app())) as client,
            client.post("/events/bob", data=TOO_LARGE) as answer,
        ):
            return answer.status, await answer.json()

    status, body = asyncio.run(scenario())
    assert (status, body["may_be_in_log"]) == (413, False)


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
