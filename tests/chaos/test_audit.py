"""The audit of chaos runs finds every kind of violation, and reports nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from aiokprod._core.record_fields import murmur2
from tests.chaos.audit import Log, Verdict, _Reader, _strayed_keys, judge
from tests.chaos.probe import Availability
from tests.chaos.report import broken, load, summary, table
from tests.chaos.run import (
    RECOVERS,
    SETTLED,
    Act,
    _gaps,
    _grew,
    _rate,
    _recovered,
    _strange,
    _wrong,
)
from tests.chaos.spans import common, length
from tests.chaos.values import NOT_ASKED, SIZE, make, read
from tests.chaos.worker import (
    ABORTED,
    ABSENT,
    ACKNOWLEDGED,
    KEYS,
    NO_TRANSACTION,
    OPEN,
    UNKNOWN,
    Ledger,
    headers_of,
    timestamp_of,
)
from tests.soak.trend import trend

TOPIC = "t"
COUNT = 600
PARTITIONS = 6


class AuditHarness:
    """A correct log and the ledger of its producer, one row per record, which the tests change."""

    def __init__(self) -> None:
        numbers = np.arange(COUNT)
        self.asked = np.where(numbers % 2, numbers // 2 % PARTITIONS, NOT_ASKED).astype(np.int16)
        self.values = make(TOPIC, 3, 0, self.asked)
        keyed = [murmur2(KEYS[number % 997]) % 2**31 % PARTITIONS for number in range(COUNT)]
        partition = np.where(self.asked < 0, keyed, self.asked)
        self.rows = [(int(p), int(n)) for n, p in zip(numbers, partition, strict=True)]
        self.told = {
            "state": np.ones(COUNT, np.uint8),
            "partition": partition.astype(np.int32),
            "offset": np.zeros(COUNT, np.int64),
            "handed": np.arange(COUNT, dtype=float),
            "settled": np.arange(COUNT) + 0.5,
        }
        for where in range(PARTITIONS):
            self.told["offset"][partition == where] = np.arange((partition == where).sum())

    def verdict(self, **options: Any) -> Verdict:
        return judge(self.log(), 3, self.told, partitions=PARTITIONS, **options)

    def log(self) -> Log:
        """Return the log. The rows of a partition are in their order, from offset 0 on."""
        rows, true = read(TOPIC, [self.values[number] for _, number in self.rows])
        where = np.array([partition for partition, _ in self.rows], np.int32)
        offset: Any = np.zeros(len(where), np.int64)
        for partition in range(PARTITIONS):
            offset[where == partition] = np.arange((where == partition).sum())
        order = np.lexsort((offset, where))
        sequence = rows["sequence"].astype(np.int64)
        columns = (where, offset, rows["producer"], sequence, rows["asked"], true)
        return Log(*(column[order] for column in columns))


def test_values_are_told_from_changed_ones() -> None:
    values = make(TOPIC, 3, 7, np.array([2, NOT_ASKED], np.int16))
    rows, true = read(TOPIC, values)
    assert [len(value) for value in values] == [SIZE, SIZE]
    assert rows["sequence"].tolist() == [7, 8]
    assert rows["asked"].tolist() == [2, NOT_ASKED]
    assert true.all()
    assert not read("u", values)[1].any(), "a value of another topic passed"
    for at in range(SIZE):
        changed = bytearray(values[0])
        changed[at] ^= 1
        assert not read(TOPIC, [bytes(changed)])[1][0], f"a change of byte {at} passed"


def test_judge_finds_nothing_wrong_with_a_true_log() -> None:
    verdict = AuditHarness().verdict()
    assert verdict.wrong() == []
    assert verdict.acknowledged == verdict.in_log == COUNT
    assert verdict.examples == []


@pytest.mark.parametrize("seed", range(20))
def test_judge_finds_what_was_spoilt(seed: int) -> None:
    harness, rng = AuditHarness(), np.random.default_rng(seed)
    victim = int(rng.integers(20, COUNT - 20))
    kind = ["lost", "duplicates", "inversions", "wrong_place", "wrong_offset", "corrupt"][seed % 6]
    if kind == "lost":
        harness.rows.pop(victim)
    elif kind == "duplicates":
        harness.rows.append(harness.rows[victim])
    elif kind == "inversions":
        victim |= 1
        other = victim + 2 * PARTITIONS  # both requested the same partition
        harness.rows[victim], harness.rows[other] = harness.rows[other], harness.rows[victim]
    elif kind == "wrong_place":
        victim |= 1  # a record that requested a partition
        harness.rows[victim] = ((harness.rows[victim][0] + 1) % PARTITIONS, victim)
    elif kind == "wrong_offset":
        harness.told["offset"][victim] += 1
    else:
        harness.values[victim] = harness.values[victim][:-1] + b"?"
    assert kind in harness.verdict().wrong()


def test_judge_knows_definite_unknown_and_open_records() -> None:
    harness = AuditHarness()
    harness.told["state"][[10, 20, 30]] = [ABSENT, UNKNOWN, OPEN]
    verdict = harness.verdict()
    assert verdict.wrong() == ["definite_but_present", "unsettled"]
    assert (verdict.unknown_present, verdict.unknown_absent) == (1, 0)


def test_judge_forgives_a_duplicate_only_where_told() -> None:
    harness = AuditHarness()
    harness.rows.append(harness.rows[50])
    assert harness.verdict().wrong() == ["duplicates"]
    assert harness.verdict().wrong(duplicates_allowed=True) == []


def test_judge_of_a_topic_made_anew_forgives_what_was_acknowledged_before() -> None:
    harness = AuditHarness()
    for number in range(COUNT):
        if number < 100:
            harness.rows[number] = (-1, number)
    harness.rows = [row for row in harness.rows if row[0] >= 0]
    for where in range(PARTITIONS):
        kept = (harness.told["partition"] == where) & (np.arange(COUNT) >= 100)
        harness.told["offset"][kept] = np.arange(kept.sum())
    assert harness.verdict(topic_made_at=100.0).wrong() == []
    assert harness.verdict(topic_made_at=100.0).gone_with_the_topic == 100
    assert harness.verdict(topic_made_at=99.0).wrong() == ["lost"], "handed over before, told after"


def test_record_with_the_key_of_another_is_corrupt() -> None:
    values = make(TOPIC, 3, 0, np.array([NOT_ASKED, 4, NOT_ASKED], np.int16))
    for keys, true in (
        ([KEYS[0], None, KEYS[2]], [True, True, True]),
        ([KEYS[2], None, KEYS[0]], [False, True, False]),
        ([None, KEYS[1], KEYS[2]], [False, False, True]),
    ):
        messages = [
            _message(number, value, key)
            for number, (value, key) in enumerate(zip(values, keys, strict=True))
        ]
        reader = _Reader(TOPIC)
        reader.take(messages)
        assert reader.log().true.tolist() == true


def _message(
    number: int, value: bytes, key: bytes | None, *, headers: Any = "own", stamp: int = 0
) -> Any:
    """Return a message like those from confluent-kafka; by default, its headers and timestamp are
    the ones that the worker sends."""
    own = list(headers_of(number)) or None
    return SimpleNamespace(
        error=lambda: None, value=lambda: value, key=lambda: key, partition=lambda: 4,
        offset=lambda: number, headers=lambda: own if headers == "own" else headers,
        timestamp=lambda: (1, timestamp_of(number) + stamp),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spoilt", "true"),
    [
        ({}, [True, True]),
        ({"headers": None}, [False, True]),
        ({"headers": [("number", b"1")]}, [False, False]),
        ({"stamp": 1}, [False, False]),
    ],
)
def test_record_with_headers_or_the_timestamp_of_another_is_corrupt(
    spoilt: dict[str, Any], true: list[bool]
) -> None:
    values = make(TOPIC, 3, 0, np.array([4, 4], np.int16))
    reader = _Reader(TOPIC)
    reader.take([_message(n, value, None, **spoilt) for n, value in enumerate(values)])
    assert reader.log().true.tolist() == true


def test_key_lies_where_its_hash_puts_it_among_the_partitions_there_were() -> None:
    sequence = np.arange(60)
    hashes = np.array([murmur2(KEYS[n]) % 2**31 for n in sequence])
    assert _strayed_keys(hashes % 6, sequence, (6,)) == 0
    assert _strayed_keys(hashes % 12, sequence, (6,)) == np.count_nonzero(hashes % 12 >= 6) > 0
    assert _strayed_keys(hashes % 12, sequence, (6, 12)) == 0
    assert _strayed_keys(np.zeros(60, int), sequence, (6,)) == np.count_nonzero(hashes % 6) > 0
    assert _strayed_keys(hashes[:0], sequence[:0], (6,)) == 0


def test_part_of_a_log_knows_the_keys_of_its_records() -> None:
    harness = AuditHarness()
    part = {name: column[101:300] for name, column in harness.told.items()}
    verdict = judge(harness.log().part(101, 300), 3, part, partitions=PARTITIONS)
    assert verdict.wrong() == []


def test_acknowledged_records_have_offsets_but_for_a_few() -> None:
    harness = AuditHarness()
    harness.told["offset"][7] = -1
    assert harness.verdict().wrong() == ["offset_unknown"]
    verdict = harness.verdict()
    verdict.acknowledged = 1000
    assert verdict.wrong() == []
    harness.told["partition"][7] += 1
    assert harness.verdict().wrong() == ["wrong_place", "offset_unknown"]


def test_series_is_wrong_if_a_record_failed_or_the_producer_did_strange_things() -> None:
    harness = AuditHarness()
    verdict = harness.verdict()
    gaps = {"excess_s": 0.0}
    assert _wrong("idempotent", verdict, verdict, gaps, None) == []
    harness.told["state"][20] = UNKNOWN
    assert _wrong("idempotent", verdict, harness.verdict(), gaps, None) == ["failed"]
    fine = {"close_hung": False, "changed_its_mind": 0, "unhandled": []}
    assert _strange(fine) == []
    assert _strange(fine | {"unhandled": ["boom"], "changed_its_mind": 1}) == [
        "another outcome later", "unhandled error",
    ]  # fmt: skip


def test_transactional_producer_is_judged_by_its_commits() -> None:
    verdict = AuditHarness().verdict()
    late = {"excess_s": 2.5}
    assert _wrong("plain", verdict, verdict, late, None) == ["slow recovery"]
    assert _wrong("transactional", verdict, verdict, late, RECOVERS) == []
    assert _wrong("transactional", verdict, verdict, late, RECOVERS + 0.1) == ["slow recovery"]
    act = Act("cuts", 0, None, start=0.0, began=1.0, ended=4.0, end=8.0)  # type: ignore[arg-type]
    assert _recovered(np.array([0.5, 3.9, 4.25, 5.0]), act) == 0.25
    assert _recovered(np.array([0.5, 3.9]), act) == float("inf")


def test_judge_of_transactions_finds_aborted_records_and_parts_of_transactions() -> None:
    harness = AuditHarness()
    harness.told["transaction"] = np.arange(COUNT, dtype=np.int32) // 50
    first = harness.told["transaction"] == 0
    harness.told["state"][first] = ABORTED
    verdict = harness.verdict()
    assert verdict.wrong() == ["definite_but_present"]
    assert (verdict.aborted, verdict.definite_but_present) == (50, 50)
    harness.rows = harness.rows[50:]
    for where in range(PARTITIONS):
        kept = (harness.told["partition"] == where) & ~first
        harness.told["offset"][kept] = np.arange(kept.sum())
    assert harness.verdict().wrong() == []
    # The last transaction, so that removing its records does not shift other offsets.
    doubtful = harness.told["transaction"] == 11
    harness.told["state"][doubtful] = UNKNOWN
    assert harness.verdict().wrong() == [], "all of it is visible"
    harness.rows.pop()
    assert harness.verdict().wrong() == ["torn"]
    harness.rows = harness.rows[:-49]
    assert harness.verdict().wrong() == [], "nothing of it is visible"
    harness.told["transaction"][:] = NO_TRANSACTION
    harness.rows.append((int(harness.told["partition"][599]), 599))
    assert harness.verdict().wrong() == [], "these are not of a transaction"


def test_ledger_promises_what_a_commit_promised() -> None:
    ledger = Ledger()
    ledger.transaction = 7
    records = [ledger.open() for _ in range(3)]
    for number in records[:2]:
        ledger.done(number, _acknowledged(partition=4, offset=number))
    assert list(ledger.states) == [OPEN] * 3, "nothing is promised before the commit"
    ledger.end_transaction(0, ACKNOWLEDGED)
    assert list(ledger.states) == [ACKNOWLEDGED, ACKNOWLEDGED, OPEN], "committed without an answer"
    assert len(ledger.commits) == 1
    assert ledger.transaction == NO_TRANSACTION
    ledger.transaction = 8
    ledger.done(ledger.open(), _acknowledged(partition=4, offset=9))
    ledger.end_transaction(3, ABORTED)
    assert list(ledger.states)[3:] == [ABORTED]
    assert list(ledger.transactions) == [7, 7, 7, 8]
    assert len(ledger.commits) == 1


def _acknowledged(partition: int, offset: int) -> Any:
    told = SimpleNamespace(partition=partition, offset=offset)
    return SimpleNamespace(exception=lambda: None, result=lambda: told)


def test_partitions_that_were_added_must_be_used_soon() -> None:
    scene: Any = SimpleNamespace(grown_at=10.0)
    told = {
        "state": np.ones(6, np.uint8),
        "partition": np.arange(6, 12),
        "settled": np.full(6, 12.9),
    }
    assert _grew(told, scene)
    told["settled"][3] = 13.1
    assert not _grew(told, scene)
    scene.grown_at = None
    assert _grew(told, scene)


def test_judge_of_a_part_sees_that_part_only() -> None:
    harness = AuditHarness()
    harness.rows.pop(350)
    log = harness.log()
    for first, stop, wrong in ((0, 300, []), (300, COUNT, ["lost", "wrong_offset"])):
        part = {name: column[first:stop] for name, column in harness.told.items()}
        assert judge(log.part(first, stop), 3, part, partitions=PARTITIONS).wrong() == wrong


def test_trend_tells_growth_from_noise() -> None:
    rng = np.random.default_rng(1)
    seconds: Any = np.arange(0, 1800, 5.0)
    noise = rng.normal(0, 0.5, len(seconds))
    assert trend(seconds, 100 + noise).flat(1.0, 1.0)
    growing = trend(seconds, 100 + noise + seconds / 3600 * 4)
    assert not growing.flat(1.0, 9.0)
    assert growing.slope == pytest.approx(4, abs=1)
    assert growing.low < 4 < growing.high
    with pytest.raises(ValueError, match="too few"):
        trend([1.0, 2.0], [1.0, 2.0])


@pytest.mark.parametrize("at", [300, 800, 1500])
def test_one_step_is_no_trend_but_several_are(at: int) -> None:
    seconds: Any = np.arange(0, 1800, 5.0)
    once = trend(seconds, 88.4 + 1.09 * (seconds > at))
    assert once.flat(1.0, 2.5)
    assert not once.flat(1.0, 0.5)
    often = trend(seconds, 88.4 + 1.09 * (seconds // 450))
    assert not often.flat(1.0, 9.0)
    assert often.slope == pytest.approx(1.09 * 8, abs=1)


def test_growth_of_late_is_growth() -> None:
    seconds: Any = np.arange(0, 3600, 5.0)
    late = trend(seconds, 80 + np.maximum(0, seconds - 2700) / 3600 * 100)
    assert late.low == 0
    assert not late.flat(1.0, 2.5)
    assert not trend(seconds, 6 + (seconds > 3400)).flat(0.0, 0.5)


def test_rates_are_told_of_each_producer_and_of_both(tmp_path: Path) -> None:
    base = {
        "turn": 0, "metadata_most_per_second": 1, "wrong": [], "unavailable_s": 0.0,
        "broker_s": 0.0, "excess_s": 0.5, "verdict": vars(Verdict()),
        "series": {"loop_lag_max_s": 0.25}, "recovered_s": None,
    }  # fmt: skip
    runs: list[dict[str, Any]] = [
        {"fault": "blackhole", "workload": "idempotent", "rate_held": 6_000},
        {"fault": "resets", "workload": "idempotent", "rate_held": 12_000},
        {"fault": "blackhole", "workload": "plain", "rate_held": 5_500},
    ]
    together = {"blackhole": 11_500, "resets": 16_000}
    path = tmp_path / "out.jsonl"
    lines = [base | run | {"rate_together": together[run["fault"]]} for run in runs]
    missed = [{"fault": name, "turn": 0, "not_played": "it broke"} for name in ("resets", "cuts")]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*missed, *lines]))
    results = load(path)
    assert [one["fault"] for one in results] == ["resets", "cuts", "blackhole", "blackhole"]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, *missed]))
    assert broken(load(path)) == ["resets#0: not played, it broke", "cuts#0: not played, it broke"]
    assert broken(results) == ["cuts#0: not played, it broke"]
    text = summary(results)
    assert "broken promises: cuts#0: not played, it broke" in text
    assert "all producers together 11,500 records/s" in text
    assert "the idempotent one 6,000, the plain one 5,500; 1 of 3 held 10,000 alone" in text
    assert "at most 0.250 s late, by work of its own thread at most ? s" in text
    assert "transactions: not played" in text
    committed = {"workload": "transactional", "rate_held": 1_900, "recovered_s": 1.25}
    counts = vars(Verdict(acknowledged=900, aborted=100))
    results.append(base | committed | {"fault": "cuts", "rate_together": 9, "verdict": counts})
    assert (
        "transactions: 900 records committed, 100 aborted on purpose, 0 because of an error, "
        "0 transactions seen in part, the first commit at most 1.2 s after a fault"
    ) in summary(results)
    row = next(line for line in table(results).splitlines() if "| plain |" in line)
    assert "| 5,500/s | 11,500/s |" in row


def test_rate_counts_acknowledgments_in_the_quiet_windows_only() -> None:
    told = {
        "state": np.array([1, 1, 1, 2, 1], np.uint8),
        "settled": np.array([0.5, 1.5, 3.5, 3.6, 9.0]),
    }
    act = Act("cuts", 0, None, start=0.0, began=1.0, ended=1.0, end=4.0)  # type: ignore[arg-type]
    assert act.quiet == ((0.0, 1.0), (1.0 + SETTLED, 4.0))
    assert _rate(told, *act.quiet) == 2 / 2.0


class Times:
    """Six partitions led by nodes 1, 2, 3, 1, 2, 3, which accepted every probe during ten
    seconds."""

    def __init__(self) -> None:
        self.probe = Availability(None, TOPIC, PARTITIONS)  # type: ignore[arg-type]
        self.seconds = np.arange(0.0, 10.0, 0.05)
        self.outages: list[Any] = []
        self.acts = [(0.0, 1.0, 9.0, 9.9)]
        for partition in range(PARTITIONS):
            self.led(partition, (0.0, 1 + partition % 3))
            self.closed(partition)

    def led(self, partition: int, *terms: tuple[float, int]) -> None:
        self.probe._terms[partition] = list(terms)

    def closed(self, partition: int, *spans: tuple[float, float]) -> None:
        self.probe.successes[partition] = self._outside(spans)

    def _outside(self, spans: Iterable[tuple[float, float]]) -> list[float]:
        return [float(at) for at in self.seconds if not any(a < at < b for a, b in spans)]

    def judge(self, idle: dict[int, list[tuple[float, float]]]) -> dict[str, float]:
        """Judge a producer without acknowledgments of these partitions in these times."""
        acks = [(p, at) for p in range(PARTITIONS) for at in self._outside(idle.get(p, []))]
        told = {
            "state": np.ones(len(acks), np.uint8),
            "partition": np.array([partition for partition, _ in acks]),
            "settled": np.array([at for _, at in acks]),
        }
        scene: Any = SimpleNamespace(outages=self.outages)
        acts = [Act("cuts", 0, scene, *times) for times in self.acts]
        found = [_gaps(told, self.probe, act) for act in acts]
        return {name: max(one[name] for one in found) for name in found[0]}


def near(seconds: float) -> Any:
    return pytest.approx(seconds, abs=0.16)


def test_gap_is_held_against_the_brokers_as_far_as_they_had_one() -> None:
    times = Times()
    times.closed(0, (2.0, 4.0), (4.5, 6.0))
    told = times.judge({0: [(2.0, 7.0)]})
    assert told == {
        "unavailable_s": near(5.0), "broker_s": near(3.5), "excess_s": near(1.5),
        "alone_s": near(1.5),
    }  # fmt: skip


def test_gap_is_not_excused_by_one_before_or_after_it() -> None:
    times = Times()
    times.closed(0, (1.0, 5.0))
    assert times.judge({0: [(1.0, 4.9), (5.0, 9.0)]})["excess_s"] == near(4.0)
    times = Times()
    times.outages = [((0.5, 4.95), {1})]
    assert times.judge({0: [(0.5, 4.9), (5.1, 9.0)]})["excess_s"] == near(3.9)


@pytest.mark.parametrize(("nodes", "excess"), [({1}, 0.5), ({2, 3}, 4.5), ({1, 2, 3}, 0.5)])
def test_dead_network_excuses_the_partitions_behind_it(nodes: set[int], excess: float) -> None:
    times = Times()
    times.outages = [((2.0, 6.0), nodes)]
    assert times.judge({0: [(2.0, 6.5)]})["excess_s"] == near(excess)


def test_partition_may_wait_for_another_one_of_its_leader() -> None:
    times = Times()
    times.closed(3, (2.1, 5.0))
    told = times.judge({0: [(2.0, 6.0)]})
    assert told["alone_s"] == near(4.0)
    assert told["excess_s"] == near(1.1)


@pytest.mark.parametrize(
    ("other", "slow"),
    [
        ([(0.0, 2)], (2.1, 5.0)),
        ([(0.0, 1), (1.5, 2)], (2.1, 5.0)),
        ([(0.0, 2), (5.8, 1)], (2.1, 5.9)),
        ([(0.0, 1)], (0.1, 2.0)),
        ([(0.0, 1)], (6.0, 9.0)),
    ],
    ids=["another-leader", "a-leader-of-before", "a-leader-of-later", "before", "afterwards"],
)
def test_partition_may_wait_for_nothing_else(
    other: list[tuple[float, int]], slow: tuple[float, float]
) -> None:
    times = Times()
    times.led(3, *other)
    times.closed(3, slow)
    assert times.judge({0: [(2.0, 6.0)]})["excess_s"] >= 3.5


def test_lengths_of_spans_count_what_is_common_once() -> None:
    assert length([(1, 3), (2, 5), (7, 8), (7.5, 7.6)]) == pytest.approx(5.0)
    assert length([]) == 0
    assert common([(0, 2), (4, 6)], [(1, 5)]) == [(1, 2), (4, 5)]


def test_gap_over_the_border_of_two_acts_is_one() -> None:
    times = Times()
    times.acts = [(0.0, 1.0, 4.0, 5.0), (5.0, 6.0, 9.0, 9.9)]
    assert times.judge({0: [(3.1, 6.9)]})["excess_s"] == near(3.8)
    assert times.judge({0: [(6.0, 9.95)]})["excess_s"] == near(3.9), "until the end"
    assert times.judge({0: [(-1.0, 9.96)]})["excess_s"] == near(5.0), "never at all"
