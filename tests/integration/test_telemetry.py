"""Metrics that are pushed to a Kafka broker with a receiver (KIP-714), as the broker passes them to
the receiver."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

from aiokprod import Producer, ProducerConfig
from aiokprod._engine.telemetry.collection import PREFIX
from aiokprod.testing import kafka_cluster
from aiokprod.testing.kafka_artifacts import KAFKA_4, class_path, find_java
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.engine.telemetry.test_collection import REQUIRED
from tests.hang import HANG_S
from tests.integration.runner import Run

SOURCE = Path(__file__).parent / "telemetry" / "TelemetryToFiles.java"
INTERVAL_S = 1


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for the payloads."""
    return tmp_path_factory.mktemp("received")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, received: Path) -> Iterator[KafkaCluster]:
    """Start a node with the receiver, and subscribe to all producer metrics."""
    java = find_java()
    if java is None:
        pytest.skip("no JDK: the receiver of the pushes is a Java class")
    jars, classes = class_path(KAFKA_4), tmp_path_factory.mktemp("classes")
    javac = Path(java).with_name("javac")
    subprocess.run([javac, "-cp", jars, "-d", classes, SOURCE], check=True, timeout=HANG_S)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kafka_cluster, "class_path", lambda version: f"{jars}{os.pathsep}{classes}")
        cluster = KafkaCluster(
            1,
            version=KAFKA_4,
            config={"metric.reporters": "TelemetryToFiles", "telemetry.folder": str(received)},
        )
        cluster.start_blocking()
    try:
        subprocess.run(
            [
                java, "-cp", jars, "org.apache.kafka.tools.ClientMetricsCommand",
                "--bootstrap-server", cluster.bootstrap_servers, "--alter", "--name", "producers",
                "--metrics", PREFIX, "--interval", str(INTERVAL_S * 1000),
            ],
            check=True, timeout=HANG_S, capture_output=True,
        )  # fmt: skip
        yield cluster
    finally:
        cluster.stop_blocking()


def payloads(folder: Path) -> list[tuple[str, bytes]]:
    return [(path.stem, path.read_bytes()) for path in sorted(folder.glob("*.bin"))]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_broker_receives_the_metrics(
    broker: KafkaCluster, received: Path, run_uvloop: Run, topic: str, compression: str
) -> None:
    for path in received.glob("*.bin"):
        path.unlink()

    async def main() -> int:
        await broker.create_topic(topic, partitions=1)
        async with Producer(
            ProducerConfig(bootstrap_servers=broker.bootstrap_servers, compression_type=compression)
        ) as producer:
            give_up = time.monotonic() + HANG_S
            sent = 0
            while len(payloads(received)) < 3:
                assert time.monotonic() < give_up, "the broker has received nothing"
                await producer.send(topic, b"value")
                sent += 1
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        return sent

    sent = run_uvloop(main())
    names = [name for name, _ in payloads(received)]
    assert names[-1].endswith("-true"), "the last push"
    assert len({name.split("-", 1)[1].rsplit("-", 1)[0] for name in names}) == 1
    found: dict[str, float] = {}
    for _, data in payloads(received):
        parsed = MetricsData.FromString(data)
        assert parsed.SerializeToString(deterministic=True) == data, "the bytes of the oracle"
        for metric in parsed.resource_metrics[0].scope_metrics[0].metrics:
            name = metric.name.removeprefix(PREFIX)
            for point in metric.sum.data_points:
                key = name + "".join(attribute.key for attribute in point.attributes)
                found[key] = found.get(key, 0) + point.as_double
            for point in metric.gauge.data_points:
                assert point.as_double >= 0
                found[name] = point.as_double
    # No request was throttled.
    assert {name for name in REQUIRED if "throttle" not in name} <= set(found)
    # Both values are sums of deltas.
    assert found["record.send.total"] == found["topic.record.send.totaltopic"] == sent
    assert 0 < found["node.request.latency.avg"] <= found["node.request.latency.max"] < 60_000


def described(folder: Path) -> dict[str, set[tuple[str, ...]]]:
    """Return the kind, attribute names and broker ids of each metric, by metric name."""
    found: dict[str, set[tuple[str, ...]]] = {}
    for _, data in payloads(folder):
        for resource in MetricsData.FromString(data).resource_metrics:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                kind = str(metric.WhichOneof("data"))
                for point in metric.sum.data_points or metric.gauge.data_points:
                    attributes = sorted(
                        f"{one.key}={one.value.string_value}" if one.key == "node_id" else one.key
                        for one in point.attributes
                    )
                    found.setdefault(metric.name, set()).add((kind, *attributes))
    return found


def test_names_kinds_and_attributes_are_those_of_java(
    broker: KafkaCluster, received: Path, run_uvloop: Run, topic: str
) -> None:
    for path in received.glob("*.bin"):
        path.unlink()
    java = find_java()
    assert java is not None
    run_uvloop(broker.create_topic(topic, partitions=1))
    subprocess.run(
        [
            java, "-cp", class_path(KAFKA_4), "org.apache.kafka.tools.ProducerPerformance",
            "--bootstrap-server", broker.bootstrap_servers, "--topic", topic,
            "--num-records", "200", "--throughput", "20", "--record-size", "100",
        ],
        check=True, timeout=HANG_S, capture_output=True,
    )  # fmt: skip
    of_java = described(received)
    for path in received.glob("*.bin"):
        path.unlink()

    async def main() -> None:
        async with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for _ in range(30):
                await producer.send(topic, b"value")
                await asyncio.sleep(0.1)

    run_uvloop(main())
    ours = described(received)
    assert len(ours) > 20
    unlike = {name for name, kinds in ours.items() if not kinds <= of_java.get(name, set())}
    assert unlike == set(), {name: of_java.get(name) for name in unlike}
