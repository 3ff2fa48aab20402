"""`PartitionSlot` and `TopicSlot` by themselves. tests/engine/buffer tests their accounting."""

from __future__ import annotations

import pytest

from aiokprod._core.slots import PartitionSlot, TopicSlot


def test_slots_check_their_arguments() -> None:
    with pytest.raises(OverflowError):
        PartitionSlot("t", 2**31)
    with pytest.raises(TypeError):
        PartitionSlot(None, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        TopicSlot(None, 1)  # type: ignore[arg-type]


def test_sticky_fields_refuse_numbers_that_do_not_fit() -> None:
    topic = TopicSlot("t", 1)
    with pytest.raises(OverflowError):
        topic.sticky = 2**31
    with pytest.raises(OverflowError):
        topic.sticky_bytes = 2**63
