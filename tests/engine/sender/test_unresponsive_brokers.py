"""When brokers that have not responded are checked."""

from __future__ import annotations

import math

from aiokprod._engine.sender.unresponsive_brokers import OVERDUE_AFTER_S, UnresponsiveBrokers

NOW = 500.0


def test_each_broker_is_looked_at_as_soon_as_its_own_time_is_over() -> None:
    """The intervals of another overdue broker do not delay the check."""
    silence = UnresponsiveBrokers()
    silence.request_sent(1, NOW)
    silence.request_sent(2, NOW + 0.4)
    assert silence.next_check_at == NOW + OVERDUE_AFTER_S
    assert silence.any_overdue(NOW + OVERDUE_AFTER_S)
    assert silence.next_check_at == NOW + 0.4 + OVERDUE_AFTER_S
    assert silence.overdue_nodes(NOW + OVERDUE_AFTER_S) == {1}
    assert silence.any_overdue(silence.next_check_at)
    assert silence.next_check_at == NOW + 0.4 + 2 * OVERDUE_AFTER_S
    assert silence.overdue_nodes(NOW + 0.4 + OVERDUE_AFTER_S) == {1, 2}


def test_nothing_is_looked_at_when_nothing_is_owed() -> None:
    silence = UnresponsiveBrokers()
    silence.request_sent(1, NOW)
    silence.response_received(1, NOW)
    assert silence.next_check_at == math.inf
    silence.connecting_to([2], NOW)
    assert silence.next_check_at == NOW + OVERDUE_AFTER_S
    silence.request_sent(1, NOW)
    silence.connecting_to([], NOW)
    assert silence.next_check_at < math.inf, "broker 1 owes an answer"
    silence.response_received(1, NOW)
    assert silence.next_check_at == math.inf
    assert not silence.any_overdue(NOW + 10)
