"""The requests in flight on one connection, and the result of each.

Brokers respond in request order, so a response always completes the oldest request. Only the newest
request can be partly written.
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
    """The result of one request. At most one of `body` and `error` is set.

    Attributes:
        node_id: the node of the connection.
        version: API version of the request, or -1 if none could be chosen.
        body: decoded response message; None after an error, and for acks=0.
        error: the error of the request, a separate instance for each request.
        maybe_written: True if any byte of the request may have reached the broker.
        latency: seconds from the call of `send` to completion.
        throttle_ms: the broker's throttle time, or 0 if none.
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
    """One request, from the call of `send` to its completion.

    Attributes:
        version: API version of the request and its response.
        on_done: called with the `Response`; None for the channel's internal requests.
        created: time of the call of `send`.
        deadline: time after which the connection counts as dead; postponed by throttling.
        expect_response: False for acks=0; the request then completes when its bytes have been
            written.
        maybe_written: True once the bytes were passed to the transport, so the broker may have
            received them.
        excused: True if the deadline was already extended because the event loop was blocked.
    """

    correlation_id: int
    api_key: int
    version: int
    on_done: OnDone | None
    created: float
    deadline: float
    expect_response: bool = True
    maybe_written: bool = False
    excused: bool = False


class InFlightRequests:
    """Bounded FIFO queue of the requests in flight.

    Attributes:
        full: True if the limit is reached.
        oldest: the request that the next response completes, or None if the queue is empty.
    """

    __slots__ = ("_limit", "_requests", "full", "oldest")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.full = limit <= 0
        self.oldest: InFlightRequest | None = None
        self._requests: deque[InFlightRequest] = deque()

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[InFlightRequest]:
        """Iterate over the requests, oldest first."""
        return iter(self._requests)

    def add(self, request: InFlightRequest) -> None:
        self._requests.append(request)
        self.oldest = self._requests[0]
        self.full = len(self._requests) >= self._limit

    def complete_next(self) -> InFlightRequest:
        """Remove and return the oldest request, which a response completes.

        Raises:
            IndexError: the queue is empty (a bug in the caller).
        """
        request = self._requests.popleft()
        self.oldest = self._requests[0] if self._requests else None
        self.full = False
        return request

    def complete_written(self) -> InFlightRequest | None:
        """Remove and return the newest request if it expects no response, otherwise return None.
        Called when all bytes have been written."""
        if not self._requests or self._requests[-1].expect_response:
            return None
        request = self._requests.pop()
        self.oldest = self._requests[0] if self._requests else None
        self.full = False
        return request

    def clear(self) -> list[InFlightRequest]:
        """Remove all requests and return them, oldest first."""
        requests = list(self._requests)
        self._requests.clear()
        self.oldest = None
        self.full = False
        return requests

    def earliest_deadline(self) -> float | None:
        """Return the earliest deadline of a request, or None if the queue is empty. O(n)."""
        return min((request.deadline for request in self._requests), default=None)

    def excuse(self, now: float, until: float) -> bool:
        """Extend the deadlines of overdue requests to `until`, once for each request.

        Returns:
            False if the deadline of an overdue request was already extended. No deadline is then
            extended.
        """
        overdue = [request for request in self._requests if request.deadline <= now]
        if any(request.excused for request in overdue):
            return False
        for request in overdue:
            request.deadline = until
            request.excused = True
        return True

    def postpone(self, seconds: float) -> None:
        """Postpone all deadlines, because throttle time does not count towards request timeouts."""
        for request in self._requests:
            request.deadline += seconds
