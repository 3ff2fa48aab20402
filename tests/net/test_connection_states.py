from __future__ import annotations

import random

import pytest

from aiokprod._backoff import ExponentialBackoff
from aiokprod._net.connection_states import ClusterConnectionStates
from aiokprod.config import ProducerConfig

A, B, C = ("10.0.0.1", 9092), ("10.0.0.2", 9092), ("10.0.0.3", 9092)
HOST = ("broker", 9092)


def new_states(jitter: float = 0.0) -> ClusterConnectionStates:
    return ClusterConnectionStates(
        ExponentialBackoff(0.05, 1.0, jitter=jitter),
        ExponentialBackoff(10.0, 30.0, jitter=jitter),
        random.Random(3),
    )


def test_unknown_node_may_be_dialled_at_once() -> None:
    states = new_states()
    assert states.can_connect(1, 0.0)
    assert states.last_attempt(1) == float("-inf")
    assert states.throttled_until(1) == float("-inf")
    assert len(states) == 0


def test_reconnect_backoff_doubles_to_its_ceiling_and_is_reset_when_ready() -> None:
    states = new_states()
    pauses = []
    for _ in range(7):
        states.disconnected(1, 100.0, was_up=False, was_ready=False)
        pauses.append(round(states.not_before(1) - 100.0, 3))
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    states.ready(1, 0.0)
    assert states.can_connect(1, 100.0)
    states.disconnected(1, 100.0, was_up=True, was_ready=True)
    assert round(states.not_before(1) - 100.0, 3) == 0.05


def test_backoff_has_20_percent_jitter_and_a_hard_ceiling() -> None:
    states = new_states(jitter=0.2)
    first, capped = set(), set()
    for node in range(200):
        states.disconnected(node, 0.0, was_up=False, was_ready=False)
        first.add(states.not_before(node))
        for _ in range(9):
            states.disconnected(node, 0.0, was_up=False, was_ready=False)
        capped.add(states.not_before(node))
    assert 0.04 <= min(first) < 0.042
    assert 0.058 < max(first) <= 0.06
    assert 0.8 <= min(capped) < 0.82
    assert max(capped) == 1.0
    assert 60 < len(capped) < 160, "about half of them below the maximum, no two alike"


def test_can_connect_when_the_backoff_is_over() -> None:
    states = new_states()
    states.disconnected(1, 100.0, was_up=False, was_ready=False)
    assert not states.can_connect(1, 100.04)
    assert states.can_connect(1, 100.05)
    assert states.can_connect(2, 100.0)


def test_f7_setup_timeout_grows_with_failures_to_connect_and_is_reset_when_ready() -> None:
    states = new_states()
    timeouts = []
    for _ in range(4):
        timeouts.append(states.connecting(1, 0.0, HOST))
        states.disconnected(1, 0.0, was_up=False, was_ready=False)
    assert timeouts == [10.0, 20.0, 30.0, 30.0]
    states.ready(1, 0.0)
    assert states.connecting(1, 0.0, HOST) == 10.0


def test_setup_timeout_grows_with_failures_of_the_handshake() -> None:
    states = new_states()
    timeouts = []
    for _ in range(4):
        timeouts.append(states.connecting(1, 0.0, HOST))
        states.disconnected(1, 0.0, was_up=True, was_ready=False)
    assert timeouts == [10.0, 20.0, 30.0, 30.0]


def test_setup_timeout_of_a_host_is_kept_when_its_node_id_changes() -> None:
    states = new_states()
    states.connecting(-1, 0.0, HOST)
    states.disconnected(-1, 0.0, was_up=True, was_ready=False)
    states.forget(-1)
    assert states.connecting(1, 0.0, HOST) == 20.0
    assert states.connecting(2, 0.0, ("other", 9092)) == 10.0
    states.ready(1, 0.0)
    assert states.connecting(-1, 0.0, HOST) == 10.0


def test_setup_timeout_of_a_slow_host_is_kept_when_it_is_ready() -> None:
    states = new_states()
    states.connecting(1, 0.0, HOST)
    states.disconnected(1, 10.0, was_up=True, was_ready=False)
    states.connecting(1, 20.0, HOST)
    states.ready(1, 35.0)
    assert states.connecting(2, 40.0, HOST) == 20.0
    states.ready(2, 45.0)
    assert states.connecting(3, 50.0, HOST) == 10.0


def test_hosts_that_were_never_reached_do_not_pile_up() -> None:
    states = new_states()
    for port in range(3000):
        states.connecting(port, 0.0, ("broker", port))
        states.disconnected(port, 0.0, was_up=False, was_ready=False)
        states.forget(port)
    assert len(states._setup_failures) <= 1024


def test_setup_timeout_does_not_grow_when_the_connection_was_ready() -> None:
    states = new_states()
    states.disconnected(1, 0.0, was_up=True, was_ready=True)
    assert states.connecting(1, 0.0, HOST) == 10.0


def test_last_attempt_is_stamped_by_start_and_end() -> None:
    states = new_states()
    states.connecting(1, 5.0, HOST)
    assert states.last_attempt(1) == 5.0
    states.disconnected(1, 7.0, was_up=False, was_ready=False)
    assert states.last_attempt(1) == 7.0


def test_f13_addresses_are_tried_in_turn_then_looked_up_again() -> None:
    states = new_states()
    assert states.address(1) is None
    states.resolved(1, [A, B])
    assert states.address(1) == A
    states.disconnected(1, 0.0, was_up=False, was_ready=False)
    assert states.address(1) == B
    states.disconnected(1, 0.0, was_up=False, was_ready=False)
    assert states.address(1) is None


def test_lost_connection_forces_a_look_up_that_avoids_the_failed_address() -> None:
    states = new_states()
    states.resolved(1, [A, B, C])
    assert states.address(1) == A
    states.disconnected(1, 0.0, was_up=True, was_ready=True)
    assert states.address(1) is None
    states.resolved(1, [A, B, C])
    assert states.address(1) == B


@pytest.mark.parametrize("end", ["lost", "idle", "all failed"])
def test_addresses_of_a_new_look_up_are_tried_from_the_first_one(end: str) -> None:
    states = new_states()
    states.resolved(1, [A, B])
    assert states.address(1) == A
    states.disconnected(1, 0.0, was_up=False, was_ready=False)
    assert states.address(1) == B
    if end == "lost":
        states.disconnected(1, 0.0, was_up=True, was_ready=True)
    elif end == "idle":
        states.expired(1, 0.0)
    else:
        states.disconnected(1, 0.0, was_up=False, was_ready=False)
    assert states.address(1) is None
    states.resolved(1, [C, A])
    assert states.address(1) == C
    states.disconnected(1, 0.0, was_up=False, was_ready=False)
    assert states.address(1) == A


def test_only_address_is_used_again() -> None:
    states = new_states()
    states.resolved(1, [A])
    assert states.address(1) == A
    states.disconnected(1, 0.0, was_up=True, was_ready=True)
    states.resolved(1, [A])
    assert states.address(1) == A


def test_resolver_that_moved_the_failed_address_is_followed() -> None:
    states = new_states()
    states.resolved(1, [A, B])
    states.address(1)
    states.disconnected(1, 0.0, was_up=True, was_ready=True)
    states.resolved(1, [C, A])
    assert states.address(1) == C


def test_expired_idle_connection_has_no_backoff_but_a_fresh_look_up() -> None:
    states = new_states()
    states.resolved(1, [A])
    states.address(1)
    states.expired(1, 50.0)
    assert states.can_connect(1, 50.0)
    assert states.address(1) is None
    assert states.last_attempt(1) == 50.0


def test_throttle_is_never_shortened() -> None:
    states = new_states()
    assert states.throttle(1, 10.0) == 10.0
    assert states.throttle(1, 5.0) == 10.0
    assert states.throttle(1, 11.0) == 11.0
    assert states.throttled_until(1) == 11.0


def test_forget_drops_the_record() -> None:
    states = new_states()
    states.disconnected(1, 0.0, was_up=False, was_ready=False)
    states.forget(1)
    states.forget(1)
    assert len(states) == 0
    assert states.can_connect(1, 0.0)


def test_reset_forgets_failures_and_addresses_but_not_throttles() -> None:
    states = new_states()
    states.resolved(1, [A, B])
    states.disconnected(1, 0.0, was_up=False, was_ready=False)
    states.throttle(1, 99.0)
    states.reset()
    assert states.can_connect(1, 0.0)
    assert states.address(1) is None
    assert states.connecting(1, 0.0, HOST) == 10.0
    assert states.throttled_until(1) == 99.0


def test_of_takes_seconds_from_the_configuration() -> None:
    config = ProducerConfig(
        bootstrap_servers="h:1",
        reconnect_backoff_ms=1000,
        reconnect_backoff_max_ms=1000,
        socket_connection_setup_timeout_ms=2000,
        socket_connection_setup_timeout_max_ms=2000,
    )
    states = ClusterConnectionStates.of(config, random.Random(1))
    assert states.connecting(1, 0.0, HOST) == pytest.approx(2.0, rel=0.2)
    states.disconnected(1, 0.0, was_up=True, was_ready=True)
    assert states.not_before(1) == pytest.approx(1.0, rel=0.2)


def test_search_pauses_after_ten_failures_within_a_second() -> None:
    states = new_states()
    for node in range(10):
        assert states.may_search(node * 0.01)
        states.connecting(node, node * 0.01, HOST, sought=True)
        states.disconnected(node, node * 0.01, was_up=False, was_ready=False)
    assert not states.may_search(0.1)
    assert not states.may_search(0.999)
    assert states.may_search(1.0)
    states.connecting(10, 1.0, HOST, sought=True)
    states.disconnected(10, 1.0, was_up=False, was_ready=False)
    assert not states.may_search(1.0), "the second failure was 0.99 s ago"
    assert states.may_search(1.01)


def test_failures_of_nodes_that_are_needed_for_themselves_do_not_stop_the_search() -> None:
    states = new_states()
    for number in range(20):
        states.connecting(1, number * 0.01, HOST)
        states.disconnected(1, number * 0.01, was_up=False, was_ready=False)
    assert states.may_search(0.2)


def test_lost_connections_do_not_stop_the_search() -> None:
    states = new_states()
    for node in range(20):
        states.disconnected(node, 0.0, was_up=True, was_ready=True)
    assert states.may_search(0.0)
