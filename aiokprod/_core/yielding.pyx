# cython: language_level=3
"""Fairness between tasks that submit records: decides which tasks continue in a loop iteration.

A task that keeps submitting after the iteration's time slice has expired waits in a queue. In each
of the next iterations, a group of the queued tasks continues. If thousands of tasks all continued
in the next iteration, it would last until all their records are appended, and the event loop would
serve the brokers' sockets only once in that time.
"""

from asyncio import current_task
from collections import deque

from libc.math cimport INFINITY

from aiokprod._core.memory cimport MemoryBudget

cdef extern from *:
    """
    /* Return the time of `time.monotonic` without calling that function. */
    #if PY_VERSION_HEX >= 0x030D0000
    static double aiokprod_monotonic(void) {
        PyTime_t now;
        return PyTime_MonotonicRaw(&now) < 0 ? 0.0 : PyTime_AsSecondsDouble(now);
    }
    #else
    static double aiokprod_monotonic(void) {
        return (double)_PyTime_GetMonotonicClock() * 1e-9;
    }
    #endif
    """
    double monotonic "aiokprod_monotonic"() noexcept

FIRST = 16
MOST = 256
ROUND = 512
LONG = 0.0005


cdef bint has_monotonic_clock(object loop) except -1:
    """Return True for the loops of asyncio and uvloop, unless `time` was replaced, for example in
    a test."""
    method = getattr(loop.time, "__func__", None)
    return getattr(method, "__module__", None) in ("asyncio.base_events", "uvloop.loop")


cdef class YieldQueue:
    """Decides which tasks have to wait, and resumes them group by group.

    The time slice of an iteration of the event loop begins with its first record and lasts
    `slice_length` seconds. The clock is read only with every 64th record, because reading it costs
    more than an append. After the time slice, a task has to wait when it submits its second record
    in a row. A task that submits one record in an iteration never waits.

    If a group has used the loop for more than `LONG` seconds (measured by `stopwatch`), the next
    group is half as large, otherwise twice as large. It is never so small that a task waits for
    more than `ROUND` iterations. Time used by other tasks in the iteration does not count. While
    more than a quarter of the memory is in use, groups stay small, because a resumed task that
    finds no memory has to wait again, and longer.

    A signal handler may raise between any two steps, so `scheduled` is separate from the queue: if
    an exception has prevented a release from being scheduled, the next `join` schedules it.
    """

    def __init__(self, loop not None, stopwatch, MemoryBudget memory not None,
                 double slice_length=0.001):
        self.loop = loop
        self.is_running = loop.is_running
        self.clock = loop.time
        self.is_monotonic = has_monotonic_clock(loop)
        self.stopwatch = stopwatch
        self.memory = memory
        self.slice_length = slice_length
        self.line = deque()

    @property
    def waiting(self):
        """Number of waiting tasks."""
        return len(self.line)

    def slice_is_over(self):
        """Return True if this iteration had appends and its time slice has expired."""
        return self.pass_open and self.slice_over()

    # -- current iteration ----------------------------------------------------------------------

    cdef int open_pass(self) except -1:
        # `pass_open` is set last: if `clock` or `call_soon` raises, no `close_pass` is scheduled.
        self.overrun = False
        self.last_task = NULL
        self.slice_start = self.now()
        self.loop.call_soon(self.close_pass)
        self.pass_open = True
        return 0

    def close_pass(self):
        """End the current iteration. Runs once in each iteration of the event loop with appends."""
        self.pass_open = False

    cdef double now(self) except? -1:
        """Return the loop's time; only differences of it are used."""
        # Calling the loop's method would take a tenth of the time of `submit` with a serializer.
        return monotonic() if self.is_monotonic else self.clock()

    cdef bint slice_over(self) except -1:
        return self.now() - self.slice_start > self.slice_length

    cdef bint must_yield(self) except -1:
        """Return True if the calling task has to wait. Called for every `CHECK_EVERY`th record, and
        for every record after the time slice."""
        if self.since_check < CHECK_EVERY:
            if not self.is_greedy():
                return False
            self.since_check = 0
            return True
        return self.read_clock()

    cdef int check_slice(self) except -1:
        """Check the time slice between user code for a record and its append. User code may take
        any time, so the clock is read for every record, even if the task was just resumed."""
        if self.pass_open and self.slice_over():
            self.overrun = True
            self.allowance = 0
        return 0

    cdef bint read_clock(self) except -1:
        self.since_check = 0
        if not self.is_running():
            self.pass_open = False
            return False
        self.overrun = self.overrun or self.slice_over()
        self.allowance = 0
        return (self.overrun or self.line) and self.is_greedy()

    cdef bint is_greedy(self) except -1:
        """Return True if the running task has submitted `FREE_RECORDS` records in a row after the
        time slice and has not waited in this iteration."""
        if self.allowance > 0:
            self.allowance -= 1
            return False
        task = current_task(self.loop)
        if task is None:  # a callback of the loop, which cannot wait
            return False
        if <PyObject*>task != self.last_task:
            self.last_task = <PyObject*>task
            self.streak = 0
        self.streak += 1
        if self.streak < FREE_RECORDS:
            return False
        self.streak = 0
        return True

    # -- waiting tasks --------------------------------------------------------------------------

    def join(self):
        """Return a future that is done when the caller may continue. It is marked as awaited, so
        that an iterator can yield it."""
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
        """Store the start time of a group. Runs directly before the group, because a loop runs its
        callbacks in order."""
        self.began = self.stopwatch()

    def release(self):
        """Resume the next group. Runs directly after a group, once per iteration of the event loop
        while tasks wait."""
        self.scheduled = False
        try:
            self.resize()
        finally:  # even if the stopwatch or a signal handler raises
            try:
                self.loop.call_soon(self.begin)
                self.resume_group()
            finally:
                if self.line:
                    self.schedule()

    cdef int resize(self) except -1:
        cdef Py_ssize_t waiting = len(self.line)
        # `least` is not lowered while tasks wait: otherwise the last task could wait for more than
        # `ROUND` iterations.
        self.least = max(self.least, -(-waiting // ROUND))
        if <double>self.stopwatch() - self.began > LONG:
            self.group = max(1, self.group // 2)
        else:
            self.group = min(MOST, self.group * 2)
        if self.memory.used > self.memory.limit // 4:
            self.group = min(self.group, FIRST)
        self.group = min(waiting, max(self.group, self.least))
        return 0

    cdef int resume_group(self) except -1:
        for _ in range(min(self.group, len(self.line))):
            place = self.line.popleft()
            if not place.done():  # done if its task was cancelled
                place.set_result(None)
        return 0
