"""The history checker detects each kind of fault."""

from __future__ import annotations

from aiokprod import Outcome
from tests.integration.checker import History, LogRecord, Report, compare


def written(count: int) -> tuple[History, list[LogRecord]]:
    """Return a history of `count` keyed records, all acknowledged, and the matching log."""
    history = History("t", producer=7)
    log: list[LogRecord] = []
    for number in range(count):
        key = b"k%d" % number
        sequence, value = history.next_value(key)
        history.place(sequence, 0, number)
        log.append((0, number, key, value))
    return history, log


def kinds(report: Report) -> set[str]:
    names = ("lost", "duplicated", "out_of_order", "wrong_offset", "unexpected", "corrupt")
    return {name for name in names if getattr(report, name)}


def test_compare_true_history_ok() -> None:
    history, log = written(10)
    report = compare(log, history)
    assert report.ok
    assert (report.records, report.acknowledged, report.in_log) == (10, 10, 10)


def test_compare_missing_record_lost() -> None:
    history, log = written(10)
    assert kinds(compare(log[:-1], history)) == {"lost"}


def test_compare_record_twice_duplicated() -> None:
    history, log = written(3)
    report = compare([*log, (0, 3, *log[2][2:])], history)
    assert kinds(report) == {"duplicated", "wrong_offset"}


def test_compare_swapped_records_out_of_order() -> None:
    history, log = written(2)
    swapped = [(0, 0, *log[1][2:]), (0, 1, *log[0][2:])]
    assert kinds(compare(swapped, history)) == {"out_of_order", "wrong_offset"}


def test_compare_changed_byte_or_key_corrupt() -> None:
    history, log = written(2)
    value = log[1][3]
    assert value is not None
    changed = [log[0], (0, 1, log[1][2], value[:-1] + b"!")]
    assert "corrupt" in kinds(compare(changed, history))
    other_key = [log[0], (0, 1, b"other", value)]
    assert "corrupt" in kinds(compare(other_key, history))


def test_compare_record_said_to_be_absent_unexpected() -> None:
    history, log = written(1)
    sequence, value = history.next_value(None)
    history.failed(sequence, Outcome.NOT_SENT)
    assert compare(log, history).ok
    assert kinds(compare([*log, (0, 1, None, value)], history)) == {"unexpected"}


def test_compare_unknown_outcome_allows_both() -> None:
    history, log = written(1)
    sequence, value = history.next_value(None)
    history.failed(sequence, Outcome.UNKNOWN)
    assert compare(log, history).ok
    assert compare([*log, (0, 1, None, value)], history).ok


def test_compare_unsettled_record_not_ok() -> None:
    history, log = written(1)
    history.next_value(None)
    report = compare(log, history)
    assert not report.ok
    assert report.unsettled == 1
