"""When brokers that owe us something are looked at."""

from __future__ import annotations

import math

from aiokprod.engine.silence import PATIENCE_S, Silence

NOW = 500.0


def test_each_broker_is_looked_at_as_soon_as_its_own_time_is_over() -> None:
    """Not at the pace of the one that is late already."""
    silence = Silence()
    silence.asked(1, NOW)
    silence.asked(2, NOW + 0.4)
    assert silence.look_at == NOW + PATIENCE_S
    assert silence.look(NOW + PATIENCE_S)
    assert silence.look_at == NOW + 0.4 + PATIENCE_S
    assert silence.unanswered(NOW + PATIENCE_S) == {1}
    assert silence.look(silence.look_at)
    assert silence.look_at == NOW + 0.4 + 2 * PATIENCE_S
    assert silence.unanswered(NOW + 0.4 + PATIENCE_S) == {1, 2}


def test_nothing_is_looked_at_when_nothing_is_owed() -> None:
    silence = Silence()
    silence.asked(1, NOW)
    silence.heard(1, NOW, more=False)
    assert silence.look_at == math.inf
    silence.cannot_send([2], NOW)
    assert silence.look_at == NOW + PATIENCE_S
    silence.asked(1, NOW)
    silence.cannot_send([], NOW)
    assert silence.look_at < math.inf, "broker 1 owes an answer"
    silence.heard(1, NOW, more=False)
    assert silence.look_at == math.inf
    assert not silence.look(NOW + 10)
