"""What a handler returns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiokprod._wire.message import Message


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, maybe later.

    Attributes:
        message: the answer; None sends nothing (acks=0).
        delay_s: seconds the broker needs.
        finish: makes the answer once the delay is over; wins over `message`.
        close: end the connection instead (an error with acks=0).
    """

    message: Message | None
    delay_s: float = 0.0
    finish: Callable[[], Message] | None = None
    close: bool = False
