"""Transactions of jobs and streams on a fake cluster: the checks before a commit.

The tests use the real code of tasks and drivers with the fake brokers of `tests.spark.cluster`.
tests/spark/integration repeats them with Spark and real brokers.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from aiokprod._wire.messages.describe_transactions import (
    DescribeTransactionsResponse,
    TransactionState,
)
from aiokprod._wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from aiokprod.errors import Code, KafkaTimeout
from aiokprod.spark import tasks, transactional_task
from aiokprod.spark.commit_messages import TaskReport
from aiokprod.spark.context import Task
from aiokprod.spark.driver_commit import CommitFailed, TransactionEnder
from aiokprod.spark.failures import CheckpointRolledBack, NonDeterministicReplay, SinkError
from aiokprod.spark.markers import Marker, read_marker
from aiokprod.testing.fake_cluster.control import Reaction, answer, answer_late, close, refuse
from aiokprod.testing.fake_cluster.framing import Request
from tests.spark.cluster import (
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    PRODUCE,
    Query,
    Rows,
    SparkCluster,
    run,
)

JOB = {"delivery": "transactional", "topic": "t"}


def rows(*numbers: int, topic: str = "t") -> Rows:
    return [(topic, f"{number:03}") for number in numbers]


def values(*numbers: int) -> list[str]:
    return [f"{number:03}" for number in numbers]


def four_tasks() -> list[Rows]:
    return [rows(0, 1), rows(2, 3), rows(4, 5), rows(6, 7)]


async def ended(query: Query) -> None:
    """Check that no transaction is open."""
    assert query.cluster.open_ids() == set()
    assert query.cluster.violations == []
    await query.restart()


# -- all transactions are open before the first one is committed -----------------------------------


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_job_of_which_one_transaction_timed_out_stays_invisible(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, four_tasks())
        cluster.time_out(query.id(lost))
        with pytest.raises(CommitFailed) as caught:
            await query.commit(messages)
        text = str(caught.value)
        assert f"transaction p.job.{lost} of task {lost} cannot be committed" in text
        assert "CompleteAbort" in text
        assert "kafka.transaction.timeout.ms" in text
        assert "Nothing of this attempt was committed. The longest task took 0." in text
        assert "option kafka.transaction.timeout.ms is 900000: it must cover" in text
        assert text.endswith("Run the job again")
        await query.abort(messages)
        assert cluster.committed("t") == []
        await ended(query)

    run(body)


@pytest.mark.parametrize("delivery", ["transactional", "exactly_once"])
def test_batch_that_takes_longer_than_the_timeout_says_so_in_every_attempt(
    delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every restart fails with an error that names the option to change and the time it must
    cover."""

    async def body() -> None:
        cluster = SparkCluster()
        timeout = {"kafka.transaction.timeout.ms": "3000"}
        query = Query(monkeypatch, cluster, delivery=delivery, topic="t", **timeout)
        batch = None if delivery == "transactional" else 0
        for _ in range(3):
            messages = await query.tasks(batch, four_tasks())
            messages = [dataclasses.replace(one, seconds=4.5) for one in messages]
            cluster.time_out(query.id(1))
            with pytest.raises(CommitFailed) as caught:
                await query.commit(messages, batch)
            text = str(caught.value)
            assert "took 4.5 s, and option kafka.transaction.timeout.ms is 3000" in text
            assert "Every attempt that takes as long fails in the same way: raise the" in text
            await query.abort(messages, batch)
        assert cluster.committed("t") == []
        await query.run(batch, four_tasks())
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


class Slowly:
    """A feed of tables with a pause before the second one."""

    def __init__(self, pause: float, then: Callable[[], None]) -> None:
        self._pause, self._then = pause, then
        self._left = 2

    async def get(self) -> Any:
        self._left -= 1
        if self._left < 0:
            return None
        if self._left == 0:
            await asyncio.sleep(self._pause)
            self._then()
        return pa.RecordBatch.from_pydict({"value": [b"v"]})


@pytest.mark.parametrize(
    ("pause", "text"),
    [
        (5.0, r"The task took 5\.\d s, and option kafka\.transaction\.timeout\.ms is 3000"),
        (1.0, "A later attempt of this task, or another query"),
    ],
)
def test_task_whose_transaction_was_ended_says_why(
    pause: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        timeout = {"kafka.transaction.timeout.ms": "3000"}
        query = Query(monkeypatch, cluster, topic="t", **timeout)

        def end_it() -> None:
            if query.id(0) in cluster.open_ids():  # the coordinator has not ended it yet
                cluster.time_out(query.id(0))

        feed: Any = Slowly(pause, end_it)
        task = Task(0, 0, "host", 0, "q", None, speculation=False)
        with pytest.raises(SinkError, match=text):
            await transactional_task.run_transactional(
                query.thread, query.options, task, feed, None
            )
        await ended(query)

    run(body)


def test_job_of_which_one_transaction_was_fenced_stays_invisible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The id has an open transaction of a later attempt, so the state alone is not sufficient."""

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, four_tasks())
        later = await query.task(None, 2, rows(4, 5), attempt=1)
        with pytest.raises(CommitFailed, match=r"p\.job\.2 of task 2 cannot.*a later attempt"):
            await query.commit(messages)
        assert cluster.committed("t") == []
        await query.commit([*messages[:2], later, messages[3]])
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


@pytest.mark.parametrize(
    ("answers", "what", "committed"),
    [
        ([Reaction(process=True, error=-1)], "0 may be committed: UNKNOWN_SERVER_ERROR", [0, 1]),
        (
            [Reaction(silent=True, close=True), refuse(47)],
            "0 may be committed: INVALID_PRODUCER_EPOCH",
            [0, 1],
        ),
        ([refuse(47)], "0 was not committed: INVALID_PRODUCER_EPOCH", []),
    ],
    ids=["carried out, unknown code", "answer lost, then refused", "refused"],
)
def test_refused_commit_is_definite_only_if_no_attempt_can_have_been_carried_out(
    monkeypatch: pytest.MonkeyPatch, answers: list[Reaction], what: str, committed: list[int]
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, [rows(0, 1)])
        left = iter(answers)
        cluster.control(END_TXN, lambda request: next(left, None))
        with pytest.raises(CommitFailed, match=what):
            await query.commit(messages)
        await query.abort(messages)
        assert cluster.committed("t") == values(*committed)
        await query.restart()

    run(body)


@pytest.mark.parametrize("carried_out", [True, False])
@pytest.mark.parametrize("delivery", ["transactional", "exactly_once"])
def test_commit_that_is_cancelled_while_its_end_is_on_the_wire_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    delivery: str,
    carried_out: bool,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **(JOB | {"delivery": delivery}))
        batch = None if delivery == "transactional" else 0
        messages = await query.tasks(batch, [rows(0, 1), rows(2, 3)])
        first = messages[0].transactional_id
        seen = asyncio.Event()

        def hold(request: Request) -> Reaction | None:
            if request.body.transactional_id != first:
                return None
            seen.set()
            return Reaction(process=carried_out, silent=True)

        unhold = cluster.control(END_TXN, hold)
        commit = asyncio.ensure_future(query.commit(messages, batch))
        await seen.wait()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert cluster.committed("t") == (values(0, 1) if carried_out else [])
        unhold()
        await query.abort(messages, batch)
        assert cluster.committed("t") == (values(0, 1) if carried_out else [])
        if batch is not None:  # Spark replays the batch
            await query.run(batch, [rows(0, 1), rows(2, 3)])
            assert cluster.committed("t") == values(0, 1, 2, 3)
        await ended(query)

    run(body)
    told = [record.getMessage() for record in caplog.records if record.name == "aiokprod.spark"]
    (doubt,) = [text for text in told if "of task 0" in text]
    assert "may be committed: the commit was interrupted" in doubt
    assert not any("not committed" in text for text in told)


def test_commit_that_is_cancelled_before_its_end_is_sent_is_not_in_doubt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, [rows(0, 1)])
        await query.restart()
        seen = asyncio.Event()

        def hold(request: Request) -> Reaction:
            seen.set()
            return Reaction(silent=True)

        unhold = cluster.control(FIND_COORDINATOR, hold)
        commit = asyncio.ensure_future(query.commit(messages))
        await seen.wait()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        unhold()
        await query.abort(messages)
        assert cluster.committed("t") == []
        await ended(query)

    run(body)
    assert not [record for record in caplog.records if "may be committed" in record.getMessage()]


def hide(cluster: SparkCluster, broker: int) -> None:
    """Make the broker coordinate all transactions and groups, and remove it from the metadata."""
    cluster.coordinator_ids = (broker,)
    for topic in cluster.topics.values():
        for partition in topic.partitions:
            if partition.leader == broker:
                partition.elect(broker % 3 + 1)
    cluster.brokers[broker].is_listed = False


@pytest.mark.parametrize("profile", ["3.9", "4.3"])
def test_coordinator_that_the_metadata_do_not_list_ends_the_transactions(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        cluster = SparkCluster(version_profile=profile)
        cluster.create_topic("t", 3)
        hide(cluster, 2)
        query = Query(monkeypatch, cluster, topic="t")
        for batch in range(2):
            await query.run(batch, [rows(10 * batch, 10 * batch + 1), rows(10 * batch + 2)])
        assert cluster.committed("t") == values(0, 1, 2, 10, 11, 12)
        messages = await query.tasks(2, [rows(20)])
        await query.abort(messages, 2)
        assert cluster.committed("t") == values(0, 1, 2, 10, 11, 12)
        await ended(query)

    run(body)


def test_coordinator_that_moves_between_address_and_metadata_is_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The coordinator that was found is down when the commit connects to it."""

    async def body() -> None:
        cluster = SparkCluster()
        cluster.create_topic("t", 3)
        hide(cluster, 2)
        query = Query(monkeypatch, cluster, topic="t")
        await query.run(0, [rows(0)])
        messages = await query.tasks(1, [rows(1)])
        for connection in list(cluster.brokers[2].connections):
            connection.reset()
        cluster.pause(2)
        cluster.coordinator_ids = (3,)
        await query.commit(messages, 1)
        assert cluster.committed("t") == values(0, 1)
        cluster.resume(2)
        await ended(query)

    run(body)


def test_gateway_that_names_keys_otherwise_is_asked_for_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        cluster.create_topic("t", 3)
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, four_tasks())
        await query.restart()

        def rename(request: Request) -> Reaction:
            keys = request.body.coordinator_keys
            assert cluster.coordinator_ids is not None
            broker = cluster.brokers[cluster.coordinator_ids[0]]
            return answer(
                FindCoordinatorResponse(
                    coordinators=[
                        Coordinator(
                            key="gateway." + key, node_id=broker.broker_id, host=broker.host,
                            port=broker.port, error_code=0, error_message=None,
                        )
                        for key in keys
                    ]
                )
            )  # fmt: skip

        cluster.coordinator_ids = (2,)
        cluster.control(FIND_COORDINATOR, rename)
        await query.commit(messages)
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


@pytest.mark.parametrize("profile", ["3.9", "4.3"])
def test_producer_id_zero_is_verified_and_committed_as_any_other(
    profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new cluster assigns this id to its first producer."""

    async def body() -> None:
        cluster = SparkCluster(version_profile=profile)
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, four_tasks())
        assert [message.producer_id for message in messages] == [0, 1, 2, 3]
        await query.commit(messages)
        assert cluster.committed("t") == values(*range(8))
        lost = await query.tasks(None, four_tasks())
        cluster.time_out(query.id(0))
        with pytest.raises(CommitFailed, match="Nothing of this attempt was committed"):
            await query.commit(lost)
        await query.abort(lost)
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


def test_batch_of_which_one_transaction_timed_out_is_neither_decided_nor_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        await query.run(0, [rows(90), rows(91)])
        messages = await query.tasks(1, four_tasks())
        cluster.time_out(query.id(3))
        with pytest.raises(CommitFailed, match=r"attempt was committed\. .*Spark replays"):
            await query.commit(messages, 1)
        await query.abort(messages, 1)
        assert cluster.committed("t") == values(90, 91)
        assert (await decision(query)) == (0, 2, 2)
        await query.run(1, four_tasks())
        assert cluster.committed("t") == values(*range(8), 90, 91)
        await ended(query)

    run(body)


async def decision(query: Query) -> tuple[int, int, int] | None:
    """Return (batch, rows, tasks) of the driver's record."""
    async with TransactionEnder(query.options, 0)._cluster_client() as client:
        found: Marker | None = await read_marker(client, "p.q.driver", client.loop.time() + 9)
    return None if found is None else (found.batch_id, found.rows, found.tasks)


def test_transaction_that_times_out_while_the_batch_is_decided_is_found_before_the_first_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        messages = await query.tasks(0, four_tasks())
        note = TransactionEnder._note

        async def slow(ender: TransactionEnder, *arguments: Any) -> None:
            await note(ender, *arguments)
            cluster.time_out(query.id(1))

        monkeypatch.setattr(TransactionEnder, "_note", slow)
        with pytest.raises(CommitFailed, match=r"p\.q\.1 of task 1 cannot be committed"):
            await query.commit(messages, 0)
        monkeypatch.setattr(TransactionEnder, "_note", note)
        await query.abort(messages, 0)
        assert cluster.committed("t") == []
        await query.run(0, four_tasks())
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


def test_replay_commits_nothing_more_if_one_of_its_transactions_timed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        await query.crash(await query.tasks(0, four_tasks()), 0, ended=1)
        replayed = await query.tasks(0, four_tasks())
        assert [message.skipped for message in replayed] == [True, False, False, False]
        assert 0.0 <= replayed[0].seconds < 60.0
        cluster.time_out(query.id(2))
        with pytest.raises(CommitFailed, match=r"p\.q\.2 of task 2 cannot be committed"):
            await query.commit(replayed, 0)
        await query.abort(replayed, 0)
        assert cluster.committed("t") == values(0, 1)
        await query.run(0, four_tasks())
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


def test_states_are_asked_for_once_from_each_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, [rows(number) for number in range(20)])
        await query.restart()
        before = cluster.count(FIND_COORDINATOR)
        await query.commit(messages)
        assert cluster.count(DESCRIBE_TRANSACTIONS) == 3  # one request to each broker
        assert cluster.count(FIND_COORDINATOR) - before == 1
        assert cluster.count(END_TXN) == 20
        assert cluster.committed("t") == values(*range(20))
        await ended(query)

    run(body)


def test_coordinator_that_loads_moves_or_hangs_up_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, four_tasks())
        codes = iter([Code.COORDINATOR_LOAD_IN_PROGRESS, Code.NOT_COORDINATOR])

        def unready(request: Request) -> Reaction | None:
            code = next(codes, None)
            if code is None:
                return close()
            return Reaction(
                process=False,
                answer=DescribeTransactionsResponse(
                    transaction_states=[
                        TransactionState(
                            error_code=int(code), transactional_id=name, transaction_state="",
                            transaction_timeout_ms=0, transaction_start_time_ms=-1,
                            producer_id=-1, producer_epoch=-1, topics=[],
                        )
                        for name in request.body.transactional_ids
                    ]
                ),
            )  # fmt: skip

        cluster.control(DESCRIBE_TRANSACTIONS, unready, times=3)
        await query.commit(messages)
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


def test_nothing_is_committed_while_a_coordinator_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        messages = await query.tasks(None, four_tasks())
        remove = cluster.control(DESCRIBE_TRANSACTIONS, close(), broker_id=2)
        assert {cluster.transactions.ids[query.id(n)].name for n in range(4)} == cluster.open_ids()
        with pytest.raises(Exception, match="no definite response in time"):
            await query.commit(messages)
        assert cluster.count(END_TXN) == 0
        remove()
        await query.commit(messages)
        assert cluster.committed("t") == values(*range(8))
        await ended(query)

    run(body)


def test_brokers_before_3_0_are_not_asked_and_a_job_is_told_what_that_means(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        cluster = SparkCluster(version_profile="2.8")
        query = Query(monkeypatch, cluster, **JOB)
        for _ in range(2):
            await query.run(None, four_tasks())
        assert cluster.committed("t") == sorted(values(*range(8)) * 2)
        await ended(query)

    with caplog.at_level("WARNING", "aiokprod.spark"):
        run(body)
    assert caplog.text.count("brokers before Kafka 3.0") == 1


# -- a replay is compared with the decision ------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("replay", "how"),
    [
        ([rows(0, 9), rows(2, 3)], "task 0 had 2 rows and has 2 now, or different rows"),
        ([rows(0), rows(1, 2, 3)], "task 0 had 2 rows and has 1 now"),
        ([rows(0, 1), rows(2)], "it had 4 rows and has 3 now"),
        ([rows(0, 1), rows(2, 9)], "it had 4 rows and has 4 now, or different rows"),
        ([rows(0, 1), rows(2), rows(3)], "it had 2 tasks and has 3 now"),
        ([rows(0, 1, 2, 3)], "it had 2 tasks and has 1 now"),
    ],
)
def test_replay_that_differs_from_a_batch_committed_in_part_commits_nothing_and_is_not_decided(
    replay: list[Rows], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [rows(0, 1), rows(2, 3)]

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        await query.crash(await query.tasks(0, first), 0, ended=1)
        with pytest.raises(NonDeterministicReplay, match=how):
            await query.run(0, replay)
        assert cluster.committed("t") == values(0, 1)
        assert await decision(query) == (0, 4, 2)
        await query.run(0, first)
        assert cluster.committed("t") == values(0, 1, 2, 3)
        await ended(query)

    run(body)


def test_open_transactions_are_listed_once_in_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        for batch, listed in enumerate([3, 3, 3, 6, 6]):  # requests to three brokers
            await query.run(batch, [rows(batch)])
            assert cluster.count(LIST_TRANSACTIONS) == listed
            await asyncio.sleep(4.0)
        await ended(query)

    run(body)


# -- reports and failures of tasks ----------------------------------------------------------------


@pytest.mark.parametrize("delivery", ["at_least_once", "transactional"])
def test_report_of_a_task_tells_the_seconds_it_took(
    delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, delivery=delivery, topic="t")
        cluster.control(PRODUCE, answer_late(5.0))
        await asyncio.sleep(100.0)
        if delivery == "transactional":
            report: TaskReport = await query.task(None, 0, rows(1))
            await query.abort([report])
        else:
            report = await query.plain_task(0, rows(1))
        assert 5.0 <= report.seconds < 6.0
        await ended(query)

    run(body)


@pytest.mark.parametrize("topic", ["t", None])
def test_partition_that_is_new_is_found_by_a_producer_that_is_kept(
    topic: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        cluster.create_topic("t", 2)
        option = {} if topic is None else {"topic": topic}
        query = Query(monkeypatch, cluster, delivery="at_least_once", **option)
        await query.plain_task(0, rows(1), partition=1)
        cluster.expand_topic("t", 4)
        report = await query.plain_task(0, rows(2), partition=3)
        assert report.ranges == (("t", 3, 0, 0, 1),)
        with pytest.raises(SinkError, match="partition 4 is out of range: topic 't' has 4"):
            await query.plain_task(0, rows(3), partition=4)
        await ended(query)

    run(body)


def test_task_whose_producer_cannot_start_names_its_transaction_and_the_missing_acl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **JOB)
        code = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        cluster.control(INIT_PRODUCER_ID, refuse(int(code)))
        with pytest.raises(SinkError) as caught:
            await query.task(None, 3, rows(1))
        text = str(caught.value)
        assert "transaction of task 3: TRANSACTIONAL_ID_AUTHORIZATION_FAILED (not retri" in text
        assert "grant WRITE on transactional ids" in text
        assert "0 acknowledged, 0 unknown, 0 unsent" in text
        await ended(query)

    run(body)


# -- a checkpoint that was rolled back ------------------------------------------------------------


def test_rolled_back_checkpoint_is_refused_whatever_the_partitioning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All rows were in task 1. In the replay they are in task 0, which has never written rows."""

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        for batch in range(3):
            await query.run(batch, [[], rows(batch)])
        await query.restart()
        with pytest.raises((CheckpointRolledBack, SinkError), match="the checkpoint was rolled"):
            await query.run(1, [rows(1)])
        assert cluster.committed("t") == values(0, 1, 2)
        await ended(query)

    run(body)


def test_decision_newer_than_the_replayed_batch_refuses_it_where_no_task_has_a_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In earlier versions, tasks without rows left no marker."""

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        for batch in range(3):
            await query.run(batch, [[], rows(batch)])
        del cluster.transactions.committed_offsets["p.q.0"]
        await query.restart()
        with pytest.raises(CheckpointRolledBack, match=r"Kafka has batch 2.* replays batch 1: "):
            await query.run(1, [rows(1)])
        assert cluster.committed("t") == values(0, 1, 2)
        await ended(query)

    run(body)


def test_task_without_rows_marks_its_batch_in_a_topic_the_query_wrote_to_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        first = await query.run(0, [[], rows(0)])
        assert first[0].producer_id == -1, "no topic is known yet"
        second = await query.run(1, [[], rows(1)])
        assert second[0].marked == ("t",)
        assert list(cluster.transactions.committed_offsets["p.q.0"].values()) == [2]
        await query.restart()
        with pytest.raises(SinkError, match="Kafka has batch 1 of this query, Spark replays bat"):
            await query.task(0, 0, rows(0))
        await ended(query)

    run(body)


def test_batches_without_any_rows_go_through_before_and_after_the_first_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        await query.run(0, [[], []])
        await query.run(1, [rows(1), []])
        await query.run(2, [[], []])
        replayed = await query.run(2, [[], []])
        assert all(message.skipped for message in replayed)
        await query.run(3, [[], rows(3)])
        assert cluster.committed("t") == values(1, 3)
        await ended(query)

    run(body)


# -- a topic that was deleted ---------------------------------------------------------------------


@pytest.mark.parametrize("deleted", ["a", "b"])
def test_deletion_of_one_topic_doubles_no_row_of_the_others(
    deleted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"a": "b", "b": "a"}[deleted]

    def parts(batch: int) -> list[Rows]:
        return [
            [*rows(10 * batch + task, topic="a"), *rows(10 * batch + task, topic="b")]
            for task in range(2)
        ]

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, missingMarkers="fail")
        await query.run(0, parts(0))
        await query.crash(await query.tasks(1, parts(1)), 1, ended=1)
        cluster.delete_topic(deleted)
        replayed = await query.run(1, parts(1))
        assert [message.skipped for message in replayed] == [True, False]
        assert cluster.committed(other) == values(0, 1, 10, 11)
        await ended(query)

    run(body)


def test_replay_after_deletion_of_the_topic_of_a_committed_task_writes_only_its_rows_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The marker was deleted together with the rows."""

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster)
        parts = [rows(0, topic="a"), rows(1, topic="b"), rows(2, topic="b")]
        await query.crash(await query.tasks(0, parts), 0, ended=2)
        cluster.delete_topic("a")
        replayed = await query.run(0, parts)
        assert [message.skipped for message in replayed] == [False, True, False]
        assert cluster.committed("a", "b") == values(0, 1, 2)
        await ended(query)

    run(body)


# -- markers that expired -------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [2, 1])
@pytest.mark.parametrize("missing", ["fail", "warn"])
def test_markers_that_expired_before_their_decision_are_reported(
    missing: str, tasks: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The markers are older than the decision, because a task commits its marker before the driver
    decides. The replay may lack the committed task."""
    retention_s = 3600.0
    numbers = ([11], [10]) if tasks == 2 else ([10, 11],)

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, missingMarkers=missing)
        await query.run(0, [rows(0), rows(1)])
        messages = await query.tasks(1, [rows(11), rows(10)])
        await asyncio.sleep(5.0)
        await query.crash(messages[::-1], 1, ended=1)
        assert cluster.committed("t") == values(0, 1, 10)
        await asyncio.sleep(retention_s - 2.0)
        assert cluster.transactions.expire_offsets(retention_s) == 2
        assert await decision(query) == (1, 2, 2)
        replay = query.run(1, [rows(*part) for part in numbers])
        if missing == "fail":
            with pytest.raises(NonDeterministicReplay, match="Kafka has no marker of task 0"):
                await replay
            assert cluster.committed("t") == values(0, 1, 10)
        else:
            await replay
            assert cluster.committed("t") == values(0, 1, 10, 10, 11)
        await ended(query)

    run(body)
    told = [record.getMessage() for record in caplog.records if "no marker of" in record.message]
    assert len(told) == (missing == "warn")


def test_replay_of_a_batch_of_which_nothing_was_committed_misses_no_marker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver died after the batch was decided. The markers of the previous batch still
    exist."""

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, missingMarkers="fail")
        await query.crash(await query.tasks(0, [rows(0), rows(1)]), 0, ended=0)
        await query.run(0, [rows(0), rows(1)])
        await query.crash(await query.tasks(1, [rows(2), rows(3)]), 1, ended=0)
        await query.run(1, [rows(2, 3)])
        assert cluster.committed("t") == values(0, 1, 2, 3)
        await ended(query)

    run(body)
    assert not [record for record in caplog.records if "no marker of" in record.getMessage()]


# -- a driver that cannot start -------------------------------------------------------------------


def test_producer_of_decisions_that_cannot_start_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it would later fence the producer of the next attempt. `run` detects tasks that are
    left behind."""

    async def body() -> None:
        cluster = SparkCluster()
        query = Query(monkeypatch, cluster, **{"kafka.max.block.ms": "3000"})
        messages = await query.tasks(0, [rows(0)])

        def driver(request: Request) -> Reaction | None:
            ours = request.body.transactional_id == "p.q.driver"
            return Reaction(process=False, silent=True, close=True) if ours else None

        unhold = cluster.control(INIT_PRODUCER_ID, driver)
        with pytest.raises(KafkaTimeout):
            await query.commit(messages, 0)
        unhold()
        await query.abort(messages, 0)
        started = cluster.count(INIT_PRODUCER_ID)
        await asyncio.sleep(30.0)
        assert cluster.count(INIT_PRODUCER_ID) == started
        await query.run(0, [rows(0)])
        assert cluster.committed("t") == values(0)
        await ended(query)

    run(body)


# -- two decisions for one batch ------------------------------------------------------------------


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("topics", [("a", "b"), ("b", "a")])
def test_newest_of_two_decisions_for_one_batch_is_valid(
    order: int, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempt 1 decided but committed nothing. Attempt 2 has other rows for another topic, and was
    partly committed. Attempt 3 has the same rows as attempt 2."""
    first, second = topics

    async def body() -> None:
        cluster = SparkCluster()
        cluster.order = order
        query = Query(monkeypatch, cluster)
        one = [rows(1, topic=first), rows(2, topic=first)]
        two = [rows(3, topic=second), rows(4, topic=second)]
        await query.crash(await query.tasks(0, one), 0, ended=0)
        await query.crash(await query.tasks(0, two), 0, ended=1)
        replayed = await query.run(0, two)
        assert [message.skipped for message in replayed] == [True, False]
        assert cluster.committed(second) == values(3, 4)
        with pytest.raises(NonDeterministicReplay):
            await query.run(0, one)
        assert cluster.committed(second) == values(3, 4)
        await ended(query)

    run(body)


# -- errors of a failed task -----------------------------------------------------------------------


class Paced:
    """A feed that returns one table per second."""

    def __init__(self, *tables: Any) -> None:
        self._tables = list(tables)

    async def get(self) -> Any:
        await asyncio.sleep(1.0)
        return self._tables.pop(0) if self._tables else None


def table(topic: str, count: int) -> Any:
    return pa.RecordBatch.from_pydict(
        {"value": pa.array([b"v"] * count, pa.binary()), "topic": pa.array([topic] * count)}
    )


@pytest.mark.parametrize("delivery", ["at_least_once", "transactional"])
def test_failed_task_counts_the_rows_of_every_table(
    delivery: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables that were acknowledged long before are included."""

    async def body() -> None:
        cluster = SparkCluster()
        cluster.create_topic("t", 1)
        cluster.denied_topics.add("u")
        query = Query(monkeypatch, cluster, delivery=delivery)
        task = Task(0, 0, "host", None, None, None, speculation=False)
        feed: Any = Paced(table("t", 2), table("t", 3), table("t", 4), table("u", 5))
        work = (
            tasks._run_plain(query.thread, query.options, task, feed, None)
            if delivery == "at_least_once"
            else transactional_task.run_transactional(
                query.thread, query.options, task, feed, "job"
            )
        )
        with pytest.raises(SinkError) as caught:
            await work
        assert "9 acknowledged, 0 unknown, 5 unsent" in str(caught.value)
        await query.restart()

    run(body)
