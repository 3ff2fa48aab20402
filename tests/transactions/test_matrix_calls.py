"""Each kind of coordinator request with each kind of failure: the error that the caller gets, and
P7."""

from __future__ import annotations

from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    FatalTransactionError,
    KafkaError,
    Producer,
    ProducerFenced,
)
from aiokprod._errors import Code, ErrorAction, TxnApi
from aiokprod.testing.fake_cluster import FakeCluster, close, cut, lose_answer, lose_request, refuse
from tests.transactions.transaction_helpers import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    COMMIT_OFFSETS,
    END,
    FIND,
    INIT,
    committed,
    full,
    one,
    stable,
    transactional,
)

pytestmark = pytest.mark.matrix

CALLS = {
    "FindCoordinator": FIND, "InitProducerId": INIT, "AddPartitionsToTxn": ADD_PARTITIONS,
    "AddOffsetsToTxn": ADD_OFFSETS, "TxnOffsetCommit": COMMIT_OFFSETS, "EndTxn": END,
}  # fmt: skip
FIRST_PROTOCOL_ONLY = (ADD_PARTITIONS, ADD_OFFSETS)

PASSING = {
    "disconnect-before": close(),
    "disconnect-after": close(process=True),
    "reset": cut(0),
    "cut-answer": cut(9),
    "request-lost": lose_request(),
    "answer-lost": lose_answer(),
    "wrong-coordinator": refuse(Code.NOT_COORDINATOR),
    "absent-coordinator": refuse(Code.COORDINATOR_NOT_AVAILABLE),
    "loading-coordinator": refuse(Code.COORDINATOR_LOAD_IN_PROGRESS),
    "concurrent": refuse(Code.CONCURRENT_TRANSACTIONS),
}
REFUSED = {
    "fenced": Code.PRODUCER_FENCED,
    "old-epoch": Code.INVALID_PRODUCER_EPOCH,
    "not-authorised": Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    "group-not-authorised": Code.GROUP_AUTHORIZATION_FAILED,
    "abortable": Code.TRANSACTION_ABORTABLE,
    "invalid-state": Code.INVALID_TXN_STATE,
    "server-error": Code.UNKNOWN_SERVER_ERROR,
    "id-mapping": Code.INVALID_PRODUCER_ID_MAPPING,
}


@pytest.mark.parametrize("api", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("fault", PASSING.values(), ids=PASSING)
@pytest.mark.parametrize("times", [1, 4])
@transactional(request_timeout_ms=2_000)
async def test_call_passing_fault_is_survived(
    cluster: FakeCluster, producer: Producer[Any, Any], api: int, fault: Any, times: int
) -> None:
    await full(producer, b"1")
    cluster.control(api, fault, times=times)
    await full(producer, b"2")
    await full(producer, b"3")
    assert committed(cluster) == [b"1", b"2", b"3"] * 2
    assert cluster.transactions.committed_offsets == {"g": {("in", 0): 3}}
    assert all(cluster.transactions.ids["transfers"].history)
    assert stable(cluster)


@pytest.mark.parametrize("api", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("code", REFUSED.values(), ids=REFUSED)
@transactional(request_timeout_ms=2_000, max_block_ms=10_000)
async def test_call_refused_as_the_table_says(
    cluster: FakeCluster, producer: Producer[Any, Any], api: int, code: Code, tv: int
) -> None:
    if tv == 2 and api in FIRST_PROTOCOL_ONLY:
        return  # never sent
    if api not in (FIND, INIT):
        await producer.start()
    stop = cluster.control(api, refuse(code), times=1)
    call = next(call for call in TxnApi if CALLS[call.value] == api)
    meaning = code.row.action_after(call)
    if meaning is ErrorAction.LOST:
        await full(producer, b"1")
        assert committed(cluster) == [b"1", b"1"]
        return
    with pytest.raises(KafkaError) as caught:
        await full(producer, b"1")
    stop()
    kinds = {
        ErrorAction.FENCED: ProducerFenced,
        ErrorAction.FATAL: FatalTransactionError,
        ErrorAction.ABORT: KafkaError if api in (FIND, INIT) else AbortableTransactionError,
    }
    assert isinstance(caught.value, kinds[meaning])
    assert committed(cluster) == []
    if meaning is ErrorAction.ABORT:
        assert not isinstance(caught.value, FatalTransactionError)
        await one(producer, b"next")
        assert committed(cluster) == [b"next"]
        assert cluster.transactions.committed_offsets == {}
        assert stable(cluster)
    else:
        with pytest.raises(FatalTransactionError):
            await producer.begin_transaction()


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("code", [Code.PRODUCER_FENCED, Code.INVALID_TXN_STATE,
                                  Code.TRANSACTION_ABORTABLE])  # fmt: skip
@transactional(request_timeout_ms=2_000)
async def test_end_lost_then_refused_outcome_is_unknown(
    cluster: FakeCluster, producer: Producer[Any, Any], code: int, commit: bool
) -> None:
    await producer.begin_transaction()
    await producer.send("t", b"v", partition=0)
    cluster.control(END, lose_answer(), times=1)
    cluster.control(END, refuse(code), times=1)
    with pytest.raises(KafkaError) as caught:
        await (producer.commit_transaction() if commit else producer.abort_transaction())
    if not commit and code == Code.TRANSACTION_ABORTABLE:
        assert isinstance(caught.value, AbortableTransactionError)
        return
    assert isinstance(caught.value, FatalTransactionError)
    assert caught.value.outcome.value == "unknown"
