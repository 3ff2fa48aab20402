"""How much of the buffer each broker's records hold: one sick broker must not starve the others.

A broker may hold half of buffer_memory in closed batches; who wants to open another batch for it
waits in line until some of them are settled. Clusters of one broker have no limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

from aiokprod._core.batch import ByteCount
from aiokprod.errors import BufferTimeout, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

SHARE: Final = 0.5


class HasLeader(Protocol):
    """What is waited for: a partition's queue."""

    @property
    def node(self) -> int | None: ...


class QuotaWaiter:
    """A caller's place in a line, kept from its first wait until it is done.

    The turn ends with the object as well: a caller that a signal handler interrupted may not come
    to `end_turn`, and would hold up the line for good.

    Attributes:
        queue: of the partition it wants to append to.
        arrival: number by which the callers of a line are served.
        node: the broker in whose line it stands, or whose turn it has.
        has_turn: it was let through, and `end_turn` was not called yet.
        waiter: done once it is let through, or has to look anew.
    """

    __slots__ = ("_quota", "arrival", "has_turn", "node", "queue", "waiter")

    def __init__(
        self,
        quota: BrokerMemoryQuota,
        queue: HasLeader,
        arrival: int,
        waiter: asyncio.Future[None],
    ) -> None:
        self._quota = quota
        self.queue = queue
        self.arrival = arrival
        self.waiter = waiter
        self.node = queue.node
        self.has_turn = False

    def __del__(self) -> None:
        if self.has_turn:
            self._quota.on_dropped(self)


_Line = OrderedDict[QuotaWaiter, None]
_by_arrival = attrgetter("arrival")


class BrokerMemoryQuota:
    """Bytes held per broker id (None: partitions without a leader), and who waits for less.

    Invariants: per broker one waiter at a time has its turn, so that order is kept and waking is
    proportional to the room there is; no line stands while there is room and nobody has the turn;
    lines are in order of arrival. Joining and leaving a line is O(1) but for `follow`.
    """

    def __init__(self, buffer_memory: int, several_nodes: Callable[[], bool]) -> None:
        self._limit = int(buffer_memory * SHARE)
        self._several_nodes = several_nodes
        self._held: dict[int | None, ByteCount] = {}
        self._lines: dict[int | None, _Line] = {}
        self._turns: set[int | None] = set()
        self._arrivals = itertools.count()
        self._closed: KafkaError | None = None

    def account(self, node: int | None) -> ByteCount:
        """The count of the bytes that a broker holds. The queues of its partitions change it
        (`PartitionSlot`); `returned` must follow if it became less."""
        count = self._held.get(node)
        if count is None:
            count = self._held.setdefault(node, ByteCount())
        return count

    def returned(self, node: int | None) -> None:
        """A broker holds less than before."""
        if self._lines:
            self.let_through(node)

    def reserved_bytes(self, node: int | None) -> int:
        """Bytes a broker holds."""
        count = self._held.get(node)
        return 0 if count is None else count.bytes

    @property
    def waiting(self) -> int:
        """Callers that wait for a broker to give memory back."""
        return sum(map(len, self._lines.values()))

    @property
    def pressure(self) -> float:
        """Used part of the fullest broker's share, 0 to 1; 0 while there is no limit."""
        most = max((count.bytes for count in list(self._held.values())), default=0)
        if not most or not self._several_nodes():
            return 0.0
        return min(1.0, most / max(1, self._limit))

    def has_waiters(self, node: int | None) -> bool:
        """True if somebody stands in line for this broker, or has the turn."""
        return node in self._lines or node in self._turns

    def exceeded(self, node: int | None) -> bool:
        """True if no further batch may be opened for this broker."""
        count = self._held.get(node)
        return count is not None and count.bytes > self._limit and self._several_nodes()

    def let_through(self, node: int | None) -> None:
        """Give the turn to the first in a broker's line if there is room and nobody has it."""
        line = self._lines.get(node)
        if line is None or node in self._turns or self.exceeded(node):
            return
        while line:
            place, _ = line.popitem(last=False)
            if not place.waiter.done():  # else cancelled in this very pass
                place.has_turn = True
                self._turns.add(node)
                place.waiter.set_result(None)
                break
        if not line:
            del self._lines[node]

    def look_again(self) -> None:
        """The number of brokers changed, and with it what counts as room."""
        for node in list(self._lines):
            self.let_through(node)

    def follow(self, nodes: Iterable[int | None]) -> None:
        """Brokers have lost partitions: callers that wait for those go on waiting in the lines of
        the present leaders, at their place by arrival."""
        joined: dict[int | None, list[QuotaWaiter]] = {}
        for node in nodes:
            line = self._lines.get(node, ())
            for place in [place for place in line if place.queue.node != node]:
                self._leave(place)
                place.node = place.queue.node
                joined.setdefault(place.node, []).append(place)
        for node, places in joined.items():
            both = sorted([*self._lines.get(node, ()), *places], key=_by_arrival)
            self._lines[node] = OrderedDict.fromkeys(both)
            self.let_through(node)

    def look_anew(self, queues: Collection[HasLeader]) -> None:
        """These queues are gone: who waits for one of them returns from `wait` without the turn."""
        for line in list(self._lines.values()):
            for place in [place for place in line if place.queue in queues]:
                self._leave(place)
                if not place.waiter.done():
                    place.waiter.set_result(None)

    def end_turn(self, place: QuotaWaiter) -> None:
        """A caller that `wait` let through is done, or waits for something else. Idempotent."""
        if place.has_turn:
            self._turns.discard(place.node)
            place.has_turn = False
            self.let_through(place.node)

    def on_dropped(self, place: QuotaWaiter) -> None:
        """A caller was interrupted while it had the turn: the next one gets it, in the loop's next
        pass, because a finalizer may run in any thread and within any other call."""
        node = place.node
        self._turns.discard(node)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            place.waiter.get_loop().call_soon_threadsafe(self.let_through, node)

    async def wait(
        self, queue: HasLeader, deadline: float, place: QuotaWaiter | None = None
    ) -> QuotaWaiter:
        """Wait in line until it is our turn to open a batch for the leader of `queue`'s partition;
        `end_turn` must follow. If the partition moves, so do we.

        Args:
            deadline: loop time.
            place: what an earlier wait of the same caller returned, if there was no room after all.
                Its turn ends; its arrival counts.

        Raises:
            BufferTimeout: `deadline` passed.
            KafkaError: the error given to `close`.

        Cancellation: the turn passes to the next one.
        """
        if self._closed is not None:
            raise self._closed.copy()
        loop = asyncio.get_running_loop()
        if place is None:
            place = QuotaWaiter(self, queue, next(self._arrivals), loop.create_future())
            self._join(place)
        else:
            had_turn, before = place.has_turn, place.node
            if had_turn:
                self._turns.discard(before)
            place.has_turn = False
            place.queue, place.node, place.waiter = queue, queue.node, loop.create_future()
            self._join(place)
            if had_turn:
                self.let_through(before)
        timer = loop.call_at(deadline, self._expire, place)
        self.let_through(place.node)
        try:
            await place.waiter
        except asyncio.CancelledError:
            if place.waiter.cancelled():
                self._leave(place)
                self.let_through(place.node)
            elif place.waiter.exception() is None:  # else its time was over in the same pass
                self.end_turn(place)
            raise
        finally:
            timer.cancel()
        return place

    def close(self, error: KafkaError) -> None:
        """Fail everyone who waits, now and later, with a copy of `error`."""
        self._closed = error
        for node in list(self._lines):
            self.refuse(node, error)

    def refuse(self, node: int | None, error: KafkaError) -> None:
        """Fail everyone who waits for this broker now with a copy of `error`."""
        for place in self._lines.pop(node, ()):
            if not place.waiter.done():
                _fail(place.waiter, error.copy())

    def _join(self, place: QuotaWaiter) -> None:
        line = self._lines.setdefault(place.node, OrderedDict())
        last = next(reversed(line), None)
        line[place] = None
        if last is not None and last.arrival > place.arrival:
            line.move_to_end(place, last=False)
            second = next(itertools.islice(line, 1, None))
            if second.arrival < place.arrival:  # not before all others
                self._lines[place.node] = OrderedDict.fromkeys(sorted(line, key=_by_arrival))

    def _leave(self, place: QuotaWaiter) -> bool:
        """Take a caller out of its line; False if it stood in none any more."""
        line = self._lines.get(place.node)
        if line is None or place not in line:
            return False
        del line[place]
        if not line:
            del self._lines[place.node]
        return True

    def _expire(self, place: QuotaWaiter) -> None:
        if not self._leave(place) or place.waiter.done():
            return
        node = place.node
        where = "partitions without a leader hold" if node is None else f"broker {node} holds"
        _fail(
            place.waiter,
            BufferTimeout(
                f"no room within max_block_ms: {where} {self.reserved_bytes(node)} bytes of "
                f"buffer_memory without an outcome, its share is {self._limit}. Send slower, raise "
                "buffer_memory, or look why it does not answer",
                outcome=Outcome.NOT_SENT,
            ),
        )


def _fail(future: asyncio.Future[None], error: KafkaError) -> None:
    future.set_exception(error)
    future.exception()  # counts as retrieved: the call that waited may have been interrupted
