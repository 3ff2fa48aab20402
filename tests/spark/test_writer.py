"""The writer as Spark calls it: `write` in a task, `commit` and `abort` on the driver.

The tests use real threads and the fake cluster on the sink's event loop, without Spark. They store
a task's context where pyspark keeps it.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import pickle
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t

from aiokprod import ConfigError
from aiokprod._client.cluster_client import ClusterClient
from aiokprod.errors import Code
from aiokprod.producer import Producer
from aiokprod.spark import (
    audit_reader,
    driver_commit,
    orphans,
    preflight,
    tasks,
    transactional_task,
)
from aiokprod.spark import writer as spark_writer
from aiokprod.spark.audit_reader import AuditRange, AuditReader
from aiokprod.spark.commit_messages import Prepared, TaskReport
from aiokprod.spark.context import BATCH_ID, QUERY_ID, RUN_ID, SPECULATION
from aiokprod.spark.driver_commit import CommitFailed
from aiokprod.spark.failures import SinkError
from aiokprod.spark.job_report import FILE_NAME
from aiokprod.spark.jvm_socket_watch import JvmSocketWatch, TaskCancelled
from aiokprod.spark.preflight import PreflightError
from aiokprod.spark.rows import AUDIT_HEADER, RowError
from aiokprod.spark.source import AiokprodAuditSource, AiokprodDataSource
from aiokprod.spark.worker_loop import LoopThread, loop_thread
from aiokprod.spark.writer import AiokprodWriter
from aiokprod.testing.fake_cluster.control import refuse
from tests.hang import HANG_S
from tests.spark.cluster import END_TXN, INIT_PRODUCER_ID, LIST_TRANSACTIONS
from tests.spark.logs import ReadableCluster

SCHEMA = t.StructType(
    [t.StructField("value", t.BinaryType()), t.StructField("topic", t.StringType())]
)
STREAM = {"delivery": "exactly_once", "transactionalIdPrefix": "p"}
JOB = {"delivery": "transactional", "transactionalIdPrefix": "p"}
PLAIN = {"delivery": "at_least_once"}


class World:
    """A cluster on the loop thread of the sink, and Spark's part of a query."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.thread = loop_thread("asyncio")
        self.cluster = self.on_loop(ReadableCluster)
        self.on_loop(lambda: self.cluster.create_topic("t", 1))
        environment = self.cluster.environment()
        for module in (driver_commit, transactional_task, tasks):
            patch.setattr(module, "Producer", partial(Producer, environment=environment))
        for module in (driver_commit, transactional_task, preflight, orphans, audit_reader):
            patch.setattr(module, "ClusterClient", partial(ClusterClient, environment=environment))
        # Replace the function, because the audit has no option for the kind of loop.
        patch.setattr(audit_reader, "loop_thread", lambda: self.thread)
        patch.setattr(TaskContext, "_taskContext", None)
        patch.setattr(driver_commit, "_swept", {})
        patch.setattr(preflight, "_passed", {})

    def on_loop(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return self.thread.run(call(), HANG_S)

    def options(self, **options: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": self.cluster.bootstrap_servers,
            "loop": "asyncio",
            "preflight": "false",
        } | options

    def source(self, **options: str) -> AiokprodDataSource:
        return AiokprodDataSource(self.options(**options))

    def writer(self, **options: str) -> AiokprodWriter:
        """Create a writer from the source, and pickle and unpickle it as on the way to an
        executor."""
        source = self.source(**options)
        if options.get("delivery") == "exactly_once" and "batchId" not in options:
            made = source.streamWriter(SCHEMA, overwrite=False)
        else:
            made = source.writer(SCHEMA, overwrite=False)
        found = pickle.loads(pickle.dumps(made))
        assert isinstance(found, AiokprodWriter)
        return found

    def in_task(
        self, partition: int = 0, attempt: int = 0, *, batch: int | None = None, **more: str
    ) -> None:
        """Make this process run a task from now on."""
        self._patch.setattr(TaskContext, "_taskContext", None)
        context = TaskContext.__new__(TaskContext)
        context._partitionId, context._attemptNumber = partition, attempt
        properties = {} if batch is None else {BATCH_ID: str(batch), QUERY_ID: "q", RUN_ID: "run"}
        context._localProperties = properties | more
        self._patch.setattr(TaskContext, "_taskContext", context)

    def write(
        self, writer: AiokprodWriter, *values: str, partition: int = 0, batch: int | None = None
    ) -> Any:
        """Run one task attempt with one row per batch."""
        self.in_task(partition, batch=batch)
        return writer.write(batches(values))

    def values(self) -> list[str]:
        return sorted(value.decode() for value in self.on_loop(lambda: self.cluster.values("t", 0)))

    def committed(self) -> list[str]:
        found = self.on_loop(lambda: self.cluster.committed_values("t", 0))
        return sorted(value.decode() for value in found)

    def open_ids(self) -> set[str]:
        return set(self.on_loop(self.cluster.open_ids))


def batches(values: Iterable[str], topic: str | None = "t") -> Iterator[pa.RecordBatch]:
    for value in values:
        yield pa.RecordBatch.from_pydict(
            {"value": pa.array([value.encode()], pa.binary()), "topic": pa.array([topic])}
        )


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    found = World(monkeypatch)
    yield found
    found.thread.run(found.thread.drop(lambda key: True), HANG_S)
    assert found.on_loop(lambda: found.cluster.violations) == []


# -- rows and when they become visible -------------------------------------------------------------


def test_plain_write_is_visible_with_its_report(harness: World, tmp_path: Path) -> None:
    writer = harness.writer(**PLAIN, reportPath=str(tmp_path / "reports"))
    found = harness.write(writer, "a", "b", "c", partition=4)
    assert type(found) is TaskReport
    assert (found.partition, found.attempt, found.rows) == (4, 0, 3)
    assert found.ranges == (("t", 0, 0, 2, 3),)
    assert (found.batch_id, found.query_id) == (None, None)
    assert found.size > 0
    assert 0.0 < found.seconds < HANG_S
    assert harness.values() == ["a", "b", "c"]
    writer.commit([found, None])
    writer.commit([found], 8)
    harness.writer(**PLAIN, reportPath=str(tmp_path / "reports"), batchId="5", queryId="q").commit(
        [found]
    )
    lines = (tmp_path / "reports" / FILE_NAME).read_text().splitlines()
    told = [json.loads(line) for line in lines]
    assert [(one["rows"], one["batch_id"]) for one in told] == [(3, None), (3, 8), (3, 5)]
    assert [len(one["tasks"]) for one in told] == [1, 1, 1]
    assert harness.on_loop(lambda: harness.cluster.count(END_TXN)) == 0


@pytest.mark.parametrize("given", [JOB, STREAM], ids=["transactional", "exactly_once"])
def test_rows_of_a_transaction_are_visible_once_it_is_committed(
    harness: World, given: dict[str, str]
) -> None:
    batch = 7 if given is STREAM else None
    writer = harness.writer(**given)
    found = [
        harness.write(writer, *values, partition=number, batch=batch)
        for number, values in enumerate(["ab", "c"])
    ]
    assert [type(one) for one in found] == [Prepared, Prepared]
    assert [one.batch_id for one in found] == [batch, batch]
    assert len(harness.open_ids()) == 2
    assert harness.committed() == []
    writer.commit(pickle.loads(pickle.dumps(found)), batch)
    assert harness.committed() == ["a", "b", "c"]
    assert harness.open_ids() == set()


def test_transactions_of_a_batch_job_share_its_name(harness: World) -> None:
    one, other = harness.writer(**JOB), harness.writer(**JOB)
    first, second = (harness.write(one, "a", partition=n).transactional_id for n in range(2))
    third = harness.write(other, "b").transactional_id
    job = first.split(".")[1]
    assert (first, second) == (f"p.{job}.0", f"p.{job}.1")
    assert third != first
    assert third.startswith("p.")
    assert len(job) == 12


def test_foreach_batch_tells_its_batch_by_options(harness: World) -> None:
    writer = harness.writer(**STREAM, batchId="6", queryId="named")
    found = harness.write(writer, "a")
    assert (found.batch_id, found.query_id) == (6, "named")
    assert found.transactional_id == "p.named.0"
    writer.commit([found])
    assert harness.committed() == ["a"]
    again = harness.write(harness.writer(**STREAM, batchId="6", queryId="named"), "a")
    assert again.skipped, "the commit recorded batch 6"


def test_replayed_batch_is_skipped_and_committed_again(harness: World) -> None:
    writer = harness.writer(**STREAM)
    writer.commit([harness.write(writer, "a", batch=0)], 0)
    again = harness.write(writer, "a", batch=0)
    assert again.skipped
    assert (again.producer_id, again.epoch) == (-1, -1), "it has no transaction"
    writer.commit([again], 0)
    writer.abort([again], 0)
    assert harness.committed() == ["a"]


def test_audit_headers_name_run_batch_task_and_row(harness: World) -> None:
    harness.write(harness.writer(**STREAM, auditHeaders="true"), "a", "b", partition=3, batch=7)
    harness.write(harness.writer(**PLAIN, auditHeaders="true"), "c", partition=1)
    records = harness.on_loop(lambda: harness.cluster.log("t", 0))
    found = [dict(record.headers)[AUDIT_HEADER].decode() for record in records]
    assert found[:2] == ["run/7/3/0", "run/7/3/1"]
    job, *rest = found[2].split("/")
    assert len(job) == 12
    assert rest == ["0", "1", "0"]


def test_commit_without_the_message_of_a_task_is_refused(harness: World) -> None:
    """Spark considers the task done, but the task left no transaction."""
    writer = harness.writer(**JOB)
    found = harness.write(writer, "a")
    with pytest.raises(RuntimeError, match="1 of 2 tasks left no message: the batch cannot be"):
        writer.commit([found, None])
    assert harness.committed() == []
    assert len(harness.open_ids()) == 1
    writer.abort([found, None])
    assert harness.open_ids() == set()


def test_abort_ends_what_is_open(harness: World) -> None:
    writer = harness.writer(**STREAM)
    found = [harness.write(writer, "a", partition=number, batch=7) for number in range(2)]
    assert len(harness.open_ids()) == 2
    writer.abort([None, *found], 7)
    assert harness.open_ids() == set()
    assert harness.committed() == []
    writer.abort(found, None)  # no transaction is left to abort
    before = harness.on_loop(lambda: harness.cluster.count(END_TXN))
    harness.writer(**PLAIN).abort([harness.write(harness.writer(**PLAIN), "b")])
    assert harness.on_loop(lambda: harness.cluster.count(END_TXN)) == before


def test_abort_never_raises(harness: World, caplog: pytest.LogCaptureFixture) -> None:
    """Spark would show the error of the abort instead of the reason why the job failed."""
    writer = harness.writer(**JOB)
    found = harness.write(writer, "a")
    code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    harness.on_loop(lambda: harness.cluster.control(END_TXN, refuse(code)))
    with caplog.at_level("WARNING", "aiokprod.spark"):
        writer.abort([found])
    (record,) = [one for one in caplog.records if "aborting" in one.getMessage()]
    assert "aborting the transactions failed: CommitFailed: " in record.getMessage()
    assert "TRANSACTIONAL_ID_AUTHORIZATION_FAILED" in record.getMessage()


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (Code.PRODUCER_FENCED, "a later attempt, or another query"),
        (Code.INVALID_PRODUCER_EPOCH, "kafka.transaction.timeout.ms"),
        (Code.INVALID_TXN_STATE, "kafka.transaction.timeout.ms"),
        (Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None),
        (Code.INVALID_PRODUCER_ID_MAPPING, None),
    ],
)
def test_refused_commit_tells_whether_the_transaction_is_gone(
    harness: World, code: Code, why: str | None
) -> None:
    writer = harness.writer(**JOB)
    found = harness.write(writer, "a")
    harness.on_loop(lambda: harness.cluster.control(END_TXN, refuse(code)))
    with pytest.raises(CommitFailed, match=f"was not committed: {code.name}: ") as caught:
        writer.commit([found])
    reason = str(caught.value).split(f"{code.name}: ")[1]
    if why is None:
        assert "kafka.transaction.timeout.ms" not in reason
        assert "later attempt" not in reason
    else:
        assert why in reason


def test_orphan_that_cannot_be_fenced_is_told_and_harms_nothing(
    harness: World, caplog: pytest.LogCaptureFixture
) -> None:
    writer = harness.writer(**STREAM)
    found = [harness.write(writer, "ab"[n], partition=n, batch=0) for n in range(2)]
    # This attempt has one task. The transaction of the other task stays open.
    writer.commit([found[0]], 0)
    assert harness.committed() == ["a"]
    assert harness.open_ids() == set(), "the sweep ends it"
    driver_commit._swept.clear()
    next_one = harness.write(writer, "c", batch=1)
    harness.write(writer, "x", partition=5, batch=1)
    code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def only_orphan(request: Any) -> Any:
        return refuse(code) if request.body.transactional_id == "p.q.5" else None

    harness.on_loop(lambda: harness.cluster.control(INIT_PRODUCER_ID, only_orphan))
    with caplog.at_level("WARNING", "aiokprod.spark"):
        writer.commit([next_one], 1)
    told = [one.getMessage() for one in caplog.records if "orphaned" in one.getMessage()]
    assert len(told) == 1
    assert "orphaned transactions of p.q are left to their timeout: " in told[0]
    assert "transactional id p.q.5: " in told[0]
    assert code.name in told[0]
    assert harness.committed() == ["a", "c"]
    assert harness.on_loop(lambda: harness.cluster.count(LIST_TRANSACTIONS)) > 0


# -- rejected rows and tables ----------------------------------------------------------------------


@pytest.mark.parametrize("given", [JOB, STREAM], ids=["transactional", "exactly_once"])
@pytest.mark.parametrize("speculation", ["true", "True"])
def test_speculation_excludes_transactions(
    harness: World, given: dict[str, str], speculation: str
) -> None:
    more: dict[str, Any] = {SPECULATION: speculation}
    writer = harness.writer(**given)
    harness.in_task(batch=7 if given is STREAM else None, **more)
    with pytest.raises(ConfigError, match=r"excludes spark.speculation=true"):
        writer.write(batches("a"))
    harness.in_task(**more)
    harness.writer(**PLAIN).write(batches("b"))
    assert harness.values() == ["b"]


def test_executor_of_another_version_is_refused(harness: World) -> None:
    writer = harness.writer(**PLAIN)
    writer._version = "0.0.9"
    with pytest.raises(ConfigError, match=r"0\.0\.9 on the driver"):
        harness.write(writer, "a")


def test_write_outside_of_a_task_is_refused(harness: World) -> None:
    with pytest.raises(ConfigError, match="within Spark tasks only"):
        harness.writer(**PLAIN).write(batches("a"))


def test_stream_whose_batch_spark_does_not_tell_is_refused(harness: World) -> None:
    with pytest.raises(SinkError, match="Spark did not set the batch id and query id"):
        harness.write(harness.writer(**STREAM), "a")


def test_writer_shows_its_options_without_secrets(harness: World) -> None:
    shown = repr(harness.writer(**PLAIN, **{"kafka.client.id": "c", "kafka.linger.ms": "7"}))
    assert shown.startswith("<AiokprodWriter ")
    assert "'kafka.client.id': 'c'" in shown


@pytest.mark.parametrize("given", [PLAIN, JOB], ids=["at_least_once", "transactional"])
def test_row_that_is_refused_is_counted_over_all_batches_of_the_task(
    harness: World, given: dict[str, str]
) -> None:
    harness.in_task()
    rows = [*batches(["a", "b", "c"]), *batches(["d"], None)]
    with pytest.raises(RowError, match=r"^row 3 of this task: the topic is null"):
        harness.writer(**given).write(iter(rows))
    assert harness.open_ids() == set()
    assert harness.committed() == [] or given is PLAIN


@pytest.mark.parametrize("given", [PLAIN, JOB], ids=["at_least_once", "transactional"])
def test_failed_row_ends_the_task_although_more_rows_come(
    harness: World, given: dict[str, str]
) -> None:
    """Spark's iterator is not read further."""
    harness.on_loop(lambda: harness.cluster.denied_topics.add("u"))
    harness.in_task()
    taken: list[int] = []

    def endless() -> Iterator[pa.RecordBatch]:
        yield from batches(["a"], "u")
        for number in range(10**9):
            taken.append(number)
            yield from batches([str(number)], "u")

    with pytest.raises(SinkError, match="TOPIC_AUTHORIZATION_FAILED"):
        harness.writer(**given).write(endless())
    assert harness.values() == []
    assert harness.open_ids() == set()


@pytest.mark.parametrize("given", [PLAIN, JOB], ids=["at_least_once", "transactional"])
def test_iterator_that_fails_ends_the_sending_first(
    harness: World, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending ends before the error leaves the task, because Spark may start the next attempt at
    once."""
    monkeypatch.setattr(tasks, "_GIVE_UP", HANG_S)
    harness.in_task()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches("a")
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        harness.writer(**given).write(broken())
    assert harness.on_loop(lambda: len(harness.thread._running)) == 1, "this question alone"
    assert harness.open_ids() == set()
    assert "producer" not in {key[0] for key in harness.thread.kept if isinstance(key, tuple)}


def test_cancelled_sending_is_waited_for(harness: World, monkeypatch: pytest.MonkeyPatch) -> None:
    closing = threading.Event()

    async def slow_to_end(*arguments: Any) -> Any:
        try:
            await asyncio.sleep(HANG_S)
        finally:
            await asyncio.sleep(0.2)
            closing.set()

    monkeypatch.setattr(tasks, "_GIVE_UP", HANG_S)
    monkeypatch.setattr(tasks, "_run_plain", slow_to_end)
    harness.in_task()

    def broken() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        harness.writer(**PLAIN).write(broken())
    assert closing.is_set()


@pytest.mark.parametrize("given", [PLAIN, JOB], ids=["at_least_once", "transactional"])
def test_task_that_spark_gave_up_tells_no_success(harness: World, given: dict[str, str]) -> None:
    """The iterator of the task ends as if the rows were complete."""
    ours, theirs = socket.socketpair()
    harness.in_task()

    def cut_short() -> Iterator[pa.RecordBatch]:
        yield from batches("a")
        theirs.close()

    def main(infile: Any, outfile: Any) -> Any:
        return harness.writer(**given).write(cut_short())

    with pytest.raises(TaskCancelled, match="killed or cancelled this task"):
        main(None, ours)
    ours.close()
    assert harness.open_ids() == set()
    assert harness.committed() == [] or given is PLAIN


def test_waiting_for_the_acknowledgments_watches_the_lifeline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "LOOK_EVERY", 0.01)
    ours, theirs = socket.socketpair()
    lifeline = JvmSocketWatch(ours.fileno())
    pending: concurrent.futures.Future[int] = concurrent.futures.Future()
    timer = threading.Timer(0.05, pending.set_result, (5,))
    timer.start()
    assert tasks._wait(pending, lifeline) == 5
    timer.join()
    failed: concurrent.futures.Future[int] = concurrent.futures.Future()
    failed.set_exception(TimeoutError("of the work itself"))
    with pytest.raises(TimeoutError, match="of the work itself"):
        tasks._wait(failed, lifeline)
    theirs.close()
    with pytest.raises(TaskCancelled):
        tasks._wait(concurrent.futures.Future(), lifeline)
    ours.close()


# -- kept producers --------------------------------------------------------------------------------


@pytest.mark.parametrize(("reuse", "producers"), [("true", 1), ("false", 2)])
def test_producer_is_kept_between_tasks_on_demand(
    harness: World, reuse: str, producers: int
) -> None:
    writer = harness.writer(**PLAIN, reuseProducer=reuse)
    for value in "ab":
        harness.write(writer, value)
    ids = {one.producer_id for one in harness.on_loop(lambda: harness.cluster.log("t", 0))}
    assert len(ids) == producers
    kept = [key for key in harness.thread.kept if isinstance(key, tuple) and key[0] == "producer"]
    assert len(kept) == (1 if reuse == "true" else 0)


def test_producers_of_other_settings_are_not_shared(harness: World) -> None:
    for more in ({}, {"kafka.linger.ms": "7"}, {"maxBufferedBytes": "2000000"}):
        harness.write(harness.writer(**PLAIN, reuseProducer="true", **more), "a")
    ids = {one.producer_id for one in harness.on_loop(lambda: harness.cluster.log("t", 0))}
    assert len(ids) == 3


def test_producer_that_cannot_be_made_is_the_start_of_the_task(
    harness: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(config: Any) -> Any:
        raise ConfigError("no such file on this executor")

    monkeypatch.setattr(tasks, "Producer", broken)
    with pytest.raises(SinkError, match=r"start of the task: .*no such file") as caught:
        harness.write(harness.writer(**PLAIN), "a")
    assert isinstance(caught.value.__cause__, ConfigError)


# -- the sources -----------------------------------------------------------------------------------


IDS = {"batchId": "3", "queryId": "q"}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (PLAIN, None),
        (PLAIN | IDS, None),
        (PLAIN | {"batchId": "3"}, "batchId and queryId belong together"),
        (PLAIN | {"queryId": "q"}, "batchId and queryId belong together"),
        (JOB, None),
        (JOB | IDS, None),
        (STREAM | IDS, None),
        (STREAM, "delivery=exactly_once is for streams and foreach_batch"),
        (STREAM | {"batchId": "3"}, "delivery=exactly_once is for streams and foreach_batch"),
        (STREAM | {"queryId": "q"}, "delivery=exactly_once is for streams and foreach_batch"),
    ],
)
def test_delivery_that_fits_no_batch_job_is_refused(
    harness: World, given: dict[str, str], text: str | None
) -> None:
    source = harness.source(**given)
    if text is None:
        assert source.writer(SCHEMA, overwrite=False)._job is not None
    else:
        with pytest.raises(ConfigError, match=text):
            source.writer(SCHEMA, overwrite=False)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (PLAIN, None),
        (STREAM, None),
        (JOB, "delivery=transactional is for batch jobs: use delivery=exactly_once"),
        (STREAM | IDS, "options batchId and queryId are for foreach_batch"),
        (PLAIN | {"batchId": "3"}, "options batchId and queryId are for foreach_batch"),
        (PLAIN | {"queryId": "q"}, "options batchId and queryId are for foreach_batch"),
    ],
)
def test_delivery_that_fits_no_stream_is_refused(
    harness: World, given: dict[str, str], text: str | None
) -> None:
    source = harness.source(**given)
    if text is None:
        # `overwrite=True` stands for Spark's output mode `complete`.
        for overwrite in (False, True):
            assert source.streamWriter(SCHEMA, overwrite=overwrite)._job is None
    else:
        with pytest.raises(ConfigError, match=text):
            source.streamWriter(SCHEMA, overwrite=False)


def test_overwrite_is_refused_for_batch_jobs(harness: World) -> None:
    with pytest.raises(ConfigError, match=r"mode\('overwrite'\) is refused"):
        harness.source(**PLAIN).writer(SCHEMA, overwrite=True)


def test_schema_is_checked_with_the_options_topic_and_unknown_columns(harness: World) -> None:
    value = t.StructType([t.StructField("value", t.BinaryType())])
    more = t.StructType([*SCHEMA, t.StructField("more", t.IntegerType())])
    with pytest.raises(ConfigError, match="no topic: set option"):
        harness.source(**PLAIN).writer(value, overwrite=False)
    harness.source(**PLAIN, topic="t").writer(value, overwrite=False)
    with pytest.raises(ConfigError, match="column 'more' is none of"):
        harness.source(**PLAIN).writer(more, overwrite=False)
    found = harness.source(**PLAIN, unknownColumns="ignore").writer(more, overwrite=False)
    assert (found._columns.value, found._columns.topic) == (0, 1)


def test_preflight_runs_before_the_job_unless_it_is_turned_off(harness: World) -> None:
    gone = {"topic": "gone", "kafka.allow.auto.create.topics": "false"}
    for make in ("writer", "streamWriter"):
        source = harness.source(**PLAIN, **gone | {"preflight": "true"})
        with pytest.raises(PreflightError, match="topic 'gone' does not exist"):
            getattr(source, make)(SCHEMA, overwrite=False)
        getattr(harness.source(**PLAIN, **gone), make)(SCHEMA, overwrite=False)
    harness.source(**PLAIN, topic="t", preflight="true").writer(SCHEMA, overwrite=False)


def test_names_of_the_formats() -> None:
    assert (AiokprodDataSource.name(), AiokprodAuditSource.name()) == ("aiokprod", "aiokprod-audit")


# -- the audit's reader ----------------------------------------------------------------------------


def audit(harness: World, **options: str) -> AuditReader:
    given = {"kafka.bootstrap.servers": harness.cluster.bootstrap_servers, "topic": "t"} | options
    return AiokprodAuditSource(given).reader(t.StructType())


def test_audit_plans_ranges_of_every_partition_and_topic(harness: World) -> None:
    for topic, partition, count in (("t", 0, 5), ("u", 0, 2), ("u", 1, 4), ("u", 2, 0)):
        log = harness.on_loop(partial(harness.cluster.make_log, topic, partition))
        if topic == "u" and partition == 0:
            harness.on_loop(lambda: harness.cluster.expand_topic("u", 3))
        for number in range(count):
            log.write(str(number))
    harness.cluster.readable["u", 1].start = 1
    harness.cluster.readable["t", 0].write("open", producer=5, transactional=True)
    found = audit(harness, topic="u, t", offsetsPerTask="2").partitions()
    assert found == [
        AuditRange("u", 0, 0, 2), AuditRange("u", 1, 1, 3), AuditRange("u", 1, 3, 4),
        AuditRange("t", 0, 0, 2), AuditRange("t", 0, 2, 4), AuditRange("t", 0, 4, 5),
    ]  # fmt: skip
    uncommitted = audit(harness, isolation="read_uncommitted").partitions()
    assert uncommitted == [AuditRange("t", 0, 0, 6)]


def test_audit_reads_its_range_fetch_by_fetch(harness: World) -> None:
    log = harness.on_loop(harness.cluster.make_log)
    for batch in ("ab", "cd", "ef"):
        log.write(*batch)
    log.limit = 1
    found = list(audit(harness).read(AuditRange("t", 0, 1, 5)))
    assert [one.column("value").to_pylist() for one in found] == [[b"b"], [b"c", b"d"], [b"e"]]
    assert found[0].column("offset").to_pylist() == [1]
    (plain, *_) = audit(harness, values="false", headers="false").read(AuditRange("t", 0, 0, 2))
    assert plain.column("value").null_count == plain.column("headers").null_count == 2
    assert plain.column("key").to_pylist() == [b"k-a", b"k-b"]


def test_audit_of_nothing_gives_no_rows(harness: World) -> None:
    """For a plan without partitions, Spark runs one task with a placeholder partition."""
    assert list(audit(harness).read(object())) == []


def test_audit_that_is_left_early_closes_its_session(harness: World) -> None:
    log = harness.on_loop(harness.cluster.make_log)
    for batch in ("ab", "cd"):
        log.write(*batch)
    log.limit = 1
    reader: Any = audit(harness).read(AuditRange("t", 0, 0, 4))
    assert next(reader).column("value").to_pylist() == [b"a", b"b"]
    reader.close()

    def sessions() -> int:
        return sum(task.get_name() == "aiokprod-session" for task in asyncio.all_tasks())

    assert harness.on_loop(sessions) == 0


def test_loop_of_the_options_is_the_one_that_works(
    harness: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []

    def spy(kind: str) -> LoopThread:
        kinds.append(kind)
        return loop_thread(kind)

    for module in (tasks, driver_commit, preflight, spark_writer):
        monkeypatch.setattr(module, "loop_thread", spy)
    writer = harness.writer(**JOB, preflight="true")
    writer.commit([harness.write(writer, "a")])
    writer.abort([harness.write(writer, "b")])
    assert set(kinds) == {"asyncio"}
    assert len(kinds) >= 5
