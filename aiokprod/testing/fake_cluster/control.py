"""Scripted faults: what a broker does to a request instead of, or besides, answering it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokprod._wire.message import Message
from aiokprod.testing.fake_cluster.framing import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """What happens to one request.

    Attributes:
        process: the model handles it (False: it never reaches the log).
        before_s, after_s: seconds before it is processed, before the answer leaves.
        error: answer with this error code in every place the API has for one.
        answer: answer with this message instead of the model's.
        edit: change the model's message into another one.
        edit_frame: change the encoded frame (length, header and all).
        raw: send these bytes instead of a frame.
        silent: send nothing.
        close: end the connection afterwards, in order.
        cut_at: break the connection after so many bytes of what would be sent.
    """

    process: bool = True
    before_s: float = 0.0
    after_s: float = 0.0
    error: int | None = None
    answer: Message | None = None
    edit: Callable[[Any], Message] | None = None
    edit_frame: Callable[[bytes], bytes] | None = None
    raw: bytes | None = None
    silent: bool = False
    close: bool = False
    cut_at: int | None = None

    @property
    def is_honest(self) -> bool:
        """The client gets the whole answer and can read it."""
        broken = self.edit_frame is not None or self.raw is not None or self.cut_at is not None
        return not broken and not self.silent


def delay(seconds: float) -> Reaction:
    """Process the request later."""
    return Reaction(before_s=seconds)


def answer_late(seconds: float) -> Reaction:
    """Process the request now, answer later."""
    return Reaction(after_s=seconds)


def lose_request() -> Reaction:
    """The request is never processed nor answered."""
    return Reaction(process=False, silent=True)


def lose_answer() -> Reaction:
    """The request is processed, the answer never sent."""
    return Reaction(silent=True)


def refuse(code: int) -> Reaction:
    """Do not process; answer with an error code."""
    return Reaction(process=False, error=code)


def answer(message: Message) -> Reaction:
    """Do not process; answer with this message."""
    return Reaction(process=False, answer=message)


def edit(function: Callable[[Any], Message]) -> Reaction:
    """Process, then change the answer."""
    return Reaction(edit=function)


def edit_frame(function: Callable[[bytes], bytes]) -> Reaction:
    """Process, then change the bytes of the answer."""
    return Reaction(edit_frame=function)


def close(*, process: bool = False) -> Reaction:
    """Close the connection without an answer."""
    return Reaction(process=process, silent=True, close=True)


def cut(size: int, *, process: bool = True) -> Reaction:
    """Reset the connection after `size` bytes of the answer."""
    return Reaction(process=process, cut_at=size)


def garbage(data: bytes, *, process: bool = True) -> Reaction:
    """Send these bytes instead of an answer."""
    return Reaction(process=process, raw=data)


ControlFunction = Callable[[Request], Reaction | None]
AnswerFilter = Callable[[Request, Any], Message]


class _Rule:
    __slots__ = ("api_key", "broker_id", "function", "times")

    def __init__(
        self,
        api_key: int | None,
        function: ControlFunction,
        times: int | None,
        broker_id: int | None,
    ) -> None:
        self.api_key = api_key
        self.function = function
        self.times = times
        self.broker_id = broker_id

    def matches(self, request: Request) -> bool:
        if self.times == 0:
            return False
        return self.api_key in (None, request.api_key) and self.broker_id in (
            None,
            request.broker_id,
        )


class Script:
    """The rules in force, oldest first; the first that has a reaction wins."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []

    def add(
        self,
        api_key: int | None,
        function: ControlFunction | Reaction,
        *,
        times: int | None = None,
        broker_id: int | None = None,
    ) -> Callable[[], None]:
        """Add a rule; calling the result takes it away again."""
        if isinstance(function, Reaction):
            fixed = function
            rule = _Rule(api_key, lambda request: fixed, times, broker_id)
        else:
            rule = _Rule(api_key, function, times, broker_id)
        self._rules.append(rule)

        def remove() -> None:
            if rule in self._rules:
                self._rules.remove(rule)

        return remove

    def clear(self) -> None:
        """Back to an obedient broker."""
        self._rules.clear()

    def reaction_to(self, request: Request) -> Reaction:
        """The scripted reaction, or plain processing."""
        for rule in list(self._rules):
            if not rule.matches(request):
                continue
            reaction = rule.function(request)
            if reaction is None:
                continue
            if rule.times is not None:
                rule.times -= 1
                if rule.times == 0:
                    self._rules.remove(rule)
            return reaction
        return Reaction()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProduceFault:
    """The fate of one partition's batch.

    Attributes:
        code: error code to answer.
        append: the batch goes into the log all the same.
        message: text for the batch (KIP-467).
        record_errors: (index in batch, text).
        leader_hint: name the true leader in the answer (KIP-951).
    """

    code: int
    append: bool = False
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    leader_hint: bool = True


class ProduceScript:
    """Faults waiting for batches, per partition in order."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], deque[tuple[ProduceFault | None, int | None]]] = {}

    def add(self, where: tuple[str, int], fault: ProduceFault | None, times: int | None) -> None:
        """Let the next `times` batches meet this fault; None: all. A fault of None lets pass."""
        self._waiting.setdefault(where, deque()).append((fault, times))

    def clear(self) -> None:
        """No more faults."""
        self._waiting.clear()

    def take(self, where: tuple[str, int]) -> ProduceFault | None:
        """The fault for the batch that is being processed."""
        waiting = self._waiting.get(where)
        if not waiting:
            return None
        fault, times = waiting[0]
        if times is not None:
            if times <= 1:
                waiting.popleft()
            else:
                waiting[0] = (fault, times - 1)
        return fault
