"""The documented differences between clients: each row of docs/differences.md and the function that
recognises it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

from tests.differential.clients import HUNG, JAVA, LIBRDKAFKA, OURS, TIMEOUT, Report
from tests.differential.comparison import (
    FORGETFUL,
    Finding,
    deeds,
    endless,
    is_false_refusal,
    met_by,
    met_differently,
)
from tests.differential.odd_metadata import EDITS
from tests.differential.script import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    API_VERSIONS,
    COMMON,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    TOPIC,
    TXN_OFFSET_COMMIT,
    ApiCode,
    Break,
    Fault,
    Odd,
    ProduceCode,
    Script,
    When,
)
from tests.differential.stage import Called, Evidence

Predicate = Callable[[Finding, dict[str, Evidence]], bool]


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        id: id in docs/differences.md.
        explains: returns True if a finding of a script is this difference.
        follows: further differences of the same script may follow from this one: a producer that
            continues where the other one is dead sends other requests and gets other responses.
            This never explains a broken rule.
        by_timing: the difference depends on the timing of the other client, so a run may not show
            it.
    """

    id: str
    explains: Predicate
    follows: bool = False
    by_timing: bool = False


ROWS: list[Row] = []
TABLE = Path(__file__).parents[2] / "docs" / "differences.md"


def documented() -> list[str]:
    """Return the ids of the table in docs/differences.md, in order."""
    return re.findall(r"^\| `([a-z0-9-]+)` \|", TABLE.read_text(), re.MULTILINE)


def row(
    name: str, *, follows: bool = False, by_timing: bool = False
) -> Callable[[Predicate], Predicate]:
    """Register a predicate under the id of its row."""

    def enter(function: Predicate) -> Predicate:
        ROWS.append(Row(name, function, follows, by_timing))
        return function

    return enter


def _script(evidence: dict[str, Evidence]) -> Script:
    return evidence[OURS].script


def _has_code(report: Report | None) -> bool:
    return report is not None and report.label.startswith("code ")


def _errors(finding: Finding) -> tuple[Report, Report] | None:
    """Return both reports if the same call or record failed in both clients, else None."""
    if finding.kind in ("record-error", "call-error") and finding.ours and finding.java:
        return finding.ours, finding.java
    return None


# -- what an error is called ----------------------------------------------------------------------


@row("error-without-code")
def _error_without_code(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Java wraps unexpected codes, and the consequences of an earlier error, in KafkaException."""
    errors = _errors(finding)
    return errors is not None and errors[1].error in (
        "KafkaException",
        "IllegalStateException",
        "UnknownServerException",
    )


@row("error-in-transaction")
def _error_in_transaction(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """The same result with another error class. The following calls show whether the clients can
    continue in the same way."""
    errors = _errors(finding)
    if errors is None or not _script(evidence).transactional:
        return False
    words = ("TransactionError", "ProducerFenced", "AuthorizationError", "BrokerError")
    return errors[0].error.endswith(words) and errors[1].label != HUNG


@row("timeout-or-last-response")
def _timeout_or_last_answer(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A call that ends at its deadline has the error of the deadline or that of the last
    response."""
    errors = _errors(finding)
    if errors is None:
        return False
    labels = {errors[0].label, errors[1].label}
    if labels == {TIMEOUT, "code 7"}:
        return True  # Java has one class for both codes
    if labels == {TIMEOUT, "code 35"}:
        return _names(_script(evidence), API_VERSIONS)  # a broker that offers too few versions
    return TIMEOUT in labels and endless(_script(evidence))


# -- ours continues, Java's does not ---------------------------------------------------------------


FENCING: Final = frozenset({47, 90})
"""A producer that continues after one of these in a transaction would be a defect of ours."""

JAVA_STOPS_SENDING: Final = frozenset(
    {
        "produce-strangers",
        "produce-other-partition",
        "produce-empty",
        "produce-no-partitions",
    }
)
"""Responses without the requested partition: Java never completes the batch, and with one request
in flight per partition sends no other one."""

JAVA_IS_IN_AN_ERROR_STATE: Final = (
    "in an error state",
    "Invalid transition attempted",
    "cannot execute transactional method because",
)
"""Texts in Java's errors when its transaction manager accepts no further call."""


@row("java-fatal", follows=True)
def _java_is_dead(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A code that Java does not expect, or a response without the partition, ends its producer."""
    if finding.kind != "alive":
        return False
    script, java = _script(evidence), evidence[JAVA]
    reports = [sent.report for sent in java.sent if sent.fresh]
    reports += [called.report for called in java.calls if called.fresh]
    wrong = [one for one in reports if one is not None and not one.ok]
    failed = {one.label for one in wrong}
    fatal = {label for fault in script.faults for label in _ends_java(fault, script)}
    if "forget-transactions" in deeds(script):
        fatal.add("code 49")  # INVALID_PRODUCER_ID_MAPPING
    is_in_an_error_state = all(
        any(text in one.message for text in JAVA_IS_IN_AN_ERROR_STATE) for one in wrong
    )
    if "fence" not in deeds(script) and fatal and (failed & fatal or is_in_an_error_state):
        return True
    odd = {fault.what for fault in script.faults if isinstance(fault, Odd)}
    return failed <= {TIMEOUT, HUNG} and bool(odd & JAVA_STOPS_SENDING)


def _ends_java(fault: Fault, script: Script) -> set[str]:
    """Return the labels with which Java's producer fails permanently after this fault."""
    if isinstance(fault, ProduceCode) and fault.code == 46 and not fault.append:
        return {"code 45", "code 46"}  # Java assumes that the broker has these sequences
    if isinstance(fault, Odd) and fault.what == "add-partitions-empty":
        return {"code 90"}  # as after UNKNOWN_PRODUCER_ID, see below
    if not isinstance(fault, (ApiCode, ProduceCode)):
        return set()
    if fault.code not in FENCING:
        labels = {f"code {fault.code}"}
        adds = (ADD_PARTITIONS, ADD_OFFSETS)
        if _is_code(fault, 59) and fault.api in adds and fault.process:
            # Java requests a new epoch while the transaction is open at the coordinator.
            labels.add("code 90")
        return labels
    if script.transactional:
        return set()
    # Java reports INVALID_PRODUCER_EPOCH of InitProducerId as PRODUCER_FENCED.
    return {f"code {fault.code}", "code 90"}


@row("java-accepts-producer-id-minus-1", follows=True)
def _java_takes_minus_1(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """InitProducerId returns producer id -1 and no error: Java continues with it."""
    faults = _script(evidence).faults
    asked_again = finding.kind == "call-failed" and finding.what == "init"
    return (finding.kind == "alive" or asked_again) and any(
        isinstance(fault, Odd) and fault.what == "producer-id-minus-1" for fault in faults
    )


@row("java-sends-rejected-records")
def _java_sends_refused(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Records that Java refused with IllegalStateException, because no transaction was open, stay
    in its accumulator and are sent with the next transaction."""
    if finding.kind not in ("log-failed", "committed-failed") or finding.client != OURS:
        return False
    logs = (values for _, _, values in evidence[OURS].logs)
    stored = {value for values in logs for value in values.values()}
    refused = {
        sent.value
        for sent in evidence[JAVA].sent
        if sent.report is not None and sent.report.error == "IllegalStateException"
    }
    return bool(finding.records) and finding.records <= refused - stored


@row("abort-without-a-transaction")
def _abort_without_a_transaction(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """`begin_transaction` failed in both clients; in Java the following abort only clears the
    error."""
    if finding.kind != "call-failed" or finding.what != "abort" or finding.ours is None:
        return False
    calls = (*evidence[OURS].calls, *evidence[JAVA].calls)
    began = any(call.report.ok for call in calls if _begins(call))
    return "no transaction is open" in finding.ours.message and not began


def _begins(call: Called) -> bool:
    return call.name == "begin" and not call.fresh


@row("java-keeps-api-versions", follows=True)
def _java_keeps_the_versions(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A response to ApiVersions contains no API: Java keeps it for the life of the connection, ours
    requests it again on a new connection."""
    return (
        finding.kind == "alive"
        and any(
            isinstance(fault, Odd) and fault.what == "no-api-keys"
            for fault in _script(evidence).faults
        )
        and evidence[OURS].requests[API_VERSIONS] > evidence[JAVA].requests[API_VERSIONS]
    )


@row("random-metadata-broker")
def _asked_by_chance(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Each broker lists only itself: whether the new leader is found depends on which broker gets
    the first metadata request, and Java chooses it at random."""
    lists_itself = any(
        isinstance(fault, Odd) and fault.what == "only-this-broker" and fault.times is None
        for fault in _script(evidence).faults
    )
    reports = (finding.ours, finding.java)
    return (
        lists_itself
        and finding.kind in ("record-failed", "record-acked")
        and any(report is not None and report.label == TIMEOUT for report in reports)
    )


@row("java-waits-for-coordinator", follows=True)
def _java_waits(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """While it repeats a transactional request, Java neither sends nor expires batches."""
    if finding.client == JAVA:
        return finding.kind == "hung" and _names_coordinator(_script(evidence))
    java = finding.java
    return (
        finding.kind in ("record-acked", "call-ok")
        and java is not None
        and java.label in (TIMEOUT, HUNG, "code 120")
        and _names_coordinator(_script(evidence))
    )


@row("java-repeats-until-timeout", follows=True)
def _java_in_vain(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Java repeats the request until its deadline after these responses. Ours reads or works around
    them, or fails the record with outcome UNKNOWN at once, because the broker has lost the
    producer's state."""
    java, ours = finding.java, finding.ours
    if finding.kind == "record-error":
        return (
            java is not None
            and ours is not None
            and java.label == TIMEOUT
            and ours.label == "code 45"
            and ours.outcome == "unknown"
            and bool(deeds(_script(evidence)) & FORGETFUL)
        )
    return (
        finding.kind in ("record-acked", "call-ok")
        and java is not None
        and java.label in (TIMEOUT, HUNG, "code 120")
        and (
            any(isinstance(fault, (Odd, Break)) for fault in _script(evidence).faults)
            or bool(deeds(_script(evidence)) & FORGETFUL)
            or _names(_script(evidence), METADATA)
            or "code 59" in _codes(_script(evidence))
        )
    )


@row("java-first-batch-overtaken", follows=True)
def _overtaken(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A broker accepts any first sequence of a producer without state: Java's second batch is
    appended before the first one, which is then out of sequence until its deadline."""
    java = evidence[JAVA]
    if finding.kind in ("log", "committed"):
        # The first batch was repeated in time.
        committed = finding.kind == "committed"
        begins_late = f"('{TOPIC}', {finding.partition}): producer"
        return (
            any(text.startswith(begins_late) and "begins at" in text for text in java.violations)
            and _in_order(evidence[OURS], finding.partition, committed=committed)
            and not _in_order(java, finding.partition, committed=committed)
        )
    late = [sent for sent in java.sent if sent.report and sent.report.label == TIMEOUT]
    return finding.kind in ("record-acked", "call-ok", "call-order") and any(
        one.partition == other.partition and one.number < other.number
        for one in late
        for other in java.sent
        if other.report and other.report.ok and not other.fresh
    )


def _in_order(evidence: Evidence, partition: int, *, committed: bool) -> bool:
    """Return True if the first copies of a partition's records are in the order of submission."""
    numbers = {sent.value: sent.number for sent in evidence.sent}
    found = dict.fromkeys(evidence.values(partition, committed=committed))
    order = [numbers[value] for value in found]
    return order == sorted(order)


@row("java-drops-unexpected-partitions")
def _java_drops_answers(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A response that ends Java's sender had an error code for the record."""

    def ends_the_pass(fault: Fault) -> bool:
        return isinstance(fault, Odd) and fault.what in JAVA_STOPS_SENDING

    return (
        finding.kind == "record-error"
        and finding.ours is not None
        and finding.java is not None
        and _has_code(finding.ours)
        and finding.java.label == TIMEOUT
        and finding.what in met_by(evidence[JAVA], ends_the_pass)
    )


@row("java-hangs-on-invalid-frames", follows=True)
def _java_garbage(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Invalid bytes end Java's sender, or it waits for the rest of a huge frame until memory runs
    out."""
    broken = {fault.how for fault in _script(evidence).faults if isinstance(fault, Break)}
    if not broken & {"garbage", "correlation"}:
        return False
    if finding.client == JAVA:
        return finding.kind in ("hung", "close")
    fresh = [sent.report for sent in evidence[JAVA].sent if sent.fresh]
    failed = {one.label for one in fresh if one is not None and not one.ok}
    return finding.kind == "alive" and failed <= {TIMEOUT, HUNG}


@row("java-waits-in-commit", follows=True)
def _java_waits_in_commit(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A commit that can no longer succeed: ours fails at once, Java's call times out first."""
    mine, others = (
        [one.report for one in evidence[client].calls if one.name == "commit" and not one.fresh]
        for client in (OURS, JAVA)
    )
    return (
        finding.kind == "call-order"
        and TIMEOUT in {report.label for report in others}
        # Producers that must be closed are in another row.
        and all(one.ok or one.error == "AbortableTransactionError" for one in mine)
        and not any(
            ours == "committed" and evidence[JAVA].verdicts.get(number) != "committed"
            for number, ours in evidence[OURS].verdicts.items()
        )
    )


@row("begin-requests-producer-id", follows=True)
def _begin_initialises(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A refused initialisation may be repeated; begin_transaction does this."""
    java = finding.java
    return (
        finding.kind == "call-ok"
        and finding.what in ("init", "begin")
        and java is not None
        and java.error == "IllegalStateException"
    )


@row("java-fails-later-batches", follows=True)
def _java_fails_others(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """The refusal of one batch fails the batches queued after it, or the batch is not retried."""
    java = finding.java
    return (
        finding.kind in ("record-acked", "call-ok")
        and java is not None
        and (
            java.label in _codes(_script(evidence)) - {"code 47"}
            or "code 8" in _codes(_script(evidence))
            or (java.label == "code 35" and _names(_script(evidence), API_VERSIONS))
        )
    )


@row("java-leaves-a-gap", follows=True)
def _java_gap(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """After a failed batch, Java's next batch may be out of sequence; ours starts a new epoch."""
    return (
        finding.kind in ("record-acked", "record-error")
        and finding.java is not None
        and finding.java.label == "code 45"
    )


@row("epoch-is-bumped-and-batch-repeated", follows=True)
def _bumped(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """INVALID_PRODUCER_EPOCH without transactions: Java also bumps the epoch, but fails the
    batch."""
    return (
        finding.kind == "record-acked"
        and _script(evidence).mode == "idempotent"
        and finding.java is not None
        and finding.java.label == "code 47"
    )


# -- Java's continues, ours does not ---------------------------------------------------------------


@row("transaction-must-be-aborted")
def _lost_anyway(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """The remaining records of a transaction that can only be aborted are not sent, or fail with
    it."""
    if not _script(evidence).transactional:
        return False
    if finding.kind == "record-failed":
        numbers = {s.transaction for s in evidence[OURS].sent if s.value == finding.what}
    elif finding.kind == "record-acked" and finding.java is not None:
        # Ours sent this record before another record of the transaction failed. Java failed it with
        # the error of that other record.
        failed = [
            sent
            for sent in evidence[JAVA].sent
            if sent.transaction == finding.transaction and sent.value != finding.what
        ]
        if finding.java.label not in {sent.report.label for sent in failed if sent.report}:
            return False
        numbers = {finding.transaction}
    elif finding.kind == "call-failed" and finding.what == "offsets":
        numbers = {
            one.transaction
            for one in evidence[OURS].calls
            if one.name == "offsets" and not one.report.ok
        }
    else:
        return False
    return all(
        evidence[client].verdicts.get(number) not in (None, "committed")
        for number in numbers
        for client in (OURS, JAVA)
    )


@row("duplicate-sequence-without-idempotence", follows=True)
def _duplicate_plain(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """DUPLICATE_SEQUENCE_NUMBER for a batch without a sequence: Java reports success."""
    return (
        finding.kind == "record-failed"
        and _script(evidence).mode == "plain"
        and finding.ours is not None
        and finding.ours.label == "code 46"
    )


@row("deadline-while-waiting-for-producer-id", follows=True)
def _deadline_without_id(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Ours applies delivery.timeout.ms while InitProducerId is repeated; Java continues to wait."""
    return (
        finding.kind == "record-failed"
        and _script(evidence).mode == "idempotent"
        and finding.ours is not None
        and finding.ours.outcome == "not_sent"
        and endless(_script(evidence))
        and _names(_script(evidence), INIT_PRODUCER_ID)
    )


@row("unknown-producer-id-in-transaction", follows=True)
def _unknown_producer_id(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """UNKNOWN_PRODUCER_ID from Produce in a transaction: Java retries the batch in the
    transaction."""

    def forgets(fault: Fault) -> bool:
        return isinstance(fault, ProduceCode) and fault.code == 59

    script = _script(evidence)
    if finding.kind == "dead":
        # The epoch would have to be bumped before the next transaction.
        return script.transactional and before_2_5(script) and any(map(forgets, script.faults))
    return (
        finding.kind in ("call-failed", "call-order", "record-failed")
        and script.transactional
        and _concerns(finding, evidence, met_by(evidence[OURS], forgets))
    )


@row("unknown-producer-id-of-coordinators", follows=True)
def _unknown_at_coordinator(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """UNKNOWN_PRODUCER_ID from EndTxn or TxnOffsetCommit: Java's transaction is aborted."""
    told = {fault.api for fault in _script(evidence).faults if _is_code(fault, 59)}
    return finding.kind in ("call-failed", "dead") and bool(told & {END_TXN, TXN_OFFSET_COMMIT})


@row("coordinator-without-address", follows=True)
def _no_address(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """FindCoordinator returns a node without a host: Java uses its connection to that node."""
    return finding.kind == "call-failed" and any(
        isinstance(fault, Odd) and fault.what == "coordinator-empty-host"
        for fault in _script(evidence).faults
    )


@row("fenced-by-old-brokers", follows=True)
def _fenced_by_old(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """INVALID_PRODUCER_EPOCH in a transaction, from brokers that cannot bump an epoch."""
    script = _script(evidence)
    return (
        finding.kind in ("dead", "call-failed")
        and script.transactional
        and before_2_5(script)
        and "code 47" in _codes(script)
    )


def before_2_5(script: Script) -> bool:
    """Brokers that cannot bump an epoch (KIP-360)."""
    return script.profile in ("1.0", "2.1")


@row("brokers-without-producer-ids", follows=True)
def _no_producer_ids(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Brokers that do not offer InitProducerId: ours recommends to disable idempotence."""
    fresh = [sent.report for sent in evidence[OURS].sent if sent.fresh]
    reports = fresh if finding.kind == "dead" else [finding.ours]
    return (
        bool(reports)
        and all(one is not None and "older than Kafka 0.11" in one.message for one in reports)
        and _names(_script(evidence), API_VERSIONS)
    )


@row("gap-after-a-lost-request")
def _gap_behind_lost(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """OUT_OF_ORDER_SEQUENCE_NUMBER after a record in doubt, when requests were lost: ours cannot
    tell whether copies of both will arrive, Java renumbers the record."""
    ours = evidence[OURS]
    script = ours.script

    def loses(fault: Fault) -> bool:
        if isinstance(fault, Break):
            return fault.api == PRODUCE
        return isinstance(fault, When) and fault.do.what in CUTTING

    if finding.kind != "record-failed" or script.mode != "idempotent" or finding.ours is None:
        return False
    if finding.ours.label != "code 45" or finding.ours.outcome != "unknown":
        return False
    record = next(sent for sent in ours.sent if sent.value == finding.what)
    older = [
        sent.report
        for sent in ours.sent
        if sent.partition == record.partition and sent.number < record.number
    ]
    return (
        "code 45" not in _codes(script)
        and bool(met_by(ours, loses))
        and any(one is not None and one.outcome == "unknown" for one in older)
    )


CUTTING: Final = frozenset({"disconnect", "kill-leader"})
"""Actions that close connections with unanswered requests."""


@row("split-although-stored")
def _divided(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """MESSAGE_TOO_LARGE for a batch that is in the log: ours divides it; Java resends a batch that
    is not larger than batch.size unchanged. After RECORD_LIST_TOO_LARGE Java fails it."""
    ours = evidence[OURS]

    def stores(fault: Fault) -> bool:
        return isinstance(fault, ProduceCode) and fault.append

    def divides(fault: Fault) -> bool:
        return isinstance(fault, ProduceCode) and fault.code in (10, 18) and not fault.append

    return (
        finding.kind in ("record-failed", "call-failed", "record-error")
        and ours.script.mode != "plain"
        and finding.ours is not None
        and finding.ours.label == "code 45"
        and _concerns(finding, evidence, met_by(ours, stores) & met_by(ours, divides))
    )


@row("response-lost-with-the-cluster", by_timing=True)
def _answer_lost(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """All brokers were killed while the response for a stored record was in flight."""
    ours = evidence[OURS]
    faults = ours.script.faults
    killed = [n for n, _ in ours.met if isinstance(faults[n], When) and _kills(faults[n])]
    return (
        finding.kind == "record-failed"
        and finding.ours is not None
        and finding.ours.label == TIMEOUT
        and finding.ours.outcome == "unknown"
        and any(finding.what in values.values() for _, _, values in ours.logs)
        and len(killed) >= ours.script.brokers
    )


def _kills(fault: Fault) -> bool:
    return isinstance(fault, When) and fault.do.what == "kill-leader"


@row("after-a-false-error", follows=True)
def _after_a_lie(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A broker appended a batch and returned a code that brokers check before the append. The
    second copy has consequences for records of its partition."""
    if _script(evidence).mode == "plain":
        return False
    kinds = ("call-failed", "call-order", "call-ok", "record-failed", "record-acked")
    met = {v for one in evidence.values() for v in met_by(one, is_false_refusal)}
    sent = {s.value: s.partition for one in evidence.values() for s in one.sent}
    partitions = {sent[value] for value in met}
    behind = {value for value, partition in sent.items() if partition in partitions}
    return finding.kind in kinds and _concerns(finding, evidence, behind)


@row("fault-hit-other-records")
def _met_others(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """The n-th batch or request, which a fault affects, has other records at each client."""
    if finding.kind == "dead":
        return _ended_by_fault_that_missed_java(evidence)
    others = met_differently(evidence[OURS], evidence[JAVA])
    return bool(others) and _concerns(finding, evidence, others)


FATAL_IN_BOTH: Final = frozenset({31, 35, 53})
"""Codes in a Produce response in a transaction that end both producers (Java
`TransactionManager.maybeTransitionToErrorState`)."""


def _ended_by_fault_that_missed_java(evidence: dict[str, Evidence]) -> bool:
    ours, java = evidence[OURS], evidence[JAVA]
    faults = ours.script.faults
    met, met_by_java = ({number for number, _ in one.met} for one in (ours, java))
    fatal = {
        f"code {fault.code}"
        for number in met - met_by_java
        if isinstance(fault := faults[number], ProduceCode) and fault.code in FATAL_IN_BOTH
    }
    reports = [called.report for called in ours.calls if called.fresh and called.name != "close"]
    failed = {report.label for report in reports if not report.ok}
    return ours.script.transactional and bool(failed) and failed <= fatal


# -- requests -------------------------------------------------------------------------------------


@row("backoff-grows")
def _backoff_grows(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Java repeats requests to coordinators and for producer ids with a constant
    retry.backoff.ms."""
    return finding.kind.startswith("fewer-")


@row("metadata-refreshed-less-often")
def _misled_for_longer(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Metadata contained wrong leaders: batches are retried, each with its growing backoff, until
    the next metadata response, which ours requests after 50 ms at the earliest."""
    ours, java = evidence[OURS], evidence[JAVA]
    if finding.kind != "more-produce" or not met_by(ours, _misleads):
        return False
    refused = sum(text.startswith("NOT_LEADER_OR_FOLLOWER") for text in ours.refusals)
    excess = ours.requests[PRODUCE] - 1.6 * java.requests[PRODUCE] - 4
    return excess <= refused <= len(ours.sent) * _attempts_within(ours.seconds)


def _misleads(fault: Fault) -> bool:
    return isinstance(fault, Odd) and fault.what == "leader-other"


def _attempts_within(seconds: float) -> int:
    """Return the maximum number of attempts at one batch that its backoff allows."""
    first, longest = (int(COMMON[f"retry.backoff.{key}"]) for key in ("ms", "max.ms"))
    attempts, spent_ms = 1, 0.0
    while spent_ms < seconds * 1000:
        spent_ms += 0.8 * min(longest, first * 2 ** (attempts - 1))
        attempts += 1
    return attempts


@row("failed-record-in-log")
def _failed_in_log(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """A record that failed in both clients is in only one of the logs: it expired, or its
    transaction was given up, before or after the write."""
    if finding.kind not in ("log-failed", "committed-failed"):
        return False
    return all(_in_doubt(finding.kind, value, evidence) for value in finding.records)


def _in_doubt(kind: str, value: str, evidence: dict[str, Evidence]) -> bool:
    """Return True if the record expired, or if the outcome of its transaction is unknown."""
    found = [(one, s) for one in (evidence[OURS], evidence[JAVA]) for s in one.sent]
    found = [(one, sent) for one, sent in found if sent.value == value]
    if any(sent.report is not None and sent.report.label == TIMEOUT for _, sent in found):
        return True
    verdicts = [one.verdicts.get(sent.transaction) for one, sent in found]
    if kind == "committed-failed":
        return "unknown" in verdicts
    return all(verdict not in (None, "committed") for verdict in verdicts)


# -- rules that others break ----------------------------------------------------------------------


@row("java-reuses-sequences")
def _java_reuses(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Java reuses the sequence of a batch that failed with a code that Java treats as definite."""
    if finding.kind == "alive":
        return _restarts_below_the_log(evidence[JAVA])
    return finding.client == JAVA and finding.kind in (
        "lost", "misplaced", "order", "commit-lost", "commit-part"
    )  # fmt: skip


def _restarts_below_the_log(java: Evidence) -> bool:
    """Return True if each transaction begins with sequence 0 under the epoch of a failed batch that
    was stored: it is out of sequence forever."""
    stored = {value for partition in range(3) for value in java.values(partition)}
    failed = {sent.value for sent in java.sent if sent.report is not None and not sent.report.ok}
    fresh = {sent.report.label for sent in java.sent if sent.fresh and sent.report is not None}
    return (
        java.script.transactional
        and bool(stored & failed)
        and fresh == {"code 45"}
        and any(re.search(r" sequence 0: want [1-9]", text) for text in java.refusals)
    )


@row("java-trusts-unexpected-codes")
def _java_trusts(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Coordinator requests were executed and returned a code that Java treats as a refusal: an
    abort after the commit counts as successful, an open transaction stays open."""
    return finding.client == JAVA and finding.kind in ("left-ongoing", "abort-denied")


@row("java-stores-twice")
def _java_twice(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    """Java renumbers a batch that is in the log after an earlier batch was given up."""
    return finding.client == JAVA and finding.kind == "twice"


@row("librdkafka-breaks-rules")
def _librdkafka(finding: Finding, evidence: dict[str, Evidence]) -> bool:
    return finding.client == LIBRDKAFKA


def _is_code(fault: Fault, code: int) -> TypeGuard[ApiCode]:
    return isinstance(fault, ApiCode) and fault.code == code


def _concerns(finding: Finding, evidence: dict[str, Evidence], values: set[str]) -> bool:
    """Return True if the finding is about one of these records or a transaction with one of
    them."""
    if finding.kind.endswith("-failed") and finding.records:
        return finding.records <= values
    if finding.transaction < 0:
        return finding.what in values
    return any(
        sent.value in values
        for client in (OURS, JAVA)
        for sent in evidence[client].sent
        if sent.transaction == finding.transaction
    )


def _codes(script: Script) -> set[str]:
    """Return the labels of the codes that the script's brokers return."""
    told = {f"code {fault.code}" for fault in script.faults if hasattr(fault, "code")}
    return told | {f"code {f.value}" for f in script.faults if isinstance(f, Odd) and f.value}


def _names(script: Script, api: int) -> bool:
    """Return True if some fault concerns this API."""
    return any(
        getattr(fault, "api", None) == api
        or (isinstance(fault, Odd) and EDITS[fault.what][0] == api)
        for fault in script.faults
    )


def _names_coordinator(script: Script) -> bool:
    apis = (FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS, ADD_OFFSETS, TXN_OFFSET_COMMIT)
    return any(_names(script, api) for api in (*apis, END_TXN))
