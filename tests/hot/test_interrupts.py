"""Exceptions of signal handlers, and MemoryError, within calls; see `tests.hot.interrupts`.

The suite takes a sample; `python -m tests.hot.interrupts --every` takes every bytecode.
"""

from __future__ import annotations

import pytest

from tests.hot.interrupts.batch import draw, every_bytecode
from tests.hot.interrupts.inject import KINDS, Interrupted
from tests.hot.interrupts.scenes import SCENES

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

LIGHT = [scene for scene in SCENES if scene not in ("short_of_memory", "column_larger_than_memory")]


@pytest.mark.parametrize("scene", ["fresh_batch", "full_batch", "sticky_change"])
def test_exception_at_every_bytecode_of_a_call_loses_no_record(scene: str) -> None:
    figures = every_bytecode("idempotent", scene, Interrupted)
    assert figures.raised > 50
    assert len(figures.places) > 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scene", LIGHT)
def test_exception_in_a_call_loses_no_record(scene: str, kind: type[BaseException]) -> None:
    assert every_bytecode("idempotent", scene, kind, stride=97).calls


@pytest.mark.parametrize("options", ["plain", "compressed", "elastic", "watched", "serialized"])
def test_exception_in_a_call_of_any_producer_loses_no_record(options: str) -> None:
    assert every_bytecode(options, "full_batch", Interrupted, stride=7).raised


@pytest.mark.parametrize("seed", range(2))
def test_signal_handler_that_raises_anywhere_loses_no_record(seed: int) -> None:
    assert draw(seed, 60, alarm=True).calls == 60
