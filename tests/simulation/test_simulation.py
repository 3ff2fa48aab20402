"""Seeded runs with all faults at once: safety, liveness and leaks per seed.

These tests run a few seeds, which coverage measures; `python -m tests.simulation` runs thousands.
`AIOKPROD_SEEDS=100-2000` selects others. A failure names its seed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import os
import random
import subprocess
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiokprod._client.record_hooks import RecordHooks
from aiokprod._core.hooks import HookCalls
from aiokprod._engine.sender import batch_completion, retry_policy
from aiokprod.errors import (
    Code,
    DeliveryTimeout,
    KafkaError,
    Outcome,
    ProducerClosed,
    ProducerFailed,
    broker_error,
)
from aiokprod.producer import Producer
from aiokprod.records import RecordMetadata
from aiokprod.testing.fake_cluster import FakeCluster
from aiokprod.testing.fake_cluster import profiles as fake_profiles
from aiokprod.testing.fake_cluster.cluster import LateBeginning
from aiokprod.testing.memory import MemoryNetwork
from aiokprod.testing.transports import Link
from aiokprod.testing.virtual import LivelockError, VirtualTimeLimit
from tests.detection.search import put_back, verdict_on
from tests.scenarios.scenario_helpers import clock, make_producer, now, play
from tests.simulation import run as run_module
from tests.simulation import user_objects
from tests.simulation.broker_behaviours import LEGALITY
from tests.simulation.call_interrupts import Interrupt, TimeUp
from tests.simulation.exemptions import EXEMPTIONS, MOST_SEEDS
from tests.simulation.fault_scripts import Misfortunes
from tests.simulation.oracle import Judge, Place, Violation
from tests.simulation.parallel_seeds import (
    LEAST_SHARE,
    Journal,
    Totals,
    outcomes,
    parsed,
    slices,
)
from tests.simulation.progress import Progress
from tests.simulation.reinstallation import Incarnation, Stranger
from tests.simulation.run import Simulation, run_seed
from tests.simulation.seeds import (
    LAST_FAULTS,
    MENU,
    OBJECTS,
    RARE_FAULTS,
    RARE_TEMPERAMENTS,
    RECREATED,
    TEMPERAMENTS,
    plan_of,
)
from tests.simulation.sessions import Sessions
from tests.simulation.user_objects import Plugin, UserObjects
from tests.simulation.wire_log import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE, Exchange, Wire
from tests.simulation.wire_log import Attempt as Sent
from tests.simulation.workload import Attempt, PassedOn

ROOT = Path(__file__).parent.parent.parent
PROGRAM = """
from tests.simulation.run import run_seed
print(*[run_seed(seed).trace for seed in (3, 4, 5, 6)])
"""


@pytest.mark.parametrize("seed", parsed(os.environ.get("AIOKPROD_SEEDS", "0-24")))
def test_seed(seed: int) -> None:
    run_seed(seed)


def test_equal_seeds_give_equal_runs() -> None:
    for seed in (3, 4, 5, 6):
        assert run_seed(seed) == run_seed(seed)


def test_equal_seeds_give_equal_runs_in_other_processes() -> None:
    """Neither string hashing nor earlier runs in the process have an effect."""
    random.seed(7)
    here = [run_seed(seed).trace for seed in (6, 5, 4, 3)]
    for hash_seed in ("1", "77"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True, text=True, check=True, cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert [int(trace) for trace in done.stdout.split()] == here[::-1]


def test_other_seeds_give_other_runs() -> None:
    assert len({run_seed(seed).trace for seed in range(4)}) == 4


def test_plans_draw_subsets_of_the_whole_menu() -> None:
    drawn = [set(plan_of(seed).menu) for seed in range(200)]
    assert set().union(*drawn) == set(MENU)
    assert all(len(menu) < len(MENU) for menu in drawn)
    assert {plan_of(seed).ending for seed in range(200)} == {"heal", "close", "stranger"}
    assert {plan_of(seed).cluster["brokers"] for seed in range(200)} == {1, 2, 3, 4, 5}


def test_temperaments_are_drawn_alone_and_together_and_say_why_they_are_legal() -> None:
    drawn = [plan_of(seed).temperaments for seed in range(300)]
    assert set().union(*drawn) == {*TEMPERAMENTS, *RARE_TEMPERAMENTS}
    assert {len(each) for each in drawn} >= {0, 1, 2, 3}
    assert all(len(text.split()) > 10 for text in LEGALITY.values())
    profiles = {plan_of(seed).cluster["version_profile"] for seed in range(600)}
    assert profiles == set(fake_profiles.PROFILES)


def test_objects_of_the_application_are_drawn_alone_and_together() -> None:
    drawn = [plan_of(seed).objects for seed in range(600)]
    assert set().union(*drawn) == set(OBJECTS)
    assert {len(each) for each in drawn} == {0, 1, 2, 3, 4}
    assert 100 < sum(map(bool, drawn)) < 200


def test_rare_faults_are_drawn() -> None:
    drawn = [plan_of(seed).rare_faults for seed in range(600)]
    for name in RARE_FAULTS:
        assert sum(name in each for each in drawn) >= LEAST_SHARE * len(drawn)


def seeds_with(kind: str) -> list[int]:
    """Return some seeds that have such an object."""
    return [seed for seed in range(300) if kind in plan_of(seed).objects][:15]


def lost(self: RecordHooks, *arguments: Any) -> None:
    """Replace a hook and report nothing."""


@pytest.mark.parametrize("method", ["end", "settled", "withdrawn"])
@pytest.mark.parametrize("kind", ["interceptor", "plugin"])
def test_report_that_is_not_made_is_found(
    kind: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecordHooks, method, lost)
    assert any(verdict_on(seed) for seed in seeds_with(kind))


def test_report_that_is_made_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(self: RecordHooks, core: Any, tokens: Any, view: Any) -> None:
        for _ in range(2):
            HookCalls.settled(self, core, tokens, view)

    monkeypatch.setattr(RecordHooks, "settled", settled)
    for kind in ("interceptor", "plugin"):
        assert any(verdict_on(seed) for seed in seeds_with(kind))


def test_report_of_another_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def settled(self: RecordHooks, core: Any, tokens: Any, view: Any) -> None:
        moved = [[(index + 1, token) for index, token in pairs] for pairs in tokens]
        HookCalls.settled(self, core, moved, view)

    monkeypatch.setattr(RecordHooks, "settled", settled)
    for kind in ("interceptor", "plugin"):
        assert any(verdict_on(seed) for seed in seeds_with(kind))


LAST_FAULT_BUGS = {
    "frozen_leader": "waiter-stays-in-the-line-of-the-old-leader",
    "far_broker": "slow-broker-is-not-asked-for-metadata",
    "refused_connections": "no-jitter-at-the-maximum",
    RECREATED: "epoch-bump-renumbers-what-is-on-the-wire",
}


@pytest.mark.parametrize("name", [*LAST_FAULTS, RECREATED])
def test_last_fault_passes_without_its_bug_and_finds_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = [seed for seed in range(300) if plan_of(seed).last_fault == name]
    verdicts = []
    for seed in seeds[:4]:
        assert verdict_on(seed) is None
        with monkeypatch.context() as patch:
            put_back(LAST_FAULT_BUGS[name], patch)
            verdicts.append(verdict_on(seed))
    assert any(verdicts), verdicts


RARE_FAULT_BUGS = {
    "expiry": ("idle-producer-taken-for-known", 4),
    "reinstallation": ("producer-id-kept-in-another-cluster", 4),
    "sessions": ("session-renewed-while-throttled", 10),
}
"""A bug that each kind of object exposes, and a range of seeds of which at least one finds it."""


@pytest.mark.parametrize("name", RARE_FAULTS)
def test_rare_fault_passes_without_its_bug_and_finds_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug, most = RARE_FAULT_BUGS[name]
    seeds = [seed for seed in range(1_000) if name in plan_of(seed).rare_faults]
    for seed in seeds[:most]:
        assert verdict_on(seed) is None
        with monkeypatch.context() as patch:
            put_back(bug, patch)
            if verdict_on(seed) is not None:
                return
    raise AssertionError(f"{bug} survived {most} seeds")


def test_refused_producer_ids_pass_without_the_bug_of_their_backoff_and_find_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "producer_ids_unavailable"
    seeds = [seed for seed in range(100) if name in plan_of(seed).temperaments]
    verdicts = []
    for seed in seeds[:4]:
        assert verdict_on(seed) is None
        with monkeypatch.context() as patch:
            put_back("producer-ids-asked-for-without-backoff", patch)
            verdicts.append(verdict_on(seed))
    assert any(verdicts), verdicts


def test_bug_that_an_exception_within_a_call_brings_out_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The injector also strikes in a function that replaces one of the package."""
    seeds = [seed for seed in range(300) if "interrupt" in plan_of(seed).menu]

    def finds(seed: int) -> bool:
        with monkeypatch.context() as patch:
            put_back("batch-opened-before-it-is-known", patch)
            verdict = verdict_on(seed)
        return verdict is not None and verdict_on(seed) is None

    assert any(finds(seed) for seed in seeds[:60])


# -- attempts that `retries` allows ---------------------------------------------------------------


def break_now(links: Sequence[Link]) -> None:
    """Reset the connections before the sender's next run, so that its request meets a closing
    transport."""
    for link in links:
        link.reset()


def break_in_the_backoff(links: Sequence[Link]) -> None:
    """Reset the connections after the response to the first attempt and before the second
    attempt."""
    clock().call_later(0.05, break_now, links)


def break_nothing(links: Sequence[Link]) -> None:
    pass


def judged_attempts(
    breaks: Callable[[Sequence[Link]], None], *, records: int = 1, divide: bool = False
) -> tuple[int, int]:
    """Let a broker refuse each attempt at `records` records of one batch, with `retries=2`, and
    judge the result. Return how many requests with the first record were written, and how many were
    not."""
    plan = plan_of(0)
    plan = replace(plan, options={**plan.options, "retries": 2})

    async def main() -> tuple[int, int]:
        wire = Wire()
        network = MemoryNetwork()
        network.on_link = wire.follow
        cluster = FakeCluster(brokers=1, network=network)
        cluster.create_topic("t", 1)
        async with make_producer(cluster, retries=2, linger_ms=0) as producer:
            await producer.send("t", b"warm", partition=0)
            if divide:
                cluster.fail_produce(("t", 0), Code.MESSAGE_TOO_LARGE)
            cluster.fail_produce(("t", 0), Code.NOT_ENOUGH_REPLICAS, times=None)
            attempts = [
                Attempt(number, "t", 0, b"%d" % number, began=number, started_at=now())
                for number in range(records)
            ]
            with wire.watch_unwritten():
                for attempt in attempts:
                    attempt.handle = producer.try_submit("t", attempt.value, partition=0)
                breaks([link for link in network.links if link.is_open])
                for attempt in attempts:
                    assert attempt.handle is not None
                    with pytest.raises(KafkaError) as failure:
                        await attempt.handle
                    attempt.result, attempt.settled_at = failure.value, now()
        load: Any = types.SimpleNamespace(attempts=attempts)
        fate: Any = types.SimpleNamespace(incarnations=[])
        judge = Judge(plan, cluster, load, fate, wire, math.inf)
        for attempt in attempts:
            judge._check_tries(attempt)
            judge._check_reason(attempt)
            judge.check_used_up(attempt)
        return len(wire.attempts(b"0")), len(wire.unwritten_attempts(b"0"))

    return play(main)


def with_retries(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    decide = retry_policy.decide
    monkeypatch.setattr(
        batch_completion,
        "decide",
        lambda code, *, retries, **options: decide(code, retries=retries + more, **options),
    )


ENDS_OF_CONNECTIONS = [
    (break_nothing, (3, 0)), (break_in_the_backoff, (3, 0)), (break_now, (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("breaks", "attempts"), ENDS_OF_CONNECTIONS)
def test_request_that_meets_a_broken_connection_counts_against_retries(
    breaks: Callable[..., Any], attempts: tuple[int, int]
) -> None:
    assert judged_attempts(breaks) == attempts


@pytest.mark.parametrize("breaks", [breaks for breaks, _ in ENDS_OF_CONNECTIONS])
def test_record_given_up_an_attempt_too_early_is_found_whatever_broke(
    breaks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_retries(monkeypatch, -1)
    with pytest.raises(Violation, match="failed without a reason"):
        judged_attempts(breaks)


@pytest.mark.parametrize("breaks", [breaks for breaks, _ in ENDS_OF_CONNECTIONS])
def test_attempt_that_retries_does_not_allow_is_found_whatever_broke(
    breaks: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_retries(monkeypatch, 1)
    with pytest.raises(Violation, match="4 attempts, 3 are allowed"):
        judged_attempts(breaks)


def test_attempt_that_divides_a_batch_does_not_count_against_retries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert judged_attempts(break_nothing, records=2, divide=True) == (4, 0)
    with_retries(monkeypatch, -1)
    with pytest.raises(Violation, match="failed without a reason"):
        judged_attempts(break_nothing, records=2, divide=True)


# -- what a client received before a deadline -----------------------------------------------------


LATE = DeliveryTimeout("late", outcome=Outcome.UNKNOWN)


def judged_timeout(heard_at: float, error: KafkaError = LATE) -> None:
    """Judge a record whose only attempt was refused at `heard_at`, and which expired one second
    after its submission, together with an older record of its batch."""
    attempt = Attempt(0, "t", 0, b"0", began=0, started_at=10.0, settled_at=11.0)
    refusal = Sent(10.5, heard_at, 9, -1, int(Code.MESSAGE_TOO_LARGE), 0)
    wire: Any = types.SimpleNamespace(attempts=lambda value: [refusal])
    load: Any = types.SimpleNamespace(attempts=[attempt])
    fate: Any = types.SimpleNamespace(incarnations=[])
    judge = Judge(plan_of(0), FakeCluster(), load, fate, wire, math.inf)
    judge._check_outcome(attempt, error)


def test_refusal_that_comes_after_the_deadline_of_an_older_record_leaves_the_outcome_open() -> None:
    assert plan_of(0).delivery_s > 2.0
    judged_timeout(heard_at=11.5)


def test_record_called_in_doubt_although_its_only_attempt_was_refused_in_time_is_found() -> None:
    with pytest.raises(Violation, match="each attempt was refused"):
        judged_timeout(heard_at=10.9)


@pytest.mark.parametrize("ended", [ProducerFailed, ProducerClosed])
def test_refusal_that_comes_in_the_instant_the_producer_ends_leaves_the_outcome_open(
    ended: type[KafkaError],
) -> None:
    judged_timeout(heard_at=11.0, error=ended("", outcome=Outcome.UNKNOWN))
    with pytest.raises(Violation, match="each attempt was refused"):
        judged_timeout(heard_at=10.999, error=ended("", outcome=Outcome.UNKNOWN))


# -- copies that brokers cannot recognise ---------------------------------------------------------


LOG = (b"topic id", 1)
COPIES_PLAN = next(plan for plan in map(plan_of, itertools.count()) if plan.idempotent)


def judged_copies(forgotten_at: float, *, first_at: float, second_at: float) -> int:
    """Check a record that was submitted at 10 s and stored twice, in a log whose brokers lost the
    producer's state once."""
    attempt = Attempt(4, "t", 1, b"4", began=4, started_at=10.0, settled_at=11.0)
    fate: Any = types.SimpleNamespace(amnesia={LOG: [forgotten_at]}, reborn={}, done=())
    load: Any = types.SimpleNamespace(attempts=[attempt])
    judge = Judge(COPIES_PLAN, FakeCluster(), load, fate, Wire(), math.inf)
    stamp: Any = attempt.timestamp_ms
    judge.places[attempt.value] = [
        Place("t", *LOG, rank, rank, stamp, True, stored_at)
        for rank, stored_at in enumerate((first_at, second_at))
    ]
    judge._check_place(attempt)
    return judge.used["copies"]


def test_copy_that_leaves_a_broken_connection_late_may_be_stored_after_the_first_is_forgotten() -> (
    None
):
    late = 10.0 + 2 * (COPIES_PLAN.delivery_s + COPIES_PLAN.block_s)
    assert judged_copies(late, first_at=10.5, second_at=late + 0.1) == 1


@pytest.mark.parametrize("forgotten_at", [10.8, 11.2, 200.0])
def test_copy_stored_before_brokers_forgot_anything_is_found(forgotten_at: float) -> None:
    with pytest.raises(Violation, match="stored 2 times"):
        judged_copies(forgotten_at, first_at=10.5, second_at=10.7)


# -- sessions --------------------------------------------------------------------------------------


def exchange(api_key: int, sent_at: float, heard_at: float, **answer: int) -> Exchange:
    told = types.SimpleNamespace(**answer)
    return Exchange(api_key, 1, 0, sent_at, b"", ("b", 1), math.inf, heard_at, told)


def checked_session(*more: Exchange) -> int:
    """Check a connection whose session of 10 s began at 1 s and continues with these exchanges."""
    plan = next(plan for plan in map(plan_of, itertools.count()) if not plan.late_timers_s)
    exchanges = [
        exchange(SASL_HANDSHAKE, 0.0, 0.5),
        exchange(SASL_AUTHENTICATE, 0.5, 1.0, session_lifetime_ms=10_000),
        *more,
    ]
    wire: Any = types.SimpleNamespace(connections=lambda: [exchanges])
    stalls: Any = types.SimpleNamespace(stalls=[(5.0, 5.5)])

    def stalled_s(begin: float, end: float) -> float:
        return Misfortunes.stalled_s(stalls, begin, end)

    return Sessions(plan, FakeCluster()).check(wire, stalled_s)


def test_session_is_renewed_between_two_requests() -> None:
    renewal = (
        exchange(SASL_HANDSHAKE, 10.0, 10.2),
        exchange(SASL_AUTHENTICATE, 10.2, 10.4, session_lifetime_ms=10_000),
    )
    assert checked_session() == 0
    assert checked_session(exchange(METADATA, 9.0, 10.0), *renewal) == 1
    assert checked_session(*renewal, exchange(METADATA, 19.0, 20.0)) == 1
    with pytest.raises(Violation, match="renewed before"):
        checked_session(exchange(METADATA, 9.0, 10.1), *renewal)


def test_request_that_leaves_after_the_end_of_its_session_is_found() -> None:
    assert checked_session(exchange(METADATA, 10.9, 11.0)) == 0, "the loop was blocked for 0.5 s"
    with pytest.raises(Violation, match="sent after its session ended"):
        checked_session(exchange(METADATA, 11.1, 11.2))


# -- clusters installed again ----------------------------------------------------------------------


def judged_acknowledgment(
    *, stored_in: str, sent_at: float = 21.0, heard_at: float = 30.0, foreign: bool = False
) -> int:
    """Check a record that was acknowledged with offset 3 in the response to a request sent at
    `sent_at`, and is stored there in the cluster before or after 20 s, or in neither."""
    cluster = FakeCluster()
    old = cluster.create_topic("t", 2).topic_id
    new = cluster.recreate_topic("t").topic_id
    made = Incarnation(20.0, "new", "empty", {old}, Stranger(cluster, random.Random(0), "new"))
    told = RecordMetadata("t", 1, 3, 7, -1, 1)
    attempt = Attempt(1, "t", 1, b"1", 1, started_at=10.0, settled_at=40.0, result=told)
    answer = Sent(sent_at, 35.0, 9, -1, 0, 1)
    wire: Any = types.SimpleNamespace(attempts=lambda _: [answer], hears_of=lambda _: heard_at)
    fate: Any = types.SimpleNamespace(incarnations=[made])
    load: Any = types.SimpleNamespace(attempts=[attempt])
    judge = Judge(COPIES_PLAN, cluster, load, fate, wire, math.inf)
    if foreign:
        judge.foreign.add((new, 1, 3))
    logs = {"old": (old, 1), "new": (new, 1)}
    found = [Place("t", *logs[stored_in], 3, 3, 7, True, 15.0)] if stored_in in logs else []
    judge._check_acknowledged(attempt, told, found)
    return judge.used["unaware"]


def test_record_is_in_the_cluster_that_acknowledged_it() -> None:
    assert judged_acknowledgment(stored_in="new") == 0
    assert judged_acknowledgment(stored_in="old", sent_at=19.0) == 0
    with pytest.raises(Violation, match="lost"):
        judged_acknowledgment(stored_in="old")
    with pytest.raises(Violation, match="lost"):
        judged_acknowledgment(stored_in="none", sent_at=19.0)


def test_record_may_be_confused_with_a_foreign_one_until_the_producer_hears_of_the_cluster() -> (
    None
):
    assert judged_acknowledgment(stored_in="old", foreign=True) == 1
    assert judged_acknowledgment(stored_in="new", foreign=True) == 0
    for options in ({"sent_at": 31.0}, {"heard_at": 20.5}):
        with pytest.raises(Violation, match="lost"):
            judged_acknowledgment(stored_in="none", foreign=True, **options)
    with pytest.raises(Violation, match="lost"):
        judged_acknowledgment(stored_in="none", sent_at=19.0, foreign=True)


@pytest.mark.parametrize("sent_at", [[15.0], [15.0, 31.0], []])
@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.REJECTED])
@pytest.mark.parametrize("heard_at", [30.0, 41.0])
def test_record_is_left_behind_only_if_it_was_in_doubt_when_the_producer_heard_of_the_cluster(
    sent_at: list[float], outcome: Outcome, heard_at: float
) -> None:
    made = Incarnation(20.0, "new", "empty", set())
    sent = [Sent(at, math.inf, 9, -1, None, 1) for at in sent_at]
    wire: Any = types.SimpleNamespace(attempts=lambda _: sent, hears_of=lambda _: heard_at)
    fate: Any = types.SimpleNamespace(incarnations=[made])
    load: Any = types.SimpleNamespace(attempts=[])
    judge = Judge(COPIES_PLAN, FakeCluster(), load, fate, wire, math.inf)
    attempt = Attempt(1, "t", 1, b"1", 1, started_at=10.0, settled_at=40.0)
    error = broker_error(Code.INCONSISTENT_CLUSTER_ID, "", outcome=outcome)
    if (sent_at, outcome, heard_at) == ([15.0], Outcome.UNKNOWN, 30.0):
        assert judge._is_left_behind(attempt, error)
        return
    with pytest.raises(Violation, match="of no other cluster"):
        judge._is_left_behind(attempt, error)
    other = DeliveryTimeout("", outcome=outcome)
    assert not judge._is_left_behind(attempt, other)


# -- a log that begins in the middle ---------------------------------------------------------------


def begins_rightly(
    given_up: BaseException | None,
    *,
    settled_at: float = 11.0,
    first_sent: int = 0,
    epoch: int = 0,
    violations: int = 1,
) -> bool:
    """Check a producer whose record 1, sent after record 0, is the first one that a broker
    receives, at 12 s."""
    attempts = [
        Attempt(n, "t", 0, b"%d" % n, began=n, started_at=10.0, settled_at=settled_at)
        for n in range(2)
    ]
    attempts[0].result = given_up
    request = types.SimpleNamespace(sent_at=10.0, partition=0)
    wire: Any = types.SimpleNamespace(
        sequences=lambda _: [(request, 0, n, b"%d" % n) for n in range(first_sent, 2)]
    )
    batch: Any = types.SimpleNamespace(producer_id=7, epoch=epoch, base_sequence=1)
    cluster = FakeCluster()
    cluster.late_beginnings.append(LateBeginning(12.0, "t", 0, batch))
    cluster.violations += violations * ["('t', 0): producer 7 begins at 1"]
    load: Any = types.SimpleNamespace(attempts=attempts, complaints=[])
    fate: Any = types.SimpleNamespace(incarnations=[])
    judge = Judge(COPIES_PLAN, cluster, load, fate, wire, math.inf)
    judge.by_value = {attempt.value: attempt for attempt in attempts}
    try:
        judge._check_cluster()
    except Violation:
        return False
    return True


IN_DOUBT = DeliveryTimeout("", outcome=Outcome.UNKNOWN)


def test_log_may_begin_behind_a_record_that_was_given_up_in_doubt() -> None:
    assert begins_rightly(IN_DOUBT)


def test_log_that_begins_above_the_first_sequence_for_no_reason_is_found() -> None:
    assert not begins_rightly(None)
    assert not begins_rightly(DeliveryTimeout("", outcome=Outcome.REJECTED))
    assert not begins_rightly(IN_DOUBT, settled_at=12.5), "it was still waited for"
    assert not begins_rightly(IN_DOUBT, first_sent=1), "the first one was never sent"
    assert not begins_rightly(IN_DOUBT, epoch=1), "the first one was sent in another epoch"
    assert not begins_rightly(IN_DOUBT, violations=2), "one of two is for no reason"


# -- exceptions that are passed to the loop's handler ----------------------------------------------


def failed(method: str, passed_on: PassedOn, raised: BaseException) -> None:
    """Replace the function that logs the failure of a hook; a signal handler raises in it."""
    passed_on.note(raised, sys._getframe())


@pytest.mark.parametrize("error", [Interrupt, TimeUp])
@pytest.mark.parametrize("method", ["on_record_unsent", "on_append"])
def test_exception_while_the_failure_of_a_hook_is_logged_is_passed_on_if_it_got_an_outcome(
    error: type[BaseException], method: str
) -> None:
    passed_on, raised = PassedOn(), error()
    failed(method, passed_on, raised)
    is_report = method == "on_record_unsent"
    assert passed_on.lost == [raised] * (is_report and error is Interrupt)
    assert not passed_on.take(error()), "another one"
    assert passed_on.take(raised) is is_report
    assert not passed_on.take(raised), "it comes once"
    assert passed_on.lost == []


@pytest.mark.parametrize("error", [Interrupt, TimeUp])
def test_exception_in_a_call_of_a_hook_that_got_an_outcome_is_passed_on_or_logged(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on, raised = PassedOn(), error()

    def call(*_: object) -> None:
        passed_on.note(raised, sys._getframe())

    monkeypatch.setattr(user_objects, "misbehave", call)
    Plugin(UserObjects(0, ()), 0).on_record_unsent("t", 0, None, None)
    assert passed_on.lost == [raised] * (error is Interrupt)
    assert passed_on.take(raised) is (error is Interrupt)


# -- progress once everything is healed -----------------------------------------------------------


def waiting_record(number: int, queue: int | None = None) -> Attempt:
    """Return a record without an outcome, in a partition queue of topic "t" if `queue` is given."""
    handle: Any = None if queue is None else types.SimpleNamespace(partition=queue)
    return Attempt(number, "t", None, b"", began=number, started_at=0.0, handle=handle)


BEHIND_OTHERS = [waiting_record(0, queue=0), waiting_record(1, queue=0)]


@pytest.mark.parametrize("queue", [0, None])
def test_record_of_any_partition_may_wait_behind_a_partition_that_progresses(
    queue: int | None,
) -> None:
    progress = Progress(limit_s=15.0)
    last = waiting_record(9, queue)
    progress.check([*BEHIND_OTHERS, last], at=0.0)
    progress.check([*BEHIND_OTHERS[1:], last], at=14.0)
    progress.check([last], at=28.0)
    progress.check([last], at=42.0)
    with pytest.raises(Violation, match=r"stands still, with others \[9\] wait"):
        progress.check([last], at=43.5)


def test_partition_that_stands_still_is_found_although_another_one_progresses() -> None:
    progress = Progress(limit_s=15.0)
    stuck = waiting_record(9, queue=1)
    progress.check([*BEHIND_OTHERS, stuck], at=0.0)
    progress.check([*BEHIND_OTHERS[1:], stuck], at=14.0)
    with pytest.raises(Violation, match=r"\('t', 1\) stands still, with others \[9\] wait"):
        progress.check([*BEHIND_OTHERS[1:], stuck], at=15.5)


def test_records_of_unknown_partitions_are_found_once_nothing_progresses() -> None:
    progress = Progress(limit_s=15.0)
    for at in (0.0, 15.0):
        progress.check([*BEHIND_OTHERS, waiting_record(9)], at)
    with pytest.raises(Violation, match="stands still"):
        progress.check([*BEHIND_OTHERS, waiting_record(9)], at=15.5)


# -- seeds that would not end ---------------------------------------------------------------------


def healing_seed() -> int:
    return next(s for s in range(100) if plan_of(s).ending == "heal" and not plan_of(s).last_fault)


async def sleep_for_ever(step_s: float) -> None:
    for _ in itertools.count():
        await asyncio.sleep(step_s)


def test_seed_whose_records_are_refused_at_once_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time passes in a call that a failed producer refuses."""

    async def refused(self: Any, *args: Any, **options: Any) -> None:
        raise ProducerFailed("the producer failed and cannot be used any more")

    monkeypatch.setattr(Producer, "send", refused)
    with pytest.raises(Violation, match="a fresh record took"):
        run_seed(healing_seed())


def test_seed_that_never_ends_is_ended_by_its_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Simulation, "_fresh_records", lambda self: sleep_for_ever(1.0))
    with pytest.raises(VirtualTimeLimit, match="still running at virtual time"):
        run_seed(healing_seed())


def test_seed_whose_clock_creeps_is_ended_by_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MOST_PASSES", 30_000)
    monkeypatch.setattr(Simulation, "_fresh_records", lambda self: sleep_for_ever(1e-6))
    with pytest.raises(LivelockError, match="30000 loop passes until virtual time"):
        run_seed(healing_seed())


def test_healthy_seeds_stay_far_from_what_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "MOST_PASSES", run_module.MOST_PASSES // 10)
    monkeypatch.setattr(run_module, "LONGEST_S", run_module.LONGEST_S / 10)
    unpaused = [seed for seed in range(24, 40) if "expiry" not in plan_of(seed).rare_faults]
    for seed in unpaused[:12]:
        run_seed(seed)


def test_mild_judgments_are_counted_by_name() -> None:
    totals = Totals()
    for seed, found in outcomes(range(40, 60), jobs=1):
        totals.add(seed, found)
    assert not totals.broken
    assert totals.exemptions
    assert set(totals.exemptions) <= set(EXEMPTIONS) == set(MOST_SEEDS)
    for name, count in totals.exemptions.items():
        assert count >= totals.mild_seeds[name] >= 1
        assert 40 <= totals.mild_at[name][0] < 60
    totals.seeds = 2_000
    assert totals.too_mild() == []
    totals.mild_seeds["copies"] = 121
    assert totals.too_mild() == ["copies"]


def test_seeds_with_rare_faults_are_counted() -> None:
    totals, report = Totals(), run_seed(2)
    totals.seeds = 99
    assert totals.too_rare() == []
    totals.seeds = 1_000
    totals.fault_seeds.update(dict.fromkeys(RARE_FAULTS, 29))
    assert totals.too_rare() == [*RARE_FAULTS]
    totals.add(2, dataclasses.replace(report, faults=2 * (*RARE_FAULTS,)))
    totals.seeds = 1_000
    assert totals.too_rare() == []


IDLE_LOG = (b"topic id", 1)


def is_idle(stored_at: float, *, under_way: tuple[float, float] = (0.0, 0.0)) -> bool:
    """Return whether a producer was idle at 1000 s in a log in which it stored one record, with
    another record in flight in the given interval."""
    cluster = FakeCluster()
    cluster.create_topic("t", 2).topic_id = IDLE_LOG[0]
    other = Attempt(1, "t", 1, b"1", 1, started_at=under_way[0], settled_at=under_way[1])
    load: Any = types.SimpleNamespace(attempts=[other])
    judge = Judge(COPIES_PLAN, cluster, load, types.SimpleNamespace(), Wire(), math.inf)  # type: ignore[arg-type]
    judge.places[b"0"] = [Place("t", *IDLE_LOG, 0, 0, 0, True, stored_at)]
    return judge._is_idle(IDLE_LOG, 1_000.0)


def test_producer_is_idle_in_a_log_that_holds_nothing_recent_with_nothing_under_way() -> None:
    assert is_idle(299.0)
    assert is_idle(1_001.0)
    assert not is_idle(301.0)
    assert not is_idle(1_000.0)
    assert not is_idle(299.0, under_way=(999.0, 1_001.0))
    assert is_idle(299.0, under_way=(900.0, 999.0))


def test_a_stall_is_slack_only_for_what_it_delayed() -> None:
    fate = object.__new__(Misfortunes)
    fate.stalls = [(10.0, 50.0), (60.0, 64.0)]
    assert fate.stalled_s() == 44.0
    assert fate.stalled_s(50.0, 60.0) == 0.0, "neither of them was then"
    assert fate.stalled_s(45.0, 62.0) == 7.0, "no more of them than there was"
    assert fate.stalled_s(61.0, 100.0) == 3.0


def test_slices_begin_at_multiples_of_their_size() -> None:
    assert slices(range(2_500), 1_000) == [
        range(1_000), range(1_000, 2_000), range(2_000, 2_500),
    ]  # fmt: skip
    assert slices(range(700, 1_100), 500) == [range(700, 1_000), range(1_000, 1_100)]
    assert slices(range(7, 8), 1_000) == [range(7, 8)]


def test_a_journal_remembers_slices_of_the_same_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "journal"
    totals, whole = Totals(), Totals()
    for seed, found in outcomes(range(50, 53), jobs=1):
        totals.add(seed, found)
    totals.add(53, "promise broken")
    journal = Journal(path)
    assert journal.find(range(50, 54)) is None
    journal.add(range(50, 54), totals, 1.5)
    with path.open("a") as file:
        file.write('{"code":')  # the run was stopped in the middle of a line
    assert Journal(path).find(range(50, 54)) == (totals, 1.5)
    assert Journal(path).find(range(50, 55)) is None
    whole.merge(totals)
    assert whole == totals
    monkeypatch.setattr("tests.simulation.parallel_seeds.fingerprint", lambda: 7)
    assert Journal(path).find(range(50, 54)) is None


def test_a_broken_seed_is_reported_with_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> None:
        raise AssertionError("promise broken")

    monkeypatch.setattr("tests.simulation.run.Simulation._judge", broken)
    totals = Totals()
    for seed, found in outcomes([8], jobs=1):
        totals.add(seed, found)
    assert list(totals.broken) == [8]
    assert "promise broken" in totals.broken[8]
    assert "seed 8: Plan(seed=8" in totals.broken[8]
