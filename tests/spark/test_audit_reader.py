"""The plan of an audit: the ranges that it reads, and the duration of planning."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from aiokprod._client.cluster_client import ClusterClient
from aiokprod._wire.message import Message
from aiokprod.errors import Code, KafkaError
from aiokprod.spark import audit_reader
from aiokprod.spark.audit_reader import AuditOptions, AuditRange
from aiokprod.testing.fake_cluster.control import Reaction, answer
from aiokprod.testing.fake_cluster.framing import Request
from aiokprod.testing.virtual import run
from tests.spark.logs import LIST_OFFSETS, ReadableCluster, offsets_answer


async def planned(
    patch: pytest.MonkeyPatch, cluster: ReadableCluster, *topics: str
) -> tuple[list[AuditRange], float]:
    """Return the planned ranges, and the seconds that planning took."""
    client = partial(ClusterClient, environment=cluster.environment())
    patch.setattr(audit_reader, "ClusterClient", client)
    options = {
        "kafka.bootstrap.servers": cluster.bootstrap_servers,
        "topic": ",".join(topics),
        "offsetsPerTask": "2",
    }
    loop = asyncio.get_running_loop()
    started = loop.time()
    found = await audit_reader._plan(AuditOptions.parse(options))
    return found, loop.time() - started


def test_many_topics_are_planned_side_by_side_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests per partition of 20 ms each would take 32 s one after another."""
    names = [f"t{number}" for number in range(200, 0, -1)]

    async def main() -> None:
        cluster = ReadableCluster()
        for name in names:
            cluster.create_topic(name, 4)
            for number in range(4):
                log = cluster.make_log(name, number)
                for _ in range(number):
                    log.write("v")
        serve = cluster.serving[LIST_OFFSETS]

        def later(request: Request) -> Reaction:
            message = serve(request)
            assert isinstance(message, Message)
            return Reaction(process=False, answer=message, after_s=0.02)

        cluster.serving[LIST_OFFSETS] = later
        found, seconds = await planned(monkeypatch, cluster, *names)
        assert seconds < 1.0
        assert cluster.count(LIST_OFFSETS) == 6, "two for each broker"
        assert found == [
            AuditRange(name, number, first, min(number, first + 2))
            for name in names
            for number in range(4)
            for first in range(0, number, 2)
        ]
        assert cluster.violations == []

    run(main)


def test_plan_fails_with_the_error_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        cluster = ReadableCluster()
        for name in ("a", "b"):
            cluster.make_log(name).write("v")
        refusal = offsets_answer("b", 0, Code.TOPIC_AUTHORIZATION_FAILED)
        cluster.control(LIST_OFFSETS, answer(refusal))
        with pytest.raises(KafkaError, match="b-0: "):
            await planned(monkeypatch, cluster, "a", "b")
        assert cluster.violations == []

    run(main)
