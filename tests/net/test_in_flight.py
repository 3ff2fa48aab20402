from __future__ import annotations

import pytest

from aiokprod._net.in_flight import InFlightRequest, InFlightRequests
from tests.current import current


def request(number: int, deadline: float = 0.0) -> InFlightRequest:
    return InFlightRequest(number, 3, 12, None, 0.0, deadline)


def filled(*deadlines: float) -> tuple[InFlightRequests, list[InFlightRequest]]:
    requests = [request(i, deadline) for i, deadline in enumerate(deadlines)]
    in_flight = InFlightRequests(3)
    for one in requests:
        in_flight.add(one)
    return in_flight, requests


def test_answer_completes_the_oldest_and_write_the_newest_if_it_expects_no_answer() -> None:
    in_flight, (a, b, c) = filled(1, 2, 3)
    assert in_flight.oldest is a
    assert in_flight.complete_next() is a
    assert in_flight.complete_written() is None
    c.expect_response = False
    assert in_flight.complete_written() is c
    assert list(in_flight) == [b]


def test_full_at_the_limit() -> None:
    in_flight, _ = filled(1, 2)
    assert not in_flight.full
    in_flight.add(request(9))
    assert current(in_flight.full)
    assert len(in_flight) == 3


def test_clear_returns_all_oldest_first() -> None:
    in_flight, requests = filled(1, 2, 3)
    assert in_flight.clear() == requests
    assert len(in_flight) == 0
    assert in_flight.clear() == []


def test_empty_has_no_end_to_ask_for() -> None:
    in_flight, _ = filled()
    assert in_flight.earliest_deadline() is None
    assert in_flight.oldest is None
    assert in_flight.complete_written() is None
    with pytest.raises(IndexError):
        in_flight.complete_next()


def test_earliest_deadline_need_not_be_the_oldest_request() -> None:
    in_flight, _ = filled(30.0, 5.0, 20.0)
    assert in_flight.earliest_deadline() == 5.0


def test_postpone_moves_every_deadline() -> None:
    in_flight, requests = filled(1.0, 2.0)
    in_flight.postpone(10.0)
    assert [r.deadline for r in requests] == [11.0, 12.0]


def test_requests_are_compared_by_identity() -> None:
    assert request(1) != request(1)


def test_excuse_moves_overdue_deadlines_once() -> None:
    in_flight, requests = filled(1.0, 2.0, 9.0)
    assert in_flight.excuse(5.0, 6.0)
    assert [r.deadline for r in requests] == [6.0, 6.0, 9.0]
    assert not in_flight.excuse(9.0, 10.0)
    assert [r.deadline for r in requests] == [6.0, 6.0, 9.0]
