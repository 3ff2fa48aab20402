"""Every coordinator request with every fault of its broker. The reported outcome must match the
logs and groups, and the outcome that this file names.

The oracle reads only the cluster's logs and the results of the calls. Before it reads, a later
instance of the producer ends any open transaction, so "not committed" is final.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from aiokprod import (
    AbortableTransactionError,
    FatalTransactionError,
    KafkaError,
    KafkaTimeout,
    Outcome,
    Producer,
)
from aiokprod.testing.fake_cluster import FakeCluster, cut, lose_answer, lose_request
from aiokprod.testing.fake_cluster.control import Reaction
from aiokprod.testing.memory import MemoryNetwork
from tests.reference.error_codes import RETRIED
from tests.scenarios.scenario_helpers import make_producer, play, until
from tests.scenarios.test_matrix_errors import CODES
from tests.transactions.transaction_helpers import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    APIS,
    COMMIT_OFFSETS,
    END,
    FIND,
    ID,
    INIT,
    committed,
    stable,
)

pytestmark = pytest.mark.matrix

TIMES = {"once": 1, "twice": 2, "for-ever": None}

FENCED = {47, 90}
ABORTABLE = {29, 30, 120}
UNMAPPED = 49
"""INVALID_PRODUCER_ID_MAPPING: the transaction is aborted and the producer gets a new id, unless
another producer took over."""
OWN_ABORTABLE = {
    ADD_PARTITIONS: {55},
    COMMIT_OFFSETS: {22, 25, 82, 110, 113},
}
BEFORE_WRITING = {29, 30, 31, 35, 42, 47, 48, 49, 53, 55, 90, 120}
"""Brokers return these codes only before they write to the transaction log. The fake broker can be
scripted to return one after a write, which no client can detect."""
CONCURRENT = 51
"""CONCURRENT_TRANSACTIONS: for the first copy of EndTxn as `BEFORE_WRITING`. A repetition may meet
the write of an earlier copy."""

QUICK_CODES = [-1, 3, 7, 15, 16, 22, 29, 42, 47, 48, 49, 51, 53, 55, 56, 90, 120, 500]
WHOLE = bool(os.environ.get("AIOKPROD_WHOLE_MATRIX"))
"""True for all codes instead of one or two of each kind."""


@dataclass
class Report:
    """The results of the calls of one transaction.

    Attributes:
        start, offsets, end: errors of begin, send_offsets, and commit or abort; None for success.
        records: maps a value to None if it was acknowledged, else to the error.
        called_end: True if commit or abort was called.
    """

    start: KafkaError | None = None
    offsets: KafkaError | None = None
    end: KafkaError | None = None
    called_end: bool = False
    records: dict[bytes, KafkaError | None] = field(default_factory=dict)

    @property
    def error(self) -> KafkaError | None:
        """The first error of a call."""
        return self.start or self.offsets or self.end


async def transact(producer: Producer[Any, Any], value: bytes, *, commit: bool) -> Report:
    """Begin a transaction, send two records and offsets, and commit or abort. Stop at the first
    call that fails."""
    report = Report()
    try:
        await producer.begin_transaction()
    except KafkaError as error:
        report.start = error
        return report
    handles = {}
    for partition in range(2):
        name = value + b"/%d" % partition
        try:
            handles[name] = await producer.submit("t", name, partition=partition)
        except KafkaError as error:
            report.records[name] = error
    try:
        await producer.send_offsets_to_transaction({("in", 0): 5}, "g", timeout=5)
    except KafkaError as error:
        report.offsets = error
    else:
        report.called_end = True
        try:
            await (producer.commit_transaction(5) if commit else producer.abort_transaction(5))
        except KafkaError as error:
            report.end = error
    for name, handle in handles.items():
        report.records[name] = await _error_of(handle)
    return report


async def _error_of(handle: Any) -> KafkaError | None:
    try:
        async with asyncio.timeout(100):
            await handle
    except KafkaError as error:
        return error
    return None


def judge(cluster: FakeCluster, report: Report, *, commit: bool) -> None:
    """Check that all or none of the records are visible, as reported."""
    seen = {value for value in committed(cluster) if value[:2] == b"1/"}
    stored = {value for value in cluster.values("t", 0) + cluster.values("t", 1) if value}
    offsets = cluster.transactions.committed_offsets.get("g", {})
    is_committed = bool(seen or offsets)
    if is_committed:
        assert commit, "an aborted transaction is visible"
        assert report.called_end, "no commit was requested"
        assert seen == {b"1/0", b"1/1"}
        assert offsets == {("in", 0): 5}
    if report.called_end and report.end is None:
        assert is_committed is commit
    if report.end is not None and report.end.outcome.definite:
        assert not is_committed, f"said to be {report.end.outcome}: {report.end!r}"
    for value, error in report.records.items():
        if error is None:
            assert value in stored, f"lost: {value!r}"
        elif error.outcome.definite:
            assert value not in stored, f"definite, yet stored: {value!r} {error!r}"


def class_of(report: Report) -> str:
    error = report.error
    if error is None:
        return "done"
    if isinstance(error, KafkaTimeout):
        return "timeout"
    if isinstance(error, FatalTransactionError):
        kind = "fatal"
    elif isinstance(error, AbortableTransactionError):
        kind = "abortable"
    else:
        kind = "refused"
    in_doubt = error is report.end and error.outcome is Outcome.UNKNOWN
    return f"{kind}, in doubt" if in_doubt else kind


def expected(api: int, code: int, times: int | None, *, tv: int, commit: bool) -> str:
    """Return the expected result of `class_of`.

    It does not depend on whether the request was carried out. The client cannot tell, except by an
    error that brokers do not return afterwards.
    """
    if tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS):
        return "done"  # never sent
    lost = api == END and code in (-1, 7)
    if code in RETRIED or lost:
        return "done" if times is not None else "timeout"
    if code in ABORTABLE | OWN_ABORTABLE.get(api, set()):
        # 120 is abortable by its class, although no transaction is open yet.
        return "refused" if api in (FIND, INIT) and code != 120 else "abortable"
    if code == UNMAPPED and api not in (FIND, INIT):
        return "abortable" if api != END or commit else "done"
    if api == ADD_PARTITIONS and code not in FENCED | {48, 53}:
        return "abortable"  # as in Java, also for codes that the API does not define
    if api == ADD_OFFSETS and code == 59:
        return "abortable"
    if api == INIT and code in (31, 53):
        return "refused"
    if api == END and code not in BEFORE_WRITING:
        return "fatal, in doubt"
    return "fatal"


async def one_case(
    api: int, reaction: Reaction, times: int | None, *, tv: int, commit: bool, lies: bool = False
) -> str:
    """Run into the fault and check the report. Then let a new instance end any open transaction,
    and check again."""
    cluster = FakeCluster(network=MemoryNetwork(), transaction_version=tv)
    cluster.create_topic("t", 2)
    producer = make_producer(
        cluster, transactional_id=ID, request_timeout_ms=2_000, max_block_ms=5_000,
        delivery_timeout_ms=30_000, linger_ms=0,
    )  # fmt: skip
    other = make_producer(cluster, transactional_id=ID, seed=2)
    try:
        stop = cluster.control(api, reaction, times=times)
        report = await transact(producer, b"1", commit=commit)
        stop()
        found = class_of(report)
        if found == "timeout" and report.called_end:
            # The repeated call continues to wait. Without the fault it gets a definite result.
            await (producer.commit_transaction(60) if commit else producer.abort_transaction(60))
            report.end = None
        elif found == "abortable" and report.start is None and not lies:
            await producer.abort_transaction()
        if not lies:
            judge(cluster, report, commit=commit)
        if "fatal" not in found and not lies:
            if found == "timeout" and report.offsets is not None:
                await producer.abort_transaction(60)
            await go_on(cluster, producer)
        await producer.close(timeout=30)
        await other.start()
        await go_on(cluster, other)
        if not lies:
            judge(cluster, report, commit=commit)
        assert stable(cluster)
    finally:
        await producer.close(timeout=30)
        await other.close()
    assert cluster.violations == []
    return found


async def go_on(cluster: FakeCluster, producer: Producer[Any, Any]) -> None:
    """Check that the next transaction is not affected."""
    before = sorted(value or b"" for value in committed(cluster))
    report = await transact(producer, b"2", commit=False)
    assert report.error is None, report
    assert sorted(value or b"" for value in committed(cluster)) == before


def cases(api: int, times: int | None, tv: int) -> Iterator[tuple[int, bool]]:
    """Yield pairs of an error code and whether the request is carried out.

    Rejected requests are not repeated, so they are skipped if `times` is 2. A request that is never
    sent gets a single code.
    """
    never_sent = tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS)
    for code in CODES if WHOLE else QUICK_CODES[:1] if never_sent else QUICK_CODES:
        if WHOLE or times != 2 or code in RETRIED | {-1, 7}:
            yield code, False
            yield code, True


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
@pytest.mark.parametrize("times", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_code_ends_as_named_and_reported_is_what_the_log_holds(
    api: int, times: int | None, tv: int, commit: bool
) -> None:
    if not commit and api != END and not WHOLE:
        return
    wrong = []
    for code, processed in cases(api, times, tv):
        lies = processed and (code == UNMAPPED or (api == END and code in BEFORE_WRITING))
        # A broker does not return this code for a producer id whose transaction is open either.
        lies = lies or (code == UNMAPPED and api == END and not commit)
        reaction = Reaction(process=processed, error=code)
        try:
            found = play(partial(
                one_case, api, reaction, times, tv=tv, commit=commit, lies=lies
            ))  # fmt: skip
        except BaseException as error:
            wrong.append((code, processed, repr(error)[:300]))
            continue
        wanted = expected(api, code, times, tv=tv, commit=commit)
        if found != wanted:
            wrong.append((code, processed, f"{found}, not {wanted}"))
    assert not wrong, "\n".join(map(str, wrong))


BACKOFF_CODES = [*range(13, 17), *((2, 6, 19, 20, 72, 89) if WHOLE else ()), -1, 3, 7, 51, 56]
INTERRUPTIONS = ["another instance", "abort", "close", "timeout"]


async def interrupted_case(
    api: int, code: int, interruption: str, *, tv: int, processed: bool
) -> Report:
    """Return a retriable code in the response, and interrupt the producer before the retry."""
    cluster = FakeCluster(network=MemoryNetwork(), transaction_version=tv)
    cluster.create_topic("t", 2)
    producer = make_producer(
        cluster, transactional_id=ID, request_timeout_ms=2_000, max_block_ms=5_000, linger_ms=0,
        transaction_timeout_ms=2_000, retry_backoff_ms=1_000, retry_backoff_max_ms=3_000,
    )  # fmt: skip
    other = make_producer(cluster, transactional_id=ID, seed=2)
    try:
        await producer.start()
        stop = cluster.control(api, Reaction(process=processed, error=code))
        running = asyncio.ensure_future(transact(producer, b"1", commit=True))
        await until(lambda: cluster.count(api) > 0)
        await asyncio.sleep(0.002)
        if interruption == "another instance":
            await other.start()
        elif interruption == "abort":
            await _abort_now(producer, running)
        elif interruption == "close":
            await producer.close(timeout=0.5)
        else:
            await asyncio.sleep(2.5)  # the coordinator aborts any open transaction
        stop()
        report = await running
        judge(cluster, report, commit=True)
        await producer.close(timeout=30)
        await other.start()
        await go_on(cluster, other)
        judge(cluster, report, commit=True)
        assert stable(cluster)
    finally:
        await producer.close(timeout=30)
        await other.close()
    assert cluster.violations == []
    return report


async def _abort_now(producer: Producer[Any, Any], running: asyncio.Task[Report]) -> None:
    """Abort as soon as no other transactional call is in progress, or stop when the transaction has
    ended."""
    while not running.done():
        try:
            await producer.abort_transaction()
        except KafkaError:
            await asyncio.sleep(0.05)
        else:
            break


@pytest.mark.parametrize("interruption", INTERRUPTIONS)
@pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
@pytest.mark.parametrize(
    "api", [ADD_PARTITIONS, ADD_OFFSETS, COMMIT_OFFSETS, END],
    ids=["AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"],
)  # fmt: skip
def test_interrupted_before_the_repetition_reported_is_what_the_log_holds(
    api: int, tv: int, interruption: str
) -> None:
    if tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS):
        return
    for code in BACKOFF_CODES:
        for processed in (False, True):
            if processed and api == END and code == CONCURRENT:
                continue  # brokers do not do this, see CONCURRENT
            try:
                report = play(partial(
                    interrupted_case, api, code, interruption, tv=tv, processed=processed
                ))  # fmt: skip
            except BaseException as error:
                error.add_note(f"code {code}, carried out: {processed}")
                raise
            if interruption == "another instance":
                assert report.error is not None
                definite = api != END or code == CONCURRENT
                assert report.error.outcome.definite is definite, (code, report)


CUTS = {
    "before": cut(0, process=False), "after": cut(0), "within": cut(9),
    "request-lost": lose_request(), "answer-lost": lose_answer(),
}  # fmt: skip


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("tv", [1, 2], ids=["TV1", "TV2"])
@pytest.mark.parametrize("api", APIS.values(), ids=APIS)
def test_lost_connection_ends_as_named_and_reported_is_what_the_log_holds(
    api: int, tv: int, commit: bool
) -> None:
    if not commit and api != END and not WHOLE:
        return
    never_sent = tv == 2 and api in (ADD_PARTITIONS, ADD_OFFSETS)
    for name, reaction in CUTS.items():
        for times in TIMES.values():
            try:
                found = play(partial(one_case, api, reaction, times, tv=tv, commit=commit))
            except BaseException as error:
                error.add_note(f"{name}, {times}")
                raise
            # Two lost responses take 4 s of the 5 s that a call waits.
            wanted = "done" if times is not None or never_sent else "timeout"
            assert found == wanted, (name, times)
