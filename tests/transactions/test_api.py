"""The transactional calls without faults, and their misuse."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from types import SimpleNamespace
from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    ConfigError,
    KafkaError,
    KafkaTimeout,
    Outcome,
    Producer,
    ProducerFenced,
    ProducerRecord,
    TransactionError,
)
from aiokprod._engine.identity.transaction_progress import TxnProgress
from aiokprod.testing.fake_cluster import (
    FakeCluster,
    answer_late,
    delay,
    lose_answer,
    lose_request,
    refuse,
)
from tests.transactions.transaction_helpers import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    ID,
    INIT,
    committed,
    failing,
    one,
    stable,
    transactional,
)


@transactional()
async def test_transaction_committed_records_visible_together(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    async with producer.transaction():
        for number in range(30):
            await producer.submit("t", b"%d" % number, partition=number % 3)
        assert committed(cluster) == []
    assert sorted(committed(cluster)) == sorted(b"%d" % number for number in range(30))
    assert stable(cluster)


@transactional()
async def test_transaction_exception_aborts_and_is_raised_on(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    with pytest.raises(ZeroDivisionError):
        await failing(producer, ZeroDivisionError())
    assert cluster.values("t", 0) == [b"aborted"]
    assert committed(cluster) == []
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]


@transactional()
async def test_transactions_in_a_row_each_in_order(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    wanted = []
    for number in range(20):
        await producer.begin_transaction()
        for part in range(5):
            await producer.submit("t", b"%d-%d" % (number, part), partition=1)
        if number % 3:
            await producer.commit_transaction()
            wanted += [b"%d-%d" % (number, part) for part in range(5)]
        else:
            await producer.abort_transaction()
    assert cluster.committed_values("t", 1) == wanted
    assert cluster.refusals == []


@transactional(cluster={"marker_s": 0.03})
async def test_transactions_markers_take_time_next_one_waits(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    for number in range(5):
        await one(producer, b"%d" % number)
    await asyncio.sleep(1.0)
    assert committed(cluster) == [b"%d" % number for number in range(5)]


@transactional()
async def test_start_waits_for_the_producer_id(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    assert cluster.transactions.ids[ID].epoch == 0
    await producer.start()
    assert cluster.count(INIT) == 1


@transactional(max_block_ms=2_000)
async def test_start_coordinator_silent_times_out_and_resumes(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    heal = cluster.control(INIT, delay(3.0))
    with pytest.raises(KafkaTimeout):
        await producer.start()
    heal()
    await producer.start()
    await one(producer, b"v")
    assert committed(cluster) == [b"v"]


@transactional()
async def test_requests_partitions_announced_once_per_transaction_and_only_if_needed(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    await producer.warm(["t"])
    for _ in range(3):
        async with producer.transaction():
            await producer.send_many("t", [b"v"] * 300)
            await producer.send_many("t", [b"v"] * 300)
    assert cluster.count(END) == 3
    added = cluster.count(ADD_PARTITIONS)
    assert added == 0 if tv == 2 else 3 <= added <= 9


@transactional()
async def test_send_many_fast_path_within_transaction_only(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    result = await producer.send_many("t", [b"a", b"b"])
    assert not result.ok
    assert all(isinstance(error, TransactionError) for error in result.errors.values())
    async with producer.transaction():
        assert (await producer.send_many("t", [b"a", b"b"])).ok
        assert (await producer.send_many([ProducerRecord("t", b"c")])).ok
    assert sorted(committed(cluster)) == [b"a", b"b", b"c"]


@transactional()
async def test_offsets_visible_with_the_commit_only(
    cluster: FakeCluster, producer: Producer[Any, Any], tv: int
) -> None:
    group = SimpleNamespace(group_id="g", generation_id=4, member_id="m", group_instance_id=None)
    offsets = cluster.transactions.committed_offsets
    async with producer.transaction() as txn:
        await producer.send("t", b"v", partition=0)
        await txn.send_offsets({("in", 0): 7}, group)
        assert offsets == {}
    assert offsets == {"g": {("in", 0): 7}}
    with pytest.raises(RuntimeError):
        await failing(producer, RuntimeError())
    assert offsets == {"g": {("in", 0): 7}}
    assert cluster.count(ADD_OFFSETS) == (2 if tv == 1 else 0)


@transactional(max_block_ms=1_000)
async def test_offsets_time_out_then_commit_waits_for_them(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    cluster.control(COMMIT_OFFSETS, delay(1.5), times=1)
    with pytest.raises(KafkaTimeout):
        await producer.send_offsets_to_transaction({("in", 0): 7}, "g")
    await producer.commit_transaction()
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 7}}


@transactional(max_block_ms=1_000, request_timeout_ms=2_000)
@pytest.mark.parametrize("fault", [lose_request(), lose_answer()], ids=["request", "answer"])
async def test_commit_times_out_same_call_resumes_other_verdict_is_refused(
    cluster: FakeCluster, producer: Producer[Any, Any], fault: Any
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, fault, times=1)
    with pytest.raises(KafkaTimeout) as caught:
        await producer.commit_transaction()
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(TransactionError, match="cannot be changed"):
        await producer.abort_transaction()
    with pytest.raises(TransactionError):
        await producer.send("t", b"x", partition=0)
    await producer.commit_transaction(timeout=10)
    assert committed(cluster) == [b"v"]
    await one(producer, b"next")
    assert committed(cluster) == [b"v", b"next"]


@transactional(max_block_ms=1_000, request_timeout_ms=2_000)
async def test_commit_done_in_the_background_still_claimed(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, delay(1.5), times=1)
    with pytest.raises(KafkaTimeout):
        await producer.commit_transaction()
    await asyncio.sleep(5.0)
    with pytest.raises(TransactionError, match="succeeded"):
        await producer.abort_transaction()
    await producer.commit_transaction()
    with pytest.raises(TransactionError, match="no transaction"):
        await producer.commit_transaction()


@transactional(max_block_ms=1_000, request_timeout_ms=2_000)
async def test_commit_times_out_begin_waits_for_the_outcome(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, lose_answer(), times=1)
    with pytest.raises(KafkaTimeout):
        await producer.commit_transaction()
    await one(producer, b"next", timeout=30)
    assert committed(cluster) == [b"v", b"next"]


@transactional()
async def test_run_transaction_repeats_abortable_only(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    cluster.fail_produce(("t", 0), 120, times=2)
    runs = 0

    async def work(txn: Any) -> int:
        nonlocal runs
        runs += 1
        await producer.submit("t", b"run %d" % runs, partition=0)
        return runs

    assert await producer.run_transaction(work) == 3
    assert committed(cluster) == [b"run 3"]
    cluster.fail_produce(("t", 0), 120, times=10)
    with pytest.raises(AbortableTransactionError):
        await producer.run_transaction(work, retries=1)
    assert runs == 5


@transactional(max_block_ms=1_000, request_timeout_ms=2_000)
async def test_run_transaction_unknown_commit_is_not_repeated(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    runs = 0

    async def work(txn: Any) -> None:
        nonlocal runs
        runs += 1
        await producer.submit("t", b"once", partition=0)

    cluster.control(END, lose_answer(), times=1)
    with pytest.raises(KafkaTimeout):
        await producer.run_transaction(work)
    await producer.commit_transaction(timeout=30)
    assert (runs, committed(cluster)) == (1, [b"once"])


@transactional()
async def test_close_open_transaction_is_aborted(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    await producer.close()
    assert committed(cluster) == []
    assert stable(cluster)


@transactional(max_block_ms=1_000)
async def test_cancel_commit_next_transaction_waits(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, delay(0.5), times=1)
    task = asyncio.ensure_future(producer.commit_transaction())
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await one(producer, b"next")
    assert committed(cluster) == [b"v", b"next"]


@transactional()
async def test_cancel_body_aborts(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    async def work() -> None:
        async with producer.transaction():
            await producer.send("t", b"v", partition=0)
            await asyncio.sleep(10)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (committed(cluster), stable(cluster)) == ([], True)
    await one(producer, b"next")


@transactional()
async def test_abort_fails_unsent_records(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.warm(["t"])
    await producer.begin_transaction()
    handle = await producer.submit("t", b"v", partition=0)
    await producer.abort_transaction()
    with pytest.raises(TransactionError, match="aborted"):
        await handle
    assert cluster.values("t", 0) == []


@transactional()
async def test_start_refused_id_later_call_asks_again(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    heal = cluster.control(INIT, refuse(53))
    with pytest.raises(Exception, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        await producer.start()
    heal()
    await one(producer, b"v")


@transactional()
async def test_arguments_wrong_are_named(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    for offsets, group in [
        ({("t", 0): -1}, "g"),
        ({("t", -1): 1}, "g"),
        ({"t": 1}, "g"),
        (7, "g"),
        ([object()], "g"),
        ({("t", 0): 1}, ""),
        ({("t", 0): 1}, None),
        ({("t", 0): 1}, b"CGMDv1"),
    ]:
        with pytest.raises(ConfigError):
            await producer.send_offsets_to_transaction(offsets, group)
    await producer.send_offsets_to_transaction({}, "g")
    await producer.commit_transaction()
    assert cluster.count(END) == 0


@pytest.mark.parametrize("timeout", [-1, "1", True])
@transactional()
async def test_timeout_wrong_is_refused(
    cluster: FakeCluster, producer: Producer[Any, Any], timeout: Any
) -> None:
    with pytest.raises(ConfigError):
        await producer.begin_transaction(timeout)


@transactional(max_in_flight_requests_per_connection=1, linger_ms=0,
               cluster={"brokers": 1, "default_replication": 1})  # fmt: skip
async def test_busy_coordinator_its_requests_come_before_more_records(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """Otherwise produce requests to the same broker would occupy every in-flight slot."""
    cluster.control(0, answer_late(0.05))
    await producer.begin_transaction()
    stop = False

    async def stream(partition: int) -> None:
        while not stop:
            await producer.send("t", b"v", partition=partition)

    async with asyncio.TaskGroup() as tasks:
        for partition in (0, 0, 0, 1, 1, 1):
            tasks.create_task(stream(partition))
        await asyncio.sleep(2)
        async with asyncio.timeout(1):
            await producer.send("t", b"new", partition=2)
            await producer.send_offsets_to_transaction({("in", 0): 1}, "g")
        stop = True
    await producer.commit_transaction()
    assert committed(cluster)[-1] == b"new"


@transactional(max_block_ms=1_000, request_timeout_ms=2_000)
async def test_commit_unknown_then_fenced_raises_unknown_later_calls_not_sent(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, lose_request(), times=1)
    cluster.control(END, refuse(90))
    with pytest.raises(KafkaTimeout):
        await producer.commit_transaction()
    with pytest.raises(ProducerFenced) as caught:
        await producer.commit_transaction(timeout=10)
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(ProducerFenced) as caught:
        await producer.commit_transaction()
    assert caught.value.outcome is Outcome.UNKNOWN
    with pytest.raises(ProducerFenced) as caught:
        await producer.send("t", b"v")
    assert caught.value.outcome is Outcome.NOT_SENT
    cluster.script.clear()


@transactional()
async def test_commit_during_a_bulk_call_does_not_leave_out_a_refused_record(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """This also holds if the other task is the first to learn that the batch was stored."""
    await producer.begin_transaction()
    await producer.send("t", b"metadata are known now", partition=0)
    delivery = await producer.submit("t", b"in the same batch", partition=0)
    columns: list[Any] = [b"a", "no bytes", b"c"]
    sending = asyncio.create_task(producer.send_many("t", columns, partition=0))
    with contextlib.suppress(KafkaError):
        await delivery
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    await producer.abort_transaction()
    assert not (await sending).ok
    assert committed(cluster) == []


@transactional()
async def test_transaction_lacking_a_refused_record_of_a_bulk_call_cannot_be_committed(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    columns: list[Any] = [b"a", "no bytes", b"c"]
    result = await producer.send_many("t", columns, partition=0)
    assert not result.ok
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    await producer.abort_transaction()
    await producer.begin_transaction()
    records: list[Any] = [ProducerRecord("t", b"d", partition=0), "no record"]
    assert not (await producer.send_many(records)).ok
    with pytest.raises(AbortableTransactionError):
        await producer.commit_transaction()
    await producer.abort_transaction()
    assert committed(cluster) == []


@pytest.mark.parametrize("bulk", [False, True], ids=["submit", "send_many"])
@transactional(cluster={"auto_create": False})
async def test_record_that_waits_while_its_transaction_ends_does_not_get_into_the_next_one(
    cluster: FakeCluster, producer: Producer[Any, Any], bulk: bool
) -> None:
    """For example those of the other tasks of an `asyncio.gather` in which one send failed: a
    repeated transaction would contain their records twice."""

    async def send() -> Any:
        if bulk:
            return await producer.send_many("new", [b"old", b"old"], partition=0)
        return await producer.submit("new", b"old", partition=0)

    await producer.begin_transaction()
    waiting = asyncio.create_task(send())
    await producer.send("t", b"aborted", partition=0)
    await producer.abort_transaction()
    async with producer.transaction():
        await producer.send("t", b"v", partition=0)
        cluster.create_topic("new", 1)
        results: list[Any] = [*await asyncio.gather(waiting, return_exceptions=True)]
    errors = list(results[0].errors.values()) if bulk else results
    assert [type(error) for error in errors] == [TransactionError] * (1 + bulk)
    assert {error.outcome for error in errors} == {Outcome.NOT_SENT}
    assert (committed(cluster), cluster.values("new", 0)) == ([b"v"], [])


@transactional(cluster={"auto_create": False}, max_block_ms=5_000)
async def test_record_of_an_earlier_transaction_that_fails_does_not_end_the_next_one(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.begin_transaction()
    waiting = asyncio.create_task(producer.submit("missing", b"old"))
    await producer.send("t", b"aborted", partition=0)
    await producer.abort_transaction()
    async with producer.transaction():
        await producer.send("t", b"v", partition=0)
        with pytest.raises(KafkaTimeout):
            await waiting
    assert committed(cluster) == [b"v"]


@transactional(cluster={"auto_create": False})
async def test_run_transaction_repeats_if_records_of_threads_delay_the_commit(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    late: list[Any] = []

    async def work(_: Any) -> None:
        await producer.send("t", b"v", partition=0)
        if not late:
            late.append(producer.send_threadsafe("missing", b"v"))

    await producer.run_transaction(work, timeout=2.0)
    assert late[0].exception(0).outcome is Outcome.NOT_SENT
    assert committed(cluster) == [b"v"]


@transactional(cluster={"auto_create": False})
async def test_transaction_whose_commit_was_not_requested_in_time_is_aborted(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    await producer.start()
    late: list[Any] = []

    async def work() -> None:
        async with producer.transaction(timeout=2.0):
            await producer.send("t", b"aborted", partition=0)
            late.append(producer.send_threadsafe("missing", b"v"))

    with pytest.raises(KafkaTimeout, match="the commit was not requested") as caught:
        await work()
    assert caught.value.outcome is Outcome.NOT_SENT
    error = late[0].exception(0)
    assert isinstance(error, KafkaError)
    assert error.outcome is Outcome.NOT_SENT
    async with producer.transaction():
        await producer.send("t", b"v", partition=0)
    assert committed(cluster) == [b"v"]


@transactional()
async def test_requested_commit_that_times_out_is_not_aborted(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    async def work() -> None:
        async with producer.transaction(timeout=2.0):
            await producer.send("t", b"v", partition=0)
            cluster.control(END, lose_request(), times=100)

    with pytest.raises(KafkaTimeout) as caught:
        await work()
    assert caught.value.outcome is Outcome.UNKNOWN
    cluster.script.clear()
    await producer.commit_transaction()
    assert committed(cluster) == [b"v"]


@pytest.mark.parametrize("how", ["send", "submit", "send_many", "send_threadsafe"])
@transactional(cluster={"auto_create": False}, max_block_ms=3_000)
async def test_run_transaction_after_one_of_gathered_calls_failed_has_each_record_once(
    cluster: FakeCluster, producer: Producer[Any, Any], how: str
) -> None:
    await producer.start()
    attempts = 0

    async def send(value: bytes) -> None:
        if how == "send":
            await producer.send("new", value, partition=0)
        elif how == "submit":
            await (await producer.submit("new", value, partition=0))
        elif how == "send_many":
            (await producer.send_many("new", [value], partition=0)).raise_for_errors()
        else:
            await asyncio.wrap_future(producer.send_threadsafe("new", value, partition=0))

    async def fail_once() -> None:
        await asyncio.sleep(0.01)
        if attempts == 1:
            raise AbortableTransactionError("one call failed")

    async def work(_: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            asyncio.get_running_loop().call_later(0.5, cluster.create_topic, "new", 1)
        await producer.send("t", b"v", partition=0)
        await asyncio.gather(send(b"0"), send(b"1"), fail_once())

    await producer.run_transaction(work, timeout=20.0)
    await asyncio.sleep(10)
    assert attempts == 2
    assert committed(cluster) == [b"v"]
    assert sorted(committed(cluster, "new")) == [b"0", b"1"]


@transactional()
async def test_run_transaction_aborts_and_repeats_while_another_task_sends_offsets(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """For example the other tasks of an `asyncio.gather` in which one call failed."""
    attempts = 0

    async def fail_once() -> None:
        await asyncio.sleep(0.1)
        if attempts == 1:
            raise AbortableTransactionError("one call failed")

    async def work(txn: Any) -> None:
        nonlocal attempts
        attempts += 1
        await producer.send("t", b"v", partition=0)
        await asyncio.gather(txn.send_offsets({("in", 0): attempts}, "g"), fail_once())

    cluster.control(COMMIT_OFFSETS, delay(2.0), times=1)
    await producer.run_transaction(work)
    assert attempts == 2
    assert committed(cluster) == [b"v"]
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 2}}


@transactional()
async def test_transaction_that_ends_while_a_task_sends_offsets_is_aborted(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    sending: list[asyncio.Task[None]] = []

    async def unfinished() -> None:
        async with producer.transaction() as txn:
            await producer.send("t", b"aborted", partition=0)
            sending.append(asyncio.create_task(txn.send_offsets({("in", 0): 1}, "g")))
            await asyncio.sleep(0.1)

    cluster.control(COMMIT_OFFSETS, delay(2.0), times=1)
    with pytest.raises(TransactionError, match="in progress in another task"):
        await unfinished()
    with pytest.raises(TransactionError, match="aborted"):
        await sending[0]
    await one(producer, b"next")
    assert committed(cluster) == [b"next"]
    assert cluster.transactions.committed_offsets == {}


@transactional()
async def test_send_offsets_of_an_ended_transaction_does_not_add_to_the_next_one(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    async with producer.transaction() as ended:
        await producer.send("t", b"v", partition=0)
    async with producer.transaction() as txn:
        await txn.send_offsets({("in", 0): 20}, "g")
        with pytest.raises(TransactionError, match="has ended"):
            await ended.send_offsets({("in", 0): 10}, "g")
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 20}}


@transactional(max_block_ms=1_000)
async def test_failed_transaction_is_freed_without_the_garbage_collector(
    cluster: FakeCluster, producer: Producer[Any, Any]
) -> None:
    """The traceback of the error refers to the transaction in which the record was sent."""

    def transactions() -> int:
        return sum(isinstance(found, TxnProgress) for found in gc.get_objects())

    await producer.start()
    gc.collect()
    gc.disable()
    try:
        before = transactions()
        for _ in range(5):
            await producer.begin_transaction()
            with contextlib.suppress(KafkaError):
                await producer.send("t", b"v", partition=77)
            await producer.abort_transaction()
        assert transactions() == before
    finally:
        gc.enable()
