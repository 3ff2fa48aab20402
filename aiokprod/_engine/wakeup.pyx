# cython: language_level=3
"""An event with a deadline, cheap to set and exact about time.

Compiled because it must not lose a wake-up: a signal handler may raise between any two steps of
Python code, also within `Future.set_result`, which then is done without its waiter knowing. Here
only the calls of the loop are Python, and after an interrupted one the next `set` starts over.
"""

from asyncio import CancelledError, sleep

from libc.math cimport INFINITY


cdef class WakeupEvent:
    """One waiter, any number of setters; a set before the wait is remembered.

    `asyncio.Event` plus `wait_for` would make a task or a timeout context per pass; this makes
    nothing.

    Args:
        keep_timer: the timer of a wait that ends early stays, and serves the later ones: while
            things happen faster than their deadlines pass, none is made or cancelled. Call
            `close` at the end.
    """

    cdef object loop
    cdef bint keep_timer
    cdef bint flag
    cdef double deadline    # of the present wait
    cdef object timer
    cdef double timer_at
    # The waiting task's callback, as a future would have it; None while nobody waits.
    cdef object waiter
    cdef object context
    cdef bint scheduled     # `deliver` is in the loop's queue
    cdef bint begun         # the task has been told to wait
    cdef bint is_cancelled
    cdef public bint _asyncio_future_blocking

    def __cinit__(self, loop not None, *, bint keep_timer=False):
        self.loop = loop
        self.keep_timer = keep_timer
        self.deadline = self.timer_at = INFINITY

    def set(self):
        """Let the waiter run in the next turn of the loop. Idempotent and cheap."""
        self.flag = True
        self.schedule()

    def clear(self):
        """Forget past sets. Call before inspecting state, never after."""
        self.flag = False

    async def wait(self, double deadline):
        """Return once set, or at `deadline` (loop time, inf = never).

        Cancellation: nothing is left behind.
        """
        if self.flag:
            await sleep(0)
            return
        self.deadline = deadline
        if deadline < self.timer_at:
            self.arm(deadline)
        try:
            await self
        finally:
            self.waiter = self.context = None
            self.deadline = INFINITY
            if not self.keep_timer:
                self.close()

    def close(self):
        """Drop the timer: nobody will wait any more."""
        timer, self.timer = self.timer, None
        self.timer_at = INFINITY
        if timer is not None:
            timer.cancel()

    cdef int schedule(self) except -1:
        if self.waiter is not None and not self.scheduled:
            self.loop.call_soon(self.deliver, context=self.context)
            self.scheduled = True  # last: if the call raised, the next `set` makes it again
        return 0

    def deliver(self):
        """Callback of the loop: run the waiting task."""
        waiter, self.waiter = self.waiter, None
        self.scheduled = False
        if waiter is not None:
            waiter(self)

    cdef int arm(self, double when) except -1:
        self.close()
        self.timer = self.loop.call_at(when, self.ring)
        self.timer_at = when
        return 0

    def ring(self):
        """Callback of the timer."""
        cdef double due = self.timer_at
        self.timer = None
        self.timer_at = INFINITY
        try:
            self.end_wait(due)
        except BaseException:
            self.end_wait(due)  # or the waiter would sleep past its deadline
            raise

    cdef int end_wait(self, double due) except -1:
        if self.deadline <= due:
            self.set()
        elif self.deadline < INFINITY:
            self.arm(self.deadline)
        return 0

    # -- what a task asks of a future ------------------------------------------------------------

    def __await__(self):
        self.begun = self.is_cancelled = False
        return self

    def __iter__(self):
        return self

    def __next__(self):
        if self.begun:
            raise StopIteration
        self.begun = self._asyncio_future_blocking = True
        return self

    def get_loop(self):
        return self.loop

    def add_done_callback(self, fn, *, context=None):
        self.waiter = fn
        self.context = context

    def cancel(self, msg=None):
        if self.waiter is None:
            return False
        self.is_cancelled = True
        self.schedule()
        return True

    def result(self):
        """What the task asks for when it runs again."""
        if self.is_cancelled:
            self.is_cancelled = False
            raise CancelledError
        return None
