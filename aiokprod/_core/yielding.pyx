# cython: language_level=3
"""Who sends more than a loop pass has time for, and goes on in which of the next ones.

Were all of them to go on in the next pass, thousands of tasks would make it last as long as all
their records take, and brokers would be heard and served once in that time only.
"""

from collections import deque

from libc.math cimport INFINITY

from aiokprod._core.batch cimport MemoryBudget

FIRST = 16
MOST = 256
ROUND = 512
LONG = 0.0005


cdef class YieldQueue:
    """A line before the loop; in every pass a group of it goes on.

    The next group is half as large if this one used the loop for longer than `LONG` seconds, else
    twice as large, and never so small that anybody waits for more than `ROUND` passes. What others
    do in a pass does not count: a busy loop is not for us to relieve. While a quarter of the memory
    is in use the group stays small, since who finds no room has to wait once more, and for longer.

    A signal's handler may raise anywhere, so whether a release is scheduled is noted apart: whoever
    joins sees to it again.
    """

    def __init__(self, loop not None, clock, MemoryBudget memory not None):
        self.loop = loop
        self.clock = clock
        self.memory = memory
        self.line = deque()

    @property
    def waiting(self):
        """How many are in the line."""
        return len(self.line)

    def join(self):
        """A future, done when it is the caller's turn; marked as awaited, for an iterator to
        yield."""
        place = self.loop.create_future()
        place._asyncio_future_blocking = True
        self.line.append(place)
        if not self.scheduled:
            self.group = FIRST // 2
            self.least = 1
            self.began = INFINITY
            self.schedule()
        return place

    cdef int schedule(self) except -1:
        self.loop.call_soon(self.release)
        self.scheduled = True
        return 0

    def begin(self):
        """Runs just before a group, in the order in which a loop runs what is ready."""
        self.began = self.clock()

    def release(self):
        """Runs just after a group, once per loop pass while somebody waits."""
        self.scheduled = False
        try:
            self.resize()
        finally:  # also if the clock or a signal's handler raises
            try:
                self.loop.call_soon(self.begin)
                self.let_go()
            finally:
                if self.line:
                    self.schedule()

    cdef int resize(self) except -1:
        cdef Py_ssize_t waiting = len(self.line)
        self.least = max(self.least, -(-waiting // ROUND))  # kept: who came last counts on it
        if <double>self.clock() - self.began > LONG:
            self.group = max(1, self.group // 2)
        else:
            self.group = min(MOST, self.group * 2)
        if self.memory.used > self.memory.limit // 4:
            self.group = min(self.group, FIRST)
        self.group = min(waiting, max(self.group, self.least))
        return 0

    cdef int let_go(self) except -1:
        for _ in range(min(self.group, len(self.line))):
            place = self.line.popleft()
            if not place.done():  # else its task was cancelled
                place.set_result(None)
        return 0
