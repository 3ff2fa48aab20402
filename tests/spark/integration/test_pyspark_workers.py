"""The sink with pyspark's own code for planning, tasks and commit, driven with the JVM's bytes but
without a JVM. Differences between Spark versions appear within a second."""

from __future__ import annotations

import inspect
import io
import struct
import uuid
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.serializers import SpecialLengths, read_int, write_int, write_with_length
from pyspark.sql import types as t
from pyspark.sql.datasource import DataSource
from pyspark.sql.worker import write_into_data_source
from pyspark.worker_util import pickleSer

import pyspark_aiokprod
import pyspark_aiokprod_audit
from aiokprod.spark import AiokprodDataSource
from aiokprod.spark.context import BATCH_ID, QUERY_ID
from aiokprod.testing.kafka_cluster import KafkaCluster
from tests.spark.integration.spark_helpers import assert_numbers, read_back

SCHEMA = t.StructType(
    [t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())]
)
ANSWER = t.StructType([t.StructField("message", t.BinaryType())])


class Bytes(io.BytesIO):
    """The bytes that the JVM writes to a worker."""

    def text(self, value: str) -> Bytes:
        write_with_length(value.encode(), self)
        return self

    def number(self, value: int) -> Bytes:
        write_int(value, self)
        return self

    def long(self, value: int) -> Bytes:
        self.write(struct.pack("!q", value))
        return self

    def flag(self, value: bool) -> Bytes:
        self.write(struct.pack("!?", value))
        return self

    def pickled(self, value: Any) -> Bytes:
        pickleSer._write_with_length(value, self)
        return self


def run_worker(name: str, sent: Bytes, monkeypatch: pytest.MonkeyPatch) -> io.BytesIO:
    """Run a worker module of pyspark and return its response."""
    module = import_module(f"pyspark.sql.worker.{name}")
    sent.number(SpecialLengths.END_OF_STREAM).seek(0)
    answer = io.BytesIO()
    if hasattr(module, "_main"):  # 4.2 and later: `main` sets the worker up and calls this
        module._main(sent, answer)
    else:
        for step in ("check_python_version", "setup_memory_limits", "setup_spark_files",
                     "setup_broadcasts", "send_accumulator_updates"):  # fmt: skip
            monkeypatch.setattr(module, step, lambda *arguments: None, raising=False)
        try:
            module.main(sent, answer)
        except SystemExit:
            raise AssertionError(answer.getvalue().decode(errors="replace")) from None
    answer.seek(0)
    return answer


def plan(
    source: type[DataSource], options: dict[str, str], *, streaming: bool,
    monkeypatch: pytest.MonkeyPatch, overwrite: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Plan a write. Return the task function, and the writer after pickling and unpickling."""
    sent = Bytes().pickled(source).text(source.name()).text(SCHEMA.json()).text(ANSWER.json())
    sent.number(len(options))
    for key, value in options.items():
        sent.text(key).text(value)
    sent.flag(overwrite).flag(streaming)
    if "binary_as_bytes" in inspect.getsource(write_into_data_source):  # not in 4.0
        sent.flag(True)
    answer = run_worker("write_into_data_source", sent, monkeypatch)
    function, _ = pickleSer._read_with_length(answer)
    return function, pickleSer._read_with_length(answer)


def run_task(function: Any, partition: int, rows: range, **properties: str) -> Any:
    """Run a task and return its commit message."""
    context = TaskContext.__new__(TaskContext)
    context._partitionId, context._attemptNumber = partition, 0
    context._localProperties = properties
    TaskContext._taskContext = context

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), 50):
            part = rows[start : start + 50]
            yield pa.RecordBatch.from_arrays(
                [pa.array([str(n) for n in part]), pa.array([b"%d" % n for n in part])],
                names=["key", "value"],
            )

    (answer,) = function(batches())
    return pickleSer.loads(answer.column(0)[0].as_py())


SOURCES = pytest.mark.parametrize("source", [AiokprodDataSource, pyspark_aiokprod.DefaultSource])


@SOURCES
def test_check_01_batch_through_pysparks_workers(
    broker: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch, source: type[DataSource]
) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    function, writer = plan(source, options, streaming=False, monkeypatch=monkeypatch)
    messages = [run_task(function, n, range(n * 200, n * 200 + 200)) for n in range(2)]
    sent = Bytes().pickled(writer).number(len(messages) + 1)
    for message in [*messages, None]:
        sent.pickled(message)
    answer = run_worker("commit_data_source_write", sent.flag(False), monkeypatch)
    assert read_int(answer) == 0
    assert_numbers(read_back(broker.bootstrap_servers, topic), 400)


@SOURCES
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_check_01_stream_through_pysparks_workers(
    broker: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch, source: type[DataSource],
    delivery: str,
) -> None:  # fmt: skip
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic,
               "delivery": delivery, "checkpointLocation": "/c", "queryName": "q"}  # fmt: skip
    if delivery == "exactly_once":
        options["transactionalIdPrefix"] = "w"
    query = uuid.uuid4().hex
    for batch in (0, 1, 1, 2):  # batch 1 is replayed
        function, _ = plan(source, options, streaming=True, monkeypatch=monkeypatch)
        where = {BATCH_ID: str(batch), QUERY_ID: query}
        first = batch * 200
        messages = [
            run_task(function, n, range(first + n * 100, first + n * 100 + 100), **where)
            for n in range(2)
        ]
        sent = Bytes().pickled(source(dict(options))).text(SCHEMA.json()).flag(False)
        sent.number(len(messages))
        for message in messages:
            sent.pickled(message)
        sent.long(batch).flag(False)
        assert read_int(run_worker("python_streaming_sink_runner", sent, monkeypatch)) == 0
    records = read_back(broker.bootstrap_servers, topic)
    assert_numbers(records, 600, exactly=delivery == "exactly_once")


@SOURCES
def test_check_23_abort_through_pysparks_workers(
    broker: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch, source: type[DataSource]
) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic,
               "delivery": "transactional", "transactionalIdPrefix": "w"}  # fmt: skip
    function, writer = plan(source, options, streaming=False, monkeypatch=monkeypatch)
    message = run_task(function, 0, range(100))
    for abort in (True, True):
        sent = Bytes().pickled(writer).number(2).pickled(message).pickled(None).flag(abort)
        assert read_int(run_worker("commit_data_source_write", sent, monkeypatch)) == 0
    function, writer = plan(source, options, streaming=False, monkeypatch=monkeypatch)
    message = run_task(function, 0, range(100))
    sent = Bytes().pickled(writer).number(1).pickled(message).flag(False)
    assert read_int(run_worker("commit_data_source_write", sent, monkeypatch)) == 0
    assert_numbers(read_back(broker.bootstrap_servers, topic), 100)


def test_check_01_complete_mode_is_taken_and_overwrite_refused(
    broker: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": topic}
    plan(AiokprodDataSource, options, streaming=True, overwrite=True, monkeypatch=monkeypatch)
    with pytest.raises((ValueError, AssertionError), match=r"mode\('overwrite'\) is refused"):
        plan(AiokprodDataSource, options, streaming=False, overwrite=True, monkeypatch=monkeypatch)


def test_check_02_lookup_finds_both_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = run_worker("lookup_data_sources", Bytes(), monkeypatch)
    found = {}
    for _ in range(read_int(answer)):
        name = answer.read(read_int(answer)).decode()
        found[name] = pickleSer._read_with_length(answer)
    assert found["aiokprod"] is pyspark_aiokprod.DefaultSource
    assert found["aiokprod-audit"] is pyspark_aiokprod_audit.DefaultSource
