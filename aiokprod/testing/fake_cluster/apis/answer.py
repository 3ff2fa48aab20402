"""The result of a handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aiokprod._wire.message import Message


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, immediate or delayed.

    Attributes:
        message: the response, or None to send no response (acks=0).
        delay_s: delay of the response, s.
        finish: function that returns the response after the delay, instead of `message`.
        close: close the connection instead of responding (an error with acks=0).
    """

    message: Message | None
    delay_s: float = 0.0
    finish: Callable[[], Message] | None = None
    close: bool = False
