"""`python -m benchmarks.calls`, and the limit on the number of Python calls per send."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from benchmarks.calls import lone_send

LIMIT = 100
SENDER_PAGE = Path(__file__).parents[2] / "docs" / "design" / "sender.md"


def test_lone_send_stays_below_the_limit_of_python_calls() -> None:
    calls = lone_send()
    assert calls[0] == ("producer.py", "Producer.send")
    assert len(calls) <= LIMIT, Counter(calls).most_common()
    assert f"takes about {LIMIT} Python calls" in SENDER_PAGE.read_text(encoding="utf-8")


def test_every_lone_send_makes_the_same_calls() -> None:
    assert lone_send() == lone_send()
