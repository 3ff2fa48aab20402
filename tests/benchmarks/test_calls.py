"""`python -m benchmarks.calls`, and the limit that its number must keep."""

from __future__ import annotations

from collections import Counter

from benchmarks.calls import lone_send

LIMIT = 112


def test_lone_send_stays_below_the_limit_of_python_calls():
    calls = lone_send()
    assert calls[0] == ("producer.py", "Producer.send")
    assert len(calls) <= LIMIT, Counter(calls).most_common()


def test_every_lone_send_makes_the_same_calls():
    assert lone_send() == lone_send()
