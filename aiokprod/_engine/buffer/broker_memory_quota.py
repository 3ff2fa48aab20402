"""Limits the share of the buffer that one broker can fill, so that a failing broker does not block
sends to the others.

The sealed batches of a broker may use half of buffer_memory. A caller that needs another batch for
this broker waits until some of these batches have their outcome. A cluster of one broker has no
limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import weakref
from collections import OrderedDict
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol

from aiokprod._core.memory import ByteCount
from aiokprod.errors import BufferTimeout, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

SHARE: Final = 0.5


class HasLeader(Protocol):
    """A partition and the broker id of its leader (`PartitionQueue`)."""

    @property
    def node(self) -> int | None: ...


class QuotaWaiter:
    """A caller that waits for a broker's share, from its first wait until its record is appended.

    Once granted, the object is the permit to open a batch. The permit also ends when the object is
    deleted, because a caller that a signal handler has interrupted may never call `release`, and
    later callers would wait forever.

    Attributes:
        queue: the queue of the partition to which the caller wants to append.
        arrival: callers that wait for the same broker are served in the order of this number.
        node: the broker for whose share the caller waits, or whose permit it has.
        granted: True while the caller has the permit, from its grant until `release`.
        future: done once the permit is granted, or the topic is no longer in use.
    """

    __slots__ = ("__weakref__", "_quota", "arrival", "future", "granted", "node", "queue")

    def __init__(
        self,
        quota: BrokerMemoryQuota,
        queue: HasLeader,
        arrival: int,
        future: asyncio.Future[None],
    ) -> None:
        self._quota = quota
        self.queue = queue
        self.arrival = arrival
        self.future = future
        self.node = queue.node
        self.granted = False

    def __del__(self) -> None:
        # The attribute is missing if `__init__` was interrupted.
        if getattr(self, "granted", False):
            self._quota.on_dropped(self)


_Waiters = OrderedDict[QuotaWaiter, None]
_by_arrival = attrgetter("arrival")


class BrokerMemoryQuota:
    """The bytes in use by broker id (None stands for partitions without a leader), and the callers
    that wait for room.

    Invariants: there is one permit per broker, so that order is kept and no more callers are woken
    than there is room for; no caller waits while there is room and the permit is free; callers are
    served in order of arrival. All operations except `follow` are O(1) per caller.
    """

    def __init__(self, buffer_memory: int, several_nodes: Callable[[], bool]) -> None:
        self._limit = int(buffer_memory * SHARE)
        self._several_nodes = several_nodes
        self._held: dict[int | None, ByteCount] = {}
        self._waiting: dict[int | None, _Waiters] = {}
        self._granted: set[int | None] = set()
        self._arrivals = itertools.count()
        self._closed: KafkaError | None = None

    def account(self, node: int | None) -> ByteCount:
        """Return the counter of the bytes in use by a broker. The queues of its partitions change
        the counter (`PartitionSlot`); after a decrease, `returned` must be called."""
        count = self._held.get(node)
        if count is None:
            count = self._held.setdefault(node, ByteCount())
        return count

    def returned(self, node: int | None) -> None:
        """Grant the permit to the next waiter if there is room, because batches of the broker were
        freed."""
        if self._waiting:
            self.grant_next(node)

    def reserved_bytes(self, node: int | None) -> int:
        """Return the bytes in use by a broker."""
        count = self._held.get(node)
        return 0 if count is None else count.bytes

    @property
    def waiting(self) -> int:
        """Number of callers that wait for a broker's share."""
        return sum(map(len, self._waiting.values()))

    @property
    def pressure(self) -> float:
        """Used fraction of the fullest broker's share, from 0 to 1; 0 while there is no limit."""
        most = max((count.bytes for count in list(self._held.values())), default=0)
        if not most or not self._several_nodes():
            return 0.0
        return min(1.0, most / max(1, self._limit))

    def has_waiters(self, node: int | None) -> bool:
        """Return True if a caller waits for this broker, or has its permit."""
        return node in self._waiting or node in self._granted

    def exceeded(self, node: int | None) -> bool:
        """Return True if no further batch may be opened for this broker."""
        count = self._held.get(node)
        return count is not None and count.bytes > self._limit and self._several_nodes()

    def grant_next(self, node: int | None) -> None:
        """Grant the permit of a broker to its first waiter, if there is room and the permit is
        free."""
        waiters = self._waiting.get(node)
        if waiters is None or node in self._granted or self.exceeded(node):
            return
        while waiters:
            waiter, _ = waiters.popitem(last=False)
            if not waiter.future.done():  # done if it was cancelled in this iteration of the loop
                waiter.granted = True
                self._granted.add(node)
                waiter.future.set_result(None)
                break
        if not waiters:
            del self._waiting[node]

    def on_nodes_changed(self) -> None:
        """Grant permits again after the number of brokers has changed, because the quota applies
        only if there are several brokers."""
        for node in list(self._waiting):
            self.grant_next(node)

    def follow(self, nodes: Iterable[int | None]) -> None:
        """Move callers whose partition has a new leader to the waiters of that leader, in order of
        arrival. `nodes` are the brokers that have lost partitions."""
        joined: dict[int | None, list[QuotaWaiter]] = {}
        for node in nodes:
            waiters = self._waiting.get(node, ())
            for waiter in [waiter for waiter in waiters if waiter.queue.node != node]:
                self._leave(waiter)
                waiter.node = waiter.queue.node
                joined.setdefault(waiter.node, []).append(waiter)
        for node, moved in joined.items():
            both = sorted([*self._waiting.get(node, ()), *moved], key=_by_arrival)
            self._waiting[node] = OrderedDict.fromkeys(both)
            self.grant_next(node)

    def forget(self, queues: Collection[HasLeader]) -> None:
        """End the waits for these removed queues: `wait` returns without a permit."""
        for waiters in list(self._waiting.values()):
            for waiter in [waiter for waiter in waiters if waiter.queue in queues]:
                self._leave(waiter)
                if not waiter.future.done():
                    waiter.future.set_result(None)

    def release(self, waiter: QuotaWaiter) -> None:
        """Pass the permit to the next caller. Idempotent."""
        if waiter.granted:
            self._granted.discard(waiter.node)
            waiter.granted = False
            self.grant_next(waiter.node)

    def on_dropped(self, waiter: QuotaWaiter) -> None:
        """Pass the permit of an interrupted caller to the next caller. This is called by a
        finalizer, which may run in any thread and during any other call, so the permit is granted
        in the next iteration of the event loop."""
        node = waiter.node
        self._granted.discard(node)
        with contextlib.suppress(RuntimeError):  # the loop is closed: no caller waits
            waiter.future.get_loop().call_soon_threadsafe(self.grant_next, node)

    async def wait(
        self, queue: HasLeader, deadline: float, waiter: QuotaWaiter | None = None
    ) -> QuotaWaiter:
        """Wait for the permit to open a batch of a partition. If the partition's leader changes,
        the wait continues for the new leader. The caller must call `release`.

        Args:
            deadline: loop time.
            waiter: the result of an earlier wait of the same caller, if there was still no room.
                The caller gives up the permit and keeps its arrival number.

        Raises:
            BufferTimeout: `deadline` passed.
            KafkaError: the error passed to `close` or `fail_waiters`.

        Cancellation: the permit passes to the next caller.
        """
        if self._closed is not None:
            raise self._closed.copy()
        loop = asyncio.get_running_loop()
        if waiter is None:
            waiter = QuotaWaiter(self, queue, next(self._arrivals), loop.create_future())
            self._join(waiter)
        else:
            was_granted, before = waiter.granted, waiter.node
            if was_granted:
                self._granted.discard(before)
            waiter.granted = False
            waiter.queue, waiter.node, waiter.future = queue, queue.node, loop.create_future()
            self._join(waiter)
            if was_granted:
                self.grant_next(before)
        # The timer has only a weak reference: a call that is interrupted here leaves its timer
        # behind, which must not keep the permit.
        timer = loop.call_at(deadline, self._expire, weakref.ref(waiter))
        try:
            self.grant_next(waiter.node)
            await waiter.future
        except asyncio.CancelledError:
            if waiter.future.cancelled():
                self._leave(waiter)
                self.grant_next(waiter.node)
            # The wait may have expired in the same iteration of the event loop.
            elif waiter.future.exception() is None:
                self.release(waiter)
            raise
        finally:
            timer.cancel()
        return waiter

    def close(self, error: KafkaError) -> None:
        """Fail all present and later waits with a copy of `error`."""
        self._closed = error
        for node in list(self._waiting):
            self.fail_waiters(node, error)

    def fail_waiters(self, node: int | None, error: KafkaError) -> None:
        """Fail all present waits for this broker with a copy of `error`."""
        for waiter in self._waiting.pop(node, ()):
            if not waiter.future.done():
                _fail(waiter.future, error.copy())

    def _join(self, waiter: QuotaWaiter) -> None:
        waiters = self._waiting.setdefault(waiter.node, OrderedDict())
        last = next(reversed(waiters), None)
        waiters[waiter] = None
        if last is not None and last.arrival > waiter.arrival:
            waiters.move_to_end(waiter, last=False)
            second = next(itertools.islice(waiters, 1, None))
            if second.arrival < waiter.arrival:  # the waiter does not belong in first place
                self._waiting[waiter.node] = OrderedDict.fromkeys(sorted(waiters, key=_by_arrival))

    def _leave(self, waiter: QuotaWaiter) -> bool:
        """Remove a waiter. Return False if it no longer waited."""
        waiters = self._waiting.get(waiter.node)
        if waiters is None or waiter not in waiters:
            return False
        del waiters[waiter]
        if not waiters:
            del self._waiting[waiter.node]
        return True

    def _expire(self, reference: weakref.ref[QuotaWaiter]) -> None:
        waiter = reference()
        if waiter is None or not self._leave(waiter) or waiter.future.done():
            return
        node = waiter.node
        if node is None:
            where, why = "partitions without a leader hold", "these partitions have no leader"
        else:
            where, why = f"broker {node} holds", "the broker does not respond"
        _fail(
            waiter.future,
            BufferTimeout(
                f"no room within max_block_ms: {where} {self.reserved_bytes(node)} bytes of "
                f"buffer_memory without an outcome, its share is {self._limit}. Send more slowly, "
                f"raise buffer_memory, or find out why {why}",
                outcome=Outcome.NOT_SENT,
            ),
        )


def _fail(future: asyncio.Future[None], error: KafkaError) -> None:
    future.set_exception(error)
    future.exception()  # mark it as retrieved: the call that waited may have been interrupted
