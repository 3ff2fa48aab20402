"""The rules that every client must keep, and the differences between our producer and Java's."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.differential.clients import GONE, HUNG, JAVA, LIBRDKAFKA, OURS, Report
from tests.differential.script import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    API_NAMES,
    API_VERSIONS,
    COMMON,
    END_TXN,
    PRODUCE,
    ApiCode,
    Do,
    Fault,
    ProduceCode,
    Script,
    When,
)
from tests.differential.stage import Called, Evidence, Sent

CHECKED_BEFORE_APPEND: Final = frozenset(
    {2, 10, 17, 18, 19, 21, 29, 31, 32, 35, 42, 43, 44, 45, 47, 48, 49, 51, 53, 55, 59, 76, 87, 90}
    | {100, 103, 120}
)
"""Codes that every broker version returns only before the append. A script that appends a batch and
returns one of them simulates a broker that lies, against which no client can defend."""

CHECKED_BEFORE_END: Final = frozenset({29, 30, 31, 35, 42, 47, 48, 49, 51, 53, 55, 90, 120})
"""Codes that a transaction coordinator returns only before it writes to its log, or that imply that
nothing was attempted."""

FORGETFUL: Final = frozenset({"forget-producers", "retain", "recreate", "recreate-elsewhere"})
"""Actions after which brokers no longer have the producer state by which they detect duplicates."""

AGAINST_US: Final = frozenset({"record-failed", "call-failed", "dead", "undelivered"})
"""Findings where ours fails and Java's does not."""

LEFT_TO_CHANCE: Final = frozenset({"no-jitter", "undelivered"})
"""Rules with a deadline that a busy machine can break: they must be broken more than once."""

DUPLICATE_SEQUENCE: Final = 46
INVALID_PRODUCER_ID_MAPPING: Final = 49


@dataclass(frozen=True)
class Finding:
    """A broken rule or a difference.

    Attributes:
        kind: kind of rule ("lost", "hung" ...) or of difference ("record", "call" ...).
        client: the client that broke the rule. For differences, ours.
        hard: valid without a comparison.
        ours, java: the two reports of a difference between calls or records.
        what: the record's value or the call's name.
        transaction: transaction of the record or call, or -1 outside a transaction.
        records: values that are in one log only.
        partition: whose logs differ, or -1 for other findings.
    """

    kind: str
    client: str
    text: str
    hard: bool
    ours: Report | None = None
    java: Report | None = None
    what: str = ""
    transaction: int = -1
    records: frozenset[str] = frozenset()
    partition: int = -1

    def __str__(self) -> str:
        return f"{'RULE' if self.hard else 'difference'} {self.kind} [{self.client}]: {self.text}"


def deeds(script: Script) -> set[str]:
    """Return the names of the actions on the cluster."""
    steps = [step.do if isinstance(step, When) else step for step in script.steps]
    return {step.what for step in steps if isinstance(step, Do)}


def endless(script: Script) -> bool:
    """True if a fault lasts until the deadline of the records or calls that it affects."""
    return any(getattr(fault, "times", 1) is None for fault in script.faults)


def lies_about_append(script: Script) -> bool:
    """Return True if brokers append a batch and respond with an error that denies the append."""
    return any(is_false_refusal(fault) for fault in script.faults)


def is_false_refusal(fault: Fault) -> bool:
    """Return True if a batch is appended and gets a code that brokers check before the append."""
    if isinstance(fault, ProduceCode):
        return fault.append and fault.code in CHECKED_BEFORE_APPEND
    if isinstance(fault, ApiCode) and fault.api == PRODUCE:
        return fault.process and fault.code in CHECKED_BEFORE_APPEND
    return False


def met_by(evidence: Evidence, chosen: Callable[[Fault], bool]) -> set[str]:
    """Return the values of the records that some of these faults affected."""
    faults = evidence.script.faults
    return {value for number, values in evidence.met if chosen(faults[number]) for value in values}


def met_differently(ours: Evidence, java: Evidence) -> set[str]:
    """Return the values of records that faults affected at one client but not at the other, or
    later there.

    A fault affects the n-th request or batch, and clients distribute records differently over them.
    Only temporary faults are compared: a permanent fault affects all records.
    """
    found: set[str] = set()
    for number, fault in enumerate(ours.script.faults):
        if getattr(fault, "times", 1) is None:
            continue
        one, two = ([m for n, m in client.met if n == number] for client in (ours, java))
        same = 0
        while same < min(len(one), len(two)) and one[same] == two[same]:
            same += 1
        found.update(value for values in (*one[same:], *two[same:]) for value in values)
    return found & {sent.value for sent in (*ours.sent, *java.sent)}


def lies_about_transaction(script: Script, *apis: int) -> bool:
    """Return True if a coordinator executes a request and returns an error that denies it, or
    denies the producer id of an open transaction."""
    return any(
        isinstance(fault, ApiCode)
        and fault.api in apis
        and (fault.process or fault.code == INVALID_PRODUCER_ID_MAPPING)
        and fault.code in CHECKED_BEFORE_END
        for fault in script.faults
    )


def lies_about_duplicate(script: Script) -> bool:
    """Return True if brokers claim to have a batch that they do not have."""
    return any(
        isinstance(fault, ProduceCode) and fault.code == DUPLICATE_SEQUENCE and not fault.append
        for fault in script.faults
    ) or any(
        isinstance(fault, ApiCode) and fault.api == 0 and fault.code == DUPLICATE_SEQUENCE
        for fault in script.faults
    )


# -- rules ----------------------------------------------------------------------------------------


def broken_rules(evidence: Evidence) -> list[Finding]:
    """Return the rules that this client broke."""
    rules = (_jitter, _ends, _stored, _definite, _unique, _ordered, _transactions, _tidy)
    return [
        Finding(kind, evidence.client, text, hard=kind not in LEFT_TO_CHANCE)
        for rule in rules
        for kind, text in rule(evidence)
    ]


Found = Iterator[tuple[str, str]]


def _report(sent: Sent) -> Report:
    assert sent.report is not None, f"{sent.value} was not settled"
    return sent.report


def _places(evidence: Evidence, sent: Sent) -> list[tuple[int, int, int]]:
    """Return (number of the log, partition, offset) of each copy of a record."""
    return [
        (number, partition, offset)
        for number, (_, partition, values) in enumerate(evidence.logs)
        for offset, value in values.items()
        if value == sent.value
    ]


def _ends(evidence: Evidence) -> Found:
    """Every call must end."""
    for sent in evidence.sent:
        if _report(sent).label in (HUNG, GONE):
            yield "hung", f"{sent.value}: {sent.report}"
    for called in evidence.calls:
        if called.report.label in (HUNG, GONE):
            yield "hung", f"{called.name}: {called.report}"


def _stored(evidence: Evidence) -> Found:
    """An acknowledged record must be at exactly the offset that its producer got."""
    if lies_about_duplicate(evidence.script) or lies_about_append(evidence.script):
        return
    for sent in evidence.sent:
        report = _report(sent)
        if not report.ok:
            continue
        places = _places(evidence, sent)
        here = [place for place in places if place[1] == sent.partition == report.partition]
        if not places:
            yield "lost", f"{sent.value} was acknowledged with {report} and is in no log"
        elif not here or (report.offset >= 0 and report.offset not in [at for *_, at in here]):
            yield "misplaced", f"{sent.value} was acknowledged with {report}, it is at {places}"


def _definite(evidence: Evidence) -> Found:
    """A record with a definite error must be in no log."""
    if lies_about_append(evidence.script):
        return
    for sent in evidence.sent:
        report = _report(sent)
        if report.outcome in ("not_sent", "rejected"):
            places = _places(evidence, sent)
            if places:
                yield "definite", f"{sent.value} is at {places}, yet {report}"


def _unique(evidence: Evidence) -> Found:
    """With idempotence a record must be stored at most once."""
    script = evidence.script
    if script.mode == "plain" or deeds(script) & FORGETFUL or lies_about_append(script):
        return
    for sent in evidence.sent:
        places = _places(evidence, sent)
        if len(places) > 1:
            yield "twice", f"{sent.value} stands at {places}: {sent.report}"


def _ordered(evidence: Evidence) -> Found:
    """Acknowledged records of a partition must have offsets in the order of submission."""
    if deeds(evidence.script) & FORGETFUL or lies_about_append(evidence.script):
        return
    last: dict[int, tuple[int, str]] = {}
    for sent in evidence.sent:
        report = _report(sent)
        if report.ok and report.offset >= 0:
            before = last.get(sent.partition, (-1, ""))
            if report.offset <= before[0]:
                yield "order", f"{sent.value} at {report.offset}, {before[1]} at {before[0]}"
            last[sent.partition] = report.offset, sent.value


def _transactions(evidence: Evidence) -> Found:
    """Readers must see exactly the transactions whose commit was reported."""
    if not evidence.script.transactional:
        return
    if deeds(evidence.script) & {*FORGETFUL, "forget-transactions"}:
        return  # a transaction that no client will end hides the later records
    lied = lies_about_transaction(evidence.script, END_TXN, ADD_PARTITIONS, ADD_OFFSETS)
    for ended in () if lied else evidence.left_ongoing:
        yield "left-ongoing", f"{ended} was reported, the coordinator has it open"
    seen = {value for _, _, values in evidence.committed for value in values}
    for number, verdict in evidence.verdicts.items():
        mine = [sent for sent in evidence.sent if sent.transaction == number]
        visible = [sent.value for sent in mine if sent.value in seen]
        acknowledged = [sent.value for sent in mine if _report(sent).ok]
        if verdict == "committed":
            failed = [sent.value for sent in mine if not _report(sent).ok]
            if failed:
                yield "committed-part", f"transaction {number} without {failed}"
            missing = [value for value in acknowledged if value not in seen]
            if missing and not (
                lies_about_duplicate(evidence.script) or lies_about_append(evidence.script)
            ):
                yield "commit-lost", f"transaction {number} committed, not visible: {missing}"
        elif verdict in ("aborted", "none") and visible and not lied:
            yield "abort-denied", f"transaction {number} {verdict}, visible: {visible}"
        elif verdict == "refused" and visible and not lied:
            yield "commit-denied", f"transaction {number} {verdict}, visible: {visible}"
        elif visible and set(acknowledged) - set(visible):
            yield "commit-part", f"transaction {number} {verdict}, visible: {visible} only"


def _jitter(evidence: Evidence) -> Found:
    """Pauses at the maximum of a backoff must differ. A busy machine makes them longer, never
    shorter. Source: Java `ExponentialBackoff`, 80 to 100 % of the maximum."""
    settings = dict(evidence.script.settings)
    if evidence.client != OURS or evidence.script.family != "backoff":
        return
    longest_s = int(settings["retry.backoff.max.ms"]) / 1000
    pauses = [pause for pause in evidence.pauses if pause > 0.7 * longest_s]
    if len(pauses) >= 8 and min(pauses) >= 0.96 * longest_s:
        yield "no-jitter", f"none of {len(pauses)} pauses is below {0.96 * longest_s:.3f} s"


def _tidy(evidence: Evidence) -> Found:
    """Connections must be closed properly, and the requests must be valid."""
    close = evidence.calls[-1]
    if close.name != "close" or not close.report.ok:
        yield "close", str(close.report)
    if evidence.client == OURS:
        failed = [sent for sent in evidence.sent if not sent.fresh and not _report(sent).ok]
        if evidence.script.delivers and failed:
            yield "undelivered", "; ".join(f"{sent.value}: {sent.report}" for sent in failed)
        if evidence.left_open:
            yield "left-open", f"{evidence.left_open} connections after close"
        wrong = [text for text in evidence.violations if not _begins_rightly(text, evidence)]
        if wrong:
            yield "violation", "; ".join(wrong[:3])


_BEGINS: Final = re.compile(r"\('t', (\d+)\): producer \d+ begins at \d+")


def _begins_rightly(violation: str, evidence: Evidence) -> bool:
    """Return True if a producer may begin above sequence 0: at a broker without its state, or after
    records that the producer gave up. Those may be in the log, so they and later records keep their
    sequences."""
    found = _BEGINS.fullmatch(violation)
    if found is None:
        return False
    if deeds(evidence.script) & FORGETFUL:
        return True
    partition = int(found[1])
    stored = evidence.values(partition)
    mine = [sent for sent in evidence.sent if sent.partition == partition and not sent.fresh]
    first = next((sent.number for sent in mine if sent.value in stored), None)
    older = [sent for sent in mine if first is not None and sent.number < first]
    return bool(older) and all(_report(sent).outcome == "unknown" for sent in older)


# -- beside Java ----------------------------------------------------------------------------------


def compare(ours: Evidence, java: Evidence) -> list[Finding]:
    """Return the differences between the results of our producer and Java's."""
    found = [*_life(ours, java), *_requests(ours, java)]
    return [
        *_calls(ours, java),
        *_records(ours, java),
        *_logs(ours, java),
        *[Finding(kind, OURS, text, hard=False) for kind, text in found],
    ]


def _difference(kind: str, one: Sent | Called, ours: Report, java: Report) -> Finding:
    what = one.value if isinstance(one, Sent) else one.name
    text = f"{what}: {ours}, java {java}"
    return Finding(kind, OURS, text, False, ours, java, what, one.transaction)


def _records(ours: Evidence, java: Evidence) -> Iterator[Finding]:
    for mine, other in zip(ours.sent, java.sent, strict=False):
        if mine.fresh or other.fresh:
            return
        one, two = _report(mine), _report(other)
        if one.ok and not two.ok:
            yield _difference("record-acked", mine, one, two)
        elif two.ok and not one.ok:
            yield _difference("record-failed", mine, one, two)
        elif not one.ok and one.label != two.label:
            yield _difference("record-error", mine, one, two)


def _calls(ours: Evidence, java: Evidence) -> Iterator[Finding]:
    mine = [one for one in ours.calls if not one.fresh and one.name != "close"]
    others = [one for one in java.calls if not one.fresh and one.name != "close"]
    for one, two in zip(mine, others, strict=False):
        if one.name != two.name:
            text = f"{one.name}, java {two.name}"
            yield Finding(
                "call-order", OURS, text, hard=False, what=one.name, transaction=one.transaction
            )
            return
        if one.report.ok != two.report.ok:
            kind = "call-ok" if one.report.ok else "call-failed"
            yield _difference(kind, one, one.report, two.report)
            return
        if one.report.label != two.report.label:
            yield _difference("call-error", one, one.report, two.report)
    if len(mine) != len(others):
        text = f"{[c.name for c in mine]}, java {[c.name for c in others]}"
        yield Finding("call-order", OURS, text, hard=False)


def _logs(ours: Evidence, java: Evidence) -> Iterator[Finding]:
    """Compare the logs of clients with equal reports: the acknowledged and the failed records."""
    mine = {sent.value: _report(sent).ok for sent in ours.sent if not sent.fresh}
    others = {sent.value: _report(sent).ok for sent in java.sent if not sent.fresh}
    if mine != others:
        return  # reported already
    acknowledged = {value for value, ok in mine.items() if ok}
    for partition in sorted({partition for _, partition, _ in ours.logs}):
        for name, committed in (("log", False), ("committed", True)):
            one = list(dict.fromkeys(ours.values(partition, committed=committed)))
            two = list(dict.fromkeys(java.values(partition, committed=committed)))
            text = f"partition {partition}: {one}, java {two}"
            if [v for v in one if v in acknowledged] != [v for v in two if v in acknowledged]:
                yield Finding(name, OURS, text, hard=False, partition=partition)
            elif one != two:
                moved = {v for pair in zip(one, two, strict=False) for v in pair}
                only = frozenset(one) ^ frozenset(two) or frozenset(moved - acknowledged)
                yield Finding(f"{name}-failed", OURS, text, hard=False, records=only)
    if ours.script.transactional and ours.group_offsets != java.group_offsets:
        text = f"{ours.group_offsets}, java {java.group_offsets}"
        yield Finding("offsets", OURS, text, hard=False)


def _life(ours: Evidence, java: Evidence) -> Found:
    if java.alive and not ours.alive:
        yield "dead", f"no fresh record arrives: {_last(ours)}; java's does"
    elif ours.alive and not java.alive:
        yield "alive", f"a fresh record arrives; java: {_last(java)}"


def _last(evidence: Evidence) -> str:
    reports = [_report(sent) for sent in evidence.sent if sent.fresh]
    reports += [one.report for one in evidence.calls if one.fresh and not one.report.ok]
    return "; ".join(str(report) for report in reports[:2])


def _requests(ours: Evidence, java: Evidence) -> Found:
    """Allow 1.6 times Java's requests plus four, or as many as the longest backoff allows."""
    script = ours.script
    allowed = 0
    if endless(script):
        longest_s = max(script.deadline_ms, script.block_ms) / 1000
        pause_s = 0.8 * int(COMMON["retry.backoff.max.ms"]) / 1000
        # `seconds` includes the epilogue, which is short if the first fresh record arrives.
        spent_s = ours.seconds
        if ours.fresh_tries != 1:
            # An application repeats calls that timed out, each with a new deadline.
            spent_s = longest_s * (
                1 + sum(one.report.seconds > longest_s / 2 for one in ours.calls)
            )
        allowed = math.ceil(spent_s / pause_s) + 6
    for api in sorted({*ours.requests, *java.requests}):
        mine, others = ours.requests[api], java.requests[api]
        # If connections break at every response, each request needs a new handshake.
        most = max(1.6 * others + 4, allowed * (2 if api == API_VERSIONS else 1))
        name = API_NAMES.get(api, str(api))
        if mine > most:
            yield f"more-{name}", f"{mine} requests, java {others}"
        elif others > 3 * mine + 6:
            yield f"fewer-{name}", f"{mine} requests, java {others}"


def findings(evidence: dict[str, Evidence]) -> list[Finding]:
    """Return all findings of a script."""
    found = [finding for one in evidence.values() for finding in broken_rules(one)]
    if OURS in evidence and JAVA in evidence and not evidence[OURS].script.racy:
        found += compare(evidence[OURS], evidence[JAVA])
    return found


def second_opinion(finding: Finding, evidence: dict[str, Evidence]) -> str:
    """Return the client that librdkafka agrees with where the other two differ, or "" if that is
    unknown. Compared are whether the record was acknowledged, and whether a fresh record arrives.
    """
    if LIBRDKAFKA not in evidence or finding.client != OURS:
        return ""
    other = evidence[LIBRDKAFKA]
    if finding.kind in ("alive", "dead"):
        return OURS if other.alive == (finding.kind == "alive") else JAVA
    if finding.kind in ("record-acked", "record-failed"):
        for sent in other.sent:
            if sent.value == finding.what:
                return OURS if _report(sent).ok == (finding.kind == "record-acked") else JAVA
    return ""
