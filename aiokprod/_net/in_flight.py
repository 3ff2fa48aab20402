"""The requests of one connection that wait for an answer, and how each of them ends.

Answers come in request order on a connection, so only the oldest request can be completed by an
answer and only the newest can be half written. Convention: appended right, completed left.
Source: Java `InFlightRequests`, `ClientResponse`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aiokprod.errors import KafkaError


@dataclass(slots=True)
class Response:
    """The end of one request. At most one of `body` and `error` is set.

    Attributes:
        node_id: the node the request was handed over for.
        version: API version that was used, -1 if none could be chosen.
        body: decoded response message; None on errors and for requests without an answer.
        error: why there is no body; each request gets an instance of its own.
        possibly_appended: any byte of the request may have reached the broker.
        latency: seconds from hand-over to this end.
        throttle_ms: the broker's throttle time, 0 if none.
    """

    node_id: int
    version: int
    body: Any
    error: KafkaError | None
    maybe_written: bool
    latency: float
    throttle_ms: int = 0


OnDone = Callable[[Response], None]


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """One request from hand-over to its end.

    Attributes:
        version: of the request; its answer is decoded in the same one.
        on_done: called with the `Response`; None for requests the channel makes for itself.
        created: instant of the hand-over.
        deadline: instant after which the connection counts as dead; moved by throttling.
        expect_response: False for acks=0: ends when its bytes are written.
        handed_over: its bytes were given to the transport, so the broker may have seen them.
        excused: its deadline passed during a stall of the loop and was moved once for that.
    """

    correlation_id: int
    api_key: int
    version: int
    on_done: OnDone | None
    created: float
    deadline: float
    expect_response: bool = True
    handed_over: bool = False
    excused: bool = False


class InFlightRequests:
    """Bounded FIFO of open requests.

    Attributes:
        full: no room for one more.

    `complete_next` raises `IndexError` if there are none: a bug of the caller.
    """

    __slots__ = ("_limit", "_requests", "full")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.full = limit <= 0
        self._requests: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InFlightRequest]:
        """Oldest first."""
        return iter(self._requests)

    @property
    def oldest(self) -> InFlightRequest | None:
        """The one that the next answer belongs to; None if there are none."""
        return self._requests[0] if self._requests else None

    def add(self, request: InFlightRequest) -> None:
        self._requests.append(request)
        self.full = len(self._requests) >= self._limit

    def complete_next(self) -> InFlightRequest:
        """Remove the oldest request: the one an answer belongs to."""
        self.full = False
        return self._requests.popleft()

    def complete_written(self) -> InFlightRequest | None:
        """All bytes were written: remove the newest request if it expects no answer, else None."""
        if not self._requests or self._requests[-1].expect_response:
            return None
        self.full = False
        return self._requests.pop()

    def clear(self) -> list[InFlightRequest]:
        """Remove all, oldest first."""
        requests = list(self._requests)
        self._requests.clear()
        self.full = False
        return requests

    def earliest_deadline(self) -> float | None:
        """The first instant a request is overdue, None if there are none. O(in flight)."""
        return min((request.deadline for request in self._requests), default=None)

    def excuse(self, now: float, until: float) -> bool:
        """Give requests that are overdue time until `until`, once each.

        Returns:
            Whether every overdue request got it.
        """
        overdue = [request for request in self._requests if request.deadline <= now]
        if any(request.excused for request in overdue):
            return False
        for request in overdue:
            request.deadline = until
            request.excused = True
        return True

    def postpone(self, seconds: float) -> None:
        """Move all deadlines: throttle time does not count against request timeouts."""
        for request in self._requests:
            request.deadline += seconds
