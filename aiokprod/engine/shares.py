"""How much of the buffer each broker's records hold: one sick broker must not starve the others.

A broker may hold half of buffer_memory in closed batches; who wants to open another batch for it
waits in line until some of them are settled. Clusters of one broker have no limit.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from aiokprod.errors import BufferTimeout, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE: Final = 0.5

_Line = OrderedDict["asyncio.Future[None]", None]


class NodeShares:
    """Bytes held per broker id (None: partitions without a leader), and who waits for less.

    Invariants: per broker one waiter at a time has its turn, so that order is kept and waking is
    proportional to the room there is; no line stands while there is room and nobody has the turn.
    Joining and leaving a line is O(1).
    """

    def __init__(self, buffer_memory: int, several_nodes: Callable[[], bool]) -> None:
        self._limit = int(buffer_memory * SHARE)
        self._several_nodes = several_nodes
        self._held: dict[int | None, int] = {}
        self._lines: dict[int | None, _Line] = {}
        self._turns: set[int | None] = set()
        self._closed: KafkaError | None = None

    def add(self, node: int | None, size: int) -> None:
        """A batch was closed (or came over from another leader)."""
        self._held[node] = self._held.get(node, 0) + size

    def remove(self, node: int | None, size: int) -> None:
        """A batch's memory was released (or went to another leader)."""
        left = self._held[node] - size
        assert left >= 0, "a broker gave back more than it held"
        if left:
            self._held[node] = left
        else:
            del self._held[node]
        if self._lines:
            self.let_through(node)

    def held(self, node: int | None) -> int:
        """Bytes a broker holds."""
        return self._held.get(node, 0)

    @property
    def waiting(self) -> int:
        """Callers that wait for a broker to give memory back."""
        return sum(map(len, self._lines.values()))

    @property
    def pressure(self) -> float:
        """Used part of the fullest broker's share, 0 to 1; 0 while there is no limit."""
        if not self._held or not self._several_nodes():
            return 0.0
        return min(1.0, max(self._held.values()) / max(1, self._limit))

    def has_waiters(self, node: int | None) -> bool:
        """True if somebody stands in line for this broker, or has the turn."""
        return node in self._lines or node in self._turns

    def exceeded(self, node: int | None) -> bool:
        """True if no further batch may be opened for this broker."""
        return self._held.get(node, 0) > self._limit and self._several_nodes()

    def let_through(self, node: int | None) -> None:
        """Give the turn to the first in a broker's line if there is room and nobody has it."""
        line = self._lines.get(node)
        if line is None or node in self._turns or self.exceeded(node):
            return
        while line:
            waiter, _ = line.popitem(last=False)
            if not waiter.done():  # else cancelled in this very pass
                self._turns.add(node)
                waiter.set_result(None)
                break
        if not line:
            del self._lines[node]

    def look_again(self) -> None:
        """The number of brokers changed, and with it what counts as room."""
        for node in list(self._lines):
            self.let_through(node)

    def end_turn(self, node: int | None) -> None:
        """The caller that `wait` let through is done, or waits for something else."""
        self._turns.discard(node)
        self.let_through(node)

    async def wait(self, node: int | None, deadline: float, *, first: bool = False) -> None:
        """Wait in line until it is our turn to open a batch for `node`; `end_turn` must follow.

        `first`: it was our turn, but there was no room after all; wait at the front.

        Raises:
            BufferTimeout: `deadline` (loop time) passed.
            KafkaError: the error given to `close`.

        Cancellation: the turn passes to the next one.
        """
        if self._closed is not None:
            raise self._closed.copy()
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        line = self._lines.setdefault(node, OrderedDict())
        line[waiter] = None
        if first:
            line.move_to_end(waiter, last=False)
            self._turns.discard(node)
        timer = loop.call_at(deadline, self._expire, node, waiter)
        self.let_through(node)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._leave(node, waiter)
                self.let_through(node)
            elif waiter.exception() is None:  # else its time was over in the same pass
                self.end_turn(node)
            raise
        finally:
            timer.cancel()

    def close(self, error: KafkaError) -> None:
        """Fail everyone who waits, now and later, with a copy of `error`."""
        self._closed = error
        for node in list(self._lines):
            self.refuse(node, error)

    def refuse(self, node: int | None, error: KafkaError) -> None:
        """Fail everyone who waits for this broker now with a copy of `error`."""
        for waiter in self._lines.pop(node, ()):
            if not waiter.done():
                waiter.set_exception(error.copy())

    def _leave(self, node: int | None, waiter: asyncio.Future[None]) -> bool:
        """Take a waiter out of its line; False if it stood in none any more."""
        line = self._lines.get(node)
        if line is None or waiter not in line:
            return False
        del line[waiter]
        if not line:
            del self._lines[node]
        return True

    def _expire(self, node: int | None, waiter: asyncio.Future[None]) -> None:
        if not self._leave(node, waiter) or waiter.done():
            return
        where = "partitions without a leader hold" if node is None else f"broker {node} holds"
        waiter.set_exception(
            BufferTimeout(
                f"no room within max_block_ms: {where} {self.held(node)} bytes of buffer_memory "
                f"without an outcome, its share is {self._limit}. Send slower, raise "
                "buffer_memory, or look why it does not answer",
                outcome=Outcome.NOT_SENT,
            )
        )
