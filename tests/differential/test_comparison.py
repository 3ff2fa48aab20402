"""The comparison of the differential tests finds each kind of violation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from aiokprod.errors import Code, DeliveryTimeout, broker_error
from tests.differential.campaign import can_follow
from tests.differential.catalogue import scripts
from tests.differential.clients import HUNG, JAVA, LIBRDKAFKA, OURS, Report, report_of
from tests.differential.comparison import Finding, broken_rules, compare, second_opinion
from tests.differential.differences import ROWS, documented
from tests.differential.script import (
    ADD_PARTITIONS,
    END_TXN,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    ApiCode,
    Break,
    Call,
    Do,
    How,
    Mode,
    Odd,
    ProduceCode,
    Script,
    Send,
    Step,
    When,
)
from tests.differential.stage import Called, Evidence, Sent

PLAIN = Script("s", "f", "idempotent", (Send(0, 2),))
TRANSACTION = Script("s", "f", "tv2", (Call("init"), Call("begin"), Send(0, 2), Call("end")))
CLOSED = Called("close", Report(), -1, True)


def evidence(script: Script = PLAIN, client: str = OURS, **changes: Any) -> Evidence:
    """Return evidence of two records, acknowledged and stored at offsets 0 and 1."""
    number = 0 if script.transactional else -1
    made = Evidence(
        client,
        script,
        sent=[
            Sent(0, "r0", "t", 0, number, False, Report(0, 0)),
            Sent(1, "r1", "t", 0, number, False, Report(0, 1)),
        ],
        calls=[CLOSED],
        logs=[("t", 0, {0: "r0", 1: "r1"})],
        committed=[("t", 0, ["r0", "r1"])],
        alive=True,
    )
    if script.transactional:
        made.verdicts[0] = "committed"
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def kinds(found: Iterable[Finding]) -> set[str]:
    return {finding.kind for finding in found}


def failed(label: str = "code 19", outcome: str | None = None) -> Report:
    return Report(label=label, error="BrokerError", outcome=outcome)


def test_honest_evidence_breaks_no_rule() -> None:
    for script in (PLAIN, TRANSACTION):
        assert broken_rules(evidence(script)) == []
        assert compare(evidence(script), evidence(script, JAVA)) == []


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("lost", {"logs": [("t", 0, {0: "r0"})]}),
        ("misplaced", {"logs": [("t", 0, {0: "r0", 2: "r1"})]}),
        ("misplaced", {"logs": [("t", 0, {0: "r0"}), ("t", 1, {1: "r1"})]}),
        ("twice", {"logs": [("t", 0, {0: "r0", 1: "r1", 2: "r1"})]}),
        ("left-open", {"left_open": 1}),
        ("violation", {"violations": ["two batches of one partition in a request"]}),
        ("close", {"calls": [Called("close", failed(), -1, True)]}),
        ("hung", {"calls": [Called("init", Report(label=HUNG), -1, False), CLOSED]}),
    ],
)
def test_broken_rule_is_found(kind: str, changes: dict[str, Any]) -> None:
    assert kinds(broken_rules(evidence(**changes))) == {kind}


@pytest.mark.parametrize("outcome", ["rejected", "not_sent", "unknown"])
def test_definite_error_of_a_stored_record_is_found(outcome: str) -> None:
    made = evidence()
    made.sent[1].report = failed(outcome=outcome)
    assert kinds(broken_rules(made)) == (set() if outcome == "unknown" else {"definite"})


def test_order_of_acknowledged_records_is_compared_with_hand_over() -> None:
    made = evidence(logs=[("t", 0, {1: "r0", 0: "r1"})])
    made.sent[0].report, made.sent[1].report = Report(0, 1), Report(0, 0)
    assert kinds(broken_rules(made)) == {"order"}


@pytest.mark.parametrize(
    ("verdict", "visible", "kind"),
    [
        ("committed", ["r0"], "commit-lost"),
        ("aborted", ["r0"], "abort-denied"),
        ("refused", ["r0", "r1"], "commit-denied"),
        ("unknown", ["r0"], "commit-part"),
        ("unknown", [], None),
        ("unknown", ["r0", "r1"], None),
    ],
)
def test_told_end_of_a_transaction_is_what_readers_see(
    verdict: str, visible: list[str], kind: str | None
) -> None:
    made = evidence(TRANSACTION, committed=[("t", 0, visible)])
    made.verdicts[0] = verdict
    assert kinds(broken_rules(made)) == ({kind} if kind else set())


def test_commit_without_a_failed_record_is_found() -> None:
    made = evidence(TRANSACTION, logs=[("t", 0, {0: "r0"})], committed=[("t", 0, ["r0"])])
    made.sent[1].report = failed()
    assert kinds(broken_rules(made)) == {"committed-part"}


def test_transaction_left_open_behind_a_reported_end_is_found() -> None:
    made = evidence(TRANSACTION, left_ongoing=["abort of transaction 0"])
    assert kinds(broken_rules(made)) == {"left-ongoing"}


def test_record_that_must_be_delivered_is_missed() -> None:
    script = dataclasses.replace(PLAIN, delivers=True)
    assert broken_rules(evidence(script)) == []
    made = evidence(script)
    made.sent[1].report = failed(outcome="unknown")
    assert kinds(broken_rules(made)) == {"undelivered"}


@pytest.mark.parametrize(("pauses", "kind"), [([0.2] * 10, "no-jitter"), ([0.2, 0.17] * 5, None)])
def test_equal_pauses_at_the_maximum_of_a_backoff_are_found(
    pauses: list[float], kind: str | None
) -> None:
    script = dataclasses.replace(
        PLAIN, family="backoff", settings=(("retry.backoff.max.ms", "200"),)
    )
    assert kinds(broken_rules(evidence(script, pauses=pauses))) == ({kind} if kind else set())


def test_brokers_that_lie_about_the_append_excuse_a_definite_error() -> None:
    for code, excused in ((10, True), (56, False), (3, False), (7, False), (20, False)):
        script = Script("s", "f", "idempotent", (ProduceCode(code, append=True), Send(0, 2)))
        made = evidence(script)
        made.sent[1].report = failed(outcome="rejected")
        assert kinds(broken_rules(made)) == (set() if excused else {"definite"}), code


def test_differences_from_java_are_found() -> None:
    ours, java = evidence(), evidence(client=JAVA)
    ours.sent[1].report = failed()
    ours.logs = [("t", 0, {0: "r0"})]
    assert kinds(compare(ours, java)) == {"record-failed"}
    assert kinds(compare(java, ours)) == {"record-acked"}
    java.sent[1].report = failed("code 20")
    assert kinds(compare(ours, java)) == {"record-error", "log-failed"}
    ours, java = evidence(alive=False), evidence(client=JAVA)
    assert kinds(compare(ours, java)) == {"dead"}
    assert kinds(compare(java, ours)) == {"alive"}
    ours, java = evidence(), evidence(client=JAVA)
    java.logs = [("t", 0, {0: "r1", 1: "r0"})]
    assert kinds(compare(ours, java)) == {"log"}
    ours, java = evidence(), evidence(client=JAVA)
    ours.requests[0], java.requests[0] = 40, 4
    assert kinds(compare(ours, java)) == {"more-produce"}
    assert kinds(compare(java, ours)) == {"fewer-produce"}
    ours, java = evidence(TRANSACTION), evidence(TRANSACTION, JAVA)
    ours.calls = [Called("commit", failed(), 0, False), CLOSED]
    java.calls = [Called("commit", Report(), 0, False), CLOSED]
    assert kinds(compare(ours, java)) == {"call-failed"}
    assert kinds(compare(java, ours)) == {"call-ok"}


def test_every_row_of_the_table_has_a_predicate_and_the_other_way_round() -> None:
    assert [row.id for row in ROWS] == documented()


def test_no_row_explains_a_broken_rule_of_ours() -> None:
    rules = ("lost", "misplaced", "twice", "order", "definite", "hung", "commit-lost", "violation")
    for kind in rules:
        made = broken_rules(evidence(logs=[("t", 0, {0: "r0"})]))[0]
        finding = type(made)(kind, OURS, "", hard=True)
        both = {OURS: evidence(), JAVA: evidence(client=JAVA)}
        assert not [row.id for row in ROWS if row.explains(finding, both)], kind


def test_catalogue_has_every_code_of_produce_appended_and_not() -> None:
    found = scripts()
    assert len(found) > 7000
    assert len({script.name for script in found}) == len(found)
    for append in (True, False):
        codes = {
            step.code
            for script in found
            for step in script.steps
            if isinstance(step, ProduceCode) and step.append is append
        }
        assert {*map(int, Code)} - {0} <= codes


def test_error_is_named_by_the_first_code_of_its_chain() -> None:
    assert report_of(broker_error(19, "t-0")).label == "code 19"
    assert report_of(broker_error(19, "t-0")).outcome == "rejected"
    assert report_of(DeliveryTimeout("late")).label == "timeout"


@pytest.mark.parametrize("kind", ["record-acked", "record-failed"])
@pytest.mark.parametrize("ok", [True, False])
def test_second_opinion_is_librdkafkas_outcome_of_the_same_record(kind: str, ok: bool) -> None:
    other = evidence(client=LIBRDKAFKA)
    other.sent[1].report = Report(0, 1) if ok else failed()
    finding = Finding(kind, OURS, "", hard=False, what="r1")
    both = {LIBRDKAFKA: other}
    assert second_opinion(finding, both) == (OURS if ok == (kind == "record-acked") else JAVA)
    assert second_opinion(finding, {}) == ""


def rows_of(finding: Finding, ours: Evidence, java: Evidence) -> list[str]:
    return [row.id for row in ROWS if row.explains(finding, {OURS: ours, JAVA: java})]


def played(
    steps: tuple[Step, ...], mode: Mode = "idempotent", **changes: Any
) -> tuple[Evidence, Evidence]:
    """Return both clients' evidence of a script with these steps."""
    script = dataclasses.replace(PLAIN, mode=mode, steps=steps)
    return evidence(script, **changes), evidence(script, JAVA)


@pytest.mark.parametrize(
    ("mode", "fault", "explained"),
    [
        ("idempotent", ProduceCode(53), True),
        ("tv2", ApiCode(END_TXN, 110), True),
        ("tv2", ProduceCode(47), False),
        ("tv2", ApiCode(END_TXN, 90), False),
        ("tv2", When(END_TXN, Do("fence")), False),
    ],
)
def test_producer_that_goes_on_is_explained_unless_it_was_fenced(
    mode: Mode, fault: ApiCode | ProduceCode | When, explained: bool
) -> None:
    ours, java = played((fault, Send(0, 2)), mode)
    code = getattr(fault, "code", 90)
    java.alive = False
    java.sent.append(Sent(2, "z2", "t", 0, -1, True, failed(f"code {code}")))
    [finding] = [one for one in compare(ours, java) if one.kind == "alive"]
    assert rows_of(finding, ours, java) == (["java-fatal"] if explained else [])
    java.sent[-1].report = Report(label="K", error="K", message="K: we are in an error state")
    assert rows_of(finding, ours, java) == (["java-fatal"] if explained else [])
    java.sent[-1].report = failed("timeout")
    assert rows_of(finding, ours, java) == []


@pytest.mark.parametrize(
    ("mode", "fault", "label", "explained"),
    [
        ("idempotent", ApiCode(INIT_PRODUCER_ID, 47), "code 90", True),
        ("tv2", ApiCode(INIT_PRODUCER_ID, 47), "code 90", False),
        ("tv1", ProduceCode(46, append=False), "code 45", True),
        ("tv1", ProduceCode(46, append=True), "code 45", False),
        ("tv1", ApiCode(ADD_PARTITIONS, 59, process=True), "code 90", True),
        ("tv1", ApiCode(ADD_PARTITIONS, 59, process=False), "code 90", False),
        ("tv1", ApiCode(END_TXN, 59, process=True), "code 90", False),
        ("tv1", Odd("add-partitions-empty"), "code 90", True),
        ("tv1", Do("forget-transactions"), "code 49", True),
        ("tv1", Do("forget-producers"), "code 49", False),
        ("plain", Odd("produce-empty", times=None), "timeout", True),
        ("plain", Odd("produce-null-message", times=None), "timeout", False),
    ],
)
def test_end_of_javas_producer_is_explained_by_what_ends_it(
    mode: Mode, fault: Any, label: str, explained: bool
) -> None:
    ours, java = played((fault, Send(0, 2)), mode)
    java.alive = False
    java.sent.append(Sent(2, "z2", "t", 0, -1, True, failed(label)))
    [finding] = [one for one in compare(ours, java) if one.kind == "alive"]
    assert rows_of(finding, ours, java) == (["java-fatal"] if explained else [])


@pytest.mark.parametrize(
    ("how", "label", "explained"),
    [("garbage", "timeout", True), ("garbage", "code 6", False), ("reset", "timeout", False)],
)
def test_sender_that_hangs_on_garbage_is_explained(how: How, label: str, explained: bool) -> None:
    ours, java = played((Break(METADATA, how, times=None), Send(0, 2)))
    java.alive = False
    java.sent.append(Sent(2, "z2", "t", 0, -1, True, failed(label)))
    [finding] = [one for one in compare(ours, java) if one.kind == "alive"]
    assert rows_of(finding, ours, java) == (["java-hangs-on-invalid-frames"] if explained else [])


def test_requests_of_an_endless_fault_are_bounded_by_the_backoff_and_the_time_it_took() -> None:
    ours, java = played((Break(METADATA, "reset", times=None), Send(0, 2)))
    ours.fresh_tries = 1
    ours.requests[METADATA], java.requests[METADATA] = 61, 23
    ours.seconds = 3.2
    assert kinds(compare(ours, java)) == set()
    ours.seconds = 1.6
    assert kinds(compare(ours, java)) == {"more-metadata"}


def test_records_that_java_refused_and_stored_are_explained() -> None:
    ours, java = played((Send(0, 2),))
    ours.logs, ours.committed = [("t", 0, {2: "z2"})], [("t", 0, ["z2"])]
    ours.sent[0].report = ours.sent[1].report = failed("TransactionError")
    refused = Report(label="IllegalStateException", error="IllegalStateException")
    java.sent[0].report = java.sent[1].report = refused
    [finding] = [one for one in compare(ours, java) if one.kind == "log-failed"]
    assert rows_of(finding, ours, java) == ["java-sends-rejected-records"]
    java.sent[1].report = failed("code 31")
    assert rows_of(finding, ours, java) == []


@pytest.mark.parametrize("began", [False, True])
def test_abort_that_fails_is_explained_if_no_transaction_was_begun(began: bool) -> None:
    ours, java = played((Call("begin"), Call("end")), "tv2")
    message = "no transaction is open: call begin_transaction() first"
    refused = Report(label="TransactionError", error="TransactionError", message=message)
    for one, report in ((ours, refused), (java, Report())):
        begin = Report() if began else failed("code 30")
        one.calls = [Called("begin", begin, 0, False), Called("abort", report, 0, False), CLOSED]
    [finding] = [one for one in compare(ours, java) if one.kind == "call-failed"]
    assert rows_of(finding, ours, java) == ([] if began else ["abort-without-a-transaction"])


def test_producer_of_old_brokers_that_cannot_bump_its_epoch_is_explained() -> None:
    for profile, explained in (("2.1", True), ("2.8", False)):
        ours, java = played((ProduceCode(59, append=True), Send(0, 2)), "tv1")
        ours.script = java.script = dataclasses.replace(ours.script, profile=profile)
        ours.alive = False
        [finding] = [one for one in compare(ours, java) if one.kind == "dead"]
        rows = ["unknown-producer-id-in-transaction"] if explained else []
        assert rows_of(finding, ours, java) == rows


@pytest.mark.parametrize(
    ("label", "verdict", "explained"),
    [
        ("timeout", "none", True),
        ("code 10", "aborted", True),
        ("code 10", "committed", False),
        ("code 10", None, False),
    ],
)
def test_failed_record_in_one_log_is_explained_by_a_deadline_or_an_abort(
    label: str, verdict: str | None, explained: bool
) -> None:
    ours, java = played((Send(0, 2),), "idempotent" if verdict is None else "tv2")
    for one in (ours, java):
        one.sent[1].report = failed(label)
        one.verdicts = {} if verdict is None else {0: verdict}
    java.logs = [("t", 0, {0: "r0"})]
    [finding] = [one for one in compare(ours, java) if one.kind == "log-failed"]
    assert finding.records == {"r1"}
    assert rows_of(finding, ours, java) == (["failed-record-in-log"] if explained else [])


def test_failure_is_explained_if_the_fault_met_other_records_at_the_other_client() -> None:
    ours, java = played((ProduceCode(10, times=2), Send(0, 2)))
    ours.sent[1].report = failed("code 10")
    java.sent[0].report = failed("code 10")
    ours.met, java.met = [(0, ("r1",)), (0, ("r1",))], [(0, ("r0",))]
    kinds_of = {one.what: rows_of(one, ours, java) for one in compare(ours, java) if one.what}
    assert kinds_of["r1"] == ["fault-hit-other-records"]
    java.met = [(0, ("r1",)), (0, ("r1",))]
    kinds_of = {one.what: rows_of(one, ours, java) for one in compare(ours, java) if one.what}
    assert kinds_of["r1"] == []


@pytest.mark.parametrize(("cause", "failure", "follows"), [(0, 1, True), (1, 0, False), (-1, 0, 0)])
def test_failure_of_ours_follows_only_in_later_transactions(
    cause: int, failure: int, follows: int
) -> None:
    first = Finding("call-ok", OURS, "", hard=False, transaction=cause)
    second = Finding("record-failed", OURS, "", hard=False, transaction=failure)
    assert can_follow(second, first) == bool(follows)
    assert can_follow(dataclasses.replace(second, kind="record-acked"), first)
    assert not can_follow(Finding("undelivered", OURS, "", hard=False), first)
    assert not can_follow(dataclasses.replace(second, kind="lost", hard=True), first)


@pytest.mark.parametrize(
    ("first", "excused"),
    [("unknown", True), ("rejected", False), (None, False)],
)
def test_first_sequence_above_zero_is_excused_behind_records_given_up_in_doubt(
    first: str | None, excused: bool
) -> None:
    made = evidence(violations=["('t', 0): producer 0 begins at 1"])
    made.logs = [("t", 0, {0: "r1"})]
    made.sent[0].report = Report(0, 0) if first is None else failed(outcome=first)
    made.sent[1].report = Report(0, 0)
    assert ("violation" in kinds(broken_rules(made))) != excused
    made.violations = ["('t', 1): producer 0 begins at 1"]
    assert "violation" in kinds(broken_rules(made)), "nothing of that partition failed"


@pytest.mark.parametrize("begins_late", [False, True])
@pytest.mark.parametrize("ours_in_order", [False, True])
def test_order_of_logs_is_explained_if_java_alone_overtook_its_first_batch(
    begins_late: bool, ours_in_order: bool
) -> None:
    ours, java = evidence(), evidence(client=JAVA)
    overtaken = [("t", 0, {0: "r1", 1: "r0"})]
    if ours_in_order:
        java.logs = overtaken
    else:
        ours.logs = overtaken
    if begins_late:
        java.violations = ["('t', 0): producer 0 begins at 1"]
    [finding] = [one for one in compare(ours, java) if one.kind == "log"]
    explained = begins_late and ours_in_order
    assert rows_of(finding, ours, java) == (["java-first-batch-overtaken"] if explained else [])
    java.violations = ["('t', 1): producer 0 begins at 1"]
    assert rows_of(finding, ours, java) == []


@pytest.mark.parametrize(
    ("what", "met", "explained"),
    [
        ("produce-strangers", ("r1",), True),
        ("produce-strangers", ("r0",), False),
        ("produce-twice", ("r1",), False),
    ],
)
def test_timeout_of_a_record_whose_answer_java_dropped_is_explained(
    what: str, met: tuple[str], explained: bool
) -> None:
    ours, java = played((Odd(what), Send(0, 2)), "tv2")
    ours.sent[1].report, java.sent[1].report = failed("code 76"), failed("timeout")
    java.met = [(0, met)]
    [finding] = [one for one in compare(ours, java) if one.kind == "record-error"]
    rows = rows_of(finding, ours, java)
    assert ("java-drops-unexpected-partitions" in rows) == explained
    ours.sent[1].report = failed("RecordRejected")
    [finding] = [one for one in compare(ours, java) if one.kind == "record-error"]
    assert "java-drops-unexpected-partitions" not in rows_of(finding, ours, java)


@pytest.mark.parametrize(
    ("fault", "mode", "outcome", "older", "explained"),
    [
        (Break(PRODUCE, "reset"), "idempotent", "unknown", "unknown", True),
        (When(PRODUCE, Do("disconnect")), "idempotent", "unknown", "unknown", True),
        (When(PRODUCE, Do("move-leader")), "idempotent", "unknown", "unknown", False),
        (Break(METADATA, "reset"), "idempotent", "unknown", "unknown", False),
        (Break(PRODUCE, "reset"), "idempotent", "rejected", "unknown", False),
        (Break(PRODUCE, "reset"), "idempotent", "unknown", "rejected", False),
        (Break(PRODUCE, "reset"), "tv2", "unknown", "unknown", False),
    ],
)
def test_gap_behind_a_lost_request_is_explained(
    fault: Break | When, mode: Mode, outcome: str, older: str, explained: bool
) -> None:
    ours, java = played((fault, Send(0, 2)), mode)
    ours.met = java.met = [(0, ("r0",))]
    ours.sent[0].report = failed("code 44", older)
    ours.sent[1].report = failed("code 45", outcome)
    [finding] = [one for one in compare(ours, java) if one.what == "r1"]
    assert rows_of(finding, ours, java) == (["gap-after-a-lost-request"] if explained else [])
    ours.met = java.met = []
    assert rows_of(finding, ours, java) == [], "no request was lost"


@pytest.mark.parametrize(
    ("stores", "divides", "label", "explained"),
    [
        (ProduceCode(15, append=True), ProduceCode(10), "code 45", True),
        (ProduceCode(15, append=False), ProduceCode(10), "code 45", False),
        (ProduceCode(15, append=True), ProduceCode(44), "code 45", False),
        (ProduceCode(15, append=True), ProduceCode(10), "code 10", False),
    ],
)
def test_parts_of_a_batch_that_was_stored_are_explained(
    stores: ProduceCode, divides: ProduceCode, label: str, explained: bool
) -> None:
    ours, java = played((stores, divides, Send(0, 2)))
    ours.sent[1].report = failed(label, "unknown")
    ours.met = java.met = [(0, ("r0", "r1")), (1, ("r0", "r1"))]
    [finding] = compare(ours, java)[:1]
    assert rows_of(finding, ours, java) == (["split-although-stored"] if explained else [])
    java.sent[1].report = failed("code 18")
    [finding] = [one for one in compare(ours, java) if one.kind == "record-error"]
    assert rows_of(finding, ours, java) == (["split-although-stored"] if explained else [])
    ours.met = java.met = [(0, ("r0",)), (1, ("r1",))]
    assert rows_of(finding, ours, java) == []


@pytest.mark.parametrize(
    ("killed", "outcome", "stored", "explained"),
    [
        (2, "unknown", True, True),
        (1, "unknown", True, False),
        (2, "not_sent", True, False),
        (2, "unknown", False, False),
    ],
)
def test_answer_lost_with_all_brokers_is_explained(
    killed: int, outcome: str, stored: bool, explained: bool
) -> None:
    kills = tuple(When(PRODUCE, Do("kill-leader", partition)) for partition in range(2))
    ours, java = played((*kills, Send(0, 2)))
    ours.sent[1].report = failed("timeout", outcome)
    ours.met = java.met = [(number, ("r1",)) for number in range(killed)]
    if not stored:
        ours.logs = [("t", 0, {0: "r0"})]
    [finding] = [one for one in compare(ours, java) if one.kind == "record-failed"]
    assert rows_of(finding, ours, java) == (["response-lost-with-the-cluster"] if explained else [])


@pytest.mark.parametrize(
    ("code", "met_by_java", "label", "explained"),
    [
        (53, False, "code 53", True),
        (53, True, "code 53", False),
        (44, False, "code 44", False),
        (53, False, "code 45", False),
    ],
)
def test_dead_producer_is_explained_by_a_fatal_code_that_missed_java(
    code: int, met_by_java: bool, label: str, explained: bool
) -> None:
    ours, java = played((ProduceCode(code), Send(0, 2)), "tv2", alive=False)
    ours.calls = [Called("begin", failed(label), 1, True), CLOSED]
    ours.met = [(0, ("r1",))]
    java.met = [(0, ("r1",))] if met_by_java else []
    [finding] = [one for one in compare(ours, java) if one.kind == "dead"]
    assert rows_of(finding, ours, java) == (["fault-hit-other-records"] if explained else [])


@pytest.mark.parametrize(
    ("java_label", "verdict", "explained"),
    [("code 47", "aborted", True), ("code 19", "aborted", False), ("code 47", "committed", False)],
)
def test_record_acknowledged_in_a_transaction_that_is_lost_anyway_is_explained(
    java_label: str, verdict: str, explained: bool
) -> None:
    ours, java = played((ProduceCode(47), Send(0, 2)), "tv2")
    ours.sent[1].report = java.sent[1].report = failed("code 47")
    java.sent[0].report = failed(java_label)
    for one in (ours, java):
        one.verdicts = {0: verdict}
        for sent in one.sent:
            sent.transaction = 0
    [finding] = [one for one in compare(ours, java) if one.kind == "record-acked"]
    assert rows_of(finding, ours, java) == (["transaction-must-be-aborted"] if explained else [])


@pytest.mark.parametrize(
    ("fault", "refused", "seconds", "explained"),
    [
        (Odd("leader-other"), 18, 0.3, True),
        (Odd("leader-other"), 18, 0.01, False),
        (Odd("leader-other"), 8, 0.3, False),
        (Odd("leader-minus-1"), 18, 0.3, False),
    ],
)
def test_requests_to_wrong_leaders_are_explained_within_their_backoff(
    fault: Odd, refused: int, seconds: float, explained: bool
) -> None:
    ours, java = played((fault, Send(0, 2)), "plain", seconds=seconds)
    ours.requests[PRODUCE], java.requests[PRODUCE] = 20, 4
    ours.refusals = ["NOT_LEADER_OR_FOLLOWER: leader is 1"] * refused
    ours.met = [(0, ("metadata",))]
    [finding] = [one for one in compare(ours, java) if one.kind == "more-produce"]
    rows = ["metadata-refreshed-less-often"] if explained else []
    assert rows_of(finding, ours, java) == rows


@pytest.mark.parametrize(
    ("label", "stored", "want", "explained"),
    [
        ("code 45", True, 4, True),
        ("code 45", False, 4, False),
        ("code 45", True, 0, False),
        ("code 29", True, 4, False),
    ],
)
def test_java_that_restarts_its_sequences_below_the_log_is_explained(
    label: str, stored: bool, want: int, explained: bool
) -> None:
    ours, java = played((ProduceCode(7, append=True), Send(0, 2)), "tv1")
    java.alive = False
    java.sent[1].report = failed("code 44")
    if not stored:
        java.logs = [("t", 0, {0: "r0"})]
    java.sent.append(Sent(2, "z2", "t", 0, 1, True, failed(label)))
    java.refusals = [f"OUT_OF_ORDER_SEQUENCE_NUMBER: producer 0 epoch 0 sequence 0: want {want}"]
    [finding] = [one for one in compare(ours, java) if one.kind == "alive"]
    assert rows_of(finding, ours, java) == (["java-reuses-sequences"] if explained else [])


@pytest.mark.parametrize(
    ("error", "label", "explained"),
    [
        ("AbortableTransactionError", "timeout", True),
        ("FatalTransactionError", "timeout", False),
        ("AbortableTransactionError", "code 19", False),
    ],
)
def test_java_that_waits_in_commit_is_explained_by_an_abortable_error_of_ours(
    error: str, label: str, explained: bool
) -> None:
    ours, java = played((Call("begin"), Send(0, 2), Call("end")), "tv2", verdicts={0: "aborted"})
    refused = Report(label="code 10", error=error)
    ours.calls = [Called("commit", refused, 0, False), Called("abort", Report(), 0, False), CLOSED]
    late = failed(label)
    java.calls = [Called("commit", late, 0, False), Called("commit", late, 0, False), CLOSED]
    [finding] = [one for one in compare(ours, java) if one.kind == "call-order"]
    assert rows_of(finding, ours, java) == (["java-waits-in-commit"] if explained else [])
