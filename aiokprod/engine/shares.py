"""How much of the buffer each broker's records hold: one sick broker must not starve the others.

A broker may hold half of buffer_memory in closed batches; who wants to open another batch for it
waits in line until some of them are settled. Clusters of one broker have no limit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from aiokprod.errors import BufferTimeout, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE: Final = 0.5


class NodeShares:
    """Bytes held per broker id (None: partitions without a leader), and who waits for less.

    Invariant: per broker one waiter at a time has its turn, and lets the next one through, so that
    order is kept and waking is proportional to the room there is.
    """

    def __init__(self, buffer_memory: int, several_nodes: Callable[[], bool]) -> None:
        self._limit = int(buffer_memory * SHARE)
        self._several_nodes = several_nodes
        self._held: dict[int | None, int] = {}
        self._waiters: dict[int | None, deque[asyncio.Future[None]]] = {}
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
        self.let_through(node)

    def held(self, node: int | None) -> int:
        """Bytes a broker holds."""
        return self._held.get(node, 0)

    @property
    def waiting(self) -> int:
        """Callers that wait for a broker to give memory back."""
        return sum(map(len, self._waiters.values()))

    def has_waiters(self, node: int | None) -> bool:
        """True if somebody stands in line for this broker."""
        return node in self._waiters

    def exceeded(self, node: int | None) -> bool:
        """True if no further batch may be opened for this broker."""
        return self._held.get(node, 0) > self._limit and self._several_nodes()

    def let_through(self, node: int | None) -> None:
        """Wake the first waiter of a broker if there is room for it."""
        line = self._waiters.get(node)
        if line is None or node in self._turns or self.exceeded(node):
            return
        while line:
            waiter = line.popleft()
            if not waiter.done():
                self._turns.add(node)
                waiter.set_result(None)
                break
        if not line:
            del self._waiters[node]

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
        line = self._waiters.setdefault(node, deque())
        if first:
            self._turns.discard(node)
            line.appendleft(waiter)
        else:
            line.append(waiter)
        timer = loop.call_at(deadline, self._expire, node, waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter in line:
                self._leave(node, waiter)
            else:
                self.end_turn(node)
            raise
        finally:
            timer.cancel()

    def close(self, error: KafkaError) -> None:
        """Fail everyone who waits, now and later, with a copy of `error`."""
        self._closed = error
        lines, self._waiters = self._waiters, {}
        for line in lines.values():
            for waiter in line:
                if not waiter.done():
                    waiter.set_exception(error.copy())

    def _leave(self, node: int | None, waiter: asyncio.Future[None]) -> None:
        line = self._waiters[node]
        line.remove(waiter)
        if not line:
            del self._waiters[node]

    def _expire(self, node: int | None, waiter: asyncio.Future[None]) -> None:
        if waiter.done():
            return
        self._leave(node, waiter)
        where = "partitions without a leader" if node is None else f"broker {node}"
        waiter.set_exception(
            BufferTimeout(
                f"no room within max_block_ms: {where} already hold"
                f"{'' if node is None else 's'} {self.held(node)} bytes of buffer_memory, more "
                f"than its share of {self._limit}, without an outcome. Send slower, raise "
                "buffer_memory, or look why it does not answer",
                outcome=Outcome.NOT_SENT,
            )
        )
