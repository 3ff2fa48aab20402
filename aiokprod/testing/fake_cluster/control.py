"""Scripted faults: reactions of a broker to a request that replace or change its response."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokprod._wire.message import Message
from aiokprod.testing.fake_cluster.framing import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """The way in which a broker handles one request.

    Attributes:
        process: pass the request to the model. If False, its records never reach the log.
        before_s: delay before the request is processed, s.
        after_s: delay before the response is sent, s.
        error: respond with this error code in all error fields of the response.
        answer: respond with this message instead of the model's message.
        edit: function that changes the model's message.
        edit_frame: function that changes the encoded frame, with length prefix and header.
        raw: send these bytes instead of a frame.
        silent: send no response.
        close: close the connection gracefully afterwards.
        cut_at: reset the connection after this many bytes of the response.
        gate: hold the request until this gate releases it with another reaction.
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
    gate: Gate | None = None

    @property
    def is_honest(self) -> bool:
        """True if the client gets a complete response that it can decode."""
        broken = self.edit_frame is not None or self.raw is not None or self.cut_at is not None
        return not broken and not self.silent


class Gate:
    """Holds requests until the test releases them, in the order of their arrival.

    `let_through` may be called before the request has arrived.
    """

    def __init__(self) -> None:
        self._held: deque[Callable[[Reaction], None]] = deque()
        self._reactions: deque[Reaction] = deque()

    def let_through(self, reaction: Reaction) -> None:
        """Handle the oldest held request with `reaction`, or the next request if none is held."""
        self._reactions.append(reaction)
        self._serve()

    def hold(self, process: Callable[[Reaction], None]) -> None:
        """Hold a request that has arrived. `process(reaction)` handles the request."""
        self._held.append(process)
        self._serve()

    def _serve(self) -> None:
        while self._held and self._reactions:
            self._held.popleft()(self._reactions.popleft())


def delay(seconds: float) -> Reaction:
    """Process the request later."""
    return Reaction(before_s=seconds)


def answer_late(seconds: float) -> Reaction:
    """Process the request now, but respond later."""
    return Reaction(after_s=seconds)


def lose_request() -> Reaction:
    """Neither process the request nor respond to it."""
    return Reaction(process=False, silent=True)


def lose_answer() -> Reaction:
    """Process the request, but send no response."""
    return Reaction(silent=True)


def refuse(code: int) -> Reaction:
    """Respond with an error code, without processing the request."""
    return Reaction(process=False, error=code)


def answer(message: Message) -> Reaction:
    """Respond with this message, without processing the request."""
    return Reaction(process=False, answer=message)


def edit(function: Callable[[Any], Message]) -> Reaction:
    """Process the request, then change the response."""
    return Reaction(edit=function)


def edit_frame(function: Callable[[bytes], bytes]) -> Reaction:
    """Process the request, then change the bytes of the response."""
    return Reaction(edit_frame=function)


def close(*, process: bool = False) -> Reaction:
    """Close the connection without a response."""
    return Reaction(process=process, silent=True, close=True)


def cut(size: int, *, process: bool = True) -> Reaction:
    """Reset the connection after `size` bytes of the response."""
    return Reaction(process=process, cut_at=size)


def garbage(data: bytes, *, process: bool = True) -> Reaction:
    """Send these bytes instead of a response."""
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
    """The active rules, oldest first. The first rule that returns a reaction applies."""

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
        """Add a rule. Return a function that removes the rule."""
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
        """Remove all rules."""
        self._rules.clear()

    def reaction_to(self, request: Request) -> Reaction:
        """Return the reaction of the first matching rule, or normal processing."""
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
    """A scripted result for the batch of one partition.

    Attributes:
        code: error code of the response.
        append: append the batch despite the error.
        message: text for the batch (KIP-467).
        record_errors: (index in the batch, text) for single records.
        leader_hint: name the current leader in the response (KIP-951).
    """

    code: int
    append: bool = False
    message: str | None = None
    record_errors: tuple[tuple[int, str], ...] = ()
    leader_hint: bool = True


class ProduceScript:
    """Faults for the next batches of each partition, in order."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, int], deque[tuple[ProduceFault | None, int | None]]] = {}

    def add(self, where: tuple[str, int], fault: ProduceFault | None, times: int | None) -> None:
        """Apply a fault to the next `times` batches, or to all if `times` is None. A fault of None
        means success."""
        self._waiting.setdefault(where, deque()).append((fault, times))

    def clear(self) -> None:
        """Remove all faults."""
        self._waiting.clear()

    def take(self, where: tuple[str, int]) -> ProduceFault | None:
        """Remove and return the fault for the batch that is being processed."""
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
