"""`MemoryBudget` and `Reservation` by themselves. tests/engine/buffer tests their accounting."""

from __future__ import annotations

import pytest

from aiokprod._core.memory import MemoryBudget, Reservation


def test_budget_checks_its_limit() -> None:
    with pytest.raises(OverflowError):
        MemoryBudget(2**63)


def test_reservation_is_never_without_a_budget() -> None:
    """Without a budget, the methods of a reservation would silently write past the end of the None
    object."""

    class Own(Reservation):
        def __init__(self) -> None: ...

    with pytest.raises(TypeError):
        Reservation.__new__(Reservation)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Own()
    with pytest.raises(TypeError):
        Reservation(None)  # type: ignore[arg-type]
