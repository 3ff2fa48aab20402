"""Checks 7 and 16 without a JVM: `write` with Arrow batches of every shape, and a real broker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

from aiokprod._wire.compression import CODEC_NAMES
from aiokprod.spark.commit_messages import TaskReport
from aiokprod.spark.failures import SinkError
from aiokprod.spark.source import AiokprodDataSource
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import Read, read_back

MIB = 1024 * 1024


class Sink:
    """A batch job with one task."""

    def __init__(self, broker: KafkaCluster) -> None:
        self.servers = broker.bootstrap_servers
        self.topic = f"b-{uuid.uuid4().hex[:10]}"
        self.broker = broker

    def create(self, partitions: int = 2, **configs: str) -> None:
        asyncio.run(self.broker.create_topic(self.topic, partitions, configs=configs))

    def write(self, batches: list[pa.RecordBatch], **options: str) -> TaskReport:
        """Write all batches in one task. The schema is that of the first batch."""
        context = TaskContext.__new__(TaskContext)
        context._partitionId = context._attemptNumber = 0
        context._localProperties = {}
        TaskContext._taskContext = context
        given = {"kafka.bootstrap.servers": self.servers, "topic": self.topic} | options
        schema = t.StructType(
            [t.StructField(name, TYPES[name]) for name in batches[0].schema.names]
        )
        found = AiokprodDataSource(given).writer(schema, overwrite=False).write(iter(batches))
        assert isinstance(found, TaskReport)
        return found

    def read(self) -> list[Read]:
        return sorted(read_back(self.servers, self.topic), key=lambda one: one.offset)


TYPES: dict[str, t.DataType] = {
    "key": t.StringType(),
    "value": t.BinaryType(),
    "partition": t.IntegerType(),
    "headers": t.ArrayType(
        t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    ),
}


@pytest.fixture
def sink(broker: KafkaCluster) -> Sink:
    return Sink(broker)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def test_check_07_sliced_and_large_arrays(sink: Sink) -> None:
    sink.create(1)
    values = [None if n % 7 == 3 else b"v%d" % n for n in range(100)]
    keys = [None if n % 5 == 1 else f"k{n}" for n in range(100)]
    headers = [[{"key": f"h{n}", "value": None}] * (n % 3) if n % 4 else None for n in range(100)]
    batches = [
        batch(key=pa.array(keys, text), value=pa.array(values, kind),
              headers=pa.array(headers, HEADERS)).slice(10, 20)
        for text, kind in ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary()))
    ]  # fmt: skip
    batches.append(batches[0].slice(5, 5))
    report = sink.write(batches)
    assert report.rows == 45
    assert report.ranges == ((sink.topic, 0, 0, 44, 45),)
    order = [*range(10, 30), *range(10, 30), *range(15, 20)]
    found = sink.read()
    assert [one.value for one in found] == [values[n] for n in order]
    expected_keys = [None if keys[n] is None else str(keys[n]).encode() for n in order]
    assert [one.key for one in found] == expected_keys
    assert [one.headers for one in found] == [
        ((f"h{n}", None),) * (n % 3) if n % 4 else () for n in order
    ]


@pytest.mark.parametrize("batches", [[], [0], [0, 3, 0]])
def test_check_07_empty_batches_and_partitions(sink: Sink, batches: list[int]) -> None:
    sink.create(1)
    tables = [
        batch(key=pa.array(["k"] * size, pa.string()), value=pa.array([b"v"] * size, pa.binary()))
        for size in batches
    ] or [batch(key=pa.array([], pa.string()), value=pa.array([], pa.binary()))]
    report = sink.write(tables)
    assert report.rows == sum(batches)
    assert len(sink.read()) == sum(batches)


def test_check_07_one_row_of_64_mib(sink: Sink) -> None:
    sink.create(1, **{"max.message.bytes": str(80 * MIB)})
    value = bytes(64 * MIB)
    sink.write(
        [batch(value=pa.array([value], pa.binary()))],
        **{"kafka.max.request.size": str(70 * MIB), "maxBufferedBytes": str(160 * MIB)},
    )
    (found,) = sink.read()
    assert found.value == value


@pytest.mark.parametrize("codec", CODEC_NAMES[1:])
def test_check_07_compressed_batches_read_back_by_the_audit(sink: Sink, codec: str) -> None:
    from aiokprod.spark.audit_reader import AuditReader
    from aiokprod.spark.options import SealedOptions

    sink.create(2)
    keys = [str(n) for n in range(5000)]
    values = [b"%d" % n * 20 for n in range(5000)]
    sink.write(
        [batch(key=pa.array(keys), value=pa.array(values, pa.binary()))],
        **{"kafka.compression.type": codec},
    )
    options = {
        "kafka.bootstrap.servers": sink.servers,
        "topic": sink.topic,
        "offsetsPerTask": "700",
    }
    reader = AuditReader(SealedOptions(options))
    places = reader.partitions()
    assert len(places) >= 7
    table = pa.Table.from_batches([one for place in places for one in reader.read(place)])
    assert table.num_rows == 5000
    rows = dict(
        zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True)
    )
    assert rows == {key.encode(): value for key, value in zip(keys, values, strict=True)}
    assert set(table.column("producerEpoch").to_pylist()) == {0}
    for partition in (0, 1):
        own = table.filter(pa.compute.equal(table.column("partition"), partition))
        assert own.column("offset").to_pylist() == list(range(own.num_rows))
        assert own.column("sequence").to_pylist() == list(range(own.num_rows))


def test_check_16_refused_rows_are_counted_and_the_producer_is_replaced(sink: Sink) -> None:
    sink.create(1, **{"max.message.bytes": "2000"})
    good = batch(value=pa.array([b"v"] * 5, pa.binary()))
    assert sink.write([good]).rows == 5
    bad = batch(value=pa.array([b"x" * 3000] * 3, pa.binary()))
    with pytest.raises(SinkError, match=r"MESSAGE_TOO_LARGE \(not retriable\)") as caught:
        sink.write([bad])
    assert "0 acknowledged, 0 unknown, 3 unsent" in str(caught.value)
    large = batch(value=pa.array([b"v", b"x" * 2 * MIB, b"v"], pa.binary()))
    with pytest.raises(SinkError, match=r"RecordTooLarge \(not retriable\)"):
        sink.write([large])
    assert sink.write([good]).ranges == ((sink.topic, 0, 5, 9, 5),)


def test_check_16_no_broker_fails_in_time_with_counts(sink: Sink) -> None:
    rows = batch(value=pa.array([b"v"] * 5, pa.binary()))
    settings = {"kafka.bootstrap.servers": "127.0.0.1:9", "preflight": "false",
                "kafka.max.block.ms": "1500"}  # fmt: skip
    with pytest.raises(SinkError, match=r"MetadataTimeout \(retriable\)") as caught:
        sink.write([rows], **settings)
    assert "0 acknowledged, 0 unknown, 5 unsent" in str(caught.value)


def test_iterator_that_raises_ends_the_attempt(sink: Sink) -> None:
    sink.create(1)

    def broken() -> Iterator[pa.RecordBatch]:
        yield batch(value=pa.array([b"v"] * 5, pa.binary()))
        raise RuntimeError("the source broke")

    context = TaskContext.__new__(TaskContext)
    context._partitionId = context._attemptNumber = 0
    context._localProperties = {}
    TaskContext._taskContext = context
    options = {"kafka.bootstrap.servers": sink.servers, "topic": sink.topic}
    schema = t.StructType([t.StructField("value", t.BinaryType())])
    with pytest.raises(RuntimeError, match="the source broke"):
        AiokprodDataSource(options).writer(schema, overwrite=False).write(broken())
    assert sink.write([batch(value=pa.array([b"w"], pa.binary()))]).rows == 1
