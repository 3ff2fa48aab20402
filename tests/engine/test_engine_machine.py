"""A state machine over the whole engine: append, drain, ack, error, disconnect, time, expiry,
split, withdrawal, leader moves, zombies; see `engine_machine.py`.

Invariants: each record settles exactly once and its outcome is true. With idempotence there are no
duplicates in a log and acknowledged records are in order. Memory is accounted to the byte. Once all
faults have ended, everything settles soon, and every queue and heap is empty.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.engine.engine_machine import BROKERS, PARTITIONS, Simulation

pytestmark = pytest.mark.matrix

KINDS: dict[str, dict[str, Any]] = {
    "idempotent": {},
    "plain, one in flight": {"idempotent": False, "in_flight": 1},
    "plain, five in flight": {"idempotent": False, "in_flight": 5},
}
SIZES = [1, 40, 150, 390]
MOMENTS = [0.001, 0.02, 0.1, 0.1, 0.2, 3.0]

NUMBERS = st.integers(0, 9999)
NODES = st.integers(1, BROKERS)


@pytest.fixture(autouse=True)
def _unresponsive() -> Iterator[None]:
    """Disable logging: thousands of failing batches would be logged."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


# -- Hypothesis -----------------------------------------------------------------------------------


class Machine(RuleBasedStateMachine):
    """One rule per step of the simulation."""

    kind = "idempotent"
    simulation: Simulation | None = None

    @initialize(linger=st.sampled_from([0, 20]), adaptive=st.booleans(), known=st.booleans())
    def build(self, linger: int, adaptive: bool, known: bool) -> None:
        self.simulation = Simulation(
            linger_ms=linger, adaptive=adaptive, known_producer=known, **KINDS[self.kind]
        )

    @property
    def s(self) -> Simulation:
        assert self.simulation is not None
        return self.simulation

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        size=st.sampled_from(SIZES),
        count=st.integers(1, 6),
        watch=st.booleans(),
        apart=st.booleans(),
    )
    def append(self, **how: Any) -> None:
        self.s.append(**how)

    @precondition(lambda self: not all(w.delivery.done() for w in self.s.records))
    @rule(number=NUMBERS)
    def withdraw(self, number: int) -> None:
        self.s.withdraw(number)

    @precondition(lambda self: self.s.waiting)
    @rule(number=NUMBERS)
    def cancel_a_waiter(self, number: int) -> None:
        self.s.cancel_a_waiter(number)

    @precondition(lambda self: self.s.harness.accumulator.incomplete)
    @rule()
    def flush(self) -> None:
        self.s.flush()

    @precondition(lambda self: self.s.harness.brokers.waiting)
    @rule(number=NUMBERS, omit=st.integers(0, 7).map(lambda n: n == 7))
    def process(self, number: int, omit: bool) -> None:
        self.s.process(number, omit=omit)

    @precondition(lambda self: self.s.answers)
    @rule(number=NUMBERS)
    def answer(self, number: int) -> None:
        self.s.answer(number)

    @precondition(lambda self: self.s.harness.brokers.waiting)
    @rule(node=NODES)
    def process_and_answer(self, node: int) -> None:
        self.s.process_and_answer(node)

    @precondition(lambda self: self.s.harness.brokers.waiting)
    @rule(number=NUMBERS, received=st.integers(0, 5), timed_out=st.booleans())
    def disconnect(self, number: int, received: int, timed_out: bool) -> None:
        self.s.disconnect(number, received, timed_out=timed_out)

    @precondition(lambda self: self.s.zombies)
    @rule(number=NUMBERS)
    def zombie_is_processed(self, number: int) -> None:
        self.s.zombie_is_processed(number)

    @rule(node=NODES, seconds=st.sampled_from([0.05, 1.0, 0.0]))
    def node_state(self, node: int, seconds: float) -> None:
        self.s.node_state(node, seconds)

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        leader=st.sampled_from([1, 2, 2, 1, None]),
        known=st.booleans(),
    )
    def leader_moves(self, partition: int, leader: int | None, known: bool) -> None:
        self.s.leader_moves(partition, leader)
        if known:
            self.s.metadata_arrives()

    @rule()
    def limit_changes(self) -> None:
        self.s.limit_changes()

    @precondition(lambda self: not all(sent.done for sent in self.s.harness.brokers.init_requests))
    @rule(refused=st.integers(0, 3).map(lambda n: n == 3))
    def producer_id(self, refused: bool) -> None:
        self.s.producer_id(refused=refused)

    @rule(seconds=st.sampled_from(MOMENTS))
    def time_passes(self, seconds: float) -> None:
        self.s.time_passes(seconds)

    @precondition(lambda self: not all(w.delivery.done() for w in self.s.records))
    @rule()
    def deliveries_expire(self) -> None:
        self.s.deliveries_expire()

    @invariant()
    def promises_are_kept(self) -> None:
        if self.simulation is not None:
            self.simulation.check()

    def teardown(self) -> None:
        if self.simulation is not None:
            try:
                self.simulation.heal()
            finally:
                self.simulation.close()


@pytest.mark.parametrize("kind", KINDS)
def test_engine_keeps_its_promises(kind: str) -> None:
    run_state_machine_as_test(
        type("Machine", (Machine,), {"kind": kind}),
        settings=settings(
            deadline=None,
            max_examples=60 if kind == "idempotent" else 20,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )


# -- seeds: many more runs in the same time -------------------------------------------------------


def step(s: Simulation, rng: random.Random) -> None:
    number = rng.randrange(10_000)
    steps: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: s.append(rng.randrange(PARTITIONS), rng.choice(SIZES), rng.randint(1, 6),
                             watch=rng.random() < 0.5, apart=rng.random() < 0.7)),
        (1, lambda: s.withdraw(number)),
        (1, lambda: s.cancel_a_waiter(number)),
        (1, s.flush),
        (6, lambda: s.process(number, omit=rng.random() < 0.1)),
        (5, lambda: s.answer(number)),
        (3, lambda: s.process_and_answer(rng.randint(1, BROKERS))),
        (2, lambda: s.disconnect(number, rng.randint(0, 5), timed_out=rng.random() < 0.5)),
        (1, lambda: s.zombie_is_processed(number)),
        (1, lambda: s.node_state(rng.randint(1, BROKERS), rng.choice([0.05, 1.0, 0.0]))),
        (1, lambda: s.leader_moves(rng.randrange(PARTITIONS), rng.choice([1, 2, 1, 2, None]))),
        (1, s.metadata_arrives),
        (1, s.limit_changes),
        (2, s.producer_id),
        (6, lambda: s.time_passes(rng.choice(MOMENTS))),
        (int(rng.random() < 0.1), s.deliveries_expire),
    ]  # fmt: skip
    rng.choices([action for _, action in steps], [weight for weight, _ in steps])[0]()


def simulate(kind: str, seed: int, steps: int) -> None:
    rng = random.Random(seed)
    simulation = Simulation(
        linger_ms=rng.choice([0, 20]),
        adaptive=rng.random() < 0.5,
        known_producer=rng.random() < 0.8,
        **KINDS[kind],
    )
    try:
        for _ in range(steps):
            step(simulation, rng)
            simulation.check()
        simulation.heal()
    except BaseException as error:
        error.add_note(f"simulate({kind!r}, {seed}, {steps})")
        raise
    finally:
        simulation.close()


@pytest.mark.parametrize("seeds", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_engine_keeps_its_promises_on_seeded_runs(kind: str, seeds: int) -> None:
    for seed in range(seeds * 10, seeds * 10 + 10):
        simulate(kind, seed, 120)
